package cli

import (
	"strings"
	"testing"

	"memroom/testenv"
)

// TestSchedulersDecideAsRays: the same reports to both, ours and Ray's, thousands of them. And what
// Ray's own objects say in a study of ours.
func TestSchedulersDecideAsRays(t *testing.T) {
	r := newTune(t)
	out, err := r.pythonOf(testenv.Python(t, "ray"), "judge.py", `
import random
from memroom import tune
from memroom.tune import schedulers as ours, space, stopper
import ray.tune as theirs
import ray.tune.schedulers, ray.tune.stopper

class One:
    def __init__(self, n): self.trial_id, self.config, self.checkpoint = str(n), {}, None
class Controller:
    def get_live_trials(self): return []

def decisions(rule, trials, seed):
    rule.set_search_properties("loss", "min" if seed % 2 else "max")
    draw, controller, out = random.Random(seed), Controller(), []
    live, at = [One(n) for n in range(trials)], {}
    for one in live: rule.on_trial_add(controller, one)
    while live:
        one = draw.choice(live)
        at[one] = at.get(one, 0) + 1
        result = {"loss": draw.random() + int(one.trial_id) % 5 / 9, "training_iteration": at[one]}
        said = rule.on_trial_result(controller, one, result)
        out.append((one.trial_id, at[one], said))
        if said == "STOP" or at[one] == 30: live.remove(one)
    return out

count = 0
for seed in range(60):
    draw = random.Random(seed)
    asha = dict(max_t=draw.choice([5, 9, 27, 40]), grace_period=draw.choice([1, 2, 3]),
                reduction_factor=draw.choice([2, 3, 4, 1.5]))
    median = dict(time_attr="training_iteration", grace_period=draw.choice([1, 4]),
                  min_samples_required=draw.choice([1, 3, 5]))
    for name, args in (("ASHAScheduler", asha), ("MedianStoppingRule", median)):
        a = decisions(getattr(ours, name)(**args), 12, seed)
        b = decisions(getattr(ray.tune.schedulers, name)(**args), 12, seed)
        assert a == b, (name, args, seed, [p for p in zip(a, b) if p[0] != p[1]][:1])
        count += len(a)
for name, args in (("TrialPlateauStopper", dict(metric="loss", std=0.3, num_results=3)),
                   ("MaximumIterationStopper", dict(max_iter=7)),
                   ("ExperimentPlateauStopper", dict(metric="loss", std=0.05, top=4, patience=1))):
    a, b = getattr(stopper, name)(**args), getattr(ray.tune.stopper, name)(**args)
    draw = random.Random(3)
    for i in range(200):
        result = {"loss": draw.random(), "training_iteration": i % 10}
        one = str(draw.randrange(3))
        assert (bool(a(one, result)), bool(a.stop_all())) == (bool(b(one, result)), bool(b.stop_all())), (name, i)
        count += 1
print("DECIDED", count > 3000)

for made in ("uniform(1, 2)", "quniform(1, 2, 0.25)", "loguniform(1, 8)", "randint(1, 9)",
             "qrandint(2, 8, 2)", "lograndint(1, 9)", "randn(1, 2)", "qrandn(1, 2, 0.5)",
             "choice([1, (2,)])", "grid_search([1, 2])", "qloguniform(1, 8, 0.5)"):
    want = eval("tune." + made)
    got = space.domain(eval("theirs." + made))
    assert got.name == want.name and got.text == want.text, (made, got, want)
print("DOMAINS")

class CB(theirs.Callback):
    def on_trial_result(self, iteration, trials, trial, result, **info): print("RAYS CALLBACK", trial)

def train(config):
    for i in range(9): tune.report({"loss": config["x"] + i})
grid = tune.Tuner(train, param_space={"x": theirs.grid_search([1, 2])},
    tune_config=theirs.TuneConfig(metric="loss", mode="min", max_concurrent_trials=1,
        scheduler=ray.tune.schedulers.ASHAScheduler(max_t=4, grace_period=2, reduction_factor=2)),
    run_config=theirs.RunConfig(callbacks=[CB()], verbose=0)).fit()
print("OBJECTS", [(r.state, len(r.history)) for r in grid])
`)
	for _, want := range []string{"DECIDED True", "DOMAINS", "RAYS CALLBACK train_00001",
		"OBJECTS [('finished', 4), ('stopped', 2)]"} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("%v, want %s\n%s", err, want, out)
		}
	}
}

// TestRaysLibrariesInTrials: what libraries report through Ray's own functions is the trial's. And
// Ray's own classes, values of any name, a checkpoint that a callback wants.
func TestRaysLibrariesInTrials(t *testing.T) {
	r := newTune(t)
	out, err := r.pythonOf(testenv.Python(t, "ray"), "libraries.py", `
from memroom import tune
import ray.tune
from ray.tune.utils.mock_trainable import MyTrainableClass

class Wants(tune.Callback):
    def on_trial_result(self, iteration, trials, trial, result, **info):
        result["should_checkpoint"] = result["training_iteration"] == 2

ray.init()
grid = tune.Tuner(MyTrainableClass, param_space={"width": tune.grid_search([5, 9])},
    tune_config=tune.TuneConfig(metric="episode_reward_mean", mode="max",
        scheduler=tune.schedulers.HyperBandScheduler(max_t=9)),
    run_config=tune.RunConfig(stop={"training_iteration": 4}, callbacks=[Wants()], verbose=0)).fit()
print("CLASS", [(r.state, len(r.history), r.checkpoint.path[-6:]) for r in grid][:1])

def train(config):
    at = ray.tune.get_checkpoint()
    for step in range(3):
        ray.tune.report({"loss": step, "step": step})
    assert ray.tune.get_context().get_trial_id() == tune.get_context().get_trial_id()
    if config["fails"]:
        raise ValueError("on purpose")
grid = tune.Tuner(train, param_space={"fails": tune.grid_search([False, True])},
    tune_config=tune.TuneConfig(metric="loss", mode="min", max_concurrent_trials=1),
    run_config=tune.RunConfig(failure_config=tune.FailureConfig(fail_fast=True), verbose=0)).fit()
print("FUNCTION", [(r.state, len(r.history), r.error) for r in grid], ray._private.worker.global_worker.connected)

grid = tune.Tuner(lambda config: tune.report({"loss": "good"}),
    tune_config=tune.TuneConfig(metric="loss", mode="min")).fit()
print("TEXT", grid.errors)
`)
	for _, want := range []string{"CLASS [('finished', 4, '000002')]",
		"FUNCTION [('finished', 3, None), ('failed', 3, ValueError('on purpose'))] False",
		"TEXT [TypeError(\"report: loss='good' is text"} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("%v, want %s\n%s", err, want, out)
		}
	}
}

// TestNothingOfRaysIsDropped: every parameter of Ray's public signatures is taken by name here, or
// refused by its name; and docs/tune.md names every public name of ray.tune.
func TestNothingOfRaysIsDropped(t *testing.T) {
	r := newTune(t)
	out, err := r.pythonOf(testenv.Python(t, "ray"), "names.py", `
import inspect, re, sys, types
from memroom import tune
import ray.tune as theirs
import memroom.tune.schedulers, memroom.tune.stopper, memroom.tune.search, memroom.tune.search.optuna
import ray.tune.schedulers, ray.tune.stopper, ray.tune.search, ray.tune.search.optuna

def parameters(of):
    return [p for p in inspect.signature(of).parameters.values()
            if p.name != "self" and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]

pairs = [(getattr(tune, n), getattr(theirs, n), n) for n in (
    "Tuner", "TuneConfig", "RunConfig", "run", "CheckpointConfig", "FailureConfig", "report",
    "CLIReporter", "with_parameters", "with_resources", "uniform", "quniform", "loguniform",
    "qloguniform", "randint", "qrandint", "lograndint", "qlograndint", "randn", "qrandn", "choice",
    "grid_search", "sample_from", "register_trainable", "Checkpoint")]
for ours_, theirs_ in ((tune.schedulers, ray.tune.schedulers), (tune.stopper, ray.tune.stopper),
                       (tune.search, ray.tune.search), (tune.search.optuna, ray.tune.search.optuna)):
    for name, one in vars(ours_).items():
        if inspect.isclass(one) and hasattr(theirs_, name) and name not in ("Trainable", "Callback"):
            pairs.append((one, getattr(theirs_, name), name))
for cls, names in (("ResultGrid", ["get_best_result", "get_dataframe"]), ("ExperimentAnalysis",
                   ["get_best_trial", "get_best_config", "get_best_checkpoint", "dataframe"])):
    pairs += [(getattr(getattr(tune, cls), n), getattr(getattr(theirs, cls), n), n) for n in names]
missing, count = [], 0
for ours_, theirs_, name in pairs:
    mine = {p.name for p in parameters(ours_)}
    for p in parameters(theirs_):
        count += 1
        if p.name in mine:
            continue
        try:  # not a name of ours: refused with its own name
            ours_(**{q.name: lambda *a: None for q in parameters(ours_) if q.default is q.empty},
                  **{p.name: object()})
            missing.append((name, p.name, "dropped"))
        except (NotImplementedError, TypeError) as error:
            if p.name not in str(error):
                missing.append((name, p.name, str(error)))
print("PARAMETERS", count > 100, missing)

members = []
for cls in ("Result", "ResultGrid", "ExperimentAnalysis", "Checkpoint", "Callback", "TuneContext"):
    for n in dir(getattr(theirs, cls)):
        if not n.startswith("_") and not hasattr(getattr(tune, cls), n) and n not in ("config", "from_path"):
            members.append((cls, n))
print("MEMBERS", members)

public = list(theirs.__all__) + [n for n in dir(theirs) if not n.startswith("_")
          and not isinstance(getattr(theirs, n), types.ModuleType) or n in ("schedulers", "search", "stopper")]
text = open(sys.argv[1]).read()
table = dict(re.findall(r"^\| .(\w+). \| (here|not here)", text, re.M))
wrong = [n for n in public if n not in table and n not in ("logger",)]
for name, said in table.items():
    try: found = getattr(tune, name) is not None
    except (AttributeError, NotImplementedError): found = False
    if found != (said == "here"): wrong.append((name, said))
print("TABLE", len(table) > 40, wrong)
`, testenv.Root(t)+"/docs/tune.md")
	for _, want := range []string{"PARAMETERS True []", "MEMBERS []", "TABLE True []"} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("%v, want %s\n%s", err, want, out)
		}
	}
}
