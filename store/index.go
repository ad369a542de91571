package store

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"
)

// schemaVersion is raised with every change of the schema: an index of another version is thrown
// away and built again.
const schemaVersion = 3

const schema = `
DROP TABLE IF EXISTS tags;
DROP TABLE IF EXISTS runs;
CREATE TABLE runs (
	id    TEXT PRIMARY KEY,
	stamp TEXT NOT NULL, -- of the folder's files when the row was read
	row   TEXT NOT NULL  -- JSON of Row
) WITHOUT ROWID;
`

// Filter chooses runs. The zero value is all of them.
type Filter struct {
	Name   string
	Tag    string
	Group  string
	OOM    bool // only those that ran out of memory
	Failed bool
	Active bool // only those that are running
	Limit  int  // newest so many; 0: all
}

func (f Filter) accepts(r Row) bool {
	return (f.Name == "" || f.Name == r.Name) && (f.Group == "" || f.Group == r.Group) &&
		(f.Tag == "" || slices.Contains(r.Tags, f.Tag)) && (!f.OOM || r.IsOOM) &&
		(!f.Failed || r.failed()) && (!f.Active || r.Status == Running)
}

// List returns runs, newest first. It writes nothing: rows that the index does not have, or has
// from before the folder changed, are read from the folders.
func (s *Store) List(filter Filter) ([]Row, error) {
	return s.ListWhile(context.Background(), filter)
}

// ListWhile is List for somebody who may leave before it is done.
func (s *Store) ListWhile(ctx context.Context, filter Filter) ([]Row, error) {
	ids, err := s.IDs()
	if err != nil {
		return nil, err
	}
	known := s.readIndex()
	var rows []Row
	for _, id := range ids {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		folder := s.Folder(id)
		row, ok := known.row(folder, folder.stamp())
		if !ok {
			row = folder.Row()
		}
		if filter.accepts(row) {
			rows = append(rows, row)
		}
	}
	slices.SortStableFunc(rows, func(a, b Row) int {
		return cmp.Or(b.Started.Compare(a.Started), cmp.Compare(b.ID, a.ID))
	})
	if filter.Limit > 0 && len(rows) > filter.Limit {
		rows = rows[:filter.Limit]
	}
	return rows, nil
}

// indexed is what the index knows: rows of runs that are over, by ID.
type indexed map[string]struct {
	stamp string
	row   string // JSON of Row
}

// row returns the row of a folder that has not changed since it was indexed.
func (x indexed) row(f *Folder, stamp string) (row Row, ok bool) {
	known, ok := x[f.ID]
	if !ok || known.stamp != stamp {
		return row, false
	}
	err := json.Unmarshal([]byte(known.row), &row)
	return row, err == nil && row.ID == f.ID
}

// readIndex reads the index without changing it. Where that fails, for whatever reason, nothing is
// known and in the folders.
func (s *Store) readIndex() indexed {
	conn, err := sqlite.OpenConn(s.indexPath(), sqlite.OpenReadOnly)
	if err != nil {
		return nil
	}
	defer conn.Close()
	conn.SetBusyTimeout(busyFor)
	known, err := readRows(conn)
	if err != nil {
		return nil
	}
	return known
}

// busyFor is how long one memroom waits for another that writes the index.
const busyFor = 5 * time.Second

func readRows(conn *sqlite.Conn) (indexed, error) {
	version, err := sqlitex.ResultInt64(conn.Prep("PRAGMA user_version"))
	if err != nil || version != schemaVersion {
		return nil, err
	}
	known := indexed{}
	err = sqlitex.Execute(conn, "SELECT id, stamp, row FROM runs",
		&sqlitex.ExecOptions{ResultFunc: func(st *sqlite.Stmt) error {
			entry := known[st.ColumnText(0)]
			entry.stamp, entry.row = st.ColumnText(1), st.ColumnText(2)
			known[st.ColumnText(0)] = entry
			return nil
		}})
	return known, err
}

// Reindex throws the index away and builds it again from the folders.
func (s *Store) Reindex() (runs int, err error) {
	if s.readOnly {
		return 0, fmt.Errorf("%s was opened to look at it, nothing in it is changed", s.Home)
	}
	s.dropIndex()
	return s.Refresh(math.MaxInt)
}

// Refresh brings the index up to date with the folders, so that lists are quick. It reads at most
// so many folders, the newest first, and returns how many it read. What is left over waits for the
// next time.
func (s *Store) Refresh(most int) (read int, err error) {
	if s.readOnly {
		return 0, fmt.Errorf("%s was opened to look at it, nothing in it is changed", s.Home)
	}
	ids, err := s.IDs()
	if err != nil {
		return 0, err
	}
	read, err = s.refresh(ids, most)
	switch sqlite.ErrCode(err).ToPrimary() {
	case sqlite.ResultCorrupt, sqlite.ResultNotADB, sqlite.ResultError, sqlite.ResultSchema,
		sqlite.ResultConstraint: // damaged: it is only a cache
		s.dropIndex()
		read, err = s.refresh(ids, most)
	}
	return read, err
}

// stillChanging is how many of the newest runs are compared with their rows: older ones hardly ever
// change once they are over, and List compares all.
const stillChanging = 100

func (s *Store) refresh(ids []string, most int) (read int, err error) {
	conn, err := s.openIndex()
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	known, err := readRows(conn)
	if err != nil {
		return 0, err
	}
	gone := map[string]bool{}
	for id := range known {
		gone[id] = true
	}
	var changed []*Folder
	for i, id := range slices.Backward(ids) {
		folder := s.Folder(id)
		entry, have := known[id]
		if len(changed) < most &&
			(!have || i >= len(ids)-stillChanging && entry.stamp != folder.stamp()) {
			changed = append(changed, folder)
		}
		delete(gone, id)
	}
	// in short transactions, so that two commands can do it at once
	for chunk := range slices.Chunk(changed, 100) {
		if err := saveRows(conn, chunk); err != nil {
			return read, err
		}
		read += len(chunk)
	}
	return read, forgetRows(conn, gone)
}

func (s *Store) indexPath() string { return filepath.Join(s.Home, "index.sqlite") }

func (s *Store) dropIndex() {
	for _, suffix := range []string{"", "-wal", "-shm", "-journal"} {
		_ = os.Remove(s.indexPath() + suffix)
	}
}

// openIndex opens the file to write, and makes sure of its schema. SQLite makes new files readable
// for all: this one is made before, private.
func (s *Store) openIndex() (*sqlite.Conn, error) {
	file, err := os.OpenFile(s.indexPath(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("the list of runs cannot be opened: %w; `memroom runs --reindex` "+
			"builds it "+
			"again", err)
	}
	file.Close()
	conn, err := sqlite.OpenConn(s.indexPath(), sqlite.OpenReadWrite)
	if err != nil {
		return nil, fmt.Errorf("the list of runs cannot be opened: %w; `memroom runs --reindex` "+
			"builds it "+
			"again", err)
	}
	conn.SetBusyTimeout(busyFor)
	if err := prepareIndex(conn); err != nil {
		conn.Close()
		return nil, fmt.Errorf("the list of runs cannot be opened: %w; `memroom runs --reindex` "+
			"builds it "+
			"again", err)
	}
	return conn, nil
}

// prepareIndex makes the tables. There is no write-ahead log: it needs memory shared between
// processes, which network file systems do not have, and readers would have to write.
func prepareIndex(conn *sqlite.Conn) (err error) {
	if err := sqlitex.ExecuteTransient(conn, "PRAGMA journal_mode = DELETE", nil); err != nil {
		return err
	}
	health, err := sqlitex.ResultText(conn.Prep("PRAGMA quick_check(1)"))
	if err == nil && health != "ok" {
		err = sqlite.ResultCorrupt.ToError()
	}
	if err != nil {
		return err
	}
	end, err := sqlitex.ImmediateTransaction(conn)
	if err != nil {
		return err
	}
	defer end(&err)
	version, err := sqlitex.ResultInt64(conn.Prep("PRAGMA user_version"))
	if err != nil || version == schemaVersion {
		return err
	}
	if err := sqlitex.ExecuteScript(conn, schema, nil); err != nil {
		return err
	}
	return sqlitex.ExecuteTransient(conn, fmt.Sprintf("PRAGMA user_version = %d", schemaVersion),
		nil)
}

// saveRows keeps the rows of runs that are over. The others may change without a trace in the files
// that make up the stamp: a keeper dies, a machine far away goes on writing.
func saveRows(conn *sqlite.Conn, folders []*Folder) (err error) {
	end, err := sqlitex.ImmediateTransaction(conn)
	if err != nil {
		return err
	}
	defer end(&err)
	for _, f := range folders {
		stamp, row := f.stamp(), f.Row()
		if row.Status == Running || row.Status == Lost && (row.Reported || elsewhere(row.Host)) {
			continue
		}
		text, err := json.Marshal(row)
		if err != nil {
			return err
		}
		if err := sqlitex.Execute(conn, "INSERT OR REPLACE INTO runs VALUES (?, ?, ?)",
			&sqlitex.ExecOptions{Args: []any{f.ID, stamp, string(text)}}); err != nil {
			return err
		}
	}
	return nil
}

func forgetRows(conn *sqlite.Conn, ids map[string]bool) (err error) {
	end, err := sqlitex.ImmediateTransaction(conn)
	if err != nil {
		return err
	}
	defer end(&err)
	for id := range ids {
		if err := sqlitex.Execute(conn, "DELETE FROM runs WHERE id = ?",
			&sqlitex.ExecOptions{Args: []any{id}}); err != nil {
			return err
		}
	}
	return nil
}
