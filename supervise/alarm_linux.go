package supervise

import (
	"fmt"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"

	"memroom/event"
)

// alarm acts when memory comes close to a limit: once, and again only after it has gone down.
type alarm struct {
	job    *job
	record *record

	ringing bool
}

func (a *alarm) check(s event.Sample) {
	used, limit, what := Closest(s, a.job.state.HostLimit)
	if limit == 0 {
		return
	}
	share, at := float64(used)/float64(limit), a.job.options.PressureAt
	switch {
	case share >= at && !a.ringing:
		a.ringing = true
		a.ring(fmt.Sprintf("%s at %s (%.0f %%)", what, used.Of(limit), 100*share))
	case share < at-0.05:
		a.ringing = false
	}
}

// Closest returns the host memory that is nearest to its wall; own is the run's own limit, 0 for
// none. Of a cgroup's usage only what cannot be dropped counts: page cache fills any limit and goes
// when asked.
func Closest(s event.Sample, own event.Bytes) (used, limit event.Bytes, what string) {
	if c := s.Cgroup; c != nil && c.Limit > 0 {
		return c.Anon + c.Shmem + c.Kernel, c.Limit, "host memory of the cgroup"
	}
	if own > 0 {
		return s.Unreclaimable(), own, "host memory of the run"
	}
	if s.Machine != nil && s.Machine.Total > 0 {
		return s.Machine.Total - s.Machine.Available, s.Machine.Total, "memory of the machine"
	}
	return 0, 0, ""
}

// ring records the pressure and does what --on-pressure asks: a signal to the command, or a shell
// command with the run's folder and the reason in its environment.
func (a *alarm) ring(reason string) {
	a.record.happened(event.Happened{Kind: "pressure", Text: reason})
	action := a.job.options.OnPressure
	if action == "" {
		return
	}
	if number := SignalNumber(action); number != 0 {
		_ = writeJSON(a.job.conn, saySignal, signalRequest{Number: number})
		a.record.happened(event.Happened{Kind: "action", Text: action +
			" was sent to the command: " + reason})
		return
	}
	// the text may hold a token: others can read a command line, but not the environment
	hook := exec.Command("/bin/sh", "-c", `eval "$MEMROOM_ON_PRESSURE"`)
	hook.Env = append(hook.Environ(), "MEMROOM_ON_PRESSURE="+action,
		"MEMROOM_RUN="+a.job.run.ID, "MEMROOM_RUN_DIR="+a.job.files.Dir,
		"MEMROOM_REASON="+reason,
		fmt.Sprintf("MEMROOM_CHILD=%d", a.job.state.Child))
	if err := hook.Start(); err != nil {
		a.record.note("hook", "the command of --on-pressure could not be started: "+err.Error())
		return
	}
	go func() { _ = hook.Wait() }()
	a.record.happened(event.Happened{Kind: "action",
		Text: "the command of --on-pressure was started: " + reason})
}

// SignalNumber reads SIGUSR1 or USR1; 0 when it is no signal's name.
func SignalNumber(name string) int {
	upper := strings.ToUpper(name)
	if !strings.HasPrefix(upper, "SIG") {
		upper = "SIG" + upper
	}
	return int(unix.SignalNum(upper))
}
