package supervise

import (
	"fmt"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"memroom/diagnose"
	"memroom/event"
	"memroom/probe"
)

// limiter holds the soft limit and ends groups: TERM first, KILL when that is not heard.
type limiter struct {
	termAt   time.Time // zero: not asked yet
	killed   bool
	relieved time.Time // when caches were last emptied
	rankGone time.Time // when a rank was first seen to have run out while others live
	caught   *caught   // a rank that ran out and lives, while nobody makes a step
	stepped  bool      // steps were seen

	companionsAt  time.Time // when the others of the group were last looked for
	companionGone time.Time // when one was first seen to have run out
}

// hold enforces --host-mem where no cgroup does. Pages shared by forked workers are in every
// worker's resident size; so before it acts it asks for the proportional size, whatever that costs.
func (m *Monitor) hold(s *event.Sample) {
	if m.state.Limit == LimitSoft && m.said.Ended == nil && s.Unreclaimable() > m.state.HostLimit {
		used := s.Unreclaimable()
		if pss, ok := m.meters.tree.Proportional(time.Second, time.Second); ok {
			s.Proportional = pss.All
			used = min(used, pss.All)
		}
		if used > m.state.HostLimit {
			m.end(Ending{Where: event.WhereHost, OOM: true, Why: fmt.Sprintf(
				"memroom ended the run: it held %s in %s, the soft limit of --host-mem is %s", used,
				counted(s.Processes), m.state.HostLimit)})
		}
	}
	m.followUp()
}

// end begins to end the run.
func (m *Monitor) end(why Ending) {
	m.said.Ended = &why
	m.happened(event.Happened{Kind: "action", Text: why.Why, Rank: why.Rank})
	m.flush()
	m.limiter.termAt = time.Now()
	m.signal(int(unix.SIGTERM))
}

// followUp kills what did not heed TERM. Above a memory limit there is no time to lose.
func (m *Monitor) followUp() {
	if m.limiter.termAt.IsZero() || m.limiter.killed {
		return
	}
	grace := m.Options.Grace
	if m.state.Limit == LimitSoft {
		grace = min(grace, 3*time.Second)
	}
	if time.Since(m.limiter.termAt) >= grace {
		m.limiter.killed = true
		m.signal(int(unix.SIGKILL))
	}
}

// relieve gives unused cache back to a card that is full: only where that helps. A process alone on
// its card empties its cache by itself when it must; memory that it hoards is in the way of others:
// further ranks, libraries, neighbours.
func (m *Monitor) relieve(now time.Time, s event.Sample) {
	const pause, full, worth = time.Minute, 0.97, 0.05
	if m.Detect == nil || len(s.Devices) == 0 || now.Sub(m.limiter.relieved) < pause ||
		len(m.speaking) == 0 {
		return
	}
	accounts := m.Detect.Accounts()
	for _, d := range s.Devices {
		cache := event.Bytes(0)
		for _, line := range accounts[d.UUID].Lines {
			if line.Name == diagnose.LineCache {
				cache = line.Bytes
			}
		}
		shared := len(m.speaking) > 1 || d.Others > 0
		if !shared || float64(d.Used) < full*float64(d.Total) ||
			float64(cache) < worth*float64(d.Total) {
			continue
		}
		m.limiter.relieved = now
		commands := map[int][]probe.Command{}
		for conn := range m.speaking {
			commands[conn.PID] = []probe.Command{{Do: probe.DoCollect}, {Do: probe.DoEmptyCache}}
		}
		m.ask(commands)
		m.happened(event.Happened{Kind: "action",
			Text: fmt.Sprintf("%s is full (%s of %s) and the run holds %s of unused cache on it: caches are "+
				"emptied",
				d.Name, d.Used, d.Total, cache)})
	}
}

// alarm acts when memory comes close to a limit: once, and again only after it has gone down.
type alarm struct {
	at      float64
	act     string
	ringing bool
}

func (a *alarm) check(m *Monitor, s event.Sample) {
	used, limit, what := closest(m, s)
	if limit == 0 {
		return
	}
	share := float64(used) / float64(limit)
	switch {
	case share >= a.at && !a.ringing:
		a.ringing = true
		m.pressure(fmt.Sprintf("%s at %s of %s (%.0f %%)", what, used, limit, 100*share))
	case share < a.at-0.05:
		a.ringing = false
	}
}

// closest gives the host memory that is nearest to its wall. Of a cgroup's usage only what cannot
// be dropped counts: page cache fills any limit and goes when asked.
func closest(m *Monitor, s event.Sample) (used, limit event.Bytes, what string) {
	if c := s.Cgroup; c != nil && c.Limit > 0 {
		return c.Anon + c.Shmem + c.Kernel, c.Limit, "host memory of the cgroup"
	}
	if m.state.HostLimit > 0 {
		return s.Unreclaimable(), m.state.HostLimit, "host memory of the run"
	}
	if s.Machine != nil && s.Machine.Total > 0 {
		return s.Machine.Total - s.Machine.Available, s.Machine.Total, "memory of the machine"
	}
	return 0, 0, ""
}

// pressure tells the record and does what --on-pressure asks: a signal to the command, or a shell
// command with the run's folder and the reason in its environment.
func (m *Monitor) pressure(reason string) {
	m.happened(event.Happened{Kind: "pressure", Text: reason})
	action := m.Options.OnPressure
	if action == "" {
		return
	}
	if number := SignalNumber(action); number != 0 {
		_ = writeJSON(m.conn, saySignal, signalRequest{Number: number})
		m.happened(event.Happened{Kind: "action", Text: action + " was sent to the command: " +
			reason})
		return
	}
	// the text may hold a token: others can read a command line, but not the environment
	hook := exec.Command("/bin/sh", "-c", `eval "$MEMROOM_ON_PRESSURE"`)
	hook.Env = append(hook.Environ(), "MEMROOM_ON_PRESSURE="+action, "MEMROOM_RUN="+m.Run.ID,
		"MEMROOM_RUN_DIR="+m.Files.Dir,
		"MEMROOM_REASON="+reason,
		fmt.Sprintf("MEMROOM_CHILD=%d", m.state.Child))
	if err := hook.Start(); err != nil {
		m.note("hook", "the command of --on-pressure could not be started: "+err.Error())
		return
	}
	go func() { _ = hook.Wait() }()
	m.happened(event.Happened{Kind: "action", Text: "the command of --on-pressure was started: " +
		reason})
}

// SignalNumber reads SIGUSR1 or USR1; 0 when it is no signal's name.
func SignalNumber(name string) int {
	upper := strings.ToUpper(name)
	if !strings.HasPrefix(upper, "SIG") {
		upper = "SIG" + upper
	}
	return int(unix.SignalNum(upper))
}
