package trace

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"memroom/event"
)

// BFCDump is TensorFlow's picture of its allocator at the moment a request failed: the file
// PREFIX_ALLOCATOR.MICROSECONDS that TF_BFC_MEMORY_DUMP=PREFIX makes it write (message
// tensorflow.MemoryDump of bfc_memory_map.proto).
type BFCDump struct {
	Allocator    string
	Allocs       int64
	InUse        event.Bytes
	PeakInUse    event.Bytes
	LargestAlloc event.Bytes
	// Fragmentation is the part of the free pool that is not in the largest free chunk, as
	// TensorFlow computed it.
	Fragmentation float64
	Chunks        []BFCDumpChunk // as written: region by region, ascending within each
}

// BFCDumpChunk is one chunk of a region.
type BFCDumpChunk struct {
	Addr      uint64
	Size      event.Bytes
	Requested event.Bytes // stale when the chunk is free
	InUse     bool
	Op        string // only in debug builds of TensorFlow
	Step      uint64
}

// ReadBFCDump reads a TF_BFC_MEMORY_DUMP file under the default limits.
func ReadBFCDump(r io.Reader) (*BFCDump, error) { return Limits{}.ReadBFCDump(r) }

// ReadBFCDump reads a TF_BFC_MEMORY_DUMP file.
func (l Limits) ReadBFCDump(r io.Reader) (*BFCDump, error) {
	most := MaxBFCDump
	if l.Unpacked > 0 {
		most = l.Unpacked
	}
	data, err := io.ReadAll(io.LimitReader(r, int64(most)))
	if err != nil {
		return nil, err
	}
	if n, _ := io.ReadFull(r, make([]byte, 1)); n > 0 {
		return nil, fmt.Errorf("the dump is larger than %s, which is the limit; raise it with "+
			"--max-unpacked SIZE", most)
	}
	d := &BFCDump{}
	err = eachField(data, func(f protoField) error {
		switch f.number {
		case 1:
			d.Allocator = string(f.bytes)
		case 3:
			c, err := parseBFCChunk(f.bytes)
			d.Chunks = append(d.Chunks, c)
			return err
		case 5:
			return d.parseStats(f.bytes)
		}
		return nil // bin summaries repeat what the chunks say
	})
	if err == nil && (d.Allocator == "" || len(d.Chunks) == 0) {
		err = errors.New("it has no allocator name or no chunks")
	}
	if err != nil {
		return nil, fmt.Errorf("not a memory dump of TensorFlow (%w): set TF_BFC_MEMORY_DUMP to a file "+
			"name, and TensorFlow writes one when memory runs out", err)
	}
	return d, nil
}

func parseBFCChunk(data []byte) (c BFCDumpChunk, err error) {
	err = eachField(data, func(f protoField) error {
		switch f.number {
		case 1:
			c.Addr = f.value
		case 2:
			c.Size = event.Bytes(f.value)
		case 3:
			c.Requested = event.Bytes(f.value)
		case 5:
			c.Op = string(f.bytes)
		case 8:
			c.InUse = f.value != 0
		case 9:
			c.Step = f.value
		}
		return nil
	})
	if err == nil && (c.Size <= 0 || c.Addr+uint64(c.Size) < c.Addr) {
		err = fmt.Errorf("chunk at %#x has %d bytes", c.Addr, int64(c.Size))
	}
	return c, err
}

func (d *BFCDump) parseStats(data []byte) error {
	return eachField(data, func(f protoField) error {
		switch f.number {
		case 1:
			d.Allocs = int64(f.value)
		case 2:
			d.InUse = event.Bytes(f.value)
		case 3:
			d.PeakInUse = event.Bytes(f.value)
		case 4:
			d.LargestAlloc = event.Bytes(f.value)
		case 5:
			d.Fragmentation = float64(math.Float32frombits(uint32(f.value)))
		}
		return nil
	})
}

// Pool is the bytes taken from the driver, Free the part of them that nobody uses, and Largest the
// longest free chunk.
func (d *BFCDump) Pool() (pool, free, largest event.Bytes) {
	for _, c := range d.Chunks {
		pool += c.Size
		if !c.InUse {
			free += c.Size
			largest = max(largest, c.Size)
		}
	}
	return pool, free, largest
}

// protoField is one field of a protocol buffer message: value for numbers, bytes for strings and
// messages.
type protoField struct {
	number int
	value  uint64
	bytes  []byte
}

var errProto = errors.New("bad protocol buffer encoding")

// eachField walks the fields of one message. It needs no schema and allocates nothing.
func eachField(data []byte, visit func(protoField) error) error {
	for at := 0; at < len(data); {
		f, n := parseField(data[at:])
		if n <= 0 {
			return fmt.Errorf("%w at offset %d", errProto, at)
		}
		if err := visit(f); err != nil {
			return err
		}
		at += n
	}
	return nil
}

// parseField reads the first field of data and returns its length, or 0 if it is malformed.
func parseField(data []byte) (f protoField, length int) {
	key, n := binary.Uvarint(data)
	if n <= 0 || key>>3 == 0 || key>>3 > 1<<29 {
		return f, 0
	}
	f.number = int(key >> 3)
	rest := data[n:]
	switch key & 7 {
	case 0: // varint
		value, m := binary.Uvarint(rest)
		if m <= 0 {
			return f, 0
		}
		f.value = value
		return f, n + m
	case 1: // 64 bits
		if len(rest) < 8 {
			return f, 0
		}
		f.value = binary.LittleEndian.Uint64(rest)
		return f, n + 8
	case 2: // bytes
		size, m := binary.Uvarint(rest)
		if m <= 0 || size > uint64(len(rest)-m) {
			return f, 0
		}
		f.bytes = rest[m : m+int(size)]
		return f, n + m + int(size)
	case 5: // 32 bits
		if len(rest) < 4 {
			return f, 0
		}
		f.value = uint64(binary.LittleEndian.Uint32(rest))
		return f, n + 4
	}
	return f, 0
}
