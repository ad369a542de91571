package format

import (
	"bytes"
	"encoding/binary"
	"math"

	"memroom/feed/table"
)

// The quick way through a block of JSON lines. Nearly all rows of a file have the same keys in the
// same order, written in the same way. So what stands between the values of one row is remembered
// and compared with the next row, and only values are read. A row that looks otherwise is left to
// jsonRow.

// jsonScan walks through one block.
type jsonScan struct {
	buf     []byte // the block and padding
	reader  *jsonRow
	targets []*csvTarget // by column
	rows    *table.Rows
	most    int // rows that there is room for

	between [][]byte // before each value, and after the last
	members []int    // the column of each value; -1: not wanted
}

func newJSONScan(data []byte, reader *jsonRow, rows *table.Rows, most int) *jsonScan {
	s := &jsonScan{buf: data[:len(data)+padding], reader: reader, rows: rows, most: most}
	clear(s.buf[len(data):])
	for i, c := range reader.columns {
		t := newTarget(c, &rows.Data[i])
		if c.Kind != table.Fixed {
			t.width, t.quick = 0, 0
			if c.Kind == table.Text && c.From != "JSON text" {
				t.quick = quickText
			}
		}
		s.targets = append(s.targets, t)
	}
	return s
}

// row adds a row of the block: its bytes from at to end. It returns why the row cannot be read.
func (s *jsonScan) row(at, end int) string {
	if s.rows.Count < s.most && s.between != nil && s.quick(at, end, s.rows.Count) {
		return ""
	}
	s.cut()
	row := s.buf[at:end]
	if why := s.reader.into(row, s.rows); why != "" {
		return why
	}
	s.learn(row)
	return ""
}

// cut takes back the values of a row that was given up.
func (s *jsonScan) cut() {
	for _, t := range s.targets {
		t.cut(s.rows.Count)
	}
}

// learn remembers what stands between the values of a good row. A row without one of the columns,
// or with a key twice, is no example.
func (s *jsonScan) learn(row []byte) {
	s.between, s.members = s.between[:0], s.members[:0]
	place := 0
	seen := make([]bool, len(s.targets))
	wanted, twice := 0, false
	_ = jsonMembers(row, func(key, value []byte, _ jsonKind) string {
		from := cap(row) - cap(value) // both end where the block does
		member := -1
		if i, ok := s.reader.place(key); ok {
			member = i
			twice = twice || seen[i]
			seen[i] = true
			wanted++
		}
		s.between = append(s.between, row[place:from])
		s.members = append(s.members, member)
		place = from + len(value)
		return ""
	})
	s.between = append(s.between, row[place:])
	if wanted != len(s.targets) || twice {
		s.between = nil
	}
}

// quick reads a row that is written as the last one was.
func (s *jsonScan) quick(at, end, row int) bool {
	i := at
	for k, member := range s.members {
		before := s.between[k]
		if !bytes.HasPrefix(s.buf[i:end], before) {
			return false
		}
		i += len(before)
		if member >= 0 {
			if next, ok := s.value(s.targets[member], i, end, row); ok && next <= end {
				i = next
				continue
			}
		}
		kind, next := jsonValue(s.buf[:end], i)
		if next < 0 {
			return false
		}
		if member >= 0 {
			t := s.targets[member]
			if t.width > 0 {
				t.into.Fixed = t.into.Fixed[:row*t.width]
			}
			if setJSON(t.into, s.reader.columns[member], s.buf[i:next], kind, &s.reader.room) != "" {
				return false
			}
		}
		i = next
	}
	if !bytes.Equal(s.buf[i:end], s.between[len(s.members)]) {
		return false
	}
	s.rows.Count++
	return true
}

// value reads a value of the common kinds, in a row that ends at stop.
func (s *jsonScan) value(t *csvTarget, i, stop, row int) (int, bool) {
	switch t.quick {
	case quickFloat:
		v, end, ok := scanFloat(s.buf, i)
		if !ok || !jsonEnds(s.buf[end]) {
			return 0, false
		}
		binary.LittleEndian.PutUint64(t.out[8*row:], math.Float64bits(v))
		return end, true
	case quickFloat32:
		v, end, ok := scanFloat(s.buf, i)
		if !ok || !jsonEnds(s.buf[end]) || !roundsOnce(v) {
			return 0, false
		}
		binary.LittleEndian.PutUint32(t.out[4*row:], math.Float32bits(float32(v)))
		return end, true
	case quickInt:
		v, end, ok := scanInt(s.buf, i)
		if !ok || !jsonEnds(s.buf[end]) {
			return 0, false
		}
		binary.LittleEndian.PutUint64(t.out[8*row:], uint64(v))
		return end, true
	case quickText:
		if i >= stop || s.buf[i] != '"' {
			return 0, false
		}
		n := bytes.IndexByte(s.buf[i+1:stop], '"')
		if n < 0 || bytes.IndexByte(s.buf[i+1:i+1+n], '\\') >= 0 {
			return 0, false
		}
		t.into.AddBytes(s.buf[i+1 : i+1+n])
		return i + n + 2, true
	}
	return 0, false
}

// jsonEnds reports whether a number may end before a byte.
func jsonEnds(c byte) bool { return c == ',' || c == '}' || c == ' ' || c == '\t' }
