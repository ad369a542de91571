package convert

import (
	"encoding/binary"
	"io"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"memroom/feed/table"
)

// arrowWriter writes an Arrow IPC file, not compressed, so that a stream can map it.
type arrowWriter struct {
	out    *ipc.FileWriter
	schema *arrow.Schema
}

func newArrow(out io.WriteSeeker, columns []table.Column) (*arrowWriter, error) {
	var fields []arrow.Field
	for _, c := range columns {
		fields = append(fields, arrow.Field{Name: c.Name, Type: arrowType(c), Nullable: true})
	}
	schema := arrow.NewSchema(fields, nil)
	w, err := ipc.NewFileWriter(out, ipc.WithSchema(schema))
	return &arrowWriter{w, schema}, err
}

func (w *arrowWriter) Close() error { return w.out.Close() }

func (w *arrowWriter) Write(b Batch) error {
	var arrays []arrow.Array
	for i, c := range split(b) {
		data := c.arrow(w.schema.Field(i).Type)
		arrays = append(arrays, array.MakeFromData(data))
		data.Release()
	}
	batch := array.NewRecordBatch(w.schema, arrays, int64(b.Rows))
	for _, a := range arrays {
		a.Release()
	}
	defer batch.Release()
	return w.out.Write(batch)
}

// arrowType returns the type of a column.
func arrowType(c table.Column) arrow.DataType {
	switch c.Kind {
	case table.Text:
		return arrow.BinaryTypes.LargeString
	case table.Binary:
		return arrow.BinaryTypes.LargeBinary
	case table.List:
		return arrow.LargeListOf(scalarType(c.DType))
	}
	t := scalarType(c.DType)
	for i := len(c.Shape) - 1; i >= 0; i-- {
		t = arrow.FixedSizeListOf(int32(c.Shape[i]), t)
	}
	return t
}

func scalarType(dtype string) arrow.DataType {
	units := map[string]arrow.TimeUnit{"s": arrow.Second, "ms": arrow.Millisecond,
		"us": arrow.Microsecond, "ns": arrow.Nanosecond}
	switch dtype[1] {
	case 'M':
		if unit, known := units[strings.TrimSuffix(dtype[4:], "]")]; known {
			return &arrow.TimestampType{Unit: unit}
		}
		return arrow.FixedWidthTypes.Date32
	case 'm':
		return &arrow.DurationType{Unit: units[strings.TrimSuffix(dtype[4:], "]")]}
	}
	return map[string]arrow.DataType{"b1": arrow.FixedWidthTypes.Boolean,
		"i1": arrow.PrimitiveTypes.Int8, "i2": arrow.PrimitiveTypes.Int16,
		"i4": arrow.PrimitiveTypes.Int32, "i8": arrow.PrimitiveTypes.Int64,
		"u1": arrow.PrimitiveTypes.Uint8, "u2": arrow.PrimitiveTypes.Uint16,
		"u4": arrow.PrimitiveTypes.Uint32, "u8": arrow.PrimitiveTypes.Uint64,
		"f2": arrow.FixedWidthTypes.Float16, "f4": arrow.PrimitiveTypes.Float32,
		"f8": arrow.PrimitiveTypes.Float64}[dtype[1:]]
}

// arrow returns the column's values, without a copy where Arrow has them as NumPy does.
func (c *column) arrow(t arrow.DataType) arrow.ArrayData {
	if c.Kind == table.Fixed {
		return fixedData(t, c.DType, c.fixed, c.rows)
	}
	offsets := make([]byte, 8, 8+len(c.ends))
	offsets = append(offsets, c.ends...)
	valid, missing := c.valid()
	if c.Kind != table.List {
		return array.NewData(t, c.rows, []*memory.Buffer{valid, memory.NewBufferBytes(offsets),
			memory.NewBufferBytes(c.bytes)}, nil, missing, 0)
	}
	for i := 0; i < len(offsets); i += 8 { // of values, not of bytes
		at := binary.LittleEndian.Uint64(offsets[i:])
		binary.LittleEndian.PutUint64(offsets[i:], at/uint64(c.Width))
	}
	values := fixedData(t.(*arrow.LargeListType).Elem(), c.DType, c.bytes, len(c.bytes)/c.Width)
	defer values.Release()
	return array.NewData(t, c.rows, []*memory.Buffer{valid, memory.NewBufferBytes(offsets)},
		[]arrow.ArrayData{values}, missing, 0)
}

// valid returns a bit for every row that is there.
func (c *column) valid() (*memory.Buffer, int) {
	if len(c.null) == 0 {
		return nil, 0
	}
	bits, missing := make([]byte, (c.rows+7)/8), 0
	for i, gone := range c.null {
		if gone == 1 {
			missing++
			continue
		}
		bits[i/8] |= 1 << (i % 8)
	}
	return memory.NewBufferBytes(bits), missing
}

func fixedData(t arrow.DataType, dtype string, values []byte, n int) arrow.ArrayData {
	if list, ok := t.(*arrow.FixedSizeListType); ok {
		inner := fixedData(list.Elem(), dtype, values, n*int(list.Len()))
		defer inner.Release()
		return array.NewData(t, n, []*memory.Buffer{nil}, []arrow.ArrayData{inner}, 0, 0)
	}
	var valid *memory.Buffer
	missing := 0
	switch {
	case t.ID() == arrow.BOOL:
		bits := make([]byte, (n+7)/8)
		for i := range n {
			bits[i/8] |= (values[i] & 1) << (i % 8)
		}
		values = bits
	case dtype[1] == 'M' || dtype[1] == 'm':
		valid, missing = times(values, n)
		if t.ID() == arrow.DATE32 {
			days := make([]byte, 0, 4*n)
			for i := range n {
				days = append(days, values[8*i:8*i+4]...) // the lower half of a small number
			}
			values = days
		}
	}
	return array.NewData(t, n, []*memory.Buffer{valid, memory.NewBufferBytes(values)}, nil, missing, 0)
}

// times returns a bit for every time that is not NumPy's NaT.
func times(values []byte, n int) (*memory.Buffer, int) {
	const notATime = 1 << 63
	bits, missing := make([]byte, (n+7)/8), 0
	for i := range n {
		if binary.LittleEndian.Uint64(values[8*i:]) == notATime {
			missing++
			continue
		}
		bits[i/8] |= 1 << (i % 8)
	}
	return memory.NewBufferBytes(bits), missing
}
