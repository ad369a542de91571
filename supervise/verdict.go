package supervise

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"memroom/event"
)

// Evidence is everything known about the end of an attempt.
type Evidence struct {
	Host  string
	Exit  event.Exit
	State State
	After Counters // kill counters when the attempt had ended

	EnclosingName  string      // path of the cgroup around the run
	EnclosingLimit event.Bytes // 0: none
	OwnOOM         int64       // times the run's own limit was hit
	Last           event.Sample
	Kernel         []KernelKill // processes of the run that the kernel killed, going by its log
	Deaths         []Death      // Pythons that ended by an exception
	Heard          bool         // probes reported
	Well           int          // Pythons that ended in order after one had died of memory
	Tail           string       // the end of the output
	Ended          *Ending      // memroom ended the run
	SlurmJob       string       // that it ran in
}

// KernelKill is a process of the run in the kernel's log of kills.
type KernelKill struct {
	PID  int
	Rank *int
	Line string
}

// Death is a Python of the run that ended by an exception.
type Death struct {
	PID    int
	Rank   *int
	Type   string
	Text   string
	Where  event.Where   // empty: not about memory
	Frames []event.Frame // innermost first
}

// Line is what it said, in one line.
func (d Death) Line() string { return strings.TrimSuffix(d.Type+": "+firstLine(d.Text), ": ") }

// Ending is the reason why memroom ended the run.
type Ending struct {
	Why   string      `json:"why"`
	Where event.Where `json:"where"`
	Rank  *int        `json:"rank,omitempty"`
	OOM   bool        `json:"oom"`
}

// Judge decides how an attempt ended. The order is that of certainty: what we did ourselves, what
// the kernel counted, what the program said, what the exit status allows. A signal alone proves
// nothing: anybody may send it.
func Judge(e Evidence) event.Verdict {
	v := event.Verdict{ExitCode: e.Exit.Code, Signal: e.Exit.Signal, Host: e.Host,
		Evidence: []string{}}
	if e.Exit.StartError != "" {
		v.Evidence = append(v.Evidence, e.Exit.StartError)
		return v
	}
	v.Evidence = append(v.Evidence, exitLine(e.Exit))
	judges := []func(Evidence, *event.Verdict) bool{byOurselves, bySuccess, byCounters, byProbe,
		byText, byBusError, byKill, bySignal}
	for _, judge := range judges {
		if judge(e, &v) {
			break
		}
	}
	if v.Rank == nil && e.Exit.Code != 0 {
		v.Rank = rankInText(e.Tail)
	}
	return v
}

func exitLine(exit event.Exit) string {
	if exit.Signal != "" {
		return fmt.Sprintf("the command was ended by %s (exit code %d)", exit.Signal, exit.Code)
	}
	return fmt.Sprintf("the command exited with code %d", exit.Code)
}

func byOurselves(e Evidence, v *event.Verdict) bool {
	if e.Ended == nil {
		return false
	}
	v.KilledBy, v.IsOOM, v.Where, v.Rank = "memroom", e.Ended.OOM, e.Ended.Where, e.Ended.Rank
	v.Evidence = append(v.Evidence, e.Ended.Why)
	if e.Ended.Rank != nil { // the rank ran out first: how is worth knowing
		v.Evidence = append(v.Evidence, deathLines(e.Deaths)...)
	}
	return true
}

// bySuccess: a job that succeeded did not die of memory, whatever was counted or printed on the
// way. But a script around the training may lose its exit code (`python train.py | tee log`, `... &
// wait`): where nothing ended well after the death, that was the end.
func bySuccess(e Evidence, v *event.Verdict) bool {
	if e.Exit.Code != 0 {
		return false
	}
	kills := e.After.Own - e.State.Base.Own
	lost := slices.ContainsFunc(e.Deaths, func(d Death) bool { return d.Where != "" })
	switch {
	case kills <= 0 && !lost:
	case e.Heard && e.Well == 0:
		v.Evidence = append(v.Evidence,
			"that code is not the training's: a process of it died of memory, and none ended in order after "+
				"that")
		return byCounters(e, v) || byProbe(e, v)
	case kills > 0:
		v.Evidence = append(v.Evidence,
			fmt.Sprintf("%d of its processes were killed for memory on the way; the command went on", kills))
	}
	return true
}

// byCounters reads the kernel's own count of kills. In a cgroup of the run's own it cannot be about
// anybody else.
func byCounters(e Evidence, v *event.Verdict) bool {
	own, around, machine := e.After.Own-e.State.Base.Own, e.After.Enclosing-e.State.Base.Enclosing,
		e.After.Machine-e.State.Base.Machine
	scope := e.After.Above - e.State.Base.Above
	switch {
	case own <= 0 && e.State.Limit == LimitScope && scope > 0 &&
		(diedByKill(e) || stoppedBySystemd(e)):
		v.Evidence = append(v.Evidence,
			kills(scope, "the cgroup around the run's scope"))
		e.ownKill(v)
	case own > 0:
		v.Evidence = append(v.Evidence, kills(own, "the run's own cgroup"))
		e.ownKill(v)
	case e.State.Cgroup != "" && len(e.Kernel) == 0:
		return false // its counter is exact, and did not rise
	case !diedByKill(e):
		return false
	case around > 0 && (e.EnclosingLimit > 0 || !e.isElsewhere()):
		v.Evidence = append(v.Evidence,
			kills(around, "the enclosing cgroup "+e.EnclosingName))
		v.KilledBy, v.Where = "cgroup", event.WhereCgroup
		if e.EnclosingLimit == 0 {
			v.KilledBy, v.Where = "kernel", event.WhereHost
		}
	case max(machine, around) > 0 && e.EnclosingName != "" && e.isElsewhere():
		// neither the cgroup around the run nor the machine was full
		v.Evidence = append(v.Evidence, fmt.Sprintf("/proc/vmstat counts %d more processes killed for "+
			"memory, but %s of the machine's %s were free: they were in somebody else's cgroup",
			max(machine, around), e.Last.Machine.Available, e.Last.Machine.Total))
		return false
	case machine > 0 || len(e.Kernel) > 0:
		v.Evidence = append(v.Evidence,
			fmt.Sprintf("/proc/vmstat counts %d more processes killed for memory", machine))
		v.KilledBy, v.Where = "kernel", event.WhereHost
	default:
		return false
	}
	v.IsOOM = true
	if strings.Contains(e.EnclosingName, "slurm") && e.State.HostLimit == 0 &&
		v.KilledBy == "cgroup" {
		v.KilledBy = "slurm"
		v.Evidence = append(v.Evidence, "the cgroup is one that Slurm made for the job")
	}
	for _, k := range e.Kernel {
		v.Evidence = append(v.Evidence, "kernel log: "+k.Line)
		if v.Rank == nil {
			v.Rank = k.Rank
		}
	}
	v.Evidence = append(v.Evidence, lastReading(e)...)
	return true
}

// kills words what the kernel's counter of a cgroup has counted.
func kills(n int64, where string) string {
	return fmt.Sprintf("the kernel killed %s of %s for memory", event.Count(n, "process"), where)
}

// isElsewhere reports whether kills that were counted cannot be of this run where no limit is
// around it: the kernel's log names none of it, and the machine had room. A process that was moved
// into another cgroup may be counted where it came from.
func (e Evidence) isElsewhere() bool { return len(e.Kernel) == 0 && hadRoom(e.Last.Machine) }

// hadRoom reports whether more than half of the machine's memory was free at the last reading,
// which is a fraction of a second old: no process takes that much meanwhile.
func hadRoom(m *event.MachineSample) bool { return m != nil && m.Available > m.Total/2 }

// stoppedBySystemd: when the kernel kills one process of a scope for memory, systemd ends the
// others by SIGTERM (OOMPolicy=stop).
func stoppedBySystemd(e Evidence) bool {
	return e.Exit.Signal == "SIGTERM" && e.State.UserSignal == ""
}

// ownKill distinguishes the run's own limit from one further out and from a machine without memory.
func (e Evidence) ownKill(v *event.Verdict) {
	switch {
	case e.State.HostLimit > 0 || e.OwnOOM > 0 && e.State.CgroupV == 2:
		v.KilledBy, v.Where = "cgroup", event.WhereCgroup
		if e.State.HostLimit > 0 {
			v.Evidence = append(v.Evidence,
				"the limit of --host-mem is "+e.State.HostLimit.AsSet())
		}
	case e.EnclosingLimit > 0:
		v.KilledBy, v.Where = "cgroup", event.WhereCgroup
		v.Evidence = append(v.Evidence, fmt.Sprintf("a cgroup around the run is limited to %s",
			e.EnclosingLimit))
	default:
		v.KilledBy, v.Where = "kernel", event.WhereHost
		v.Evidence = append(v.Evidence,
			"no cgroup limits the run: the whole machine was out of memory")
	}
}

// diedByKill reports whether the command, or a process it reports on, was killed: a counter of a
// whole machine may be about somebody else's process.
func diedByKill(e Evidence) bool {
	return e.Exit.Signal == "SIGKILL" || e.Exit.Code == 137 || len(e.Kernel) > 0 ||
		childKilled().MatchString(e.Tail)
}

func lastReading(e Evidence) []string {
	s := e.Last
	if s.Processes == 0 {
		return nil
	}
	line := fmt.Sprintf("last reading before the end: %s resident in %s", s.Resident,
		event.Count(s.Processes, "process"))
	if s.Cgroup != nil && s.Cgroup.Limit > 0 {
		line += ", cgroup at " + s.Cgroup.Current.Of(s.Cgroup.Limit)
	}
	return []string{line}
}

func byProbe(e Evidence, v *event.Verdict) bool {
	at := slices.IndexFunc(e.Deaths, func(d Death) bool { return d.Where != "" })
	if at < 0 {
		return false
	}
	d := e.Deaths[at]
	v.IsOOM, v.Where, v.KilledBy, v.Rank = true, d.Where, "itself", d.Rank
	v.Evidence = append(v.Evidence, deathLines(e.Deaths[at:at+1])...)
	if crash, ok := findText(e.Tail); ok && telling(crash) > 0 {
		v.KilledBy, v.Where = killerOf(crash), crash.Where
	}
	return true
}

func deathLines(deaths []Death) []string {
	var lines []string
	for _, d := range deaths {
		if d.Where == "" {
			continue
		}
		who := fmt.Sprintf("process %d", d.PID)
		if d.Rank != nil {
			who = fmt.Sprintf("rank %d (process %d)", *d.Rank, d.PID)
		}
		lines = append(lines, fmt.Sprintf("%s ended with %s: %s", who, d.Type,
			firstLine(d.Text)))
	}
	return lines
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	if len(line) > 300 {
		line = line[:300] + "..."
	}
	return line
}

func byText(e Evidence, v *event.Verdict) bool {
	crash, ok := findText(e.Tail)
	if !ok {
		return byCancel(e, v)
	}
	v.IsOOM, v.Where, v.KilledBy = true, crash.Where, killerOf(crash)
	v.Evidence = append(v.Evidence, "output: "+firstLine(crash.Text))
	if crash.Rank >= 0 {
		v.Rank = &crash.Rank
	}
	if crash.Where == event.WhereShm {
		v.Evidence = append(v.Evidence, shmReading(e)...)
	}
	return true
}

// byCancel finds Slurm's message about a job that it ended for a reason other than memory.
func byCancel(e Evidence, v *event.Verdict) bool {
	line := slurmCancelled().FindString(e.Tail)
	if line == "" || e.Exit.Signal == "" {
		return false
	}
	v.KilledBy = "slurm"
	v.Evidence = append(v.Evidence, "output: "+firstLine(line))
	return true
}

func shmReading(e Evidence) []string {
	if m := e.Last.Machine; m != nil && m.ShmTotal > 0 {
		return []string{fmt.Sprintf("/dev/shm: %s used at the last reading", m.ShmUsed.Of(m.ShmTotal))}
	}
	return nil
}

// byBusError: a page of shared memory that the full tmpfs could not provide ends its user by
// SIGBUS.
func byBusError(e Evidence, v *event.Verdict) bool {
	if e.Exit.Signal != "SIGBUS" && e.Exit.Code != 128+7 {
		return false
	}
	v.KilledBy = "kernel"
	m := e.Last.Machine
	if m == nil || m.ShmTotal == 0 || m.ShmTotal-m.ShmUsed > m.ShmTotal/10 {
		v.Evidence = append(v.Evidence,
			"a bus error, but /dev/shm was not seen full: a truncated memory-mapped file does the same")
		v.Evidence = append(v.Evidence, shmReading(e)...)
		return true
	}
	v.IsOOM, v.Where = true, event.WhereShm
	v.Evidence = append(v.Evidence, shmReading(e)...)
	return true
}

// byKill: killed, and nobody counted it.
func byKill(e Evidence, v *event.Verdict) bool {
	if e.Exit.Signal != "SIGKILL" && e.Exit.Code != 137 {
		return false
	}
	v.KilledBy = "somebody"
	counted := []string{}
	if e.State.Cgroup != "" {
		counted = append(counted, "the run's cgroup")
	}
	if e.EnclosingName != "" {
		counted = append(counted, "the enclosing cgroup")
	}
	counted = append(counted, "/proc/vmstat")
	v.Evidence = append(v.Evidence, "no kill for memory was counted in "+strings.Join(counted,
		", ")+": somebody sent SIGKILL")
	v.Evidence = append(v.Evidence, userSignal(e)...)
	v.Evidence = append(v.Evidence, lastReading(e)...)
	return true
}

func bySignal(e Evidence, v *event.Verdict) bool {
	if e.Exit.Signal == "" {
		return false
	}
	lines := userSignal(e)
	v.KilledBy = "somebody"
	if len(lines) == 0 && slices.Contains([]string{"SIGSEGV", "SIGABRT", "SIGFPE", "SIGILL",
		"SIGTRAP", "SIGSYS"}, e.Exit.Signal) {
		v.KilledBy = "itself"
	}
	v.Evidence = append(v.Evidence, lines...)
	return true
}

func userSignal(e Evidence) []string {
	var lines []string
	if e.State.UserSignal != "" {
		lines = append(lines, e.State.UserSignal+" had been sent through memroom")
	}
	if e.SlurmJob != "" && (e.Exit.Signal == "SIGTERM" || e.Exit.Signal == "SIGKILL") {
		lines = append(lines, fmt.Sprintf("it ran in Slurm's job %s: `sacct -j %s -o State` shows whether "+
			"that was cancelled or out of time", e.SlurmJob, e.SlurmJob))
	}
	return lines
}

func rankInText(tail string) *int {
	match := torchrunRank().FindStringSubmatch(tail)
	if match == nil {
		return nil
	}
	rank, err := strconv.Atoi(match[1])
	if err != nil {
		return nil
	}
	return &rank
}
