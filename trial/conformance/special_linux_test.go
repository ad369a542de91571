package conformance

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"memroom/event"
	"memroom/trial"
	"memroom/trial/remote"
	slurmengine "memroom/trial/slurm"
)

// slurmSignals checks what the real Slurm reports about jobs that it ends itself, without memroom
// in them.
func slurmSignals(t *testing.T, s *slurm) {
	for _, pair := range s.env() {
		name, value, _ := strings.Cut(pair, "=")
		t.Setenv(name, value)
	}
	dir := t.TempDir()
	e := &slurmengine.Engine{JobName: "memroom-signals"}
	if err := e.Open(); err != nil {
		t.Fatal(err)
	}
	if err := e.Take(dir); err != nil {
		t.Fatal(err)
	}
	job := func(id string, command ...string) remote.Job {
		return remote.Job{ID: id, Command: command, Dir: dir,
			Launch: trial.Launch{Host: 16 * event.MiB, CPUs: 1}}
	}
	for id, err := range e.Submit([]remote.Job{
		job("hog", "sh", "-c", "head -c 600M /dev/zero | tail > /dev/null"),
		job("fail", "sh", "-c", "echo no; exit 7"),
		job("cancelled", "sleep", "600")}) {
		t.Fatalf("%s: %v", id, err)
	}
	want := map[string]remote.Cause{"hog": remote.OutOfMemory, "fail": remote.Exited,
		"cancelled": remote.Cancelled}
	ids := []string{"hog", "fail", "cancelled", "never"}
	var known map[string]remote.Status
	for began := time.Now(); ; time.Sleep(300 * time.Millisecond) {
		var err error
		if known, err = e.Look(ids); err != nil {
			t.Fatal(err)
		}
		if known["cancelled"].Phase == remote.Running && known["hog"].Phase == remote.Ended {
			_ = s.command("scancel", "-n", "memroom-signals", "-t", "RUNNING").Run()
		}
		over := 0
		for _, status := range known {
			if status.Phase == remote.Ended {
				over++
			}
		}
		if over == len(want) {
			break
		}
		if time.Since(began) > 10*time.Minute {
			t.Fatalf("after ten minutes: %+v", known)
		}
	}
	for id, cause := range want {
		if known[id].Cause != cause {
			t.Errorf("%s: %+v, want %s", id, known[id], cause)
		}
	}
	if known["fail"].Code != 7 || known["fail"].Text != "no" {
		t.Errorf("the failed job: %+v", known["fail"])
	}
	if _, found := known["never"]; found {
		t.Error("a job that was never submitted is known")
	}
	// Another process finds them by what it wrote down and by the queue.
	if err := os.Remove(filepath.Join(dir, "jobs")); err != nil {
		t.Fatal(err)
	}
	again := &slurmengine.Engine{JobName: e.JobName}
	if err := again.Open(); err != nil {
		t.Fatal(err)
	}
	if err := again.Take(dir); err != nil {
		t.Fatal(err)
	}
	if found, err := again.Look(ids); err != nil || len(found) != 3 {
		t.Errorf("after a crash: %+v, %v", found, err)
	}
}

// rayCards: a declared share of a card becomes Ray's own fraction.
func rayCards(t *testing.T, r *ray) {
	s := newStudy(t, place{on: []string{"--on", "ray://" + r.wire.address}, env: r.env()},
		"import os\nprint('loss=0.5')\nprint('cards', os.environ.get('CUDA_VISIBLE_DEVICES'))\n")
	out, err := s.command(s.begin("--samples", "1", "--trial-mem", "64MiB", "--gpu-mem", "16GiB",
		"--trial-gpu-mem", "2GiB", "--", "python3", "train.py", "uniform(0,1)")...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	// Two cards share 16 GiB: 2 of 8 is a quarter. Ray reports what the job's own process got.
	given, err := r.get("/api/v0/actors?detail=1&limit=10000")
	if err != nil || !strings.Contains(given, `"GPU": 0.25`) ||
		!strings.Contains(given, `"memory": 201326592`) {
		at := max(0, strings.Index(given, `"GPU"`)-200)
		t.Errorf("%v: no quarter of a card in ...%.600s", err, given[at:])
	}
}

// rayUpload: nodes that do not see our folder get a copy.
func rayUpload(t *testing.T, r *ray) {
	s := newStudy(t, place{on: []string{"--on", "ray", "--gpus-per-trial", "0", "--working-dir", "."},
		env: append(r.env(), "RAY_ADDRESS=http://"+r.wire.address)}, `
import os
assert os.getcwd() != os.environ["OURS"], os.getcwd()
print("loss=0.5")
`)
	out, err := s.command(s.begin("--samples", "1", "--trial-mem", "64MiB", "--env", "OURS="+s.dir,
		"--", "python3", "train.py", "uniform(0,1)")...).CombinedOutput()
	if err != nil || s.read().Trials[0].State != "finished" {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestClustersThatAreNotThere: what is missing, and what to do.
func TestClustersThatAreNotThere(t *testing.T) {
	for name, c := range map[string]struct {
		on, env []string
		want    []string
	}{
		"nobody listens": {on: []string{"--on", "ray://127.0.0.1:1"},
			want: []string{"no Ray cluster takes jobs at", "ray start --head", "8265"}},
		"no sbatch": {on: []string{"--on", "slurm"}, env: []string{"PATH=/nowhere"},
			want: []string{"sbatch is not on PATH", "login node"}},
		"something else": {on: []string{"--on", "mesos"},
			want: []string{"--on mesos is not known", "ray://HOST:PORT", "kubernetes-job.yaml"}},
		"sbatch's arguments without it": {on: []string{"--sbatch=--partition=x"},
			want: []string{"--sbatch goes with --on slurm"}},
	} {
		s := newStudy(t, place{on: c.on, env: c.env}, "")
		out, err := s.command(s.begin("--samples", "1", "--", "python3", "train.py",
			"uniform(0,1)")...).CombinedOutput()
		if err == nil {
			t.Errorf("%s: it went well", name)
		}
		for _, words := range c.want {
			if !strings.Contains(string(out), words) {
				t.Errorf("%s: %q is not in %s", name, words, out)
			}
		}
		if entries, _ := os.ReadDir(filepath.Join(s.dir, "home", "studies")); len(entries) > 0 {
			t.Errorf("%s: a study was left behind", name)
		}
	}
}
