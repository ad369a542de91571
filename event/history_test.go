package event

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestHistoryGivesBackWhatItGot(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var h History
	var want []Entry
	for i := range 5*chunkEntries + 17 {
		e := Entry{Kind: Kind(random.IntN(int(KindOOM) + 1)),
			Addr:   random.Uint64() >> random.IntN(64) &^ 511,
			Size:   random.Int64() >> random.IntN(63),
			TimeUS: int64(i) * 3, Stack: StackID(random.Uint32N(4)), Stream: random.Uint64N(3)}
		switch random.IntN(8) {
		case 0:
			e.Addr |= 1 // no multiple of 512
		case 1:
			e.Pool = PoolID{random.Uint64(), 7}
		case 2:
			e.DeviceFree = math.MaxInt64
		case 3:
			if len(want) > 0 {
				kind := e.Kind
				e = want[len(want)-1]
				e.Kind = kind
			}
		case 4:
			e.Size, e.TimeUS = math.MinInt64, math.MinInt64
		}
		want = append(want, e)
		h.Append(&e)
	}
	if h.Len() != len(want) {
		t.Fatalf("%d entries, want %d", h.Len(), len(want))
	}
	next := 0
	for i, e := range h.All() {
		if i != next || *e != want[i] {
			t.Fatalf("entry %d (expected %d): got %+v, want %+v", i, next, *e, want[i])
		}
		next++
	}
	next = len(want) - 1
	for i, e := range h.Backward() {
		if i != next || *e != want[i] {
			t.Fatalf("backwards, entry %d (expected %d): got %+v, want %+v", i, next, *e, want[i])
		}
		next--
	}
	for _, i := range []int{0, 1, chunkEntries - 1, chunkEntries, len(want) - 1} {
		if got := h.At(i); got != want[i] {
			t.Errorf("At(%d) = %+v, want %+v", i, got, want[i])
		}
	}
}

func TestEmptyHistory(t *testing.T) {
	var h History
	for range h.All() {
		t.Error("an entry in an empty history")
	}
	for range h.Backward() {
		t.Error("an entry in an empty history")
	}
}

// TestFinderReadsAChunkOnce: neighbours come from the chunk that was read last.
func TestFinderReadsAChunkOnce(t *testing.T) {
	var h History
	for i := range 3*chunkEntries + 5 {
		h.Append(&Entry{Addr: uint64(i) * 512, Size: int64(i), TimeUS: int64(i)})
	}
	f := h.Find()
	for _, c := range []struct{ at, reads int }{{0, 1}, {1, 1}, {chunkEntries - 1, 1},
		{chunkEntries, 2}, {chunkEntries + 9, 2}, {3, 3}, {3*chunkEntries + 4, 4}, {3 * chunkEntries, 4}} {
		if got := f.At(c.at); got.Size != int64(c.at) || got.Addr != uint64(c.at)*512 ||
			f.Reads != c.reads {
			t.Errorf("At(%d) = %+v after %d reads, want %d", c.at, got, f.Reads, c.reads)
		}
	}
}
