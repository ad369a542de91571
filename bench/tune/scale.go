package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"memroom/event"
	"memroom/trial"
	"memroom/trial/engine"
)

// nothing is a backend whose trials end at once: what is left is the scheduler and its journal.
type nothing struct {
	events chan trial.Happening
	made   int
}

func (n *nothing) Capacity() (trial.Capacity, error) {
	return trial.Capacity{CPUs: 16, Host: 16 * event.GiB, HostFree: 16 * event.GiB}, nil
}

func (n *nothing) Prepare(trial.Launch) (string, error) {
	n.made++
	return fmt.Sprintf("run-%d", n.made), nil
}

func (n *nothing) Start(run string) error {
	n.events <- trial.Happening{Run: run, Output: []byte("loss=1\n")}
	n.events <- trial.Happening{Run: run, End: &trial.Outcome{PeakHost: event.GiB, Seconds: 1,
		CPUs: 0.1}}
	return nil
}

func (n *nothing) Rejoin(string, trial.Launch) (bool, error) { return false, nil }
func (n *nothing) Usage(string) (trial.Usage, bool)          { return trial.Usage{}, false }
func (n *nothing) Resize(string, event.Bytes) error          { return nil }
func (n *nothing) Release(string)                            {}
func (n *nothing) Stop(string)                               {}
func (n *nothing) Events() <-chan trial.Happening            { return n.events }
func (n *nothing) Close()                                    {}

// scale: the scheduler alone up to 10,000 trials, and whole trials as processes next to the peers.
func (b *bench) scale() error {
	fmt.Println("cost of a trial")
	for _, n := range []int{100, 1000, 10000} {
		took, resume, err := b.empty(n)
		if err != nil {
			return err
		}
		fmt.Printf("  scheduler and journal alone, %5d trials: %.2f ms a trial; resume %.3f s\n", n,
			took.Seconds()*1000/float64(n), resume.Seconds())
	}
	for _, n := range []int{100, 400} {
		text, took, err := b.in("", b.binary, "tune", "--quiet", "--samples", fmt.Sprint(n),
			"--host-mem", "1GiB", "--no-probe", "--", "sh", "-c", "echo loss=1", "uniform(0,1)")
		if err != nil {
			return fmt.Errorf("%w\n%s", err, text)
		}
		fmt.Printf("  memroom tune, processes, %5d trials: %.1f ms a trial\n", n,
			took.Seconds()*1000/float64(n))
	}
	if b.python == "" {
		fmt.Println("  Ray and Optuna: SKIPPED, no Python with them (-python)")
		return nil
	}
	for _, n := range []int{100, 1000} {
		text, _, _ := b.in("", b.python, "-c", optunaSource, fmt.Sprint(n))
		fmt.Printf("  Optuna + SQLite, no processes, %5d trials: %s ms a trial\n", n, lastLine(text))
	}
	text, _, _ := b.in("", b.python, "-c", rayEmptySource, "20")
	fmt.Printf("  Ray Tune, %5d trials: %s ms a trial\n", 20, lastLine(text))
	return nil
}

// empty runs a study of trials that end at once.
func (b *bench) empty(n int) (took, resume time.Duration, err error) {
	d, err := trial.ParseDomain("uniform(0,1)")
	if err != nil {
		return 0, 0, err
	}
	root := filepath.Join(b.dir, fmt.Sprintf("empty-%d", n))
	defer os.RemoveAll(root)
	dir, err := engine.Create(root, engine.Spec{Name: "empty", Command: []string{"true"},
		Space: trial.Space{{Name: "x", Domain: d}}, Method: trial.Random, Samples: n,
		Options: trial.Options{Metric: "loss", Mode: "min", CPUs: 1}})
	if err != nil {
		return 0, 0, err
	}
	e, err := engine.Load(dir)
	if err != nil {
		return 0, 0, err
	}
	e.Backend = &nothing{events: make(chan trial.Happening, 64)}
	began := time.Now()
	err = e.Run(context.Background())
	took = time.Since(began)
	e.Close()
	if err != nil {
		return took, 0, err
	}
	began = time.Now()
	again, err := engine.Load(dir)
	resume = time.Since(began)
	if err != nil {
		return took, resume, err
	}
	again.Close()
	if got := again.Study.Count()[trial.Finished]; got != n {
		return took, resume, fmt.Errorf("%d of %d trials came back", got, n)
	}
	return took, resume, nil
}

const optunaSource = `
import optuna, sys, time
optuna.logging.set_verbosity(optuna.logging.ERROR)
n = int(sys.argv[1])
study = optuna.create_study(storage="sqlite:///peer-%d.db" % n,
    sampler=optuna.samplers.RandomSampler(seed=0))
began = time.time()
study.optimize(lambda t: t.suggest_float("x", 0, 1), n_trials=n)
print("%.1f" % ((time.time() - began) * 1000 / n))
`

const rayEmptySource = `
import sys, time, ray
from ray import tune
n = int(sys.argv[1])
ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
began = time.time()
tune.Tuner(lambda c: {"loss": 1}, param_space={"x": tune.uniform(0, 1)},
    tune_config=tune.TuneConfig(num_samples=n)).fit()
print("\n%.1f" % ((time.time() - began) * 1000 / n))
`
