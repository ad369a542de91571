package allocsim

import (
	"slices"

	"memroom/event"
)

// bestExpandable refines the best fit where it lies in an expandable segment. With the option on, a
// block in front of unmapped pages counts as large as it could grow, so that holes are preferred to
// the growing tail; with the option off (it was switched off during the run), expandable blocks are
// passed over.
func (a *Allocator) bestExpandable(g *group, c cursor, k *freeKey) (cursor, *freeKey) {
	if !a.config.Expandable {
		for k != nil && a.segs[a.blocks[k.block].seg].expandable {
			a.effort++
			c = g.free.after(c)
			k = g.free.at(c)
		}
		return c, k
	}
	for {
		a.effort++
		next := g.free.after(c)
		n := g.free.at(next)
		if n == nil || a.couldGrowTo(n.block) >= a.couldGrowTo(k.block) {
			return c, k
		}
		c, k = next, n
	}
}

// couldGrowTo returns the block's size with the unmapped block behind it.
func (a *Allocator) couldGrowTo(ref blockRef) int64 {
	b := &a.blocks[ref]
	if b.next != 0 && a.blocks[b.next].state == stateUnmapped {
		return b.size + a.blocks[b.next].size
	}
	return b.size
}

// growExpandable maps pages until there is a free block of at least s bytes, and takes it out of
// the free set. Pages that were mapped before the card was full stay mapped.
func (a *Allocator) growExpandable(g *group, s int64) blockRef {
	ref := a.growthPoint(g, s)
	if ref == 0 {
		if s > a.rangeSize(g) {
			return 0 // more than the card and its address range have
		}
		ref = a.newRange(g)
	}
	if a.blocks[ref].state == stateUnmapped && !a.mapPages(ref, min(a.blocks[ref].size, s)) {
		return 0
	}
	for a.blocks[ref].size < s {
		next := a.blocks[ref].next
		// A recording that makes no sense can have ranges on top of each other: then what was room
		// a moment ago is none.
		if next == 0 || a.blocks[next].state != stateUnmapped ||
			!a.mapPages(next, min(s-a.blocks[ref].size, a.blocks[next].size)) {
			return 0
		}
		ref = next
	}
	a.takeFree(ref)
	return ref
}

// growthPoint finds the lowest place where free and unmapped blocks in a row have room for s bytes.
func (a *Allocator) growthPoint(g *group, s int64) blockRef {
	for _, ref := range g.unmapped {
		a.effort++
		if prev := a.blocks[ref].prev; prev != 0 && a.blocks[prev].takeable() {
			ref = prev
		}
		var room int64
		for at := ref; at != 0 && room < s && a.blocks[at].takeable(); at = a.blocks[at].next {
			a.effort++
			room += a.blocks[at].size
		}
		if room >= s {
			return ref
		}
	}
	return 0
}

// rangeSize returns the address space of an expandable segment: one eighth more than the card.
func (a *Allocator) rangeSize(g *group) int64 {
	page := a.pageOf(g)
	return (a.total + a.total/8 + page - 1) / page * page
}

// pageOf returns the granularity of mapping.
func (a *Allocator) pageOf(g *group) int64 {
	if g.pool.small {
		return smallSegment
	}
	return int64(a.config.LargeSegment)
}

// newRange reserves the address space of another expandable segment.
func (a *Allocator) newRange(g *group) blockRef {
	size := a.rangeSize(g)
	return a.addRange(g, a.driver.Reserve(size), size, a.pageOf(g))
}

func (a *Allocator) addRange(g *group, base uint64, size, page int64) blockRef {
	index := a.addSegment(segment{base: base, size: size, page: page, group: g, expandable: true})
	ref := a.newBlock(base, size, index, stateUnmapped)
	a.segs[index].first = ref
	a.rememberUnmapped(ref)
	return ref
}

// mapPages maps the whole pages that cover the first size bytes of an unmapped block and merges the
// result with its free neighbours. It reports whether the card had room. Only a recording that
// makes no sense has a block that ends inside a page.
func (a *Allocator) mapPages(ref blockRef, size int64) bool {
	page := a.segs[a.blocks[ref].seg].page
	size = min((size+page-1)/page*page, a.blocks[ref].size)
	if !a.driverHas(size) {
		return false
	}
	a.mapExactly(ref, size)
	return true
}

func (a *Allocator) mapExactly(ref blockRef, size int64) {
	a.forgetUnmapped(ref)
	b := &a.blocks[ref]
	b.state = stateFree
	g, addr := a.groupOf(b), b.addr
	if size < b.size {
		rest := a.newBlock(addr+uint64(size), b.size-size, b.seg, stateUnmapped)
		a.linkAfter(ref, rest)
		a.blocks[ref].size = size
		a.rememberUnmapped(rest)
	}
	a.absorb(ref, a.blocks[ref].prev)
	a.absorb(ref, a.blocks[ref].next)
	a.putFree(ref)
	a.reserve(g, size)
	a.tell(event.KindSegmentMap, addr, size, g)
}

// pagesInside returns the whole pages inside a block, as offsets from the segment's base; begin >=
// end means none.
func (s *segment) pagesInside(b *block) (begin, end uint64) {
	page := uint64(s.page)
	return (b.addr - s.base + page - 1) / page * page, (b.addr - s.base +
		uint64(b.size)) / page * page
}

// unmapPages returns the pages that lie wholly inside a free block; what is left of it before and
// behind stays mapped.
func (a *Allocator) unmapPages(ref blockRef) {
	seg := &a.segs[a.blocks[ref].seg]
	begin, end := seg.pagesInside(&a.blocks[ref])
	if begin >= end {
		return
	}
	a.unmapExactly(ref, seg.base+begin, int64(end-begin))
	a.dropIfUnmapped(ref)
}

// dropIfUnmapped frees the address range of an expandable segment once nothing of it is
// mapped.
func (a *Allocator) dropIfUnmapped(ref blockRef) {
	if !a.blocks[ref].whole() {
		return
	}
	a.forgetUnmapped(ref)
	index := a.blocks[ref].seg
	a.driver.Free(a.segs[index].base, a.segs[index].size)
	a.dropSegment(index)
	a.dropBlock(ref)
}

// unmapExactly unmaps [addr, addr+size) of a free block.
func (a *Allocator) unmapExactly(ref blockRef, addr uint64, size int64) {
	a.takeFree(ref)
	b := a.blocks[ref]
	g := a.groupOf(&b)
	if before := int64(addr - b.addr); before > 0 {
		fringe := a.newBlock(b.addr, before, b.seg, stateFree)
		a.linkBefore(ref, fringe)
		a.putFree(fringe)
	}
	if after := b.size - int64(addr-b.addr) - size; after > 0 {
		fringe := a.newBlock(addr+uint64(size), after, b.seg, stateFree)
		a.linkAfter(ref, fringe)
		a.putFree(fringe)
	}
	a.blocks[ref].addr, a.blocks[ref].size, a.blocks[ref].state = addr, size, stateUnmapped
	a.absorb(ref, a.blocks[ref].prev)
	a.absorb(ref, a.blocks[ref].next)
	a.rememberUnmapped(ref)
	a.unreserve(g, size)
	a.tell(event.KindSegmentUnmap, addr, size, g)
}

func (a *Allocator) rememberUnmapped(ref blockRef) {
	g := a.groupOf(&a.blocks[ref])
	a.effort += int64(len(g.unmapped)) / 16
	g.unmapped = slices.Insert(g.unmapped, a.unmappedIndex(g, a.blocks[ref].addr), ref)
}

func (a *Allocator) forgetUnmapped(ref blockRef) {
	g := a.groupOf(&a.blocks[ref])
	a.effort += int64(len(g.unmapped)) / 16
	// Not by address: a recording that makes no sense can have ranges on top of each other.
	if i := slices.Index(g.unmapped, ref); i >= 0 {
		g.unmapped = slices.Delete(g.unmapped, i, i+1)
	}
}

// unmappedIndex returns the place of an address among the unmapped blocks of a group.
func (a *Allocator) unmappedIndex(g *group, addr uint64) int {
	i, _ := slices.BinarySearchFunc(g.unmapped, addr, func(ref blockRef, addr uint64) int {
		switch {
		case a.blocks[ref].addr < addr:
			return -1
		case a.blocks[ref].addr > addr:
			return 1
		}
		return 0
	})
	return i
}
