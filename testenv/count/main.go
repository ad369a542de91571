// Command count reads `go test -json` and prints what people want of it: a line a package, the
// output of what failed, every skip with its reason, and a closing line with the three counts. It
// exits 1 if anything failed. A test that failed is run once more by itself, because many of ours
// watch real processes on machines that stall. One that passes then is named and counted as flaky;
// more than mostFlaky of them fail the run.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sort"
	"strings"
)

// checks is the package name under which testenv/checks reports linters, types and builds.
const checks = "checks"

// testEvent is a line of `go test -json` (see `go doc test2json`).
type testEvent struct {
	Action, Package, ImportPath, Test, Output string
	Elapsed                                   float64
}

// tally collects a whole run.
type tally struct {
	out                     io.Writer
	passed, failed, skipped int
	// of tests and packages still running, by "package test"
	output   map[string][]string
	reasons  map[string][]string // why -> tests skipped for it
	parents  map[string]bool     // tests that have subtests: the leaves are counted
	failures map[[2]string]int   // package and top-level test -> failed leaves
	flaky    []string            // passed only at the second try
	coverage []string            // a line a package: share of its statements, name
	slowest  []timed             // top-level tests
}

// timed is a top-level test and the seconds it took.
type timed struct {
	name    string
	seconds float64
}

func main() {
	t := &tally{out: os.Stdout, output: map[string][]string{}, reasons: map[string][]string{},
		parents: map[string]bool{}, failures: map[[2]string]int{}}
	scanner := bufio.NewScanner(os.Stdin)
	scanner.Buffer(nil, 64<<20)
	for scanner.Scan() {
		var e testEvent
		if err := json.Unmarshal(scanner.Bytes(), &e); err != nil {
			// the go command speaks plainly when it cannot build
			fmt.Fprintln(t.out, scanner.Text())
			continue
		}
		t.add(e)
	}
	t.again()
	t.close()
	if t.failed > 0 || len(t.flaky) > mostFlaky || scanner.Err() != nil {
		os.Exit(1)
	}
}

func (t *tally) add(e testEvent) {
	key := e.Package + e.ImportPath + " " + e.Test
	switch e.Action {
	case "run":
		if i := strings.LastIndexByte(e.Test, '/'); i >= 0 {
			t.parents[e.Package+" "+e.Test[:i]] = true
		}
	case "output", "build-output":
		t.output[key] = append(t.output[key], e.Output)
		if share, ok := strings.CutPrefix(e.Output, "coverage: "); ok && e.Test == "" {
			share, _, _ = strings.Cut(share, " ")
			t.coverage = append(t.coverage, fmt.Sprintf("%6s %s", share, e.Package))
		}
	case "build-fail":
		t.failed++
		t.show(key)
	case "pass", "fail", "skip":
		t.end(e, key)
		delete(t.output, key)
	}
}

func (t *tally) end(e testEvent, key string) {
	if e.Test == "" {
		if e.Action != "skip" && e.Package != checks { // a skipped package has no tests
			fmt.Fprintf(t.out, "%-5s %s  %.1fs\n", e.Action, e.Package, e.Elapsed)
		}
		if e.Action == "fail" {
			t.show(key)
			if !t.failedIn(e.Package) {
				t.failed++ // it did not build, panicked or ran out of time: no test says so
			}
		}
		return
	}
	if !strings.Contains(e.Test, "/") {
		t.slowest = append(t.slowest, timed{e.Package + " " + e.Test, e.Elapsed})
	}
	leaf := !t.parents[key]
	switch {
	case e.Action == "fail":
		if leaf {
			t.failed++
			top, _, _ := strings.Cut(e.Test, "/")
			t.failures[[2]string{e.Package, top}]++
		}
		t.show(key)
	case e.Action == "skip":
		t.skipped++
		why := t.reason(key)
		t.reasons[why] = append(t.reasons[why], strings.TrimPrefix(e.Package,
			"memroom/")+" "+e.Test)
	case leaf:
		t.passed++
	}
}

func (t *tally) failedIn(pkg string) bool {
	for which := range t.failures {
		if which[0] == pkg {
			return true
		}
	}
	return false
}

// mostAgain bounds the second tries: more failures than that are no accident. mostFlaky is how many
// tests may need a second try before the run counts as failed.
const (
	mostAgain = 5
	mostFlaky = 2
)

// again runs each failed test once more, alone.
func (t *tally) again() {
	if len(t.failures) > mostAgain {
		return
	}
	for which, leaves := range t.failures {
		if which[0] == checks {
			continue // a linter does not change its mind
		}
		fmt.Fprintf(t.out, "again: %s %s\n", which[0], which[1])
		cmd := exec.Command("go", "test", "-count=1", "-run", "^"+which[1]+"$", which[0])
		if strings.HasSuffix(which[0], "/browsertest") { // a module of its own
			cmd.Dir = "web/browsertest"
		}
		out, err := cmd.CombinedOutput()
		if err != nil {
			fmt.Fprintf(t.out, "%s\n", out)
			continue
		}
		t.failed -= leaves
		t.passed += leaves
		t.flaky = append(t.flaky, which[0]+" "+which[1])
	}
}

func (t *tally) show(key string) {
	fmt.Fprintf(t.out, "--- %s\n%s", key, strings.Join(t.output[key], ""))
}

// reason finds the text of the Skip call: the line after "file.go:NN: ".
func (t *tally) reason(key string) string {
	for _, line := range t.output[key] {
		if _, why, ok := strings.Cut(line, ".go:"); ok {
			_, why, _ = strings.Cut(why, ": ")
			return strings.TrimSpace(why)
		}
	}
	return "no reason given"
}

func (t *tally) close() {
	var whys []string
	for why := range t.reasons {
		whys = append(whys, why)
	}
	sort.Strings(whys)
	if len(whys) > 0 {
		fmt.Fprintf(t.out, "\nSKIPPED, because this machine lacks something:\n")
	}
	for _, why := range whys {
		fmt.Fprintf(t.out, "  %3d x %s (%s)\n", len(t.reasons[why]), why,
			strings.Join(first(t.reasons[why], 3), ", "))
	}
	if len(t.coverage) > 0 {
		sort.Strings(t.coverage)
		fmt.Fprintf(t.out, "\nStatements covered by each package's own tests:\n  %s\n",
			strings.Join(t.coverage, "\n  "))
	}
	t.showSlowest(5)
	for _, name := range t.flaky {
		fmt.Fprintf(t.out, "\nFLAKY, passed only at the second try: %s\n", name)
	}
	if len(t.flaky) > 0 {
		fmt.Fprintf(t.out, "flaky: %d (at most %d are accepted)\n", len(t.flaky), mostFlaky)
	}
	fmt.Fprintf(t.out, "\ntests: %d passed, %d failed, %d skipped\n", t.passed, t.failed, t.skipped)
}

// showSlowest names the tests that would shorten the run most.
func (t *tally) showSlowest(n int) {
	sort.Slice(t.slowest, func(i,
		j int) bool {
		return t.slowest[i].seconds > t.slowest[j].seconds
	})
	for i, s := range t.slowest[:min(n, len(t.slowest))] {
		if i == 0 {
			fmt.Fprintf(t.out, "\nSlowest tests:\n")
		}
		fmt.Fprintf(t.out, "  %6.1fs %s\n", s.seconds, s.name)
	}
}

func first(list []string, n int) []string {
	if len(list) > n {
		return append(list[:n:n], "...")
	}
	return list
}
