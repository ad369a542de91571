package diagnose

import (
	"slices"

	"memroom/event"
	"memroom/remedy"
)

// mostAdvice is how many remedies an explanation names. Where only words speak for them, what comes
// further down is the least supported and was wrong most often, so fewer are named: two, and three
// where the phase is shown but not which of the things that fill it there.
const (
	mostAdvice  = 5
	mostByWords = 2
	mostInPhase = 3
)

// openPhases are situations that name a phase of the work, whose cures are alternatives.
var openPhases = []string{"eval_batch", "eval_late", "eval_each"}

// most is how many remedies this explanation may name: more where the job was watched or where the
// bytes that each saves are known.
func (x *Explanation) most(saving Saving) int {
	if x.job.Facts == nil || saving != nil {
		return mostAdvice
	}
	if slices.Contains(openPhases, x.Detail) {
		return mostInPhase
	}
	return mostByWords
}

// advise fills in the best remedies, those with known bytes by what they save among equals.
func (x *Explanation) advise(saving Saving) {
	for _, id := range x.cures() {
		r, ok := remedy.Find(id)
		if !ok || len(x.Remedies) == x.most(saving) || x.has(id) || r.Fits(x.job) != "" {
			continue
		}
		a := adviceOf(r, x.job)
		if saving != nil {
			if low, high, ok := saving(r); ok {
				if high <= 0 {
					continue // the engine says that it would not help here
				}
				a.SavesLow, a.SavesHigh = &low, &high
			}
		}
		x.Remedies = append(x.Remedies, a)
	}
}

// adviceOf puts a remedy into the words of a job.
func adviceOf(r *remedy.Remedy, job remedy.Job) Advice {
	return Advice{ID: r.ID, Title: r.TitleFor(job), Why: r.WhyFor(job),
		Slowdown: r.Slowdown(setupOf(job)), Equivalence: r.Equivalence, How: r.HowTo(job),
		Unvalidated: r.Unvalidated}
}

// noteSavings says once what would make the bytes known that remedies save, where they are not.
func (x *Explanation) noteSavings(m Material, saving Saving) {
	switch {
	case len(x.Remedies) == 0 || situations[x.Detail].alone && x.Detail != "open" &&
		saving == nil || slices.ContainsFunc(x.Remedies,
		func(a Advice) bool { return a.SavesLow != nil }):
	case saving != nil:
		x.Warnings = append(x.Warnings, mutedSavings)
	case m.Verdict != nil || len(m.Findings) > 0:
		x.Warnings = append(x.Warnings, recordSavings)
	default:
		x.Warnings = append(x.Warnings, logSavings)
	}
}

// cures lists what helps in the situation, then what helps against its cause. On a card whose cause
// is unknown, it takes one cure for each of the parts that may fill it. In a notebook the second is
// always what failed cells still hold.
func (x *Explanation) cures() []remedy.ID {
	s := situations[x.Detail]
	list := slices.Concat(s.cures, cures[x.Cause])
	if x.beside != "" && !s.alone {
		list = x.sideBySide(list)
	}
	switch {
	case len(x.found) > 0:
		list = nil
		for _, id := range x.found {
			list = append(list, remedy.ID(id))
		}
	case s.alone:
		list = s.cures
	case x.Cause == CauseUnknown && (x.Where == event.WhereGPU || x.Where == event.WhereMPS):
		list = slices.Concat(s.cures, situations["open"].cures)
	}
	// where a model is trained, activations are mostly the larger part
	if x.Detail == "open" && x.job.Work == remedy.Training {
		list = slices.Clone(list)
		i, j := slices.Index(list, remedy.OptimizerOffload), slices.Index(list, remedy.Checkpointing)
		if i >= 0 && j >= 0 { // what a finding names need not have them
			list[i], list[j] = list[j], list[i]
		}
	}
	switch { // one array that large is as often a mistake
	case x.Cause != CauseHostData || x.Detail != "" || x.job.Asked < wrongShape || len(list) == 0:
	case x.job.Asked >= nobodysArray:
		list = slices.Insert(slices.Clone(list), 0, remedy.CheckShapes)
	default:
		list = slices.Insert(slices.Clone(list), 1, remedy.CheckShapes)
	}
	if x.job.Framework == remedy.JAX && x.Where == event.WhereGPU && x.Cause == CauseUnknown &&
		x.Capacity == nil && x.job.Maker != remedy.Google && len(list) > 0 {
		list = slices.Insert(slices.Clone(list), 1, remedy.TFGrowth) // it takes a part of a card only
	}
	if x.job.Framework == remedy.JAX && x.Where == event.WhereGPU && x.Cause == CauseBatch &&
		x.job.Work != remedy.Training && !ofTPU.MatchString(x.Text) && x.Detail != "oversized" &&
		len(list) > 0 { // where it cannot be given less
		list = slices.Insert(slices.Clone(list), 1, remedy.ShorterSequence, remedy.UnifiedMemory)
	}
	if x.job.Notebook && x.Where == event.WhereGPU && x.Cause != CauseNeighbour &&
		x.Cause != CauseSetting && x.Cause != CauseBug && len(list) > 0 {
		list = slices.Insert(slices.Clone(list), 1, remedy.NotebookState)
	}
	return list
}

// sideBySide puts the cures of the second situation behind the first of the cause that fits.
func (x *Explanation) sideBySide(own []remedy.ID) []remedy.ID {
	at := slices.IndexFunc(own, func(id remedy.ID) bool {
		r, ok := remedy.Find(id)
		return ok && r.Fits(x.job) == ""
	})
	return slices.Concat(own[:at+1], situations[x.beside].cures, own[at+1:])
}

func (x *Explanation) has(id remedy.ID) bool {
	return slices.ContainsFunc(x.Remedies, func(a Advice) bool { return a.ID == id })
}

func setupOf(job remedy.Job) remedy.Setup {
	if job.Setup != nil {
		return *job.Setup
	}
	return remedy.Setup{Batch: job.Batch, Accumulate: job.Accumulate}
}
