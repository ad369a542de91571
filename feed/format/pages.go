package format

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/bits"
	"slices"
	"sort"
	"sync"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/metadata"
	"github.com/apache/arrow-go/v18/parquet/schema"

	"memroom/feed/source"
	"memroom/feed/table"
)

// Pages of a Parquet column chunk. A row group that is larger than memory is read in parts, and
// reading all pages before a part would make an epoch quadratic. The library finds a row only where
// the writer has left an index of pages, and counts values for rows in columns of lists. So the
// pages' headers are walked once; a part is then read from the page that holds its first row.

// page is where a data page begins.
type page struct {
	offset      int64
	row, values int64 // before it, in the chunk
}

// chunkPages are the pages of one column chunk.
type chunkPages struct {
	dictionary, dictionarySize int64 // where its page lies, header included; size 0: there is none
	pages                      []page
	end                        int64 // of the last page
	values                     int64
	codec                      compress.Compression
	column                     *schema.Column
}

// pageHeader is what matters of a page's header.
type pageHeader struct {
	kind               int64 // 0 data, 2 dictionary, 3 data of version 2
	unpacked, size     int64
	values, rows       int64 // rows: -1 in version 1
	encoding           int64
	repetitionEncoding int64 // version 1
	definitionEncoding int64

	definition, repetition int64 // version 2: bytes of the levels
	stored                 bool  // version 2: the values are not packed

	sum    uint32 // CRC-32 of what follows the header
	summed bool   // there is one
}

// check returns an error if a page does not match its header, before anything takes memory for it.
// body is the page as it is stored, or the beginning of it where there is no checksum.
func (h *pageHeader) check(body []byte, codec compress.Compression) error {
	if h.summed && crc32.ChecksumIEEE(body) != h.sum {
		return damaged("the checksum of a page is wrong")
	}
	if h.size < 0 || h.unpacked < 0 || h.unpacked > longest || h.values < 0 ||
		h.unpacked > mostUnpacked*max(h.size, 1) {
		return damaged("the header of a page has an impossible size")
	}
	if codec == compress.Codecs.Snappy && h.kind != dataPage2 {
		if n, k := binary.Uvarint(body); k <= 0 || int64(n) != h.unpacked {
			return damaged("a page has %d bytes, but its header states %d", n, h.unpacked)
		}
	}
	return nil
}

const dataPage2 = 3 // the kind of data pages of version 2

// findPages walks the headers of a chunk.
func findPages(f source.File, chunk *metadata.ColumnChunkMetaData, column *schema.Column) (
	*chunkPages, error) {
	at := chunk.DataPageOffset()
	if d := chunk.DictionaryPageOffset(); chunk.HasDictionaryPage() && d > 0 && d < at {
		at = d
	}
	end := at + chunk.TotalCompressedSize()
	c := &chunkPages{codec: chunk.Compression(), column: column}
	var rows int64
	for at < end && c.values < chunk.NumValues() {
		h, length, err := readPageHeader(f, at, end)
		if err != nil {
			return nil, fmt.Errorf("offset %d: %w", at, err)
		}
		next := at + length + h.size
		if h.size < 0 || next > end {
			return nil, damaged("offset %d: a page is larger than its column", at)
		}
		if err := c.look(f, at+length, &h); err != nil {
			return nil, fmt.Errorf("offset %d: %w", at, err)
		}
		switch h.kind {
		case 2:
			c.dictionary, c.dictionarySize = at, next-at
		case 0, 3:
			c.pages = append(c.pages, page{offset: at, row: rows, values: c.values})
			own := h.rows
			if own < 0 && column.MaxRepetitionLevel() == 0 {
				own = h.values
			}
			if own < 0 {
				if own, err = c.countRows(f, at+length, h); err != nil {
					return nil, fmt.Errorf("offset %d: %w", at, err)
				}
			}
			rows += own
			c.values += h.values
		}
		at = next
	}
	c.end = at
	if len(c.pages) == 0 {
		return nil, damaged("the column has no pages")
	}
	return c, nil
}

// look checks a page in the file.
func (c *chunkPages) look(f source.File, at int64, h *pageHeader) error {
	size := h.size
	if !h.summed {
		size = min(size, binary.MaxVarintLen64)
	}
	body := table.Take(int(size))[:size]
	defer table.Give(body)
	if n, err := f.ReadAt(body, at); n < len(body) {
		return shorter(err)
	}
	return h.check(body, c.codec)
}

// countRows counts the rows of a page of version 1 in a column of lists: a row begins where the
// repetition level is 0. The levels are the first thing in the page.
func (c *chunkPages) countRows(f source.File, at int64, h pageHeader) (int64, error) {
	const rle = 3
	if h.repetitionEncoding != rle || h.unpacked < 0 || h.unpacked > longest {
		return 0, fmt.Errorf("repetition levels in an encoding that memroom cannot read")
	}
	packed := make([]byte, h.size)
	if n, err := f.ReadAt(packed, at); n < len(packed) {
		return 0, shorter(err)
	}
	data := packed
	if c.codec != compress.Codecs.Uncompressed {
		codec, err := compress.GetCodec(c.codec)
		if err != nil {
			return 0, err
		}
		data = codec.Decode(make([]byte, h.unpacked), packed)
	}
	if len(data) < 4 || int64(binary.LittleEndian.Uint32(data)) > int64(len(data)-4) {
		return 0, damaged("a page is cut off")
	}
	levels := data[4 : 4+binary.LittleEndian.Uint32(data)]
	return zeroLevels(levels, bits.Len16(uint16(c.column.MaxRepetitionLevel())), h.values)
}

// zeroLevels counts zeros among the first n numbers of Parquet's mixture of runs and packed groups.
func zeroLevels(data []byte, width int, n int64) (int64, error) {
	var zeros int64
	for n > 0 {
		head, k := binary.Uvarint(data)
		if k <= 0 {
			return 0, damaged("levels are cut off")
		}
		data = data[k:]
		if head&1 == 0 { // a run of one value
			size := (width + 7) / 8
			if len(data) < size {
				return 0, damaged("levels are cut off")
			}
			run := min(int64(head>>1), n)
			if !slices.ContainsFunc(data[:size], func(b byte) bool { return b != 0 }) {
				zeros += run
			}
			data, n = data[size:], n-run
			continue
		}
		size := int64(head>>1) * int64(width) // groups of eight values
		if size > int64(len(data)) || size < 0 {
			size = int64(len(data))
		}
		run := min(size*8/int64(width), n)
		if run == 0 {
			return 0, damaged("levels are cut off")
		}
		for i := range run {
			zero := true
			for b := i * int64(width); b < (i+1)*int64(width); b++ {
				zero = zero && data[b/8]>>(b%8)&1 == 0
			}
			if zero {
				zeros++
			}
		}
		data, n = data[size:], n-run
	}
	return zeros, nil
}

// from returns a reader that begins at the page that holds a row, and how many rows come before it
// there. A page may begin inside a row of a list: such a beginning belongs to no row that is asked
// for.
func (c *chunkPages) from(f source.File, row int64, properties *parquet.ReaderProperties,
	pool *sync.Pool) (file.ColumnChunkReader, int64, error) {
	i := sort.Search(len(c.pages), func(i int) bool { return c.pages[i].row > row }) - 1
	for i > 0 && c.pages[i-1].row == c.pages[i].row {
		i--
	}
	p := c.pages[i]
	joined := &afterDictionary{f: f, dictionary: c.dictionary, dictionarySize: c.dictionarySize,
		offset: p.offset}
	size := c.dictionarySize + c.end - p.offset
	stream, err := properties.GetStream(joined, 0, size)
	if err != nil {
		return nil, 0, err
	}
	//lint:ignore SA1019 the library offers no other way to begin at a page; its version is pinned
	pages, err := file.NewPageReader(stream, c.values-p.values, c.codec, memory.DefaultAllocator, nil)
	if err != nil {
		return nil, 0, err
	}
	//lint:ignore SA1019 as above
	return file.NewColumnReader(c.column, pages, memory.DefaultAllocator, pool), row - p.row, nil
}

// afterDictionary reads a dictionary's page and then the file from an offset on.
type afterDictionary struct {
	f                          source.File
	dictionary, dictionarySize int64
	offset                     int64
}

func (a *afterDictionary) ReadAt(p []byte, at int64) (int, error) {
	n := 0
	if at < a.dictionarySize {
		part := p[:min(int64(len(p)), a.dictionarySize-at)]
		var err error
		if n, err = a.f.ReadAt(part, a.dictionary+at); n < len(part) || n == len(p) {
			return n, err
		}
	}
	more, err := a.f.ReadAt(p[n:], a.offset+at+int64(n)-a.dictionarySize)
	return n + more, err
}

// readPageHeader reads a header, which is Thrift's compact protocol, and returns its length.
func readPageHeader(f source.File, at, end int64) (pageHeader, int64, error) {
	for room := int64(512); ; room *= 8 { // statistics may hold long texts
		room = min(room, end-at)
		data := make([]byte, room)
		if n, err := f.ReadAt(data, at); n < len(data) {
			return pageHeader{}, 0, shorter(err)
		}
		t := thrift{data: data}
		h := t.pageHeader()
		if !t.bad {
			return h, int64(t.at), nil
		}
		if room == end-at || room > 16<<20 {
			return pageHeader{}, 0, damaged("the header of a page cannot be read")
		}
	}
}

// thrift reads Thrift's compact protocol. bad is set when the data ended or was no Thrift.
type thrift struct {
	data []byte
	at   int
	bad  bool
}

func (t *thrift) pageHeader() pageHeader {
	h := pageHeader{rows: -1, kind: -1}
	t.fields(func(id int, kind byte) {
		switch {
		case id == 1:
			h.kind = t.integer()
		case id == 2:
			h.unpacked = t.integer()
		case id == 3:
			h.size = t.integer()
		case id == 4 && kind == 5:
			h.sum, h.summed = uint32(t.integer()), true
		case id == 5 && kind == thriftStruct:
			t.numbers(map[int]*int64{1: &h.values, 2: &h.encoding, 3: &h.definitionEncoding,
				4: &h.repetitionEncoding}, nil)
		case id == 7 && kind == thriftStruct: // of a dictionary
			t.numbers(map[int]*int64{1: &h.values, 2: &h.encoding}, nil)
		case id == 8 && kind == thriftStruct:
			packed := true
			t.numbers(map[int]*int64{1: &h.values, 3: &h.rows, 4: &h.encoding, 5: &h.definition,
				6: &h.repetition}, &packed)
			h.stored = !packed
		default:
			t.skip(kind, 0)
		}
	})
	return h
}

// numbers reads the whole numbers of a struct that are wanted, and its field 7, a truth value.
func (t *thrift) numbers(wanted map[int]*int64, seventh *bool) {
	t.fields(func(id int, kind byte) {
		switch into := wanted[id]; {
		case into != nil && (kind == 5 || kind == 6):
			*into = t.integer()
		case id == 7 && seventh != nil && (kind == 1 || kind == 2):
			*seventh = kind == 1
		default:
			t.skip(kind, 0)
		}
	})
}

const thriftStruct = 12

// fields calls visit for every field of a struct; visit reads the value.
func (t *thrift) fields(visit func(id int, kind byte)) {
	id := 0
	for !t.bad {
		head := t.byte()
		if head == 0 {
			return
		}
		if delta := int(head >> 4); delta != 0 {
			id += delta
		} else {
			id = int(t.integer())
		}
		visit(id, head&15)
	}
}

func (t *thrift) byte() byte {
	if t.at >= len(t.data) {
		t.bad = true
		return 0
	}
	t.at++
	return t.data[t.at-1]
}

// integer reads a number in zigzag form.
func (t *thrift) integer() int64 {
	v := t.unsigned()
	return int64(v>>1) ^ -int64(v&1)
}

func (t *thrift) unsigned() uint64 {
	v, n := binary.Uvarint(t.data[t.at:])
	if n <= 0 {
		t.bad = true
		return 0
	}
	t.at += n
	return v
}

func (t *thrift) skip(kind byte, depth int) {
	if depth > 8 {
		t.bad = true
	}
	if t.bad {
		return
	}
	switch kind {
	case 1, 2: // true and false are in the type
	case 3:
		t.byte()
	case 4, 5, 6:
		t.unsigned()
	case 7:
		t.jump(8)
	case 8:
		t.jump(t.unsigned())
	case 9, 10:
		head := t.byte()
		n := uint64(head >> 4)
		if n == 15 {
			n = t.unsigned()
		}
		for i := uint64(0); i < n && !t.bad; i++ {
			t.skip(head&15, depth+1)
		}
	case thriftStruct:
		t.fields(func(_ int, kind byte) { t.skip(kind, depth+1) })
	default:
		t.bad = true
	}
}

func (t *thrift) jump(n uint64) {
	if n > uint64(len(t.data)-t.at) {
		t.bad = true
		return
	}
	t.at += int(n)
}
