package probe

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"sort"
	"strings"

	fit "memroom/fit/py"
	lint "memroom/lint/py"
	"memroom/plan/calibrate"
	"memroom/plan/rehearse"
	"memroom/plan/standard"
	"memroom/tape/kernels"
)

// own is the probe itself. The globs name Python files only: `all:py` would embed the byte code
// that tests leave behind, a plain folder name would drop names that begin with an underscore.
//
//go:embed py/sitecustomize.py py/_memroom_probe/*.py py/_memroom_probe/watch/*.py
var own embed.FS

// rooms are the sub-packages of _memroom_probe that other parts of the tree own. Links in
// py/_memroom_probe show the same layout to Python in a checkout.
var rooms = map[string]embed.FS{
	"calibrate": calibrate.Python,
	"fit":       fit.Python,
	"kernels":   kernels.Python,
	"lint":      lint.Python,
	"rehearse":  rehearse.Python,
	"standard":  standard.Python,
}

// Install writes the probe below dir, in a folder named by its content, and returns that folder:
// the one that goes on PYTHONPATH. A folder that is already complete is used again, so that
// Python's byte code cache stays warm.
func Install(dir string) (string, error) {
	if strings.ContainsRune(dir, os.PathListSeparator) {
		return "",
			fmt.Errorf("memroom's Python part cannot be put into %s: the path has a %q, which separates "+
				"paths in PYTHONPATH: choose another MEMROOM_HOME", dir, os.PathListSeparator)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", notInstalled(dir, err)
	}
	files, name, err := embedded()
	if err != nil {
		return "", notInstalled(dir, err)
	}
	final := filepath.Join(dir, name)
	if complete(final, files) {
		return final, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", notInstalled(dir, err)
	}
	fresh, err := os.MkdirTemp(dir, ".probe-")
	if err != nil {
		return "", notInstalled(dir, err)
	}
	defer os.RemoveAll(fresh)
	if err := write(fresh, files); err != nil {
		return "", notInstalled(dir, err)
	}
	if err := replace(fresh, final, files); err != nil {
		return "", notInstalled(dir, err)
	}
	return final, nil
}

func notInstalled(dir string, err error) error {
	return fmt.Errorf("memroom's Python part cannot be put into %s: %w; make room there, or set "+
		"MEMROOM_HOME to another folder", dir, err)
}

// replace moves a complete folder into place. Another memroom may do the same at this moment: the
// one that comes second finds the first one's and is content.
func replace(fresh, final string, files map[string][]byte) error {
	err := os.Rename(fresh, final)
	if err == nil || complete(final, files) {
		return nil
	}
	if !errors.Is(err, fs.ErrExist) && !strings.Contains(err.Error(), "not empty") {
		return err
	}
	if err := os.RemoveAll(final); err != nil { // a broken copy: somebody deleted or changed files
		return err
	}
	return os.Rename(fresh, final)
}

// embedded returns the files by their path below the installed folder, and a name that changes with
// their content.
func embedded() (map[string][]byte, string, error) {
	files := map[string][]byte{}
	err := collect(files, own, "py", "")
	for name, room := range rooms {
		err = errors.Join(err, collect(files, room, ".", "_memroom_probe/"+name))
	}
	paths := make([]string, 0, len(files))
	for path := range files {
		paths = append(paths, path)
	}
	sort.Strings(paths)
	sum := sha256.New()
	for _, path := range paths {
		fmt.Fprintf(sum, "%s\x00%d\x00", path, len(files[path]))
		sum.Write(files[path])
	}
	return files, "probe-" + hex.EncodeToString(sum.Sum(nil))[:12], err
}

// collect adds the files of source below root to files, under the folder to.
func collect(files map[string][]byte, source embed.FS, root, to string) error {
	return fs.WalkDir(source, root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := source.ReadFile(file)
		files[path.Join(to, strings.TrimPrefix(file, root+"/"))] = data
		return err
	})
}

func complete(dir string, files map[string][]byte) bool {
	for path, want := range files {
		got, err := os.ReadFile(filepath.Join(dir, path))
		if err != nil || string(got) != string(want) {
			return false
		}
	}
	return true
}

func write(dir string, files map[string][]byte) error {
	for path, data := range files {
		full := filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(full, data, 0o644); err != nil {
			return err
		}
	}
	return os.Chmod(dir, 0o755) // MkdirTemp made it private; a job may run under another user
}
