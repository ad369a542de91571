//go:build linux

package supervise_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"memroom/event"
	"memroom/store"
	"memroom/testenv"
)

const hfTrainer = `
import torch, tempfile
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
torch.manual_seed(0)
model = BertForSequenceClassification(BertConfig(vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32))
data = [{"input_ids": torch.randint(0, 50, (8,)), "labels": torch.tensor(i % 2)} for i in range(32)]
with tempfile.TemporaryDirectory() as out:
    Trainer(model, TrainingArguments(out, max_steps=8, per_device_train_batch_size=4, report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no"), train_dataset=data).train()
print("trained")
`

const lightningFit = `
import lightning as L, torch
class Model(L.LightningModule):
    def __init__(self): super().__init__(); self.net = torch.nn.Linear(8, 1)
    def training_step(self, batch, _): return self.net(batch[0]).square().mean()
    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), 0.1)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 8)), batch_size=4)
L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False).fit(Model(), data)
print("trained")
`

const twoRanks = `
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(10):
    loss = model(torch.randn(4, 8)).square().mean(); optimizer.zero_grad(); loss.backward(); optimizer.step()
os.write(1, b"rank %d trained\n" % dist.get_rank())  # one write: ranks share the pipe
dist.destroy_process_group()
`

// TestRealScripts runs unmodified training scripts of the usual kinds. Each must end well, leave
// its output alone, and, where the probe knows the framework, have its steps counted.
func TestRealScripts(t *testing.T) {
	example := func(name string) string { return filepath.Join(testenv.Root(t), "examples", name) }
	for _, c := range []struct {
		name    string
		modules []string
		command func(w *workshop, python string) []string
		prints  string
		steps   int64
		ranks   int
	}{
		{"plain PyTorch loop", []string{"torch"}, func(_ *workshop, python string) []string {
			return []string{python, example("leaking_loop.py"), "--clean", "--steps", "30"}
		}, "done", 30, 0},
		{"Hugging Face Trainer", []string{"torch", "transformers", "accelerate"},
			func(w *workshop, python string) []string {
				return []string{python, w.file("hf.py", hfTrainer)}
			}, "trained", 8, 0},
		{"Lightning", []string{"torch", "lightning"}, func(w *workshop, python string) []string {
			return []string{python, w.file("pl.py", lightningFit)}
		}, "trained", 16, 0},
		{"torchrun, two ranks", []string{"torch"}, func(w *workshop, python string) []string {
			return []string{python, "-m", "torch.distributed.run", "--standalone",
				"--nproc-per-node", "2", w.file("ddp.py", twoRanks)}
		}, "rank 1 trained", 10, 2},
		{"Keras fit", []string{"tensorflow"}, func(_ *workshop, python string) []string {
			return []string{python, example("keras_fit.py"), "--batches", "6", "--epochs", "1"}
		}, "done: loss", 0, 0},
		{"Ray Tune", []string{"ray", "torch"}, func(_ *workshop, python string) []string {
			return []string{python, example("tune_overcommits.py"), "--samples", "2", "--mib", "16"}
		}, "done: 2 trials, 0 failed", 0, 0},
		{"a shell script around them", []string{"torch"}, func(w *workshop,
			python string) []string {
			return []string{"sh", "-c", "set -e; for i in 1 2; do " + python + " " +
				example("batch_too_large.py") + " --batch 4 --steps 2; done"}
		}, "done\nstep 1", 2, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			python := testenv.Python(t, c.modules...)
			t.Parallel()
			w := newWorkshop(t, ourselves)
			w.oneThread()
			got := w.run(append([]string{"--"}, c.command(w, python)...)...)
			if got.code != 0 || !strings.Contains(got.out, c.prints) {
				t.Fatalf("exit %d\n%s\n%s", got.code, got.out, got.err)
			}
			summary, err := w.folder().Summary()
			if err != nil {
				t.Fatal(err)
			}
			if summary.Steps < c.steps || summary.Verdict.IsOOM ||
				summary.Peaks.Unreclaimable < 10*event.MiB {
				t.Errorf("steps %d, want %d; verdict %+v; peaks %+v; notes %q", summary.Steps,
					c.steps, summary.Verdict, summary.Peaks, summary.Notes)
			}
			if ranks := ranksSeen(w.folder()); ranks != c.ranks {
				t.Errorf("%d ranks seen, want %d", ranks, c.ranks)
			}
		})
	}
}

// file writes a script where the command can read it.
func (w *workshop) file(name, text string) string {
	w.Helper()
	path := filepath.Join(w.home, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		w.Fatal(err)
	}
	return path
}

func ranksSeen(f *store.Folder) int {
	ranks := map[int]bool{}
	for s := range f.Steps() {
		if s.Rank != nil {
			ranks[*s.Rank] = true
		}
	}
	return len(ranks)
}

const rankRunsOut = `
import sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
kept = []
for step in range(100000):
    if dist.get_rank() == 1 and step > 5:
        torch.empty(1 << 50) if sys.argv[1] == "raises" else kept.append(bytearray(64 << 20))
    model(torch.randn(4, 8)).square().mean().backward()
`

// TestTorchrunRankRunsOut: one of two real ranks runs out of memory, by an exception and by the
// kernel, while the other waits for it in a collective call. The run must end, and the verdict must
// name the rank.
func TestTorchrunRankRunsOut(t *testing.T) {
	python := testenv.Python(t, "torch")
	for how, killer := range map[string]string{"raises": "itself", "hogs": "cgroup"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			w := newWorkshop(t, ourselves)
			w.oneThread()
			w.run("--host-mem", "1500MiB", "--grace", "20s", "--group", "pair", "--", python, "-m",
				"torch.distributed.run", "--standalone",
				"--nproc-per-node", "2", w.file("ddp.py", rankRunsOut), how)
			if how == "hogs" && w.state(w.folder()).Cgroup == "" {
				testenv.Needs(t, "a cgroup",
					"without one the soft limit ends the whole run at once")
			}
			if v := w.verdict(w.folder()); !v.IsOOM || v.KilledBy != killer || v.Rank == nil ||
				*v.Rank != 1 {
				t.Errorf("verdict %+v", v)
			}
		})
	}
}

// TestPythonException: the verdict of a Python that ends by a real out-of-memory exception names
// the wall.
func TestPythonException(t *testing.T) {
	w := newWorkshop(t, ourselves)
	got := w.run("--", testenv.Python(t, "torch"), "-c", "import torch; torch.empty(1 << 50)")
	v := w.verdict(w.folder())
	if got.code != 1 || !v.IsOOM || v.Where != event.WhereHost || v.KilledBy != "itself" {
		t.Errorf("exit %d, %+v\n%s", got.code, v, got.err)
	}
}

// TestWithoutProbe: other Pythons and switches that keep the probe out leave the meters working.
func TestWithoutProbe(t *testing.T) {
	for name, args := range map[string][]string{"isolated": {python(t), "-I", "-c"},
		"no environment": {python(t), "-E", "-c"}} {
		t.Run(name, func(t *testing.T) {
			w := newWorkshop(t, ourselves)
			got := w.run(append(append([]string{"--"}, args...),
				"import time; kept = bytearray(50 << 20); time.sleep(0.6); print('done')")...)
			summary, err := w.folder().Summary()
			if err != nil || got.out != "done\n" || summary.Peaks.Unreclaimable < 50*event.MiB {
				t.Errorf("%+v %v %+v", got, err, summary.Peaks)
			}
		})
	}
}

const ranksByArgument = `
import sys, torch, torch.distributed as dist
rank = int(sys.argv[2])
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100000):
    if rank == 1 and step > 5:
        torch.empty(1 << 50)
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
`

// TestRanksByArgument: two ranks that a shell starts, and that only their own code numbers. The
// shell's wait loses the code of the one that runs out of memory; the verdict does not lose its
// rank.
func TestRanksByArgument(t *testing.T) {
	w := newWorkshop(t, ourselves)
	w.oneThread()
	got := w.run("--", "sh", "-c", `"$0" "$1" "$2" 0 & "$0" "$1" "$2" 1 & wait`, testenv.Python(t, "torch"), w.file("ddp.py", ranksByArgument), filepath.Join(w.home, "meet"))
	if v := w.verdict(w.folder()); got.code != 0 || !v.IsOOM || v.Where != event.WhereHost ||
		v.Rank == nil || *v.Rank != 1 {
		t.Errorf("exit %d, %+v", got.code, v)
	}
}
