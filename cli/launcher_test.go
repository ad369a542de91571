package cli

import (
	"slices"
	"strings"
	"testing"

	"memroom/event"
	"memroom/testenv"
)

func TestLauncher(t *testing.T) {
	for command, want := range map[string]string{
		"torchrun --nproc_per_node 8 --standalone train.py --lr 1": "python3 train.py --lr 1",
		"torchrun --nproc-per-node=8 -m pkg.train --nnodes 2":      "python3 -m pkg.train --nnodes 2",
		"/v/bin/torchrun --nnodes=2 train.py":                      "/v/bin/python train.py",
		"accelerate launch --use_fsdp --num_processes 4 t.py x":    "python3 t.py x",
		"deepspeed --num_gpus 8 t.py --deepspeed ds.json":          "python3 t.py --deepspeed ds.json",
		"python3.11 -m torch.distributed.run --nproc_per_node 2 t": "python3.11 t",
		"python train.py --nproc_per_node 2":                       "python train.py --nproc_per_node 2",
	} {
		if got := launched(strings.Fields(command)); !slices.Equal(got, strings.Fields(want)) {
			t.Errorf("%s starts %q, want %s", command, got, want)
		}
	}
}

// TestRehearsalOfRanks: FSDP2 under torchrun, without cards. Four ranks hold a quarter of the
// weights each, and the first the buffer that it alone makes.
func TestRehearsalOfRanks(t *testing.T) {
	python := testenv.Python(t, "torch")
	p, message, code := rehearsed(t, python, []string{"--ranks", "4", "--gpu", "H200"},
		"-m", "torch.distributed.run", "--nproc_per_node", "4", script("sharded.py"))
	if code != 0 || len(p.Ranks) != 2 {
		t.Fatalf("code %d, ranks %v: %s", code, p.Ranks, message)
	}
	first, rest := p.Ranks[0], p.Ranks[1]
	if rest.First != 1 || rest.Last != 3 {
		t.Errorf("the rest are ranks %d to %d", rest.First, rest.Last)
	}
	if more := first.Allocated - rest.Allocated; more != 256*event.MiB {
		t.Errorf("rank 0 holds %s more than the others, want 256MiB", more)
	}
	whole := event.Bytes(8 * (1024*1024 + 1024) * 4)
	// part, gradients, two moments and gathers, beside the workspaces of cuBLAS of two threads
	if own := rest.Allocated - 64*event.MiB; own < whole || own > 2*whole {
		t.Errorf("a rank of four allocates %s for %s of weights", rest.Allocated, whole)
	}
	if p.AllocatedPeak != first.Allocated {
		t.Errorf("the answer is %s, not that of the larger rank, %s", p.AllocatedPeak, first.Allocated)
	}
}
