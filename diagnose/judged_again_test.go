package diagnose

import (
	"strings"
	"testing"

	"memroom/event"
)

// kept are findings as a record keeps them: the latest about each thing.
type kept []event.Finding

func (all *kept) add(found []event.Finding) {
	for _, f := range found {
		var left kept
		for _, earlier := range *all {
			if !f.Restates(earlier) {
				left = append(left, earlier)
			}
		}
		*all = append(left, f)
	}
}

// warns returns the titles of the findings of a kind that still hold.
func (all kept) warns(kind string) (titles []string) {
	for _, f := range all {
		if f.Kind == kind && f.Severity != event.SeverityInfo {
			titles = append(titles, f.Title)
		}
	}
	return titles
}

// TestPeakInEvaluationIsTakenBack: an evaluation after the first step has the peak, until training
// steps need more. Where they never do, it stays said.
func TestPeakInEvaluationIsTakenBack(t *testing.T) {
	const gib = event.GiB
	for name, c := range map[string]struct {
		training event.Bytes // the peak of the later steps
		want     int
	}{
		"training needs more later": {24 * gib, 0},
		"training never does":       {8 * gib, 1},
	} {
		var all kept
		w := NewWatch(DefaultThresholds(), 0)
		row := func(step int64, peak event.Bytes) {
			all.add(w.Steps(7, nil, []event.Step{{Step: step, PeakAllocated: peak, Allocated: gib}}))
		}
		row(1, 7*gib)
		w.Phase(7, "eval", true)
		w.PhasePeak(7, 0, true, 7*gib)
		w.Phase(7, "eval", false)
		w.PhasePeak(7, 0, false, 14*gib)
		row(2, 14*gib)
		if got := all.warns("spike"); len(got) != 1 || !strings.Contains(got[0],
			"is in evaluation: 14GiB; training steps need 7GiB") {
			t.Errorf("%s: after the evaluation: %v", name, got)
		}
		for step := int64(3); step < 20; step++ {
			row(step, max(14*gib, c.training))
		}
		all.add(w.Ended())
		if got := all.warns("spike"); len(got) != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestPeakOfTheStepAfterAnEvaluation: the allocator's peak when the evaluation ended is known, so
// what the next step needs is not the evaluation's.
func TestPeakOfTheStepAfterAnEvaluation(t *testing.T) {
	const gib = event.GiB
	w := NewWatch(DefaultThresholds(), 0)
	w.Steps(7, nil, []event.Step{{Step: 1, PeakAllocated: 7 * gib}})
	w.Phase(7, "eval", true)
	w.PhasePeak(7, 0, true, 7*gib)
	w.Phase(7, "eval", false)
	w.PhasePeak(7, 0, false, 7*gib)
	if got := w.Steps(7, nil, []event.Step{{Step: 2, PeakAllocated: 14 * gib}}); len(got) != 0 {
		t.Errorf("said %v", got)
	}
}

// TestHostPeakInEvaluationIsTakenBack does the same for host memory, which the meters read.
func TestHostPeakInEvaluationIsTakenBack(t *testing.T) {
	const gib = event.GiB
	for later, want := range map[event.Bytes]int{3 * gib: 1, 12 * gib: 0} {
		var all kept
		w := NewWatch(DefaultThresholds(), 0)
		at := int64(0)
		read := func(n int, held event.Bytes) {
			for range n {
				at += 250
				all.add(w.Sample(event.Sample{AtMS: at, Anonymous: held, Processes: 1}))
			}
		}
		w.Steps(7, nil, []event.Step{{Step: 1, Device: event.HostDevice, Anonymous: 2 * gib}})
		read(12, 2*gib)
		w.Phase(7, "eval", true)
		read(4, 6*gib)
		w.Phase(7, "eval", false)
		read(1, 2*gib)
		if got := all.warns("evaluation"); len(got) != 1 {
			t.Fatalf("after the evaluation: %v", got)
		}
		read(20, later)
		if got := all.warns("evaluation"); len(got) != want {
			t.Errorf("training holds %s later: %v", later, got)
		}
	}
}

// TestLeakHasTheLastFigures: a leak that is slow at first and fast later is reported with its last
// pace when the process ends. A list is reported with the step at which it had its length.
func TestLeakHasTheLastFigures(t *testing.T) {
	var all kept
	w := NewWatch(DefaultThresholds(), 0)
	level := 100 * event.MiB
	for step := int64(1); step <= 400; step++ {
		level += 2 * event.MiB
		if step > 60 {
			level += 5 * event.MiB
		}
		all.add(w.Steps(7, nil, []event.Step{{Step: step, Device: event.HostDevice, Heap: level,
			Anonymous: level + 50*event.MiB}}))
		for _, ask := range w.Asks() {
			if ask.Do == "heap" {
				all.add(w.Holders(7, []Holder{{Name: "kept", Kind: "list of 28", File: "train.py",
					Line: 9, Host: 20 * event.MiB}}, 1))
			}
		}
	}
	early := all.warns("leak")
	if len(early) != 1 || !strings.Contains(early[0], " 2MiB kept per step") {
		t.Fatalf("while it ran: %v", early)
	}
	all.add(w.Gone(7))
	got := all.warns("leak")
	if len(got) != 1 || !strings.Contains(got[0], " 7MiB kept per step") ||
		!strings.Contains(got[0], "list of 28 at step ") {
		t.Errorf("at the end: %v", got)
	}
}
