package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"memroom/testenv"
)

// python runs a script that imports memroom, next to the binary under test.
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
		"PYTHONPATH="+filepath.Join(testenv.Root(r.t), "python"))
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
		"wait for each other":     "from memroom import tune\nr = tune.run(print, config={'x': tune.sample_from(lambda s: s.y), 'y': tune.sample_from(lambda s: s.x)}, verbose=0)\nraise r.trials[0].error",
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

// TestWhatReachesTheTrainingFunction: domains anywhere, values of any kind, functions of the
// others, arguments in addition to the settings. Every trial checks what it gets against what was
// given, which its process makes anew, and the stop rule ends it after five of two thousand
// reports.
func TestWhatReachesTheTrainingFunction(t *testing.T) {
	r := newTune(t)
	out, err := r.pythonOf(testenv.Python(t, "numpy"), "reaches.py", `
import functools
import numpy as np
from memroom import tune

class Kind: pass

given = [(1, 2), [3], None, True, 1, 1.5, 2.0, "x", "16", "", " y", "#0", np.float32(0.1), np.int64(7),
         Kind, {"a": (1,)}, lambda: 3, 2**70, float("inf"), 1.0, "null", False, 0, "a\nb"]

def train(config, data_dir=None, extra=5):
    assert data_dir == "d" and extra == 5
    value = config["v"]
    assert any(v is value or type(v) is type(value) and v == value for v in given), value
    width, inner = config["layers"]
    assert width in (16, 32) and type(width) is int
    assert type(inner["w"]) is float and type(config["t"]) is tuple and type(config["t"][0]) is int
    assert type(config["x"]) is float and config["double"] == 2 * config["x"]
    assert config["later"] == config["double"] + 1
    assert config["opt"]["name"] == "adam" or 0 <= config["opt"]["m"] <= 1
    for i in range(2000):
        tune.report({"loss": config["x"] + i, "a": {"b": i}})

space = {
    "v": tune.grid_search(given),
    "layers": [tune.choice([16, 32]), {"w": tune.quniform(0, 10, 1)}],
    "t": (tune.randint(0, 5), 2),
    "x": tune.uniform(0, 1),
    "later": tune.sample_from(lambda spec: spec["config"]["double"] + 1),
    "double": tune.sample_from(lambda spec: spec.config.x * 2),
    "opt": tune.choice([{"name": "adam"}, {"name": "sgd", "m": tune.uniform(0, 1)}]),
}
for stop in ({"training_iteration": 5}, {"a/b": 4}, lambda trial, result: result["a"]["b"] >= 4,
             tune.stopper.MaximumIterationStopper(5)):
    r = tune.run(functools.partial(train, data_dir="d"), config=space, stop=stop, metric="loss",
                 mode="min", verbose=0, host_mem="2GiB")
    bad = [(given[t.trial_id], t.state, t.error) for t in r if len(t.history) != 5 or t.attempts != 1]
    same = len(r) == 1 or all(type(t.config["v"]) is type(g) for t, g in zip(r, given))
    print("REACHED", len(r), bad, same)
    space = {"x": tune.uniform(0, 1), **{k: v for k, v in space.items() if k not in ("x", "v")},
             "v": tune.choice(given)}
r = tune.run(lambda config: {"loss": 1}, config={"x": 1}, stop={"nothing": 5}, verbose=0)
print("NAMED", "nothing" in str(r.errors), r.trials[0].status)
r = tune.run(lambda config: {"loss": 1, "whole": np.int64(3), "far": np.float32("inf"),
             "grid": np.arange(4).reshape(2, 2)}, config={"x": 1}, verbose=0)
far = r.get_best_trial("far", "min", filter_nan_and_inf=False).metrics
try:
    r.get_best_trial("far", "min")
except RuntimeError as error:
    print("SAID", far["far"], repr(far["whole"]), far["grid"], error)
`)
	if err != nil || strings.Count(out, "[] True") != 4 || !strings.Contains(out, "REACHED 24 []") ||
		!strings.Contains(out, "NAMED True ERROR") || !strings.Contains(out,
		"SAID inf 3 [[0, 1], [2, 3]] no trial finished with a value of far: does the training") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestValuesThatCannotBe: what tune.run and a report refuse, by its name, before anything is
// trained or compared.
func TestValuesThatCannotBe(t *testing.T) {
	r := newTune(t)
	out, err := r.python("cannot.py", `
import math
from memroom import tune

space = {"x": tune.uniform(0, 1)}
for given in ({"time_budget_s": -5}, {"time_budget_s": 0}, {"time_budget_s": math.nan},
              {"time_budget_s": math.inf}, {"max_concurrent_trials": -1}, {"num_samples": 2.5},
              {"num_samples": 0}, {"max_failures": "a"}, {"max_failures": -2},
              {"keep_checkpoints_num": 0}, {"checkpoint_freq": -1}, {"name": "a/b"}, {"name": "../x"},
              {"name": "x" * 300}, {"stop": {"training_iteration": "x"}}, {"stop": 5},
              {"resources_per_trial": {"cpus": 1}}, {"resources_per_trial": {"memory": -1}},
              {"config": 5}, {"config": [1]}):
    name = list(given)[0]
    words = {"keep_checkpoints_num": "num_to_keep", "checkpoint_freq": "checkpoint_frequency",
             "config": "settings", "resources_per_trial": "resources"}
    try:
        tune.run(lambda config: 1.0, **dict({"config": space, "verbose": 0}, **given))
        print("TAKEN", given)
    except (ValueError, TypeError, NotImplementedError) as error:
        if words.get(name, name) not in str(error):
            print("UNCLEAR", given, error)

def train(config):
    tune.report(*config["said"])
r = tune.run(train, config={"said": tune.grid_search([(5,), ({"loss": [1, 2]},),
    ({"loss": 10 ** 400},), ({"loss": "good"},)])}, metric="loss", mode="min", verbose=0)
print("REPORTS", [str(e)[:40] for e in r.errors])
try:
    r.get_best_trial()
except RuntimeError as error:
    print("BEST", error)
`)
	want := "REPORTS ['report takes a dict of metrics, not 5', 'report: loss=[1, 2] is no number, and " +
		"tr', 'report: loss=100000000000000000000000000', " +
		`"report: loss='good' is text, and trials "]`
	if err != nil || strings.Contains(out, "TAKEN") || strings.Contains(out, "UNCLEAR") ||
		!strings.Contains(out, want) || !strings.Contains(out, "4 of 4 failed, the first with TypeError") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestReportsAreThoseOfAnUncappedStudy: every scheduler and every way in which a trial can end, in
// trials that read files into the page cache up to their limit. Each runs once, and its reports
// equal those of a plain loop over the same scheduler.
func TestReportsAreThoseOfAnUncappedStudy(t *testing.T) {
	r := newTune(t)
	out, err := r.pythonOf(testenv.Python(t, "numpy"), "ends.py", `
import os, signal, sys
import numpy as np
from memroom import tune
from memroom.tune import schedulers

BIG = os.path.abspath("big")
ENDS = ["return", "value", "error", "exit 3", "killed", "stop", "caught"]

def losses(config):
    return [config["x"] / 7 + 1 / (i + 1) for i in range(12)]

def train(config):
    with open(BIG, "rb") as file:  # page cache comes to the limit
        while file.read(1 << 20): pass
    end, last = ENDS[config["end"]], len(losses(config))
    for i, loss in enumerate(losses(config)):
        tune.report({"v": {"loss": loss}})
        if i == 5:
            if end == "error": raise TypeError("none of memory")
            if end == "exit 3": sys.exit(3)
            if end == "killed": os.kill(os.getpid(), signal.SIGKILL)
            if end == "caught":
                try: raise ValueError("no memory is involved")
                except ValueError: sys.exit(1)
            if end == "return": return
    return np.array([0.0]) if end == "value" else None

def plain(make):
    """What the reports are when nothing caps a trial."""
    rule, out = make(), []
    rule.set_search_properties("v/loss", "min")
    for x in range(len(ENDS)):
        class One: pass
        one, seen, end = One(), [], ENDS[x]
        one.config, one.checkpoint = {"x": x}, None
        rule.on_trial_add(None, one)
        values = losses({"x": x})[: 12 if end in ("value", "stop") else 6]
        for i, loss in enumerate(values + ([0.0] if end == "value" else [])):
            seen.append(loss)
            result = {"v/loss": loss, "training_iteration": i + 1}
            if end == "stop" and i + 1 == 9 or rule.on_trial_result(None, one, result) == "STOP":
                break
        out.append(seen)
    return out

if "MEMROOM_TRIAL" not in os.environ:
    open(BIG, "wb").write(b"x" * (96 << 20))
for make in (lambda: None, schedulers.FIFOScheduler,
             lambda: schedulers.ASHAScheduler(max_t=8, grace_period=1, reduction_factor=2),
             lambda: schedulers.ASHAScheduler(max_t=20, grace_period=3, reduction_factor=3, brackets=2),
             lambda: schedulers.MedianStoppingRule(time_attr="training_iteration", grace_period=2,
                                                   min_samples_required=1)):
    try:
        r = tune.run(train, config={"x": tune.grid_search(list(range(len(ENDS)))),
                                    "end": tune.sample_from(lambda spec: spec.config.x)},
                     scheduler=make(), metric="v/loss", mode="min", verbose=0, host_mem="100MiB",
                     max_concurrent_trials=1,
                     stop=lambda trial, result: int(trial) == 5 and result["training_iteration"] == 9)
    except Exception:  # what a training raises ends its process, here too
        pass
    got = [[h["v"]["loss"] if "v" in h else h["v/loss"] for h in t.history] for t in r]
    if make() is None:
        print("STATES", *[t.state for t in r])
    want = plain(make if make() is not None else schedulers.FIFOScheduler)
    if "MEMROOM_TRIAL" not in os.environ:  # trials of a later study come by here too
        print("SAME", got == want, {t.attempts for t in r})
    if got != want:
        print([len(g) for g in got], [len(w) for w in want], [t.error for t in r])
`)
	if err != nil || strings.Count(out, "SAME True {1}") != 5 ||
		!strings.Contains(out, "STATES finished finished failed failed failed finished failed") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestTrialsGoOnFromTheirCheckpoints: one that runs out of memory goes on from its last whole
// checkpoint with more, its reports without a gap or a repetition; a class does the same;
// population based training goes on from another's.
func TestTrialsGoOnFromTheirCheckpoints(t *testing.T) {
	needCgroup(t)
	r := newTune(t)
	out, err := r.python("goes_on.py", `
import json, os, tempfile
from memroom import train, tune
from memroom.tune.schedulers import PopulationBasedTraining

def steps(config):
    first, before = 0, tune.get_checkpoint()
    if before is not None:
        with before.as_directory() as folder, open(folder + "/state") as file:
            first = json.load(file)
    for i in range(first, 10 if first == 8 else 8):
        if config["dies"] and i == 5 and not os.path.exists("died"):  # in the trial's folder
            open("died", "w").close()
            os.mkdir(".new_checkpoint_000006")  # as if it had died while it wrote
            open(".new_checkpoint_000006/state", "w").close()
            raise MemoryError("no room")
        with tempfile.TemporaryDirectory() as folder:
            with open(folder + "/state", "w") as file:
                json.dump(i + 1, file)
            tune.report({"loss": config["lr"] + i, "first": first},
                        checkpoint=train.Checkpoint.from_directory(folder))

r = tune.run(steps, config={"lr": tune.uniform(0, 1), "dies": True}, metric="loss",
             mode="max", host_mem="1GiB", verbose=0, storage_path="kept", name="one",
             resources_per_trial={"memory": 200 << 20},
             checkpoint_config=tune.CheckpointConfig(num_to_keep=2), seed=4)
one = r.trials[0]
print("WENT ON", one.state, one.attempts, [h["first"] for h in one.history],
      [h["training_iteration"] for h in one.history], sorted(os.listdir(one.path))[:2],
      one.path == os.path.abspath("kept/one/steps_00000"))
print("BEST", r.get_best_checkpoint(one, "loss", "max") == one.checkpoint)

rule = PopulationBasedTraining(time_attr="training_iteration", perturbation_interval=2,
                               hyperparam_mutations={"lr": tune.uniform(0, 1)})
r = tune.run(steps, config={"lr": tune.uniform(0, 1), "dies": False}, num_samples=2,
             metric="loss", mode="max", scheduler=rule, verbose=0, max_concurrent_trials=1)
print("EXPLOITED", [[h["first"] for h in t.history] for t in r], {t.state for t in r},
      [name for t in r for name in os.listdir(t.path) if name.startswith(".")])
`)
	for _, want := range []string{"WENT ON finished 2 [0, 0, 0, 0, 0, 5, 5, 5] [1, 2, 3, 4, 5, 6, 7, 8] " +
		"['checkpoint_000007', 'checkpoint_000008'] True", "BEST True",
		"EXPLOITED [[0, 0, 0, 0, 0, 0, 0, 0], [0, 0, 8, 8]] {'finished'} []"} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("%v, want %s\n%s", err, want, out)
		}
	}
}

// TestTrialsMeetWhereNobodyElseCanBe: the socket lies in the study's folder however long its name
// is, and not among the names that every user sees and can knock at.
func TestTrialsMeetWhereNobodyElseCanBe(t *testing.T) {
	r := newTune(t)
	place := filepath.Join(r.dir, strings.Repeat("long", 30)) // longer than the address of a socket
	if err := os.MkdirAll(place, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", place)
	out, err := r.pythonOf(testenv.Python(t), "meets.py", `
import os
from memroom import tune

class Looking(tune.Callback):
    def on_trial_result(self, iteration, trials, trial, result, **info):
        with open("/proc/net/unix") as file:
            text = file.read()
        print("HEARD", result["loss"], "@memroom-tune" in text)

def train(config):
    tune.report(loss=config["x"])

tune.run(train, config={"x": tune.grid_search([3, 4])}, metric="loss", mode="min", verbose=0,
         callbacks=[Looking()])
`)
	if err != nil || !strings.Contains(out, "HEARD 3 False") ||
		!strings.Contains(out, "HEARD 4 False") {
		t.Errorf("%v\n%s", err, out)
	}
	if left, _ := filepath.Glob(filepath.Join(place, "memroom-tune-*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestTheProgramHearsOfItsTrials: callbacks, tables, errors, names, the end of a study by time and
// by a rule, and a search object.
func TestTheProgramHearsOfItsTrials(t *testing.T) {
	r := newTune(t)
	out, err := r.pythonOf(testenv.Python(t, "optuna"), "hears.py", `
import time
from memroom import tune
from memroom.tune.search import ConcurrencyLimiter
from memroom.tune.search.optuna import OptunaSearch

heard = []
class Listening(tune.Callback):
    def on_trial_result(self, iteration, trials, trial, result, **info): heard.append(result["loss"])
    def on_trial_complete(self, iteration, trials, trial, **info): heard.append(trial.status)
    def on_trial_error(self, iteration, trials, trial, **info): heard.append(trial.status)
    def on_experiment_end(self, trials, **info): heard.append(len(trials))

def train(config):
    context = tune.get_context()
    assert context.get_trial_name() == "t" + context.get_trial_id()
    tune.report(loss=config["x"])
    if config["x"]: raise KeyError("nothing there")

grid = tune.Tuner(train, param_space={"x": tune.grid_search([0, 1])},
    tune_config=tune.TuneConfig(metric="loss", mode="min", max_concurrent_trials=1,
        trial_name_creator=lambda t: "t" + t.trial_id, trial_dirname_creator=lambda t: "d" + t.trial_id),
    run_config=tune.RunConfig(name="heard", storage_path="kept", callbacks=[Listening()], verbose=0,
        progress_reporter=tune.CLIReporter(metric_columns={"loss": "LOSS"}))).fit()
print("HEARD", heard, repr(grid.errors), [r.path.split("/")[-3:] for r in grid])

def slow(config):
    for i in range(1000):
        tune.report(loss=i)
        time.sleep(0.05)
for more in ({"time_budget_s": 3}, {"stop": tune.stopper.TimeoutStopper(2)}):
    r = tune.run(slow, config={"x": tune.uniform(0, 1)}, num_samples=100, metric="loss", mode="max",
                 verbose=0, **more)
    print("ENDED", 0 < len(r) < 100, {t.state for t in r}, r.best_result["loss"] > 1)

a, b = (tune.run(lambda c: 1.0, config={"x": tune.uniform(0, 1)}, metric="loss", mode="min",
                 verbose=0).best_config["x"] for _ in range(2))
print("SEEDS", a != b)

search = ConcurrencyLimiter(OptunaSearch(seed=1), max_concurrent=1)
r = tune.run(lambda c: {"loss": c["o"]["x"] ** 2}, search_alg=search, num_samples=5, metric="loss",
    mode="min", config={"o": {"x": tune.uniform(-3, 3)}, "t": tune.choice([(1, 2)]), "c": 7}, verbose=0)
own = search.searcher._study.trials
print("SEARCHED", [t.config["o"]["x"] for t in r] == [t.params["o/x"] for t in own],
      {t.config["c"] for t in r}, {t.config["t"] for t in r}, {t.state.name for t in own})
`)
	for _, want := range []string{"HEARD [0, 'TERMINATED', 1, 'ERROR', 2] [KeyError('nothing there')] " +
		"[['kept', 'heard', 'd00000'], ['kept', 'heard', 'd00001']]", "LOSS", "t00001",
		"SEARCHED True {7} {(1, 2)} {'COMPLETE'}", "SEEDS True",
		"tune: trial 4 has o/x="} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("%v, want %s\n%s", err, want, out)
		}
	}
	if strings.Count(out, "ENDED True {'stopped'} True") != 2 {
		t.Errorf("not ended:\n%s", out)
	}
}

// TestAProgramsStudyIsTakenUpAgain: when the program has gone its study goes on; a script that
// searches something else by then is refused.
func TestAProgramsStudyIsTakenUpAgain(t *testing.T) {
	r := newTune(t)
	script := `
from memroom import tune
def train(config):
    tune.report(loss=config["NAME"] + config["twice"])
tune.run(train, name="again", metric="loss", mode="min", num_samples=2, config={
    "NAME": tune.uniform(0, 1), "twice": tune.sample_from(lambda spec: 2 * spec.config["NAME"])})
`
	if out, err := r.python("again.py", strings.ReplaceAll(script, "NAME", "lr")); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Setenv("PYTHONPATH", filepath.Join(testenv.Root(t), "python"))
	out, err := r.command("tune", "resume", "--samples", "2", "again").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "4 trials: 4 finished") {
		t.Errorf("%v\n%s", err, out)
	}
	r.file("again.py", strings.ReplaceAll(script, "NAME", "rate"))
	out, _ = r.command("tune", "resume", "--samples", "1", "again").CombinedOutput()
	if !strings.Contains(string(out), "4 finished, 0 stopped early, 1 failed") ||
		!strings.Contains(string(out), "the study searches lr, the script rate") {
		t.Errorf("%s", out)
	}
}
