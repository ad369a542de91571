package probe

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"memroom/testenv"
)

// TestShare runs the tests of memroom.share on the oldest and the newest Python here, and on the
// one with the frameworks.
func TestShare(t *testing.T) {
	root := testenv.Root(t)
	found := interpreters(t)
	for _, name := range []string{"default", "3.8", "3.14", "3.13"} {
		python, there := found[name]
		if !there {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(python, "-B", "-m", "unittest", "discover", "-s",
				filepath.Join(root, "python", "pytests"), "-p", "test_share.py")
			cmd.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(root, "python"),
				"OMP_NUM_THREADS=1")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		})
	}
}
