package feed

import (
	"fmt"
	"math"

	"memroom/event"
	"memroom/feed/order"
)

// Quality measures how well an order mixes the rows.
type Quality struct {
	// Correlation of a row's place in the data with its position in the epoch: 0 for a full
	// permutation, 1 for no shuffle.
	Correlation float64 `json:"correlation"`
	// Spread is the mean distance in the data of rows that follow each other, as a part of the
	// distance in a full permutation.
	Spread float64 `json:"spread"`
	// Classes is the share of ten classes that a large batch holds if the data is sorted by class.
	Classes float64 `json:"classes"`
	// Window is the number of rows that are mixed with each other, in the median window.
	Window int64 `json:"window_rows"`
}

func (q Quality) String() string {
	return fmt.Sprintf("each window mixes %s; rows that follow each other lie %.0f %% as far apart in "+
		"the data as after a full shuffle; correlation with the data's order %.3f; of ten classes that "+
		"lie one after another a batch holds %.1f", event.Count(q.Window, "row"), 100*q.Spread,
		q.Correlation, 10*q.Classes)
}

// MeasureQuality looks at up to 100,000 positions of an epoch.
func MeasureQuality(d *Dataset, e *order.Epoch) Quality {
	if e.Rows() < 2 {
		return Quality{Spread: 1, Classes: 1, Window: e.Rows()}
	}
	firsts := make([]int64, len(d.sizes))
	for i := 1; i < len(firsts); i++ {
		firsts[i] = firsts[i-1] + d.sizes[i-1].Rows
	}
	const most = 100_000
	step := max(1, e.Rows()/most)
	var n, sumX, sumY, sumXX, sumYY, sumXY, distance, pairs float64
	for position := int64(0); position < e.Rows(); position += step {
		x, y := float64(position), float64(d.rowAt(e, firsts, position))
		n++
		sumX, sumY, sumXX, sumYY, sumXY = sumX+x, sumY+y, sumXX+x*x, sumYY+y*y, sumXY+x*y
		if position+1 < e.Rows() {
			distance += math.Abs(float64(d.rowAt(e, firsts, position+1)) - y)
			pairs++
		}
	}
	cov, varX, varY := n*sumXY-sumX*sumY, n*sumXX-sumX*sumX, n*sumYY-sumY*sumY
	q := Quality{Spread: distance / pairs / (float64(e.Rows()) / 3),
		Classes: Classes(e), Window: e.Windows[len(e.Windows)/2].Rows}
	if varX > 0 && varY > 0 {
		q.Correlation = cov / math.Sqrt(varX*varY)
	}
	return q
}

// rowAt returns the row of the data that comes at a position.
func (d *Dataset) rowAt(e *order.Epoch, firsts []int64, position int64) int64 {
	w := e.Find(position)
	info := e.Windows[w]
	place := e.Places(w, position-info.First, position-info.First+1, nil)[0]
	for _, b := range info.Blocks {
		if place < d.sizes[b].Rows {
			return firsts[b] + place
		}
		place -= d.sizes[b].Rows
	}
	return -1
}

// Classes is how many of ten classes a large batch holds on average, as a share, where the data is
// sorted by class: each block of a window is of one class. A full permutation has 1.
func Classes(e *order.Epoch) float64 {
	if len(e.Windows) < 2 {
		return 1
	}
	const classes = 10
	sum := 0.0
	for _, w := range e.Windows {
		missing := math.Pow(1-1.0/classes, float64(len(w.Blocks)))
		sum += (1 - missing) * float64(w.Rows)
	}
	return sum / float64(max(1, e.Rows()))
}

// Blocks is how many blocks the data has.
func (d *Dataset) Blocks() int { return len(d.blocks) }
