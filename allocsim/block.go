package allocsim

import "memroom/event"

// blockRef is an index into Allocator.blocks; 0 is "none".
type blockRef int32

// blockState is who may use a block. Blocks that are free or unmapped can be taken.
type blockState uint8

const (
	// mapped, in a free set (or just made and about to be handed out)
	stateFree    blockState = iota
	stateActive             // handed out
	statePending            // freed by the program, waiting for another stream
	stateUnmapped
)

// block is a piece of a segment. Neighbours in the segment are linked in order of address.
type block struct {
	addr      uint64
	size      int64
	requested int64
	birth     uint64 // creation counter, the tie-break of 2.12
	// the pool's search counter when the block became free; garbage collection frees the oldest
	age        int64
	prev, next blockRef
	seg        int32
	gen        uint32 // serial number of the allocation that holds the block
	state      blockState
}

func (b *block) whole() bool { return b.prev == 0 && b.next == 0 }

// takeable reports whether the block is free or unmapped.
func (b *block) takeable() bool { return b.state == stateFree || b.state == stateUnmapped }

// segment is what the driver gave in one piece: a cudaMalloc, or the address range of an expandable
// segment.
type segment struct {
	base       uint64
	size       int64 // of the whole range, mapped or not
	page       int64 // expandable: the granularity of mapping
	order      uint64
	group      *group
	first      blockRef // the block at base; kept only for walking over segments
	expandable bool
	live       bool
}

// group is the part of a pool that belongs to one stream. Blocks never leave it.
type group struct {
	pool     *pool
	stream   uint64
	free     freeSet
	unmapped []blockRef // ascending by address
}

// pool is one of a pair: small or large blocks. The default pair comes first, private pairs follow.
type pool struct {
	small    bool
	id       event.PoolID
	groups   []*group // ascending by stream
	last     *group
	searches int64 // calls of the free-block search while garbage collection is possible
}

// group returns the part of the pool for a stream, making it on first use.
func (p *pool) group(stream uint64) *group {
	if p.last != nil && p.last.stream == stream {
		return p.last
	}
	at := 0
	for at < len(p.groups) && p.groups[at].stream < stream {
		at++
	}
	if at == len(p.groups) || p.groups[at].stream != stream {
		p.groups = append(p.groups, nil)
		copy(p.groups[at+1:], p.groups[at:])
		p.groups[at] = &group{pool: p, stream: stream}
	}
	p.last = p.groups[at]
	return p.last
}

// newBlock takes a block from the arena. Pointers into the arena are invalid afterwards.
func (a *Allocator) newBlock(addr uint64, size int64, seg int32, state blockState) blockRef {
	a.births++
	b := block{addr: addr, size: size, seg: seg, state: state, birth: a.births}
	if n := len(a.unused); n > 0 {
		ref := a.unused[n-1]
		a.unused = a.unused[:n-1]
		a.blocks[ref] = b
		return ref
	}
	a.blocks = append(a.blocks, b)
	return blockRef(len(a.blocks) - 1)
}

func (a *Allocator) dropBlock(ref blockRef) { a.unused = append(a.unused, ref) }

func (a *Allocator) groupOf(b *block) *group { return a.segs[b.seg].group }

// key returns the block's place in its free set.
func (a *Allocator) key(ref blockRef, b *block) freeKey {
	k := freeKey{size: b.size, addr: b.addr, block: ref}
	switch a.ties {
	case byCreation:
		k.rank = b.birth
	case bySegment:
		k.rank = a.segs[b.seg].order
	}
	return k
}

// putFree inserts a free block in its set.
func (a *Allocator) putFree(ref blockRef) {
	b := &a.blocks[ref]
	g := a.groupOf(b)
	b.age = g.pool.searches
	g.free.insert(a.key(ref, b))
	if a.byAddr != nil {
		a.byAddr.insert(freeKey{addr: b.addr, block: ref})
	}
}

// takeAt removes the free block at a position of its set.
func (a *Allocator) takeAt(g *group, c cursor) blockRef {
	k := g.free.at(c)
	ref := k.block
	a.forgetAddr(k.addr, ref)
	g.free.removeAt(c)
	return ref
}

// forgetAddr removes a block that is no longer free from the index by address.
func (a *Allocator) forgetAddr(addr uint64, ref blockRef) {
	if a.byAddr != nil {
		a.effort += int64(a.byAddr.remove(&freeKey{addr: addr, block: ref}))
	}
}

// takeFree removes a free block from its set.
func (a *Allocator) takeFree(ref blockRef) {
	b := &a.blocks[ref]
	k := a.key(ref, b)
	a.forgetAddr(b.addr, ref)
	a.effort += int64(a.groupOf(b).free.remove(&k))
}

// linkAfter puts the block n behind p in its segment.
func (a *Allocator) linkAfter(p, n blockRef) {
	next := a.blocks[p].next
	a.blocks[n].prev, a.blocks[n].next = p, next
	a.blocks[p].next = n
	if next != 0 {
		a.blocks[next].prev = n
	}
}

// linkBefore puts the block p in front of n in its segment.
func (a *Allocator) linkBefore(n, p blockRef) {
	prev := a.blocks[n].prev
	a.blocks[p].prev, a.blocks[p].next = prev, n
	a.blocks[n].prev = p
	if prev != 0 {
		a.blocks[prev].next = p
	} else {
		a.segs[a.blocks[n].seg].first = p
	}
}

// absorb merges the neighbour src into dst when both can be taken and both are mapped, or neither
// is. It returns the number of bytes gained.
func (a *Allocator) absorb(dst, src blockRef) int64 {
	if src == 0 {
		return 0
	}
	d, s := &a.blocks[dst], &a.blocks[src]
	if !s.takeable() || (d.state == stateUnmapped) != (s.state == stateUnmapped) {
		return 0
	}
	if s.state == stateUnmapped {
		a.forgetUnmapped(src)
	} else {
		a.takeFree(src)
	}
	if d.prev == src {
		d.addr, d.prev = s.addr, s.prev
		if d.prev != 0 {
			a.blocks[d.prev].next = dst
		} else {
			a.segs[d.seg].first = dst
		}
	} else {
		d.next = s.next
		if d.next != 0 {
			a.blocks[d.next].prev = dst
		}
	}
	d.size += s.size
	gained := s.size
	a.dropBlock(src)
	return gained
}
