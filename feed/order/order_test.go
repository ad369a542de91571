package order

import (
	"fmt"
	"math"
	"strings"
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

// TestTheOrderStaysTheSame: whoever resumes a run with a later memroom gets the rows in the order
// in which they began. Known answers of version 0.1.
func TestTheOrderStaysTheSame(t *testing.T) {
	for _, c := range []struct {
		n    uint64
		key  []uint64
		want string
	}{
		{10, []uint64{1, 2}, "[8 0 7 9 4 2 6 1 5 3]"},
		{17, []uint64{0}, "[5 12 11 2 1 3 13 0 15 10 7 9 14 6 4 8 16]"},
		{5, nil, "[1 2 3 4 0]"},
	} {
		p := New(c.n, c.key...)
		if got := fmt.Sprint(p.All(0, int64(c.n), nil)); got != c.want {
			t.Errorf("%d under %v: %s, want %s", c.n, c.key, got, c.want)
		}
	}
	large := New(1<<40, 42, 7)
	got := fmt.Sprint(large.At(0), large.At(1), large.At(1<<40-1))
	if want := "540352130808 264752971508 77358499596"; got != want {
		t.Errorf("of a large one: %s, want %s", got, want)
	}
	e := NewEpoch(someBlocks()[:12], 4000, true, 5, 1)
	var list []string
	for w, info := range e.Windows {
		list = append(list, fmt.Sprint(info.Blocks, e.Places(w, 0, 4, nil)))
	}
	want := "[11 4 8] [28 63 126 102] [10 5 7] [106 62 122 67] [2 1 6] [140 116 136 131] " +
		"[0 3 9] [2 125 118 93]"
	if got := strings.Join(list, " "); got != want {
		t.Errorf("of an epoch: %s, want %s", got, want)
	}
}

// TestManyAtOnceAreTheSame checks that All appends what At returns, from any position on.
func TestManyAtOnceAreTheSame(t *testing.T) {
	for _, n := range []uint64{0, 1, 2, 3, 5, 16, 17, 100, 1000} {
		p := New(n, 3, n)
		for _, from := range []uint64{0, n / 3, n} {
			got := p.All(int64(from), int64(n), []int64{-1, -2})
			if len(got) != int(n-from)+2 || got[0] != -1 || got[1] != -2 {
				t.Fatalf("n=%d from %d: %v", n, from, got)
			}
			for i, v := range got[2:] {
				if want := int64(p.At(from + uint64(i))); v != want {
					t.Errorf("n=%d position %d: %d, alone %d", n, i, v, want)
				}
			}
		}
	}
}

// TestWindowsHoldWhatFits: a window is closed before the block that would make it larger than it
// may be; a block that is larger alone gets one of its own.
func TestWindowsHoldWhatFits(t *testing.T) {
	of := func(bytes ...int64) (blocks []Block) {
		for _, b := range bytes {
			blocks = append(blocks, Block{Rows: b / 10, Bytes: b})
		}
		return blocks
	}
	for _, c := range []struct {
		blocks []Block
		want   string
	}{
		{nil, "[]"},
		{of(100), "[{[0] 0 10}]"},
		{of(40, 60, 10), "[{[0 1] 0 10} {[2] 10 1}]"},
		{of(40, 61, 10), "[{[0] 0 4} {[1 2] 4 7}]"},
		{of(10, 500, 10), "[{[0] 0 1} {[1] 1 50} {[2] 51 1}]"},
	} {
		e := NewEpoch(c.blocks, 100, false, 1, 1)
		if got := fmt.Sprint(e.Windows); got != c.want {
			t.Errorf("%v: %s, want %s", c.blocks, got, c.want)
		}
	}
}
