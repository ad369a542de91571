package diagnose

import (
	"cmp"
	"math"
	"slices"

	"memroom/event"
)

// Ledger is what the allocator of one device did, as a table of allocations rather than a list of
// entries. "At" and "Start" and "End" count entries of the recording, so that moments can be
// compared without clocks.
type Ledger struct {
	Device   int
	Entries  int
	FirstUS  int64 // Unix microseconds of the first and last entry, 0 when the recording has no times
	LastUS   int64
	Allocs   []Allocation // ascending Start; blocks older than the recording come first
	Frees    []int32      // indexes into Allocs, ascending End; what was never freed is not in it
	Segments []SegmentSpan
	OOMs     []OOMEvent
	Notes    []Annotation
	Unknown  int // entries of a kind this version does not know
	Lost     int // releases that must have happened and are not in the recording
	// Implausible counts entries with impossible sizes or addresses, which were left out.
	Implausible int
	// Before counts the blocks that were there when recording began.
	Before int

	times  []int64 // of every timeStride-th entry
	frames func(event.StackID) []event.Frame
}

// timeStride is how many entries share a sample of the clock; times between samples are
// interpolated.
const timeStride = 64

// Never is the End of what was not freed while recording.
const Never = int32(1<<31 - 1)

// Allocation is one block from its request to its release.
//
// It is 32 bytes: a recording of two gigabytes has some ten million of them.
type Allocation struct {
	Addr     uint64
	quanta   uint32 // of its block, 512 bytes each
	slack    uint32 // bytes of the block that were not asked for
	Start    int32  // entry of the request; -1 when it is older than the recording
	End      int32  // entry of the release, or Never
	Stack    event.StackID
	Category event.Category
	Phase    Phase
	Sure     uint8 // of the category, in percent
}

// quantum is the unit of every block of PyTorch's allocator.
const quantum = 512

func newAllocation(addr uint64, size, requested int64, start int32,
	stack event.StackID) Allocation {
	a := Allocation{Addr: addr, Start: start, End: Never, Stack: stack}
	a.resize(size, requested)
	return a
}

func (a *Allocation) resize(size, requested int64) {
	size = roundUp(max(size, requested), quantum)
	a.quanta, a.slack = uint32(size/quantum), uint32(min(size-requested, math.MaxUint32))
}

// Size is the bytes of its block, rounded up as the allocator does.
func (a *Allocation) Size() int64 { return int64(a.quanta) * quantum }

// Requested is what the program asked for.
func (a *Allocation) Requested() int64 { return a.Size() - int64(a.slack) }

// LiveAt reports whether the block was allocated after the entry at.
func (a *Allocation) LiveAt(at int32) bool { return a.Start <= at && a.End > at }

// SegmentSpan is an address range that was reserved for a while: a cudaMalloc'ed segment, or pages
// of an expandable one.
type SegmentSpan struct {
	Addr       uint64
	Size       int64
	Start, End int32
	Stream     uint64
	Pool       event.PoolID
	Expandable bool
}

// OOMEvent is a request that failed, with the state at that moment.
type OOMEvent struct {
	At         int32         `json:"at"`
	TimeUS     int64         `json:"time_us,omitempty"`
	Stream     uint64        `json:"stream"`
	Request    event.Bytes   `json:"request"` // rounded to the allocator's quantum
	DeviceFree event.Bytes   `json:"device_free"`
	Stack      event.StackID `json:"-"`
	Frames     []event.Frame `json:"frames,omitempty"`
	Allocated  event.Bytes   `json:"allocated"`
	Reserved   event.Bytes   `json:"reserved"`
	// longest free piece inside the reserved memory of that stream
	LargestFree event.Bytes `json:"largest_free"`
	// Room is what could still be taken from the card: what it had free, or, under a limit of the
	// process, at least the distance to what was reserved at other times.
	Room event.Bytes `json:"room"`
	// Fragmented means that unused memory and room together were enough, but not in one piece.
	// Otherwise Missing is the shortfall.
	Fragmented bool        `json:"fragmented"`
	Missing    event.Bytes `json:"missing,omitempty"`
	// Limited: the card had enough free, so a limit of the process refused; it lies between
	// LimitLow and LimitHigh.
	Limited   bool        `json:"limited"`
	LimitLow  event.Bytes `json:"limit_low,omitempty"`
	LimitHigh event.Bytes `json:"limit_high,omitempty"`
	// of what was asked for, judged by what the same line made before
	Category event.Category `json:"category"`
	// Categories is what held memory then.
	Categories []CategoryShare `json:"categories,omitempty"`
}

// Annotation is the beginning or end of a scope that the program named (record_function).
type Annotation struct {
	Name   string
	Begin  bool
	TimeUS int64
	At     int32 // the first entry at or after TimeUS; filled in while the entries come
}

// LedgerBuilder turns entries into a Ledger, one at a time, so that a recording larger than memory
// can be summarised.
type LedgerBuilder struct {
	l      *Ledger
	live   map[uint64]int32 // address -> index into allocs, or ^index into before
	before []Allocation     // blocks older than the recording, met when they were freed or at the end
	spans  map[uint64]int32 // address of a reserved range -> index into Segments
	frees  []int32
	placed int // annotations whose entry is known
}

// NewLedger begins the table of one device. frames returns the stack of an ID, innermost frame
// first. notes are the scopes that the program named on that device.
func NewLedger(device int, frames func(event.StackID) []event.Frame,
	notes []Annotation) *LedgerBuilder {
	notes = slices.Clone(notes)
	slices.SortStableFunc(notes, func(x, y Annotation) int {
		return cmp.Compare(x.TimeUS,
			y.TimeUS)
	})
	return &LedgerBuilder{l: &Ledger{Device: device, frames: frames, Notes: notes},
		live: map[uint64]int32{}, spans: map[uint64]int32{}}
}

// expect sets how many allocations will come, so that the table is made once.
func (b *LedgerBuilder) expect(allocs int) {
	b.l.Allocs = make([]Allocation, 0, allocs)
	b.frees = make([]int32, 0, allocs)
}

// begin puts in what was there before the first entry.
func (b *LedgerBuilder) begin(segments []event.Segment) {
	for i := range segments {
		s := &segments[i]
		span := withLife(spanOf(s), -1, Never)
		b.spans[s.Addr] = int32(len(b.l.Segments))
		b.l.Segments = append(b.l.Segments, span)
		for _, block := range s.Blocks {
			if block.State == event.BlockActive && !implausible(event.Entry{Addr: block.Addr,
				Size: block.Size}) {
				b.older(block.Addr, block.Size, block.Requested, block.Stack)
			}
		}
	}
}

// older puts in a block from before the recording.
func (b *LedgerBuilder) older(addr uint64, size, requested int64, stack event.StackID) {
	b.live[addr] = ^int32(len(b.before))
	b.before = append(b.before, newAllocation(addr, size, requested, -1, stack))
}

// Add takes the next entry. block is the size of the block that an allocation got, or 0 where it is
// not known.
func (b *LedgerBuilder) Add(e event.Entry, block int64) {
	l := b.l
	at := int32(l.Entries)
	if l.Entries < int(Never)-1 {
		l.Entries++
	}
	b.tick(at, e.TimeUS)
	if implausible(e) {
		l.Implausible++
		return
	}
	switch e.Kind {
	case event.KindAlloc:
		b.alloc(at, e, block)
	case event.KindFreeRequested:
		b.free(at, e)
	case event.KindSegmentAlloc, event.KindSegmentMap:
		b.reserve(at, e)
	case event.KindSegmentFree, event.KindSegmentUnmap:
		b.release(at, e)
	case event.KindOOM:
		l.OOMs = append(l.OOMs, OOMEvent{At: at, Stream: e.Stream, TimeUS: e.TimeUS,
			Request: event.Bytes(e.Size), DeviceFree: event.Bytes(e.DeviceFree), Stack: e.Stack})
	case event.KindFreeCompleted, event.KindSnapshot:
	default:
		l.Unknown++
	}
}

// implausible entries are damaged or made up: no device has a tebibyte, and sums must not overflow.
func implausible(e event.Entry) bool {
	const most = int64(event.TiB)
	return e.Size < 0 || e.Size > most || e.Addr+uint64(e.Size) < e.Addr || e.DeviceFree < 0 ||
		e.DeviceFree > most
}

// tick notes the time of an entry and places the annotations that lie before it.
func (b *LedgerBuilder) tick(at int32, us int64) {
	l := b.l
	if us == 0 {
		return
	}
	if l.FirstUS == 0 {
		l.FirstUS = us
	}
	l.LastUS = us
	for int(at) >= timeStride*len(l.times) {
		l.times = append(l.times, us)
	}
	for ; b.placed < len(l.Notes) && l.Notes[b.placed].TimeUS <= us; b.placed++ {
		l.Notes[b.placed].At = at
	}
}

func (b *LedgerBuilder) alloc(at int32, e event.Entry, block int64) {
	// two blocks cannot share an address: the release was not recorded
	if _, taken := b.live[e.Addr]; taken {
		b.l.Lost++
		b.free(at, e)
	}
	b.live[e.Addr] = int32(len(b.l.Allocs))
	b.l.Allocs = append(b.l.Allocs, newAllocation(e.Addr, block, e.Size, at, e.Stack))
}

func roundUp(n, quantum int64) int64 {
	return max(quantum, (n+quantum-1)/quantum*quantum)
}

func (b *LedgerBuilder) free(at int32, e event.Entry) {
	i, ok := b.live[e.Addr]
	if !ok { // older than the recording
		b.older(e.Addr, e.Size, e.Size, e.Stack)
		i = b.live[e.Addr]
	}
	delete(b.live, e.Addr)
	b.frees = append(b.frees, i)
	if i < 0 {
		b.before[^i].End = at
		return
	}
	b.l.Allocs[i].End = at
}

func (b *LedgerBuilder) reserve(at int32, e event.Entry) {
	if i, taken := b.spans[e.Addr]; taken {
		b.l.Lost++
		b.l.Segments[i].End = at
	}
	b.spans[e.Addr] = int32(len(b.l.Segments))
	b.l.Segments = append(b.l.Segments, SegmentSpan{Addr: e.Addr, Size: e.Size, Start: at,
		End: Never, Stream: e.Stream, Pool: e.Pool,
		Expandable: e.Kind == event.KindSegmentMap})
}

// release ends the ranges that the entry frees. An unmap may take pages out of the middle of a
// mapped range, or several ranges at once. What stays mapped goes on as a range of its own.
func (b *LedgerBuilder) release(at int32, e event.Entry) {
	l := b.l
	if i, ok := b.spans[e.Addr]; ok && l.Segments[i].Size == e.Size {
		l.Segments[i].End = at
		delete(b.spans, e.Addr)
		return
	}
	end := e.Addr + uint64(e.Size)
	found := false
	if e.Kind == event.KindSegmentUnmap {
		for _, i := range sortedValues(b.spans) {
			s := l.Segments[i]
			if s.Addr+uint64(s.Size) <= e.Addr || s.Addr >= end {
				continue
			}
			found = true
			l.Segments[i].End = at
			delete(b.spans, s.Addr)
			b.keepRest(at, s, s.Addr, min(e.Addr, s.Addr+uint64(s.Size)))
			b.keepRest(at, s, max(end, s.Addr), s.Addr+uint64(s.Size))
		}
	}
	if !found {
		l.Segments = append(l.Segments, SegmentSpan{Addr: e.Addr, Size: e.Size, Start: -1, End: at,
			Stream: e.Stream, Pool: e.Pool,
			Expandable: e.Kind == event.KindSegmentUnmap})
	}
}

func (b *LedgerBuilder) keepRest(at int32, s SegmentSpan, from, to uint64) {
	if from >= to {
		return
	}
	s.Addr, s.Size, s.Start, s.End = from, int64(to-from), at, Never
	b.spans[from] = int32(len(b.l.Segments))
	b.l.Segments = append(b.l.Segments, s)
}

func sortedValues(m map[uint64]int32) []int32 {
	values := make([]int32, 0, len(m))
	for _, v := range m {
		values = append(values, v)
	}
	slices.Sort(values)
	return values
}

// FinalBlock adds a block that was in use when the snapshot was taken. stack is where it was made.
func (b *LedgerBuilder) FinalBlock(addr uint64, size, requested int64, stack event.StackID) {
	if implausible(event.Entry{Addr: addr, Size: size}) {
		b.l.Implausible++
		return
	}
	i, ok := b.live[addr]
	switch {
	case !ok:
		b.older(addr, size, requested, stack)
	case i >= 0:
		b.l.Allocs[i].resize(size, b.l.Allocs[i].Requested())
	case b.before[^i].Stack == 0:
		b.before[^i].Stack = stack
	}
}

// FinalSegment adds a range that was reserved when the snapshot was taken.
func (b *LedgerBuilder) FinalSegment(s SegmentSpan) {
	if implausible(event.Entry{Addr: s.Addr, Size: s.Size}) {
		b.l.Implausible++
		return
	}
	if !s.Expandable {
		if _, ok := b.spans[s.Addr]; !ok {
			b.l.Segments = append(b.l.Segments, withLife(s, -1, Never))
		}
		return
	}
	// A mapped run is made of many maps: what they do not cover is older than the recording.
	var known []SegmentSpan
	for _, i := range b.spans {
		if k := b.l.Segments[i]; k.Addr < s.Addr+uint64(s.Size) && k.Addr+uint64(k.Size) > s.Addr {
			known = append(known, k)
		}
	}
	slices.SortFunc(known, func(x, y SegmentSpan) int { return cmp.Compare(x.Addr, y.Addr) })
	at := s.Addr
	for _, k := range append(known, SegmentSpan{Addr: s.Addr + uint64(s.Size)}) {
		if k.Addr > at {
			gap := s
			gap.Addr, gap.Size = at, int64(k.Addr-at)
			b.l.Segments = append(b.l.Segments, withLife(gap, -1, Never))
		}
		at = max(at, k.Addr+uint64(k.Size))
	}
}

func withLife(s SegmentSpan, start, end int32) SegmentSpan {
	s.Start, s.End = start, end
	return s
}

// Finish returns the table. The builder is spent.
func (b *LedgerBuilder) Finish() *Ledger {
	l := b.l
	l.Before = len(b.before)
	if l.Before > 0 {
		l.Allocs = slices.Insert(l.Allocs, 0, b.before...)
	}
	for i, f := range b.frees {
		if f < 0 {
			b.frees[i] = ^f
		} else {
			b.frees[i] = f + int32(l.Before)
		}
	}
	l.Frees = b.frees
	for i := b.placed; i < len(l.Notes); i++ {
		l.Notes[i].At = int32(l.Entries)
	}
	slices.SortStableFunc(l.Segments, func(x, y SegmentSpan) int {
		return cmp.Compare(x.Start,
			y.Start)
	})
	b.live, b.spans, b.before, b.frees = nil, nil, nil, nil
	return l
}

// Frames returns a stack, innermost frame first; none for id 0.
func (l *Ledger) Frames(id event.StackID) []event.Frame {
	if id == 0 || l.frames == nil {
		return nil
	}
	return l.frames(id)
}

// Walk visits every change of the allocated bytes in order: at is the entry, allocated the sum
// after it. What was there before recording is reported once, at -1.
func (l *Ledger) Walk(visit func(at int32, allocated int64)) {
	var sum int64
	reported := false
	l.WalkBlocks(func(at int32, a *Allocation, freed bool) {
		if at >= 0 && !reported {
			visit(-1, sum)
			reported = true
		}
		if freed {
			sum -= a.Size()
		} else {
			sum += a.Size()
		}
		if at >= 0 {
			visit(at, sum)
		}
	})
	if !reported {
		visit(-1, sum)
	}
}

// WalkBlocks visits every request and every release in order. Blocks older than the recording come
// first, at -1.
func (l *Ledger) WalkBlocks(visit func(at int32, a *Allocation, freed bool)) {
	next := 0
	for _, f := range l.Frees {
		freed := &l.Allocs[f]
		for ; next < len(l.Allocs) && l.Allocs[next].Start < freed.End; next++ {
			visit(l.Allocs[next].Start, &l.Allocs[next], false)
		}
		visit(freed.End, freed, true)
	}
	for ; next < len(l.Allocs); next++ {
		visit(l.Allocs[next].Start, &l.Allocs[next], false)
	}
}

// WalkReserved visits every change of the reserved bytes in order, as Walk does.
func (l *Ledger) WalkReserved(visit func(at int32, reserved int64)) {
	type change struct {
		at    int32
		bytes int64
	}
	changes := []change{{at: -1}}
	for _, s := range l.Segments {
		changes = append(changes, change{s.Start, s.Size})
		if s.End != Never {
			changes = append(changes, change{s.End, -s.Size})
		}
	}
	slices.SortStableFunc(changes, func(x, y change) int { return cmp.Compare(x.at, y.at) })
	var sum int64
	for i, c := range changes {
		sum += c.bytes
		// an unmap that cuts a range is one change
		if i+1 == len(changes) || changes[i+1].at != c.at {
			visit(c.at, sum)
		}
	}
}
