package trace

import (
	"strings"
	"testing"
)

// TestLengthFlagIsSeen: in the command, far above the end, or not at all.
func TestLengthFlagIsSeen(t *testing.T) {
	const end = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 448.00 MiB.\n"
	for text, want := range map[string]bool{
		"python run.py --max_seq_length 512\n" + end:                               true,
		"python run.py --max_seq_length=512\n" + strings.Repeat("x\n", 9000) + end: true,
		"python run.py --max_seq_length_of_answers 512\n" + end:                    false,
		"python run.py --max_length 512\n" + end:                                   false,
	} {
		log, err := ReadLog(strings.NewReader(text))
		if err != nil || len(log.Crashes) != 1 {
			t.Fatal(log, err)
		}
		seen := log.Crashes[0].Signs[SignLengthFlag] != "" || log.Hints.Signs[SignLengthFlag] != ""
		if seen != want {
			t.Errorf("%.50q: %v", text, seen)
		}
	}
}
