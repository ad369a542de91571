package format

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"

	"memroom/feed/source"
	"memroom/feed/table"
)

// Arrow IPC: files (Feather 2 too) and streams, which is what Hugging Face's cache holds under the
// same ending. A block is a record batch, or a part of one. A record batch is read whole, so it has
// to fit into the budget.

func scanIPC(f source.File, _ Options) (_ *Index, err error) {
	defer caught(&err, f.Name())
	magic := make([]byte, 6)
	if n, err := f.ReadAt(magic, 0); n < 6 {
		return nil, fmt.Errorf("%s: %w", f.Name(), shorter(err))
	}
	if string(magic) == "FEATHE" || string(magic[:4]) == "FEA1" {
		return nil, fmt.Errorf("%s is a Feather file of version 1: write it again with version 2", f.Name())
	}
	ix := &Index{}
	if string(magic) != "ARROW1" {
		return ix, scanStream(f, ix)
	}
	r, err := ipc.NewFileReader(&sized{File: f})
	if err != nil {
		return nil, fmt.Errorf("%s: %w (an Arrow file that was cut off has no footer)", f.Name(), err)
	}
	defer r.Close()
	for _, field := range r.Schema().Fields() {
		ix.Fields = append(ix.Fields, arrowField(field.Name, field.Type, false))
	}
	for i := range r.NumRecords() {
		batch, err := r.RecordBatchAt(i)
		if err != nil {
			return nil, fmt.Errorf("%s: record batch %d: %w", f.Name(), i, err)
		}
		noteBatch(ix, batch, i)
		batch.Release()
	}
	f.Drop(0, f.Size())
	return ix, nil
}

// noteBatch adds the blocks of a record batch, and which columns have missing rows.
func noteBatch(ix *Index, batch arrow.RecordBatch, part int) {
	var size int64
	for i, column := range batch.Columns() {
		ix.Fields[i].Null = ix.Fields[i].Null || column.NullN() > 0
		size += arrowSize(ix.Fields[i], column)
	}
	rows := batch.NumRows()
	if rows == 0 {
		return
	}
	perRow := max(1, size/rows)
	step := max(1, groupBlock/perRow)
	for first := int64(0); first < rows; first += step {
		n := min(step, rows-first)
		ix.Blocks = append(ix.Blocks, Block{Rows: n, Bytes: n * perRow, Part: int32(part), First: first})
	}
}

// arrowSize is about what a column takes when decoded.
func arrowSize(f Field, column arrow.Array) int64 {
	rows := int64(column.Len())
	if f.Kind == table.Fixed {
		return rows * int64(max(f.Width, 8))
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

// offsets counts what was read of a stream.
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

// scanStream finds the messages of a stream. Messages[0] is the end of the schema; then come pairs
// of start and end, one for each message, dictionaries as negative starts.
func scanStream(f source.File, ix *Index) error {
	at := &offsets{f: f}
	messages := ipc.NewMessageReader(at)
	defer messages.Release()
	part := 0
	for first := true; ; first = false {
		start := at.at
		m, err := messages.Message()
		if err == io.EOF && !first {
			break
		}
		if err != nil {
			return fmt.Errorf("%s: offset %d: neither an Arrow file nor an Arrow stream, or cut off: %w",
				f.Name(), start, err)
		}
		switch m.Type() {
		case ipc.MessageSchema:
			ix.Messages = append(ix.Messages, at.at)
		case ipc.MessageDictionaryBatch:
			ix.Messages = append(ix.Messages, -start-1, at.at)
		case ipc.MessageRecordBatch:
			ix.Messages = append(ix.Messages, start, at.at)
			batch, err := streamBatch(f, ix, part)
			if err != nil {
				return fmt.Errorf("%s: offset %d: %w", f.Name(), start, err)
			}
			if part == 0 {
				for _, field := range batch.Schema().Fields() {
					ix.Fields = append(ix.Fields, arrowField(field.Name, field.Type, false))
				}
			}
			noteBatch(ix, batch, part)
			batch.Release()
			part++
		}
	}
	f.Drop(0, f.Size())
	return nil
}

// streamBatch reads one record batch of a stream, with the schema and dictionaries it needs.
func streamBatch(f source.File, ix *Index, part int) (arrow.RecordBatch, error) {
	pieces := []io.Reader{io.NewSectionReader(f, 0, ix.Messages[0])}
	seen := 0
	for i := 1; i+1 < len(ix.Messages); i += 2 {
		start, end := ix.Messages[i], ix.Messages[i+1]
		if start < 0 {
			start = -start - 1
			pieces = append(pieces, io.NewSectionReader(f, start, end-start))
			continue
		}
		if seen == part {
			pieces = append(pieces, io.NewSectionReader(f, start, end-start))
			break
		}
		seen++
	}
	pieces = append(pieces, bytes.NewReader([]byte{0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0}))
	r, err := ipc.NewReader(io.MultiReader(pieces...))
	if err != nil {
		return nil, err
	}
	defer r.Release()
	if !r.Next() {
		return nil, fmt.Errorf("record batch %d cannot be read: %v", part, r.Err())
	}
	batch := r.RecordBatch()
	batch.Retain()
	return batch, nil
}

type ipcDecoder struct {
	f  source.File
	ix *Index
	mu sync.Mutex
	r  *ipc.FileReader // nil for a stream
}

func openIPC(f source.File, ix *Index, _ Options) (Decoder, error) {
	d := &ipcDecoder{f: f, ix: ix}
	if len(ix.Messages) > 0 {
		return d, nil
	}
	var err error
	if d.r, err = ipc.NewFileReader(&sized{File: f}); err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return d, nil
}

func (d *ipcDecoder) Close() error { return nil }

func (d *ipcDecoder) batch(part int) (arrow.RecordBatch, error) {
	if d.r == nil {
		return streamBatch(d.f, d.ix, part)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.r.RecordBatchAt(part)
}

func (d *ipcDecoder) Decode(b Block, columns []table.Column) (_ *table.Rows, err error) {
	where := fmt.Sprintf("%s: record batch %d", d.f.Name(), b.Part)
	defer caught(&err, where)
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
	return rows, nil
}
