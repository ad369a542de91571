package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"memroom/event"
	"memroom/probe"
	"memroom/remedy"
	"memroom/remedy/fit"
	"memroom/report"
	"memroom/store"
	"memroom/supervise"
)

const commandFile = "command.json" // the command as the user wrote it

// fitPolicy decides, in the monitor, what a job that ran out of memory is launched again with.
type fitPolicy struct {
	spec     fitSpec
	folder   *store.Folder
	began    time.Time
	cards    *cards
	baseline map[string]event.Bytes // of each card, before the job touched it
}

func newFitPolicy(spec fitSpec, folder *store.Folder, began time.Time, cards *cards) *fitPolicy {
	p := &fitPolicy{spec: spec, folder: folder, began: began, cards: cards}
	if cards != nil {
		p.baseline = cards.used()
	}
	return p
}

// After implements supervise.Policy.
func (p *fitPolicy) After(a supervise.Attempt) supervise.Decision {
	record := p.record()
	tried := p.tried(a, record)
	record.Attempts = append(record.Attempts, tried)
	decision := supervise.Decision{}
	switch {
	case a.Exit.Code == 0:
		if record.Hollow = record.NoTraining(); record.Hollow == "" {
			p.remember(record)
		}
	case a.Exit.InputSpent != "" && a.Verdict.IsOOM:
		record.Impossible = "not launched again: " + a.Exit.InputSpent
	case a.Exit.InputSpent != "":
	case !a.Verdict.IsOOM:
		if retreat := p.retreat(a, record, tried); len(retreat) > 0 &&
			a.Number < p.spec.MaxAttempts {
			decision = p.launch(a, &record, tried, fit.Plan{Remedies: retreat,
				Changed: []string{"no pieces and no checkpointing, which failed"},
				Factor:  fit.Factor(retreat)})
		}
	case a.Number >= p.spec.MaxAttempts:
		record.Impossible, record.Needs = p.facts(a, tried).GivenUp(a.Number)
	default:
		decision = p.next(a, &record, tried)
	}
	if err := p.save(record); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return decision
}

// next chooses the remedies and prepares the launch with them.
func (p *fitPolicy) next(a supervise.Attempt, record *fit.Record,
	tried fit.Tried) supervise.Decision {
	found, err := mapping(a.Launch.Dir, p.original(a), p.spec.Map)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	plan := fit.Choose(p.facts(a, tried), fit.Options{Allow: p.spec.Allow, Forced: p.spec.Forced,
		Mapping: found, Uncut: record.Failed()})
	record.Left = plan.Left
	if plan.Impossible != "" {
		record.Impossible, record.Needs = plan.Impossible, plan.Needs
		return supervise.Decision{}
	}
	return p.launch(a, record, tried, plan)
}

// retreat gives the remedies for another attempt after one that failed, not for lack of memory, in
// what the remedies do to the program's calls: those that leave its calls whole. None where the
// failure is the program's own.
func (p *fitPolicy) retreat(a supervise.Attempt, record fit.Record, tried fit.Tried) []fit.Remedy {
	ours := slices.ContainsFunc(a.Deaths,
		func(d supervise.Death) bool { return fit.CausedByCuts(d.Type, d.Frames) })
	if !ours || !record.Cured() {
		return nil
	}
	return fit.Uncut(tried.Remedies)
}

// launch prepares the next attempt with what was chosen.
func (p *fitPolicy) launch(a supervise.Attempt, record *fit.Record, tried fit.Tried,
	plan fit.Plan) supervise.Decision {
	// whoever chose has told what is wrong with it
	found, _ := mapping(a.Launch.Dir, p.original(a), p.spec.Map)
	args, words := p.arguments(a, found, plan)
	changed := slices.Concat(plan.Changed, words)
	args, resumed := p.resume(a.Launch.Dir, args)
	if resumed != "" {
		changed = append(changed, "going on from "+resumed)
	}
	apply, err := p.apply(a.Number+1, plan.Remedies)
	if err != nil {
		record.Impossible = fmt.Sprintf("the remedies could not be written: %v", err)
		return supervise.Decision{}
	}
	p.waitForCards()
	p.plan(a.Number+1, plan.Remedies, changed, resumed)
	return supervise.Decision{Again: true, Args: args, Env: setEnv(a.Launch.Env, "MEMROOM_APPLY",
		apply), Changed: changed,
		Note: fmt.Sprintf("attempt %d %s; launched again with %s", a.Number, tried.Ending(),
			strings.Join(changed, ", "))}
}

// original is the command as the user wrote it: each attempt is rewritten from there.
func (p *fitPolicy) original(a supervise.Attempt) []string {
	var first []string
	if data, err := os.ReadFile(p.folder.Path(commandFile)); err == nil &&
		json.Unmarshal(data, &first) == nil {
		return first
	}
	return a.Launch.Args
}

// facts are the attempt's end in the words of the choice.
func (p *fitPolicy) facts(a supervise.Attempt, tried fit.Tried) fit.Facts {
	f := fit.Facts{Where: a.Verdict.Where, On: tried.Remedies, Limit: p.spec.GPULimit,
		UsesGPU: tried.Allocated > 0, Idle: idle(tried)}
	f.Hopeless, f.Needs = tried.Hopeless()
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

// idle reports whether remedies were in effect inside the processes and none of them met anything
// to say a word about.
func idle(t fit.Tried) bool {
	inside, met := false, false
	for _, r := range t.Remedies {
		if r.Level == remedy.LevelProcess {
			inside = true
			met = met || slices.ContainsFunc(t.Said,
				func(s fit.Sentence) bool { return s.ID == r.ID })
		}
	}
	return inside && !met
}

// arguments rewrites the command where its own arguments do it.
func (p *fitPolicy) arguments(a supervise.Attempt, m fit.Mapping, plan fit.Plan) (args,
	words []string) {
	return rewritten(p.folder, a.Launch.Dir, p.original(a), m, plan.Factor)
}

// rewritten gives the command with a micro-batch that is factor times smaller. A config file is
// changed in a copy, in the run's folder. A command that cannot be rewritten stays as it is.
func rewritten(folder *store.Folder, dir string, command []string, m fit.Mapping, factor int) (args,
	words []string) {
	if factor < 2 {
		return command, nil
	}
	changed, err := m.Rewrite(command, contents(dir, command)[m.Config], factor)
	if err != nil {
		return command, nil
	}
	args = changed.Args
	if changed.Config != nil {
		copied := folder.Path("config-" + filepath.Base(m.Config))
		if err := os.WriteFile(copied, changed.Config, 0o600); err != nil {
			return command, nil
		}
		args = fit.ReplacePath(args, m.Config, copied)
	}
	return args, []string{changed.Words}
}

// resume adds the newest checkpoint that this run has written.
func (p *fitPolicy) resume(dir string, args []string) (withCheckpoint []string, checkpoint string) {
	how := fit.FindResume(args, p.spec.ResumeWith, p.spec.Checkpoints)
	var newest time.Time
	for _, pattern := range how.Patterns {
		paths, err := filepath.Glob(inDir(dir, pattern))
		if err != nil {
			continue
		}
		for _, path := range paths {
			info, err := os.Stat(path)
			if err == nil && info.ModTime().After(p.began) && info.ModTime().After(newest) &&
				complete(path) {
				newest, checkpoint = info.ModTime(), path
			}
		}
	}
	if checkpoint == "" {
		return args, ""
	}
	return how.With(args, checkpoint), checkpoint
}

// complete: a folder of transformers is a checkpoint once its state, written last, is there.
func complete(path string) bool {
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		return err == nil && info.Size() > 0
	}
	if !strings.HasPrefix(filepath.Base(path), "checkpoint-") {
		return true
	}
	_, err = os.Stat(filepath.Join(path, "trainer_state.json"))
	return err == nil
}

// apply writes the file that the probe reads.
func (p *fitPolicy) apply(attempt int, remedies []fit.Remedy) (string, error) {
	return writeApply(p.folder, attempt, remedies)
}

func writeApply(folder *store.Folder, attempt int, remedies []fit.Remedy) (string, error) {
	path := folder.Path(fmt.Sprintf("apply-%d.json", attempt))
	data, err := json.MarshalIndent(map[string]any{"remedies": fit.Inside(remedies)}, "", "  ")
	if err != nil {
		return "", err
	}
	return path, os.WriteFile(path, data, 0o600)
}

// planned is what the next attempt was given, kept for its record: the monitor may be another
// process by then.
type planned struct {
	Remedies []fit.Remedy `json:"remedies"`
	Changed  []string     `json:"changed"`
	Resumed  string       `json:"resumed,omitempty"`
}

func (p *fitPolicy) plan(attempt int, remedies []fit.Remedy, changed []string, resumed string) {
	data, err := json.Marshal(planned{remedies, changed, resumed})
	if err == nil {
		err = os.WriteFile(p.folder.Path(fmt.Sprintf("plan-%d.json", attempt)), data, 0o600)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// tried describes an attempt that has ended.
func (p *fitPolicy) tried(a supervise.Attempt, record fit.Record) fit.Tried {
	t := fit.Tried{Number: a.Number, ExitCode: a.Exit.Code, StepMS: a.StepMS, Steps: a.LastStep,
		Host: a.Peaks.Unreclaimable}
	var plan planned
	data, err := os.ReadFile(p.folder.Path(fmt.Sprintf("plan-%d.json", a.Number)))
	if err == nil {
		err = json.Unmarshal(data, &plan)
	}
	if err != nil && a.Number == 1 {
		plan.Remedies = p.spec.First
		for _, r := range p.spec.First {
			plan.Changed = append(plan.Changed, r.Words())
		}
	}
	t.Remedies, t.Changed, t.Resumed = plan.Remedies, plan.Changed, plan.Resumed
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
	if t.OutOf == "" && len(a.Deaths) > 0 {
		t.Failed = a.Deaths[0].Line()
	}
	for _, s := range a.Said {
		t.Said = append(t.Said, sentence(s))
	}
	return t
}

func sentence(s probe.Said) fit.Sentence {
	return fit.Sentence{Kind: s.Kind, Text: s.Text, ID: remedy.ID(s.ID), Predicted: s.Predicted,
		Needs: s.Needs, Limit: s.Limit,
		Rows: s.Rows, Pieces: s.Pieces, Twice: s.Twice, Slower: s.Slower,
		Equivalence: s.Equivalence}
}

// record reads what was kept of the attempts before.
func (p *fitPolicy) record() fit.Record {
	r, _ := readFitRecord(p.folder)
	r.Remembered = p.spec.Remembered
	return r
}

func (p *fitPolicy) save(r fit.Record) error { return replaceJSON(p.folder.Path(fitFile), r) }

// replaceJSON writes a file so that a reader sees the old or the new one, whole.
func replaceJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", append(data, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// remember keeps what made the job fit. A job that never ran out has nothing to remember, whatever
// was demanded for it.
func (p *fitPolicy) remember(r fit.Record) {
	last := r.Last()
	if p.spec.Memory == "" || len(last.Remedies) == 0 || !r.Cured() {
		return
	}
	m := fit.Remembered{Command: p.spec.Command, Card: p.spec.Card, Limit: p.spec.GPULimit,
		Remedies: last.Remedies,
		Peak:     last.Reserved, Attempts: len(r.Attempts), When: time.Now()}
	before, _ := readMemory(p.spec.Memory)
	m.RanOut = max(before.RanOut, r.RanOut())
	m.Remedies = m.Relaxed(last.Limit())
	err := os.MkdirAll(filepath.Dir(p.spec.Memory), 0o700)
	if err == nil {
		err = replaceJSON(p.spec.Memory, m)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "remember what worked:", err)
	}
}

// waitForCards waits until the cards hold no more than before the job, so that the next attempt
// finds the same room.
func (p *fitPolicy) waitForCards() {
	const slack = 64 << 20
	deadline := time.Now().Add(p.spec.Patience)
	for p.cards != nil && time.Now().Before(deadline) {
		back := true
		for uuid, used := range p.cards.used() {
			back = back && used <= p.baseline[uuid]+slack
		}
		if back {
			return
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// used gives the bytes in use on each card.
func (c *cards) used() map[string]event.Bytes {
	used := map[string]event.Bytes{}
	devices, err := c.Read()
	if err != nil {
		return used
	}
	for _, d := range devices {
		used[d.UUID] = d.Used
	}
	return used
}

// names of the cards, for the memory of what worked.
func (c *cards) names() string {
	if c == nil {
		return ""
	}
	devices, err := c.Read()
	if err != nil {
		return ""
	}
	var names []string
	for _, d := range devices {
		names = append(names, d.Name)
	}
	return strings.Join(names, ", ")
}

func setEnv(env []string, name, value string) []string {
	out := slices.DeleteFunc(slices.Clone(env),
		func(pair string) bool { return strings.HasPrefix(pair, name+"=") })
	return append(out, name+"="+value)
}

// prepareFit gives the first attempt what is forced or remembered, and the monitor its policy.
func (c *runCmd) prepareFit(s *session, home *store.Store, r *prepared, command []string) (*fitSpec,
	error) {
	if !c.fitFlags.wanted() {
		return nil, nil
	}
	spec, err := c.fitFlags.describe(home.Home, command, openCards().names(), c.GPUMem)
	if err != nil {
		return nil, err
	}
	spec.Command = store.MaskArguments(command)
	if err := replaceJSON(r.folder.Path(commandFile), command); err != nil {
		return nil, err
	}
	if len(spec.First) == 0 {
		return spec, nil
	}
	found, err := mapping("", command, c.Map)
	if err != nil {
		return nil, exitWith(exitUsage, "%w", err)
	}
	r.args, _ = rewritten(r.folder, "", command, found, fit.Factor(spec.First))
	apply, err := writeApply(r.folder, 1, spec.First)
	if err != nil {
		return nil, fmt.Errorf("write the remedies: %w", err)
	}
	r.env = setEnv(r.env, "MEMROOM_APPLY", apply)
	if spec.Remembered {
		s.note("memroom: begins with what made an earlier run fit (memroom forget drops it)")
	}
	return spec, nil
}

// printFit prints the story of a fitted run.
func printFit(s *session, folder *store.Folder) {
	if r, err := readFitRecord(folder); err == nil && r.Tells() {
		report.Fit(s.Err, r)
	}
}
