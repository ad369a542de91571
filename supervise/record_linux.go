package supervise

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"memroom/event"
)

// record writes down what a monitor reads, hears and learns. A disk that cannot be written to is no
// reason to stop watching: it is said once, and the record has a gap.
type record struct {
	job  *job
	to   Recorder
	live func() Now // what a live view shows besides the readings
	said learnt

	batch   []event.Sample // readings that wait to be written
	steps   stepThinner
	written time.Time // when readings were last written
	flushed time.Time // when what has been learnt was last written
	told    map[string]bool
}

func newRecord(of *job, to Recorder, live func() Now) record {
	r := record{job: of, to: to, live: live, told: map[string]bool{}}
	_ = to.Progress(&r.said)
	return r
}

// happened records an event, with its moment.
func (r *record) happened(h event.Happened) {
	h.AtMS, h.Attempt = r.job.now(), r.job.state.Attempt
	r.check(r.to.AppendEvent(h))
}

// happenedJSON records a message of the probe as it came.
func (r *record) happenedJSON(kind string, pid int, rank *int, text string, message any) {
	data, err := json.Marshal(message)
	if err == nil {
		r.happened(event.Happened{Kind: kind, PID: pid, Rank: rank, Text: text, Data: data})
	}
}

// note keeps something that could not be measured or done. The same thing is said once.
func (r *record) note(about, text string) {
	if r.told[about+text] {
		return
	}
	r.told[about+text] = true
	if slices.Contains(r.said.Notes, text) {
		return
	}
	r.said.Notes = append(r.said.Notes, text)
	r.happened(event.Happened{Kind: "note", Text: text})
}

// check notes once, at the end of the record and in the monitor's own log, that something could not
// be written.
func (r *record) check(err error) {
	if err != nil && !r.told["record"] {
		r.told["record"] = true
		r.said.Notes = append(r.said.Notes, "the record has gaps: "+err.Error())
		fmt.Fprintln(os.Stderr, "record:", err)
	}
}

// found keeps findings and shows them to whoever watches.
func (r *record) found(findings []event.Finding) {
	for _, f := range findings {
		f.FirstMS = r.job.now()
		for _, earlier := range r.said.Findings {
			if f.Restates(earlier) && earlier.FirstMS > 0 {
				f.FirstMS = min(f.FirstMS, earlier.FirstMS)
			}
		}
		r.said.Findings = append(slices.DeleteFunc(r.said.Findings, f.Restates), f)
		r.happened(event.Happened{Kind: "finding", Finding: &f, Text: f.Title})
		_ = writeJSON(r.job.conn, sayFinding, f)
	}
}

// keep puts a reading into the record, and writes what is due.
func (r *record) keep(s event.Sample, now time.Time) {
	r.said.Samples++
	r.batch = append(r.batch, s)
	switch {
	case now.Sub(r.flushed) >= time.Second:
		r.flush()
	case now.Sub(r.written) >= 400*time.Millisecond:
		r.writeReadings()
	}
}

// step puts one of a process's steps into the record.
func (r *record) step(pid int, rank *int, row event.Step) {
	r.said.Steps = max(r.said.Steps, row.Step)
	r.steps.add(event.RankedStep{AtMS: r.job.now(), Attempt: r.job.state.Attempt, PID: pid,
		Rank: rank, Step: row})
	r.said.stepTook(row.Duration)
	r.said.raiseAllocator(row)
}

// writeReadings writes the readings that wait: a killed monitor loses half a second of them, and
// the next one's start.
func (r *record) writeReadings() {
	r.written = time.Now()
	err := r.to.AppendSamples(r.batch)
	if err == nil {
		err = r.to.AppendSteps(r.steps.take())
	}
	r.batch = r.batch[:0]
	r.check(err)
}

// flush writes the readings and what has been learnt so far.
func (r *record) flush() {
	r.writeReadings()
	r.flushed = r.written
	r.said.Now = r.live()
	saved := r.said
	saved.CPU += ownCPU()
	r.check(r.to.SaveProgress(saved))
}

// attempt records an attempt that has ended, unless a monitor before this one did.
func (r *record) attempt(a event.Attempt) {
	for before := range r.to.Attempts() {
		if before.Number == a.Number {
			return
		}
	}
	r.check(r.to.AppendAttempt(a))
	r.happenedJSON("verdict", 0, a.Verdict.Rank, "", a.Verdict)
}

// summary is the record's last word.
func (r *record) summary(exit event.Exit, verdict event.Verdict) event.Summary {
	summary := event.Summary{Run: r.job.run, Exit: &exit, Verdict: &verdict, Peaks: r.said.Peaks,
		Steps:  r.said.Steps,
		StepMS: median(r.said.StepTime), Findings: r.said.Findings, Notes: r.said.Notes,
		Feeding:    r.said.Feeding,
		Samples:    r.said.Samples,
		CostCPU:    r.said.CPU + ownCPU() + cpuOf(strconv.Itoa(r.job.state.Keeper)),
		ProbeShare: r.said.share()}
	if exit.Attempt > 1 { // what the job needs now, not what the attempt before it ran into
		summary.Peaks = r.said.Attempt
	}
	for _, pid := range []int{os.Getpid(), r.job.state.Keeper} {
		if reading, err := r.job.proc.Statm(pid); err == nil {
			summary.CostResident += reading.Resident
		}
	}
	for a := range r.to.Attempts() {
		summary.Attempts = append(summary.Attempts, a)
	}
	return summary
}

// finish writes the final report, and copies of it and of the verdict where the user asked for one.
func (r *record) finish(exit event.Exit, verdict event.Verdict, report, verdictCopy string) {
	summary := r.summary(exit, verdict)
	r.copyOut(verdictCopy, verdict)
	r.copyOut(report, summary)
	summary.Notes = r.said.Notes // the record names the copies that failed
	r.check(r.to.SaveSummary(summary))
}

// copyOut writes a copy where the user asked for one.
func (r *record) copyOut(path string, v any) {
	if path == "" {
		return
	}
	if err := writeCopy(path, v); err != nil {
		fmt.Fprintln(os.Stderr, "write report:", err)
		r.note("report "+path, "the copy could not be written: "+err.Error())
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
	err = os.WriteFile(temporary, data, 0o644)
	if err == nil {
		err = os.Rename(temporary, path)
	}
	if err == nil {
		return nil
	}
	_ = os.Remove(temporary)
	if info, found := os.Stat(path); found == nil && info.Mode().IsRegular() {
		return os.WriteFile(path, data, 0o644) // a mount of its own: a container's termination log
	}
	return err
}

// stepThinner keeps at most ten steps a second of each process for the record; the detectors see
// all of them.
type stepThinner struct {
	waiting []event.RankedStep
	last    map[int]time.Time // of each process
}

func (t *stepThinner) add(s event.RankedStep) {
	if t.last == nil {
		t.last = map[int]time.Time{}
	}
	since := s.End.Sub(t.last[s.PID])
	if since >= 0 && since < 100*time.Millisecond && s.OOMs == 0 { // below 0 the clock was set back
		return
	}
	t.last[s.PID] = s.End
	t.waiting = append(t.waiting, s)
}

func (t *stepThinner) take() []event.RankedStep {
	taken := t.waiting
	t.waiting = nil
	return taken
}

// ownCPU is the processor time this process has used.
func ownCPU() float64 { return cpuOf("self") }

// cpuOf is a process's processor time in seconds, from its stat file.
func cpuOf(pid string) float64 {
	data, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return 0
	}
	fields := statFields(string(data))
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.ParseFloat(fields[11], 64)
	system, _ := strconv.ParseFloat(fields[12], 64)
	return (user + system) / clockTicks
}

// clockTicks is the kernel's unit of processor time in /proc: 100 a second on every Linux there is.
const clockTicks = 100
