package tape

import "memroom/event"

// settledRuns is how many runs of a repeated function are recorded: from the second on, each asks
// for the same.
const settledRuns = 2

// Rerun runs fn n times. The third run and later ones are copies of the second's requests, which
// takes far less time than recording them. What a run leaves allocated is kept by the frame.
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
	for range n - settledRuns {
		if !closed {
			fn()
			continue
		}
		g.copyRun(run, left, first, kept)
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

// copyRun appends a run under new names. What it leaves allocated goes to the frame.
func (g *Graph) copyRun(run []event.Op, left []int, first int32, kept *Frame) {
	at, shift := len(g.tl.Ops), g.nextID-first
	last := first
	for _, op := range run {
		last = max(last, op.ID)
		op.ID += shift
		g.tl.Ops = append(g.tl.Ops, op)
	}
	g.nextID = last + shift + 1
	for _, i := range left {
		st := g.newStorage()
		*st = storage{id: run[i].ID + shift, op: int32(at + i), bytes: run[i].Size, refs: 1}
		kept.args = append(kept.args, &Tensor{g: g, st: st, refs: 1})
	}
}
