package cli

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"memroom/event"
	"memroom/store"
)

// TestSmallRules: known answers of what commands share.
func TestSmallRules(t *testing.T) {
	t.Run("ages", ages)
	t.Run("retention", retentions)
	t.Run("exit codes", exitCodes)
	t.Run("rows", rowsOfRuns)
	t.Run("walls", lowestWalls)
	t.Run("lines that are appended", appendedLines)
	t.Run("keys that end", keysThatEnd)
}

func ages(t *testing.T) {
	const day = 24 * time.Hour
	for text, want := range map[string]time.Duration{"30d": 30 * day, "2w": 14 * day,
		"0.5d": day / 2, "12h": 12 * time.Hour, "0d": 0, "90m": 90 * time.Minute} {
		if got, err := parseAge(text); err != nil || got != want {
			t.Errorf("%s: %s %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "d", "-1d", "-2h", "30", "30x", "5GiB"} {
		if got, err := parseAge(text); exitCode(err) != exitUsage || err == nil ||
			!strings.Contains(err.Error(), "30d, 2w or 12h") {
			t.Errorf("%q: %s %v", text, got, err)
		}
	}
}

func retentions(t *testing.T) {
	usual := store.DefaultRetention()
	with := func(age time.Duration, size event.Bytes) store.Retention {
		r := usual
		r.Age, r.Size = age, size
		return r
	}
	for text, want := range map[string]store.Retention{"": usual, "all": {},
		"30d": with(30*24*time.Hour, 0), "5GiB": with(0, 5*event.GiB),
		"1w, 2GiB": with(7*24*time.Hour, 2*event.GiB)} {
		if got, err := readRetention(text); err != nil || got != want {
			t.Errorf("%q: %+v %v, want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"some", "30d,", "0GiB", "all,30d"} {
		if got, err := readRetention(text); err == nil {
			t.Errorf("%q: %+v", text, got)
		}
	}
}

func exitCodes(t *testing.T) {
	for _, c := range []struct {
		err  error
		want int
		text string
	}{{nil, 0, ""}, {errors.New("x"), 2, "x"}, {usageError(errors.New("x")), 2, "x"},
		{exitWith(exitDoesNotFit, "needs %d", 5), 3, "needs 5"}, {exitQuietly(exitFindings), 1, ""},
		{fmt.Errorf("outer: %w", exitWith(exitDiverged, "x")), 5, "outer: x"}} {
		if got := exitCode(c.err); got != c.want || c.err != nil && c.err.Error() != c.text {
			t.Errorf("%v: %d, want %d", c.err, got, c.want)
		}
	}
}

func rowsOfRuns(t *testing.T) {
	now, zero := time.Unix(1000, 0), 0
	rows := []store.Row{
		{ID: "a", Name: strings.Repeat("n", 50), Status: store.Running, Started: now.Add(-90 * time.Second),
			Seconds: 5, Command: strings.Repeat("c", 70)},
		{ID: "b", Status: store.Ended, ExitCode: &zero, Seconds: 5, PeakHost: event.GiB,
			PeakGPU: event.MiB, Steps: 12},
	}
	print := func() [][]string {
		var out bytes.Buffer
		if err := printRows(&out, rows, now); err != nil {
			t.Fatal(err)
		}
		var cells [][]string
		for line := range strings.Lines(out.String()) {
			cells = append(cells, strings.Fields(line))
		}
		return cells
	}
	got := print()
	if len(got) != 3 || fmt.Sprint(got[2]) != "[b ok 5.0 s 1GiB 1MiB 12]" {
		t.Fatalf("%q", got)
	}
	running := strings.Join(got[1], " ")
	if !strings.Contains(running, " running 1 min 30 s - - - ") ||
		strings.Contains(running, strings.Repeat("n", 41)) ||
		strings.Contains(running, strings.Repeat("c", 61)) {
		t.Errorf("%s", running)
	}
	rows[1].Group, rows[1].NodeRank, rows[1].Host = "g", 2, "h"
	if got := print(); !strings.Contains(strings.Join(got[0], " "), "NAME GROUP ENDED") ||
		!strings.Contains(strings.Join(got[2], " "), "g, node 2 on h") ||
		!strings.Contains(strings.Join(got[1], " "), " - running") {
		t.Errorf("%q", got)
	}
}

func lowestWalls(t *testing.T) {
	for _, c := range []struct{ run, cgroup, machine, want event.Bytes }{
		{0, 0, 0, 0}, {5, 0, 0, 5}, {5, 3, 9, 3}, {5, 7, 9, 5}, {5, 7, 4, 4}, {0, 7, 9, 7}, {0, 0, 9, 9}} {
		s := event.Sample{Cgroup: &event.CgroupSample{Limit: c.cgroup}}
		if c.machine > 0 {
			s.Machine = &event.MachineSample{Total: c.machine}
		}
		if got := wallOf(event.Run{HostMem: c.run}, s); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

func appendedLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	follow := newTail(path)
	if got := follow.next(); got != nil {
		t.Errorf("no file: %q", got)
	}
	for _, c := range []struct{ text, want string }{{"one\ntw", "one\n"}, {"", ""}, {"o\n", "two\n"},
		{"three\nfour\n", "three\nfour\n"}, {"half", ""}, {"\n", "half\n"}} {
		file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = file.WriteString(c.text)
		file.Close()
		if got := string(follow.next()); got != c.want {
			t.Errorf("after %q: %q, want %q", c.text, got, c.want)
		}
	}
}

func keysThatEnd(t *testing.T) {
	for key, want := range map[byte]bool{'q': true, 'Q': true, 0x1b: true, 3: true, 4: true, 'x': false,
		' ': false} {
		k := &keys{pressed: make(chan byte, 1)}
		k.pressed <- key
		if got := k.quit(time.Hour); got != want {
			t.Errorf("%q ends it: %v", key, got)
		}
	}
	if (&keys{pressed: make(chan byte)}).quit(time.Nanosecond) {
		t.Error("no key ends it")
	}
}
