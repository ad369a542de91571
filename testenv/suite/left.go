package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// places are folders where tests must leave nothing. Their own folders are removed before the last
// look.
func places() []string {
	list := []string{"/", os.TempDir(), "/dev/shm"}
	if home, err := os.UserHomeDir(); err == nil {
		list = append(list, home)
	}
	return list
}

// entries returns the paths directly below the places, and the checkout's files that git does not
// know.
func entries() map[string]bool {
	found := map[string]bool{}
	for _, place := range places() {
		list, _ := os.ReadDir(place) // a place may not exist here
		for _, e := range list {
			found[filepath.Join(place, e.Name())] = true
		}
	}
	out, _ := exec.Command("git", "status", "--porcelain").Output()
	for line := range strings.Lines(string(out)) {
		found["checkout: "+strings.TrimSpace(line)] = true
	}
	return found
}

// left returns the new entries. ours are those that nobody else makes: changes of the checkout and
// entries of the root. The others are named only, because other work on the machine, another run of
// these tests included, has files there too.
func left(before, after map[string]bool) (ours, others []string) {
	for path := range after {
		if before[path] {
			continue
		}
		if strings.HasPrefix(path, "checkout: ") || filepath.Dir(path) == "/" {
			ours = append(ours, path)
		} else {
			others = append(others, path)
		}
	}
	slices.Sort(ours)
	slices.Sort(others)
	return ours, others
}

// reportLeft prints the check "left-behind".
func reportLeft(out *printer, before map[string]bool) {
	ours, others := left(before, entries())
	e := testEvent{Action: "pass", Package: "checks", Test: "left-behind"}
	out.event(testEvent{Action: "run", Package: e.Package, Test: e.Test})
	for _, path := range ours {
		e.Action = "fail"
		out.event(testEvent{Action: "output", Package: e.Package, Test: e.Test,
			Output: "tests left " + path + "\n"})
	}
	out.event(e)
	for _, path := range others {
		out.line([]byte("new since the tests began: " + path))
	}
}
