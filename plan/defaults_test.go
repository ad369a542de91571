package plan

import (
	"strings"
	"testing"

	"memroom/event"
	"memroom/remedy"
)

// mustAllocate is the allocated peak of a setup.
func mustAllocate(t *testing.T, config string, s Setup) *Prediction {
	t.Helper()
	s.Model = mustConfig(t, config)
	target := testTarget()
	if s.Torch != "" {
		target.Torch = s.Torch
	}
	p, err := predictOnly(s, target)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// near reports whether two sizes differ by at most a part of the second.
func near(a, b event.Bytes, part float64) bool {
	off := float64(a - b)
	return max(off, -off) <= part*float64(b)
}

// TestReleases: what older releases did differently, against sizes that follow from the shapes.
func TestReleases(t *testing.T) {
	const b, seq, vocab = 8, 1024, 32000
	lora := Setup{LoRATargets: []string{"q_proj"}, Setup: remedy.Setup{Batch: b, Seq: seq,
		Precision: "bf16", LoRARank: 8, Checkpointing: true}}
	now := mustAllocate(t, llama160m, lora)
	old := lora
	old.Transformers = "4.48"
	before := mustAllocate(t, llama160m, old)
	// the half-precision logits, their wide copy, the shifted copy and its logarithm are there at
	// once, instead of three wide ones
	if want := event.Bytes(b * seq * vocab * 2); !near(before.AllocatedPeak-now.AllocatedPeak, want,
		0.08) {
		t.Errorf("transformers 4.48 takes %s more, want about %s",
			before.AllocatedPeak-now.AllocatedPeak, want)
	}
	old.Transformers = "4.45" // the model's variable was the wide one: the narrow logits go
	if p := mustAllocate(t, llama160m, old); p.AllocatedPeak >= before.AllocatedPeak {
		t.Errorf("transformers 4.45 takes %s, not less than 4.48's %s", p.AllocatedPeak,
			before.AllocatedPeak)
	}

	const bert = `{"model_type":"bert","architectures":["BertForSequenceClassification"],
		"num_hidden_layers":6,"hidden_size":256,"num_attention_heads":8,"intermediate_size":512}`
	eager := Setup{Setup: remedy.Setup{Batch: 4, Seq: 512, Precision: "fp32", Attention: "eager",
		Torch: "1.11"}}
	lean := mustAllocate(t, bert, eager)
	eager.Torch = "1.10"
	wide := mustAllocate(t, bert, eager)
	if want := event.Bytes(6 * 4 * 8 * 512 * 512 * 4); !near(wide.AllocatedPeak-lean.AllocatedPeak,
		want, 0.02) {
		t.Errorf("softmax of torch 1.10 keeps %s more, want %s",
			wide.AllocatedPeak-lean.AllocatedPeak, want)
	}
	if wide.Setup.Optimizer != "adamw_loop" || !wide.Setup.KeepGrads {
		t.Errorf("torch 1.10 has optimizer %s, keeps gradients %v", wide.Setup.Optimizer,
			wide.Setup.KeepGrads)
	}
	eager.Torch = "1.13"
	lazy := mustAllocate(t, bert, eager)
	if got := wide.DevicePeak - wide.ReservedPeak - (lazy.DevicePeak - lazy.ReservedPeak); got !=
		allKernels {
		t.Errorf("torch 1.10 loads %s of kernels more than 1.13, want %s", got, allKernels)
	}
}

// TestFrozenWeightsAreCut: ZeRO-3 and FSDP1 keep a part of weights that are not trained, and no
// gradients of them.
func TestFrozenWeightsAreCut(t *testing.T) {
	for _, shard := range []string{"zero3", "fsdp1", "fsdp"} {
		s := Setup{LoRATargets: []string{"all-linear"}, Bucket: 1 << 20,
			Setup: remedy.Setup{Batch: 1, Seq: 128, Precision: "bf16", LoRARank: 8,
				Checkpointing: true, Ranks: 8, Shard: shard}}
		p := mustAllocate(t, llama70b, s)
		whole := event.Bytes(2 * p.Parameters)
		if p.Categories["weights"] > whole/4 {
			t.Errorf("%s keeps %s of %s of weights on one of 8 ranks", shard, p.Categories["weights"],
				whole)
		}
		for _, phase := range p.Phases {
			if phase.Phase == "load" && phase.Allocated > whole/2 {
				t.Errorf("%s loads %s of %s onto each rank", shard, phase.Allocated, whole)
			}
		}
		if p.Categories["gradients"] > whole/50 {
			t.Errorf("%s keeps %s of gradients of adapters", shard, p.Categories["gradients"])
		}
	}
}

// TestShortTargets: an encoder-decoder whose target is short holds few logits.
func TestShortTargets(t *testing.T) {
	const t5 = `{"model_type":"t5","num_layers":2,"d_model":256,"d_ff":512,"num_heads":4}`
	s := Setup{Setup: remedy.Setup{Batch: 8, Seq: 256, Precision: "fp32", Optimizer: "sgd"}}
	long := mustAllocate(t, t5, s)
	s.TargetSeq = 4
	short := mustAllocate(t, t5, s)
	if logits := event.Bytes(8 * 252 * 32128 * 4); long.AllocatedPeak-short.AllocatedPeak < 2*logits {
		t.Errorf("252 tokens less take %s less, want at least twice the logits, %s",
			long.AllocatedPeak-short.AllocatedPeak, logits)
	}
	s.Model = mustConfig(t, llama160m)
	if err := s.Check(); err == nil || !strings.Contains(err.Error(), "--target-seq") {
		t.Errorf("a decoder with a target of its own: %v", err)
	}
}

// TestOptimizerInBackward: gradients never stand side by side.
func TestOptimizerInBackward(t *testing.T) {
	s := Setup{Setup: remedy.Setup{Batch: 1, Seq: 32, Precision: "bf16", Optimizer: "sgd"}}
	all := mustAllocate(t, llama160m, s)
	s.InBackward = true
	one := mustAllocate(t, llama160m, s)
	largest := event.Bytes(2 * 32000 * 768) // the embedding, or the head
	if grads := event.Bytes(2 * one.Trainable); all.AllocatedPeak-one.AllocatedPeak <
		grads-3*largest {
		t.Errorf("stepping in backward saves %s of %s of gradients",
			all.AllocatedPeak-one.AllocatedPeak, grads)
	}
	s.Accumulate = 4
	if err := s.Check(); err == nil {
		t.Error("accumulation with an optimizer in the backward pass was taken")
	}
}
