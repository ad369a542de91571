package central

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"memroom/relay"
)

// tables are the same in both databases but for the name of a type: BLOB here, BYTEA there.
const tables = `
CREATE TABLE IF NOT EXISTS memroom_meta (version INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS memroom_runs (
	key      TEXT PRIMARY KEY,     -- made up by the sender
	id       TEXT NOT NULL UNIQUE, -- here
	sent     TEXT NOT NULL,        -- on its own machine
	host     TEXT NOT NULL,
	ahead_ms BIGINT NOT NULL,      -- the sender's clock
	first_ms BIGINT NOT NULL       -- since 1970, by the server's clock
);
CREATE TABLE IF NOT EXISTS memroom_files (
	key  TEXT NOT NULL,
	name TEXT NOT NULL,
	size BIGINT NOT NULL,
	PRIMARY KEY (key, name)
);
CREATE TABLE IF NOT EXISTS memroom_pieces (
	key  TEXT NOT NULL,
	name TEXT NOT NULL,
	at   BIGINT NOT NULL,
	data %s NOT NULL,              -- gzip
	PRIMARY KEY (key, name, at)
);
`

// tablesVersion is raised when a memroom of before could not read the tables any more.
const tablesVersion = 1

// keyed are the tables that hold something of a run.
var keyed = []string{"memroom_pieces", "memroom_files", "memroom_runs"}

type sqliteDB struct {
	conn *sqlite.Conn
	path string
}

// openSQLite opens the file for this process alone.
func openSQLite(path string) (*sqliteDB, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600) // SQLite makes files for all to read
	if err != nil {
		return nil, fmt.Errorf("the database of reports %s cannot be opened: %w", path, err)
	}
	file.Close()
	conn, err := sqlite.OpenConn(path, sqlite.OpenReadWrite)
	if err != nil {
		return nil, fmt.Errorf("the database of reports %s cannot be opened: %w", path, err)
	}
	db := &sqliteDB{conn, path}
	conn.SetBusyTimeout(time.Second)
	for _, text := range []string{"PRAGMA locking_mode = EXCLUSIVE", "PRAGMA journal_mode = WAL",
		"PRAGMA synchronous = FULL"} { // what is acknowledged survives a power cut
		if err := sqlitex.ExecuteTransient(conn, text, nil); err != nil {
			conn.Close()
			return nil, fmt.Errorf("the database of reports %s cannot be opened: %w", path, db.meaning(err))
		}
	}
	if err := db.prepare(); err != nil {
		conn.Close()
		return nil, fmt.Errorf("the database of reports %s cannot be opened: %w", path, err)
	}
	return db, nil
}

func (d *sqliteDB) prepare() (err error) {
	end, err := sqlitex.ImmediateTransaction(d.conn)
	if err != nil {
		return d.meaning(err)
	}
	defer func() { end(&err); err = d.meaning(err) }()
	if err := sqlitex.ExecuteScript(d.conn, fmt.Sprintf(tables, "BLOB"), nil); err != nil {
		return err
	}
	version := int64(0)
	err = sqlitex.Execute(d.conn, "SELECT version FROM memroom_meta", &sqlitex.ExecOptions{
		ResultFunc: func(st *sqlite.Stmt) error { version = st.ColumnInt64(0); return nil }})
	switch {
	case err != nil:
		return err
	case version > tablesVersion:
		return newerTables(version)
	case version == 0:
		return sqlitex.Execute(d.conn, "INSERT INTO memroom_meta VALUES (?)",
			&sqlitex.ExecOptions{Args: []any{tablesVersion}})
	}
	return nil
}

func newerTables(version int64) error {
	return fmt.Errorf("the database was written by a newer memroom (format %d, this one knows %d): "+
		"use that one, or another --db", version, tablesVersion)
}

func (d *sqliteDB) load() (rows []row, files map[string]map[string]int64, err error) {
	err = sqlitex.Execute(d.conn,
		"SELECT key, id, sent, host, ahead_ms, first_ms FROM memroom_runs",
		&sqlitex.ExecOptions{ResultFunc: func(st *sqlite.Stmt) error {
			rows = append(rows, row{st.ColumnText(0), st.ColumnText(1), st.ColumnText(2),
				st.ColumnText(3), st.ColumnInt64(4), time.UnixMilli(st.ColumnInt64(5))})
			return nil
		}})
	if err != nil {
		return nil, nil, d.meaning(err)
	}
	files = map[string]map[string]int64{}
	err = sqlitex.Execute(d.conn, "SELECT key, name, size FROM memroom_files",
		&sqlitex.ExecOptions{ResultFunc: func(st *sqlite.Stmt) error {
			addFile(files, st.ColumnText(0), st.ColumnText(1), st.ColumnInt64(2))
			return nil
		}})
	return rows, files, d.meaning(err)
}

// addFile leaves out names that this version would not have taken.
func addFile(files map[string]map[string]int64, key, name string, size int64) {
	if relay.Kept(name) == relay.Left {
		return
	}
	if files[key] == nil {
		files[key] = map[string]int64{}
	}
	files[key][name] = size
}

func (d *sqliteDB) create(r row) error {
	return d.meaning(sqlitex.Execute(d.conn, "INSERT INTO memroom_runs VALUES (?, ?, ?, ?, ?, ?)",
		&sqlitex.ExecOptions{Args: []any{r.Key, r.ID, r.Sent, r.Host, r.Ahead,
			r.First.UnixMilli()}}))
}

func (d *sqliteDB) add(key string, frames []relay.Frame, sizes map[string]int64) (err error) {
	end, err := sqlitex.ImmediateTransaction(d.conn)
	if err != nil {
		return d.meaning(err)
	}
	defer func() { end(&err); err = d.meaning(err) }()
	for _, f := range frames {
		data, err := pack(f.Data)
		if err != nil {
			return err
		}
		if err := sqlitex.Execute(d.conn, "INSERT OR REPLACE INTO memroom_pieces VALUES (?, ?, ?, ?)",
			&sqlitex.ExecOptions{Args: []any{key, f.File, f.At, data}}); err != nil {
			return err
		}
	}
	for name, size := range sizes {
		if err := sqlitex.Execute(d.conn, "INSERT OR REPLACE INTO memroom_files VALUES (?, ?, ?)",
			&sqlitex.ExecOptions{Args: []any{key, name, size}}); err != nil {
			return err
		}
	}
	return nil
}

func (d *sqliteDB) pieces(key, file string, yield func([]byte) error) error {
	return d.meaning(sqlitex.Execute(d.conn,
		"SELECT data FROM memroom_pieces WHERE key = ? AND name = ? ORDER BY at",
		&sqlitex.ExecOptions{Args: []any{key, file}, ResultFunc: func(st *sqlite.Stmt) error {
			packed := make([]byte, st.ColumnLen(0))
			st.ColumnBytes(0, packed)
			data, err := unpack(packed)
			if err != nil {
				return err
			}
			return yield(data)
		}}))
}

func (d *sqliteDB) remove(key string) (err error) {
	end, err := sqlitex.ImmediateTransaction(d.conn)
	if err != nil {
		return d.meaning(err)
	}
	defer func() { end(&err); err = d.meaning(err) }()
	for _, table := range keyed {
		if err := sqlitex.Execute(d.conn, "DELETE FROM "+table+" WHERE key = ?",
			&sqlitex.ExecOptions{Args: []any{key}}); err != nil {
			return err
		}
	}
	return nil
}

func (d *sqliteDB) close() error { return d.conn.Close() }

// meaning turns an error of SQLite into one that a sender can act on.
func (d *sqliteDB) meaning(err error) error {
	switch code := sqlite.ErrCode(err); code.ToPrimary() {
	case sqlite.ResultFull:
		return fmt.Errorf("%w: %v", ErrFull, err)
	case sqlite.ResultIOErr:
		// SQLite knows a full disk by one error of the system alone: a quota that is used up, or no
		// room for the file that its readers share, is an I/O error like those of a broken disk.
		if fullDisk(room(filepath.Dir(d.path))) {
			return fmt.Errorf("%w: %v", ErrFull, err)
		}
		return fmt.Errorf("%w: %s %s (%v): look at the disk and at the kernel's log", ErrAway, d.path,
			failing(code), err)
	case sqlite.ResultBusy, sqlite.ResultLocked:
		return fmt.Errorf("%w: another memroom serve has it open: end that one first", ErrAway)
	}
	if fullDisk(err) {
		return fmt.Errorf("%w: %v", ErrFull, err)
	}
	return err
}

// failing returns the error for a file that cannot be used.
func failing(code sqlite.ResultCode) string {
	switch code {
	case sqlite.ResultIOErrRead, sqlite.ResultIOErrShortRead, sqlite.ResultIOErrFstat,
		sqlite.ResultIOErrSeek:
		return "cannot be read"
	case sqlite.ResultIOErrWrite, sqlite.ResultIOErrFsync, sqlite.ResultIOErrDirFsync,
		sqlite.ResultIOErrTruncate:
		return "cannot be written"
	case sqlite.ResultIOErrLock, sqlite.ResultIOErrUnlock, sqlite.ResultIOErrReadLock,
		sqlite.ResultIOErrCheckReservedLock, sqlite.ResultIOErrSHMLock:
		return "cannot be locked"
	case sqlite.ResultIOErrNoMem:
		return "cannot be read or written: the system has no memory left"
	}
	return "cannot be read or written"
}

// room writes a small file in the same folder and removes it again: the error names the reason why
// nothing fits.
func room(folder string) error {
	file, err := os.CreateTemp(folder, "central-room-")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	_, err = file.Write(make([]byte, 64<<10))
	return errors.Join(err, file.Close())
}
