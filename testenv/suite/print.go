package main

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// testEvent is a line of `go test -json` (see `go doc test2json`).
type testEvent struct {
	Action, Package string
	Test            string  `json:",omitempty"`
	Output          string  `json:",omitempty"`
	Elapsed         float64 `json:",omitempty"`
}

// printer writes whole lines of several jobs to one place.
type printer struct {
	mu sync.Mutex
	to io.Writer
}

func (p *printer) line(text []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = p.to.Write(append(text[:len(text):len(text)], '\n')) // a reader that is gone ends us
}

func (p *printer) event(e testEvent) {
	if text, err := json.Marshal(e); err == nil {
		p.line(text)
	}
}

// skip reports a test, or a check, that could not be made.
func (p *printer) skip(pkg, name, why string) {
	for _, e := range []testEvent{{Action: "run"}, {Action: "output",
		Output: "suite.go:1: " + why + "\n"}, {Action: "skip"}} {
		e.Package, e.Test = pkg, name
		p.event(e)
	}
}

// eachLine runs a command and calls f with each line it prints.
func eachLine(cmd *exec.Cmd, f func(line []byte)) error {
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if cmd.Stderr == nil {
		cmd.Stderr = os.Stderr
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := bufio.NewReaderSize(pipe, 1<<16)
	for {
		line, err := lines.ReadBytes('\n')
		if n := len(line); n > 0 && line[n-1] == '\n' {
			line = line[:n-1]
		}
		if len(line) > 0 {
			f(line)
		}
		if err != nil {
			break
		}
	}
	return cmd.Wait()
}

// shown is how many words of a command are its name in longest.txt: those of a list of packages
// change.
const shown = 4

// shellJob is a command that prints `go test -json` itself.
func (p *plan) shellJob(out *printer, argv ...string) job {
	name := strings.Join(argv[:min(shown, len(argv))], " ")
	known := longest(name)
	return job{weight: known.clock, share: known.share(), do: func() []job {
		cmd, began := exec.Command(argv[0], argv[1:]...), time.Now()
		// The failures are in the lines; the exit code adds nothing.
		_ = eachLine(cmd, out.line)
		p.times.add(name, time.Since(began), cmd.ProcessState)
		return nil
	}}
}
