package supervise

import (
	"fmt"
	"time"

	"memroom/event"
)

// checkRanks ends a group of which one rank has run out of memory while others wait for it: they
// would wait for ever. A launcher that notices by itself (torchrun does) has the grace to do so.
func (m *Monitor) checkRanks(now time.Time) {
	if m.said.Ended != nil {
		return
	}
	living, gone := m.people.leaders()
	m.checkCaught(now, living)
	lost := m.lostRank(gone)
	if lost == nil || len(living) == 0 {
		m.limiter.rankGone = time.Time{}
		return
	}
	for _, who := range living {
		if *who.rank == *lost.rank { // its launcher has started it again
			m.limiter.rankGone = time.Time{}
			return
		}
	}
	if m.limiter.rankGone.IsZero() {
		m.limiter.rankGone = now
		m.happened(event.Happened{Kind: "action", Rank: lost.rank, PID: lost.pid,
			Text: fmt.Sprintf("rank %d ran out of memory; the other %d have %v to end", *lost.rank,
				len(living), m.Options.Grace)})
	}
	if now.Sub(m.limiter.rankGone) >= m.Options.Grace {
		m.end(Ending{Where: m.whereLost(lost.pid), Rank: lost.rank, OOM: true, Why: fmt.Sprintf(
			"memroom ended the group: rank %d (process %d) ran out of memory and %s still waiting for it "+
				"after %v",
			*lost.rank, lost.pid, others(len(living)), m.Options.Grace)})
	}
}

func others(n int) string {
	if n == 1 {
		return "the other rank was"
	}
	return fmt.Sprintf("%d other ranks were", n)
}

// lostRank gives a rank that is gone because of memory: its probe said so, or the kernel counted a
// kill since it began.
func (m *Monitor) lostRank(gone []*person) *person {
	var largest *person
	for _, who := range gone {
		if m.whereLost(who.pid) != "" {
			return who
		}
		if largest == nil || who.resident > largest.resident {
			largest = who
		}
	}
	if largest != nil && m.killsSoFar() > 0 {
		return largest // the kernel takes the largest
	}
	return nil
}

func (m *Monitor) whereLost(pid int) event.Where {
	for _, d := range m.said.Deaths {
		if d.PID == pid && d.Where != "" {
			return d.Where
		}
	}
	if m.killsSoFar() > 0 {
		return event.WhereCgroup
	}
	return ""
}

// killsSoFar counts kills for memory in the run's own cgroup, which are about this run alone.
func (m *Monitor) killsSoFar() int64 {
	if m.meters.last.Cgroup == nil || !m.meters.last.Cgroup.Own {
		return 0
	}
	return m.meters.last.Cgroup.OOMKill - m.state.Base.Own
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
func (m *Monitor) caughtOOM(oom ProbeOOM) {
	if oom.Rank == nil || m.limiter.caught != nil {
		return
	}
	m.limiter.caught = &caught{pid: oom.PID, rank: oom.Rank, oom: oom, oomAt: time.Now(),
		at: time.Now()}
}

// stepped takes note that somebody made a step: a group that begins one after the error is not
// hung. Another rank may still have ended the step before.
func (m *Monitor) stepped(step event.Step) {
	m.limiter.stepped = true
	if c := m.limiter.caught; c != nil && step.End.Add(-step.Duration).After(c.oomAt) {
		m.limiter.caught = nil
	}
}

// busy takes note that somebody evaluates or saves, which takes the time it takes.
func (m *Monitor) busy() {
	if c := m.limiter.caught; c != nil {
		c.at = time.Now()
	}
}

// checkCaught says that a group stands still since one of its ranks caught its error, and ends it
// when that lasts. Steps of the group must have been seen before: a job that reports none cannot be
// told from one that stands still.
func (m *Monitor) checkCaught(now time.Time, living []*person) {
	c := m.limiter.caught
	if c == nil || len(living) < 2 {
		return
	}
	if who := m.people.all[c.pid]; who == nil || who.gone { // it has ended; checkRanks knows
		m.limiter.caught = nil
		return
	}
	since := now.Sub(c.at)
	if since >= m.Options.Grace && !c.said {
		c.said = true
		m.found([]event.Finding{caughtFinding(c, since, len(living)-1)})
	}
	patience := max(caughtGraces*m.Options.Grace,
		time.Duration(caughtSteps*median(m.said.StepTime)*float64(time.Millisecond)))
	if m.limiter.stepped && since >= patience {
		m.end(Ending{Where: event.WhereGPU, Rank: c.rank, OOM: true, Why: fmt.Sprintf(
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
		Evidence: []string{fmt.Sprintf("%s of %s were free on its card, %s allocated and %s reserved by "+
			"the process", c.oom.Free, c.oom.Total, c.oom.Allocated, c.oom.Reserved)},
		Remedies: []string{"micro_batch", "checkpointing"}}
}
