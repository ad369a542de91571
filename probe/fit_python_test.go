package probe

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"memroom/testenv"
)

// TestFitInProcess runs the tests of the remedies that live in the user's process, against real
// frameworks. Each file is a process of its own, because remedies change how the framework behaves.
func TestFitInProcess(t *testing.T) {
	for name, modules := range map[string][]string{
		"test_microbatch": {"torch"},
		"test_declines":   {"torch"},
		"test_loops":      {"torch"},
		"test_hostile":    {"torch"},
		"test_governor":   {"torch", "torchvision"},
		"test_forecast":   {"torch"},
		"test_card":       {"torch"},
		"test_foreign":    {},
		"test_chance":     {"torch"},
		"test_remedies":   {"torch"},
		"test_threads":    {"torch"},
		"test_state":      {"torch"},
		"test_rules":      {"torch"},
		"test_api":        {"torch", "accelerate"},
		"test_quantized":  {"torch", "transformers", "bitsandbytes"},
		"test_keras":      {"tensorflow", "keras"},
		"test_frameworks": {"torch", "transformers", "accelerate", "lightning"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			python := testenv.Python(t, modules...)
			if out, err := fitTest(t, python, name).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		})
	}
}

// fitTest is one file of the Python tests of fit, as a process of its own.
func fitTest(t *testing.T, python, name string) *exec.Cmd {
	t.Helper()
	probe := filepath.Join(testenv.Root(t), "probe")
	const start = "import sys, unittest; sys.path[:0] = sys.argv[1:3]; " +
		"unittest.main(module=None, argv=sys.argv[2:])"
	cmd := exec.Command(python, "-B", "-W", "ignore", "-c", start, filepath.Join(probe, "py"),
		filepath.Join(probe, "pytests", "fit"), name)
	cmd.Env = append(os.Environ(), "OMP_NUM_THREADS=1", "PYTHONDONTWRITEBYTECODE=1")
	return cmd
}
