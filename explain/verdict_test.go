package explain

import (
	"slices"
	"strings"
	"testing"

	"memroom/event"
	"memroom/trace"
)

// TestOpenings checks the table of opening words: every row names what it needs, no row appears
// twice, and only the last row matches a crash without evidence.
func TestOpenings(t *testing.T) {
	seen := map[string]bool{}
	for i, row := range openings {
		if row.needs == "" || row.says == "" || row.is == nil {
			t.Errorf("row %d is not whole: %+v", i, row)
		}
		if seen[row.says] || seen[row.needs] {
			t.Errorf("row %d (%s) stands twice", i, row.needs)
		}
		seen[row.says], seen[row.needs] = true, true
		last := i == len(openings)-1
		if row.is(&trace.Crash{Sure: 1, Where: event.WhereUnknown}, judged{}) != last {
			t.Errorf("row %d (%s) without any evidence: the last row alone may be taken", i, row.needs)
		}
	}
}

// TestEveryOpeningIsTaken: for each row, at least one sample begins with its words. Otherwise the
// rows above would always match first.
func TestEveryOpeningIsTaken(t *testing.T) {
	taken := make([]string, len(openings))
	for _, s := range toldLogs(t) {
		row := slices.IndexFunc(openings, func(o opening) bool { return o.is(&s.crash, s.judged) })
		taken[row] = s.file
	}
	for i, file := range taken {
		if last := i == len(openings)-1; file == "" && !last { // every message names what ran out
			t.Errorf("no sample begins with %q (%s)", openings[i].says, openings[i].needs)
		}
	}
}

// TestOpeningsSayNoMoreThanTheLog: the card is named as what ran out only where the message has
// figures of it or is the card's own.
func TestOpeningsSayNoMoreThanTheLog(t *testing.T) {
	size := event.Bytes(event.GiB)
	cases := []struct {
		name   string
		crash  trace.Crash
		judged judged
		card   bool
	}{
		{"figures", trace.Crash{Kind: "torch_device", Requested: &size}, judged{}, true},
		{"a bare status", trace.Crash{Kind: "torch_raw"}, judged{}, false},
		{"a bare status beside figures", trace.Crash{Kind: "torch_raw", Free: &size}, judged{}, true},
		{"a handle", trace.Crash{Kind: "library_status"}, judged{detail: "handle"}, false},
		{"a TPU", trace.Crash{Kind: "jax_exhausted", Text: "9.20G; (0x0x0_HBM0)"}, judged{}, false},
		{"locked host memory", trace.Crash{Kind: "torch_raw"}, judged{detail: "pinned"}, false},
	}
	for _, c := range cases {
		c.crash.Where = event.WhereGPU
		for _, sure := range []float64{0.5, 0.99} {
			c.crash.Sure = sure
			says := subject(&c.crash, c.judged)
			if strings.HasPrefix(says, "The card ") != c.card {
				t.Errorf("%s: %q", c.name, says)
			}
			if strings.Contains(says, "PROBABLY") || c.card &&
				strings.Contains(says, "probably") != (sure < 0.8) {
				t.Errorf("%s, %.2f sure: %q", c.name, sure, says)
			}
		}
	}
}
