package models

import (
	"slices"

	"memroom/tape"
)

// Division is one rank's part of a model that is divided among ranks beyond copies of it. Zero
// values divide nothing.
type Division struct {
	Tensor   int64 // heads, the MLP's width and the vocabulary are cut into so many parts
	Sequence bool  // between the cut layers the tokens are cut as well
	// the embedding and the logits are whole on every rank: only the head's weights are cut
	WholeWords bool
	Context    int64 // each sample's tokens are dealt out to so many ranks; Seq counts one's
	Expert     int64 // experts are dealt out to so many ranks
	// ranks over which FSDP cuts a rank's experts; 0 is as many as for the rest
	ExpertSpread  int64
	Stage, Stages int64 // the pipeline's stage that is built, of how many
}

// Parts are the numbers that a division must divide.
type Parts struct{ Heads, KVHeads, Inner, Layers, Vocab, Experts, Shared int64 }

func (d Division) first() bool { return d.Stages < 2 || d.Stage == 0 }

func (d Division) last() bool { return d.Stages < 2 || d.Stage == d.Stages-1 }

// parts are the numbers of a decoder that can be divided.
func (s *decoder) parts() *Parts {
	p := &Parts{Heads: s.heads, KVHeads: s.kv, Inner: s.inner, Layers: s.layers, Vocab: s.vocab}
	if s.experts != nil {
		p.Experts, p.Shared = s.experts.experts, s.experts.shared
		p.Inner = s.experts.inner
	}
	return p
}

// divide makes the decoder that of one rank.
func (s *decoder) divide(d Division) {
	if d.Tensor > 1 {
		s.heads, s.kv, s.inner = s.heads/d.Tensor, max(s.kv/d.Tensor, 1), s.inner/d.Tensor
	}
	if s.experts == nil {
		return
	}
	m := *s.experts
	m.kept = m.experts / max(d.Expert, 1)
	m.spread = d.ExpertSpread
	if d.Tensor > 1 {
		m.inner, m.shared = m.inner/d.Tensor, m.shared/d.Tensor
	}
	s.experts = &m
}

// words is how many rows of the embedding and of the head a rank has.
func (s *decoder) words(d Division) (table, head int64) {
	cut := (s.vocab + max(d.Tensor, 1) - 1) / max(d.Tensor, 1)
	if d.WholeWords {
		return s.vocab, cut
	}
	return cut, cut
}

// into hands activations to layers that are cut over ranks: whole ones, gathered where tokens are
// cut too.
func (c *ctx) into(x *tape.Tensor) *tape.Tensor {
	switch {
	case c.Tensor < 2:
		return x
	case c.Division.Sequence:
		shape := slices.Clone(x.Shape)
		shape[1] *= c.Tensor
		return c.Transfer("all-gather", x, shape...)
	}
	return c.FanOut(x)
}

// outOf joins the partial results of layers that are cut over ranks.
func (c *ctx) outOf(x *tape.Tensor) *tape.Tensor {
	switch {
	case c.Tensor < 2:
		return x
	case c.Division.Sequence:
		shape := slices.Clone(x.Shape)
		shape[1] = max(shape[1]/c.Tensor, 1)
		return c.Transfer("reduce-scatter", x, shape...)
	}
	return c.AllReduce(x)
}

// aroundRing is what attention over tokens of other ranks takes next to itself: all keys and values
// in one buffer, and sums in fp32; in the backward pass those of the gradients as well.
func (c *ctx) aroundRing(q, k, v *tape.Tensor) *tape.Tensor {
	if c.Context < 2 {
		return q
	}
	kv := (k.Numel() + v.Numel()) * k.DType.Size()
	sums := 2 * q.Numel() * 4
	return c.Beside("ring attention", q, kv*c.Context+sums,
		kv*c.Context+sums+2*(k.Numel()+v.Numel())*4)
}

// headLogits runs the head: its rows may be cut over ranks, and its results gathered again.
func (c *ctx) headLogits(head lin, h *tape.Tensor) *tape.Tensor {
	if c.Tensor < 2 {
		return head.run(c.Graph, h)
	}
	out := head.run(c.Graph, c.into(h))
	if !c.WholeWords {
		return out
	}
	shape := slices.Clone(out.Shape)
	shape[len(shape)-1] *= c.Tensor
	return c.Transfer("all-gather", out, shape...)
}
