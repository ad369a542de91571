package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"memroom/event"
	"memroom/fit"
	"memroom/remedy"
)

// Fit prints what `run --fit` did: each attempt with what it was given and what came of it, then
// the equivalence, what the remedies predicted and what was measured, and the edits that would make
// them permanent.
func Fit(w io.Writer, r fit.Record) {
	say := func(format string, args ...any) { fmt.Fprintf(w, "memroom: "+format+"\n", args...) }
	for i, t := range r.Attempts {
		say("attempt %d    %s%s", t.Number, triedLine(t), comparedWords(t, r.Attempts[:i]))
		for _, line := range saidLines(t) {
			say("             %s", line)
		}
	}
	last := r.Last()
	if last == nil {
		return
	}
	if r.Impossible != "" {
		say("%s", r.Impossible)
		for _, l := range r.Left {
			say("             left out: %s (%s)", l.ID, l.Why)
		}
		return
	}
	if r.Hollow != "" {
		say("no success   %s", r.Hollow)
		return
	}
	if len(last.Remedies) > 0 && last.OutOf == "" && last.ExitCode == 0 {
		say("results      %s", equivalenceWords(last.Equivalence()))
		fitEdits(say, *last)
	}
}

// saidLines are what the remedies said of an attempt, each once: one that is made of two remedies
// is said by both.
func saidLines(t fit.Tried) []string {
	var lines []string
	for _, s := range t.Said {
		// a forecast that did not come true is no news
		if s.Kind == "note" && (s.Needs == 0 || t.OutOf == "") {
			continue
		}
		if line := fmt.Sprintf("%s: %s%s", s.Kind, s.Text, predictedWords(s,
			t)); !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	if idle := unused(t); len(idle) > 0 && t.OutOf == "" && t.ExitCode == 0 {
		lines = append(lines, "not needed: "+strings.Join(idle, ", "))
	}
	return lines
}

// unused are the remedies that an attempt was given and that found nothing to do.
func unused(t fit.Tried) []string {
	var idle []string
	for _, r := range t.Remedies {
		met := func(s fit.Sentence) bool { return s.ID == r.ID && s.Kind != "note" }
		if r.Level == remedy.LevelProcess && !slices.ContainsFunc(t.Said, met) {
			idle = append(idle, r.Words())
		}
	}
	return idle
}

// comparedWords says how long a step took beside one of an earlier attempt.
func comparedWords(t fit.Tried, before []fit.Tried) string {
	for _, b := range before {
		if b.StepMS > 0 && t.StepMS > 0 && t.OutOf == "" && len(b.Remedies) == 0 {
			return fmt.Sprintf(" (%.2f times as long as unchanged)", t.StepMS/b.StepMS)
		}
	}
	return ""
}

func triedLine(t fit.Tried) string {
	line := "as it is"
	if len(t.Changed) > 0 {
		line = "with " + strings.Join(t.Changed, ", ")
	}
	if t.Resumed != "" {
		line += ", from checkpoint " + t.Resumed
	}
	switch {
	case t.OutOf != "":
		line += fmt.Sprintf(": out of %s memory", whereWords(t.OutOf))
		if t.Requested > 0 {
			line += fmt.Sprintf(" (%s more were asked for at %s%s)", t.Requested,
				cmp.Or(t.Held, t.Allocated), cardWords(t))
		}
	case t.ExitCode != 0:
		line += ": " + t.Ending()
	default:
		line += ": finished" + peakWords(t)
		if t.StepMS > 0 {
			line += ", " + stepTime(t.StepMS) + " a step"
		}
	}
	return line
}

// peakWords is the other side of the account: what the job took in the end, of what there is.
func peakWords(t fit.Tried) string {
	of := func(limit event.Bytes) string {
		if limit == 0 {
			return ""
		}
		return " of " + limit.String()
	}
	switch {
	case t.Reserved > 0:
		return fmt.Sprintf(", peak %s allocated, %s reserved%s", t.Allocated, t.Reserved,
			of(t.Limit()))
	case t.HostLimit > 0:
		return fmt.Sprintf(", peak %s of host memory%s", t.Host, of(t.HostLimit))
	}
	return ""
}

// cardWords names a card that was full itself: then it was not the program's own limit that was
// met.
func cardWords(t fit.Tried) string {
	if t.Held == 0 || t.CardFree >= t.Requested {
		return ""
	}
	return fmt.Sprintf("; only %s of the card were free", t.CardFree)
}

func whereWords(w event.Where) string {
	switch w {
	case event.WhereGPU:
		return "GPU"
	case event.WhereCgroup:
		return "host (cgroup)"
	case event.WhereShm:
		return "shared"
	}
	return string(w)
}

func predictedWords(s fit.Sentence, t fit.Tried) string {
	if s.Predicted == 0 {
		return ""
	}
	words := fmt.Sprintf(" [predicted %s", s.Predicted)
	if measured := measured(t); measured > 0 && t.OutOf == "" {
		words += fmt.Sprintf(", measured %s", measured)
	}
	if s.Twice > 0 {
		words += fmt.Sprintf("; %.0f %% of the forward pass runs twice", 100*min(1, s.Twice))
	}
	if s.Slower > 0 {
		words += fmt.Sprintf("; a step predicted to take %.0f %% longer than the whole batch at once", 100*s.Slower)
	}
	return words + "]"
}

// measured is what a prediction is to be compared with: the allocator's peak, or the host's where
// nothing was on a card.
func measured(t fit.Tried) event.Bytes {
	if t.Allocated == 0 && t.HostLimit > 0 {
		return t.Host
	}
	return t.Allocated
}

func equivalenceWords(e remedy.Equivalence) string {
	switch e {
	case remedy.Exact:
		return "the same as with more memory, up to rounding (exact)"
	case remedy.Expected:
		return "the same in expectation: random numbers such as dropout masks are drawn in another order (expected)"
	}
	return "not the same: a remedy that was allowed changes the mathematics (changes)"
}

// cutJob is a job whose batch was run in pieces, as far as the remedy said so.
func cutJob(t fit.Tried, id remedy.ID) remedy.Job {
	job := remedy.Job{Framework: remedy.PyTorch}
	for _, s := range t.Said {
		if s.ID == id && id == remedy.MicroBatch && s.Kind == "applied" && s.Pieces > 1 {
			job.Batch, job.Pieces = s.Rows, s.Pieces
			break
		}
	}
	return job
}

// fitEdits shows the code for what was applied, one remedy a paragraph.
func fitEdits(say func(string, ...any), t fit.Tried) {
	applied := map[remedy.ID]bool{}
	for _, s := range t.Said {
		applied[s.ID] = applied[s.ID] || s.Kind == "applied"
	}
	for _, r := range t.Remedies {
		known, ok := remedy.Find(r.ID)
		if !ok || !applied[r.ID] && r.Level == remedy.LevelProcess || r.Level == remedy.LevelArgs {
			continue
		}
		job := cutJob(t, r.ID)
		how := known.HowTo(job)
		edit := how.Code
		if r.Level == remedy.LevelEnv && how.Env != "" {
			edit = how.Env
		}
		if edit == "" {
			continue
		}
		say("to keep it   %s:", known.TitleFor(job))
		for _, line := range strings.Split(edit, "\n") {
			say("               %s", line)
		}
	}
}
