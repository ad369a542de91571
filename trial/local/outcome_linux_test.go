package local

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"memroom/event"
	"memroom/meter"
	"memroom/trial"
)

// ended returns an attempt with this record and output.
func ended(t *testing.T, s event.Summary, said string) *running {
	dir := t.TempDir()
	r := &running{}
	r.Events, r.Files.Output = filepath.Join(dir, "events"), filepath.Join(dir, "output")
	if err := os.WriteFile(r.Files.Output, []byte(said), 0o600); err != nil {
		t.Fatal(err)
	}
	r.Summary = func() (event.Summary, error) { return s, nil }
	return r
}

// TestHowAnAttemptEnded: what a study learns of a record.
func TestHowAnAttemptEnded(t *testing.T) {
	const gib = event.GiB
	exit := func(code int, resident event.Bytes) *event.Exit {
		return &event.Exit{Code: code, Seconds: 8, CPUSeconds: 12, MaxResident: resident}
	}
	kernel := &event.Verdict{IsOOM: true, KilledBy: "kernel", Where: event.WhereHost,
		Evidence: []string{"exit code 137", "the kernel killed it"}}
	itself := &event.Verdict{IsOOM: true, KilledBy: "itself", Where: event.WhereGPU}
	for name, c := range map[string]struct {
		summary event.Summary
		change  func(r *running)
		want    trial.Outcome
	}{
		"well": {event.Summary{Exit: exit(0, gib), Steps: 3}, nil,
			trial.Outcome{Seconds: 8, CPUs: 1.5, Launches: 1, PeakHost: gib, Framework: true}},
		"badly": {event.Summary{Exit: exit(1, gib)}, nil, trial.Outcome{ExitCode: 1, Seconds: 8,
			CPUs: 1.5, Launches: 1, PeakHost: gib, Evidence: "it said last: ValueError: no"}},
		"in no time": {event.Summary{Exit: &event.Exit{CPUSeconds: 1}}, nil,
			trial.Outcome{Launches: 1}},
		"third launch": {event.Summary{Exit: exit(0, gib), Attempts: make([]event.Attempt, 3)}, nil,
			trial.Outcome{Seconds: 8, CPUs: 1.5, Launches: 3, PeakHost: gib}},
		"its cgroup held less": {event.Summary{Exit: exit(0, 2*gib), Peaks: event.Peaks{Cgroup: gib}},
			nil, trial.Outcome{Seconds: 8, CPUs: 1.5, Launches: 1, PeakHost: gib}},
		"too small to be known": {event.Summary{Exit: exit(0, 0), Peaks: event.Peaks{Cgroup: gib}},
			nil, trial.Outcome{Seconds: 8, CPUs: 1.5, Launches: 1, PeakHost: smallest}},
		"readings saw more": {event.Summary{Exit: exit(0, gib),
			Peaks: event.Peaks{Unreclaimable: 3 * gib}}, nil,
			trial.Outcome{Seconds: 8, CPUs: 1.5, Launches: 1, PeakHost: 3 * gib,
				Recorded: 3 * gib}},
		"killed beside others": {event.Summary{Exit: exit(137, gib), Verdict: kernel}, nil,
			trial.Outcome{ExitCode: 137, Seconds: 8, CPUs: 1.5, Launches: 1, PeakHost: gib, OOM: true,
				Where: event.WhereHost, Neighbour: true, Evidence: "the kernel killed it"}},
		"killed in its own cgroup": {event.Summary{Exit: exit(137, gib), Verdict: kernel},
			func(r *running) { r.group = &meter.Cgroup{} },
			trial.Outcome{ExitCode: 137, Seconds: 8, CPUs: 1.5, Launches: 1, PeakHost: gib, OOM: true,
				Where: event.WhereHost, Evidence: "the kernel killed it"}},
		"ran out by itself": {event.Summary{Exit: exit(1, gib), Verdict: itself}, nil,
			trial.Outcome{ExitCode: 1, Seconds: 8, CPUs: 1.5, Launches: 1, PeakHost: gib, OOM: true,
				Where: event.WhereGPU, Itself: true, Evidence: "it said last: ValueError: no"}},
		"failed at its limit": {event.Summary{Exit: exit(1, gib)},
			func(r *running) { r.wasFull, r.reserved = true, 2*gib },
			trial.Outcome{ExitCode: 1, Seconds: 8, CPUs: 1.5, Launches: 1, PeakHost: gib,
				Evidence: "it said last: ValueError: no"}},
		"its files were at the limit": {event.Summary{Exit: exit(1, gib)},
			func(r *running) { r.wasFull, r.reserved = true, 2*gib+2 },
			trial.Outcome{ExitCode: 1, Seconds: 8, CPUs: 1.5, Launches: 1, PeakHost: gib,
				Evidence: "it said last: ValueError: no"}},
		"well at its limit": {event.Summary{Exit: exit(0, gib)},
			func(r *running) { r.wasFull, r.reserved = true, 2*gib },
			trial.Outcome{Seconds: 8, CPUs: 1.5, Launches: 1, PeakHost: gib}},
		"no word": {event.Summary{}, func(r *running) { r.peak = 5 },
			trial.Outcome{Lost: true, ExitCode: -1, Launches: 1, PeakHost: 5}},
		"the keeper's word": {event.Summary{}, func(r *running) { r.state.Exit = exit(0, gib) },
			trial.Outcome{Seconds: 8, CPUs: 1.5, Launches: 1, PeakHost: gib}},
	} {
		r := ended(t, c.summary, "step 1\nValueError: no\n")
		if c.change != nil {
			c.change(r)
		}
		if got := (&Backend{}).outcome(r); fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", c.want) {
			t.Errorf("%s:\n got %+v\nwant %+v", name, got, c.want)
		}
	}
	r := ended(t, event.Summary{}, "")
	for err, want := range map[error]string{errors.New("broken"): "broken", os.ErrNotExist: ""} {
		r.Summary = func() (event.Summary, error) { return event.Summary{}, err }
		if got := (&Backend{}).outcome(r); got.Evidence != want || !got.Lost {
			t.Errorf("%v: %+v", err, got)
		}
	}
}

// TestAnErrorAtTheLimitNeedsEvidenceOfMemory: that an attempt came to its limit is none, because
// page cache comes there too. A signal or the words of a failed system call are, but only there.
func TestAnErrorAtTheLimitNeedsEvidenceOfMemory(t *testing.T) {
	const gib = event.GiB
	for name, c := range map[string]struct {
		code         int
		signal, said string
		want         bool
	}{
		"an error of the program":     {1, "", "TypeError: unsupported operand", false},
		"an exit code of its own":     {7, "", "", false},
		"ended from outside":          {143, "SIGTERM", "epoch 3", false},
		"killed from outside":         {137, "SIGKILL", "epoch 3", false},
		"aborted":                     {134, "SIGABRT", "terminate called", false},
		"no room for a signal":        {139, "SIGSEGV", "", true},
		"the same below a shell":      {139, "", "Segmentation fault", true},
		"a bus error":                 {135, "SIGBUS", "", true},
		"a bad address":               {1, "", "OSError: [Errno 14] Bad address: 'x'\n", true},
		"an error turned into exit 1": {1, "", "could not read: Cannot allocate memory\nbye\n", true},
		"an address of another kind":  {1, "", "socket.gaierror: [Errno 140] bad addressee", false},
	} {
		for _, full := range []bool{true, false} {
			r := ended(t, event.Summary{Exit: &event.Exit{Code: c.code, Signal: c.signal, Seconds: 1,
				MaxResident: gib}}, c.said)
			r.wasFull, r.reserved = full, 2*gib
			if got := (&Backend{}).outcome(r).AtLimit; got != (c.want && full) {
				t.Errorf("%s, at its limit %v: taken for want of memory: %v", name, full, got)
			}
		}
	}
}

// TestAnErrorOfAnAttemptThatFillsItsLimit: a read that stays short at the limit names no memory. It
// is evidence where the attempt ended at its limit and its own memory fills that.
func TestAnErrorOfAnAttemptThatFillsItsLimit(t *testing.T) {
	const gib = event.GiB
	for limit, want := range map[event.Bytes]bool{gib: true, gib + gib/20: true, 2 * gib: false} {
		for _, full := range []bool{true, false} {
			r := ended(t, event.Summary{Exit: &event.Exit{Code: 1, Seconds: 1, MaxResident: gib}},
				"AssertionError\n")
			r.wasFull, r.endFull, r.reserved, r.stood = true, full, limit, limit
			if got := (&Backend{}).outcome(r).AtLimit; got != (want && full) {
				t.Errorf("limit %v, ended at it %v: taken for want of memory: %v", limit, full, got)
			}
		}
	}
}

// TestReportsAreHeardOnce: whole lines since the last time; what is no report, and half a line, are
// passed over.
func TestReportsAreHeardOnce(t *testing.T) {
	r := ended(t, event.Summary{}, "")
	r.Run = "one"
	b := &Backend{events: make(chan trial.Happening, 16)}
	b.hearReports(r) // no file yet
	write := func(text string) {
		file, err := os.OpenFile(r.Events, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := file.WriteString(text); err != nil {
			t.Fatal(err)
		}
		file.Close()
	}
	heard := func() (all []string) {
		b.hearReports(r)
		for len(b.events) > 0 {
			e := <-b.events
			loss, told := e.Values["loss"]
			if told && math.IsNaN(loss) {
				loss = -1
			}
			all = append(all, fmt.Sprint(e.Run, e.Step, " ", loss))
		}
		return all
	}
	report := func(data string) string { return `{"kind":"report","data":` + data + "}\n" }
	write(report(`{"step":3,"values":{"loss":0.5}}`) + `{"kind":"finding","data":{}}` + "\n" +
		report(`{"values":{"loss":null}}`) + report(`{"step":0,"values":{"loss":2}}`) +
		report(`{"step":"x"}`) + `{"kind":"report","data":{"step":4,`)
	if got := strings.Join(heard(), "; "); got != "one3 0.5; one-1 -1; one-1 2" {
		t.Errorf("heard %q", got)
	}
	write(`"values":{"loss":7}}}` + "\n")
	if got := strings.Join(heard(), "; "); got != "one4 7" {
		t.Errorf("then heard %q", got)
	}
	if got := heard(); len(got) > 0 {
		t.Errorf("heard again: %q", got)
	}
}

// TestWhatCannotBeDropped checks that page cache can be dropped, except for what is not on the disk
// yet.
func TestWhatCannotBeDropped(t *testing.T) {
	g := &meter.Cgroup{Version: 2, Dir: t.TempDir()}
	file := func(name, text string) {
		if err := os.WriteFile(filepath.Join(g.Dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := notReclaimed(g); err == nil {
		t.Error("read of a cgroup that is not there")
	}
	file("memory.current", "1000\n")
	if _, err := notReclaimed(g); err == nil {
		t.Error("read without its statistics")
	}
	for text, want := range map[string]event.Bytes{
		"anon 600\n": 1000,
		"active_file 100\ninactive_file 200\nslab_reclaimable 50\n":           650,
		"active_file 300\nfile_dirty 80\nfile_writeback 20\n":                 800,
		"active_file 50\nfile_dirty 80\nfile_writeback 20\n":                  1000,
		"active_file 300\ninactive_file 0\nfile_dirty 0\nfile_writeback 20\n": 720,
	} {
		file("memory.stat", text)
		if got, err := notReclaimed(g); err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
	}
	file("memory.stat", "anon 1000\n")
	high := event.Bytes(1000) + trial.Gap(1000)
	for limit, full := range map[event.Bytes]bool{1000: true, high + 1000: false} {
		file("memory.high", fmt.Sprint(int64(limit)))
		if got := held(g); got != full {
			t.Errorf("limit %d: held %v", limit, got)
		}
	}
}

// TestLastLines: the end of what a program printed, shortened; of bars that overwrite themselves,
// the last.
func TestLastLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "output")
	long := strings.Repeat("x", 5000)
	for text, want := range map[string]string{"": "", "\n\n": "", "a\nb\n": "it said last: b",
		"10%\r20%\r": "it said last: 20%", long: "it said last: " + long[:200] + "...",
		strings.Repeat("y", 200): "it said last: " + strings.Repeat("y", 200),
		long + "\nend":           "it said last: end"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := lastLine(path); got != want {
			t.Errorf("%.20q: %.40q, want %.40q", text, got, want)
		}
	}
	if got := lastLine(path + ".none"); got != "" {
		t.Errorf("no output: %q", got)
	}
}

// TestWhatIsFree checks the free memory: what the machine has available, or what a cgroup around us
// leaves of its limit. File pages count as free, shared memory does not.
func TestWhatIsFree(t *testing.T) {
	proc, around := t.TempDir(), t.TempDir()
	file := func(dir, name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b := &Backend{proc: meter.NewProc(proc)}
	if _, err := b.free(); err == nil || b.Limit() != 0 {
		t.Errorf("a machine that cannot be read: %v, limit %s", err, b.Limit())
	}
	file(proc, "meminfo", "MemTotal:  16384 kB\nMemFree:  1000 kB\nMemAvailable:  8192 kB\n")
	const mib = event.MiB
	if got, err := b.free(); err != nil || got != 8*mib || b.Limit() != 16*mib {
		t.Errorf("alone: %s, %v, limit %s", got, err, b.Limit())
	}
	b.around = &meter.Cgroup{Version: 2, Dir: around}
	bytes := func(n event.Bytes) string { return fmt.Sprintln(int64(n)) }
	file(around, "memory.current", bytes(5*mib))
	file(around, "memory.stat", "file "+bytes(3*mib)+"shmem "+bytes(1*mib))
	for limit, want := range map[string][2]event.Bytes{
		bytes(6 * mib):   {3 * mib, 6 * mib},
		bytes(100 * mib): {8 * mib, 16 * mib},
		"max\n":          {8 * mib, 16 * mib},
	} {
		file(around, "memory.max", limit)
		got, err := b.free()
		if err != nil || got != want[0] || b.Limit() != want[1] {
			t.Errorf("limit %s: %s free, %v, limit %s; want %s", strings.TrimSpace(limit), got, err,
				b.Limit(), want)
		}
	}
}

// TestWhatAnAttemptHolds: memory of its own, shared memory, and a part of the files it maps.
func TestWhatAnAttemptHolds(t *testing.T) {
	const mib = event.MiB
	for _, c := range []struct {
		version            int
		text               string
		own, shared, files event.Bytes
		want               event.Bytes
	}{
		{2, "anon %d\nshmem %d\nfile_mapped %d\n", 10 * mib, 3 * mib, 5 * mib, 15 * mib},
		{2, "anon %d\nshmem %d\nfile_mapped %d\n", 10 * mib, 3 * mib, 1 * mib, 13 * mib},
		{2, "anon %d\nshmem %d\nfile_mapped %d\n", 10 * mib, 0, 9000 * mib, 10*mib + mappedMost},
		{1, "total_rss %d\ntotal_shmem %d\ntotal_mapped_file %d\n", 10 * mib, 3 * mib, 5 * mib,
			15 * mib},
	} {
		g := &meter.Cgroup{Version: c.version, Dir: t.TempDir()}
		if _, err := unreclaimable(g); err == nil {
			t.Error("read of a cgroup that is not there")
		}
		text := fmt.Sprintf(c.text, int64(c.own), int64(c.shared), int64(c.files))
		path := filepath.Join(g.Dir, "memory.stat")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := unreclaimable(g); err != nil || got != c.want {
			t.Errorf("version %d, %q: %s, %v; want %s", c.version, text, got, err, c.want)
		}
	}
}

// TestStandingAtTheLimit checks that version 1 reports itself that a cgroup stands at its limit,
// and that a cgroup that cannot be read is not at its limit.
func TestStandingAtTheLimit(t *testing.T) {
	for version, name := range map[int]string{1: "memory.oom_control", 2: "memory.high"} {
		g := &meter.Cgroup{Version: version, Dir: t.TempDir()}
		if held(g) {
			t.Errorf("version %d: a cgroup without %s stands at its limit", version, name)
		}
	}
	g := &meter.Cgroup{Version: 1, Dir: t.TempDir()}
	for text, want := range map[string]bool{"oom_kill_disable 1\nunder_oom 1\n": true,
		"oom_kill_disable 1\nunder_oom 0\n": false} {
		path := filepath.Join(g.Dir, "memory.oom_control")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := held(g); got != want {
			t.Errorf("%q: held %v", text, got)
		}
	}
	if !hold(g, event.GiB) {
		t.Error("a cgroup that can be written to does not hold")
	}
	if data, _ := os.ReadFile(filepath.Join(g.Dir, "memory.oom_control")); string(data) != "1" {
		t.Errorf("it was told %q", data)
	}
}
