package diagnose

import (
	"strings"
	"testing"

	"memroom/event"
)

// TestRisesThatStopAreCalledALeakTwice: caches that fill one after the other, 50 steps each, with
// 50 steps between them. Each looks like a leak and is none: after two that were taken back no
// other is named.
func TestRisesThatStopAreCalledALeakTwice(t *testing.T) {
	w := NewWatch(DefaultThresholds(), 0)
	leaks, back := 0, 0
	held := 200 * event.MiB
	for step := int64(1); step <= 2000; step++ {
		if step%100 < 50 {
			held += event.MiB
		}
		row := event.Step{Step: step, Allocated: held, Reserved: 64 * event.GiB}
		for _, f := range w.Steps(7, nil, []event.Step{row}) {
			sound(t, f)
			switch {
			case f.Kind == "leak" && strings.HasPrefix(f.Title, "no leak"):
				back++
			case f.Kind == "leak":
				leaks++
			}
		}
	}
	if leaks != 2 || back != 2 {
		t.Errorf("called a leak %d times and taken back %d times, want twice each", leaks, back)
	}
}

// TestCollectionHelpsIfHalfTheGrowthGoes: memory had grown by 100 MiB to 500 when garbage was
// collected.
func TestCollectionHelpsIfHalfTheGrowthGoes(t *testing.T) {
	for name, c := range map[string]struct {
		readings []float64
		helped   bool
	}{
		"nearly half goes":           {[]float64{460, 455, 451}, false},
		"more than half goes":        {[]float64{449}, true},
		"it goes at the last moment": {[]float64{500, 500, 440}, true},
		"it goes too late":           {[]float64{500, 500, 500, 400}, false},
		"a little goes":              {[]float64{495, 495, 495}, false},
	} {
		tried := collection{level: 500 * testMiB, growth: 100 * testMiB, open: seenAfter}
		for _, mib := range c.readings {
			tried.saw(mib * testMiB)
		}
		if tried.helped != c.helped || tried.open != 0 {
			t.Errorf("%s: helped %v, %d readings open", name, tried.helped, tried.open)
		}
	}
}

// TestPhasePeaksAreATenthAboveTraining: an evaluation whose peak is hardly above that of the steps
// is not worth a word; one is said once.
func TestPhasePeaksAreATenthAboveTraining(t *testing.T) {
	for peak, want := range map[event.Bytes]int{1000: 0, 1099: 0, 1100: 1, 1500: 1} {
		s := spikeWatch{peak: 1000 * event.MiB, phase: "evaluation"}
		row := event.Step{Step: 40, PeakAllocated: peak * event.MiB}
		found := s.phasePeak(row, DefaultThresholds())
		again := s.phasePeak(row, DefaultThresholds())
		if len(found) != want || len(again) != 0 {
			t.Errorf("peak %d MiB: %d findings, then %d; want %d and none", peak, len(found),
				len(again), want)
		}
	}
	first := spikeWatch{phase: "evaluation"} // before the first step there is nothing to compare with
	if found := first.phasePeak(event.Step{PeakAllocated: event.GiB},
		DefaultThresholds()); len(found) > 0 {
		t.Errorf("without a step: %v", found)
	}
}

// TestFloorsThatRiseAtMostSteps: three of five steps must rise. A staircase that rises at every
// third step is something that happens now and then, such as a longer batch.
func TestFloorsThatRiseAtMostSteps(t *testing.T) {
	grows := func(rises func(i int) bool) *Growth {
		var rows []StepRow
		floor := event.GiB
		for i := range 40 {
			if rises(i) {
				floor += event.MiB
			}
			rows = append(rows, StepRow{Step: i, Floor: floor})
		}
		return (&Ledger{}).growth(&phases{}, rows)
	}
	if g := grows(func(int) bool { return true }); g == nil || g.PerStep != event.MiB {
		t.Errorf("a floor that rises by 1 MiB a step: %+v", g)
	}
	if g := grows(func(i int) bool { return i%3 > 0 }); g == nil || g.Confidence > 0.75 {
		t.Errorf("two of three steps rise: %+v", g)
	}
	if g := grows(func(i int) bool { return i%3 == 0 }); g != nil {
		t.Errorf("every third step rises: %+v", g)
	}
}
