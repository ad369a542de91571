package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"memroom/event"
	"memroom/testenv"
)

// tuneRun is one use of `memroom tune` in a folder and home of its own.
type tuneRun struct {
	t      *testing.T
	binary string
	dir    string
}

func newTune(t *testing.T) *tuneRun {
	r := &tuneRun{t: t, binary: testenv.Binary(t), dir: t.TempDir()}
	return r
}

func (r *tuneRun) file(name, text string) string {
	path := filepath.Join(r.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		r.t.Fatal(err)
	}
	return path
}

func (r *tuneRun) command(args ...string) *exec.Cmd {
	cmd := exec.Command(r.binary, args...)
	cmd.Dir = r.dir
	cmd.Env = append(os.Environ(), "MEMROOM_HOME="+filepath.Join(r.dir, "home"),
		"PATH="+filepath.Dir(testenv.Python(r.t))+":"+os.Getenv("PATH"))
	return cmd
}

// tune runs a study and returns the result that --json wrote, all output and the exit code.
func (r *tuneRun) tune(args ...string) (tuneResult, string, int) {
	r.t.Helper()
	out := filepath.Join(r.dir, "out.json")
	_ = os.Remove(out)
	cmd := r.command(append([]string{"tune", "--json", out}, args...)...)
	text, _ := cmd.CombinedOutput()
	var result tuneResult
	if data, err := os.ReadFile(out); err == nil && len(data) > 0 {
		if err := json.Unmarshal(data, &result); err != nil {
			r.t.Fatalf("%v in %s", err, data)
		}
	}
	return result, string(text), cmd.ProcessState.ExitCode()
}

func TestTuneFindsTheBestOfAnUnmodifiedScript(t *testing.T) {
	r := newTune(t)
	r.file("train.py", `
import argparse, os
p = argparse.ArgumentParser()
p.add_argument("--lr", type=float)
p.add_argument("--bs", type=int)
a = p.parse_args()
x = b"x" * (a.bs << 20)
for epoch in range(3):
    print(f"epoch {epoch}: loss={(a.lr - 0.003) ** 2 + 1 / (epoch + 1)}", flush=True)
`)
	result, text, code := r.tune("--samples", "6", "--metric", "loss", "--mode", "min", "--seed", "3",
		"--host-mem", "1GiB", "--", "python", "train.py", "--lr", "loguniform(1e-4,1e-2)", "--bs",
		"choice(16,32,64)")
	if code != 0 || len(result.Trials) != 6 || result.Best == nil {
		t.Fatalf("exit %d\n%s", code, text)
	}
	for _, one := range result.Trials {
		bs, _ := one.Params.Get("bs")
		n, _ := bs.Float()
		if one.State != "finished" || one.Attempts != 1 || one.Value == nil ||
			*one.Value < result.Best.Value {
			t.Errorf("trial %+v", one)
		}
		// A trial that ends between two readings may have had less than it took: trial's own tests
		// have what a reading changes.
		if one.PeakHost < event.Bytes(n)*event.MiB || one.PeakHost > event.Bytes(n+60)*event.MiB ||
			one.Reserved == 0 || one.Reserved > event.GiB {
			t.Errorf("bs=%v: peak %s, reserved %s", n, one.PeakHost, one.Reserved)
		}
	}
	again, _, _ := r.tune("--samples", "6", "--seed", "3", "--", "python", "train.py", "--lr",
		"loguniform(1e-4,1e-2)", "--bs", "choice(16,32,64)")
	for i := range again.Trials {
		if again.Trials[i].Params.String() != result.Trials[i].Params.String() {
			t.Errorf("the same seed gives %s and %s", again.Trials[i].Params,
				result.Trials[i].Params)
		}
	}
}

// hold is a script that takes megabytes step by step and reports them.
const holdScript = `
import json, sys, time
mb = int(sys.argv[1])
kept = []
for i in range(8):
    block = bytearray((mb << 20) // 8)
    block[::4096] = b"x" * len(block[::4096])
    kept.append(block)
    time.sleep(float(sys.argv[2]) / 8)
print(json.dumps({"loss": mb}))
`

func TestTuneKeepsTheBudgetAndSaysWhatDoesNotFit(t *testing.T) {
	needCgroup(t)
	r := newTune(t)
	r.file("hold.py", holdScript)
	result, text, code := r.tune("--search", "grid", "--host-mem", "400MiB", "--", "python", "hold.py",
		"choice(40,80,160,320,700)", "0.8")
	if code != 0 || len(result.Trials) != 5 {
		t.Fatalf("exit %d\n%s", code, text)
	}
	for _, one := range result.Trials {
		v, _ := one.Params.Get("arg1")
		mb, _ := v.Float()
		want := "finished"
		if mb == 700 {
			want = "infeasible"
		}
		if string(one.State) != want || one.Reserved > 400*event.MiB || one.PeakHost > 401*event.MiB {
			t.Errorf("%v MiB: %+v", mb, one)
		}
	}
	if !strings.Contains(text, "needs more than 400MiB") {
		t.Errorf("the report does not say why:\n%s", text)
	}
}

// needCgroup skips where trials cannot have cgroups of their own.
func needCgroup(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		testenv.Needs(t, "root", "to make cgroups")
	}
	if err := os.Mkdir("/sys/fs/cgroup/memory/memroom-test", 0o755); err == nil {
		_ = os.Remove("/sys/fs/cgroup/memory/memroom-test")
		return
	}
	testenv.Needs(t, "cgroup v1", "the memory controller cannot be written")
}

func TestTuneBadTrials(t *testing.T) {
	r := newTune(t)
	r.file("daemon.py", `
import os, time
print("loss=0.25", flush=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open("daemon.pid", "w").write(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
os.wait()
while not os.path.exists("daemon.pid"): time.sleep(0.01)
`)
	r.file("deaf.py", `
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("loss=1", flush=True)
time.sleep(600)
`)
	for _, c := range []struct {
		name, state, words string
		args               []string
	}{
		{"never reports", "failed", "without reporting loss", []string{"--", "sh", "-c", "echo hi"}},
		{"not a number", "failed", "NaN", []string{"--", "sh", "-c", "echo loss=1; echo loss=nan"}},
		{"an error", "failed", "it said last: boom", []string{"--", "sh", "-c", "echo boom; exit 3"}},
		{"leaves a daemon", "finished", "", []string{"--", "python", "daemon.py"}},
		{"hears no signal", "stopped", "--max-time",
			[]string{"--max-time", "1s", "--", "python", "deaf.py"}},
		{"prints without end", "failed", "--max-log",
			[]string{"--max-log", "5MiB", "--", "sh", "-c", "yes loss=1"}},
		{"asks for too much at once", "infeasible", "needs more than",
			[]string{"--host-mem", "100MiB", "--", "python", "-c", "bytearray(1 << 50)"}},
		{"is not there", "", "command not found", []string{"--", "no-such-program"}},
	} {
		args := append([]string{"--samples", "1"}, append(c.args, "uniform(0,1)")...)
		result, text, _ := r.tune(args...)
		switch {
		case c.state == "" && len(result.Trials) > 0:
			t.Errorf("%s: %+v", c.name, result.Trials)
		case c.state != "" && (len(result.Trials) != 1 || string(result.Trials[0].State) != c.state):
			t.Errorf("%s: %+v, want %s\n%s", c.name, result.Trials, c.state, text)
		case !strings.Contains(text, c.words):
			t.Errorf("%s: %q is not in\n%s", c.name, c.words, text)
		}
	}
	pid, _ := os.ReadFile(filepath.Join(r.dir, "daemon.pid"))
	if _, err := os.Stat("/proc/" + string(pid)); err == nil {
		t.Errorf("the daemon %s still lives", pid)
	}
}

func TestTuneRefusals(t *testing.T) {
	r := newTune(t)
	r.file("broken.toml", "samples = \"many\"\ncommand = [\"true\"]\n")
	r.file("unknown.yaml", "comand: [true]\n")
	for _, c := range []struct {
		words string
		args  []string
	}{
		{"nothing to search", []string{"--", "true"}},
		{"nothing to choose", []string{"--", "true", "--x", "choice()"}},
		{"swapped", []string{"--", "true", "--x", "uniform(2,1)"}},
		{"did you mean loguniform", []string{"--", "true", "--lr", "loguniforn(1e-4,1e-2)"}},
		{"is given twice and differs",
			[]string{"--", "true", "--lr", "uniform(0,1)", "--lr", "uniform(0,2)"}},
		{"at most --cpus-per-trial",
			[]string{"--cpus-per-trial", "4096", "--", "true", "uniform(0,1)"}},
		{"at most --trial-mem 1GiB",
			[]string{"--trial-mem", "2GiB", "--host-mem", "1GiB", "--", "true", "uniform(0,1)"}},
		{"too small for any process", []string{"--host-mem", "4", "--", "true", "uniform(0,1)"}},
		{"min or max", []string{"--mode", "up", "--", "true", "uniform(0,1)"}},
		{"no group for the value", []string{"--metric-pattern", "loss", "--", "true", "uniform(0,1)"}},
		{"no command", nil},
		{"must be a number", []string{"broken.toml"}},
		{"\"comand\" is not known", []string{"unknown.yaml"}},
		{"there is no file missing.toml", []string{"missing.toml"}},
		{"there is no study", []string{"resume", "nope"}},
		{"did you mean ${lr}", []string{"--param", "lr=uniform(0,1)", "--", "true", "${lrr}"}},
	} {
		args := append([]string{"tune"}, c.args...)
		cmd := r.command(args...)
		text, _ := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != exitUsage ||
			!strings.Contains(string(text), c.words) {
			t.Errorf("%q: exit %d, want %q in\n%s", c.args, code, c.words, text)
		}
	}
}

// TestTuneSurvivesKills: the scheduler is killed again and again; every trial is run once.
func TestTuneSurvivesKills(t *testing.T) {
	r := newTune(t)
	r.file("once.py", `
import os, sys, time
with open("ran", "a") as f: f.write(os.environ["MEMROOM_TRIAL"] + "\n")
time.sleep(0.2)
print("loss=" + sys.argv[1])
`)
	args := []string{"tune", "--name", "k", "--samples", "12", "--quiet", "--host-mem", "1GiB", "--",
		"python", "once.py", "uniform(0,1)"}
	for kill := range 6 {
		cmd := r.command(args...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(100+170*kill) * time.Millisecond)
		_ = cmd.Process.Signal(syscall.SIGKILL)
		_ = cmd.Wait()
		if _, err := os.Stat(filepath.Join(r.dir, "home", "studies", "k", "study.json")); err == nil {
			args = []string{"tune", "resume", "--quiet", "k"}
		}
	}
	out := filepath.Join(r.dir, "k.json")
	text, err := r.command("tune", "resume", "--quiet", "--json", out, "k").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	var result tuneResult
	data, _ := os.ReadFile(out)
	if err := json.Unmarshal(data, &result); err != nil || len(result.Trials) != 12 {
		t.Fatalf("%v: %s", err, data)
	}
	ran, _ := os.ReadFile(filepath.Join(r.dir, "ran"))
	if n := strings.Count(string(ran), "\n"); n != 12 {
		t.Errorf("12 trials ran %d times:\n%s", n, ran)
	}
	for _, one := range result.Trials {
		// A kill between the note of an attempt and its start leaves one that ran nothing.
		if one.State != "finished" || one.Attempts > 2 ||
			strings.Count("\n"+string(ran), fmt.Sprintf("\n%d\n", one.ID)) != 1 {
			t.Errorf("%+v", one)
		}
	}
	more, err := r.command("tune", "resume", "--quiet", "--samples", "2", "--json", out,
		"k").CombinedOutput()
	data, _ = os.ReadFile(out)
	if json.Unmarshal(data, &result) != nil || err != nil || len(result.Trials) != 14 {
		t.Errorf("two more samples: %v, %d trials\n%s", err, len(result.Trials), more)
	}
}

func TestTuneRefusesASecondScheduler(t *testing.T) {
	r := newTune(t)
	first := r.command("tune", "--name", "two", "--samples", "1", "--", "sh", "-c",
		"until test -e go; do sleep 0.05; done; echo loss=1", "uniform(0,1)")
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = first.Wait() }()
	defer r.file("go", "")
	lock := filepath.Join(r.dir, "home", "studies", "two", "lock")
	waitFor(t, "the first scheduler has its lock", func() bool {
		data, err := os.ReadFile(lock)
		return err == nil && len(data) > 0
	})
	text, err := r.command("tune", "resume", "two").CombinedOutput()
	if err == nil || !strings.Contains(string(text), "another memroom is working on it") {
		t.Errorf("%v\n%s", err, text)
	}
}

func TestTuneStudyFiles(t *testing.T) {
	r := newTune(t)
	r.file("use.sh", `echo "$@" >> used; echo "score=1"`)
	r.file("conf.yaml", "model:\n  lr: ${lr}\n")
	for name, text := range map[string]string{
		"study.toml": `
command = ["sh", "-c", 'cat "$0"; echo "$X"; echo score=${lr}', "conf.yaml"]
metric = "score"
mode = "max"
samples = 3
templates = ["conf.yaml"]
[env]
X = "${n}"
[parameters]
lr = "loguniform(1e-4, 1e-2)"
n = {int = [1, 3]}
`,
		"sweep.yaml": `
program: use.sh
method: grid
metric: {name: score, goal: maximize}
parameters:
  optimizer: {values: [adam, sgd]}
  layers: {min: 1, max: 2}
  fixed: {value: 7}
command: [sh, "${program}", "${args}"]
`,
		"katib.yaml": `
apiVersion: kubeflow.org/v1beta1
kind: Experiment
metadata: {name: random}
spec:
  objective: {type: maximize, objectiveMetricName: score}
  algorithm: {algorithmName: random}
  parallelTrialCount: 2
  maxTrialCount: 4
  parameters:
    - {name: lr, parameterType: double, feasibleSpace: {min: "0.01", max: "0.05"}}
    - {name: opt, parameterType: categorical, feasibleSpace: {list: [sgd, adam]}}
  trialTemplate:
    trialParameters:
      - {name: learningRate, reference: lr}
      - {name: optimizer, reference: opt}
    trialSpec:
      spec:
        template:
          spec:
            containers:
              - name: c
                command: [sh, use.sh, "--lr=${trialParameters.learningRate}", "--opt=${trialParameters.optimizer}"]
`,
	} {
		r.file(name, text)
		want := map[string]int{"study.toml": 3, "sweep.yaml": 4, "katib.yaml": 4}[name]
		result, out, code := r.tune(name)
		if code != 0 || len(result.Trials) != want {
			t.Errorf("%s: exit %d, %d trials, want %d\n%s", name, code, len(result.Trials), want, out)
			continue
		}
		for _, one := range result.Trials {
			if one.State != "finished" {
				t.Errorf("%s: %+v", name, one)
			}
		}
	}
	used, _ := os.ReadFile(filepath.Join(r.dir, "used"))
	for _, words := range []string{"--fixed=7 --layers=1 --optimizer=adam", "--layers=2", "--opt=sgd"} {
		if !strings.Contains(string(used), words) {
			t.Errorf("%q is not among\n%s", words, used)
		}
	}
}

func TestTuneStopsTheWorseEarly(t *testing.T) {
	r := newTune(t)
	r.file("curve.py", `
import sys, time
for t in range(20):
    print("loss=%s" % (float(sys.argv[1]) + 1 / (t + 1)), flush=True)
    time.sleep(0.05)
`)
	result, text, _ := r.tune("--samples", "8", "--scheduler", "asha", "--max-t", "20", "--concurrent",
		"1", "--", "python", "curve.py", "uniform(0,1)")
	stopped := 0
	for _, one := range result.Trials {
		if one.State == "stopped" && one.Value != nil {
			stopped++
		} else if one.State != "finished" {
			t.Errorf("%+v", one)
		}
	}
	if stopped == 0 || stopped == 8 {
		t.Errorf("%d of 8 were stopped\n%s", stopped, text)
	}
}

// TestTuneRm: a study goes with the runs of its trials, and with nothing else.
func TestTuneRm(t *testing.T) {
	r := newTune(t)
	if text, err := r.command("run", "--name", "mine", "--", "true").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if _, text, code := r.tune("--name", "s", "--samples", "2", "--", "sh", "-c", "echo loss=$0",
		"uniform(0,1)"); code != 0 {
		t.Fatalf("exit %d\n%s", code, text)
	}
	runs := func() int {
		entries, err := os.ReadDir(filepath.Join(r.dir, "home", "runs"))
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	before := runs()
	if text, err := r.command("tune", "rm", "--dry-run", "s").CombinedOutput(); err != nil ||
		string(text) != "s and 2 runs\n" || runs() != before {
		t.Errorf("%v: %s", err, text)
	}
	if text, err := r.command("tune", "rm", "s").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, text)
	}
	if runs() != before-2 {
		t.Errorf("%d runs of %d are left, want 2 fewer", runs(), before)
	}
	if text, err := r.command("tune", "show", "s").CombinedOutput(); err == nil {
		t.Errorf("the study is still there: %s", text)
	}
	if text, err := r.command("show", "mine").CombinedOutput(); err != nil {
		t.Errorf("another run went with it: %s", text)
	}
}
