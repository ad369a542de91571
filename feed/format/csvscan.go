package format

import (
	"encoding/binary"
	"math"
	"math/bits"

	"memroom/feed/table"
)

// The quick way through a block of CSV. Rows are not looked for first: cells are read one after
// another until a newline ends one. Numbers go straight to their place. A row with a quote at the
// start of a cell, and a row that may be blank, is left to decodeRow.

// padding is how many bytes may be read behind the end of a block: numbers are read eight digits at
// a time, twice.
const padding = 32

// csvScan walks through one block.
type csvScan struct {
	buf   []byte // the block, a newline, and padding
	size  int    // without the padding
	delim byte
	plan  []*csvTarget
	rows  *table.Rows
	most  int // rows that there is room for
	room  []byte
}

func newCSVScan(data []byte, delim byte, plan []*csvTarget, rows *table.Rows, most int) *csvScan {
	size := len(data)
	buf := data[:size+padding]
	clear(buf[size:])
	if size > 0 && buf[size-1] != '\n' {
		buf[size] = '\n'
		size++
	}
	return &csvScan{buf: buf, size: size, delim: delim, plan: plan, rows: rows, most: most,
		room: make([]byte, 0, 256)}
}

// run reads all rows. It returns where a bad row begins, and why it is bad.
func (s *csvScan) run() (at int, why string) {
	for at < s.size {
		c := s.buf[at]
		next, ok := 0, false
		if c != '\n' && c != '\r' && s.rows.Count < s.most && !s.hollow(at) {
			if next, ok, why = s.row(at, s.rows.Count); why != "" {
				return at, why
			}
		}
		if !ok {
			if next, why = s.slow(at); why != "" {
				return at, why
			}
			at = next
			continue
		}
		s.rows.Count++
		at = next
	}
	s.cut(s.rows.Count)
	return at, ""
}

// slow reads one row the general way, or a blank line.
func (s *csvScan) slow(at int) (int, string) {
	n := csvEnd(s.delim)(s.buf[at:s.size])
	if n <= 0 {
		n = s.size - at // a quote that is not closed
	}
	row := s.buf[at : at+n]
	if hollow(row, s.delim) {
		return at + n, ""
	}
	if s.rows.Count >= s.most {
		return at, "is one more than the index has: the file has changed: start the stream again"
	}
	s.cut(s.rows.Count)
	if why := decodeRow(trimEnd(row), s.delim, s.plan, s.room); why != "" {
		return at, why
	}
	s.rows.Count++
	return at + n, ""
}

// hollow reports whether only space stands before the end of the line at a place.
func (s *csvScan) hollow(at int) bool {
	for ; s.buf[at] == ' ' || s.buf[at] == '\t'; at++ {
		if s.buf[at] == s.delim {
			return false
		}
	}
	return s.buf[at] == '\n' || s.buf[at] == '\r' && s.buf[at+1] == '\n'
}

// cut takes back what was added after so many rows.
func (s *csvScan) cut(rows int) {
	for _, t := range s.plan {
		if t != nil {
			t.cut(rows)
		}
	}
}

func (t *csvTarget) cut(rows int) {
	d := t.into
	if t.width > 0 {
		d.Fixed = d.Fixed[:rows*t.width]
		return
	}
	d.Ends = d.Ends[:rows]
	if d.Null != nil {
		d.Null = d.Null[:rows]
	}
	d.Bytes = d.Bytes[:0]
	if rows > 0 {
		d.Bytes = d.Bytes[:d.Ends[rows-1]]
	}
}

// row reads the row that begins at a place. It returns where the next begins; ok is false where a
// cell is quoted.
func (s *csvScan) row(at, row int) (next int, ok bool, why string) {
	buf, i := s.buf, at
	last := len(s.plan) - 1
	for k, t := range s.plan {
		end := 0
		found := false
		if t != nil {
			switch t.quick {
			case quickFloat:
				var v float64
				if v, end, found = scanFloat(buf, i); found && s.ends(end) {
					binary.LittleEndian.PutUint64(t.out[8*row:], math.Float64bits(v))
				} else {
					found = false
				}
			case quickFloat32:
				var v float64
				if v, end, found = scanFloat(buf, i); found && s.ends(end) && roundsOnce(v) {
					binary.LittleEndian.PutUint32(t.out[4*row:], math.Float32bits(float32(v)))
				} else {
					found = false
				}
			case quickInt:
				var v int64
				if v, end, found = scanInt(buf, i); found && s.ends(end) {
					binary.LittleEndian.PutUint64(t.out[8*row:], uint64(v))
				} else {
					found = false
				}
			}
		}
		if !found {
			if buf[i] == '"' {
				return 0, false, ""
			}
			end = s.cellEnd(i)
			if t != nil {
				if why := s.set(t, row, i, end); why != "" {
					return 0, false, why
				}
			}
		}
		if buf[end] == '\r' {
			end++ // ends has seen the newline behind it
		}
		if (buf[end] == '\n') != (k == last) {
			return 0, false, s.ragged(at)
		}
		i = end + 1
	}
	return i, true, ""
}

// set returns a cell to a column's own function.
func (s *csvScan) set(t *csvTarget, row, from, end int) string {
	v := s.buf[from:end]
	if s.buf[end] == '\n' {
		v = trimEnd(v)
	}
	if t.width > 0 {
		t.into.Fixed = t.into.Fixed[:row*t.width]
	}
	return t.set(v, false, t.into)
}

// ends reports whether a cell ends at a place.
func (s *csvScan) ends(i int) bool {
	c := s.buf[i]
	return c == s.delim || c == '\n' || c == '\r' && s.buf[i+1] == '\n'
}

// cellEnd finds the delimiter or newline that ends a cell without quotes.
func (s *csvScan) cellEnd(i int) int {
	delims, newlines := 0x0101010101010101*uint64(s.delim), uint64(0x0101010101010101*'\n')
	for {
		eight := binary.LittleEndian.Uint64(s.buf[i:])
		if m := zeroBytes(eight^delims) | zeroBytes(eight^newlines); m != 0 {
			return i + bits.TrailingZeros64(m)/8
		}
		i += 8
	}
}

// zeroBytes has the highest bit set of the first byte that is zero; those behind it may be wrong.
func zeroBytes(x uint64) uint64 { return (x - 0x0101010101010101) & ^x & 0x8080808080808080 }

// ragged returns the error for a row that ends too early or too late, where it has no quotes.
func (s *csvScan) ragged(at int) string {
	n := csvEnd(s.delim)(s.buf[at:s.size])
	if n <= 0 {
		n = s.size - at
	}
	return raggedRow(count(trimEnd(s.buf[at:at+n]), s.delim, s.room), len(s.plan))
}

// scanFloat reads a decimal number of at most 19 digits exactly, and returns where it ends. ok is
// false for what it does not read. At least padding bytes follow the place.
func scanFloat(p []byte, i int) (v float64, end int, ok bool) {
	var negative uint64
	if p[i] == '-' {
		negative = 1
	}
	i += int(negative) // the sign of numbers is often random: no branch depends on it
	from := i
	var mantissa uint64
	for c := p[i] - '0'; c <= 9 && i-from < 20; c = p[i] - '0' {
		mantissa = mantissa*10 + uint64(c)
		i++
	}
	count, scale := i-from, 0
	if p[i] == '.' {
		var fraction uint64
		fraction, scale = upToEight(p, i+1)
		mantissa = mantissa*wholeTens[scale] + fraction
		more, n := upToEight(p, i+9)
		n &= int(-(uint(scale) >> 3)) // only behind eight digits
		mantissa = mantissa*wholeTens[n] + more&-(uint64(scale)>>3)
		scale += n
		i += 1 + scale
		count += scale
	}
	if count == 0 || count > 19 {
		return 0, 0, false
	}
	exponent := -scale
	if p[i]|0x20 == 'e' {
		if i, ok = powerOfTen(p, i+1, &exponent); !ok {
			return 0, 0, false
		}
	}
	if mantissa <= 1<<53 && exponent <= 0 && exponent >= -22 {
		v = float64(mantissa) / tens[-exponent]
	} else if v, ok = decimal(mantissa, exponent); !ok {
		return 0, 0, false
	}
	return math.Float64frombits(math.Float64bits(v) | negative<<63), i, true
}

// wholeTens are the powers of ten that eight digits need.
var wholeTens = [...]uint64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8}

// upToEight reads digits, at most eight, and returns their number.
func upToEight(p []byte, i int) (uint64, int) {
	eight := binary.LittleEndian.Uint64(p[i:]) ^ 0x3030303030303030
	// A byte above 9 reaches 0x80 when 0x76 is added. It may carry into those behind it, which do
	// not matter.
	other := (eight + 0x7676767676767676 | eight) & 0x8080808080808080
	n := bits.TrailingZeros64(other) / 8
	eight <<= uint(64 - 8*n) // as if zeros stood before the digits; the bytes after them are gone
	eight = eight*10 + eight>>8
	const pairs = 0x000000FF000000FF
	eight = eight&pairs*(100+1000000<<32) + eight>>16&pairs*(1+10000<<32)
	return eight >> 32, n
}

// scanInt reads a whole number of at most 15 digits.
func scanInt(p []byte, i int) (v int64, end int, ok bool) {
	negative := p[i] == '-'
	if negative {
		i++
	}
	whole, n := upToEight(p, i)
	count := n
	if n == 8 {
		var more uint64
		more, n = upToEight(p, i+8)
		whole = whole*wholeTens[n] + more
		count += n
	}
	if count == 0 || count > 15 {
		return 0, 0, false
	}
	if v = int64(whole); negative {
		v = -v
	}
	return v, i + count, true
}

// roundsOnce reports whether rounding a float64 to a float32 leads to the same result as rounding
// the decimal number itself. It does unless the float64 lies in the middle of two float32 values,
// or is very small.
func roundsOnce(v float64) bool {
	const middle = 1 << 28
	return math.Float64bits(v)&(2*middle-1) != middle && (v == 0 || math.Abs(v) >= 0x1p-126)
}
