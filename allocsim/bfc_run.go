package allocsim

import (
	"errors"
	"fmt"

	"memroom/event"
)

// RunBFC sends a timeline through a new BFC allocator, as [Run] does through PyTorch's: "allocated"
// is TensorFlow's bytes in use, "reserved" its pool. TensorFlow keeps a block that another stream
// still uses until that is done, and has no call that empties the cache.
func RunBFC(t *event.Timeline, o BFCOptions) (Result, error) {
	r := bfcRunner{b: NewBFC(o), t: t, live: map[int32]bfcLive{}}
	for i := range t.Ops {
		r.enterMarks(i)
		if err := r.apply(&t.Ops[i]); errors.Is(err, ErrBFCFull) {
			r.noteFull(i, t.Ops[i].Size)
			if t.Ops[i].Kind != event.OpTry {
				break
			}
		} else if err != nil {
			return r.result, fmt.Errorf("operation %d of the timeline: %w", i, err)
		}
		r.result.Ops++
		r.notePeaks(i)
	}
	return r.result, nil
}

type bfcLive struct {
	addr uint64
	size int64
}

// bfcRunner is the state of one RunBFC.
type bfcRunner struct {
	b         *BFC
	t         *event.Timeline
	live      map[int32]bfcLive
	requested int64
	result    Result
	mark      int
}

func (r *bfcRunner) apply(op *event.Op) error {
	switch op.Kind {
	case event.OpAlloc:
		if _, twice := r.live[op.ID]; twice {
			return fmt.Errorf("allocation %d is made twice", op.ID)
		}
		addr, err := r.b.Malloc(op.Size)
		if err != nil {
			return err
		}
		r.live[op.ID] = bfcLive{addr, op.Size}
		r.requested += op.Size
		r.result.Allocs++
	case event.OpFree, event.OpFreeDone:
		held, ok := r.live[op.ID]
		if !ok {
			return fmt.Errorf("allocation %d is freed but not live", op.ID)
		}
		delete(r.live, op.ID)
		r.requested -= held.size
		return r.b.Free(held.addr)
	case event.OpTry:
		addr, err := r.b.Malloc(op.Size)
		if err != nil {
			return err
		}
		r.result.Allocs++
		return r.b.Free(addr)
	case event.OpFreePending, event.OpEmptyCache:
	default:
		return fmt.Errorf("unknown kind %d", op.Kind)
	}
	return nil
}

func (r *bfcRunner) noteFull(at int, size int64) {
	r.result.OOMs++
	if r.result.OOM == nil {
		s := r.b.Stats()
		r.result.OOM = &OOMAt{At: at, OutOfMemory: OutOfMemory{Requested: event.Bytes(size),
			Rounded: event.Bytes(bfcRound(size)),
			Segment: event.Bytes(bfcRound(size)), Reserved: s.Pool, Allocated: s.InUse}}
	}
}

func (r *bfcRunner) enterMarks(i int) {
	for r.mark < len(r.t.Marks) && r.t.Marks[r.mark].At <= i {
		in, pool := event.Bytes(r.b.inUse), event.Bytes(r.b.pool)
		r.result.Marks = append(r.result.Marks, MarkPeak{Mark: r.t.Marks[r.mark], PeakAt: i,
			AllocatedPeak: in, ReservedPeak: pool, ActivePeak: in})
		r.mark++
	}
}

func (r *bfcRunner) notePeaks(i int) {
	in, pool := event.Bytes(r.b.inUse), event.Bytes(r.b.pool)
	if in > r.result.AllocatedPeak {
		r.result.AllocatedPeak, r.result.ActivePeak = in, in
		r.result.AllocatedPeakAt, r.result.ReservedAtPeak = i, pool
	}
	if pool > r.result.ReservedPeak {
		r.result.ReservedPeak, r.result.ReservedPeakAt = pool, i
	}
	r.result.RequestedPeak = max(r.result.RequestedPeak, event.Bytes(r.requested))
	if n := len(r.result.Marks); n > 0 {
		m := &r.result.Marks[n-1]
		if in > m.AllocatedPeak {
			m.AllocatedPeak, m.ActivePeak, m.PeakAt = in, in, i
		}
		m.ReservedPeak = max(m.ReservedPeak, pool)
	}
}
