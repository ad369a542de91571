package supervise

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"memroom/event"
)

// limiter holds the soft limit and ends runs: TERM first, KILL when that is not heard.
type limiter struct {
	job    *job
	record *record
	meters *sampler

	termAt time.Time // zero: not asked yet
	killed bool
}

// hold enforces --host-mem where no cgroup does. Pages shared by forked workers are in every
// worker's resident size; so before it acts it asks for the proportional size, whatever that costs.
func (l *limiter) hold(s *event.Sample) {
	limit := l.job.state.HostLimit
	if l.job.state.Limit == LimitSoft && !l.ending() && s.Unreclaimable() > limit {
		used := s.Unreclaimable()
		if pss, ok := l.meters.tree.Proportional(time.Second, time.Second); ok {
			s.Proportional = pss.All
			used = min(used, pss.All)
		}
		if used > limit {
			l.end(Ending{Where: event.WhereHost, OOM: true, Why: fmt.Sprintf(
				"memroom ended the run: it held %s in %s, the soft limit of --host-mem is %s", used,
				event.Count(s.Processes, "process"), limit)})
		}
	}
	l.followUp()
}

// ending reports whether memroom is ending the attempt already.
func (l *limiter) ending() bool { return l.record.said.Ended != nil }

// end begins to end the run.
func (l *limiter) end(why Ending) {
	l.record.said.Ended = &why
	l.record.happened(event.Happened{Kind: "action", Text: why.Why, Rank: why.Rank})
	l.record.flush()
	l.termAt = time.Now()
	l.job.signal(int(unix.SIGTERM))
}

// followUp kills what did not heed TERM. Above a memory limit there is no time to lose.
func (l *limiter) followUp() {
	if l.termAt.IsZero() || l.killed {
		return
	}
	grace := l.job.options.Grace
	if l.job.state.Limit == LimitSoft {
		grace = min(grace, 3*time.Second)
	}
	if time.Since(l.termAt) >= grace {
		l.killed = true
		l.job.signal(int(unix.SIGKILL))
	}
}
