package central

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zombiezen.com/go/sqlite/sqlitex"
)

// TestTablesOfOtherVersions: a new database records its version, once. A database of a newer
// memroom is left alone. Nobody else may read it.
func TestTablesOfOtherVersions(t *testing.T) {
	path := filepath.Join(t.TempDir(), "central.sqlite")
	for range 2 {
		db, err := openSQLite(path)
		if err != nil {
			t.Fatal(err)
		}
		rows, err := sqlitex.ResultInt64(db.conn.Prep("SELECT count(*) FROM memroom_meta"))
		if err != nil || rows != 1 {
			t.Errorf("%d versions are written down, %v", rows, err)
		}
		version, err := sqlitex.ResultInt64(db.conn.Prep("SELECT version FROM memroom_meta"))
		if err != nil || version != tablesVersion {
			t.Errorf("version %d, %v", version, err)
		}
		if err := db.conn.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	db, err := openSQLite(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := sqlitex.Execute(db.conn, "UPDATE memroom_meta SET version = 2", nil); err != nil {
		t.Fatal(err)
	}
	if err := db.conn.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := openSQLite(path); err == nil || !strings.Contains(err.Error(), "newer memroom") {
		t.Errorf("tables of a newer one: %v", err)
	}
	if _, err := openSQLite(filepath.Join(t.TempDir(), "none", "central.sqlite")); err == nil {
		t.Error("opened in a folder that is not there")
	}
}
