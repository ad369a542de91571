package trial

import (
	"math"
	"testing"
)

// TestThin: a short history is kept whole, a long one loses points at even distances and keeps its
// ends.
func TestThin(t *testing.T) {
	for n, want := range map[int]int{0: 0, 1: 1, 2: 2, 499: 499, 500: 251, 501: 251, 1000: 334,
		5000: 456, 100_000: 499} {
		var points []Point
		for i := range n {
			points = append(points, Point{Value: float64(i)})
		}
		kept := thin(points)
		if len(kept) != want {
			t.Errorf("of %d points %d are kept, want %d", n, len(kept), want)
		}
		if n > 0 && (kept[0].Value != 0 || kept[len(kept)-1].Value != float64(n-1)) {
			t.Errorf("%d points: the ends are %v and %v", n, kept[0], kept[len(kept)-1])
		}
		every := float64(n/longestHistory + 1)
		for i, p := range kept {
			if i < len(kept)-1 && p.Value != float64(i)*every {
				t.Errorf("%d points: the kept point %d is %v, want %v", n, i, p.Value, float64(i)*every)
				break
			}
		}
	}
	odd := thin([]Point{{Value: 1}, {Value: math.NaN()}, {Value: math.Inf(1)}, {Value: 2},
		{Value: math.Inf(-1)}})
	if len(odd) != 2 || odd[0].Value != 1 || odd[1].Value != 2 {
		t.Errorf("JSON cannot hold %v", odd)
	}
}
