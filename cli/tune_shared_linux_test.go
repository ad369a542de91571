package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"memroom/testenv"
)

// TestParametersLieInMemoryOnce: what with_parameters holds is one block that all trials map. The
// script does not run again, so it loads nothing again; types stay, also of what was shared by
// hand, and names of the script's own data that are local names of the training carry nothing.
func TestParametersLieInMemoryOnce(t *testing.T) {
	r := newTune(t)
	script := `
import functools, os, sys, threading
import memroom
import numpy as np
from memroom import tune

SCALE = 1

def private():
    with open("/proc/self/status") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("RssAnon")) >> 10

class Known:
    def __init__(self, n): self.n = n

def train(config, data, nested=None, rows=None, known=None, extra=0):
    before = private()
    assert type(data) is np.ndarray and data.sum() == 2 * data.size
    assert data.flags.writeable == ("AGAIN" in os.environ) and type(nested) is dict
    assert nested["a"][0].sum() == 0 and known.n == 3 and extra == 5
    assert rows[70000] == {"i": 70000} and SCALE == 7 and sys.argv[1:] == ["--arg"]
    assert os.path.basename(__file__) == "once.py"
    tune.report(loss=config["x"], grew=private() - before)

if __name__ == "__main__":
    SCALE = 7
    print("BEGAN", "MEMROOM_TRIAL" in os.environ, file=open(os.environ["BEGUN"], "a"))
    data = np.full(16 << 20, 2.0)
    rows = memroom.share([{"i": i} for i in range(100_000)])
    with_them = tune.with_parameters(functools.partial(train, extra=5), data=data, rows=rows,
                                     nested={"a": [np.zeros(1 << 20)]}, known=Known(3))
    r = tune.run(with_them, name="once", config={"x": tune.uniform(0, 1)}, num_samples=3,
                 metric="loss", mode="min", verbose=0)
    print("ONCE", r.errors, "MOST", max(t.peak_host_bytes for t in r) >> 20,
          "GREW", int(max(t.metrics.get("grew", 999) for t in r)))
    lock = threading.Lock()
    r = tune.run(tune.with_parameters(lambda config, data, lock: 1.0, data=data, lock=lock),
                 num_samples=1, verbose=0)
    print("COPIED", r.errors)
`
	begun := filepath.Join(r.dir, "begun")
	t.Setenv("BEGUN", begun)
	out, err := r.pythonOf(testenv.Python(t, "numpy"), "once.py", script, "--arg")
	if err != nil || !strings.Contains(out, "ONCE []") || !strings.Contains(out, "COPIED []") ||
		!strings.Contains(out, "each trial makes a copy of what with_parameters holds") {
		t.Fatalf("%v\n%s", err, out)
	}
	// The data is 136 MiB; Python and NumPy take about 30.
	found := regexp.MustCompile(`MOST (\d+) GREW (\d+)`).FindStringSubmatch(out)
	most, _ := strconv.Atoi(found[1])
	grew, _ := strconv.Atoi(found[2])
	if most > 90 || grew > 20 {
		t.Errorf("a trial took %d MiB, %d of them while it read the data", most, grew)
	}
	if got, _ := os.ReadFile(begun); string(got) != "BEGAN False\nBEGAN True\n" {
		t.Errorf("the script ran %q", got)
	}
	// The program has gone and the data with it: a trial loads its own.
	t.Setenv("PYTHONPATH", filepath.Join(testenv.Root(t), "python"))
	t.Setenv("AGAIN", "1")
	resumed, err := r.command("tune", "resume", "--samples", "1", "once").CombinedOutput()
	if err != nil || !strings.Contains(string(resumed), fmt.Sprintf("%d trials: %[1]d finished", 4)) {
		t.Errorf("%v\n%s", err, resumed)
	}
}
