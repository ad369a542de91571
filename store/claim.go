package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// markFile marks a home as ours. It is the first thing in a new one.
const markFile = "memroom-home"

const markText = `This folder belongs to memroom: it holds the records of your runs.
memroom deletes old runs here (memroom rm --help). Keep nothing else in it.
`

// Foreign means that a folder cannot be the home: it is not ours, or others may change it. The text
// has the reason, and what to do.
type Foreign struct {
	Home string
	Why  string
	Fix  string
}

func (e *Foreign) Error() string {
	return fmt.Sprintf("%s cannot hold memroom's records: %s; %s", e.Home, e.Why, e.Fix)
}

// elsewhereFix is what helps in every case.
const elsewhereFix = "set MEMROOM_HOME to a new folder of your own"

// unusable reports that memroom's folder cannot be used, and what helps.
func unusable(err error) error {
	return fmt.Errorf("memroom keeps its records in a folder that cannot be used: %w; make room or "+
		"give yourself the right to it, or %s", err, elsewhereFix)
}

// claim marks a home as ours. It takes a new or empty folder, and one in which there are only
// things that earlier versions left, which had no mark.
func claim(home string) error {
	kind, err := recognise(home)
	if err != nil || kind == marked {
		return err
	}
	file, err := os.OpenFile(filepath.Join(home, markFile), os.O_WRONLY|os.O_CREATE|os.O_EXCL,
		0o600)
	if err == nil {
		_, _ = file.WriteString(markText) // the name is the mark: a full disk may cut the text
		return file.Close()
	}
	// Another command was quicker, or the home is an old one on a disk that takes nothing new.
	if errors.Is(err, fs.ErrExist) || kind == unmarked {
		return nil
	}
	return unusable(err)
}

// homeKind is the kind of a folder.
type homeKind int

const (
	empty    homeKind = iota
	marked            // ours
	unmarked          // ours, made by a version that set no mark
)

// recognise reports whether a folder may be our home: marked, empty, or with nothing in it but what
// memroom itself makes.
func recognise(home string) (homeKind, error) {
	if info, err := os.Lstat(filepath.Join(home, markFile)); err == nil && info.Mode().IsRegular() {
		return marked, nil
	}
	entries, err := os.ReadDir(home)
	if err != nil {
		return empty, unusable(err)
	}
	if len(entries) == 0 {
		return empty, nil
	}
	for _, e := range entries {
		if !ourName(e.Name()) {
			return empty, notOurs(home, e.Name())
		}
	}
	runs, _ := os.ReadDir(filepath.Join(home, "runs"))
	for _, e := range runs {
		if !ValidID(e.Name()) {
			return empty, notOurs(home, filepath.Join("runs", e.Name()))
		}
	}
	return unmarked, nil
}

// ourName: what versions without a mark put into a home, and what commands leave that keep no run.
func ourName(name string) bool {
	return slices.Contains([]string{markFile, "runs", "probe", "fit", "tidied", "cards.json",
		"cards.json.new", "studies", "checks"}, name) || strings.HasPrefix(name, "index.sqlite") ||
		strings.HasPrefix(name, "central")
}

func notOurs(home, thing string) error {
	return &Foreign{Home: home, Why: fmt.Sprintf("it holds other things (%q)", thing),
		Fix: fmt.Sprintf("%s. If it is memroom's own, mark it: touch %q", elsewhereFix,
			filepath.Join(home, markFile))}
}
