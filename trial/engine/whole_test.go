package engine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"memroom/event"
	"memroom/trial"
)

// agile is a stage that can do all that a backend may: pause, slack, caps of cards.
type agile struct {
	*stage
	paused map[string]bool
	slack  event.Bytes
	cards  map[string]event.Bytes
	firm   error // what Resize returns
}

func (a *agile) Pause(run string, on bool) { a.paused[run] = on }
func (a *agile) Slack(s event.Bytes)       { a.slack = s }

func (a *agile) ResizeDevice(run string, device event.Bytes) error {
	a.cards[run] = device
	return nil
}

func (a *agile) Resize(run string, host event.Bytes) error {
	if a.firm != nil {
		return a.firm
	}
	return a.stage.Resize(run, host)
}

func (p *play) agile() *agile {
	a := &agile{stage: p.on, paused: map[string]bool{}, cards: map[string]event.Bytes{}}
	p.Backend = a
	return a
}

// TestTightAttempts: one that comes to its limit gets more at once where there is more, and goes
// on; where there is none it stands still. A limit that cannot be changed stays the known one.
func TestTightAttempts(t *testing.T) {
	tight := trial.Happening{Run: "run-0-1", Tight: true, Step: -1}
	for name, c := range map[string]struct {
		reserved event.Bytes
		firm     error
		grows    bool
		paused   bool
	}{
		"there is more":        {event.GiB, nil, true, false},
		"there is none":        {8 * event.GiB, nil, false, true},
		"it cannot be changed": {event.GiB, errors.New("read only"), false, false},
	} {
		p := opened(t, newStudy(t, func(s *Spec) {
			s.Options.TrialHost, s.Space = c.reserved, spaceOf(t, "lr", "choice(1)")
		}))
		a := p.agile()
		p.more(t)
		if len(p.on.started) != 1 {
			t.Fatalf("%s: started %v", name, p.on.started)
		}
		a.firm = c.firm
		before := p.Study.Reserved(0)
		p.on.usage["run-0-1"] = trial.Usage{Host: before, Peak: before, Holds: true, Age: time.Minute}
		p.tell(t, tight)
		after := p.Study.Reserved(0)
		if (after > before) != c.grows || a.paused["run-0-1"] != c.paused ||
			c.grows && (p.on.limits["run-0-1"] != after || p.runs["run-0-1"].limit != after) {
			t.Errorf("%s: from %s to %s, limit %s, paused %v", name, before, after,
				p.on.limits["run-0-1"], a.paused)
		}
		if !c.grows && after != before {
			t.Errorf("%s: %s are said to be reserved, not %s", name, after, before)
		}
	}
}

// TestEarlyStopping: with early stopping in the study, one that is among the worst at a milestone
// is ended, and one that trained for the longest is finished, whatever its command would do.
func TestEarlyStopping(t *testing.T) {
	dir := newStudy(t, func(s *Spec) { s.ASHA = &ASHASpec{Grace: 1, MaxT: 4, Factor: 2} })
	p := opened(t, dir)
	p.more(t)
	for i, loss := range []float64{1, 2, 3, 4} {
		p.tell(t, report(fmt.Sprintf("run-%d-1", i), 1, loss))
	}
	if strings.Join(p.on.stopped, " ") != "run-1-1 run-2-1 run-3-1" {
		t.Fatalf("ended %v", p.on.stopped)
	}
	for step := 2; step <= 4; step++ {
		p.tell(t, report("run-0-1", step, 1/float64(step)))
	}
	p.tell(t, end("run-3-1", trial.Outcome{ExitCode: 143, Signal: "SIGTERM"}))
	p.tell(t, end("run-0-1", trial.Outcome{ExitCode: 143, Signal: "SIGTERM"}))
	worst, best := p.Study.Trials[3], p.Study.Trials[0]
	if worst.State != trial.Stopped || !strings.Contains(worst.Why, "stopped early") ||
		best.State != trial.Finished || best.Value == nil || *best.Value != 0.25 {
		t.Errorf("worst %s %q, best %s %v", worst.State, worst.Why, best.State, best.Value)
	}
	p.Close()
	seen, err := View(dir)
	if err != nil || seen.Study.ASHA == nil || seen.Study.Trials[0].State != trial.Finished ||
		seen.Study.Trials[3].State != trial.Stopped {
		t.Errorf("read again: %+v, %v", seen, err)
	}
	// Where more is better, the others are the worst.
	p = opened(t, newStudy(t, func(s *Spec) {
		s.ASHA, s.Options.Mode = &ASHASpec{Grace: 1, MaxT: 4, Factor: 2}, "max"
	}))
	p.more(t)
	for i, loss := range []float64{1, 2, 3, 4} {
		p.tell(t, report(fmt.Sprintf("run-%d-1", i), 1, loss))
	}
	if len(p.on.stopped) > 0 {
		t.Errorf("each is better than all before it, yet %v were ended", p.on.stopped)
	}
}

// TestStudiesThatCannotBeRecorded: nothing is started that a journal does not hold.
func TestStudiesThatCannotBeRecorded(t *testing.T) {
	p := opened(t, newStudy(t, nil))
	p.journal.file.Close()
	err := p.startMore()
	if !errors.Is(err, errJournal) || len(p.on.started) > 0 {
		t.Errorf("%v, started %v", err, p.on.started)
	}
	p.freeze(err)
	p.freeze(errors.New("another"))
	if !p.done() || !p.said("nothing more is started") || p.said("another") {
		t.Errorf("done %v, %q", p.done(), p.notes)
	}
	if err := p.record(true, entry{Kind: "more"}); !errors.Is(err, errJournal) {
		t.Errorf("%v", err)
	}
}

// TestNamesAndSettings: a study has a name of its own, a file that is whole, and settings that this
// memroom knows.
func TestNamesAndSettings(t *testing.T) {
	root := filepath.Join(t.TempDir(), "deep", "studies")
	spec := Spec{Name: "a.b-c_1", Command: []string{"true"}, Method: trial.Grid,
		Space: spaceOf(t, "lr", "choice(1,2)")}
	dir, err := Create(root, spec)
	if err != nil || dir != filepath.Join(root, "a.b-c_1") {
		t.Fatalf("%s, %v", dir, err)
	}
	if _, err := Create(root, spec); err == nil || !strings.Contains(err.Error(),
		"tune resume a.b-c_1") {
		t.Errorf("a second one of that name: %v", err)
	}
	for _, name := range []string{"", ".a", "-a", "a/b", "a b", strings.Repeat("a", 101), "é"} {
		spec.Name = name
		if _, err := Create(root, spec); err == nil || ValidName(name) {
			t.Errorf("name %q: %v", name, err)
		}
	}
	if !ValidName(strings.Repeat("a", 100)) {
		t.Error("100 letters are refused")
	}
	if names, err := Names(root); err != nil || strings.Join(names, " ") != "a.b-c_1" {
		t.Errorf("%v, %v", names, err)
	}
	if names, err := Names(filepath.Join(root, "none")); err != nil || names != nil {
		t.Errorf("no folder: %v, %v", names, err)
	}
	file := filepath.Join(dir, specFile)
	for text, want := range map[string]string{"{": "is damaged",
		"null": "is damaged", `{"name":"x","version":1}`: "is damaged",
		`{"name":"x","version":2}`:                                    "newer memroom",
		`{"name":"x","version":1,"command":["x"],"method":"no such"}`: "is not known"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for what, open := range map[string]func(string) (*Engine, error){"load": Load, "view": View} {
			if _, err := open(dir); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s %s: %v", what, text, err)
			}
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without settings: %v", err)
	}
	if err := writeSynced(filepath.Join(root, "none", "x"), nil); err == nil {
		t.Error("written into a folder that is not there")
	}
	if err := os.Mkdir(filepath.Join(root, "folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := writeSynced(filepath.Join(root, "folder"), []byte("x")); err == nil {
		t.Error("written over a folder")
	}
}

// TestLinesThatContradict those before them are refused; a study whose points come from elsewhere
// keeps them in its lines.
func TestLinesThatContradict(t *testing.T) {
	params := trial.Params{{Name: "lr", Value: trial.Value{Text: "0.5"}}}
	start := func(id int, p trial.Params) entry {
		line := entry{Kind: "start", Trial: id, Start: &trial.Attempt{Run: fmt.Sprint("r", id)}}
		line.setParams(p)
		return line
	}
	open := func() *Engine {
		e, err := prepare(t.TempDir(), Spec{Method: External, Samples: 3})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	for name, c := range map[string]struct {
		lines []entry
		want  string
	}{
		"in order":             {[]entry{start(0, params), start(1, params)}, ""},
		"the second first":     {[]entry{start(1, params)}, "before those in front"},
		"no attempt":           {[]entry{{Kind: "start"}}, "without its attempt"},
		"a negative number":    {[]entry{start(-1, params)}, "not the number of a trial"},
		"a skip of nothing":    {[]entry{{Kind: "skip", Trial: -1}}, "not the number of a trial"},
		"a skip too early":     {[]entry{{Kind: "skip", Trial: 1}}, "before those in front"},
		"an end of nothing":    {[]entry{{Kind: "end"}}, "without its outcome"},
		"more":                 {[]entry{{Kind: "more", Samples: 9}, {Kind: "more", Samples: 4}}, ""},
		"an undo of no trial":  {[]entry{{Kind: "undo", Trial: 0}}, ""},
		"a later kind of line": {[]entry{{Kind: "from tomorrow"}}, ""},
	} {
		e := open()
		var err error
		for _, line := range c.lines {
			if err = e.replay(line); err != nil {
				break
			}
		}
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if name == "in order" && (len(e.Study.Trials) != 2 ||
			e.Study.Trials[1].Params[0].Value.Text != "0.5" || len(e.Study.Running()) != 2) {
			t.Errorf("%+v", e.Study.Trials)
		}
		if name == "more" && e.Wanted() != 9 {
			t.Errorf("%d trials", e.Wanted())
		}
	}
	renamed, err := trial.NewSampler(spaceOf(t, "rate", "uniform(0,1)"), trial.Random, 1)
	if err != nil {
		t.Fatal(err)
	}
	e := open()
	e.sampler = renamed
	if err := e.replay(start(0, params)); err == nil || !strings.Contains(err.Error(),
		"lr, which is no longer a parameter") {
		t.Errorf("a renamed parameter: %v", err)
	}
	e = open()
	if err := errors.Join(e.replay(start(0, params)), e.replay(entry{Kind: "resize", Host: 5}),
		e.replay(entry{Kind: "resize", Device: 7})); err != nil || e.Study.Reserved(0) != 5 ||
		e.Study.ReservedDevice(0) != 7 {
		t.Errorf("%s and %s on the card, %v", e.Study.Reserved(0), e.Study.ReservedDevice(0), err)
	}
	if err := e.replay(entry{Kind: "undo"}); err != nil || len(e.Study.Running()) != 0 {
		t.Errorf("%d run after an undo, %v", len(e.Study.Running()), err)
	}
}

// TestWhatIsShown checks that the screen and the page show what runs, since when, and with what.
func TestWhatIsShown(t *testing.T) {
	created := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	p := opened(t, newStudy(t, func(s *Spec) {
		s.Created, s.HostMem, s.GPUMem, s.Samples = created, 3*event.GiB, 2*event.GiB, 0
	}))
	p.more(t)
	p.on.usage["run-0-1"] = trial.Usage{Host: 300 * event.MiB, Peak: 400 * event.MiB}
	p.observe()
	live := p.Live()
	if len(live) != 4 || live[0].Usage.Host != 300*event.MiB || live[0].Trial.ID != 0 ||
		live[0].Reserved != p.Study.Reserved(0) || live[0].Since.IsZero() {
		t.Errorf("%+v", live)
	}
	now := time.Now()
	shown := p.Picture(now)
	if shown.Name != "s" || !shown.Created.Equal(created) || shown.Search != string(trial.Grid) ||
		shown.Wanted != 4 || shown.Host != 3*event.GiB || shown.Device != 2*event.GiB ||
		!shown.Working || len(shown.Trials) != 4 || strings.Join(shown.Command, " ") != "true" {
		t.Errorf("%+v", shown)
	}
	p.Spec.Optuna = &OptunaSpec{}
	if got := p.Picture(now).Search; got != "optuna" {
		t.Errorf("points come from %q", got)
	}
	if got := p.TrialDir(7); got != filepath.Join(p.Dir, "trials", "00007") {
		t.Errorf("its files lie in %s", got)
	}
	if p.Capacity().CPUs != 8 {
		t.Errorf("%+v", p.Capacity())
	}
	p.tell(t, trial.Happening{Run: "nobody", Output: []byte("x"), Step: -1})
	p.tell(t, trial.Happening{Run: "run-0-1", Gone: true, Step: -1})
	p.more(t)
	if len(p.Live()) != 4 {
		t.Errorf("%d run", len(p.Live()))
	}
}

// TestRunningOutIsNoFailure: an attempt that ran out of memory is followed by one with more; one
// that the study ended itself has not run out, whatever its end looks like; and one that came to
// its own end while the study was being interrupted is done.
func TestRunningOutIsNoFailure(t *testing.T) {
	out := trial.Outcome{ExitCode: 137, Signal: "SIGKILL", OOM: true, Where: event.WhereHost,
		PeakHost: event.GiB}
	p := opened(t, newStudy(t, nil))
	p.more(t)
	p.tell(t, end("run-0-1", out))
	p.more(t)
	last := p.on.launches[len(p.on.launches)-1]
	if one := p.Study.Trials[0]; len(one.Attempts) != 2 || one.State != trial.Running ||
		last.Trial != 0 || last.Attempt != 2 || last.Host <= event.GiB {
		t.Errorf("%s after %d attempts, %+v", one.State, len(one.Attempts), last)
	}
	p.end(p.runs["run-1-1"], trial.Stopped, "enough")
	p.tell(t, end("run-1-1", out))
	p.more(t)
	if two := p.Study.Trials[1]; two.State != trial.Stopped || len(two.Attempts) != 1 ||
		!strings.Contains(two.Why, "enough") {
		t.Errorf("%s after %d attempts: %q", two.State, len(two.Attempts), two.Why)
	}
	for exit, want := range map[int]trial.State{0: trial.Finished, 143: trial.Waiting} {
		p := opened(t, newStudy(t, nil))
		p.more(t)
		p.tell(t, report("run-0-1", 1, 5))
		a := p.runs["run-0-1"]
		a.stop, a.state = "the study was interrupted", trial.Waiting
		p.tell(t, end("run-0-1", trial.Outcome{ExitCode: exit}))
		if one := p.Study.Trials[0]; one.State != want {
			t.Errorf("interrupted, ended with %d: %s", exit, one.State)
		}
	}
}
