package diagnose

import (
	"cmp"
	"slices"
	"strings"

	"memroom/event"
)

// Timeline turns a recording into what the program asked for, tagged by category, so that remedies
// can rewrite it.
func (l *Ledger) Timeline(marks []event.Mark) *event.Timeline {
	type moment struct {
		entry int32
		free  bool
		index int
	}
	moments := make([]moment, 0, 2*len(l.Allocs))
	for i := range l.Allocs {
		a := &l.Allocs[i]
		moments = append(moments, moment{a.Start, false, i})
		if a.End != Never {
			moments = append(moments, moment{a.End, true, i})
		}
	}
	slices.SortStableFunc(moments, func(a, b moment) int { return cmp.Compare(a.entry, b.entry) })
	t := &event.Timeline{Ops: make([]event.Op, 0, len(moments)), Tags: []event.Tag{{}}}
	tagOf := map[event.Category]int32{event.CategoryUnknown: 0}
	for _, c := range event.Categories() {
		if _, known := tagOf[c]; !known {
			tagOf[c] = int32(len(t.Tags))
			t.Tags = append(t.Tags, event.Tag{Category: c})
		}
	}
	next := 0
	for _, m := range moments {
		for ; next < len(marks) && int32(marks[next].At) <= m.entry; next++ {
			mark := marks[next]
			mark.At = len(t.Ops)
			t.Marks = append(t.Marks, mark)
		}
		a := &l.Allocs[m.index]
		op := event.Op{ID: int32(m.index), Kind: event.OpFree}
		if !m.free {
			op.Kind, op.Size, op.Tag = event.OpAlloc, a.Requested(), tagOf[a.Category]
		}
		t.Ops = append(t.Ops, op)
	}
	return t
}

// UserFrame returns the innermost frame that is not a library's.
func UserFrame(frames []event.Frame) (event.Frame, bool) {
	for _, f := range frames {
		if !IsLibrary(f) {
			return f, true
		}
	}
	return event.Frame{}, false
}

func capital(s string) string { return strings.ToUpper(s[:1]) + s[1:] }
