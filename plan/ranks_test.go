package plan

import (
	"slices"
	"testing"

	"memroom/event"
)

// TestOfRanks: ranks between two that agree are like them, between two that differ like the larger.
func TestOfRanks(t *testing.T) {
	answer := func(n event.Bytes) *Prediction {
		return &Prediction{AllocatedPeak: n, ReservedPeak: n, DevicePeak: n}
	}
	for _, c := range []struct {
		name  string
		peaks map[int]event.Bytes
		want  [][3]int // first, last, peak
		most  event.Bytes
	}{
		{"all alike", map[int]event.Bytes{0: 5, 3: 5, 7: 5}, [][3]int{{0, 7, 5}}, 5},
		{"the first saves", map[int]event.Bytes{0: 9, 1: 5, 3: 5, 7: 5},
			[][3]int{{0, 0, 9}, {1, 7, 5}}, 9},
		{"a pipeline", map[int]event.Bytes{0: 6, 1: 4, 3: 4, 5: 4, 6: 4, 7: 9},
			[][3]int{{0, 0, 6}, {1, 6, 4}, {7, 7, 9}}, 9},
		{"not all rehearsed", map[int]event.Bytes{0: 4, 4: 8, 9: 6},
			[][3]int{{0, 0, 4}, {1, 8, 8}, {9, 9, 6}}, 8},
		{"only the first could be", map[int]event.Bytes{0: 4}, [][3]int{{0, 7, 4}}, 4},
	} {
		answers, ranks := map[int]*Prediction{}, 8
		for n, peak := range c.peaks {
			answers[n] = answer(peak)
			ranks = max(ranks, n+1)
		}
		p := OfRanks(answers, ranks)
		var got [][3]int
		for _, r := range p.Ranks {
			got = append(got, [3]int{r.First, r.Last, int(r.Device)})
		}
		if !slices.Equal(got, c.want) || p.DevicePeak != c.most {
			t.Errorf("%s: %v, at most %d; want %v and %d", c.name, got, p.DevicePeak, c.want, c.most)
		}
	}
}
