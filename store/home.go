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

	readOnly bool // opened by Read: nothing below Home is written
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
		return "", errors.New("there is no home folder to keep records in (HOME is not set): set " +
			"MEMROOM_HOME to a folder")
	}
	return filepath.Join(home, ".local", "share", "memroom"), nil
}

// Open opens a store to write to it. It makes the folder where there is none, and takes over an
// empty one. It refuses a folder that belongs to somebody else, that others may write to, or that
// holds other things ([Foreign]).
func Open(home string) (*Store, error) {
	if err := checkLinks(home); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(home), 0o700); err != nil {
		return nil, unusable(err)
	}
	if err := os.Mkdir(home, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, unusable(err)
	}
	if err := checkPrivate(home); err != nil {
		return nil, err
	}
	if err := claim(home); err != nil {
		return nil, err
	}
	s := &Store{Home: home}
	if err := os.Mkdir(s.runs(), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, unusable(err)
	}
	// The home is private, so a link in place of runs/ is the user's own doing: a larger disk.
	return s, nil
}

// Read opens a store to look at it. Nothing is made or changed, so that it works on a disk that
// cannot be written and in a folder of another user. A home that does not exist has no runs.
func Read(home string) (*Store, error) {
	s := &Store{Home: home, readOnly: true}
	switch _, err := os.Stat(home); {
	case errors.Is(err, os.ErrNotExist):
		return s, nil
	case err != nil:
		return nil, unusable(err)
	}
	if err := checkLinks(home); err != nil {
		return nil, err
	}
	if _, err := recognise(home); err != nil {
		return nil, err
	}
	return s, nil
}

// Exists reports whether there is a store at all; [Read] accepts a home that is not there.
func (s *Store) Exists() bool {
	info, err := os.Stat(s.Home)
	return err == nil && info.IsDir()
}

func (s *Store) runs() string { return filepath.Join(s.Home, "runs") }

// idTime is how an ID begins: the local time of the start.
const idTime = "20060102-150405"

// idLetters are the characters of an ID's end, in the order in which bytes sort and without those
// that look alike.
const idLetters = "23456789abcdefghjkmnpqrstuvwxyz"

// Create makes the folder of a new run. Its name begins with the local time, so that names sort as
// they were made; three letters distinguish runs of the same second.
func (s *Store) Create(now time.Time) (*Folder, error) {
	for try := range 100 {
		id := now.Format(idTime) + "-" + fractionLetters(now, try)
		dir := filepath.Join(s.runs(), id)
		switch err := os.Mkdir(dir, 0o700); {
		case err == nil:
			return &Folder{ID: id, Dir: dir}, nil
		case !errors.Is(err, os.ErrExist):
			return nil, fmt.Errorf("the folder of a new run cannot be made: %w; make room there, or "+
				elsewhereFix, err)
		}
	}
	return nil, errors.New("the folder of a new run cannot be made: a hundred names in a row " +
		"are taken; start it again in a second")
}

// fractionLetters is the fraction of the second in three letters, so that IDs sort as the runs
// began: "the last run" is the last in that order. Each is 34 us; those that are taken give way to
// the next.
func fractionLetters(now time.Time, try int) string {
	const all = len(idLetters) * len(idLetters) * len(idLetters)
	n := (now.Nanosecond()/(int(time.Second)/all+1) + try) % all
	return string([]byte{idLetters[n/len(idLetters)/len(idLetters)],
		idLetters[n/len(idLetters)%len(idLetters)], idLetters[n%len(idLetters)]})
}

// ValidID reports whether a name has the form that [Store.Create] uses. Earlier versions used any
// three letters or digits.
func ValidID(name string) bool {
	if len(name) != len(idTime)+4 || name[len(idTime)] != '-' {
		return false
	}
	for _, c := range []byte(name[len(idTime)+1:]) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') {
			return false
		}
	}
	_, err := time.Parse(idTime, name[:len(idTime)])
	return err == nil
}

// Folder of a run by its ID, whether it exists or not.
func (s *Store) Folder(id string) *Folder {
	return &Folder{ID: id, Dir: filepath.Join(s.runs(), id)}
}

// IDs lists the runs on disk, oldest first. Other entries of the folder are not ours.
func (s *Store) IDs() ([]string, error) {
	entries, err := os.ReadDir(s.runs())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the runs cannot be listed: %w", err)
	}
	var ids []string
	for _, e := range entries {
		if e.IsDir() && ValidID(e.Name()) {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}
