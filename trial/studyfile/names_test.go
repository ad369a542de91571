package studyfile

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"memroom/trial"
)

// TestKeysInManyWords: the same study in the words of several libraries.
func TestKeysInManyWords(t *testing.T) {
	for name, text := range map[string]string{
		"own.toml": `
command = "python train.py --lr ${lr} --bs ${bs}"
metric = "acc"
mode = "max"
samples = 7
max_time = "90s"
[parameters]
lr = "loguniform(1e-4, 1e-2)"
bs = [16, 32]`,
		"optuna.yaml": `
command: python train.py --lr ${lr} --bs ${bs}
metric: acc
direction: maximize
n_trials: 7
max-time: 90
params:
  lr: {type: float, low: 1e-4, high: 1e-2, log: true}
  bs: {type: categorical, choices: [16, 32]}`,
		"ray.json": `{"command": ["python", "train.py", "--lr", "${lr}", "--bs", "${bs}"],
"metric": {"name": "acc", "mode": "max"}, "num_samples": 7, "max_time": "1m30s",
"param_space": {"lr": {"loguniform": [1e-4, 1e-2]}, "bs": {"choice": [16, 32]}}}`,
		"grouped.yaml": `
study: {metric: {name: acc, goal: maximize}, trials: 7}
resources: {max_time: 90s}
command: 'python  train.py "--lr" ${lr} --bs ${bs}'
search_space:
  lr: {distribution: log_uniform_values, min: 0.0001, max: 0.01}
  bs: {values: [16, 32]}`,
	} {
		f, err := Parse(name, []byte(text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		lr, _ := f.Space.Find("lr")
		bs, _ := f.Space.Find("bs")
		want := []string{"python", "train.py", "--lr", "${lr}", "--bs", "${bs}"}
		if f.Kind != "own" || f.Metric != "acc" || f.Mode != "max" || f.Samples != 7 ||
			f.MaxTime != 90*time.Second || !slices.Equal(f.Command, want) {
			t.Errorf("%s: %+v", name, f)
		}
		if lr.Kind != trial.LogScale || lr.Low != 1e-4 || lr.High != 1e-2 ||
			bs.Kind != trial.Choice || len(bs.Values) != 2 {
			t.Errorf("%s: lr %+v, bs %+v", name, lr, bs)
		}
	}
}

// TestKeysThatNobodyKnows are named, also where a synonym is used together with our own word.
func TestKeysThatNobodyKnows(t *testing.T) {
	for text, want := range map[string]string{
		"command: x\nsampels: 3":                       "sampels",
		"command: x\nsamples: 3\nn_trials: 4":          "n_trials",
		"command: x\nmax_time: soon":                   "max_time",
		"command: x\nparams: {lr: {type: sideways}}":   "sideways",
		"command: x\nparams: {lr: {type: choice}}":     "values",
		"command: x\nparams: {lr: {low: 2, high: 1}}":  "swapped",
		"command: x\nstudy: {nonsense: 1}\nparams: {}": "nonsense",
	} {
		if _, err := Parse("s.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want a word about %s", text, err, want)
		}
	}
}

func TestCommandWords(t *testing.T) {
	for line, want := range map[string][]string{
		`python train.py --name 'a b' --x=""`: {"python", "train.py", "--name", "a b", "--x="},
		`python "" end`:                       {"python", "", "end"},
		`cd src && python train.py`:           {"sh", "-c", "cd src && python train.py"},
		`python train.py | tee $(date)`:       {"sh", "-c", "python train.py | tee $(date)"},
		`python 'open`:                        {"sh", "-c", "python 'open"},
		`python -c 'print(1); x = 2 > 1'`:     {"python", "-c", "print(1); x = 2 > 1"},
	} {
		if got := commandWords(line); !slices.Equal(got, want) {
			t.Errorf("%s: %q", line, got)
		}
	}
}

// TestWholeSteps checks that a sweep's q_ words with a whole step lead to integers, as its batch
// sizes must be.
func TestWholeSteps(t *testing.T) {
	f, err := Parse("sweep.yaml", []byte(`
method: random
metric: {name: loss, goal: minimize}
parameters:
  bs: {distribution: q_log_uniform, q: 1, min: 3.4657, max: 5.5452}
  width: {distribution: q_uniform, q: 8, min: 8, max: 64}
  drop: {distribution: q_uniform, q: 0.1, min: 0, max: 0.5}
`))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		u := float64(i) / 20
		for name, whole := range map[string]bool{"bs": true, "width": true, "drop": false} {
			d, _ := f.Space.Find(name)
			if _, is := d.At(u).Data.(int64); is != whole {
				t.Errorf("%s at %v is %v", name, u, d.At(u))
			}
		}
	}
}

// TestSweepsAreTold: a sweep of W&B has a method, parameters, a metric with a goal, and no key of
// ours.
func TestSweepsAreTold(t *testing.T) {
	whole := func(change func(tree map[string]any)) map[string]any {
		tree := map[string]any{"method": "bayes", "parameters": map[string]any{"lr": 1},
			"metric": map[string]any{"name": "loss", "goal": "minimize"}, "run_cap": 10}
		change(tree)
		return tree
	}
	for name, c := range map[string]struct {
		tree map[string]any
		want bool
	}{
		"a sweep":          {whole(func(map[string]any) {}), true},
		"without a metric": {whole(func(tree map[string]any) { delete(tree, "metric") }), true},
		"no method":        {whole(func(tree map[string]any) { delete(tree, "method") }), false},
		"no parameters":    {whole(func(tree map[string]any) { delete(tree, "parameters") }), false},
		"our metric":       {whole(func(tree map[string]any) { tree["metric"] = "loss" }), false},
		"our key":          {whole(func(tree map[string]any) { tree["samples"] = 5 }), false},
		"nothing":          {map[string]any{}, false},
	} {
		if got := isSweep(c.tree); got != c.want {
			t.Errorf("%s: a sweep %v, want %v", name, got, c.want)
		}
	}
}

// TestTablesForOneWord checks that a table in place of a word is read as the word and the other
// settings in the table.
func TestTablesForOneWord(t *testing.T) {
	for _, c := range []struct{ tree, want map[string]any }{
		{map[string]any{"metric": map[string]any{"name": "loss", "mode": "min"}},
			map[string]any{"metric": "loss", "mode": "min"}},
		{map[string]any{"search": map[string]any{"name": "tpe", "seed": 1}},
			map[string]any{"search": "tpe", "seed": 1}},
		{map[string]any{"search": map[string]any{"type": "tpe"}}, map[string]any{"search": "tpe"}},
		{map[string]any{"algorithm": map[string]any{"algorithm": "tpe"}},
			map[string]any{"search": "tpe"}},
		{map[string]any{"scheduler": map[string]any{"type": "asha", "max_t": 9}},
			map[string]any{"scheduler": "asha", "max_t": 9}},
	} {
		if got := plainly(c.tree); fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%v became %v, want %v", c.tree, got, c.want)
		}
	}
}
