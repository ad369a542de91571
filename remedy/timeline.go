package remedy

import (
	"slices"

	"memroom/event"
)

// scaleBlocks returns a copy of the timeline in which the blocks of the categories named in factors
// have another size; a factor of 0 removes them, release included. It is false when the timeline
// has no such block: an untagged recording cannot be rewritten.
func scaleBlocks(t *event.Timeline, factors map[event.Category]float64) (*event.Timeline, bool) {
	after := &event.Timeline{Tags: t.Tags, Ops: make([]event.Op, 0, len(t.Ops)),
		Marks: slices.Clone(t.Marks)}
	gone := map[int32]bool{}
	found, mark := false, 0
	for i, op := range t.Ops {
		for ; mark < len(t.Marks) && t.Marks[mark].At <= i; mark++ {
			after.Marks[mark].At = len(after.Ops)
		}
		if op.Kind == event.OpAlloc && int(op.Tag) < len(t.Tags) {
			if factor, hit := factors[t.Tags[op.Tag].Category]; hit {
				found = true
				op.Size = int64(float64(op.Size) * factor)
				gone[op.ID] = op.Size == 0
			}
		}
		if gone[op.ID] && op.Kind != event.OpEmptyCache {
			continue
		}
		after.Ops = append(after.Ops, op)
	}
	for ; mark < len(t.Marks); mark++ {
		after.Marks[mark].At = len(after.Ops)
	}
	return after, found
}

// emptyAtSteps returns a copy of the timeline with empty_cache() at the beginning of every step,
// false where steps are not marked.
func emptyAtSteps(t *event.Timeline) (*event.Timeline, bool) {
	after := &event.Timeline{Tags: t.Tags, Ops: make([]event.Op, 0, len(t.Ops)+len(t.Marks)),
		Marks: slices.Clone(t.Marks)}
	step, mark, added := 0, 0, false
	for i := 0; i <= len(t.Ops); i++ {
		for ; mark < len(t.Marks) && t.Marks[mark].At <= i; mark++ {
			after.Marks[mark].At = len(after.Ops)
			if t.Marks[mark].Step > step {
				step, added = t.Marks[mark].Step, true
				after.Ops = append(after.Ops, event.Op{Kind: event.OpEmptyCache})
			}
		}
		if i < len(t.Ops) {
			after.Ops = append(after.Ops, t.Ops[i])
		}
	}
	return after, added
}
