//go:build linux

package supervise

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"memroom/diagnose"
	"memroom/event"
	"memroom/meter"
	"memroom/probe"
	"memroom/trace"
)

// TestBusErrorsBySharedMemory: nine tenths full is full, less is not.
func TestBusErrorsBySharedMemory(t *testing.T) {
	for used, oom := range map[event.Bytes]bool{100: true, 90: true, 89: false, 50: false} {
		for _, exit := range []event.Exit{{Code: 135, Signal: "SIGBUS"}, {Code: 135}} {
			v := Judge(Evidence{Exit: exit, Last: event.Sample{Processes: 1,
				Machine: &event.MachineSample{ShmTotal: 100, ShmUsed: used}}})
			if v.IsOOM != oom || v.KilledBy != "kernel" || oom != (v.Where == event.WhereShm) {
				t.Errorf("%d %% used: %+v", used, v)
			}
			if !strings.Contains(strings.Join(v.Evidence, "\n"), fmt.Sprintf("%s of 100B used", used)) {
				t.Errorf("the reading is not told: %q", v.Evidence)
			}
		}
	}
}

// TestKilledByItsExitCode: a shell reports a killed child as 137 without a signal of its own.
func TestKilledByItsExitCode(t *testing.T) {
	counted := Counters{Machine: 1}
	for name, c := range map[string]struct {
		e   Evidence
		oom bool
		by  string
	}{
		"137":                       {Evidence{Exit: event.Exit{Code: 137}, After: counted}, true, "kernel"},
		"a signal":                  {Evidence{Exit: event.Exit{Signal: "SIGKILL", Code: 9}, After: counted}, true, "kernel"},
		"neither":                   {Evidence{Exit: event.Exit{Code: 1}, After: counted}, false, ""},
		"137 and nobody counted":    {Evidence{Exit: event.Exit{Code: 137}}, false, "somebody"},
		"the kernel's log names it": {Evidence{Exit: event.Exit{Code: 1}, Kernel: []KernelKill{{PID: 5}}}, true, "kernel"},
	} {
		if v := Judge(c.e); v.IsOOM != c.oom || v.KilledBy != c.by {
			t.Errorf("%s: %+v", name, v)
		}
	}
}

// TestSignalsOfItsOwn: a program that crashes did it itself, unless somebody sent the signal.
func TestSignalsOfItsOwn(t *testing.T) {
	for signal, want := range map[string]string{"SIGSEGV": "itself", "SIGABRT": "itself",
		"SIGFPE": "itself", "SIGILL": "itself", "SIGTRAP": "itself", "SIGSYS": "itself",
		"SIGTERM": "somebody", "SIGHUP": "somebody", "SIGINT": "somebody"} {
		if v := Judge(Evidence{Exit: event.Exit{Code: 130, Signal: signal}}); v.KilledBy != want {
			t.Errorf("%s: %s, want %s", signal, v.KilledBy, want)
		}
		sent := Evidence{Exit: event.Exit{Code: 130, Signal: signal}, State: State{UserSignal: signal}}
		if v := Judge(sent); v.KilledBy != "somebody" {
			t.Errorf("%s that was sent through memroom: %s", signal, v.KilledBy)
		}
	}
}

// TestLongTextsAreCut: the evidence is a line, however long the message was.
func TestLongTextsAreCut(t *testing.T) {
	for n, want := range map[int]int{5: 5, 300: 300, 301: 303, 9000: 303} {
		if got := len(firstLine("\n " + strings.Repeat("x", n) + "\nmore")); got != want {
			t.Errorf("%d characters became %d, want %d", n, got, want)
		}
	}
	if got := (Death{Type: "KeyError"}).Line(); got != "KeyError" {
		t.Errorf("without a text: %q", got)
	}
}

// TestWhoEndedTheJobByItsText: by the kind of the text.
func TestWhoEndedTheJobByItsText(t *testing.T) {
	for kind, want := range map[string]string{"ray_oom": "ray", "slurm_oom": "slurm",
		"kube_oom": "cgroup", "kernel_oom": "kernel", "systemd_unit": "kernel", "user_killer": "kernel",
		"torch_cuda": "itself", "python_memory": "itself"} {
		if got := killerOf(trace.Crash{Kind: kind}); got != want {
			t.Errorf("%s: %s, want %s", kind, got, want)
		}
	}
}

// TestTheTellingTextCounts: among equals the last, and what explains the others before all; a bare
// "Killed" proves nothing.
func TestTheTellingTextCounts(t *testing.T) {
	cuda := func(size string) string {
		return "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate " + size +
			" GiB. GPU 0 has a total capacity of 8.00 GiB of which 1.00 GiB is free.\n"
	}
	const slurm = "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks " +
		"have been OOM Killed.\n"
	for name, c := range map[string]struct{ tail, want string }{
		"nothing":         {"epoch 1 done\n", ""},
		"a bare kill":     {"Killed\n", ""},
		"one":             {cuda("2.00"), "2.00 GiB"},
		"the last of two": {cuda("2.00") + cuda("3.00"), "3.00 GiB"},
		"Slurm explains":  {slurm + cuda("2.00"), "oom_kill"},
	} {
		crash, ok := findText(c.tail)
		if ok != (c.want != "") || !strings.Contains(crash.Text, c.want) {
			t.Errorf("%s: %q %v, want %q", name, crash.Text, ok, c.want)
		}
	}
}

// TestTheLargestRankIsLost: where the kernel counted a kill and nobody said which, it took the
// largest.
func TestTheLargestRankIsLost(t *testing.T) {
	m, _, _ := watching(t)
	m.withRanks(4, 0, 2)
	if got := m.ranks.lostRank(gone(m)); got != nil {
		t.Errorf("nothing was counted, and rank %d is lost", *got.rank)
	}
	m.meters.last.Cgroup = &event.CgroupSample{Own: true, OOMKill: 1}
	if got := m.ranks.lostRank(gone(m)); got == nil || *got.rank != 2 {
		t.Errorf("%+v", got)
	}
	m.meters.last.Cgroup.Own = false // somebody else's kills
	if got := m.ranks.lostRank(gone(m)); got != nil {
		t.Errorf("another cgroup counted, and rank %d is lost", *got.rank)
	}
	m.record.said.Deaths = []Death{{PID: 100, Where: event.WhereGPU}}
	if got := m.ranks.lostRank(gone(m)); got == nil || *got.rank != 0 {
		t.Errorf("its probe said so: %+v", got)
	}
}

func gone(m *Monitor) []*person {
	_, list := m.job.people.leaders()
	return list
}

type endedRuns []event.Summary

func (e endedRuns) Ended() []event.Summary { return e }

// TestOnlyMemoryEndsTheGroup: another node's failure of another kind is its own; the verdict of
// this run does not say that it ran out.
func TestOnlyMemoryEndsTheGroup(t *testing.T) {
	for name, c := range map[string]struct {
		verdict *event.Verdict
		ended   bool
	}{
		"no verdict yet": {nil, false}, "another failure": {&event.Verdict{ExitCode: 1}, false},
		"out of memory": {&event.Verdict{IsOOM: true, ExitCode: 137}, true},
	} {
		m, _, _ := watching(t)
		g := &group{job: &m.job, record: &m.record, limiter: &m.limiter,
			others: endedRuns{{Run: event.Run{ID: "x", NodeRank: 1}, Verdict: c.verdict}}}
		now := time.Unix(9000, 0)
		g.check(now)
		g.check(now.Add(m.Options.Grace - time.Second))
		if m.record.said.Ended != nil {
			t.Errorf("%s: ended within the grace", name)
		}
		g.check(now.Add(m.Options.Grace + companionsEvery))
		if got := m.record.said.Ended; (got != nil) != c.ended || got != nil && got.OOM {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestTitlesOfRaysWorkers(t *testing.T) {
	for title, want := range map[string]string{"ray::ImplicitFunc.train()": "Tune's trials true",
		"ray::train_fn": "train_fn true", "ray::Actor.step() running": "Actor true",
		"ray::IDLE": "IDLE false", "ray::DashboardAgent": "DashboardAgent false",
		"ray::RuntimeEnvAgent": "RuntimeEnvAgent false", "ray::": " false", "python": "python false"} {
		name, worker := rayName(title)
		if got := fmt.Sprint(name, " ", worker); got != want {
			t.Errorf("%q: %s, want %s", title, got, want)
		}
	}
}

// TestRaysWorkersAreAdded: by what they work on, with the largest and the sum.
func TestRaysWorkersAreAdded(t *testing.T) {
	root := t.TempDir()
	for pid, c := range map[int]struct {
		title string
		kib   int
	}{11: {"/usr/bin/raylet", 5}, 12: {"ray::fn", 300}, 13: {"ray::fn", 100}, 14: {"ray::IDLE", 9},
		15: {"ray::Actor.go()", 70}} {
		writeProcess(t, root, pid, c.title, c.kib)
	}
	r := &sampler{proc: meter.NewProc(root)}
	r.tree = &meter.Tree{Proc: r.proc, Keeper: 10, Whole: true}
	writeProcess(t, root, 10, "memroom", 1)
	r.tree.Refresh(time.Now())
	s := event.Sample{Processes: len(r.tree.Processes())}
	r.readRay(&s, time.Unix(100, 0))
	want := fmt.Sprint([]event.RaySample{
		{Name: "Actor", Count: 1, Actor: true, Largest: 70 * event.KiB, Sum: 70 * event.KiB},
		{Name: "fn", Count: 2, Largest: 300 * event.KiB, Sum: 400 * event.KiB}})
	if got := fmt.Sprint(s.Ray); got != want || !r.ray.running {
		t.Errorf("%s, running %v, want %s", got, r.ray.running, want)
	}
	few := event.Sample{Processes: rayCrowd - 1}
	if r.readRay(&few, time.Unix(200, 0)); few.Ray != nil {
		t.Errorf("of three processes: %v", few.Ray)
	}
}

// TestHoldingsGoWithTheirProcess: memory of an ended process is in no account, and with two cards
// nobody knows which one an index means.
func TestHoldingsGoWithTheirProcess(t *testing.T) {
	j := NewJudgement(diagnose.DefaultThresholds(), 0)
	card := event.DeviceSample{UUID: "u", Total: 1000, Used: 500, Ours: 500}
	weights := func() (sum event.Bytes) {
		for _, line := range j.Accounts()["u"].Lines {
			if line.Name == diagnose.LineWeights {
				sum += line.Bytes
			}
		}
		return sum
	}
	j.Sample(event.Sample{Devices: []event.DeviceSample{card}})
	j.Heard(7, nil, &probe.Account{Device: 0, Weights: 100, Allocated: 200, Reserved: 300})
	j.Heard(8, nil, &probe.Account{Device: 0, Weights: 30, Allocated: 50, Reserved: 60})
	j.Heard(9, nil, &probe.Account{Device: event.HostDevice, Weights: 999})
	if got := weights(); got != 130 {
		t.Errorf("two processes: %d", got)
	}
	j.Heard(8, nil, &probe.Exit{})
	if got := weights(); got != 100 {
		t.Errorf("after one has ended: %d", got)
	}
	j.Steps(7, nil, []event.Step{{Step: 1, Allocated: 250, Reserved: 400}})
	if got := weights(); got != 100 {
		t.Errorf("after a step: %d", got)
	}
	other := card
	other.UUID = "v"
	j.Sample(event.Sample{Devices: []event.DeviceSample{card, other}})
	if got := weights(); got != 0 {
		t.Errorf("on one of two cards: %d", got)
	}
	j.Sample(event.Sample{Devices: []event.DeviceSample{card}})
	j.Heard(7, nil, &probe.Died{})
	if got := weights(); got != 0 {
		t.Errorf("after all have ended: %d", got)
	}
}

// writeProcess writes the files of a process below a root like /proc: its title, its memory, and
// that it was started by process 10.
func writeProcess(t *testing.T, root string, pid int, title string, kib int) {
	t.Helper()
	dir := filepath.Join(root, strconv.Itoa(pid))
	task := filepath.Join("task", strconv.Itoa(pid))
	if err := os.MkdirAll(filepath.Join(dir, task), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"cmdline": title + "\x00",
		filepath.Join(task, "comm"): "x\n",
		"status":                    fmt.Sprintf("Name:\tx\nPPid:\t10\nRssAnon:\t %d kB\n", kib)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOnlyAScopesParentCounts: kills of the cgroup above are the run's where systemd made a scope
// for it, and nobody's otherwise.
func TestOnlyAScopesParentCounts(t *testing.T) {
	for limit, want := range map[LimitKind]bool{LimitScope: true, "": false} {
		v := Judge(Evidence{Exit: event.Exit{Code: 137, Signal: "SIGKILL"}, After: Counters{Above: 1},
			State: State{Cgroup: "/c", CgroupV: 2, HostLimit: event.GiB, Limit: limit}})
		if v.IsOOM != want {
			t.Errorf("limit %q: %+v", limit, v)
		}
	}
}

// TestTheFirstCaughtErrorCounts: shortages after it are a consequence.
func TestTheFirstCaughtErrorCounts(t *testing.T) {
	m, _, _ := watching(t)
	one, two := 1, 2
	m.ranks.caughtOOM(ProbeOOM{PID: 100}) // of no rank
	if m.ranks.caught != nil {
		t.Error("a process that is no rank was taken")
	}
	m.ranks.caughtOOM(ProbeOOM{PID: 101, Rank: &one})
	m.ranks.caughtOOM(ProbeOOM{PID: 102, Rank: &two})
	if m.ranks.caught.pid != 101 || *m.ranks.caught.rank != 1 {
		t.Errorf("%+v", m.ranks.caught)
	}
}
