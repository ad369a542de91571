package meter

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"memroom/event"
)

// childOf is a process of so many pages with another parent than the number before its own.
func childOf(parent, pid, pages int) map[string]string {
	files := process(pid, pages, 0, "")
	files[fmt.Sprintf("%d/status", pid)] = fmt.Sprintf("Name:\tx\nPPid:\t%d\n", parent)
	files[fmt.Sprintf("%d/smaps_rollup", pid)] = "Rss: 100 kB\nPss: 40 kB\nPrivate_Dirty: 30 kB\n"
	return files
}

// TestWorkersOfATree: those that the probe has named and that live; other processes of the run,
// such as a compiler's, are none, wherever they stand in the tree.
func TestWorkersOfATree(t *testing.T) {
	two := func(first int) *event.WorkersSample {
		return &event.WorkersSample{PID: first, Count: 2, Resident: 200 * event.KiB,
			Private: 60 * event.KiB}
	}
	for name, c := range map[string]struct {
		forked []int
		want   *event.WorkersSample
	}{
		"nobody was named": {nil, nil},
		"two":              {[]int{20, 21}, two(20)},
		"one":              {[]int{20}, nil},
		"one has ended":    {[]int{20, 99}, nil},
		"one of a helper":  {[]int{21, 30}, two(21)},
	} {
		files := map[string]string{}
		follow := &Tree{Forked: map[int]bool{}}
		for pid, parent := range map[int]int{11: 10, 12: 11, 20: 11, 21: 11, 30: 12, 31: 12} {
			files = join(files, childOf(parent, pid, 10))
			follow.pids = append(follow.pids, pid)
		}
		for _, pid := range c.forked {
			follow.Forked[pid] = true
		}
		slices.Sort(follow.pids)
		follow.Proc = NewProc(tree(t, files))
		var s event.Sample
		follow.Read(&s, true)
		if diff := cmp.Diff(c.want, follow.Workers()); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// TestTreesThatCannotBeRead: unread figures are unknown, not zero.
func TestTreesThatCannotBeRead(t *testing.T) {
	files := join(childOf(10, 11, 5), childOf(11, 20, 5), childOf(11, 21, 5))
	for pid := range map[int]bool{11: true, 20: true, 21: true} {
		delete(files, fmt.Sprintf("%d/smaps_rollup", pid))
	}
	follow := &Tree{Proc: NewProc(tree(t, files)), pids: []int{11, 20, 21, 99}}
	var s event.Sample
	follow.Read(&s, true) // process 99 has ended
	if s.Processes != 3 || s.Resident != 15*pageSize || follow.Resident(99) != 0 {
		t.Errorf("%+v", s)
	}
	for _, pids := range [][]int{nil, {11, 20}, {99}} {
		follow.pids = pids
		if pss, ok := follow.Proportional(time.Minute, time.Minute); ok || pss != (Shares{}) {
			t.Errorf("proportional of %v: %+v %v", pids, pss, ok)
		}
	}
	alone := &Tree{Proc: NewProc(tree(t, childOf(10, 11, 5))), pids: []int{11}}
	if pss, ok := alone.Proportional(time.Minute, time.Minute); !ok || pss.All != 40*event.KiB {
		t.Errorf("of one process: %+v %v", pss, ok)
	}
	follow.pids, follow.Forked = []int{11, 20, 21}, map[int]bool{20: true, 21: true}
	if got := follow.Workers(); got != nil {
		t.Errorf("workers that cannot be read: %+v", got)
	}
}

// TestReadingBetweenDetails: the split of a process is kept until the next detailed reading; one
// that is new is read at once.
func TestReadingBetweenDetails(t *testing.T) {
	root := tree(t, join(process(11, 9, 3, ""), process(12, 9, 3, "")))
	follow := &Tree{Proc: NewProc(root), pids: []int{11}}
	read := func(detail bool) event.Bytes {
		var s event.Sample
		follow.Read(&s, detail)
		return s.Swapped
	}
	if got := read(true); got != 12*event.KiB {
		t.Fatalf("%d swapped", got)
	}
	status := filepath.Join(root, "11", "status")
	if err := os.WriteFile(status, []byte("VmSwap:\t 100 kB"), 0o644); err != nil { // no line end
		t.Fatal(err)
	}
	follow.pids = []int{11, 12}
	if got := read(false); got != 24*event.KiB {
		t.Errorf("without detail %d swapped", got)
	}
	if got := read(true); got != 112*event.KiB {
		t.Errorf("with detail %d swapped", got)
	}
}

// TestWhatWasNotReadIsNew: a number that another process has by now is read again at once.
func TestWhatWasNotReadIsNew(t *testing.T) {
	root := tree(t, process(11, 9, 3, ""))
	follow := &Tree{Proc: NewProc(root)}
	var s event.Sample
	for _, pids := range [][]int{{11}, nil} {
		follow.pids, s = pids, event.Sample{}
		follow.Read(&s, true)
	}
	status := filepath.Join(root, "11", "status")
	if err := os.WriteFile(status, []byte("\nName:\tnew\nVmSwap:\t 100 kB\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	follow.pids = []int{11}
	if follow.Read(&s, false); s.Swapped != 100*event.KiB {
		t.Errorf("%s swapped", s.Swapped)
	}
}

// TestParentsInACircle: numbers of processes are used again between two looks, so a list may name
// one that was seen above.
func TestParentsInACircle(t *testing.T) {
	root := tree(t, join(process(10, 1, 0, "11"), process(11, 1, 0, "12 11"),
		process(12, 1, 0, "10 11")))
	follow := &Tree{Proc: NewProc(root), Keeper: 10}
	follow.Refresh(time.Unix(1000, 0))
	if got := follow.Processes(); !slices.Equal(got, []int{11, 12}) {
		t.Errorf("%v", got)
	}
}

// TestErrorsOfSingleFigures: a missing file is reported as missing, with no figure next to the
// error.
func TestErrorsOfSingleFigures(t *testing.T) {
	p := NewProc(t.TempDir())
	statm, err := p.Statm(5)
	status, err1 := p.Status(5)
	shares, err2 := p.Proportional(5)
	kills, err3 := p.OOMKills()
	machine, err4 := p.Machine()
	some, full, err5 := p.Pressure()
	_, err6 := p.Environ(5)
	words, err7 := p.CommandLine(5)
	for i, err := range []error{err, err1, err2, err3, err4, err5, err6, err7} {
		if !errors.Is(err, os.ErrNotExist) {
			t.Errorf("reading %d: %v", i, err)
		}
	}
	if statm != (Statm{}) || status != (Status{}) || shares != (Shares{}) || kills != 0 ||
		machine != (event.MachineSample{}) || some != 0 || full != 0 || words != nil {
		t.Error("figures of nothing")
	}
	c := &Cgroup{Dir: tree(t, map[string]string{"words": "some words"}), Version: 2}
	for _, name := range []string{"words", "none"} {
		if n, err := c.number(name, ""); n != 0 || err == nil {
			t.Errorf("%s: %d %v", name, n, err)
		}
	}
	p = NewProc(tree(t, map[string]string{"vmstat": "nr_free_pages 1\n"}))
	if kills, err := p.OOMKills(); kills != 0 || err == nil {
		t.Errorf("%d kills, %v", kills, err)
	}
	p = NewProc(tree(t, map[string]string{"vmstat": "\noom_kill 12\n"}))
	if kills, err := p.OOMKills(); kills != 12 || err != nil {
		t.Errorf("%d kills, %v", kills, err)
	}
}

// TestLongFilesKeepTheirBuffer: the next long one needs no new memory.
func TestLongFilesKeepTheirBuffer(t *testing.T) {
	p := NewProc(tree(t, map[string]string{"vmstat": strings.Repeat("nr_x 1\n", 9000)}))
	if _, _ = p.OOMKills(); len(p.buf) < 63_000 {
		t.Errorf("a buffer of %d", len(p.buf))
	}
}

// TestRefreshFindsWhoBelongs: by descent, by cgroup or by both; our own processes never do.
func TestRefreshFindsWhoBelongs(t *testing.T) {
	root := tree(t, join(process(1, 1, 0, "10"), process(10, 1, 0, "11 12 "),
		process(11, 1, 0, ""), process(12, 1, 0, "13"), process(13, 1, 0, ""),
		map[string]string{"cg/cgroup.procs": "10\n12\n21\nx\n"}))
	group := &Cgroup{Dir: filepath.Join(root, "cg"), Version: 2}
	gone := &Cgroup{Dir: filepath.Join(root, "none"), Version: 2}
	for name, c := range map[string]struct {
		follow Tree
		want   []int
	}{
		"descent":             {Tree{Keeper: 10}, []int{11, 12, 13}},
		"the keeper too":      {Tree{Keeper: 10, Whole: true}, []int{10, 11, 12, 13}},
		"without ours":        {Tree{Keeper: 10, Except: []int{12}}, []int{11}},
		"cgroup only":         {Tree{Cgroup: group}, []int{10, 12, 21}},
		"both":                {Tree{Keeper: 10, Cgroup: group}, []int{11, 12, 13, 21}},
		"both, without ours":  {Tree{Keeper: 10, Cgroup: group, Except: []int{12}}, []int{11, 21}},
		"a cgroup that went":  {Tree{Keeper: 10, Cgroup: gone}, []int{11, 12, 13}},
		"nobody to look for":  {Tree{}, []int{}},
		"nobody, as a whole":  {Tree{Whole: true}, []int{}},
		"the first process":   {Tree{Keeper: 1}, []int{10, 11, 12, 13}},
		"a keeper that ended": {Tree{Keeper: 77}, []int{}},
	} {
		c.follow.Proc = NewProc(root)
		c.follow.Refresh(time.Unix(1000, 0))
		if got := c.follow.Processes(); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	follow := &Tree{Proc: NewProc(root), Keeper: 10, Cgroup: group}
	follow.Refresh(time.Unix(1000, 0))
	follow.walkCost = 0
	if follow.Refresh(time.Unix(1005, 0)); !follow.walkedAt.Equal(time.Unix(1005, 0)) {
		t.Error("five seconds are over, and it did not walk")
	}
}

// TestChildrenOfThreads: each thread has its own; one that ended meanwhile has none.
func TestChildrenOfThreads(t *testing.T) {
	root := tree(t, map[string]string{"5/task/5/children": "7 8 ", "5/task/6/children": "9 x"})
	if err := os.Symlink("gone", filepath.Join(root, "5", "task", "4")); err != nil {
		t.Fatal(err)
	}
	p := NewProc(root)
	got := p.Children(5)
	if slices.Sort(got); !slices.Equal(got, []int{7, 8, 9}) {
		t.Errorf("%v", got)
	}
	if got := p.Children(6); got != nil {
		t.Errorf("of nobody: %v", got)
	}
}

// TestFiguresOfProcesses: at the edges of what the kernel writes.
func TestFiguresOfProcesses(t *testing.T) {
	page := pageSize
	for text, want := range map[string]Statm{
		"9 5 2":   {Resident: 5 * page, Anonymous: 3 * page},
		"9 30 12": {Resident: 30 * page, Anonymous: 18 * page},
		"9 5 5 1": {Resident: 5 * page},
		"9 5 8 1": {Resident: 5 * page}, // read while pages were mapped
		"9 0 0":   {},
	} {
		p := NewProc(tree(t, map[string]string{"5/statm": text}))
		if got, err := p.Statm(5); err != nil || got != want {
			t.Errorf("%q: %+v %v, want %+v", text, got, err, want)
		}
	}
	for text, want := range map[string]event.Bytes{"0 kB": 0, "1 kB": event.KiB, "7": 7 * event.KiB,
		"-1 kB": 0, "x kB": 0, "": 0} {
		if got := kilobytes(text); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
	for state, zombie := range map[string]bool{"Z (zombie)": true, "X (dead)": true,
		"S (sleeping)": false, "R (running)": false, "D (disk sleep)": false} {
		text := "State:\t" + state + "\nThreads:\t3\nPPid:\t4\nName:\ta:b\nVmHWM:\t2 kB\n" +
			"RssFile:\t1 kB"
		got, err := NewProc(tree(t, map[string]string{"5/status": text})).Status(5)
		want := Status{Name: "a:b", Threads: 3, Parent: 4, Zombie: zombie, HighWater: 2 * event.KiB,
			File: event.KiB}
		if err != nil || got != want {
			t.Errorf("%s: %+v %v", state, got, err)
		}
	}
	p := NewProc(tree(t, map[string]string{"5/smaps_rollup": "Rss: 9 kB\nPss: 8 kB\n" +
		"Pss_Anon: 3 kB\nPss_File: 1 kB\nPss_Shmem: 4 kB\nPrivate_Clean: 2 kB\n" +
		"Private_Dirty: 5 kB\nShared_Clean: 6 kB\n"}))
	if got, err := p.Proportional(5); err != nil || got != (Shares{All: 8 * event.KiB,
		Held: 7 * event.KiB, Resident: 9 * event.KiB, Private: 7 * event.KiB}) {
		t.Errorf("%+v %v", got, err)
	}
	if got, err := p.Proportional(6); err == nil || got != (Shares{}) {
		t.Errorf("of nobody: %+v %v", got, err)
	}
}

// TestReadingAFolder: a path that exists and cannot be read is reported as unreadable.
func TestReadingAFolder(t *testing.T) {
	dir := t.TempDir()
	var wrong *os.PathError
	if data, err := readInto(make([]byte, 8), dir); !errors.As(err, &wrong) || wrong.Op != "read" ||
		wrong.Path != dir || data != nil {
		t.Errorf("%q %v", data, err)
	}
}

// TestWhichCgroup: the one with the memory controller, if any of its hierarchies is mounted.
func TestWhichCgroup(t *testing.T) {
	const v1 = "25 1 0:22 / /m rw - cgroup cgroup rw,memory\n"
	const v2 = "26 1 0:23 / /u rw - cgroup2 none rw\n"
	for _, c := range []struct {
		membership, mounts, dir string
		version                 int
	}{
		{"4:memory:/job\n0::/x\n", v1 + v2, "/m/job", 1},
		{"4:memory:/job\n0::/x\n", v2, "/u/x", 2}, // its own hierarchy is not mounted here
		{"4:memory:/job\n", v2, "", 0},
		{"0::/x\n", v1, "", 0},
		{"0:named:/x\n", v2, "", 0},
		{"3::/x\n", v2, "", 0},
		{"0::/a:b\n", v2, "/u/a:b", 2},
		{"half:line\n0::/x\n", v2, "/u/x", 2},
		{"0::/../other\n", "26 1 0:23 /job /u rw - cgroup2 none rw\n", "/u", 2},
	} {
		root := tree(t, map[string]string{"8/cgroup": c.membership, "self/mountinfo": c.mounts})
		got, err := FindCgroup(root, "8")
		if c.dir == "" {
			if err == nil {
				t.Errorf("%q: found %+v", c.membership, got)
			}
			continue
		}
		if err != nil || *got != (Cgroup{Dir: c.dir, Version: c.version}) {
			t.Errorf("%q: %+v %v, want %s", c.membership, got, err, c.dir)
		}
	}
	for _, only := range []string{"8/cgroup", "self/mountinfo"} {
		root := tree(t, map[string]string{only: "0::/\n"})
		if got, err := FindCgroup(root, "8"); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("with %s only: %+v %v", only, got, err)
		}
	}
}

// TestLimitsAround: the search ends where cgroups end, numbers near the largest mean none, and of
// equal limits the innermost counts.
func TestLimitsAround(t *testing.T) {
	for name, c := range map[string]struct {
		files          map[string]string
		limit, atLimit event.Bytes
	}{
		"equal around it": {map[string]string{"x/memory.max": "50", "x/a/memory.max": "50",
			"x/memory.current": "40"}, 50, 0},
		"above the top of the tree": {map[string]string{"x/memory.max": "70",
			"x/memory.current": "60", "memory.max": "5", "memory.current": "4"}, 70, 60},
		"the largest number that is one": {map[string]string{
			"x/a/memory.max": fmt.Sprint(1<<60 - 1)}, 1<<60 - 1, 0},
		"one more":      {map[string]string{"x/a/memory.max": fmt.Sprint(1 << 60)}, 0, 0},
		"no number":     {map[string]string{"x/a/memory.max": "many"}, 0, 0},
		"high above it": {map[string]string{"x/memory.high": "30", "x/memory.current": "20"}, 30, 20},
	} {
		own := map[string]string{"x/a/cgroup.procs": "", "x/a/memory.current": "10"}
		root := tree(t, join(own, c.files))
		got, err := (&Cgroup{Dir: filepath.Join(root, "x", "a"), Version: 2}).Read()
		if err != nil || got.Limit != c.limit || got.AtLimit != c.atLimit || got.Current != 10 {
			t.Errorf("%s: %+v %v, want %d at %d", name, got, err, c.limit, c.atLimit)
		}
	}
}

// TestLimitsOfARelativeFolder: the search ends at the top of what the path names.
func TestLimitsOfARelativeFolder(t *testing.T) {
	t.Chdir(tree(t, map[string]string{"cgroup.procs": "", "memory.max": "5", "job/cgroup.procs": "",
		"job/memory.max": "50"}))
	if got := (&Cgroup{Dir: "job", Version: 2}).Limit(); got != 50 {
		t.Errorf("a limit of %d", got)
	}
}

// TestFiguresThatAreNone: a file that holds no number counts as nothing, not as a little.
func TestFiguresThatAreNone(t *testing.T) {
	files := map[string]string{"memory.current": "7\n", "memory.usage_in_bytes": "7\n"}
	for _, name := range []string{"memory.peak", "memory.max", "memory.high", "memory.swap.current",
		"memory.events", "memory.stat", "memory.pressure", "memory.max_usage_in_bytes",
		"memory.limit_in_bytes", "memory.oom_control", "cgroup.procs"} {
		files[name] = "some words\n"
	}
	dir := tree(t, files)
	for version := 1; version <= 2; version++ {
		c := &Cgroup{Dir: dir, Version: version}
		if got, err := c.Read(); err != nil || got != (event.CgroupSample{Current: 7}) {
			t.Errorf("version %d: %+v %v", version, got, err)
		}
		if pids, err := c.Processes(); err != nil || len(pids) != 0 {
			t.Errorf("members %v %v", pids, err)
		}
	}
}

// TestCgroupThatWentAway: no members, no figures, and zeros next to the error.
func TestCgroupThatWentAway(t *testing.T) {
	for version := 1; version <= 2; version++ {
		c := &Cgroup{Dir: filepath.Join(t.TempDir(), "gone"), Version: version}
		if pids, err := c.Processes(); !errors.Is(err, os.ErrNotExist) || pids != nil {
			t.Errorf("members %v %v", pids, err)
		}
		current, kills, err := c.Quick()
		if oom, n := c.OOMCounts(); err == nil || current != 0 || kills != 0 || oom != 0 || n != 0 {
			t.Errorf("%d %d %v, %d %d", current, kills, err, oom, n)
		}
		if got, err := c.Read(); err == nil || got != (event.CgroupSample{}) || c.Limit() != 0 {
			t.Errorf("%+v %v %d", got, err, c.Limit())
		}
	}
	// a figure that version 1 does not have
	c := &Cgroup{Dir: t.TempDir(), Version: 1}
	if n, err := c.number("memory.high", ""); !errors.Is(err, os.ErrNotExist) || n != 0 {
		t.Errorf("%d %v", n, err)
	}
}
