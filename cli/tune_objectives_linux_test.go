package cli

import (
	"strings"
	"testing"

	"memroom/testenv"
)

// TestTuneOptimizeEqualsOptunasOwnRun: an objective asks for its settings inside its own code, and
// each trial is a process. A trial that does not fit is reported as failed, and keeps its settings
// when it is tried again.
func TestTuneOptimizeEqualsOptunasOwnRun(t *testing.T) {
	r := newTune(t)
	out, err := r.pythonOf(testenv.Python(t, "optuna"), "objective.py", `
import os, optuna
from memroom import tune

optuna.logging.set_verbosity(optuna.logging.ERROR)

def objective(trial):
    x = trial.suggest_float("x", -10, 10)
    n = trial.suggest_int("n", 1, 4)
    for step in range(2):
        trial.report(x * x + step, step)
        if x > 5:
            raise optuna.TrialPruned()
    if n == 3 and "MEMROOM_TRIAL" in os.environ:
        assert trial.params == {"x": x, "n": n}, trial.params
        taken = bytearray(400 << 20)
        for i in range(0, len(taken), 4096):
            taken[i] = 1
    return (x - 2) ** 2 + n

def study(storage=None):
    sampler = optuna.samplers.TPESampler(seed=3, n_startup_trials=2)
    return optuna.create_study(study_name="s", storage=storage, sampler=sampler)

kept = study("sqlite:///kept.db")
seen = []
tune.optimize(kept, objective, n_trials=5, host_mem="200MiB", max_concurrent_trials=1,
              callbacks=[lambda study, trial: seen.append(trial.number)])
own = study()
own.optimize(objective, n_trials=2)
print("SAME", [a.params == b.params for a, b in zip(kept.trials, own.trials)])
print("STATES", sorted({(t.params["n"] == 3 and t.params["x"] <= 5, t.state.name) for t in kept.trials}))
assert all(t.state.name != "RUNNING" for t in kept.trials)
lost = [t.number for t in kept.trials if t.state.name == "FAIL"]
assert lost and all(kept.trials[n].user_attrs["memroom_infeasible"] for n in lost)
print("HEARD", seen == [t.number for t in kept.trials if t.state.name != "FAIL"])
print("KEPT", len(optuna.load_study(study_name="s", storage="sqlite:///kept.db").trials))
`)
	for _, want := range []string{"SAME [True, True]", "(True, 'FAIL')", "HEARD True", "KEPT 5"} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("%v, want %s\n%s", err, want, out)
		}
	}
}

func TestTuneRunsHuggingFacesSearch(t *testing.T) {
	r := newTune(t)
	out, err := r.pythonOf(testenv.Python(t, "transformers", "optuna"), "search.py", `
import tempfile, torch
from transformers import Trainer, TrainingArguments
from memroom import tune

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def forward(self, x=None, labels=None):
        y = self.layer(x).squeeze(-1)
        return {"loss": ((y - labels) ** 2).mean(), "logits": y}

data = [{"x": torch.ones(4), "labels": torch.tensor(1.0)} for _ in range(8)]
args = TrainingArguments(tempfile.mkdtemp(), num_train_epochs=1, report_to=[], save_strategy="no",
                         disable_tqdm=True, eval_strategy="epoch", use_cpu=True)
trainer = Trainer(None, args, train_dataset=data, eval_dataset=data, model_init=lambda: Model())
best = tune.hyperparameter_search(
    trainer, n_trials=1, direction="minimize",
    hp_space=lambda trial: {"learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-1)})
print("BEST", best.run_id, sorted(best.hyperparameters), best.objective > 0)
`)
	if err != nil || !strings.Contains(out, "BEST 0 ['learning_rate'] True") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestTuneRunsSweeps: a program that reads its settings from wandb.config, by tune.agent and by the
// sweep's file.
func TestTuneRunsSweeps(t *testing.T) {
	r := newTune(t)
	python := testenv.Environment(t, "serve")
	t.Setenv("WANDB_MODE", "offline")
	t.Setenv("WANDB_SILENT", "true")
	out, err := r.pythonOf(python, "agent.py", `
import wandb
from memroom import tune

sweep = {
    "method": "random",
    "metric": {"name": "val/loss", "goal": "minimize"},
    "parameters": {"lr": {"min": 0.1, "max": 0.2}, "opt": {"parameters": {"beta": {"value": 2}}}},
}

def train():
    with wandb.init(config={"lr": 5.0, "epochs": 2}):
        for _ in range(wandb.config.epochs):
            wandb.log({"val/loss": wandb.config.lr + wandb.config.opt["beta"]})

best = tune.agent(sweep, function=train, count=1).get_best_result()
print("BEST", round(best.metrics["val/loss"] - best.config["lr"], 6))
`)
	if err != nil || !strings.Contains(out, "BEST 2.0") {
		t.Errorf("%v\n%s", err, out)
	}
	r.file("plain.py", `
import wandb
wandb.init()
wandb.log({"loss": wandb.config.lr})
`)
	r.file("sweep.yaml", `
program: plain.py
method: random
metric: {name: loss, goal: minimize}
command: ["`+python+`", "${program}"]
parameters: {lr: {min: 0.1, max: 0.2}}
`)
	result, text, code := r.tune("--samples", "1", "sweep.yaml")
	if code != 0 || len(result.Trials) != 1 || result.Trials[0].Value == nil ||
		*result.Trials[0].Value < 0.1 || *result.Trials[0].Value > 0.2 {
		t.Errorf("exit %d, %+v\n%s", code, result, text)
	}
}
