// Package studyfile reads what a study is from files: our own TOML or YAML, W&B sweeps and Katib
// experiments.
package studyfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
	"go.yaml.in/yaml/v3"

	"memroom/event"
	"memroom/trial"
)

// File is the content of a study file. A zero value means that the file does not set the field.
type File struct {
	Kind       string // own, wandb or katib
	Name       string
	Command    []string // with ${name}
	Metric     string
	Mode       string
	Method     trial.Method
	Scheduler  string
	MaxT       int
	Grace      int
	Factor     int
	Samples    int
	Seed       *uint64
	Concurrent int
	Retries    int
	HostMem    event.Bytes
	GPUMem     event.Bytes
	TrialMem   event.Bytes
	TrialGPU   event.Bytes
	CPUs       float64
	GPUs       *int
	Env        map[string]string
	Templates  []string
	Pattern    string        // of the metric in the output
	MaxTime    time.Duration // of a trial
	Budget     time.Duration // of the whole study
	Space      trial.Space
	Notes      []string // what of the file is not used, and why
}

// largest study file that is read; a larger one is something else
const Largest = 4 << 20

// Parse reads a file by its name's ending, else by what it looks like.
func Parse(name string, data []byte) (*File, error) {
	if len(data) > Largest {
		return nil, fmt.Errorf("%s is too large for a study file: %d bytes, at most %d are read; is it "+
			"one?", name, len(data), Largest)
	}
	tree, err := decode(name, data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	var f *File
	switch {
	case tree["kind"] == "Experiment":
		f, err = katib(tree)
	case isSweep(tree):
		f, err = wandb(tree)
	default:
		f, err = own(plainly(tree))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return f, nil
}

func decode(name string, data []byte) (map[string]any, error) {
	tree := map[string]any{}
	switch strings.ToLower(filepath.Ext(name)) {
	case ".toml":
		_, err := toml.Decode(string(data), &tree)
		return tree, err
	case ".json":
		dec := json.NewDecoder(bytes.NewReader(data))
		dec.UseNumber()
		if err := dec.Decode(&tree); err != nil {
			return nil, event.NotJSON(data, err)
		}
		return tree, nil
	case ".yaml", ".yml":
		err := yaml.Unmarshal(data, &tree)
		return tree, err
	}
	return nil, errors.New("a study file ends in .toml, .yaml, .yml or .json; " +
		"a command comes after --")
}

// reader takes known keys out of a table, so that what is left is unknown.
type reader struct {
	tree map[string]any
	errs []error
}

func (r *reader) take(key string) (any, bool) {
	v, ok := r.tree[key]
	delete(r.tree, key)
	return v, ok && v != nil
}

func (r *reader) text(key string) string {
	v, ok := r.take(key)
	if !ok {
		return ""
	}
	return fmt.Sprint(v)
}

func (r *reader) number(key string) float64 {
	v, ok := r.take(key)
	if !ok {
		return 0
	}
	var f float64
	if _, err := fmt.Sscan(fmt.Sprint(v), &f); err != nil {
		r.errs = append(r.errs, fmt.Errorf("%s must be a number, not %v", key, v))
	}
	return f
}

func (r *reader) whole(key string) int {
	f := r.number(key)
	if f != float64(int(f)) || f < 0 {
		r.errs = append(r.errs, fmt.Errorf("%s must be a whole number, not %v", key, f))
	}
	return int(f)
}

func (r *reader) size(key string) event.Bytes {
	v, ok := r.take(key)
	if !ok {
		return 0
	}
	b, err := event.ParseBytes(fmt.Sprint(v))
	if err != nil {
		r.errs = append(r.errs, fmt.Errorf("%s: %w", key, err))
	}
	return b
}

// duration reads 90s, 1h30m, or a number of seconds.
func (r *reader) duration(key string) time.Duration {
	text := r.text(key)
	if text == "" {
		return 0
	}
	if seconds, err := strconv.ParseFloat(text, 64); err == nil && seconds > 0 {
		return time.Duration(seconds * float64(time.Second))
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		r.errs = append(r.errs, fmt.Errorf("%s must be a time such as 90s or 2h, not %s", key, text))
	}
	return d
}

func (r *reader) texts(key string) []string {
	v, ok := r.take(key)
	if !ok {
		return nil
	}
	switch v := v.(type) {
	case string:
		return commandWords(v)
	case []any:
		var out []string
		for _, one := range v {
			out = append(out, fmt.Sprint(one))
		}
		return out
	}
	r.errs = append(r.errs, fmt.Errorf("%s must be a list of words, such as [python, train.py]", key))
	return nil
}

// done returns the first error, or names a key that nobody knows.
func (r *reader) done(known ...string) error {
	if err := errors.Join(r.errs...); err != nil {
		return err
	}
	for _, key := range keysOf(r.tree) {
		return fmt.Errorf("the key %q is not known; known are %s", key, strings.Join(known, ", "))
	}
	return nil
}

func keysOf(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

// ownKeys are listed in the error about an unknown one.
var ownKeys = []string{"name", "command", "metric", "mode", "search", "scheduler", "max_t", "grace",
	"reduction", "samples", "seed", "concurrent", "retries", "host_mem", "gpu_mem", "trial_mem",
	"trial_gpu_mem", "cpus_per_trial", "gpus_per_trial", "env", "templates", "metric_pattern",
	"max_time", "time_budget", "parameters"}

func own(tree map[string]any) (*File, error) {
	if tree["version"] != nil && tree["created"] != nil {
		return nil, fmt.Errorf("it is what memroom keeps of the study %v: `memroom tune resume %[1]v` "+
			"goes on with it, and `memroom tune show %[1]v` prints it", tree["name"])
	}
	r := &reader{tree: tree}
	f := &File{Kind: "own", Name: r.text("name"), Command: r.texts("command"),
		Metric: r.text("metric"), Mode: r.text("mode"), Method: trial.Method(r.text("search")),
		Scheduler: r.text("scheduler"), MaxT: r.whole("max_t"), Grace: r.whole("grace"),
		Factor: r.whole("reduction"), Samples: r.whole("samples"),
		Concurrent: r.whole("concurrent"), Retries: r.whole("retries"),
		HostMem: r.size("host_mem"), GPUMem: r.size("gpu_mem"), TrialMem: r.size("trial_mem"),
		TrialGPU: r.size("trial_gpu_mem"), CPUs: r.number("cpus_per_trial"),
		Templates: r.texts("templates"), Pattern: r.text("metric_pattern"),
		MaxTime: r.duration("max_time"), Budget: r.duration("time_budget")}
	f.Mode = modeOf(f.Mode)
	if _, given := tree["seed"]; given {
		seed := uint64(r.whole("seed"))
		f.Seed = &seed
	}
	if _, given := tree["gpus_per_trial"]; given {
		n := r.whole("gpus_per_trial")
		f.GPUs = &n
	}
	if env, ok := r.take("env"); ok {
		table, is := env.(map[string]any)
		if !is {
			return nil, errors.New("env must be a table of names and values, such as {WANDB_MODE: offline}")
		}
		f.Env = map[string]string{}
		for k, v := range table {
			f.Env[k] = fmt.Sprint(v)
		}
	}
	parameters, _ := r.take("parameters")
	if err := r.done(ownKeys...); err != nil {
		return nil, err
	}
	return f, f.addParameters(parameters, "")
}

// addParameters reads a table of domains in the order of their names. Nested W&B parameters have
// names with dots.
func (f *File) addParameters(raw any, prefix string) error {
	table, ok := raw.(map[string]any)
	if !ok {
		if raw == nil {
			return nil
		}
		return errors.New("parameters must be a table of names and domains, such as " +
			"{lr: \"loguniform(1e-4,1e-2)\"}")
	}
	for _, name := range keysOf(table) {
		if inner, is := table[name].(map[string]any); is && inner["parameters"] != nil {
			if err := f.addParameters(inner["parameters"], prefix+name+"."); err != nil {
				return err
			}
			continue
		}
		d, err := trial.DomainOf(prefix+name, table[name])
		if err != nil {
			return err
		}
		if err := f.Space.Add(prefix+name, d); err != nil {
			return err
		}
	}
	return nil
}

// wandb reads a sweep of Weights & Biases.
func wandb(tree map[string]any) (*File, error) {
	f := &File{Kind: "wandb"}
	f.Name, _ = tree["name"].(string)
	if metric, ok := tree["metric"].(map[string]any); ok {
		f.Metric, _ = metric["name"].(string)
		f.Mode = "min"
		if goal, ok := metric["goal"].(string); ok {
			f.Mode = modeOf(goal)
		}
	}
	switch method := fmt.Sprint(tree["method"]); method {
	case "grid":
		f.Method = trial.Grid
	case "random":
		f.Method = trial.Random
	case "bayes":
		f.Method = trial.Quasi
		f.Notes = append(f.Notes, "method bayes is searched quasi-randomly here; "+
			"--search optuna models the metric")
	default:
		return nil, fmt.Errorf("method %s is not known: grid, random or bayes", method)
	}
	r := &reader{tree: tree}
	f.Samples = r.whole("run_cap")
	if early, ok := tree["early_terminate"].(map[string]any); ok {
		r.tree = early
		f.setEarlyEnd(r)
	}
	if err := errors.Join(r.errs...); err != nil {
		return nil, err
	}
	if err := f.addParameters(tree["parameters"], ""); err != nil {
		return nil, err
	}
	program, _ := tree["program"].(string)
	f.Command = wandbCommand(tree["command"], program, f.Space)
	return f, nil
}

// setEarlyEnd reads early_terminate, with the defaults of W&B where it has one.
func (f *File) setEarlyEnd(r *reader) {
	f.Scheduler = "asha"
	f.Grace, f.Factor, f.MaxT = r.whole("min_iter"), r.whole("eta"), r.whole("max_iter")
	if f.Factor == 0 {
		f.Factor = 3
	}
	if f.MaxT == 0 {
		f.MaxT = 100 * max(1, f.Grace)
	}
	f.Notes = append(f.Notes, "early_terminate is done by asha, each trial by itself")
}

// wandbCommand fills W&B's macros. Without a command it is python PROGRAM --name=value ...
func wandbCommand(raw any, program string, space trial.Space) []string {
	words := []string{"${env}", "${interpreter}", "${program}", "${args}"}
	switch raw := raw.(type) {
	case []any:
		words = nil
		for _, one := range raw {
			words = append(words, fmt.Sprint(one))
		}
	case string:
		words = commandWords(raw)
	}
	if program == "" && slices.Contains(words, "${program}") {
		return nil // the command line names it
	}
	var out []string
	for _, w := range words {
		switch w {
		case "${env}":
		case "${interpreter}":
			out = append(out, "python")
		case "${program}":
			out = append(out, program)
		case "${args}":
			out = append(out, Flags(space, "--")...)
		case "${args_no_hyphens}":
			out = append(out, Flags(space, "")...)
		case "${args_no_boolean_flags}":
			out = append(out, Flags(space, "--")...)
		case "${args_json}":
			out = append(out, "${params_json}")
		default:
			out = append(out, w)
		}
	}
	return out
}

// Flags returns each parameter as an argument: --name=${name}.
func Flags(space trial.Space, dashes string) []string {
	var out []string
	for _, d := range space {
		out = append(out, dashes+d.Name+"=${"+d.Name+"}")
	}
	return out
}

// katib reads an experiment of Kubeflow's Katib: its objective, parameters and the command of the
// trial's first container.
func katib(tree map[string]any) (*File, error) {
	f := &File{Kind: "katib", Method: trial.Random}
	if meta, ok := tree["metadata"].(map[string]any); ok {
		f.Name, _ = meta["name"].(string)
	}
	spec, ok := tree["spec"].(map[string]any)
	if !ok {
		return nil, errors.New("the experiment has no spec: is the file whole? Katib keeps the " +
			"parameters there")
	}
	if o, ok := spec["objective"].(map[string]any); ok {
		f.Metric, _ = o["objectiveMetricName"].(string)
		f.Mode = "min"
		if o["type"] == "maximize" {
			f.Mode = "max"
		}
	}
	if a, ok := spec["algorithm"].(map[string]any); ok {
		f.setKatibAlgorithm(fmt.Sprint(a["algorithmName"]))
	}
	r := &reader{tree: spec}
	f.Samples, f.Concurrent = r.whole("maxTrialCount"), r.whole("parallelTrialCount")
	if err := errors.Join(r.errs...); err != nil {
		return nil, err
	}
	list, _ := spec["parameters"].([]any)
	for _, one := range list {
		p, _ := one.(map[string]any)
		name := fmt.Sprint(p["name"])
		d, err := trial.DomainOf(name, p)
		if err != nil {
			return nil, err
		}
		if err := f.Space.Add(name, d); err != nil {
			return nil, err
		}
	}
	template, _ := spec["trialTemplate"].(map[string]any)
	f.Command = katibCommand(template)
	return f, nil
}

func (f *File) setKatibAlgorithm(name string) {
	switch name {
	case "grid":
		f.Method = trial.Grid
	case "sobol":
		f.Method = trial.Quasi
	case "random":
	case "hyperband":
		f.Scheduler = "asha"
		f.MaxT = 100
	default:
		f.Method = trial.Quasi
		f.Notes = append(f.Notes, "algorithm "+name+" is searched quasi-randomly here; "+
			"--search optuna models the metric")
	}
}

// katibCommand finds the container's command and puts our names in place of the template's.
func katibCommand(template map[string]any) []string {
	names := map[string]string{}
	list, _ := template["trialParameters"].([]any)
	for _, one := range list {
		if p, ok := one.(map[string]any); ok {
			names[fmt.Sprint(p["name"])] = fmt.Sprint(p["reference"])
		}
	}
	container := firstContainer(template["trialSpec"])
	var out []string
	for _, key := range []string{"command", "args"} {
		words, _ := container[key].([]any)
		for _, w := range words {
			text := fmt.Sprint(w)
			for name, reference := range names {
				text = strings.ReplaceAll(text, "${trialParameters."+name+"}",
					"${"+reference+"}")
			}
			out = append(out, text)
		}
	}
	return out
}

func firstContainer(tree any) map[string]any {
	switch v := tree.(type) {
	case map[string]any:
		if list, ok := v["containers"].([]any); ok && len(list) > 0 {
			c, _ := list[0].(map[string]any)
			return c
		}
		for _, key := range keysOf(v) {
			if c := firstContainer(v[key]); c != nil {
				return c
			}
		}
	}
	return nil
}
