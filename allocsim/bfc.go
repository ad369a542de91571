package allocsim

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"memroom/event"
)

// BFC is TensorFlow's "best fit with coalescing" allocator as a state machine: the one behind every
// TensorFlow GPU and, with TF_CPU_ALLOCATOR_USE_BFC=true, its CPU. It takes regions from the
// driver, cuts them into chunks, hands out the smallest free chunk that is large enough (ties:
// lowest address) and merges free neighbours at once.
//
// Source: openxla/xla xla/tsl/framework/bfc_allocator.{h,cc}. Not modelled: time-stamped chunks
// (only used with the GPU kernel tracker) and the two-ended placement of XLA's collective memory;
// neither is reachable from TensorFlow's default options.
type BFC struct {
	opts       BFCOptions
	pool       int64 // bytes in regions
	inUse      int64
	nextRegion int64 // bytes the next region will have
	maxSlack   int64 // a chunk may exceed the request by less than this without being cut
	stats      BFCStats

	regions []*bfcRegion // ascending by address
	bins    [bfcBins][]*bfcChunk
	live    map[uint64]*bfcChunk // chunks in use, by address
	lowest  uint64               // synthetic addresses: the lowest one given out
}

// BFCOptions are the settings TensorFlow derives from the environment and the session.
type BFCOptions struct {
	Limit event.Bytes // the most it may take from the driver; 0 means no limit
	// Growth is set_memory_growth(True): begin with 2 MiB and double. Without it the first request
	// takes the whole limit.
	Growth bool
	// CollectGarbage returns wholly free regions to the driver before failing; on for GPUs
	// (TF_ENABLE_GPU_GARBAGE_COLLECTION).
	CollectGarbage bool
	// CoalesceRegions joins a region with the one it directly follows (GPUs with virtual memory
	// management).
	CoalesceRegions bool
	// SlackFraction bounds the waste inside a chunk as a part of the limit; 0 means 128 MiB
	// (experimental.internal_fragmentation_fraction).
	SlackFraction float64
	// Region stands for the driver. It returns the address of a new region, or false if the driver
	// has too little memory left. Nil means a driver that never refuses and hands out descending
	// addresses, as Linux and CUDA do.
	Region func(size int64) (addr uint64, ok bool)
}

// BFCStats are the figures TensorFlow prints in its dump and returns through get_memory_info.
type BFCStats struct {
	Limit        event.Bytes `json:"limit"`
	InUse        event.Bytes `json:"in_use"`
	PeakInUse    event.Bytes `json:"peak_in_use"`
	Allocs       int64       `json:"allocs"`
	LargestAlloc event.Bytes `json:"largest_alloc"`
	Pool         event.Bytes `json:"pool"` // bytes in regions, PyTorch's "reserved"
	PeakPool     event.Bytes `json:"peak_pool"`
	LargestFree  event.Bytes `json:"largest_free"`
	// Fragmentation is TensorFlow's own figure: the part of the free pool that is not in the
	// largest free chunk.
	Fragmentation float64 `json:"fragmentation"`
}

const (
	bfcBins        = 21 // chunk sizes 256 B to 512 MiB and above, by powers of two
	bfcQuantum     = 256
	bfcFirstRegion = 2 << 20
	bfcSlack       = 128 << 20
	bfcBackPedal   = 0.9 // what TensorFlow asks for next when the driver refused
)

// ErrBFCFull is the failure TensorFlow reports as RESOURCE_EXHAUSTED.
var ErrBFCFull = errors.New("out of memory")

type bfcChunk struct {
	addr       uint64
	size       int64
	requested  int64
	inUse      bool
	prev, next *bfcChunk // neighbours by address within the region
}

type bfcRegion struct {
	addr  uint64
	size  int64
	first *bfcChunk
}

// BFCChunk is one piece of a region, as TensorFlow's dump lists it.
type BFCChunk struct {
	Addr      uint64
	Size      event.Bytes
	Requested event.Bytes // what the program asked for last; stale when free
	InUse     bool
}

// BFCRegion is memory taken from the driver in one piece.
type BFCRegion struct {
	Addr   uint64
	Size   event.Bytes
	Chunks []BFCChunk
}

// NewBFC makes an allocator that has taken nothing from the driver yet.
func NewBFC(opts BFCOptions) *BFC {
	if opts.Limit <= 0 {
		opts.Limit = 1 << 62
	}
	b := &BFC{opts: opts, live: map[uint64]*bfcChunk{}, lowest: 1 << 46, maxSlack: bfcSlack}
	limit := int64(opts.Limit)
	if opts.SlackFraction > 0 {
		b.maxSlack = int64(opts.SlackFraction * float64(limit))
	}
	b.nextRegion = bfcRound(limit)
	if opts.Growth {
		b.nextRegion = bfcRound(min(limit, bfcFirstRegion))
	}
	return b
}

func bfcRound(size int64) int64 { return (size + bfcQuantum - 1) / bfcQuantum * bfcQuantum }

// bfcBin is the bin of a chunk: bin b holds sizes in [256 << b, 512 << b), the last one everything
// above.
func bfcBin(size int64) int {
	return min(bfcBins-1, max(0, bits.Len64(uint64(max(size, bfcQuantum))>>8)-1))
}

// Malloc returns the address of a chunk for size bytes. It fails with ErrBFCFull where TensorFlow
// would report RESOURCE_EXHAUSTED (after its ten seconds of waiting for another thread to free
// something).
func (b *BFC) Malloc(size int64) (uint64, error) {
	if size <= 0 {
		return 0, fmt.Errorf("allocate %d bytes: TensorFlow never asks for less than one", size)
	}
	if size > 1<<62 {
		return 0, ErrBFCFull
	}
	rounded := bfcRound(size)
	if c := b.take(rounded, size); c != nil {
		return c.addr, nil
	}
	if b.extend(rounded) || b.collectGarbage(rounded) && b.extend(rounded) {
		if c := b.take(rounded, size); c != nil {
			return c.addr, nil
		}
	}
	return 0, ErrBFCFull
}

// Free returns the chunk at addr and merges it with free neighbours.
func (b *BFC) Free(addr uint64) error {
	c, ok := b.live[addr]
	if !ok {
		return fmt.Errorf("free %#x: nothing is allocated there", addr)
	}
	delete(b.live, addr)
	c.inUse = false
	b.inUse -= c.size
	b.insert(b.coalesce(c))
	return nil
}

// take finds the best fit: bins ascend and each is ordered by size and then address, so the first
// chunk that is large enough is the smallest one.
func (b *BFC) take(rounded, size int64) *bfcChunk {
	for bin := bfcBin(rounded); bin < bfcBins; bin++ {
		at, _ := slices.BinarySearchFunc(b.bins[bin], bfcChunk{size: rounded}, compareChunks)
		if at == len(b.bins[bin]) {
			continue
		}
		c := b.bins[bin][at]
		b.bins[bin] = slices.Delete(b.bins[bin], at, at+1)
		if c.size >= 2*rounded || c.size-rounded >= b.maxSlack {
			b.split(c, rounded)
		}
		b.use(c, size)
		return c
	}
	return nil
}

func compareChunks(c *bfcChunk, key bfcChunk) int {
	return cmp.Or(cmp.Compare(c.size, key.size), cmp.Compare(c.addr, key.addr))
}

func (b *BFC) use(c *bfcChunk, size int64) {
	c.inUse, c.requested = true, size
	b.live[c.addr] = c
	b.inUse += c.size
	b.stats.Allocs++
	b.stats.PeakInUse = max(b.stats.PeakInUse, event.Bytes(b.inUse))
	b.stats.LargestAlloc = max(b.stats.LargestAlloc, event.Bytes(c.size))
}

// split cuts c after size bytes; the rest becomes a free chunk of its own.
func (b *BFC) split(c *bfcChunk, size int64) {
	rest := &bfcChunk{addr: c.addr + uint64(size), size: c.size - size, prev: c, next: c.next}
	if c.next != nil {
		c.next.prev = rest
	}
	c.next, c.size = rest, size
	b.insert(rest)
}

func (b *BFC) insert(c *bfcChunk) {
	bin := &b.bins[bfcBin(c.size)]
	at, _ := slices.BinarySearchFunc(*bin, *c, compareChunks)
	*bin = slices.Insert(*bin, at, c)
}

func (b *BFC) remove(c *bfcChunk) {
	bin := &b.bins[bfcBin(c.size)]
	if at, found := slices.BinarySearchFunc(*bin, *c, compareChunks); found {
		*bin = slices.Delete(*bin, at, at+1)
	}
}

// coalesce merges the free chunk c, which is in no bin, with its free neighbours and returns the
// result.
func (b *BFC) coalesce(c *bfcChunk) *bfcChunk {
	if n := c.next; n != nil && !n.inUse {
		b.remove(n)
		c.absorbNext()
	}
	if p := c.prev; p != nil && !p.inUse {
		b.remove(p)
		p.absorbNext()
		return p
	}
	return c
}

func (c *bfcChunk) absorbNext() {
	n := c.next
	c.size += n.size
	c.next = n.next
	if n.next != nil {
		n.next.prev = c
	}
}

// extend takes one more region from the driver, at least rounded bytes: the planned size, doubled
// until it is enough, then a tenth less at each refusal.
func (b *BFC) extend(rounded int64) bool {
	available := (int64(b.opts.Limit) - b.pool) / bfcQuantum * bfcQuantum
	if rounded > available {
		return false
	}
	grown := false
	for rounded > b.nextRegion && b.nextRegion < 1<<61 {
		b.nextRegion = max(bfcQuantum, 2*b.nextRegion)
		grown = true
	}
	size := min(b.nextRegion, available)
	addr, ok := b.region(size)
	for !ok {
		// TensorFlow computes this product in single precision, so the rounding is part of the
		// rule.
		less := bfcRound(int64(float32(size) * float32(bfcBackPedal)))
		size = min(less, size-bfcQuantum)
		if size < rounded {
			return false
		}
		addr, ok = b.region(size)
	}
	if !grown && b.nextRegion < 1<<61 {
		b.nextRegion *= 2
	}
	b.addRegion(addr, size)
	return true
}

func (b *BFC) region(size int64) (uint64, bool) {
	if b.opts.Region != nil {
		return b.opts.Region(size)
	}
	if uint64(size) >= b.lowest {
		return 0, false
	}
	b.lowest = (b.lowest - uint64(size)) &^ (2<<20 - 1)
	return b.lowest, true
}

func (b *BFC) addRegion(addr uint64, size int64) {
	b.pool += size
	b.stats.PeakPool = max(b.stats.PeakPool, event.Bytes(b.pool))
	c := &bfcChunk{addr: addr, size: size}
	at, _ := slices.BinarySearchFunc(b.regions, addr, func(r *bfcRegion,
		a uint64) int {
		return cmp.Compare(r.addr, a)
	})
	if at > 0 && b.opts.CoalesceRegions {
		if before := b.regions[at-1]; before.addr+uint64(before.size) == addr {
			last := before.first
			for last.next != nil {
				last = last.next
			}
			last.next, c.prev = c, last
			before.size += size
			b.insert(b.coalesce(c))
			return
		}
	}
	b.regions = slices.Insert(b.regions, at, &bfcRegion{addr, size, c})
	b.insert(c)
}

// collectGarbage returns every wholly free region back to the driver, if that could make room for
// rounded bytes.
func (b *BFC) collectGarbage(rounded int64) bool {
	if !b.opts.CollectGarbage {
		return false
	}
	idle := func(r *bfcRegion) bool { return !r.first.inUse && r.first.next == nil }
	var free int64
	for _, r := range b.regions {
		if idle(r) {
			free += r.size
		}
	}
	if free == 0 || rounded > int64(b.opts.Limit)-b.pool+free {
		return false
	}
	b.regions = slices.DeleteFunc(b.regions, func(r *bfcRegion) bool {
		if !idle(r) {
			return false
		}
		b.remove(r.first)
		b.pool -= r.size
		return true
	})
	return true
}

// Stats returns the figures TensorFlow would print now.
func (b *BFC) Stats() BFCStats {
	s := b.stats
	s.Limit, s.InUse, s.Pool = b.opts.Limit, event.Bytes(b.inUse), event.Bytes(b.pool)
	for bin := bfcBins - 1; bin >= 0 && s.LargestFree == 0; bin-- {
		if n := len(b.bins[bin]); n > 0 {
			s.LargestFree = event.Bytes(b.bins[bin][n-1].size)
		}
	}
	if free := s.Pool - s.InUse; free > 0 {
		s.Fragmentation = float64(free-s.LargestFree) / float64(free)
	}
	return s
}

// Regions lists the allocator's regions by ascending address.
func (b *BFC) Regions() []BFCRegion {
	regions := make([]BFCRegion, 0, len(b.regions))
	for _, r := range b.regions {
		out := BFCRegion{Addr: r.addr, Size: event.Bytes(r.size)}
		for c := r.first; c != nil; c = c.next {
			out.Chunks = append(out.Chunks, BFCChunk{c.addr, event.Bytes(c.size),
				event.Bytes(c.requested), c.inUse})
		}
		regions = append(regions, out)
	}
	return regions
}
