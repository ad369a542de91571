package cli

import (
	"slices"
	"strings"
	"testing"

	"memroom/event"
	"memroom/plan"
	"memroom/testenv"
)

func TestLauncher(t *testing.T) {
	for command, want := range map[string]struct {
		starts         string
		ranks, perNode int
	}{
		"torchrun --nproc_per_node 8 --standalone train.py --lr 1": {"python3 train.py --lr 1", 8, 8},
		"torchrun --nproc-per-node=8 --nnodes 1:4 -m pkg.train":    {"python3 -m pkg.train", 32, 8},
		"/v/bin/torchrun --nnodes=2 t.py --nnodes 3":               {"/v/bin/python t.py --nnodes 3", 0, 0},
		"deepspeed --num_gpus 8 t.py --deepspeed d":                {"python3 t.py --deepspeed d", 8, 8},
		"python3.11 -m torch.distributed.run --nproc_per_node 2 t": {"python3.11 t", 2, 2},
		"python t.py --nnodes 2":                                   {"python t.py --nnodes 2", 0, 0},
	} {
		got := launched(strings.Fields(command))
		if !slices.Equal(got.args, strings.Fields(want.starts)) {
			t.Errorf("%s starts %q, want %s", command, got.args, want.starts)
		}
		if got.ranks != want.ranks || got.perNode != want.perNode {
			t.Errorf("%s: %d ranks, %d of a machine; want %d and %d", command, got.ranks, got.perNode,
				want.ranks, want.perNode)
		}
	}
}

// TestLauncherOfAccelerate: accelerate's own code reads its flags, in the process of the script.
func TestLauncherOfAccelerate(t *testing.T) {
	for _, command := range []string{
		"accelerate launch --use_fsdp --num_processes 16 --num_machines 2 t.py x",
		"python -m accelerate.commands.launch --num_processes=16 --num_machines 2 -m t x",
	} {
		words := strings.Fields(command)
		got := launched(words)
		launch := func(w string) bool { return strings.HasSuffix(w, "launch") }
		after := words[slices.IndexFunc(words, launch)+1:]
		if len(got.args) < 3 || got.args[1] != "-c" || !slices.Equal(got.args[3:], after) {
			t.Errorf("%s starts %q", command, got.args)
		}
		if got.ranks != 16 || got.perNode != 8 || !got.elastic {
			t.Errorf("%s: %+v", command, got)
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
	// part, gradients, two moments and gathers, plus the workspaces of cuBLAS of two threads
	if own := rest.Allocated - 64*event.MiB; own < whole || own > 2*whole {
		t.Errorf("a rank of four allocates %s for %s of weights", rest.Allocated, whole)
	}
	if p.AllocatedPeak != first.Allocated {
		t.Errorf("the answer is %s, not that of the larger rank, %s", p.AllocatedPeak, first.Allocated)
	}
}

// TestRehearsalOfPipeline: three kinds of rank, found without --ranks.
func TestRehearsalOfPipeline(t *testing.T) {
	python := testenv.Python(t, "torch")
	p, message, code := rehearsed(t, python, nil, "-m", "torch.distributed.run",
		"--nproc-per-node=5", script("pipeline.py"))
	if code != 0 || len(p.Ranks) != 3 {
		t.Fatalf("code %d, ranks %v: %s", code, p.Ranks, message)
	}
	first, between, last := p.Ranks[0], p.Ranks[1], p.Ranks[2]
	if first.Last != 0 || between.First != 1 || between.Last != 3 || last.First != 4 {
		t.Errorf("kinds of rank: %+v", p.Ranks)
	}
	// embedding or head, its gradient and two moments
	const words = event.Bytes(16000 * 512 * 4)
	for _, end := range []plan.RankPeak{first, last} {
		if more := end.Allocated - between.Allocated; more < 4*words {
			t.Errorf("ranks %d to %d need %s more than those between", end.First, end.Last, more)
		}
	}
}

// TestRehearsalOfSpawnedRanks: a card for each rank, objects between ranks, SyncBatchNorm.
func TestRehearsalOfSpawnedRanks(t *testing.T) {
	python := testenv.Python(t, "torch")
	p, message, code := rehearsed(t, python, []string{"--ranks", "3"}, script("spawned_ranks.py"))
	if code != 0 || len(p.Ranks) != 2 || p.Ranks[1].First != 2 {
		t.Fatalf("code %d, ranks %v: %s", code, p.Ranks, message)
	}
	// What the collector frees a little later may lie at the peak of one rank and not of another.
	more := p.Ranks[1].Allocated - p.Ranks[0].Allocated
	if more < 127*event.MiB || more > 129*event.MiB {
		t.Errorf("the last rank keeps %s more (%d bytes), want 128MiB", more, int64(more))
	}
}

// TestRehearsalUnderAccelerate: what its flags say holds for the script.
func TestRehearsalUnderAccelerate(t *testing.T) {
	python := testenv.Python(t, "torch", "accelerate")
	p, message, code := rehearsed(t, python, nil, "-m", "accelerate.commands.launch",
		"--num_processes", "2", "--use_fsdp", "--fsdp_version", "1", "--mixed_precision", "bf16",
		script("launched.py"))
	if code != 0 || len(p.Ranks) != 1 || p.Ranks[0].Last != 1 {
		t.Fatalf("code %d, ranks %v: %s", code, p.Ranks, message)
	}
}
