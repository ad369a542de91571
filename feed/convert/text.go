package convert

import (
	"bufio"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow/float16"

	"memroom/feed/table"
)

// cell appends a row of a column as JSON, and reports whether it is missing. CSV takes the same
// text without the quotes of a string.
func (c *column) cell(out []byte, row int) ([]byte, bool) {
	if c.Kind == table.Fixed {
		values := c.fixed[row*c.Width : (row+1)*c.Width]
		if len(c.Shape) == 0 {
			return number(out, c.DType, values)
		}
		return nested(out, c.DType, values, c.Shape), false
	}
	if len(c.null) > 0 && c.null[row] == 1 {
		return append(out, "null"...), true
	}
	start := uint64(0)
	if row > 0 {
		start = binary.LittleEndian.Uint64(c.ends[8*(row-1):])
	}
	value := c.bytes[start:binary.LittleEndian.Uint64(c.ends[8*row:])]
	switch c.Kind {
	case table.List:
		return numbers(out, c.DType, value, c.Width), false
	case table.Binary:
		return append(append(append(out, '"'), base64.StdEncoding.EncodeToString(value)...), '"'), false
	}
	text, _ := json.Marshal(string(value)) // a string always has a JSON form
	return append(out, text...), false
}

// nested appends an array with a list for each of its dimensions.
func nested(out []byte, dtype string, values []byte, shape []int) []byte {
	size := len(values) / max(1, shape[0])
	if len(shape) == 1 {
		return numbers(out, dtype, values, max(1, size))
	}
	out = append(out, '[')
	for i := range shape[0] {
		if i > 0 {
			out = append(out, ',')
		}
		out = nested(out, dtype, values[i*size:(i+1)*size], shape[1:])
	}
	return append(out, ']')
}

func numbers(out []byte, dtype string, values []byte, width int) []byte {
	out = append(out, '[')
	for i := 0; i+width <= len(values); i += width {
		if i > 0 {
			out = append(out, ',')
		}
		out, _ = number(out, dtype, values[i:i+width])
	}
	return append(out, ']')
}

// number appends a value; NaN and NaT are missing.
func number(out []byte, dtype string, v []byte) ([]byte, bool) {
	var bits uint64
	for i, b := range v {
		bits |= uint64(b) << (8 * i)
	}
	shift := 64 - 8*len(v)
	switch dtype[1] {
	case 'b':
		return strconv.AppendBool(out, bits != 0), false
	case 'i':
		return strconv.AppendInt(out, int64(bits<<shift)>>shift, 10), false
	case 'u':
		return strconv.AppendUint(out, bits, 10), false
	case 'M', 'm':
		return moment(out, dtype, int64(bits))
	}
	var x float64
	size := 64
	switch len(v) {
	case 2:
		x, size = float64(float16.FromBits(uint16(bits)).Float32()), 32
	case 4:
		x, size = float64(math.Float32frombits(uint32(bits))), 32
	default:
		x = math.Float64frombits(bits)
	}
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return append(out, "null"...), true
	}
	return strconv.AppendFloat(out, x, 'g', -1, size), false
}

// moment writes a time as ISO 8601, a duration as a whole number of its unit.
func moment(out []byte, dtype string, v int64) ([]byte, bool) {
	if v == math.MinInt64 {
		return append(out, "null"...), true
	}
	unit := strings.TrimSuffix(dtype[4:], "]")
	if dtype[1] == 'm' {
		return strconv.AppendInt(out, v, 10), false
	}
	var t time.Time
	layout := `"2006-01-02T15:04:05.999999999"`
	switch unit {
	case "D":
		t, layout = time.Unix(v*86400, 0), `"2006-01-02"`
	case "s":
		t = time.Unix(v, 0)
	case "ms":
		t = time.UnixMilli(v)
	case "us":
		t = time.UnixMicro(v)
	default:
		t = time.Unix(v/1e9, v%1e9)
	}
	return t.UTC().AppendFormat(out, layout), false
}

type jsonlWriter struct {
	out   *bufio.Writer
	names [][]byte
	line  []byte
}

func newJSONL(out io.Writer, columns []table.Column) *jsonlWriter {
	w := &jsonlWriter{out: bufio.NewWriterSize(out, 256<<10)}
	for _, c := range columns {
		name, _ := json.Marshal(c.Name)
		w.names = append(w.names, append(name, ':'))
	}
	return w
}

func (w *jsonlWriter) Write(b Batch) error {
	columns := split(b)
	for row := range b.Rows {
		w.line = append(w.line[:0], '{')
		for i := range columns {
			if i > 0 {
				w.line = append(w.line, ',')
			}
			w.line, _ = columns[i].cell(append(w.line, w.names[i]...), row)
		}
		if _, err := w.out.Write(append(w.line, "}\n"...)); err != nil {
			return err
		}
	}
	return nil
}

func (w *jsonlWriter) Close() error { return w.out.Flush() }

type csvWriter struct {
	out   *bufio.Writer
	delim string
	line  []byte
}

func newCSV(out io.Writer, columns []table.Column, delim string) (*csvWriter, error) {
	w := &csvWriter{out: bufio.NewWriterSize(out, 256<<10), delim: delim}
	for i, c := range columns {
		if c.Kind == table.List || c.Kind == table.Binary || len(c.Shape) > 0 {
			return nil, fmt.Errorf("column %q holds lists or bytes, which CSV cannot hold: "+
				"write .arrow or .jsonl, or choose other columns with --column", c.Name)
		}
		if i > 0 {
			w.line = append(w.line, delim...)
		}
		w.line = w.quoted(w.line, c.Name)
	}
	_, err := w.out.Write(append(w.line, '\n'))
	return w, err
}

func (w *csvWriter) quoted(out []byte, text string) []byte {
	if text != "" && !strings.ContainsAny(text, w.delim+"\"\n\r") {
		return append(out, text...)
	}
	out = append(out, '"')
	out = append(out, strings.ReplaceAll(text, `"`, `""`)...)
	return append(out, '"')
}

func (w *csvWriter) Write(b Batch) error {
	columns := split(b)
	var cell []byte
	for row := range b.Rows {
		w.line = w.line[:0]
		for i := range columns {
			if i > 0 {
				w.line = append(w.line, w.delim...)
			}
			var missing bool
			if cell, missing = columns[i].cell(cell[:0], row); missing {
				continue
			}
			text := string(cell)
			if text[0] == '"' {
				_ = json.Unmarshal(cell, &text) // it was written as JSON just now
			}
			w.line = w.quoted(w.line, text)
		}
		if len(w.line) == 0 { // readers skip a line with nothing on it
			w.line = append(w.line, `""`...)
		}
		if _, err := w.out.Write(append(w.line, '\n')); err != nil {
			return err
		}
	}
	return nil
}

func (w *csvWriter) Close() error { return w.out.Flush() }

// npyWriter writes one column, or columns of numbers of one type side by side.
type npyWriter struct {
	out *bufio.Writer
}

func newNPY(out io.Writer, columns []table.Column, rows int64) (*npyWriter, error) {
	first := columns[0]
	for _, c := range columns {
		if c.Kind != table.Fixed || c.DType != first.DType || len(columns) > 1 && len(c.Shape) > 0 {
			return nil, fmt.Errorf("columns %q and %q are not numbers of one type, which .npy wants: choose "+
				"others with --column, or write .arrow", first.Name, c.Name)
		}
	}
	shape := []string{strconv.FormatInt(rows, 10)}
	for _, n := range first.Shape {
		shape = append(shape, strconv.Itoa(n))
	}
	if len(columns) > 1 {
		shape = append(shape, strconv.Itoa(len(columns)))
	}
	head := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': (%s,), }", first.DType,
		strings.Join(shape, ", "))
	const before = 10                                            // magic, version, length
	head += strings.Repeat(" ", 63-(before+len(head))%64) + "\n" // rows begin at a cache line
	w := &npyWriter{out: bufio.NewWriterSize(out, 256<<10)}
	start := binary.LittleEndian.AppendUint16([]byte("\x93NUMPY\x01\x00"), uint16(len(head)))
	_, err := w.out.Write(append(start, head...))
	return w, err
}

func (w *npyWriter) Write(b Batch) error {
	columns := split(b)
	for row := range b.Rows {
		for _, c := range columns {
			if _, err := w.out.Write(c.fixed[row*c.Width : (row+1)*c.Width]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *npyWriter) Close() error { return w.out.Flush() }
