package report

import (
	"testing"

	"memroom/event"
	"memroom/plan"
)

// TestPlanCells: equal parts differ by one cell at most, none of half a cell is lost, and the bar
// is not longer than its room.
func TestPlanCells(t *testing.T) {
	for _, c := range []struct {
		parts map[string]event.Bytes
		whole event.Bytes
		want  string
	}{
		{map[string]event.Bytes{"weights": 330, "gradients": 330, "optimizer": 660, "context": 750},
			143000, "x"},
		{map[string]event.Bytes{"weights": 1600, "gradients": 1600, "optimizer": 3200,
			"context": 750}, 72000, "WWGOOOx"},
		{map[string]event.Bytes{"weights": 600, "gradients": 600, "optimizer": 1200,
			"temporary": 600, "cache": 500, "context": 750}, 72000, "WGOtcx"},
		{map[string]event.Bytes{"weights": 72000}, 36000, ""},
		{nil, 0, ""},
	} {
		got := ""
		total := 0
		for i, n := range planCells(&plan.Prediction{Categories: c.parts}, c.whole, 72) {
			total += n
			for range n {
				got += planCategories[i].letter
			}
		}
		if total > 72 {
			t.Errorf("%v: %d cells", c.parts, total)
		}
		if c.want != "" && got != c.want {
			t.Errorf("%v of %d: %q, want %q", c.parts, c.whole, got, c.want)
		}
	}
}

func TestPlanReach(t *testing.T) {
	number := func(n int64) *int64 { return &n }
	for want, p := range map[string]plan.Prediction{
		"": {},
		"largest batch 3, longest sequence 682 at this batch": {MaxBatch: number(3),
			MaxSeq: number(682)},
		"not even batch 1 fits": {MaxBatch: number(0),
			MaxSeq: number(0)},
		"not even batch 1 fits; sequences of up to 12 fit at this batch": {MaxBatch: number(0),
			MaxSeq: number(12)},
		"largest batch 3; at this batch no sequence fits": {MaxBatch: number(3),
			MaxSeq: number(0)},
		"largest batch 7": {MaxBatch: number(7)},
	} {
		if got := planReach(&p); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
