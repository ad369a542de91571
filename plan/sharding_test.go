package plan

import "testing"

// TestFindSharding: the answer is the same as that of a plan of the way it names, on the fewest
// cards, and no faster way on as many cards fits.
func TestFindSharding(t *testing.T) {
	cards, err := ParseCards([]string{"8xA100-80"})
	if err != nil {
		t.Fatal(err)
	}
	s, target := setupFor(t, "llama-3-8b", 2, 2048)
	s.Precision = "bf16"
	found, err := FindSharding(s, target, cards)
	if err != nil {
		t.Fatal(err)
	}
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
	cards, err := ParseCards([]string{"3x24GiB"})
	if err != nil {
		t.Fatal(err)
	}
	s, target := setupFor(t, "gpt2", 1, 256)
	s.Shard, s.Checkpointing, s.NoReshard = "fsdp", true, true
	found, err := FindSharding(s, target, cards)
	if err != nil {
		t.Fatal(err)
	}
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
	cards, err := ParseCards([]string{"2x12GiB"})
	if err != nil {
		t.Fatal(err)
	}
	s, target := setupFor(t, "llama-3-8b", 1, 512)
	s.Precision = "bf16"
	found, err := FindSharding(s, target, cards)
	if err != nil {
		t.Fatal(err)
	}
	if found.Fits || found.Best != nil || len(found.Ways) != 10 {
		t.Fatalf("fits %v, best %v, %d ways; want 10 that do not fit", found.Fits, found.Best,
			len(found.Ways))
	}
}
