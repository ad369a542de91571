package testenv

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Program is a Python program without memroom. Tests compare our results with what its framework
// itself reports.
type Program struct {
	Python string
	Args   []string // a script, by its path, or -c and its text; folders may be new ones every time
	Env    []string // what decides the answer, next to the environment of the tests
	Rest   []string // variables that do not: paths of files for this run
	Stdin  []byte
	File   string   // the answer is what the program wrote here; "" is its standard output
	Code   string   // a folder of Python modules that the program imports; "" is none
	Apart  []string // names of folders below Code that it imports nothing of
	Stderr string   // a file for its standard error, which is then no part of the answer
}

// Answer is what a program wrote.
type Answer struct{ Out, Err []byte }

// Ask runs the program, or returns what it wrote when it ran before: a pinned environment answers
// the same every time, and importing a framework costs more than most tests. Answers lie in the
// folder of the environment, named by the content of everything that decides them, and are removed
// with it. MEMROOM_TEST_ASK=always asks anew. An interpreter that testenv/ensure did not make is
// always asked.
func (p Program) Ask() (Answer, error) {
	kept := p.keptAt()
	var a Answer
	if text, err := os.ReadFile(kept); err == nil && kept != "" &&
		os.Getenv("MEMROOM_TEST_ASK") != "always" && json.Unmarshal(text, &a) == nil {
		return a, nil
	}
	cmd := exec.Command(p.Python, p.Args...)
	cmd.Env = append(append(os.Environ(), p.Env...), p.Rest...)
	cmd.Stdin = bytes.NewReader(p.Stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if p.Stderr != "" {
		log, err := os.Create(p.Stderr)
		if err != nil {
			return a, err
		}
		defer log.Close()
		cmd.Stderr = log
	}
	if err := cmd.Run(); err != nil {
		text, _ := os.ReadFile(p.Stderr)
		return a, fmt.Errorf("%w\n%s%s", err, errs.String(), text[max(0, len(text)-2000):])
	}
	a = Answer{Out: out.Bytes(), Err: errs.Bytes()}
	if p.File != "" {
		text, err := os.ReadFile(p.File)
		if err != nil {
			return a, err
		}
		a.Out = text
	}
	return a, keep(kept, a)
}

// MustAsk is Ask for a program that always answers.
func (p Program) MustAsk(t testing.TB) Answer {
	t.Helper()
	a, err := p.Ask()
	if err != nil {
		t.Fatalf("without memroom: %v", err)
	}
	return a
}

// AskFolder is Ask for a program that writes a folder, the argument that is File. It returns the
// folder to read: the kept one, or File.
func (p Program) AskFolder() (string, error) {
	kept := p.keptAt()
	if kept != "" && os.Getenv("MEMROOM_TEST_ASK") != "always" {
		if _, err := os.Stat(kept); err == nil {
			return kept, nil
		}
	}
	cmd := exec.Command(p.Python, p.Args...)
	cmd.Env = append(append(os.Environ(), p.Env...), p.Rest...)
	if said, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, said)
	}
	return p.File, keepFolder(kept, p.File)
}

// keepFolder copies a folder whole or not at all; without a place it does nothing.
func keepFolder(kept, folder string) error {
	if kept == "" || os.MkdirAll(filepath.Dir(kept), 0o755) != nil {
		return nil
	}
	copied, err := os.MkdirTemp(filepath.Dir(kept), ".new-")
	if err != nil {
		return nil // a folder of somebody else: ask again next time
	}
	defer os.RemoveAll(copied)
	if err := os.CopyFS(copied, os.DirFS(folder)); err != nil {
		return err
	}
	_ = os.Rename(copied, kept)
	return nil
}

// modules returns the Python files of a folder and of those in it, except those named, in one
// order. It follows links: a checkout links the rooms that the probe installs.
func modules(folder string, apart []string) (paths []string) {
	entries, _ := os.ReadDir(folder) // "" is no folder and has none
	for _, entry := range entries {
		path := filepath.Join(folder, entry.Name())
		info, err := os.Stat(path)
		switch {
		case err != nil || slices.Contains(apart, entry.Name()):
		case info.IsDir():
			paths = append(paths, modules(path, apart)...)
		case filepath.Ext(path) == ".py":
			paths = append(paths, path)
		}
	}
	return paths
}

// keptAt is the file of the answer; "" keeps none.
func (p Program) keptAt() string {
	folder := filepath.Dir(filepath.Dir(p.Python))
	made, err := os.ReadFile(filepath.Join(folder, "complete"))
	if err != nil {
		return ""
	}
	sum := sha256.New()
	part := func(name string, content []byte) {
		fmt.Fprintf(sum, "%s %d\n", name, len(content))
		sum.Write(content)
	}
	part("made", made)
	part("processor", processor())
	part("stdin", p.Stdin)
	part("env", []byte(strings.Join(p.Env, "\x00")))
	for _, name := range []string{"OMP_NUM_THREADS", "PYTHONPATH"} {
		part(name, []byte(os.Getenv(name)))
	}
	for _, path := range modules(p.Code, p.Apart) {
		text, _ := os.ReadFile(path)
		name, _ := filepath.Rel(p.Code, path)
		part(name, text)
	}
	for _, arg := range p.Args {
		info, err := os.Stat(arg)
		switch {
		case arg == p.File:
			part("file", nil)
		case err == nil && info.IsDir():
			part("folder", nil)
		case err == nil:
			for _, path := range beside(arg) {
				text, _ := os.ReadFile(path)
				part(filepath.Base(path), text)
			}
			part("script", []byte(filepath.Base(arg)))
		default:
			part("word", []byte(arg))
		}
	}
	return filepath.Join(folder, "answers", hex.EncodeToString(sum.Sum(nil))[:32])
}

// beside returns a file and the Python files of its folder, which it may import.
func beside(path string) []string {
	files, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "*.py"))
	return append([]string{path}, files...)
}

// processor names the kind of processor: another one may round in another way.
func processor() []byte {
	text, _ := os.ReadFile("/proc/cpuinfo")
	first, _, _ := bytes.Cut(text, []byte("\n\n"))
	var lines [][]byte
	for _, line := range bytes.Split(first, []byte("\n")) {
		if bytes.HasPrefix(line, []byte("model name")) || bytes.HasPrefix(line, []byte("flags")) {
			lines = append(lines, line)
		}
	}
	return bytes.Join(lines, nil)
}

// keep writes an answer whole or not at all; without a place it does nothing.
func keep(path string, a Answer) error {
	if path == "" {
		return nil
	}
	text, err := json.Marshal(a)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil // a folder of somebody else: ask again next time
	}
	file, err := os.CreateTemp(filepath.Dir(path), ".new-")
	if err != nil {
		return nil
	}
	defer os.Remove(file.Name())
	_, err = file.Write(text)
	if closed := file.Close(); err == nil && closed == nil {
		_ = os.Rename(file.Name(), path)
	}
	return nil
}
