package allocsim

import "math/bits"

// maxRequest is far above any card, and maxTotal far below the overflow of a sum of sizes. No
// allocator here ever reserves more than maxTotal, whatever a file contains.
const (
	maxRequest = 1 << 50
	maxTotal   = 1 << 60
)

// Round returns the size of the block that a request of n bytes needs: a multiple of 512.
func (c *Config) Round(n int64) int64 {
	if n < minBlock {
		return minBlock
	}
	slot := min(max(bits.Len64(uint64(n))-1-20, 0), divisionSlots-1)
	if d := int64(c.Divisions[slot]); d > 1 && n > minBlock*d {
		return roundPower2(n, d)
	}
	return (n + minBlock - 1) &^ (minBlock - 1)
}

// roundPower2 rounds n up to the next of d equal steps between two powers of two.
func roundPower2(n, d int64) int64 {
	floor := int64(1) << (bits.Len64(uint64(n)) - 1)
	step := floor >> (bits.Len64(uint64(d)) - 1) // not 0: n is above 512*d
	return (n + step - 1) &^ (step - 1)
}

// segmentSize returns the bytes asked of the driver when a block of the rounded size s needs a new
// segment.
func (c *Config) segmentSize(s int64) int64 {
	switch {
	case s <= smallLimit:
		return smallSegment
	case s < madeToMeasure:
		return int64(c.LargeSegment)
	default:
		return (s + roundLarge - 1) &^ (roundLarge - 1)
	}
}
