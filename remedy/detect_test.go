package remedy

import (
	"strings"
	"testing"

	"memroom/event"
)

func TestDetect(t *testing.T) {
	for name, c := range map[string]struct {
		command, script string
		framework       Framework
		trainer         Trainer
	}{
		"plain": {"python a.py", "import torch\n", PyTorch, Plain},
		"lightning": {"python a.py", "import lightning as L\nimport torch\n", PyTorch,
			Lightning},
		"pytorch_lightning": {"python a.py", "from pytorch_lightning import Trainer\n", PyTorch,
			Lightning},
		"models only": {"python a.py", "import torch\nfrom transformers import AutoModel\n",
			PyTorch, Plain},
		"Trainer": {"python a.py", "from transformers import Trainer\nTrainer(model)\n",
			PyTorch, Transformers},
		"TRL": {"python a.py", "from trl import SFTTrainer\nSFTTrainer(model)\n",
			PyTorch, Transformers},
		"keras": {"python a.py", "import keras\nmodel.fit(x, y)\n", TensorFlow, Keras},
		"keras on torch": {"python a.py", "import keras, os\nimport torch\nmodel.fit(x, y)\n",
			PyTorch, Keras},
		"tensorflow": {"python a.py", "import tensorflow as tf\n", TensorFlow, Plain},
		"jax":        {"python a.py", "import jax.numpy as jnp\n", JAX, Plain},
		"accelerate": {"accelerate launch a.py", "from accelerate import Accelerator\n",
			PyTorch, Accelerate},
		"deepspeed":         {"deepspeed a.py", "import torch\n", PyTorch, DeepSpeed},
		"torchtune":         {"tune run full --config c.yaml", "", PyTorch, Torchtune},
		"axolotl":           {"axolotl train c.yaml", "", PyTorch, Axolotl},
		"nothing":           {"sh -c true", "", "", Plain},
		"a comment":         {"python a.py", "# import torch\n", "", Plain},
		"inside a function": {"python a.py", "def f():\n    import torch\n", PyTorch, Plain},
	} {
		framework, trainer := Detect(strings.Fields(c.command), c.script)
		if framework != c.framework || trainer != c.trainer {
			t.Errorf("%s: %q, %q", name, framework, trainer)
		}
	}
}

// TestAppliesSaysWhy: each reason by itself.
func TestAppliesSaysWhy(t *testing.T) {
	for name, c := range map[string]struct {
		id   ID
		job  Job
		want string // "": it applies
	}{
		"training": {Checkpointing, Job{Where: event.WhereGPU}, ""},
		"serving": {Checkpointing, Job{Where: event.WhereGPU, Inference: true},
			"nothing is trained"},
		"serving may shrink": {MicroBatch, Job{Where: event.WhereGPU, Inference: true}, ""},
		"another wall":       {ShmSize, Job{Where: event.WhereGPU}, "this kind of memory"},
		"unknown wall":       {Checkpointing, Job{Where: event.WhereUnknown}, ""},
		"another framework": {ExpandableSegments, Job{Where: event.WhereGPU,
			Framework: TensorFlow}, "another framework"},
		"framework not known": {TFGrowth, Job{Where: event.WhereGPU}, "nothing shows"},
		"seen to be on": {Checkpointing,
			Job{On: map[ID]string{Checkpointing: "the log says so"}}, "the log says so"},
		"on in the setup": {Checkpointing, Job{Setup: &Setup{Checkpointing: true}},
			"already on"},
		"off in the setup": {Checkpointing, Job{Setup: &Setup{}}, ""},
		"one rank":         {FSDP, Job{Framework: PyTorch, Setup: &Setup{Ranks: 1}}, "one rank"},
		"several ranks":    {FSDP, Job{Framework: PyTorch, Setup: &Setup{Ranks: 2}}, ""},
	} {
		r, ok := Find(c.id)
		if !ok {
			t.Fatal(c.id)
		}
		if got := r.Applies(c.job); (c.want == "") != (got == "") ||
			!strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestSlowdownOfASmallerBatch: a small forward pass loses more by being halved than a large one,
// and none becomes faster.
func TestSlowdownOfASmallerBatch(t *testing.T) {
	r, _ := Find(MicroBatch)
	small, large := r.Slowdown(Setup{Batch: 2, Seq: 128}), r.Slowdown(Setup{Batch: 64, Seq: 4096})
	if small <= large || large < 1 || large > 1.01 || small < 1.3 || small > 2 {
		t.Errorf("small %v, large %v", small, large)
	}
	image := r.Slowdown(Setup{Batch: 8, Image: 224})
	if tokens := r.Slowdown(Setup{Batch: 8, Seq: 196}); image != tokens {
		t.Errorf("224 pixels are 196 patches: %v, %v", image, tokens)
	}
	if unknown := r.Slowdown(Setup{}); unknown <= 1 || unknown > 1.2 {
		t.Errorf("nothing is known: %v", unknown)
	}
}

// TestOddBatch: nine samples have no equal halves; thirds are the next best.
func TestOddBatch(t *testing.T) {
	r, _ := Find(MicroBatch)
	if s, ok := r.Rewrite(Setup{Batch: 9}); !ok || s.Batch != 3 || s.Accumulate != 3 {
		t.Errorf("%+v", s)
	}
}

func TestSetup(t *testing.T) {
	if n := (Setup{Batch: 4, Accumulate: 3, Ranks: 2}).EffectiveBatch(); n != 24 {
		t.Errorf("effective batch %d", n)
	}
	if n := (Setup{Batch: 4}).EffectiveBatch(); n != 4 {
		t.Errorf("effective batch %d", n)
	}
	for name, want := range map[string]bool{"": true, "adamw": true, "adam_fused": true,
		"sgd":      false,
		"adam8bit": false, "adafactor": false, "paged_adamw": false} {
		if got := (Setup{Optimizer: name}).Adam(); got != want {
			t.Errorf("%q keeps two full moments: %v", name, got)
		}
	}
	if !(Setup{Offload: []string{"optimizer"}}).Offloads("optimizer") ||
		(Setup{Offload: []string{"optimizer"}}).Offloads("activations") {
		t.Error("what is offloaded is not told apart")
	}
	for floor, want := range map[string]bool{"2.3": true, "2.4": false, "1.9": true, "3.0": false,
		"2.0": true} {
		if atLeast("2.3.1+cu121", floor) != want {
			t.Errorf("2.3.1 is at least %s: %v", floor, !want)
		}
	}
	if atLeast("", "1.0") || atLeast("nightly", "1.0") {
		t.Error("an unknown version is taken as new")
	}
}

// TestHowToSaysWhatToType: in the trainer's own words, with the numbers of the job.
func TestHowToSaysWhatToType(t *testing.T) {
	batch, _ := Find(MicroBatch)
	for trainer, want := range map[Trainer]string{
		Transformers: "--per_device_train_batch_size 4 --gradient_accumulation_steps 6",
		Lightning:    "--trainer.accumulate_grad_batches=6 --data.batch_size=4",
		DeepSpeed:    `"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 6`,
		Torchtune:    "batch_size=4 gradient_accumulation_steps=6",
		Axolotl:      "micro_batch_size: 4\ngradient_accumulation_steps: 6",
		Plain:        "",
	} {
		if got := batch.HowTo(Job{Framework: PyTorch, Trainer: trainer, Batch: 8,
			Accumulate: 3}).Args; got != want {
			t.Errorf("%s: %q, want %q", trainer, got, want)
		}
	}
	if code := batch.HowTo(Job{Framework: PyTorch, Batch: 50,
		Pieces: 25}).Code; !strings.Contains(code, "zip(x.chunk(25), y.chunk(25))") {
		t.Errorf("25 micro-batches: %s", code)
	}
	if code := batch.HowTo(Job{Framework: TensorFlow, Batch: 8}).Code; !strings.Contains(code,
		"batch(4)") ||
		strings.Contains(code, "loader") {
		t.Errorf("Keras: %s", code)
	}
	if fit := batch.HowTo(Job{Framework: JAX}).Fit; fit != "" {
		t.Errorf("--fit does not reach into JAX: %q", fit)
	}
	precision, _ := Find(MixedPrecision)
	if fit := precision.HowTo(Job{Framework: PyTorch}).Fit; !strings.Contains(fit,
		"--allow precision") {
		t.Errorf("consent is not part of what to type: %q", fit)
	}
}

// TestCostsTime: remedies that compute again or copy are never free, and none is said to cost more
// than it was seen to.
func TestCostsTime(t *testing.T) {
	for id, most := range map[ID]float64{Checkpointing: 1.5, ActivationOffload: 2,
		OptimizerOffload: 2,
		FSDP:             1.5, ZeRO: 1.5, DeviceMap: 2} {
		r, _ := Find(id)
		if f := r.Slowdown(Setup{}); f <= 1 || f > most {
			t.Errorf("%s: a step takes %v times as long, want more than 1 and at most %v", id, f,
				most)
		}
	}
}
