package allocsim

import (
	"errors"
	"fmt"
	"slices"

	"memroom/event"
)

// Options select the allocator to model and the memory that it finds.
type Options struct {
	Config  Config
	Version string // torch release such as "2.11"; empty is LatestChecked

	// Limit caps reserved bytes, as set_per_process_memory_fraction does; 0 is no cap. Requests are
	// refused before the driver is asked.
	Limit event.Bytes
	// DeviceTotal is the whole card; 0 is a card that never fills. The driver refuses what would
	// exceed it.
	DeviceTotal event.Bytes
	// Outside is what others hold on the card: context, libraries, other processes. Only read with
	// DeviceTotal.
	Outside event.Bytes

	// Driver hands out addresses; nil is a new LinuxDriver.
	Driver Driver
	// Record, when set, hears everything that PyTorch's own recorder would write down.
	Record func(event.Entry)
}

// Block names a live allocation of one Allocator. The zero value names none; names are not used
// twice.
type Block struct {
	ref blockRef
	gen uint32
}

// OutOfMemory is the error of a request that did not fit.
type OutOfMemory struct {
	Requested event.Bytes // what the program asked for
	Rounded   event.Bytes // the block it needs
	Segment   event.Bytes // what the driver was asked for, the size PyTorch prints
	Reserved  event.Bytes // after everything that could be released was
	Allocated event.Bytes
}

func (e *OutOfMemory) Error() string {
	return fmt.Sprintf("out of memory: tried to allocate %s with %s reserved and %s allocated",
		e.Segment, e.Reserved, e.Allocated)
}

// Allocator is PyTorch's caching allocator for one device.
type Allocator struct {
	config Config
	ver    Version
	ties   tieOrder
	limit  int64 // cap on reserved bytes, 0 none
	budget int64 // what the driver can give, 0 no bound
	total  int64 // whole card, for the size of expandable ranges
	driver Driver
	record func(event.Entry)

	blocks  []block
	unused  []blockRef
	segs    []segment
	spent   []int32   // indexes of segments that were returned
	pools   [][2]pool // each a large and a small one
	pending []blockRef
	births  uint64
	gens    uint32 // allocations handed out
	orders  uint64
	byAddr  *freeSet // all free blocks by address; nil until freeAround asks

	reserved int64
	stats    Stats
	effort   int64 // see overworked
}

const (
	large = 0
	small = 1
)

// unknownCard sizes the address ranges of expandable segments when the card is not known: larger
// than any.
const unknownCard = int64(1 << 40)

// New returns an allocator that holds nothing yet.
func New(o Options) (*Allocator, error) {
	ver, err := ParseVersion(o.Version)
	if err != nil {
		return nil, err
	}
	if o.Limit < 0 || o.DeviceTotal < 0 || o.Outside < 0 {
		return nil, fmt.Errorf("a size is negative: limit %s, card %s, in use by others %s",
			o.Limit, o.DeviceTotal, o.Outside)
	}
	if o.Config.MaxSplit == 0 || o.Config.LargeSegment == 0 {
		return nil,
			fmt.Errorf("the allocator's settings are empty: start from DefaultConfig or ParseConf")
	}
	a := &Allocator{config: o.Config, ver: ver, ties: ver.ties(), limit: int64(o.Limit),
		driver: o.Driver, record: o.Record,
		total: int64(o.DeviceTotal)}
	if o.DeviceTotal > 0 {
		a.budget = max(int64(o.DeviceTotal-o.Outside), 1)
		if f := o.Config.MemoryFraction; f > 0 && f < 1 {
			fraction := int64(f * float64(o.DeviceTotal))
			if a.limit == 0 || fraction < a.limit {
				a.limit = fraction
			}
		}
	} else {
		a.total = unknownCard
	}
	if a.driver == nil {
		a.driver = NewLinuxDriver()
	}
	a.blocks = make([]block, 1, 1024)
	a.addPools(event.PoolID{})
	return a, nil
}

// addPools makes the pair of pools with this id.
func (a *Allocator) addPools(id event.PoolID) int {
	a.pools = append(a.pools, [2]pool{{id: id}, {id: id, small: true}})
	for i := range a.pools { // the slice may have moved: groups point into it
		for j := range a.pools[i] {
			p := &a.pools[i][j]
			a.effort += int64(len(p.groups)) + 1
			for _, g := range p.groups {
				g.pool = p
			}
		}
	}
	return len(a.pools) - 1
}

// Stats returns the figures of torch.cuda.memory_stats at this moment.
func (a *Allocator) Stats() *Stats { return &a.stats }

// Reserved returns the bytes held from the driver.
func (a *Allocator) Reserved() event.Bytes { return event.Bytes(a.reserved) }

// Addr returns the address of a live allocation.
func (a *Allocator) Addr(b Block) uint64 { return a.blocks[b.ref].addr }

// Size returns the bytes a live allocation occupies: at least what was asked for.
func (a *Allocator) Size(b Block) event.Bytes { return event.Bytes(a.blocks[b.ref].size) }

// live reports whether b is allocated, or freed and pending.
func (a *Allocator) live(b Block, state blockState) bool {
	return b.gen != 0 && a.blocks[b.ref].gen == b.gen && a.blocks[b.ref].state == state
}

// Malloc allocates size bytes on a stream of the default pool. The error is an *OutOfMemory, or
// reports that the size is invalid.
func (a *Allocator) Malloc(size int64, stream uint64) (Block, error) {
	return a.MallocIn(0, size, stream)
}

// MallocIn is Malloc in a private pool, numbered from 1; 0 is the default pool.
func (a *Allocator) MallocIn(poolIndex int, size int64, stream uint64) (Block, error) {
	if size <= 0 || size > maxRequest {
		return Block{}, fmt.Errorf("a request of %d bytes: sizes are from 1 to %s", size,
			event.Bytes(maxRequest))
	}
	for len(a.pools) <= poolIndex {
		a.addPools(event.PoolID{0, uint64(len(a.pools))})
	}
	s := a.config.Round(size)
	g := a.poolFor(poolIndex, s).group(stream)
	ref, rejected := a.find(g, s), false
	if ref == 0 {
		ref, rejected = a.obtain(g, s)
	}
	if ref == 0 {
		if !rejected {
			a.countOutOfMemory(s, stream)
		}
		return Block{}, a.outOfMemory(size, s)
	}
	ref = a.handOut(ref, size, s)
	return Block{ref, a.blocks[ref].gen}, nil
}

// Effort that any run may take, and that each of its entries adds. A unit is one step of a search
// without an index, some nanoseconds. Real recordings take less than a hundred an entry; those that
// contradict themselves at every entry can make each search walk over everything.
const (
	freeEffort     = 1 << 26
	effortPerEntry = 4096
)

// overworked reports whether searches took more time than a number of entries or operations is
// allowed.
func (a *Allocator) overworked(entries int) bool {
	effort := a.effort
	if d, ok := a.driver.(interface{ searched() int64 }); ok {
		effort += d.searched()
	}
	return effort > freeEffort+effortPerEntry*int64(entries)
}

// errOverworked ends a run whose time would grow with the square of its length.
var errOverworked = errors.New("the recording contradicts itself so often that following it " +
	"would take too long")

func (a *Allocator) poolFor(index int, s int64) *pool {
	if s <= smallLimit {
		return &a.pools[index][small]
	}
	return &a.pools[index][large]
}

// collecting reports whether old blocks are collected before the driver is asked.
func (a *Allocator) collecting() bool { return a.limit > 0 && a.config.GCThreshold > 0 }

// find takes the best free block for a rounded size out of its set. It returns 0 if there is none.
func (a *Allocator) find(g *group, s int64) blockRef {
	if a.collecting() {
		g.pool.searches++
	}
	c, ok := a.bestFit(g, s)
	if !ok {
		return 0
	}
	return a.takeAt(g, c)
}

// bestFit returns the position of the free block that a request for s bytes gets.
func (a *Allocator) bestFit(g *group, s int64) (cursor, bool) {
	c := g.free.seek(&freeKey{size: s})
	k := g.free.at(c)
	if k == nil {
		return c, false
	}
	if a.segs[a.blocks[k.block].seg].expandable {
		if c, k = a.bestExpandable(g, c, k); k == nil {
			return c, false
		}
	}
	if limit := int64(a.config.MaxSplit); s < limit {
		if k.size >= limit {
			return c, false // a small request must not break up a block that is kept whole
		}
	} else if k.size >= s+int64(a.config.MaxNonSplitRounding) {
		return c, false
	}
	return c, true
}

// handOut splits the block where the rules require it and marks it as allocated.
func (a *Allocator) handOut(ref blockRef, requested, s int64) blockRef {
	b := &a.blocks[ref]
	seg := &a.segs[b.seg]
	p := seg.group.pool
	pooled := a.poolStats(p.small)
	if a.shouldSplit(p.small, b.size, s) {
		ref = a.splitFront(ref, s, pooled)
		b = &a.blocks[ref]
	} else if !b.whole() && !seg.expandable {
		a.stats.All.InactiveSplit.sub(1)
		pooled.InactiveSplit.sub(1)
		a.stats.All.InactiveSplitBytes.sub(b.size)
		pooled.InactiveSplitBytes.sub(b.size)
	}
	a.gens++
	b.state, b.requested, b.gen = stateActive, requested, a.gens
	for _, t := range [2]*PoolStats{&a.stats.All, pooled} {
		t.Allocation.add(1)
		t.AllocatedBytes.add(b.size)
		t.Active.add(1)
		t.ActiveBytes.add(b.size)
		t.RequestedBytes.add(requested)
	}
	if b.size >= int64(a.config.MaxSplit) {
		a.stats.OversizeAllocations.add(1)
	}
	if a.record != nil {
		a.tell(event.KindAlloc, b.addr, requested, a.groupOf(b))
	}
	return ref
}

func (a *Allocator) poolStats(isSmall bool) *PoolStats {
	if isSmall {
		return &a.stats.Small
	}
	return &a.stats.Large
}

// shouldSplit decides whether what remains of a block of the given size becomes a free block of its
// own.
func (a *Allocator) shouldSplit(isSmall bool, size, s int64) bool {
	rest := size - s
	if isSmall || a.config.Expandable {
		return rest >= minBlock
	}
	return s < int64(a.config.MaxSplit) && rest > smallLimit
}

// splitFront makes a new block of the first s bytes; the remainder keeps the old block and stays
// free.
func (a *Allocator) splitFront(ref blockRef, s int64, pooled *PoolStats) blockRef {
	wasWhole := a.blocks[ref].whole()
	front := a.newBlock(a.blocks[ref].addr, s, a.blocks[ref].seg, stateFree)
	a.linkBefore(ref, front)
	rest := &a.blocks[ref]
	rest.addr += uint64(s)
	rest.size -= s
	a.putFree(ref)
	if a.segs[rest.seg].expandable {
		return front
	}
	if wasWhole {
		for _, t := range [2]*PoolStats{&a.stats.All, pooled} {
			t.InactiveSplit.add(1)
			t.InactiveSplitBytes.add(rest.size)
		}
	} else {
		a.stats.All.InactiveSplitBytes.sub(s)
		pooled.InactiveSplitBytes.sub(s)
	}
	return front
}

// Free releases a live allocation; it can be reused at once. Like FreePending it reports whether b
// was allocated.
func (a *Allocator) Free(b Block) bool {
	if !a.live(b, stateActive) {
		return false
	}
	a.request(b.ref)
	a.complete(b.ref)
	return true
}

// FreePending releases an allocation that another stream still uses: it is no longer allocated, but
// stays active until FreeDone, or until the cache is flushed, which waits for all streams.
func (a *Allocator) FreePending(b Block) bool {
	if !a.live(b, stateActive) {
		return false
	}
	a.request(b.ref)
	a.blocks[b.ref].state = statePending
	a.pending = append(a.pending, b.ref)
	return true
}

// FreeDone completes what FreePending began, unless a flush of the cache has done so already.
func (a *Allocator) FreeDone(b Block) {
	if !a.live(b, statePending) {
		return
	}
	a.effort += int64(len(a.pending)) / 8
	if i := slices.Index(a.pending, b.ref); i >= 0 {
		a.pending = slices.Delete(a.pending, i, i+1)
		a.complete(b.ref)
	}
}

// request counts the program's call of free.
func (a *Allocator) request(ref blockRef) {
	b := &a.blocks[ref]
	g := a.groupOf(b)
	for _, t := range [2]*PoolStats{&a.stats.All, a.poolStats(g.pool.small)} {
		t.Allocation.sub(1)
		t.AllocatedBytes.sub(b.size)
	}
	if b.size >= int64(a.config.MaxSplit) {
		a.stats.OversizeAllocations.sub(1)
	}
	if a.record != nil {
		a.tell(event.KindFreeRequested, b.addr, b.requested, g)
	}
}

// complete makes the block free, merging it with its free neighbours.
func (a *Allocator) complete(ref blockRef) {
	b := &a.blocks[ref]
	seg := &a.segs[b.seg]
	if a.record != nil {
		a.tell(event.KindFreeCompleted, b.addr, b.requested, seg.group)
	}
	size, requested := b.size, b.requested
	b.state = stateFree
	var blocks, bytes int64 // change of what is free in split segments
	for _, neighbour := range [2]blockRef{b.prev, b.next} {
		if gained := a.absorb(ref, neighbour); gained > 0 {
			blocks--
			bytes -= gained
		}
	}
	a.putFree(ref)
	if !b.whole() {
		blocks++
		bytes += b.size
	}
	for _, t := range [2]*PoolStats{&a.stats.All, a.poolStats(seg.group.pool.small)} {
		if !seg.expandable {
			t.InactiveSplit.change(blocks)
			t.InactiveSplitBytes.change(bytes)
		}
		t.Active.sub(1)
		t.ActiveBytes.sub(size)
		t.RequestedBytes.sub(requested)
	}
}

func (a *Allocator) countOutOfMemory(s int64, stream uint64) {
	a.stats.OOMs++
	if a.record != nil {
		a.record(event.Entry{Kind: event.KindOOM, Size: s, Stream: stream})
	}
}

// outOfMemory describes a request that did not fit.
func (a *Allocator) outOfMemory(size, s int64) error {
	return &OutOfMemory{Requested: event.Bytes(size), Rounded: event.Bytes(s),
		Segment:   event.Bytes(a.config.segmentSize(s)),
		Reserved:  event.Bytes(a.reserved),
		Allocated: event.Bytes(a.stats.All.AllocatedBytes.Current)}
}

// tell passes an entry to the recorder.
func (a *Allocator) tell(kind event.Kind, addr uint64, size int64, g *group) {
	if a.record != nil {
		a.record(event.Entry{Kind: kind, Addr: addr, Size: size, Stream: g.stream, Pool: g.pool.id})
	}
}
