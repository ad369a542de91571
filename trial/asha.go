package trial

import (
	"math"
	"slices"
)

// ASHA stops trials early: asynchronous successive halving in the stopping form that Ray has too.
// At each milestone a trial goes on only if it is among the best 1/Factor of what was recorded
// there before it; the first one always goes on.
type ASHA struct {
	Grace  int  // first milestone, in reports or steps
	MaxT   int  // a trial that reaches it has finished
	Factor int  // each milestone is this many times the one before
	Less   bool // smaller is better

	rungs []rung // highest milestone first
}

type rung struct {
	milestone int
	values    map[int]float64 // by trial; larger is better
}

// NewASHA makes the rungs. grace below 1 takes our default: the first reports of a training rank
// hardly better than chance, so the first milestone is at 4 reports or 8 % of the longest training.
func NewASHA(grace, maxT, factor int, less bool) *ASHA {
	if factor < 2 {
		factor = 4
	}
	if grace < 1 {
		grace = min(max(4, int(math.Ceil(0.08*float64(maxT)))), maxT)
	}
	a := &ASHA{Grace: grace, MaxT: maxT, Factor: factor, Less: less}
	for m := grace; m < maxT; m *= factor {
		a.rungs = append(a.rungs, rung{m, map[int]float64{}})
		if m > math.MaxInt/factor {
			break
		}
	}
	slices.Reverse(a.rungs)
	return a
}

// Decision about a trial that reported.
type Decision int

// The decisions.
const (
	GoOn Decision = iota
	StopEarly
	StopDone // it reached MaxT
)

// Report takes a trial's value at time t and reports whether it goes on. NaN is worse than
// anything.
func (a *ASHA) Report(trial, t int, value float64) Decision {
	if a.MaxT > 0 && t >= a.MaxT {
		return StopDone
	}
	if a.Less {
		value = -value
	}
	if math.IsNaN(value) {
		value = math.Inf(-1)
	}
	for _, r := range a.rungs {
		if _, seen := r.values[trial]; seen || t < r.milestone {
			continue
		}
		cutoff, any := r.cutoff(a.Factor)
		r.values[trial] = value
		if any && value < cutoff {
			return StopEarly
		}
		break
	}
	return GoOn
}

// Forget drops what a trial said: it is run again.
func (a *ASHA) Forget(trial int) {
	for _, r := range a.rungs {
		delete(r.values, trial)
	}
}

// cutoff is the (1 - 1/factor) quantile of what was recorded, interpolated.
func (r rung) cutoff(factor int) (float64, bool) {
	if len(r.values) == 0 {
		return 0, false
	}
	values := make([]float64, 0, len(r.values))
	for _, v := range r.values {
		values = append(values, v)
	}
	slices.Sort(values)
	return quantile(values, 1-1/float64(factor)), true
}

// quantile of sorted values, interpolated between neighbours.
func quantile(sorted []float64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	low := int(math.Floor(at))
	high := min(low+1, len(sorted)-1)
	if sorted[low] == sorted[high] {
		return sorted[low] // also of two infinities, whose difference is none
	}
	return sorted[low] + (at-float64(low))*(sorted[high]-sorted[low])
}
