package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// split is a package whose tests are jobs of their own.
type split struct {
	out     *printer
	path    string // import path
	dir     string // its folder, where its tests run
	binary  string
	flags   []string
	mu      sync.Mutex
	left    int
	failed  bool
	started time.Time
	times   *times
	real    bool
	end     time.Time
}

// splitJob builds the test binary of a package; the jobs that follow are its tests. The
// package is named as the go command names it in the folder.
func (p *plan) splitJob(out *printer, target, folder string) job {
	// Nothing of the package can begin before it is built.
	return job{weight: math.Inf(1), do: func() []job {
		s := &split{out: out, flags: p.tests, started: time.Now(),
			times: p.times, real: p.real, end: p.end}
		found := exec.Command("go", "list", "-f", "{{.ImportPath}} {{.Dir}}", target)
		found.Dir = folder
		text, err := found.Output()
		s.path, s.dir, _ = strings.Cut(strings.TrimSpace(string(text)), " ")
		s.binary = filepath.Join(p.dir, strings.ReplaceAll(s.path, "/", "-")+".test")
		var said []byte
		if err == nil {
			args := append([]string{"test", "-c", "-o", s.binary}, p.goFlags(false)...)
			build := exec.Command("go", append(args, target)...)
			build.Dir = folder
			build.Env = append(os.Environ(), cgo(false))
			began := time.Now()
			said, err = build.CombinedOutput()
			s.times.add("build "+s.path, time.Since(began), build.ProcessState)
		}
		var names []string
		if err == nil {
			names, said, err = s.names()
			names = slices.DeleteFunc(names, func(name string) bool {
				return !runs(s.real, s.path, name)
			})
		}
		if err != nil {
			s.ends(fmt.Sprintf("%s: %v\n%s", target, err, said))
			return nil
		}
		s.left = len(names)
		if s.left == 0 {
			s.ends("")
		}
		var jobs []job
		for _, name := range names {
			known := longest(s.path + " " + name)
			jobs = append(jobs, job{weight: known.clock, share: known.share(),
				do: func() []job { s.test(name); return nil }})
		}
		return jobs
	}}
}

// names are the tests, examples and fuzz targets of a package. Benchmarks do not run.
func (s *split) names() (names []string, said []byte, err error) {
	cmd := exec.Command(s.binary, "-test.list", ".")
	cmd.Dir = s.dir
	said, err = cmd.CombinedOutput()
	for _, name := range strings.Fields(string(said)) {
		for _, kind := range []string{"Test", "Example", "Fuzz"} {
			if strings.HasPrefix(name, kind) {
				names = append(names, name)
			}
		}
	}
	return names, said, err
}

// translator is the path of the tool that turns what a test prints into JSON.
var translator = sync.OnceValues(func() (string, error) {
	path, err := exec.Command("go", "tool", "-n", "test2json").Output()
	return strings.TrimSpace(string(path)), err
})

// pattern returns what runs one test: with -real only its subtests of real.txt.
func (s *split) pattern(name string) string {
	whole := "^" + name + "$"
	if !s.real {
		return whole
	}
	var patterns []string
	for _, t := range realTests() {
		if t.pkg == s.path && t.name == name && t.sub != "" {
			patterns = append(patterns, whole+"/^"+t.sub+"$")
		}
	}
	if len(patterns) == 0 {
		return whole
	}
	return strings.Join(patterns, "|")
}

// test runs one test. Its events go on; those of the package are kept back, because the package
// ends with its last test. A process that dies without failing a test fails the package.
func (s *split) test(name string) {
	if !s.end.IsZero() && time.Now().After(s.end) {
		s.out.skip(s.path, name, "not run: the time for this run is over (MEMROOM_TEST_END)")
		s.done("")
		return
	}
	tool, err := translator()
	if err != nil {
		s.done(fmt.Sprintf("go tool test2json: %v\n", err))
		return
	}
	args := []string{"-p", s.path, "-t", s.binary, "-test.v=test2json", "-test.paniconexit0",
		"-test.run", s.pattern(name)}
	for _, f := range s.flags {
		args = append(args, "-test."+f)
	}
	if !s.end.IsZero() { // the last flag counts
		args = append(args, "-test.timeout="+within(time.Until(s.end)).String())
	}
	if skip := choose(s.real, s.path).skip; skip != "" {
		args = append(args, "-test.skip", skip)
	}
	cmd := exec.Command(tool, args...)
	cmd.Dir = s.dir
	var own strings.Builder
	named := false
	began := time.Now()
	err = eachLine(cmd, func(line []byte) {
		var e testEvent
		if json.Unmarshal(line, &e) == nil && e.Test == "" {
			own.WriteString(e.Output)
			return
		}
		named = named || e.Action == "fail"
		s.out.line(line)
	})
	s.times.add(s.path+" "+name, time.Since(began), cmd.ProcessState)
	why := ""
	if err != nil && !named {
		why = fmt.Sprintf("%s: %v\n%s", name, err, own.String())
	}
	s.mu.Lock()
	s.failed = s.failed || err != nil
	s.mu.Unlock()
	s.done(why)
}

// within returns how long a test may take that starts so long before the end of the run. One that
// hangs shall not keep the others' results from being reported.
func within(left time.Duration) time.Duration {
	return min(longestTest, max(0, left)+afterEnd).Round(time.Second)
}

// done counts a finished test; the last one ends the package.
func (s *split) done(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = s.failed || why != ""
	if why != "" {
		s.out.event(testEvent{Action: "output", Package: s.path, Output: why})
	}
	if s.left--; s.left == 0 {
		s.ends("")
	}
}

// ends reports the package; why is what kept its tests from running.
func (s *split) ends(why string) {
	if why != "" {
		s.out.event(testEvent{Action: "output", Package: s.path, Output: why})
	}
	action := "pass"
	if s.failed || why != "" {
		action = "fail"
	}
	s.out.event(testEvent{Action: action, Package: s.path,
		Elapsed: time.Since(s.started).Seconds()})
}
