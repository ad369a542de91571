package plan

import (
	"testing"

	"memroom/allocsim"
	"memroom/event"
	"memroom/models"
	"memroom/remedy"
)

func setupFor(t *testing.T, preset string, batch, seq int) (Setup, Target) {
	t.Helper()
	model, err := models.Preset(preset)
	if err != nil {
		t.Fatal(err)
	}
	s := Setup{Model: model}
	s.Batch, s.Seq = batch, seq
	return s, Target{Card: DefaultCard(), Alloc: allocsim.DefaultConfig(), Torch: "2.11"}
}

func none(*remedy.Remedy) bool { return false }

// TestFindCheapestIsCheapestAndKeepsTheBatch: what is found fits by the engine, keeps the effective
// batch, and nothing cheaper of the searched sets fits.
func TestFindCheapestIsCheapestAndKeepsTheBatch(t *testing.T) {
	s, target := setupFor(t, "gpt2", 16, 512)
	target.AllocLimit = 8 * event.GiB
	ladder, err := FindCheapest(s, target, none)
	if err != nil {
		t.Fatal(err)
	}
	if !ladder.Fits || !*ladder.After.Fits {
		t.Fatalf("found nothing: %+v", ladder)
	}
	if got := ladder.Setup.EffectiveBatch(); got != 16 {
		t.Errorf("effective batch became %d", got)
	}
	checked := s.WithDefaults()
	choice := newChooser(checked, target, usable(checked, none), ladder.Alone)
	for every := range set(1) << len(choice.tools) {
		made, ok := choice.with(every)
		for _, c := range choice.halvings(made) {
			if ok && c.slowdown < ladder.Slowdown && choice.run(c).fits {
				t.Errorf("%v fits at %.2f, cheaper than %.2f", c.ids, c.slowdown, ladder.Slowdown)
			}
		}
	}
	for _, key := range []string{"transformers", "memroom"} {
		if ladder.Flags[key] == "" {
			t.Errorf("no flags for %s", key)
		}
	}
}

func TestFindCheapestSaysWhenNothingDoes(t *testing.T) {
	s, target := setupFor(t, "gpt2", 4, 512)
	// Every remedy is tried with every other: fewer layers make that quick.
	s.Model = models.ConfigOf(map[string]any{"model_type": "gpt2", "n_layer": 2.0, "n_embd": 768.0,
		"n_head": 12.0, "vocab_size": 50257.0, "n_positions": 1024.0})
	const limit = 700 * event.MiB // weights, gradients and AdamW alone are more
	target.AllocLimit = limit
	ladder, err := FindCheapest(s, target, none)
	if err != nil {
		t.Fatal(err)
	}
	if ladder.Fits || ladder.Reason == "" || ladder.Least <= limit {
		t.Errorf("claims to fit: %+v", ladder.Rungs)
	}
	if ladder.Consent == nil || !ladder.Consent.Fits {
		t.Errorf("does not say that it would fit with fewer trained or packed weights: %+v",
			ladder.Consent)
	}
}

// TestFindCheapestUsesTheHost: an exact way that needs no consent is found even where the state
// alone fills the card.
func TestFindCheapestUsesTheHost(t *testing.T) {
	s, target := setupFor(t, "llama-3-8b", 1, 1024)
	card, err := FindCard("80GiB")
	if err != nil {
		t.Fatal(err)
	}
	s.Precision, target.Card, target.Given = "amp_bf16", card, true
	ladder, err := FindCheapest(s, target, none)
	if err != nil {
		t.Fatal(err)
	}
	if !ladder.Fits || !ladder.Setup.Offloads("optimizer") {
		t.Errorf("fits %v with %+v: %s", ladder.Fits, ladder.Rungs, ladder.Reason)
	}
}

// TestPlaceOnIsNeverWorseThanAuto over models and cards.
func TestPlaceOnIsNeverWorseThanAuto(t *testing.T) {
	for model, blocks := range map[string]int{"gpt2": 12, "llama-3.2-1b": 16, "tinyllama": 22,
		"bert-base": 12, "qwen2.5-0.5b": 24} {
		for _, sizes := range [][]event.Bytes{{24 * event.GiB, 24 * event.GiB},
			{24 * event.GiB, 24 * event.GiB, 12 * event.GiB}, {40 * event.GiB, 16 * event.GiB}} {
			s, target := setupFor(t, model, 4, 512)
			var cards []Card
			for _, size := range sizes {
				card := DefaultCard()
				card.Total = size
				cards = append(cards, card)
			}
			m, err := PlaceOn(s, target, cards)
			if err != nil {
				t.Fatal(err)
			}
			if m.Fullest > m.Auto.Fullest*1.001 {
				t.Errorf("%s on %v: %.3f, accelerate's auto %.3f", model, sizes, m.Fullest,
					m.Auto.Fullest)
			}
			placed := 0
			for _, d := range m.Devices {
				placed += len(d.Units)
			}
			if placed != blocks+2 {
				t.Errorf("%s: %d units placed", model, placed)
			}
		}
	}
}
