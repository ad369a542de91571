package event

import (
	"encoding/binary"
	"iter"
)

// History is a recorded history in order, kept small: about ten bytes an entry where a slice of
// Entry needs seventy-two, so that recordings of gigabytes can be held. Entries are read back one
// after the other, forwards or backwards. The zero value is empty.
type History struct {
	chunks [][]byte // full ones, chunkEntries each
	tail   []byte   // the one being filled
	last   Entry    // the next entry is written as a difference to it
	n      int
}

// chunkEntries entries share one run of differences; reading backwards and finding one entry start
// at a chunk.
const chunkEntries = 1024

// How an entry is written: a byte with the kind in the low half and these flags, then only what the
// flags do not say.
const (
	// address, size, stream and pool are those of the entry before: a free completed at once
	flagSamePlace  = 1 << 4
	flagSameStream = 1 << 5
	flagSameStack  = 1 << 6
	flagRare       = 1 << 7 // with a pool, a device_free or an address that is no multiple of 512
)

// Len returns the number of entries.
func (h *History) Len() int { return h.n }

// Append adds an entry at the end.
func (h *History) Append(e *Entry) {
	h.tail = appendEntry(h.tail, e, &h.last)
	h.last = *e
	h.n++
	if h.n%chunkEntries == 0 {
		h.chunks = append(h.chunks, append([]byte(nil), h.tail...))
		h.tail, h.last = h.tail[:0], Entry{}
	}
}

func appendEntry(b []byte, e, last *Entry) []byte {
	head := byte(e.Kind)
	if e.Addr == last.Addr && e.Size == last.Size && e.Stream == last.Stream &&
		e.Pool == last.Pool && e.DeviceFree == 0 {
		head |= flagSamePlace
	} else if e.Pool != (PoolID{}) || e.DeviceFree != 0 || e.Addr&511 != 0 || last.Addr&511 != 0 {
		head |= flagRare
	}
	if e.Stream == last.Stream {
		head |= flagSameStream
	}
	if e.Stack == last.Stack {
		head |= flagSameStack
	}
	b = append(b, head)
	b = binary.AppendVarint(b, e.TimeUS-last.TimeUS)
	if head&flagSameStack == 0 {
		b = binary.AppendUvarint(b, uint64(e.Stack))
	}
	if head&flagSamePlace != 0 {
		return b
	}
	delta := int64(e.Addr - last.Addr)
	if head&flagRare == 0 {
		delta >>= 9
	}
	b = binary.AppendVarint(b, delta)
	b = binary.AppendVarint(b, e.Size)
	if head&flagSameStream == 0 {
		b = binary.AppendUvarint(b, e.Stream)
	}
	if head&flagRare != 0 {
		b = binary.AppendUvarint(b, e.Pool[0])
		b = binary.AppendUvarint(b, e.Pool[1])
		b = binary.AppendVarint(b, e.DeviceFree)
	}
	return b
}

// decodeEntry turns e, the entry before, into the next one and returns what is left of b.
func decodeEntry(b []byte, e *Entry) []byte {
	head := b[0]
	b = b[1:]
	e.Kind = Kind(head & 15)
	e.DeviceFree = 0
	v, n := varint(b)
	e.TimeUS += v
	b = b[n:]
	if head&flagSameStack == 0 {
		u, n := binary.Uvarint(b)
		e.Stack = StackID(u)
		b = b[n:]
	}
	if head&flagSamePlace != 0 {
		return b
	}
	v, n = varint(b)
	b = b[n:]
	if head&flagRare == 0 {
		v <<= 9
	}
	e.Addr += uint64(v)
	e.Size, n = varint(b)
	b = b[n:]
	if head&flagSameStream == 0 {
		e.Stream, n = binary.Uvarint(b)
		b = b[n:]
	}
	e.Pool = PoolID{}
	if head&flagRare != 0 {
		b = decodeRare(b, e)
	}
	return b
}

// varint is binary.Varint with a short way for the one and two bytes that most differences have.
func varint(b []byte) (int64, int) {
	if u := uint64(b[0]); u < 0x80 {
		return int64(u>>1) ^ -int64(u&1), 1
	} else if len(b) > 1 && b[1] < 0x80 {
		u = u&0x7f | uint64(b[1])<<7
		return int64(u>>1) ^ -int64(u&1), 2
	}
	return binary.Varint(b)
}

func decodeRare(b []byte, e *Entry) []byte {
	var n int
	e.Pool[0], n = binary.Uvarint(b)
	b = b[n:]
	e.Pool[1], n = binary.Uvarint(b)
	b = b[n:]
	e.DeviceFree, n = binary.Varint(b)
	return b[n:]
}

func (h *History) chunk(i int) []byte {
	if i < len(h.chunks) {
		return h.chunks[i]
	}
	return h.tail
}

// All goes over the entries from the oldest on. The entry is valid until the next one comes, and
// must not be changed.
func (h *History) All() iter.Seq2[int, *Entry] { return h.From(0) }

// From is All starting at an index.
func (h *History) From(start int) iter.Seq2[int, *Entry] {
	return func(yield func(int, *Entry) bool) {
		var e Entry
		index := start / chunkEntries * chunkEntries
		for c := start / chunkEntries; index < h.n; c++ {
			e = Entry{}
			for b := h.chunk(c); len(b) > 0; index++ {
				b = decodeEntry(b, &e)
				if index >= start && !yield(index, &e) {
					return
				}
			}
		}
	}
}

// Backward goes over the entries from the newest on.
func (h *History) Backward() iter.Seq2[int, *Entry] {
	return func(yield func(int, *Entry) bool) {
		entries := make([]Entry, 0, chunkEntries)
		for c := (h.n - 1) / chunkEntries; c >= 0 && h.n > 0; c-- {
			entries = entries[:0]
			var e Entry
			for b := h.chunk(c); len(b) > 0; {
				b = decodeEntry(b, &e)
				entries = append(entries, e)
			}
			for i := len(entries) - 1; i >= 0; i-- {
				if !yield(c*chunkEntries+i, &entries[i]) {
					return
				}
			}
		}
	}
}

// At returns the entry at an index, which must be below Len. It reads up to a chunk to find it; see
// Finder for many.
func (h *History) At(i int) Entry {
	for _, e := range h.From(i) {
		return *e
	}
	return Entry{}
}

// Finder reads entries by index, fast when they are near each other: it keeps the chunk it read
// last.
type Finder struct {
	h       *History
	chunk   int
	entries []Entry
	Reads   int // chunks read so far
}

// Find returns a Finder. It must not be used after the history has grown.
func (h *History) Find() *Finder { return &Finder{h: h, chunk: -1} }

// At returns the entry at an index, which must be below Len.
func (f *Finder) At(i int) Entry {
	if c := i / chunkEntries; c != f.chunk {
		f.chunk, f.entries = c, f.entries[:0]
		f.Reads++
		var e Entry
		for b := f.h.chunk(c); len(b) > 0; {
			b = decodeEntry(b, &e)
			f.entries = append(f.entries, e)
		}
	}
	return f.entries[i%chunkEntries]
}
