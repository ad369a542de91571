package table

import (
	"math/bits"
	"sync"
)

// Buffers of rows that nobody reads any more are used again for the next rows. Memory that the
// collector takes back near its limit goes back to the kernel, and a fault for every page of it
// costs more than decoding does.

// spares are the buffers that wait, by the length of their size in bits and the next three bits.
var spares struct {
	mu    sync.Mutex
	kept  map[int][][]byte
	bytes int64
}

func sizeClass(n int) int {
	length := bits.Len(uint(n))
	if length <= 4 {
		return n
	}
	return length<<3 | n>>(length-4)&7
}

// least is the size below which a buffer is not worth keeping.
const least = 4 << 10

// Take returns an empty buffer with room for n bytes of any content.
func Take(n int) []byte {
	if n >= least {
		spares.mu.Lock()
		defer spares.mu.Unlock()
		for _, class := range []int{sizeClass(n), sizeClass(n + n/16)} {
			list := spares.kept[class]
			for i := len(list) - 1; i >= 0; i-- {
				if have := cap(list[i]); have >= n && have <= n+n/16 {
					found := list[i]
					list[i] = list[len(list)-1]
					spares.kept[class] = list[:len(list)-1]
					spares.bytes -= int64(have)
					return found[:0]
				}
			}
		}
	}
	return make([]byte, 0, n)
}

// Give takes a buffer that its owner does not need any more.
func Give(b []byte) {
	if cap(b) < least {
		return
	}
	spares.mu.Lock()
	defer spares.mu.Unlock()
	if spares.kept == nil {
		spares.kept = map[int][][]byte{}
	}
	class := sizeClass(cap(b))
	spares.kept[class] = append(spares.kept[class], b)
	spares.bytes += int64(cap(b))
}

// Trim lets go of waiting buffers until they hold at most so many bytes.
func Trim(most int64) {
	spares.mu.Lock()
	defer spares.mu.Unlock()
	for class, list := range spares.kept {
		for len(list) > 0 && spares.bytes > most {
			spares.bytes -= int64(cap(list[len(list)-1]))
			list[len(list)-1] = nil
			list = list[:len(list)-1]
		}
		spares.kept[class] = list
	}
}

// Recycle releases the buffers of fixed columns for reuse. The rows must not be read any more.
func (r *Rows) Recycle() {
	for i := range r.Data {
		Give(r.Data[i].Fixed)
		r.Data[i].Fixed = nil
	}
	for i := range r.packed {
		Give(r.packed[i].bytes)
	}
	r.packed = nil
}
