package allocsim

import "memroom/event"

// obtain gets a block that no free set holds from the driver, if need be after releasing cached
// memory. It returns 0 when nothing helps; rejected is set where its settings forbid a try.
func (a *Allocator) obtain(g *group, s int64) (ref blockRef, rejected bool) {
	if a.collecting() {
		a.collectGarbage()
	}
	if a.rejectsEarly(s) {
		a.stats.OOMRejections++
		return 0, true
	}
	if ref := a.grow(g, s); ref != 0 {
		return ref, false
	}
	if a.config.MaxSplit != Unlimited && a.releaseOversize(g, s) {
		if ref := a.grow(g, s); ref != 0 {
			return ref, false
		}
	}
	a.releaseCached()
	a.stats.AllocRetries++
	return a.grow(g, s), false
}

// rejectsEarly is throw_on_cudamalloc_oom of 2.12: no release is tried.
func (a *Allocator) rejectsEarly(s int64) bool {
	return a.config.RejectEarly && a.limit > 0 && a.ver.atLeast(2, 12) &&
		a.reserved+a.config.segmentSize(s) > a.limit
}

// grow asks the driver for memory. The limit is compared with the size of a whole segment even
// where expandable segments would map less.
func (a *Allocator) grow(g *group, s int64) blockRef {
	size := a.config.segmentSize(s)
	if a.reserved+size > maxTotal || a.limit > 0 && a.reserved+size > a.limit {
		return 0
	}
	if a.config.Expandable && (g.pool.id == event.PoolID{} || a.ver.atLeast(2, 5)) {
		return a.growExpandable(g, s)
	}
	if !a.driverHas(size) {
		return 0
	}
	return a.newSegment(g, a.driver.Malloc(size), size)
}

// driverHas reports whether the card has this much left.
func (a *Allocator) driverHas(size int64) bool {
	return a.budget == 0 ||
		a.reserved+size <= a.budget
}

// newSegment makes a segment of one block, which is not in the free set.
func (a *Allocator) newSegment(g *group, addr uint64, size int64) blockRef {
	index := a.addSegment(segment{base: addr, size: size, group: g})
	ref := a.newBlock(addr, size, index, stateFree)
	a.segs[index].first = ref
	a.reserve(g, size)
	for _, t := range [2]*PoolStats{&a.stats.All, a.poolStats(g.pool.small)} {
		t.Segment.add(1)
	}
	if size >= int64(a.config.MaxSplit) {
		a.stats.OversizeSegments.add(1)
	}
	a.tell(event.KindSegmentAlloc, addr, size, g)
	return ref
}

func (a *Allocator) addSegment(s segment) int32 {
	a.orders++
	s.order, s.live = a.orders, true
	if n := len(a.spent); n > 0 {
		index := a.spent[n-1]
		a.spent = a.spent[:n-1]
		a.segs[index] = s
		return index
	}
	a.segs = append(a.segs, s)
	return int32(len(a.segs) - 1)
}

func (a *Allocator) dropSegment(index int32) {
	a.segs[index].live = false
	a.spent = append(a.spent, index)
}

// reserve counts memory that came from the driver in one call.
func (a *Allocator) reserve(g *group, size int64) {
	a.reserved += size
	a.stats.DeviceAllocs++
	a.stats.All.ReservedBytes.add(size)
	a.poolStats(g.pool.small).ReservedBytes.add(size)
}

// unreserve counts memory that went back to the driver in one call.
func (a *Allocator) unreserve(g *group, size int64) {
	a.reserved -= size
	a.stats.DeviceFrees++
	a.stats.All.ReservedBytes.sub(size)
	a.poolStats(g.pool.small).ReservedBytes.sub(size)
}

// returnSegment returns a wholly free segment to the driver.
func (a *Allocator) returnSegment(ref blockRef) {
	a.takeFree(ref)
	b := &a.blocks[ref]
	g := a.groupOf(b)
	a.driver.Free(b.addr, b.size)
	a.unreserve(g, b.size)
	for _, t := range [2]*PoolStats{&a.stats.All, a.poolStats(g.pool.small)} {
		t.Segment.sub(1)
	}
	if b.size >= int64(a.config.MaxSplit) {
		a.stats.OversizeSegments.sub(1)
	}
	a.tell(event.KindSegmentFree, b.addr, b.size, g)
	a.dropSegment(b.seg)
	a.dropBlock(ref)
}

// releaseOversize returns just enough blocks that max_split_size keeps whole for this request to
// fit. It reports whether it released enough.
func (a *Allocator) releaseOversize(g *group, s int64) bool {
	least := int64(a.config.MaxSplit)
	want := max(s, least)
	c := g.free.seek(&freeKey{size: want})
	if k := g.free.at(c); k != nil && a.returnable(k.block) {
		a.returnSegment(k.block)
		return true
	}
	var chosen []blockRef
	var released int64
	g.free.eachBelow(c, func(k *freeKey) bool {
		a.effort++
		if k.size < least || released >= want {
			return false
		}
		if a.returnable(k.block) {
			chosen = append(chosen, k.block)
			released += k.size
		}
		return true
	})
	for _, ref := range chosen {
		a.returnSegment(ref)
	}
	return released >= want
}

// returnable reports whether a free block is a whole segment that cudaMalloc gave. Blocks above
// max_split_size always are, except in a recording that makes no sense.
func (a *Allocator) returnable(ref blockRef) bool {
	return a.blocks[ref].whole() && !a.segs[a.blocks[ref].seg].expandable
}

// EmptyCache returns every wholly free segment, and every wholly free page of expandable segments,
// to the driver, after waiting for the frees that other streams held up: torch.cuda.empty_cache().
func (a *Allocator) EmptyCache() { a.releaseCached() }

func (a *Allocator) releaseCached() {
	a.stats.SyncAllStreams++
	pending := a.pending
	a.pending = nil
	for _, ref := range pending {
		a.complete(ref)
	}
	a.releasePool(&a.pools[0][large])
	a.releasePool(&a.pools[0][small])
}

// releasePool returns what can be returned of one pool, in the order of its free sets.
func (a *Allocator) releasePool(p *pool) {
	var segments, pages []blockRef
	for _, g := range p.groups {
		g.free.each(func(k *freeKey) {
			a.effort++
			if a.segs[a.blocks[k.block].seg].expandable {
				pages = append(pages, k.block)
			} else if a.blocks[k.block].whole() {
				segments = append(segments, k.block)
			}
		})
	}
	for _, ref := range segments {
		a.returnSegment(ref)
	}
	for _, ref := range pages {
		a.unmapPages(ref)
	}
}

// collectGarbage returns whole free segments of the large pool that have not been used for longer
// than the average of them, until reserved memory is back below the threshold.
func (a *Allocator) collectGarbage() {
	threshold := int64(a.config.GCThreshold * float64(a.limit))
	if a.reserved <= threshold {
		return
	}
	target := a.reserved - threshold
	p := &a.pools[0][large]
	candidates, ages := a.wholeBlocks(p)
	count := int64(len(candidates))
	var reclaimed int64
	for freed := true; freed && reclaimed < target && count > 0; {
		freed = false
		average := float64(ages) / float64(count)
		kept := candidates[:0]
		a.effort += int64(len(candidates))
		for _, ref := range candidates {
			b := &a.blocks[ref]
			age := p.searches - b.age
			if a.segs[b.seg].expandable || float64(age) < average {
				kept = append(kept, ref)
				continue
			}
			freed = true
			reclaimed += b.size
			ages -= age
			count--
			a.returnSegment(ref)
		}
		candidates = kept
	}
}

// wholeBlocks lists the unsplit free blocks of a pool in order, with the sum of their ages.
func (a *Allocator) wholeBlocks(p *pool) (blocks []blockRef, ages int64) {
	for _, g := range p.groups {
		g.free.each(func(k *freeKey) {
			a.effort++
			if b := &a.blocks[k.block]; b.whole() {
				blocks = append(blocks, k.block)
				ages += p.searches - b.age
			}
		})
	}
	return blocks, ages
}
