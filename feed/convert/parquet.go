package convert

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/schema"

	"memroom/feed/table"
)

// groupBytes is about how many bytes of batches go into one row group. A row group is held in
// memory until it is whole. Streams read larger ones in parts, so that nothing is gained by more.
const groupBytes = 8 << 20

// parquetWriter writes a Parquet file, compressed with Snappy as pyarrow does. It writes columns by
// itself: the writer that takes Arrow's record batches brings gRPC with it.
type parquetWriter struct {
	out   *file.Writer
	group file.BufferedRowGroupWriter
	held  int // bytes of batches in the row group
}

func newParquet(out io.Writer, columns []table.Column) (*parquetWriter, error) {
	properties := []parquet.WriterProperty{parquet.WithCompression(compress.Codecs.Snappy)}
	var fields schema.FieldList
	for _, c := range columns {
		node, err := parquetNode(c)
		if err != nil {
			return nil, fmt.Errorf("column %s: %w: write .arrow, or choose other columns", c.Name, err)
		}
		fields = append(fields, node)
		if c.Kind == table.Fixed { // numbers repeat too rarely for a dictionary
			properties = append(properties, parquet.WithDictionaryFor(c.Name, false))
		}
	}
	root, err := schema.NewGroupNode("schema", parquet.Repetitions.Required, fields, -1)
	if err != nil {
		return nil, err
	}
	// Whoever gave the file closes it: the writer would, if it could.
	w, err := file.NewParquetWriterWithError(struct{ io.Writer }{out}, root,
		file.WithWriterProps(parquet.NewWriterProperties(properties...)))
	return &parquetWriter{out: w}, err
}

func (w *parquetWriter) Write(b Batch) error {
	if w.held += len(b.Data); w.group == nil || w.held > groupBytes {
		if err := w.end(); err != nil {
			return err
		}
		group, err := w.out.AppendBufferedRowGroupChecked()
		if err != nil {
			return err
		}
		w.group, w.held = group, len(b.Data)
	}
	for i, c := range split(b) {
		out, err := w.group.Column(i)
		if err != nil {
			return err
		}
		if err := c.parquet(out); err != nil {
			return fmt.Errorf("column %s: %w", c.Name, err)
		}
	}
	return nil
}

func (w *parquetWriter) end() error {
	if w.group == nil {
		return nil
	}
	return w.group.Close()
}

func (w *parquetWriter) Close() error {
	if err := w.end(); err != nil {
		return err
	}
	return w.out.Close()
}

// parquetNode returns the type of a column.
func parquetNode(c table.Column) (schema.Node, error) {
	switch c.Kind {
	case table.Text:
		return schema.NewPrimitiveNodeLogical(c.Name, parquet.Repetitions.Optional,
			schema.StringLogicalType{}, parquet.Types.ByteArray, -1, -1)
	case table.Binary:
		return schema.NewByteArrayNode(c.Name, parquet.Repetitions.Optional, -1), nil
	}
	if len(c.Shape) > 1 {
		return nil, fmt.Errorf("each row holds an array of %d dimensions, which Parquet "+
			"cannot hold",
			len(c.Shape))
	}
	if c.Kind == table.Fixed && len(c.Shape) == 0 {
		repeated := parquet.Repetitions.Required
		if c.DType[1] == 'M' {
			repeated = parquet.Repetitions.Optional
		}
		return valueNode(c, repeated)
	}
	element, err := valueNode(c, parquet.Repetitions.Required)
	if err != nil {
		return nil, err
	}
	return schema.ListOf(element, parquet.Repetitions.Optional, -1)
}

// valueNode returns the type of one value.
func valueNode(c table.Column, repeated parquet.Repetition) (schema.Node, error) {
	logical := func(l schema.LogicalType, t parquet.Type, length int) (schema.Node, error) {
		return schema.NewPrimitiveNodeLogical(c.Name, repeated, l, t, length, -1)
	}
	switch kind := c.DType[1:]; kind {
	case "b1":
		return schema.NewBooleanNode(c.Name, repeated, -1), nil
	case "f4":
		return schema.NewFloat32Node(c.Name, repeated, -1), nil
	case "f8":
		return schema.NewFloat64Node(c.Name, repeated, -1), nil
	case "f2":
		return logical(schema.Float16LogicalType{}, parquet.Types.FixedLenByteArray, 2)
	case "i1", "i2", "i4", "u1", "u2", "u4":
		bits := int8(8 * (kind[1] - '0'))
		return logical(schema.NewIntLogicalType(bits, kind[0] == 'i'), parquet.Types.Int32, -1)
	case "i8", "u8":
		return logical(schema.NewIntLogicalType(64, kind[0] == 'i'), parquet.Types.Int64, -1)
	default:
		units := map[string]schema.TimeUnitType{"s": schema.TimeUnitMillis, "ms": schema.TimeUnitMillis,
			"us": schema.TimeUnitMicros, "ns": schema.TimeUnitNanos}
		unit := strings.TrimSuffix(c.DType[min(4, len(c.DType)):], "]")
		if c.DType[1] == 'M' && unit == "D" {
			return logical(schema.DateLogicalType{}, parquet.Types.Int32, -1)
		}
		if known, there := units[unit]; there && c.DType[1] == 'M' {
			return logical(schema.NewTimestampLogicalType(false, known), parquet.Types.Int64, -1)
		}
		return nil, fmt.Errorf("there is no Parquet type for %s", c.DType)
	}
}

// parquet writes the column's rows.
func (c *column) parquet(out file.ColumnChunkWriter) error {
	switch {
	case c.Kind == table.Text || c.Kind == table.Binary:
		var values []parquet.ByteArray
		there, from := make([]int16, c.rows), uint64(0)
		for i := range c.rows {
			to := binary.LittleEndian.Uint64(c.ends[8*i:])
			if len(c.null) == 0 || c.null[i] == 0 {
				values, there[i] = append(values, c.bytes[from:to]), 1
			}
			from = to
		}
		_, err := out.(*file.ByteArrayColumnChunkWriter).WriteBatch(values, there, nil)
		return err
	case c.Kind == table.List:
		return c.lists(out)
	case len(c.Shape) == 1:
		return c.rowsOfArrays(out)
	case c.DType[1] == 'M':
		return c.times(out)
	}
	return writeValues(out, c.DType, c.fixed, nil, nil)
}

// Levels of lists: none, an empty one, an element of one.
const (
	noList = int16(iota)
	emptyList
	inList
)

func (c *column) lists(out file.ColumnChunkWriter) error {
	var depth, again []int16
	from := uint64(0)
	for i := range c.rows {
		to := binary.LittleEndian.Uint64(c.ends[8*i:])
		switch n := int(to-from) / c.Width; {
		case len(c.null) > 0 && c.null[i] == 1:
			depth, again = append(depth, noList), append(again, 0)
		case n == 0:
			depth, again = append(depth, emptyList), append(again, 0)
		default:
			depth, again = appendRow(depth, again, n)
		}
		from = to
	}
	return writeValues(out, c.DType, c.bytes, depth, again)
}

func (c *column) rowsOfArrays(out file.ColumnChunkWriter) error {
	var depth, again []int16
	for range c.rows {
		if c.Shape[0] == 0 {
			depth, again = append(depth, emptyList), append(again, 0)
			continue
		}
		depth, again = appendRow(depth, again, int(c.Shape[0]))
	}
	return writeValues(out, c.DType, c.fixed, depth, again)
}

// appendRow appends the levels of a list of n elements.
func appendRow(depth, again []int16, n int) (ds, as []int16) {
	for i := range n {
		depth, again = append(depth, inList), append(again, int16(min(i, 1)))
	}
	return depth, again
}

// times writes a column of times, without those that are missing.
func (c *column) times(out file.ColumnChunkWriter) error {
	const notATime = 1 << 63
	there, values := make([]int16, c.rows), make([]byte, 0, len(c.fixed))
	for i := range c.rows {
		if one := c.fixed[8*i : 8*i+8]; binary.LittleEndian.Uint64(one) != notATime {
			values, there[i] = append(values, one...), 1
		}
	}
	return writeValues(out, c.DType, values, there, nil)
}

// writeValues writes fixed values as NumPy has them.
func writeValues(out file.ColumnChunkWriter, dtype string, raw []byte, depth, again []int16) error {
	le := binary.LittleEndian
	var err error
	switch w := out.(type) {
	case *file.BooleanColumnChunkWriter:
		_, err = w.WriteBatch(each(raw, 1, func(b []byte) bool { return b[0] != 0 }), depth, again)
	case *file.Float32ColumnChunkWriter:
		_, err = w.WriteBatch(each(raw, 4, func(b []byte) float32 {
			return math.Float32frombits(le.Uint32(b))
		}), depth, again)
	case *file.Float64ColumnChunkWriter:
		_, err = w.WriteBatch(each(raw, 8, func(b []byte) float64 {
			return math.Float64frombits(le.Uint64(b))
		}), depth, again)
	case *file.FixedLenByteArrayColumnChunkWriter:
		_, err = w.WriteBatch(each(raw, 2, func(b []byte) parquet.FixedLenByteArray { return b }),
			depth, again)
	case *file.Int64ColumnChunkWriter:
		times := int64(1)
		if strings.HasSuffix(dtype, "[s]") {
			times = 1000 // Parquet has no seconds
		}
		_, err = w.WriteBatch(each(raw, 8, func(b []byte) int64 { return times * int64(le.Uint64(b)) }),
			depth, again)
	case *file.Int32ColumnChunkWriter:
		size, value := smallInt(dtype)
		_, err = w.WriteBatch(each(raw, size, value), depth, again)
	default:
		err = fmt.Errorf("memroom cannot write a column of this kind to Parquet (%T): write .arrow", out)
	}
	return err
}

// smallInt returns the size of an integer and how it is read.
func smallInt(dtype string) (int, func([]byte) int32) {
	le := binary.LittleEndian
	switch dtype[1:] {
	case "i1":
		return 1, func(b []byte) int32 { return int32(int8(b[0])) }
	case "u1":
		return 1, func(b []byte) int32 { return int32(b[0]) }
	case "i2":
		return 2, func(b []byte) int32 { return int32(int16(le.Uint16(b))) }
	case "u2":
		return 2, func(b []byte) int32 { return int32(le.Uint16(b)) }
	case "i4", "u4":
		return 4, func(b []byte) int32 { return int32(le.Uint32(b)) }
	}
	return 8, func(b []byte) int32 { return int32(le.Uint64(b)) } // days
}

func each[T any](raw []byte, size int, value func([]byte) T) []T {
	out := make([]T, 0, len(raw)/size)
	for at := 0; at+size <= len(raw); at += size {
		out = append(out, value(raw[at:at+size]))
	}
	return out
}
