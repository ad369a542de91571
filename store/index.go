package store

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"
)

// schemaVersion is raised with every change of the schema: an index of another version is thrown
// away and built again.
const schemaVersion = 2

const schema = `
CREATE TABLE runs (
	id       TEXT PRIMARY KEY,
	stamp    TEXT NOT NULL,    -- of the folder's files when the row was read
	started  INTEGER NOT NULL, -- Unix milliseconds
	status   TEXT NOT NULL,
	name     TEXT NOT NULL,
	is_oom   INTEGER NOT NULL,
	failed   INTEGER NOT NULL,
	row      TEXT NOT NULL     -- JSON of Row
) WITHOUT ROWID;
CREATE TABLE tags (id TEXT NOT NULL, tag TEXT NOT NULL, PRIMARY KEY (tag, id)) WITHOUT ROWID;
CREATE INDEX runs_started ON runs(started);
CREATE INDEX runs_name ON runs(name);
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

// List gives runs, newest first. The index is brought up to date with the folders first; where it
// cannot be used at all the folders are read directly, which is slower and otherwise the same.
func (s *Store) List(filter Filter) ([]Row, error) {
	ids, err := s.IDs()
	if err != nil {
		return nil, err
	}
	rows, err := s.fromIndex(ids, filter)
	if err != nil {
		rows = s.fromFolders(ids, filter)
	}
	return rows, nil
}

func (s *Store) fromFolders(ids []string, filter Filter) []Row {
	var rows []Row
	for _, id := range slices.Backward(ids) {
		row := s.Folder(id).Row()
		if filter.accepts(row) {
			rows = append(rows, row)
		}
		if filter.Limit > 0 && len(rows) == filter.Limit {
			break
		}
	}
	return rows
}

func (f Filter) accepts(r Row) bool {
	failed := r.Status == Lost || r.ExitCode != nil && *r.ExitCode != 0
	return (f.Name == "" || f.Name == r.Name) && (f.Group == "" || f.Group == r.Group) &&
		(f.Tag == "" || slices.Contains(r.Tags, f.Tag)) && (!f.OOM || r.IsOOM) &&
		(!f.Failed || failed) && (!f.Active || r.Status == Running)
}

// Reindex throws the index away and builds it again from the folders.
func (s *Store) Reindex() (runs int, err error) {
	s.dropIndex()
	ids, err := s.IDs()
	if err != nil {
		return 0, err
	}
	_, err = s.fromIndex(ids, Filter{})
	return len(ids), err
}

func (s *Store) indexPath() string { return filepath.Join(s.Home, "index.sqlite") }

func (s *Store) dropIndex() {
	for _, suffix := range []string{"", "-wal", "-shm", "-journal"} {
		_ = os.Remove(s.indexPath() + suffix)
	}
}

// fromIndex reads through the index. One that is damaged is thrown away and built once more.
func (s *Store) fromIndex(ids []string, filter Filter) ([]Row, error) {
	rows, err := s.query(ids, filter)
	if err == nil {
		return rows, nil
	}
	switch sqlite.ErrCode(err).ToPrimary() {
	case sqlite.ResultCorrupt, sqlite.ResultNotADB, sqlite.ResultError, sqlite.ResultSchema,
		sqlite.ResultConstraint:
		s.dropIndex()
		return s.query(ids, filter)
	}
	return nil, err
}

func (s *Store) query(ids []string, filter Filter) ([]Row, error) {
	conn, err := s.openIndex()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := s.update(conn, ids); err != nil {
		return nil, err
	}
	return selectRows(conn, filter)
}

// openIndex opens the file and makes sure of its schema. A write-ahead log needs memory shared
// between processes, which network file systems do not have.
func (s *Store) openIndex() (*sqlite.Conn, error) {
	conn, err := sqlite.OpenConn(s.indexPath(), sqlite.OpenReadWrite|sqlite.OpenCreate)
	if err != nil {
		return nil, fmt.Errorf("open index: %w", err)
	}
	conn.SetBusyTimeout(5 * time.Second)
	if err := prepareIndex(conn, s.Home); err != nil {
		conn.Close()
		return nil, fmt.Errorf("open index: %w", err)
	}
	_ = os.Chmod(s.indexPath(), 0o600)
	return conn, nil
}

func prepareIndex(conn *sqlite.Conn, home string) (err error) {
	journal := "PRAGMA journal_mode = WAL"
	if onNetwork(home) {
		journal = "PRAGMA journal_mode = DELETE"
	}
	if err := sqlitex.ExecuteTransient(conn, journal, nil); err != nil {
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
	if err := sqlitex.ExecuteScript(conn,
		"DROP TABLE IF EXISTS runs; DROP TABLE IF EXISTS tags;"+schema, nil); err != nil {
		return err
	}
	return sqlitex.ExecuteTransient(conn, fmt.Sprintf("PRAGMA user_version = %d", schemaVersion),
		nil)
}

// update makes the index agree with the folders: in short transactions, so that two commands can do
// it at once.
func (s *Store) update(conn *sqlite.Conn, ids []string) error {
	known := map[string]string{}
	err := sqlitex.Execute(conn, "SELECT id, stamp, status FROM runs",
		&sqlitex.ExecOptions{ResultFunc: func(st *sqlite.Stmt) error {
			known[st.ColumnText(0)] = st.ColumnText(1)
			if Status(st.ColumnText(2)) == Running { // may have died without writing anything
				known[st.ColumnText(0)] = ""
			}
			return nil
		}})
	if err != nil {
		return err
	}
	var changed []*Folder
	for _, id := range ids {
		folder := s.Folder(id)
		if stamp := folder.stamp(); known[id] != stamp {
			changed = append(changed, folder)
		}
		delete(known, id)
	}
	for chunk := range slices.Chunk(changed, 100) {
		if err := saveRows(conn, chunk); err != nil {
			return err
		}
	}
	for id := range known {
		if err := forgetRow(conn, id); err != nil {
			return err
		}
	}
	return nil
}

func saveRows(conn *sqlite.Conn, folders []*Folder) (err error) {
	end, err := sqlitex.ImmediateTransaction(conn)
	if err != nil {
		return err
	}
	defer end(&err)
	for _, f := range folders {
		stamp, row := f.stamp(), f.Row()
		failed := row.Status == Lost || row.ExitCode != nil && *row.ExitCode != 0
		err := sqlitex.Execute(conn, "INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
			&sqlitex.ExecOptions{
				Args: []any{f.ID, stamp, row.Started.UnixMilli(), string(row.Status), row.Name,
					row.IsOOM, failed, row.json()}})
		if err != nil {
			return err
		}
		if err := sqlitex.Execute(conn, "DELETE FROM tags WHERE id = ?",
			&sqlitex.ExecOptions{Args: []any{f.ID}}); err != nil {
			return err
		}
		for _, tag := range row.Tags {
			if err := sqlitex.Execute(conn, "INSERT OR IGNORE INTO tags VALUES (?, ?)",
				&sqlitex.ExecOptions{Args: []any{f.ID, tag}}); err != nil {
				return err
			}
		}
	}
	return nil
}

func forgetRow(conn *sqlite.Conn, id string) (err error) {
	end, err := sqlitex.ImmediateTransaction(conn)
	if err != nil {
		return err
	}
	defer end(&err)
	for _, statement := range []string{"DELETE FROM runs WHERE id = ?",
		"DELETE FROM tags WHERE id = ?"} {
		if err := sqlitex.Execute(conn, statement,
			&sqlitex.ExecOptions{Args: []any{id}}); err != nil {
			return err
		}
	}
	return nil
}

func selectRows(conn *sqlite.Conn, filter Filter) ([]Row, error) {
	where, args := []string{"1"}, []any{}
	add := func(condition string, values ...any) {
		where, args = append(where, condition),
			append(args, values...)
	}
	if filter.Name != "" {
		add("name = ?", filter.Name)
	}
	if filter.Tag != "" {
		add("id IN (SELECT id FROM tags WHERE tag = ?)", filter.Tag)
	}
	if filter.Group != "" {
		add("json_extract(row, '$.group') = ?", filter.Group)
	}
	if filter.OOM {
		add("is_oom")
	}
	if filter.Failed {
		add("failed")
	}
	if filter.Active {
		add("status = 'running'")
	}
	statement := "SELECT row FROM runs WHERE " + strings.Join(where, " AND ") +
		" ORDER BY started DESC, id DESC"
	if filter.Limit > 0 {
		statement += fmt.Sprintf(" LIMIT %d", filter.Limit)
	}
	var rows []Row
	err := sqlitex.Execute(conn, statement, &sqlitex.ExecOptions{Args: args,
		ResultFunc: func(st *sqlite.Stmt) error {
			var row Row
			if err := json.Unmarshal([]byte(st.ColumnText(0)), &row); err != nil {
				return err
			}
			rows = append(rows, row)
			return nil
		}})
	return rows, err
}
