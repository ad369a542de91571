package allocsim

import (
	"slices"

	"memroom/event"
)

// The state before a recording's first entry is found by undoing its entries one after the other,
// from the state at the end. That works because free neighbours are always merged: the state is
// fully described by the segments (or mapped runs) and the active blocks in them, and what lies
// between is free.
//
// Only one thing is not recorded: how large the block of an allocation was that was made before the
// recording began and freed during it. Small blocks, and all with expandable segments, have exactly
// their rounded size; a large one may have up to 1 MiB more, when that was too little to split off.
// Most of these are settled by a neighbour (see settleBefore).

// pastBlock is an active block while entries are undone.
type pastBlock struct {
	addr      uint64
	size      int64
	requested int64
	stack     event.StackID
	pending   bool
	known     bool // the size is certain
}

// pastState is the allocator's state at some moment of the recording.
type pastState struct {
	config   *Config
	segments freeSet // keyed by address
	segInfo  []event.Segment
	active   freeSet // keyed by address
	blocks   []pastBlock
	spare    []blockRef
	odd      int   // entries that could not be undone
	came     int64 // bytes of all segments that were ever in it
}

// rewind returns the segments with their active blocks before the first entry, and the addresses of
// those blocks whose size is not certain; odd counts entries that contradict the end.
func rewind(rec *event.Recording, c *Config) (start []event.Segment, uncertain map[uint64]int64,
	odd int) {
	p := &pastState{config: c, blocks: make([]pastBlock, 1)}
	for _, s := range rec.Segments {
		p.addSegment(s)
		for _, b := range s.Blocks {
			if b.State != event.BlockFree {
				p.addActive(pastBlock{addr: b.Addr, size: b.Size, requested: b.Requested,
					stack:   b.Stack,
					pending: b.State == event.BlockPending, known: true})
			}
		}
	}
	for _, e := range rec.History.Backward() {
		p.undo(e)
	}
	start, uncertain = p.result()
	return start, uncertain, p.odd
}

func byAddr(addr uint64) *freeKey { return &freeKey{addr: addr} }

func (p *pastState) addSegment(s event.Segment) {
	s.Blocks = nil
	if p.came+s.Size > maxTotal {
		p.odd++
		return
	}
	p.came += s.Size
	p.segInfo = append(p.segInfo, s)
	p.segments.insert(freeKey{addr: s.Addr, block: blockRef(len(p.segInfo) - 1)})
}

func (p *pastState) addActive(b pastBlock) {
	var ref blockRef
	if n := len(p.spare); n > 0 {
		ref, p.spare = p.spare[n-1], p.spare[:n-1]
		p.blocks[ref] = b
	} else {
		p.blocks = append(p.blocks, b)
		ref = blockRef(len(p.blocks) - 1)
	}
	p.active.insert(freeKey{addr: b.addr, block: ref})
}

// at returns the active block that begins at an address.
func (p *pastState) at(addr uint64) (*pastBlock, cursor) {
	c := p.active.seek(byAddr(addr))
	if k := p.active.at(c); k != nil && k.addr == addr {
		return &p.blocks[k.block], c
	}
	return nil, c
}

// segmentAround returns the segment that contains an address.
func (p *pastState) segmentAround(addr uint64) *event.Segment {
	k, _ := p.segments.floor(addr)
	if k == nil {
		return nil
	}
	if s := &p.segInfo[k.block]; addr < s.Addr+uint64(s.Size) {
		return s
	}
	return nil
}

// taken reports whether a segment lies in [addr, addr+size).
func (p *pastState) taken(addr uint64, size int64) bool {
	if p.segmentAround(addr) != nil {
		return true
	}
	k := p.segments.at(p.segments.seek(byAddr(addr)))
	return k != nil && k.addr < addr+uint64(size)
}

func (p *pastState) undo(e *event.Entry) {
	if !plausible(e) {
		p.odd++
		return
	}
	switch e.Kind {
	case event.KindAlloc:
		p.undoAlloc(e)
	case event.KindFreeCompleted:
		p.undoFree(e)
	case event.KindFreeRequested:
		if b, _ := p.at(e.Addr); b != nil {
			b.pending = false
		} else {
			p.undoFree(e) // no free_completed was recorded
			if b, _ := p.at(e.Addr); b != nil {
				b.pending = false
			}
		}
	case event.KindSegmentAlloc, event.KindSegmentMap:
		p.removeRange(e.Addr, e.Size)
	case event.KindSegmentFree:
		if p.taken(e.Addr, e.Size) {
			p.odd++
			return
		}
		p.addSegment(event.Segment{Addr: e.Addr, Size: e.Size, Stream: e.Stream, Pool: e.Pool,
			Small: e.Size == smallSegment})
	case event.KindSegmentUnmap:
		p.addRange(e)
	}
}

func (p *pastState) undoAlloc(e *event.Entry) {
	b, c := p.at(e.Addr)
	if b == nil {
		p.odd++
		return
	}
	p.spare = append(p.spare, p.active.at(c).block)
	p.active.removeAt(c)
	p.settleBefore(e.Addr)
}

// undoFree brings back a block that was freed. Its size follows from its neighbours where it can.
func (p *pastState) undoFree(e *event.Entry) {
	if b, _ := p.at(e.Addr); b != nil {
		p.odd++
		return
	}
	seg := p.segmentAround(e.Addr)
	if seg == nil {
		p.odd++
		return
	}
	b := pastBlock{addr: e.Addr, requested: e.Size, size: p.config.Round(max(e.Size, 1)),
		stack: e.Stack, pending: true, known: true}
	if !seg.Small && !p.config.Expandable {
		p.sizeLarge(&b, seg)
	}
	p.settleBefore(e.Addr)
	p.addActive(b)
}

// sizeLarge finds the size of a block of the large pool. A free block there is always larger than 1
// MiB, so a smaller space behind the rounded size belongs to the block.
func (p *pastState) sizeLarge(b *pastBlock, seg *event.Segment) {
	end := seg.Addr + uint64(seg.Size)
	if b.size >= int64(p.config.MaxSplit) {
		b.size = int64(end - b.addr)
		return
	}
	if k := p.active.at(p.active.seek(byAddr(b.addr))); k != nil && k.addr < end {
		end = k.addr
	}
	if room := int64(end - b.addr); room-b.size <= smallLimit {
		b.size = room
	} else {
		b.known = false
	}
}

// settleBefore settles the size of an uncertain block when another active block is found to begin,
// or to have begun, at most 1 MiB behind it: what lies between can only be part of it.
func (p *pastState) settleBefore(addr uint64) {
	k, _ := p.active.below(addr)
	if k == nil {
		return
	}
	b := &p.blocks[k.block]
	if b.known || p.segmentAround(b.addr) != p.segmentAround(addr) {
		return
	}
	if room := int64(addr - b.addr); room-b.size <= smallLimit && room >= b.size {
		b.size, b.known = room, true
	}
}

// removeRange takes memory out of the state that a later entry brought in.
func (p *pastState) removeRange(addr uint64, size int64) {
	seg := p.segmentAround(addr)
	if seg == nil || addr+uint64(size) > seg.Addr+uint64(seg.Size) {
		p.odd++
		return
	}
	before, after := *seg, *seg
	before.Size = int64(addr - seg.Addr)
	after.Addr, after.Size = addr+uint64(size), seg.Size-before.Size-size
	_, c := p.segments.floor(addr)
	p.segments.removeAt(c)
	for _, rest := range []event.Segment{before, after} {
		if rest.Size > 0 {
			p.addSegment(rest)
		}
	}
}

// addRange puts back pages of an expandable segment, joining them with the mapped runs they touch.
func (p *pastState) addRange(e *event.Entry) {
	if p.taken(e.Addr, e.Size) {
		p.odd++
		return
	}
	s := event.Segment{Addr: e.Addr, Size: e.Size, Stream: e.Stream, Pool: e.Pool, Expandable: true,
		Small: e.Size < int64(p.config.LargeSegment)}
	if k, c := p.segments.floor(e.Addr); k != nil {
		if before := p.segInfo[k.block]; before.Expandable &&
			before.Addr+uint64(before.Size) == s.Addr && before.Stream == s.Stream {
			s.Addr, s.Size, s.Small = before.Addr, s.Size+before.Size, before.Small
			p.segments.removeAt(c)
		}
	}
	end := s.Addr + uint64(s.Size)
	c := p.segments.seek(byAddr(end))
	if k := p.segments.at(c); k != nil && k.addr == end {
		if after := p.segInfo[k.block]; after.Expandable && after.Stream == s.Stream {
			s.Size, s.Small = s.Size+after.Size, after.Small
			p.segments.removeAt(c)
		}
	}
	p.addSegment(s)
}

// result lists the segments with their blocks, free space included.
func (p *pastState) result() (start []event.Segment, uncertain map[uint64]int64) {
	uncertain = map[uint64]int64{}
	p.segments.each(func(k *freeKey) {
		start = append(start, p.segInfo[k.block])
	})
	at := 0
	p.active.each(func(k *freeKey) {
		b := &p.blocks[k.block]
		for at < len(start) && start[at].Addr+uint64(start[at].Size) <= b.addr {
			at++
		}
		if at == len(start) || b.addr < start[at].Addr {
			p.odd++
			return
		}
		if !b.known {
			uncertain[b.addr] = smallLimit
		}
		state := event.BlockActive
		if b.pending {
			state = event.BlockPending
		}
		start[at].Blocks = append(start[at].Blocks, event.Block{Addr: b.addr, Size: b.size,
			Requested: b.requested, Stack: b.stack, State: state})
	})
	for i := range start {
		start[i].Blocks = withGaps(&start[i], &p.odd)
	}
	return start, uncertain
}

// withGaps fills the space between active blocks with free ones.
func withGaps(s *event.Segment, odd *int) []event.Block {
	var blocks []event.Block
	at, end := s.Addr, s.Addr+uint64(s.Size)
	for _, b := range s.Blocks {
		if b.Addr < at || b.Addr+uint64(b.Size) > end {
			*odd++ // overlaps its neighbour or leaves the segment
			continue
		}
		if b.Addr > at {
			blocks = append(blocks, event.Block{Addr: at, Size: int64(b.Addr - at)})
		}
		blocks = append(blocks, b)
		at = b.Addr + uint64(b.Size)
	}
	if at < end {
		blocks = append(blocks, event.Block{Addr: at, Size: int64(end - at)})
	}
	return slices.Clip(blocks)
}
