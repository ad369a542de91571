// Package order computes which row comes when, as a function: a keyed permutation of (seed, epoch,
// position). Nothing is drawn from a stream of random numbers and nothing is kept, so any position
// of any epoch can be asked for, and the answer never depends on workers, ranks or budgets.
package order

import "math/bits"

// Permutation is a keyed bijection of [0, n): a Feistel network over the next power of four, walked
// until it lands inside.
type Permutation struct {
	n    uint64
	half uint   // bits of each half
	mask uint64 // of one half
	keys [rounds]uint64
}

const rounds = 6

// New returns the permutation of [0, n) for a key made of the numbers given.
func New(n uint64, key ...uint64) Permutation {
	p := Permutation{n: n, half: 1}
	if n > 1 {
		p.half = max(1, uint(bits.Len64(n-1)+1)/2)
	}
	p.mask = 1<<p.half - 1
	state := uint64(0x9E3779B97F4A7C15)
	for _, k := range key {
		state = mix(state ^ mix(k+0x9E3779B97F4A7C15))
	}
	for i := range p.keys {
		state += 0x9E3779B97F4A7C15
		p.keys[i] = mix(state)
	}
	return p
}

// At returns the element at position i. It is the caller's mistake if i is not below n.
func (p *Permutation) At(i uint64) uint64 {
	if p.n <= 1 {
		return 0
	}
	for {
		left, right := i>>p.half, i&p.mask
		for _, key := range p.keys {
			left, right = right, left^(mix(right^key)&p.mask)
		}
		i = left<<p.half | right
		if i < p.n {
			return i
		}
	}
}

// All returns the elements at positions from to to, as At does, for many at once: no element waits
// for another, so the processor works on several. Those that fall outside are walked on afterwards.
func (p *Permutation) All(from, to int64, out []int64) []int64 {
	if p.n <= 1 {
		for range to - from {
			out = append(out, 0)
		}
		return out
	}
	start := len(out)
	var outside []int32
	for i := from; i < to; i++ {
		left, right := uint64(i)>>p.half, uint64(i)&p.mask
		for _, key := range p.keys {
			left, right = right, left^(mix(right^key)&p.mask)
		}
		out = append(out, int64(left<<p.half|right))
	}
	for k, place := range out[start:] {
		if uint64(place) >= p.n {
			outside = append(outside, int32(k))
		}
	}
	for _, k := range outside {
		out[start+int(k)] = int64(p.At(uint64(out[start+int(k)])))
	}
	return out
}

// mix is the finaliser of SplitMix64 (Steele, Lea, Flood 2014).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

// Block is what the order needs to know about a stretch of rows that is read in one piece.
type Block struct {
	Rows  int64
	Bytes int64 // decoded, about
}

// Window is a set of blocks whose rows are mixed with each other.
type Window struct {
	Blocks []int32 // in the order of the epoch
	First  int64   // position of its first row in the epoch
	Rows   int64
}

// Epoch is the order of one epoch.
type Epoch struct {
	Windows []Window
	rows    int64
	shuffle bool
	seed    uint64
	number  uint64
}

// NewEpoch groups blocks into windows of about windowBytes. Shuffled, blocks come in a permuted
// order, so that a window mixes rows from all over the data.
func NewEpoch(blocks []Block, windowBytes int64, shuffle bool, seed, number uint64) *Epoch {
	e := &Epoch{shuffle: shuffle, seed: seed, number: number}
	of := New(uint64(len(blocks)), seed, number, 1)
	var current Window
	var size int64
	for i := range blocks {
		b := int32(i)
		if shuffle {
			b = int32(of.At(uint64(i)))
		}
		if len(current.Blocks) > 0 && size+blocks[b].Bytes > windowBytes {
			e.close(&current)
			size = 0
		}
		current.Blocks = append(current.Blocks, b)
		current.Rows += blocks[b].Rows
		size += blocks[b].Bytes
	}
	if len(current.Blocks) > 0 {
		e.close(&current)
	}
	return e
}

func (e *Epoch) close(w *Window) {
	w.First = e.rows
	e.rows += w.Rows
	e.Windows = append(e.Windows, *w)
	*w = Window{}
}

// Rows is the length of the epoch.
func (e *Epoch) Rows() int64 { return e.rows }

// Find returns the window that holds a position.
func (e *Epoch) Find(position int64) int {
	low, high := 0, len(e.Windows)
	for low+1 < high {
		if middle := (low + high) / 2; e.Windows[middle].First <= position {
			low = middle
		} else {
			high = middle
		}
	}
	return low
}

// Places returns which rows of window w come at its positions [from, to). It reuses the memory of
// places.
func (e *Epoch) Places(w int, from, to int64, places []int64) []int64 {
	places = places[:0]
	if !e.shuffle {
		for i := from; i < to; i++ {
			places = append(places, i)
		}
		return places
	}
	of := New(uint64(e.Windows[w].Rows), e.seed, e.number, 2, uint64(w))
	return of.All(from, to, places)
}
