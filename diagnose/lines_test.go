package diagnose

import (
	"math"
	"strings"
	"testing"

	"memroom/event"
)

// course makes points of a function of the step.
func course(n int, value func(step int) float64) []Point {
	points := make([]Point, n)
	for i := range points {
		points[i] = Point{int64(i), value(i)}
	}
	return points
}

// wobble is noise that is the same in every run: -1, 0 and 1 in turn.
func wobble(i int) float64 { return float64(i*7%3 - 1) }

// TestJumpsBetweenLevels: one jump is taken out whatever level it starts from, a spike and a slope
// stay, and where jumps are many they stay too.
func TestJumpsBetweenLevels(t *testing.T) {
	for name, c := range map[string]struct {
		at     func(int) float64
		before float64 // what the first point becomes
	}{
		"a jump": {func(i int) float64 {
			if i < 30 {
				return 1000 + wobble(i)
			}
			return 2000 + wobble(i)
		}, 2000}, // lifted to the later level
		"a spike": {func(i int) float64 {
			if i == 30 {
				return 2000
			}
			return 1000 + wobble(i)
		}, 1000},
		"a slope": {func(i int) float64 { return 1000 + 10*float64(i) }, 1000},
		"many jumps": {func(i int) float64 {
			return 1000 + 500*float64(i/4) + wobble(i)
		}, 1000},
	} {
		points := course(60, c.at)
		got := withoutJumps(points)
		if math.Abs(got[0].Value-c.before) > 10 || math.Abs(got[59].Value-points[59].Value) > 1e-9 {
			t.Errorf("%s: from %v to %v, want from about %v", name, got[0].Value, got[59].Value,
				c.before)
		}
		if points[0].Value != c.at(0) {
			t.Errorf("%s: the points that were given were changed", name)
		}
	}
}

// TestLinesThroughNoise: the slope is found in spite of outliers, and what does not rise has no
// line.
func TestLinesThroughNoise(t *testing.T) {
	for name, c := range map[string]struct {
		at    func(int) float64
		slope float64
		rises bool
	}{
		"plain": {func(i int) float64 { return 500 + 3*float64(i) }, 3, true},
		"noisy": {func(i int) float64 { return 500 + 3*float64(i) + 5*wobble(i) }, 3, true},
		"level": {func(int) float64 { return 500 }, 0, false},
		"falls": {func(i int) float64 { return 500 - 3*float64(i) }, 0, false},
		"outliers": {func(i int) float64 {
			if i%17 == 9 {
				return 5000
			}
			return 500 + 3*float64(i)
		}, 3, true},
	} {
		l, rises := robustLine(course(90, c.at))
		if rises != c.rises || rises && math.Abs(l.slope-c.slope) > 0.15 {
			t.Errorf("%s: rises %v by %v, want %v by %v", name, rises, l.slope, c.rises, c.slope)
		}
		if name == "plain" && math.Abs(l.at(200)-1100) > 1 {
			t.Errorf("at 200 it is %v", l.at(200))
		}
	}
}

// TestUnusedCard: after a minute, while host memory is nearly out, with what is really free on it.
func TestUnusedCard(t *testing.T) {
	const gib = event.GiB
	idle := event.DeviceSample{UUID: "a", Name: "L4", Total: 24 * gib, Used: 2 * gib}
	short := &event.MachineSample{Total: 100 * gib, Available: 5 * gib}
	for name, c := range map[string]struct {
		machine *event.MachineSample
		change  func(d *event.DeviceSample)
		ms      int64
		found   bool
	}{
		"idle": {short, nil, 60_000, true}, "not long": {short, nil, 59_999, false},
		"enough memory": {&event.MachineSample{Total: 100 * gib, Available: 50 * gib}, nil, 60_000, false},
		"busy":          {short, func(d *event.DeviceSample) { d.Utilisation = 2 }, 60_000, false},
		"hardly busy":   {short, func(d *event.DeviceSample) { d.Utilisation = 1 }, 60_000, true},
		"used by us":    {short, func(d *event.DeviceSample) { d.Ours = 1 }, 60_000, false},
		"others have it": {short, func(d *event.DeviceSample) { d.Others = 12*gib + 1 }, 60_000,
			false},
		"others have half": {short, func(d *event.DeviceSample) { d.Others = 12 * gib }, 60_000,
			true},
		"nothing known": {nil, nil, 60_000, false},
	} {
		d := idle
		if c.change != nil {
			c.change(&d)
		}
		h := &hostWatch{idle: map[string]int64{}}
		s := event.Sample{AtMS: 1000, Devices: []event.DeviceSample{d}, Machine: c.machine}
		if h.unusedCard(s, DefaultThresholds()) != nil {
			t.Errorf("%s: at once", name)
		}
		s.AtMS += c.ms
		f := h.unusedCard(s, DefaultThresholds())
		if (f != nil) != c.found {
			t.Errorf("%s: %+v", name, f)
		}
		if f != nil && (f.Bytes != 22*gib || !strings.Contains(f.Title, "22GiB are free") ||
			!strings.Contains(f.Evidence[0], "60 s")) {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

// TestOptimizerScopes: a scope has a beginning and an end; what is cut off on either side is none.
func TestOptimizerScopes(t *testing.T) {
	note := func(name string, begin bool, at int32) Annotation {
		return Annotation{Name: name, Begin: begin, At: at}
	}
	l := &Ledger{Notes: []Annotation{note("Optimizer.step#SGD", false, 2), // its beginning was cut
		note("Optimizer.step#SGD", true, 0), note("forward", true, 4),
		note("Optimizer.step#SGD", false, 9), note("Optimizer.step#SGD", false, 11),
		note("Optimizer.step#Adam", true, 20), note("Optimizer.step#Adam", false, 25),
		note("Optimizer.step#Adam", true, 30)}}
	got := l.optimizerScopes()
	if len(got) != 2 || got[0] != [2]int32{0, 9} || got[1] != [2]int32{20, 25} {
		t.Errorf("%v", got)
	}
}

// TestSizesThatNobodyMeans: sixteen times the card is a mistake, and what no machine has is one
