package order

import (
	"slices"
	"testing"
)

// TestPartsShareOutTheRows: parts that reach from 0 to 1 hold every row once, each has its share of
// every stretch, and blocks of any size see the same rows.
func TestPartsShareOutTheRows(t *testing.T) {
	for _, all := range []int64{1, 7, 999, 1000, 1001, 25_431} {
		held := make([]int, all)
		for _, p := range []Part{{0, 0.8, 4}, {0.8, 0.9, 4}, {0.9, 1, 4}} {
			whole := p.Rows(2, 0, all, all, nil)
			if want := (p.To - p.From) * float64(all); float64(len(whole)) < want-2 ||
				float64(len(whole)) > want+2 {
				t.Errorf("%v of %d rows: %d", p, all, len(whole))
			}
			var pieces []int32
			for at := int64(0); at < all; at += 333 {
				for _, row := range p.Rows(2, at, min(333, all-at), all, nil) {
					pieces = append(pieces, int32(at)+row)
				}
			}
			if !slices.Equal(whole, pieces) {
				t.Errorf("%v of %d rows: blocks of 333 rows see other ones", p, all)
			}
			for _, row := range whole {
				held[row]++
			}
		}
		if i := slices.IndexFunc(held, func(n int) bool { return n != 1 }); i >= 0 {
			t.Errorf("row %d of %d is in %d parts", i, all, held[i])
		}
	}
	if (Part{0.5, 0.5, 0}).Check() == nil || (Part{0, 1.1, 0}).Check() == nil {
		t.Error("an impossible part is taken")
	}
	one := Part{0, 0.5, 4}.Rows(0, 0, 1000, 1000, nil)
	if slices.Equal(one, Part{0, 0.5, 5}.Rows(0, 0, 1000, 1000, nil)) {
		t.Error("another seed makes the same part")
	}
}
