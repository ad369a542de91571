package cli

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"memroom/event"
	"memroom/store"
	"memroom/trial"
	"memroom/trial/engine"
)

// newTuneCmd is `memroom tune` with its defaults and this command.
func newTuneCmd(change func(*tuneNewCmd), command ...string) *tuneNewCmd {
	c := &tuneNewCmd{Value: "last", GPUs: -1, Fit: true, Factor: 4, MaxLog: event.GiB, Probe: true,
		Command: append([]string{"--"}, command...)}
	if change != nil {
		change(c)
	}
	return c
}

// TestStudiesFromFlags: what the flags of a new study mean, and which of them make no sense.
func TestStudiesFromFlags(t *testing.T) {
	command := []string{"python3.12", "train.py", "--lr", "loguniform(1e-4,1e-2)"}
	now := time.Date(2026, 5, 6, 7, 8, 9, 123e6, time.UTC)
	one, none := 1, 0
	for name, c := range map[string]struct {
		change  func(*tuneNewCmd)
		command []string
		check   func(engine.Spec) bool
		wrong   string
	}{
		"defaults": {nil, command, func(s engine.Spec) bool {
			return s.Name == "study-20260506-070809.123" && s.Samples == 10 && s.Method == trial.Random &&
				s.Options.Metric == "loss" && s.Options.Mode == "min" && s.Options.GPUs == -1 &&
				s.Options.Fit && !s.Options.Best && s.ASHA == nil && s.MaxLog == event.GiB && s.Probe &&
				len(s.Space) == 1 && s.Space[0].Name == "lr" && s.Created.Equal(now)
		}, ""},
		"a name and numbers": {func(c *tuneNewCmd) {
			c.Name, c.Samples, c.Seed, c.Metric, c.Value = "mine", &one, 5, "accuracy", "best"
			c.Retries, c.Concurrent, c.CPUs, c.GPUs = 2, 3, 0.5, 2
		}, command, func(s engine.Spec) bool {
			o := s.Options
			return s.Name == "mine" && s.Samples == 1 && s.Seed == 5 && o.Mode == "max" && o.Best &&
				o.Retries == 2 && o.Concurrent == 3 && o.CPUs == 0.5 && o.GPUs == 2
		}, ""},
		"memory": {func(c *tuneNewCmd) {
			c.HostMem, c.GPUMem, c.TrialMem, c.TrialGPU = 4*event.GiB, 3*event.GiB, 4*event.GiB, event.GiB
		}, command, func(s engine.Spec) bool {
			return s.HostMem == 4*event.GiB && s.GPUMem == 3*event.GiB &&
				s.Options.TrialHost == 4*event.GiB &&
				s.Options.TrialDevice == event.GiB
		}, ""},
		"a trial larger than the study": {func(c *tuneNewCmd) {
			c.HostMem, c.TrialMem = 4*event.GiB, 4*event.GiB+1
		}, command, nil, "at most --trial-mem 4GiB"},
		"a grid of points": {nil, []string{"true", "grid_search(1,2)", "uniform(0,1)"},
			func(s engine.Spec) bool { return s.Samples == 1 && len(s.Space) == 2 }, ""},
		"a grid": {func(c *tuneNewCmd) { c.Search = "grid" }, []string{"true", "choice(1,2,3)"},
			func(s engine.Spec) bool { return s.Samples == 0 && s.Method == trial.Grid }, ""},
		"asha": {func(c *tuneNewCmd) { c.Scheduler, c.MaxT, c.Grace, c.Factor = "asha", 50, 5, 3 },
			command,
			func(s engine.Spec) bool {
				return s.ASHA != nil && *s.ASHA == engine.ASHASpec{Grace: 5, MaxT: 50, Factor: 3}
			}, ""},
		"asha by itself": {func(c *tuneNewCmd) { c.Scheduler = "asha" }, command,
			func(s engine.Spec) bool {
				return s.ASHA != nil && *s.ASHA == engine.ASHASpec{MaxT: 100, Factor: 4}
			}, ""},
		"all of asha is grace": {func(c *tuneNewCmd) { c.Scheduler, c.MaxT, c.Grace = "asha", 5, 5 },
			command,
			func(s engine.Spec) bool { return s.ASHA.Grace == 5 }, ""},
		"more grace than reports": {func(c *tuneNewCmd) { c.Scheduler, c.MaxT, c.Grace = "asha", 5, 6 },
			command,
			nil, "--grace-reports must be at most --max-t"},
		"asha halves nothing": {func(c *tuneNewCmd) { c.Scheduler, c.Factor = "asha", 1 }, command, nil,
			"--reduction at least 2"},
		"optuna": {func(c *tuneNewCmd) {
			c.Search, c.Sampler, c.Pruner = "optuna", "TPESampler",
				"MedianPruner"
		},
			command, func(s engine.Spec) bool {
				return s.Method == engine.External && *s.Optuna == engine.OptunaSpec{Python: "python3.12",
					Sampler: "TPESampler", Pruner: "MedianPruner"}
			}, ""},
		"optuna of a program": {func(c *tuneNewCmd) { c.Search = "optuna" }, []string{"./a",
			"choice(1,2)"},
			func(s engine.Spec) bool { return s.Optuna.Python == "python3" }, ""},
		"optuna of a Python": {func(c *tuneNewCmd) { c.Search, c.Python = "optuna", "/p" }, command,
			func(s engine.Spec) bool { return s.Optuna.Python == "/p" }, ""},
		"optuna and asha": {func(c *tuneNewCmd) { c.Search, c.Scheduler = "optuna", "asha" }, command,
			nil,
			"SuccessiveHalvingPruner"},
		"optuna without anything": {func(c *tuneNewCmd) { c.Search = "optuna" }, []string{"true"}, nil,
			"search"},
		"a pruner without optuna": {func(c *tuneNewCmd) { c.Pruner = "MedianPruner" }, command, nil,
			"add --search optuna"},
		"no command":        {nil, nil, nil, "no command"},
		"nothing to search": {nil, []string{"true"}, nil, "search"},
		"no samples":        {func(c *tuneNewCmd) { c.Samples = &none }, command, nil, "at least one"},
		"a mode":            {func(c *tuneNewCmd) { c.Mode = "least" }, command, nil, "--mode least"},
		"a pattern":         {func(c *tuneNewCmd) { c.Pattern = "(" }, command, nil, "("},
		"an unknown search": {func(c *tuneNewCmd) { c.Search = "magic" }, command, nil, "magic"},
		"negative retries": {func(c *tuneNewCmd) { c.Retries = -1 }, command, nil,
			"cannot be negative"},
		"negative at once": {func(c *tuneNewCmd) { c.Concurrent = -1 }, command, nil,
			"cannot be negative"},
		"negative CPUs": {func(c *tuneNewCmd) { c.CPUs = -0.1 }, command, nil, "cannot be negative"},
		"negative rehearsal": {func(c *tuneNewCmd) { c.Rehearse = -1 }, command, nil,
			"cannot be negative"},
		"a negative budget of time": {func(c *tuneNewCmd) { c.Budget = -time.Second }, command, nil,
			"cannot be negative"},
		"a negative time": {func(c *tuneNewCmd) { c.MaxTime = -1 }, command, nil, "cannot be negative"},
		"an unknown flag": {func(c *tuneNewCmd) { c.Command = []string{"--what", "x"} }, nil, nil,
			"unknown flag --what"},
		"a file that is not there": {func(c *tuneNewCmd) { c.Command = []string{"none.toml"} }, nil, nil,
			"none.toml"},
	} {
		spec, _, err := newTuneCmd(c.change, c.command...).describe(now)
		switch {
		case c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong) ||
			exitCode(err) != exitUsage):
			t.Errorf("%s: %v, want %q", name, err, c.wrong)
		case c.wrong == "" && (err != nil || !c.check(spec)):
			t.Errorf("%s: %+v, %v", name, spec, err)
		}
	}
}

// shownStudy is a study of five trials: one is done, one ran out once and is done, one failed, one
// does not fit, and one runs.
func shownStudy(t *testing.T, metric string) *engine.Engine {
	t.Helper()
	spec, _, err := newTuneCmd(func(c *tuneNewCmd) {
		c.Name, c.Search, c.Metric = "s", "grid",
			metric
	},
		"true", "choice(1,2,3,4,5)").describe(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	dir, err := engine.Create(t.TempDir(), spec)
	if err != nil {
		t.Fatal(err)
	}
	e, err := engine.View(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{"1", "2", "3", "4", "5"} {
		e.Study.Add(trial.Params{{Name: "n", Value: trial.Value{Text: n}}})
	}
	begin := func(id int, reserved event.Bytes) {
		e.Study.Start(id, trial.Attempt{Run: fmt.Sprint("r", id), Reserved: reserved})
	}
	end := func(id int, state trial.State, why string, value *float64, o trial.Outcome) {
		t.Helper()
		if err := e.Study.Restore(id, trial.Ending{State: state, Why: why, Value: value, Outcome: o,
			Reserved: event.GiB}); err != nil {
			t.Fatal(err)
		}
	}
	half, quarter := 0.5, 0.25
	begin(0, event.GiB)
	end(0, trial.Finished, "", &half, trial.Outcome{PeakHost: 300 * event.MiB})
	begin(1, event.GiB)
	end(1, trial.Waiting, "", nil, trial.Outcome{OOM: true, ExitCode: 137, PeakHost: event.GiB})
	begin(1, 2*event.GiB)
	end(1, trial.Finished, "", &quarter, trial.Outcome{PeakHost: 1500 * event.MiB})
	begin(2, event.GiB)
	end(2, trial.Failed, "exit code 1", nil, trial.Outcome{ExitCode: 1})
	begin(3, event.GiB)
	end(3, trial.Infeasible, "it needs more than there is", nil, trial.Outcome{OOM: true,
		ExitCode: 137})
	begin(4, event.GiB)
	e.Study.Resized(4, event.GiB)
	return e
}

// TestStudiesInWords: the report at the end names each trial, what became of those that ran out,
// and the best; the table of a running study fits the screen.
func TestStudiesInWords(t *testing.T) {
	for metric, best := range map[string]string{"loss": "best: trial 1, loss=0.25 with n=2",
		"accuracy": "best: trial 0, accuracy=0.5 with n=1"} {
		e := shownStudy(t, metric)
		var out bytes.Buffer
		printStudy(&session{Streams: Streams{Out: &out}}, e, false)
		text := strings.Join(strings.Fields(out.String()), " ")
		for _, want := range []string{
			"study s: 5 trials: 2 finished, 0 stopped early, 1 failed, 1 do not fit",
			"trial state " + metric + " attempts peak settings", "0 finished 0.5 1 300MiB n=1",
			"1 finished 0.25 2 1.46GiB n=2", "2 failed - 1 0B n=3", "4 running - 1 0B n=5",
			"trial 1 ran out with 1GiB; finished", "trial 2 failed: exit code 1",
			"trial 3 ran out with 1GiB; infeasible: it needs more than there is; nearest that fits: n=",
			best} {
			if !strings.Contains(text, want) {
				t.Errorf("%q is not in\n%s", want, out.String())
			}
		}
		if strings.Contains(text, "on card") || strings.Contains(text, "trial 0 ") && metric == "loss" {
			t.Errorf("%s", out.String())
		}
		out.Reset()
		printStudy(&session{Streams: Streams{Out: &out}}, e, true)
		if strings.Contains(out.String(), "settings") || !strings.Contains(out.String(),
			"trial 2 failed") {
			t.Errorf("quietly:\n%s", out.String())
		}
	}
	e := shownStudy(t, "loss")
	v := &tuneView{session: &session{}, engine: e, began: time.Now()}
	table := v.table(200)
	for i, want := range []string{"[################....] 4 of 5 over, 1 running, 1 failed, 1 " +
		"infeasible, 0 stopped, 0s",
		"host memory: 1GiB reserved, 0B used, of 0B", "best: loss=0.25 (n=2)", "4         0B of 1GiB"} {
		if i >= len(table) || !strings.Contains(table[i], want) {
			t.Errorf("line %d of %q, want %q", i, table, want)
		}
	}
	for _, line := range v.table(30) {
		if len([]rune(line)) > 29 {
			t.Errorf("%q is wider than the screen", line)
		}
	}
	for _, c := range []struct {
		done, of int
		want     string
	}{{0, 0, "[....]"}, {0, 3, "[....]"}, {1, 3, "[#...]"}, {2, 4, "[##..]"}, {4, 4, "[####]"}, {9,
		4, "[####]"}} {
		if got := progressBar(c.done, c.of, 4); got != c.want {
			t.Errorf("%d of %d: %s", c.done, c.of, got)
		}
	}
}

// TestTopOfARun: by its name, once; what cannot be followed is said.
func TestTopOfARun(t *testing.T) {
	home := t.TempDir()
	t.Setenv("MEMROOM_HOME", home)
	if code, _, said := memroom("top", "--once", "nothing"); code == exitOK ||
		!strings.Contains(said, "there are no runs yet in "+home) {
		t.Errorf("%d %s", code, said)
	}
	kept, err := store.Open(home)
	if err != nil {
		t.Fatal(err)
	}
	folder, err := kept.Create(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	if err := errors.Join(folder.SaveRun(event.Run{Command: []string{"true"}}),
		folder.AppendSamples([]event.Sample{{AtMS: 5000, Processes: 2,
			Anonymous: event.GiB}})); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", folder.ID} {
		args := []string{"top", "--once"}
		if name != "" {
			args = append(args, name)
		}
		if code, out, said := memroom(args...); code != exitOK || !strings.HasPrefix(out, folder.ID) ||
			!strings.Contains(out, "host 1GiB of 0B (2 processes)") {
			t.Errorf("%v: %d %s%s", args, code, out, said)
		}
	}
	if code, _, said := memroom("top", "--once", "nothing"); code == exitOK ||
		!strings.Contains(said, "nothing") {
		t.Errorf("%d %s", code, said)
	}
	if code, _, said := memroom("top", "--every", "1ms", "--once"); code != exitUsage ||
		!strings.Contains(said, "--every 1ms") {
		t.Errorf("%d %s", code, said)
	}
}
