package remedy

import (
	"strings"
	"testing"
)

// TestLengthFlag: --max_seq_length is an argument of some scripts, not of the Trainer. Where a log
// does not show that the script takes it, it is not offered; plans without a log name it.
func TestLengthFlag(t *testing.T) {
	facts := func(flag bool) map[Fact]bool {
		return map[Fact]bool{TorchSeen: true, Text: true, Pretrained: true, LengthFlag: flag}
	}
	for name, c := range map[string]struct {
		facts map[Fact]bool
		want  bool
	}{"not shown": {facts(false), false}, "shown": {facts(true), true}, "no log": {nil, true}} {
		for _, id := range []ID{ShorterSequence, LongestBatch} {
			job := Job{Framework: PyTorch, Trainer: Transformers, Facts: c.facts}
			r, known := Find(id)
			if !known {
				t.Fatal(id)
			}
			how := r.HowTo(job)
			if how.Args+how.Code == "" {
				t.Errorf("%s: %s says nothing", name, id)
			}
			if strings.Contains(how.Args, "--max_seq_length") != c.want {
				t.Errorf("%s: %s: %q", name, id, how.Args)
			}
		}
	}
}
