package main

import (
	_ "embed"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// times collects what every job took. The processor time is that of the job's process and of the
// descendants it waited for; a machine that is busy with other work does not change it much, so it
// is what to compare between runs. A nil one collects nothing.
type times struct {
	mu     sync.Mutex
	rows   []took
	began  time.Time
	before ticks
}

type took struct {
	name       string
	cpu, clock time.Duration
}

func (r took) String() string {
	return fmt.Sprintf("%7.1f %7.1f %s\n", r.cpu.Seconds(), r.clock.Seconds(), r.name)
}

func beginTimes() *times {
	before, _ := processors()
	return &times{began: time.Now(), before: before}
}

func (t *times) add(name string, clock time.Duration, state *os.ProcessState) {
	if t == nil || state == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rows = append(t.rows, took{name, state.UserTime() + state.SystemTime(), clock})
}

// text returns a line a job, the dearest first: seconds of processor time, seconds on the clock,
// name.
func (t *times) text() string {
	slices.SortFunc(t.rows, func(a, b took) int { return int(b.cpu - a.cpu) })
	var text strings.Builder
	for _, r := range t.rows {
		text.WriteString(r.String())
	}
	return text.String()
}

func (t *times) write(path string) error {
	return os.WriteFile(path, []byte(t.text()), 0o644)
}

// dearest is how many jobs the summary names.
const dearest = 30

// summary prints what the dearest jobs took, and how well the processors were used.
func (t *times) summary(to io.Writer) {
	named := min(dearest, len(t.rows))
	lines := strings.SplitAfterN(t.text(), "\n", named+1)[:named]
	fmt.Fprintf(to, "processor s, clock s, job: the %d dearest of %d\n%s", named, len(t.rows),
		strings.Join(lines, ""))
	clock := time.Since(t.began)
	if after, ok := processors(); ok {
		fmt.Fprintf(to, "idle: %.0f %% of the machine's processors, whoever used them\n",
			100*after.idleSince(t.before))
	}
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &used); err == nil {
		user, system := time.Duration(used.Utime.Nano()), time.Duration(used.Stime.Nano())
		fmt.Fprintf(to, "time: %v on the clock, processors %v (user %v, system %v)\n",
			clock.Round(time.Second), (user + system).Round(time.Second),
			user.Round(time.Second), system.Round(time.Second))
	}
}

//go:embed longest.txt
var longestText string

// before is what a job took in an earlier run, in seconds.
type before struct{ cpu, clock float64 }

// share is the part of a processor that the job used while it ran; 0 is not known.
func (b before) share() float64 {
	if b.clock == 0 {
		return 0
	}
	// A job that hardly computes still starts processes, all at once.
	return max(0.1, b.cpu/b.clock)
}

func readJobs(text string) map[string]before {
	jobs := map[string]before{}
	for line := range strings.Lines(text) {
		var b before
		if n, _ := fmt.Sscan(line, &b.cpu, &b.clock); n == 2 {
			jobs[strings.Join(strings.Fields(line)[2:], " ")] = b
		}
	}
	return jobs
}

// longestJobs are those of longest.txt.
var longestJobs = sync.OnceValue(func() map[string]before { return readJobs(longestText) })

// longest returns what a job took when longest.txt was written: its own line or, for a test, that
// of its package ("memroom/supervise *"). Zeros are not known.
func longest(name string) before {
	if known, ok := longestJobs()[name]; ok {
		return known
	}
	pkg, _, _ := strings.Cut(name, " ")
	return longestJobs()[pkg+" *"]
}
