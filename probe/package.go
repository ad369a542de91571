package probe

import (
	"embed"
	"io/fs"
	"maps"
	"strings"
)

//go:embed pip/memroom/*.py
var pipSources embed.FS

// Package gives the Python files that pip installs, by their path below site-packages: the package
// `memroom` and the probe it speaks to. sitecustomize.py stays out: installed for good it would
// change every Python of the environment.
func Package() map[string][]byte {
	files := map[string][]byte{}
	_ = fs.WalkDir(pipSources, "pip", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			files[strings.TrimPrefix(path, "pip/")], err = pipSources.ReadFile(path)
		}
		return err // never set: the files are in the binary
	})
	probe, _, _ := embedded()
	maps.Copy(files, probe)
	delete(files, "sitecustomize.py")
	return files
}
