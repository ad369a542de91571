package plan

import (
	"math"
	"strings"
	"testing"

	"memroom/event"
	"memroom/models"
	"memroom/remedy"
)

// TestIntervals: how wide an answer is follows from what is known. The figures are promises of the
// documentation, as parts of the device peak.
func TestIntervals(t *testing.T) {
	ask := func(config string, s Setup, gpu string) (below, above float64, p *Prediction) {
		t.Helper()
		s.Model = mustConfig(t, config)
		target := testTarget()
		var err error
		if gpu != "" {
			if target.Card, err = FindCard(gpu); err != nil {
				t.Fatal(err)
			}
		}
		if p, err = predictOnly(s, target); err != nil {
			t.Fatal(err)
		}
		c := target.Card
		return float64(p.DevicePeak-c.Doubt-c.Less-p.Low) / float64(p.DevicePeak),
			float64(p.High-c.Doubt-p.DevicePeak) / float64(p.DevicePeak), p
	}
	plain := Setup{Setup: remedy.Setup{Batch: 2, Seq: 256}}
	with := func(change func(*Setup)) Setup { s := plain; change(&s); return s }
	for _, c := range []struct {
		name, config string
		setup        Setup
		gpu          string
		below, above float64
	}{
		{"verified on this card", llama160m, plain, "", 0.02, 0.02},
		{"the same generation", llama160m, plain, "H100", 0.028, 0.028},
		{"another generation", llama160m, plain, "RTX4090", 0.054, 0.063},
		{"adapters", llama160m, with(func(s *Setup) {
			s.LoRARank, s.LoRATargets = 8, []string{"q_proj", "v_proj"}
		}), "", 0.082, 0.054},
		{"a part that was never measured", llama160m,
			with(func(s *Setup) { s.Offload = []string{"activations"} }), "", 0.102, 0.102},
		{"two such parts", llama160m, with(func(s *Setup) {
			s.Offload, s.Attention = []string{"activations"}, "flash"
		}), "", 0.143, 0.143},
		{"a head that is not described", `{"model_type":"bert","architectures":
			["BertForMultipleChoice"]}`, plain, "", 0.036, 0.036},
	} {
		below, above, p := ask(c.config, c.setup, c.gpu)
		if math.Abs(below-c.below) > 0.002 || math.Abs(above-c.above) > 0.002 {
			t.Errorf("%s: %.4f below and %.4f above, want %g and %g (%q)", c.name, below, above,
				c.below, c.above, p.Warnings)
		}
	}
}

// TestUnsaidTargetsAreInTheInterval checks that the interval covers the usual choices where the
// user does not name the layers that get adapters. The greater need decides whether the setup fits.
func TestUnsaidTargetsAreInTheInterval(t *testing.T) {
	// few words: what the adapters keep is most of it
	config := strings.Replace(llama160m, `"vocab_size":32000`, `"vocab_size":500`, 1)
	for _, loadIn := range []string{"", "4bit", "8bit"} {
		ask := func(targets ...string) *Prediction {
			t.Helper()
			s := Setup{Model: mustConfig(t, config), LoRATargets: targets,
				Setup: remedy.Setup{Batch: 8, Seq: 512, LoRARank: 64, LoadIn: loadIn}}
			p, err := predictOnly(s, testTarget())
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		unsaid, few, all := ask(), ask("q_proj", "v_proj"), ask("all-linear")
		want := few
		if loadIn != "" {
			want = all
		}
		if unsaid.DevicePeak != want.DevicePeak || unsaid.Trainable != want.Trainable {
			t.Errorf("%q: %s with %d trained, want %s with %d", loadIn, unsaid.DevicePeak,
				unsaid.Trainable, want.DevicePeak, want.Trainable)
		}
		if unsaid.Low != few.Low || unsaid.High != all.High {
			t.Errorf("%q: %s to %s, want %s to %s", loadIn, unsaid.Low, unsaid.High, few.Low, all.High)
		}
		between := testTarget()
		between.Given = true
		between.Card.Total = all.AllocatedPeak + all.Categories["context"] - event.MiB
		for want, s := range map[bool]*Setup{true: few.Setup, false: unsaid.Setup} {
			if p, err := predictOnly(*s, between); err != nil || *p.Fits != want {
				t.Errorf("%q on %s with adapters on %v: fits is not %v (%v)", loadIn,
					between.Card.Total, s.LoRATargets, want, err)
			}
		}
	}
}

// TestFitsToTheLastByte checks that a setup that is known exactly fits a cap of what it reserves,
// or of a little less if the allocator can free cached blocks, and no cap below what is allocated.
func TestFitsToTheLastByte(t *testing.T) {
	s := Setup{Model: mustConfig(t, llama160m), Setup: remedy.Setup{Batch: 2, Seq: 256}}
	p, err := Predict(s, testTarget())
	if err != nil {
		t.Fatal(err)
	}
	fits := func(limit event.Bytes) bool {
		target := testTarget()
		target.AllocLimit = limit
		q, err := predictOnly(s, target)
		if err != nil {
			t.Fatal(err)
		}
		return *q.Fits
	}
	if !fits(p.ReservedPeak) || fits(p.AllocatedPeak-1) {
		t.Errorf("a cap of all that is reserved: %v; of less than is allocated: %v",
			fits(p.ReservedPeak), fits(p.AllocatedPeak-1))
	}
	target := testTarget()
	target.Given = true
	full := s.WithDefaults()
	r, err := simulateAll(&full, &target)
	if err != nil {
		t.Fatal(err)
	}
	need := target.judge(&full, r).need
	for _, c := range []struct {
		room event.Bytes
		fits bool
	}{{need, true}, {p.AllocatedPeak - 1, false}} {
		card := target
		card.Card.Total = c.room + card.overhead(r.all[0].usesDNN)
		if got := card.judge(&full, r); got.fits != c.fits || got.wall != c.room {
			t.Errorf("needs %s, room for %s: %+v", need, c.room, got)
		}
	}
	// what is freed and reserved again under a cap is counted as fitting only if it lives
	if v := target.judge(&full, r); v.least != p.AllocatedPeak || !v.exact {
		t.Errorf("%+v", v)
	}
}

// TestLargestBatchIsLargestToOneInAHundred: the answer fits, and two in a hundred more does not.
func TestLargestBatchIsLargestToOneInAHundred(t *testing.T) {
	s := Setup{Model: mustConfig(t, `{"model_type":"bert","num_hidden_layers":2}`),
		Setup: remedy.Setup{Batch: 1, Seq: 64}}
	target := testTarget()
	target.AllocLimit = 6 * event.GiB
	for _, from := range []int{1, 100, 5000} {
		s.Batch = from
		p, err := Predict(s, target)
		if err != nil {
			t.Fatal(err)
		}
		try := s.WithDefaults()
		fits := func(n int64) bool { try.Batch = int(n); return target.try(&try).fits }
		if n := *p.MaxBatch; n < 100 || !fits(n) || fits(n+n/50+1) {
			t.Errorf("from %d: %d fits %v, %d fits %v", from, n, fits(n), n+n/50+1,
				fits(n+n/50+1))
		}
	}
}

// TestSmallCardsAreShared: of a card that drives a screen, or of a board that has one memory, a
// part is not the training's. A name or a cap shows the rest.
func TestSmallCardsAreShared(t *testing.T) {
	for size, want := range map[string]event.Bytes{"4GiB": event.GiB / 2,
		"6GiB": 6 * event.GiB / 8, "8GiB": event.GiB, "10GiB": 0, "24GiB": 0, "RTX3080": 0} {
		card, err := FindCard(size)
		if err != nil {
			t.Fatal(err)
		}
		target := Target{Card: card, Given: true}
		if got := card.Total - card.Context - target.room(false); got != want {
			t.Errorf("%s: %s set aside, want %s", size, got, want)
		}
	}
}

// TestCardsOfASize: a size stands for the cards that are sold with it, and for no others.
func TestCardsOfASize(t *testing.T) {
	for size, want := range map[string]string{"24GiB": "A30, A5000, RTX4090, RTX3090Ti, RTX3090",
		"141GiB": "H200",
		"80GiB":  "H100, H100-PCIe, A100-80", "40GiB": "A100-40",
		"12GiB": "RTX5070, RTX4070Ti, RTX4070, RTX3060",
		"60GiB": "", "28GiB": "", "20GiB": ""} {
		card, err := FindCard(size)
		if err != nil {
			t.Fatal(err)
		}
		if card.Like != want {
			t.Errorf("%s is like %q, want %q", size, card.Like, want)
		}
	}
	// threads that a multiprocessor keeps resident, by NVIDIA's tables of compute capabilities
	for name, want := range map[string]int64{"T4": 1024, "RTX3090": 1536, "RTX4090": 1536,
		"RTX5090": 1536, "A100-80": 2048, "V100-16": 2048, "H100": 2048, "B200": 2048} {
		card, err := FindCard(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := card.threads(); got != want {
			t.Errorf("%s keeps %d threads resident, want %d", name, got, want)
		}
	}
}

// TestAloneIsSortedBySavings: what saves most stands first.
func TestAloneIsSortedBySavings(t *testing.T) {
	target := testTarget()
	target.AllocLimit = 8 * event.GiB
	ladder, err := FindCheapest(Setup{Model: mustConfig(t, llama160m),
		Setup: remedy.Setup{Batch: 16, Seq: 512}}, target,
		func(*remedy.Remedy) bool { return false })
	if err != nil {
		t.Fatal(err)
	}
	if len(ladder.Alone) < 3 {
		t.Fatalf("%d remedies", len(ladder.Alone))
	}
	for i, r := range ladder.Alone[1:] {
		if r.Saves > ladder.Alone[i].Saves {
			t.Errorf("%s saves %s and stands after %s with %s", r.ID, r.Saves, ladder.Alone[i].ID,
				ladder.Alone[i].Saves)
		}
	}
}

// TestDefaultsOfLlama: fields that a configuration leaves out have transformers' values.
func TestDefaultsOfLlama(t *testing.T) {
	const sizes = `"model_type":"llama","hidden_size":256,"num_hidden_layers":2,
		"num_attention_heads":8,"intermediate_size":512,"vocab_size":1000`
	base := predict(t, `{`+sizes+`}`, remedy.Setup{Batch: 2, Seq: 128})
	for field, same := range map[string]bool{`"num_key_value_heads":8`: true,
		`"num_key_value_heads":1`: false, `"attention_dropout":0.0`: true,
		`"tie_word_embeddings":false`: true, `"tie_word_embeddings":true`: false,
		`"hidden_act":"silu"`: true, `"head_dim":32`: true, `"head_dim":64`: false} {
		p := predict(t, `{`+sizes+`,`+field+`}`, remedy.Setup{Batch: 2, Seq: 128})
		if (p.AllocatedPeak == base.AllocatedPeak && p.Parameters == base.Parameters) != same {
			t.Errorf("%s: %s and %d parameters, without it %s and %d", field, p.AllocatedPeak,
				p.Parameters, base.AllocatedPeak, base.Parameters)
		}
	}
	dropped := predict(t, `{`+sizes+`,"attention_dropout":0.1}`,
		remedy.Setup{Batch: 2, Seq: 128, Attention: "eager"})
	if plain := predict(t, `{`+sizes+`}`, remedy.Setup{Batch: 2, Seq: 128,
		Attention: "eager"}); dropped.AllocatedPeak <= plain.AllocatedPeak {
		t.Errorf("dropout of attention costs nothing: %s, without it %s", dropped.AllocatedPeak,
			plain.AllocatedPeak)
	}
}

// TestLawsOfScale: what more of something must do to memory, for a model of every kind.
func TestLawsOfScale(t *testing.T) {
	for _, name := range []string{"gpt2", "tinyllama", "bert-base", "t5-small",
		"torchvision/resnet18", "vit-base"} {
		c, err := models.Preset(name)
		if err != nil {
			t.Fatal(err)
		}
		ask := func(change func(*Setup)) *Prediction {
			s := Setup{Model: c, Setup: remedy.Setup{Batch: 2, Precision: "amp_bf16"}}
			if c.DefaultSeq() > 0 {
				s.Seq = 128
			}
			change(&s)
			p, err := predictOnly(s, testTarget())
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		forward := func(batch int) event.Bytes {
			for _, ph := range ask(func(s *Setup) { s.Batch = batch }).Phases {
				if ph.Phase == "forward" {
					return ph.Allocated
				}
			}
			t.Fatalf("%s has no forward pass", name)
			return 0
		}
		first, second := forward(16)-forward(8), forward(24)-forward(16)
		if ratio := float64(second) / float64(first); first <= 0 || ratio < 0.9 || ratio > 1.1 {
			t.Errorf("%s: eight samples more take %s, eight more again %s", name, first, second)
		}
		state := func(optimizer string) float64 {
			p := ask(func(s *Setup) { s.Optimizer = optimizer })
			return float64(p.Host.Checkpoint) / float64(p.Parameters)
		}
		for optimizer, want := range map[string]float64{"sgd": 4, "sgdm": 8, "adamw": 12,
			"adam_amsgrad": 16} {
			if got := state(optimizer); math.Abs(got-want) > 0.05 {
				t.Errorf("%s with %s: a checkpoint has %.2f bytes a parameter, want %g", name,
					optimizer, got, want)
			}
		}
	}
}
