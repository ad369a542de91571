package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"memroom/testenv"
)

// python runs a script that imports memroom, beside the binary under test.
func (r *tuneRun) python(name, text string, args ...string) (string, error) {
	r.t.Helper()
	return r.pythonOf(testenv.Python(r.t), name, text, args...)
}

func (r *tuneRun) pythonOf(python, name, text string, args ...string) (string, error) {
	r.t.Helper()
	r.file(name, text)
	cmd := r.command()
	cmd.Path = python
	cmd.Args = append([]string{cmd.Path, name}, args...)
	cmd.Env = append(cmd.Env, "MEMROOM_BINARY="+r.binary,
		"PYTHONPATH="+filepath.Join(testenv.Root(r.t), "probe", "pip"))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestTuneRunHasRaysCallShape: the founding script with its import line changed, and what people
// write around it.
func TestTuneRunHasRaysCallShape(t *testing.T) {
	r := newTune(t)
	out, err := r.python("founding.py", `
from memroom import ray
from memroom import tune

def train_fn(config):
    assert 1e-4 <= config["lr"] <= 1e-2

ray.init(num_cpus=8, num_gpus=2)
result = tune.run(
    train_fn,
    config={"lr": tune.loguniform(1e-4, 1e-2)},
    resources_per_trial={"cpu": 4, "gpu": 1},
    num_samples=3,
)
ray.shutdown()
print("STATES", [r.state for r in result.trials])
`)
	if err != nil || !strings.Contains(out, "STATES ['finished', 'finished', 'finished']") {
		t.Errorf("%v\n%s", err, out)
	}
	out, err = r.python("two.py", `
import argparse, os
from memroom import tune
from memroom.tune.schedulers import ASHAScheduler

parser = argparse.ArgumentParser()
parser.add_argument("--depth", type=int)
depth = parser.parse_args().depth
parent = os.getpid() if "MEMROOM_TRIAL" not in os.environ else None

class Kind: pass

def train(config, data):
    assert os.environ["MEMROOM_TRIAL"] and data == [1, 2] and config["const"] == depth
    assert config["kind"] is Kind or config["kind"] == "text"
    for i in range(3):
        tune.report({"loss": config["opt"]["lr"] + 1 / (i + 1), "other": i})
    if config["bad"]:
        raise ValueError("bad settings")

grid = tune.Tuner(
    tune.with_parameters(tune.with_resources(train, {"cpu": 1}), data=[1, 2]),
    param_space={
        "opt": {"lr": tune.loguniform(1e-4, 1e-2)},
        "kind": tune.choice([Kind, "text"]),
        "bad": tune.grid_search([False, True]),
        "const": depth,
    },
    tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=2),
).fit()
best = grid.get_best_result()
print("GRID", len(grid), grid.num_errors, len(best.history), best.metrics["other"])

class Steps(tune.Trainable):
    def setup(self, config): self.x = config["x"]
    def step(self): return {"score": self.x * self.iteration}

result = tune.run(Steps, config={"x": tune.choice([2])}, metric="score", mode="max", verbose=0,
                  stop={"training_iteration": 3})
print("STEPS", result.best_result["score"], result.best_config)
`, "--depth", "7")
	if err != nil || !strings.Contains(out, "GRID 4 2 3 2") ||
		!strings.Contains(out, "STEPS 4") {
		t.Errorf("%v\n%s", err, out)
	}
	for name, text := range map[string]string{
		"here is no script":       "import subprocess, sys\nsubprocess.run([sys.executable, '-'], input=b'from memroom import tune\\ntune.run(print, config={})')",
		"cannot be searched":      "from memroom import tune\ntune.sample_from(print)",
		"needs a function":        "from memroom import tune\ntune.run(3)",
		"no trial finished":       "from memroom import tune\nr = tune.run(lambda c: None, config={'x': tune.uniform(0, 1)}, metric='loss', mode='min', verbose=0)\nr.best_config",
		"is empty: the lower end": "from memroom import tune\nr = tune.run(print, config={'x': tune.uniform(1, 0)})",
		"take tune.ASHAScheduler": "from memroom import tune\nr = tune.run(print, scheduler=3)",
	} {
		if out, _ := r.python("wrong.py", text); !strings.Contains(out, name) {
			t.Errorf("%q is not in\n%s", name, out)
		}
	}
	_ = os.Remove(filepath.Join(r.dir, "wrong.py"))
}
