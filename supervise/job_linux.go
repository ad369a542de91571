package supervise

import (
	"net"
	"os"
	"strings"
	"time"

	"memroom/event"
	"memroom/meter"
)

// job is what the parts of a monitor share: the run, the keeper's state of its current attempt, and
// the connection to the keeper. Only [Monitor] changes it.
type job struct {
	run     event.Run
	files   Files
	options Options
	conn    *net.UnixConn // to the keeper
	proc    *meter.Proc
	state   State
	launch  Launch
	people  *people // the processes of the attempt
}

// now is the time in the run, in milliseconds, by a clock that does not jump.
func (j *job) now() int64 { return bootClock().Milliseconds() - j.state.BeganBootMS }

// signal asks the keeper to signal every process of the run.
func (j *job) signal(number int) {
	_ = writeJSON(j.conn, saySignal, signalRequest{Number: number, All: true})
}

// hostLimit is the lowest wall for host memory.
func (j *job) hostLimit(s event.Sample) event.Bytes {
	limit := j.state.HostLimit
	lower := func(other event.Bytes) {
		if other > 0 && (limit == 0 || other < limit) {
			limit = other
		}
	}
	if s.Cgroup != nil {
		lower(s.Cgroup.Limit)
	}
	if s.Machine != nil {
		lower(s.Machine.Total)
	}
	return limit
}

// cgroup is the run's own, nil without one.
func (j *job) cgroup() *meter.Cgroup {
	if j.state.Cgroup == "" {
		return nil
	}
	return &meter.Cgroup{Dir: j.state.Cgroup, Version: j.state.CgroupV}
}

// ownPeak is the most that the run's own cgroup ever held, as the kernel counted it; 0 without one.
func (j *job) ownPeak() event.Bytes {
	own := j.cgroup()
	if own == nil {
		return 0
	}
	reading, err := own.Read()
	if err != nil {
		return 0
	}
	return reading.Peak
}

// printed returns the lengths of the recorded output and errors.
func (j *job) printed() (sizes [2]int64) {
	for i, path := range []string{j.files.Output, j.files.Errors} {
		if info, err := os.Stat(path); err == nil {
			sizes[i] = info.Size()
		}
	}
	return sizes
}

// kernelKills returns the processes of the run that the kernel's log names, where it may be read.
func (j *job) kernelKills() []KernelKill {
	began := time.Duration(j.state.BeganBootMS+j.state.AttemptMS) * time.Millisecond
	kills, err := meter.KernelOOMKills(began - bootOffset())
	if err != nil {
		return nil // not allowed to most users; the counters say enough
	}
	var ours []KernelKill
	for _, k := range kills {
		who := (*person)(nil)
		if j.people != nil {
			who = j.people.all[k.PID]
		}
		inOurs := j.state.Cgroup != "" && strings.Contains(k.Line, j.run.ID)
		if who != nil || inOurs || k.PID == j.state.Child {
			ours = append(ours, KernelKill{PID: k.PID, Rank: j.people.rankOf(k.PID), Line: k.Line})
		}
	}
	return ours
}

// bootOffset is how much the clock of the kernel's log, which stops while the machine sleeps, lags
// behind ours; a second is added because the two are not read at the same moment.
func bootOffset() time.Duration { return bootClock() - monotonicClock() + time.Second }
