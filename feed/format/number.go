package format

import (
	"strconv"
	"unsafe"
)

// Powers of ten that a float64 holds exactly.
var tens = [...]float64{1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13,
	1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22}

// fastFloat reads a decimal number that ends at a delimiter or at the end of the row. Numbers whose
// digits and power of ten are both exact in a float64 need one division or multiplication, which
// rounds correctly (Clinger 1990). Everything else is left to the caller.
func fastFloat(row []byte, pos int, delim byte) (float64, int, bool) {
	i := pos
	negative := false
	if i < len(row) && row[i] == '-' {
		negative = true
		i++
	}
	var digits uint64
	first := i
	for i < len(row) && row[i]-'0' <= 9 {
		digits = digits*10 + uint64(row[i]-'0')
		i++
	}
	count := i - first
	scale := 0
	if i < len(row) && row[i] == '.' {
		i++
		from := i
		for i < len(row) && row[i]-'0' <= 9 {
			digits = digits*10 + uint64(row[i]-'0')
			i++
		}
		scale = i - from
		count += scale
	}
	if count == 0 || count > 19 || digits > 1<<53 || scale > 22 {
		return 0, 0, false
	}
	next := i + 1
	if i < len(row) && row[i] != delim {
		return 0, 0, false
	}
	v := float64(digits)
	if scale > 0 {
		v /= tens[scale]
	}
	if negative {
		v = -v
	}
	return v, next, true
}

// parseFloat reads any decimal number as Python does, and not the forms that only Go knows.
func parseFloat(v []byte) (float64, error) {
	if x, _, ok := fastFloat(v, 0, 0); ok {
		return x, nil
	}
	for _, c := range v {
		if c == 'x' || c == 'X' || c == '_' || c == 'p' || c == 'P' {
			return 0, strconv.ErrSyntax
		}
	}
	if len(v) == 0 {
		return 0, strconv.ErrSyntax
	}
	x, err := strconv.ParseFloat(unsafe.String(&v[0], len(v)), 64)
	if err != nil && err.(*strconv.NumError).Err == strconv.ErrRange {
		return x, nil // infinity, or zero, as Python reads it
	}
	return x, err
}
