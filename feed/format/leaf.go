package format

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"

	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/schema"

	"memroom/feed/table"
)

// leafReader reads the values of one column chunk into a column of the stream.
type leafReader struct {
	chunk  file.ColumnChunkReader
	column table.Column
	into   *table.Data

	maxDef, repeated int16   // levels: of a value; of the list's repeated group
	nested           []int16 // of a list of lists: the level of each repeated group, outermost first
	open             int     // of a list of lists: lists that are begun and not ended
	scale            int32   // of a decimal
	decimal          bool
	unsigned         bool

	defs, reps []int16
	values     valueBuffers
	n          int  // values in the buffers
	inRow      bool // a list has begun
	texts      []json.RawMessage
	rows       int64

	skip     int64 // rows of a list column to leave out
	skipping bool  // the row that is read now is left out
}

type valueBuffers struct {
	bools   []bool
	int32s  []int32
	int64s  []int64
	int96s  []parquet.Int96
	floats  []float32
	doubles []float64
	bytes   []parquet.ByteArray
	fixed   []parquet.FixedLenByteArray
}

const leafStep = 4096 // levels read at a time

// errHole reports a missing value in a column of whole numbers that the first rows did not show.
var errHole = errors.New("a list of whole numbers has a missing value, which NumPy cannot hold: " +
	"leave the column out with columns= (--column)")

// readLeaf decodes some rows of one leaf of a row group.
func (p *parquetFile) readLeaf(r *file.Reader, leaf, group int, first, rows int64, c table.Column,
	into *table.Data) error {
	if len(c.Shape) > 0 {
		list, lists := c, table.Data{}
		list.Kind, list.Shape, list.Width = table.List, nil, c.Width/c.Shape[0]
		if err := p.readLeaf(r, leaf, group, first, rows, list, &lists); err != nil {
			return err
		}
		return matrix(into, c, lists)
	}
	if descriptor := r.MetaData().Schema.Column(leaf); plainWidth(c, descriptor) > 0 {
		meta, err := r.MetaData().RowGroup(group).ColumnChunk(leaf)
		if err != nil {
			return err
		}
		out := into.Grow(int(rows) * c.Width)
		err = p.readPlain(meta, descriptor, [2]int{group, leaf}, first, out, c)
		if err != errOther {
			return err
		}
		into.Fixed = into.Fixed[:len(into.Fixed)-len(out)]
	}
	chunk, before, err := p.column(r, leaf, group, first)
	if err != nil {
		return err
	}
	defer chunk.Close()
	l := newLeafReader(chunk, c, into)
	if l.repeated > 0 || l.nested != nil {
		l.skip, l.skipping = before, first > 0
		return l.lists(rows)
	}
	for before > 0 {
		levels, err := l.fill(int(min(before, leafStep)))
		if err != nil {
			return err
		}
		before -= int64(levels)
	}
	return l.flat(rows)
}

func newLeafReader(chunk file.ColumnChunkReader, c table.Column, into *table.Data) *leafReader {
	d := chunk.Descriptor()
	l := &leafReader{chunk: chunk, column: c, into: into, maxDef: d.MaxDefinitionLevel()}
	l.defs, l.reps = make([]int16, leafStep), make([]int16, leafStep)
	switch t := d.LogicalType().(type) {
	case schema.DecimalLogicalType:
		l.decimal, l.scale = true, t.Scale()
	case schema.IntLogicalType:
		l.unsigned = !t.IsSigned()
	}
	switch levels := repeatedLevels(d.SchemaNode()); {
	case len(levels) == 1:
		l.repeated = levels[0]
	case len(levels) > 1:
		l.nested = levels
	}
	return l
}

// repeatedLevels returns the definition levels of the repeated groups above a leaf, outermost
// first.
func repeatedLevels(node schema.Node) []int16 {
	var above []schema.Node
	for ; node != nil && node.Parent() != nil; node = node.Parent() {
		above = append(above, node)
	}
	var levels []int16
	var level int16
	for _, n := range slices.Backward(above) {
		if n.RepetitionType() != parquet.Repetitions.Required {
			level++
		}
		if n.RepetitionType() == parquet.Repetitions.Repeated {
			levels = append(levels, level)
		}
	}
	return levels
}

// fill reads the next levels and values.
func (l *leafReader) fill(most int) (int, error) {
	most = min(most, leafStep)
	var levels int64
	var err error
	b := &l.values
	defs, reps := l.defs[:most], l.reps[:most]
	switch chunk := l.chunk.(type) {
	case *file.BooleanColumnChunkReader:
		b.bools = room(b.bools)
		levels, l.n, err = chunk.ReadBatch(int64(most), b.bools, defs, reps)
	case *file.Int32ColumnChunkReader:
		b.int32s = room(b.int32s)
		levels, l.n, err = chunk.ReadBatch(int64(most), b.int32s, defs, reps)
	case *file.Int64ColumnChunkReader:
		b.int64s = room(b.int64s)
		levels, l.n, err = chunk.ReadBatch(int64(most), b.int64s, defs, reps)
	case *file.Int96ColumnChunkReader:
		b.int96s = room(b.int96s)
		levels, l.n, err = chunk.ReadBatch(int64(most), b.int96s, defs, reps)
	case *file.Float32ColumnChunkReader:
		b.floats = room(b.floats)
		levels, l.n, err = chunk.ReadBatch(int64(most), b.floats, defs, reps)
	case *file.Float64ColumnChunkReader:
		b.doubles = room(b.doubles)
		levels, l.n, err = chunk.ReadBatch(int64(most), b.doubles, defs, reps)
	case *file.ByteArrayColumnChunkReader:
		b.bytes = room(b.bytes)
		levels, l.n, err = chunk.ReadBatch(int64(most), b.bytes, defs, reps)
	case *file.FixedLenByteArrayColumnChunkReader:
		b.fixed = room(b.fixed)
		levels, l.n, err = chunk.ReadBatch(int64(most), b.fixed, defs, reps)
	default:
		err = fmt.Errorf("memroom cannot read values of type %s", l.chunk.Type())
	}
	if err == nil && levels == 0 {
		err = damaged("the column ends before its rows do")
	}
	return int(levels), err
}

func room[T any](b []T) []T {
	if b == nil {
		b = make([]T, leafStep)
	}
	return b
}

// flat reads rows of a column without lists.
func (l *leafReader) flat(rows int64) error {
	for rows > 0 {
		levels, err := l.fill(int(min(rows, leafStep)))
		if err != nil {
			return err
		}
		rows -= int64(levels)
		if l.maxDef == 0 || l.n == levels {
			if l.plain(levels) {
				continue
			}
		}
		value := 0
		for i := range levels {
			if l.maxDef > 0 && l.defs[i] < l.maxDef {
				if l.column.Kind != table.Fixed {
					l.into.AddNull()
				} else if err := addMissing(l.into, l.column); err != nil {
					return err
				}
				continue
			}
			l.add(value)
			value++
		}
	}
	return nil
}

// plain adds numbers that need no conversion, all at once.
func (l *leafReader) plain(n int) bool {
	if l.decimal || l.column.Kind != table.Fixed {
		return false
	}
	b := &l.values
	switch {
	case l.column.DType == "<f4" && l.chunk.Type() == parquet.Types.Float:
		out := l.into.Grow(4 * n)
		for i, v := range b.floats[:n] {
			binary.LittleEndian.PutUint32(out[4*i:], math.Float32bits(v))
		}
	case l.column.DType == "<f8" && l.chunk.Type() == parquet.Types.Double:
		out := l.into.Grow(8 * n)
		for i, v := range b.doubles[:n] {
			binary.LittleEndian.PutUint64(out[8*i:], math.Float64bits(v))
		}
	case l.column.Width == 8 && l.column.DType != "<f8" && l.chunk.Type() == parquet.Types.Int64:
		out := l.into.Grow(8 * n)
		for i, v := range b.int64s[:n] {
			binary.LittleEndian.PutUint64(out[8*i:], uint64(v))
		}
	case l.column.Width == 4 && l.chunk.Type() == parquet.Types.Int32:
		out := l.into.Grow(4 * n)
		for i, v := range b.int32s[:n] {
			binary.LittleEndian.PutUint32(out[4*i:], uint32(v))
		}
	default:
		return false
	}
	return true
}

// add appends value i of the buffers as a row.
func (l *leafReader) add(i int) {
	if l.column.Kind == table.Fixed {
		l.into.Fixed = l.number(l.into.Fixed, i)
		return
	}
	l.into.AddBytes(l.text(i))
}

func (l *leafReader) text(i int) []byte {
	if l.chunk.Type() == parquet.Types.ByteArray {
		return l.values.bytes[i]
	}
	return l.values.fixed[i]
}

// number appends value i as the column's dtype.
func (l *leafReader) number(out []byte, i int) []byte {
	b := &l.values
	var whole int64
	switch l.chunk.Type() {
	case parquet.Types.Boolean:
		if b.bools[i] {
			whole = 1
		}
	case parquet.Types.Int32:
		whole = int64(b.int32s[i])
		if l.unsigned {
			whole = int64(uint32(b.int32s[i]))
		}
	case parquet.Types.Int64:
		whole = b.int64s[i]
	case parquet.Types.Int96:
		whole = b.int96s[i].ToTime().UnixNano()
	case parquet.Types.Float:
		return l.float(out, float64(b.floats[i]))
	case parquet.Types.Double:
		return l.float(out, b.doubles[i])
	default:
		if l.decimal {
			return l.float(out, scaled(signed(l.text(i)), l.scale))
		}
		return append(out, l.text(i)...) // float16
	}
	if l.decimal {
		return l.float(out, scaled(big.NewInt(whole), l.scale))
	}
	if l.column.DType == "<f8" {
		if l.unsigned && l.chunk.Type() == parquet.Types.Int64 {
			return l.float(out, float64(uint64(whole)))
		}
		return l.float(out, float64(whole))
	}
	var eight [8]byte
	binary.LittleEndian.PutUint64(eight[:], uint64(whole))
	return append(out, eight[:l.column.Width]...)
}

func (l *leafReader) float(out []byte, v float64) []byte {
	if l.column.DType == "<f4" {
		return binary.LittleEndian.AppendUint32(out, math.Float32bits(float32(v)))
	}
	return binary.LittleEndian.AppendUint64(out, math.Float64bits(v))
}

// signed reads a big-endian number in two's complement.
func signed(b []byte) *big.Int {
	v := new(big.Int).SetBytes(b)
	if len(b) > 0 && b[0]&0x80 != 0 {
		v.Sub(v, new(big.Int).Lsh(big.NewInt(1), uint(8*len(b))))
	}
	return v
}

// scaled returns the float64 nearest to v / 10^scale. A negative scale multiplies.
func scaled(v *big.Int, scale int32) float64 {
	power := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(max(scale, -scale))), nil)
	if scale < 0 {
		f, _ := new(big.Rat).SetInt(power.Mul(power, v)).Float64()
		return f
	}
	f, _ := new(big.Rat).SetFrac(v, power).Float64()
	return f
}

// lists reads rows of a column of lists. A row ends where the next begins, so one level more is
// looked at than the rows have.
func (l *leafReader) lists(rows int64) error {
	for l.rows < rows || l.inRow {
		if !l.chunk.HasNext() {
			break
		}
		levels, err := l.fill(leafStep)
		if err != nil {
			return err
		}
		value := 0
		for i := range levels {
			if l.reps[i] == 0 {
				l.endRow()
				if l.rows == rows {
					return nil
				}
				l.skipping = l.skip > 0
				l.skip--
			}
			if l.skipping {
				if l.defs[i] == l.maxDef {
					value++
				}
				continue
			}
			if l.nested != nil {
				l.nestedElement(i, &value)
			} else if err := l.element(i, &value); err != nil {
				return err
			}
		}
	}
	l.endRow()
	if l.rows != rows {
		return damaged("the column ends before its rows do")
	}
	return nil
}

// element takes one level of a list: a value, a hole, an empty list or a missing one.
func (l *leafReader) element(i int, value *int) error {
	def := l.defs[i]
	switch {
	case def < l.repeated-1:
		l.into.AddNull()
		l.rows++
		return nil
	case def == l.repeated-1:
		l.inRow = true
		return nil
	}
	l.inRow = true
	if l.column.Kind == table.Text {
		text := json.RawMessage("null")
		if def == l.maxDef {
			var err error
			if text, err = json.Marshal(string(l.text(*value))); err != nil {
				return err
			}
			*value++
		}
		l.texts = append(l.texts, text)
		return nil
	}
	if def == l.maxDef {
		l.into.Bytes = l.number(l.into.Bytes, *value)
		*value++
		return nil
	}
	if l.column.DType != "<f4" && l.column.DType != "<f8" {
		return errHole
	}
	l.into.Bytes = l.float(l.into.Bytes, math.NaN())
	return nil
}

func (l *leafReader) endRow() {
	if !l.inRow {
		return
	}
	if l.nested != nil {
		l.close(0)
	} else if l.column.Kind == table.Text {
		text, _ := json.Marshal(l.texts)
		if l.texts == nil {
			text = []byte("[]")
		}
		l.into.Bytes = append(l.into.Bytes, text...)
		l.texts = l.texts[:0]
	}
	l.into.End()
	l.inRow = false
	l.rows++
}

// nestedElement writes one level of a list of lists as JSON.
func (l *leafReader) nestedElement(i int, value *int) {
	def := l.defs[i]
	if l.reps[i] == 0 {
		if def < l.nested[0]-1 {
			l.into.AddNull()
			l.rows++
			return
		}
		l.inRow = true
	} else {
		l.close(int(l.reps[i]))
		l.into.Bytes = append(l.into.Bytes, ',')
	}
	for l.open < len(l.nested) {
		switch level := l.nested[l.open]; {
		case def < level-1:
			l.into.Bytes = append(l.into.Bytes, "null"...)
			return
		case def == level-1:
			l.into.Bytes = append(l.into.Bytes, "[]"...)
			return
		}
		l.into.Bytes = append(l.into.Bytes, '[')
		l.open++
	}
	if def < l.maxDef {
		l.into.Bytes = append(l.into.Bytes, "null"...)
		return
	}
	l.into.Bytes = append(l.into.Bytes, l.json(*value)...)
	*value++
}

// close ends the lists that are deeper than depth.
func (l *leafReader) close(depth int) {
	for ; l.open > depth; l.open-- {
		l.into.Bytes = append(l.into.Bytes, ']')
	}
}

// json returns value i as JSON; what JSON has no number for is null.
func (l *leafReader) json(i int) []byte {
	var v any
	switch l.chunk.Type() {
	case parquet.Types.Boolean:
		v = l.values.bools[i]
	case parquet.Types.ByteArray, parquet.Types.FixedLenByteArray:
		v = string(l.text(i))
		if l.decimal {
			v = scaled(signed(l.text(i)), l.scale)
		}
	case parquet.Types.Float:
		v = l.values.floats[i]
	case parquet.Types.Double:
		v = l.values.doubles[i]
	case parquet.Types.Int96:
		v = l.values.int96s[i].ToTime().UnixNano()
	case parquet.Types.Int32:
		v = int64(l.values.int32s[i])
		if l.unsigned {
			v = uint32(l.values.int32s[i])
		}
	case parquet.Types.Int64:
		v = l.values.int64s[i]
		if l.unsigned {
			v = uint64(l.values.int64s[i])
		}
	}
	if l.decimal {
		switch whole := v.(type) {
		case int64:
			v = scaled(big.NewInt(whole), l.scale)
		}
	}
	text, err := json.Marshal(v)
	if err != nil { // NaN and infinities
		return []byte("null")
	}
	return text
}
