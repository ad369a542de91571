package probe

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"memroom/testenv"
)

// tuneCells are those of a notebook that searches: a function with a helper, a class, a module, a
// constant and a default; a redefinition; parameters by value; and what cannot be handed on.
var tuneCells = []struct {
	code  string
	shows []string
}{
	{"import math, os\nfrom memroom import tune\nSCALE = 3\nprint('kernel ready')",
		[]string{"kernel ready"}},
	{`class Model:
    size = SCALE
    def __init__(self, lr): self.lr = lr
    def loss(self, step): return abs(math.log10(self.lr) + 3) + 1 / (step + self.size)
def steps(n=SCALE): return range(n)
def train(config):
    assert os.environ["MEMROOM_TRIAL"] and os.getpid() != KERNEL
    for i in steps(): tune.report(loss=1000)
KERNEL = os.getpid()
`, nil},
	{`%time answer = 41
def train(config):  # once more, as people do
    assert os.environ["MEMROOM_TRIAL"] and os.getpid() != KERNEL
    model = Model(config["lr"])
    for i in steps(): tune.report({"loss": model.loss(i), "seen": answer + kept.extra})
class Kept:
    def __init__(self): self.extra = 1
kept = Kept()
`, nil},
	{`result = tune.run(train, config={"lr": tune.loguniform(1e-4, 1e-2)}, num_samples=3,
    metric="loss", mode="min", host_mem="1GiB")
print("STATES", [r.state for r in result.trials], [r.metrics["seen"] for r in result.trials])
print("BEST", 0 < result.best_result["loss"] < 2)`,
		[]string{"3 finished", "STATES ['finished', 'finished', 'finished'] [42, 42, 42]",
			"BEST True"}},
	{`def with_data(config, data):
    return {"loss": config["kind"](data)}
def total(data): return sum(data)
grid = tune.Tuner(tune.with_parameters(with_data, data=[1, 2, 3]),
    param_space={"kind": tune.grid_search([total, max])},
    tune_config=tune.TuneConfig(metric="loss", mode="min")).fit()
print("LOSSES", sorted(r.metrics["loss"] for r in grid))`, []string{"LOSSES [3, 6]"}},
	{`def bad(config): raise ValueError("bad settings")
print([r.state for r in tune.run(bad, config={"x": tune.uniform(0, 1)}, verbose=0).trials])`,
		[]string{"['failed']"}},
	{`import threading
lock = threading.Lock()
def locked(config):
    with lock: tune.report(loss=1)
try: tune.run(locked, config={"x": tune.uniform(0, 1)})
except RuntimeError as error: print("SAID", error)`,
		[]string{"SAID tune: the training uses 'lock', which cannot be handed to another process",
			"create it inside of the training function"}},
	{`def outer(n):
    def inner(config): tune.report(loss=n)
    return inner
try: tune.run(outer(2), config={"x": tune.uniform(0, 1)})
except RuntimeError as error: print("SAID", error)`,
		[]string{"SAID tune: give the training function a name at the top of a cell"}},
}

// TestTuneInANotebook: a training function of a cell, in a real kernel. Each trial is a process,
// and no cell runs twice.
func TestTuneInANotebook(t *testing.T) {
	t.Parallel()
	kernel := testenv.Environment(t, "notebook")
	binary := testenv.Binary(t)
	var text []string
	for _, c := range tuneCells {
		text = append(text, c.code+"\n")
	}
	cmd := exec.Command(kernel, script(t, "kernel.py"))
	cmd.Dir = t.TempDir()
	cmd.Stdin = strings.NewReader(strings.Join(text, "-----\n"))
	cmd.Env = append(os.Environ(), "OMP_NUM_THREADS=1", "MEMROOM_BINARY="+binary,
		"MEMROOM_HOME="+t.TempDir(), "IPYTHONDIR="+t.TempDir(),
		"PYTHONPATH="+filepath.Join(testenv.Root(t), "python"))
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, &errs)
	}
	shown := strings.Split(string(out), "-----\n")
	for i, c := range tuneCells {
		if i >= len(shown) {
			t.Fatalf("%d of %d cells ran", i, len(tuneCells))
		}
		for _, words := range c.shows {
			if !strings.Contains(shown[i], words) {
				t.Errorf("below %q\n%s\nthere is no %q", c.code, shown[i], words)
			}
		}
	}
	if n := strings.Count(string(out), "kernel ready"); n != 1 {
		t.Errorf("the first cell ran %d times", n)
	}
}
