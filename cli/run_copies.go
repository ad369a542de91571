package cli

import (
	"fmt"
	"os"
	"path/filepath"

	"memroom/store"
)

// wantedCopy is a file that the user asked the run's end to be written to.
type wantedCopy struct {
	flag, path string
	before     os.FileInfo // what was there before the start; nil: nothing
	instead    string      // command that prints the same from the record
}

// wantedCopies are the files that --json and --verdict ask for.
func (c *runCmd) wantedCopies() []wantedCopy {
	var wanted []wantedCopy
	for _, w := range []wantedCopy{{flag: "--json", path: c.JSON,
		instead: "memroom show %s --json"},
		{flag: "--verdict", path: c.Verdict, instead: "memroom show %s"}} {
		if w.path != "" {
			w.path = absolute(w.path)
			w.before, _ = os.Stat(w.path)
			wanted = append(wanted, w)
		}
	}
	return wanted
}

// check finds out before the start whether the file can be written: hours of training later is too
// late. It is replaced as a whole, so its folder must be writable.
func (w wantedCopy) check() error {
	refuse := func(err error) error {
		return exitWith(exitNotStarted,
			"%s %s cannot be written: %w; name a file in a folder that exists and is yours. Nothing was "+
				"started", w.flag, w.path, err)
	}
	if w.before != nil && w.before.IsDir() {
		return refuse(fmt.Errorf("it is a folder"))
	}
	if w.before != nil && !w.before.Mode().IsRegular() {
		return nil // a device or a pipe: opening it could wait for a reader
	}
	trial, err := os.CreateTemp(filepath.Dir(w.path), ".memroom-*")
	if err != nil && w.before != nil {
		// Only the file itself is ours, as a container's termination log is.
		if file, opened := os.OpenFile(w.path, os.O_WRONLY, 0); opened == nil {
			return file.Close()
		}
	}
	if err != nil {
		return refuse(cause(err))
	}
	trial.Close()
	return os.Remove(trial.Name())
}

// cause drops the path from an error about a file whose name was made up here.
func cause(err error) error {
	if path, ok := err.(*os.PathError); ok {
		return path.Err
	}
	return err
}

// missing returns a warning after the end of a run if the file was not written. A copy replaces the
// file, so a file that is still the same one as before is an old copy.
func (w wantedCopy) missing(folder *store.Folder) string {
	now, err := os.Stat(w.path)
	if err == nil && (!now.Mode().IsRegular() || w.before == nil || !os.SameFile(w.before, now)) {
		return ""
	}
	why := "see the notes of the run"
	if err != nil {
		why = cause(err).Error()
	}
	return fmt.Sprintf("%s %s was not written (%s); `"+w.instead+"` prints it from the record",
		w.flag, w.path, why, folder.ID)
}

func absolute(path string) string {
	if path == "" {
		return ""
	}
	if full, err := filepath.Abs(path); err == nil {
		return full
	}
	return path
}
