//go:build linux && !race

package supervise_test

import (
	"slices"
	"strings"
	"testing"

	"memroom/event"
	"memroom/testenv"
)

// namedText is a module for the scripts here, each of which first does everything right and then
// makes several mistakes in a row: `until` repeats a mistake until the record names it. A program
// whose mistake is not named goes on after a while, and the test reports what is missing. How long
// it took is printed (see bench/leaks/seconds).
const namedText = `
import glob, os, time
def took(began, *words): print("SECONDS %.1f %s" % (time.monotonic() - began, " ".join(words)))
def named(*words):
    found = glob.glob(os.environ["MEMROOM_HOME"] + "/runs/*/events.jsonl")
    lines = [line for path in found for line in open(path) if '"finding"' in line]
    return any(all(word in line for word in words) for line in lines)
def until(do, *words, every=1):
    began = time.monotonic()
    while time.monotonic() - began < 90:
        for _ in range(every): do()
        if named(*words): return took(began, *words)
`

// mistake is one that a script makes, as the record should say it.
type mistake struct {
	kind   string
	says   []string
	remedy string
}

// checkMistakes compares a run's findings with the mistakes of its script: each is said once, and
// nothing else is. What other programs do to the machine does not count, and neither do forecasts,
// which are about its size.
func checkMistakes(w *workshop, want []mistake, args ...string) {
	w.Helper()
	w.file("named.py", namedText)
	got := w.run(args...)
	if got.code != 0 || !strings.Contains(got.out, "done") {
		w.Fatalf("exit %d\n%s\n%s", got.code, got.out, got.err)
	}
	for line := range strings.Lines(got.out) {
		if strings.HasPrefix(line, "SECONDS ") {
			w.Log(strings.TrimSpace(line))
		}
	}
	summary, err := w.folder().Summary()
	if err != nil {
		w.Fatal(err)
	}
	others := []string{"forecast", "host_pressure", "neighbour", "swap"}
	found := slices.DeleteFunc(summary.Findings, func(f event.Finding) bool {
		return f.Severity == event.SeverityInfo || slices.Contains(others, f.Kind)
	})
	for _, m := range want {
		at := slices.IndexFunc(found, func(f event.Finding) bool {
			return f.Kind == m.kind && !slices.ContainsFunc(m.says,
				func(words string) bool { return !strings.Contains(f.Title, words) })
		})
		if at < 0 {
			w.Errorf("no %s that says %q", m.kind, m.says)
			continue
		}
		if f := found[at]; !slices.Contains(f.Remedies, m.remedy) || f.FirstMS == 0 {
			w.Errorf("%s: remedies %q, want %s; first said at %d ms", f.Title, f.Remedies, m.remedy,
				f.FirstMS)
		}
		found = slices.Delete(found, at, at+1)
	}
	for _, f := range found {
		w.Errorf("also said: %s: %s", f.Kind, f.Title)
	}
}

// generates lets caches go, and keeps one within a window; then it keeps the caches of all users,
// and writes one text without an end.
const generates = `
import time, named, torch
from transformers import DynamicCache, MistralConfig, MistralForCausalLM
def model_of(window):
    return MistralForCausalLM(MistralConfig(vocab_size=100, hidden_size=256, intermediate_size=64,
        num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=4,
        sliding_window=window)).eval()
wide, narrow = model_of(None), model_of(16)
ids = torch.zeros(8, 64, dtype=torch.long)
sessions = {}

@torch.no_grad()
def answer(cache):
    wide(ids, past_key_values=cache); wide(ids[:, :1], past_key_values=cache)
    time.sleep(0.05)

class Text:
    def __init__(self, model):
        self.model, self.cache = model, DynamicCache(config=model.config)
        self.ids = torch.zeros(64, 8, dtype=torch.long)
    @torch.no_grad()
    def next(self): self.model(self.ids, past_key_values=self.cache); time.sleep(0.01)

for _ in range(40): answer(DynamicCache(config=wide.config))
text = Text(narrow)
for _ in range(60): text.next()

def serve():
    cache = sessions[len(sessions)] = DynamicCache(config=wide.config)
    answer(cache)
named.until(serve, "of keys and values of", every=4)
sessions.clear()
text = Text(wide)
named.until(text.next, "each token adds", every=4)
print("done")
`

// TestGenerationKeeps: caches of keys and values that stay, with who holds them, and one that grows
// with every token.
func TestGenerationKeeps(t *testing.T) {
	python := testenv.Python(t, "torch", "transformers")
	w := newWorkshop(t, ourselves)
	w.oneThread()
	checkMistakes(w, []mistake{
		{"generation", []string{"generations stay in host memory", "held by `sessions` (dict of ",
			"generates.py:29"}, "keep_less"},
		{"generation", []string{"each token adds 512KiB to the cache of keys and values",
			"for 64 sequences of ", "generates.py:22"}, "generation_cache"},
	}, "--", python, w.file("generates.py", generates))
}

// flows calls functions of TensorFlow with few shapes and with tensors, and caches what is small.
// Then a function is traced anew for each number and another for each length, and buffers take
// elements whose size is in no specification.
const flows = `
import itertools, os, time, named
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy, tensorflow as tf
weights = [tf.Variable(tf.random.normal((32, 32)) * 0.1) for _ in range(24)]

def layers(x):
    for w in weights: x = tf.nn.gelu(x @ w) + x
    return tf.reduce_sum(x)

@tf.function
def scaled(x, rate): return layers(x) * rate

@tf.function
def encode(x): return layers(x)

for n in range(60):
    scaled(tf.zeros((4, 32)), tf.constant(float(n)))
    encode(tf.zeros((n % 4 + 1, 32)))

def records(size):
    made = tf.data.Dataset.range(900).map(lambda i: tf.io.serialize_tensor(tf.zeros((size, 1024))))
    return made.map(lambda r: tf.io.parse_tensor(r, tf.float32))

for x in records(2).cache().batch(4): time.sleep(0.005)
for x in records(2).shuffle(50).batch(4): pass

rates = itertools.count()
named.until(lambda: scaled(tf.zeros((4, 32)), float(next(rates))), "tf.function", "scaled")
lengths = itertools.count(5)
named.until(lambda: encode(tf.zeros((next(lengths), 32))), "tf.function", "encode")

batches = iter(records(256).shuffle(330).batch(1))
named.until(lambda: next(batches), "tf.data shuffle")
del batches
batches = iter(records(256).cache().batch(2))
named.until(lambda: (next(batches), time.sleep(0.01)), "tf.data cache", every=8)
print("done")
`

// TestTensorFlowKeeps: traces that stay, with the argument that differs, and buffers whose size is
// known only while they fill.
func TestTensorFlowKeeps(t *testing.T) {
	python := testenv.Python(t, "tensorflow")
	w := newWorkshop(t, ourselves)
	w.oneThread()
	checkMistakes(w, []mistake{
		{"retraced", []string{"`scaled` (flows.py:11)", "`rate` is a Python float that changes"},
			"steady_traces"},
		{"retraced", []string{"`encode` (flows.py:14)", "`x` has another shape each time"},
			"steady_traces"},
		{"feeding", []string{"tf.data shuffle: 330 x about ", "as measured", "flows.py:33",
			"buffer_size"}, "shuffle_buffer"},
		{"feeding", []string{"tf.data cache: memory rose by ", "while it fills", "flows.py:36",
			"cache(filename)"}, "shuffle_buffer"},
	}, "--host-mem", "1500MiB", "--", python, w.file("flows.py", flows))
}

// keepsInKeras fits with a callback that keeps the last weights, then with one that keeps all.
const keepsInKeras = `
import os, sys, time, named
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy, keras

class Last(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.weights = self.model.get_weights(); time.sleep(0.01)

class All(keras.callbacks.Callback):
    def __init__(self): super().__init__(); self.snapshots = []; self.began = time.monotonic()
    def on_train_batch_end(self, batch, logs=None):
        self.snapshots.append((batch, self.model.get_weights())); time.sleep(0.01)
        if batch % 20 == 19 and named.named("leak", "All.snapshots") or batch > 900:
            self.model.stop_training = True
            named.took(self.began, "leak", "All.snapshots")

model = keras.Sequential([keras.layers.Dense(256), keras.layers.Dense(256), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x, y = numpy.zeros((1000, 256), "float32"), numpy.zeros((1000, 1), "float32")
model.fit(x[:120], y[:120], batch_size=1, verbose=0, callbacks=[Last()])
model.fit(x, y, batch_size=1, verbose=0, callbacks=[All()])
print("done")
`

// TestKerasCallbackKeeps: copies of the weights that a callback keeps are named with the callback.
func TestKerasCallbackKeeps(t *testing.T) {
	python := testenv.Python(t, "keras")
	w := newWorkshop(t, ourselves)
	w.oneThread()
	checkMistakes(w, []mistake{{"leak", []string{"held by `All.snapshots` (list of ", "keeps.py:13"},
		"keep_less"}}, "--", python, w.file("keeps.py", keepsInKeras))
}

// trainsWithHugging evaluates by Trainer with classes and then with logits, and saves by accelerate
// what is there and then a copy of it.
const trainsWithHugging = `
import os, sys, tempfile, time, warnings, named
warnings.simplefilter("ignore")
import torch
from accelerate import Accelerator
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainingArguments
from transformers.trainer_callback import PrinterCallback
folder = tempfile.mkdtemp()

class Lines(torch.utils.data.Dataset):
    def __init__(self, n, wait): self.n, self.wait = n, wait
    def __len__(self): return self.n
    def __getitem__(self, i):
        time.sleep(self.wait)
        ids = torch.randint(0, 4000, (16,))
        return {"input_ids": ids, "labels": ids}

def trainer(**more):
    model = BertForMaskedLM(BertConfig(vocab_size=4000, hidden_size=32, num_hidden_layers=1,
        num_attention_heads=2, intermediate_size=32, max_position_embeddings=32))
    args = TrainingArguments(folder, per_device_train_batch_size=2, per_device_eval_batch_size=8,
        max_steps=4, report_to=[], disable_tqdm=True, save_strategy="no", logging_strategy="no",
        use_cpu=True)
    made = Trainer(model, args, train_dataset=Lines(40, 0), compute_metrics=lambda p: {}, **more)
    made.remove_callback(PrinterCallback)
    made.train()
    return made

trainer(preprocess_logits_for_metrics=lambda l, y: l.argmax(-1)).evaluate(Lines(400, 0.01))
named.until(lambda: trainer().evaluate(Lines(640, 0.01)), "in evaluation")

accelerator = Accelerator(cpu=True)
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(10)])
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-4))
def train():
    for _ in range(12):
        accelerator.backward(model(torch.randn(2, 1024)).square().mean())
        optimizer.step(); optimizer.zero_grad(set_to_none=False); time.sleep(0.01)
for _ in range(3):
    train()
    accelerator.save_state(os.path.join(folder, "state"))
    accelerator.save(accelerator.get_state_dict(model), os.path.join(folder, "model.bin"))
def copies():
    train()
    state = {k: v.float().cpu() + 0 for k, v in accelerator.get_state_dict(model).items()}
    accelerator.save(state, os.path.join(folder, "model.bin"))
named.until(copies, "in saving a checkpoint")
print("done")
`

// TestHuggingFaceKeeps: a Trainer that keeps the logits of an evaluation, and a copy of the weights
// that accelerate saves.
func TestHuggingFaceKeeps(t *testing.T) {
	python := testenv.Python(t, "torch", "transformers", "accelerate")
	w := newWorkshop(t, ourselves)
	w.oneThread()
	checkMistakes(w, []mistake{
		{"evaluation", []string{"in evaluation: the outputs of all batches are kept in "},
			"eval_outputs"},
		{"checkpoint", []string{"in saving a checkpoint (hugging.py:46)",
			"40.04MiB are a copy of the weights"}, "save_as_it_is"},
	}, "--", python, w.file("hugging.py", trainsWithHugging))
}

// validatesInLightning empties its list after each validation and saves as it is; then it does
// neither.
const validatesInLightning = `
import logging, sys, tempfile, time, warnings, named
warnings.simplefilter("ignore"); logging.disable(logging.WARNING)
import torch, lightning
from lightning.pytorch.callbacks import ModelCheckpoint

class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.body, self.predictions = torch.nn.Linear(128, 8000), []
        self.rest = torch.nn.ModuleList([torch.nn.Linear(1024, 1024) for _ in range(8)])
    def training_step(self, x, index): time.sleep(0.02); return self.body(x).square().mean()
    def validation_step(self, x, index):
        time.sleep(0.02); self.predictions.append(self.body(x))
    def on_validation_epoch_end(self):
        torch.cat(self.predictions)
        self.predictions.clear()
    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), lr=1e-4)

class Keeps(Net):
    def on_validation_epoch_end(self):
        if named.named("evaluation", "predictions"):
            self.trainer.should_stop = True
            named.took(began, "evaluation", "predictions")
    def on_save_checkpoint(self, checkpoint):
        checkpoint["copy"] = {k: v.detach().clone() for k, v in self.state_dict().items()}

def fit(model, epochs):
    lightning.Trainer(accelerator="cpu", max_epochs=epochs, logger=False, num_sanity_val_steps=0,
        callbacks=[ModelCheckpoint(tempfile.mkdtemp(), every_n_epochs=1)],
        enable_progress_bar=False, enable_model_summary=False).fit(model,
        torch.utils.data.DataLoader(torch.randn(64 * 12, 128), batch_size=64),
        torch.utils.data.DataLoader(torch.randn(64 * 10, 128), batch_size=64))
fit(Net(), 2)
began = time.monotonic()
fit(Keeps(), 6)
print("done")
`

// TestLightningKeeps: the list of a validation_step that is never emptied, and a copy of the
// weights in the checkpoint.
func TestLightningKeeps(t *testing.T) {
	python := testenv.Python(t, "torch", "lightning")
	w := newWorkshop(t, ourselves)
	w.oneThread()
	checkMistakes(w, []mistake{
		{"evaluation", []string{"outputs of earlier evaluations are kept: `model.predictions` ",
			"validates.py:14", "19.53MiB more at each evaluation"}, "keep_less"},
		{"checkpoint", []string{"in saving a checkpoint (validates.py:", "are a copy of the weights"},
			"save_as_it_is"},
	}, "--", python, w.file("validates.py", validatesInLightning))
}
