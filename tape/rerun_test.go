package tape

import (
	"reflect"
	"testing"

	"memroom/event"
)

// program is a function that leaves a tensor behind and has temporaries, as an evaluation does.
func program(g *Graph, kept *Frame) func() {
	return func() {
		f := g.Enter()
		x := f.Keep(g.Input(F32, 64, 64))
		kept.Also(f.Keep(g.Scale(x)))
		f.Leave()
	}
}

// TestRerunAsksForTheSameAsRunning: copies of a run are what the run itself would have recorded,
// to the name of the allocation, and what they leave is released with the frame.
func TestRerunAsksForTheSameAsRunning(t *testing.T) {
	for _, n := range []int{1, 2, 3, 7} {
		record := func(run func(g *Graph, kept *Frame)) []event.Op {
			g := New(Options{})
			kept := g.Enter()
			run(g, kept)
			Del(g.Input(F32, 8)) // the next allocation has a name of its own
			kept.Leave()
			return g.Timeline().Ops
		}
		want := record(func(g *Graph, kept *Frame) {
			for range n {
				program(g, kept)()
			}
		})
		got := record(func(g *Graph, kept *Frame) { g.Rerun(n, kept, program(g, kept)) })
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%d runs: got %v, want %v", n, got, want)
		}
	}
}

// TestRerunRecordsWhatIsNotClosed: a function that releases what an earlier run made cannot be
// copied.
func TestRerunRecordsWhatIsNotClosed(t *testing.T) {
	record := func(again func(g *Graph, n int, kept *Frame, fn func())) []event.Op {
		g := New(Options{})
		kept := g.Enter()
		f := g.Enter()
		var x *Tensor
		again(g, 5, kept, func() { f.Set(&x, g.Input(F32, 32)) })
		f.Leave()
		kept.Leave()
		return g.Timeline().Ops
	}
	want := record(func(_ *Graph, n int, _ *Frame, fn func()) {
		for range n {
			fn()
		}
	})
	got := record(func(g *Graph, n int, kept *Frame, fn func()) { g.Rerun(n, kept, fn) })
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestRerunOfManyLeavesAsMuchAsRunning: where a copy stands for several runs, as much is left in
// the end, and nothing after the frame is gone.
func TestRerunOfManyLeavesAsMuchAsRunning(t *testing.T) {
	const n = mostCopies*3 + settledRuns + 5
	left := func(run func(g *Graph, kept *Frame)) (before, after int64) {
		g := New(Options{})
		kept := g.Enter()
		run(g, kept)
		before = live(g.Timeline().Ops)
		kept.Leave()
		return before, live(g.Timeline().Ops)
	}
	want, _ := left(func(g *Graph, kept *Frame) {
		for range n {
			program(g, kept)()
		}
	})
	got, after := left(func(g *Graph, kept *Frame) { g.Rerun(n, kept, program(g, kept)) })
	if got != want || after != 0 {
		t.Errorf("left %d and then %d, want %d and 0", got, after, want)
	}
}

func live(ops []event.Op) int64 {
	sizes, sum := map[int32]int64{}, int64(0)
	for _, op := range ops {
		if op.Kind == event.OpAlloc {
			sizes[op.ID] = op.Size
			sum += op.Size
			continue
		}
		sum -= sizes[op.ID]
	}
	return sum
}
