package cli

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"

	"memroom/diagnose"
	"memroom/event"
	"memroom/probe"
	"memroom/remedy"
	"memroom/supervise"
)

// told is a finding in the form that a notebook shows.
type told struct {
	event.Finding
	Try  string `json:"try,omitempty"` // what helps, and the code for it
	Code string `json:"code,omitempty"`
}

// outside watches a notebook's kernel: the probe in it connects to the socket, findings go to
// standard output as JSON lines. Each line on standard input asks to be answered when everything
// that was said before it is judged; its end ends the watch.
func outside(pid, socket string, streams Streams) error {
	debug.SetGCPercent(30)
	debug.SetMemoryLimit(24 << 20)
	number, err := strconv.Atoi(pid)
	if err != nil {
		return fmt.Errorf("%q is not a process", pid)
	}
	listener, err := probe.Listen(socket)
	if err != nil {
		return err
	}
	defer os.Remove(socket)
	defer listener.Close()
	out := json.NewEncoder(streams.Out)
	o := &supervise.Outside{PID: number, Probe: listener, Options: supervise.DefaultOptions(),
		Detect: supervise.NewJudgement(diagnose.DefaultThresholds(), 0),
		Say:    func(f event.Finding, framework string) { _ = out.Encode(tell(f, framework)) }}
	if cards := openCards(); cards != nil {
		o.Devices = cards
	}
	fmt.Fprintln(streams.Out, `{"ready":true}`)
	stop, sync := make(chan struct{}), make(chan func())
	go func() {
		defer close(stop)
		for lines := bufio.NewScanner(streams.In); lines.Scan(); {
			sync <- func() { fmt.Fprintln(streams.Out, `{"synced":true}`) }
		}
	}()
	o.Watch(stop, sync)
	return nil
}

// tell adds what helps against a finding, in words of the framework.
func tell(f event.Finding, framework string) told {
	job := remedy.Job{Framework: remedy.PyTorch, Notebook: true}
	if framework == "tensorflow" {
		job.Framework = remedy.TensorFlow
	}
	for _, id := range f.Remedies {
		if r, ok := remedy.Find(remedy.ID(id)); ok && r.Applies(job) == "" {
			return told{f, r.TitleFor(job), r.HowTo(job).Code}
		}
	}
	return told{Finding: f}
}
