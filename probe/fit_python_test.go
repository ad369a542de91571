package probe

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"memroom/testenv"
)

// fitAlone are files of the Python tests of fit that need other frameworks than the rest.
var fitAlone = map[string][]string{
	"test_quantized": {"torch", "transformers", "bitsandbytes"},
	"test_keras":     {"tensorflow", "keras"},
}

// TestFitInProcess runs the tests of the remedies that live in the user's process, against real
// frameworks. Each file is a process of its own, because remedies change how the framework behaves.
func TestFitInProcess(t *testing.T) {
	t.Run("torch", fitTogether)
	for name, modules := range fitAlone {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			python := testenv.Python(t, modules...)
			if out, err := fitTest(t, python, name).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		})
	}
}

// fitTogether runs the files that need PyTorch. They come of one process that has imported it; the
// longest begin.
func fitTogether(t *testing.T) {
	t.Parallel()
	python := testenv.Python(t, "torch", "torchvision", "transformers", "accelerate", "lightning")
	files := []string{"test_hostile", "test_frameworks", "test_governor", "test_loops",
		"test_microbatch", "test_remedies", "test_again", "test_state"}
	there, err := filepath.Glob(filepath.Join(testenv.Root(t), "fit/pytests/test_*.py"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range there {
		name := strings.TrimSuffix(filepath.Base(path), ".py")
		if fitAlone[name] == nil && !slices.Contains(files, name) {
			files = append(files, name)
		}
	}
	fitFiles(t, python, files...)
}

// fitFiles runs files of the Python tests of fit, each in a process of its own that has PyTorch.
func fitFiles(t *testing.T, python string, files ...string) {
	t.Helper()
	root := testenv.Root(t)
	const start = "import sys; sys.path[:0] = sys.argv[1:3]; import together; " +
		"together.main(2, sys.argv[3:])"
	cmd := exec.Command(python, append([]string{"-B", "-W", "ignore", "-c", start,
		filepath.Join(root, "probe", "py"), filepath.Join(root, "fit", "pytests")}, files...)...)
	cmd.Env = append(os.Environ(), "OMP_NUM_THREADS=1", "PYTHONDONTWRITEBYTECODE=1")
	var failed bytes.Buffer
	cmd.Stderr = &failed
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("%v\n%s", err, failed.Bytes())
	}
	ended := map[string]bool{}
	for dec := json.NewDecoder(bytes.NewReader(out)); dec.More(); {
		var file struct {
			Name, Said string
			Passed     bool
		}
		if err := dec.Decode(&file); err != nil {
			t.Fatal(err)
		}
		ended[file.Name] = true
		t.Run(file.Name, func(t *testing.T) {
			if !file.Passed || !strings.Contains(file.Said, "\nOK") {
				t.Error(file.Said)
			}
		})
	}
	for _, name := range files {
		if !ended[name] {
			t.Errorf("%s did not end", name)
		}
	}
}

// fitTest is one file of the Python tests of fit, as a process of its own.
func fitTest(t *testing.T, python, name string) *exec.Cmd {
	t.Helper()
	root := testenv.Root(t)
	const start = "import sys, unittest; sys.path[:0] = sys.argv[1:3]; " +
		"unittest.main(module=None, argv=sys.argv[2:])"
	cmd := exec.Command(python, "-B", "-W", "ignore", "-c", start,
		filepath.Join(root, "probe", "py"), filepath.Join(root, "fit", "pytests"), name)
	cmd.Env = append(os.Environ(), "OMP_NUM_THREADS=1", "PYTHONDONTWRITEBYTECODE=1")
	return cmd
}
