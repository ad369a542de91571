package slurm

import (
	"testing"

	"memroom/event"
	"memroom/trial/remote"
)

// TestStatesOfSlurm: squeue's and sacct's words, short and long.
func TestStatesOfSlurm(t *testing.T) {
	for state, want := range map[string]remote.Cause{"OUT_OF_MEMORY": remote.OutOfMemory,
		"TIMEOUT": remote.TimeLimit, "DEADLINE": remote.TimeLimit, "NODE_FAIL": remote.NodeFailure,
		"BOOT_FAIL": remote.NodeFailure, "PREEMPTED": remote.Preempted,
		"CANCELLED by 1000": remote.Cancelled, "CANCELLED+": remote.Cancelled,
		"FAILED": remote.Exited, "COMPLETED": remote.Exited} {
		if s := statusOf(state, ""); s.Phase != remote.Ended || s.Cause != want {
			t.Errorf("%s: %+v", state, s)
		}
	}
	for state, want := range map[string]remote.Phase{"PENDING": remote.Queued,
		"RUNNING": remote.Running, "COMPLETING": remote.Running, "SUSPENDED": remote.Running,
		"SOMETHING_NEW": remote.Running} {
		if s := statusOf(state, ""); s.Phase != want {
			t.Errorf("%s: %+v", state, s)
		}
	}
}

// TestCapacityOfNodes: as `scontrol show node -o` writes it; nodes that take no jobs do not count.
func TestCapacityOfNodes(t *testing.T) {
	c := capacityOf(`NodeName=a1 Arch=x86_64 CPUAlloc=4 CPUTot=64 Gres=gpu:a100:4(S:0-1) ` +
		`RealMemory=512000 AllocMem=1000 State=MIXED ThreadsPerCore=1 MemSpecLimit=2000
NodeName=a2 CPUTot=32 Gres=gpu:2,shard:8 RealMemory=256000 State=IDLE+CLOUD
NodeName=a3 CPUTot=128 Gres=gpu:h200:8 RealMemory=900000 State=IDLE+DRAIN
NodeName=a4 CPUTot=8 Gres=(null) RealMemory=16000 State=DOWN*
`)
	if c.Host != 766000*event.MiB || c.NodeHost != 510000*event.MiB || c.CPUs != 96 ||
		c.NodeCPUs != 64 || len(c.Cards) != 6 || len(c.Nodes) != 2 || c.Nodes["a2"] != 256000*event.MiB {
		t.Errorf("%+v", c)
	}
}

func TestQuoteForTheShell(t *testing.T) {
	if got := quote(`it's $HOME`); got != `'it'\''s $HOME'` {
		t.Error(got)
	}
}
