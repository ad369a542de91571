package allocsim

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"memroom/event"
)

// model returns an allocator with settings, and a request that must fit.
func model(t *testing.T, conf string, o Options) (a *Allocator, malloc func(size int64) Block) {
	t.Helper()
	var err error
	if o.Config, err = ParseConf(conf); err != nil {
		t.Fatal(err)
	}
	if a, err = New(o); err != nil {
		t.Fatal(err)
	}
	return a, func(size int64) Block {
		t.Helper()
		b, err := a.Malloc(size, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Check(); err != nil {
			t.Fatal(err)
		}
		return b
	}
}

// TestHolesBeforeTheTail: of blocks in expandable segments one that cannot grow is preferred to the
// one in front of unmapped pages, also where it is larger.
func TestHolesBeforeTheTail(t *testing.T) {
	a, malloc := model(t, "expandable_segments:True", Options{DeviceTotal: 8 * event.GiB})
	blocks := []Block{malloc(30 * mib), malloc(4 * mib), malloc(24 * mib), malloc(4 * mib)}
	hole, tail := a.Addr(blocks[0]), a.Addr(blocks[3])+uint64(4*mib)
	if end := int64(a.segs[0].base) + a.reserved; int64(tail) >= end {
		t.Fatal("nothing is free at the end: this tests nothing")
	}
	a.Free(blocks[0]) // 30 MiB; at the end are 18 MiB that can grow
	for _, size := range []int64{10 * mib, 19 * mib, 2 * mib} {
		b := malloc(size)
		if got := a.Addr(b); got != hole && size != 2*mib || size == 2*mib && got >= tail {
			t.Errorf("%d MiB at %d MiB behind the hole", size/mib, int64(got-hole)/mib)
		}
		a.Free(b)
	}
	if b := malloc(31 * mib); a.Addr(b) != tail {
		t.Errorf("31 MiB are not at the end: %#x, want %#x", a.Addr(b), tail)
	}
}

// TestExpandableSwitchedOff: blocks of expandable segments are passed over, all of them; a block of
// cudaMalloc behind them is taken.
func TestExpandableSwitchedOff(t *testing.T) {
	for _, own := range []bool{false, true} {
		a, malloc := model(t, "expandable_segments:True", Options{DeviceTotal: 8 * event.GiB})
		var held []Block
		for _, size := range []int64{22, 1, 25, 1, 28, 1} {
			held = append(held, malloc(size*mib+512))
		}
		a.config.Expandable = false
		var whole uint64
		if own {
			b := malloc(60 * mib)
			whole = a.Addr(b)
			a.Free(b)
		}
		for i := 0; i < len(held); i += 2 {
			a.Free(held[i])
		}
		reserved := a.reserved
		b := malloc(21 * mib)
		if expandable := a.segs[a.blocks[b.ref].seg].expandable; expandable ||
			own && a.Addr(b) != whole || own != (a.reserved == reserved) {
			t.Errorf("with a block of its own %v: at %#x, expandable %v, %d MiB more", own, a.Addr(b),
				expandable, (a.reserved-reserved)/mib)
		}
	}
}

// TestOldestGarbageGoes: free segments that were not used for longer than the average, until enough
// went; those of expandable segments stay.
func TestOldestGarbageGoes(t *testing.T) {
	for name, c := range map[string]struct {
		threshold float64
		ages      []int64 // searches since each of the segments of 100 MiB was freed
		want      string  // that are left, by number
	}{
		"below the threshold": {0.5, []int64{9, 1, 1}, "0 1 2"},
		"exactly at it":       {0.3, []int64{9, 1, 1}, "0 1 2"},
		"the oldest is enough": {0.29, []int64{9, 1, 1},
			"1 2"},
		"two rounds":  {0.11, []int64{9, 1, 3}, "1"},
		"all of them": {0.0001, []int64{9, 1, 3, 4}, ""},
		"as old as each other": {0.25, []int64{4, 4, 4},
			""}, // all of a round go, though one would be enough
		"above the average": {0.2, []int64{10, 8, 1, 1}, "2 3"},
	} {
		a, malloc := model(t, fmt.Sprintf("garbage_collection_threshold:%g", c.threshold),
			Options{Limit: 1000 * event.MiB})
		var held []Block
		var addrs []uint64
		for range c.ages {
			b := malloc(100 * mib)
			held, addrs = append(held, b), append(addrs, a.Addr(b))
		}
		p := &a.pools[0][large]
		for i, b := range held {
			p.searches = 100 - c.ages[i]
			a.Free(b)
		}
		p.searches = 100
		blocks, sum := a.wholeBlocks(p)
		want := int64(0)
		for _, age := range c.ages {
			want += age
		}
		if len(blocks) != len(held) || sum != want {
			t.Errorf("%s: %d blocks of %d searches, want %d of %d", name, len(blocks), sum, len(held),
				want)
		}
		a.collectGarbage()
		var left []string
		for _, s := range a.Segments() {
			left = append(left, fmt.Sprint(slices.Index(addrs, s.Addr)))
		}
		slices.Sort(left)
		if got := strings.Join(left, " "); got != c.want {
			t.Errorf("%s: %s are left, want %s", name, got, c.want)
		}
	}
	a, malloc := model(t, "expandable_segments:True,garbage_collection_threshold:0.1",
		Options{Limit: event.GiB, DeviceTotal: 8 * event.GiB})
	b := malloc(500 * mib)
	a.Free(b)
	if a.collectGarbage(); a.reserved != 500*mib { // it ends and releases nothing
		t.Errorf("%d MiB are left", a.reserved/mib)
	}
	a.config.Expandable = false
	own := malloc(300 * mib)
	a.Free(own)
	if a.collectGarbage(); a.reserved != 500*mib {
		t.Errorf("%d MiB are left of both kinds", a.reserved/mib)
	}
}

// TestEmptyingTakesEverySegment checks that EmptyCache releases the free segments of all streams
// and both pools, and that emptyable predicts them.
func TestEmptyingTakesEverySegment(t *testing.T) {
	for _, conf := range []string{"", "expandable_segments:True"} {
		a, _ := model(t, conf, Options{DeviceTotal: 8 * event.GiB})
		var live []Block
		for stream := range uint64(2) {
			for _, size := range []int64{512, 40 * mib, 512, 60 * mib, 30 * mib} {
				b, err := a.Malloc(size, stream)
				if err != nil {
					t.Fatal(err)
				}
				live = append(live, b)
			}
		}
		for i, b := range live {
			if i%5 == 4 {
				continue // one of each stream stays in use
			}
			if i%5 == 1 {
				a.FreePending(b) // emptying waits for it
			} else {
				a.Free(b)
			}
		}
		for _, ref := range slices.Clone(a.pending) {
			a.FreeDone(Block{ref, a.blocks[ref].gen})
		}
		will := int64(0)
		for _, s := range a.emptyable() {
			will += s.Size
		}
		before := a.reserved
		a.EmptyCache()
		if err := a.Check(); err != nil {
			t.Error(err)
		}
		want := 2 * 30 * mib
		if conf != "" {
			want = 2 * 40 * mib // pages of 20 MiB
		}
		if a.reserved != want || before-a.reserved != will || a.stats.SyncAllStreams != 1 {
			t.Errorf("%q: %d MiB left, %d went, %d were told", conf, a.reserved/mib,
				(before-a.reserved)/mib, will/mib)
		}
	}
}

// TestBlocksAroundAnAddress: the free one that holds all of it, in any pool; the index follows what
// is taken and freed later.
func TestBlocksAroundAnAddress(t *testing.T) {
	a, malloc := model(t, "", Options{})
	x, y := malloc(40*mib), malloc(60*mib)
	z, w := malloc(512), malloc(30*mib)
	for _, b := range []Block{x, y, z} {
		a.Free(b)
	}
	at := a.Addr(x)
	for name, c := range map[string]struct {
		addr uint64
		size int64
		want bool
	}{
		"all of it":       {at, 40 * mib, true},
		"its last byte":   {at + uint64(40*mib) - 1, 1, true},
		"behind it":       {at + uint64(40*mib) - 1, 2, false},
		"before all":      {1, 1, false},
		"a block in use":  {a.Addr(w), 1, false},
		"another segment": {a.Addr(y), 60 * mib, true},
		"the small pool":  {a.Addr(z), 2 * mib, true},
	} {
		if got := a.freeAround(c.addr, c.size) != 0; got != c.want {
			t.Errorf("%s: free %v", name, got)
		}
	}
	x = malloc(39 * mib)
	if a.freeAround(a.Addr(x), 1) != 0 {
		t.Error("what was taken since is free")
	}
	if a.Free(w); a.freeAround(a.Addr(w), 30*mib) == 0 {
		t.Error("what was freed since is not")
	}
}

// TestEnlargedAtTheStart: the block at an address grows into the free one behind it, in whichever
// segment; where there is none, or too little of it, nothing changes.
func TestEnlargedAtTheStart(t *testing.T) {
	segments := func() []event.Segment {
		var list []event.Segment
		for i := range uint64(3) {
			base := (i + 1) * 100
			list = append(list, event.Segment{Addr: base, Size: 100, Blocks: []event.Block{
				{Addr: base, Size: 20, State: event.BlockActive}, {Addr: base + 20, Size: 30},
				{Addr: base + 50, Size: 20, State: event.BlockActive},
				{Addr: base + 70, Size: 30, State: event.BlockActive}}})
		}
		return append(list, event.Segment{Addr: 900, Size: 10})
	}
	for name, c := range map[string]struct {
		addr   uint64
		more   int64
		change bool
	}{
		"the first segment":     {100, 5, true},
		"the second":            {200, 29, true},
		"the third":             {300, 1, true},
		"all that is free":      {200, 30, false},
		"more than is free":     {200, 31, false},
		"one in use behind it":  {250, 5, false},
		"the last block":        {270, 5, false},
		"no block begins there": {205, 5, false},
		"before all":            {5, 5, false},
		"behind all":            {2000, 5, false},
		"a segment of nothing":  {900, 5, false},
	} {
		r := &Replayed{Start: segments()}
		r.enlargeAtStart(c.addr, c.more)
		want := segments()
		if c.change {
			b := want[c.addr/100-1].Blocks
			b[0].Size += c.more
			b[1].Addr, b[1].Size = b[1].Addr+uint64(c.more), b[1].Size-c.more
		}
		if fmt.Sprint(r.Start) != fmt.Sprint(want) {
			t.Errorf("%s: %v", name, r.Start)
		}
	}
}

// TestOneOversizeSegmentGoes: where one is enough, it goes before the cache is flushed, and no
// retry is counted.
func TestOneOversizeSegmentGoes(t *testing.T) {
	a, malloc := model(t, "max_split_size_mb:100", Options{Limit: 260 * event.MiB})
	b, c := malloc(200*mib), malloc(30*mib)
	a.Free(b)
	a.Free(c)
	malloc(150 * mib) // 200 are too many for it
	if s := a.stats; a.reserved != 180*mib || s.AllocRetries != 0 || s.SyncAllStreams != 0 {
		t.Errorf("%d MiB reserved, %d retries", a.reserved/mib, s.AllocRetries)
	}
}

// TestPastSegmentsInAll: more than all cards together have is odd.
func TestPastSegmentsInAll(t *testing.T) {
	p := past()
	for i := range uint64(maxTotal/maxRequest + 1) {
		p.addSegment(event.Segment{Addr: i * maxRequest, Size: maxRequest})
	}
	if start, _ := p.result(); p.odd != 1 || len(start) != maxTotal/maxRequest {
		t.Errorf("%d segments, %d odd", len(start), p.odd)
	}
}
