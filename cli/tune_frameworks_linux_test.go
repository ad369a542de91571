package cli

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"memroom/testenv"
)

// TestTuneHearsWhatFrameworksLog: nothing is printed; the metric comes from what the probe sees.
func TestTuneHearsWhatFrameworksLog(t *testing.T) {
	r := newTune(t)
	for _, c := range []struct{ module, metric, script string }{
		{"transformers", "eval_loss", `
import contextlib, io, sys, tempfile, torch
from transformers import Trainer, TrainingArguments
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def forward(self, x=None, labels=None):
        y = self.layer(x).squeeze(-1)
        return {"loss": ((y - labels) ** 2).mean(), "logits": y}
data = [{"x": torch.randn(4), "labels": torch.tensor(1.0)} for _ in range(16)]
args = TrainingArguments(tempfile.mkdtemp(), num_train_epochs=2, learning_rate=float(sys.argv[1]),
    report_to=[], save_strategy="no", disable_tqdm=True, eval_strategy="epoch")
with contextlib.redirect_stdout(io.StringIO()):
    Trainer(Model(), args, train_dataset=data, eval_dataset=data).train()
`},
		{"keras", "val_loss", `
import numpy as np, keras
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
x, y = np.ones((8, 2)), np.ones(8)
model.fit(x, y, epochs=2, verbose=0, validation_data=(x, y))
`},
		{"lightning", "val_loss", `
import sys, torch, lightning
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, i): return self.layer(batch[0]).pow(2).mean()
    def validation_step(self, batch, i): self.log("val_loss", self.layer(batch[0]).pow(2).mean())
    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), lr=float(sys.argv[1]))
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(32, 4)), 8)
lightning.Trainer(max_epochs=2, logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False).fit(Model(), data, data)
`},
		{"optuna", "loss", `
import optuna, sys
optuna.logging.set_verbosity(optuna.logging.ERROR)
def objective(trial):
    trial.report(float(sys.argv[1]), 1)
    return 1.0
optuna.create_study().optimize(objective, n_trials=1)
`},
		{"ray", "loss", `
import sys
from ray import tune
tune.report({"loss": float(sys.argv[1])})
`},
	} {
		t.Run(c.module, func(t *testing.T) {
			python := testenv.Python(t, c.module)
			r.file("train.py", c.script)
			result, text, code := r.tune("--samples", "1", "--metric", c.metric, "--", python,
				"train.py", "uniform(0.001,0.002)")
			if code != 0 || len(result.Trials) != 1 || result.Trials[0].Value == nil {
				t.Errorf("exit %d, %+v\n%s", code, result, text)
			}
		})
	}
}

// TestTuneWithOptunaEqualsOptunasOwnRun: the same seed produces the same trials, one by one. There
// are enough of them for Optuna's model to choose some, after its ten random ones.
func TestTuneWithOptunaEqualsOptunasOwnRun(t *testing.T) {
	python := testenv.Python(t, "optuna")
	r := newTune(t)
	r.file("train.py", `
import argparse
p = argparse.ArgumentParser()
p.add_argument("--lr", type=float)
p.add_argument("--bs", type=int)
p.add_argument("--n", type=int)
a = p.parse_args()
print("loss=%r" % ((a.lr - 0.003) ** 2 * 1e4 + a.bs / 1000 + a.n * 0.01))
`)
	result, text, code := r.tune("--search", "optuna", "--name", "o", "--concurrent", "1", "--seed",
		"5", "--samples", "18", "--", python, "train.py", "--lr", "loguniform(1e-4,1e-2)", "--bs",
		"choice(16,32,64)", "--n", "int(1,6)")
	if code != 0 || len(result.Trials) != 18 {
		t.Fatalf("exit %d\n%s", code, text)
	}
	ours, _ := json.Marshal(result.Trials)
	check := exec.Command(python, "-c", `
import json, optuna, sys
def objective(t):
    lr = t.suggest_float("lr", 1e-4, 1e-2, log=True)
    bs = t.suggest_categorical("bs", [16, 32, 64])
    return (lr - 0.003) ** 2 * 1e4 + bs / 1000 + t.suggest_int("n", 1, 6) * 0.01
own = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=5))
own.optimize(objective, n_trials=18)
ours = json.loads(sys.argv[1])
for a, b in zip(own.trials, ours):
    assert a.params == b["params"] and a.value == b["value"], (a.params, a.value, b)
kept = optuna.load_study(study_name="o", storage="sqlite:///home/studies/o/optuna.db")
assert [t.value for t in kept.trials] == [b["value"] for b in ours]
print("EQUAL", len(ours))
`, string(ours))
	check.Dir = r.dir
	if out, err := check.CombinedOutput(); err != nil || !strings.Contains(string(out), "EQUAL 18") {
		t.Errorf("%v\n%s", err, out)
	}
	refused, err := r.command("tune", "--search", "optuna", "--sampler", "NoSampler", "--", python,
		"train.py", "uniform(0,1)").CombinedOutput()
	if err == nil || !strings.Contains(string(refused), "there are") {
		t.Errorf("an unknown sampler: %v\n%s", err, refused)
	}
}
