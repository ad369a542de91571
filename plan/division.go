package plan

import (
	"fmt"
	"strings"

	"memroom/models"
)

// Division is how a model is divided among ranks beyond copies and shards of it. Zero and one
// divide nothing.
type Division struct {
	Tensor   int  `json:"tensor_parallel,omitempty"`
	Sequence bool `json:"sequence_parallel,omitempty"` // tokens are cut between the cut layers
	// with tensor parallelism: embedding and logits are cut too, and the loss is found in parts
	LossParallel bool `json:"loss_parallel,omitempty"`
	Context      int  `json:"context_parallel,omitempty"`
	Pipeline     int  `json:"pipeline_parallel,omitempty"`
	Microbatches int  `json:"microbatches,omitempty"` // of a step of the pipeline
	Expert       int  `json:"expert_parallel,omitempty"`
}

// divided reports whether a rank has another model than one card would.
func (d *Division) divided() bool {
	return d.Tensor > 1 || d.Context > 1 || d.Pipeline > 1 || d.Expert > 1
}

// together is how many ranks work on one batch.
func (d *Division) together() int {
	return max(1, d.Tensor) * max(1, d.Context) * max(1, d.Pipeline)
}

// fromDivision fills in how many ranks a division takes, and the pipeline's micro-batches.
func (s *Setup) fromDivision() {
	if least := s.together() * max(1, s.Expert/max(1, s.Context)); s.Ranks == 1 && least > 1 {
		s.Ranks = least
	}
	if s.Pipeline < 2 {
		return
	}
	if s.Microbatches == 0 {
		s.Microbatches = s.Pipeline
		if s.Accumulate > 1 {
			s.Microbatches = s.Accumulate
		}
	}
	s.Accumulate = 1 // the schedule's micro-batches are the accumulation
}

// dataRanks is how many groups of ranks see batches of their own.
func (s *Setup) dataRanks() int { return max(1, s.Ranks/s.together()) }

// spreadRanks is how many ranks have the same part of the model: those that data parallelism or
// sharding spans.
func (s *Setup) spreadRanks() int { return s.dataRanks() * max(1, s.Context) }

// EffectiveBatch is the number of samples of an optimizer step over all ranks.
func (s Setup) EffectiveBatch() int {
	return s.Batch * max(1, s.Accumulate) * max(1, s.Microbatches) * s.dataRanks()
}

// ownTokens is how many of a sample's tokens a rank has.
func (s *Setup) ownTokens(seq int) int64 {
	n := int64(max(1, s.Context))
	return (int64(seq) + n - 1) / n
}

// division is what one rank has of the model.
func (s *Setup) division() models.Division {
	d := models.Division{Tensor: int64(s.Tensor), Sequence: s.Sequence,
		WholeWords: s.Tensor > 1 && !s.LossParallel, Context: int64(s.Context),
		Expert: int64(s.Expert)}
	if s.Pipeline > 1 {
		d.Stage, d.Stages = int64(s.stage), int64(s.Pipeline)
	}
	if s.Expert > 1 {
		d.ExpertSpread = int64(max(1, s.cut()/s.Expert))
	}
	return d
}

// undivided is the setup of the whole model.
func (s *Setup) undivided() Setup {
	one := *s
	one.Division, one.stage = Division{}, 0
	return one
}

// checkDivision refuses a division that the model or the ranks do not allow.
func (s *Setup) checkDivision() error {
	for _, f := range []struct {
		wrong bool
		says  string
	}{
		{s.Sequence && s.Tensor < 2,
			"--sequence-parallel cuts tokens between layers that are cut: add --tensor-parallel N; " +
				"--context-parallel N cuts them everywhere"},
		{s.LossParallel && s.Tensor < 2, "--loss-parallel is for a cut head: add --tensor-parallel N"},
		{s.Microbatches > 0 && s.Pipeline < 2,
			"--microbatches counts those of a pipeline: add --pipeline-parallel N, or use --accumulate"},
		{s.Context > 1 && s.Attention == "eager",
			"--context-parallel needs attention by blocks: leave out --attn eager"},
		{s.Context > 1 && s.Padded, "--context-parallel takes no mask: leave out --padded and --packed"},
		{s.divided() && s.Trainer != "",
			"--trainer is planned for data parallelism: leave out the division of the model"},
		{s.Pipeline > 1 && (s.varies() || s.EvalBatch > 0 || s.InBackward),
			"a pipeline is planned for batches of one size without evaluation: leave out --shortest, " +
				"--eval-batch and --optimizer-in-backward"},
	} {
		if f.wrong {
			return fmt.Errorf("%s", f.says)
		}
	}
	if !s.divided() || s.Model == nil {
		return nil
	}
	if s.Ranks%s.together() != 0 {
		return fmt.Errorf("%d ranks cannot be divided into groups of %d (tensor x context x pipeline): "+
			"choose --ranks as a multiple of %d", s.Ranks, s.together(), s.together())
	}
	if s.Expert > 1 && s.spreadRanks()%s.Expert != 0 {
		return fmt.Errorf("--expert-parallel %d does not divide the %d ranks that have the "+
			"same layers: choose one of %s", s.Expert, s.spreadRanks(),
			divisors(s.spreadRanks()))
	}
	return s.checkParts()
}

// checkParts refuses degrees that the model's numbers are no multiples of.
func (s *Setup) checkParts() error {
	one := s.undivided()
	m, err := models.New(s.Model, one.run(1, max(1, s.Seq)))
	if err != nil {
		return err
	}
	p := m.Parts
	if p == nil {
		return fmt.Errorf("%s cannot be divided here: tensor, context, pipeline and expert parallelism "+
			"are described for decoders of the Llama kind; for others rehearse your own script: memroom plan "+
			"--rehearse --ranks N -- torchrun ... train.py", s.Model.Type())
	}
	if s.Expert > 1 && p.Experts == 0 {
		return fmt.Errorf("--expert-parallel %d: %s has no experts: leave it out", s.Expert,
			s.Model.Type())
	}
	for _, d := range []struct {
		degree int
		flag   string
		n      int64
		of     string
	}{{s.Tensor, "tensor", p.Heads, "attention heads"},
		{s.Tensor, "tensor", p.KVHeads, "key and value heads"},
		{s.Tensor, "tensor", p.Inner, "columns of the MLP"},
		{s.Pipeline, "pipeline", p.Layers, "layers"},
		{s.Expert, "expert", p.Experts, "experts"},
		{s.Context, "context", int64(s.Seq), "tokens of a sample"}} {
		if d.degree > 1 && d.n%int64(d.degree) != 0 {
			return fmt.Errorf("--%s-parallel %d: the model's %d %s cannot be divided into %d "+
				"equal parts: choose one of %s", d.flag, d.degree, d.n, d.of, d.degree, divisors(int(d.n)))
		}
	}
	return nil
}

// manyDivisors is how many divisors are listed.
const manyDivisors = 8

// divisors lists the divisors of n in words, the smallest ones.
func divisors(n int) string {
	var list []string
	for i := 1; i <= n && len(list) < manyDivisors; i++ {
		if n%i == 0 {
			list = append(list, fmt.Sprint(i))
		}
	}
	return strings.Join(list, ", ")
}
