package supervise

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"memroom/event"
	"memroom/meter"
)

// lastWords is how long the monitor listens for what the probes said right before the end.
const lastWords = 150 * time.Millisecond

// tailBytes is how much of the end of the output is read for the verdict.
const tailBytes = 256 << 10

// attemptEnded judges the attempt, records it, and tells the keeper what follows. Everything it
// does may be repeated by another monitor if this one is killed in the middle.
func (m *Monitor) attemptEnded(exit event.Exit) error {
	m.state.Exit = &exit
	m.hearLastWords()
	m.flush()
	evidence := m.evidence(exit)
	verdict := Judge(evidence)
	m.found(diedOnTheWay(m.said.Deaths, verdict))
	if err := m.Record.SaveVerdict(verdict); err != nil {
		m.cannotRecord(err)
	}
	for _, peaks := range []*event.Peaks{&m.said.Peaks, &m.said.Attempt} {
		raiseAtEnd(peaks, exit, verdict, m.state, m.ownPeak())
		if last := evidence.Last.Machine; last != nil {
			peaks.Shm, peaks.ShmTotal = max(peaks.Shm, last.ShmUsed), last.ShmTotal
		}
	}
	attempt := event.Attempt{Number: exit.Attempt,
		Started: exit.At.Add(-time.Duration(exit.Seconds * float64(time.Second))),
		Ended:   exit.At, Exit: &exit, Verdict: &verdict}
	decision := m.decide(exit, verdict)
	attempt.Changed = decision.Changed
	if !m.recorded(exit.Attempt) {
		if err := m.Record.AppendAttempt(attempt); err != nil {
			m.cannotRecord(err)
		}
		m.happenedJSON("verdict", 0, verdict.Rank, "", verdict)
	}
	if decision.Again {
		return m.again(decision)
	}
	m.finish(exit, verdict)
	return writeMessage(m.conn, sayDone, nil)
}

// diedOnTheWay is the finding about a command that went on after a Python in it had died of memory,
// and succeeded.
func diedOnTheWay(deaths []Death, verdict event.Verdict) []event.Finding {
	lines := deathLines(deaths)
	if verdict.ExitCode != 0 || verdict.IsOOM || len(lines) == 0 {
		return nil
	}
	title := "A Python of the run died of memory; the command went on and exited with code 0"
	if len(lines) > 1 {
		title = fmt.Sprintf("%d Pythons of the run died of memory; the command went on and exited with "+
			"code 0", len(lines))
	}
	return []event.Finding{{Kind: "died_on_the_way", Severity: event.SeverityWarning, Title: title,
		Evidence: lines[:min(len(lines), 5)], Confidence: 1}}
}

// raiseAtEnd lifts the peaks to what is known only afterwards: memory can go from little to the
// limit between two readings. The kernel knows the most that one process ever had, and kills in a
// cgroup only when its limit is full of what cannot be dropped.
func raiseAtEnd(p *event.Peaks, exit event.Exit, verdict event.Verdict, state State,
	own event.Bytes) {
	if p.Resident > 0 {
		p.Resident = max(p.Resident, exit.MaxResident)
	}
	if killed := verdict.KilledBy == "cgroup" || verdict.KilledBy == "slurm" ||
		verdict.KilledBy == "kernel"; verdict.IsOOM && killed {
		p.Unreclaimable, p.Cgroup = max(p.Unreclaimable, own), max(p.Cgroup, own)
	}
	if verdict.IsOOM && verdict.KilledBy == "cgroup" && state.Cgroup != "" && state.HostLimit > 0 {
		p.HostLimit = state.HostLimit
		p.Unreclaimable, p.Cgroup = max(p.Unreclaimable, p.HostLimit), max(p.Cgroup, p.HostLimit)
		p.Resident = max(p.Resident, exit.MaxResident)
	}
}

// ownPeak is the most that the run's own cgroup ever held, as the kernel counted it; 0 without one.
func (m *Monitor) ownPeak() event.Bytes {
	if m.state.Cgroup == "" {
		return 0
	}
	reading, err := (&meter.Cgroup{Dir: m.state.Cgroup, Version: m.state.CgroupV}).Read()
	if err != nil {
		return 0
	}
	return reading.Peak
}

// hearLastWords takes what the probes of ended processes still have on their way.
func (m *Monitor) hearLastWords() {
	if m.Probe == nil {
		return
	}
	deadline := time.After(lastWords)
	for {
		patience := time.After(lastWords)
		if len(m.speaking) == 0 {
			patience = time.After(5 * time.Millisecond)
		}
		select {
		case <-patience:
			return
		case h, open := <-m.Probe.Messages():
			if !open {
				return
			}
			m.hearProbe(h)
		case <-deadline:
			return
		}
	}
}

func (m *Monitor) recorded(attempt int) bool {
	for a := range m.Record.Attempts() {
		if a.Number == attempt {
			return true
		}
	}
	return false
}

// evidence collects what is known about the end.
func (m *Monitor) evidence(exit event.Exit) Evidence {
	e := Evidence{Host: m.Run.Host, Exit: exit, State: m.state, Last: m.meters.last,
		Deaths: m.said.Deaths,
		Well:   m.said.Well, Heard: m.people.heard(), Ended: m.said.Ended,
		SlurmJob: m.Run.Env["SLURM_JOB_ID"],
		Tail: tailOf(m.Files.Output, m.said.Printed[0]) + "\n" +
			tailOf(m.Files.Errors, m.said.Printed[1])}
	e.After.Machine, _ = m.proc.OOMKills()
	if around, err := meter.FindCgroup(m.Options.Proc, "self"); err == nil {
		_, e.After.Enclosing = around.OOMCounts()
		e.EnclosingName, e.EnclosingLimit = around.Dir, around.Limit()
	}
	if m.state.Cgroup != "" {
		own := &meter.Cgroup{Dir: m.state.Cgroup, Version: m.state.CgroupV}
		e.OwnOOM, e.After.Own = own.OOMCounts()
		e.After.Above = killsAbove(own.Dir, own.Version)
	}
	e.Kernel = m.kernelKills()
	before := m.meters.last.Machine
	if m.meters.readShm(&e.Last); before != nil && e.Last.Machine != nil &&
		before.ShmUsed > e.Last.Machine.ShmUsed {
		e.Last.Machine = before // what was in use has gone with its users
	}
	return e
}

// kernelKills gives the processes of the run that the kernel's log names, where it may be read.
func (m *Monitor) kernelKills() []KernelKill {
	began := time.Duration(m.state.BeganBootMS+m.state.AttemptMS) * time.Millisecond
	kills, err := meter.KernelOOMKills(began - bootOffset())
	if err != nil {
		return nil // not allowed to most users; the counters say enough
	}
	var ours []KernelKill
	for _, k := range kills {
		who := (*person)(nil)
		if m.people != nil {
			who = m.people.all[k.PID]
		}
		inOurs := m.state.Cgroup != "" && strings.Contains(k.Line, m.Run.ID)
		if who != nil || inOurs || k.PID == m.state.Child {
			ours = append(ours, KernelKill{PID: k.PID, Rank: m.people.rankOf(k.PID), Line: k.Line})
		}
	}
	return ours
}

// bootOffset is how much the clock of the kernel's log, which stops while the machine sleeps, lags
// behind ours; a second is added because the two are not read at the same moment.
func bootOffset() time.Duration { return bootClock() - monotonicClock() + time.Second }

// tailOf gives the end of a file, of what lies behind an offset, empty when it cannot be read.
func tailOf(path string, from int64) string {
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil {
		from = max(from, info.Size()-tailBytes)
	}
	data, _ := io.ReadAll(io.NewSectionReader(file, from, tailBytes))
	return string(data)
}

// printed says how long the recorded output and errors are.
func (m *Monitor) printed() (sizes [2]int64) {
	for i, path := range []string{m.Files.Output, m.Files.Errors} {
		if info, err := os.Stat(path); err == nil {
			sizes[i] = info.Size()
		}
	}
	return sizes
}

// decide asks the policy.
func (m *Monitor) decide(exit event.Exit, verdict event.Verdict) Decision {
	if m.Policy == nil || exit.StartError != "" {
		return Decision{}
	}
	return m.Policy.After(Attempt{Number: exit.Attempt, Launch: m.launch, Exit: exit,
		Verdict: verdict, Peaks: m.said.Attempt,
		Findings: m.said.Findings, OOMs: m.said.OOMs, Deaths: m.said.Deaths, Said: m.said.Said,
		LastStep: m.said.Steps, StepMS: median(m.said.StepTime),
		Libraries: sumOf(m.said.Libraries)})
}

func sumOf(sizes map[int]event.Bytes) (sum event.Bytes) {
	for _, size := range sizes {
		sum += size
	}
	return sum
}

// again asks the keeper for another launch.
func (m *Monitor) again(d Decision) error {
	m.said.Deaths, m.said.OOMs, m.said.Ended, m.said.Said, m.said.StepTime, m.said.Well = nil, nil,
		nil, nil, nil, 0
	m.said.Attempt, m.said.Printed, m.said.Steps = event.Peaks{}, m.printed(), 0
	m.said.Libraries = nil
	m.happened(event.Happened{Kind: "action", Text: "launched again: " +
		strings.Join(d.Changed, "; ")})
	return writeJSON(m.conn, sayLaunch, Launch{Args: d.Args, Env: d.Env, Path: m.launch.Path,
		HostLimit: m.state.HostLimit, Note: d.Note})
}

// finish writes the final report.
func (m *Monitor) finish(exit event.Exit, verdict event.Verdict) {
	summary := event.Summary{Run: m.Run, Exit: &exit, Verdict: &verdict, Peaks: m.said.Peaks,
		Steps:  m.said.Steps,
		StepMS: median(m.said.StepTime), Findings: m.said.Findings, Notes: m.said.Notes,
		Samples:    m.said.Samples,
		CostCPU:    m.said.CPU + ownCPU() + cpuOf(strconv.Itoa(m.state.Keeper)),
		ProbeShare: m.said.Share}
	if exit.Attempt > 1 { // what the job needs now, not what the attempt before it ran into
		summary.Peaks = m.said.Attempt
	}
	for _, pid := range []int{os.Getpid(), m.state.Keeper} {
		if reading, err := m.proc.Statm(pid); err == nil {
			summary.CostResident += reading.Resident
		}
	}
	for a := range m.Record.Attempts() {
		summary.Attempts = append(summary.Attempts, a)
	}
	m.copyOut(m.Verdict, verdict)
	m.copyOut(m.Report, summary)
	summary.Notes = m.said.Notes // what could not be copied is said in the record
	if err := m.Record.SaveSummary(summary); err != nil {
		m.cannotRecord(err)
	}
}

// copyOut writes a copy where the user asked for one.
func (m *Monitor) copyOut(path string, v any) {
	if path == "" {
		return
	}
	if err := writeCopy(path, v); err != nil {
		fmt.Fprintln(os.Stderr, "write report:", err)
		m.note("report "+path, "the copy could not be written: "+err.Error())
	}
}

// writeCopy replaces a file as a whole. What is not a regular file, such as /dev/null or a pipe, is
// written to and never replaced.
func writeCopy(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	data = append(data, '\n')
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return os.WriteFile(path, data, 0o644)
	}
	temporary := path + ".new"
	if err := os.WriteFile(temporary, data, 0o644); err != nil {
		_ = os.Remove(temporary)
		return err
	}
	return os.Rename(temporary, path)
}
