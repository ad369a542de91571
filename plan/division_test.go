package plan

import (
	"strings"
	"testing"

	"memroom/allocsim"
	"memroom/models"
)

// mixtralOf is a small mixture: 8 experts, 2 a token.
func mixtralOf() *models.Config {
	c := llamaOf(256, 512, 4, 8, 4, 1000)
	c["model_type"], c["num_local_experts"], c["num_experts_per_tok"] = "mixtral", 8.0, 2.0
	return models.ConfigOf(c)
}

// TestDivided: weights of one rank, in elements, by hand.
func TestDivided(t *testing.T) {
	const h, inner, d, vocab, experts = 256, 512, 32, 1000, 8
	attn := func(tp int64) int64 { return (h*8*d + 2*h*4*d + 8*d*h) / tp }
	router, norms := int64(experts*h), int64(2*h)
	mlp := func(tp, ep int64) int64 { return experts / ep * 3 * h * inner / tp }
	words, final := int64(vocab*h), int64(h)
	all := func(layers int64, tp, ep int64) int64 {
		return layers * (attn(tp) + router + norms + mlp(tp, ep))
	}
	for name, c := range map[string]struct {
		change func(*Setup)
		want   int64 // elements of a rank
	}{
		"whole":    {func(*Setup) {}, all(4, 1, 1) + 2*words + final},
		"tensor":   {func(s *Setup) { s.Tensor = 4 }, all(4, 4, 1) + words + words/4 + final},
		"loss":     {func(s *Setup) { s.Tensor, s.LossParallel = 4, true }, all(4, 4, 1) + words/2 + final},
		"expert":   {func(s *Setup) { s.Expert = 4 }, all(4, 1, 4) + 2*words + final},
		"both":     {func(s *Setup) { s.Tensor, s.Expert = 2, 4 }, all(4, 2, 4) + words + words/2 + final},
		"first":    {func(s *Setup) { s.Pipeline = 4 }, all(1, 1, 1) + words},
		"between":  {func(s *Setup) { s.Pipeline, s.stage = 4, 2 }, all(1, 1, 1)},
		"last":     {func(s *Setup) { s.Pipeline, s.stage = 4, 3 }, all(1, 1, 1) + words + final},
		"context":  {func(s *Setup) { s.Context = 4 }, all(4, 1, 1) + 2*words + final},
		"sequence": {func(s *Setup) { s.Tensor, s.Sequence = 2, true }, all(4, 2, 1) + words*3/2 + final},
	} {
		s := Setup{Model: mixtralOf()}
		s.Seq = 64
		c.change(&s)
		stage := s.stage
		s = s.WithDefaults()
		s.stage = stage
		m, err := s.model()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := m.Root.Count(); got != c.want {
			t.Errorf("%s: a rank has %d elements, want %d", name, got, c.want)
		}
	}
}

// TestRanksOfDivision: who shares a batch, who has the same layers, and who shards.
func TestRanksOfDivision(t *testing.T) {
	s := Setup{Model: mixtralOf()}
	s.Ranks, s.Tensor, s.Context, s.Pipeline, s.Shard, s.Replicas = 64, 2, 2, 4, "hsdp", 2
	s.Batch, s.Seq, s.Accumulate = 3, 64, 8
	s = s.WithDefaults()
	if s.dataRanks() != 4 || s.spreadRanks() != 8 || s.cut() != 4 || s.Microbatches != 8 ||
		s.EffectiveBatch() != 3*8*4 || s.ownTokens(64) != 32 || s.groups() != 4 {
		t.Errorf("data %d, spread %d, cut %d, %d micro-batches, batch %d, tokens %d, groups %d",
			s.dataRanks(), s.spreadRanks(), s.cut(), s.Microbatches, s.EffectiveBatch(),
			s.ownTokens(64), s.groups())
	}
	alone := Setup{Model: mixtralOf()}
	alone.Tensor, alone.Pipeline = 2, 2
	if alone = alone.WithDefaults(); alone.Ranks != 4 || alone.Shard != "" {
		t.Errorf("%d ranks, sharded %q: want 4 that share one batch", alone.Ranks, alone.Shard)
	}
	if err := alone.Check(); err != nil {
		t.Error(err)
	}
}

// TestPipelineInFlight: of equal stages an earlier one holds more micro-batches, and no more of
// them than there are.
func TestPipelineInFlight(t *testing.T) {
	saved := func(stage, batches int) int64 {
		s := manySetup()
		s.Precision, s.Pipeline, s.Microbatches, s.stage = "bf16", 4, batches, stage
		k, _ := planKeeps(t, s)
		return k.Activations
	}
	second, third := saved(1, 8), saved(2, 8)
	if second*2 < third*3-third/50 || second*2 > third*3+third/50 {
		t.Errorf("the second of 4 stages saves %d, the third %d: want 3 to 2", second, third)
	}
	if few := saved(1, 2); few*3 < second*2-second/50 || few*3 > second*2+second/50 {
		t.Errorf("of 2 micro-batches it saves %d, of 8 %d: want 2 to 3", few, second)
	}
}

// TestPipelineRanks checks that the answer is that of the fullest stage, and that each kind of rank
// is named.
func TestPipelineRanks(t *testing.T) {
	s := manySetup()
	s.Precision, s.Pipeline, s.Ranks, s.Shard = "bf16", 4, 8, "fsdp"
	target := Target{Card: DefaultCard(), Given: true, Torch: "2.11", Alloc: allocsim.DefaultConfig()}
	p, err := Predict(s, target)
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Ranks) != 3 || p.Ranks[0].First != 0 || p.Ranks[0].Last != 1 || p.Ranks[1].First != 2 ||
		p.Ranks[1].Last != 5 || p.Ranks[2].First != 6 || p.Ranks[2].Last != 7 {
		t.Fatalf("ranks %+v", p.Ranks)
	}
	for _, r := range p.Ranks {
		if r.Device > p.DevicePeak || r.Kind == "" {
			t.Errorf("%+v, the answer is %s", r, p.DevicePeak)
		}
	}
	if p.Estimate == nil || p.Validated || p.Estimate.Communication != collectiveBytes+groupBytes ||
		p.High < p.DevicePeak+p.DevicePeak/6 {
		t.Errorf("estimate %+v, validated %v, %s to %s", p.Estimate, p.Validated, p.DevicePeak, p.High)
	}
	if p.Parameters != 33_890_816 {
		t.Errorf("%d parameters, want those of the whole model", p.Parameters)
	}
}

// TestExpertsSharded: FSDP cuts dealt-out experts over fewer ranks; each rank keeps as much.
func TestExpertsSharded(t *testing.T) {
	keeps := func(expert int) kept {
		s := Setup{Model: mixtralOf()}
		s.Seq, s.Precision, s.Ranks, s.Shard, s.Expert = 64, "bf16", 8, "fsdp", expert
		k, _ := planKeeps(t, s)
		return k
	}
	whole, dealt := keeps(0), keeps(4)
	if whole.Weights != dealt.Weights || whole.Gradients != dealt.Gradients ||
		whole.Optimizer != dealt.Optimizer {
		t.Errorf("sharded %+v, dealt out %+v", whole, dealt)
	}
}

// TestDivisionRefused checks that the error for an impossible division names the division, the
// reason and what to do next.
func TestDivisionRefused(t *testing.T) {
	for says, change := range map[string]func(*Setup){
		"8 attention heads cannot be divided into 3": func(s *Setup) { s.Tensor = 3 },
		"4 key and value heads cannot be divided":    func(s *Setup) { s.Tensor = 8 },
		"4 layers cannot be divided into 3":          func(s *Setup) { s.Pipeline = 3 },
		"8 experts cannot be divided into 16":        func(s *Setup) { s.Expert, s.Ranks = 16, 16 },
		"64 tokens of a sample cannot be divided":    func(s *Setup) { s.Context = 3 },
		"6 ranks cannot be divided into groups of 4": func(s *Setup) { s.Tensor, s.Ranks = 4, 6 },
		"add --tensor-parallel N":                    func(s *Setup) { s.Sequence = true },
		"add --pipeline-parallel N":                  func(s *Setup) { s.Microbatches = 4 },
		"leave out --attn eager":                     func(s *Setup) { s.Context, s.Attention = 2, "eager" },
		"needs more than one rank":                   func(s *Setup) { s.Tensor, s.Shard = 4, "fsdp" },
		"cannot be divided into 3 equal groups":      func(s *Setup) { s.Ranks, s.Shard, s.Replicas = 8, "hsdp", 3 },
		"groups of one rank each":                    func(s *Setup) { s.Ranks, s.Shard, s.Replicas = 8, "hsdp", 8 },
		"the 4 ranks that have the same layers":      func(s *Setup) { s.Ranks, s.Expert = 4, 8 },
		"planned for FSDP and for DeepSpeed's":       func(s *Setup) { s.Offload = []string{"parameters"} },
	} {
		s := Setup{Model: mixtralOf()}
		s.Seq = 64
		change(&s)
		if err := s.Check(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v: want %q", err, says)
		}
	}
	s, _ := setupFor(t, "gpt2", 1, 64)
	s.Tensor = 2
	if err := s.Check(); err == nil || !strings.Contains(err.Error(), "gpt2 cannot be divided here") {
		t.Error(err)
	}
}
