// Command suite runs all tests, several jobs at a time, and prints `go test -json` for
// testenv/count. Most of our tests wait for real processes, so one job per processor would leave
// the processors idle. longest.txt holds the share of a processor that each job uses: the jobs that
// run at one time add up to all processors, the longest first, and more while a processor has time.
// The times there come from jobs that ran alone, so that waiting for others is not in them.
// Packages whose tests take minutes are split: their test binary is built once and every test is a
// job of its own, without the race detector. The files of such a package that are not marked
// `!race` run once more in the job of raced packages. The memroom binary that the tests drive is
// built once too and handed to them as MEMROOM_TEST_BINARY.
//
//	suite [-real] [-processors N] [-most N] [-race PKG]... [-split PKG]... [-beside COMMAND]...
//	      [-times FILE] [PKG]...
//
// Without a package it runs all of them, but the tests of real.txt; with -real those alone. What
// frameworks leave in the temporary folder, which is the run's own, is removed at the end. It ends
// with what the dearest jobs took and what share of the machine was idle, and names what tests left
// elsewhere; -times writes what every job took to a file. Where MEMROOM_TEST_END is a time in
// seconds since 1970, no test of a split package starts after it: those left are skipped,
// and counted. A run that somebody ends from outside reports nothing at all. The exit code is 0
// whatever the tests say: testenv/count judges.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	longestTest = 25 * time.Minute // only there to end a test that hangs
	afterEnd    = 8 * time.Minute  // for a test that has started before the end of the run
)

// plan is what the command line asks for.
type plan struct {
	all    []string  // packages whose tests run
	race   []string  // packages that run under the race detector
	split  []string  // packages whose tests run as jobs of their own, the slowest first
	beside []string  // shell commands that print `go test -json` themselves
	tests  []string  // flags of `go test` and of test binaries, without their prefix
	dir    string    // scratch
	times  *times    // where the time goes; nil: nobody asks
	real   bool      // the tests of real.txt, not the others
	end    time.Time // no test starts after it; zero: there is no end
}

func main() {
	var p plan
	processors := flag.Float64("processors", 1.5*float64(runtime.NumCPU()),
		"start jobs that are known to use this many together")
	most := flag.Int("most", 8*runtime.NumCPU(), "jobs that run at a time at most")
	list := func(name, usage string, to *[]string) {
		flag.Func(name, usage, func(s string) error { *to = append(*to, s); return nil })
	}
	list("race", "a package `pattern` to run under the race detector", &p.race)
	list("split", "a `package` whose tests run as jobs of their own", &p.split)
	list("beside", "a shell `command` that prints go test -json", &p.beside)
	flag.BoolVar(&p.real, "real", false, "run the tests of real.txt alone")
	costs := flag.String("times", "", "write what every job took to this `file`")
	flag.Parse()
	hearSignals()
	if p.all = flag.Args(); len(p.all) == 0 {
		p.all = []string{"./..."}
	}
	p.times = beginTimes()
	if at, err := strconv.ParseInt(os.Getenv("MEMROOM_TEST_END"), 10, 64); err == nil {
		p.end = time.Unix(at, 0)
	}
	err := p.run(*processors, *most)
	if err == nil && *costs != "" {
		err = p.times.write(*costs)
	}
	if err == nil {
		p.times.summary(os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "suite:", err)
		os.Exit(1)
	}
}

// hearSignals lets tests receive signals as in a terminal. A run in the background, or under nohup,
// starts with these ignored; every process below would inherit that, and what a test interrupts
// would go on for ever. Signals that this process catches are at their default in its children.
func hearSignals() {
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT} {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
}

func (p *plan) run(processors float64, most int) error {
	out, before := &printer{to: os.Stdout}, entries()
	dir, err := os.MkdirTemp("", "mr") // a socket's path is short
	if err != nil {
		return err
	}
	was := os.Getenv("TMPDIR")
	p.dir = dir
	defer func() {
		_ = os.RemoveAll(dir)
		_ = os.Setenv("TMPDIR", was)
		reportLeft(out, before)
	}()
	// Some tests run the binary as another user, who has temporary files too.
	temporary := filepath.Join(dir, "t")
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(temporary, 0o700),
		os.Chmod(temporary, os.ModeSticky|0o777), os.Setenv("TMPDIR", temporary)); err != nil {
		return err
	}
	binary := filepath.Join(dir, "memroom")
	said, err := exec.Command("go", "build", noDebugger, seldomCollect, "-o", binary,
		"./cmd/memroom").CombinedOutput()
	if err != nil {
		return fmt.Errorf("go build: %w\n%s", err, said)
	}
	if err := os.Setenv("MEMROOM_TEST_BINARY", binary); err != nil {
		return err
	}
	p.tests = []string{"timeout=" + longestTest.String()}
	if n := os.Getenv("MEMROOM_TEST_COUNT"); n != "" {
		p.tests = append(p.tests, "count="+n)
	}
	q, err := p.jobs(out)
	if err != nil {
		return err
	}
	q.work(processors, most, room)
	return nil
}

// jobs returns everything to do: first what takes longest.
func (p *plan) jobs(out *printer) (*queue, error) {
	raced, err := packages(p.race...)
	if err != nil {
		return nil, err
	}
	split, err := packages(p.split...)
	if err != nil {
		return nil, err
	}
	all, err := packages(p.all...)
	if err != nil {
		return nil, err
	}
	compiler := os.Getenv("CC")
	if compiler == "" {
		compiler = "cc"
	}
	if _, err := exec.LookPath(compiler); err != nil {
		out.skip("checks", "race", "needs a C compiler: the race detector does not build without one")
		raced = nil
	}
	q := newQueue()
	rest := map[bool][]string{}
	if p.real {
		all = slices.DeleteFunc(all, func(pkg string) bool { return !hasReal(pkg) })
		split = slices.DeleteFunc(split, func(pkg string) bool { return !hasReal(pkg) })
	}
	for _, pkg := range split {
		q.add(p.splitJob(out, pkg, "."))
	}
	for _, command := range p.beside {
		q.add(p.shellJob(out, "bash", "-c", command))
	}
	for _, pkg := range all {
		if race := slices.Contains(raced, pkg); race || !slices.Contains(split, pkg) {
			rest[race] = append(rest[race], pkg)
		}
	}
	for _, race := range []bool{false, true} {
		if len(rest[race]) > 0 {
			q.add(p.shellJob(out, append([]string{"env", cgo(race), fewerCollections, "go", "test",
				"-json", "-p", "2"}, slices.Concat(p.goFlags(race),
				choose(p.real, rest[race]...).flags("-"), rest[race])...)...))
		}
	}
	return q, nil
}

// cgo sets the variable of the environment that reports whether C is compiled: the race detector is
// written in it.
func cgo(race bool) string {
	if race {
		return "CGO_ENABLED=1"
	}
	return "CGO_ENABLED=0"
}

// noDebugger leaves out of a binary what only debuggers read, which halves the time to link it.
// Stack traces keep their names and lines.
const noDebugger = "-ldflags=-s -w"

// seldomCollect is for compilers and linkers: they end before garbage matters, and looking for it
// takes a quarter of their processor time. Packages that are split keep Go's defaults: their tests
// measure the memory of processes they start.
const seldomCollect = "-toolexec=env GOGC=off GOMEMLIMIT=1500MiB"

// fewerCollections is for the tests of all other packages. Most of what they compute is short-lived
// (timelines, logs, models), and none of them measures its own process: a fifth of their processor
// time goes into collecting otherwise.
const fewerCollections = "GOGC=400"

// goFlags are those of `go test` and `go test -c`.
func (p *plan) goFlags(race bool) []string {
	// testenv/checks vets everything once. -cover would compile every package once more.
	flags := []string{"-vet=off", noDebugger, seldomCollect}
	for _, f := range p.tests {
		flags = append(flags, "-"+f)
	}
	if race {
		flags = append(flags, "-race")
	}
	return flags
}

// packages expands patterns to import paths, in the order of the patterns.
func packages(patterns ...string) (list []string, err error) {
	for _, pattern := range patterns {
		out, err := exec.Command("go", "list", pattern).Output()
		if err != nil {
			return nil, fmt.Errorf("go list %s: %w", pattern, err)
		}
		list = append(list, strings.Fields(string(out))...)
	}
	return list, nil
}
