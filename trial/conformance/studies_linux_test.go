package conformance

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"memroom/testenv"
)

func TestMain(m *testing.M) {
	code := m.Run()
	theSlurm.stop()
	theRay.stop()
	os.Exit(code)
}

// freePort returns a port that nobody had a moment ago, below those that the kernel hands out: its
// server may start minutes later.
func freePort() int {
	for {
		port := 20000 + rand.IntN(10000)
		if listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			listener.Close()
			return port
		}
	}
}

// place is where trials run.
type place struct {
	name   string
	on     []string // arguments of tune
	env    []string
	outage func(*testing.T) // it does not answer for some seconds; nil: that cannot be
}

// study is one use of `memroom tune` in a folder of its own.
type study struct {
	place
	t   *testing.T
	dir string
}

// result is what --json promises.
type result struct {
	Trials []struct {
		ID       int            `json:"id"`
		Params   map[string]any `json:"params"`
		State    string         `json:"state"`
		Value    *float64       `json:"value"`
		Attempts int            `json:"attempts"`
		Host     *int64         `json:"peak_host_bytes"`
		Device   *int64         `json:"peak_device_bytes"`
		Reserved *int64         `json:"reserved_bytes"`
	} `json:"trials"`
	Best *struct {
		Params map[string]any `json:"params"`
		Value  float64        `json:"value"`
	} `json:"best"`
}

func newStudy(t *testing.T, p place, script string) *study {
	t.Helper()
	s := &study{place: p, t: t, dir: t.TempDir()}
	if err := os.WriteFile(filepath.Join(s.dir, "train.py"), []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *study) command(words ...string) *exec.Cmd {
	cmd := exec.Command(testenv.Binary(s.t), append([]string{"tune"}, words...)...)
	cmd.Dir = s.dir
	cmd.Env = append(append(os.Environ(), s.env...), "MEMROOM_HOME="+filepath.Join(s.dir, "home"))
	return cmd
}

// begin are the arguments of a new study.
func (s *study) begin(words ...string) []string {
	return append(append(append([]string{}, s.on...), "--name", "c", "--metric", "loss",
		"--json", "out.json", "--env",
		"PYTHONPATH="+filepath.Join(testenv.Root(s.t), "python")), words...)
}

func (s *study) read() (r result) {
	s.t.Helper()
	data, err := os.ReadFile(filepath.Join(s.dir, "out.json"))
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil {
		s.t.Fatalf("results: %v", err)
	}
	return r
}

// TestStudiesOnEveryEngine: what a study promises does not depend on who runs its trials.
func TestStudiesOnEveryEngine(t *testing.T) {
	t.Run("local", func(t *testing.T) { conform(t, place{name: "local"}) })
	t.Run("slurm", func(t *testing.T) {
		s := startedSlurm(t)
		p := place{name: "slurm", on: []string{"--on", "slurm"}, env: s.env(), outage: s.outage}
		conform(t, p)
		t.Run("two nodes", func(t *testing.T) { twoNodes(t, p, s) })
		t.Run("signals", func(t *testing.T) { slurmSignals(t, s) })
	})
	t.Run("ray", func(t *testing.T) {
		r := startedRay(t)
		p := place{name: "ray", on: []string{"--on", "ray://" + r.wire.address,
			"--gpus-per-trial", "0"}, env: r.env(), outage: r.outage}
		conform(t, p)
		t.Run("cards", func(t *testing.T) { rayCards(t, r) })
		t.Run("upload", func(t *testing.T) { rayUpload(t, r) })
		t.Run("two nodes", func(t *testing.T) { twoNodes(t, p, r) })
	})
}

func conform(t *testing.T, p place) {
	t.Run("ends", func(t *testing.T) { ends(t, p) })
	t.Run("early stopping", func(t *testing.T) { earlyStopping(t, p) })
	t.Run("kill and resume", func(t *testing.T) { killAndResume(t, p) })
}

// kinds of trials, by what becomes of them.
const kindsScript = `
import json, sys, time
kind = sys.argv[1]
def take(mib):
    block = bytearray(mib << 20)
    for i in range(0, len(block), 4096):
        block[i] = 1
    return block
if kind == "finish":
    kept = take(40)
    time.sleep(0.5)
    print("epoch 1 loss=0.5")
    print("epoch 2 loss=0.25")
if kind == "json":
    print(json.dumps({"loss": 0.125, "epoch": 1}))
if kind == "report":
    import memroom
    print("loss=7")  # less trusted than what is reported
    memroom.report(step=1, loss=0.0625)
if kind == "fail":
    print("loss=0.001")
    sys.exit(3)
if kind == "grow":
    kept = take(150)
    time.sleep(0.5)
    print("loss=0.75")
if kind == "large":
    kept = take(900)
    print("loss=0.001")
`

// ends: finished by text, JSON and report; failed; more memory after running out; infeasible.
func ends(t *testing.T, p place) {
	s := newStudy(t, p, kindsScript)
	out, err := s.command(s.begin("--host-mem", "400MiB", "--trial-mem", "96MiB", "--no-fit", "--",
		"python3", "train.py", "grid_search(finish,json,report,fail,grow,large)")...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	r := s.read()
	if len(r.Trials) != 6 || r.Best == nil || r.Best.Value != 0.0625 {
		t.Fatalf("%d trials, best %+v\n%s", len(r.Trials), r.Best, out)
	}
	states := []string{"finished", "finished", "finished", "failed", "finished", "infeasible"}
	values := []float64{0.25, 0.125, 0.0625, 0, 0.75, 0}
	for i, one := range r.Trials {
		if one.State != states[i] {
			t.Errorf("trial %d is %s, want %s\n%s", i, one.State, states[i], out)
			continue
		}
		if one.State == "finished" && (one.Value == nil || *one.Value != values[i]) {
			t.Errorf("trial %d: value %v, want %v", i, one.Value, values[i])
		}
		if one.Host == nil || one.Device == nil || one.Reserved == nil || one.Attempts < 1 {
			t.Errorf("trial %d: fields are missing: %+v", i, one)
		}
	}
	const mib = 1 << 20
	if peak := *r.Trials[0].Host; peak < 40*mib || peak > 80*mib {
		t.Errorf("a trial with 40 MiB and Python has a peak of %d MiB", peak/mib)
	}
	grown := r.Trials[4]
	if *grown.Host < 150*mib || *grown.Reserved < 150*mib {
		t.Errorf("the trial that ran out: peak %d MiB, reserved %d MiB", *grown.Host/mib,
			*grown.Reserved/mib)
	}
	if p.name != "local" && (grown.Attempts < 2 || r.Trials[5].Attempts < 2) {
		t.Errorf("attempts %d and %d: a cluster gives more only to a new attempt", grown.Attempts,
			r.Trials[5].Attempts)
	}
}

// earlyStopping: ASHA ends the worse ones while they run.
func earlyStopping(t *testing.T, p place) {
	s := newStudy(t, p, `
import sys, time
x = float(sys.argv[1])
for epoch in range(6):
    print("loss=%s" % (x + 1 / (epoch + 1)), flush=True)
    time.sleep(0.1 if x == 0 else 30)
`)
	out, err := s.command(s.begin("--scheduler", "asha", "--max-t", "6", "--grace-reports", "1",
		"--reduction", "2", "--concurrent", "1", "--trial-mem", "64MiB", "--", "python3", "train.py",
		"grid_search(0,1,2)")...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	r := s.read()
	var states []string
	for _, one := range r.Trials {
		states = append(states, one.State)
	}
	if got := strings.Join(states, " "); got != "finished stopped stopped" {
		t.Errorf("states %s\n%s", got, out)
	}
}

// killAndResume: the scheduler dies by kill -9 while its trials run, and where there is a cluster
// that one goes away for a while too. Nothing runs twice and nothing is lost.
func killAndResume(t *testing.T, p place) {
	s := newStudy(t, p, `
import os, sys, time
x = sys.argv[1]
with open("begun-" + x, "a") as f:
    f.write("once\n")
print("loss=1", flush=True)
while not os.path.exists("go on"):
    time.sleep(0.1)
print("loss=0.%s" % x, flush=True)
`)
	first := s.command(s.begin("--trial-mem", "64MiB", "--quiet", "--", "python3", "train.py",
		"grid_search(1,2,3)")...)
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	begun := func(x int) string {
		data, _ := os.ReadFile(filepath.Join(s.dir, fmt.Sprintf("begun-%d", x)))
		return string(data)
	}
	for began := time.Now(); begun(1) == "" || begun(2) == ""; time.Sleep(100 * time.Millisecond) {
		if time.Since(began) > 10*time.Minute {
			_ = first.Process.Kill()
			t.Fatal("waited ten minutes for two trials to begin")
		}
	}
	if p.outage != nil {
		p.outage(t)
	}
	_ = first.Process.Kill()
	_ = first.Wait()
	resumed := s.command("resume", "--json", "out.json", "c")
	var out strings.Builder
	resumed.Stdout, resumed.Stderr = &out, &out
	if err := resumed.Start(); err != nil {
		t.Fatal(err)
	}
	if p.outage != nil {
		time.Sleep(time.Second)
		p.outage(t)
	}
	if err := os.WriteFile(filepath.Join(s.dir, "go on"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := resumed.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	r := s.read()
	if len(r.Trials) != 3 {
		t.Fatalf("%d trials\n%s", len(r.Trials), out.String())
	}
	for i, one := range r.Trials {
		want := float64(i+1) / 10
		if one.State != "finished" || one.Value == nil || *one.Value != want || one.Attempts != 1 ||
			begun(i+1) != "once\n" {
			t.Errorf("trial %d: %s, %v, %d attempts, begun %q\n%s", i, one.State, one.Value,
				one.Attempts, begun(i+1), out.String())
		}
	}
}
