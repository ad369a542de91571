package report

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"memroom/event"
	"memroom/explain"
	"memroom/fit"
	"memroom/remedy"
)

// A screen is what a terminal shows at once.
const (
	screenLines   = 24
	screenColumns = 100
)

// End holds the facts of a finished run.
type End struct {
	event.Summary
	Fit *fit.Record // the story of `run --fit`; nil without one
	// Framework and Trainer of the job, as far as they are known: advice is given in their words.
	Job remedy.Job
}

// RunEnd prints the last screen of a run: what happened, why, what was done about it, what it cost
// and what to type next. It is at most 24 lines of 100 columns; `memroom show` has the rest.
func RunEnd(w io.Writer, e End) {
	s := &screen{}
	s.headline(e)
	s.add("why", e.why())
	s.add("done", e.done()...)
	s.add("results", e.results())
	s.add("memory", e.memory()...)
	s.add("time", e.time())
	findings := e.found()
	next := e.next(len(findings) > 0)
	s.add("found", findings...)
	s.fit(e.Run.ID, lineCount(next))
	s.add("next", next...)
	for _, line := range s.lines {
		fmt.Fprintln(w, line)
	}
}

// RunLine is the end of a run in one line, for a log.
func RunLine(e End) string {
	parts := []string{"memroom: " + strings.TrimSuffix(e.headline(), ".")}
	parts = append(parts, e.memory()...)
	return strings.Join(append(parts, "memroom show "+e.Run.ID), "; ")
}

// Good reports whether the command ended as it should.
func (e End) Good() bool { return e.Exit != nil && e.Exit.Code == 0 && e.Exit.Signal == "" }

// Tells reports whether there is something to say that the command itself has not: memory ran out,
// something was found, or --fit did something.
func (e End) Tells() bool {
	return e.ranOut() || len(e.important()) > 0 || e.Fit != nil && e.Fit.Tells()
}

// screen collects lines under labels.
type screen struct{ lines []string }

const labelWidth = 10 // two spaces, the label, a gap

func (s *screen) add(label string, texts ...string) {
	for _, text := range texts {
		if text == "" {
			continue
		}
		for _, line := range wrap(text, screenColumns-labelWidth) {
			s.lines = append(s.lines, strings.TrimRight(fmt.Sprintf("  %-8s%s", label, line), " "))
			label = ""
		}
	}
}

func (s *screen) headline(e End) {
	for i, line := range wrap("memroom: "+e.headline(), screenColumns) {
		if i > 0 {
			line = "  " + line
		}
		s.lines = append(s.lines, line)
	}
}

// fit drops what does not fit above the last lines.
func (s *screen) fit(id string, reserved int) {
	if most := screenLines - reserved; len(s.lines) > most {
		left := len(s.lines) - most + 1
		s.lines = append(s.lines[:most-1],
			fmt.Sprintf("  ...     %d more lines: memroom show %s", left, id))
	}
}

func lineCount(texts []string) int {
	n := 0
	for _, t := range texts {
		n += len(wrap(t, screenColumns-labelWidth))
	}
	return n
}

// wrap breaks a text at its line ends and, where a line is too long, at words. Spaces inside a line
// stay: they align commands with their purpose.
func wrap(text string, width int) []string {
	var lines []string
	for _, line := range strings.Split(text, "\n") {
		for utf8.RuneCountInString(line) > width {
			runes := []rune(line)
			at := strings.LastIndex(string(runes[:width]), " ")
			if at <= 0 {
				at = len(string(runes[:width]))
			}
			lines = append(lines, strings.TrimRight(line[:at], " "))
			line = strings.TrimLeft(line[at:], " ")
		}
		lines = append(lines, line)
	}
	return lines
}

// ranOut reports whether memory is what ended the run.
func (e End) ranOut() bool { return e.Verdict != nil && e.Verdict.IsOOM }

// headline returns what happened, in one sentence.
func (e End) headline() string {
	took := ""
	if e.Exit != nil {
		took = " after " + Span(e.Exit.Seconds)
	}
	if e.Fit != nil && e.Fit.Tells() {
		if text := e.fitHeadline(took); text != "" {
			return text
		}
	}
	v := e.Verdict
	switch {
	case e.ranOut():
		return e.oomHeadline(took)
	case v == nil && e.Exit == nil:
		return "the run has ended; how is not known."
	case v == nil:
		return fmt.Sprintf("the command ended with exit code %d%s.", e.Exit.Code, took)
	case v.ExitCode == 0 && e.leaks():
		return "the command finished" + took + ". It may have a memory leak."
	case v.ExitCode == 0:
		return "the command finished" + took + "."
	case v.Signal == "SIGINT":
		return "the command was interrupted (SIGINT)" + took + "."
	case v.Signal != "" && v.KilledBy == "somebody":
		return fmt.Sprintf("the command was ended by %s%s. Memory was not the cause.", v.Signal,
			took)
	case v.Signal != "":
		return fmt.Sprintf("the command was ended by %s%s.", v.Signal, took)
	}
	return fmt.Sprintf("the command failed with exit code %d%s. Memory was not the cause.",
		v.ExitCode, took)
}

func (e End) leaks() bool {
	return slices.ContainsFunc(e.Findings, func(f event.Finding) bool {
		return f.Kind == "leak" && f.Severity != event.SeverityInfo // else taken back
	})
}

// leakFilled reports whether a leak alone took a large part of the memory that ran out, at its pace
// over all steps.
func (e End) leakFilled(where event.Where) bool {
	limit := cmp.Or(e.Run.HostMem, e.Peaks.HostLimit)
	if where == event.WhereGPU {
		limit = e.Run.GPUMem
		for _, d := range e.Peaks.Devices {
			limit = cmp.Or(limit, d.Total)
		}
	}
	return limit > 0 && slices.ContainsFunc(e.Findings, func(f event.Finding) bool {
		return f.Leaked(where, e.Steps) >= limit/event.LargeLeak
	})
}

func (e End) oomHeadline(took string) string {
	v := e.Verdict
	text := "the command ran out of " + v.Where.Memory()
	if v.Rank != nil {
		text = fmt.Sprintf("rank %d ran out of %s", *v.Rank, v.Where.Memory())
	}
	text += took
	switch own := v.KilledBy == "cgroup" && e.Run.HostMem > 0; {
	case own:
		text += " and was ended at its --host-mem limit"
	case v.KilledBy == "kernel" || v.KilledBy == "cgroup":
		text += " and was killed by the kernel"
	case v.KilledBy == "memroom":
		if v.Rank != nil {
			text += "; memroom ended the other ranks"
		} else {
			text += "; memroom ended it"
		}
	case v.KilledBy == "ray" || v.KilledBy == "slurm":
		text += " and was killed by " + strings.ToUpper(v.KilledBy[:1]) + v.KilledBy[1:]
	}
	if v.ExitCode == 0 {
		text += ", although its exit code is 0"
	}
	return text + "."
}

// fitHeadline describes how the attempts ended; empty where the last one failed by itself.
func (e End) fitHeadline(took string) string {
	r, last := e.Fit, e.Fit.Last()
	switch {
	case r.Hollow != "":
		return "no success, although the command ended with exit code 0: " + r.Hollow + "."
	case r.Impossible != "" && len(r.Attempts) > 1:
		return fmt.Sprintf("the command does not fit. Each of %d attempts ran out of %s.",
			len(r.Attempts), last.OutOf.Memory())
	case r.Impossible != "":
		return fmt.Sprintf("the command ran out of %s%s. There is no second attempt.",
			last.OutOf.Memory(), took)
	case last == nil || last.ExitCode != 0 || last.OutOf != "":
		return ""
	case len(r.Attempts) == 1 && r.Remembered:
		return "the command finished" + took + ", with the remedies that made an earlier run fit."
	case len(r.Attempts) == 1:
		return "the command finished" + took + ", with remedies."
	}
	return fmt.Sprintf("it fits now: attempt %d finished%s. %s.", last.Number, took,
		failures(r.Attempts[:len(r.Attempts)-1], e.Attempts))
}

// failures describes how the attempts before the last one ended, and after how long.
func failures(tried []fit.Tried, attempts []event.Attempt) string {
	var texts []string
	for i, t := range tried {
		text := fmt.Sprintf("attempt %d %s", t.Number, t.Ending())
		for _, a := range attempts {
			if a.Number == t.Number && a.Exit != nil {
				text += " after " + Span(a.Exit.Seconds)
			}
		}
		if i == 0 {
			text = "A" + text[1:]
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, "; ")
}

// refused matches the sizes in PyTorch's message; they are the same in all versions.
var refused = regexp.MustCompile(`Tried to allocate ([\d.]+) ?([KMGT]iB)`)

var capacity = regexp.MustCompile(`total capacity of ([\d.]+) ?([KMGT]iB) of which ([\d.]+) ?([KMGT]iB|bytes) is free`)

// why is the cause of the end, or of the first attempt's end.
func (e End) why() string {
	if e.Fit != nil && e.Fit.Tells() {
		switch {
		case e.Fit.Impossible != "" && e.leakFilled(e.Fit.Last().OutOf):
			return asSentence(fit.OfLeak)
		case e.Fit.Impossible != "":
			return asSentence(e.Fit.Impossible)
		}
		if first := e.Fit.Attempts[0]; first.OutOf != "" {
			why := e.triedWhy(first)
			if last := e.Fit.Last(); last.OutOf == "" && last.ExitCode != 0 {
				// The headline is about something else than memory.
				before := e.Fit.Attempts[:len(e.Fit.Attempts)-1]
				why = strings.TrimSuffix(failures(before, e.Attempts)+": "+why, ": ")
			}
			return why
		}
	}
	if !e.ranOut() {
		return ""
	}
	switch e.Verdict.Where {
	case event.WhereGPU, event.WhereMPS:
		return e.cardWhy()
	case event.WhereShm:
		return fmt.Sprintf("/dev/shm was full: %s were in use.", e.Peaks.Shm.Of(e.Peaks.ShmTotal))
	}
	return e.hostWhy()
}

func (e End) hostWhy() string {
	switch limit := e.Peaks.HostLimit; {
	case e.Verdict.KilledBy == "itself" && e.Run.HostMem > 0 && e.heldByHost() < e.Run.HostMem*9/10:
		// the limit of a cgroup kills; it makes no request fail
		return fmt.Sprintf("a request for memory was refused, though its processes held %s at most, "+
			"of the %s of --host-mem: it was very large, or another limit (ulimit -v, -d) is lower.",
			e.heldByHost().Beside(e.Run.HostMem), e.Run.HostMem.AsSet())
	case e.Run.HostMem > 0:
		return fmt.Sprintf("its processes reached the limit of %s (--host-mem)%s.",
			e.Run.HostMem.AsSet(), e.growing())
	case e.Verdict.KilledBy == "slurm":
		return fmt.Sprintf("its processes reached Slurm's limit%s.", limitOf(limit))
	case e.Verdict.KilledBy == "cgroup" || e.Verdict.Where == event.WhereCgroup:
		return fmt.Sprintf("its processes reached the limit of the container or cgroup%s%s.",
			limitOf(limit), e.growing())
	case e.Verdict.KilledBy == "ray":
		return "Ray ends tasks when the machine's memory is nearly full."
	case e.Verdict.KilledBy == "itself":
		return "Python could not get the memory that it asked for."
	}
	return fmt.Sprintf("the machine had no memory left; the run's processes held %s.",
		e.heldByHost())
}

// growing is by how much memory grew with each step, where a leak ended the run.
func (e End) growing() string {
	for _, f := range latest(e.Findings) {
		leaked := f.Leaked(e.Verdict.Where, e.Steps)
		if leaked > e.Peaks.HostLimit/endedByLeak && e.Steps > 0 {
			return fmt.Sprintf("; memory grew by %s per step", leaked/event.Bytes(e.Steps))
		}
	}
	return ""
}

// heldByHost is the most that the run's processes held of host memory.
func (e End) heldByHost() event.Bytes { return max(e.Peaks.Unreclaimable, e.Peaks.Resident) }

func limitOf(limit event.Bytes) string {
	if limit == 0 {
		return ""
	}
	return " of " + limit.AsSet()
}

// cardWhy reads the sizes from what the framework said.
func (e End) cardWhy() string {
	for _, line := range e.Verdict.Evidence {
		asked := refused.FindStringSubmatch(line)
		if asked == nil {
			continue
		}
		text := fmt.Sprintf("it asked for %s more", size(asked[1], asked[2]))
		if room := capacity.FindStringSubmatch(line); room != nil {
			text += fmt.Sprintf("; %s of the card's %s were free", size(room[3], room[4]),
				size(room[1], room[2]))
		}
		return text + "."
	}
	for _, line := range e.Verdict.Evidence {
		if text, ok := strings.CutPrefix(line, "output: "); ok {
			return "the framework said: " + text
		}
	}
	return ""
}

// size writes a figure of PyTorch's as we write ours.
func size(number, unit string) string {
	bytes, err := event.ParseBytes(number + strings.TrimPrefix(unit, "bytes"))
	if err != nil {
		return number + " " + unit
	}
	return bytes.String()
}

// triedWhy explains why an attempt ran out, from its own figures.
func (e End) triedWhy(t fit.Tried) string {
	switch {
	case t.Requested > 0 && t.CardFree > 0 && t.CardFree < t.Requested:
		return fmt.Sprintf("it held %s and asked for %s more; %s of the card were free.",
			cmp.Or(t.Held, t.Allocated), t.Requested, t.CardFree)
	case t.Requested > 0:
		return fmt.Sprintf("it held %s and asked for %s more%s.", cmp.Or(t.Held, t.Allocated),
			t.Requested, over(e.Run.GPUMem))
	case t.OutOf == event.WhereShm:
		return "/dev/shm was full."
	case t.OutOf == event.WhereGPU || t.OutOf == event.WhereMPS:
		return ""
	case e.Run.HostMem > 0:
		return fmt.Sprintf("its processes reached the limit of %s (--host-mem).",
			e.Run.HostMem.AsSet())
	case t.HostLimit > 0:
		return fmt.Sprintf("its processes reached the limit of %s.", t.HostLimit.AsSet())
	}
	return "its processes used all memory that there was."
}

func over(limit event.Bytes) string {
	if limit == 0 {
		return ""
	}
	return fmt.Sprintf("; the limit is %s (--gpu-mem)", limit.AsSet())
}

// asSentence ends a text as a sentence.
func asSentence(text string) string {
	if !strings.HasSuffix(text, ".") {
		text += "."
	}
	return text
}

// done is what --fit did about it: what took effect in the last attempt, or what was tried in vain.
func (e End) done() []string {
	if e.Fit == nil || !e.Fit.Tells() || e.Fit.Hollow != "" {
		return nil
	}
	last := *e.Fit.Last()
	var lines []string
	if last.Resumed != "" {
		lines = append(lines, "went on from the checkpoint "+filepath.Base(last.Resumed))
	}
	if e.Fit.Impossible != "" {
		for _, t := range e.Fit.Attempts[1:] {
			if t.Foreign() != "" { // nothing of it could act
				continue
			}
			lines = append(lines, fmt.Sprintf("attempt %d: %s", t.Number,
				cmp.Or(t.Title, strings.Join(t.Changed, ", "))))
		}
		return append(lines, declined(last, e.Fit.Impossible)...)
	}
	for _, r := range last.Remedies {
		if r.Level == remedy.LevelArgs {
			lines = append(lines, r.Words())
		}
	}
	for _, s := range last.Said {
		settingOfCard := s.ID == remedy.ExpandableSegments && last.Reserved == 0
		if s.Helped() && s.ID != "gpu_mem" && !settingOfCard &&
			!slices.Contains(lines, s.Text) {
			lines = append(lines, s.Text)
		}
	}
	switch {
	case len(lines) > 0 || last.ExitCode != 0 || len(last.Remedies) == 0:
	case slices.ContainsFunc(last.Said, func(s fit.Sentence) bool { return s.Kind == "applied" }):
		lines = []string{"nothing that made it smaller: it got through by itself this time"}
	default:
		lines = []string{"nothing had to be changed: the remedies were ready and not needed"}
	}
	return append(lines, declined(last, "")...)
}

// declined are the remedies of an attempt that could not be had, with the first reason of each. One
// that took effect elsewhere in the program is left out, and so is a reason that was said.
func declined(t fit.Tried, said string) []string {
	var lines []string
	met := map[remedy.ID]bool{}
	for _, s := range t.Said {
		met[s.ID] = met[s.ID] || s.Kind == "applied"
	}
	for _, s := range t.Said {
		if s.Kind == "declined" && !met[s.ID] && !strings.Contains(said, s.Text) {
			met[s.ID] = true
			lines = append(lines, fmt.Sprintf("not done: %s (%s)", nameOf(s.ID), s.Text))
		}
	}
	return lines
}

// results reports whether the training's results are those of the untouched program.
func (e End) results() string {
	if e.Fit == nil || e.Fit.Hollow != "" || e.Fit.Impossible != "" || e.Fit.Last() == nil {
		return ""
	}
	last := e.Fit.Last()
	if len(last.Remedies) == 0 || last.OutOf != "" || last.ExitCode != 0 {
		return ""
	}
	return equivalenceWords(*last)
}

// memory is the peak of each kind of memory, and what was left.
func (e End) memory() []string {
	var lines []string
	for i, d := range e.Peaks.Devices {
		if d.Total == 0 && d.Reserved == 0 {
			continue
		}
		name := cmp.Or(d.Name, fmt.Sprintf("card %d", i))
		line := name + ":"
		if d.Total > 0 {
			line += " peak " + d.Used.Of(d.Total)
		}
		if d.Reserved > 0 {
			line += fmt.Sprintf(" (this job: %s allocated, %s reserved)", d.Allocated, d.Reserved)
		}
		lines = append(lines, line)
	}
	peak := cmp.Or(max(e.Peaks.Unreclaimable, 0), e.Peaks.Resident)
	if peak == 0 && e.Exit != nil {
		peak = e.Exit.MaxResident
	}
	if peak > 0 {
		line := "host: peak " + peak.String()
		switch limit, others := e.Peaks.HostLimit, e.Peaks.HostOthers; {
		case limit > peak+others:
			line = fmt.Sprintf("host: peak %s, %s left", peak.Of(limit),
				(limit - others - peak).Beside(limit))
		case limit > 0 && peak > limit: // one that makes the job wait, or shared pages counted twice
			line = fmt.Sprintf("host: peak %s, %s above the limit of %s", peak.Beside(limit),
				(peak - limit).Beside(limit), limit.AsSet())
		case limit > 0:
			line = fmt.Sprintf("host: peak %s, nothing left", peak.Of(limit))
		}
		if e.Peaks.HostOthers > 0 {
			line += fmt.Sprintf(", other processes held %s", e.Peaks.HostOthers)
		}
		lines = append(lines, line)
	}
	if e.Peaks.ShmTotal > 0 && e.Peaks.Shm > e.Peaks.ShmTotal/2 {
		lines = append(lines, "/dev/shm: peak "+e.Peaks.Shm.Of(e.Peaks.ShmTotal))
	}
	return lines
}

// time is how long a step took, and what the remedies cost.
func (e End) time() string {
	if e.Steps == 0 {
		if e.Fit != nil && e.Fit.Last() != nil && len(e.Fit.Attempts) > 1 &&
			e.Fit.Last().ExitCode == 0 && e.Fit.Hollow == "" {
			return "no training step was seen"
		}
		return ""
	}
	text := fmt.Sprintf("%d steps, %s each (median)", e.Steps, stepTime(e.StepMS))
	if e.Steps == 1 {
		text = "1 step, " + stepTime(e.StepMS)
	}
	if e.Fit == nil || e.Fit.Last() == nil || e.Fit.Impossible != "" {
		return text
	}
	last := *e.Fit.Last()
	slower := predictedSlower(last)
	times := timesAsLong(last, e.Fit.Attempts)
	if times > 0 {
		text += fmt.Sprintf("; %s without remedies: %.2g times as long",
			stepTime(last.StepMS/times), times)
	}
	switch {
	case slower > 0 && times > 0:
		text += fmt.Sprintf(" (predicted: %.2g)", 1+slower)
	case slower > 0 && last.OutOf == "":
		text += "; predicted to be " + slowerWords(slower) + " than without remedies"
	}
	return text
}

// predictedSlower is what the choices that were in effect at the end were predicted to cost: those
// of a module follow each other.
func predictedSlower(t fit.Tried) float64 {
	of := map[string]float64{}
	for _, s := range t.Said {
		if name, _, found := strings.Cut(s.Text, ": "); found && s.Predicted > 0 {
			of[name] = s.Slower
		}
	}
	return slices.Max(append(slices.Collect(maps.Values(of)), 0))
}

// found are the findings that matter at the end, each with what helps.
func (e End) found() []string {
	const most = 3
	var lines []string
	shown := e.important()
	for _, f := range shown[:min(most, len(shown))] {
		lines = append(lines, f.Title+atLine(f)+e.help(f))
	}
	if len(shown) > most {
		lines = append(lines, fmt.Sprintf("%s: memroom show %s",
			event.Count(len(shown)-most, "more finding"), e.Run.ID))
	}
	return lines
}

// important leaves out what the screen has said already, what did no harm (a neighbour on a card
// that never was full), and forecasts: they were for the time that has passed.
func (e End) important() []event.Finding {
	gpuFull := e.ranOut() && e.Verdict.Where == event.WhereGPU
	hostFull := e.ranOut() && (e.Verdict.Where == event.WhereHost ||
		e.Verdict.Where == event.WhereCgroup)
	cured := e.Fit != nil && e.Fit.Cured()
	return slices.DeleteFunc(latest(e.Findings), func(f event.Finding) bool {
		if f.Key != "" && f.Severity == event.SeverityInfo {
			return true // it withdraws what was said
		}
		switch f.Kind {
		case "neighbour":
			return !gpuFull
		case "host_pressure":
			return hostFull || cured
		case "filled":
			return cured
		case "forecast":
			return true // the run is over
		}
		return false
	})
}

// help names what to try against a finding, in words of the job's framework.
func (e End) help(f event.Finding) string {
	for _, id := range f.Remedies {
		r, ok := remedy.Find(remedy.ID(id))
		job := remedy.Job{Framework: e.Job.Framework, Trainer: e.Job.Trainer}
		if f.Kind == "trials" || f.Kind == "actor" || f.Kind == "object_store" {
			job.Trainer = remedy.RayTune
		}
		if ok && r.Applies(job) == "" {
			return "\nTry: " + r.TitleFor(e.Job) + "."
		}
	}
	return ""
}

// next is what to type now.
func (e End) next(found bool) []string {
	type line struct{ typed, what string }
	var lines []line
	id := e.Run.ID
	switch {
	case e.Fit != nil && e.Fit.Hollow != "":
	case e.Fit != nil && e.Fit.Impossible != "":
		if kinds := consents(e.Fit.Left); len(kinds) > 0 {
			lines = append(lines, line{e.Run.Again("--fit", "--allow", strings.Join(kinds, ",")),
				"also try remedies that change the mathematics"})
		}
		lines = append(lines, line{"memroom explain " + id,
			"what needs the memory, and what would help"})
	case e.ranOut():
		if e.Fit == nil && e.fittable() {
			lines = append(lines, line{e.Run.Again("--fit"), "let memroom make it fit"})
		}
		lines = append(lines, line{"memroom explain " + id,
			"what needs the memory, and what would help"})
	case e.Fit != nil && e.Fit.Tells() && len(keepable(*e.Fit.Last())) > 0:
		if args := e.keepByArguments(); args != "" {
			lines = append(lines, line{args, "to keep it without memroom"})
		}
		lines = append(lines, line{"memroom show " + id,
			"details, and the edits to keep it without memroom"})
		return aligned(lines, func(l line) (string, string) { return l.typed, l.what })
	case found && explain.Explainable(e.Findings):
		lines = append(lines, line{"memroom explain " + id, "why, and the code that helps"})
	}
	lines = append(lines, line{"memroom show " + id, "the whole record"})
	return aligned(lines, func(l line) (string, string) { return l.typed, l.what })
}

// aligned puts the purpose of a command next to it, where there is room.
func aligned[T any](lines []T, parts func(T) (string, string)) []string {
	width := 0
	for _, l := range lines {
		if typed, _ := parts(l); len(typed) <= 48 {
			width = max(width, len(typed))
		}
	}
	var out []string
	for _, l := range lines {
		typed, what := parts(l)
		if len(typed)+3+len(what) > screenColumns-labelWidth {
			out = append(out, typed, "    "+what)
			continue
		}
		out = append(out, fmt.Sprintf("%-*s   %s", width, typed, what))
	}
	return out
}

// endedByLeak is the share of a limit, as its divisor, that a leak must have taken where it ended
// the run: one that had taken less would have left room for the steps that fitted before it.
const endedByLeak = 20

// fittable: --fit reaches into PyTorch and Keras, and the run has shown one of them. It cures no
// leak that ended the run, and no line that filled host memory before the first step with what no
// remedy of its own makes smaller, such as a data set read whole.
func (e End) fittable() bool {
	limit := e.Peaks.HostLimit
	if e.Verdict.Where == event.WhereGPU && len(e.Peaks.Devices) > 0 {
		limit = e.Peaks.Devices[0].Total
	}
	for _, f := range latest(e.Findings) {
		if f.Leaked(e.Verdict.Where, e.Steps) > limit/endedByLeak {
			return false
		}
		if f.Kind == "filled" && e.Steps == 0 && e.Verdict.Where != event.WhereGPU &&
			!slices.ContainsFunc(f.Remedies, appliedByFit) {
			return false
		}
	}
	return e.Job.Framework == remedy.PyTorch || e.Job.Trainer == remedy.Keras || e.Steps > 0
}

// appliedByFit reports whether --fit can apply a remedy.
func appliedByFit(id string) bool {
	r, ok := remedy.Find(remedy.ID(id))
	return ok && len(r.Levels) > 0
}

// consents are the kinds of change that would admit more remedies, each once.
func consents(left []fit.Left) []string {
	var kinds []string
	for _, l := range left {
		if r, ok := remedy.Find(l.ID); ok && r.Consent != "" && !slices.Contains(kinds, r.Consent) {
			kinds = append(kinds, r.Consent)
		}
	}
	return kinds
}

// keepByArguments are the trainer's own arguments for what was done; empty where there are none, or
// not for all of it.
func (e End) keepByArguments() string {
	var args []string
	for _, r := range keepable(*e.Fit.Last()) {
		if r.Level == remedy.LevelEnv {
			continue // cheap, and said in the details
		}
		known, _ := remedy.Find(r.ID)
		job := cutJob(*e.Fit.Last(), r.ID, e.Job)
		text := known.HowTo(job).Args
		if !takes(e.Run.Command, text) || strings.Contains(text, "\n") {
			return ""
		}
		args = append(args, text)
	}
	return strings.Join(args, " ")
}
