package plan

import (
	"strings"
	"testing"

	"memroom/remedy"
)

// TestWordsHoldTheWholeSet: every row has each remedy of a set, in the trainer's words or as a
// comment that names it.
func TestWordsHoldTheWholeSet(t *testing.T) {
	s, _ := setupFor(t, "tinyllama", 8, 512)
	s = s.WithDefaults()
	for _, ids := range [][]remedy.ID{
		{remedy.OptimizerFused, remedy.Checkpointing, remedy.Quantize4Bit},
		{remedy.ExpandableSegments, remedy.MicroBatch, remedy.OptimizerOffload, remedy.LoRA},
		{remedy.ActivationOffload, remedy.Optimizer8Bit, remedy.Quantize8Bit, remedy.MicroBatch},
	} {
		made := &candidate{setup: s}
		for _, id := range ids {
			r, _ := remedy.Find(id)
			if !made.apply(r) {
				t.Fatalf("%s cannot be applied", id)
			}
		}
		made.halvings = 1
		for name, row := range flags(s, made) {
			if name == "env" {
				continue
			}
			first, _, _ := strings.Cut(row, "\n")
			if strings.Contains(first, "--") && strings.Contains(first, "#") {
				t.Errorf("%s: a comment swallows flags: %s", name, first)
			}
			at := s.Setup
			for _, id := range ids {
				r, _ := remedy.Find(id)
				how := r.HowTo(remedy.Job{Framework: remedy.PyTorch, Trainer: remedy.Trainer(name),
					Setup: &at})
				words, _, _ := strings.Cut(strings.TrimPrefix(how.Args, accelerateLaunch+" "),
					"   # ")
				if !strings.Contains(row, "# "+string(id)+": ") &&
					!strings.Contains(row, "--remedy "+string(id)) &&
					(words == "" || !strings.Contains(row, words)) {
					t.Errorf("%s lacks %s:\n%s", name, id, row)
				}
				at, _ = r.Rewrite(at)
			}
			if rank := "r=16"; made.setup.LoRARank > 0 && !strings.Contains(row, rank) &&
				!strings.Contains(row, "rank 16") && !strings.Contains(row, "lora_r: 16") {
				t.Errorf("%s does not say the adapters' rank:\n%s", name, row)
			}
		}
	}
}

// TestWordsLeaveOutWhatWasReplaced: of two optimizers the later one is typed.
func TestWordsLeaveOutWhatWasReplaced(t *testing.T) {
	s, _ := setupFor(t, "gpt2", 2, 128)
	made := &candidate{setup: s, ids: []remedy.ID{remedy.OptimizerFused, remedy.OptimizerAdafactor},
		halvings: 1}
	made.setup.Optimizer = "adafactor"
	if row := flags(s, made)["transformers"]; row != "--optim adafactor" {
		t.Errorf("typed %q", row)
	}
}
