package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// checkPrivate refuses a folder that somebody else owns or may write to: what lies in it decides
// which Python runs next to a training, and which folders are deleted.
func checkPrivate(home string) error {
	info, err := os.Stat(home)
	if err != nil {
		return unusable(err)
	}
	if !info.IsDir() {
		return &Foreign{Home: home, Why: "it is a file, not a folder", Fix: elsewhereFix}
	}
	if owner := ownerOf(info); owner != os.Geteuid() {
		return &Foreign{Home: home, Fix: elsewhereFix,
			Why: fmt.Sprintf("it belongs to user %d, and this is user %d", owner, os.Geteuid())}
	}
	if mode := info.Mode().Perm(); mode&0o022 != 0 {
		why := fmt.Sprintf("others may write to it (mode %#o)", mode)
		if info.Mode()&os.ModeSticky != 0 {
			return &Foreign{Home: home, Why: why + ": it is a shared folder", Fix: elsewhereFix}
		}
		return &Foreign{Home: home, Why: why,
			Fix: fmt.Sprintf("run chmod go-w %q, or %s", home, elsewhereFix)}
	}
	return nil
}

// checkLinks refuses a path that goes through a symbolic link which neither we nor root made:
// whoever made it decides where we write.
func checkLinks(path string) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	for at := path; at != "/" && at != "."; at = filepath.Dir(at) {
		info, err := os.Lstat(at)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return unusable(err)
		}
		if owner := ownerOf(info); info.Mode()&os.ModeSymlink != 0 && owner != os.Geteuid() &&
			owner != 0 {
			return &Foreign{Home: path, Fix: elsewhereFix,
				Why: fmt.Sprintf("%s is a link that user %d made", at, owner)}
		}
	}
	return nil
}

func ownerOf(info os.FileInfo) int {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid)
	}
	return -1
}
