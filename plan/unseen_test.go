package plan

import (
	"bytes"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"memroom/allocsim"
	"memroom/tape"
)

// TestConvolutionalNetworks compares plans with 51 convolutional and recurrent networks that were
// measured on an H200 after the rules were written (one whose optimizer steps a GradScaler skipped
// is left out): as they are, and with parts of the shipped table taken away, which is how a network
// is planned that was never measured. Run with -v it prints every error.
func TestConvolutionalNetworks(t *testing.T) {
	full, err := readTable(bytes.NewReader(shippedConv))
	if err != nil {
		t.Fatal(err)
	}
	networks := readMeasured(t, filepath.Join("testdata", "vision.jsonl"))
	for _, view := range []struct {
		name string
		// errors allowed, in % of the device peak: the median, and what nine of ten stay below
		median, tenth float64
		without       func(own map[tape.Convolution]bool, c tape.Convolution) bool
	}{
		{"whole table", 0, 0.01, func(map[tape.Convolution]bool,
			tape.Convolution) bool {
			return false
		}},
		{"without the batch size", 0.3, 2.5, func(own map[tape.Convolution]bool,
			c tape.Convolution) bool {
			return own[c]
		}},
		{"without the network's shapes", 2, 6, func(own map[tape.Convolution]bool,
			c tape.Convolution) bool {
			c.X[0] = 0
			return own[c]
		}},
	} {
		t.Run(view.name, func(t *testing.T) {
			var errors []float64
			for _, m := range networks {
				own := ownShapes(t, m)
				if len(own) == 0 && view.median > 0 {
					continue // recurrent: nothing to take away
				}
				off := planWithout(t, m, full,
					func(c tape.Convolution) bool { return view.without(own, c) })
				errors = append(errors, math.Abs(off))
			}
			slices.Sort(errors)
			at := func(q float64) float64 { return errors[int(q*float64(len(errors)-1))] }
			t.Logf("%d networks: median %.2f %%, 90th percentile %.2f %%, worst %.2f %%",
				len(errors), at(0.5), at(0.9), at(1))
			if at(0.5) > view.median || at(0.9) > view.tenth {
				t.Errorf("median %.2f %%, 90th percentile %.2f %%: want at most %.2f and %.2f",
					at(0.5), at(0.9), view.median, view.tenth)
			}
		})
	}
}

// ownShapes are the convolutions of a measured network, with their batch and with none.
func ownShapes(t *testing.T, m *measured) map[tape.Convolution]bool {
	t.Helper()
	m.Config = m.Case.Config
	m.Config["model_type"] = m.Case.Family
	shapes, err := m.setup().Shapes()
	if err != nil {
		t.Fatal(err)
	}
	own := map[tape.Convolution]bool{}
	for _, c := range shapes.Conv {
		own[c] = true
		c.X[0] = 0
		own[c] = true
	}
	return own
}

// planWithout returns the error of a plan in %, with some convolutions taken from the table. The
// truth must be in the interval.
func planWithout(t *testing.T, m *measured, full *tape.Workspaces,
	without func(tape.Convolution) bool) float64 {
	t.Helper()
	rest := &tape.Workspaces{}
	for c, b := range full.Each {
		if !without(c) {
			rest.AddConv(c, b)
		}
	}
	shipped := shippedTable
	defer func() { shippedTable = shipped }()
	shippedTable = func() *tape.Workspaces { return rest }
	p, err := Predict(m.setup(), Target{Card: DefaultCard(), Alloc: allocsim.DefaultConfig(),
		Torch: "2.11"})
	if err != nil {
		t.Fatalf("%s: %v", m.ID, err)
	}
	truth := m.PeakReserved + int64(DefaultCard().Context+DefaultCard().DNN)
	off := offBy(int64(p.DevicePeak), truth)
	t.Logf("%-32s %+.2f %%, interval %.3f to %.3f of the truth", m.ID, off,
		float64(p.Low)/float64(truth), float64(p.High)/float64(truth))
	if int64(p.Low) > truth || int64(p.High) < truth {
		t.Errorf("%s: the truth %d is outside [%d, %d]", m.ID, truth, p.Low, p.High)
	}
	return off
}
