package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"memroom/event"
	"memroom/trial"
)

// stage is a backend that does nothing by itself: a test decides what its attempts do.
type stage struct {
	launches []trial.Launch
	started  []string
	stopped  []string
	released []string
	limits   map[string]event.Bytes
	usage    map[string]trial.Usage
	known    []string // attempts that Rejoin finds
	broken   error    // what Start and Rejoin say
	events   chan trial.Happening
	asked    int // for the capacity
}

func (s *stage) Capacity() (trial.Capacity, error) {
	s.asked++
	return trial.Capacity{CPUs: 8, Host: 8 * event.GiB, HostFree: 8 * event.GiB}, nil
}

func (s *stage) Prepare(l trial.Launch) (string, error) {
	s.launches = append(s.launches, l)
	return fmt.Sprintf("run-%d-%d", l.Trial, l.Attempt), nil
}

func (s *stage) Start(run string) error {
	s.started = append(s.started, run)
	return s.broken
}

func (s *stage) Rejoin(run string, _ trial.Launch) (bool, error) {
	return slices.Contains(s.known, run), s.broken
}

func (s *stage) Usage(run string) (trial.Usage, bool) { u, ok := s.usage[run]; return u, ok }

func (s *stage) Resize(run string, host event.Bytes) error {
	s.limits[run] = host
	return nil
}

func (s *stage) Release(run string) { s.released = append(s.released, run) }

func (s *stage) Stop(run string) { s.stopped = append(s.stopped, run) }

func (s *stage) Events() <-chan trial.Happening { return s.events }

func (s *stage) Close() {}

// play is an engine on a stage, and what it said.
type play struct {
	*Engine
	on    *stage
	notes []string
}

// newStudy makes a study of a grid of four learning rates, changed as a test wants.
func newStudy(t *testing.T, change func(*Spec)) (dir string) {
	t.Helper()
	spec := Spec{Name: "s", Command: []string{"true"}, Method: trial.Grid,
		Space:   spaceOf(t, "lr", "choice(1,2,3,4)"),
		Options: trial.Options{Metric: "loss", Mode: "min", CPUs: 1, TrialHost: event.GiB}}
	if change != nil {
		change(&spec)
	}
	dir, err := Create(t.TempDir(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func opened(t *testing.T, dir string) *play {
	t.Helper()
	e, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	p := &play{Engine: e, on: &stage{limits: map[string]event.Bytes{},
		usage: map[string]trial.Usage{}, events: make(chan trial.Happening, 8)}}
	e.Backend = p.on
	e.Note = func(text string) { p.notes = append(p.notes, text) }
	t.Cleanup(e.Close)
	return p
}

func (p *play) more(t *testing.T) {
	t.Helper()
	if err := p.startMore(); err != nil {
		t.Fatal(err)
	}
}

func (p *play) tell(t *testing.T, h trial.Happening) {
	t.Helper()
	if err := p.hear(h); err != nil {
		t.Fatal(err)
	}
}

// said reports whether a note has all these words.
func (p *play) said(words ...string) bool {
	return slices.ContainsFunc(p.notes, func(note string) bool {
		return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(note, w) })
	})
}

func report(run string, step int, loss float64) trial.Happening {
	return trial.Happening{Run: run, Step: step, Values: map[string]float64{"loss": loss}}
}

func end(run string, o trial.Outcome) trial.Happening {
	return trial.Happening{Run: run, End: &o, Step: -1}
}

// TestAStudyFromItsJournal: whoever opens the folder next finds every trial as it was, with the
// settings, values and reservations of then.
func TestAStudyFromItsJournal(t *testing.T) {
	dir := newStudy(t, nil)
	p := opened(t, dir)
	p.more(t)
	if len(p.on.started) != 4 || p.Wanted() != 4 {
		t.Fatalf("%d started of %d", len(p.on.started), p.Wanted())
	}
	p.tell(t, report("run-0-1", 1, 0.5))
	p.tell(t, end("run-0-1", trial.Outcome{PeakHost: 300 * event.MiB, Seconds: 5}))
	p.tell(t, end("run-1-1", trial.Outcome{ExitCode: 1, Evidence: "ValueError"}))
	p.resize(p.runs["run-2-1"], 2*event.GiB)
	p.Close()
	again, err := View(dir)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []trial.State{trial.Finished, trial.Failed, trial.Running, trial.Running} {
		a, b := p.Study.Trials[i], again.Study.Trials[i]
		if b.State != want || a.Params.String() != b.Params.String() ||
			len(a.Attempts) != len(b.Attempts) || a.Attempts[0].Run != b.Attempts[0].Run {
			t.Errorf("trial %d: %s %s, want %s %s", i, b.State, b.Params, want, a.Params)
		}
	}
	if v := again.Study.Trials[0].Value; v == nil || *v != 0.5 {
		t.Errorf("value %v", v)
	}
	if got := again.Study.Reserved(2); got != 2*event.GiB {
		t.Errorf("reserved %s", got)
	}
	if !p.said("trial 0", "loss=0.5", "300MiB") || !p.said("trial 1", "failed", "ValueError") {
		t.Errorf("%q", p.notes)
	}
}

// TestRejoin checks that attempts that still run are followed, and that those that never began wait
// again. A backend that does not know stops everything.
func TestRejoin(t *testing.T) {
	dir := newStudy(t, nil)
	p := opened(t, dir)
	p.more(t)
	p.Close()
	p = opened(t, dir)
	p.on.known = []string{"run-1-1"}
	if err := p.Rejoin(); err != nil {
		t.Fatal(err)
	}
	if len(p.runs) != 1 || p.runs["run-1-1"].trial != 1 || p.Study.WaitingCount() != 3 ||
		!p.said("trial 1", "run-1-1") {
		t.Errorf("%d run, %d wait, %q", len(p.runs), p.Study.WaitingCount(), p.notes)
	}
	p.tell(t, report("run-1-1", 1, 7))
	p.tell(t, end("run-1-1", trial.Outcome{}))
	if one := p.Study.Trials[1]; one.State != trial.Finished || *one.Value != 7 {
		t.Errorf("%+v", one)
	}
	p.more(t)
	p.Close()
	p = opened(t, dir)
	p.on.broken = errors.New("no answer")
	if err := p.Rejoin(); err == nil || !strings.Contains(err.Error(), "run-0-1") {
		t.Errorf("%v", err)
	}
}

// TestMore: a grid has an end, samples have none.
func TestMore(t *testing.T) {
	grid := opened(t, newStudy(t, func(s *Spec) { s.Samples = 3 }))
	if err := grid.More(10); err != nil || grid.Wanted() != 4 {
		t.Errorf("%d points of 4, %v", grid.Wanted(), err)
	}
	if err := grid.More(1); err == nil || grid.Wanted() != 4 {
		t.Errorf("a grid grew to %d points, %v", grid.Wanted(), err)
	}
	dir := newStudy(t, func(s *Spec) { s.Method, s.Samples = trial.Random, 2 })
	p := opened(t, dir)
	if err := p.More(3); err != nil || p.Wanted() != 5 {
		t.Errorf("%d, %v", p.Wanted(), err)
	}
	p.Close()
	if again, err := View(dir); err != nil || again.Wanted() != 5 {
		t.Errorf("not written down: %d, %v", again.Wanted(), err)
	}
}

// TestWhoseMetric: the name as it is given, as others spell it, a value without a name; other
// values are nobody's.
func TestWhoseMetric(t *testing.T) {
	for _, c := range []struct {
		values map[string]float64
		metric string
		want   float64
		found  bool
	}{
		{map[string]float64{"loss": 1, "acc": 2}, "loss", 1, true},
		{map[string]float64{"eval/loss": 3}, "eval_loss", 3, true},
		{map[string]float64{"eval_loss": 4}, "eval/loss", 4, true},
		{map[string]float64{"eval loss": 4}, "eval-loss", 4, true},
		{map[string]float64{AnyMetric: 5}, "loss", 5, true},
		{map[string]float64{AnyMetric: 5, "loss": 6}, "loss", 6, true},
		{map[string]float64{"losses": 1}, "loss", 0, false}, {nil, "loss", 0, false},
	} {
		if got, ok := valueOf(c.values, c.metric); got != c.want || ok != c.found {
			t.Errorf("%v of %v: %v, %v", c.metric, c.values, got, ok)
		}
	}
}

// TestWhatEndsATrial from outside: its own pruner, the time, the log. What it does after that
// counts no more.
func TestWhatEndsATrial(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Spec)
		act    func(p *play)
		state  trial.State
		why    string
	}{
		"pruned": {nil, func(p *play) {
			p.tell(t, trial.Happening{Run: "run-0-1", Values: map[string]float64{PrunedMark: 1}})
		}, trial.Stopped, "pruned by its own pruner"},
		"too long": {func(s *Spec) { s.MaxTime = time.Hour }, func(p *play) {
			p.on.usage["run-0-1"] = trial.Usage{Age: time.Hour + 1}
			p.observe()
		}, trial.Stopped, "--max-time"},
		"too long, without a reading": {func(s *Spec) { s.MaxTime = time.Hour }, func(p *play) {
			p.runs["run-0-1"].began = time.Now().Add(-2 * time.Hour)
			p.observe()
		}, trial.Stopped, "--max-time"},
		"too much output": {func(s *Spec) { s.MaxLog = event.MiB }, func(p *play) {
			p.on.usage["run-0-1"] = trial.Usage{Printed: event.MiB + 1}
			p.observe()
		}, trial.Failed, "--max-log"},
		"nothing": {func(s *Spec) { s.MaxTime, s.MaxLog = time.Hour, event.MiB }, func(p *play) {
			p.on.usage["run-0-1"] = trial.Usage{Age: time.Hour, Printed: event.MiB}
			p.observe()
		}, trial.Failed, "SIGTERM"},
	} {
		p := opened(t, newStudy(t, c.change))
		p.more(t)
		p.tell(t, report("run-0-1", 1, 2))
		c.act(p)
		stopped := slices.Contains(p.on.stopped, "run-0-1")
		if stopped != (name != "nothing") || len(p.on.stopped) > 1 {
			t.Errorf("%s: stopped %v", name, p.on.stopped)
		}
		p.tell(t, report("run-0-1", 2, 99))
		p.tell(t, trial.Happening{Run: "run-0-1", Output: []byte("loss=98\n"), Step: -1})
		p.tell(t, end("run-0-1", trial.Outcome{ExitCode: 143, Signal: "SIGTERM"}))
		one := p.Study.Trials[0]
		if one.State != c.state || !strings.Contains(one.Why, c.why) {
			t.Errorf("%s: %s, %q", name, one.State, one.Why)
		}
		if one.State == trial.Stopped && (one.Value == nil || *one.Value != 2) {
			t.Errorf("%s: value %v", name, one.Value)
		}
	}
}

// TestATrialThatWeEndIsEnded: whatever its processes then die of, and whoever saw it. It is not
// tried again, and its value is the last one before its end.
func TestATrialThatWeEndIsEnded(t *testing.T) {
	ways := map[string]struct {
		change func(*Spec)
		act    func(p *play)
		state  trial.State
	}{
		"reached max_t": {func(s *Spec) { s.ASHA = &ASHASpec{Grace: 1, MaxT: 2, Factor: 2} },
			func(p *play) { p.tell(t, report("run-0-1", 2, 1)) }, trial.Finished},
		"stopped early": {func(s *Spec) { s.ASHA = &ASHASpec{Grace: 2, MaxT: 9, Factor: 2} },
			func(p *play) {
				p.Study.ASHA.Report(7, 2, 0.5)
				p.tell(t, report("run-0-1", 2, 1))
			}, trial.Stopped},
		"by its own pruner": {nil, func(p *play) {
			p.tell(t, report("run-0-1", 2, 1))
			p.tell(t, trial.Happening{Run: "run-0-1", Values: map[string]float64{PrunedMark: 1}})
		}, trial.Stopped},
		"by the searcher": {nil, func(p *play) {
			p.Searcher = &asking{prune: true}
			p.tell(t, report("run-0-1", 2, 1))
		}, trial.Stopped},
		"too long": {func(s *Spec) { s.MaxTime = time.Hour }, func(p *play) {
			p.tell(t, report("run-0-1", 2, 1))
			p.on.usage["run-0-1"] = trial.Usage{Age: time.Hour + 1}
			p.observe()
		}, trial.Stopped},
	}
	ends := map[string]trial.Outcome{
		"SIGTERM":          {ExitCode: 143, Signal: "SIGTERM"},
		"SIGKILL":          {ExitCode: 137, Signal: "SIGKILL"},
		"well":             {},
		"an error":         {ExitCode: 1, Evidence: "it said last: KeyboardInterrupt"},
		"at its limit":     {ExitCode: 143, Signal: "SIGTERM", AtLimit: true},
		"the kernel":       {ExitCode: 137, OOM: true, Where: event.WhereHost},
		"beside others":    {ExitCode: 137, OOM: true, Neighbour: true},
		"a card":           {ExitCode: 1, OOM: true, Where: event.WhereGPU},
		"nobody knows":     {ExitCode: -1, Lost: true},
		"was not to start": {ExitCode: 125, NotStarted: "no such file"},
	}
	for way, w := range ways {
		for name, o := range ends {
			p := opened(t, newStudy(t, w.change))
			p.more(t)
			p.tell(t, report("run-0-1", 1, 2))
			w.act(p)
			p.tell(t, report("run-0-1", 3, 99))
			o.PeakHost = 5 * event.MiB
			p.tell(t, end("run-0-1", o))
			one := p.Study.Trials[0]
			if one.State != w.state || one.Value == nil || *one.Value != 1 || len(one.Attempts) != 1 {
				t.Errorf("%s, then %s: %s, %v, %d attempts: %s", way, name, one.State, one.Value,
					len(one.Attempts), one.Why)
			}
			if got := one.Attempts[0].Outcome.PeakHost; got != o.PeakHost {
				t.Errorf("%s, then %s: peak %s", way, name, got)
			}
		}
	}
}

// TestPeaksAreTheLargestKnown checks that the last reading counts where it is above the peak that
// the end reports.
func TestPeaksAreTheLargestKnown(t *testing.T) {
	p := opened(t, newStudy(t, nil))
	p.more(t)
	p.on.usage["run-0-1"] = trial.Usage{Host: event.MiB, Peak: 500 * event.MiB, Device: 7 * event.MiB}
	p.observe()
	p.tell(t, end("run-0-1", trial.Outcome{PeakHost: 400 * event.MiB, PeakDevice: event.MiB}))
	p.tell(t, end("run-1-1", trial.Outcome{PeakHost: 400 * event.MiB}))
	if !p.said("trial 0", "500MiB", "7MiB on the card") || !p.said("trial 1", "400MiB") ||
		p.said("trial 1", "card") {
		t.Errorf("%q", p.notes)
	}
}

// TestTrialsWithoutAMetric only run: nobody misses a value.
func TestTrialsWithoutAMetric(t *testing.T) {
	p := opened(t, newStudy(t, func(s *Spec) { s.Options.Metric = NoMetric }))
	p.more(t)
	p.tell(t, trial.Happening{Run: "run-0-1", Step: 1,
		Values: map[string]float64{NoMetric: 1}})
	p.tell(t, end("run-0-1", trial.Outcome{}))
	if p.Study.Trials[0].State != trial.Finished || !p.said("trial 0 finished (") ||
		p.said(NoMetric) {
		t.Errorf("%s, %q", p.Study.Trials[0].State, p.notes)
	}
}

// TestSomebodyMakesWay when all that runs stands still, after half a second, and not before.
func TestSomebodyMakesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := opened(t, newStudy(t, nil))
		p.more(t)
		all := map[int]bool{0: true, 1: true, 2: true, 3: true}
		p.makeWay(all)
		time.Sleep(499 * time.Millisecond)
		p.makeWay(all)
		if len(p.on.released) != 0 {
			t.Fatal("at once")
		}
		p.makeWay(map[int]bool{0: true}) // the others go on
		time.Sleep(2 * time.Millisecond)
		p.makeWay(all)
		if len(p.on.released) != 0 {
			t.Fatal("they had gone on in between")
		}
		time.Sleep(501 * time.Millisecond)
		p.makeWay(all)
		p.makeWay(all)
		if len(p.on.released) != 1 {
			t.Errorf("released %v", p.on.released)
		}
		p.makeWay(nil)
		if !p.heldAll.IsZero() {
			t.Error("nobody stands still")
		}
	})
}

// TestAttemptsThatCannotStart end at once, with the reason, and the next ones are tried.
func TestAttemptsThatCannotStart(t *testing.T) {
	p := opened(t, newStudy(t, nil))
	p.on.broken = errors.New("no more processes")
	p.more(t)
	n := p.Study.Count()
	if len(p.runs) != 0 || n[trial.Failed] == 0 || !p.said("no more processes") {
		t.Errorf("%v, %q", n, p.notes)
	}
}

// asking is a searcher with so many points.
type asking struct {
	points, asked int
	told          []int
	prune         bool
	refuses       error
}

func (a *asking) Ask(id int) (trial.Params, bool, error) {
	a.asked++
	return nil, id < a.points, a.refuses
}

func (a *asking) Prune(int, int, float64) (bool, error) { return a.prune, nil }

func (a *asking) Tell(t *trial.Trial) error {
	a.told = append(a.told, t.ID)
	return nil
}

// TestASearcherIsAskedLate checks that a searcher is asked late, hears of every end once, may
// prune, and may run out of points.
func TestASearcherIsAskedLate(t *testing.T) {
	p := opened(t, newStudy(t, func(s *Spec) {
		s.Method, s.Samples, s.Options.Concurrent = External, 5, 1
	}))
	a := &asking{points: 2}
	p.Searcher = a
	p.more(t)
	if a.asked != 1 || len(p.on.started) != 1 {
		t.Fatalf("asked %d times for %d", a.asked, len(p.on.started))
	}
	p.tell(t, report("run-0-1", 1, 3))
	p.tell(t, end("run-0-1", trial.Outcome{}))
	p.more(t)
	a.prune = true
	p.tell(t, report("run-1-1", 1, 4))
	if !slices.Equal(p.on.stopped, []string{"run-1-1"}) || !slices.Equal(a.told, []int{0}) {
		t.Errorf("stopped %v, told %v", p.on.stopped, a.told)
	}
	p.tell(t, end("run-1-1", trial.Outcome{ExitCode: 143}))
	p.more(t)
	if !slices.Equal(a.told, []int{0, 1}) || p.Wanted() != 2 || !p.done() {
		t.Errorf("told %v, %d wanted", a.told, p.Wanted())
	}
	a.refuses, p.wanted = errors.New("its storage is locked"), 5
	if err := p.startMore(); err == nil || !strings.Contains(err.Error(), "storage is locked") {
		t.Errorf("%v", err)
	}
}

// TestJournalsThatMakeNoSense are refused with the line; half a line at the end was never
// acknowledged.
func TestJournalsThatMakeNoSense(t *testing.T) {
	dir := newStudy(t, nil)
	p := opened(t, dir)
	p.more(t)
	p.tell(t, end("run-0-1", trial.Outcome{}))
	p.Close()
	path := filepath.Join(dir, journalFile)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(whole), "\n")
	other, _ := entry{Kind: "study", ID: "another"}.line()
	for name, c := range map[string]struct {
		text string
		want string
	}{
		"whole": {string(whole), ""}, "empty": {"", "is empty or gone"},
		"a cut end":      {string(whole[:len(whole)-9]), ""},
		"a changed line": {strings.Replace(string(whole), `"t"`, `"u"`, 1), "line 1"},
		"ends first":     {lines[0] + lines[5] + strings.Join(lines[1:5], ""), "line 2"},
		"another's":      {string(other) + strings.Join(lines[1:], ""), "another study"},
	} {
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, viewed := View(dir)
		e, loaded := Load(dir)
		if loaded == nil {
			e.Close()
		}
		for _, err := range []error{viewed, loaded} {
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	// A look at the study shows what the other lines say.
	lines[1] = strings.Replace(lines[1], `"t"`, `"u"`, 1)
	if err := os.WriteFile(path, []byte(strings.Join(lines, "")), 0o600); err != nil {
		t.Fatal(err)
	}
	e, err := View(dir)
	if err == nil || !strings.Contains(err.Error(), "line 2") || len(e.Study.Trials) == 0 {
		t.Errorf("%v, %+v", err, e)
	}
	renamed := filepath.Join(filepath.Dir(dir), "renamed")
	if err := os.Rename(dir, renamed); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(renamed); err == nil || !strings.Contains(err.Error(), "holds study") {
		t.Errorf("a renamed folder: %v", err)
	}
}

// TestWhoWorks: the process that took the lock, as long as it lives.
func TestWhoWorks(t *testing.T) {
	dir := newStudy(t, nil)
	p := opened(t, dir)
	if !p.Working() {
		t.Error("we work on it")
	}
	if _, err := Load(dir); !errors.Is(err, ErrBusy) {
		t.Errorf("opened twice: %v", err)
	}
	before := Stamp(dir)
	p.more(t)
	if Stamp(dir) == before {
		t.Error("the stamp is that of before")
	}
	p.Close()
	for text, want := range map[string]bool{"": false, "x": false, "0": false, "-1": false,
		fmt.Sprintln(os.Getpid()): true, "4194305": false} {
		if err := os.WriteFile(filepath.Join(dir, lockFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := p.Working(); got != want {
			t.Errorf("lock %q: works %v", text, got)
		}
	}
	root := filepath.Dir(dir)
	if err := os.Mkdir(filepath.Join(root, ".new-1"), 0o700); err != nil {
		t.Fatal(err)
	}
	if names, err := Names(root); err != nil || !slices.Equal(names, []string{"s"}) {
		t.Errorf("%v, %v", names, err)
	}
	if names, err := Names(filepath.Join(root, "none")); err != nil || len(names) != 0 {
		t.Errorf("%v, %v", names, err)
	}
}

// TestALargeStudyIsNotMadeAtOnce: some hundred trials wait at a time, however many are wanted.
func TestALargeStudyIsNotMadeAtOnce(t *testing.T) {
	p := opened(t, newStudy(t, func(s *Spec) { s.Method, s.Samples = trial.Random, 5000 }))
	p.more(t)
	if n := p.Study.WaitingCount(); n < 200 || n > 256 || p.Wanted() != 5000 {
		t.Errorf("%d wait of %d", n, p.Wanted())
	}
}

// TestTheMachineIsAskedNowAndThen: not again within half a tick, and again after it.
func TestTheMachineIsAskedNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := opened(t, newStudy(t, nil))
		for _, c := range []struct {
			wait time.Duration
			want int
		}{{0, 1}, {0, 1}, {29 * time.Millisecond, 1}, {2 * time.Millisecond, 2}} {
			time.Sleep(c.wait)
			if err := p.measure(); err != nil || p.on.asked != c.want {
				t.Fatalf("asked %d times, want %d; %v", p.on.asked, c.want, err)
			}
		}
	})
}

// TestInterruptedStudiesAreLeftInOrder: the screen is drawn while they run; what runs is ended and
// waits for the next time.
func TestInterruptedStudiesAreLeftInOrder(t *testing.T) {
	dir := newStudy(t, nil)
	synctest.Test(t, func(t *testing.T) {
		p := opened(t, dir)
		drawn := 0
		p.Refresh = func() { drawn++ }
		ctx, interrupt := context.WithCancel(context.Background())
		result := make(chan error)
		go func() { result <- p.Run(ctx) }()
		time.Sleep(time.Second)
		interrupt()
		time.Sleep(time.Second)
		for _, run := range []string{"run-0-1", "run-1-1", "run-2-1", "run-3-1"} {
			if !slices.Contains(p.on.stopped, run) {
				t.Errorf("%s was not ended: %v", run, p.on.stopped)
			}
			p.on.events <- end(run, trial.Outcome{ExitCode: 143, Signal: "SIGTERM"})
		}
		if err := <-result; !errors.Is(err, ErrInterrupted) {
			t.Error(err)
		}
		if n := p.Study.Count(); n[trial.Waiting] != 4 || drawn < 10 || drawn > 20 {
			t.Errorf("%v, drawn %d times in a second", n, drawn)
		}
	})
	again, err := View(dir)
	if err != nil || again.Study.WaitingCount() != 4 {
		t.Errorf("%v, %v", again.Study.Count(), err)
	}
}
