package trace

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"memroom/event"
)

// unpack detects how a file is packed by its first bytes, never by its name, and returns a reader
// of the content, as far as the limits allow. The reader is nil only if there is nothing to read:
// because the header is damaged, or because the source fails.
func (l Limits) unpack(r io.Reader) (io.Reader, error) {
	head, whole, err := peek(r)
	if err != nil {
		return nil, err
	}
	packed := &counted{src: whole}
	var plain io.Reader
	switch packing(head) {
	case "gzip":
		var z *gzip.Reader
		if z, err = gzip.NewReader(packed); err == nil {
			plain = z
		}
	case "xz":
		var x *xzReader
		if x, err = newXZReader(packed); err == nil {
			plain = x
		}
	case "zstd":
		// One decoder at a time and a bounded window: the file must not decide how much memory is
		// taken.
		var d *zstd.Decoder
		if d, err = zstd.NewReader(packed, zstd.WithDecoderConcurrency(1),
			zstd.WithDecoderMaxWindow(maxWindow)); err == nil {
			plain = zstdReader{d}
		}
	default:
		return packed, wrongType(head)
	}
	if plain == nil {
		return nil, fmt.Errorf("the header of the packed file is damaged (%w): copy the file "+
			"again", ended(err))
	}
	head, plain, err = peek(&limited{src: plain, packed: packed, limits: l})
	if err != nil {
		return nil, fmt.Errorf("the packed file is damaged (%w): copy it again", err)
	}
	if again := packing(head); again != "" {
		return nil, fmt.Errorf("packed twice: %s is inside; unpack it once first", again)
	}
	return plain, wrongType(head)
}

// peek returns the first bytes of a reader, and the whole of it.
func peek(r io.Reader) (head []byte, whole io.Reader, err error) {
	head = make([]byte, len(xzMagic))
	n, err := io.ReadFull(r, head)
	if err != nil && err != io.ErrUnexpectedEOF && err != io.EOF {
		return nil, nil, err
	}
	return head[:n], io.MultiReader(bytes.NewReader(head[:n]), r), nil
}

// packing names the format that a file's first bytes announce, "" if it is not packed.
func packing(head []byte) string {
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		return "gzip"
	case bytes.HasPrefix(head, xzMagic):
		return "xz"
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		return "zstd"
	}
	return ""
}

// zstdReader explains the way out of a window that is too large for us.
type zstdReader struct{ d *zstd.Decoder }

func (z zstdReader) Read(b []byte) (int, error) {
	n, err := z.d.Read(b)
	if errors.Is(err, zstd.ErrWindowSizeExceeded) || errors.Is(err, zstd.ErrDecoderSizeExceeded) {
		err = fmt.Errorf("the header asks for more than %s of memory: unpack it first "+
			"with zstd -d --long=31", event.Bytes(maxWindow))
	}
	return n, err
}

// wrongType names a file that cannot be a pickle by its first bytes.
func wrongType(head []byte) error {
	for magic, what := range map[string]string{
		"PK":    "a zip archive, such as a PyTorch checkpoint",
		"{":     "JSON",
		"[":     "JSON",
		"<":     "HTML or XML",
		"(":     "a pickle of protocol 0 or 1, which PyTorch never writes",
		"BZh":   "packed with bzip2: unpack it first",
		"SQLi":  "an SQLite database",
		"\x7fE": "a program",
		"Trac":  "a text log: try `memroom explain`",
	} {
		if bytes.HasPrefix(head, []byte(magic)) {
			return fmt.Errorf("not a memory snapshot: this looks like %s", what)
		}
	}
	switch {
	case len(head) == 0:
		return fmt.Errorf("not a memory snapshot: the file is empty; was the disk full when it was " +
			"written?")
	case head[0] != opProto:
		return fmt.Errorf("not a memory snapshot: a pickle begins with the byte 0x80, this with %#02x; "+
			"torch.cuda.memory._dump_snapshot writes one", head[0])
	}
	return nil
}

// input is a buffered reader that knows offsets. Behind the last byte of a file it holds zeroes, so
// that fixed-size arguments can be read without a check each; the machine compares positions once
// an opcode.
type input struct {
	src    io.Reader
	buf    []byte
	pos    int // of the next byte in buf
	end    int // of the valid bytes in buf
	base   int64
	eof    bool
	failed error // what the source said when it ended early
}

const (
	inputBuffer = 256 << 10
	inputSlack  = 16 // more than any opcode with its fixed arguments
)

func newInput(r io.Reader) *input {
	return &input{src: r, buf: make([]byte, inputBuffer+inputSlack)}
}

// offset is the position of the next byte in the unpacked file.
func (in *input) offset() int64 { return in.base + int64(in.pos) }

// more makes sure that at least n bytes lie before end, unless the file ends earlier.
func (in *input) more(n int) {
	if in.end-in.pos >= n || in.eof {
		return
	}
	copy(in.buf, in.buf[in.pos:in.end])
	in.base += int64(in.pos)
	in.end -= in.pos
	in.pos = 0
	if need := n + inputSlack; need > len(in.buf) {
		in.buf = append(in.buf, make([]byte, need-len(in.buf))...)
	}
	for in.end < n && !in.eof {
		got, err := in.src.Read(in.buf[in.end : len(in.buf)-inputSlack])
		in.end += got
		if err != nil {
			in.eof = true
			if err != io.EOF {
				in.failed = err
			}
		}
	}
	if in.eof {
		clear(in.buf[in.end : in.end+inputSlack])
	}
}

// take returns the next n bytes, valid until the next call, or false if the file ends before.
func (in *input) take(n int) ([]byte, bool) {
	in.more(n)
	if in.end-in.pos < n {
		in.pos = in.end
		return nil, false
	}
	b := in.buf[in.pos : in.pos+n]
	in.pos += n
	return b, true
}
