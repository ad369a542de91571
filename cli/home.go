package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"memroom/store"
)

// openStore opens the records for commands that only read: they make and change nothing.
func openStore() (*store.Store, error) {
	home, err := store.DefaultHome()
	if err != nil {
		return nil, err
	}
	return store.Read(home)
}

// changeStore opens the records for commands that delete or rebuild. There is nothing to delete
// where there is no home, so none is made.
func changeStore() (*store.Store, error) {
	kept, err := openStore()
	if err != nil || !kept.Exists() {
		return kept, err
	}
	return store.Open(kept.Home)
}

// newFolder makes a folder in the store, or where that cannot be written, somewhere that can: a
// training is not refused because its record cannot be kept.
func newFolder(s *session, now time.Time) (*store.Store, *store.Folder, error) {
	home, err := store.DefaultHome()
	if err == nil {
		var kept *store.Store
		var folder *store.Folder
		if kept, folder, err = createIn(home, now); err == nil {
			return kept, folder, nil
		}
	}
	for _, place := range otherHomes() {
		if kept, folder, failed := createIn(place, now); failed == nil {
			s.note("memroom: %v", err)
			s.note("memroom: this run is kept in %s (MEMROOM_HOME=%s memroom show)", folder.Dir,
				kept.Home)
			return kept, folder, nil
		}
	}
	return nil, nil, err
}

func createIn(home string, now time.Time) (*store.Store, *store.Folder, error) {
	kept, err := store.Open(home)
	if err != nil {
		return nil, nil, err
	}
	folder, err := kept.Create(now)
	return kept, folder, err
}

// otherHomes are tried in turn where the home cannot be used. Their names can be guessed and taken
// by others: then they are refused.
func otherHomes() []string {
	name := fmt.Sprintf("memroom-%d", os.Geteuid())
	return []string{filepath.Join(os.TempDir(), name), filepath.Join("/dev/shm", name),
		filepath.Join(os.TempDir(), fmt.Sprintf("%s-%d", name, time.Now().UnixNano()))}
}
