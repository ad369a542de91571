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

// Fit prints the whole story of `run --fit`: each attempt with what it was given and what came of
// it, then what that means for the results, and the edits that make it permanent, in the words of
// the job's framework.
func Fit(w io.Writer, r fit.Record, job remedy.Job, command []string) {
	say := func(format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) }
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
		say("the end      %s", r.Impossible)
		for _, l := range r.Left {
			say("not tried    %s (%s)", nameOf(l.ID), l.Why)
		}
		return
	}
	if r.Hollow != "" {
		say("no success   %s", r.Hollow)
		return
	}
	if len(last.Remedies) > 0 && last.OutOf == "" && last.ExitCode == 0 {
		say("results      %s", equivalenceWords(*last))
		fitEdits(say, *last, job, command)
	}
}

// nameOf is a remedy's title; its ID where it has none.
func nameOf(id remedy.ID) string {
	if r, ok := remedy.Find(id); ok {
		return r.Title
	}
	return string(id)
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
		lines = append(lines, "not needed: "+strings.Join(idle, "; "))
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

// comparedWords returns how long a step took next to one of an earlier attempt.
func comparedWords(t fit.Tried, before []fit.Tried) string {
	if times := timesAsLong(t, before); times > 0 {
		return fmt.Sprintf(" (%.2f times as long as without remedies)", times)
	}
	return ""
}

// timesAsLong compares a step with one of an attempt without remedies; 0 where there is none to
// compare with. A first attempt of one or two steps is no measure: they warm up.
func timesAsLong(t fit.Tried, attempts []fit.Tried) float64 {
	const enough = 3
	for _, b := range attempts {
		if b.StepMS > 0 && t.StepMS > 0 && b.Steps >= enough && t.OutOf == "" &&
			len(b.Remedies) == 0 {
			return t.StepMS / b.StepMS
		}
	}
	return 0
}

func triedLine(t fit.Tried) string {
	line := "as it is"
	if len(t.Changed) > 0 {
		line = "with " + strings.Join(t.Changed, "; ")
	}
	if t.Resumed != "" {
		line += ", from checkpoint " + t.Resumed
	}
	switch {
	case t.OutOf != "":
		line += ": ran out of " + t.OutOf.Memory()
		if t.Requested > 0 {
			line += fmt.Sprintf(" (it held %s and asked for %s more%s)",
				cmp.Or(t.Held, t.Allocated), t.Requested, cardWords(t))
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

// peakWords is the other side of the account: the job's peak and the memory there is.
func peakWords(t fit.Tried) string {
	of := func(limit event.Bytes) string {
		if limit == 0 {
			return ""
		}
		return " of " + limit.AsSet()
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
	return fmt.Sprintf("; %s of the card were free", t.CardFree)
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
		words += fmt.Sprintf("; %.0f %% of the forward pass is recomputed", 100*min(1, s.Twice))
	}
	if s.Slower > 0 {
		words += "; a step predicted to be " + slowerWords(s.Slower) + " than without remedies"
	}
	return words + "]"
}

// measured is the figure to compare a prediction with: the allocator's peak, or the host's where
// nothing was on a card.
func measured(t fit.Tried) event.Bytes {
	if t.Allocated == 0 && t.HostLimit > 0 {
		return t.Host
	}
	return t.Allocated
}

// slowerWords puts a share of additional time into words: 0.3 is 30 % slower.
func slowerWords(share float64) string {
	if share >= 1 {
		return fmt.Sprintf("%.2g times slower", 1+share)
	}
	return fmt.Sprintf("%.0f %% slower", 100*share)
}

// equivalenceWords compares an attempt's results with those of the unchanged program.
func equivalenceWords(t fit.Tried) string {
	switch why := t.Amplifies(); {
	case t.Equivalence() == remedy.Exact && why != "":
		return "the same up to rounding at first; this training amplifies rounding errors, so later " +
			"losses may differ clearly (" + why + ")"
	case t.Equivalence() == remedy.Exact && t.Rounds() != "":
		return "the same as with more memory, up to the rounding of " + t.Rounds()
	case t.Equivalence() == remedy.Exact:
		return "the same as with more memory, up to rounding (exact)"
	case t.Equivalence() == remedy.Expected:
		return "the same on average: random numbers, such as dropout masks, are drawn in another order " +
			"(expected)"
	}
	return "not the same: a remedy that you allowed changes the mathematics (changes)"
}

// cutJob is the job with the number of micro-batches that its batch was split into, as far as the
// remedy said so.
func cutJob(t fit.Tried, id remedy.ID, job remedy.Job) remedy.Job {
	job.Framework = cmp.Or(job.Framework, remedy.PyTorch)
	for _, s := range t.Said {
		if s.ID == id && id == remedy.MicroBatch && s.Kind == "applied" && s.Pieces > 1 {
			job.Batch, job.Pieces = s.Rows, s.Pieces
			break
		}
	}
	return job
}

// keepable are the remedies of an attempt that took effect and are not yet in the command: what an
// edit would make permanent.
func keepable(t fit.Tried) []fit.Remedy {
	return slices.DeleteFunc(slices.Clone(t.Remedies), func(r fit.Remedy) bool {
		applied := slices.ContainsFunc(t.Said,
			func(s fit.Sentence) bool { return s.ID == r.ID && s.Helped() })
		// a setting of the allocator of a card that was not used
		idle := r.Level == remedy.LevelEnv && t.Reserved == 0
		return r.Level == remedy.LevelArgs || idle || r.Level == remedy.LevelProcess && !applied
	})
}

// fitEdits shows what to type for what was applied, one remedy a paragraph: arguments where the
// command has such arguments, else code.
func fitEdits(say func(string, ...any), t fit.Tried, job remedy.Job, command []string) {
	for _, r := range keepable(t) {
		known, ok := remedy.Find(r.ID)
		if !ok {
			continue
		}
		job := cutJob(t, r.ID, job)
		how := known.HowTo(job)
		edit := how.Code
		if takes(command, how.Args) || edit == "" {
			edit = cmp.Or(how.Args, edit)
		}
		if r.Level == remedy.LevelEnv {
			edit = cmp.Or(how.Env, edit)
		}
		if edit == "" {
			continue
		}
		say("to keep it   %s:", known.TitleFor(job))
		for _, line := range strings.Split(edit, "\n") {
			say("               %s", line)
		}
		if twice(t, r.ID) {
			say("             nothing is computed twice then: usually %s", speed(known.Slowdown(
				remedy.Setup{})))
		}
	}
}

// twice reports whether a batch was split in a way that computes the forward pass twice, which
// memroom does to leave the program as it is, and an edit need not.
func twice(t fit.Tried, id remedy.ID) bool {
	return id == remedy.MicroBatch && slices.ContainsFunc(t.Said, func(s fit.Sentence) bool {
		return s.ID == id && s.Kind == "applied" && s.Twice > 0
	})
}

// takes reports whether a command takes such arguments: it has one of them already, or another of
// the same group (--trainer.max_epochs shows that --trainer.precision is understood).
func takes(command []string, args string) bool {
	name, _, _ := strings.Cut(strings.TrimSpace(args), "=")
	name, _, _ = strings.Cut(name, " ")
	group, _, grouped := strings.Cut(name, ".")
	if !strings.HasPrefix(name, "-") && !strings.Contains(name, "_") {
		return false // no argument of the program: another launcher, or code
	}
	for _, word := range command {
		flag, _, _ := strings.Cut(word, "=")
		if flag == name || grouped && strings.HasPrefix(flag, group+".") {
			return true
		}
	}
	return false
}
