package diagnose

import (
	"strings"
	"testing"

	"memroom/event"
)

// evaluatingWatch returns a watch of one process that has trained, and a way to read its host
// memory, which returns what is said about evaluation.
func evaluatingWatch() (w *Watch, read func(held event.Bytes) []event.Finding) {
	w = NewWatch(DefaultThresholds(), 0)
	w.Steps(1, nil, []event.Step{{Step: 1, Device: event.HostDevice}})
	at := int64(0)
	return w, func(held event.Bytes) (found []event.Finding) {
		at += 250
		for _, f := range w.Sample(event.Sample{AtMS: at, Processes: 1, Anonymous: held}) {
			if f.Kind == "evaluation" {
				found = append(found, f)
			}
		}
		return found
	}
}

// TestCheckpointInsideAnEvaluation: what writing a checkpoint takes is no output of a batch, and
// the peak before it is still the evaluation's.
func TestCheckpointInsideAnEvaluation(t *testing.T) {
	kept := Evaluated{Kept: event.MiB, Holder: "outputs in eval.py:3"}
	for name, saves := range map[string]bool{"writes a checkpoint": true, "keeps outputs": false} {
		w, read := evaluatingWatch()
		for range 10 {
			read(event.GiB)
		}
		w.Phase(1, "eval", true)
		w.Evaluation(1, kept)
		var found []event.Finding
		for range 4 {
			found = append(found, read(2*event.GiB)...)
		}
		if saves {
			w.Phase(1, "save", true)
		}
		for i := range event.Bytes(40) {
			found = append(found, read(2*event.GiB+i*10*event.MiB)...)
		}
		if saves {
			w.Phase(1, "save", false)
			found = append(found, read(2*event.GiB)...)
		}
		if saves && len(found) > 0 || !saves && len(found) != 1 {
			t.Errorf("%s: %+v", name, found)
		}
		if w.Phase(1, "eval", false); saves && w.eval.ended != 2*event.GiB {
			t.Errorf("the peak of the evaluation is %s", w.eval.ended)
		}
	}
}

// TestCarriedOutputsAreToldOnce: a variable that holds more from evaluation to evaluation is
// reported as such, and not again as the outputs of one evaluation.
func TestCarriedOutputsAreToldOnce(t *testing.T) {
	w, read := evaluatingWatch()
	var found []event.Finding
	for round := range event.Bytes(5) {
		base := event.GiB + round*200*event.MiB
		for range 10 {
			found = append(found, read(base)...)
		}
		w.Phase(1, "eval", true)
		found = append(found, w.Evaluation(1, Evaluated{Kept: 5 * event.MiB,
			Held: (round*200 + 10) * event.MiB, Holder: "outputs in eval.py:3"})...)
		for i := range event.Bytes(40) {
			if round > 0 { // the first one is too short to be judged
				found = append(found, read(base+i*5*event.MiB)...)
			}
		}
		w.Phase(1, "eval", false)
	}
	if len(found) != 1 || !strings.Contains(found[0].Title, "outputs of earlier evaluations") {
		t.Errorf("%+v", found)
	}
}

// TestEvaluationsTooShortForAJudgement: five readings show no rise batch by batch; what was kept of
// each batch, times their number, does where memory rose by that much. A peak that was named before
// without its reason is replaced.
func TestEvaluationsTooShortForAJudgement(t *testing.T) {
	kept := Evaluated{Kept: 4 * event.MiB, Holder: "outputs in eval.py:3"}
	for name, c := range map[string]struct {
		step event.Bytes // by which memory rises between two readings
		seen Evaluated
		says string
	}{
		"kept":             {80 * event.MiB, kept, "`outputs` (eval.py:3), 400MiB in all"},
		"classes are kept": {80 * event.MiB, Evaluated{Kept: event.KiB, Holder: "ids in e.py:3"}, ""},
		"memory is level":  {0, kept, ""},
	} {
		w, read := evaluatingWatch()
		for range 10 {
			read(event.GiB)
		}
		w.Phase(1, "eval", true)
		w.Evaluation(1, c.seen)
		var found []event.Finding
		for i := range event.Bytes(5) {
			found = append(found, read(event.GiB+i*c.step)...)
		}
		found = append(found, w.Evaluated(1, c.seen, 100)...)
		w.Phase(1, "eval", false)
		if c.says == "" {
			if len(found) > 0 {
				t.Errorf("%s: %+v", name, found)
			}
			continue
		}
		found = append(found, read(event.GiB)...)
		if len(found) != 1 || !strings.Contains(found[0].Title, c.says) {
			t.Errorf("%s: %+v", name, found)
		}
		again := event.Finding{Kind: "evaluation", Key: peakOf(hostMemory)}
		if len(found) == 1 && !found[0].Restates(again) {
			t.Errorf("%s does not replace a peak without its reason", name)
		}
	}
}
