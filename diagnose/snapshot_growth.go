package diagnose

import (
	"math"
	"slices"

	"memroom/event"
)

// stepRows returns a row a step: its peaks and its floor.
func (l *Ledger) stepRows(p *phases) []StepRow {
	rows := make([]StepRow, 0, p.steps())
	var ends []int32
	for _, s := range p.spans {
		if s.step == 0 {
			continue
		}
		if len(rows) == 0 || rows[len(rows)-1].Step != s.step {
			rows = append(rows, StepRow{Step: s.step, Begin: int(s.begin), Floor: math.MaxInt64})
			ends = append(ends, s.end)
		}
		ends[len(ends)-1] = s.end
	}
	row := 0
	l.Walk(func(at int32, allocated int64) {
		for row < len(rows) && at >= ends[row] {
			row++
		}
		if row < len(rows) && at >= int32(rows[row].Begin) {
			rows[row].Allocated = max(rows[row].Allocated, event.Bytes(allocated))
			rows[row].Floor = min(rows[row].Floor, event.Bytes(allocated))
		}
	})
	l.reservedBySteps(rows, ends)
	return rows
}

func (l *Ledger) reservedBySteps(rows []StepRow, ends []int32) {
	var current event.Bytes
	row := 0
	l.WalkReserved(func(at int32, reserved int64) {
		for row < len(rows) && at >= ends[row] {
			rows[row].Reserved = max(rows[row].Reserved, current)
			row++
			if row < len(rows) {
				rows[row].Reserved = current
			}
		}
		current = event.Bytes(reserved)
		if row < len(rows) && at >= int32(rows[row].Begin) {
			rows[row].Reserved = max(rows[row].Reserved, current)
		}
	})
	for ; row < len(rows); row++ {
		rows[row].Reserved = max(rows[row].Reserved, current)
	}
}

const (
	warmUpSteps = 2 // optimizer state and workspaces come in the first steps
	growthSteps = 6 // fewer may rise by chance
)

// growth looks for a floor that rises from step to step after the first ones. It is nil when it
// does not, or when there are too few steps to tell.
func (l *Ledger) growth(p *phases, rows []StepRow) *Growth {
	rows = slices.DeleteFunc(slices.Clone(rows),
		func(r StepRow) bool { return r.Floor == math.MaxInt64 })
	if len(rows) < warmUpSteps+growthSteps+1 {
		return nil
	}
	rows = rows[warmUpSteps : len(rows)-1] // the last step may be cut short, or hold the clean-up
	rising := 0
	for i := 1; i < len(rows); i++ {
		if rows[i].Floor > rows[i-1].Floor {
			rising++
		}
	}
	first, last := rows[0], rows[len(rows)-1]
	slope := medianSlope(rows)
	share := float64(rising) / float64(len(rows)-1)
	if slope < 1 || share < 0.6 || last.Floor-first.Floor < 4096 {
		return nil
	}
	return &Growth{PerStep: event.Bytes(slope), FirstStep: first.Step, LastStep: last.Step,
		Floor:      last.Floor,
		Confidence: min(0.99, share*math.Min(1, 0.7+float64(len(rows))/100)),
		Suspects:   l.suspects(p, first.Step, last.Step)}
}

// medianSlope is the Theil-Sen estimate of the floor's rise a step: one odd step does not move it.
func medianSlope(rows []StepRow) float64 {
	stride := max(1, len(rows)/200)
	var slopes []float64
	for i := 0; i < len(rows); i += stride {
		for j := i + stride; j < len(rows); j += stride {
			slopes = append(slopes,
				float64(rows[j].Floor-rows[i].Floor)/float64(rows[j].Step-rows[i].Step))
		}
	}
	slices.Sort(slopes)
	if len(slopes) == 0 {
		return 0
	}
	return slopes[len(slopes)/2]
}

// suspects are the stacks that make something in most steps which is still there two steps later;
// sizes are for one step.
func (l *Ledger) suspects(p *phases, first, last int) []StackGroup {
	c := &categoriser{l: l, p: p}
	end := last - 2 // later allocations have had no time to be freed
	steps := end - first + 1
	if steps < 2 {
		return nil
	}
	kept := func(a *Allocation, span int) bool {
		step := p.spans[span].step
		return step >= first && step <= end && c.outlivesStep(a, span)
	}
	seen := map[event.StackID]map[int]bool{}
	c.eachRecorded(func(a *Allocation, span int) {
		if !kept(a, span) {
			return
		}
		if seen[a.Stack] == nil {
			seen[a.Stack] = map[int]bool{}
		}
		seen[a.Stack][p.spans[span].step] = true
	})
	groups := newGrouping(l)
	c.eachRecorded(func(a *Allocation, span int) {
		if len(seen[a.Stack])*2 >= steps && kept(a, span) {
			groups.add(a)
		}
	})
	suspects := groups.largestFirst()
	for i := range suspects {
		suspects[i].Bytes /= event.Bytes(steps)
		suspects[i].Blocks = max(1, suspects[i].Blocks/steps)
	}
	return suspects[:min(len(suspects), 5)]
}
