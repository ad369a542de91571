package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// temporaryFolder makes a private folder for the time that a command runs. The command holds a lock
// on it, which ends with the process however that ends: the next command removes what is left.
func temporaryFolder(kind string) (dir string, remove func(), err error) {
	removeAbandoned(os.TempDir(), time.Now())
	dir, err = os.MkdirTemp("", "memroom-"+kind+"-")
	if err != nil {
		return "", nil, err
	}
	held, err := os.Open(dir)
	if err != nil {
		_ = os.Remove(dir)
		return "", nil, err
	}
	// Where a file system has no locks nobody can take one, and what is left stays.
	_ = unix.Flock(int(held.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	return dir, func() {
		_ = os.RemoveAll(dir)
		_ = held.Close()
	}, nil
}

// lockedName matches folders on which their makers hold a lock: temporaryFolder's, and those of
// memroom.tune (study.py).
var lockedName = regexp.MustCompile(`^memroom-(serve|calibrate|check|estimate|lint|model|rehearsal|tune)-\w+$`)

// beforeLock is how long a folder may exist before its maker has locked it.
const beforeLock = time.Minute

// removeAbandoned removes folders of this user's commands that were killed.
func removeAbandoned(temporary string, now time.Time) {
	entries, err := os.ReadDir(temporary)
	if err != nil {
		return
	}
	for _, e := range entries {
		if !e.IsDir() || !lockedName.MatchString(e.Name()) {
			continue
		}
		info, err := e.Info()
		if err != nil || now.Sub(info.ModTime()) < beforeLock {
			continue
		}
		if st, ok := info.Sys().(*syscall.Stat_t); !ok || int(st.Uid) != os.Geteuid() {
			continue
		}
		removeUnheld(filepath.Join(temporary, e.Name()))
	}
}

func removeUnheld(dir string) {
	file, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return
	}
	defer file.Close()
	if unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
		_ = os.RemoveAll(dir)
	}
}
