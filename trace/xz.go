package trace

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"hash/crc64"
	"io"

	"github.com/ulikunitz/xz/lzma"

	"memroom/event"
)

// xzReader reads the container of an xz file; the library's LZMA2 decoder reads what is inside.
// The library's own container reader allocates whatever dictionary a header asks for, up to 4 GiB,
// and again for each block, so that a few bytes can cost gigabytes and hours. Here a dictionary is
// never larger than [maxWindow] or than its block, and all of them together are bounded by what
// was read.
type xzReader struct {
	src    *bufio.Reader
	check  byte // kind of checksum behind each block
	block  *xzBlock
	blocks uint64 // in this stream
	dicts  int64  // bytes of all dictionaries so far
	n      int64  // unpacked bytes so far
	err    error
}

// xzBlock is the block being read.
type xzBlock struct {
	data   io.Reader
	packed *counted
	sum    hash.Hash // nil: no checksum
	left   int64     // bytes still to come, -1 if the header does not say
}

var xzMagic = []byte{0xfd, '7', 'z', 'X', 'Z', 0}

const (
	xzLZMA2       = 0x21
	xzFreeDicts   = 256 << 20 // dictionaries that any file may ask for in total
	xzDictsPerOut = 16        // bytes of dictionary for each unpacked byte beyond that
)

func newXZReader(src io.Reader) (*xzReader, error) {
	x := &xzReader{src: bufio.NewReaderSize(src, 64<<10)}
	if err := x.streamHeader(); err != nil {
		return nil, err
	}
	return x, nil
}

func (x *xzReader) Read(b []byte) (int, error) {
	for x.err == nil {
		if x.block == nil {
			x.err = x.nextBlock()
			continue
		}
		n, err := x.block.read(b)
		x.n += int64(n)
		if err == io.EOF {
			err = x.endBlock()
		}
		x.err = err
		if n > 0 || err != nil {
			return n, err
		}
	}
	return 0, x.err
}

func (b *xzBlock) read(into []byte) (int, error) {
	n, err := b.data.Read(into)
	if b.sum != nil {
		b.sum.Write(into[:n])
	}
	if b.left >= 0 {
		if b.left -= int64(n); b.left < 0 {
			return 0, errors.New("xz: a block is longer than its header states")
		}
	}
	return n, err
}

// take reads exactly n bytes; a file that ends inside them is damaged.
func (x *xzReader) take(n int) ([]byte, error) {
	b := make([]byte, n)
	if _, err := io.ReadFull(x.src, b); err != nil {
		return nil, ended(err)
	}
	return b, nil
}

func ended(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (x *xzReader) streamHeader() error {
	h, err := x.take(12)
	if err != nil {
		return err
	}
	if !bytes.Equal(h[:6], xzMagic) || h[6] != 0 || h[7] > 15 {
		return errors.New("xz: not a stream header")
	}
	if binary.LittleEndian.Uint32(h[8:]) != crc32.ChecksumIEEE(h[6:8]) {
		return errors.New("xz: the checksum of the stream header is wrong")
	}
	x.check, x.blocks = h[7], 0
	_, _, err = newCheck(x.check)
	return err
}

// newCheck returns the checksum of a kind and its length; nil for none.
func newCheck(kind byte) (hash.Hash, int, error) {
	switch kind {
	case 0:
		return nil, 0, nil
	case 1:
		return crc32.NewIEEE(), 4, nil
	case 4:
		return crc64.New(crc64.MakeTable(crc64.ECMA)), 8, nil
	case 10:
		return sha256.New(), 32, nil
	}
	return nil, 0, fmt.Errorf("xz: checksum of kind %d is not known", kind)
}

// nextBlock opens the next block, or reads what follows the last one: the index, and perhaps
// another stream. It returns io.EOF at the end of the file.
func (x *xzReader) nextBlock() error {
	size, err := x.src.ReadByte()
	if err != nil {
		return ended(err)
	}
	if size == 0 {
		if err := x.index(); err != nil {
			return err
		}
		return x.nextStream()
	}
	rest, err := x.take(4*(int(size)+1) - 1)
	if err != nil {
		return err
	}
	header := append([]byte{size}, rest...)
	sum := len(header) - 4
	if binary.LittleEndian.Uint32(header[sum:]) != crc32.ChecksumIEEE(header[:sum]) {
		return errors.New("xz: the checksum of a block header is wrong")
	}
	return x.openBlock(header[1:sum])
}

// openBlock reads a block header: flags, two optional sizes and one filter.
func (x *xzReader) openBlock(h []byte) error {
	flags := h[0]
	fields := bytes.NewReader(h[1:])
	block := &xzBlock{left: -1}
	for _, given := range []byte{0x40, 0x80} { // packed size, then unpacked size
		if flags&given == 0 {
			continue
		}
		v, err := binary.ReadUvarint(fields)
		if err != nil || v > 1<<62 {
			return errors.New("xz: a block header has an impossible size")
		}
		if given == 0x80 {
			block.left = int64(v)
		}
	}
	var filter [3]byte
	if _, err := io.ReadFull(fields, filter[:]); err != nil || flags&0x3f != 0 ||
		filter[0] != xzLZMA2 || filter[1] != 1 {
		return errors.New("xz: packed with a filter other than LZMA2: unpack it first with xz -d")
	}
	dict, err := lzma.DecodeDictCap(filter[2])
	if err != nil {
		return errors.New("xz: a block header has an impossible dictionary size")
	}
	return x.decode(block, dict)
}

// decode returns the decoder of a block, with a dictionary no larger than it can need.
func (x *xzReader) decode(block *xzBlock, dict int64) error {
	if block.left >= 0 {
		dict = min(dict, block.left)
	}
	dict = max(dict, lzma.MinDictCap)
	if dict > maxWindow {
		return fmt.Errorf("xz: the header asks for a dictionary of %s, more than the limit "+
			"of %s: unpack it first with xz -d", event.Bytes(dict), event.Bytes(maxWindow))
	}
	if x.dicts += dict; x.dicts > xzFreeDicts+xzDictsPerOut*x.n {
		return errors.New("xz: many blocks with large dictionaries and little in them")
	}
	var err error
	block.packed = &counted{src: x.src}
	block.data, err = lzma.Reader2Config{DictCap: int(dict)}.NewReader2(block.packed)
	if err != nil {
		return err
	}
	block.sum, _, err = newCheck(x.check)
	x.block = block
	x.blocks++
	return err
}

// endBlock reads the padding and the checksum behind a block.
func (x *xzReader) endBlock() error {
	b := x.block
	x.block = nil
	if b.left > 0 {
		return errors.New("xz: a block is shorter than its header states")
	}
	padding, err := x.take(int(-b.packed.n & 3))
	if err != nil {
		return err
	}
	if len(bytes.Trim(padding, "\x00")) > 0 {
		return errors.New("xz: padding that is not zero")
	}
	_, length, err := newCheck(x.check)
	if err != nil || length == 0 {
		return err
	}
	want, err := x.take(length)
	if err != nil {
		return err
	}
	got := b.sum.Sum(nil)
	if length < 32 { // hash puts the most significant byte first, xz the least
		for i, j := 0, len(got)-1; i < j; i, j = i+1, j-1 {
			got[i], got[j] = got[j], got[i]
		}
	}
	if !bytes.Equal(got, want) {
		return errors.New("xz: the checksum of a block is wrong")
	}
	return nil
}

// index reads the list of blocks and the footer behind it. The blocks have been read, so only
// their number is compared.
func (x *xzReader) index() error {
	read := &indexBytes{src: x.src, n: 1} // the zero byte that announced it
	records, err := binary.ReadUvarint(read)
	if err != nil || records != x.blocks {
		return errors.New("xz: the index does not list the blocks that were read")
	}
	for range 2 * records {
		if _, err := binary.ReadUvarint(read); err != nil {
			return ended(err)
		}
	}
	tail, err := x.take(int(-read.n&3) + 4 + 12) // padding, checksum, footer
	if err != nil {
		return err
	}
	if !bytes.Equal(tail[len(tail)-2:], []byte("YZ")) {
		return errors.New("xz: not a stream footer")
	}
	return nil
}

// indexBytes counts the bytes of the index.
type indexBytes struct {
	src *bufio.Reader
	n   int64
}

func (b *indexBytes) ReadByte() (byte, error) {
	b.n++
	return b.src.ReadByte()
}

// nextStream reads the header of another stream, after padding, or returns io.EOF.
func (x *xzReader) nextStream() error {
	for {
		head, err := x.src.Peek(4)
		if len(head) == 0 && err == io.EOF {
			return io.EOF
		}
		if len(head) < 4 {
			return ended(err)
		}
		if !bytes.Equal(head, []byte{0, 0, 0, 0}) {
			return x.streamHeader()
		}
		if _, err := x.src.Discard(4); err != nil {
			return ended(err)
		}
	}
}
