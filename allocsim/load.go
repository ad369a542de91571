package allocsim

import (
	"slices"

	"memroom/event"
)

// rangeKey identifies an expandable range before its base is known.
type rangeKey struct {
	stream uint64
	pool   event.PoolID
	small  bool
}

// load fills an empty allocator with segments and their blocks, and returns the live blocks by
// address. lowest has, for each kind of expandable range, the lowest address that the recording
// maps: the range begins there or below.
func (a *Allocator) load(start []event.Segment, lowest map[rangeKey]uint64,
	placed func(event.Block, Block)) {
	runs := map[rangeKey][]event.Segment{}
	var keys []rangeKey // in order of address: every load of a state must number blocks in the same way
	for i := range start {
		s := &start[i]
		if s.Expandable {
			k := rangeKey{s.Stream, s.Pool, s.Small}
			if runs[k] == nil {
				keys = append(keys, k)
			}
			runs[k] = append(runs[k], *s)
			continue
		}
		g := a.groupFor(s.Pool, s.Small, s.Stream)
		index := a.addSegment(segment{base: s.Addr, size: s.Size, group: g})
		for _, t := range [2]*PoolStats{&a.stats.All, a.poolStats(s.Small)} {
			t.Segment.add(1)
		}
		a.reserve(g, s.Size)
		a.loadBlocks(joinFree(s.Blocks), index, 0, placed)
	}
	for _, k := range keys {
		a.loadRange(k, joinRuns(runs[k]), lowest[k], placed)
	}
	a.stats.DeviceAllocs = 0
}

// joinFree merges free blocks that lie side by side, which the allocator never leaves so.
func joinFree(blocks []event.Block) []event.Block {
	joined := make([]event.Block, 0, len(blocks))
	for _, b := range blocks {
		if n := len(joined); n > 0 && b.State == event.BlockFree &&
			joined[n-1].State == event.BlockFree {
			joined[n-1].Size += b.Size
		} else {
			joined = append(joined, b)
		}
	}
	return joined
}

// joinRuns merges mapped runs that touch each other.
func joinRuns(runs []event.Segment) []event.Segment {
	var joined []event.Segment
	for _, r := range runs {
		if n := len(joined); n > 0 && joined[n-1].Addr+uint64(joined[n-1].Size) == r.Addr {
			joined[n-1].Size += r.Size
			joined[n-1].Blocks = joinFree(append(joined[n-1].Blocks, r.Blocks...))
		} else {
			r.Blocks = joinFree(r.Blocks)
			joined = append(joined, r)
		}
	}
	return joined
}

// groupFor returns the free blocks of a pool and stream, making the pool on first use.
func (a *Allocator) groupFor(id event.PoolID, isSmall bool, stream uint64) *group {
	index := slices.IndexFunc(a.pools, func(p [2]pool) bool { return p[0].id == id })
	if index < 0 {
		index = a.addPools(id)
	}
	if isSmall {
		return a.pools[index][small].group(stream)
	}
	return a.pools[index][large].group(stream)
}

// loadBlocks chains blocks behind the one named last (0 if the segment is empty yet) and returns
// the new last one.
func (a *Allocator) loadBlocks(blocks []event.Block, index int32, last blockRef,
	placed func(event.Block, Block)) blockRef {
	seg := a.segs[index]
	isSmall := seg.group.pool.small
	refs := make([]blockRef, len(blocks))
	for i, b := range blocks {
		ref := a.newBlock(b.Addr, b.Size, index, stateFree)
		if last == 0 {
			a.segs[index].first = ref
		} else {
			a.linkAfter(last, ref)
		}
		refs[i], last = ref, ref
	}
	for i, ref := range refs {
		b := blocks[i]
		if b.State != event.BlockFree {
			a.activate(ref, &b, isSmall)
			placed(b, Block{ref, a.blocks[ref].gen})
			continue
		}
		a.putFree(ref)
		if !seg.expandable && !a.blocks[ref].whole() {
			for _, t := range [2]*PoolStats{&a.stats.All, a.poolStats(isSmall)} {
				t.InactiveSplit.add(1)
				t.InactiveSplitBytes.add(b.Size)
			}
		}
	}
	return last
}

// activate marks a loaded block as in use.
func (a *Allocator) activate(ref blockRef, from *event.Block, isSmall bool) {
	a.gens++
	b := &a.blocks[ref]
	b.state, b.requested, b.gen = stateActive, from.Requested, a.gens
	for _, t := range [2]*PoolStats{&a.stats.All, a.poolStats(isSmall)} {
		t.Active.add(1)
		t.ActiveBytes.add(b.size)
		t.RequestedBytes.add(b.requested)
		if from.State == event.BlockActive {
			t.Allocation.add(1)
			t.AllocatedBytes.add(b.size)
		}
	}
	if from.State == event.BlockPending {
		b.state = statePending
		a.pending = append(a.pending, ref)
	}
}

// loadRange makes one expandable range out of its mapped runs.
func (a *Allocator) loadRange(k rangeKey, runs []event.Segment, lowest uint64,
	placed func(event.Block, Block)) {
	g := a.groupFor(k.pool, k.small, k.stream)
	page := a.pageOf(g)
	base := runs[0].Addr
	if lowest != 0 && lowest < base && (base-lowest)%uint64(page) == 0 &&
		base-lowest < uint64(a.total) {
		base = lowest
	}
	last := runs[len(runs)-1]
	size := max(a.rangeSize(g), int64(last.Addr-base)+last.Size+a.total)
	index := a.addSegment(segment{base: base, size: size, page: page, group: g, expandable: true})
	var tail blockRef
	at := base
	gap := func(to uint64) {
		if to > at {
			ref := a.newBlock(at, int64(to-at), index, stateUnmapped)
			if tail == 0 {
				a.segs[index].first = ref
			} else {
				a.linkAfter(tail, ref)
			}
			a.rememberUnmapped(ref)
			tail = ref
		}
	}
	for i := range runs {
		gap(runs[i].Addr)
		tail = a.loadBlocks(runs[i].Blocks, index, tail, placed)
		a.reserve(g, runs[i].Size)
		at = runs[i].Addr + uint64(runs[i].Size)
	}
	gap(base + uint64(size))
}

// Segments lists the segments of this moment as a snapshot would: in order of address,
// each mapped run of an expandable segment on its own.
func (a *Allocator) Segments() []event.Segment {
	var all []event.Segment
	for i := range a.segs {
		if s := &a.segs[i]; s.live {
			all = a.appendSegment(all, s)
		}
	}
	slices.SortFunc(all, func(x, y event.Segment) int {
		if x.Addr < y.Addr {
			return -1
		}
		return 1
	})
	return all
}

// appendSegment adds a segment, cut where pages are unmapped.
func (a *Allocator) appendSegment(all []event.Segment, s *segment) []event.Segment {
	open := false
	for ref := s.first; ref != 0; ref = a.blocks[ref].next {
		b := &a.blocks[ref]
		if b.state == stateUnmapped {
			open = false
			continue
		}
		if !open {
			all = append(all, event.Segment{Addr: b.addr, Stream: s.group.stream,
				Pool: s.group.pool.id, Small: s.group.pool.small, Expandable: s.expandable})
			open = true
		}
		run := &all[len(all)-1]
		run.Size += b.size
		block := event.Block{Addr: b.addr, Size: b.size}
		switch b.state {
		case stateActive:
			block.State, block.Requested = event.BlockActive, b.requested
		case statePending:
			block.State, block.Requested = event.BlockPending, b.requested
		}
		run.Blocks = append(run.Blocks, block)
	}
	return all
}
