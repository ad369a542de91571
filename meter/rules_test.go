package meter

import (
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"memroom/event"
)

// TestLowestLimit: the lowest of all limits on the way up counts, memory.high too: the kernel
// throttles a job there until it stands still.
func TestLowestLimit(t *testing.T) {
	for name, c := range map[string]struct {
		version int
		files   map[string]string
		limit   event.Bytes
		atLimit event.Bytes // usage of the cgroup that sets it, where it is another one
	}{
		"high below max": {2, map[string]string{"a/memory.max": "100\n", "a/memory.high": "60\n"},
			60, 0},
		"max below high": {2, map[string]string{"a/memory.max": "50\n", "a/memory.high": "60\n"},
			50, 0},
		"the parent's": {2, map[string]string{"memory.max": "30\n", "memory.current": "25\n",
			"a/memory.max": "50\n"}, 30, 25},
		"none": {2, map[string]string{"a/memory.max": "max\n", "a/memory.high": "max\n"}, 0, 0},
		"v1":   {1, map[string]string{"a/memory.limit_in_bytes": "70\n"}, 70, 0},
		"v1, none": {1, map[string]string{"a/memory.limit_in_bytes": "9223372036854771712\n"}, 0,
			0},
	} {
		files := join(map[string]string{"cgroup.procs": "", "a/cgroup.procs": "",
			"a/memory.current": "10\n", "a/memory.usage_in_bytes": "10\n"}, c.files)
		root := tree(t, files)
		got, err := (&Cgroup{Dir: filepath.Join(root, "a"), Version: c.version}).Read()
		if err != nil || got.Limit != c.limit || got.AtLimit != c.atLimit {
			t.Errorf("%s: limit %d at %d (%v), want %d at %d", name, got.Limit, got.AtLimit, err,
				c.limit, c.atLimit)
		}
	}
}

// TestQuickReading: usage and kills, of either version.
func TestQuickReading(t *testing.T) {
	root := tree(t, map[string]string{"2/memory.current": "7\n",
		"2/memory.events":         "oom 9\noom_kill 2\n",
		"1/memory.usage_in_bytes": "8\n", "1/memory.oom_control": "under_oom 1\noom_kill 3\n"})
	for version, want := range map[int][2]int64{1: {8, 3}, 2: {7, 2}} {
		c := &Cgroup{Dir: filepath.Join(root, string(rune('0'+version))), Version: version}
		current, kills, err := c.Quick()
		if err != nil || int64(current) != want[0] || kills != want[1] {
			t.Errorf("version %d: %d, %d, %v", version, current, kills, err)
		}
	}
	if _, _, err := (&Cgroup{Dir: filepath.Join(root, "none"), Version: 2}).Quick(); err == nil {
		t.Error("a cgroup that is not there was read")
	}
}

// TestTreeParts: anonymous, shared and file pages of a process add up to its resident pages,
// whatever the slower file said a moment before. A process without pages has ended.
func TestTreeParts(t *testing.T) {
	// status has 4 KiB shared; statm has 3 pages resident, of them none shared by now
	root := tree(t, join(process(10, 1, 0, "11 12 13 "), process(11, 3, 0, ""),
		process(12, 0, 0, ""), process(13, 8, 6, "")))
	follow := &Tree{Proc: NewProc(root), Keeper: 10}
	follow.Refresh(time.Now())
	var s event.Sample
	follow.Read(&s, true)
	page := pageSize
	want := event.Sample{Processes: 2, Resident: 11 * page, Anonymous: 5 * page,
		Shared: 4 * event.KiB, File: 6*page - 4*event.KiB, Swapped: 24 * event.KiB}
	if diff := cmp.Diff(want, s); diff != "" {
		t.Error(diff)
	}
	if s.Anonymous+s.Shared+s.File != s.Resident {
		t.Errorf("the parts do not add up: %+v", s)
	}
	if follow.Resident(12) != 0 || follow.Resident(13) != 8*page {
		t.Errorf("resident %d, %d", follow.Resident(12), follow.Resident(13))
	}
}

// TestWalksAreRationed: the walk is repeated when enough time has passed for what it cost, and
// every five seconds at most if a cgroup lists nearly everything. The cgroup's list is read each
// time.
func TestWalksAreRationed(t *testing.T) {
	root := tree(t, join(process(10, 1, 0, "11 "), process(11, 1, 0, ""),
		map[string]string{"cg/cgroup.procs": "11\n21\n"}))
	follow := &Tree{Proc: NewProc(root), Keeper: 10,
		Cgroup: &Cgroup{Dir: filepath.Join(root, "cg"), Version: 2}}
	now := time.Unix(1000, 0)
	follow.Refresh(now)
	if diff := cmp.Diff([]int{11, 21}, follow.Processes()); diff != "" {
		t.Error(diff)
	}
	for _, c := range []struct {
		after  time.Duration
		walked bool
	}{{4 * time.Second, false}, {6 * time.Second, true}} {
		follow.walkCost = 0
		before := follow.walkedAt
		follow.Refresh(now.Add(c.after))
		if got := follow.walkedAt != before; got != c.walked {
			t.Errorf("after %v: walked %v", c.after, got)
		}
	}
	alone := &Tree{Proc: NewProc(root), Keeper: 10}
	alone.Refresh(now)
	alone.walkCost = 10 * time.Millisecond
	before := alone.walkedAt
	if alone.Refresh(now.Add(3 * time.Second)); alone.walkedAt != before {
		t.Error("a walk of 10 ms was repeated after 3 s")
	}
	if alone.Refresh(now.Add(4 * time.Second)); alone.walkedAt == before {
		t.Error("a walk of 10 ms was not repeated after 4 s")
	}
}

// TestWorkersAlone: one of the processes that were named is read for all of them.
func TestWorkersAlone(t *testing.T) {
	shell := exec.Command("sh", "-c", "sleep 60 & sleep 60 & wait")
	shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = syscall.Kill(-shell.Process.Pid, syscall.SIGKILL)
		_ = shell.Wait()
	}()
	follow := &Tree{Proc: NewProc("/proc"), Keeper: shell.Process.Pid, Whole: true}
	var s event.Sample
	for len(follow.Processes()) < 3 {
		follow.Refresh(time.Now())
		s = event.Sample{}
		follow.Read(&s, true)
	}
	follow.Forked = map[int]bool{}
	for _, pid := range follow.Processes() {
		follow.Forked[pid] = pid != shell.Process.Pid
	}
	got := follow.Workers()
	if got == nil || got.Count != 2 || got.Private <= 0 || got.Resident < got.Private {
		t.Errorf("workers %+v of %+v", got, s)
	}
	alone := &Tree{Proc: NewProc("/proc"), Keeper: follow.Processes()[1], Whole: true}
	alone.Refresh(time.Now())
	if got := alone.Workers(); got != nil {
		t.Errorf("a process alone has workers: %+v", got)
	}
}

// TestProportionalGivesUp: a reading that holds a process's memory lock for long is given up.
func TestProportionalGivesUp(t *testing.T) {
	root := tree(t, join(process(10, 1, 0, "11 "), process(11, 1, 0, "")))
	follow := &Tree{Proc: NewProc(root), Keeper: 10}
	follow.Refresh(time.Now())
	for _, limits := range [][2]time.Duration{{0, time.Minute}, {time.Minute, 0}} {
		if pss, ok := follow.Proportional(limits[0], limits[1]); ok || pss != (Shares{}) {
			t.Errorf("limits %v: %+v %v", limits, pss, ok)
		}
	}
}
