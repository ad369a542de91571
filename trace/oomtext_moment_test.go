package trace

import (
	"strings"
	"testing"
)

// TestMoments: a sentence says when it failed only where the failure is its subject.
func TestMoments(t *testing.T) {
	for text, want := range map[string]string{
		"It crashes during evaluation with an OOM":                      SignEvalSaid,
		"OOM when validating":                                           SignEvalSaid,
		"training works, but evaluation runs out of memory":             SignEvalSaid,
		"It only happens in the validation stage":                       SignEvalSaid,
		"the GPU memory is full after the first validation":             SignEvalSaid,
		"out of memory while loading the model":                         SignLoadSaid,
		"I am testing the new release and it runs out of memory":        "",
		"validation works, then training runs out of memory":            "",
		"no evaluation is run and memory creeps up":                     "",
		"It stops in the training or evaluating of the next epoch, OOM": "",
		"Evaluation is switched on by --evaluate":                       "",
		"the model was loaded yesterday; it crashes in step 3":          "",
	} {
		log, err := ReadLog(strings.NewReader("A report\n\n" + text + "\n\nCUDA out of memory. Tried to allocate 2.00 GiB\n"))
		if err != nil {
			t.Fatal(err)
		}
		signs := log.Crashes[0].Signs
		for _, sign := range []string{SignEvalSaid, SignLoadSaid} {
			if (signs[sign] != "") != (sign == want) {
				t.Errorf("%q: %s is %q", text, sign, signs[sign])
			}
		}
	}
}

// TestPhaseIsAnnounced: a phase is a line of a program, not a word of a sentence.
func TestPhaseIsAnnounced(t *testing.T) {
	for text, want := range map[string]string{
		"INFO Loading model weights":                               "load",
		"[rank0] Evaluating":                                       "eval",
		"Saving the model to out/":                                 "save",
		"We see the problem with evaluating long clips":            "",
		"I had to stop the run right before saving the model":      "",
		"My notebook has one more cell for loading model variants": "",
	} {
		log, err := ReadLog(strings.NewReader(text + "\nCUDA out of memory. Tried to allocate 2.00 GiB\n"))
		if err != nil {
			t.Fatal(err)
		}
		if log.Hints.Phase != want {
			t.Errorf("%q: phase %q, want %q", text, log.Hints.Phase, want)
		}
	}
}
