package studyfile

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"memroom/trial"
)

func parsed(t *testing.T, name, text string) *File {
	t.Helper()
	f, err := Parse(name, []byte(text))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return f
}

// TestEveryKeyOfOurOwn: each key of a study file arrives where it belongs.
func TestEveryKeyOfOurOwn(t *testing.T) {
	got := parsed(t, "s.toml", `
name = "widths"
command = ["python", "train.py", "${width}"]
metric = "loss"
mode = "min"
search = "random"
scheduler = "asha"
max_t = 81
grace = 3
reduction = 4
samples = 20
seed = 0
concurrent = 5
retries = 2
host_mem = "4GiB"
gpu_mem = "24GiB"
trial_mem = "512MiB"
trial_gpu_mem = "2GiB"
cpus_per_trial = 1.5
gpus_per_trial = 0
templates = ["conf.yaml"]
metric_pattern = "loss=(.*)"
max_time = 2.5
env = {A = 1, B = "two"}
parameters = {width = [1, 2]}`)
	seed, gpus := uint64(0), 0
	want := &File{Kind: "own", Name: "widths", Command: []string{"python", "train.py", "${width}"},
		Metric: "loss", Mode: "min", Method: trial.Random, Scheduler: "asha", MaxT: 81, Grace: 3,
		Factor: 4, Samples: 20, Seed: &seed, Concurrent: 5, Retries: 2, HostMem: 4 << 30,
		GPUMem: 24 << 30, TrialMem: 512 << 20, TrialGPU: 2 << 30, CPUs: 1.5, GPUs: &gpus,
		Env: map[string]string{"A": "1", "B": "two"}, Templates: []string{"conf.yaml"},
		Pattern: "loss=(.*)", MaxTime: 2500 * time.Millisecond, Space: got.Space}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if width, ok := got.Space.Find("width"); !ok || len(width.Values) != 2 {
		t.Errorf("space %+v", got.Space)
	}
	if nothing := parsed(t, "s.toml", `command = "x"`); nothing.Seed != nil || nothing.GPUs != nil ||
		nothing.MaxTime != 0 {
		t.Errorf("what is not said is said: %+v", nothing)
	}
}

// TestWhatIsWrongIsNamed: the file and the key are in the message.
func TestWhatIsWrongIsNamed(t *testing.T) {
	for text, want := range map[string]string{
		"command: x\nsamples: many":                     "samples must be a number",
		"command: x\nsamples: 2.5":                      "samples must be a whole number",
		"command: x\nsamples: -1":                       "samples must be a whole number",
		"command: x\nhost_mem: lots":                    "host_mem",
		"command: x\nmax_time: 0":                       "max_time",
		"command: x\nmax_time: 0s":                      "max_time",
		"command: x\nmax_time: -5":                      "max_time",
		"command: {a: 1}":                               "command must be a list",
		"command: x\nenv: [1]":                          "env must be a table",
		"command: x\nparameters: [1]":                   "parameters must be a table",
		"command: [x\n":                                 "s.yaml",
		"version: 1\nname: a\ncreated: x\ncommand: [x]": "memroom tune resume a",
		"method: guess\nparameters: {a: 1}":             "method guess",
		"kind: Experiment":                              "no spec",
		"kind: Experiment\nspec: {a: 1}\nb: [":          "s.yaml",
		"kind: Experiment\nspec: {maxTrialCount: some}": "maxTrialCount",
		"kind: Experiment\nspec: {parameters: [{name: a, parameterType: x}]}": "a",
		"method: grid\nearly_terminate: {min_iter: soon}\nparameters: {}":     "min_iter",
		"method: grid\nrun_cap: few\nparameters: {}":                          "run_cap",
		"method: grid\nparameters: {a: {parameters: {b: {type: odd}}}}":       "a.b",
	} {
		f, err := Parse("s.yaml", []byte(text))
		if err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "s.yaml") {
			t.Errorf("%q: %+v, %v; want a word about %s", text, f, err, want)
		}
	}
	if _, err := Parse("s.ini", nil); err == nil || !strings.Contains(err.Error(), ".toml") {
		t.Errorf("an unknown ending: %v", err)
	}
	endless := "command = 'x'\n" + strings.Repeat("#", Largest)
	if _, err := Parse("s.toml", []byte(endless)); err == nil ||
		!strings.Contains(err.Error(), "too large") {
		t.Errorf("a file without end was read: %v", err)
	}
	full := "command = 'x'\n" + strings.Repeat("#", Largest-len("command = 'x'\n"))
	if _, err := Parse("s.toml", []byte(full)); err != nil {
		t.Errorf("the largest file that is read: %v", err)
	}
}

// TestSweep: a sweep of W&B with what it leaves out, and with all of it.
func TestSweep(t *testing.T) {
	f := parsed(t, "sweep.yaml", `
program: train.py
name: s
method: bayes
run_cap: 12
metric: {name: acc, goal: maximize}
early_terminate: {type: hyperband, min_iter: 4}
parameters:
  lr: {min: 0.1, max: 0.5}
  optimizer: {parameters: {name: {values: [sgd, adam]}}}`)
	want := []string{"python", "train.py", "--lr=${lr}", "--optimizer.name=${optimizer.name}"}
	if f.Kind != "wandb" || f.Name != "s" || f.Metric != "acc" || f.Mode != "max" || f.Samples != 12 ||
		f.Method != trial.Quasi || !slices.Equal(f.Command, want) || len(f.Notes) != 2 {
		t.Errorf("%+v", f)
	}
	if f.Scheduler != "asha" || f.Grace != 4 || f.Factor != 3 || f.MaxT != 400 {
		t.Errorf("early end: %+v", f)
	}
	f = parsed(t, "sweep.yaml", `
method: grid
metric: {name: loss}
early_terminate: {eta: 2, max_iter: 27}
command: [nice, "${interpreter}", run.py, "${args_no_hyphens}", "${args_json}"]
parameters: {a: {value: 1}}`)
	want = []string{"nice", "python", "run.py", "a=${a}", "${params_json}"}
	if f.Mode != "min" || f.Method != trial.Grid || f.Factor != 2 || f.MaxT != 27 ||
		!slices.Equal(f.Command, want) {
		t.Errorf("%+v", f)
	}
	if f = parsed(t, "s.yaml", "method: random\nparameters: {a: {value: 1}}"); f.Command != nil {
		t.Errorf("a command of nothing: %q", f.Command)
	}
}

// TestExperiment: what Katib calls by other names arrives under ours.
func TestExperiment(t *testing.T) {
	text := `
kind: Experiment
metadata: {name: e}
spec:
  objective: {type: maximize, objectiveMetricName: acc}
  algorithm: {algorithmName: ALGORITHM}
  maxTrialCount: 9
  parallelTrialCount: 3
  parameters:
    - {name: lr, parameterType: double, feasibleSpace: {min: "0.1", max: "0.5"}}
  trialTemplate:
    trialParameters: [{name: rate, reference: lr}]
    trialSpec:
      spec:
        template:
          spec:
            containers:
              - {command: [python, t.py], args: ["--lr=${trialParameters.rate}"]}
              - {command: [sidecar]}`
	for name, want := range map[string]struct {
		method    trial.Method
		scheduler string
		notes     int
	}{"random": {trial.Random, "", 0}, "grid": {trial.Grid, "", 0}, "sobol": {trial.Quasi, "", 0},
		"hyperband": {trial.Random, "asha", 0}, "tpe": {trial.Quasi, "", 1}} {
		f := parsed(t, "e.yaml", strings.Replace(text, "ALGORITHM", name, 1))
		if f.Method != want.method || f.Scheduler != want.scheduler || len(f.Notes) != want.notes {
			t.Errorf("%s: %+v", name, f)
		}
		if f.Kind != "katib" || f.Name != "e" || f.Metric != "acc" || f.Mode != "max" || f.Samples != 9 ||
			f.Concurrent != 3 || !slices.Equal(f.Command, []string{"python", "t.py", "--lr=${lr}"}) {
			t.Errorf("%s: %+v", name, f)
		}
	}
}
