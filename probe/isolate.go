package probe

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Isolate prepares a Python of our own, one that is not the user's training: it imports nothing
// from the current folder, where a json.py may lie. Python's own flag -I goes too far: it would
// hide packages that the user installed for himself.
func Isolate(cmd *exec.Cmd) error {
	here, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("start Python: %w", err)
	}
	// a relative path begins in the folder that we leave
	if strings.ContainsRune(cmd.Path, filepath.Separator) && !filepath.IsAbs(cmd.Path) {
		cmd.Path = filepath.Join(here, cmd.Path)
	}
	cmd.Dir = "/"
	cmd.Env = slices.DeleteFunc(os.Environ(), func(pair string) bool {
		return strings.HasPrefix(pair, "PYTHONPATH=") || strings.HasPrefix(pair, "PYTHONSTARTUP=")
	})
	if path := without(os.Getenv("PYTHONPATH"), here); path != "" {
		cmd.Env = append(cmd.Env, "PYTHONPATH="+path)
	}
	return nil
}

// without drops the current folder from a search path: by its name, and what is relative to it.
func without(path, here string) string {
	return strings.Join(slices.DeleteFunc(filepath.SplitList(path), func(entry string) bool {
		if !filepath.IsAbs(entry) {
			return true
		}
		a, errA := os.Stat(entry)
		b, errB := os.Stat(here)
		return filepath.Clean(entry) == here || errA == nil && errB == nil && os.SameFile(a, b)
	}), string(filepath.ListSeparator))
}
