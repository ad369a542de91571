package diagnose

import (
	"slices"
	"strings"
	"testing"

	"memroom/event"
)

// TestEvaluationPhase: what is said of made evaluations of ten seconds, with readings four times a
// second, after training that holds 4 GiB.
func TestEvaluationPhase(t *testing.T) {
	keeps := Evaluated{Kept: 8 * event.MiB, Holder: "logits in /home/me/eval.py:12"}
	graph := Evaluated{Grad: true, Kept: 8 * event.MiB, Holder: "self.out in /home/me/eval.py:12"}
	classes := Evaluated{Kept: 256, Holder: "classes in /home/me/eval.py:12"}
	outputs, either := []string{"eval_outputs", "eval_batch"},
		[]string{"eval_batch", "eval_outputs"}
	gradients := []string{"no_grad", "eval_batch"}
	all := append([]string{"no_grad"}, outputs...)
	level := func(event.Bytes) event.Bytes { return 4 * event.GiB }
	rising := func(i event.Bytes) event.Bytes { return 4*event.GiB + i*20*event.MiB }
	jump := func(i event.Bytes) event.Bytes {
		return 4*event.GiB + min(1, i/20)*2*event.GiB
	}
	for name, c := range map[string]struct {
		seen     Evaluated
		held     func(i event.Bytes) event.Bytes
		onCard   bool
		stays    bool   // the memory is held after the evaluation
		says     string // in the title; empty: nothing is found
		remedies []string
	}{
		"outputs are kept":    {keeps, rising, false, false, "`logits` (eval.py:12)", outputs},
		"with their graph":    {graph, rising, false, false, "kept in `self.out`", all},
		"classes are kept":    {classes, rising, false, true, "", nil},
		"pages rise, unknown": {Evaluated{}, rising, false, true, "", nil},
		"and fall back": {Evaluated{}, rising, false, false, "the peak of host memory",
			either},
		"a data set is loaded": {Evaluated{}, jump, false, true, "", nil},
		"a card rises":         {Evaluated{}, rising, true, false, "as when the outputs", either},
		"a jump": {keeps, jump, false, false, "host memory is in evaluation: 6GiB",
			either},
		"a jump with gradient": {Evaluated{Grad: true}, jump, false, false, "training held at most",
			gradients},
		"level": {keeps, level, false, false, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			w, at := NewWatch(DefaultThresholds(), 0), int64(0)
			read := func(held event.Bytes) []event.Finding {
				at += 250
				s := event.Sample{AtMS: at, Processes: 1, Anonymous: held}
				if c.onCard {
					s.Anonymous = event.GiB
					s.Devices = []event.DeviceSample{{UUID: "u", Total: 80 * event.GiB, Used: held,
						Ours: held, Utilisation: 90}}
				}
				return w.Sample(s)
			}
			device := event.HostDevice
			if c.onCard {
				device = 0
			}
			w.Steps(1, nil, []event.Step{{Step: 1, Device: device}})
			for range 40 {
				read(4 * event.GiB)
			}
			var found []event.Finding
			w.Phase(1, "eval", true)
			w.Evaluation(1, c.seen)
			for i := range event.Bytes(40) {
				found = append(found, read(c.held(i))...)
			}
			w.Phase(1, "eval", false)
			after := 4 * event.GiB
			if c.stays {
				after = c.held(39)
			}
			for range 8 {
				found = append(found, read(after)...)
			}
			found = slices.DeleteFunc(found, func(f event.Finding) bool {
				return f.Kind != "evaluation"
			})
			if c.says == "" {
				if len(found) > 0 {
					t.Errorf("found %+v", found)
				}
				return
			}
			if len(found) != 1 || !strings.Contains(found[0].Title, "in evaluation") ||
				!strings.Contains(found[0].Title, c.says) ||
				!slices.Equal(found[0].Remedies, c.remedies) {
				t.Errorf("found %+v", found)
			}
		})
	}
}
