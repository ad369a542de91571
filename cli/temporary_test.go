package cli

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestAbandonedFoldersAreRemoved: what a killed command left goes; what somebody holds, what is too
// young to be held, and what is not ours stays.
func TestAbandonedFoldersAreRemoved(t *testing.T) {
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	held, remove, err := temporaryFolder("serve")
	if err != nil {
		t.Fatal(err)
	}
	long := time.Now().Add(-time.Hour)
	aged := func(name string, make func(path string) error) string {
		path := filepath.Join(temporary, name)
		if err := make(path); err != nil {
			t.Fatal(err)
		}
		_ = os.Chtimes(path, long, long)
		return path
	}
	folder := func(path string) error { return os.MkdirAll(filepath.Join(path, "in", "it"), 0o700) }
	elsewhere := t.TempDir()
	stays := []string{held, elsewhere,
		aged("memroom-service-1", folder), aged("memroom-serve-1 2", folder), aged("memroom-lint", folder),
		aged("memroom-lint-5", func(path string) error { return os.WriteFile(path, nil, 0o600) }),
		aged("memroom-model-5", func(path string) error { return os.Symlink(elsewhere, path) })}
	if os.Geteuid() == 0 {
		stays = append(stays, aged("memroom-lint-6", func(path string) error {
			_ = os.Mkdir(path, 0o700)
			return os.Chown(path, 65534, 65534)
		}))
	}
	goes := []string{aged("memroom-serve-1", folder), aged("memroom-tune-a_b7", folder)}
	young := filepath.Join(temporary, "memroom-serve-7")
	if err := os.Mkdir(young, 0o700); err != nil {
		t.Fatal(err)
	}
	stays = append(stays, young)
	_ = os.Chtimes(held, long, long)
	another, removeAnother, err := temporaryFolder("lint")
	if err != nil {
		t.Fatal(err)
	}
	defer removeAnother()
	for _, path := range append(stays, another) {
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("%s is gone", path)
		}
	}
	remove()
	for _, path := range append(goes, held) {
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("%s is left", path)
		}
	}
}
