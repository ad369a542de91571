package tape

import "memroom/event"

// settledRuns is how many runs of a repeated function are recorded: from the second on, each asks
// for the same.
const settledRuns = 2

// mostCopies bounds the copies of a run. Of more runs, each copy stands for several: what they
// leave allocated is there as often as it should be, while the temporaries come once.
const mostCopies = 256

// Rerun runs fn n times. The third run and later ones are copies of the second's requests, which
// takes far less time than recording them. Allocations that outlive a run are kept by the frame.
//
// fn must not depend on how often it ran. One that releases memory from before its own run is
// recorded every time.
func (g *Graph) Rerun(n int, kept *Frame, fn func()) {
	var from int
	var first int32
	for range min(n, settledRuns) {
		from, first = len(g.tl.Ops), g.nextID
		fn()
	}
	if n <= settledRuns {
		return
	}
	run := g.tl.Ops[from:]
	left, closed := leftOver(run, first)
	if !closed {
		for range n - settledRuns {
			fn()
		}
		return
	}
	for todo, copies := n-settledRuns, min(n-settledRuns, mostCopies); copies > 0; copies-- {
		stands := todo / copies // the last one takes what is over
		g.copyRun(run, left, first, kept, stands)
		todo -= stands
	}
}

// leftOver lists the indices of allocations that outlive a run. The run is closed if it releases
// only what it allocated itself.
func leftOver(run []event.Op, first int32) (left []int, closed bool) {
	freed := map[int32]bool{}
	for _, op := range run {
		if op.Kind != event.OpAlloc {
			if op.ID < first {
				return nil, false
			}
			freed[op.ID] = true
		}
	}
	for i, op := range run {
		if op.Kind == event.OpAlloc && !freed[op.ID] {
			left = append(left, i)
		}
	}
	return left, true
}

// copyRun appends a run under new names, in place of as many runs as it stands for. What they leave
// allocated goes to the frame.
func (g *Graph) copyRun(run []event.Op, left []int, first int32, kept *Frame, stands int) {
	shift, last := g.nextID-first, first
	for _, op := range run {
		last = max(last, op.ID)
	}
	g.nextID = last + shift + 1
	for i, op := range run {
		op.ID += shift
		g.tl.Ops = append(g.tl.Ops, op)
		if len(left) == 0 || left[0] != i {
			continue
		}
		left = left[1:]
		g.keep(op, kept)
		for range stands - 1 {
			op.ID = g.nextID
			g.nextID++
			g.tl.Ops = append(g.tl.Ops, op)
			g.keep(op, kept)
		}
	}
}

// keep hands the allocation that was recorded last to a frame.
func (g *Graph) keep(op event.Op, kept *Frame) {
	st := g.newStorage()
	*st = storage{id: op.ID, op: int32(len(g.tl.Ops) - 1), bytes: op.Size, refs: 1}
	kept.args = append(kept.args, &Tensor{g: g, st: st, refs: 1})
}
