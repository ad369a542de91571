package supervise

import (
	"strconv"
	"strings"
	"time"

	"memroom/event"
	"memroom/meter"
)

// person is one process of a run.
type person struct {
	pid      int
	parent   int
	name     string
	rank     *int
	world    int
	resident event.Bytes // at the last look
	met      time.Time
	spoke    bool // its probe has said hello
	gone     bool
}

// people knows the processes of a run: which rank each is, from the environment its launcher gave
// it.
type people struct {
	proc   *meter.Proc
	keeper int
	all    map[int]*person
}

func newPeople(proc *meter.Proc, keeper int) *people {
	return &people{proc: proc, keeper: keeper, all: map[int]*person{}}
}

// update takes the processes that live now: a process that cannot be read any more has ended.
func (p *people) update(tree *meter.Tree) {
	pids := tree.Processes()
	alive := make(map[int]bool, len(pids))
	for _, pid := range pids {
		if tree.Resident(pid) == 0 {
			continue
		}
		alive[pid] = true
		who := p.all[pid]
		if who == nil {
			who = p.meet(pid)
			p.all[pid] = who
		}
		who.resident = tree.Resident(pid)
	}
	for pid, who := range p.all {
		who.gone = !alive[pid]
	}
}

func (p *people) meet(pid int) *person {
	who := &person{pid: pid, met: time.Now()}
	if status, err := p.proc.Status(pid); err == nil {
		who.name, who.parent = status.Name, status.Parent
	}
	env, err := p.proc.Environ(pid)
	if err != nil {
		return who
	}
	if rank, err := strconv.Atoi(env["RANK"]); err == nil {
		who.rank = &rank
	}
	who.world, _ = strconv.Atoi(env["WORLD_SIZE"])
	return who
}

// named remembers a rank that a process said itself.
func (p *people) named(pid int, rank *int, world *int) {
	who := p.all[pid]
	if who == nil {
		who = p.meet(pid)
		p.all[pid] = who
	}
	who.spoke = true
	if rank != nil {
		who.rank = rank
	}
	if world != nil {
		who.world = *world
	}
}

// silent returns a Python that has not reported in for a while. Workers that one which did has
// forked need not.
func (p *people) silent(now time.Time, patience time.Duration) *person {
	for _, who := range p.all {
		if who.gone || who.spoke || now.Sub(who.met) < patience ||
			!strings.HasPrefix(who.name, "python") {
			continue
		}
		if !p.startedByPython(who.pid) {
			return who
		}
	}
	return nil
}

// heard reports whether any probe has reported.
func (p *people) heard() bool {
	if p == nil {
		return false
	}
	for _, who := range p.all {
		if who.spoke {
			return true
		}
	}
	return false
}

// startedByPython reports whether a process is the child of one whose probe reports.
func (p *people) startedByPython(pid int) bool {
	who := p.all[pid]
	return who != nil && p.all[who.parent] != nil && p.all[who.parent].spoke
}

// rankOf returns the rank a process belongs to, nil if it has none or is the only one.
func (p *people) rankOf(pid int) *int {
	if p == nil || p.all[pid] == nil {
		return nil
	}
	who := p.all[pid]
	// batch systems number a single task too
	if who.rank != nil && *who.rank == 0 && who.world < 2 {
		return nil
	}
	return who.rank
}

// leads reports whether a process is the one its rank is about, and not a worker of it, which
// inherits the environment.
func (p *people) leads(who *person) bool {
	if who.rank == nil || who.world < 2 {
		return false
	}
	parent := p.all[who.parent]
	return parent == nil || parent.rank == nil || *parent.rank != *who.rank
}

// leaders returns the ranks' processes, living or gone.
func (p *people) leaders() (living, gone []*person) {
	for _, who := range p.all {
		if !p.leads(who) {
			continue
		}
		if who.gone {
			gone = append(gone, who)
		} else {
			living = append(living, who)
		}
	}
	return living, gone
}
