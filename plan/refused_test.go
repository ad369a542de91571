package plan

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"memroom/event"
	"memroom/remedy"
)

// tinyLlama is small enough to be planned in a few milliseconds.
const tinyLlama = `{"model_type":"llama","hidden_size":64,"intermediate_size":128,
	"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"vocab_size":256}`

// TestSetupsThatMakeNoSense: each is refused with the flag that helps; its neighbour is not.
func TestSetupsThatMakeNoSense(t *testing.T) {
	lora := func(change func(*Setup)) func(*Setup) {
		return func(s *Setup) { s.LoRARank = 8; change(s) }
	}
	for want, pair := range map[string][2]func(*Setup){
		"precision \"x\" is not known": {func(s *Setup) { s.Precision = "x" },
			func(s *Setup) { s.Precision = "fp16" }},
		"offload \"x\" is not known": {func(s *Setup) { s.Offload = []string{"optimizer", "x"} },
			func(s *Setup) { s.Offload = []string{"optimizer", "activations"} }},
		"optimizer \"x\" is not known": {func(s *Setup) { s.Optimizer = "x" },
			func(s *Setup) { s.Optimizer = "lion" }},
		"batch 1048577 is out of range": {func(s *Setup) { s.Batch = 1<<20 + 1 },
			func(s *Setup) { s.Batch = 1 << 20 }},
		"seq -1 is out of range": {func(s *Setup) { s.Seq = -1 }, func(s *Setup) { s.Seq = 1 << 24 }},
		"image 32769 is out of range": {func(s *Setup) { s.Image = 1<<15 + 1 },
			func(s *Setup) { s.Image = 1 << 15 }},
		"--shortest 33 is longer than --seq 32": {func(s *Setup) { s.Shortest = 33 },
			func(s *Setup) { s.Shortest = 32 }},
		"--eval-keep is for an evaluation": {func(s *Setup) { s.EvalKeep = 2 },
			func(s *Setup) { s.EvalKeep, s.EvalBatch = 2, 1 }},
		"--lora-targets names layers": {func(s *Setup) { s.LoRATargets = []string{"q_proj"} },
			lora(func(s *Setup) { s.LoRATargets = []string{"q_proj"} })},
		"--dora is for adapters": {func(s *Setup) { s.DoRA = true },
			lora(func(s *Setup) { s.DoRA = true })},
		"--modules-to-save names modules": {func(s *Setup) { s.TrainWhole = []string{"lm_head"} },
			lora(func(s *Setup) { s.TrainWhole = []string{"lm_head"} })},
		"came with torch 2.1": {
			func(s *Setup) { s.AllocConf, s.Torch = "expandable_segments:True", "2.0" },
			func(s *Setup) { s.AllocConf, s.Torch = "expandable_segments:True", "2.1" }},
		"sees one gradient at a time: leave out --accumulate": {
			func(s *Setup) { s.InBackward, s.Clip = true, true }, func(s *Setup) { s.InBackward = true }},
		"leave out --accumulate and --clip": {
			func(s *Setup) { s.InBackward, s.Accumulate = true, 2 }, func(s *Setup) { s.Clip = true }},
		"--optimizer-in-backward is for one card": {
			func(s *Setup) { s.InBackward, s.Shard, s.Ranks = true, "zero2", 2 },
			func(s *Setup) { s.InBackward, s.Shard, s.Ranks = true, "ddp", 2 }},
		"--lora-dropout is for adapters": {func(s *Setup) { s.LoRADropout = 0.1 },
			lora(func(s *Setup) { s.LoRADropout = 0.1 })},
		"--lora-dropout must be at least 0": {lora(func(s *Setup) { s.LoRADropout = 1 }),
			lora(func(s *Setup) { s.LoRADropout = 0.99 })},
		"--double-quant is for 4-bit": {lora(func(s *Setup) { s.LoadIn, s.DoubleQuant = "8bit", true }),
			lora(func(s *Setup) { s.LoadIn, s.DoubleQuant = "4bit", true })},
		"--no-upcast is for packed": {func(s *Setup) { s.NoUpcast = true },
			lora(func(s *Setup) { s.LoadIn, s.NoUpcast = "8bit", true })},
		"--no-reshard is for FSDP": {func(s *Setup) { s.NoReshard, s.Shard, s.Ranks = true, "zero3", 2 },
			func(s *Setup) { s.NoReshard, s.Shard, s.Ranks = true, "fsdp", 2 }},
		"--autocast is for weights": {func(s *Setup) { s.Autocast, s.Precision = true, "fp32" },
			func(s *Setup) { s.Autocast, s.Precision = true, "bf16" }},
		"--target-seq is for models": {func(s *Setup) { s.TargetSeq = 8 }, func(*Setup) {}},
		"--transformers names a release": {func(s *Setup) { s.Transformers = "new" },
			func(s *Setup) { s.Transformers = "4.48" }},
		"--offload parameters is planned": {func(s *Setup) {
			s.Offload, s.Shard, s.Ranks = []string{"parameters"}, "zero2", 2
		}, func(s *Setup) { s.Offload, s.Shard, s.Ranks = []string{"parameters"}, "zero3", 2 }},
		"sharding with fsdp needs more than one rank": {func(s *Setup) { s.Shard = "fsdp" },
			func(s *Setup) { s.Shard, s.Ranks = "fsdp", 2 }},
		"sharding with zero2 needs": {func(s *Setup) { s.Shard = "zero2" },
			func(s *Setup) { s.Shard, s.Offload = "zero2", []string{"optimizer"} }},
		"--sequence-parallel cuts tokens": {func(s *Setup) { s.Sequence = true },
			func(s *Setup) { s.Sequence, s.Tensor, s.Ranks = true, 2, 2 }},
		"--loss-parallel is for a cut head": {func(s *Setup) { s.LossParallel = true },
			func(s *Setup) { s.LossParallel, s.Tensor, s.Ranks = true, 2, 2 }},
		"--microbatches counts those": {func(s *Setup) { s.Microbatches = 4 },
			func(s *Setup) { s.Microbatches, s.Pipeline, s.Ranks = 4, 2, 2 }},
		"3 ranks cannot be divided into groups of 2": {func(s *Setup) { s.Tensor, s.Ranks = 2, 3 },
			func(s *Setup) { s.Tensor, s.Ranks = 2, 4 }},
		"--completion is for answers": {func(s *Setup) { s.Completion = 4 },
			func(s *Setup) { s.Trainer, s.Completion = "grpo", 4 }},
		"--completion 33 is more than --seq 32": {
			func(s *Setup) { s.Trainer, s.Completion = "grpo", 33 },
			func(s *Setup) { s.Trainer, s.Completion = "grpo", 32 }},
		"--reference is for preference": {func(s *Setup) { s.Reference = "copy" },
			func(s *Setup) { s.Trainer, s.Reference = "dpo", "none" }},
		"--engine-share is for answers": {func(s *Setup) { s.Trainer, s.Engine = "dpo", 0.3 },
			func(s *Setup) { s.Trainer, s.Engine = "ppo", 0.3 }},
		"--engine-share must be": {func(s *Setup) { s.Trainer, s.Engine = "grpo", 1 },
			func(s *Setup) { s.Trainer, s.Engine = "grpo", 0.99 }},
		"leave out --loss fused": {func(s *Setup) { s.Trainer, s.ChunkedLoss = "dpo", true },
			func(s *Setup) { s.ChunkedLoss = true }},
	} {
		for i, change := range pair {
			s := Setup{Model: mustConfig(t, tinyLlama), Setup: remedy.Setup{Batch: 1, Seq: 32}}
			change(&s)
			err := s.Check()
			if i == 1 && err != nil {
				t.Errorf("%s: its neighbour is refused too: %v", want, err)
			}
			if i == 0 && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("%v, want %s", err, want)
			}
		}
	}
}

// TestMarginsOfParts: how much wider an answer is for each part that is known less well.
func TestMarginsOfParts(t *testing.T) {
	base := Setup{Model: mustConfig(t, tinyLlama), Setup: remedy.Setup{Batch: 1, Seq: 32,
		Precision: "bf16"}}
	for name, c := range map[string]struct {
		change       func(*Setup)
		below, above float64 // without the exact margins of 0.02
	}{
		"nothing":      {func(*Setup) {}, 0, 0},
		"adapters":     {func(s *Setup) { s.LoRARank, s.LoRATargets = 4, []string{"q_proj"} }, 0.08, 0.05},
		"8 bits":       {func(s *Setup) { s.LoRARank, s.LoRATargets, s.LoadIn = 4, []string{"q_proj"}, "8bit" }, math.Hypot(0.08, 0.10), math.Hypot(0.05, 0.03)},
		"compiled":     {func(s *Setup) { s.Compile = true }, 0.50, 0.22},
		"a fused loss": {func(s *Setup) { s.ChunkedLoss = true }, 0.10, 0.10},
		"two parts": {func(s *Setup) { s.ChunkedLoss, s.Offload = true, []string{"activations"} },
			math.Hypot(0.10, 0.10), math.Hypot(0.10, 0.10)},
	} {
		s := base
		c.change(&s)
		target := testTarget()
		full := s.WithDefaults()
		r, err := simulateAll(&full, &target)
		if err != nil {
			t.Fatal(err)
		}
		low, high := r.spread()
		over := target.overhead(r.all[0].usesDNN)
		p := r.prediction(&full, &target)
		below, above := 1-float64(p.Low)/float64(low+over), float64(p.High)/float64(high+over)-1
		if math.Abs(below-math.Hypot(c.below, 0.02)) > 1e-6 ||
			math.Abs(above-math.Hypot(c.above, 0.02)) > 1e-6 {
			t.Errorf("%s: %.4f below and %.4f above, want %.2f and %.2f beside 0.02", name, below,
				above, c.below, c.above)
		}
	}
}

// TestRanksWidenTheInterval: by what NCCL may take more or less than is assumed.
func TestRanksWidenTheInterval(t *testing.T) {
	ask := func(ranks int, shard string) *Prediction {
		s := Setup{Model: mustConfig(t, tinyLlama), Setup: remedy.Setup{Batch: 1, Seq: 32,
			Precision: "bf16", Ranks: ranks, Shard: shard}}
		p, err := predictOnly(s, testTarget().Among(ranks))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	p := ask(2, "ddp")
	scaled := func(b event.Bytes, f float64) event.Bytes { return event.Bytes(float64(b) * f) }
	near := func(a, b event.Bytes) bool { return a-b < event.MiB && b-a < event.MiB }
	if want := scaled(p.DevicePeak+576*event.MiB, 1.02); !near(p.High, want) {
		t.Errorf("at most %s, want %s", p.High, want)
	}
	if want := scaled(p.DevicePeak-832*event.MiB, 0.98); !near(p.Low, want) {
		t.Errorf("at least %s, want %s", p.Low, want)
	}
	three := ask(2, "zero3") // 0.06 and 0.20 more
	if above := float64(three.High) / float64(three.DevicePeak+576*event.MiB); above < 1.2 {
		t.Errorf("zero3: %.3f above", above)
	}
}

// TestConfined checks predictions under a wall that the run survives: the lower bound is never
// above the peak that is reported.
func TestConfined(t *testing.T) {
	of := func() *Prediction {
		return &Prediction{AllocatedPeak: 60, ReservedPeak: 90, DevicePeak: 100, Low: 98, High: 110,
			Categories: map[string]event.Bytes{"cache": 30}}
	}
	for most, want := range map[event.Bytes]string{
		200: "98 100 110 90 30 0", 110: "98 100 110 90 30 0", 105: "98 100 105 90 30 0",
		95: "95 95 95 85 25 1", 65: "65 65 65 55 0 1"} {
		p := of()
		p.confine(most, 10)
		got := fmt.Sprint(int64(p.Low), int64(p.DevicePeak), int64(p.High), int64(p.ReservedPeak),
			int64(p.Categories["cache"]), len(p.Warnings))
		if got != want {
			t.Errorf("under %d: %s, want %s", most, got, want)
		}
	}
	p := of()
	p.Widen(0.1)
	if p.Low != 88 || p.High != 120 {
		t.Errorf("a tenth wider: %d to %d", p.Low, p.High)
	}
	p.Widen(5)
	if p.Low != 0 {
		t.Errorf("below nothing: %d", p.Low)
	}
}

// TestBoundsOfACard: what is not known of its context widens both sides, what a smaller one of its
// size takes less lowers the lower.
func TestBoundsOfACard(t *testing.T) {
	var p Prediction
	p.bounds(1000, 2000, margins{0.1, 0.2}, &Target{Card: Card{Doubt: 50, Less: 30}})
	if p.Low != 820 || p.High != 2450 {
		t.Errorf("%d to %d, want 820 to 2450", p.Low, p.High)
	}
	p.bounds(10, 10, margins{0.1, 0.2}, &Target{Card: Card{Doubt: 50}})
	if p.Low != 0 {
		t.Errorf("below nothing: %d", p.Low)
	}
	if m := (margins{0.1, 0.2}).plus(margins{0.3, 0.4}); math.Abs(m.below-0.4) > 1e-12 ||
		math.Abs(m.above-0.6) > 1e-12 {
		t.Errorf("%+v", m)
	}
	if m := (margins{0.3, 0}).and(margins{0.4, 0.2}); math.Abs(m.below-0.5) > 1e-12 || m.above != 0.2 {
		t.Errorf("%+v", m)
	}
}

// TestMarginsOfCards: none for one that was measured, more for another generation, most where
// convolutions are chosen otherwise.
func TestMarginsOfCards(t *testing.T) {
	for _, c := range []struct {
		card         string
		convolutions bool
		want         margins
	}{{"H200", true, margins{}}, {"H100", true, margins{0.02, 0.02}},
		{"A100-80", false, margins{0.05, 0.06}},
		{"A100-80", true, margins{0.13, 0.14}}, {"24GiB", false, margins{0.05, 0.06}}} {
		card, err := FindCard(c.card)
		if err != nil {
			t.Fatal(err)
		}
		got, why := card.margins(c.convolutions)
		if math.Abs(got.below-c.want.below) > 1e-12 || math.Abs(got.above-c.want.above) > 1e-12 ||
			(why == "") != (c.card == "H200") {
			t.Errorf("%s: %+v %q, want %+v", c.card, got, why, c.want)
		}
	}
}

// TestTrainersAndTheirModels: what each trainer runs next to the model that is trained.
func TestTrainersAndTheirModels(t *testing.T) {
	for _, c := range []struct {
		trainer, reference string
		lora               int
		want               string // sequences of a sample, generates, refers, copies
	}{
		{"", "", 0, "1 false false 0"}, {"dpo", "", 0, "2 false true 1"}, {"dpo", "", 8, "2 false true 0"},
		{"dpo", "none", 0, "2 false false 0"}, {"orpo", "", 0, "2 false false 0"},
		{"kto", "", 0, "1 false true 1"}, {"reward", "", 0, "2 false false 0"},
		{"grpo", "", 0, "1 true false 0"}, {"grpo", "copy", 0, "1 true true 1"},
		{"ppo", "", 0, "1 true true 2"}, {"ppo", "", 8, "1 true true 1"},
	} {
		s := Setup{Model: mustConfig(t, tinyLlama), Setup: remedy.Setup{Batch: 3, Seq: 32,
			LoRARank: c.lora}, Trainer: c.trainer, Reference: c.reference}.WithDefaults()
		got := fmt.Sprint(s.run(3, 32).Batch/3, s.generates(), s.refers(), s.copies())
		if got != c.want {
			t.Errorf("%s %s: %s, want %s", c.trainer, c.reference, got, c.want)
		}
		if head := s.run(1, 32).HeadName; (head != "") != (c.trainer == "reward") {
			t.Errorf("%s: head %q", c.trainer, head)
		}
		if s.generates() && s.Completion != 16 {
			t.Errorf("%s: %d tokens are generated", c.trainer, s.Completion)
		}
	}
}

// TestOlderTorch: before 2.0 optimizers loop and gradients stay; from 2.0 on neither.
func TestOlderTorch(t *testing.T) {
	for torch, want := range map[string]string{"1.13": "adamw_loop true", "1.9": "adamw_loop true",
		"2.0": "adamw false", "2.11": "adamw false", "": "adamw false", "unknown": "adamw false"} {
		s := Setup{Setup: remedy.Setup{Torch: torch}}.WithDefaults()
		if got := fmt.Sprint(s.Optimizer, " ", s.KeepGrads); got != want {
			t.Errorf("torch %q: %s, want %s", torch, got, want)
		}
	}
	for version, want := range map[string]int{"4.48": 448, "5.0.1": 500, "2.11": 211, "4": 0, "": 0,
		"x.y": 0} {
		if got := release(version); got != want {
			t.Errorf("%q: %d, want %d", version, got, want)
		}
	}
}

// TestSeveralRanksAreDDP where nothing else is said; one is not sharded.
func TestSeveralRanksAreDDP(t *testing.T) {
	for ranks, want := range map[int]string{1: "", 2: "ddp", 8: "ddp"} {
		if got := (Setup{Setup: remedy.Setup{Ranks: ranks}}).WithDefaults().Shard; got != want {
			t.Errorf("%d ranks: %q, want %q", ranks, got, want)
		}
	}
	for size, good := range map[string]bool{"1GiB": true, "1023MiB": false} {
		if _, err := FindCard(size); (err == nil) != good {
			t.Errorf("a card of %s: %v", size, err)
		}
	}
}
