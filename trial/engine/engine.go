package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"memroom/event"
	"memroom/trial"
)

// Engine works on one study. It has one goroutine; the backend's events come through a channel.
type Engine struct {
	Spec    Spec
	Dir     string
	Study   *trial.Study
	Backend trial.Backend
	// Searcher proposes points; nil: the spec's own method does.
	Searcher Searcher
	// Rehearser finds out how much memory settings take before they are started; nil: that is
	// learnt from runs.
	Rehearser Rehearser
	// Note is called with a line about what happened; Refresh is called a few times a second.
	Note    func(string)
	Refresh func()

	journal  *journal
	sampler  *trial.Sampler
	wanted   int // trials in all
	runs     map[string]*attempt
	capacity trial.Capacity
	measured time.Time // capacity
	began    time.Time
	told     string // last note about waiting
	heldAll  time.Time
	frozen   error  // the journal cannot be written: nothing new is started
	over     string // why the study ends before all trials were started
	marked   bool   // the journal's first line names this study
	rehearse rehearsing
}

// Searcher proposes points and hears what became of them: somebody else's sampler and pruner.
type Searcher interface {
	// Ask returns the point of a new trial; ok is false when there is none for now.
	Ask(id int) (p trial.Params, ok bool, err error)
	// Prune takes a report and returns whether the trial should end.
	Prune(id, step int, value float64) (bool, error)
	// Tell is called once for each trial that is over.
	Tell(t *trial.Trial) error
}

// attempt is one that runs now.
type attempt struct {
	run    string
	trial  int
	reader *trial.Reader
	stop   string // why we end it
	state  trial.State
	began  time.Time
	usage  trial.Usage
	limit  event.Bytes
	card   event.Bytes // what its allocator may take of a card, as it was last set
}

// Load opens a study, new or old, and takes its lock.
func Load(dir string) (*Engine, error) {
	spec, err := ReadSpec(dir)
	if err != nil {
		return nil, err
	}
	e, err := prepare(dir, spec)
	if err != nil {
		return nil, err
	}
	if there := filepath.Base(dir); there != spec.Name {
		return nil, fmt.Errorf("the folder %s holds study %s, whose runs have that name: call the folder "+
			"%[2]s again", there, spec.Name)
	}
	e.journal, err = openJournal(dir, e.replay)
	if err == nil {
		if err = e.checkJournal(); err != nil {
			e.journal.close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("study %s: %w", spec.Name, err)
	}
	return e, nil
}

// checkJournal reports a journal that was emptied or is gone. Studies of before have no ID.
func (e *Engine) checkJournal() error {
	if e.Spec.ID == "" || e.marked {
		return nil
	}
	return fmt.Errorf("%s is empty or gone, and with it what the study has done: take the file back "+
		"from a backup, or begin a new study", journalFile)
}

func prepare(dir string, spec Spec) (e *Engine, err error) {
	e = &Engine{Spec: spec, Dir: dir, Study: trial.NewStudy(spec.Options),
		runs: map[string]*attempt{}, began: time.Now()}
	if spec.ASHA != nil {
		e.Study.ASHA = trial.NewASHA(spec.ASHA.Grace, spec.ASHA.MaxT, spec.ASHA.Factor,
			spec.Options.Mode != "max")
	}
	if spec.Method != External {
		if e.sampler, err = trial.NewSampler(spec.Space, spec.Method, spec.Seed); err != nil {
			return nil, err
		}
	}
	e.wanted = e.count(spec.Samples)
	return e, nil
}

// External is the method of a study whose points come from a [Searcher].
const External trial.Method = "external"

func (e *Engine) count(samples int) int {
	if e.sampler == nil {
		return samples
	}
	return e.sampler.Count(samples)
}

// Wanted is how many trials the study has in all.
func (e *Engine) Wanted() int { return e.wanted }

// Rest are the points of trials that nobody has come to yet, as far as they are known before.
func (e *Engine) Rest() []trial.Params {
	var out []trial.Params
	for i := len(e.Study.Trials); i < e.wanted && e.sampler != nil; i++ {
		out = append(out, e.sampler.Point(i))
	}
	return out
}

// Close releases the lock.
func (e *Engine) Close() { e.journal.close() }

// mostTrials bounds the numbers of trials in a journal. A study has thousands.
const mostTrials = 1 << 22

// replay applies one line of the journal.
func (e *Engine) replay(line entry) error {
	if line.Trial < 0 || line.Trial >= mostTrials {
		return fmt.Errorf("%d is not the number of a trial", line.Trial)
	}
	switch line.Kind {
	case "study":
		if e.marked = line.ID == e.Spec.ID; !e.marked {
			return errors.New("it begins the journal of another study")
		}
	case "start":
		if line.Start == nil || line.Trial < 0 {
			return errors.New("a start without its attempt")
		}
		if err := e.restorePoint(line); err != nil {
			return err
		}
		e.Study.Start(line.Trial, *line.Start)
	case "skip":
		if line.Trial < 0 {
			return errors.New("a skipped trial without a number")
		}
		if err := e.restorePoint(line); err != nil {
			return err
		}
		e.Study.Skipped(line.Trial, line.Why)
	case "undo":
		if line.Trial < len(e.Study.Trials) {
			e.Study.Undo(line.Trial)
		}
	case "resize":
		if line.Device > 0 {
			e.Study.ResizedDevice(line.Trial, line.Device)
		} else {
			e.Study.Resized(line.Trial, line.Host)
		}
	case "end":
		if line.End == nil {
			return errors.New("an end without its outcome")
		}
		return e.Study.Restore(line.Trial, *line.End)
	case "more":
		e.wanted = max(e.wanted, line.Samples)
	}
	return nil
}

// restorePoint adds the trials up to that of a line, with the settings that the line holds.
func (e *Engine) restorePoint(line entry) error {
	for len(e.Study.Trials) <= line.Trial {
		if e.sampler == nil && len(e.Study.Trials) < line.Trial {
			return fmt.Errorf("trial %d begins before those in front of it", line.Trial)
		}
		if e.sampler != nil {
			e.Study.Add(e.sampler.Point(len(e.Study.Trials)))
			continue
		}
		e.Study.Add(line.Params)
	}
	if len(line.Params) > 0 {
		now := e.Study.Trials[line.Trial].Params
		for i, one := range line.Params {
			if e.sampler != nil && (i >= len(now) || now[i].Name != one.Name) {
				return fmt.Errorf("trial %d ran with %s, which is no longer a parameter of %s", line.Trial,
					one.Name, specFile)
			}
		}
		for i := range line.Params {
			if i < len(line.Texts) {
				line.Params[i].Value.Text = line.Texts[i]
			}
		}
		e.Study.Trials[line.Trial].Params = line.Params
	}
	return nil
}

// More raises the number of trials by so many samples.
func (e *Engine) More(samples int) error {
	if e.Spec.Method == trial.Grid {
		if e.count(0) <= e.wanted {
			return errors.New("the grid has no more points")
		}
		samples = min(samples, e.count(0)-e.wanted)
	}
	e.wanted += e.count(samples)
	return e.journal.add(true, entry{Kind: "more", Samples: e.wanted, At: time.Now()})
}

// Rejoin takes up the attempts that an earlier process left running.
func (e *Engine) Rejoin() error {
	for _, t := range e.Study.Running() {
		a := t.Attempts[len(t.Attempts)-1]
		began, err := e.Backend.Rejoin(a.Run, launchOf(t, a))
		if err != nil {
			return fmt.Errorf("trial %d, run %s: %w", t.ID, a.Run, err)
		}
		if !began {
			if err := e.journal.add(true, entry{Kind: "undo", Trial: t.ID}); err != nil {
				return err
			}
			e.Study.Undo(t.ID)
			continue
		}
		if err := e.follow(a.Run, t.ID, a.Started, e.Study.Reserved(t.ID)); err != nil {
			return err
		}
		e.note("trial %d goes on where it was (run %s)", t.ID, a.Run)
	}
	return nil
}

func launchOf(t *trial.Trial, a trial.Attempt) trial.Launch {
	return trial.Launch{Trial: t.ID, Attempt: len(t.Attempts), Params: t.Params, Host: a.Host,
		Device: a.Device, Cards: a.Cards, CPUs: a.CPUs, Fit: a.Fit}
}

func (e *Engine) follow(run string, id int, began time.Time, limit event.Bytes) error {
	finder, err := trial.NewFinder(e.Spec.Options.Metric, e.Spec.Pattern)
	if err != nil {
		return err
	}
	e.runs[run] = &attempt{run: run, trial: id, reader: &trial.Reader{Finder: finder}, began: began,
		limit: limit}
	return nil
}

func (e *Engine) note(format string, args ...any) {
	if e.Note != nil {
		e.Note(fmt.Sprintf(format, args...))
	}
}

// ErrInterrupted is returned when the study was left before its end.
var ErrInterrupted = errors.New("interrupted")

const tick = 60 * time.Millisecond

// Run works until every trial is over, or ctx ends: then running trials are ended and wait.
func (e *Engine) Run(ctx context.Context) error {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	if err := e.measure(); err != nil {
		return err
	}
	e.beginRehearsals(ctx)
	defer e.rehearse.cancel()
	for {
		if e.frozen == nil && e.over == "" && ctx.Err() == nil {
			if err := e.startMore(); err != nil {
				if !errors.Is(err, errJournal) {
					return err
				}
				e.freeze(err)
			}
		}
		if len(e.runs) == 0 && e.done() {
			return e.frozen
		}
		select {
		case h := <-e.Backend.Events():
			if err := e.hear(h); err != nil {
				e.freeze(err)
			}
		case r := <-e.rehearse.results:
			e.rehearsed(r)
		case <-ticker.C:
			if most := e.Spec.Budget; most > 0 && time.Since(e.began) > most {
				e.finish(fmt.Sprintf("its time is over (--time-budget %s)", most), nil)
			}
			e.observe()
			if e.Refresh != nil {
				e.Refresh()
			}
		case <-ctx.Done():
			return e.leave()
		}
	}
}

// finish ends the study before all trials were started: what runs is stopped with what it reported.
func (e *Engine) finish(why string, but *attempt) {
	if e.over != "" {
		return
	}
	e.over = why
	e.note("the study ends: %s", why)
	for _, a := range e.runs {
		if a.stop == "" && a != but {
			e.end(a, trial.Stopped, why)
		}
	}
}

func (e *Engine) done() bool {
	return e.frozen != nil || e.over != "" ||
		e.Study.WaitingCount() == 0 && len(e.Study.Trials) >= e.wanted
}

// freeze: without a journal nothing may be started. What runs is heard to its end, which the next
// `resume` finds in the run's own record.
func (e *Engine) freeze(err error) {
	if e.frozen == nil {
		e.frozen = err
		e.note("%v; nothing more is started", err)
	}
}

var errJournal = errors.New("the study cannot be recorded, so no trial is started")

func (e *Engine) record(sync bool, lines ...entry) error {
	if err := e.journal.add(sync, lines...); err != nil {
		return fmt.Errorf("%w: %w", errJournal, err)
	}
	return nil
}

// leave ends what runs and lets it wait for the next time.
func (e *Engine) leave() error {
	for _, a := range e.runs {
		if a.stop == "" {
			a.stop, a.state = "the study was interrupted", trial.Waiting
			e.Backend.Stop(a.run)
		}
	}
	deadline := time.After(30 * time.Second)
	for len(e.runs) > 0 {
		select {
		case h := <-e.Backend.Events():
			if err := e.hear(h); err != nil {
				return err
			}
		case <-deadline:
			return ErrInterrupted // what is left goes on; resume finds it
		}
	}
	return ErrInterrupted
}

// measure asks for the capacity, at most a few times a second.
func (e *Engine) measure() error {
	if time.Since(e.measured) < tick/2 {
		return nil
	}
	c, err := e.Backend.Capacity()
	if err != nil {
		return err
	}
	e.capacity, e.measured = c, time.Now()
	return nil
}

// Capacity is the last reading.
func (e *Engine) Capacity() trial.Capacity { return e.capacity }

// fill keeps a window of waiting trials.
func (e *Engine) fill() error {
	const ahead = 256
	for len(e.Study.Trials) < e.wanted && e.Study.WaitingCount() < ahead {
		if e.Searcher == nil {
			e.Study.Add(e.sampler.Point(len(e.Study.Trials)))
			continue
		}
		if e.Study.WaitingCount() > 0 || !e.Study.Room(e.capacity) {
			return nil // a searcher learns from each result: it is asked as late as possible
		}
		p, ok, err := e.Searcher.Ask(len(e.Study.Trials))
		if err != nil {
			return fmt.Errorf("no further point: %w", err)
		}
		if !ok {
			if len(e.runs) == 0 {
				e.wanted = len(e.Study.Trials) // it has nothing more
			}
			return nil
		}
		e.Study.Add(p)
	}
	return nil
}

// startMore starts what fits now.
func (e *Engine) startMore() error {
	for {
		if err := e.fill(); err != nil {
			return err
		}
		if skipped, err := e.skip(); err != nil {
			return err
		} else if skipped {
			continue
		}
		if err := e.measure(); err != nil {
			return err
		}
		e.rehearseNext()
		l, ok := e.Study.Next(e.capacity)
		if !ok {
			e.sayWhatIsAwaited()
			return nil
		}
		if err := e.launch(l); err != nil {
			return err
		}
		e.measured = time.Time{}
	}
}

// skip ends waiting trials that are known not to fit, and reports them to the searcher.
func (e *Engine) skip() (any bool, err error) {
	for _, t := range e.Study.Skip() {
		line := entry{Kind: "skip", Trial: t.ID, Why: t.Why}
		line.setParams(t.Params)
		if err := e.record(true, line); err != nil {
			return true, err
		}
		e.note("trial %d %s: %s (%s)", t.ID, t.State, t.Why, t.Params)
		if e.Searcher != nil {
			if err := e.Searcher.Tell(t); err != nil {
				return true, fmt.Errorf("a result cannot be handed to the search: %w", err)
			}
		}
		any = true
	}
	return any, nil
}

// sayWhatIsAwaited notes once why nothing runs.
func (e *Engine) sayWhatIsAwaited() {
	if len(e.runs) > 0 || e.Study.WaitingCount() == 0 || time.Since(e.began) < 2*time.Second {
		return
	}
	text := fmt.Sprintf("waiting for memory: %s are free, others on this machine hold the rest",
		e.capacity.HostFree)
	if e.told == "" {
		e.told = text
		e.note("%s", text)
	}
}

// launch records an attempt and starts it.
func (e *Engine) launch(l trial.Launch) error {
	l.Cap = e.Study.FirstCap(l, e.capacity)
	if err := e.journal.reserve(len(e.runs) + 1); err != nil {
		return fmt.Errorf("%w: %w", errJournal, err)
	}
	run, err := e.Backend.Prepare(l)
	if err != nil {
		return fmt.Errorf("%w: trial %d: %w", errJournal, l.Trial, err)
	}
	a := trial.Attempt{Run: run, Host: l.Host, Upper: l.Upper, Guess: l.Guess,
		Device: l.Device, Cards: l.Cards, CPUs: l.CPUs,
		Fit: l.Fit, Why: l.Why, Started: time.Now()}
	line := entry{Kind: "start", Trial: l.Trial, Start: &a}
	if l.Attempt == 1 {
		line.setParams(l.Params)
	}
	if err := e.record(true, line); err != nil {
		return err
	}
	e.Study.Start(l.Trial, a)
	if err := e.follow(run, l.Trial, a.Started, l.Host); err != nil {
		return err
	}
	e.runs[run].card = e.Study.CardCap(l.Trial, e.capacity)
	e.slacken()
	if err := e.Backend.Start(run); err != nil {
		return e.ended(e.runs[run], trial.Outcome{NotStarted: err.Error(), ExitCode: 125})
	}
	e.told = ""
	return nil
}

// hear takes what an attempt did.
func (e *Engine) hear(h trial.Happening) error {
	a := e.runs[h.Run]
	if a == nil {
		return nil
	}
	if a.stop == "" {
		for _, r := range a.reader.Feed(h.Output) {
			e.reading(a, r)
		}
	}
	if _, gaveUp := h.Values[PrunedMark]; gaveUp && a.stop == "" {
		e.end(a, trial.Stopped, "pruned by its own pruner")
	}
	switch over, told := h.Values[OverMark]; {
	case told && over == OverFailed:
		e.finish("a trial failed, and fail_fast is set", a)
	case told:
		e.finish("the program's own rule ended it", nil)
	}
	if h.Values != nil {
		if v, ok := valueOf(h.Values, e.Spec.Options.Metric); ok {
			r := trial.Reading{Value: v, Step: h.Step, Trust: trial.TrustReport}
			if h.Final {
				r.Trust = trial.TrustFinal
			}
			e.reading(a, r)
		}
	}
	if h.Tight {
		e.tight(a)
	}
	if h.Gone && e.Searcher == nil && e.Study.Vacate(a.trial) { // a searcher hears the result first
		e.measured = time.Time{}
	}
	if h.End == nil {
		return nil
	}
	for _, r := range a.reader.Last() {
		e.reading(a, r)
	}
	return e.ended(a, *h.End)
}

// AnyMetric is the name of a value that a program reports without one: Optuna's trial.report.
const AnyMetric = "*"

// NoMetric stands in for a metric where a program of memroom.tune names none: the trials only run.
const NoMetric = "memroom_done"

// PrunedMark is reported by a trial that its own pruner ended: Optuna's, inside of the program.
const PrunedMark = "memroom_pruned"

// OverMark is reported by a trial whose report ends the whole study, by the program's own rule.
const OverMark = "memroom_over"

// OverFailed is OverMark's value where the trial itself fails. Its own end reports the failure.
const OverFailed = 2

// valueOf finds the metric among reported values; eval_loss is also what somebody calls
// eval/loss.
func valueOf(values map[string]float64, metric string) (float64, bool) {
	for _, name := range []string{metric, AnyMetric} {
		if v, ok := values[name]; ok {
			return v, true
		}
	}
	same := strings.NewReplacer("/", "_", "-", "_", " ", "_")
	for name, v := range values {
		if same.Replace(name) == same.Replace(metric) {
			return v, true
		}
	}
	return 0, false
}

func (e *Engine) reading(a *attempt, r trial.Reading) {
	if a.stop != "" {
		return
	}
	switch e.Study.Reading(a.trial, r) {
	case trial.StopEarly:
		e.end(a, trial.Stopped, "stopped early: not among the best at this point")
	case trial.StopDone:
		e.end(a, trial.Finished, "it reached the longest training")
	case trial.GoOn:
		if e.Searcher == nil {
			return
		}
		history := e.Study.Trials[a.trial].History()
		if len(history) == 0 {
			return
		}
		last := history[len(history)-1]
		if prune, err := e.Searcher.Prune(a.trial, last.Step, last.Value); err == nil && prune {
			e.end(a, trial.Stopped, "pruned by the searcher")
		}
	}
}

// end asks the backend to end an attempt for a reason.
func (e *Engine) end(a *attempt, state trial.State, why string) {
	a.stop, a.state = why, state
	e.Backend.Stop(a.run)
}

// ended decides what follows and records it before it notifies anybody.
func (e *Engine) ended(a *attempt, o trial.Outcome) error {
	delete(e.runs, a.run)
	if o.Unrecorded {
		return e.takeBack(a, o)
	}
	o.PeakHost = max(o.PeakHost, a.usage.Peak)
	o.PeakDevice = max(o.PeakDevice, a.usage.Device)
	if a.stop != "" && (o.ExitCode != 0 || a.state != trial.Waiting) {
		o = o.EndedByUs(a.stop, a.state)
	}
	if err := e.measure(); err != nil {
		return err
	}
	t := e.Study.Trials[a.trial]
	t.Text = a.reader.Text
	e.Study.End(a.trial, time.Now(), o, e.capacity)
	ending := e.Study.Ending(a.trial)
	if err := e.record(true, entry{Kind: "end", Trial: a.trial, End: &ending}); err != nil {
		return err
	}
	e.measured = time.Time{}
	e.tellEnd(t, o)
	if t.State.Over() && e.Searcher != nil {
		if err := e.Searcher.Tell(t); err != nil {
			return fmt.Errorf("a result cannot be handed to the search: %w", err)
		}
	}
	return nil
}

// takeBack lets a trial wait again that was not started, because there is no room for its record.
// Nothing more is started then.
func (e *Engine) takeBack(a *attempt, o trial.Outcome) error {
	e.Study.Undo(a.trial)
	err := e.record(true, entry{Kind: "undo", Trial: a.trial})
	return errors.Join(fmt.Errorf("%w: %s", errJournal, o.NotStarted), err)
}

// tellEnd notes in one line what became of an attempt.
func (e *Engine) tellEnd(t *trial.Trial, o trial.Outcome) {
	tail := fmt.Sprintf("peak %s", o.Peak())
	if o.PeakDevice > 0 {
		tail += fmt.Sprintf(", %s on the card", o.PeakDevice)
	}
	switch {
	case e.Spec.Options.Metric == NoMetric && t.State == trial.Finished:
		e.note("trial %d %s (%s; %s)", t.ID, t.State, t.Params.Short(), tail)
	case t.State == trial.Waiting:
		e.note("trial %d waits again: %s", t.ID, t.Why)
	case t.Value != nil && t.Why != "":
		e.note("trial %d %s with %s=%.6g: %s (%s; %s)", t.ID, t.State, e.Spec.Options.Metric, *t.Value,
			t.Why, t.Params.Short(), tail)
	case t.Value != nil:
		e.note("trial %d %s: %s=%.6g (%s; %s)", t.ID, t.State, e.Spec.Options.Metric, *t.Value,
			t.Params.Short(), tail)
	default:
		e.note("trial %d %s: %s (%s; %s)", t.ID, t.State, t.Why, t.Params.Short(), tail)
	}
}

// observe reads the memory of running attempts. Reservations grow or shrink, or an attempt has to
// make way.
func (e *Engine) observe() {
	if err := e.measure(); err != nil {
		return
	}
	held := map[int]bool{}
	for _, t := range e.Study.Running() {
		a := e.runs[t.Attempts[len(t.Attempts)-1].Run]
		if a == nil {
			continue
		}
		u, ok := e.Backend.Usage(a.run)
		age := time.Since(a.began)
		if ok {
			age = u.Age // in a cluster's queue nobody gets older
		}
		if most := e.Spec.MaxTime; most > 0 && age > most && a.stop == "" {
			e.end(a, trial.Stopped, fmt.Sprintf("it ran longer than %s (--max-time)", most))
		}
		if !ok {
			continue
		}
		a.usage = u
		if most := e.Spec.MaxLog; most > 0 && u.Printed > most && a.stop == "" {
			e.end(a, trial.Failed, fmt.Sprintf("it printed more than %s (--max-log)", most))
		}
		if tight := e.Study.Observe(t.ID, u); tight > 0 {
			e.resize(a, tight)
		}
		e.observeDevice(a, u)
		if grown := e.Study.Grow(t.ID, u, e.capacity); grown > 0 {
			e.resize(a, grown)
		} else if u.Held {
			held[t.ID] = true
		}
	}
	e.slacken()
	e.capCards()
	e.makeWay(held)
}

// tight grows an attempt's reservation at once, if there is memory left. Otherwise the attempt
// would stand still until the next tick.
func (e *Engine) tight(a *attempt) {
	u, ok := e.Backend.Usage(a.run)
	if !ok || e.measure() != nil {
		return
	}
	a.usage = u
	_ = e.Study.Observe(a.trial, u)
	if grown := e.Study.Grow(a.trial, u, e.capacity); grown > 0 {
		e.resize(a, grown)
	} else if pauser, ok := e.Backend.(trial.Pauser); ok && e.Study.Near(a.trial, u) {
		pauser.Pause(a.run, true) // until there is more: the limit itself is not safe
	}
}

func (e *Engine) resize(a *attempt, host event.Bytes) {
	if host == a.limit {
		return
	}
	if err := e.Backend.Resize(a.run, host); err != nil {
		e.Study.Resized(a.trial, a.limit)
		return
	}
	if pauser, ok := e.Backend.(trial.Pauser); ok && host > a.limit {
		pauser.Pause(a.run, false)
	}
	a.limit = host
	e.slacken()
	_ = e.record(false, entry{Kind: "resize", Trial: a.trial, Host: host})
}

// observeDevice makes a trial that got a whole card return what it does not take, or lets a trial
// grow.
func (e *Engine) observeDevice(a *attempt, u trial.Usage) {
	device := e.Study.ObserveDevice(a.trial, u)
	if device == 0 {
		device = e.Study.GrowDevice(a.trial, u, e.capacity)
	}
	if device > 0 {
		_ = e.record(false, entry{Kind: "resize", Trial: a.trial, Device: device})
	}
}

// capCards sets how much memory the trials' allocators may take now.
func (e *Engine) capCards() {
	resizer, ok := e.Backend.(trial.DeviceResizer)
	if !ok {
		return
	}
	for _, a := range e.runs {
		limit := e.Study.CardCap(a.trial, e.capacity)
		if limit == 0 || max(limit-a.card, a.card-limit) < limit/50 {
			continue
		}
		if resizer.ResizeDevice(a.run, limit) == nil {
			a.card = limit
		}
	}
}

// slacken sets how far trials may go beyond their reservations now.
func (e *Engine) slacken() {
	if s, ok := e.Backend.(trial.Slacker); ok {
		s.Slack(e.Study.Slack(e.capacity))
	}
}

// makeWay: when nobody can go on, one that waits for memory is let into its limit.
func (e *Engine) makeWay(held map[int]bool) {
	if len(held) == 0 || len(held) < len(e.runs) {
		e.heldAll = time.Time{}
		return
	}
	if e.heldAll.IsZero() {
		e.heldAll = time.Now()
	}
	if time.Since(e.heldAll) < 500*time.Millisecond {
		return
	}
	id, ok := e.Study.Victim(held)
	if !ok {
		return
	}
	e.heldAll = time.Time{}
	t := e.Study.Trials[id]
	e.Backend.Release(t.Attempts[len(t.Attempts)-1].Run)
}

// TrialDir is a trial's own folder in the study: rendered files lie there.
func (e *Engine) TrialDir(id int) string {
	return filepath.Join(e.Dir, "trials", fmt.Sprintf("%05d", id))
}

// Live describes an attempt for the screen.
type Live struct {
	Trial    *trial.Trial
	Usage    trial.Usage
	Reserved event.Bytes
	OnCard   event.Bytes // reserved on each of its cards
	Since    time.Time
}

// Live lists what runs now.
func (e *Engine) Live() []Live {
	var out []Live
	for _, t := range e.Study.Running() {
		l := Live{Trial: t, Reserved: e.Study.Reserved(t.ID),
			OnCard: e.Study.ReservedDevice(t.ID)}
		if a := e.runs[t.Attempts[len(t.Attempts)-1].Run]; a != nil {
			l.Usage, l.Since = a.usage, a.began
		}
		out = append(out, l)
	}
	return out
}

// View reads a study to look at it: no lock is taken and nothing is changed. A damaged journal is
// an error beside what its other lines say.
func View(dir string) (*Engine, error) {
	spec, err := ReadSpec(dir)
	if err != nil {
		return nil, err
	}
	e, err := prepare(dir, spec)
	if err != nil {
		return nil, err
	}
	file, err := os.Open(filepath.Join(dir, journalFile))
	if errors.Is(err, os.ErrNotExist) {
		return e, e.checkJournal()
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if _, err = readJournal(file, e.replay); err == nil {
		err = e.checkJournal()
	}
	return e, err
}

// Picture is the study as a page shows it. Secrets of the command are for the caller to mask.
func (e *Engine) Picture(now time.Time) trial.Picture {
	p := e.Study.Picture(e.Spec.Space, now)
	p.Name, p.Created, p.Command, p.Search = e.Spec.Name, e.Spec.Created, e.Spec.Command,
		string(e.Spec.Method)
	p.Wanted, p.Host, p.Device = e.Wanted(), e.Spec.HostMem, e.Spec.GPUMem
	if e.Spec.Optuna != nil {
		p.Search = "optuna"
	}
	p.Working = e.Working()
	return p
}

// Stamp changes whenever a study in a folder does.
func Stamp(dir string) string {
	stamp := ""
	for _, name := range []string{specFile, journalFile} {
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil {
			stamp += fmt.Sprintf("%x.%x.", info.Size(), info.ModTime().UnixNano())
		}
	}
	return stamp
}

// Names lists the studies below a folder, by name.
func Names(root string) (names []string, err error) {
	entries, err := os.ReadDir(root)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		if e.IsDir() && ValidName(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names, err
}

// Working reports whether the process that took the study's lock last is alive. It does not try the
// lock itself, because a process that starts at that moment would find it taken.
func (e *Engine) Working() bool {
	data, err := os.ReadFile(filepath.Join(e.Dir, lockFile))
	if err != nil {
		return false
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || pid <= 0 {
		return false
	}
	err = syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}
