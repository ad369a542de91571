package main

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const sample = `package sample

import (
	"os"
	"testing"
)

func half(n int) int {
	if n < 0 {
		return -half(-n)
	}
	return n / 2
}

func TestRight(t *testing.T) {
	if half(4) != 2 {
		t.Error("half of 4")
	}
}

func TestNegative(t *testing.T) {
	t.Run("odd", func(t *testing.T) {
		if half(-5) != -2 {
			t.Error("half of -5")
		}
	})
}

func TestWrong(t *testing.T) { t.Error("wrong on purpose") }

func TestDies(t *testing.T) { os.Exit(3) }

func TestLeftOut(t *testing.T) { t.Skip("needs nothing") }
`

// splitSample runs the tests of a small module that match, as `make test` runs a split package.
func splitSample(t *testing.T, text string, end time.Time) (events []testEvent) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module sample\n\ngo 1.24\n",
		"sample_test.go": text} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var printed bytes.Buffer
	p := &plan{dir: t.TempDir(), tests: []string{"timeout=1m"}, end: end}
	q := newQueue()
	q.add(p.splitJob(&printer{to: &printed}, ".", dir))
	q.work(2, 2, never)
	for _, line := range strings.Split(strings.TrimSpace(printed.String()), "\n") {
		var e testEvent
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		events = append(events, e)
	}
	return events
}

// TestSplitPackage: each test is reported once under its package, a process that dies is a failure
// with that reason, and the package ends once, at the end.
func TestSplitPackage(t *testing.T) {
	events := splitSample(t, sample, time.Time{})
	ends := map[string]string{}
	for i, e := range events {
		switch e.Action {
		case "pass", "fail", "skip":
			if ends[e.Test] != "" {
				t.Errorf("%q ended twice", e.Test)
			}
			ends[e.Test] = e.Action
			if e.Test == "" && i != len(events)-1 {
				t.Errorf("the package ended at event %d of %d", i, len(events))
			}
		}
		if e.Package != "sample" {
			t.Errorf("package %q", e.Package)
		}
	}
	want := map[string]string{"TestRight": "pass", "TestNegative": "pass", "TestNegative/odd": "pass",
		"TestWrong": "fail", "TestDies": "fail", "TestLeftOut": "skip", "": "fail"}
	for name, action := range want {
		if ends[name] != action {
			t.Errorf("%q: %q, want %q", name, ends[name], action)
		}
	}
}

// TestNothingStartsAfterTheEnd: each test that is left is reported as skipped, with the reason.
func TestNothingStartsAfterTheEnd(t *testing.T) {
	skipped := 0
	for _, e := range splitSample(t, sample, time.Now().Add(-time.Minute)) {
		switch e.Action {
		case "skip":
			skipped++
		case "fail":
			t.Errorf("%+v", e)
		}
	}
	if skipped != 5 {
		t.Errorf("%d tests skipped, want 5", skipped)
	}
}

func TestSplitPackageThatDoesNotBuild(t *testing.T) {
	events := splitSample(t, "package sample\n\nvar wrong int = `text`\n", time.Time{})
	last := events[len(events)-1]
	if last.Action != "fail" || last.Test != "" ||
		!slices.ContainsFunc(events, func(e testEvent) bool {
			return strings.Contains(e.Output, "cannot use `text`")
		}) {
		t.Errorf("events %+v", events)
	}
}

// TestQueue: every job runs once, also those that come of others, and jobs start in their order.
func TestQueue(t *testing.T) {
	q := newQueue()
	var order []int
	for i := range 5 {
		q.add(job{do: func() []job {
			order = append(order, i)
			return []job{{do: func() []job { order = append(order, 10+i); return nil }}}
		}})
	}
	q.work(1, 1, never)
	if want := []int{0, 1, 2, 3, 4, 10, 11, 12, 13, 14}; !slices.Equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
	var many atomic.Int64
	for range 100 {
		q.add(job{do: func() []job {
			many.Add(1)
			return []job{{do: func() []job { many.Add(1000); return nil }}}
		}})
	}
	q.work(4, 4, never)
	if got := many.Load(); got != 100*1001 {
		t.Errorf("ran %d jobs and %d that follow", got%1000, got/1000)
	}
}

// TestLongestFirst: what takes longest starts first, also among jobs that came of others.
func TestLongestFirst(t *testing.T) {
	q := newQueue()
	var order []int
	add := func(weight int, more ...job) job {
		return job{weight: float64(weight),
			do: func() []job { order = append(order, weight); return more }}
	}
	q.add(add(0), add(3, add(5), add(1)), add(2), add(9, add(4)))
	q.work(1, 1, never)
	if want := []int{9, 4, 3, 5, 2, 1, 0}; !slices.Equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
}

// TestWaitingJobsRunBeside: jobs that hardly compute run next to one that takes a whole processor,
// and a second one of those waits for the first.
func TestWaitingJobsRunBeside(t *testing.T) {
	q := newQueue()
	var mu sync.Mutex
	now, worst := 0.0, 0.0
	together := map[float64]int{}
	waiting := make(chan struct{})
	for _, share := range []float64{1, 1, 0.25, 0.25, 0.25} {
		q.add(job{share: share, weight: 10 * share, do: func() []job {
			mu.Lock()
			now += share
			worst = max(worst, now)
			if together[share]++; together[0.25] == 2 {
				close(waiting)
			}
			mu.Unlock()
			if share == 1 {
				<-waiting // two light ones started next to it, or the test hangs
			}
			mu.Lock()
			now -= share
			mu.Unlock()
			return nil
		}})
	}
	q.work(1.5, 5, never)
	if worst > 1.5 || together[1] != 2 || together[0.25] != 3 {
		t.Errorf("jobs wanted %v processors at a time, want at most 1.5; ran %v", worst, together)
	}
}

// TestShares: processor seconds by seconds on the clock; tests that the file lacks are unknown.
func TestShares(t *testing.T) {
	jobs := readJobs("A heading.\n  30.0 60 memroom/a TestOne\n 1 100 bash -c testenv/checks style\n")
	for name, want := range map[string]float64{"memroom/a TestOne": 0.5,
		"bash -c testenv/checks style": 0.1, "memroom/a TestTwo": 0} {
		if got := jobs[name].share(); got != want {
			t.Errorf("%s: %v of a processor, want %v", name, got, want)
		}
	}
	if got := jobs["memroom/a TestOne"].clock; len(jobs) != 2 || got != 60 {
		t.Errorf("%v", jobs)
	}
}

// TestSummary: the dearest job comes first, and the time on the clock is said.
func TestSummary(t *testing.T) {
	times := beginTimes()
	times.rows = []took{{"cheap", 2 * time.Second, 3 * time.Second},
		{"dear", 70 * time.Second, 80 * time.Second}}
	var said strings.Builder
	times.summary(&said)
	text := said.String()
	if dear, cheap := strings.Index(text, "   70.0    80.0 dear\n"),
		strings.Index(text, "    2.0     3.0 cheap\n"); dear < 0 || cheap < dear ||
		!strings.Contains(text, "the 2 dearest of 2") || !strings.Contains(text, "on the clock") {
		t.Errorf("%s", text)
	}
}

// TestRoomForMore: two jobs always run, more of them only while the machine has room.
func TestRoomForMore(t *testing.T) {
	for _, c := range []struct {
		name  string
		room  func() bool
		wants int64
	}{{"no", never, 2}, {"yes", func() bool { return true }, 5}} {
		t.Run(c.name, func(t *testing.T) {
			q := newQueue()
			var now, top atomic.Int64
			reached := make(chan struct{})
			for range 40 {
				q.add(job{do: func() []job {
					n := now.Add(1)
					for seen := top.Load(); n > seen && !top.CompareAndSwap(seen, n); seen = top.Load() {
					}
					if n == c.wants {
						select {
						case <-reached:
						default:
							close(reached)
						}
					}
					<-reached
					now.Add(-1)
					return nil
				}})
			}
			q.work(2, 5, c.room)
			if top.Load() != c.wants {
				t.Errorf("%d jobs ran at a time, want %d", top.Load(), c.wants)
			}
		})
	}
}

func never() bool { return false }

// TestTicks: the share of unused time between two readings, where waiting for a disk is unused.
func TestTicks(t *testing.T) {
	before, ok := readTicks([]byte("cpu  100 10 50 1000 40 0 5 5 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n"))
	if !ok || before != (ticks{1040, 1210}) {
		t.Fatalf("%+v, %v", before, ok)
	}
	after, _ := readTicks([]byte("cpu  160 20 60 1015 45 0 5 5 0 0\n"))
	if got := after.idleSince(before); math.Abs(got-0.2) > 1e-12 {
		t.Errorf("20 of 100 ticks were unused, got %v", got)
	}
	if got := before.idleSince(before); got != 0 {
		t.Errorf("no time passed, got %v", got)
	}
	if _, ok := readTicks([]byte("intr 1 2 3")); ok {
		t.Error("a line of something else was read")
	}
}

// TestLongestExist: the name of a test that does not exist any more has no place in the order.
func TestLongestExist(t *testing.T) {
	if len(longestJobs()) == 0 {
		t.Fatal("longest.txt has no jobs")
	}
	for name := range longestJobs() {
		pkg, test, _ := strings.Cut(name, " ")
		pkg, ours := strings.CutPrefix(pkg, "memroom/")
		if !ours {
			continue // a command
		}
		if test == "*" {
			test = "Test\\w+"
		}
		declared := regexp.MustCompile(`(?m)^func ` + test + `\(`)
		files, err := filepath.Glob(filepath.Join("..", "..", pkg, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(files, func(path string) bool {
			text, err := os.ReadFile(path)
			return err == nil && declared.Match(text)
		}) {
			t.Errorf("longest.txt: there is no %s", name)
		}
	}
}

// TestNothingOutlastsTheRun: a test that hangs ends soon after the end of the run.
func TestNothingOutlastsTheRun(t *testing.T) {
	for left, want := range map[time.Duration]time.Duration{
		time.Hour:        longestTest,
		10 * time.Minute: 18 * time.Minute,
		-time.Minute:     afterEnd,
	} {
		if got := within(left); got != want {
			t.Errorf("with %v left a test may take %v, want %v", left, got, want)
		}
	}
}
