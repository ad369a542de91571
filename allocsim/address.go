package allocsim

import (
	"math/rand/v2"
	"slices"
)

// Driver hands out address space for segments, as cudaMalloc and cuMemAddressReserve do. Addresses
// decide which of two equally large free blocks is taken up to PyTorch 2.11, so they are not a
// detail.
type Driver interface {
	// Malloc returns the address of a new segment of size bytes.
	Malloc(size int64) uint64
	// Free takes back a segment that Malloc gave.
	Free(addr uint64, size int64)
	// Reserve returns the address of a range for an expandable segment; Free takes it back.
	Reserve(size int64) uint64
}

// Bounds of the synthetic address space: ranges for expandable segments lie far above every address
// that cudaMalloc returns.
const (
	mallocTop   = 0x7f00_0000_0000
	reserveBase = 0x1000_0000_0000_0000
)

// reserver hands out address ranges that never meet those of cudaMalloc, ascending.
type reserver struct{ next uint64 }

func (r *reserver) Reserve(size int64) uint64 {
	if r.next == 0 {
		r.next = reserveBase
	}
	addr := r.next
	r.next += (uint64(size) + rangeQuantum - 1) &^ (rangeQuantum - 1)
	return addr
}

// rangeQuantum is the granularity in which the Linux driver reserves address space.
const rangeQuantum = 32 << 20

// LinuxDriver is the address model of NVIDIA's Linux driver as observed (the vendor documents
// nothing): ranges in multiples of 32 MiB, each at the highest free place below the others; a
// segment lies at the start of the range made for it, and the unused tails of ranges and the holes
// in them serve later segments, lowest address first. A range that becomes empty is given back.
type LinuxDriver struct {
	reserver
	top    uint64      // ranges lie below
	ranges []addrRange // ascending by address
	steps  int64       // of searches
	beyond uint64      // see outside
}

type addrRange struct {
	base  uint64
	size  uint64
	holes []hole // ascending; a range that is one hole is dropped at once
}

type hole struct{ at, size uint64 }

// NewLinuxDriver returns an empty address space.
func NewLinuxDriver() *LinuxDriver { return &LinuxDriver{top: mallocTop} }

// Malloc implements Driver.
func (d *LinuxDriver) Malloc(size int64) uint64 {
	want := uint64(size)
	for i := range d.ranges {
		d.steps++
		r := &d.ranges[i]
		for j := range r.holes {
			d.steps++
			if h := &r.holes[j]; h.size >= want {
				addr := h.at
				h.at, h.size = h.at+want, h.size-want
				if h.size == 0 {
					r.holes = slices.Delete(r.holes, j, j+1)
				}
				return addr
			}
		}
	}
	return d.newRange(want)
}

// searched is the effort of finding addresses so far.
func (d *LinuxDriver) searched() int64 { return d.steps }

// newRange reserves the highest free place that is large enough and puts the segment at its start.
func (d *LinuxDriver) newRange(want uint64) uint64 {
	size := (want + rangeQuantum - 1) &^ (rangeQuantum - 1)
	top, at := d.top, len(d.ranges)
	for at > 0 && d.ranges[at-1].base >= top {
		at-- // somebody else's
	}
	for ; at > 0; at-- {
		d.steps++
		below := &d.ranges[at-1]
		if top-(below.base+below.size) >= size {
			break
		}
		top = below.base
	}
	if top < size {
		return d.outside(want)
	}
	r := addrRange{base: top - size, size: size}
	if want < size {
		r.holes = []hole{{r.base + want, size - want}}
	}
	d.ranges = slices.Insert(d.ranges, at, r)
	return r.base
}

// outside hands out addresses above all ranges: no card fills the space below, but a timeline that
// makes no sense can.
func (d *LinuxDriver) outside(want uint64) uint64 {
	const room = 1 << 60
	addr := room + d.beyond
	d.beyond = (d.beyond + want) % room
	return addr
}

// Free implements Driver.
func (d *LinuxDriver) Free(addr uint64, size int64) {
	i, found := d.rangeAround(addr)
	if !found {
		return // an expandable range: its addresses are not used again
	}
	r := &d.ranges[i]
	r.addHole(hole{addr, uint64(size)})
	if len(r.holes) == 1 && r.holes[0].size == r.size {
		d.ranges = slices.Delete(d.ranges, i, i+1)
	}
}

// rangeAround finds the range that contains an address, or the place where one would be inserted.
func (d *LinuxDriver) rangeAround(addr uint64) (int, bool) {
	return slices.BinarySearchFunc(d.ranges, addr, func(r addrRange, a uint64) int {
		switch {
		case r.base+r.size <= a:
			return -1
		case r.base > a:
			return 1
		}
		return 0
	})
}

// addHole inserts a hole and joins it with its neighbours.
func (r *addrRange) addHole(h hole) {
	i, _ := slices.BinarySearchFunc(r.holes, h.at, func(x hole, at uint64) int {
		if x.at < at {
			return -1
		}
		return 1
	})
	if i < len(r.holes) && h.at+h.size == r.holes[i].at {
		h.size += r.holes[i].size
		r.holes = slices.Delete(r.holes, i, i+1)
	}
	if i > 0 && r.holes[i-1].at+r.holes[i-1].size == h.at {
		r.holes[i-1].size += h.size
		return
	}
	r.holes = slices.Insert(r.holes, i, h)
}

// occupy marks addresses as taken by a segment: in the hole of a range that is known, or at the
// start of a new range. A segment that begins elsewhere lies in a hole of somebody else's range,
// the rest of which is not ours.
func (d *LinuxDriver) occupy(addr uint64, size int64) {
	i, found := d.rangeAround(addr)
	end := addr + uint64(size)
	switch {
	case found:
		d.ranges[i].cut(addr, end)
	case addr%rangeQuantum == 0:
		r := addrRange{base: addr, size: (uint64(size) + rangeQuantum - 1) &^ (rangeQuantum - 1)}
		if r.size > uint64(size) {
			r.holes = []hole{{end, r.size - uint64(size)}}
		}
		d.ranges = slices.Insert(d.ranges, i, r)
		d.top = max(d.top, r.base+r.size)
	default:
		d.ranges = slices.Insert(d.ranges, i, addrRange{base: addr, size: uint64(size)})
	}
}

// cut takes [from, to) out of the holes.
func (r *addrRange) cut(from, to uint64) {
	var rest []hole
	for _, h := range r.holes {
		if h.at < from && h.at+h.size > from {
			rest = append(rest, hole{h.at, from - h.at})
		}
		if h.at < to && h.at+h.size > to {
			rest = append(rest, hole{to, h.at + h.size - to})
		}
		if h.at+h.size <= from || h.at >= to {
			rest = append(rest, h)
		}
	}
	r.holes = rest
}

// RecordedDriver hands out the addresses that a real driver gave, for as long as the same sizes are
// asked for in the same order; from then on it follows LinuxDriver's habits around what it has
// given.
type RecordedDriver struct {
	LinuxDriver
	recorded []SegmentAt
	left     bool // the recording's path
}

// NewRecordedDriver returns the addresses of recorded segments in order.
func NewRecordedDriver(recorded []SegmentAt) *RecordedDriver {
	return &RecordedDriver{recorded: recorded}
}

// Malloc implements Driver.
func (d *RecordedDriver) Malloc(size int64) uint64 {
	if !d.left && len(d.recorded) > 0 && d.recorded[0].Size == size {
		addr := d.recorded[0].Addr
		d.recorded = d.recorded[1:]
		d.occupy(addr, size)
		return addr
	}
	d.left = true
	if d.top == 0 {
		d.top = mallocTop
	}
	return d.LinuxDriver.Malloc(size)
}

// AscendingDriver never uses an address twice and always goes up: the naive model, kept to show how
// much an answer hangs on addresses.
type AscendingDriver struct {
	reserver
	next uint64
}

// NewAscendingDriver returns an empty address space.
func NewAscendingDriver() *AscendingDriver { return &AscendingDriver{next: 1 << 40} }

// Malloc implements Driver.
func (d *AscendingDriver) Malloc(size int64) uint64 {
	addr := d.next
	d.next += uint64(size)
	return addr
}

// Free implements Driver.
func (d *AscendingDriver) Free(uint64, int64) {}

// RandomDriver scatters segments over the address space, reproducibly.
type RandomDriver struct {
	reserver
	random *rand.Rand
	taken  map[uint64]bool
	beyond uint64 // addresses given out after most slots were taken
}

// NewRandomDriver returns an empty address space whose order depends on the seed alone.
func NewRandomDriver(seed uint64) *RandomDriver {
	return &RandomDriver{random: rand.New(rand.NewPCG(seed, 1)), taken: map[uint64]bool{}}
}

// Malloc implements Driver. Slots are 1 TiB apart, so that no two segments can overlap. When most
// are taken, addresses ascend above them: looking for a free one would take for ever.
func (d *RandomDriver) Malloc(size int64) uint64 {
	const slots = 1 << 19
	if len(d.taken) >= slots*3/4 {
		addr := (slots+1)<<40 + d.beyond
		d.beyond = (d.beyond + uint64(size)) % (1 << 58)
		return addr
	}
	for {
		slot := uint64(d.random.Uint32N(slots)) + 1
		if !d.taken[slot] {
			d.taken[slot] = true
			return slot << 40
		}
	}
}

// Free implements Driver.
func (d *RandomDriver) Free(addr uint64, _ int64) { delete(d.taken, addr>>40) }
