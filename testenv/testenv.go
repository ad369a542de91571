// Package testenv finds what tests need and a machine may not have: a Python with real frameworks,
// the measurements kept next to the checkout. What is missing skips the test loudly; `make test`
// counts the skips by their "needs" line. Only tests import it.
package testenv

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Root is the top folder of the checkout.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("no go.mod above the working directory")
		}
	}
}

// Write makes a file that only its owner may read.
func Write(t testing.TB, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// Read returns what a file holds.
func Read(t testing.TB, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// Needs skips the test, saying what the machine lacks.
func Needs(t testing.TB, what, why string) {
	t.Helper()
	t.Skipf("needs %s: %s", what, why)
}

// Shared returns a path below the folder of measurements that lies next to a developer's checkout
// (../shared). A stranger's clone has none.
func Shared(t testing.TB, path ...string) string {
	t.Helper()
	full := filepath.Join(append([]string{Root(t), "..", "shared"}, path...)...)
	if _, err := os.Stat(full); err != nil {
		Needs(t, "shared/"+filepath.Join(path...), "not beside this checkout")
	}
	return full
}

var (
	frameworks     sync.Mutex
	frameworkFound = map[string]string{} // module -> why it is missing, "" if it is there
)

// Torch returns an interpreter with the oldest ("old") or the newest ("new") PyTorch that is
// supported (testenv/ensure old, testenv/ensure new).
func Torch(t testing.TB, which string) string {
	t.Helper()
	return environment(t, which, "the "+which+" PyTorch")
}

// Environment returns the interpreter of a part's own environment: what
// testenv/requirements-NAME.txt pins (testenv/ensure NAME).
func Environment(t testing.TB, name string) string {
	t.Helper()
	return environment(t, name, "the Python environment `"+name+"`")
}

// Pytest returns the interpreter of the main environment with pytest, which `make test` has too.
func Pytest(t testing.TB) string {
	t.Helper()
	return environment(t, "guard", "pytest beside PyTorch")
}

func environment(t testing.TB, name, what string) string {
	t.Helper()
	python := os.Getenv("MEMROOM_TEST_" + strings.ToUpper(name) + "_PYTHON")
	if python == "" && os.Getenv("MEMROOM_TEST_ENSURE") != "" {
		// `make test-real` installs it in the background; this waits for it.
		out, err := exec.Command(filepath.Join(Root(t), "testenv", "ensure"), name).Output()
		if err == nil {
			python = strings.TrimSpace(string(out))
		}
	}
	if python == "" {
		Needs(t, what, "`make test-real` installs it where a Python for it is found")
	}
	return python
}

var built = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("MEMROOM_TEST_BINARY"); path != "" {
		return path, nil
	}
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("go list: %w", err)
	}
	// One place for all: the go command links again only if something changed.
	path := filepath.Join(strings.TrimSpace(string(root)), "bin", "test", "memroom")
	if out, err := exec.Command("go", "build", "-o", path,
		"memroom/cmd/memroom").CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return path, nil
})

// Binary returns the memroom binary of this checkout: what `make test` built for all tests, or one
// that is built now. Its file name is memroom.
func Binary(t testing.TB) string {
	t.Helper()
	path, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Python returns the interpreter of the test environment (testenv/ensure) and skips the test unless
// every module named can be found in it. With no modules any python3 will do.
func Python(t testing.TB, modules ...string) string {
	t.Helper()
	python := os.Getenv("MEMROOM_TEST_PYTHON")
	if python == "" {
		found, err := exec.LookPath("python3")
		if err != nil {
			Needs(t, "python3", "not on PATH")
		}
		python = found
	}
	frameworks.Lock()
	defer frameworks.Unlock()
	for _, m := range modules {
		why, known := frameworkFound[m]
		if !known {
			// find_spec does not import: importing TensorFlow just to look takes seconds.
			out, err := exec.Command(python, "-c",
				"import importlib.util, sys; sys.exit(importlib.util.find_spec('"+m+"') is None)").CombinedOutput()
			if err != nil {
				why = "not installed for " + filepath.Base(python) + "; `make test` installs what " +
					"testenv/requirements.txt names " + strings.TrimSpace(string(out))
			}
			frameworkFound[m] = why
		}
		if why != "" {
			Needs(t, m, why)
		}
	}
	return python
}
