package format

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"memroom/feed/source"
	"memroom/feed/table"
)

// Arrow IPC: files (Feather 2 too) and streams, which is what Hugging Face's cache holds under the
// same ending. A file is a stream between two marks, so both are read as messages. A block is a
// record batch, or a part of one.
//
// A record batch may be larger than the budget. Its bytes are therefore mapped, not read: only the
// pages of the rows that are wanted come into memory, and the kernel may drop them again. What
// cannot be mapped (compressed, or on a server) and is large is unpacked once into a file without a
// name, which is mapped.

// Message is where a message of a stream lies.
type Message struct {
	Kind int8  // as Arrow numbers them: 1 schema, 2 dictionary, 3 record batch
	Meta int64 // its description
	Size int64 // of the description
	Body int64
	Data int64 // bytes of the body
}

const (
	kindSchema     = 1
	kindDictionary = 2
	kindBatch      = 3
)

// largeBody is the size from which a body is not held in memory.
const largeBody = 1 << 20

func scanIPC(f source.File, _ Options) (_ *Index, err error) {
	defer caught(&err, f.Name())
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	magic := make([]byte, 6)
	if n, err := f.ReadAt(magic, 0); n < 6 {
		return nil, fmt.Errorf("%s: %w", f.Name(), shorter(err))
	}
	if string(magic) == "FEATHE" || string(magic[:4]) == "FEA1" {
		return nil, fmt.Errorf("%s is a Feather file of version 1: write it again with version 2", f.Name())
	}
	start := int64(0)
	if string(magic) == "ARROW1" {
		start = 8
		end := make([]byte, 6)
		if n, _ := f.ReadAt(end, f.Size()-6); n < 6 || string(end) != "ARROW1" {
			return nil, fmt.Errorf("%s: offset %d: the end of the Arrow file is missing: it "+
				"was cut off or is still being written", f.Name(), f.Size()-6)
		}
	}
	ix := &Index{}
	if ix.Messages, err = findMessages(f, start); err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	d := newIPC(f, ix)
	defer d.Close()
	schema, err := d.schema()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	for _, field := range schema.Fields() {
		own := arrowField(field.Name, field.Type, false)
		if shape := notedShape(field); shape != nil {
			own = inShape(own, field.Type, shape)
		}
		ix.Fields = append(ix.Fields, own)
	}
	for part := range d.batches {
		if err := d.note(part); err != nil {
			return nil, fmt.Errorf("%s: record batch %d: %w", f.Name(), part, err)
		}
	}
	f.Drop(0, f.Size())
	return ix, nil
}

// findMessages walks the messages of a stream.
func findMessages(f source.File, at int64) ([]Message, error) {
	var found []Message
	for {
		head := make([]byte, 8)
		n, _ := f.ReadAt(head, at)
		if n == 0 && len(found) > 0 {
			return found, nil // a stream may end without its mark
		}
		if n < 8 {
			return nil, fmt.Errorf("offset %d: neither an Arrow file nor an Arrow stream, or cut off: "+
				"copy it or write it again", at)
		}
		start, size := at+8, int64(int32(binary.LittleEndian.Uint32(head[4:])))
		if first := binary.LittleEndian.Uint32(head); first != 0xFFFFFFFF { // before Arrow 0.15
			start, size = at+4, int64(int32(first))
		}
		if size == 0 {
			return found, nil
		}
		if size < 0 || size > f.Size()-start {
			return nil, fmt.Errorf("offset %d: neither an Arrow file nor an Arrow stream, or cut off: "+
				"copy it or write it again", at)
		}
		meta := make([]byte, size)
		if n, err := f.ReadAt(meta, start); n < len(meta) {
			return nil, shorter(err)
		}
		root := rootOf(meta)
		m := Message{Kind: int8(root.number(1, 1)), Meta: start, Size: size, Body: start + size,
			Data: root.number(3, 8)}
		if m.Data < 0 || m.Body+m.Data > f.Size() {
			return nil, damaged("offset %d: a message of %d bytes is cut off", at, m.Data)
		}
		if len(found) == 0 && m.Kind != kindSchema {
			return nil, fmt.Errorf("offset %d: neither an Arrow file nor an Arrow stream: does "+
				"its name tell the format?", at)
		}
		found = append(found, m)
		at = m.Body + m.Data
	}
}

// note adds the blocks of a record batch, and which columns have missing rows.
func (d *ipcFile) note(part int) error {
	batch, err := d.batch(part)
	if err != nil {
		return err
	}
	defer batch.Release()
	ix := d.ix
	var size int64
	for i, column := range batch.Columns() {
		ix.Fields[i].Null = ix.Fields[i].Null || column.NullN() > 0 ||
			ix.Fields[i].Kind == table.Fixed && anyMissing(column)
		size += arrowSize(ix.Fields[i], column)
	}
	rows := batch.NumRows()
	if rows == 0 {
		return nil
	}
	perRow := max(1, size/rows)
	step := max(1, groupBlock/perRow)
	for first := int64(0); first < rows; first += step {
		n := min(step, rows-first)
		ix.Blocks = append(ix.Blocks, Block{Rows: n, Bytes: n * perRow, Part: int32(part), First: first})
	}
	return nil
}

// arrowSize estimates the bytes of a decoded column.
func arrowSize(f Field, column arrow.Array) int64 {
	rows := int64(column.Len())
	if f.Kind == table.Fixed {
		return rows * int64(max(Columns([]Field{f})[0].Width, 8))
	}
	size := 16 * rows
	if d, ok := column.(*array.Dictionary); ok { // every row gets its value: take the mean
		if n := int64(d.Dictionary().Len()); n > 0 {
			return size + rows*(arrowSize(f, d.Dictionary())/n)
		}
		return size
	}
	return size + int64(column.Data().SizeInBytes())
}

// offsets counts what was read of a file.
type offsets struct {
	f  source.File
	at int64
}

func (o *offsets) Read(p []byte) (int, error) {
	n, err := o.f.ReadAt(p, o.at)
	o.at += int64(n)
	if n > 0 {
		err = nil
	}
	return n, err
}

// Seek moves, so that contents that nobody wants are not read.
func (o *offsets) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += o.at
	case io.SeekEnd:
		offset += o.f.Size()
	}
	o.at = offset
	return offset, nil
}

// ipcFile is a file or a stream whose messages are known.
type ipcFile struct {
	f       source.File
	ix      *Index
	batches []int  // which of the messages are record batches
	mapped  []byte // the file; nil where it cannot be mapped

	mu       sync.Mutex
	unpacked map[int]*unpackedBody // by message
	scratch  *os.File
	used     int64 // bytes of scratch
}

func newIPC(f source.File, ix *Index) *ipcFile {
	d := &ipcFile{f: f, ix: ix, mapped: source.Map(f), unpacked: map[int]*unpackedBody{}}
	for i, m := range ix.Messages {
		if m.Kind == kindBatch {
			d.batches = append(d.batches, i)
		}
	}
	return d
}

func openIPC(f source.File, ix *Index, _ Options) (Decoder, error) { return newIPC(f, ix), nil }

func (d *ipcFile) Close() error {
	source.Unmap(d.mapped)
	d.mapped = nil
	for _, u := range d.unpacked {
		source.Unmap(u.mapped)
	}
	d.unpacked = map[int]*unpackedBody{}
	if d.scratch != nil {
		return d.scratch.Close()
	}
	return nil
}

func (d *ipcFile) schema() (*arrow.Schema, error) {
	r, err := d.reader([]int{0})
	if err != nil {
		return nil, ofLibrary(err)
	}
	defer r.Release()
	return r.Schema(), nil
}

// ofLibrary turns an error of the library into one that a user can read. For a file that
// contradicts itself, the library passes on an error of Go's runtime.
func ofLibrary(err error) error {
	if err == nil || strings.Contains(err.Error(), "runtime error") {
		return damaged("what it describes does not fit together")
	}
	return err
}

// batch returns a record batch, whose memory may be mapped.
func (d *ipcFile) batch(part int) (arrow.RecordBatch, error) {
	wanted := []int{0}
	for i := range d.batches[part] {
		if d.ix.Messages[i].Kind == kindDictionary {
			wanted = append(wanted, i)
		}
	}
	r, err := d.reader(append(wanted, d.batches[part]))
	if err != nil {
		return nil, ofLibrary(err)
	}
	defer r.Release()
	if !r.Next() {
		return nil, fmt.Errorf("cannot be read: %w", ofLibrary(r.Err()))
	}
	batch := r.RecordBatch()
	batch.Retain()
	return batch, nil
}

func (d *ipcFile) reader(wanted []int) (*ipc.Reader, error) {
	return ipc.NewReaderFromMessageReader(&someMessages{d: d, wanted: wanted})
}

// someMessages passes chosen messages to the library.
type someMessages struct {
	d      *ipcFile
	wanted []int
}

func (*someMessages) Retain()  {}
func (*someMessages) Release() {}

func (s *someMessages) Message() (*ipc.Message, error) {
	if len(s.wanted) == 0 {
		return nil, io.EOF
	}
	i := s.wanted[0]
	s.wanted = s.wanted[1:]
	meta, body, err := s.d.message(i)
	if err != nil {
		return nil, err
	}
	return ipc.NewMessage(memory.NewBufferBytes(meta), memory.NewBufferBytes(body)), nil
}

// message returns the description and the body of a message.
func (d *ipcFile) message(i int) (meta, body []byte, err error) {
	m := d.ix.Messages[i]
	meta = make([]byte, m.Size)
	if n, err := d.f.ReadAt(meta, m.Meta); n < len(meta) {
		return nil, nil, shorter(err)
	}
	codec, size, err := d.packing(m, meta)
	if err == nil {
		err = checkMessage(meta, m.Kind, size)
	}
	if err != nil {
		return nil, nil, err
	}
	switch {
	case codec < 0 && d.mapped != nil:
		return meta, d.mapped[m.Body : m.Body+m.Data], nil
	case size > largeBody:
		return d.unpack(i, m, meta, codec)
	}
	body = make([]byte, m.Data)
	if n, err := d.f.ReadAt(body, m.Body); n < len(body) {
		return nil, nil, shorter(err)
	}
	return meta, body, nil
}

func (d *ipcFile) Decode(b Block, columns []table.Column) (_ *table.Rows, err error) {
	where := fmt.Sprintf("%s: record batch %d", d.f.Name(), b.Part)
	defer caught(&err, where)
	// A mapped file that becomes shorter is an error like others, not the end of the server.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	batch, err := d.batch(int(b.Part))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", where, err)
	}
	defer batch.Release()
	rows := table.NewRows(columns, int(b.Rows), 0)
	rows.Count = int(b.Rows)
	fields := batch.Schema().Fields()
	for i, c := range columns {
		at := slices.IndexFunc(fields, func(f arrow.Field) bool { return f.Name == c.Name })
		part := array.NewSlice(batch.Column(at), b.First, b.First+b.Rows)
		err := appendArrow(&rows.Data[i], c, part)
		part.Release()
		if err != nil {
			return nil, fmt.Errorf("%s: column %q: %w", where, c.Name, err)
		}
	}
	d.forget(d.batches[b.Part])
	return rows, nil
}

// forget lets the kernel drop the pages of a batch.
func (d *ipcFile) forget(i int) {
	m := d.ix.Messages[i]
	source.Forget(d.mapped, m.Body, m.Body+m.Data)
	d.f.Drop(m.Body, m.Data)
	d.mu.Lock()
	u := d.unpacked[i]
	d.mu.Unlock()
	if u != nil {
		source.Forget(u.mapped, 0, int64(len(u.mapped)))
	}
}
