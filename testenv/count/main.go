// Command count reads `go test -json` and prints what people want of it: a line a package, the
// output of what failed, every skip with its reason, and a closing line with the three counts. It
// exits 1 if anything failed. There is no second try: a test that fails now and then is mended, or
// stands in quarantine.txt by its name and with a reason, where its failures are printed and do not
// fail the run.
package main

import (
	"bufio"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"os"
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
	output     map[string][]string
	reasons    map[string][]string  // why -> tests skipped for it
	parents    map[string]bool      // tests that have subtests: the leaves are counted
	failures   map[[2]string]int    // package and top-level test -> failed leaves
	excused    map[[2]string]int    // failed leaves of tests in quarantine
	quarantine map[[2]string]string // package and top-level test -> why
	slowest    []timed              // top-level tests
}

// timed is a top-level test and the seconds it took.
type timed struct {
	name    string
	seconds float64
}

func main() {
	quarantine, err := quarantined(quarantineText)
	if err != nil {
		fmt.Fprintln(os.Stderr, "count:", err)
		os.Exit(1)
	}
	t := newTally(os.Stdout, quarantine)
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
	t.close()
	if t.failed > 0 || scanner.Err() != nil {
		os.Exit(1)
	}
}

func newTally(out io.Writer, quarantine map[[2]string]string) *tally {
	return &tally{out: out, output: map[string][]string{}, reasons: map[string][]string{},
		parents: map[string]bool{}, failures: map[[2]string]int{}, excused: map[[2]string]int{},
		quarantine: quarantine}
}

//go:embed quarantine.txt
var quarantineText string

// mostQuarantined bounds the list: it is for tests that are being mended.
const mostQuarantined = 5

// quarantined reads the lines "package Test: why".
func quarantined(text string) (map[[2]string]string, error) {
	found := map[[2]string]string{}
	for i, line := range strings.Split(strings.TrimSpace(text), "\n") {
		if i == 0 {
			continue // a title
		}
		name, why, hasReason := strings.Cut(line, ": ")
		pkg, test, hasTest := strings.Cut(name, " ")
		if !hasReason || !hasTest || strings.TrimSpace(why) == "" {
			return nil, fmt.Errorf("quarantine.txt:%d: want \"package Test: why\", got %q", i+1, line)
		}
		found[[2]string{pkg, test}] = why
	}
	if len(found) > mostQuarantined {
		return nil, fmt.Errorf("quarantine.txt has %d tests, at most %d: mend some", len(found),
			mostQuarantined)
	}
	return found, nil
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
				t.failed++ // it did not build, panicked or ran out of time: no test reports it
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
			t.fail(e)
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

// fail counts a failed leaf, for its top-level test where that is in quarantine.
func (t *tally) fail(e testEvent) {
	top, _, _ := strings.Cut(e.Test, "/")
	which := [2]string{e.Package, top}
	t.failures[which]++
	if _, in := t.quarantine[which]; in {
		t.excused[which]++
		return
	}
	t.failed++
}

func (t *tally) failedIn(pkg string) bool {
	for which := range t.failures {
		if which[0] == pkg {
			return true
		}
	}
	return false
}

func (t *tally) show(key string) {
	fmt.Fprintf(t.out, "--- %s\n%s", key, strings.Join(t.output[key], ""))
}

// reason returns the text of the Skip call: the last line of the form "file.go:NN: text". Lines
// before it were logged.
func (t *tally) reason(key string) string {
	found := "no reason given"
	for _, line := range t.output[key] {
		if _, why, ok := strings.Cut(line, ".go:"); ok {
			_, why, _ = strings.Cut(why, ": ")
			found = strings.TrimSpace(why)
		}
	}
	return found
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
	t.showSlowest(5)
	for which, leaves := range t.excused {
		fmt.Fprintf(t.out, "\nQUARANTINED, failed in %d places: %s %s (%s)\n", leaves, which[0], which[1],
			t.quarantine[which])
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
