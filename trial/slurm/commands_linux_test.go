package slurm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"memroom/event"
	"memroom/trial"
	"memroom/trial/remote"
)

// played is a Slurm of canned answers: each command prints a file named after it, ends with the
// code of NAME.code, and notes its arguments. A real Slurm is met in trial/conformance.
type played struct {
	*testing.T
	bin string
}

func play(t *testing.T) (*played, *Engine) {
	p := &played{t, t.TempDir()}
	for _, name := range []string{"sbatch", "squeue", "scontrol", "scancel", "sacct"} {
		script := fmt.Sprintf("#!/bin/sh\nd=%s\nprintf '%%s\\n' \"$*\" >> $d/%s.calls\n"+
			"cat $d/%s.out 2>/dev/null\ncat $d/%s.err >&2 2>/dev/null\n"+
			"exit $(cat $d/%s.code 2>/dev/null || echo 0)\n", p.bin, name, name, name, name)
		if err := os.WriteFile(filepath.Join(p.bin, name), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", p.bin+":"+os.Getenv("PATH"))
	e := &Engine{JobName: "study"}
	if err := e.Open(); err != nil {
		t.Fatal(err)
	}
	if err := e.Take(filepath.Join(t.TempDir(), "jobs")); err != nil {
		t.Fatal(err)
	}
	return p, e
}

func (p *played) says(name, text string) {
	p.Helper()
	if err := os.WriteFile(filepath.Join(p.bin, name), []byte(text), 0o600); err != nil {
		p.Fatal(err)
	}
}

// calls are the arguments of a command so far, a line a call.
func (p *played) calls(name string) []string {
	text, _ := os.ReadFile(filepath.Join(p.bin, name+".calls"))
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

func jobs(host event.Bytes, ids ...string) (list []remote.Job) {
	for _, id := range ids {
		list = append(list, remote.Job{ID: id, Launch: trial.Launch{Host: host, CPUs: 1.5},
			Command: []string{"memroom", "run", "it's"}, Env: map[string]string{"B": "2", "A": "1"},
			Dir: "/work dir"})
	}
	return list
}

// TestJobsGoAsArrays: jobs of the same needs are one array whose tasks they are, in order; others
// are jobs of their own. Those that were handed over are not handed over again.
func TestJobsGoAsArrays(t *testing.T) {
	p, e := play(t)
	p.says("sbatch.out", "sbatch: a note of the site\n77;cluster\n")
	list := append(jobs(event.GiB, "a", "b"), jobs(2*event.GiB, "c")...)
	if failed := e.Submit(list); len(failed) > 0 {
		t.Fatal(failed)
	}
	if failed := e.Submit(list); len(failed) > 0 {
		t.Fatal(failed)
	}
	called := p.calls("sbatch")
	if len(called) != 2 {
		t.Fatalf("%d calls of sbatch: %q", len(called), called)
	}
	need := func(host event.Bytes) string {
		return fmt.Sprintf("--mem=%dM --cpus-per-task=2", (host+remote.Overhead)/event.MiB)
	}
	for i, words := range [][]string{{need(event.GiB), "--array=0-1", "--comment=b1", "--no-requeue"},
		{need(2 * event.GiB), "--comment=b2", "--job-name=study"}} {
		for _, word := range words {
			if !strings.Contains(called[i], word) {
				t.Errorf("call %d has no %q: %s", i, word, called[i])
			}
		}
	}
	if strings.Contains(called[1], "--array") || strings.Contains(called[0], "--gres") {
		t.Errorf("too much was asked for: %q", called)
	}
	want := map[string]string{"a": "77_0", "b": "77_1", "c": "77"}
	for id, number := range want {
		if e.jobs[id] != number {
			t.Errorf("job %s is %q, want %s", id, e.jobs[id], number)
		}
	}
	script, err := os.ReadFile(e.path("a.sh"))
	text := string(script)
	if err != nil || !strings.Contains(text, "cd '/work dir'") ||
		!strings.Contains(text, "export A='1'\nexport B='2'\n") ||
		!strings.Contains(text, `exec 'memroom' 'run' 'it'\''s' >> '`+e.output("a")+"' 2>&1") {
		t.Errorf("%v: %s", err, text)
	}
	for _, name := range []string{"jobs", "b1.tasks", "a.sh"} {
		if info, err := os.Stat(e.path(name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
}

// TestRefusalsAndSilence checks that a refusal is final and that its error holds Slurm's last line.
// A controller that does not answer is away.
func TestRefusalsAndSilence(t *testing.T) {
	p, e := play(t)
	p.says("sbatch.code", "1")
	for text, away := range map[string]bool{
		"sbatch: error: Batch job submission failed: Invalid partition name specified": false,
		"slurm_load_jobs error: Unable to contact slurm controller (connect failure)":  true,
		"": false,
	} {
		p.says("sbatch.err", "a line before\n"+text)
		if text == "" {
			p.says("sbatch.err", "")
		}
		err := e.Submit(jobs(event.GiB, "a"))["a"]
		if err == nil || errors.Is(err, remote.ErrAway) != away || !strings.Contains(err.Error(), text) ||
			strings.Contains(err.Error(), "a line before") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if len(e.jobs) > 0 {
		t.Errorf("a job that was refused has a number: %v", e.jobs)
	}
}

// TestWhereJobsStand: by the queue, by the accounting for what the queue has forgotten, by the
// output for what both have.
func TestWhereJobsStand(t *testing.T) {
	p, e := play(t)
	e.jobs = map[string]string{"waits": "5_0", "runs": "5_1", "failed": "6", "killed": "7",
		"old": "8", "gone": "9", "never": "10"}
	p.says("squeue.out", "5_0|0|PENDING|Priority|b1\n5_1|1|RUNNING|None|b1\n6|N/A|FAILED|x|b2\n"+
		"a line of the site\n7|N/A|OUT_OF_MEMORY|x|b3\n")
	p.says("sacct.out", "8.batch|COMPLETED\n8|CANCELLED by 1000\n")
	p.says("scontrol.out", "JobId=6 JobState=FAILED ExitCode=3:0 Other=1")
	for id, text := range map[string]string{"failed": "step 1\nValueError: no\n", "gone": "done\n"} {
		if err := os.WriteFile(e.output(id), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := e.Look([]string{"waits", "runs", "failed", "killed", "old", "gone", "never", "strange"})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]remote.Status{
		"waits":  {Phase: remote.Queued, Text: "Priority"},
		"runs":   {Phase: remote.Running},
		"failed": {Phase: remote.Ended, Cause: remote.Exited, Code: 3, Text: "ValueError: no"},
		"killed": {Phase: remote.Ended, Cause: remote.OutOfMemory, Text: "Slurm: OUT_OF_MEMORY"},
		"old": {Phase: remote.Ended, Cause: remote.Cancelled,
			Text: "cancelled in Slurm by somebody else"},
		"gone": {Phase: remote.Ended, Cause: remote.Exited, Code: 3, Text: "done"},
	}
	for id := range want {
		if got[id] != want[id] {
			t.Errorf("%s: %+v, want %+v", id, got[id], want[id])
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d states, want %d: %+v", len(got), len(want), got)
	}
	for text, code := range map[string]int{"ExitCode=0:9": 137, "ExitCode=0:0": 0,
		"ExitCode=2:9": 2, "ExitCode=1:0": 1, "": 0} {
		p.says("scontrol.out", text)
		if got := e.exitCode("6"); got != code {
			t.Errorf("%q: code %d, want %d", text, got, code)
		}
	}
	p.says("scontrol.out", "ExitCode=4:0")
	p.says("scontrol.code", "1")
	if got := e.exitCode("6"); got != 0 {
		t.Errorf("a call that failed gives code %d", got)
	}
	p.says("squeue.code", "1")
	if _, err := e.Look([]string{"runs"}); err == nil {
		t.Error("a queue that cannot be read was taken for an empty one")
	}
}

// TestJobsAreAskedBeforeTheyAreEnded: a running job gets one signal and time; one that waits is
// ended at once, and so is one that does not listen.
func TestJobsAreAskedBeforeTheyAreEnded(t *testing.T) {
	p, e := play(t)
	e.jobs = map[string]string{"runs": "5_1", "waits": "6"}
	e.phase["runs"], e.phase["waits"] = remote.Running, remote.Queued
	for range 12 {
		if err := e.Stop("runs"); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"--full --signal=TERM 5_1", "5_1", "5_1"}
	if got := p.calls("scancel"); !slices.Equal(got, want) {
		t.Errorf("asked %q, want %q", got, want)
	}
	if err := errors.Join(e.Stop("waits"), e.Stop("strange")); err != nil {
		t.Fatal(err)
	}
	if got := p.calls("scancel"); len(got) != 4 || got[3] != "6" {
		t.Errorf("asked %q", got)
	}
}

// TestJobsOfAnEarlierProcess: those written down, and those that stand in the queue only, by their
// comment and their place in the list.
func TestJobsOfAnEarlierProcess(t *testing.T) {
	p, e := play(t)
	for name, text := range map[string]string{"jobs": "a 70\nbroken\n", "b3.tasks": "c\nd\n",
		"b12.tasks": "e\n"} {
		if err := os.WriteFile(e.path(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p.says("squeue.out", "81_1|1|RUNNING|None|b3\n81_7|7|RUNNING|None|b3\n82|N/A|PENDING|x|b12\n"+
		"83|N/A|PENDING|x|another\n")
	next := &Engine{JobName: "study"}
	if err := next.Open(); err != nil {
		t.Fatal(err)
	}
	if err := next.Take(e.Dir); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"a": "70", "d": "81_1", "e": "82"}
	if fmt.Sprint(next.jobs) != fmt.Sprint(want) || next.batch != 12 {
		t.Errorf("jobs %v after batch %d, want %v", next.jobs, next.batch, want)
	}
}

// TestCardsAreAskedFor: as many as the trial has, one too.
func TestCardsAreAskedFor(t *testing.T) {
	for cards, want := range map[int]string{0: "", 1: "--gres=gpu:1", 3: "--gres=gpu:3"} {
		job := remote.Job{Launch: trial.Launch{Cards: make([]int, cards)}, Avoid: []string{"a", "b"}}
		args := strings.Join((&Engine{}).needs(job), " ")
		if !strings.Contains(args, "--exclude=a,b") {
			t.Errorf("nodes to avoid: %s", args)
		}
		if strings.Contains(args, "--gres") != (want != "") || !strings.Contains(args, want) {
			t.Errorf("%d cards: %s", cards, args)
		}
	}
}

// TestNodesThatCannotBeAsked: no answer is not a cluster without nodes.
func TestNodesThatCannotBeAsked(t *testing.T) {
	p, e := play(t)
	p.says("scontrol.out", "NodeName=a CPUTot=4 RealMemory=1000 State=IDLE")
	if c, err := e.Capacity(); err != nil || c.CPUs != 4 || c.Host != 1000*event.MiB {
		t.Errorf("%+v, %v", c, err)
	}
	p.says("scontrol.code", "1")
	if c, err := e.Capacity(); err == nil {
		t.Errorf("a call that failed: %+v", c)
	}
}

// TestOutputFromAnOffset: what was read is not read again; a job without output has none.
func TestOutputFromAnOffset(t *testing.T) {
	_, e := play(t)
	if err := os.WriteFile(e.output("a"), []byte("0123456789"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := e.Output("a", 4); string(got) != "456789" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := e.Output("none", 0); got != nil || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if got := e.said("none"); got != "" {
		t.Errorf("a job without output said %q", got)
	}
}
