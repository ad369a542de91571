package diagnose

import (
	"testing"

	"memroom/event"
)

// leaking is a ledger of steps, each a forward span and an optimizer's, and blocks by the stack and
// the step that made them. What is kept is there at the end.
func leaking(steps int, kept map[event.StackID][]int) (*Ledger, *phases) {
	l := &Ledger{Entries: 20 * steps, frames: func(event.StackID) []event.Frame { return nil }}
	p := &phases{optimizer: true, stacks: true}
	for step := range steps {
		begin := int32(20 * step)
		p.spans = append(p.spans, phaseSpan{PhaseForward, step, begin, begin + 15, begin + 14, 9},
			phaseSpan{PhaseOptimizer, step, begin + 15, begin + 20, begin + 19, 1})
		for stack := event.StackID(1); stack < 9; stack++ {
			for _, at := range kept[stack] {
				if at == step {
					l.Allocs = append(l.Allocs, newAllocation(uint64(len(l.Allocs)+1)<<20,
						int64(stack)*1024, int64(stack)*1024, begin+int32(stack), stack))
				}
			}
		}
		passing := newAllocation(1<<40, 1<<20, 1<<20, begin+9, 9) // freed in its own step
		passing.End = begin + 12
		l.Allocs = append(l.Allocs, passing)
	}
	p.link()
	return l, p
}

// TestSuspectsKeepInMostSteps: stacks that leave something in at least half of the steps that could
// have freed it, with what they leave in one step, the largest first.
func TestSuspectsKeepInMostSteps(t *testing.T) {
	l, p := leaking(10, map[event.StackID][]int{
		1: {1, 2, 3, 4, 5, 6}, // every step looked at
		2: {1, 2, 3},          // half of them
		3: {1, 2},             // fewer
		4: {0, 7, 8, 9},       // outside of those steps
		5: {1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6},
	})
	got := l.suspects(p, 1, 8) // the steps 1 to 6
	want := []struct {
		stack  event.StackID
		bytes  event.Bytes
		blocks int
	}{{5, 2 * 5 * 1024, 2}, {1, 1024, 1}, {2, 1024, 1}}
	if len(got) != len(want) {
		t.Fatalf("%+v", got)
	}
	for i, w := range want {
		if got[i].Stack != w.stack || got[i].Bytes != w.bytes || got[i].Blocks != w.blocks {
			t.Errorf("suspect %d: %+v, want %+v", i, got[i], w)
		}
	}
	for last, found := range map[int]bool{3: false, 4: true} { // two steps are the fewest
		if got := l.suspects(p, 1, last); (len(got) > 0) != found {
			t.Errorf("steps 1 to %d: %+v", last, got)
		}
	}
	many, spans := leaking(10, map[event.StackID][]int{1: {1, 2}, 2: {1, 2}, 3: {1, 2}, 4: {1, 2},
		5: {1, 2}, 6: {1, 2}, 7: {1, 2}})
	if got := many.suspects(spans, 1, 4); len(got) != 5 || got[0].Stack != 7 {
		t.Errorf("%+v", got)
	}
}

// TestPhasesAreSmoothed: a few allocations of another kind between two spans of one phase belong to
// it, up to so many.
func TestPhasesAreSmoothed(t *testing.T) {
	const f, b, o = PhaseForward, PhaseBackward, PhaseOptimizer
	for name, c := range map[string]struct {
		outer, inner Phase
		allocs       int
		left         int
	}{
		"two of a backward pass in a forward pass": {f, b, 2, 1},
		"three of it":                       {f, b, 3, 3},
		"fifteen of the user's in a step":   {o, f, 15, 1},
		"sixteen of them":                   {o, f, 16, 3},
		"a backward pass between two steps": {o, b, 1, 3},
		"a step in a forward pass":          {f, o, 1, 3},
	} {
		p := &phases{spans: []phaseSpan{{c.outer, 0, 0, 10, 9, 5}, {c.inner, 0, 10, 20, 19, c.allocs},
			{c.outer, 0, 20, 30, 29, 7}}}
		p.smooth()
		if len(p.spans) != c.left {
			t.Errorf("%s: %+v", name, p.spans)
		}
		if s := p.spans[0]; c.left == 1 && (s.end != 30 || s.last != 29 || s.allocs != 12+c.allocs) {
			t.Errorf("%s: %+v", name, s)
		}
	}
	ends := &phases{spans: []phaseSpan{{b, 0, 0, 10, 9, 1}, {f, 0, 10, 20, 19, 5},
		{b, 0, 20, 30, 29, 1}}}
	if ends.smooth(); len(ends.spans) != 3 {
		t.Errorf("at the ends: %+v", ends.spans)
	}
}

// TestClockBetweenSamples: times are those of every 64th entry, and between them by their share.
func TestClockBetweenSamples(t *testing.T) {
	l := &Ledger{FirstUS: 1e6, LastUS: 8e6, times: []int64{1e6, 3e6}}
	for at, want := range map[int32]float64{-1: 0, 0: 0, 32: 1, 63: 2 * 63.0 / 64, 64: 2, 96: 4.5,
		127: 2 + 5*63.0/64, 128: 7, 9999: 7} {
		if got := l.SecondsAt(at); got != want {
			t.Errorf("entry %d: %g s, want %g", at, got, want)
		}
	}
	if got := (&Ledger{FirstUS: 5e6, LastUS: 4e6}).SecondsAt(7); got != 0 {
		t.Errorf("a clock that goes back: %g s", got)
	}
}

// TestCheckpointsFromTheirLeast: what stays of a checkpoint is reported from the least amount that
// is worth it, and copies in several ranks from a fifth of the memory.
func TestCheckpointsFromTheirLeast(t *testing.T) {
	for wall, least := range map[event.Bytes]event.Bytes{0: 32 * event.MiB,
		8 * event.GiB: 32 * event.MiB, 50000: 1000} {
		for kept, told := range map[event.Bytes]bool{least - 1: false, least: true} {
			w := NewWatch(DefaultThresholds(), wall)
			got := w.Checkpoint(1, Checkpoint{Bytes: kept, Kept: kept, File: "a.py"})
			if (len(got) > 0) != told {
				t.Errorf("%d bytes of %d: %+v", kept, wall, got)
			}
		}
	}
	for _, whole := range []string{"", "a.npy"} {
		for each, told := range map[event.Bytes]bool{499: false, 500: true} {
			w := NewWatch(DefaultThresholds(), 5000)
			one := w.Checkpoint(1, Checkpoint{Bytes: each + 9, Whole: whole, Card: 9})
			again := w.Checkpoint(1, Checkpoint{Bytes: 1, Whole: whole})
			if whole != "" {
				w = NewWatch(DefaultThresholds(), 5000)
				one = w.Checkpoint(1, Checkpoint{Bytes: each, Whole: whole})
			}
			two := w.Checkpoint(2, Checkpoint{Bytes: each, Whole: whole})
			if len(one)+len(again) != 0 || (len(two) > 0) != told {
				t.Errorf("%q, %d bytes each of 5000: %+v", whole, each, two)
			}
			unknown := NewWatch(DefaultThresholds(), 0)
			unknown.Checkpoint(1, Checkpoint{Bytes: each, Whole: whole})
			if got := unknown.Checkpoint(2, Checkpoint{Bytes: each, Whole: whole}); len(got) != 0 {
				t.Errorf("%q of no known memory: %+v", whole, got)
			}
		}
	}
	for card, memory := range map[event.Bytes]string{50: "host memory", 51: "the card"} {
		got := Checkpoint{Bytes: 100, Kept: 100, Card: card}.kept("a.py:1")
		if want := "the checkpoint that was loaded at a.py:1 is still held in addition to the model: 100B of " +
			memory; got.Title != want || len(got.Evidence) != 2 {
			t.Errorf("%d of 100 on the card: %q", card, got.Title)
		}
	}
}

// TestShapesOfSeries: what does not rise has no line; a level ends at the last rise; a jump stays
// where the points on both sides keep apart.
func TestShapesOfSeries(t *testing.T) {
	series := func(values ...float64) (points []Point) {
		for i, v := range values {
			points = append(points, Point{Step: int64(10 * i), Value: v})
		}
		return points
	}
	for _, c := range []struct {
		points []Point
		rises  bool
	}{{series(1, 1, 1, 1, 1, 1), false}, {series(2, 2, 1, 1, 2, 2), false},
		{series(1, 2, 3, 4, 5, 6), true},
		{series(6, 5, 4, 3, 2, 1), false}} {
		l, ok := robustLine(c.points)
		if ok != c.rises || ok && (l.slope < 0.0999 || l.slope > 0.1001) {
			t.Errorf("%v: %v, %g a step", c.points, ok, l.slope)
		}
	}
	for at, want := range map[int]int64{0: 0, 1: 0, 2: 10, 3: 20, 4: 0} {
		if got := levelBefore(series(1, 4, 4, 3, 5, 2), at); got != want {
			t.Errorf("before point %d: %d steps, want %d", at, got, want)
		}
	}
	for name, c := range map[string]struct {
		points []Point
		at     int
		stays  bool
	}{
		"three after it":  {series(1, 1, 9, 9, 9), 2, true},
		"two after it":    {series(1, 1, 9, 9), 2, false},
		"a spike":         {series(1, 1, 9, 1, 1), 2, false},
		"a dip before":    {series(9, 9, 1, 1, 9, 9, 9), 4, false},
		"as far as asked": {series(1, 1, 4, 4, 4), 2, false},
		"five around it":  {series(9, 1, 1, 1, 1, 1, 9, 9, 9, 9, 9, 1), 6, true},
		"four around it":  {series(9, 1, 1, 1, 1, 9, 9, 9, 9, 9), 5, false},
	} {
		if got := stays(c.points, c.at, 3); got != c.stays {
			t.Errorf("%s: %v", name, got)
		}
	}
	if got := usualChange(series(0, 10, 20, 120, 130)); got != 1 {
		t.Errorf("%g a step", got)
	}
}

// TestSpikesAreToldOnce: one of a hundred steps.
func TestSpikesAreToldOnce(t *testing.T) {
	for later, told := range map[int64]int{100: 1, 101: 2} {
		s, found := &spikeWatch{}, 0
		for step := int64(1); step <= 40+later; step++ {
			row := event.Step{Step: step, AtBackward: event.GiB}
			if step == 40 || step == 40+later {
				row.AtBackward = 9 * event.GiB
			}
			for _, f := range s.step(row, 10*event.GiB, DefaultThresholds()) {
				if f.Kind == "spike" {
					found++
				}
			}
		}
		if found != told {
			t.Errorf("another %d steps later: %d told", later, found)
		}
	}
}

// TestFailuresThatAreKept: of very many the first ones and the last.
func TestFailuresThatAreKept(t *testing.T) {
	for n, want := range map[int]int{99: 99, 100: 100, 101: 100, 5000: 100} {
		l := &Ledger{}
		for i := range n {
			l.OOMs = append(l.OOMs, OOMEvent{At: int32(i)})
		}
		got := l.explainOOMs(0)
		if len(got) != want || got[len(got)-1].At != int32(n-1) || got[50].At != 50 || len(l.OOMs) != n {
			t.Errorf("%d failures: %d kept, the last at %d", n, len(got), got[len(got)-1].At)
		}
	}
}
