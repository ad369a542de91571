package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Store is the folder that holds all runs of a user.
type Store struct {
	Home string
}

// DefaultHome is $MEMROOM_HOME, else $XDG_DATA_HOME/memroom, else ~/.local/share/memroom.
func DefaultHome() (string, error) {
	if home := os.Getenv("MEMROOM_HOME"); home != "" {
		return filepath.Abs(home)
	}
	if data := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(data) {
		return filepath.Join(data, "memroom"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", errors.New("no place for the record: set MEMROOM_HOME to a folder")
	}
	return filepath.Join(home, ".local", "share", "memroom"), nil
}

// Open makes sure that the store exists and is private.
func Open(home string) (*Store, error) {
	s := &Store{Home: home}
	if err := os.MkdirAll(s.runs(), 0o700); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	if err := os.Chmod(home, 0o700); err != nil && !errors.Is(err, os.ErrPermission) {
		return nil, fmt.Errorf("make the store private: %w", err)
	}
	return s, nil
}

func (s *Store) runs() string { return filepath.Join(s.Home, "runs") }

// Create makes the folder of a new run. Its name begins with the local time, so that names sort as
// they were made; three letters tell apart what was started in the same second.
func (s *Store) Create(now time.Time) (*Folder, error) {
	for try := range 100 {
		id := now.Format("20060102-150405-") + fractionLetters(now, try)
		dir := filepath.Join(s.runs(), id)
		switch err := os.Mkdir(dir, 0o700); {
		case err == nil:
			return &Folder{ID: id, Dir: dir}, nil
		case !errors.Is(err, os.ErrExist):
			return nil, fmt.Errorf("create run: %w", err)
		}
	}
	return nil, errors.New("create run: a hundred names in a row are taken")
}

// fractionLetters is the fraction of the second in three letters, so that IDs sort as the runs
// began: "the last run" is the last in that order. Each is 34 us; those that are taken give way to
// the next.
func fractionLetters(now time.Time, try int) string {
	// as bytes sort, without those that look alike
	const letters = "23456789abcdefghjkmnpqrstuvwxyz"
	const all = len(letters) * len(letters) * len(letters)
	n := (now.Nanosecond()/(int(time.Second)/all+1) + try) % all
	return string([]byte{letters[n/len(letters)/len(letters)], letters[n/len(letters)%len(letters)],
		letters[n%len(letters)]})
}

// Folder of a run by its ID, whether it exists or not.
func (s *Store) Folder(id string) *Folder {
	return &Folder{ID: id,
		Dir: filepath.Join(s.runs(), id)}
}

// IDs lists the runs on disk, oldest first.
func (s *Store) IDs() ([]string, error) {
	entries, err := os.ReadDir(s.runs())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list runs: %w", err)
	}
	var ids []string
	for _, e := range entries {
		if e.IsDir() {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}
