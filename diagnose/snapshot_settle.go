package diagnose

import (
	"cmp"
	"slices"

	"memroom/event"
)

// Second looks: what the first pass over the allocations could not tell, because it depends on what
// others turned out to be.

// findLogits assigns to the loss what its functions did not allocate themselves: the logits, made
// by an ordinary linear layer just before, and their gradients, the first large things of the
// backward pass. Both have the size of the largest thing the loss function made, or half or twice
// that when the precision changes in between.
func (c *categoriser) findLogits() {
	const near = 14 // allocations to look at on either side
	var recent []*Allocation
	lossSpan, afterBackward := -1, 0
	c.eachRecorded(func(a *Allocation, span int) {
		largest := c.lossBytes[span]
		switch {
		case a.Phase == PhaseForward && a.Category == event.CategoryLoss && lossSpan != span &&
			largest >= 64<<10:
			lossSpan, afterBackward = span, 0
			for _, before := range recent {
				if sameUpToPrecision(before.Requested(), largest) &&
					before.Category == event.CategoryActivations ||
					before.Category == event.CategoryTemporary && before.Requested() == largest {
					before.Category, before.Sure = event.CategoryLoss, 75
				}
			}
		case a.Phase == PhaseBackward && lossSpan >= 0 && span == c.p.nextBackward[lossSpan] &&
			afterBackward < near:
			afterBackward++
			if a.Category == event.CategoryTemporary && sameUpToPrecision(a.Requested(),
				c.lossBytes[lossSpan]) {
				a.Category, a.Sure = event.CategoryLoss, 70
			}
		}
		recent = append(recent, a)
		if len(recent) > near {
			recent = recent[1:]
		}
	})
}

func sameUpToPrecision(a, b int64) bool { return a == b || a == 2*b || 2*a == b }

// settleKept looks again at what was made in a forward pass and outlives its step. Made once, it is
// a weight or a buffer of a library; made in step after step, it is an activation that something
// holds on to.
func (c *categoriser) settleKept() {
	stepsOf := map[event.StackID]map[int]bool{}
	kept := func(a *Allocation, span int) bool {
		return a.Phase == PhaseForward && (a.Category == event.CategoryActivations ||
			a.Category == event.CategoryInput) &&
			c.p.nextBackward[span] < len(c.p.spans) && c.seenToOutlive(a, span)
	}
	c.eachRecorded(func(a *Allocation, span int) {
		if !kept(a, span) {
			return
		}
		if stepsOf[a.Stack] == nil {
			stepsOf[a.Stack] = map[int]bool{}
		}
		if len(stepsOf[a.Stack]) < 3 {
			stepsOf[a.Stack][c.p.spans[span].step] = true
		}
	})
	if c.p.steps() < 2 {
		return
	}
	c.eachRecorded(func(a *Allocation, span int) {
		if !kept(a, span) {
			return
		}
		switch {
		case len(stepsOf[a.Stack]) > 1 && c.p.stacks:
			a.Category, a.Sure = event.CategoryActivations, 70
		case c.traits(a.Stack).has(traitConv):
			a.Category, a.Sure = event.CategoryWorkspace, 60
		case c.weightSizes[a.Requested()] > 0 || c.gradientSizes[a.Requested()] > 0:
			a.Category, a.Sure = event.CategoryWeights, 50
		default:
			a.Category, a.Sure = event.CategoryUnknown, 30
		}
	})
}

// settleUnfinished looks again at a forward pass that no backward pass followed (it ran out of
// memory, or the recording ended). What is older than anything the same line ever made and dropped
// within a forward pass was meant to stay. The rest is judged by what the line made of that size in
// an earlier step.
func (c *categoriser) settleUnfinished() {
	type key struct {
		stack event.StackID
		size  int64
	}
	precedent := map[key]event.Category{}
	// stack -> longest life of what it dropped within a forward pass, in entries
	dropped := map[event.StackID]int32{}
	c.eachRecorded(func(a *Allocation, span int) {
		if a.Phase != PhaseForward {
			return
		}
		if c.p.nextBackward[span] < len(c.p.spans) {
			precedent[key{a.Stack, a.Requested()}] = a.Category
			if a.Category == event.CategoryTemporary {
				dropped[a.Stack] = max(dropped[a.Stack], a.End-a.Start)
			}
			return
		}
		if a.Category != event.CategoryActivations || a.Sure > 75 {
			return
		}
		longest, drops := dropped[a.Stack]
		category, known := precedent[key{a.Stack, a.Requested()}]
		switch {
		case drops && int32(c.l.Entries)-a.Start > longest:
			a.Sure = 85
		case known:
			a.Category, a.Sure = category, 80
		case drops:
			a.Category, a.Sure = event.CategoryTemporary, 60
		}
	})
}

// settleUnapplied looks again at a backward pass that no optimizer step followed because the
// recording ended: what is left of it and has the size of a gradient of the step before is one.
func (c *categoriser) settleUnapplied() {
	left := map[int64]int{}
	for size, n := range c.gradientSizes {
		left[size] = n
	}
	for i := len(c.l.Allocs) - 1; i >= c.l.Before; i-- {
		a := &c.l.Allocs[i]
		if c.p.optimizer && a.Phase == PhaseOptimizer {
			return
		}
		if a.Phase == PhaseBackward && a.Category == event.CategoryTemporary && a.End == Never &&
			left[a.Requested()] > 0 {
			a.Category, a.Sure = event.CategoryGradients, 75
			left[a.Requested()]--
		}
	}
}

// settleSurplus looks again at gradients that were recognised by size alone, because no optimizer
// step was seen after them. A step has no more gradients of a size than there are weights of it.
// Parts of a gradient that are summed up have the size too, and are freed first.
func (c *categoriser) settleSurplus() {
	type key struct {
		step int
		size int64
	}
	guessed := map[key][]*Allocation{}
	c.eachRecorded(func(a *Allocation, span int) {
		if a.Category == event.CategoryGradients && a.Sure == guessedGradient {
			k := key{c.p.spans[span].step, a.Requested()}
			guessed[k] = append(guessed[k], a)
		}
	})
	for k, list := range guessed {
		slices.SortFunc(list, func(x, y *Allocation) int { return cmp.Compare(y.End, x.End) })
		for _, a := range list[min(len(list), c.weightSizes[k.size]):] {
			a.Category, a.Sure = event.CategoryTemporary, 60
		}
	}
}

// guessedGradient is the confidence in a gradient that was recognised by its size alone.
const guessedGradient = 70

// countGradients counts the gradients by size in the last step that has them; settleOlder needs to
// know how many weights of a size there are.
func (c *categoriser) countGradients() {
	last := 0
	c.eachRecorded(func(a *Allocation, span int) {
		if a.Category != event.CategoryGradients {
			return
		}
		if step := c.p.spans[span].step; step != last {
			last = step
			clear(c.gradientSizes)
		}
		c.gradientSizes[a.Requested()]++
	})
}

// settleOlder judges the blocks that were there before recording began. With stacks (recorded as
// state) their traits tell; without, sizes do: each weight has one gradient, and what is left over
// in multiples is optimizer state.
func (c *categoriser) settleOlder() {
	given := map[int64]int{}
	second := c.secondOptimizer()
	for i := range c.l.Before {
		a := &c.l.Allocs[i]
		a.Phase = PhaseUnknown
		a.Category, a.Sure = c.classifyOlder(a, given, second)
	}
}

// classifyOlder judges one of them. given counts the blocks of each size that were taken for
// weights or optimizer state; second is where the second optimizer step begins.
func (c *categoriser) classifyOlder(a *Allocation, given map[int64]int,
	second int32) (event.Category, uint8) {
	t := c.traits(a.Stack)
	switch {
	case t.has(traitOptimizer):
		return event.CategoryOptimizer, 80
	case workspaceSizes[a.Requested()] && a.End == Never && !t.has(traitLoad) &&
		c.gradientSizes[a.Requested()] == 0:
		return event.CategoryWorkspace, 60
	case t.has(traitLoss):
		return event.CategoryLoss, 60
	case t.has(traitForward):
		return event.CategoryActivations, 60
	case t.has(traitLoad):
		return event.CategoryWeights, 75
	}
	if n := c.gradientSizes[a.Requested()]; n > 0 && a.End > second {
		given[a.Requested()]++
		if given[a.Requested()] <= n {
			return event.CategoryWeights, 60
		}
		return event.CategoryOptimizer, 55
	}
	if len(c.p.spans) > 0 && a.End != Never && a.End <= c.p.spans[0].end &&
		c.p.spans[0].phase == PhaseBackward {
		return event.CategoryActivations, 50
	}
	return event.CategoryUnknown, 0
}

// secondOptimizer returns the entry where the second optimizer step begins, or the last moment
// there is.
func (c *categoriser) secondOptimizer() int32 {
	seen := 0
	for _, s := range c.p.spans {
		if s.phase == PhaseOptimizer {
			if seen++; seen == 2 {
				return s.begin
			}
		}
	}
	return Never - 1
}

// doubtWithoutStacks lowers the confidence of what was concluded from lifetimes alone.
func (c *categoriser) doubtWithoutStacks() {
	if c.p.stacks {
		return
	}
	c.eachRecorded(func(a *Allocation, _ int) {
		if a.Phase != PhaseOptimizer {
			a.Sure = min(a.Sure, 60)
		}
	})
}
