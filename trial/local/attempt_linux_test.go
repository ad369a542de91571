package local

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"memroom/event"
	"memroom/meter"
	"memroom/supervise"
	"memroom/trial"
)

// groupOf is a cgroup made of plain files, with this in them.
func groupOf(t *testing.T, version int, files map[string]string) *meter.Cgroup {
	t.Helper()
	g := &meter.Cgroup{Version: version, Dir: t.TempDir()}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(g.Dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return g
}

func read(t *testing.T, g *meter.Cgroup, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(g.Dir, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// attemptIn is an attempt in a cgroup, in a backend that knows it as "one".
func attemptIn(g *meter.Cgroup) (*Backend, *running) {
	r := &running{group: g, front: &supervise.Front{}}
	r.Run = "one"
	return &Backend{jobs: map[string]*running{"one": r},
		events: make(chan trial.Happening, 16)}, r
}

// v1 are the files of a cgroup of version 1 with this limit.
func v1(limit string) map[string]string {
	return map[string]string{"memory.limit_in_bytes": limit, "memory.memsw.limit_in_bytes": limit,
		"memory.oom_control": "", "cgroup.procs": ""}
}

func v2(limit string) map[string]string {
	return map[string]string{"memory.max": limit, "memory.high": "max", "cgroup.procs": ""}
}

// TestLimitIsTheReservationAndTheSlack, in each version's files. Only what stands still at its
// limit has a slack; version 2 slows down below the reservation, not below the limit.
func TestLimitIsTheReservationAndTheSlack(t *testing.T) {
	for _, c := range []struct {
		version int
		hold    bool
		want    map[string]string
	}{
		{1, true, map[string]string{"memory.limit_in_bytes": "3300",
			"memory.memsw.limit_in_bytes": "3300"}},
		{1, false, map[string]string{"memory.limit_in_bytes": "3200",
			"memory.memsw.limit_in_bytes": "3200"}},
		{2, true, map[string]string{"memory.max": "3300", "memory.high": "3100"}},
		{2, false, map[string]string{"memory.max": "3200", "memory.high": "max"}},
	} {
		files := v1("1000")
		if c.version == 2 {
			files = v2("1000")
		}
		g := groupOf(t, c.version, files)
		b, r := attemptIn(g)
		r.hold = c.hold
		b.slack.Store(100)
		if err := b.Resize("one", 3200); err != nil {
			t.Fatal(err)
		}
		for name, want := range c.want {
			if got := read(t, g, name); got != want {
				t.Errorf("version %d, holds %v: %s is %s, want %s", c.version, c.hold, name, got, want)
			}
		}
		if r.reserved != 3200 || r.limit != 3200+b.slackOf(r) {
			t.Errorf("reserved %d, limit %d", r.reserved, r.limit)
		}
	}
}

// TestLimitsThatCannotBeWritten: without the one for memory the resize failed; a kernel without
// swap accounting has no other, which is none of a study's concern.
func TestLimitsThatCannotBeWritten(t *testing.T) {
	files := v1("1000")
	delete(files, "memory.memsw.limit_in_bytes")
	g := groupOf(t, 1, files)
	b, r := attemptIn(g)
	if err := b.Resize("one", 5000); err != nil || read(t, g, "memory.limit_in_bytes") != "5000" {
		t.Errorf("without swap accounting: %v", err)
	}
	if err := os.Chmod(filepath.Join(g.Dir, "memory.limit_in_bytes"), 0o400); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 && b.Resize("one", 7000) == nil {
		t.Error("a limit that cannot be written was changed")
	}
	r.group = nil
	if err := b.Resize("one", 1); err == nil {
		t.Error("an attempt without a cgroup was resized")
	}
	if err := b.Resize("two", 1); err == nil {
		t.Error("an attempt that is over was resized")
	}
}

// TestCameToItsLimit: the kernel counts in batches of 256 KiB, so less than one below the limit is
// at it. A peak of before the limit was raised is not counted again.
func TestCameToItsLimit(t *testing.T) {
	const mib = event.MiB
	for name, c := range map[string]struct {
		version    int
		hold       bool
		most, seen event.Bytes
		full, now  bool
	}{
		"at it":             {1, true, 10 * mib, 0, true, true},
		"a batch below":     {1, true, 10*mib - 256*event.KiB, 0, true, true},
		"more than a batch": {1, true, 10*mib - 256*event.KiB - 1, 0, false, false},
		"seen before":       {1, true, 10 * mib, 10 * mib, false, true},
		"is killed there":   {1, false, 10 * mib, 0, false, false},
		"slowed down":       {2, true, 10 * mib, 0, false, false},
	} {
		g := groupOf(t, c.version, map[string]string{
			"memory.max_usage_in_bytes": fmt.Sprintln(int64(c.most))})
		r := &running{group: g, hold: c.hold, limit: 10 * mib, most: c.seen}
		if r.lookFull(r.limit, 0); r.wasFull != c.full || r.keptStill() != c.now {
			t.Errorf("%s: full %v, now %v", name, r.wasFull, r.keptStill())
		}
	}
}

// TestALimitRaisedBeforeTheEnd: the limit is raised between the call that failed and the end. An
// attempt that grew after that, or went on for long, did not end for want of memory.
func TestALimitRaisedBeforeTheEnd(t *testing.T) {
	const mib = event.MiB
	for name, c := range map[string]struct {
		after event.Bytes
		since time.Duration
		want  bool
	}{
		"as it stood":   {200 * mib, time.Second, true},
		"its last page": {203 * mib, time.Second, true},
		"it went on":    {240 * mib, time.Second, false},
		"long ago":      {200 * mib, time.Minute, false},
	} {
		g := groupOf(t, 1, map[string]string{
			"memory.max_usage_in_bytes": fmt.Sprintln(int64(200 * mib)), "memory.limit_in_bytes": "0",
			"memory.memsw.limit_in_bytes": "0"})
		r := &running{group: g, hold: true, limit: 200 * mib}
		if err := r.setLimit(300*mib, 0); err != nil {
			t.Fatal(err)
		}
		if err := write(g, "memory.max_usage_in_bytes", c.after); err != nil {
			t.Fatal(err)
		}
		r.stoodAt = r.stoodAt.Add(-c.since)
		if r.lookFull(r.limit, 0); r.keptStill() != c.want {
			t.Errorf("%s: kept still %v", name, r.keptStill())
		}
	}
}

// TestACgroupThatIsGoneAtTheEnd: the peak that the keeper read before the cgroup went is what shows
// that an attempt ended at its limit.
func TestACgroupThatIsGoneAtTheEnd(t *testing.T) {
	const mib = event.MiB
	for _, c := range []struct {
		peak event.Bytes
		want bool
	}{{200 * mib, true}, {150 * mib, false}, {0, false}} {
		r := &running{group: groupOf(t, 1, nil), hold: true, limit: 200 * mib}
		if r.lookFull(r.limit, c.peak); r.keptStill() != c.want {
			t.Errorf("peak %s: kept still %v", c.peak, r.keptStill())
		}
	}
}

// TestOpenTakesWhatIsFree checks that Open takes the free memory, with something left for us,
// unless the budget is set.
func TestOpenTakesWhatIsFree(t *testing.T) {
	b := &Backend{}
	if err := b.Open(); err != nil {
		t.Skip("too little memory here: ", err)
	}
	free, err := b.free()
	if err != nil || b.CPUs < 1 || b.Host < 64*event.MiB || b.Host >= free+free/20 {
		t.Errorf("%v processors, %s of %s, %v", b.CPUs, b.Host, free, err)
	}
	told := &Backend{CPUs: 0.5, Host: 7}
	if err := told.Open(); err != nil || told.CPUs != 0.5 || told.Host != 7 {
		t.Errorf("%v processors, %s, %v", told.CPUs, told.Host, err)
	}
	c, err := told.Capacity()
	if err != nil || c.Host != 7 || c.CPUs != 0.5 || c.HostFree <= 0 || c.Elastic {
		t.Errorf("%+v, %v", c, err)
	}
}

// TestSlackFollowsRoughly: small changes of the slack are not worth a write, others reach every
// attempt that stands still at its limit, and no other.
func TestSlackFollowsRoughly(t *testing.T) {
	const gib = event.GiB
	for name, c := range map[string]struct {
		hold           bool
		reserved, have event.Bytes
		slack          event.Bytes
		changed        bool
	}{
		"more":           {true, 4 * gib, 4 * gib, gib, true},
		"less":           {true, 4 * gib, 6 * gib, gib, true},
		"hardly more":    {true, 4 * gib, 4 * gib, 16 * event.MiB, false},
		"the same":       {true, 4 * gib, 5 * gib, gib, false},
		"is killed":      {false, 4 * gib, 4 * gib, gib, false},
		"no reservation": {true, 0, 0, gib, false},
	} {
		g := groupOf(t, 2, v2("1"))
		b, r := attemptIn(g)
		r.hold, r.reserved, r.limit = c.hold, c.reserved, c.have
		b.Slack(c.slack)
		if changed := read(t, g, "memory.max") != "1"; changed != c.changed || changed &&
			r.limit != c.reserved+c.slack {
			t.Errorf("%s: changed %v, limit %s", name, changed, r.limit)
		}
	}
}

// sleeping starts a process; gone is closed when it has ended.
func sleeping(t *testing.T) (pid int, gone chan struct{}) {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	gone = make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(gone)
	}()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-gone })
	return cmd.Process.Pid, gone
}

// standing reports whether a process was stopped by a signal.
func standing(pid int) bool {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, after, _ := strings.Cut(string(data), ") ")
	return strings.HasPrefix(after, "T")
}

// becomes waits until it is so.
func becomes(want bool, pid int) {
	for standing(pid) != want {
		time.Sleep(time.Millisecond)
	}
}

// TestPause: a process in the cgroup really stands still and goes on. One that is killed at its
// limit, or is being ended, is left alone; to release one is to let it go on.
func TestPause(t *testing.T) {
	pid, _ := sleeping(t)
	files := v1("1000")
	files["cgroup.procs"] = fmt.Sprintln(pid)
	g := groupOf(t, 1, files)
	b, r := attemptIn(g)
	b.Pause("one", true)
	if r.paused {
		t.Error("an attempt that the kernel kills at its limit was paused")
	}
	r.hold, r.stopped = true, true
	if b.Pause("one", true); r.paused {
		t.Error("an attempt that is being ended was paused")
	}
	r.stopped = false
	b.Pause("another", true) // nobody knows it
	b.Pause("one", true)
	becomes(true, pid)
	b.Pause("one", false)
	becomes(false, pid)
	b.Pause("one", true)
	becomes(true, pid)
	b.Release("one")
	becomes(false, pid)
	if r.hold || r.paused || read(t, g, "memory.oom_control") != "0" {
		t.Errorf("released: holds %v, paused %v, %q", r.hold, r.paused,
			read(t, g, "memory.oom_control"))
	}
	b.Release("another")
	two := groupOf(t, 2, map[string]string{"memory.high": "5", "cgroup.procs": ""})
	b, _ = attemptIn(two)
	if b.Release("one"); read(t, two, "memory.high") != "max" {
		t.Error("version 2 still slows it down")
	}
}

// TestElastic: whether attempts stand still here is known by the first that runs, and stays so
// when it has ended.
func TestElastic(t *testing.T) {
	begun := supervise.State{Attempt: 1}
	b := &Backend{jobs: map[string]*running{"new": {}}}
	if b.elastic() {
		t.Error("nothing runs, and it is known already")
	}
	b.jobs["one"] = &running{state: begun, group: &meter.Cgroup{}, hold: true}
	if !b.elastic() {
		t.Error("one stands still at its limit")
	}
	b.jobs = map[string]*running{"next": {}} // it has not started
	if !b.elastic() {
		t.Error("forgotten when it ended")
	}
	b.jobs["bare"] = &running{state: begun}
	if delete(b.jobs, "next"); b.elastic() {
		t.Error("one runs without a cgroup")
	}
}

// TestEmpty: memory is back once nobody is left in the cgroup; without one nobody knows.
func TestEmpty(t *testing.T) {
	b, r := attemptIn(groupOf(t, 2, v2("1")))
	if !b.empty(r) {
		t.Error("nobody is in it")
	}
	pid, _ := sleeping(t)
	r.group = groupOf(t, 2, map[string]string{"cgroup.procs": fmt.Sprintln(pid)})
	if b.empty(r) {
		t.Error("somebody is in it")
	}
	if r.group = groupOf(t, 2, nil); b.empty(r) {
		t.Error("a cgroup that cannot be read")
	}
	if r.group = nil; b.empty(r) {
		t.Error("no cgroup")
	}
}

// TestUsageOfACgroup: what it holds, its peak, how long it has not grown, what it printed.
func TestUsageOfACgroup(t *testing.T) {
	stat := func(n event.Bytes) string { return fmt.Sprintf("anon %d\n", int64(n)) }
	g := groupOf(t, 2, map[string]string{"memory.stat": stat(1000), "cgroup.procs": ""})
	b, r := attemptIn(g)
	r.Files.Output = filepath.Join(g.Dir, "output")
	if err := os.WriteFile(r.Files.Output, []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.begin(time.Now().Add(-time.Hour))
	u, ok := b.Usage("one")
	if !ok || u.Host != 1000 || u.Peak != 1000 || u.Printed != 5 || u.Holds || u.Held ||
		u.Age < time.Hour || u.Still > time.Minute {
		t.Errorf("%+v, %v", u, ok)
	}
	set := func(n event.Bytes) {
		if err := os.WriteFile(filepath.Join(g.Dir, "memory.stat"), []byte(stat(n)),
			0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		holds, peak event.Bytes
		grew        bool
	}{{1005, 1005, false}, {400, 1005, false}, {1015, 1015, false}, {1030, 1030, true}} {
		r.grown = time.Now().Add(-time.Hour)
		set(c.holds)
		u, _ = b.Usage("one")
		if u.Host != c.holds || u.Peak != c.peak || (u.Still < time.Minute) != c.grew {
			t.Errorf("%d: %+v", c.holds, u)
		}
	}
	r.hold, r.paused = true, true
	if u, _ = b.Usage("one"); !u.Holds || !u.Held {
		t.Errorf("it was told to stand still: %+v", u)
	}
	if _, ok := b.Usage("two"); ok {
		t.Error("usage of an attempt that is over")
	}
	r.front = nil
	if _, ok := b.Usage("one"); ok {
		t.Error("usage of an attempt that is not started")
	}
}

// TestUsageWithoutACgroup is the monitor's newest whole reading.
func TestUsageWithoutACgroup(t *testing.T) {
	b, r := attemptIn(nil)
	r.Samples = filepath.Join(t.TempDir(), "samples")
	if _, ok := b.Usage("one"); ok {
		t.Error("usage without any reading")
	}
	text := `{"at_ms":1}` + "\n" + strings.Repeat("x", 20<<10) + "\n" +
		`{"at_ms":7,"anon":50}` + "\n" + `{"at_ms":9,"an`
	if err := os.WriteFile(r.Samples, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r.last.at = time.Time{}
	if _, ok := b.Usage("one"); !ok || r.last.sample.AtMS != 7 {
		t.Errorf("%+v", r.last)
	}
}

// TestReadRest: what was printed and not handed on comes with the end, once; of an attempt that
// was stopped nothing more is wanted.
func TestReadRest(t *testing.T) {
	long := strings.Repeat("0123456789", 20_000)
	for name, c := range map[string]struct {
		shown   int
		stopped bool
		want    string
	}{
		"all": {0, false, long}, "the rest": {199_998, false, "89"}, "nothing": {200_000, false, ""},
		"stopped": {0, true, ""},
	} {
		b, r := attemptIn(nil)
		r.Files.Output = filepath.Join(t.TempDir(), "output")
		if err := os.WriteFile(r.Files.Output, []byte(long), 0o600); err != nil {
			t.Fatal(err)
		}
		r.stopped = c.stopped
		r.took(c.shown)
		b.readRest(r)
		got := ""
		for len(b.events) > 0 {
			h := <-b.events
			if h.Run != "one" || h.Step != -1 {
				t.Errorf("%+v", h)
			}
			got += string(h.Output)
		}
		if got != c.want {
			t.Errorf("%s: %d bytes, want %d", name, len(got), len(c.want))
		}
	}
}

// TestFinishEndsWhatIsLeft: a process that the command left behind is ended and counted, and the
// attempt is known no more.
func TestFinishEndsWhatIsLeft(t *testing.T) {
	for _, left := range []bool{false, true} {
		g := groupOf(t, 2, map[string]string{"cgroup.procs": "", "memory.high": "5"})
		if left {
			list := filepath.Join(g.Dir, "cgroup.procs")
			pid, gone := sleeping(t)
			if err := os.WriteFile(list, fmt.Appendln(nil, pid), 0o600); err != nil {
				t.Fatal(err)
			}
			go func() { // as the kernel does
				<-gone
				_ = os.WriteFile(list, nil, 0o600)
			}()
		}
		b, r := attemptIn(g)
		r.Summary = func() (event.Summary, error) {
			return event.Summary{Exit: &event.Exit{}}, nil
		}
		b.finish(r)
		h := <-b.events
		if h.End == nil || h.End.ExitCode != 0 ||
			strings.Contains(h.End.Evidence, "1 process") != left || b.job("one") != nil {
			t.Errorf("left behind %v: %+v", left, h.End)
		}
	}
}

// TestRejoinOfWhatNeverBegan: no record, no state, or a state before the first launch. One that
// ended while nobody listened ends now.
func TestRejoinOfWhatNeverBegan(t *testing.T) {
	dir := t.TempDir()
	job := Job{Run: "one", Files: supervise.Files{Dir: dir, State: filepath.Join(dir, "state"),
		Output: filepath.Join(dir, "output")}, Summary: func() (event.Summary, error) {
		return event.Summary{Exit: &event.Exit{Code: 3}}, nil
	}}
	b := &Backend{jobs: map[string]*running{}, events: make(chan trial.Happening, 4),
		Find: func(run string) (Job, error) {
			if run != "one" {
				return Job{}, os.ErrNotExist
			}
			return job, nil
		}}
	for _, state := range []string{"", "{}", `{"attempt":0}`} {
		if state != "" {
			if err := os.WriteFile(job.Files.State, []byte(state), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if begun, err := b.Rejoin("one", trial.Launch{}); begun || err != nil {
			t.Errorf("state %q: begun %v, %v", state, begun, err)
		}
	}
	if begun, err := b.Rejoin("two", trial.Launch{}); begun || err != nil {
		t.Errorf("no record: begun %v, %v", begun, err)
	}
	if err := os.WriteFile(job.Files.State, []byte(`{"attempt":1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if begun, err := b.Rejoin("one", trial.Launch{}); !begun || err != nil {
		t.Fatalf("begun %v, %v", begun, err)
	}
	if h := <-b.events; h.Run != "one" || h.End == nil || h.End.ExitCode != 3 {
		t.Errorf("%+v", h)
	}
}
