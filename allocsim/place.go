package allocsim

import (
	"cmp"
	"slices"

	"memroom/event"
)

// alloc predicts where the model would place an allocation and compares. Segment entries right
// before it were made for it: then the search must have found nothing.
func (v *verifier) alloc(e *event.Entry) {
	v.out.Allocs++
	if e.Size <= 0 || e.Size > maxRequest {
		v.differ("an allocation of %d bytes", e.Size)
		return
	}
	s := v.a.config.Round(e.Size)
	pool := e.Pool
	if v.private {
		pool = v.poolAt(e)
	}
	g := v.a.groupFor(pool, s <= smallLimit, e.Stream)
	var ref blockRef
	switch {
	case pool != event.PoolID{}:
		v.out.Placed++
		v.applyGrowth(g)
		ref = v.force(e, s)
	case v.grewFor(e):
		ref = v.grown(e, g, s)
	default:
		ref = v.found(e, g, s)
	}
	if ref == 0 {
		return
	}
	ref = v.a.handOut(ref, e.Size, s)
	v.blocks.put(e.Addr, Block{ref, v.a.blocks[ref].gen}, v.ids)
	v.addOp(event.Op{Kind: event.OpAlloc, ID: v.ids, Size: e.Size, Tag: int32(e.Stack)}, g)
	if v.run.retried {
		v.requestBeforeCompletions()
	}
	v.ids++
}

// poolAt returns the pool that an allocation was placed in.
func (v *verifier) poolAt(e *event.Entry) event.PoolID {
	if e.Pool != (event.PoolID{}) {
		return e.Pool
	}
	if v.grewFor(e) {
		for i := range v.growth {
			if p := v.growth[i].Pool; p != (event.PoolID{}) {
				return p
			}
		}
	}
	v.a.effort += int64(len(v.a.segs))
	for i := range v.a.segs {
		s := &v.a.segs[i]
		if s.live && s.base <= e.Addr && e.Addr < s.base+uint64(s.size) &&
			s.group.pool.id != (event.PoolID{}) {
			return s.group.pool.id
		}
	}
	return event.PoolID{}
}

// grewFor reports whether the waiting segment entries were made for this allocation. Another
// thread's may lie between a segment and its allocation when the lock is released around
// cudaMalloc.
func (v *verifier) grewFor(e *event.Entry) bool {
	if len(v.growth) == 0 {
		return false
	}
	if v.growth[0].Kind == event.KindSegmentMap {
		return true
	}
	v.a.effort += int64(len(v.growth))
	return slices.ContainsFunc(v.growth, func(g event.Entry) bool { return g.Addr == e.Addr })
}

// found takes the block that the model's search finds, if it is the recorded one.
func (v *verifier) found(e *event.Entry, g *group, s int64) blockRef {
	a := v.a
	if v.at == 0 && !v.out.Complete {
		// the segment it was made with may have been recorded before the beginning that is lost
		return v.force(e, s)
	}
	if a.collecting() {
		g.pool.searches++
	}
	c, ok := a.bestFit(g, s)
	if !ok {
		if ref := v.mappedRoom(e, g, s); ref != 0 {
			return ref
		}
		v.differ("alloc of %d bytes at %#x: the model finds no free block", e.Size, e.Addr)
		return v.force(e, s)
	}
	for ok && g.free.at(c).addr != e.Addr && v.learnSize(g.free.at(c), s) {
		c, ok = a.bestFit(g, s)
	}
	if !ok {
		v.differ("alloc of %d bytes at %#x: the model finds no free block", e.Size, e.Addr)
		return v.force(e, s)
	}
	k := g.free.at(c)
	if k.addr != e.Addr {
		if v.run.released {
			if ref := v.mappedRoom(e, g, s); ref != 0 {
				return ref
			}
		}
		if ref := v.learnOrder(e, g, k); ref != 0 {
			return ref
		}
		v.differ("alloc of %d bytes at %#x: the model takes the free block of %d bytes at %#x",
			e.Size, e.Addr, k.size, k.addr)
		return v.force(e, s)
	}
	return a.takeAt(g, c)
}

// mappedRoom handles the rare request that finds no block, because of max_split_size or because the
// block was part of a larger one until a flush cut it, and that needs no new pages either: an
// expandable segment grows from the free block before its unmapped pages, however large that is.
func (v *verifier) mappedRoom(e *event.Entry, g *group, s int64) blockRef {
	if !v.a.config.Expandable {
		return 0
	}
	point := v.a.growthPoint(g, s)
	if point == 0 || v.a.blocks[point].addr != e.Addr || len(v.a.pagesToMap(point, s)) > 0 {
		return 0
	}
	return v.a.growExpandable(g, s)
}

// learnSize handles a free block that was not chosen although it would have been the best. If it
// lies behind a block from before the recording whose size is not certain, then that block is
// larger, and the free one too small.
func (v *verifier) learnSize(k *freeKey, s int64) bool {
	a := v.a
	ref := k.block
	prev := a.blocks[ref].prev
	if prev == 0 || a.blocks[prev].state == stateFree {
		return false
	}
	room, ok := v.uncertain[a.blocks[prev].addr]
	more := k.size - s + minBlock
	if !ok || more > room || more >= k.size {
		return false
	}
	a.takeFree(ref)
	a.blocks[ref].addr += uint64(more)
	a.blocks[ref].size -= more
	a.blocks[prev].size += more
	a.putFree(ref)
	for _, t := range [2]*PoolStats{&a.stats.All, &a.stats.Large} {
		t.ActiveBytes.add(more)
		if a.blocks[prev].state == stateActive {
			t.AllocatedBytes.add(more)
		}
		t.InactiveSplitBytes.sub(more)
	}
	v.uncertain[a.blocks[prev].addr] -= more
	v.learned++
	v.out.enlargeAtStart(a.blocks[prev].addr, more)
	return true
}

// enlargeAtStart corrects the size of a block in the state before the first entry. What lies behind
// it there is free.
func (r *Replayed) enlargeAtStart(addr uint64, more int64) {
	first, _ := slices.BinarySearchFunc(r.Start, addr, func(s event.Segment, addr uint64) int {
		return cmp.Compare(s.Addr+uint64(s.Size)-1, addr)
	})
	for i := first; i < len(r.Start) && r.Start[i].Addr <= addr; i++ {
		blocks := r.Start[i].Blocks
		for j := range blocks[:max(len(blocks)-1, 0)] {
			if blocks[j].Addr == addr && blocks[j+1].State == event.BlockFree &&
				blocks[j+1].Size > more {
				blocks[j].Size += more
				blocks[j+1].Addr += uint64(more)
				blocks[j+1].Size -= more
			}
		}
	}
}

// learnOrder handles PyTorch releases that order ties by age. The age of blocks from before the
// recording is unknown, and each choice between two blocks of equal size reveals something about
// it.
func (v *verifier) learnOrder(e *event.Entry, g *group, taken *freeKey) blockRef {
	if v.a.ties == byAddress || v.out.Complete || taken.rank > v.loaded {
		return 0
	}
	var chosen *freeKey
	for c := g.free.seek(&freeKey{size: taken.size}); g.free.at(c) != nil &&
		g.free.at(c).size == taken.size; c = g.free.after(c) {
		v.a.effort++
		if k := g.free.at(c); k.addr == e.Addr {
			chosen = k
		}
	}
	if chosen == nil || chosen.rank > v.loaded {
		return 0
	}
	first, second := taken.block, chosen.block
	v.a.swapAges(first, second)
	v.a.takeFree(second)
	v.learned++
	return second
}

// swapAges exchanges what orders two free blocks: their own age, or that of their segments.
func (a *Allocator) swapAges(x, y blockRef) {
	refile := []blockRef{x, y}
	if a.ties == bySegment {
		refile = append(a.freeOf(a.blocks[x].seg), a.freeOf(a.blocks[y].seg)...)
	}
	for _, ref := range refile {
		a.takeFree(ref)
	}
	if a.ties == bySegment {
		s, t := &a.segs[a.blocks[x].seg], &a.segs[a.blocks[y].seg]
		s.order, t.order = t.order, s.order
	} else {
		b, c := &a.blocks[x], &a.blocks[y]
		b.birth, c.birth = c.birth, b.birth
	}
	for _, ref := range refile {
		a.putFree(ref)
	}
}

// freeOf lists the free blocks of a segment.
func (a *Allocator) freeOf(index int32) (free []blockRef) {
	for ref := a.segs[index].first; ref != 0; ref = a.blocks[ref].next {
		a.effort++
		if a.blocks[ref].state == stateFree {
			free = append(free, ref)
		}
	}
	return free
}

// grown handles an allocation that needed memory from the driver.
func (v *verifier) grown(e *event.Entry, g *group, s int64) blockRef {
	a := v.a
	if a.collecting() {
		g.pool.searches++
	}
	if c, ok := a.bestFit(g, s); ok && !v.run.completed && !v.run.released {
		k := g.free.at(c)
		v.differ("alloc of %d bytes took new memory: the model takes the free block of %d bytes at %#x", e.Size, k.size, k.addr)
		v.applyGrowth(g)
		return v.force(e, s)
	}
	if v.growth[0].Kind == event.KindSegmentMap {
		return v.grownExpandable(e, g, s)
	}
	i := slices.IndexFunc(v.growth, func(x event.Entry) bool { return x.Addr == e.Addr })
	grown := v.growth[i]
	v.growth = slices.Delete(v.growth, i, i+1)
	v.out.Mallocs = append(v.out.Mallocs, SegmentAt{Addr: grown.Addr, Size: grown.Size})
	if want := a.config.segmentSize(s); grown.Size != want {
		v.differ("segment of %d bytes for an allocation of %d bytes: the model makes it %d",
			grown.Size, e.Size, want)
	}
	if grown.Size < s {
		return 0
	}
	return a.newSegment(g, grown.Addr, grown.Size)
}

// grownExpandable compares the pages that the model would map with those that were.
func (v *verifier) grownExpandable(e *event.Entry, g *group, s int64) blockRef {
	a := v.a
	point := a.growthPoint(g, s)
	if point == 0 {
		point = a.addRange(g, v.growth[0].Addr, max(a.rangeSize(g), (s/a.pageOf(g)+1)*a.pageOf(g)),
			a.pageOf(g))
	}
	want := a.pagesToMap(point, s)
	same := a.blocks[point].addr == e.Addr && len(want) == len(v.growth)
	for i := 0; same && i < len(want); i++ {
		same = want[i].Addr == v.growth[i].Addr && want[i].Size == v.growth[i].Size
	}
	if !same {
		v.differ("alloc of %d bytes at %#x mapped %s at %#x: the model maps %s from %#x on", e.Size,
			e.Addr, sum(v.growth), v.growth[0].Addr,
			sumPages(want), a.blocks[point].addr)
		v.applyGrowth(g)
		return v.force(e, s)
	}
	v.growth = v.growth[:0]
	return a.growExpandable(g, s)
}

func sum(entries []event.Entry) (bytes event.Bytes) {
	for i := range entries {
		bytes += event.Bytes(entries[i].Size)
	}
	return bytes
}

func sumPages(calls []SegmentAt) (bytes event.Bytes) {
	for _, c := range calls {
		bytes += event.Bytes(c.Size)
	}
	return bytes
}

// pagesToMap returns the map calls that growExpandable would make from a block on.
func (a *Allocator) pagesToMap(ref blockRef, s int64) (calls []SegmentAt) {
	page := a.segs[a.blocks[ref].seg].page
	var got int64
	for got < s && ref != 0 {
		a.effort++
		b := &a.blocks[ref]
		if b.state != stateUnmapped {
			got += b.size
			ref = b.next
			continue
		}
		size := min((min(s-got, b.size)+page-1)/page*page, b.size)
		calls = append(calls, SegmentAt{Addr: b.addr, Size: size})
		got += size
		ref = b.next
	}
	return calls
}

// dropGrowth applies segment entries that no allocation followed: a request that failed half way.
func (v *verifier) dropGrowth() {
	for len(v.growth) > 0 {
		e := v.growth[0]
		isSmall := e.Size == smallSegment
		v.applyGrowth(v.a.groupFor(e.Pool, isSmall, e.Stream))
	}
}

// applyGrowth adds the waiting segments and pages as free memory, as recorded.
func (v *verifier) applyGrowth(g *group) {
	for i := range v.growth {
		e := &v.growth[i]
		if e.Size <= 0 {
			v.differ("a segment of %d bytes", e.Size)
			continue
		}
		if e.Kind == event.KindSegmentAlloc {
			v.out.Mallocs = append(v.out.Mallocs, SegmentAt{Addr: e.Addr, Size: e.Size})
			v.a.putFree(v.a.newSegment(g, e.Addr, e.Size))
			continue
		}
		v.a.forceMap(g, e.Addr, e.Size)
	}
	v.growth = v.growth[:0]
}

// forceMap maps pages where a recording has them, in the range that has them unmapped or in a new
// one.
func (a *Allocator) forceMap(g *group, addr uint64, size int64) {
	var ref blockRef
	a.effort += int64(len(g.unmapped))
	for _, u := range g.unmapped {
		if b := &a.blocks[u]; b.addr <= addr && addr+uint64(size) <= b.addr+uint64(b.size) {
			ref = u
		}
	}
	if ref == 0 {
		ref = a.addRange(g, addr, max(a.rangeSize(g), size), a.pageOf(g))
	}
	if b := &a.blocks[ref]; b.addr < addr {
		a.forgetUnmapped(ref)
		front := a.newBlock(b.addr, int64(addr-b.addr), b.seg, stateUnmapped)
		a.linkBefore(ref, front)
		rest := &a.blocks[ref]
		rest.size -= int64(addr - rest.addr)
		rest.addr = addr
		a.rememberUnmapped(front)
		a.rememberUnmapped(ref)
	}
	a.mapExactly(ref, size)
}

// force takes the memory at the recorded address, wherever it is free. It returns 0 if it is not.
func (v *verifier) force(e *event.Entry, s int64) blockRef {
	a := v.a
	ref := a.freeAround(e.Addr, 1)
	if ref == 0 {
		return 0
	}
	b := &a.blocks[ref]
	if e.Addr+uint64(s) > b.addr+uint64(b.size) {
		return 0
	}
	a.takeFree(ref)
	if before := int64(e.Addr - b.addr); before > 0 {
		front := a.newBlock(b.addr, before, b.seg, stateFree)
		a.linkBefore(ref, front)
		rest := &a.blocks[ref]
		rest.addr += uint64(before)
		rest.size -= before
		a.putFree(front)
	}
	return ref
}

// freeAround returns the free block that contains [addr, addr+size). Only recordings that the model
// does not follow ask often, so the index is built for the first question.
func (a *Allocator) freeAround(addr uint64, size int64) blockRef {
	if a.byAddr == nil {
		a.byAddr = &freeSet{}
		for i := range a.pools {
			for j := range a.pools[i] {
				for _, g := range a.pools[i][j].groups {
					g.free.each(func(k *freeKey) {
						a.byAddr.insert(freeKey{addr: k.addr, block: k.block})
					})
				}
			}
		}
	}
	k, _ := a.byAddr.floor(addr)
	if k == nil || addr+uint64(size) > k.addr+uint64(a.blocks[k.block].size) {
		return 0
	}
	return k.block
}

func (v *verifier) freeRequested(e *event.Entry) {
	v.flushFree()
	slot := v.blocks.find(e.Addr)
	if slot == nil {
		if !v.rec.CutOff && v.out.Complete {
			v.differ("free of %d bytes at %#x, which is not allocated", e.Size, e.Addr)
		}
		return
	}
	if !v.a.FreePending(slot.block) {
		v.differ("second free of the block at %#x", e.Addr)
		return
	}
	if v.out.Timeline != nil {
		v.deferred = &event.Op{Kind: event.OpFree, ID: slot.id, Stream: v.streamRank(e.Stream)}
	}
	if v.skipped {
		v.freeCompleted(e)
	}
}

// freeCompleted makes a block reusable. Usually this directly follows the request; otherwise
// another stream used it.
func (v *verifier) freeCompleted(e *event.Entry) {
	slot := v.blocks.find(e.Addr)
	if slot == nil {
		v.flushFree()
		return // its free_requested was reported already, or lies before a damaged file's beginning
	}
	immediate := v.deferred != nil && v.deferred.ID == slot.id
	if !immediate {
		v.flushFree()
	}
	if v.a.live(slot.block, stateActive) {
		v.a.FreePending(slot.block)
		immediate = true
		if v.out.Timeline != nil {
			v.deferred = &event.Op{Kind: event.OpFree, ID: slot.id, Stream: v.streamRank(e.Stream)}
		}
	}
	if v.out.Timeline != nil {
		if immediate {
			v.out.Timeline.Ops = append(v.out.Timeline.Ops, *v.deferred)
			v.deferred = nil
		} else {
			v.out.Timeline.Ops = append(v.out.Timeline.Ops, event.Op{Kind: event.OpFreeDone,
				ID: slot.id, Stream: v.streamRank(e.Stream)})
		}
	}
	if !immediate {
		v.run.completed = true
	}
	v.a.FreeDone(slot.block)
	v.blocks.remove(e.Addr)
	delete(v.uncertain, e.Addr)
}

// flushFree writes down a free whose completion did not follow at once.
func (v *verifier) flushFree() {
	if v.deferred != nil {
		v.deferred.Kind = event.OpFreePending
		v.out.Timeline.Ops = append(v.out.Timeline.Ops, *v.deferred)
		v.deferred = nil
	}
}

func (v *verifier) addOp(op event.Op, g *group) {
	if v.out.Timeline == nil {
		return
	}
	v.flushFree()
	op.Stream = v.streamRank(g.stream)
	op.Pool = v.poolIndex(g.pool.id)
	v.out.Timeline.Ops = append(v.out.Timeline.Ops, op)
}

func (v *verifier) streamRank(stream uint64) int32 { return v.out.streamRank(stream) }

// streamRank numbers streams in the order of their values, which is the order of the free sets.
func (r *Replayed) streamRank(stream uint64) int32 {
	i, _ := slices.BinarySearch(r.streams, stream)
	return int32(i)
}

func (v *verifier) poolIndex(id event.PoolID) uint8 {
	i := slices.IndexFunc(v.a.pools, func(p [2]pool) bool { return p[0].id == id })
	return uint8(min(max(i, 0), 255))
}
