package allocsim

// freeKey is the place of a free block in its set: by size, then rank, then address. What rank is
// depends on the release (see tieOrder).
type freeKey struct {
	size  int64
	rank  uint64
	addr  uint64
	block blockRef
}

func (k *freeKey) less(o *freeKey) bool {
	if k.size != o.size {
		return k.size < o.size
	}
	if k.rank != o.rank {
		return k.rank < o.rank
	}
	return k.addr < o.addr
}

// leafSize keeps a leaf within a few cache lines' worth of moving per insertion.
const leafSize = 64

type leaf struct {
	n    int
	keys [leafSize]freeKey
}

// freeSet is an ordered set of free blocks: a list of sorted leaves. Most programs have fewer free
// blocks than one leaf holds; with a hundred thousand, an operation is still two binary searches
// and a short move.
type freeSet struct {
	leaves []*leaf
	spare  []*leaf // emptied leaves, reused before new ones are made
}

// cursor is a position in a freeSet; it is invalid after a change of the set.
type cursor struct{ leaf, i int }

// seek returns the first position whose key is not below k.
func (s *freeSet) seek(k *freeKey) cursor {
	lo, hi := 0, len(s.leaves)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		l := s.leaves[mid]
		if l.keys[l.n-1].less(k) {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == len(s.leaves) {
		return cursor{lo, 0}
	}
	l := s.leaves[lo]
	a, b := 0, l.n
	for a < b {
		mid := int(uint(a+b) >> 1)
		if l.keys[mid].less(k) {
			a = mid + 1
		} else {
			b = mid
		}
	}
	return cursor{lo, a}
}

// at returns the key at a position, nil behind the last.
func (s *freeSet) at(c cursor) *freeKey {
	if c.leaf >= len(s.leaves) {
		return nil
	}
	return &s.leaves[c.leaf].keys[c.i]
}

func (s *freeSet) after(c cursor) cursor {
	if c.i+1 < s.leaves[c.leaf].n {
		return cursor{c.leaf, c.i + 1}
	}
	return cursor{c.leaf + 1, 0}
}

// insert adds k, which must not be in the set.
func (s *freeSet) insert(k freeKey) {
	if len(s.leaves) == 0 {
		l := s.newLeaf()
		l.keys[0], l.n = k, 1
		s.leaves = append(s.leaves, l)
		return
	}
	c := s.seek(&k)
	if c.leaf == len(s.leaves) {
		c.leaf--
		c.i = s.leaves[c.leaf].n
	}
	l := s.leaves[c.leaf]
	if l.n == leafSize {
		s.split(c.leaf)
		if c.i > leafSize/2 {
			c.leaf, c.i = c.leaf+1, c.i-leafSize/2
		}
		l = s.leaves[c.leaf]
	}
	copy(l.keys[c.i+1:l.n+1], l.keys[c.i:l.n])
	l.keys[c.i] = k
	l.n++
}

// split moves the upper half of a full leaf into a new one behind it.
func (s *freeSet) split(at int) {
	full, upper := s.leaves[at], s.newLeaf()
	copy(upper.keys[:], full.keys[leafSize/2:])
	full.n, upper.n = leafSize/2, leafSize/2
	s.leaves = append(s.leaves, nil)
	copy(s.leaves[at+2:], s.leaves[at+1:])
	s.leaves[at+1] = upper
}

func (s *freeSet) newLeaf() *leaf {
	if n := len(s.spare); n > 0 {
		l := s.spare[n-1]
		s.spare = s.spare[:n-1]
		return l
	}
	return &leaf{}
}

// removeAt takes out the key at a position.
func (s *freeSet) removeAt(c cursor) {
	l := s.leaves[c.leaf]
	copy(l.keys[c.i:l.n-1], l.keys[c.i+1:l.n])
	l.n--
	if l.n == 0 {
		s.spare = append(s.spare, l)
		s.leaves = append(s.leaves[:c.leaf], s.leaves[c.leaf+1:]...)
	}
}

// remove takes out k and returns the number of keys that were passed over. Only a recording that
// makes no sense has two blocks of equal keys: they lie on top of each other.
func (s *freeSet) remove(k *freeKey) (passed int) {
	for c := s.seek(k); ; c = s.after(c) {
		found := s.at(c)
		if found == nil || k.less(found) {
			return passed
		}
		if found.block == k.block {
			s.removeAt(c)
			return passed
		}
		passed++
	}
}

// each calls f on every block in order. The set must not change meanwhile.
func (s *freeSet) each(f func(*freeKey)) {
	for _, l := range s.leaves {
		for i := range l.n {
			f(&l.keys[i])
		}
	}
}

// eachBelow calls f on the blocks before a position, the nearest first.
func (s *freeSet) eachBelow(c cursor, f func(*freeKey) bool) {
	for n := min(c.leaf, len(s.leaves)-1); n >= 0; n-- {
		l, from := s.leaves[n], s.leaves[n].n
		if n == c.leaf {
			from = c.i
		}
		for i := from - 1; i >= 0; i-- {
			if !f(&l.keys[i]) {
				return
			}
		}
	}
}

// below returns the last key before an address, in a set that is ordered by address alone.
func (s *freeSet) below(addr uint64) (*freeKey, cursor) {
	c := s.seek(&freeKey{addr: addr})
	if c.i > 0 {
		c.i--
	} else if c.leaf > 0 {
		c.leaf--
		c.i = s.leaves[c.leaf].n - 1
	} else {
		return nil, c
	}
	return s.at(c), c
}

// floor returns the last key at or before an address, in a set that is ordered by address alone.
func (s *freeSet) floor(addr uint64) (*freeKey, cursor) {
	return s.below(addr + 1)
}
