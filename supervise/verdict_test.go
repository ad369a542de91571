package supervise

import (
	"strings"
	"testing"

	"memroom/event"
)

func TestJudge(t *testing.T) {
	rank := func(n int) *int { return &n }
	full := event.Sample{Processes: 3, Machine: &event.MachineSample{ShmTotal: 64 << 20,
		ShmUsed: 63 << 20}}
	for _, c := range []struct {
		name     string
		evidence Evidence
		oom      bool
		where    event.Where
		by       string
		rank     *int
	}{
		{"well", Evidence{Exit: event.Exit{Code: 0}}, false, "", "", nil},
		{"an OOM that the program survived", Evidence{Exit: event.Exit{Code: 0},
			Tail: "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"}, false,
			"", "", nil},
		{"an ordinary failure", Evidence{Exit: event.Exit{Code: 1},
			Tail: "ValueError: shapes do not match"}, false, "", "", nil},
		{"kill in its own cgroup", Evidence{Exit: event.Exit{Code: 137, Signal: "SIGKILL"},
			After: Counters{Own: 1},
			State: State{Cgroup: "/c", HostLimit: 1 << 30}}, true, event.WhereCgroup, "cgroup",
			nil},
		{"kill in a scope that is gone", Evidence{Exit: event.Exit{Code: 137, Signal: "SIGKILL"},
			After: Counters{Above: 3},
			State: State{Cgroup: "/app.slice/x.scope", CgroupV: 2, HostLimit: 1 << 30,
				Limit: LimitScope, Base: Counters{Above: 2}}}, true, event.WhereCgroup, "cgroup",
			nil},
		{"a child killed in a scope, which systemd then stops",
			Evidence{Exit: event.Exit{Code: 143, Signal: "SIGTERM"}, After: Counters{Above: 1},
				State: State{Cgroup: "/app.slice/x.scope", CgroupV: 2, HostLimit: 1 << 30,
					Limit: LimitScope}}, true, event.WhereCgroup, "cgroup", nil},
		{"somebody else's kill beside a scope", Evidence{Exit: event.Exit{Code: 1},
			After: Counters{Above: 3},
			State: State{Cgroup: "/app.slice/x.scope", CgroupV: 2, HostLimit: 1 << 30,
				Limit: LimitScope, Base: Counters{Above: 2}}}, false, "", "", nil},
		{"a worker killed in its own cgroup", Evidence{Exit: event.Exit{Code: 1},
			After: Counters{Own: 1},
			State: State{Cgroup: "/c", HostLimit: 1 << 30}, Kernel: []KernelKill{{PID: 7,
				Rank: rank(2), Line: "Killed process 7"}}},
			true, event.WhereCgroup, "cgroup", rank(2)},
		{"machine out of memory, own cgroup without a limit",
			Evidence{Exit: event.Exit{Code: 137, Signal: "SIGKILL"},
				After: Counters{Own: 1, Machine: 1}, State: State{Cgroup: "/c", CgroupV: 1}}, true,
			event.WhereHost, "kernel", nil},
		{"container's limit, own cgroup without one", Evidence{Exit: event.Exit{Code: 137,
			Signal: "SIGKILL"},
			After: Counters{Own: 1}, State: State{Cgroup: "/c", CgroupV: 1},
			EnclosingLimit: 1 << 30}, true, event.WhereCgroup, "cgroup", nil},
		{"enclosing cgroup counted a kill", Evidence{Exit: event.Exit{Code: 137, Signal: "SIGKILL"},
			After: Counters{Enclosing: 5, Machine: 9},
			State: State{Base: Counters{Enclosing: 4, Machine: 8}}, EnclosingName: "/pod",
			EnclosingLimit: 1 << 30}, true, event.WhereCgroup, "cgroup", nil},
		{"enclosing cgroup without a limit counted a kill on a full machine",
			Evidence{Exit: event.Exit{Code: 137, Signal: "SIGKILL"}, Last: machineWith(1 << 30),
				After: Counters{Enclosing: 1, Machine: 1}, EnclosingName: "/session"}, true,
			event.WhereHost, "kernel", nil},
		{"enclosing cgroup without a limit counted a kill, and most of the machine is free",
			Evidence{Exit: event.Exit{Code: 137, Signal: "SIGKILL"}, Last: machineWith(60 << 30),
				After: Counters{Enclosing: 1, Machine: 1}, EnclosingName: "/session"}, false, "",
			"somebody", nil},
		{"the same, and the kernel's log names a process of the run",
			Evidence{Exit: event.Exit{Code: 137, Signal: "SIGKILL"}, Last: machineWith(60 << 30),
				After: Counters{Enclosing: 1, Machine: 1}, EnclosingName: "/session",
				Kernel: []KernelKill{{PID: 7, Line: "Killed process 7"}}}, true, event.WhereHost,
			"kernel", nil},
		{"enclosing cgroup with a limit counted a kill, and most of the machine is free",
			Evidence{Exit: event.Exit{Code: 137, Signal: "SIGKILL"}, Last: machineWith(60 << 30),
				After: Counters{Enclosing: 1, Machine: 1}, EnclosingName: "/pod",
				EnclosingLimit: 1 << 30}, true, event.WhereCgroup, "cgroup", nil},
		{"Slurm's cgroup counted a kill", Evidence{Exit: event.Exit{Code: 137, Signal: "SIGKILL"},
			After:          Counters{Enclosing: 1},
			EnclosingName:  "/sys/fs/cgroup/memory/slurm/uid_0/job_3/step_0",
			EnclosingLimit: 1 << 30}, true, event.WhereCgroup, "slurm", nil},
		{"machine counted a kill", Evidence{Exit: event.Exit{Code: 137, Signal: "SIGKILL"},
			After: Counters{Machine: 1}}, true, event.WhereHost, "kernel", nil},
		{"machine counted somebody else's kill", Evidence{Exit: event.Exit{Code: 1},
			After: Counters{Machine: 1}, Tail: "ValueError: x"}, false, "", "", nil},
		{"own cgroup says no although the machine counted", Evidence{Exit: event.Exit{Code: 137,
			Signal: "SIGKILL"}, After: Counters{Machine: 1},
			State: State{Cgroup: "/c"}}, false, "", "somebody", nil},
		{"torchrun reports a killed rank", Evidence{Exit: event.Exit{Code: 1},
			After: Counters{Machine: 1},
			Tail: "Root Cause (first observed failure):\n[0]:\n  time      : 2026\n  rank      : 3 " +
				"(local_rank: 3)\n  exitcode  : -9 (pid: 77)\n"}, true, event.WhereHost, "kernel",
			rank(3)},
		{"probe saw a GPU exception", Evidence{Exit: event.Exit{Code: 1},
			Deaths: []Death{{PID: 5, Type: "ValueError"}, {PID: 4, Rank: rank(1),
				Type: "torch.OutOfMemoryError",
				Text: "CUDA out of memory.", Where: event.WhereGPU}}}, true, event.WhereGPU,
			"itself",
			rank(1)},
		{"text of a GPU exception", Evidence{Exit: event.Exit{Code: 1},
			Tail: "Traceback (most recent call last):\ntorch.OutOfMemoryError: CUDA out of memory. Tried to " +
				"allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB of which 1.10 GiB is free."},
			true, event.WhereGPU, "itself", nil},
		{"text of a host exception", Evidence{Exit: event.Exit{Code: 1},
			Tail: "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 2.00 TiB for an array with " +
				"shape (549755813888,) and data type float32"},
			true, event.WhereHost, "itself", nil},
		{"Ray's memory monitor", Evidence{Exit: event.Exit{Code: 1},
			Tail: "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on " +
				"memory.\nMemory on the node (IP: 10.0.0.1, ID: 8) where the task was running was 15.2GB / " +
				"16.0GB (0.95), which exceeds the memory usage threshold of 0.95. Ray killed this worker (ID: 5) " +
				"because it was the most recently scheduled task"},
			true, event.WhereHost, "ray", nil},
		{"Ray's memory monitor, as the driver's probe saw it",
			Evidence{Exit: event.Exit{Code: 1}, Deaths: []Death{{PID: 4, Type: "OutOfMemoryError",
				Text: "killed", Where: event.WhereGPU}},
				Tail: "ray.exceptions.OutOfMemoryError: 1 worker(s) were killed due to the node running low on " +
					"memory. Memory on the node (IP: 10.0.0.1, ID: 8) was 2.96GB used / 23.54GB limit (0.125919), " +
					"which exceeds the memory usage threshold of 0.12"},
			true, event.WhereHost, "ray", nil},
		{"Slurm's report", Evidence{Exit: event.Exit{Code: 1},
			Tail: "slurmstepd: error: Detected 1 oom_kill event in StepId=123.batch. Some of the step tasks " +
				"have been OOM Killed."}, true, event.WhereCgroup, "slurm", nil},
		{"Slurm's time limit", Evidence{Exit: event.Exit{Code: 143, Signal: "SIGTERM"},
			Tail: "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2026-11-15T02:00:00 DUE TO TIME LIMIT " +
				"***"}, false, "", "slurm", nil},
		{"bus error with a full /dev/shm", Evidence{Exit: event.Exit{Code: 135, Signal: "SIGBUS"},
			Last: full}, true, event.WhereShm, "kernel", nil},
		{"bus error with an empty /dev/shm", Evidence{Exit: event.Exit{Code: 135, Signal: "SIGBUS"},
			Last: event.Sample{Machine: &event.MachineSample{ShmTotal: 64 << 20}}}, false, "",
			"kernel", nil},
		{"worker's bus error in the text", Evidence{Exit: event.Exit{Code: 1}, Last: full,
			Tail: "RuntimeError: DataLoader worker (pid 31) is killed by signal: Bus error. It is possible " +
				"that dataloader's workers are out of shared memory. Please try to raise your shared memory " +
				"limit."},
			true, event.WhereShm, "itself", nil},
		{"SIGKILL by somebody", Evidence{Exit: event.Exit{Code: 137, Signal: "SIGKILL"},
			State: State{Cgroup: "/c"}}, false, "", "somebody", nil},
		{"SIGTERM by somebody", Evidence{Exit: event.Exit{Code: 143, Signal: "SIGTERM"},
			State: State{UserSignal: "SIGTERM"}}, false, "", "somebody", nil},
		{"a crash of its own", Evidence{Exit: event.Exit{Code: 139, Signal: "SIGSEGV"}}, false, "",
			"itself", nil},
		{"soft limit", Evidence{Exit: event.Exit{Code: 143, Signal: "SIGTERM"},
			Ended: &Ending{OOM: true, Where: event.WhereHost, Why: "the soft limit"}}, true,
			event.WhereHost, "memroom", nil},
		{"never started", Evidence{Exit: event.Exit{Code: 126, StartError: "exec format error"}},
			false, "", "", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := Judge(c.evidence)
			if v.IsOOM != c.oom || v.Where != c.where || v.KilledBy != c.by {
				t.Errorf("got oom %v at %q by %q, want %v %q %q; evidence %q", v.IsOOM, v.Where,
					v.KilledBy, c.oom, c.where, c.by, v.Evidence)
			}
			if (v.Rank == nil) != (c.rank == nil) || v.Rank != nil && *v.Rank != *c.rank {
				t.Errorf("rank %v, want %v", v.Rank, c.rank)
			}
			if len(v.Evidence) == 0 || v.ExitCode != c.evidence.Exit.Code {
				t.Errorf("a verdict without evidence or code: %+v", v)
			}
			for _, line := range v.Evidence {
				if strings.Contains(line, "\n") {
					t.Errorf("evidence of several lines: %q", line)
				}
			}
		})
	}
}

// machineWith is a reading of a machine of 64 GiB.
func machineWith(available event.Bytes) event.Sample {
	return event.Sample{Machine: &event.MachineSample{Total: 64 << 30, Available: available}}
}
