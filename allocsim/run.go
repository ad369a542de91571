package allocsim

import (
	"errors"
	"fmt"
	"slices"

	"memroom/event"
)

// Result is what became of a timeline.
type Result struct {
	Ops    int // operations done; fewer than the timeline has when memory ran out
	Allocs int // allocations that succeeded

	AllocatedPeak   event.Bytes
	ReservedPeak    event.Bytes
	ActivePeak      event.Bytes
	RequestedPeak   event.Bytes
	AllocatedPeakAt int // index of the operation that reached the peak first
	ReservedPeakAt  int
	// reserved when allocated was highest: the difference is fragmentation and cache
	ReservedAtPeak event.Bytes

	Retries int64
	OOMs    int64
	OOM     *OOMAt // the first request that did not fit, nil if all did

	Marks []MarkPeak // one for each mark of the timeline that was reached
	Stats Stats      // at the end
}

// OOMAt is a request that did not fit.
type OOMAt struct {
	At int // index of the operation
	OutOfMemory
}

// MarkPeak is how high memory went between a mark and the next.
type MarkPeak struct {
	event.Mark
	AllocatedPeak event.Bytes
	ReservedPeak  event.Bytes
	ActivePeak    event.Bytes
	PeakAt        int // index of the operation where allocated was highest
}

// Run sends a timeline through a new allocator. The run ends at the first allocation that does not
// fit, as the program would; that is part of the result and not an error. The error reports a
// timeline or options that make no sense.
func Run(t *event.Timeline, o Options) (Result, error) {
	a, err := New(o)
	if err != nil {
		return Result{}, err
	}
	r := runner{a: a, t: t, live: make([]Block, 0, len(t.Ops)/2+1)}
	return r.run(0)
}

// runner is the state of one Run.
type runner struct {
	a      *Allocator
	t      *event.Timeline
	live   []Block // by allocation ID
	result Result
	mark   int // marks reached
}

// run does the operations from an index on.
func (r *runner) run(from int) (Result, error) {
	s := r.a.Stats()
	for i := from; i < len(r.t.Ops); i++ {
		if r.a.overworked(i) {
			return r.result, errOverworked
		}
		r.enterMarks(i)
		allocated, reserved := s.All.AllocatedBytes.Peak, s.All.ReservedBytes.Peak
		if err := r.apply(&r.t.Ops[i]); err != nil {
			var oom *OutOfMemory
			if !errors.As(err, &oom) {
				return r.result, fmt.Errorf("operation %d of the timeline: %w", i, err)
			}
			if r.result.OOM == nil {
				r.result.OOM = &OOMAt{At: i, OutOfMemory: *oom}
			}
			if r.t.Ops[i].Kind != event.OpTry {
				r.notePeaks(i, allocated, reserved)
				break
			}
		}
		r.result.Ops++
		r.notePeaks(i, allocated, reserved)
	}
	return r.finish(), nil
}

// enterMarks begins the phases whose first operation is the one at index i.
func (r *runner) enterMarks(i int) {
	for r.mark < len(r.t.Marks) && r.t.Marks[r.mark].At <= i {
		s := &r.a.stats.All
		r.result.Marks = append(r.result.Marks, MarkPeak{Mark: r.t.Marks[r.mark], PeakAt: i,
			AllocatedPeak: event.Bytes(s.AllocatedBytes.Current),
			ReservedPeak:  event.Bytes(s.ReservedBytes.Current),
			ActivePeak:    event.Bytes(s.ActiveBytes.Current)})
		r.mark++
	}
}

// notePeaks remembers where the peaks were reached.
func (r *runner) notePeaks(i int, allocated, reserved int64) {
	s := &r.a.stats.All
	if s.AllocatedBytes.Peak > allocated {
		r.result.AllocatedPeakAt = i
		r.result.ReservedAtPeak = event.Bytes(s.ReservedBytes.Current)
	}
	if s.ReservedBytes.Peak > reserved {
		r.result.ReservedPeakAt = i
	}
	if n := len(r.result.Marks); n > 0 {
		m := &r.result.Marks[n-1]
		if v := event.Bytes(s.AllocatedBytes.Current); v > m.AllocatedPeak {
			m.AllocatedPeak, m.PeakAt = v, i
		}
		m.ReservedPeak = max(m.ReservedPeak, event.Bytes(s.ReservedBytes.Current))
		m.ActivePeak = max(m.ActivePeak, event.Bytes(s.ActiveBytes.Current))
	}
}

func (r *runner) apply(op *event.Op) error {
	switch op.Kind {
	case event.OpAlloc:
		return r.alloc(op)
	case event.OpFree, event.OpFreePending, event.OpFreeDone:
		return r.free(op)
	case event.OpEmptyCache:
		r.a.EmptyCache()
	case event.OpTry:
		b, err := r.a.MallocIn(int(op.Pool), op.Size, uint64(op.Stream))
		if err != nil {
			return err
		}
		r.result.Allocs++
		r.a.Free(b)
	default:
		return fmt.Errorf("unknown kind %d", op.Kind)
	}
	return nil
}

func (r *runner) alloc(op *event.Op) error {
	if op.ID < 0 || int(op.ID) > len(r.t.Ops) {
		return fmt.Errorf("allocation %d: IDs are from 0 to the number of operations", op.ID)
	}
	for int(op.ID) >= len(r.live) {
		r.live = append(r.live, Block{})
	}
	if r.live[op.ID] != (Block{}) {
		return fmt.Errorf("allocation %d is made twice", op.ID)
	}
	b, err := r.a.MallocIn(int(op.Pool), op.Size, uint64(op.Stream))
	if err != nil {
		return err
	}
	r.live[op.ID] = b
	r.result.Allocs++
	return nil
}

func (r *runner) free(op *event.Op) error {
	if op.ID < 0 || int(op.ID) >= len(r.live) {
		return fmt.Errorf("allocation %d is freed but was never made", op.ID)
	}
	ok := true
	switch b := r.live[op.ID]; op.Kind {
	case event.OpFree:
		ok = r.a.Free(b)
	case event.OpFreePending:
		ok = r.a.FreePending(b)
	default:
		r.a.FreeDone(b)
	}
	if !ok {
		return fmt.Errorf("allocation %d is freed but not live", op.ID)
	}
	return nil
}

func (r *runner) finish() Result {
	s := r.a.stats
	r.result.AllocatedPeak = event.Bytes(s.All.AllocatedBytes.Peak)
	r.result.ReservedPeak = event.Bytes(s.All.ReservedBytes.Peak)
	r.result.ActivePeak = event.Bytes(s.All.ActiveBytes.Peak)
	r.result.RequestedPeak = event.Bytes(s.All.RequestedBytes.Peak)
	r.result.Retries, r.result.OOMs = s.AllocRetries, s.OOMs
	r.result.Stats = s
	return r.result
}

// LiveAt lists the allocations of a timeline that are live right after the operation at index at,
// as indexes of their OpAlloc in ascending order. With [Result.AllocatedPeakAt] it lists what the
// peak consists of.
func LiveAt(t *event.Timeline, at int) []int {
	made := map[int32]int{}
	for i := 0; i <= at && i < len(t.Ops); i++ {
		switch op := &t.Ops[i]; op.Kind {
		case event.OpAlloc:
			made[op.ID] = i
		case event.OpFree, event.OpFreePending:
			delete(made, op.ID)
		}
	}
	live := make([]int, 0, len(made))
	for _, i := range made {
		live = append(live, i)
	}
	slices.Sort(live)
	return live
}
