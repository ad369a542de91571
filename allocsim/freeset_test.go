package allocsim

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestFreeSetIsAnOrderedSet checks that the set has the same content and order as a sorted list,
// over several leaves, while keys come and go.
func TestFreeSetIsAnOrderedSet(t *testing.T) {
	random := rand.New(rand.NewPCG(8, 0))
	var set freeSet
	var list []uint64 // the addresses in it, ascending
	check := func() {
		t.Helper()
		var got []uint64
		set.each(func(k *freeKey) { got = append(got, k.addr) })
		if !slices.Equal(got, list) {
			t.Fatalf("%v, want %v", got, list)
		}
		for addr := uint64(0); addr < 2000; addr += 7 {
			at, found := slices.BinarySearch(list, addr)
			c := set.seek(byAddr(addr))
			k := set.at(c)
			if (k == nil) != (at == len(list)) || k != nil && k.addr != list[at] {
				t.Fatalf("the first from %d is %v", addr, k)
			}
			if k != nil {
				next := set.at(set.after(c))
				if (next == nil) != (at+1 == len(list)) || next != nil && next.addr != list[at+1] {
					t.Fatalf("after %d comes %v", k.addr, next)
				}
			}
			var below []uint64
			set.eachBelow(c, func(k *freeKey) bool {
				below = append(below, k.addr)
				return len(below) < 100
			})
			want := slices.Clone(list[max(0, at-100):at])
			if slices.Reverse(want); !slices.Equal(below, want) {
				t.Fatalf("below %d: %v, want %v", addr, below, want)
			}
			last, _ := set.below(addr)
			if (last == nil) != (at == 0) || last != nil && last.addr != list[at-1] {
				t.Fatalf("the last below %d is %v", addr, last)
			}
			if floor, _ := set.floor(addr); found && (floor == nil || floor.addr != addr) ||
				!found && floor != last {
				t.Fatalf("the last up to %d is %v", addr, floor)
			}
		}
	}
	for step := range 3000 {
		addr := uint64(random.IntN(2000))
		at, found := slices.BinarySearch(list, addr)
		grow := step < 1200 || step > 2200 && step%2 == 0
		switch {
		case grow && !found:
			set.insert(freeKey{addr: addr, block: blockRef(addr + 1)})
			list = slices.Insert(list, at, addr)
		case !grow && len(list) > 0:
			at = min(at, len(list)-1)
			gone := list[at]
			if passed := set.remove(&freeKey{addr: gone, block: blockRef(gone + 1)}); passed != 0 {
				t.Fatalf("%d were passed over", passed)
			}
			list = slices.Delete(list, at, at+1)
		}
		if step%150 == 0 {
			check()
		}
	}
	check()
	set.remove(&freeKey{addr: 5000, block: 1}) // not there: nothing goes
	check()
}

// TestEqualKeysOfAFreeSet: the one of the block goes, the others are passed over.
func TestEqualKeysOfAFreeSet(t *testing.T) {
	var set freeSet
	for block := blockRef(1); block <= 5; block++ {
		set.insert(freeKey{size: 512, addr: 7, block: block})
	}
	seen := 0
	for block := blockRef(1); block <= 5; block++ {
		seen += set.remove(&freeKey{size: 512, addr: 7, block: block})
		set.each(func(k *freeKey) {
			if k.block == block {
				t.Errorf("block %d is still there", block)
			}
		})
	}
	if seen != 10 { // each new one stands first: 4, 3, 2, 1 and 0 are passed
		t.Errorf("%d were passed over", seen)
	}
	for _, c := range []struct {
		a, b freeKey
		want bool
	}{
		{freeKey{size: 1, rank: 9, addr: 9}, freeKey{size: 2}, true},
		{freeKey{size: 2}, freeKey{size: 1, rank: 9, addr: 9}, false},
		{freeKey{rank: 1, addr: 9}, freeKey{rank: 2}, true},
		{freeKey{rank: 2}, freeKey{rank: 1, addr: 9}, false},
		{freeKey{addr: 1}, freeKey{addr: 2}, true}, {freeKey{addr: 2}, freeKey{addr: 2}, false},
	} {
		if got := c.a.less(&c.b); got != c.want {
			t.Errorf("%+v before %+v: %v", c.a, c.b, got)
		}
	}
}
