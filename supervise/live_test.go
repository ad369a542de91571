//go:build linux && !race

package supervise_test

import (
	"slices"
	"strings"
	"testing"

	"memroom/event"
	"memroom/testenv"
	"memroom/trace"
)

// liveCase is a real program with a mistake that shows while it runs, and twins without it.
type liveCase struct {
	kind     string   // of the finding
	says     []string // words of its title
	remedies []string // and cures it names
	never    []string // cures that do not fit
}

// recordText is a module for the scripts here: a program with a mistake goes on until the record
// names it, however fast or slow the machine is. It ends after two minutes of processor time, ten
// on the clock or 3 GiB, and the test fails for want of the finding: it must not fill the machine.
const recordText = `
import glob, os, resource, time
began = time.monotonic()
def says():
    used = resource.getrusage(resource.RUSAGE_SELF)
    if used.ru_utime > 120 or time.monotonic() - began > 600 or used.ru_maxrss > 3 << 20: return True
    wanted = os.environ["MEMROOM_TEST_SAYS"]
    found = glob.glob(os.environ["MEMROOM_HOME"] + "/runs/*/events.jsonl")
    lines = [line for path in found for line in open(path) if '"finding"' in line]
    return not wanted or any(all(w in line for w in wanted.split("\n")) for line in lines)
def start_ray(**how):
    # Ray gives up when its own processes have not begun within 30 s, as on a busy machine.
    import ray
    for left in (4, 3, 2, 1, 0):
        try: return ray.init(address="local", include_dashboard=False, **how)
        except Exception as why:
            if "timed out during startup" not in str(why) or not left: raise
            ray.shutdown()
`

// watched runs a script and returns its findings of the case's kind.
func (c liveCase) watched(w *workshop, command ...string) []event.Finding {
	w.Helper()
	kind := c.kind
	w.file("record.py", recordText)
	w.env = append(w.env, "MEMROOM_TEST_SAYS="+strings.Join(c.says, "\n"))
	got := w.run(append([]string{"--"}, command...)...)
	if got.code != 0 || !strings.Contains(got.out, "done") {
		w.Fatalf("exit %d\n%s\n%s", got.code, got.out, got.err)
	}
	summary, err := w.folder().Summary()
	if err != nil {
		w.Fatal(err)
	}
	for _, f := range summary.Findings {
		w.Logf("%s: %s %q %q", f.Kind, f.Title, f.Evidence, f.Remedies)
		w.Logf("SECONDS %.1f of the run: %s", float64(f.FirstMS)/1000, f.Title)
	}
	return slices.DeleteFunc(summary.Findings, func(f event.Finding) bool { return f.Kind != kind })
}

// check compares the findings with the mistake, or with none.
func (c liveCase) check(t testing.TB, found []event.Finding) {
	t.Helper()
	if len(c.says) == 0 {
		if len(found) > 0 {
			t.Errorf("a program without a mistake: %+v", found)
		}
		return
	}
	if len(found) != 1 {
		t.Fatalf("%d findings of kind %s, want one: %+v", len(found), c.kind, found)
	}
	for _, words := range c.says {
		if !strings.Contains(found[0].Title, words) {
			t.Errorf("title %q does not have %q", found[0].Title, words)
		}
	}
	for _, id := range c.remedies {
		if !slices.Contains(found[0].Remedies, id) {
			t.Errorf("remedies %q, want %s", found[0].Remedies, id)
		}
	}
	for _, id := range c.never {
		if slices.Contains(found[0].Remedies, id) {
			t.Errorf("remedies %q have %s, which is in use", found[0].Remedies, id)
		}
	}
}

// evaluates trains, then evaluates in one of several ways. An evaluation batch waits a little, as a
// larger model would.
const evaluates = `
import sys, time, torch
from torch.utils.data import DataLoader, TensorDataset
how = sys.argv[1]
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 16), torch.nn.ReLU(), torch.nn.Linear(16, 16000))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
train = DataLoader(TensorDataset(torch.randn(64, 64)), batch_size=8)
test = DataLoader(TensorDataset(torch.randn(32 * 100, 64)), batch_size=32)

def train_epoch():
    model.train()
    for (x,) in train:
        loss = model(x).square().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        time.sleep(0.03)

def keeps():
    all_logits = []
    with torch.no_grad():
        for (x,) in test:
            all_logits.append(model(x)); time.sleep(0.05)
    return len(torch.cat(all_logits).argmax(-1))

def keeps_with_graph():
    outputs = []
    for (x,) in test:
        outputs.append({"y": model(x)}); time.sleep(0.05)
    return len(outputs)

def reduces():
    classes = []
    for (x,) in test:
        with torch.no_grad():
            classes.append(model(x).argmax(-1)); time.sleep(0.05)
    return len(classes)

def sliced():
    predictions, samples = [], test.dataset.tensors[0]
    with torch.no_grad():
        for at in range(0, len(samples), 32):
            predictions.append(model(samples[at:at + 32]).numpy()); time.sleep(0.05)
    return len(predictions)

def sliced_classes():
    classes, samples = [], test.dataset.tensors[0]
    with torch.no_grad():
        for at in range(0, len(samples), 32):
            classes.append(model(samples[at:at + 32]).argmax(-1).numpy()); time.sleep(0.05)
    return len(classes)

def large_batch():
    with torch.no_grad():
        for _ in range(2):
            time.sleep(0.3); y = model(torch.randn(9000, 64)); time.sleep(0.7); del y
        time.sleep(0.5)

for _ in range(12):
    train_epoch()
for way in how.split():
    model.eval()
    globals()[way]()
    train_epoch()
time.sleep(0.6)
print("done")
`

// TestEvaluationIsAPhase: evaluations that keep the outputs of all batches are named with the
// variable and its cure, one with a larger batch by its peak; one that keeps classes only is not.
func TestEvaluationIsAPhase(t *testing.T) {
	python := testenv.Python(t, "torch")
	for how, c := range map[string]liveCase{
		"keeps": {says: []string{"in evaluation", "outputs of all batches", "`all_logits`"},
			remedies: []string{"eval_outputs"}, never: []string{"no_grad"}},
		"keeps_with_graph": {says: []string{"in evaluation", "`outputs`"},
			remedies: []string{"no_grad", "eval_outputs"}},
		"large_batch": {says: []string{"the peak of host memory is in evaluation"},
			remedies: []string{"eval_batch"}, never: []string{"no_grad"}},
		"reduces sliced_classes sliced": {says: []string{"in evaluation", "outputs of all batches",
			"`predictions`"}, remedies: []string{"eval_outputs"},
			never: []string{"no_grad"}},
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			w := newWorkshop(t, ourselves)
			w.oneThread()
			c.kind = "evaluation"
			c.check(t, c.watched(w, python, w.file("evaluates.py", evaluates), how))
		})
	}
}

// readsByWorkers trains an epoch over two million samples that four workers read from one array,
// then one over samples that they read from Python objects.
const readsByWorkers = `
import time, warnings, numpy, torch, record
from torch.utils.data import DataLoader, Dataset
warnings.simplefilter("ignore")
n = 2_000_000
class Samples(Dataset):
    def __init__(self, objects):
        self.samples = [(float(i), str(i)) for i in range(n)] if objects else numpy.zeros((n, 16))
    def __len__(self): return n
    def __getitem__(self, i): return float(self.samples[i][0])
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
for objects in False, True:
    samples = Samples(objects)
    # in batches of a size that copies for many seconds: after that the workers are level
    for step, x in enumerate(DataLoader(samples, batch_size=256, num_workers=4, shuffle=True)):
        loss = model(x.float()[:, None]).mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        time.sleep(0.04)  # 300 steps last 12 s at least, however fast the machine is
        if step >= 300 and step % 10 == 0 and (not objects or record.says()): break
    assert objects or not record.says(), "workers that read an array are said to copy it"
print("done")
`

// TestWorkersCopyTheirParent: workers that read a list of Python objects copy its pages, which is
// named within one epoch; workers that read an array copy none.
func TestWorkersCopyTheirParent(t *testing.T) {
	python := testenv.Python(t, "torch", "numpy")
	w := newWorkshop(t, ourselves)
	w.oneThread()
	c := liveCase{kind: "worker_growth", says: []string{"DataLoader workers", "copy-on-write",
		"4 processes", "per minute", "memroom.share"}, remedies: []string{"dataloader_workers"}}
	found := c.watched(w, python, w.file("workers.py", readsByWorkers))
	if w.state(w.folder()).Cgroup == "" && len(found) == 0 {
		testenv.Needs(t, "a cgroup", "proportional memory is slow to read without one")
	}
	c.check(t, found)
}

// caches trains on images that the dataset keeps in its workers: a few, none, then all of them.
const caches = `
import time, warnings, torch, record
from torch.utils.data import DataLoader, Dataset
warnings.simplefilter("ignore")
class Images(Dataset):
    def __init__(self, how): self.cache, self.how = {}, how
    def __len__(self): return 16 * 2000
    def __getitem__(self, i):
        if self.how == "few": i %= 64
        image = self.cache.get(i)
        if image is None: image = torch.rand(3, 64, 64)
        if self.how != "none": self.cache[i] = image
        return image
model = torch.nn.Conv2d(3, 1, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for how in "few", "none", "all":
    for step, x in enumerate(DataLoader(Images(how), batch_size=16, num_workers=2, shuffle=True)):
        loss = model(x[:, :, :8, :8]).mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        if step >= 400 and (how != "all" or record.says()) and step % 20 == 0: break
    assert how == "all" or not record.says(), how + " images are called a cache"
print("done")
`

// TestCachesInWorkers: a dataset that keeps what it reads, in each of its workers, is named with
// the variable; one that keeps a few or nothing is not.
func TestCachesInWorkers(t *testing.T) {
	python := testenv.Python(t, "torch")
	w := newWorkshop(t, ourselves)
	w.oneThread()
	c := liveCase{kind: "worker_growth",
		says: []string{"each of 2 DataLoader workers keeps its own `Images.cache` (dict of ",
			"caches.py:12"}, remedies: []string{"worker_cache"}}
	c.check(t, c.watched(w, python, w.file("caches.py", caches)))
}

// keeps trains and keeps something of every step, in one of several ways; or first nothing.
const keeps = `
import collections, itertools, sys, time, torch, record
torch.manual_seed(0)
model = torch.nn.Linear(256, 256)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

class Meter:
    def __init__(self): self.values = []

def fails(y):
    inside = y.detach() + 1
    raise ValueError("a bad batch")

meter, total, history, failures = Meter(), 0.0, [], []
kept, recent = [], collections.deque(maxlen=120)
for how in sys.argv[1:]:
    for step in itertools.count():
        y = model(torch.randn(64, 256))
        loss = y.square().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        if how == "meter": meter.values.append(y.detach())
        if how == "two":
            total += loss
            history.append(y.detach())
        if how == "errors":
            try: fails(y)
            except ValueError as error: failures.append(error)
        if how == "clean": kept = (kept + [y.detach()])[-4:]
        if how == "recent": recent.append(y.detach())
        time.sleep(0.005)
        if step >= 200 and step % 20 == 0 and (how == "clean" or record.says()): break
print("done")
`

// TestLeaksNameWhoHolds: the variable that keeps the tensors is in the title, with the line where
// it grows; where there are two, what holds more comes first.
func TestLeaksNameWhoHolds(t *testing.T) {
	python := testenv.Python(t, "torch")
	for how, c := range map[string]liveCase{
		"clean meter": {says: []string{"held by `meter.values` (list of ", "keeps.py:21"}},
		"two":         {says: []string{"held by `history` (list of ", "keeps.py:24", "`total`"}},
		"errors": {says: []string{"held by `failures` (list of ",
			"exceptions with the variables of their functions", "keeps.py:27"}},
		"recent": {},
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			w := newWorkshop(t, ourselves)
			w.oneThread()
			c.kind = "leak"
			found := c.watched(w, append([]string{python, w.file("keeps.py", keeps)},
				strings.Fields(how)...)...)
			if how == "recent" { // it may be taken back when the deque has been seen
				found = slices.DeleteFunc(found, func(f event.Finding) bool {
					return f.Severity == event.SeverityInfo
				})
			}
			c.check(t, found)
		})
	}
}

// keepsInLightning trains a LightningModule that keeps the outputs of an epoch, then one that keeps
// them all.
const keepsInLightning = `
import logging, time, warnings, torch, record
warnings.simplefilter("ignore"); logging.disable(logging.WARNING)
import lightning

class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.body, self.outputs = torch.nn.Linear(256, 256), []
    def training_step(self, x, index):
        y = self.body(x)
        self.outputs.append(y.detach())
        time.sleep(0.005)
        if self.global_step >= 200 and index == 0 and record.says(): self.trainer.should_stop = True
        return y.square().mean()
    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), lr=1e-3)

class Clears(Net):
    def on_train_epoch_end(self): self.outputs.clear()

def fit(kind, epochs):
    lightning.Trainer(accelerator="cpu", max_epochs=epochs, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False).fit(
        kind(), torch.utils.data.DataLoader(torch.randn(64 * 20, 256), batch_size=64))
fit(Clears, 10)
fit(Net, 200)
print("done")
`

// TestLeaksOfALightningModule: a list in a module that no variable of the program leads to is
// named; one that is emptied after each epoch is not.
func TestLeaksOfALightningModule(t *testing.T) {
	python := testenv.Python(t, "torch", "lightning")
	w := newWorkshop(t, ourselves)
	w.oneThread()
	c := liveCase{kind: "leak", says: []string{"held by `Net.outputs` (list of ", "keeps.py:12"}}
	c.check(t, c.watched(w, python, w.file("keeps.py", keepsInLightning)))
}

// keepsInALoader trains on samples that a data set keeps, which only the head of the loop knows.
const keepsInALoader = `
import time, numpy, torch, record
from torch.utils.data import DataLoader, Dataset
class Clips(Dataset):
    def __init__(self): self.cache = {}
    def __len__(self): return 100000
    def __getitem__(self, i):
        if i not in self.cache:
            self.cache[i] = numpy.random.rand(2000).astype("float32")
        return torch.from_numpy(self.cache[i])
model = torch.nn.Linear(2000, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for step, x in enumerate(DataLoader(Clips(), batch_size=16)):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    time.sleep(0.005)
    if step >= 200 and step % 20 == 0 and record.says(): break
print("done")
`

// TestLeaksOfADataSetWithoutAName: what a data set keeps is named by its class where no variable of
// the program leads to it.
func TestLeaksOfADataSetWithoutAName(t *testing.T) {
	python := testenv.Python(t, "torch", "numpy")
	w := newWorkshop(t, ourselves)
	w.oneThread()
	c := liveCase{kind: "leak", says: []string{"held by `Clips.cache` (dict of ", "keeps.py:9"}}
	c.check(t, c.watched(w, python, w.file("keeps.py", keepsInALoader)))
}

// buildsTorch trains one model after the other and keeps the best one, or all of them.
const buildsTorch = `
import dataclasses, itertools, sys, time, torch, record
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(1024, 2048)
        self.head = torch.nn.Linear(2048, 1)
    def forward(self, x): return self.head(self.body(x))

def train_one():
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(8):
        loss = model(torch.randn(8, 1024)).square().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        time.sleep(0.05)
    return model, optimizer, loss.item()

@dataclasses.dataclass
class Fold:
    model: object
    loss: float

def slow_layer():
    time.sleep(0.25)
    return torch.nn.Linear(1024, 1024)

if "layers" in sys.argv:
    layers = [slow_layer() for _ in range(12)]
    best = torch.nn.Sequential(*layers)
folds, best, results = {}, None, []
for how in sys.argv[1:]:
    for fold in itertools.count():
        if how == "layers": break
        model, optimizer, loss = train_one()
        if how == "models": folds[fold] = {"loss": loss, "model": model}
        if how == "optimizers": folds[fold] = optimizer
        if how == "results": results.append(Fold(model, loss))
        if how == "best": best = model if best is None or loss < 0.1 else best
        if fold >= 9 and (how == "best" or record.says()): break
print("done")
`

// buildsKeras fits one Keras model after the other: first it clears the session before each of
// them, then never again.
const buildsKeras = `
import gc, itertools, os, time, record
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy, keras
x, y = numpy.zeros((64, 64), "float32"), numpy.zeros((64, 1), "float32")
for clears in True, False:
    for trial in itertools.count():
        if clears:
            keras.backend.clear_session(); gc.collect()
        model = keras.Sequential([keras.layers.Dense(n) for n in (1024, 1024, 1)])
        model.compile("adam", "mse", run_eagerly=True)  # tracing takes longer than all the rest
        model.fit(x, y, verbose=0)
        time.sleep(0.5)  # no training is as short as this one
        if trial >= 6 and (clears or record.says()): break
    assert not clears or not record.says(), "models that were cleared away are said to stay"
print("done")
`

// TestModelsBuiltInALoop: models that stay after they were trained are named, with the variable
// that holds them and the cure of their framework. Keeping the best one and clearing Keras'
// session, as two of them do before their mistake, is left alone.
func TestModelsBuiltInALoop(t *testing.T) {
	keep := "models built in a loop stay in memory: "
	for how, c := range map[string]liveCase{
		"layers best models": {says: []string{keep, "of class Net", "`folds` (dict of ",
			"builds.py:36"}, remedies: []string{"release_models"},
			never: []string{"clear_session", "detach"}},
		"optimizers": {says: []string{keep, "of class Adam", "`folds` (dict of ", "builds.py:36"},
			remedies: []string{"release_models"}},
		"results": {says: []string{keep, "of class Net", "held by `results` (", "builds.py:38"},
			remedies: []string{"release_models"}},
		"keras": {says: []string{keep, "of class Sequential"}, remedies: []string{"clear_session"}},
	} {
		t.Run(how, func(t *testing.T) {
			module, text := "torch", buildsTorch
			if how == "keras" {
				module, text = "keras", buildsKeras
			}
			python := testenv.Python(t, module)
			t.Parallel()
			w := newWorkshop(t, ourselves)
			w.oneThread()
			c.kind = "models"
			c.check(t, c.watched(w, append([]string{python, w.file("builds.py", text)},
				strings.Fields(how)...)...))
		})
	}
}

// feedsTorch trains on batches of a DataLoader with two workers that read a little ahead, then far.
const feedsTorch = `
import torch
from torch.utils.data import DataLoader, Dataset
class Images(Dataset):
    def __len__(self): return 4 * 32
    def __getitem__(self, i): return {"x": torch.zeros(3, 256, 256), "y": i}
model = torch.nn.Conv2d(3, 1, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
def step(x):
    loss = model(x[:, :, :8, :8]).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
for b in DataLoader(Images(), batch_size=32, num_workers=2, prefetch_factor=1): step(b["x"])
for b in DataLoader(Images(), batch_size=32, num_workers=2, prefetch_factor=12): step(b["x"])
print("done")
`

// feedsTensorFlow shuffles decoded images among few, then among many.
const feedsTensorFlow = `
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
images = tf.data.Dataset.range(5000).map(lambda i: tf.zeros((256, 256, 3)))
for batch in images.shuffle(20).batch(4).take(2): pass
for batch in images.shuffle(1000).batch(4).take(2): pass
print("done")
`

// feedsDatasets maps rows to large ones, a few at a time, then many; few of them, so that nothing
// runs out.
const feedsDatasets = `
import datasets
datasets.disable_progress_bars()
def decode(row): return {"pixels": [float(i) for i in range(20000)]}
rows = [datasets.Dataset.from_dict({"i": list(range(n))}) for n in (99, 100)]
rows[0].map(decode, num_proc=2, writer_batch_size=10)
rows[1].map(decode, num_proc=2, writer_batch_size=1000)
print("done")
`

// TestFeedingIsReported: batches that wait are in the record, with the arguments that make them
// so large, and is a finding where it is a real share of the limit.
func TestFeedingIsReported(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		liveCase
		sums [2]string // in the record, of the small and of the large one
	}{
		"torch": {feedsTorch, liveCase{says: []string{"0.56GiB of 2GiB of host memory",
			"2 workers x 12 batches x 24MiB", "feeds.py:13", "prefetch_factor"},
			remedies: []string{"dataloader_workers"}},
			[2]string{"2 workers x 1 batch x 24MiB", "2 workers x 12 batches x 24MiB"}},
		"tensorflow": {feedsTensorFlow, liveCase{says: []string{"0.73GiB of 2GiB",
			"tf.data shuffle: 1000 x 768KiB", "feeds.py:7", "buffer_size"},
			remedies: []string{"shuffle_buffer"}}, [2]string{"20 x 768KiB", "1000 x 768KiB"}},
		"datasets": {feedsDatasets, liveCase{says: []string{"of 2GiB",
			"datasets map: 2 processes x 1000 rows", "feeds.py:7", "writer_batch_size"},
			remedies: []string{"map_processes"}}, [2]string{" 10 rows x ", " 1000 rows x "}},
	} {
		t.Run(name, func(t *testing.T) {
			python := ""
			if name == "datasets" {
				python = testenv.Environment(t, name)
			} else {
				python = testenv.Python(t, name)
			}
			t.Parallel()
			w := newWorkshop(t, ourselves)
			w.oneThread()
			w.env = append(w.env, "HF_HOME="+t.TempDir())
			got := w.run("--host-mem", "2GiB", "--", python, w.file("feeds.py", c.text))
			if got.code != 0 || !strings.Contains(got.out, "done") {
				t.Fatalf("exit %d\n%s\n%s", got.code, got.out, got.err)
			}
			summary, err := w.folder().Summary()
			if err != nil {
				t.Fatal(err)
			}
			c.check(t, slices.DeleteFunc(summary.Findings,
				func(f event.Finding) bool { return f.Kind != "feeding" }))
			if len(summary.Feeding) != 2 || !strings.Contains(summary.Feeding[0].Sum(), c.sums[0]) ||
				!strings.Contains(summary.Feeding[1].Sum(), c.sums[1]) {
				t.Errorf("record: %+v", summary.Feeding)
			}
		})
	}
}

// raysActors lets actors of Ray fill memory step by step: one that fits, then several at once. One
// that is killed is no error of the script's.
const raysActors = `
import time, numpy, ray, record
record.start_ray(num_cpus=3, log_to_driver=False, object_store_memory=80 << 20)

@ray.remote(num_cpus=1, max_restarts=0)
class Trainer:
    def __init__(self): self.held = []
    def ready(self): pass
    def train(self, blocks):
        for _ in range(blocks):
            self.held.append(numpy.ones(5 << 20)); time.sleep(0.2)
        time.sleep(2)

for actors, blocks in (1, 4), (3, 20):
    trainers = [Trainer.remote() for _ in range(actors)]
    ray.get([t.ready.remote() for t in trainers])
    for one in [t.train.remote(blocks) for t in trainers]:
        try: ray.get(one)
        except ray.exceptions.RayError: pass
    del trainers
ray.shutdown()
print("done")
`

// raysKeep lets an actor keep the last of what it gets and another all of it, whose arguments pass
// through the store; then it puts objects into the store and keeps the references.
const raysKeep = `
import collections, time, numpy, ray, named, record
record.start_ray(num_cpus=2, log_to_driver=False, object_store_memory=200 << 20)

class Keeps:
    def __init__(self, most): self.items = collections.deque(maxlen=most)
    def add(self, item): self.items.append(item.copy()); return len(self.items)
@ray.remote(num_cpus=1)
class Recent(Keeps): pass
@ray.remote(num_cpus=1)
class Buffer(Keeps): pass

def fill(actor, steps, *words):
    for step in range(steps):
        ray.get(actor.add.remote(numpy.ones(1 << 17))); time.sleep(0.15)
        if step % 10 == 9 and words and named.named(*words): break
recent = Recent.remote(20)
fill(recent, 250)
del recent
buffer = Buffer.remote(None)
fill(buffer, 1000, '"actor"', "Buffer")
del buffer
references = []
for step in range(1000):
    references.append(ray.put(numpy.ones(1 << 18))); time.sleep(0.15)
    if step % 10 == 9 and named.named('"object_store"'): break
ray.shutdown()
print("done")
`

// TestRayKeeps: an actor that keeps all that it gets and a store whose references are kept are
// named, each once; an actor with an end, whose arguments pass through the store, is not.
func TestRayKeeps(t *testing.T) {
	python := testenv.Python(t, "ray", "numpy")
	w := newWorkshop(t, ourselves)
	w.file("record.py", recordText)
	w.file("named.py", namedText)
	got := w.run("--", python, w.file("keeps.py", raysKeep))
	if got.code != 0 || !strings.Contains(got.out, "done") {
		t.Fatalf("exit %d\n%s\n%s", got.code, got.out, got.err)
	}
	if w.state(w.folder()).Cgroup == "" {
		testenv.Needs(t, "a cgroup", "the store's pages are counted in one only")
	}
	summary, err := w.folder().Summary()
	if err != nil {
		t.Fatal(err)
	}
	found := slices.DeleteFunc(summary.Findings, func(f event.Finding) bool {
		return !slices.Contains([]string{"actor", "object_store", "trials"}, f.Kind)
	})
	for _, c := range []liveCase{
		{kind: "actor", says: []string{"the Ray actor Buffer grows: by "},
			remedies: []string{"keep_less"}},
		{kind: "object_store", says: []string{"Ray's object store was filled to ", " of 200MiB"},
			remedies: []string{"object_store"}},
	} {
		c.check(t, slices.DeleteFunc(slices.Clone(found),
			func(f event.Finding) bool { return f.Kind != c.kind }))
	}
	if len(found) != 2 {
		t.Errorf("findings %+v, want two", found)
	}
}

// TestRayWorkersThatDoNotFit: actors that together fill memory are named with their size and with
// how many fit; one alone before them, which fits, is not.
func TestRayWorkersThatDoNotFit(t *testing.T) {
	python := testenv.Python(t, "ray", "numpy")
	w := newWorkshop(t, ourselves)
	w.file("record.py", recordText)
	got := w.run("--host-mem", "2GiB", "--", python, w.file("actors.py", raysActors))
	summary, err := w.folder().Summary()
	if err != nil || !strings.Contains(got.out, "done") {
		t.Fatalf("%v, exit %d\n%s\n%s", err, got.code, got.out, got.err)
	}
	liveCase{kind: "trials", says: []string{"too many Ray workers at once: 3 of Trainer with up to ",
		" in 2GiB of host memory; ", " fit"}, remedies: []string{"fewer_trials"}}.check(t,
		slices.DeleteFunc(summary.Findings, func(f event.Finding) bool { return f.Kind != "trials" }))
	at := slices.IndexFunc(summary.Peaks.Ray,
		func(g event.RaySample) bool { return g.Name == "Trainer" })
	if at < 0 || summary.Peaks.Ray[at].Largest < 40*event.MiB {
		t.Errorf("record: %+v", summary.Peaks.Ray)
	}
}

// raysTask runs one task of Ray whose memory monitor finds the node full: its threshold is a
// hundredth.
const raysTask = `
import os, time
os.environ["RAY_memory_usage_threshold"] = "0.01"
os.environ["RAY_memory_monitor_refresh_ms"] = "100"
import ray
ray.init("local", num_cpus=1, include_dashboard=False, object_store_memory=80 << 20)

@ray.remote(max_retries=0)
def featurize():
    time.sleep(30)

ray.get(featurize.remote())
`

// TestRayEndsATask: a task that Ray's memory monitor ends is reported as that. Ray's message is
// read with its figures, whatever version of Ray is installed. The twin is the actor above that
// fits.
func TestRayEndsATask(t *testing.T) {
	python := testenv.Python(t, "ray")
	w := newWorkshop(t, ourselves)
	got := w.run("--", python, w.file("task.py", raysTask))
	if got.code == 0 || !strings.Contains(got.err, "ran out of host memory") ||
		!strings.Contains(got.err, "killed by Ray") {
		t.Fatalf("exit %d\n%s\n%s", got.code, got.out, got.err)
	}
	log, err := trace.ReadLog(strings.NewReader(got.out + got.err))
	if err != nil || log.First() < 0 {
		t.Fatal(err, log)
	}
	c := log.Crashes[log.First()]
	if c.Framework != "ray" || c.Allocated == nil || c.Capacity == nil || *c.Allocated >= *c.Capacity {
		t.Errorf("read %+v", c)
	}
}

// resumes trains from a checkpoint three times: its dictionary is let go of, becomes the model, and
// is kept.
const resumes = `
import os, time, torch
torch.manual_seed(0)
model = torch.nn.Linear(4096, 3072)
path = os.path.join(os.path.dirname(__file__), "checkpoint.pt")
torch.save({"model": model.state_dict(), "epoch": 3}, path)
state = torch.load(path)
model.load_state_dict(state["model"])
def train():
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(8):
        loss = model(torch.randn(2, 4096)).square().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        time.sleep(0.05)
del state
train()
state = torch.load(path)
model.load_state_dict(state["model"], assign=True)
train()
del state
held = torch.load(path)
model.load_state_dict(held["model"])
train()
print("done")
`

// TestCheckpointsThatStayBesideTheModel: a loaded dictionary that lives on while training goes on
// is named with the variable; one that was deleted, or that has become the model, is not.
func TestCheckpointsThatStayBesideTheModel(t *testing.T) {
	w := newWorkshop(t, ourselves)
	w.oneThread()
	c := liveCase{kind: "checkpoint", says: []string{
		"loaded at resumes.py:21 is still held in addition to the model: 48",
		"of host memory, by `held` (resumes.py:21)"}, remedies: []string{"load_to_host"}}
	c.check(t, c.watched(w, testenv.Python(t, "torch"), w.file("resumes.py", resumes)))
}

// saves trains and saves a checkpoint in several ways, one after the other.
const saves = `
import copy, io, os, sys, time, torch
from safetensors.torch import save_file
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(6)])
model[:-1].requires_grad_(False)  # a step is cheap, a copy is not
optimizer = torch.optim.SGD(model[-1].parameters(), lr=1e-4)
path = os.path.join(os.path.dirname(__file__), "checkpoint.pt")
best = copy.deepcopy(model.state_dict()) if "best" in sys.argv else None

def save():
    if how == "clone":
        torch.save({"model": {k: v.clone() for k, v in model.state_dict().items()}}, path)
    if how == "safetensors":
        save_file({k: v.contiguous().clone() for k, v in model.state_dict().items()}, path)
    if how == "bytes":
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        open(path, "wb").write(file.getbuffer())
    if how == "plain":
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
        save_file(model.state_dict(), path)
    if how == "best":
        torch.save(best, path)

for how in sys.argv[1:]:
    for step in range(80):
        loss = model(torch.randn(2, 2048)).square().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        time.sleep(0.03)
        if step % 30 == 29: save()
print("done")
`

// TestSavingACheckpointIsAPhase: saves that copy the weights, or build the file in memory, are
// named with the line; those that write what is there are not, and neither is a copy that stays.
func TestSavingACheckpointIsAPhase(t *testing.T) {
	python := testenv.Python(t, "torch", "safetensors")
	is := "the peak of host memory is in saving a checkpoint (saves.py:"
	for how, c := range map[string]liveCase{
		"plain best clone": {says: []string{is + "13)", "96.05MiB are a copy of the weights"}},
		"safetensors":      {says: []string{is + "15)", "96.05MiB are a copy of the weights"}},
		"bytes":            {says: []string{is + "18)", "the file, built in memory"}},
	} {
		t.Run(how, func(t *testing.T) {
			w := newWorkshop(t, ourselves)
			w.oneThread()
			c.kind, c.remedies = "checkpoint", []string{"save_as_it_is"}
			c.check(t, c.watched(w, append([]string{python, w.file("saves.py", saves)},
				strings.Fields(how)...)...))
		})
	}
}

// ranksResume lets the first rank load a checkpoint that all map; then every rank loads another.
const ranksResume = `
import os, time, torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
first, whole = (os.path.join(os.path.dirname(__file__), n) for n in ("first.pt", "whole.pt"))
if rank == 0:
    for path in first, whole: torch.save({"weights": torch.zeros(40 << 20)}, path)
dist.barrier()
mapped = torch.load(first, mmap=True)
state = torch.load(first) if rank == 0 else None
dist.barrier()
time.sleep(1)
del mapped, state
state = torch.load(whole)
dist.barrier()
time.sleep(1)
dist.destroy_process_group()
print("done")
`

// ranksRead lets every rank read an array of its own and map the other; then all read the same.
const ranksRead = `
import os, time, numpy, torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
part = lambda n: os.path.join(os.path.dirname(__file__), "part-%s.npy" % n)
if rank == 0:
    for n in 0, 1, "all": numpy.save(part(n), numpy.zeros(40 << 20, "float32"))
dist.barrier()
table, mapped = numpy.load(part(rank)), numpy.load(part(1 - rank), mmap_mode="r")
dist.barrier()
time.sleep(1)
del table, mapped
table = numpy.load(part("all"))
dist.barrier()
time.sleep(1)
dist.destroy_process_group()
print("done", len(table))
`

// ofTwoRanks runs a script under torchrun and compares what is said of its checkpoints and files.
func (c liveCase) ofTwoRanks(w *workshop, python, script string) {
	w.Helper()
	w.oneThread()
	got := w.run("--host-mem", "1500MiB", "--", python, "-m", "torch.distributed.run",
		"--standalone", "--nproc-per-node", "2", w.file("ranks.py", script))
	summary, err := w.folder().Summary()
	if err != nil || strings.Count(got.out, "done") != 2 {
		w.Fatalf("%v, exit %d\n%s\n%s", err, got.code, got.out, got.err)
	}
	c.check(w, slices.DeleteFunc(summary.Findings,
		func(f event.Finding) bool { return f.Kind != c.kind }))
}

// TestEveryRankReadsTheFile: the same array in every rank is named with its file; a mapped one and
// parts are not.
func TestEveryRankReadsTheFile(t *testing.T) {
	liveCase{kind: "checkpoint", says: []string{"each of 2 processes reads the whole of " +
		"part-all.npy into host memory: 320MiB of 1500MiB (ranks.py:14)"},
		remedies: []string{"map_file"}}.ofTwoRanks(newWorkshop(t, ourselves),
		testenv.Python(t, "torch", "numpy"), ranksRead)
}

// TestEveryRankLoadsTheCheckpoint: real ranks that each load the whole checkpoint into host memory
// are named with their number; ranks that map the file share its pages, and one that loads alone
// is no finding.
func TestEveryRankLoadsTheCheckpoint(t *testing.T) {
	liveCase{kind: "checkpoint", says: []string{"each of 2 processes loads the whole checkpoint " +
		"into host memory: 320", "of 1500MiB (ranks.py:15)"},
		remedies: []string{"load_once"}}.ofTwoRanks(newWorkshop(t, ourselves),
		testenv.Python(t, "torch"), ranksResume)
}
