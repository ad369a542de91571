package allocsim

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"memroom/event"
)

// TestAddrTable: it finds what a map would, while it grows and shrinks, and stays at most half
// full.
func TestAddrTable(t *testing.T) {
	random := rand.New(rand.NewPCG(4, 0))
	table, want := newAddrTable(), map[uint64]int32{}
	check := func(step int) {
		for addr, id := range want {
			if s := table.find(addr); s == nil || s.id != id || s.block.gen != uint32(id) {
				t.Fatalf("after step %d: %#x is %+v, want %d", step, addr, s, id)
			}
		}
		if table.count != len(want) || len(table.slots) < 2*table.count {
			t.Fatalf("after step %d: %d of %d slots for %d", step, table.count, len(table.slots),
				len(want))
		}
	}
	for step := range 9000 {
		addr := uint64(random.IntN(3000)) * 512
		most := 2000 // enough for it to grow twice
		if step > 6000 {
			most = 20
		}
		if id := int32(step); random.IntN(2000) < most {
			table.put(addr, Block{gen: uint32(id)}, id)
			want[addr] = id
		} else {
			table.remove(addr)
			delete(want, addr)
		}
		if _, ok := want[addr]; (table.find(addr) != nil) != ok {
			t.Fatalf("step %d: %#x is there: %v", step, addr, !ok)
		}
		if step%1000 == 0 {
			check(step)
		}
	}
	check(9000)
	if len(table.slots) != 8192 && len(table.slots) != 4096 {
		t.Errorf("%d slots", len(table.slots))
	}
	for addr := range want {
		table.remove(addr)
	}
	for i := range table.slots {
		if table.slots[i] != (addrSlot{}) {
			t.Fatalf("slot %d keeps %+v", i, table.slots[i])
		}
	}
}

// holes writes holes as at+size.
func holes(list []hole) string {
	var words []string
	for _, h := range list {
		words = append(words, fmt.Sprintf("%d+%d", h.at, h.size))
	}
	return strings.Join(words, " ")
}

// TestHolesOfARange: allocations are cut out of them, released ranges join those they touch.
func TestHolesOfARange(t *testing.T) {
	for name, c := range map[string]struct {
		from, to uint64
		want     string
	}{
		"before both":     {0, 10, "10+10 30+10"},
		"the first":       {10, 20, "30+10"},
		"its beginning":   {10, 13, "13+7 30+10"},
		"its end":         {17, 20, "10+7 30+10"},
		"its middle":      {13, 17, "10+3 17+3 30+10"},
		"between":         {20, 30, "10+10 30+10"},
		"parts of both":   {15, 35, "10+5 35+5"},
		"both":            {10, 40, ""},
		"behind both":     {40, 50, "10+10 30+10"},
		"up to the first": {5, 11, "11+9 30+10"},
	} {
		r := addrRange{holes: []hole{{10, 10}, {30, 10}}}
		if r.cut(c.from, c.to); holes(r.holes) != c.want {
			t.Errorf("%s is cut out: %s, want %s", name, holes(r.holes), c.want)
		}
	}
	for name, c := range map[string]struct {
		at, size uint64
		want     string
	}{
		"before":              {0, 5, "0+5 10+10 30+10"},
		"up to the first":     {5, 5, "5+15 30+10"},
		"behind the first":    {20, 5, "10+15 30+10"},
		"between":             {22, 3, "10+10 22+3 30+10"},
		"before the second":   {25, 5, "10+10 25+15"},
		"all between":         {20, 10, "10+30"},
		"behind the last":     {40, 2, "10+10 30+12"},
		"further behind":      {41, 2, "10+10 30+10 41+2"},
		"right behind a byte": {21, 1, "10+10 21+1 30+10"},
	} {
		r := addrRange{holes: []hole{{10, 10}, {30, 10}}}
		if r.addHole(hole{c.at, c.size}); holes(r.holes) != c.want {
			t.Errorf("%s comes back: %s, want %s", name, holes(r.holes), c.want)
		}
	}
}

// TestPlacesOfNewRanges: the highest gap below the top that is large enough; what lies above the
// top is somebody else's.
func TestPlacesOfNewRanges(t *testing.T) {
	const q = rangeQuantum
	at := func(ranges ...[2]uint64) *LinuxDriver {
		d := &LinuxDriver{top: 100 * q}
		for _, r := range ranges {
			d.ranges = append(d.ranges, addrRange{base: r[0] * q, size: r[1] * q})
		}
		return d
	}
	for name, c := range map[string]struct {
		driver *LinuxDriver
		size   int64
		want   uint64 // in quanta
		left   string // holes of the new range
	}{
		"nothing there":       {at(), q, 99, ""},
		"a quantum and a bit": {at(), q + 512, 98, fmt.Sprintf("%d+%d", 99*q+512, q-512)},
		"below another":       {at([2]uint64{98, 2}), q, 97, ""},
		"in a gap that fits":  {at([2]uint64{90, 2}, [2]uint64{94, 6}), 2 * q, 92, ""},
		"in none too small":   {at([2]uint64{90, 3}, [2]uint64{94, 6}), 2 * q, 88, ""},
		"in the highest gap":  {at([2]uint64{80, 1}, [2]uint64{90, 1}, [2]uint64{95, 5}), q, 94, ""},
		"below the top":       {at([2]uint64{90, 2}), 3 * q, 97, ""},
		"under what is above": {at([2]uint64{99, 1}, [2]uint64{100, 1}, [2]uint64{200, 1}), q, 98, ""},
		"all there is":        {at(), 100 * q, 0, ""},
	} {
		before := len(c.driver.ranges)
		if got := c.driver.Malloc(c.size); got != c.want*q {
			t.Errorf("%s: at %d quanta, want %d", name, got/q, c.want)
		}
		if len(c.driver.ranges) != before+1 {
			t.Errorf("%s: %d ranges after %d", name, len(c.driver.ranges), before)
		}
		for i, r := range c.driver.ranges {
			if i > 0 && r.base < c.driver.ranges[i-1].base {
				t.Errorf("%s: ranges out of order: %+v", name, c.driver.ranges)
			}
			if r.base == c.want*q && holes(r.holes) != c.left {
				t.Errorf("%s: holes %q, want %q", name, holes(r.holes), c.left)
			}
		}
	}
	d := at()
	for i, want := range []uint64{1 << 60, 1<<60 + 101*q, 1<<60 + 202*q} {
		if got := d.Malloc(101 * q); got != want || len(d.ranges) != 0 {
			t.Errorf("no room, segment %d: %#x, want %#x", i, got, want)
		}
	}
}

// TestRecordedAddresses: as long as the same sizes are asked for. Then the driver's habits go on
// around what was given.
func TestRecordedAddresses(t *testing.T) {
	const q = rangeQuantum
	d := NewRecordedDriver([]SegmentAt{{Addr: 50 * q, Size: 20 * mib}, {Addr: 50*q + 20<<20,
		Size: 2 * mib}, {Addr: 70*q + 512, Size: 2 * mib}, {Addr: 90 * q, Size: q}})
	for i, want := range []uint64{50 * q, 50*q + 20<<20, 70*q + 512} {
		size := []int64{20 * mib, 2 * mib, 2 * mib}[i]
		if got := d.Malloc(size); got != want {
			t.Fatalf("segment %d at %#x, want %#x", i, got, want)
		}
	}
	// The first lies at the start of a range: its tail is ours. The third does not: nothing of the
	// range around it is.
	if got := d.Malloc(10 * mib); got != 50*q+22<<20 {
		t.Errorf("the tail of a known range is not used: %#x", got)
	}
	if got := d.Malloc(q); got != 49*q {
		t.Errorf("the recording was left, and its next address is given: %#x", got)
	}
	d.Free(70*q+512, 2*mib)
	if i, found := d.rangeAround(70*q + 512); found {
		t.Errorf("a segment alone in its range is kept: %+v", d.ranges[i])
	}
	d.Free(reserveBase, q) // an expandable range: none of these
	if len(d.ranges) != 2 {
		t.Errorf("%+v", d.ranges)
	}
	if got := NewRecordedDriver(nil).Malloc(q); got != mallocTop-q {
		t.Errorf("nothing was recorded: %#x", got)
	}
	high := NewRecordedDriver([]SegmentAt{{Addr: mallocTop + 8*q, Size: q}})
	if a, b := high.Malloc(q), high.Malloc(2*q); a != mallocTop+8*q || b != a-2*q {
		t.Errorf("%#x, then %#x: new ranges lie below the highest that is known", a, b)
	}
}

// TestAddressesOfOtherDrivers: one goes up and never back, one scatters and takes slots again.
func TestAddressesOfOtherDrivers(t *testing.T) {
	up := NewAscendingDriver()
	first := up.Malloc(5 * mib)
	up.Free(first, 5*mib)
	if second := up.Malloc(mib); first != 1<<40 || second != first+uint64(5*mib) {
		t.Errorf("%#x, %#x", first, second)
	}
	random := NewRandomDriver(3)
	addr := random.Malloc(mib)
	if len(random.taken) != 1 {
		t.Errorf("%v", random.taken)
	}
	if random.Free(addr, mib); len(random.taken) != 0 {
		t.Errorf("%#x is still taken: %v", addr, random.taken)
	}
	var r reserver
	if a, b := r.Reserve(rangeQuantum), r.Reserve(1); a != reserveBase || b != a+rangeQuantum {
		t.Errorf("%#x, %#x", a, b)
	}
}

// TestUnmappedInOrder: by address, whatever the order in which pages go.
func TestUnmappedInOrder(t *testing.T) {
	config := DefaultConfig()
	config.Expandable = true
	a, err := New(Options{Config: config, DeviceTotal: event.GiB})
	if err != nil {
		t.Fatal(err)
	}
	g := a.groupFor(event.PoolID{}, false, 0)
	for _, at := range []uint64{5, 1, 3, 2, 4} {
		a.addRange(g, at<<40, 20*mib, 20*mib)
	}
	for i, ref := range g.unmapped {
		if a.blocks[ref].addr != uint64(i+1)<<40 {
			t.Errorf("place %d: %#x", i, a.blocks[ref].addr)
		}
	}
	a.forgetUnmapped(g.unmapped[2])
	for i, want := range []uint64{1, 2, 4, 5} {
		if got := a.blocks[g.unmapped[i]].addr; got != want<<40 {
			t.Errorf("without the third, place %d: %#x", i, got)
		}
	}

}
