package driver

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"memroom/event"
	"memroom/fit"
	"memroom/probe"
	"memroom/remedy"
	"memroom/supervise"
)

// Spec is the policy's part of the monitor's command line. Nothing in it is a secret.
type Spec struct {
	Allow       []string     `json:"allow,omitempty"`
	Forced      []fit.Remedy `json:"forced,omitempty"`
	First       []fit.Remedy `json:"first,omitempty"` // in effect from the first attempt
	Remembered  bool         `json:"remembered,omitempty"`
	MaxAttempts int          `json:"max_attempts"`
	Map         string       `json:"map,omitempty"`
	ResumeWith  string       `json:"resume_with,omitempty"`
	Checkpoints string       `json:"checkpoints,omitempty"`
	// file that what worked is written to; empty: nothing is
	Memory   string        `json:"memory,omitempty"`
	Command  []string      `json:"command"` // as the user wrote it, masked
	Card     string        `json:"card,omitempty"`
	GPULimit event.Bytes   `json:"gpu_limit,omitempty"`
	Patience time.Duration `json:"patience"` // for the card to be given back
}

// Policy decides, in the monitor, what a job that ran out of memory is launched again with.
type Policy struct {
	spec     Spec
	dir      string // the run's folder
	began    time.Time
	used     func() map[string]event.Bytes // of each card; nil: there is none
	baseline map[string]event.Bytes        // the same, before the job touched them
}

// New makes the policy of the run in dir, which began at that time. used reads the bytes in use on
// each card, by its UUID; nil where there is no card.
func New(spec Spec, dir string, began time.Time, used func() map[string]event.Bytes) *Policy {
	p := &Policy{spec: spec, dir: dir, began: began, used: used}
	if used != nil {
		p.baseline = used()
	}
	return p
}

// After implements supervise.Policy.
func (p *Policy) After(a supervise.Attempt) supervise.Decision {
	record, _ := ReadRecord(p.dir)
	record.Remembered = p.spec.Remembered
	tried := p.tried(a)
	record.Attempts = append(record.Attempts, tried)
	decision := p.decide(a, &record, tried)
	if err := replaceJSON(recordFile(p.dir), record); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return decision
}

func (p *Policy) decide(a supervise.Attempt, record *fit.Record,
	tried fit.Tried) supervise.Decision {
	switch {
	case a.Exit.Code == 0:
		if record.Hollow = record.NoTraining(); record.Hollow == "" {
			p.remember(*record)
		}
	case a.ToldToEnd:
		record.Impossible = "not launched again: it was told to end"
	case a.Verdict.IsOOM && a.Exit.InputSpent != "":
		record.Impossible = "not launched again: " + a.Exit.InputSpent
	case a.Verdict.IsOOM && a.Number >= p.spec.MaxAttempts:
		record.Impossible, record.Needs = p.facts(a, tried).GivenUp(a.Number)
	case a.Verdict.IsOOM:
		return p.next(a, record, tried)
	case a.Exit.InputSpent == "" && a.Number < p.spec.MaxAttempts:
		return p.retreat(a, record, tried)
	}
	return supervise.Decision{}
}

// next chooses the remedies and prepares the launch with them.
func (p *Policy) next(a supervise.Attempt, record *fit.Record,
	tried fit.Tried) supervise.Decision {
	found, err := Mapping(a.Launch.Dir, original(a.Launch), p.spec.Map)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	facts := p.facts(a, tried)
	facts.Stuck = record.Stuck()
	plan := fit.Choose(facts, fit.Options{Allow: p.spec.Allow, Forced: p.spec.Forced,
		Mapping: found, Uncut: record.Failed()})
	record.Left = plan.Left
	if plan.Impossible != "" {
		record.Impossible, record.Needs = plan.Impossible, plan.Needs
		return supervise.Decision{}
	}
	return p.launch(a, record, tried, plan)
}

// retreat makes another attempt after one that failed, not for lack of memory, in what the remedies
// do to the program's calls: with those that leave its calls whole. There is none where the failure
// is the program's own.
func (p *Policy) retreat(a supervise.Attempt, record *fit.Record,
	tried fit.Tried) supervise.Decision {
	ours := slices.ContainsFunc(a.Deaths,
		func(d supervise.Death) bool { return fit.CausedByCuts(d.Type, d.Frames) })
	if !ours || !record.Cured() {
		return supervise.Decision{}
	}
	uncut := fit.Uncut(tried.Remedies)
	if len(uncut) == 0 {
		return supervise.Decision{}
	}
	return p.launch(a, record, tried, fit.Plan{Remedies: uncut, Factor: fit.Factor(uncut),
		Title:   "no smaller micro-batches and no activation checkpointing, which failed",
		Changed: []string{"no smaller micro-batches and no activation checkpointing, which failed"}})
}

// launch prepares the next attempt with what was chosen.
func (p *Policy) launch(a supervise.Attempt, record *fit.Record, tried fit.Tried,
	plan fit.Plan) supervise.Decision {
	// the error was reported when the remedies were chosen
	found, _ := Mapping(a.Launch.Dir, original(a.Launch), p.spec.Map)
	args, words := rewritten(p.dir, a.Launch.Dir, original(a.Launch), found, plan.Factor)
	changed := slices.Concat(plan.Changed, words)
	title := strings.Join(append([]string{plan.Title}, words...), "; ")
	args, resumed := p.resume(a.Launch.Dir, args)
	if resumed != "" {
		changed = append(changed, "going on from "+resumed)
		title += "; going on from " + resumed
	}
	apply, err := writeApply(p.dir, a.Number+1, plan.Remedies)
	if err != nil {
		record.Impossible = fmt.Sprintf("not launched again: the remedies could not be written: %v",
			err)
		return supervise.Decision{}
	}
	p.waitForCards()
	writePlanned(p.dir, a.Number+1, planned{plan.Remedies, title, changed, resumed})
	return supervise.Decision{Again: true, Args: args, Changed: changed,
		Env: setEnv(a.Launch.Env, "MEMROOM_APPLY", apply),
		Note: fmt.Sprintf("attempt %d %s. Attempt %d begins, with %s.", a.Number, tried.Ending(),
			a.Number+1, title)}
}

// original is the command as the user wrote it: each attempt is rewritten from there.
func original(l supervise.Launch) []string {
	if l.Command != nil {
		return l.Command
	}
	return l.Args
}

// facts are the attempt's end in the words of the choice.
func (p *Policy) facts(a supervise.Attempt, tried fit.Tried) fit.Facts {
	f := fit.Facts{Where: a.Verdict.Where, On: tried.Remedies, Limit: p.spec.GPULimit,
		UsesGPU: tried.Allocated > 0, Idle: tried.Idle(), Refused: tried.Refused(), Whole: tried.Whole(),
		Foreign: tried.Foreign(), Libraries: tried.Libraries, Steps: a.LastStep,
		Framework: Framework(a.Launch.Dir, original(a.Launch), tried.Frameworks...)}
	f.Hopeless, f.Needs = tried.Hopeless()
	if f.Foreign != "" {
		command := original(a.Launch)
		script := fit.Script(command)
		f.Foreign = fit.InScript(f.Foreign, script, contents(a.Launch.Dir, command)[script])
	}
	for _, finding := range a.Findings {
		f.Leaked = max(f.Leaked, finding.Leaked(f.Where, a.LastStep))
		if finding.Kind == "filled" && len(finding.Frames) > 0 {
			frame := finding.Frames[0]
			f.Line = fmt.Sprintf("%s:%d", path.Base(frame.File), frame.Line)
		}
	}
	if f.Where != event.WhereGPU && f.Where != event.WhereMPS {
		f.Limit = a.Peaks.HostLimit
		return f
	}
	if n := len(a.OOMs); n > 0 {
		oom := a.OOMs[n-1]
		f.Phase, f.Requested, f.Allocated, f.Reserved = oom.Phase, oom.Requested, oom.Allocated,
			oom.Reserved
		if f.Limit == 0 {
			f.Limit = oom.Reserved + oom.Free
		}
		if oom.Limit > 0 {
			f.Limit = min(f.Limit, oom.Limit)
		}
	}
	if said := tried.Limit(); said > 0 {
		f.Limit = said // a cap that the program set itself is known only inside it
	}
	return f
}

// tried describes an attempt that has ended.
func (p *Policy) tried(a supervise.Attempt) fit.Tried {
	t := fit.Tried{Number: a.Number, ExitCode: a.Exit.Code, StepMS: a.StepMS, Steps: a.LastStep,
		Host: a.Peaks.Unreclaimable, Libraries: a.Libraries,
		Frameworks: a.Frameworks}
	given, err := readPlanned(p.dir, a.Number)
	if err != nil && a.Number == 1 {
		given = planned{Remedies: p.spec.First, Changed: fit.Words(p.spec.First)}
	}
	t.Remedies, t.Title, t.Changed, t.Resumed = given.Remedies, given.Title, given.Changed,
		given.Resumed
	if a.Verdict.IsOOM {
		t.OutOf = a.Verdict.Where
	}
	for _, d := range a.Peaks.Devices {
		t.Allocated, t.Reserved = max(t.Allocated, d.Allocated), max(t.Reserved, d.Reserved)
	}
	for _, o := range a.OOMs {
		t.Allocated, t.Reserved = max(t.Allocated, o.Allocated), max(t.Reserved, o.Reserved)
		t.Requested, t.Held, t.CardFree = o.Requested, o.Allocated, o.Free
	}
	if t.Reserved == 0 {
		t.HostLimit = a.Peaks.HostLimit
	}
	// A rank of the attempt before may end late, when the others are gone.
	if t.OutOf == "" && a.Exit.Code != 0 && len(a.Deaths) > 0 {
		t.Failed = a.Deaths[0].Line()
	}
	for _, s := range a.Said {
		t.Said = append(t.Said, sentence(s))
	}
	return t
}

func sentence(s probe.Said) fit.Sentence {
	return fit.Sentence{Kind: s.Kind, Text: s.Text, ID: remedy.ID(s.ID), Predicted: s.Predicted,
		Needs: s.Needs, Limit: s.Limit, Slight: s.Slight,
		Rows: s.Rows, Pieces: s.Pieces, Twice: s.Twice, Slower: s.Slower,
		Equivalence: s.Equivalence, Amplifies: s.Amplifies, Rounds: s.Rounds}
}

// waitForCards waits until the cards hold no more than before the job, so that the next attempt
// finds the same room. On a shared card another job may have taken it: then it is over when nothing
// moves any more.
func (p *Policy) waitForCards() {
	const slack, pause, still = 64 * event.MiB, 200 * time.Millisecond, 15
	deadline := time.Now().Add(p.spec.Patience)
	var before map[string]event.Bytes
	for same := 0; p.used != nil && same < still && time.Now().Before(deadline); {
		back, moved, used := true, false, p.used()
		for uuid, bytes := range used {
			back = back && bytes <= p.baseline[uuid]+slack
			moved = moved || bytes != before[uuid]
		}
		if back {
			return
		}
		if same++; moved {
			same = 0
		}
		before = used
		time.Sleep(pause)
	}
}

// remember keeps what made the job fit. A job that never ran out has nothing to remember, whatever
// was demanded for it; nor has one that nothing made smaller.
func (p *Policy) remember(r fit.Record) {
	last := r.Last()
	if p.spec.Memory == "" || len(last.Remedies) == 0 || !r.Cured() || !last.Helped() {
		return
	}
	m := fit.Remembered{Command: p.spec.Command, Card: p.spec.Card, Limit: p.spec.GPULimit,
		Remedies: last.Remedies,
		Peak:     last.Reserved, Attempts: len(r.Attempts), When: time.Now()}
	before, _ := ReadMemory(p.spec.Memory)
	m.RanOut = max(before.RanOut, r.RanOut())
	m.Remedies = m.Relaxed(last.Limit())
	if err := writeMemory(p.spec.Memory, m); err != nil {
		fmt.Fprintln(os.Stderr, "remember what worked:", err)
	}
}
