package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"syscall"
	"time"

	"memroom/event"
	"memroom/probe"
	"memroom/report"
	"memroom/store"
	"memroom/supervise"
	"memroom/trial"
	"memroom/trial/engine"
	"memroom/trial/local"
	"memroom/trial/optuna"
)

// Run begins a study and works on it to its end.
func (c *tuneNewCmd) Run(s *session) error {
	now := time.Now()
	spec, notes, err := c.describe(now)
	if err != nil {
		return err
	}
	for _, n := range notes {
		s.note("memroom: %s", n)
	}
	if c.DryRun {
		return printPlanned(s, spec)
	}
	if spec.On == "" { // a cluster's nodes have programs and cards of their own
		noteNoCard(s, spec.GPUMem)
		if _, err := findExecutable(fill(spec.Command[0], spec, 0, nil)); err != nil {
			return err
		}
	}
	for flag, path := range map[string]string{"--json": c.JSON, "--html": c.HTML} {
		if path == "" {
			continue
		}
		if err := checkWritable(flag, path); err != nil {
			return err
		}
	}
	home, err := studyHome(s)
	if err != nil {
		return exitWith(exitNotStarted, "%w", err)
	}
	t := &tuning{session: s, home: home, json: c.JSON, html: c.HTML, quiet: c.Quiet}
	if err := t.open(&spec); err != nil {
		return err
	}
	dir, err := engine.Create(studiesDir(home.Home), spec)
	if err != nil {
		return exitWith(exitUsage, "%w", err)
	}
	return t.work(dir, 0)
}

// Run goes on with a study.
func (c *tuneResumeCmd) Run(s *session) error {
	if c.Samples < 0 {
		return exitWith(exitUsage, "--samples %d: at least one", c.Samples)
	}
	home, err := studyHome(s)
	if err != nil {
		return exitWith(exitNotStarted, "%w", err)
	}
	dir, spec, err := findStudy(home.Home, c.Study)
	if err != nil {
		return err
	}
	if err := os.Chdir(spec.Dir); err != nil {
		return exitWith(exitNotStarted, "the folder in which the study began is gone (%w): make it "+
			"again, or begin a new study there", err)
	}
	t := &tuning{session: s, home: home, json: absolute(c.JSON), quiet: c.Quiet}
	if err := t.open(&spec); err != nil {
		return err
	}
	return t.work(dir, c.Samples)
}

// studyHome opens the store that holds studies and their runs. Where the home cannot be used the
// runs would go elsewhere one by one: then the study goes there as a whole.
func studyHome(s *session) (*store.Store, error) {
	home, err := store.DefaultHome()
	if err == nil {
		var kept *store.Store
		if kept, err = store.Open(home); err == nil {
			return kept, nil
		}
	}
	for _, place := range otherHomes() {
		if kept, failed := store.Open(place); failed == nil {
			s.note("memroom: %v", err)
			s.note("memroom: the study is kept in %s (set MEMROOM_HOME to it)", place)
			return kept, os.Setenv("MEMROOM_HOME", place)
		}
	}
	return nil, err
}

// findStudy returns a study by name, or an error that lists all studies.
func findStudy(home, name string) (dir string, spec engine.Spec, err error) {
	if name == "" {
		if name = lastStudy(home); name == "" {
			return "", spec, exitWith(exitUsage, "there is no study yet: memroom tune begins one")
		}
	}
	dir = filepath.Join(studiesDir(home), filepath.Base(name))
	spec, err = engine.ReadSpec(dir)
	if err == nil {
		return dir, spec, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return "", spec, exitWith(exitUsage, "%w", err)
	}
	names := studyNames(home)
	if slices.Contains(names, name) {
		return "", spec, exitWith(exitUsage, "study %s has no study.json any more (in %s): take the "+
			"file back from a backup, or delete the folder", name, dir)
	}
	if len(names) == 0 {
		return "", spec, exitWith(exitUsage, "there is no study %s, and no other: "+
			"memroom tune begins one", name)
	}
	return "", spec, exitWith(exitUsage, "there is no study %s; there are %s", name,
		strings.Join(names[max(0, len(names)-8):], ", "))
}

// lastStudy is the name of the study that was begun last, empty if there is none.
func lastStudy(home string) string {
	last, began := "", time.Time{}
	for _, name := range studyNames(home) {
		spec, err := engine.ReadSpec(filepath.Join(studiesDir(home), name))
		if err == nil && !spec.Created.Before(began) {
			last, began = name, spec.Created
		}
	}
	return last
}

func studyNames(home string) []string {
	names, _ := engine.Names(studiesDir(home))
	return names
}

func checkWritable(flag, path string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return exitWith(exitUsage, "%s %s cannot be written: %w; name a file in a folder that "+
			"exists and is yours", flag, path, cause(err))
	}
	return file.Close()
}

// printPlanned shows what would run.
func printPlanned(s *session, spec engine.Spec) error {
	if spec.Method == engine.External {
		return exitWith(exitUsage, "--dry-run shows points that are known before: Optuna "+
			"proposes each when it is needed. Leave one of the two out")
	}
	sampler, err := trial.NewSampler(spec.Space, spec.Method, spec.Seed)
	if err != nil {
		return exitWith(exitUsage, "%w", err)
	}
	n := sampler.Count(spec.Samples)
	for i := range min(n, 1000) {
		p := sampler.Point(i)
		words := make([]string, len(spec.Command))
		for j, w := range spec.Command {
			words[j] = fill(w, spec, i, p)
		}
		fmt.Fprintf(s.Out, "%d: %s\n", i, strings.Join(words, " "))
	}
	if n > 1000 {
		fmt.Fprintf(s.Out, "... and %d more\n", n-1000)
	}
	return nil
}

// tuning is a study being worked on.
type tuning struct {
	*session
	html  string
	home  *store.Store
	json  string
	quiet bool

	backend trial.Backend
	cluster cluster // nil: trials run on this machine
	engine  *engine.Engine
	probe   string // folder of the probe
	view    *tuneView
	failed  error // first error in writing the results
}

// open looks at the machine, or at the cluster, and refuses what it can never give.
func (t *tuning) open(spec *engine.Spec) error {
	opened := t.openLocal
	if spec.On != "" {
		opened = t.openCluster
	}
	if err := opened(spec); err != nil {
		return exitWith(exitNotStarted, "%w", err)
	}
	capacity, err := t.backend.Capacity()
	if err != nil {
		return exitWith(exitNotStarted, "%w", err)
	}
	if spec.Options.GPUs < 0 {
		spec.Options.GPUs = min(1, len(capacity.Cards))
	}
	if spec.GPUMem > 0 && len(capacity.Cards) == 0 {
		t.note("memroom: --gpu-mem %s has nothing to limit: no card is seen here", spec.GPUMem)
	}
	if err := spec.Options.Impossible(capacity); err != nil {
		return exitWith(exitUsage, "%w", err)
	}
	if spec.Probe && os.Getenv("MEMROOM_OFF") != "1" {
		t.probe, _ = probe.Install(filepath.Join(t.home.Home, "probe"))
	}
	return nil
}

// openLocal runs trials on this machine.
func (t *tuning) openLocal(spec *engine.Spec) error {
	cards := openCards()
	b := &local.Backend{Host: spec.HostMem, GPU: spec.GPUMem,
		New:  func(l trial.Launch) (local.Job, error) { return t.newJob(l) },
		Find: t.findJob}
	if cards != nil {
		b.Cards = func() []trial.Card { return trialCards(cards, spec.GPUMem) }
	}
	if err := b.Open(); err != nil {
		return err
	}
	if most := b.Limit(); most > 0 && b.Host > most {
		t.note("memroom: --host-mem %s is more than there is; the study gets %s", spec.HostMem, most)
		b.Host = most
	}
	t.backend = b
	return nil
}

// trialCards reads the cards for the study. The budget of the whole study is also the most that one
// card can be filled with.
func trialCards(c *cards, budget event.Bytes) []trial.Card {
	devices, _ := c.Read() // those that answer
	var out []trial.Card
	for _, d := range devices {
		free := d.Total - d.Used
		most := d.Total - max(d.Total/50, 512*event.MiB) // contexts and what comes and goes
		if budget > 0 {
			most = min(most, budget)
		}
		out = append(out, trial.Card{UUID: d.UUID, Name: d.Name, Budget: most, Free: free})
	}
	return out
}

// work goes through the study to its end.
func (t *tuning) work(dir string, more int) error {
	e, err := engine.Load(dir)
	if err != nil {
		code := exitUsage
		if errors.Is(err, engine.ErrBusy) {
			code = exitNotStarted
		}
		return exitWith(code, "%w", err)
	}
	defer e.Close()
	t.engine, e.Backend = e, t.backend
	if t.cluster != nil {
		if err := t.cluster.Take(filepath.Join(dir, "jobs")); err != nil {
			return exitWith(exitNotStarted, "%w", err)
		}
	}
	e.Study.Options.GPUs = max(0, e.Study.Options.GPUs)
	if cards, _ := t.backend.Capacity(); e.Spec.Options.GPUs < 0 {
		e.Study.Options.GPUs = min(1, len(cards.Cards))
	}
	if more > 0 {
		if err := e.More(more); err != nil {
			return exitWith(exitUsage, "%w", err)
		}
	}
	if e.Spec.Optuna != nil {
		searcher, err := t.openOptuna(e)
		if err != nil {
			return exitWith(exitUsage, "%w", err)
		}
		defer searcher.Close()
		e.Searcher = searcher
	}
	if e.Spec.Rehearse > 0 {
		e.Rehearser = t
	}
	removeAbandoned(os.TempDir(), time.Now())
	t.view = newTuneView(t.session, e, t.quiet)
	e.Note, e.Refresh = t.view.line, t.view.refresh
	ctx, stop := signal.NotifyContext(t.ctx, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	t.view.begin()
	err = e.Rejoin()
	if err == nil {
		err = e.Run(ctx)
	}
	t.backend.Close()
	t.view.end()
	return t.conclude(err)
}

// openOptuna starts the Python that holds Optuna's side of the study.
func (t *tuning) openOptuna(e *engine.Engine) (*optuna.Searcher, error) {
	o := e.Spec.Optuna
	storage := o.Storage
	if storage == "" {
		storage = "sqlite:///" + filepath.Join(e.Dir, "optuna.db")
	}
	var over []*trial.Trial
	for _, one := range e.Study.Trials {
		if one.State.Over() {
			over = append(over, one)
		}
	}
	return optuna.Open(optuna.Options{Python: o.Python, Name: e.Spec.Name,
		Mode: e.Spec.Options.Mode, Sampler: o.Sampler, Pruner: o.Pruner, Storage: storage,
		State: filepath.Join(e.Dir, "sampler.pickle"), Seed: e.Spec.Seed, Space: e.Spec.Space},
		over)
}

// conclude writes the results and returns the exit code.
func (t *tuning) conclude(err error) error {
	if t.json != "" {
		if failed := t.writeResult(); failed != nil {
			t.failed = failed
		}
	}
	if t.html != "" {
		if failed := writeStudyPage(t.html, t.engine); failed != nil {
			t.failed = failed
		}
	}
	interrupted := errors.Is(err, engine.ErrInterrupted)
	if err == nil || interrupted {
		printStudy(t.session, t.engine, t.quiet)
	}
	name := t.engine.Spec.Name
	switch {
	case interrupted:
		return exitWith(130, "interrupted; `memroom tune resume %s` goes on", name)
	case err != nil:
		return exitWith(exitNotStarted, "%w; `memroom tune resume %s` goes on when that is mended",
			err, name)
	case t.failed != nil:
		return exitWith(exitNotWritten, "the results could not be written: %w; "+
			"`memroom tune show --json %s` prints them", t.failed, name)
	case t.engine.Study.Best() == nil:
		return exitQuietly(exitFindings)
	}
	return nil
}

func (t *tuning) writeResult() error {
	data, err := json.MarshalIndent(resultOf(t.engine), "", "  ")
	if err != nil {
		return err
	}
	// In place, not renamed: it may be /dev/stdout or a pipe.
	return os.WriteFile(t.json, append(data, '\n'), 0o644)
}

// writeStudyPage writes the study as one page, without the secrets of its command.
func writeStudyPage(path string, e *engine.Engine) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	p := e.Picture(time.Now())
	p.Command = store.MaskArguments(p.Command)
	err = report.StudyHTML(file, p, e.Study.Shape(p))
	if closed := file.Close(); err == nil {
		err = closed
	}
	return err
}

// commandOf fills the trial's settings into the command and its files.
func (t *tuning) commandOf(l trial.Launch) ([]string, error) {
	spec := t.engine.Spec
	command := make([]string, len(spec.Command))
	files, err := t.fillFiles(l)
	if err != nil {
		return nil, err
	}
	for i, word := range spec.Command {
		command[i] = fill(word, spec, l.Trial, l.Params)
		for path, filled := range files {
			command[i] = replacePath(command[i], path, filled)
		}
	}
	return command, nil
}

// newJob makes the record of an attempt: a run like any other.
func (t *tuning) newJob(l trial.Launch) (local.Job, error) {
	spec := t.engine.Spec
	command, err := t.commandOf(l)
	if err != nil {
		return local.Job{}, err
	}
	path, err := findExecutable(command[0])
	if err != nil {
		return local.Job{}, err
	}
	run := runCmd{Name: fmt.Sprintf("%s/%d", spec.Name, l.Trial), Tag: []string{"study:" + spec.Name},
		HostMem: l.Host, GPUMem: max(l.Device, l.Cap), PressureAt: 0.92, Grace: 20 * time.Second,
		Probe: spec.Probe, environ: t.environ(l), home: t.home}
	run.fitFlags = fitFlags{Fit: l.Fit, MaxAttempts: defaultAttempts, Forgetful: true}
	quiet := *t.session
	quiet.Err = io.Discard
	r, err := run.prepare(&quiet, command)
	if err != nil {
		return local.Job{}, err
	}
	job := localJob(r.folder)
	if l.Device > 0 {
		r.env = append(r.env, "MEMROOM_GPU_MEM_FILE="+job.Limit)
	}
	job.Launch = supervise.Launch{Attempt: 1, Recorded: true, Path: path, Args: r.args,
		Command: command, Env: r.env,
		Dir: spec.Dir, HostLimit: l.Host,
		Streams: supervise.Streams{In: supervise.Null, Out: supervise.Pipe, Err: supervise.Pipe,
			Merged: true},
		Monitor:  []string{"memroom", monitorWord, r.folder.Dir},
		Settings: r.spec, Scratch: []byte(r.scratch), Policy: run.fitFlags.wanted()}
	return job, nil
}

// limitFile is where a run's probe finds what its allocator may take from now on.
const limitFile = "gpu-mem"

func localJob(folder *store.Folder) local.Job {
	return local.Job{Run: folder.ID, Files: runFiles(folder), Events: folder.Path("events.jsonl"),
		Samples: folder.Path("samples.jsonl"), Steps: folder.Path("steps.jsonl"),
		Limit: folder.Path(limitFile), Keeper: []string{"memroom", keeperWord, folder.Dir},
		Summary: folder.Summary}
}

func (t *tuning) findJob(run string) (local.Job, error) {
	folder := t.home.Folder(run)
	if _, err := os.Stat(folder.Dir); err != nil {
		return local.Job{}, err
	}
	return localJob(folder), nil
}

// replacePath puts a filled file in place of its template where that is an argument, or the value
// of one.
func replacePath(word, path, filled string) string {
	if word == path {
		return filled
	}
	if head, tail, ok := strings.Cut(word, "="); ok && tail == path {
		return head + "=" + filled
	}
	return word
}

// fillFiles writes the trial's copies of config files.
func (t *tuning) fillFiles(l trial.Launch) (map[string]string, error) {
	out := map[string]string{}
	spec := t.engine.Spec
	for path, text := range spec.Files {
		dir := t.engine.TrialDir(l.Trial)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
		filled := filepath.Join(dir, filepath.Base(path))
		text = fill(text, spec, l.Trial, l.Params)
		if err := os.WriteFile(filled, []byte(text), 0o600); err != nil {
			return nil, err
		}
		out[path] = filled
	}
	return out, nil
}

// variables are what the study sets for a trial.
func (t *tuning) variables(l trial.Launch) map[string]string {
	spec := t.engine.Spec
	set := map[string]string{"MEMROOM_STUDY": spec.Name, "MEMROOM_TRIAL": fmt.Sprint(l.Trial)}
	if params, err := json.Marshal(l.Params); err == nil {
		set["MEMROOM_PARAMS"] = string(params)
	}
	for name, value := range spec.Env {
		set[name] = fill(value, spec, l.Trial, l.Params)
	}
	return set
}

// environ is the environment of a trial: ours, the study's variables, and the cards it may see.
func (t *tuning) environ(l trial.Launch) []string {
	set := t.variables(l)
	if len(l.Cards) > 0 {
		all := t.engine.Capacity().Cards
		var ids []string
		for _, i := range l.Cards {
			if i < len(all) {
				ids = append(ids, all[i].UUID)
			}
		}
		set["CUDA_VISIBLE_DEVICES"] = strings.Join(ids, ",")
	}
	env := slices.DeleteFunc(os.Environ(), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		_, ours := set[name]
		return ours
	})
	names := make([]string, 0, len(set))
	for name := range set {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		env = append(env, name+"="+set[name])
	}
	return env
}

// Run shows a study's results.
func (c *tuneShowCmd) Run(s *session) error {
	home, err := openStore()
	if err != nil {
		return err
	}
	dir, _, err := findStudy(home.Home, c.Study)
	if err != nil {
		return err
	}
	e, damage := engine.View(dir)
	if damage != nil {
		damage = exitWith(exitUsage, "study %s: %w", filepath.Base(dir), damage)
	}
	if e == nil {
		return damage
	}
	if c.HTML != "" {
		if err := writeStudyPage(c.HTML, e); err != nil {
			return exitWith(exitNotWritten, "write %s: %w", c.HTML, cause(err))
		}
		if !c.JSON {
			s.note("memroom: the report is in %s", c.HTML)
			return damage
		}
	}
	if c.JSON {
		return errors.Join(damage, s.printJSON(resultOf(e)))
	}
	printStudy(s, e, false)
	return damage
}

// Run lists the studies.
func (c *tuneListCmd) Run(s *session) error {
	home, err := openStore()
	if err != nil {
		return err
	}
	type line struct {
		Name    string              `json:"name"`
		Trials  int                 `json:"trials"`
		States  map[trial.State]int `json:"states"`
		Best    *float64            `json:"best"`
		Created time.Time           `json:"created"`
	}
	lines := []line{}
	names := studyNames(home.Home)
	for _, name := range names {
		e, err := engine.View(filepath.Join(studiesDir(home.Home), name))
		if err != nil {
			s.note("memroom: study %s: %v", name, err)
			continue
		}
		l := line{Name: name, Trials: e.Wanted(), States: e.Study.Count(), Created: e.Spec.Created}
		if best := e.Study.Best(); best != nil {
			l.Best = best.Value
		}
		lines = append(lines, l)
	}
	if c.JSON {
		return s.printJSON(lines)
	}
	if len(names) == 0 {
		fmt.Fprintln(s.Out, "no studies yet: memroom tune begins one")
	}
	for _, l := range lines {
		best := "-"
		if l.Best != nil {
			best = fmt.Sprint(*l.Best)
		}
		fmt.Fprintf(s.Out, "%-32s %4d trials, %d finished, best %s\n", l.Name, l.Trials,
			l.States[trial.Finished], best)
	}
	return nil
}
