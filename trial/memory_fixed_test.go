package trial

import (
	"math/rand/v2"
	"strings"
	"testing"

	"memroom/event"
)

// TestFewTrialsOnACardAreScaledUp: the first trials of a study on a card must not run out because
// an earlier one was small. A rate and a seed are no sizes.
func TestFewTrialsOnACardAreScaledUp(t *testing.T) {
	m := Memory{Fixed: true}
	setting := func(bs, width int64, lr float64, seed int64) Params {
		return Params{{"bs", Whole(bs)}, {"width", Whole(width)}, {"lr", Number(lr)},
			{"seed", Whole(seed)}}
	}
	m.Learn(Observation{Params: setting(32, 768, 1e-3, 1), Bytes: 7 * event.GiB})
	cases := []struct {
		name        string
		p           Params
		least, most event.Bytes
	}{
		{"four times the batch", setting(128, 512, 1e-3, 1), 28 * event.GiB, 32 * event.GiB},
		{"twice the width, whose weights have two sides", setting(32, 1536, 1e-3, 1), 28 * event.GiB,
			32 * event.GiB},
		{"batch and width", setting(64, 1536, 1e-3, 1), 56 * event.GiB, 64 * event.GiB},
		{"another rate and seed", setting(32, 768, 0.9, 999), 7 * event.GiB, 11 * event.GiB},
		{"smaller", setting(16, 512, 1e-3, 1), 7 * event.GiB, 11 * event.GiB},
	}
	for _, c := range cases {
		if f := m.Forecast(c.p); f.Bytes < c.least || f.Bytes > c.most {
			t.Errorf("%s: %v (%s), want %v to %v", c.name, f.Bytes, f.Why, c.least, c.most)
		}
	}
}

// TestOnACardLargerNeverGetsLess checks that a larger setting is never forecast below what a
// smaller one took or asked for, whatever slope a few points suggest.
func TestOnACardLargerNeverGetsLess(t *testing.T) {
	m := Memory{Fixed: true}
	for i, o := range []Observation{
		{Params: bsParams(32), Bytes: 9 * event.GiB}, {Params: bsParams(64), Bytes: 5 * event.GiB},
		{Params: bsParams(48), Bytes: 6 * event.GiB, AtLeast: true}} {
		m.Learn(o)
		for _, bs := range []int64{96, 128, 4096} {
			if f := m.Forecast(bsParams(bs)); f.Bytes < 9*event.GiB {
				t.Errorf("after %d: batch %d gets %v (%s)", i+1, bs, f.Bytes, f.Why)
			}
		}
	}
}

// TestPeaksOnACardAreLearnt: over whole studies few trials are reserved too little, from the first
// one on, and later not much is reserved in vain.
func TestPeaksOnACardAreLearnt(t *testing.T) {
	for name, shape := range memoryShapes {
		short, n, waste, late := 0, 0, 0.0, 0
		for study := range uint64(20) {
			source := rand.New(rand.NewPCG(study, 7))
			m := Memory{Fixed: true}
			for i := range 60 {
				bs := []float64{8, 16, 32, 64, 128}[source.IntN(5)]
				width := []float64{128, 256, 512}[source.IntN(3)]
				p := Params{{"lr", Number(source.Float64())}, {"bs", Whole(int64(bs))},
					{"width", Whole(int64(width))}}
				peak := event.Bytes(shape(bs, width, "sgd")*(1+0.03*source.Float64())) * event.MiB
				f := m.Forecast(p)
				if f.Known {
					n++
					if f.Bytes < peak {
						short++
					}
				}
				if i >= 30 {
					late++
					waste += float64(f.Bytes)/float64(peak) - 1
				}
				m.Learn(Observation{Params: p, Bytes: peak})
			}
		}
		t.Logf("%s: %d of %d short, %.0f %% in vain later", strings.TrimSpace(name), short, n,
			100*waste/float64(late))
		if short*50 > n || waste/float64(late) > 0.6 {
			t.Errorf("%s: %d of %d trials were given too little, %.0f %% in vain later", name,
				short, n, 100*waste/float64(late))
		}
	}
}
