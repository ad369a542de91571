package cli

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"memroom/event"
	"memroom/supervise"
	"memroom/trial"
	"memroom/trial/local"
	"memroom/trial/relay"
)

// relayed runs the command as an attempt of a trial whose scheduler is elsewhere and sees only what
// we print: between the command's output stand its reports, its memory and how it ended.
func (c *runCmd) relayed(s *session, to *os.File, command []string, path string) error {
	r, err := c.prepare(s, command)
	if err != nil {
		return exitWith(exitNotStarted, "%w", err)
	}
	job := localJob(r.folder)
	job.Launch = supervise.Launch{Attempt: 1, Path: path, Args: r.args, Command: command, Env: r.env,
		Dir: r.run.Dir, HostLimit: c.HostMem,
		Streams: supervise.Streams{In: supervise.Null, Out: supervise.Pipe, Err: supervise.Pipe,
			Merged: true},
		Monitor:  []string{"memroom", monitorWord, r.folder.Dir},
		Settings: r.spec, Scratch: []byte(r.scratch), Policy: c.fitFlags.wanted(), Bound: true}
	b := &local.Backend{Host: max(c.HostMem, event.MiB), Firm: true, Grace: 2 * time.Second,
		New: func(trial.Launch) (local.Job, error) { return job, nil }}
	if cards := openCards(); cards != nil {
		b.Cards = func() []trial.Card { return trialCards(cards, c.GPUMem) }
	}
	if err := b.Open(); err != nil {
		return exitWith(exitNotStarted, "%w", err)
	}
	run, err := b.Prepare(trial.Launch{Host: c.HostMem, Device: c.GPUMem})
	if err != nil {
		return exitWith(exitNotStarted, "%w", err)
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer signal.Stop(signals)
	out := relay.Writer{Out: to, ID: c.Relay}
	host, _ := os.Hostname()
	begin := relay.Begin{Host: host, Run: run, Memory: b.Limit()}
	out.Begin(begin)
	if begin.Less(c.HostMem) {
		why := fmt.Sprintf("node %s has %s of memory, and the trial was given %s there", host,
			begin.Memory, c.HostMem)
		out.End(trial.Outcome{ExitCode: exitNotStarted, Lost: true, Evidence: why})
		return exitQuietly(exitNotStarted)
	}
	if err := b.Start(run); err != nil {
		return exitWith(exitNotStarted, "%w", err)
	}
	outcome := relayEvents(b, run, &out, signals)
	out.End(outcome)
	switch {
	case out.Failed() != nil:
		return exitWith(exitNotWritten, "the command's output could not be written: %w",
			cause(out.Failed()))
	case outcome.NotStarted != "":
		return exitWith(outcome.ExitCode, "%s", outcome.NotStarted)
	case outcome.ExitCode < 0:
		return exitWith(exitNotStarted, "run %s: "+endUnknown, run, run)
	}
	return exitQuietly(outcome.ExitCode)
}

// relayEvents hands on what the command does until it has ended.
func relayEvents(b *local.Backend, run string, out *relay.Writer,
	signals <-chan os.Signal) trial.Outcome {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case h := <-b.Events():
			if h.End != nil {
				return *h.End
			}
			out.Happened(h)
		case <-ticker.C:
			if u, ok := b.Usage(run); ok {
				out.Usage(u)
			}
		case <-signals:
			b.Stop(run)
		}
	}
}
