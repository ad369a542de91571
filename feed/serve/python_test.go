package serve_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"memroom/testenv"
)

// TestStreamInPython runs memroom.Stream against what pandas, pyarrow and NumPy read from the same
// files: values, order, resuming, budgets, bad input.
func TestStreamInPython(t *testing.T) {
	python := testenv.Python(t, "numpy", "pandas", "pyarrow", "torch")
	root := testenv.Root(t)
	binary := testenv.Binary(t)
	for _, class := range []string{"Formats", "Order", "Budget", "BadInput", "Web", "Frameworks"} {
		t.Run(class, func(t *testing.T) {
			cmd := exec.Command(python, "-B", "-W", "ignore", "-m", "unittest", "test_stream."+class)
			cmd.Dir = filepath.Join(root, "probe", "pytests", "pip")
			cmd.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(root, "probe", "pip"),
				"MEMROOM_BINARY="+binary, "XDG_CACHE_HOME="+t.TempDir(), "OMP_NUM_THREADS=1",
				"TF_CPP_MIN_LOG_LEVEL=3")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		})
	}
}
