package driver

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"memroom/fit"
)

// recordFile holds the story of a fitted run, in its folder.
func recordFile(dir string) string { return filepath.Join(dir, "fit.json") }

// ReadRecord reads the story of the run in dir.
func ReadRecord(dir string) (fit.Record, error) { return readJSON[fit.Record](recordFile(dir)) }

// Memories is the folder of what worked, in memroom's home.
func Memories(home string) string { return filepath.Join(home, "fit") }

// ReadMemory reads what made a job fit.
func ReadMemory(path string) (fit.Remembered, error) { return readJSON[fit.Remembered](path) }

func writeMemory(path string, m fit.Remembered) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return replaceJSON(path, m)
}

// writeApply writes the file that the probe of an attempt reads, and returns its path.
func writeApply(dir string, attempt int, remedies []fit.Remedy) (string, error) {
	path := filepath.Join(dir, fmt.Sprintf("apply-%d.json", attempt))
	data, err := json.MarshalIndent(map[string]any{"remedies": fit.Inside(remedies)}, "", "  ")
	if err != nil {
		return "", err
	}
	return path, os.WriteFile(path, data, 0o600)
}

// planned is what the next attempt was given, kept for its record: the monitor may be another
// process by then.
type planned struct {
	Remedies []fit.Remedy `json:"remedies"`
	Title    string       `json:"title,omitempty"`
	Changed  []string     `json:"changed"`
	Resumed  string       `json:"resumed,omitempty"`
}

func plannedFile(dir string, attempt int) string {
	return filepath.Join(dir, fmt.Sprintf("plan-%d.json", attempt))
}

func readPlanned(dir string, attempt int) (planned, error) {
	return readJSON[planned](plannedFile(dir, attempt))
}

func writePlanned(dir string, attempt int, p planned) {
	if err := replaceJSON(plannedFile(dir, attempt), p); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

func readJSON[T any](path string) (v T, err error) {
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &v)
	}
	return v, err
}

// replaceJSON writes a file so that a reader sees the old or the new one, whole.
func replaceJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", append(data, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func setEnv(env []string, name, value string) []string {
	out := slices.DeleteFunc(slices.Clone(env),
		func(pair string) bool { return strings.HasPrefix(pair, name+"=") })
	return append(out, name+"="+value)
}
