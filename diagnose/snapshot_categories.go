package diagnose

import "memroom/event"

// categoriser decides what each allocation is for. Evidence, in this order: where in the step it
// was made, how long it lived, its call stack, and whether its size is that of a weight.
type categoriser struct {
	l      *Ledger
	p      *phases
	traits func(event.StackID) trait

	weightSizes   map[int64]int // requested bytes of what was loaded and stayed -> how many
	gradientSizes map[int64]int // requested bytes -> gradients of that size in the last whole step
	lossBytes     map[int]int64 // span -> the largest allocation of a loss function in it
	workspaces    map[stackSize]*tally
}

// stackSize names what one call stack made of one size.
type stackSize struct {
	stack event.StackID
	size  int64
}

// tally counts what was made, what was never freed, and what was seen to stay through the next
// step.
type tally struct{ made, stayed, outlived int }

// Library workspaces: what cuBLAS keeps for each handle and stream (default, Hopper and later) and
// what cuBLASLt keeps. They are ordinary allocations, made by the first matrix product and never
// freed.
var workspaceSizes = map[int64]bool{8519680: true, 33554432: true, 1048576: true}

// categorise fills in Category, Phase and Sure of every allocation and returns the phases it found.
func (l *Ledger) categorise() *phases {
	traits := l.traitTable()
	c := &categoriser{l: l, traits: traits, weightSizes: map[int64]int{},
		gradientSizes: map[int64]int{}, lossBytes: map[int]int64{},
		workspaces: map[stackSize]*tally{}}
	c.p = l.findPhases(traits)
	if c.findLoaders() {
		c.p = l.findPhases(c.traits)
	}
	c.eachRecorded(c.learnSizes)
	c.eachRecorded(func(a *Allocation, span int) {
		a.Phase = c.p.spans[span].phase
		a.Category, a.Sure = c.classify(a, span)
	})
	c.findLogits()
	c.settleSurplus()
	c.countGradients()
	c.settleKept()
	c.settleUnfinished()
	c.settleUnapplied()
	c.settleOlder()
	c.doubtWithoutStacks()
	return c.p
}

// traitTable computes the traits of each stack once.
func (l *Ledger) traitTable() func(event.StackID) trait {
	known := map[event.StackID]trait{}
	return func(id event.StackID) trait {
		t, ok := known[id]
		if !ok {
			t = stackTraits(l.Frames(id))
			known[id] = t
		}
		return t
	}
}

// findLoaders looks for stacks that load a model without saying so: cut short, or the user's own
// way. All they made was made before the first backward pass and stayed, and they made several
// things. It reports whether it found any.
func (c *categoriser) findLoaders() bool {
	if !c.p.stacks || len(c.p.spans) == 0 {
		return false
	}
	firstBackward := c.p.begin(c.p.nextBackward[0])
	if c.p.spans[0].phase == PhaseBackward {
		return false
	}
	stacks := map[event.StackID]*tally{}
	c.eachRecorded(func(a *Allocation, span int) {
		n := stacks[a.Stack]
		if n == nil {
			n = &tally{}
			stacks[a.Stack] = n
		}
		n.made++
		if a.Start < firstBackward && c.outlivesStep(a, span) {
			n.stayed++
		}
	})
	loaders := map[event.StackID]bool{}
	for id, n := range stacks {
		if n.stayed >= 3 && n.stayed*10 >= n.made*9 &&
			!c.traits(id).has(traitLoad|traitOptimizer|traitForward|traitInput|traitBackward) {
			loaders[id] = true
		}
	}
	known := c.traits
	c.traits = func(id event.StackID) trait {
		if loaders[id] {
			return known(id) | traitLoad
		}
		return known(id)
	}
	return len(loaders) > 0
}

func (c *categoriser) eachRecorded(visit func(a *Allocation, span int)) {
	span := 0
	for i := c.l.Before; i < len(c.l.Allocs); i++ {
		a := &c.l.Allocs[i]
		for span+1 < len(c.p.spans) && a.Start >= c.p.spans[span].end {
			span++
		}
		visit(a, span)
	}
}

// outlivesStep reports whether the block was still there when the step after its own was being
// applied: it does not belong to one step.
func (c *categoriser) outlivesStep(a *Allocation, span int) bool {
	next := c.p.nextOptimize[span]
	if !c.p.optimizer {
		next = c.p.nextBackward[span]
		return a.End > c.p.begin(c.p.nextBackward[next]) || a.End == Never && next >= len(c.p.spans)
	}
	return a.End == Never || a.End > c.p.begin(c.p.nextOptimize[next])
}

// seenToOutlive is outlivesStep for what was watched through the whole of the next step: near the
// end of a recording nothing has had the time to be freed.
func (c *categoriser) seenToOutlive(a *Allocation, span int) bool {
	next := c.p.nextBackward
	if c.p.optimizer {
		next = c.p.nextOptimize
	}
	after := c.p.begin(next[next[span]])
	return after != Never && a.End > after
}

func (c *categoriser) learnSizes(a *Allocation, span int) {
	t := c.traits(a.Stack)
	if c.p.spans[span].phase == PhaseLoad && t.has(traitLoad) && c.outlivesStep(a, span) {
		c.weightSizes[a.Requested()]++
	}
	if workspaceSizes[a.Requested()] {
		key := stackSize{a.Stack, a.Requested()}
		if c.workspaces[key] == nil {
			c.workspaces[key] = &tally{}
		}
		c.workspaces[key].made++
		if a.End == Never {
			c.workspaces[key].stayed++
		}
		if c.seenToOutlive(a, span) {
			c.workspaces[key].outlived++
		}
	}
	if t.has(traitLoss) && c.p.spans[span].phase == PhaseForward {
		c.lossBytes[span] = max(c.lossBytes[span], a.Requested())
	}
}

func (c *categoriser) classify(a *Allocation, span int) (event.Category, uint8) {
	switch c.p.spans[span].phase {
	case PhaseLoad:
		return c.classifyLoaded(a, span)
	case PhaseForward:
		return c.classifyForward(a, span)
	case PhaseBackward:
		return c.classifyBackward(a, span)
	case PhaseOptimizer:
		if a.End > c.p.spans[span].end && (a.End == Never ||
			a.End > c.p.begin(c.p.nextOptimize[span])) {
			return event.CategoryOptimizer, 95
		}
		return event.CategoryTemporary, 95
	default:
		if c.isWorkspace(a, span) {
			return event.CategoryWorkspace, 40
		}
		return event.CategoryUnknown, 0
	}
}

// isWorkspace knows a library's workspace by its size and its life: once or twice (a handle for
// each thread) a stack made one that stayed, while tensors of that size come and go with every
// step.
func (c *categoriser) isWorkspace(a *Allocation, span int) bool {
	t := c.traits(a.Stack)
	n := c.workspaces[stackSize{a.Stack, a.Requested()}]
	switch {
	case t.has(traitWorkspace):
		return true
	case n == nil || a.End != Never || t.has(traitOptimizer|traitLoad):
		return false
	case c.seenToOutlive(a, span):
		return n.outlived <= 2
	default: // near the end of the recording
		return n.made <= 2 && n.stayed == n.made
	}
}

func (c *categoriser) classifyLoaded(a *Allocation, span int) (event.Category, uint8) {
	t := c.traits(a.Stack)
	switch {
	case a.End <= c.p.spans[span].end:
		return event.CategoryTemporary, 80
	case t.has(traitOptimizer):
		return event.CategoryOptimizer, 85
	case t.has(traitBuckets):
		return event.CategoryGradients, 80
	case c.outlivesStep(a, span):
		return event.CategoryWeights, 95
	case t.has(traitLoad) && c.p.steps() < 2:
		return event.CategoryWeights, 80
	default:
		return event.CategoryTemporary, 50
	}
}

func (c *categoriser) classifyForward(a *Allocation, span int) (event.Category, uint8) {
	t := c.traits(a.Stack)
	if optimize := c.p.nextOptimize[span]; !c.p.stacks && a.End > c.p.begin(optimize) &&
		!c.outlivesStep(a, span) {
		// the border between forward and backward is itself a guess
		return event.CategoryGradients, 60
	}
	backward := c.p.nextBackward[span]
	saved := backward < len(c.p.spans) && a.End > c.p.begin(backward)
	switch {
	case c.isWorkspace(a, span):
		return event.CategoryWorkspace, 90
	case t.has(traitLoss):
		return event.CategoryLoss, 90
	case t.has(traitLoad) && c.outlivesStep(a, span):
		return event.CategoryWeights, 85
	case t.has(traitInput):
		return event.CategoryInput, 80
	case t.has(traitPython) && !t.has(traitForward|traitLoad) && (saved || a.End == Never):
		return event.CategoryInput, 50
	case saved:
		return event.CategoryActivations, 90
	case t.has(traitConv) && a.End <= a.Start+2:
		return event.CategoryWorkspace, 70
	// much was made after it, and it was not let go
	case a.End == Never && int(a.Start)+100 < c.l.Entries:
		return event.CategoryActivations, 75
	case a.End == Never:
		return event.CategoryActivations, 60
	default:
		return event.CategoryTemporary, 90
	}
}

func (c *categoriser) classifyBackward(a *Allocation, span int) (event.Category, uint8) {
	t := c.traits(a.Stack)
	optimize := c.p.nextOptimize[span]
	applied := optimize < len(c.p.spans) && a.End > c.p.begin(optimize)
	switch {
	case c.isWorkspace(a, span):
		return event.CategoryWorkspace, 85
	case t.has(traitCheckpoint|traitForward) && !applied:
		return event.CategoryActivations, 80
	case applied && c.weightSizes[a.Requested()] > 0:
		return event.CategoryGradients, 95
	case applied:
		return event.CategoryGradients, 75
	case optimize >= len(c.p.spans) && a.End > c.p.spans[span].last &&
		c.weightSizes[a.Requested()] > 0:
		return event.CategoryGradients, guessedGradient
	default:
		return event.CategoryTemporary, 85
	}
}
