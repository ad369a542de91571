package format

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"sort"

	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/metadata"
	"github.com/apache/arrow-go/v18/parquet/schema"

	"memroom/feed/source"
	"memroom/feed/table"
)

// The quick way through Parquet columns of plain numbers: a page is unpacked into a buffer that is
// used again, and its values are copied straight to their place. The library takes new memory for
// every page and dictionary, which costs more than the values do. What is not known here (lists,
// texts, other encodings, missing whole numbers) is left to the library.

// Encodings of pages.
const (
	encodingPlain         = 0
	encodingOldDictionary = 2
	encodingDictionary    = 8
	encodingRLE           = 3
)

// plainWidth is how wide the values of a column are that can be copied as they lie in the file; 0
// where they cannot.
func plainWidth(c table.Column, d *schema.Column) int {
	if c.Kind != table.Fixed || len(c.Shape) > 0 || d.MaxRepetitionLevel() > 0 {
		return 0
	}
	if _, decimal := d.LogicalType().(schema.DecimalLogicalType); decimal {
		return 0
	}
	switch t := d.PhysicalType(); {
	case c.DType == "<f4" && t == parquet.Types.Float, c.DType == "<f8" && t == parquet.Types.Double:
		return c.Width
	case c.Width == 8 && c.DType != "<f8" && t == parquet.Types.Int64:
		return 8
	case c.Width == 4 && c.DType != "<f4" && t == parquet.Types.Int32:
		return 4
	}
	return 0
}

// errOther reports a column that needs the library.
var errOther = fmt.Errorf("a column of another kind")

// chunkScan walks through the pages of a column chunk.
type chunkScan struct {
	f       source.File
	at, end int64  // the part of the chunk that is not in buf yet
	buf     []byte // bytes of the file that were read and not used yet
	room    []byte // all of the buffer that buf is a part of
	codec   compress.Codec
	packing compress.Compression
	maxDef  int16
	width   int    // bytes of a value
	missing []byte // what stands for a missing value; nil: there must be none

	page, unpacked []byte // room for an unpacked page, and for a dictionary
	dictionary     []byte // its values
	indices        []uint32
}

// readPlain decodes rows of a leaf of plain numbers into out, which has room for exactly them.
// first is where they begin in the row group.
func (p *parquetFile) readPlain(chunk *metadata.ColumnChunkMetaData, column *schema.Column,
	key [2]int, first int64, out []byte, c table.Column) error {
	s := &chunkScan{f: p.f, maxDef: column.MaxDefinitionLevel(), width: c.Width}
	defer s.giveBack()
	switch c.DType {
	case "<f4":
		s.missing = binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(math.NaN())))
	case "<f8":
		s.missing = binary.LittleEndian.AppendUint64(nil, math.Float64bits(math.NaN()))
	}
	s.packing = chunk.Compression()
	if codec := s.packing; codec != compress.Codecs.Uncompressed {
		var err error
		if s.codec, err = compress.GetCodec(codec); err != nil {
			return errOther
		}
	}
	s.at = chunk.DataPageOffset()
	if d := chunk.DictionaryPageOffset(); chunk.HasDictionaryPage() && d > 0 && d < s.at {
		s.at = d
	}
	s.end = s.at + chunk.TotalCompressedSize()
	skip := first
	if first > 0 {
		pages, err := p.pagesOf(chunk, column, key)
		if err != nil {
			return err
		}
		if pages.dictionarySize > 0 {
			s.at, s.end = pages.dictionary, pages.dictionary+pages.dictionarySize
			if _, _, err := s.next(nil, 0); err != nil {
				return err
			}
		}
		i := sort.Search(len(pages.pages), func(i int) bool { return pages.pages[i].row > first }) - 1
		s.at, s.end, s.buf = pages.pages[i].offset, pages.end, nil
		skip = first - pages.pages[i].row
	}
	for len(out) > 0 {
		rows, n, err := s.next(out, skip)
		if err != nil {
			return err
		}
		skip, out = max(0, skip-rows), out[n:]
	}
	return nil
}

func (s *chunkScan) giveBack() {
	table.Give(s.room)
	table.Give(s.page)
	table.Give(s.unpacked)
}

// ahead is how much of a chunk is read at once. A page is often larger.
const ahead = 256 << 10

// need makes n bytes of the chunk ready.
func (s *chunkScan) need(n int64) error {
	have := int64(len(s.buf))
	if have >= n {
		return nil
	}
	if n-have > s.end-s.at {
		return damaged("offset %d: the column ends inside a page", s.at)
	}
	size := have + min(max(n-have, ahead), s.end-s.at)
	if int64(cap(s.room)) < size {
		room := append(table.Take(int(size)), s.buf...)
		table.Give(s.room)
		s.room = room
	} else {
		copy(s.room[:have], s.buf)
	}
	s.buf = s.room[:size]
	if got, err := s.f.ReadAt(s.buf[have:], s.at); int64(got) < size-have {
		return fmt.Errorf("offset %d: %w", s.at+int64(got), shorter(err))
	}
	s.at += size - have
	return nil
}

// header reads the header of the next page.
func (s *chunkScan) header() (pageHeader, error) {
	for want := int64(512); ; want *= 8 { // statistics may hold long texts
		left := int64(len(s.buf)) + s.end - s.at
		if left == 0 {
			return pageHeader{}, damaged("the column ends before its rows do")
		}
		if err := s.need(min(want, left)); err != nil {
			return pageHeader{}, err
		}
		t := thrift{data: s.buf}
		if h := t.pageHeader(); !t.bad {
			s.buf = s.buf[t.at:]
			return h, nil
		}
		if want > left || want > 16<<20 {
			return pageHeader{}, damaged("offset %d: the header of a page cannot be read",
				s.at-int64(len(s.buf)))
		}
	}
}

// next reads a page: its rows after skip, as many as out has room for. It returns the rows of the
// page and the bytes written.
func (s *chunkScan) next(out []byte, skip int64) (rows int64, n int, err error) {
	h, err := s.header()
	if err != nil {
		return 0, 0, err
	}
	if h.size < 0 {
		return 0, 0, damaged("the header of a page has an impossible size")
	}
	if err := s.need(h.size); err != nil {
		return 0, 0, err
	}
	body := s.buf[:h.size]
	if err := h.check(body, s.packing); err != nil {
		return 0, 0, err
	}
	s.buf = s.buf[h.size:]
	switch h.kind {
	case 2:
		if h.encoding != encodingPlain && h.encoding != encodingOldDictionary {
			return 0, 0, errOther
		}
		s.dictionary, err = s.unpack(body, h.unpacked, &s.unpacked)
		return 0, 0, err
	case 0, 3:
		if skip >= h.values {
			return h.values, 0, nil
		}
		n, err = s.data(h, body, int(skip), out)
		return h.values, n, err
	}
	return 0, 0, nil // an index of pages
}

// unpack returns the content of a page, in room where it is packed.
func (s *chunkScan) unpack(body []byte, size int64, room *[]byte) ([]byte, error) {
	if s.codec == nil {
		if room == &s.unpacked { // a dictionary outlives the bytes that were read
			*room = append(table.Take(len(body)), body...)
			return *room, nil
		}
		return body, nil
	}
	if int64(cap(*room)) < size {
		table.Give(*room)
		*room = table.Take(int(size))
	}
	data := s.codec.Decode((*room)[:size], body)
	if int64(len(data)) != size {
		return nil, damaged("a page has %d bytes, but its header states %d", len(data), size)
	}
	return data, nil
}

// data copies the values of a data page.
func (s *chunkScan) data(h pageHeader, body []byte, skip int, out []byte) (int, error) {
	var levels []byte
	if h.kind == 3 { // version 2: the levels come first and are not packed
		if h.repetition != 0 || h.definition < 0 || h.definition > int64(len(body)) {
			return 0, errOther
		}
		levels, body = body[:h.definition], body[h.definition:]
		h.unpacked -= h.definition
	}
	data := body
	if h.kind == 0 || !h.stored {
		var err error
		if data, err = s.unpack(body, h.unpacked, &s.page); err != nil {
			return 0, err
		}
	}
	if h.kind == 0 && s.maxDef > 0 {
		if h.definitionEncoding != encodingRLE || len(data) < 4 ||
			int64(binary.LittleEndian.Uint32(data)) > int64(len(data)-4) {
			return 0, errOther
		}
		size := 4 + int(binary.LittleEndian.Uint32(data))
		levels, data = data[4:size], data[size:]
	}
	rows := min(int(h.values)-skip, len(out)/s.width)
	out = out[:rows*s.width]
	var take func(from int, out []byte) error // values from a number on; from never falls
	switch h.encoding {
	case encodingPlain:
		take = func(from int, out []byte) error {
			if (from*s.width)+len(out) > len(data) {
				return damaged("a page is cut off")
			}
			copy(out, data[from*s.width:])
			return nil
		}
	case encodingDictionary, encodingOldDictionary:
		if len(data) == 0 {
			return 0, damaged("a page is cut off")
		}
		of := &indexReader{runs: runs{data: data[1:], width: int(data[0])}, s: s}
		take = of.take
	default:
		return 0, errOther
	}
	if s.maxDef == 0 || allEqual(levels, s.maxDef, h.values) {
		return len(out), take(skip, out)
	}
	return len(out), s.holes(levels, skip, rows, out, take)
}

// holes copies rows of which some are missing.
func (s *chunkScan) holes(levels []byte, skip, rows int, out []byte,
	take func(int, []byte) error) error {
	if s.missing == nil {
		return errOther
	}
	of := runs{data: levels, width: bits.Len16(uint16(s.maxDef))}
	var tile [256]uint32
	value := 0
	for before := skip; before > 0; {
		part := tile[:min(before, len(tile))]
		if !of.fill(part) {
			return damaged("levels are cut off")
		}
		for _, level := range part {
			if level == uint32(s.maxDef) {
				value++
			}
		}
		before -= len(part)
	}
	for rows > 0 {
		part := tile[:min(rows, len(tile))]
		if !of.fill(part) {
			return damaged("levels are cut off")
		}
		for i := 0; i < len(part); { // runs of values, and of holes
			k := i
			for k < len(part) && (part[k] == uint32(s.maxDef)) == (part[i] == uint32(s.maxDef)) {
				k++
			}
			run := out[i*s.width : k*s.width]
			if part[i] == uint32(s.maxDef) {
				if err := take(value, run); err != nil {
					return err
				}
				value += k - i
			} else {
				for at := 0; at < len(run); at += s.width {
					copy(run[at:], s.missing)
				}
			}
			i = k
		}
		out, rows = out[len(part)*s.width:], rows-len(part)
	}
	return nil
}

// indexReader takes values out of a dictionary by the indices of a page.
type indexReader struct {
	runs
	s  *chunkScan
	at int // indices used
}

func (r *indexReader) take(from int, out []byte) error {
	if r.width > 32 {
		return damaged("the indices of a page have %d bits", r.width)
	}
	if r.s.indices == nil {
		r.s.indices = make([]uint32, 2048)
	}
	width, dictionary := r.s.width, r.s.dictionary
	for len(out) > 0 {
		skipping := r.at < from
		count := min(len(out)/width, len(r.s.indices))
		if skipping {
			count = min(from-r.at, len(r.s.indices))
		}
		part := r.s.indices[:count]
		if !r.fill(part) {
			return damaged("the indices of a page are cut off")
		}
		r.at += count
		if skipping {
			continue
		}
		if width == 4 {
			for i, index := range part {
				v := binary.LittleEndian.Uint32(dictionary[4*int(index):])
				binary.LittleEndian.PutUint32(out[4*i:], v)
			}
		} else {
			for i, index := range part {
				v := binary.LittleEndian.Uint64(dictionary[8*int(index):])
				binary.LittleEndian.PutUint64(out[8*i:], v)
			}
		}
		out = out[count*width:]
	}
	return nil
}

// runs reads Parquet's mixture of runs of one number and groups of packed numbers.
type runs struct {
	data   []byte
	width  int // bits of a number
	left   int // numbers of the current run
	packed bool
	value  uint32 // of a run of one number
	bit    int    // of packed numbers: where the next begins in data
	size   int    // of packed numbers: bytes
}

// fill reads as many numbers as out holds, and reports whether there were so many.
func (r *runs) fill(out []uint32) bool {
	for len(out) > 0 {
		if r.left == 0 && !r.begin() {
			return false
		}
		n := min(r.left, len(out))
		if r.packed {
			r.unpack(out[:n])
		} else {
			for i := range out[:n] {
				out[i] = r.value
			}
		}
		out, r.left = out[n:], r.left-n
		if r.packed && r.left == 0 {
			r.data = r.data[r.size:]
		}
	}
	return true
}

// begin reads the head of a run.
func (r *runs) begin() bool {
	head, k := binary.Uvarint(r.data)
	if k <= 0 || head>>1 == 0 || head>>1 > 1<<32 {
		return false
	}
	r.data = r.data[k:]
	if r.packed = head&1 == 1; r.packed {
		r.left, r.size, r.bit = int(head>>1)*8, int(head>>1)*r.width, 0
		if r.size > len(r.data) { // the last group may be cut short
			r.size = len(r.data)
			if r.width > 0 {
				r.left = r.size * 8 / r.width
			}
		}
		return r.left > 0
	}
	bytes := (r.width + 7) / 8
	if len(r.data) < bytes {
		return false
	}
	r.value = 0
	for i := range bytes {
		r.value |= uint32(r.data[i]) << (8 * i)
	}
	r.left, r.data = int(head>>1), r.data[bytes:]
	return true
}

func (r *runs) unpack(out []uint32) {
	mask := uint64(1)<<r.width - 1
	bit, width := r.bit, r.width
	for i := range out {
		at := bit >> 3
		var word uint64
		if at+8 <= len(r.data) {
			word = binary.LittleEndian.Uint64(r.data[at:])
		} else {
			for k, b := range r.data[at:] {
				word |= uint64(b) << (8 * k)
			}
		}
		out[i] = uint32(word >> (bit & 7) & mask)
		bit += width
	}
	r.bit = bit
}

// allEqual reports whether the first n levels are one run of a value: nothing is missing.
func allEqual(levels []byte, value int16, n int64) bool {
	of := runs{data: levels, width: bits.Len16(uint16(value))}
	return of.begin() && !of.packed && int64(of.left) >= n && of.value == uint32(value)
}
