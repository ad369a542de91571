package supervise

import (
	"strings"
	"testing"

	"memroom/event"
)

// TestJudgeOrder: where sources disagree the more certain one counts: what we did ourselves, the
// kernel's counters, the probe, the output, the exit status.
func TestJudgeOrder(t *testing.T) {
	killed := event.Exit{Code: 137, Signal: "SIGKILL"}
	ownKill := State{Cgroup: "/c", HostLimit: event.GiB}
	text := "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a " +
		"total capacity of 8.00 GiB of which 1.00 GiB is free."
	reading := func(free event.Bytes) event.Sample {
		return event.Sample{Machine: &event.MachineSample{Total: 100, Available: free}}
	}
	host := []Death{{PID: 5, Type: "MemoryError", Where: event.WhereHost}}
	for _, c := range []struct {
		name  string
		e     Evidence
		oom   bool
		by    string
		where event.Where
	}{
		{"we ended it, the kernel counted too", Evidence{Exit: killed, State: ownKill,
			After: Counters{Own: 1}, Ended: &Ending{Why: "soft", Where: event.WhereHost,
				OOM: true}},
			true, "memroom", event.WhereHost},
		{"we ended it for another node", Evidence{Exit: killed, Ended: &Ending{Why: "group"}},
			false, "memroom", ""},
		{"the kernel counted, the probe saw an error", Evidence{Exit: killed, State: ownKill,
			After: Counters{Own: 1}, Deaths: host, Heard: true}, true, "cgroup", event.WhereCgroup},
		{"the kernel counted, the output tells of the card", Evidence{Exit: killed, State: ownKill,
			After: Counters{Own: 1}, Tail: text}, true, "cgroup", event.WhereCgroup},
		{"the probe saw host memory, the output tells of the card", Evidence{
			Exit: event.Exit{Code: 1}, Deaths: host, Tail: text}, true, "itself", event.WhereHost},
		{"a kill nobody counted, after a text", Evidence{Exit: killed, Tail: text}, true, "itself",
			event.WhereGPU},
		{"a kill nobody counted", Evidence{Exit: killed}, false, "somebody", ""},
		{"its own counter says no, the machine's counted somebody", Evidence{Exit: killed,
			State: State{Cgroup: "/c"}, After: Counters{Machine: 3}}, false, "somebody", ""},
		{"the machine counted, but the command was not killed", Evidence{Exit: event.Exit{Code: 1},
			After: Counters{Machine: 3, Enclosing: 2}}, false, "", ""},
		{"the machine counted, and a launcher tells of a killed child", Evidence{
			Exit: event.Exit{Code: 1}, After: Counters{Machine: 1}, Tail: "exitcode : -9 (pid: 3)"},
			true, "kernel", event.WhereHost},
		{"the machine counted, had room, and the cgroup around the run says no", Evidence{
			Exit: killed, After: Counters{Machine: 1}, EnclosingName: "/user", Last: reading(60)},
			false, "somebody", ""},
		{"the machine counted and was half full", Evidence{Exit: killed, EnclosingName: "/user",
			After: Counters{Machine: 1}, Last: reading(50)}, true, "kernel", event.WhereHost},
		{"the machine counted, and the cgroup around the run cannot be read", Evidence{Exit: killed,
			After: Counters{Machine: 1}, Last: reading(60)}, true, "kernel", event.WhereHost},
		{"a limit around the run counts as its wall", Evidence{Exit: killed,
			After: Counters{Enclosing: 1, Machine: 1}, EnclosingName: "/pod", EnclosingLimit: 5},
			true,
			"cgroup", event.WhereCgroup},
		{"a cgroup around the run without a limit is the machine", Evidence{Exit: killed,
			After: Counters{Enclosing: 1}, EnclosingName: "/pod"}, true, "kernel", event.WhereHost},
		{"Slurm's cgroup", Evidence{Exit: killed, After: Counters{Enclosing: 1},
			EnclosingName: "/slurm/uid_1/job_7", EnclosingLimit: 5}, true, "slurm",
			event.WhereCgroup},
		{"our own limit in Slurm's cgroup", Evidence{Exit: killed, State: ownKill,
			After: Counters{Own: 1}, EnclosingName: "/slurm/job_7", EnclosingLimit: 5}, true,
			"cgroup", event.WhereCgroup},
	} {
		v := Judge(c.e)
		if v.IsOOM != c.oom || v.KilledBy != c.by || v.Where != c.where {
			t.Errorf("%s: oom %v by %q where %q, want %v %q %q\n%s", c.name, v.IsOOM, v.KilledBy,
				v.Where, c.oom, c.by, c.where, strings.Join(v.Evidence, "\n"))
		}
	}
}

// TestJudgeSuccess: an exit code of 0 is a success, unless a Python died of memory and none ended
// in order after it. Without probes nobody knows what came after.
func TestJudgeSuccess(t *testing.T) {
	own := State{Cgroup: "/c", HostLimit: event.GiB}
	lost := []Death{{PID: 5, Type: "MemoryError", Where: event.WhereHost}}
	for name, c := range map[string]struct {
		e   Evidence
		oom bool
	}{
		"a kill, and no probe to say what followed": {Evidence{State: own, After: Counters{Own: 1}},
			false},
		"a kill, and nothing ended well after it": {Evidence{State: own, After: Counters{Own: 1},
			Heard: true}, true},
		"a kill, and something ended well": {Evidence{State: own, After: Counters{Own: 1},
			Heard: true, Well: 1}, false},
		"an error, and nothing ended well": {Evidence{Deaths: lost, Heard: true}, true},
		"an error, and something ended well": {Evidence{Deaths: lost, Heard: true, Well: 1},
			false},
		"an error of another kind": {Evidence{Deaths: []Death{{PID: 5}},
			Heard: true}, false},
		"kills from before the attempt": {Evidence{State: State{Cgroup: "/c",
			Base: Counters{Own: 2}}, After: Counters{Own: 2}, Heard: true}, false},
	} {
		if v := Judge(c.e); v.IsOOM != c.oom || v.ExitCode != 0 {
			t.Errorf("%s: %+v", name, v)
		}
	}
}

// TestJudgeCancelled: Slurm's line about a cancelled job explains a signal, and nothing else.
func TestJudgeCancelled(t *testing.T) {
	line := "slurmstepd: error: *** JOB 7 ON node1 CANCELLED AT 2026-05-01T00:00:00 DUE TO TIME " +
		"LIMIT ***"
	if v := Judge(Evidence{Exit: event.Exit{Code: 143, Signal: "SIGTERM"}, Tail: line}); v.IsOOM ||
		v.KilledBy != "slurm" {
		t.Errorf("%+v", v)
	}
	if v := Judge(Evidence{Exit: event.Exit{Code: 1}, Tail: line}); v.KilledBy != "" {
		t.Errorf("an ordinary failure beside an old line: %+v", v)
	}
}

// TestJudgeSignals: who sent a signal that is no memory's.
func TestJudgeSignals(t *testing.T) {
	for signal, want := range map[string]string{"SIGSEGV": "itself", "SIGABRT": "itself",
		"SIGTERM": "somebody", "SIGINT": "somebody", "SIGUSR1": "somebody"} {
		if v := Judge(Evidence{Exit: event.Exit{Code: 130, Signal: signal}}); v.KilledBy != want ||
			v.IsOOM {
			t.Errorf("%s: %+v", signal, v)
		}
	}
	sent := Judge(Evidence{Exit: event.Exit{Code: 134, Signal: "SIGABRT"},
		State: State{UserSignal: "SIGABRT"}})
	if sent.KilledBy != "somebody" {
		t.Errorf("sent through memroom: %+v", sent)
	}
}

// TestJudgeBusError: a bus error is about shared memory only where that was seen nearly full.
func TestJudgeBusError(t *testing.T) {
	for used, oom := range map[event.Bytes]bool{100: true, 91: true, 90: true, 89: false,
		10: false} {
		e := Evidence{Exit: event.Exit{Code: 135, Signal: "SIGBUS"}, Last: event.Sample{
			Machine: &event.MachineSample{ShmTotal: 100, ShmUsed: used}}}
		if v := Judge(e); v.IsOOM != oom || v.KilledBy != "kernel" {
			t.Errorf("%d %% used: %+v", used, v)
		}
	}
	if v := Judge(Evidence{Exit: event.Exit{Code: 135, Signal: "SIGBUS"}}); v.IsOOM {
		t.Errorf("nothing known of shared memory: %+v", v)
	}
}
