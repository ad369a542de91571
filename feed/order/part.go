package order

import (
	"fmt"
	"math"
)

// Part is a share of the rows of a data set: those whose place in a keyed shuffle lies between two
// fractions. Parts with the same seed that do not overlap share no row, and parts that together
// reach from 0 to 1 hold every row once. Which rows are in a part depends on nothing but seed and
// file: not on the order, the window or the columns.
type Part struct {
	From float64 `json:"from"`
	To   float64 `json:"to"`
	Seed uint64  `json:"seed"`
}

// stratum is how many rows of a file are shared out among the parts together, so that a part has
// its share of every stretch of the data.
const stratum = 1000

// Check reports what is wrong with a part.
func (p Part) Check() error {
	if !(p.From >= 0 && p.From < p.To && p.To <= 1) {
		return fmt.Errorf("a part of the rows reaches from one fraction to a larger one, within 0 to 1, "+
			"not from %v to %v", p.From, p.To)
	}
	return nil
}

// Rows appends the rows of the part among rows first to first+count of a file that has `all`,
// counted from first, ascending.
func (p Part) Rows(file uint64, first, count, all int64, out []int32) []int32 {
	for at := first; at < first+count; {
		base := at / stratum * stratum
		size := min(stratum, all-base)
		low, high := p.share(p.From, size), p.share(p.To, size)
		of := New(uint64(size), p.Seed, file, uint64(base), 3)
		for ; at < min(base+size, first+count); at++ {
			if place := int64(of.At(uint64(at - base))); place >= low && place < high {
				out = append(out, int32(at-first))
			}
		}
	}
	return out
}

func (p Part) share(fraction float64, size int64) int64 {
	return int64(math.Round(fraction * float64(size)))
}
