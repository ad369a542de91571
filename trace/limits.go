package trace

import (
	"fmt"
	"io"

	"memroom/event"
)

// Limits bound the cost of reading an untrusted file. The zero value holds the defaults; their
// effect on time and memory is described in docs/security.md.
type Limits struct {
	// Unpacked is the most that is read out of a packed file, and the most that is read of a
	// TensorFlow dump. 0 means the default: [UnpackedAtLeast], or [UnpackedRatio] times the packed
	// size where that is more; [MaxBFCDump] for a dump.
	Unpacked event.Bytes
}

const (
	// UnpackedAtLeast may always be unpacked: small files are often packed very tightly.
	UnpackedAtLeast = 64 * event.MiB
	// UnpackedRatio is how many times its packed size a larger file may have. Real snapshots have
	// 6 to 30 times, logs up to 20; a bomb has 1000.
	UnpackedRatio = 50
	// MaxBFCDump bounds a TensorFlow dump: it has about 40 bytes a chunk, so this is millions.
	MaxBFCDump = 256 * event.MiB
	// maxWindow bounds the memory that the header of a packed file asks for: what xz -9 and
	// zstd -19 need.
	maxWindow = 64 << 20
)

// TooLarge is the error of a packed file that unpacks to more than the limit.
type TooLarge struct {
	Limit  event.Bytes
	Packed event.Bytes // read so far
}

func (e *TooLarge) Error() string {
	return fmt.Sprintf("%s of packed data hold more than %s, which is the limit; "+
		"if you trust the file, raise it with --max-unpacked SIZE", e.Packed, e.Limit)
}

// counted counts the bytes that a decompressor reads.
type counted struct {
	src io.Reader
	n   int64
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.src.Read(b)
	c.n += int64(n)
	return n, err
}

// limited reads from a decompressor until its output exceeds the limit.
type limited struct {
	src    io.Reader
	packed *counted
	limits Limits
	n      int64
	err    error
}

func (l *limited) Read(b []byte) (int, error) {
	if l.err != nil {
		return 0, l.err
	}
	n, err := l.src.Read(b)
	l.n += int64(n)
	if most := l.limits.unpacked(l.packed.n); event.Bytes(l.n) > most {
		l.err = &TooLarge{Limit: most, Packed: event.Bytes(l.packed.n)}
		return 0, l.err
	}
	l.err = err
	return n, err
}

// unpacked is the most that so many packed bytes may hold.
func (l Limits) unpacked(packed int64) event.Bytes {
	if l.Unpacked > 0 {
		return l.Unpacked
	}
	return max(UnpackedAtLeast, UnpackedRatio*event.Bytes(packed))
}
