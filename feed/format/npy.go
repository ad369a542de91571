package format

import (
	"encoding/binary"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"memroom/feed/source"
	"memroom/feed/table"
)

// NPY files: a row is one element along the first axis. The only column is `data`.

var (
	npyDescr = regexp.MustCompile(`'descr':\s*'([<>|=][a-zA-Z]\d*(?:\[\w+\])?)'`)
	npyShape = regexp.MustCompile(`'shape':\s*\(([^)]*)\)`)
	npyOrder = regexp.MustCompile(`'fortran_order':\s*True`)
)

func scanNPY(f source.File, _ Options) (*Index, error) {
	head := make([]byte, min(f.Size(), 64<<10))
	if n, err := f.ReadAt(head, 0); n < len(head) {
		return nil, fmt.Errorf("%s: %w", f.Name(), shorter(err))
	}
	if len(head) < 12 || string(head[:6]) != "\x93NUMPY" {
		return nil, fmt.Errorf("%s is not an .npy file: it does not begin with \\x93NUMPY", f.Name())
	}
	start, size := 10, int(binary.LittleEndian.Uint16(head[8:]))
	if head[6] >= 2 {
		start, size = 12, int(binary.LittleEndian.Uint32(head[8:]))
	}
	if size < 0 || start+size > len(head) {
		return nil, fmt.Errorf("%s: %w", f.Name(), damaged("the header is cut off"))
	}
	header := string(head[start : start+size])
	column, count, err := npyHeader(header)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	data := int64(start + size)
	if have := f.Size() - data; column.Width > 0 && have/int64(column.Width) < count {
		return nil, fmt.Errorf("%s: cut off at offset %d: the header promises %d rows of %d bytes, "+
			"there are %d", f.Name(), f.Size(), count, column.Width, have/int64(column.Width))
	}
	if npyOrder.MatchString(header) && len(column.Shape) > 0 {
		column.From += fortran
	}
	ix := &Index{Fields: []Field{{Column: column}}}
	step := max(1, plainBlock/int64(max(1, column.Width)))
	for first := int64(0); first < count; first += step {
		rows := min(step, count-first)
		ix.Blocks = append(ix.Blocks, Block{Rows: rows, Bytes: rows * int64(column.Width),
			Offset: data + first*int64(column.Width), Length: rows * int64(column.Width), First: first})
	}
	return ix, nil
}

// npyHeader reads the dictionary of an .npy file.
func npyHeader(text string) (table.Column, int64, error) {
	c := table.Column{Name: "data", Kind: table.Fixed}
	descr, shape := npyDescr.FindStringSubmatch(text), npyShape.FindStringSubmatch(text)
	switch {
	case descr == nil && strings.Contains(text, "'descr': ["):
		return c, 0, fmt.Errorf("memroom cannot read arrays of records: save one array for " +
			"each field")
	case descr == nil || shape == nil:
		return c, 0, damaged("the header names no type or no shape")
	case strings.Contains(descr[1], "O"):
		return c, 0, fmt.Errorf("memroom cannot read arrays of Python objects: save a " +
			"numeric array")
	}
	c.DType, c.From = descr[1], "npy "+descr[1]
	digits := strings.TrimLeft(c.DType, "<>|=abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
	digits, _, _ = strings.Cut(digits, "[")
	width, err := strconv.Atoi(digits)
	if err != nil || width < 0 || width > 1<<30 {
		return c, 0, fmt.Errorf("the dtype %q is not known: save the array as numbers, such as "+
			"float32", c.DType)
	}
	if c.DType[1] == 'U' {
		width *= 4
	}
	var sizes []int64
	for _, part := range strings.Split(shape[1], ",") {
		if part = strings.TrimSpace(part); part != "" {
			n, err := strconv.ParseInt(part, 10, 64)
			if err != nil || n < 0 || n > 1<<48 {
				return c, 0, damaged("(%s) is not a shape", shape[1])
			}
			sizes = append(sizes, n)
		}
	}
	if len(sizes) == 0 {
		return c, 0, fmt.Errorf("the array has no dimension, and a stream needs rows: save it as " +
			"np.atleast_1d(a)")
	}
	total := int64(width)
	for _, n := range sizes[1:] {
		c.Shape = append(c.Shape, int(n))
		if total *= max(n, 0); total > 1<<40 {
			return c, 0, fmt.Errorf("one row has more than 1 TiB: make rows the first dimension")
		}
	}
	c.Width = int(total)
	return c, sizes[0], nil
}

// fortran marks arrays whose first axis varies first: a row is spread over the whole file.
const fortran = ", Fortran order"

type npyDecoder struct {
	f  source.File
	ix *Index
}

func openNPY(f source.File, ix *Index, _ Options) (Decoder, error) {
	return &npyDecoder{f, ix}, nil
}

func (d *npyDecoder) Close() error { return nil }

func (d *npyDecoder) Decode(b Block, _ []table.Column) (*table.Rows, error) {
	read := readBlock
	if strings.HasSuffix(d.ix.Fields[0].From, fortran) {
		read = d.gather
	}
	data, err := read(d.f, b)
	if err != nil {
		return nil, err
	}
	return &table.Rows{Count: int(b.Rows), Data: []table.Data{{Fixed: data}}}, nil
}

// gather reads rows of an array in Fortran order: of each place in a row, the values of all rows
// lie side by side.
func (d *npyDecoder) gather(f source.File, b Block) ([]byte, error) {
	c := d.ix.Fields[0].Column
	places := 1
	for _, n := range c.Shape {
		places *= n
	}
	last := d.ix.Blocks[len(d.ix.Blocks)-1]
	count := last.First + last.Rows
	start := d.ix.Blocks[0].Offset
	out := table.Take(int(b.Length) + padding)[:b.Length]
	if places == 0 {
		return out, nil
	}
	item := c.Width / places
	values := make([]byte, int(b.Rows)*item)
	at := make([]int, len(c.Shape)) // the place in a row; the first axis varies first in the file
	for p := range places {
		offset := start + (int64(p)*count+b.First)*int64(item)
		if n, err := f.ReadAt(values, offset); n < len(values) {
			return nil, fmt.Errorf("%s: offset %d: %w", f.Name(), offset+int64(n), shorter(err))
		}
		f.Drop(offset, int64(len(values)))
		to := 0
		for i, n := range c.Shape {
			to = to*n + at[i]
		}
		for row := range int(b.Rows) {
			copy(out[row*c.Width+to*item:][:item], values[row*item:])
		}
		for i := 0; i < len(at); i++ {
			if at[i]++; at[i] < c.Shape[i] {
				break
			}
			at[i] = 0
		}
	}
	return out, nil
}
