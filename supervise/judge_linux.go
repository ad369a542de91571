package supervise

import (
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"memroom/diagnose"
	"memroom/event"
	"memroom/meter"
	"memroom/probe"
)

// judge draws conclusions from readings and messages: while the run lives through the detector,
// when an attempt has ended by a verdict, and then, through the policy, what follows.
type judge struct {
	job    *job
	record *record
	meters *sampler
	detect Detector // nil: nothing is looked for
	policy Policy   // nil: an attempt is the last
}

// tailBytes is how much of the end of the output is read for the verdict.
const tailBytes = 256 << 10

// sample hands a reading to the detector.
func (j *judge) sample(s event.Sample) {
	if j.detect != nil {
		j.record.found(j.detect.Sample(s))
	}
}

// steps hands a process's steps to the detector, and returns what it asks of the probes.
func (j *judge) steps(pid int, rank *int, rows []event.Step) map[int][]probe.Command {
	if j.detect == nil {
		return nil
	}
	j.record.found(j.detect.Steps(pid, rank, rows))
	return j.detect.Asks()
}

// heard hands any other message of a probe to the detector.
func (j *judge) heard(pid int, rank *int, message probe.Message) {
	if j.detect != nil {
		j.record.found(j.detect.Heard(pid, rank, message))
	}
}

// now returns the forecasts and accounts that a live view shows with the readings.
func (j *judge) now() Now {
	now := j.record.said.Now
	if whole := j.meters.whole; whole.Processes > 0 {
		host := diagnose.Host(whole, j.job.hostLimit(whole))
		now.Host = &host
	}
	if j.detect != nil {
		now.Forecasts, now.Accounts = j.detect.Forecasts(), j.detect.Accounts()
	}
	return now
}

// accounts returns the holders of each card's memory, nil where detection is off.
func (j *judge) accounts() map[string]diagnose.Account {
	if j.detect == nil {
		return nil
	}
	return j.detect.Accounts()
}

// ended judges an attempt that is over. The peaks are lifted to what is known only now.
func (j *judge) ended(exit event.Exit) event.Verdict {
	if j.detect != nil {
		j.record.found(j.detect.Ended())
	}
	evidence := j.evidence(exit)
	verdict := Judge(evidence)
	j.record.found(diedOnTheWay(j.record.said.Deaths, verdict))
	if !slices.ContainsFunc(j.record.said.Findings, leaksHost) { // a leak says more than a line
		j.record.found(filled(j.record.said.Grown, verdict, j.job.hostLimit(j.meters.last)))
	}
	for _, peaks := range j.record.said.peaks() {
		raiseAtEnd(peaks, exit, verdict, j.job.state, j.job.ownPeak())
		if last := evidence.Last.Machine; last != nil {
			peaks.Shm, peaks.ShmTotal = max(peaks.Shm, last.ShmUsed), last.ShmTotal
		}
	}
	return verdict
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

// leaksHost reports whether a finding is about a leak in host memory.
func leaksHost(f event.Finding) bool {
	return f.Kind == "leak" && f.Memory == "host memory" && f.Severity != event.SeverityInfo
}

// filled is the finding about the lines at which host memory grew, where it ran out.
func filled(grown []diagnose.Grown, verdict event.Verdict, limit event.Bytes) []event.Finding {
	if !verdict.IsOOM || verdict.Where != event.WhereHost && verdict.Where != event.WhereCgroup {
		return nil
	}
	if f := diagnose.Filled(grown, limit); f != nil {
		return []event.Finding{*f}
	}
	return nil
}

// evidence collects what is known about the end.
func (j *judge) evidence(exit event.Exit) Evidence {
	said, state := &j.record.said, j.job.state
	e := Evidence{Host: j.job.run.Host, Exit: exit, State: state, Last: j.meters.last,
		Deaths: said.Deaths, Well: said.Well, Heard: j.job.people.heard(), Ended: said.Ended,
		SlurmJob: j.job.run.Env["SLURM_JOB_ID"],
		Tail: tailOf(j.job.files.Output, said.Printed[0]) + "\n" +
			tailOf(j.job.files.Errors, said.Printed[1])}
	e.After.Machine, _ = j.job.proc.OOMKills()
	if around, err := meter.FindCgroup(j.job.options.Proc, "self"); err == nil {
		_, e.After.Enclosing = around.OOMCounts()
		e.EnclosingName, e.EnclosingLimit = around.Dir, around.Limit()
	}
	if own := j.job.cgroup(); own != nil {
		e.OwnOOM, e.After.Own = own.OOMCounts()
		e.After.Above = killsAbove(own.Dir, own.Version)
	}
	e.Kernel = j.job.kernelKills()
	before := j.meters.last.Machine
	if j.meters.readShm(&e.Last); before != nil && e.Last.Machine != nil &&
		before.ShmUsed > e.Last.Machine.ShmUsed {
		e.Last.Machine = before // the memory in use has gone with its users
	}
	return e
}

// tailOf returns the end of a file, of what lies behind an offset, empty when it cannot be read.
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

// decide asks the policy what follows.
func (j *judge) decide(exit event.Exit, verdict event.Verdict) Decision {
	if j.policy == nil || exit.StartError != "" {
		return Decision{}
	}
	said := &j.record.said
	return j.policy.After(Attempt{Number: exit.Attempt, Launch: j.job.launch, Exit: exit,
		Verdict: verdict, Peaks: said.Attempt, ToldToEnd: j.job.state.toldToEnd(),
		Findings: said.Findings, OOMs: said.OOMs, Deaths: said.Deaths, Said: said.Said,
		LastStep: said.Steps, StepMS: median(said.StepTime),
		Libraries: sumOf(said.Libraries), Frameworks: said.Frameworks})
}

func sumOf(sizes map[int]event.Bytes) (sum event.Bytes) {
	for _, size := range sizes {
		sum += size
	}
	return sum
}

// attemptOf is an attempt as the record keeps it.
func attemptOf(exit event.Exit, verdict event.Verdict, changed []string) event.Attempt {
	return event.Attempt{Number: exit.Attempt,
		Started: exit.At.Add(-time.Duration(exit.Seconds * float64(time.Second))),
		Ended:   exit.At, Exit: &exit, Verdict: &verdict, Changed: changed}
}
