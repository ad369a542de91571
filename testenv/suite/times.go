package main

import (
	_ "embed"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// times collects what every job took. The processor time is that of the job's process and of the
// descendants it waited for; a machine that is busy with other work does not change it much, so it
// is what to compare between runs. A nil one collects nothing.
type times struct {
	mu   sync.Mutex
	rows []took
}

type took struct {
	name       string
	cpu, clock time.Duration
}

func (t *times) add(name string, clock time.Duration, state *os.ProcessState) {
	if t == nil || state == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rows = append(t.rows, took{name, state.UserTime() + state.SystemTime(), clock})
}

// write gives a line a job, the dearest first: seconds of processor time, seconds on the clock,
// name.
func (t *times) write(path string) error {
	if t == nil {
		return nil
	}
	slices.SortFunc(t.rows, func(a, b took) int { return int(b.cpu - a.cpu) })
	var text strings.Builder
	for _, r := range t.rows {
		fmt.Fprintf(&text, "%7.1f %7.1f %s\n", r.cpu.Seconds(), r.clock.Seconds(), r.name)
	}
	return os.WriteFile(path, []byte(text.String()), 0o644)
}

//go:embed longest.txt
var longestText string

var longestJobs = sync.OnceValue(func() map[string]float64 {
	jobs := map[string]float64{}
	for line := range strings.Lines(longestText) {
		seconds, clock, name := 0.0, 0.0, ""
		if n, _ := fmt.Sscan(line, &seconds, &clock); n == 2 {
			name = strings.Join(strings.Fields(line)[2:], " ")
			jobs[name] = clock
		}
	}
	return jobs
})

// longest gives the seconds on the clock that a job took when longest.txt was written: 0 for one
// that is not in it.
func longest(name string) float64 { return longestJobs()[name] }
