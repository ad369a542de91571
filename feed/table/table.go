// Package table holds decoded rows by column, in the layout that NumPy reads: fixed columns are
// plain arrays, texts and lists are bytes with their ends.
package table

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

// Kind is the layout of a column.
type Kind string

// The layouts. A list is a text whose bytes are numbers.
const (
	Fixed  Kind = "fixed"
	Text   Kind = "text"
	Binary Kind = "binary"
	List   Kind = "list"
)

// Column describes one column of the stream.
type Column struct {
	Name  string `json:"name"`
	Kind  Kind   `json:"kind"`
	DType string `json:"dtype"`           // NumPy's name of a value ("<f4"), or of a list's element
	Shape []int  `json:"shape,omitempty"` // of one row, where a row has more than one value
	Width int    `json:"width"`           // bytes of a row, or of a list's element
	From  string `json:"from,omitempty"`  // the type in the file, as its format calls it

	Classes []string `json:"classes,omitempty"` // what the numbers of this column stand for
}

// Rows are decoded rows: one Data a column, in the order of the schema.
type Rows struct {
	Count  int
	Data   []Data
	packed []packed // columns that Pack has put side by side
}

// Data are the values of one column.
type Data struct {
	Fixed []byte  // of a fixed column: Width bytes a row
	Ends  []int64 // of the others: where each row's bytes end
	Bytes []byte
	Null  []bool // of the others: nil if no row is missing
}

// Size is how many bytes the rows hold.
func (r *Rows) Size() int64 {
	var total int64
	for i := range r.Data {
		d := &r.Data[i]
		total += int64(cap(d.Fixed)) + int64(cap(d.Bytes)) + 8*int64(cap(d.Ends)) + int64(cap(d.Null))
	}
	for i := range r.packed {
		total += int64(cap(r.packed[i].bytes))
	}
	return total
}

// NewRows makes room for count rows. room is a guess of the bytes that texts and lists need.
func NewRows(columns []Column, count int, room int64) *Rows {
	r := &Rows{Data: make([]Data, len(columns))}
	variable := 0
	for _, c := range columns {
		if c.Kind != Fixed {
			variable++
		}
	}
	for i, c := range columns {
		d := &r.Data[i]
		if c.Kind == Fixed {
			d.Fixed = Take(count * c.Width)
			continue
		}
		d.Ends = make([]int64, 0, count)
		d.Bytes = make([]byte, 0, int(room)/variable)
	}
	return r
}

// Fit releases room of texts and lists that was reserved and is not needed. How long a column's
// texts are is known only once they are read; a window holds many blocks, so that wrong guesses
// would add up to more than its rows.
func (r *Rows) Fit() {
	for i := range r.Data {
		if d := &r.Data[i]; cap(d.Bytes) > len(d.Bytes)+len(d.Bytes)/8 {
			d.Bytes = append(make([]byte, 0, len(d.Bytes)), d.Bytes...)
		}
	}
}

// Reset empties the rows and keeps their room.
func (r *Rows) Reset() {
	r.Count = 0
	for i := range r.Data {
		d := &r.Data[i]
		d.Fixed, d.Ends, d.Bytes, d.Null = d.Fixed[:0], d.Ends[:0], d.Bytes[:0], nil
	}
}

// Grow adds n bytes to a fixed column and returns them for the caller to fill.
func (d *Data) Grow(n int) []byte {
	old := len(d.Fixed)
	d.Fixed = slices.Grow(d.Fixed, n)[:old+n]
	return d.Fixed[old:]
}

// AddBytes adds a row to a text, binary or list column.
func (d *Data) AddBytes(value []byte) {
	d.Bytes = append(d.Bytes, value...)
	d.End()
}

// End ends a row whose bytes were appended to d.Bytes.
func (d *Data) End() {
	d.Ends = append(d.Ends, int64(len(d.Bytes)))
	if d.Null != nil {
		d.Null = append(d.Null, false)
	}
}

// AddNull adds a missing row to a text, binary or list column.
func (d *Data) AddNull() {
	if d.Null == nil {
		d.Null = make([]bool, len(d.Ends), cap(d.Ends))
	}
	d.Ends = append(d.Ends, int64(len(d.Bytes)))
	d.Null = append(d.Null, true)
}

// AddFloat adds a value to a fixed float64 column; AddInt to an int64 column.
func (d *Data) AddFloat(v float64) {
	d.Fixed = binary.LittleEndian.AppendUint64(d.Fixed, math.Float64bits(v))
}

// AddInt adds a value to a fixed int64 column.
func (d *Data) AddInt(v int64) { d.Fixed = binary.LittleEndian.AppendUint64(d.Fixed, uint64(v)) }

// row returns the bytes of one row of a column that is not fixed.
func (d *Data) row(i int) ([]byte, bool) {
	start := int64(0)
	if i > 0 {
		start = d.Ends[i-1]
	}
	return d.Bytes[start:d.Ends[i]], d.Null != nil && d.Null[i]
}

// Select returns the columns named, in that order; all of them where names is empty.
func Select(all []Column, names []string) ([]int, error) {
	var places []int
	if len(names) == 0 {
		for i := range all {
			places = append(places, i)
		}
		return places, nil
	}
	for _, name := range names {
		i := slices.IndexFunc(all, func(c Column) bool { return c.Name == name })
		if i < 0 {
			var have []string
			for _, c := range all {
				have = append(have, c.Name)
			}
			return nil, fmt.Errorf("there is no column %q; there are %q", name, have)
		}
		if slices.Contains(places, i) {
			return nil, fmt.Errorf("column %q is named twice", name)
		}
		places = append(places, i)
	}
	return places, nil
}

// FixedOf makes a fixed column of scalars.
func FixedOf(name, dtype string, width int, from string) Column {
	return Column{Name: name, Kind: Fixed, DType: dtype, Width: width, From: from}
}
