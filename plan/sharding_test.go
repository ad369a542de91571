package plan

import (
	"slices"
	"testing"
)

// shardingFor searches the way to shard a model over cards.
func shardingFor(t *testing.T, cards, model string, batch, seq int,
	change func(*Setup)) (Setup, Target, []Card, *Sharding) {
	t.Helper()
	list, err := ParseCards([]string{cards})
	if err != nil {
		t.Fatal(err)
	}
	s, target := setupFor(t, model, batch, seq)
	change(&s)
	found, err := FindSharding(s, target, list)
	if err != nil {
		t.Fatal(err)
	}
	return s, target, list, found
}

// TestFindSharding: the answer is the same as that of a plan of the way it names, on the fewest
// cards, and no faster way on as many cards fits.
func TestFindSharding(t *testing.T) {
	s, target, cards, found := shardingFor(t, "8xA100-80", "llama-3-8b", 2, 2048, func(s *Setup) {
		s.Precision = "bf16"
	})
	best := found.Best
	if !found.Fits || best == nil || best.Cards != 2 || best.Shard != "fsdp" {
		t.Fatalf("best is %+v, want 2 cards with fsdp", best)
	}
	for _, w := range found.Ways {
		s.Ranks, s.Shard, s.Checkpointing = w.Cards, w.Shard, w.Checkpointing
		target.Card, target.Given = cards[0], true
		p, err := predictOnly(s, target)
		if err != nil {
			t.Fatal(err)
		}
		if p.DevicePeak != w.DevicePeak || *p.Fits != w.Fits {
			t.Errorf("%+v: a plan of it says %s, fits %v", w, p.DevicePeak, *p.Fits)
		}
		if w.Fits && w.Cards < best.Cards {
			t.Errorf("%+v fits on fewer cards than %+v", w, *best)
		}
	}
}

// TestFindShardingAsAsked: a kind that is asked for is kept on every number of cards, and its
// details do not keep one card from being tried.
func TestFindShardingAsAsked(t *testing.T) {
	_, _, _, found := shardingFor(t, "3x24GiB", "gpt2", 1, 256, func(s *Setup) {
		s.Shard, s.Checkpointing, s.NoReshard = "fsdp", true, true
	})
	var numbers []int
	for _, w := range found.Ways {
		numbers = append(numbers, w.Cards)
		if want := map[bool]string{true: "", false: "fsdp"}[w.Cards == 1]; w.Shard != want ||
			!w.Checkpointing || !w.Fits {
			t.Errorf("%+v: want %q with checkpointing, fitting", w, want)
		}
	}
	if len(numbers) != 3 || numbers[0] != 1 || numbers[1] != 2 || numbers[2] != 3 {
		t.Errorf("tried %v cards, want 1, 2 and 3", numbers)
	}
}

// TestFindShardingNowhere: a model that fits on none of the cards is answered with what each way
// would need.
func TestFindShardingNowhere(t *testing.T) {
	_, _, _, found := shardingFor(t, "2x4GiB", "llama-3-8b", 1, 512, func(s *Setup) {
		s.Precision = "bf16"
	})
	// one card twice, four kinds on two cards twice, then tensor, context and host memory
	if found.Fits || found.Best != nil || len(found.Ways) != 13 {
		t.Fatalf("fits %v, best %v, %d ways; want 13 that do not fit", found.Fits, found.Best,
			len(found.Ways))
	}
}

// TestFindShardingDivided: only where no sharding fits, the model is divided; the answer is that of
// a plan with its flags, and is marked as an estimate.
func TestFindShardingDivided(t *testing.T) {
	s, target, cards, found := shardingFor(t, "8x24GiB", "llama-3-8b", 1, 16384, func(s *Setup) {
		s.Precision = "bf16"
	})
	best := found.Best
	if best == nil || best.Shared() < 2 {
		t.Fatalf("best is %+v, want one that divides the model", best)
	}
	plain := true
	for _, w := range found.Ways {
		if w.Shared() > 1 || len(w.Offload) > 0 {
			plain = false
		} else if !plain {
			t.Errorf("%+v was tried after a division", w)
		}
		if w.Fits && w.Cards < best.Cards {
			t.Errorf("%+v fits on fewer cards than %+v", w, *best)
		}
	}
	target.Card, target.Given = cards[0], true
	s.Ranks, s.Shard, s.Checkpointing, s.Division = best.Cards, best.Shard, true, best.Division
	s.Offload = best.Offload
	p, err := predictOnly(s, target)
	if err != nil || p.DevicePeak != best.DevicePeak || !*p.Fits || p.Estimate == nil {
		t.Errorf("%+v: a plan of it says %+v, %v", best, p, err)
	}
}

// TestFindShardingHost checks that weights in host memory are the last way, and that their bytes
// are reported.
func TestFindShardingHost(t *testing.T) {
	_, _, _, found := shardingFor(t, "2x12GiB", "llama-3-8b", 1, 512, func(s *Setup) {
		s.Precision = "bf16"
	})
	last, want := found.Ways[len(found.Ways)-1], int64(8_030_261_248*2*4) // AdamW: four of the weights
	if !found.Fits || !slices.Equal(last.Offload, []string{"parameters"}) || !last.Fits ||
		int64(last.Host) < want || int64(last.Host) > want+want/1000 {
		t.Errorf("fits %v, the last way is %+v, want %d bytes of host memory", found.Fits, last, want)
	}
}

// TestFindShardingMachines: HSDP is tried on several machines, before FSDP over all of them.
func TestFindShardingMachines(t *testing.T) {
	for n, want := range map[int]bool{4: false, 8: false, 16: true, 20: false, 64: true} {
		if got := slices.Contains(kinds("", n), "hsdp"); got != want {
			t.Errorf("on %d cards HSDP is tried: %v", n, got)
		}
	}
}
