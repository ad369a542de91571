package order

import (
	"math"
	"testing"
)

func TestPermutationHitsEveryElementOnce(t *testing.T) {
	for _, n := range []uint64{1, 2, 3, 4, 5, 7, 8, 16, 17, 100, 1000, 4097, 70000} {
		p := New(n, 1, n)
		seen := make([]bool, n)
		for i := range n {
			v := p.At(i)
			if v >= n || seen[v] {
				t.Fatalf("n=%d: position %d gives %d, which is outside or was there", n, i, v)
			}
			seen[v] = true
		}
	}
}

func TestKeysGiveOtherPermutations(t *testing.T) {
	const n = 1000
	same := 0
	a, b, c := New(n, 1, 2), New(n, 1, 3), New(n, 2, 1)
	for i := range uint64(n) {
		if a.At(i) == b.At(i) || a.At(i) == c.At(i) {
			same++
		}
	}
	if same > 20 { // 2 are expected
		t.Errorf("%d of %d positions equal under other keys", same, n)
	}
}

// TestEachElementComesEverywhere counts where one element lands under many keys: a permutation that
// mixes badly has favourite places.
func TestEachElementComesEverywhere(t *testing.T) {
	const n, keys = 10, 20000
	for _, element := range []uint64{0, 3, 9} {
		var counts [n]float64
		for k := range uint64(keys) {
			p := New(n, k)
			counts[p.At(element)]++
		}
		chi := 0.0
		for _, c := range counts {
			chi += (c - keys/n) * (c - keys/n) / (keys / n)
		}
		if chi > 40 { // 9 degrees of freedom: above 40 once in a hundred thousand
			t.Errorf("element %d: chi-square %.1f, %v", element, chi, counts)
		}
	}
}

func someBlocks() []Block {
	var blocks []Block
	for i := range 200 {
		blocks = append(blocks, Block{Rows: int64(50 + i%7), Bytes: int64(1000 + 13*(i%11))})
	}
	return blocks
}

func TestEpochHoldsEveryRowOnce(t *testing.T) {
	blocks := someBlocks()
	for _, shuffle := range []bool{false, true} {
		e := NewEpoch(blocks, 8000, shuffle, 7, 3)
		seen := map[[2]int64]bool{}
		for w, info := range e.Windows {
			for _, place := range e.Places(w, 0, info.Rows, nil) {
				for _, b := range info.Blocks {
					if place < blocks[b].Rows {
						seen[[2]int64{int64(b), place}] = true
						break
					}
					place -= blocks[b].Rows
				}
			}
			if e.Find(info.First) != w || e.Find(info.First+info.Rows-1) != w {
				t.Errorf("window %d is not found by its rows", w)
			}
		}
		if int64(len(seen)) != e.Rows() {
			t.Errorf("shuffle %v: %d different rows of %d", shuffle, len(seen), e.Rows())
		}
	}
}

func TestPartOfAWindowEqualsTheWhole(t *testing.T) {
	e := NewEpoch(someBlocks(), 8000, true, 7, 3)
	all := e.Places(2, 0, e.Windows[2].Rows, nil)
	part := e.Places(2, 100, 120, nil)
	for i, v := range part {
		if all[100+i] != v {
			t.Fatalf("position %d: %d in the whole, %d alone", 100+i, all[100+i], v)
		}
	}
}

func TestShuffledOrderForgetsTheData(t *testing.T) {
	var blocks []Block
	for range 1000 {
		blocks = append(blocks, Block{Rows: 10, Bytes: 100})
	}
	e := NewEpoch(blocks, 1600, true, 1, 0)
	var n, sx, sy, sxx, syy, sxy float64
	for w, info := range e.Windows {
		for i, place := range e.Places(w, 0, info.Rows, nil) {
			x := float64(info.First + int64(i))
			y := float64(info.Blocks[place/10])*10 + float64(place%10)
			n, sx, sy, sxx, syy, sxy = n+1, sx+x, sy+y, sxx+x*x, syy+y*y, sxy+x*y
		}
	}
	r := (n*sxy - sx*sy) / math.Sqrt((n*sxx-sx*sx)*(n*syy-sy*sy))
	if math.Abs(r) > 0.15 {
		t.Errorf("correlation with the data's own order is %.3f", r)
	}
}
