package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"memroom/event"
	"memroom/trial"
	"memroom/trial/engine"
	"memroom/trial/studyfile"
)

type tuneCmd struct {
	New    tuneNewCmd    `cmd:"" default:"withargs" help:"Start a study: a command with search ranges in it, or a study file."`
	Resume tuneResumeCmd `cmd:"" help:"Go on with a study that was interrupted, or add samples to one that is over."`
	Show   tuneShowCmd   `cmd:"" help:"Show what a study has found."`
	List   tuneListCmd   `cmd:"" help:"List the studies."`
	Rm     tuneRmCmd     `cmd:"" help:"Delete studies with the runs of their trials."`
}

func (tuneCmd) Help() string {
	return `A study begins with the command itself:

  memroom tune --samples 20 --metric loss --mode min -- python train.py --lr 'loguniform(1e-4,1e-2)'

The flags of a new study are listed by memroom tune new --help: budgets of memory, searchers,
schedulers, where metrics come from, --json. With --on ray://HOST:PORT or --on slurm the trials are
jobs of a cluster.`
}

type tuneNewCmd struct {
	Samples *int   `help:"Trials to run; with grid_search, so many for each point of the grid. Default: 10." placeholder:"N"`
	Metric  string `help:"Name of the number to optimise, as the program prints or reports it (loss)." placeholder:"NAME"`
	Mode    string `help:"min or max; guessed from the metric's name." placeholder:"min|max"`
	Pattern string `group:"Metric" name:"metric-pattern" help:"Regular expression for the metric in the output; the value is in its first group." placeholder:"REGEX"`
	Value   string `group:"Metric" help:"A trial's value is its last report, or its best." enum:"last,best" default:"last"`
	Search  string `help:"random, grid, quasi (Sobol) or optuna." placeholder:"NAME"`
	Seed    int64  `group:"Answer" help:"Seed of the search; the same gives the same trials." default:"0"`
	Name    string `help:"Name of the study, to find it by." placeholder:"TEXT"`

	HostMem    event.Bytes `help:"Host memory for the whole study; what is free by default." placeholder:"SIZE"`
	GPUMem     event.Bytes `name:"gpu-mem" help:"Device memory for the whole study, over all cards." placeholder:"SIZE"`
	TrialMem   event.Bytes `group:"Memory and processors" help:"Host memory that each trial needs. Learnt by default." placeholder:"SIZE"`
	TrialGPU   event.Bytes `group:"Memory and processors" name:"trial-gpu-mem" help:"Device memory that each trial needs. Learnt by default." placeholder:"SIZE"`
	CPUs       float64     `group:"Memory and processors" name:"cpus-per-trial" help:"Processors of each trial, fractions too. Measured by default." default:"0" placeholder:"N"`
	GPUs       int         `group:"Memory and processors" name:"gpus-per-trial" help:"Cards of each trial. By default one where there are any." default:"-1" placeholder:"N"`
	Concurrent int         `help:"Trials at once at the most; as many as fit by default." default:"0" placeholder:"N"`
	Retries    int         `group:"Memory and processors" help:"How often a trial that failed is tried again. Running out of memory does not count." default:"0"`
	Fit        bool        `group:"Memory and processors" help:"Let a trial that has all memory and still runs out try the remedies of run --fit." default:"true" negatable:""`

	Sampler string `group:"Optuna" help:"With --search optuna: a sampler of it, such as TPESampler." placeholder:"CLASS"`
	Pruner  string `group:"Optuna" help:"With --search optuna: a pruner of it, such as MedianPruner." placeholder:"CLASS"`
	Storage string `group:"Optuna" help:"With --search optuna: its storage, for optuna-dashboard; a file in the study by default." placeholder:"URL"`
	Python  string `group:"Optuna" help:"With --search optuna: a Python that has it; that of the command by default." placeholder:"PATH"`

	Scheduler string        `group:"Scheduler" help:"fifo runs every trial to its end, asha stops the worse ones early." enum:"fifo,asha," default:"" placeholder:"NAME"`
	MaxT      int           `group:"Scheduler" name:"max-t" help:"With asha: reports of a whole training." default:"0" placeholder:"N"`
	Grace     int           `group:"Scheduler" name:"grace-reports" help:"With asha: reports before the first decision." default:"0" placeholder:"N"`
	Factor    int           `group:"Scheduler" name:"reduction" help:"With asha: at each decision one trial in N goes on." default:"4" placeholder:"N"`
	MaxTime   time.Duration `group:"Scheduler" help:"Stop a trial that runs longer." placeholder:"DURATION"`
	Budget    time.Duration `group:"Scheduler" name:"time-budget" help:"End the study after this time, with what its trials have reported." placeholder:"DURATION"`
	MaxLog    event.Bytes   `group:"Memory and processors" help:"End a trial that prints more." default:"1GiB" placeholder:"SIZE"`

	On         string   `help:"Run the trials on a cluster: ray://HOST:PORT, ray (RAY_ADDRESS, or the cluster of this machine) or slurm. Each is a job of its own with memroom run around it." placeholder:"CLUSTER"`
	Sbatch     []string `group:"Clusters" help:"With --on slurm: a further argument of sbatch, such as --sbatch=--partition=gpu; may be repeated." placeholder:"ARG" sep:"none"`
	WorkingDir string   `group:"Clusters" help:"With --on ray: a folder or URI that Ray copies to its nodes and changes into. Without it they must see this folder." placeholder:"PATH"`

	Param    []string      `group:"Parameters" help:"A parameter that the command takes as $${NAME}: --param lr='loguniform(1e-4,1e-2)'; may be repeated." placeholder:"NAME=DOMAIN" sep:"none"`
	Env      []string      `group:"Parameters" help:"An environment variable of the trials, with $${NAME} or a domain as its value." placeholder:"NAME=VALUE" sep:"none"`
	Template []string      `group:"Parameters" help:"A config file with $${NAME} in it. Each trial gets a filled copy in place of it." placeholder:"PATH" sep:"none"`
	JSON     string        `name:"json" help:"Write the results to this file." placeholder:"PATH"`
	HTML     string        `group:"Answer" name:"html" help:"Write the report as one page to this file." placeholder:"PATH"`
	Quiet    bool          `help:"Only the final report."`
	DryRun   bool          `help:"Print the trials that would run, and start nothing."`
	Rehearse time.Duration `group:"Answer" help:"Rehearse settings on fake tensors before they start, as plan --rehearse does, for at most this long in all (2m). Settings that cannot fit are never started, and the searcher learns that. For PyTorch scripts; the first steps of each run once more." placeholder:"DURATION"`
	Probe    bool          `group:"Answer" help:"Look into Python processes. Without it metrics come from the output only." default:"true" negatable:""`

	Command []string `arg:"" optional:"" passthrough:"" help:"A study file (.toml, .yaml, .json), or after -- the command with domains in its arguments."`
}

func (tuneNewCmd) examples() []example {
	return []example{
		{line: "memroom tune --samples 3 --metric loss --mode min --dry-run -- python train.py " +
			"--lr 'loguniform(1e-4,1e-2)' --bs 'choice(16,32,64)'"},
		{line: "memroom tune --on slurm --sbatch=--partition=gpu --samples 2 --trial-mem 8GiB " +
			"--dry-run -- python train.py --lr 'loguniform(1e-4,1e-2)'"},
		{line: "memroom tune --samples 2 --metric loss --quiet -- sh -c 'echo loss=$0' 'uniform(0,1)'"},
	}
}

type tuneResumeCmd struct {
	Samples int    `help:"Add so many samples." default:"0" placeholder:"N"`
	JSON    string `name:"json" help:"Write the results to this file." placeholder:"PATH"`
	Quiet   bool   `help:"Only the final report."`
	Study   string `arg:"" help:"Name of the study."`
}

type tuneShowCmd struct {
	JSON  bool   `name:"json" help:"Print the results as JSON."`
	HTML  string `name:"html" help:"Write one page that needs no server: history, importance, memory against the settings, packing, trials that ran out." placeholder:"PATH"`
	Study string `arg:"" optional:"" help:"Name of the study; without it, the last one."`
}

type tuneListCmd struct {
	JSON bool `name:"json" help:"Print the list as JSON."`
}

type tuneRmCmd struct {
	Studies []string `arg:"" name:"study" help:"Names of the studies."`
	DryRun  bool     `help:"Only print what would be deleted."`
	JSON    bool     `name:"json" help:"Print JSON."`
}

func (tuneRmCmd) examples() []example {
	return []example{{line: smallStudy + "memroom tune rm s"}}
}

// smallStudy is a study of one trial, for the examples.
const smallStudy = "memroom tune --quiet --name s --samples 1 -- sh -c 'echo loss=$0' " +
	"'uniform(0,1)' && "

func (tuneResumeCmd) examples() []example {
	return []example{{line: smallStudy + "memroom tune resume --samples 1 s"}}
}

func (tuneShowCmd) examples() []example {
	return []example{{line: smallStudy + "memroom tune show --json s"},
		{line: smallStudy + "memroom tune show --html study.html s"}}
}

func (tuneListCmd) examples() []example { return []example{{line: "memroom tune list"}} }

// describe makes the study from flags and file.
func (c *tuneNewCmd) describe(now time.Time) (engine.Spec, []string, error) {
	words := c.Command
	file := &studyfile.File{}
	if len(words) > 0 && strings.HasPrefix(words[0], "-") && words[0] != "--" {
		return engine.Spec{}, nil, exitWith(exitUsage,
			"unknown flag %s: see memroom tune --help; the command comes after --", words[0])
	}
	if len(words) > 0 && isStudyFile(words[0]) {
		data, err := os.ReadFile(words[0])
		if err != nil {
			return engine.Spec{}, nil, exitWith(exitUsage, "%w", err)
		}
		if file, err = studyfile.Parse(words[0], data); err != nil {
			return engine.Spec{}, nil, exitWith(exitUsage, "%w", err)
		}
		if words = words[1:]; len(words) > 0 && words[0] != "--" {
			return engine.Spec{}, nil, exitWith(exitUsage,
				"%s after the study file is neither a flag nor a command: a command comes after --", words[0])
		}
	}
	if command := withoutDashes(words); len(command) > 0 {
		file.Command = command
	}
	spec, err := c.spec(file, now)
	if err != nil {
		return spec, nil, exitWith(exitUsage, "%w", err)
	}
	return spec, file.Notes, nil
}

// fileLast puts a study file behind the flags that were typed after it: the parser takes all that
// follows the first word for the command. words is what it took.
func fileLast(args, words []string) ([]string, bool) {
	if len(words) < 2 || !isStudyFile(words[0]) || !strings.HasPrefix(words[1], "-") ||
		words[1] == "--" {
		return args, false
	}
	before, flags := args[:len(args)-len(words)], words[1:]
	end := slices.Index(flags, "--")
	if end < 0 {
		end = len(flags)
	}
	return slices.Concat(before, flags[:end], words[:1], flags[end:]), true
}

// isStudyFile reports whether a word names a study file rather than a command. The word has to
// decide, because the parser removes the first --.
func isStudyFile(word string) bool {
	return slices.Contains([]string{".toml", ".yaml", ".yml", ".json"}, filepath.Ext(word))
}

// spec combines the study file with the flags, which take precedence.
func (c *tuneNewCmd) spec(f *studyfile.File, now time.Time) (engine.Spec, error) {
	dir, _ := os.Getwd()
	spec := engine.Spec{Name: firstOf(c.Name, studyName(f, now)),
		Created: now, Dir: dir, Command: f.Command, Space: f.Space, Env: f.Env,
		Samples: f.Samples, Seed: uint64(c.Seed),
		Pattern: firstOf(c.Pattern, f.Pattern), MaxTime: firstOf(c.MaxTime, f.MaxTime),
		Budget:  firstOf(c.Budget, f.Budget),
		HostMem: firstOf(c.HostMem, f.HostMem), GPUMem: firstOf(c.GPUMem, f.GPUMem),
		MaxLog: c.MaxLog, Method: trial.Method(firstOf(c.Search, string(f.Method), "random")),
		Probe: c.Probe, Sbatch: c.Sbatch, Rehearse: c.Rehearse}
	if err := c.addCluster(&spec); err != nil {
		return spec, err
	}
	if c.Seed == 0 && f.Seed != nil {
		spec.Seed = *f.Seed
	}
	if c.Samples != nil {
		if *c.Samples < 1 {
			return spec, fmt.Errorf("--samples %d: at least one", *c.Samples)
		}
		spec.Samples = *c.Samples
	}
	o := trial.Options{Metric: firstOf(c.Metric, f.Metric, "loss"), Best: c.Value == "best",
		Retries: firstOf(c.Retries, f.Retries), Fit: c.Fit, CPUs: firstOf(c.CPUs, f.CPUs),
		TrialHost:   firstOf(c.TrialMem, f.TrialMem),
		TrialDevice: firstOf(c.TrialGPU, f.TrialGPU), GPUs: c.GPUs,
		Concurrent: firstOf(c.Concurrent, f.Concurrent)}
	if c.GPUs < 0 && f.GPUs != nil {
		o.GPUs = *f.GPUs
	}
	o.Mode = firstOf(c.Mode, f.Mode, trial.GuessMode(o.Metric))
	spec.Options = o
	if err := c.checkNumbers(spec); err != nil {
		return spec, err
	}
	if err := c.addScheduler(&spec, f); err != nil {
		return spec, err
	}
	if err := c.addParameters(&spec, f); err != nil {
		return spec, err
	}
	if _, err := trial.NewFinder(o.Metric, spec.Pattern); err != nil {
		return spec, err
	}
	if spec.Samples == 0 && spec.Method != trial.Grid {
		spec.Samples = 10
		if slices.ContainsFunc(spec.Space, func(d trial.Dimension) bool { return d.Domain.Grid }) {
			spec.Samples = 1
		}
	}
	if spec.Method == "optuna" {
		return spec, c.addOptuna(&spec)
	}
	if c.Sampler != "" || c.Pruner != "" || c.Storage != "" {
		return spec, errors.New("--sampler, --pruner and --storage are Optuna's: " +
			"add --search optuna")
	}
	_, err := trial.NewSampler(spec.Space, spec.Method, spec.Seed)
	return spec, err
}

var notInName = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// studyName is the file's own, or one of the moment. A sweep's or experiment's name is that of many
// studies: the moment is added.
func studyName(f *studyfile.File, now time.Time) string {
	moment := now.Format("20060102-150405.000")
	switch {
	case f.Name == "":
		return "study-" + moment
	case f.Kind == "own":
		return f.Name
	}
	name := strings.Trim(notInName.ReplaceAllString(f.Name, "-"), "-.")
	return firstOf(name[:min(len(name), 60)], "study") + "-" + moment
}

// addOptuna takes the points from Optuna.
func (c *tuneNewCmd) addOptuna(spec *engine.Spec) error {
	if len(spec.Space) == 0 {
		return trial.ErrNothingToSearch
	}
	spec.Method = engine.External
	python := c.Python
	if python == "" && strings.HasPrefix(filepath.Base(spec.Command[0]), "python") {
		python = spec.Command[0]
	}
	spec.Optuna = &engine.OptunaSpec{Python: firstOf(python, "python3"), Sampler: c.Sampler,
		Pruner: c.Pruner, Storage: c.Storage}
	if spec.ASHA != nil {
		return errors.New("--scheduler asha and --search optuna: take Optuna's pruner, " +
			"--pruner SuccessiveHalvingPruner")
	}
	return nil
}

// firstOf returns the first value that is not zero.
func firstOf[T comparable](values ...T) T {
	var zero T
	for _, v := range values {
		if v != zero {
			return v
		}
	}
	return zero
}

func (c *tuneNewCmd) checkNumbers(spec engine.Spec) error {
	o := spec.Options
	switch {
	case o.Mode != "min" && o.Mode != "max":
		return fmt.Errorf("--mode %s: min or max", o.Mode)
	case spec.Rehearse < 0:
		return fmt.Errorf("--rehearse %s cannot be negative: give a time such as 60s", spec.Rehearse)
	case spec.Budget < 0 || spec.MaxTime < 0:
		return errors.New("--time-budget and --max-time cannot be negative: give a time such as 2h")
	case o.CPUs < 0:
		return fmt.Errorf("--cpus-per-trial %v cannot be negative: give 0 or more", o.CPUs)
	case o.Concurrent < 0 || o.Retries < 0:
		return errors.New("--concurrent and --retries cannot be negative: give 0 or more")
	case len(spec.Command) == 0:
		return errors.New("no command: write memroom tune --samples 20 -- python train.py " +
			"--lr 'loguniform(1e-4,1e-2)'")
	}
	for _, limit := range []struct {
		flag string
		size event.Bytes
	}{{"--host-mem", spec.HostMem}, {"--gpu-mem", spec.GPUMem}, {"--trial-mem", o.TrialHost},
		{"--trial-gpu-mem", o.TrialDevice}} {
		if err := checkLimit(limit.flag, limit.size); err != nil {
			return err
		}
	}
	if o.TrialHost > 0 && spec.HostMem > 0 && o.TrialHost > spec.HostMem {
		return fmt.Errorf("each trial asks for %s (--trial-mem) and the study has %s "+
			"(--host-mem): at most --trial-mem %s", o.TrialHost, spec.HostMem, spec.HostMem)
	}
	return nil
}

func (c *tuneNewCmd) addScheduler(spec *engine.Spec, f *studyfile.File) error {
	name := firstOf(c.Scheduler, f.Scheduler, "fifo")
	if name == "fifo" {
		return nil
	}
	if name != "asha" {
		return fmt.Errorf("scheduler %s is not known: fifo or asha", name)
	}
	factor := c.Factor
	if f.Factor > 0 && c.Factor == 4 {
		factor = f.Factor
	}
	a := &engine.ASHASpec{Grace: firstOf(c.Grace, f.Grace), MaxT: firstOf(c.MaxT, f.MaxT, 100),
		Factor: factor}
	if a.Factor < 2 || a.MaxT < 1 || a.Grace < 0 || a.Grace > a.MaxT {
		return fmt.Errorf("asha cannot use --max-t %d --grace-reports %d --reduction %d: "+
			"--grace-reports must be at most --max-t, and --reduction at least 2", a.MaxT,
			a.Grace, a.Factor)
	}
	spec.ASHA = a
	return nil
}

// addParameters finds the domains: --param, --env, and in the command itself.
func (c *tuneNewCmd) addParameters(spec *engine.Spec, f *studyfile.File) error {
	for _, p := range c.Param {
		name, text, ok := strings.Cut(p, "=")
		if !ok || name == "" {
			return fmt.Errorf("--param %s: write NAME=DOMAIN, such as lr='loguniform(1e-4,1e-2)'", p)
		}
		d, err := trial.ParseDomain(text)
		if err != nil {
			return err
		}
		if err := spec.Space.Add(name, d); err != nil {
			return err
		}
	}
	if err := c.addEnvironment(spec); err != nil {
		return err
	}
	flagged, err := takeDomains(spec.Command, &spec.Space)
	if err != nil {
		return err
	}
	spec.Command = flagged
	if err := c.addTemplates(spec, f); err != nil {
		return err
	}
	if f.Kind != "" && !usesParameters(*spec) { // a file's parameters and a plain command
		spec.Command = append(slices.Clone(spec.Command), studyfile.Flags(spec.Space, "--")...)
	}
	return checkReferences(*spec)
}

func (c *tuneNewCmd) addEnvironment(spec *engine.Spec) error {
	if len(c.Env) > 0 && spec.Env == nil {
		spec.Env = map[string]string{}
	}
	for _, e := range c.Env {
		name, text, ok := strings.Cut(e, "=")
		if !ok || name == "" {
			return fmt.Errorf("--env %s: write NAME=VALUE", e)
		}
		spec.Env[name] = text
	}
	for _, name := range sortedNames(spec.Env) {
		if !trial.IsExpression(spec.Env[name]) {
			continue
		}
		d, err := trial.ParseDomain(spec.Env[name])
		if err != nil {
			return err
		}
		if err := spec.Space.Add(name, d); err != nil {
			return err
		}
		spec.Env[name] = "${" + name + "}"
	}
	return nil
}

func sortedNames(m map[string]string) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (c *tuneNewCmd) addTemplates(spec *engine.Spec, f *studyfile.File) error {
	paths := append(slices.Clone(c.Template), f.Templates...)
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read the template: %w", cause(err))
		}
		if spec.Files == nil {
			spec.Files = map[string]string{}
		}
		spec.Files[path] = string(data)
	}
	return nil
}

// takeDomains replaces domains in a command by ${name}. The name is that of the flag before it.
func takeDomains(command []string, space *trial.Space) ([]string, error) {
	out := slices.Clone(command)
	flag, positional := "", 0
	for i, word := range command {
		name, value, prefix := "", word, ""
		if key, rest, ok := strings.Cut(word, "="); ok && !strings.ContainsAny(key, "( ") {
			name, value, prefix = strings.TrimLeft(key, "-+"), rest, key+"="
		} else if flag != "" {
			name = strings.TrimLeft(flag, "-")
		}
		flag = ""
		if strings.HasPrefix(word, "-") && prefix == "" {
			flag = word
		}
		if !trial.IsExpression(value) {
			if close := trial.Misspelt(value); close != "" && name != "c" { // -c: a program's text
				return nil, fmt.Errorf("%s in the command: did you mean %s? Quote it twice if the "+
					"program is to get it as it is", value, close)
			}
			continue
		}
		if name == "" {
			positional++
			name = fmt.Sprintf("arg%d", positional)
		}
		d, err := trial.ParseDomain(value)
		if err != nil {
			return nil, err
		}
		if err := space.Add(name, d); err != nil {
			return nil, err
		}
		out[i] = prefix + "${" + name + "}"
	}
	return out, nil
}

var reference = regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_.-]*)\}`)

// usesParameters reports whether any parameter is mentioned anywhere.
func usesParameters(spec engine.Spec) bool {
	for _, text := range templated(spec) {
		for _, m := range reference.FindAllStringSubmatch(text, -1) {
			if _, known := spec.Space.Find(m[1]); known || m[1] == "params_json" {
				return true
			}
		}
	}
	return false
}

func templated(spec engine.Spec) []string {
	texts := slices.Clone(spec.Command)
	for _, v := range spec.Env {
		texts = append(texts, v)
	}
	for _, v := range spec.Files {
		texts = append(texts, v)
	}
	return texts
}

// checkReferences refuses a name that is nearly a parameter's: ${lrr} is a slip, ${HOME} is the
// shell's.
func checkReferences(spec engine.Spec) error {
	for _, text := range templated(spec) {
		for _, m := range reference.FindAllStringSubmatch(text, -1) {
			if _, known := spec.Space.Find(m[1]); known {
				continue
			}
			for _, d := range spec.Space {
				if strings.EqualFold(d.Name, m[1]) || strings.HasPrefix(m[1], d.Name) &&
					len(m[1]) <= len(d.Name)+2 {
					return fmt.Errorf("${%s} is not a parameter; did you mean ${%s}?", m[1], d.Name)
				}
			}
		}
	}
	return nil
}

// fill puts a trial's settings into a text.
func fill(text string, spec engine.Spec, id int, p trial.Params) string {
	return reference.ReplaceAllStringFunc(text, func(match string) string {
		name := match[2 : len(match)-1]
		if v, ok := p.Get(name); ok {
			return v.String()
		}
		switch name {
		case "trial":
			return fmt.Sprint(id)
		case "study":
			return spec.Name
		case "params_json":
			data, _ := json.Marshal(p)
			return string(data)
		}
		return match
	})
}

// tuneResult is what --json writes.
type tuneResult struct {
	Trials []tuneTrial `json:"trials"`
	Best   *tuneBest   `json:"best"`
}

type tuneTrial struct {
	ID         int          `json:"id"`
	Params     trial.Params `json:"params"`
	State      trial.State  `json:"state"`
	Value      *float64     `json:"value"`
	Why        string       `json:"why,omitempty"` // it failed, is infeasible, was stopped or waits
	Attempts   int          `json:"attempts"`
	PeakHost   event.Bytes  `json:"peak_host_bytes"`
	PeakDevice event.Bytes  `json:"peak_device_bytes"`
	Reserved   event.Bytes  `json:"reserved_bytes"`
}

type tuneBest struct {
	Params trial.Params `json:"params"`
	Value  float64      `json:"value"`
}

// resultOf lists the trials, those of an interrupted study that wait too. The memory is
// that of the last attempt.
func resultOf(e *engine.Engine) tuneResult {
	out, study := tuneResult{Trials: []tuneTrial{}}, e.Study
	for _, t := range study.Trials {
		one := tuneTrial{ID: t.ID, Params: t.Params, State: t.State, Value: t.Value, Why: t.Why}
		for _, a := range t.Attempts {
			one.Attempts++
			if a.Outcome == nil {
				continue
			}
			one.Attempts += max(0, a.Outcome.Launches-1)
			one.PeakHost, one.PeakDevice = a.Outcome.Peak(), a.Outcome.PeakDevice
			one.Reserved = a.Reserved
		}
		out.Trials = append(out.Trials, one)
	}
	for i, p := range e.Rest() {
		out.Trials = append(out.Trials, tuneTrial{ID: len(study.Trials) + i, Params: p,
			State: trial.Waiting})
	}
	if best := study.Best(); best != nil {
		out.Best = &tuneBest{best.Params, *best.Value}
	}
	return out
}

func studiesDir(home string) string { return filepath.Join(home, "studies") }
