package format

import (
	"encoding/binary"
	"math"
	"math/big"
	"math/bits"
	"strconv"
	"unsafe"
)

// Powers of ten that a float64 holds exactly.
var tens = [...]float64{1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13,
	1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22}

// fastFloat reads a decimal number that ends at a delimiter or at the end of the row. Numbers of up
// to 19 digits are read exactly; everything else is left to the caller.
func fastFloat(row []byte, pos int, delim byte) (float64, int, bool) {
	i := pos
	negative := false
	if i < len(row) && row[i] == '-' {
		negative = true
		i++
	}
	first := i
	mantissa, i := digits(row, i, 0)
	count := i - first
	scale := 0
	if i < len(row) && row[i] == '.' {
		from := i + 1
		mantissa, i = digits(row, from, mantissa)
		scale = i - from
		count += scale
	}
	if count == 0 || count > 19 {
		return 0, 0, false
	}
	exponent := -scale
	if i < len(row) && row[i]|0x20 == 'e' {
		var ok bool
		if i, ok = powerOfTen(row, i+1, &exponent); !ok {
			return 0, 0, false
		}
	}
	if i < len(row) && row[i] != delim {
		return 0, 0, false
	}
	v, ok := decimal(mantissa, exponent)
	if negative {
		v = -v
	}
	return v, i + 1, ok
}

// digits reads digits, eight at a time where there are so many.
func digits(row []byte, i int, value uint64) (uint64, int) {
	for i+8 <= len(row) {
		eight := binary.LittleEndian.Uint64(row[i:])
		// A digit is 0x30 to 0x39: its upper half is 3, and still is after adding 6.
		if eight&0xF0F0F0F0F0F0F0F0 != 0x3030303030303030 ||
			(eight+0x0606060606060606)&0xF0F0F0F0F0F0F0F0 != 0x3030303030303030 {
			break
		}
		// Neighbours are joined: digits to pairs, pairs to fours, fours to eight.
		eight &= 0x0F0F0F0F0F0F0F0F
		eight = (eight*10 + eight>>8) & 0x00FF00FF00FF00FF
		eight = (eight*100 + eight>>16) & 0x0000FFFF0000FFFF
		eight = (eight*10000 + eight>>32) & 0xFFFFFFFF
		value = value*100000000 + eight
		i += 8
	}
	for i < len(row) && row[i]-'0' <= 9 {
		value = value*10 + uint64(row[i]-'0')
		i++
	}
	return value, i
}

// powerOfTen reads what follows the e of a number.
func powerOfTen(row []byte, i int, exponent *int) (int, bool) {
	sign := 1
	if i < len(row) && (row[i] == '-' || row[i] == '+') {
		if row[i] == '-' {
			sign = -1
		}
		i++
	}
	from := i
	value, i := digits(row, i, 0)
	if i == from || i-from > 4 {
		return i, false
	}
	*exponent += sign * int(value)
	return i, true
}

// decimal returns the float64 nearest to mantissa x 10^exponent. Where both are exact in a float64,
// one multiplication or division rounds correctly (Clinger 1990). Otherwise the product with a
// power of ten of 128 bits decides, unless it is too near the middle of two floats (Lemire, "Number
// Parsing at a Gigabyte per Second", 2021): then decimal returns false.
func decimal(mantissa uint64, exponent int) (float64, bool) {
	if mantissa <= 1<<53 && exponent >= -22 && exponent <= 22 {
		if exponent < 0 {
			return float64(mantissa) / tens[-exponent], true
		}
		return float64(mantissa) * tens[exponent], true
	}
	if mantissa == 0 {
		return 0, true
	}
	if exponent < leastPower || exponent > -leastPower {
		return 0, false
	}
	ten := &powers[exponent-leastPower]
	zeros := bits.LeadingZeros64(mantissa)
	mantissa <<= zeros
	high, low := bits.Mul64(mantissa, ten.high)
	if high&0x1FF == 0x1FF { // the lower half of the power may carry into the bits that count
		more, _ := bits.Mul64(mantissa, ten.low)
		var carry uint64
		low, carry = bits.Add64(low, more, 0)
		high += carry
		if high&0x1FF == 0x1FF && low == math.MaxUint64 {
			return 0, false
		}
	}
	top := int(high >> 63)
	kept := high >> (top + 9) // 54 bits: the 53 of the float and one to round by
	if low == 0 && high&(1<<(top+9)-1) == 0 && kept&3 == 1 {
		return 0, false // perhaps exactly in the middle
	}
	kept += kept & 1
	kept >>= 1
	power := ten.exponent + top - zeros + 126 // of two, of the highest bit
	if kept>>53 != 0 {
		kept >>= 1
		power++
	}
	if power <= -1022 || power >= 1023 {
		return 0, false
	}
	return math.Float64frombits(kept&(1<<52-1) | uint64(power+1023)<<52), true
}

// leastPower bounds the table of powers of ten: numbers outside are rare, and slow.
const leastPower = -80

// power is a power of ten: 128 bits, the highest of them set, times 2^exponent, rounded down.
type power struct {
	high, low uint64
	exponent  int // of the lowest of the 128 bits, plus 1
}

var powers = func() (table [1 - 2*leastPower]power) {
	for i := range table {
		table[i] = newPower(leastPower + i)
	}
	return table
}()

func newPower(ten int) power {
	const room = 600 // bits: enough for 10^-80 to have 128 of its own
	value := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(max(ten, -ten))), nil)
	shift := 0
	if ten < 0 {
		value.Div(new(big.Int).Lsh(big.NewInt(1), room), value)
		shift = -room
	}
	if extra := value.BitLen() - 128; extra > 0 {
		value.Rsh(value, uint(extra))
		shift += extra
	} else {
		value.Lsh(value, uint(-extra))
		shift += extra
	}
	low := new(big.Int).And(value, new(big.Int).SetUint64(math.MaxUint64))
	return power{new(big.Int).Rsh(value, 64).Uint64(), low.Uint64(), shift + 64}
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
