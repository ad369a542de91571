package supervise

import (
	"fmt"
	"time"

	"memroom/event"
)

// ranks ends a group of which a rank has run out of memory: the others would wait for it for ever.
type ranks struct {
	job     *job
	record  *record
	meters  *sampler
	limiter *limiter

	gone     time.Time // when a rank was first seen to have run out while others live
	caught   *caught   // a rank that ran out and lives, while nobody makes a step
	anySteps bool      // steps were seen
}

// check ends a group of which one rank has run out of memory while others wait for it: they
// would wait for ever. A launcher that notices by itself (torchrun does) has the grace to do so.
func (r *ranks) check(now time.Time) {
	if r.limiter.ending() {
		return
	}
	living, gone := r.job.people.leaders()
	r.checkCaught(now, living)
	lost := r.lostRank(gone)
	if lost == nil || len(living) == 0 {
		r.gone = time.Time{}
		return
	}
	for _, who := range living {
		if *who.rank == *lost.rank { // its launcher has started it again
			r.gone = time.Time{}
			return
		}
	}
	if r.gone.IsZero() {
		r.gone = now
		r.record.happened(event.Happened{Kind: "action", Rank: lost.rank, PID: lost.pid,
			Text: fmt.Sprintf("rank %d ran out of memory; the other %d have %v to end", *lost.rank,
				len(living), r.job.options.Grace)})
	}
	if now.Sub(r.gone) >= r.job.options.Grace {
		r.limiter.end(Ending{Where: r.whereLost(lost.pid), Rank: lost.rank, OOM: true, Why: fmt.Sprintf(
			"memroom ended the group: rank %d (process %d) ran out of memory and %s still waiting for it "+
				"after %v",
			*lost.rank, lost.pid, others(len(living)), r.job.options.Grace)})
	}
}

func others(n int) string {
	if n == 1 {
		return "the other rank was"
	}
	return fmt.Sprintf("%d other ranks were", n)
}

// lostRank returns a rank that is gone because of memory: its probe said so, or the kernel counted
// a kill since it began.
func (r *ranks) lostRank(gone []*person) *person {
	var largest *person
	for _, who := range gone {
		if r.diedOf(who.pid) != "" {
			return who
		}
		if largest == nil || who.resident > largest.resident {
			largest = who
		}
	}
	if largest != nil && r.meters.kills(r.job.state.Base) > 0 {
		return largest // the kernel takes the largest
	}
	return nil
}

// diedOf is which memory a rank ran out of by what its probe said; "" where it said nothing of it.
func (r *ranks) diedOf(pid int) event.Where {
	for _, d := range r.record.said.Deaths {
		if d.PID == pid && d.Where != "" {
			return d.Where
		}
	}
	return ""
}

// whereLost is which memory a rank ran out of, by its probe or by what the kernel counted.
func (r *ranks) whereLost(pid int) event.Where {
	if where := r.diedOf(pid); where != "" {
		return where
	}
	if r.meters.kills(r.job.state.Base) > 0 {
		return event.WhereCgroup
	}
	return ""
}

// caught is a rank whose allocator gave up and which lives on: the program has caught the error.
// Where it goes on with smaller batches all is well; where it does not, the other ranks wait in the
// next collective call.
type caught struct {
	pid  int
	rank *int
	oom  ProbeOOM
	// The error, and since when nothing has happened. Steps that were made before the error may be
	// heard of after it.
	oomAt, at time.Time
	said      bool // the finding was made
}

const (
	// caughtGraces is how many times the grace a rank that caught its error gets before the group
	// is ended: it may be writing a checkpoint, and only then would an end do harm.
	caughtGraces = 10
	// caughtSteps is how many of the steps before must have fitted into that time.
	caughtSteps = 20
)

// caughtOOM remembers that a rank's allocator gave up.
func (r *ranks) caughtOOM(oom ProbeOOM) {
	if oom.Rank == nil || r.caught != nil {
		return
	}
	r.caught = &caught{pid: oom.PID, rank: oom.Rank, oom: oom, oomAt: time.Now(),
		at: time.Now()}
}

// stepped takes note that somebody made a step: a group that begins one after the error is not
// hung. Another rank may still have ended the step before.
func (r *ranks) stepped(step event.Step) {
	r.anySteps = true
	if c := r.caught; c != nil && step.End.Add(-step.Duration).After(c.oomAt) {
		r.caught = nil
	}
}

// busy takes note that somebody evaluates or saves, which takes the time it takes.
func (r *ranks) busy() {
	if c := r.caught; c != nil {
		c.at = time.Now()
	}
}

// checkCaught finds a group that stands still since one of its ranks caught its error, and ends it
// when that lasts. Steps of the group must have been seen before: a job that reports none looks the
// same as one that stands still.
func (r *ranks) checkCaught(now time.Time, living []*person) {
	c := r.caught
	if c == nil || len(living) < 2 {
		return
	}
	if who := r.job.people.all[c.pid]; who == nil || who.gone { // it has ended; checkRanks knows
		r.caught = nil
		return
	}
	since := now.Sub(c.at)
	if since >= r.job.options.Grace && !c.said {
		c.said = true
		r.record.found([]event.Finding{caughtFinding(c, since, len(living)-1)})
	}
	patience := max(caughtGraces*r.job.options.Grace,
		time.Duration(caughtSteps*median(r.record.said.StepTime)*float64(time.Millisecond)))
	if r.anySteps && since >= patience {
		r.limiter.end(Ending{Where: event.WhereGPU, Rank: c.rank, OOM: true, Why: fmt.Sprintf(
			"memroom ended the group: rank %d (process %d) ran out of GPU memory and caught the error, and "+
				"no rank has made a step for %v",
			*c.rank, c.pid, since.Round(time.Second))})
	}
}

func waits(n int) string {
	if n == 1 {
		return "rank waits for it"
	}
	return fmt.Sprintf("%d ranks wait for it", n)
}

func caughtFinding(c *caught, since time.Duration, waiting int) event.Finding {
	return event.Finding{Kind: "rank_stands_still", Severity: event.SeverityError,
		Step: max(1, c.oom.Step), Bytes: c.oom.Requested, Frames: c.oom.Frames, Confidence: 0.9,
		Title: fmt.Sprintf("Rank %d ran out of GPU memory (it asked for %s) and caught the error; no "+
			"rank has made a step since, for %v, and the other %s",
			*c.rank, c.oom.Requested, since.Round(time.Second), waits(waiting)),
		Evidence: []string{fmt.Sprintf("%s were free on its card, %s allocated and %s reserved by "+
			"the process", c.oom.Free.Of(c.oom.Total), c.oom.Allocated, c.oom.Reserved)},
		Remedies: []string{"micro_batch", "checkpointing"}}
}
