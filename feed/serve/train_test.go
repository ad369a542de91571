package serve_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"memroom/testenv"
)

// TestTrainingInsideALimit trains in a cgroup that could not hold Python, torch and the data, and
// compares the losses with those of a training in memory. bench/feed/train.py does it with four
// times the limit.
func TestTrainingInsideALimit(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	group := filepath.Join("/sys/fs/cgroup/memory", "memroom-may-i")
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Skipf("SKIPPED: no memory cgroup can be made here (%v): training inside a limit is not tested",
			err)
	}
	if err := os.Remove(group); err != nil {
		t.Fatal(err)
	}
	c := exec.Command(testenv.Environment(t, "feed"), "../../bench/feed/train.py", "--cap", "448",
		"--times", "1", "--frameworks", "torch")
	c.Env = append(os.Environ(), "MEMROOM_BINARY="+testenv.Binary(t), "TMPDIR="+t.TempDir())
	out, err := c.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "equal bit for bit") {
		t.Errorf("%v: %s", err, out)
	}
}
