// Command count reads `go test -json` and prints what people want of it: a line a package, the
// output of what failed, every skip with its reason, and a closing line with the three counts. It
// exits 1 if anything failed. A test that failed is run once more by itself: many of ours watch
// real processes, and a machine that stalls for seconds breaks them. One that passes then is
// counted as passed and named, so that it can be mended.
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

// testEvent is a line of `go test -json` (see `go doc test2json`).
type testEvent struct {
	Action, Package, ImportPath, Test, Output string
	Elapsed                                   float64
}

// tally collects a whole run.
type tally struct {
	out                     io.Writer
	passed, failed, skipped int
	output                  map[string][]string // of tests and packages still running, by "package test"
	reasons                 map[string][]string // why -> tests skipped for it
	parents                 map[string]bool     // tests that have subtests: the leaves are counted
	failures                map[[2]string]int   // package and top-level test -> failed leaves
	second                  []string            // passed only at the second try
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
	if t.failed > 0 || scanner.Err() != nil {
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
		if e.Action != "skip" { // a skipped package has no tests
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

// mostAgain bounds the second tries: more failures than that are no accident.
const mostAgain = 5

// again runs each failed test once more, alone.
func (t *tally) again() {
	if len(t.failures) > mostAgain {
		return
	}
	for which, leaves := range t.failures {
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
		t.second = append(t.second, which[0]+" "+which[1])
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
	for _, name := range t.second {
		fmt.Fprintf(t.out, "\nPASSED ONLY AT THE SECOND TRY: %s\n", name)
	}
	fmt.Fprintf(t.out, "\ntests: %d passed, %d failed, %d skipped\n", t.passed, t.failed, t.skipped)
}

func first(list []string, n int) []string {
	if len(list) > n {
		return append(list[:n:n], "...")
	}
	return list
}
