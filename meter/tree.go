package meter

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"memroom/event"
)

// Tree follows the processes of a run. They are the descendants of Keeper, which adopts whatever is
// orphaned below it, and the members of Cgroup where the run has one of its own: a daemon cannot
// leave the cgroup, and a process that some other manager moved to another cgroup is still a
// descendant.
type Tree struct {
	Proc   *Proc
	Keeper int
	Whole  bool    // the keeper is one of the processes: it was not we who started it
	Except []int   // children of the keeper that are not the run: our own processes
	Cgroup *Cgroup // nil without one
	// Forked are the workers that the program has forked, as its probe names them.
	Forked map[int]bool

	pids     []int
	walked   map[int]bool        // found by the last walk
	split    map[int]Status      // the last detailed reading of each process
	resident map[int]event.Bytes // the last reading of each process
	walkedAt time.Time
	walkCost time.Duration
}

// Processes returns the processes found at the last refresh, in ascending order.
func (t *Tree) Processes() []int { return t.pids }

// Resident is what a process held at the last reading.
func (t *Tree) Resident(pid int) event.Bytes { return t.resident[pid] }

// Refresh looks for the processes again. The cgroup's list is one file and read each time. The walk
// over descendants opens a file for each thread of the run, so the slower it is the less often it
// is made: it never takes more than a four-hundredth of the time. If the cgroup lists nearly
// everything, the walk is made every five seconds at most.
func (t *Tree) Refresh(now time.Time) {
	t.pids = t.pids[:0]
	pause := 400 * t.walkCost
	if t.Cgroup != nil {
		pause = max(pause, 5*time.Second)
		members, _ := t.Cgroup.Processes()
		t.pids = append(t.pids, members...)
	}
	if t.Keeper > 0 && (t.walked == nil || now.Sub(t.walkedAt) >= pause) {
		begin := time.Now()
		t.walked = map[int]bool{}
		t.walk(t.Keeper, t.walked)
		t.walkedAt, t.walkCost = now, time.Since(begin)
	}
	t.pids = slices.AppendSeq(t.pids, maps.Keys(t.walked))
	slices.Sort(t.pids)
	t.pids = slices.DeleteFunc(slices.Compact(t.pids), func(pid int) bool {
		return slices.Contains(t.Except, pid) || !t.Whole && pid == t.Keeper
	})
}

// walk adds pid and its descendants to found.
func (t *Tree) walk(pid int, found map[int]bool) {
	found[pid] = true
	for _, child := range t.Proc.Children(pid) {
		if !found[child] && !slices.Contains(t.Except, child) {
			t.walk(child, found)
		}
	}
}

// Children returns the processes whose parent is pid: from the kernel's own lists, or where it was
// built without them by looking at every process.
func (p *Proc) Children(pid int) []int {
	tasks := filepath.Join(p.Root, strconv.Itoa(pid), "task")
	var children []int
	for _, tid := range namesIn(tasks) {
		data, err := p.read(strconv.Itoa(pid), "task", tid, "children")
		if err != nil {
			if _, gone := os.Stat(filepath.Join(tasks, tid)); gone == nil {
				return p.childrenByScan(pid)
			}
			continue
		}
		for _, field := range bytes.Fields(data) {
			if child, err := strconv.Atoi(string(field)); err == nil {
				children = append(children, child)
			}
		}
	}
	return children
}

func (p *Proc) childrenByScan(parent int) []int {
	var children []int
	for _, name := range namesIn(p.Root) {
		pid, _ := strconv.Atoi(name) // 0 for other files: no process has that number
		if s, err := p.Status(pid); err == nil && s.Parent == parent {
			children = append(children, pid)
		}
	}
	return children
}

// namesIn lists a folder; one that is not there has nothing in it.
func namesIn(path string) []string {
	dir, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	return names
}

// Read sums the tree into s. The cheap reading (statm) is taken of every process each time; with
// detail the split into file, shared and swapped pages is renewed as well.
func (t *Tree) Read(s *event.Sample, detail bool) {
	if t.split == nil {
		t.split, t.resident = map[int]Status{}, map[int]event.Bytes{}
	}
	clear(t.resident)
	if detail {
		clear(t.split)
	}
	for _, pid := range t.pids {
		m, _ := t.Proc.Statm(pid)
		if m.Resident == 0 {
			continue // ended since the walk; it may not be reaped yet
		}
		t.resident[pid] = m.Resident
		status, known := t.split[pid]
		if detail || !known {
			status, _ = t.Proc.Status(pid)
			t.split[pid] = status
		}
		shared := min(status.Shared, m.Resident-m.Anonymous)
		s.Processes++
		s.Resident += m.Resident
		s.Anonymous += m.Anonymous
		s.Shared += shared
		s.File += m.Resident - m.Anonymous - shared
		s.Swapped += status.Swap
	}
}

// Proportional sums the proportional set size of the tree and stops, with ok false, as soon as
// it has taken longer than each for one process, whose memory lock a page-table walk holds, or than
// all for the tree.
func (t *Tree) Proportional(each, all time.Duration) (total Shares, ok bool) {
	begin := time.Now()
	for _, pid := range t.pids {
		before := time.Now()
		pss, err := t.Proc.Proportional(pid)
		if err == nil {
			total.All, total.Held = total.All+pss.All, total.Held+pss.Held
		}
		if time.Since(before) > each || time.Since(begin) > all {
			return Shares{}, false
		}
	}
	return total, total.All > 0
}

// Workers reads one of the program's forked workers and counts it for all of them: they do the same
// work. It returns nil where fewer than two live.
func (t *Tree) Workers() *event.WorkersSample {
	var total event.WorkersSample
	one := 0
	for _, pid := range t.pids {
		if !t.Forked[pid] || t.resident[pid] == 0 {
			continue
		}
		if total.Count++; one == 0 {
			one = pid
		}
	}
	if total.Count < 2 {
		return nil
	}
	shares, err := t.Proc.Proportional(one)
	if err != nil {
		return nil
	}
	total.PID = one
	total.Resident = event.Bytes(total.Count) * shares.Resident
	total.Private = event.Bytes(total.Count) * shares.Private
	return &total
}
