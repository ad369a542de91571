package explain

import (
	"fmt"
	"slices"
	"strings"

	"memroom/diagnose"
	"memroom/event"
	"memroom/remedy"
	"memroom/trace"
)

// withRun adds what a supervised run knows beyond its output: how it ended, and what was noticed
// while it ran.
func withRun(x *Explanation, m Material, saving Saving) *Explanation {
	x = withVerdict(x, m, saving)
	switch {
	case x == nil:
		return explainFindings(m, saving)
	case x.IsOOM:
		x.heed(m.Findings, saving)
	default:
		for _, f := range telling(m.Findings) {
			x.Evidence = append(x.Evidence, "while it ran: "+f.Title)
		}
	}
	return x
}

// withVerdict lets the supervisor's counters speak: they prove a kill that a log can only suspect.
func withVerdict(x *Explanation, m Material, saving Saving) *Explanation {
	v := m.Verdict
	if v == nil || x != nil && x.IsOOM && x.Certainty >= 0.8 {
		return x
	}
	if !v.IsOOM {
		if x == nil && (v.ExitCode != 0 || v.Signal != "") {
			x = NothingFound()
			x.NotMemory = "the run ended without a sign of memory"
			x.Verdict = fmt.Sprintf("Not a memory problem as far as memroom saw: exit code %d.",
				v.ExitCode)
			x.Evidence = append([]string{}, v.Evidence...)
		}
		return x
	}
	if x == nil || !x.IsOOM {
		x = explainVerdict(m, saving)
	}
	x.Certainty = 0.98
	x.Rank = v.Rank
	return x
}

// explainVerdict explains an end of which only the supervisor knows.
func explainVerdict(m Material, saving Saving) *Explanation {
	c := &trace.Crash{Where: m.Verdict.Where, Sure: 1}
	own := m.HostLimit > 0 && c.Where != event.WhereGPU && (m.Verdict.KilledBy == "cgroup" ||
		m.Verdict.KilledBy == "memroom")
	switch {
	case own:
		c.Capacity = &m.HostLimit
	case c.Where == event.WhereCgroup && m.HostWall > 0:
		c.Capacity = &m.HostWall
	}
	x := NothingFound()
	x.IsOOM, x.Where, x.Capacity = true, c.Where, c.Capacity
	x.Account = account(c)
	x.Verdict = verdict(c, judged{cause: CauseUnknown})
	x.Evidence = append([]string{}, m.Verdict.Evidence...)
	x.job = jobOf(c, hintsOf(m.Logs))
	x.job.HostLimit, x.job.Setup, x.job.Slurm = own, m.Setup, m.Verdict.KilledBy == "slurm"
	x.job.Run = m.Run
	x.see(m.Seen)
	if m.Alone {
		x.job.On[remedy.DataLoaderWorkers] = "the run had no worker processes"
	}
	if m.NoCard {
		x.job.On[remedy.PinMemory] = "batches are pinned for a card, and none was seen"
	}
	if c.Where == event.WhereCgroup {
		x.Detail = "limit"
	}
	x.advise(saving)
	return x
}

// see adds what was seen of a run whose end only the supervisor knows: what it held, how far it
// came, and what a program that loaded no framework cannot be helped by.
func (x *Explanation) see(seen Seen) {
	if seen.Held > 0 {
		x.Account = append(x.Account, AccountLine{"held by its processes at most", seen.Held})
	}
	if seen.Tried != "" {
		x.Evidence = append([]string{"memroom run --fit: " + seen.Tried}, x.Evidence...)
	}
	switch host := x.Where == event.WhereHost || x.Where == event.WhereCgroup; {
	case !host || !seen.Python:
	case len(seen.Frameworks) == 0:
		x.Evidence = append(x.Evidence,
			"it had not loaded PyTorch, TensorFlow or JAX: what filled memory is Python's own data")
		x.job.Framework = remedy.Python
		x.job.On[remedy.MicroBatch] = "nothing was trained yet"
	case seen.Steps == 0:
		x.Evidence = append(x.Evidence, "no training step had ended when memory ran out")
	default:
		x.Evidence = append(x.Evidence, fmt.Sprintf("%d training steps had ended", seen.Steps))
	}
	if len(seen.Frameworks) > 0 && x.job.Framework == "" {
		x.job.Framework = remedy.Framework(seen.Frameworks[0])
	}
}

// Explainable reports whether something was found that [Explain] has an answer to although memory
// did not run out.
func Explainable(findings []event.Finding) bool {
	return len(telling(findings)) > 0 || len(others(findings)) > 0
}

// others are the findings that warn of something else than a cause of running out.
func others(findings []event.Finding) []event.Finding {
	return slices.DeleteFunc(slices.Clone(findings), func(f event.Finding) bool {
		_, explains := causeOf[f.Kind]
		return explains || f.Severity == event.SeverityInfo
	})
}

// explainFindings explains a run whose end shows no cause, from the findings made while it ran. It
// returns nil if there are none.
func explainFindings(m Material, saving Saving) *Explanation {
	found := telling(m.Findings)
	if len(found) == 0 {
		return explainOthers(m, saving)
	}
	x := NothingFound()
	x.Verdict, x.Certainty = "Memory has not run out so far", 0.5
	if m.Verdict != nil {
		x.Verdict, x.Certainty = "Memory did not run out, the run ended well", 0.95
	}
	x.job = jobOf(&trace.Crash{}, hintsOf(m.Logs))
	x.job.Setup, x.job.Run = m.Setup, m.Run
	ended := x.Verdict // the finding may bring a sentence of its own
	x.heed(found, saving)
	x.Verdict = fmt.Sprintf("%s; but this was found while it ran: %s.", ended, found[0].Title)
	x.Evidence = slices.DeleteFunc(x.Evidence, func(said string) bool {
		return said == "while it ran: "+found[0].Title
	})
	return x
}

// explainOthers explains a run whose findings are not causes of running out of memory, such as an
// unused card. It names the findings and the remedies for them.
func explainOthers(m Material, saving Saving) *Explanation {
	found := others(m.Findings)
	if len(found) == 0 {
		return nil
	}
	x := NothingFound()
	x.Verdict, x.Certainty = found[0].Title+". Memory did not run out.", 0.95
	x.job = jobOf(&trace.Crash{}, hintsOf(m.Logs))
	x.job.Setup, x.job.Run = m.Setup, m.Run
	for _, f := range found {
		if f.Title != found[0].Title {
			x.Evidence = append(x.Evidence, f.Title)
		}
		x.Evidence = append(x.Evidence, f.Evidence...)
		x.found = append(x.found, f.Remedies...)
	}
	if len(found[0].Frames) > 0 {
		x.Frame = &found[0].Frames[0]
	}
	if len(x.found) > 0 {
		x.advise(saving)
	}
	return x
}

// hintsOf returns the hints about the job in a run's output.
func hintsOf(logs []*trace.Log) *trace.Hints {
	if log := joined(logs); log != nil {
		return &log.Hints
	}
	return &trace.Hints{}
}

// telling keeps the findings that can explain an end, a leak before the forecast that follows from
// it. Those that were taken back have sunk to mere information.
func telling(findings []event.Finding) []event.Finding {
	var first, then []event.Finding
	for _, f := range findings {
		switch _, explains := causeOf[f.Kind]; {
		case !explains || f.Severity == event.SeverityInfo:
		case f.Kind == "forecast":
			then = append(then, f)
		default:
			first = append(first, f)
		}
	}
	return append(first, then...)
}

// causeOf maps the kinds of finding that explain an end.
var causeOf = map[string]Cause{"leak": CauseLeak, "fragmentation": CauseFragmentation,
	"filled":    CauseHostData,
	"neighbour": CauseNeighbour, "worker_growth": CauseHostData, "shm": CauseShm,
	"forecast": CauseLeak, "evaluation": CauseBatch, "models": CauseLeak,
	"feeding": CauseHostData, "checkpoint": CauseModel, "trials": CauseUnknown,
	"actor": CauseLeak, "object_store": CauseShm}

// explainsWall reports whether a cause can fill this kind of memory.
func explainsWall(cause Cause, where event.Where) bool {
	host := where == event.WhereHost || where == event.WhereCgroup
	switch cause {
	case CauseFragmentation, CauseNeighbour:
		return where == event.WhereGPU || where == event.WhereUnknown
	case CauseHostData:
		return host || where == event.WhereUnknown
	case CauseShm:
		return where == event.WhereShm || where == event.WhereUnknown
	}
	return true
}

// heed lets what was noticed while the job ran settle the cause: it saw the steps before the end.
func (x *Explanation) heed(findings []event.Finding, saving Saving) {
	for _, f := range telling(findings) {
		cause := causeOf[f.Kind]
		if !explainsWall(cause, x.Where) {
			continue
		}
		said := "while it ran: " + f.Title
		// a forecast predicts when memory runs out, not why
		if f.Confidence <= x.Confidence || f.Kind == "forecast" && x.Cause != CauseUnknown {
			x.Evidence = append(append(x.Evidence, said), f.Evidence...)
			continue
		}
		evidence := f.Evidence
		switch {
		case f.Kind == "filled":
			x.Verdict = f.Title + "."
		case x.IsOOM && x.Cause == CauseUnknown && f.Kind != "forecast":
			x.Verdict = f.Title + ". " + x.Verdict
		default:
			evidence = append([]string{said}, evidence...)
		}
		x.Cause, x.Detail, x.Confidence = cause, f.Detail, f.Confidence
		if f.Kind == "trials" {
			x.job.Trainer, x.job.Fits = remedy.RayTune, diagnose.Fitting(f.Title)
		}
		if f.Kind == "actor" || f.Kind == "object_store" {
			x.job.Trainer = remedy.RayTune
		}
		x.found, x.given, x.typed = nil, nil, nil
		if f.Detail != "" { // what saw the situation knows what helps in it
			x.found = f.Remedies
		}
		x.Evidence = slices.Concat(evidence, x.Evidence)
		if len(f.Frames) > 0 {
			x.Frame = &f.Frames[0]
		}
		x.Remedies = []Advice{}
		x.advise(saving)
		if f.Kind == "filled" {
			first, _, _ := strings.Cut(f.Title, ", by ") // of several lines
			x.inTheirWords(first)
		}
		x.lettingGo(f.Evidence)
	}
}
