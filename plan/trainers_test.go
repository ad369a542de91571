package plan

import (
	"fmt"
	"strings"
	"testing"

	"memroom/event"
	"memroom/models"
	"memroom/remedy"
)

// writer is a small model that writes text: 4 layers of 64, 1000 words.
func writer(trainer string, change func(*Setup)) Setup {
	s := Setup{Model: models.ConfigOf(llamaOf(64, 128, 4, 4, 2, 1000)), Trainer: trainer,
		Setup: remedy.Setup{Batch: 4, Seq: 128, Precision: "bf16"}}
	if change != nil {
		change(&s)
	}
	return s
}

// TestWhatTrainersDo: pairs, generation, a reference, and the frozen models next to the trained
// one.
func TestWhatTrainersDo(t *testing.T) {
	for trainer, want := range map[string]string{
		// paired, generates, refers, copies; then copies with adapters, with no reference
		"":       "false false false 0 0 0",
		"sft":    "false false false 0 0 0",
		"dpo":    "true false true 1 0 0",
		"orpo":   "true false false 0 0 0",
		"kto":    "false false true 1 0 0",
		"reward": "true false false 0 0 0",
		"grpo":   "false true true 1 0 0",
		"rloo":   "false true true 1 0 0",
		"ppo":    "false true true 2 1 1",
	} {
		s := writer(trainer, nil)
		with := writer(trainer, func(s *Setup) { s.LoRARank = 1 })
		alone := writer(trainer, func(s *Setup) { s.Reference = "none" })
		if got := fmt.Sprint(s.paired(), s.generates(), s.refers(), s.copies(), with.copies(),
			alone.copies()); got != want {
			t.Errorf("%s: %s, want %s", trainer, got, want)
		}
	}
}

// TestDefaultsOfTrainers: what TRL does where nothing is said.
func TestDefaultsOfTrainers(t *testing.T) {
	for trainer, want := range map[string]string{"": "/0/false", "sft": "copy/0/true",
		"dpo": "copy/0/true", "grpo": "none/64/true", "rloo": "copy/64/true", "ppo": "copy/64/true"} {
		s := writer(trainer, nil)
		s = s.WithDefaults()
		if got := fmt.Sprintf("%s/%d/%v", s.Reference, s.Completion, s.Padded); got != want {
			t.Errorf("%s: %s, want %s", trainer, got, want)
		}
	}
	given := writer("grpo", func(s *Setup) {
		s.Reference, s.Completion, s.Attention = "copy", 9, "flash"
	}).WithDefaults()
	if given.Reference != "copy" || given.Completion != 9 || given.Padded {
		t.Errorf("%+v", given)
	}
	if short := writer("ppo", func(s *Setup) { s.Seq = 1 }).WithDefaults(); short.Completion != 1 {
		t.Errorf("an answer of %d tokens", short.Completion)
	}
	for trainer, want := range map[string]int{"ppo": 112, "dpo": 0} {
		s := writer(trainer, nil)
		if got := s.trl(); got != want {
			t.Errorf("%s: release %d", trainer, got)
		}
		s.TRL = "1.9"
		if got := s.trl(); got != 109 {
			t.Errorf("%s of 1.9: release %d", trainer, got)
		}
	}
	for text, want := range map[string]int{"1.13": 113, "0.20": 20, "2.0.1": 200, "1": 0,
		"x": 0, "": 0} {
		if got := release(text); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

// TestTrainersRefuse: what they cannot do, each with its reason; the edges pass.
func TestTrainersRefuse(t *testing.T) {
	for name, c := range map[string]struct {
		trainer string
		change  func(*Setup)
		says    string // "" is allowed
	}{
		"answers without a trainer": {"", func(s *Setup) { s.Completion = 1 }, "--completion is for"},
		"a release without one":     {"", func(s *Setup) { s.TRL = "1.9" }, "--trl is for"},
		"a reference without one":   {"", func(s *Setup) { s.Reference = "none" }, "--reference is for"},
		"an engine for nothing":     {"dpo", func(s *Setup) { s.Engine = 0.1 }, "--engine-share is for"},
		"an engine":                 {"grpo", func(s *Setup) { s.Engine = 0.1 }, ""},
		"a whole card for it":       {"grpo", func(s *Setup) { s.Engine = 1 }, "less than 1"},
		"less than nothing":         {"grpo", func(s *Setup) { s.Engine = -0.1 }, "at least 0"},
		"all tokens":                {"sft", func(s *Setup) { s.Completion = 128 }, ""},
		"more than all":             {"sft", func(s *Setup) { s.Completion = 129 }, "more than --seq"},
		"PPO on one card":           {"ppo", nil, ""},
		"PPO, copies":               {"ppo", func(s *Setup) { s.Ranks, s.Shard = 2, "ddp" }, ""},
		"PPO, sharded": {"ppo", func(s *Setup) { s.Ranks, s.Shard = 2, "fsdp" },
			"two models"},
		"a loss of its own": {"dpo", func(s *Setup) { s.ChunkedLoss = true }, "loss of its own"},
		"shorter sequences": {"dpo", func(s *Setup) { s.Shortest = 9 }, "--shortest"},
		"evaluation":        {"dpo", func(s *Setup) { s.EvalBatch = 1 }, "--eval-batch"},
		"a model that reads": {"dpo", func(s *Setup) {
			s.Model = models.ConfigOf(map[string]any{"model_type": "bert"})
		}, "write text"},
	} {
		s := writer(c.trainer, c.change)
		err := s.checkTrainer()
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
}

// TestNotesOfTrainers: how each was planned is said, and no more than is so.
func TestNotesOfTrainers(t *testing.T) {
	for name, c := range map[string]struct {
		trainer   string
		change    func(*Setup)
		says, not string
		words     string
	}{
		"sft": {"sft", nil, "one sequence; tiles of 4,096", "reference", "sft"},
		"sft of 1.6": {"sft", func(s *Setup) { s.TRL = "1.6" }, "1.6 to 1.14", "tiles of 4,096",
			"sft"},
		"sft of 1.5": {"sft", func(s *Setup) { s.TRL = "1.5" }, "logits are whole; since 0.20",
			"chunks", "sft"},
		"dpo": {"dpo", nil, "twice as many sequences; a frozen copy", "switched off", "dpo (pairs)"},
		"dpo with adapters": {"dpo", func(s *Setup) { s.LoRARank = 8 }, "adapters switched off",
			"frozen copy", "dpo (pairs)"},
		"dpo alone": {"dpo", func(s *Setup) { s.Reference = "none" }, "a pair", "the reference is",
			"dpo (pairs)"},
		"orpo":        {"orpo", nil, "no reference; ORPO of 1.16", "tiles", "orpo (pairs)"},
		"orpo of 1.9": {"orpo", func(s *Setup) { s.TRL = "1.9" }, "since 0.20", "1.16", "orpo (pairs)"},
		"reward":      {"reward", nil, "one score; unless it is off", "tiles", "reward (pairs)"},
		"kto":         {"kto", nil, "prompt of another; a frozen copy", "pair,", "kto"},
		"grpo": {"grpo", nil, "answers alone; by the model itself", "engine takes",
			"grpo, answers of 64 tokens"},
		"grpo with an engine": {"grpo", func(s *Setup) { s.Engine = 0.3 },
			"an inference engine takes 30 %", "by the model itself", "grpo, answers of 64 tokens"},
		"ppo": {"ppo", nil, "a third judges them; logits are whole", "tiles",
			"ppo, answers of 64 tokens"},
	} {
		s := writer(c.trainer, c.change).WithDefaults()
		notes := strings.Join(s.trainerNotes(), "\n")
		for _, part := range strings.Split(c.says, "; ") {
			if !strings.Contains(notes, part) {
				t.Errorf("%s does not say %q: %s", name, part, notes)
			}
		}
		if strings.Contains(notes, c.not) {
			t.Errorf("%s says %q: %s", name, c.not, notes)
		}
		if got := s.trainerWords(); got != c.words {
			t.Errorf("%s: %q, want %q", name, got, c.words)
		}
	}
	if s := writer("", nil); s.trainerNotes() != nil {
		t.Error("notes on no trainer")
	}
}

// TestModelsBesideTheTrained: their weights are on the card, as often as there are copies.
func TestModelsBesideTheTrained(t *testing.T) {
	ask := func(trainer string, change func(*Setup)) *Prediction {
		t.Helper()
		p, err := predictOnly(writer(trainer, change), testTarget())
		if err != nil {
			t.Fatal(trainer, err)
		}
		return p
	}
	alone := func(s *Setup) { s.Reference = "none" }
	one := ask("dpo", alone).Categories["weights"]
	for trainer, want := range map[string]event.Bytes{"dpo": 2, "kto": 2, "rloo": 2, "orpo": 1,
		"sft": 1, "grpo": 1} {
		if got := ask(trainer, nil).Categories["weights"]; got != want*one {
			t.Errorf("%s: weights of %s, want %d times %s", trainer, got, want, one)
		}
	}
	// The value model has a head of one figure instead of one of words.
	head := event.Bytes(2 * 64 * 1000)
	if got := ask("ppo", nil).Categories["weights"]; got < 4*one-head-event.KiB*8 || got > 4*one {
		t.Errorf("ppo: weights of %s, one model has %s", got, one)
	}
	if both, single := ask("dpo", nil), ask("kto", nil); both.ReservedPeak < single.ReservedPeak {
		t.Errorf("pairs take %s, single answers %s", both.AllocatedPeak, single.AllocatedPeak)
	}
	small, large := ask("grpo", func(s *Setup) { s.Accumulate = 1 }),
		ask("grpo", func(s *Setup) { s.Accumulate = 256 })
	if large.AllocatedPeak <= small.AllocatedPeak {
		t.Errorf("answers of a whole step take %s, of one micro-batch %s", large.AllocatedPeak,
			small.AllocatedPeak)
	}
	ppo := ask("ppo", func(s *Setup) { s.Accumulate = 256 })
	if ppo.AllocatedPeak > ask("ppo", nil).AllocatedPeak+event.MiB {
		t.Error("PPO writes one batch at a time")
	}
}

// TestAnswersThatAreWritten: known by hand. The cache of all layers and one more, and the scores of
// the next word in three forms.
func TestAnswersThatAreWritten(t *testing.T) {
	s := writer("grpo", func(s *Setup) { s.Accumulate, s.Completion = 3, 28 }).WithDefaults()
	a, err := s.aside()
	if err != nil {
		t.Fatal(err)
	}
	w := a.answers
	// 2 heads of 16 for keys and values each
	if w.batch != 12 || w.prompt != 100 || w.length != 128 || w.layers != 4 || w.perToken != 64 ||
		w.vocab != 1000 || w.as.Size() != 2 || w.read == nil || a.refers || a.value != nil {
		t.Errorf("%+v", a)
	}
	for name, c := range map[string]struct {
		setup Setup
		batch int64
		read  bool
		value bool
	}{
		"ppo": {writer("ppo", func(s *Setup) { s.Accumulate = 3 }), 4, true, true},
		"an engine": {writer("rloo", func(s *Setup) { s.Engine = 0.2 }), 0, false,
			false},
		"no answers": {writer("dpo", nil), 0, false, false},
		"no trainer": {writer("", nil), 0, false, false},
	} {
		s := c.setup.WithDefaults()
		a, err := s.aside()
		if err != nil || a.answers.batch != c.batch || (a.answers.read != nil) != c.read ||
			(a.value != nil) != c.value || a.kind != s.Trainer {
			t.Errorf("%s: %+v %v", name, a, err)
		}
	}
	all := writer("ppo", func(s *Setup) { s.Completion = 128 }).WithDefaults()
	if a, err := all.aside(); err != nil || a.answers.prompt != 1 {
		t.Errorf("a prompt of %d tokens, %v", a.answers.prompt, err)
	}
}
