package models

import (
	"fmt"

	"memroom/tape"
)

// lfm2Block is a layer of LFM2: attention or a short convolution, then a gated MLP.
type lfm2Block struct {
	attn       *decoderBlock // nil where the layer convolves
	in, out    lin
	taps       convLayer
	w1, w2, w3 lin
	first, mlp norm
}

// lfm2 is Lfm2ForCausalLM.
func lfm2(c *Config, r Run) (*Model, error) {
	s := readDecoder(c, r)
	s.headNorm, s.tied = beforeHeads, c.Bool(true, "tie_word_embeddings", "tie_embedding")
	s.rot = s.d
	inner := s.inner
	if c.Bool(true, "block_auto_adjust_ff_dim") {
		inner = 2 * inner / 3
		if c.Has("block_ffn_dim_multiplier") {
			inner = int64(c.Float(1, "block_ffn_dim_multiplier") * float64(inner))
			many := c.Int(256, "block_multiple_of")
			inner = (inner + many - 1) / many * many
		}
	}
	length, bias := c.Int(3, "conv_L_cache"), c.Bool(false, "conv_bias")
	types := c.Strings("layer_types")
	attends := map[int64]bool{}
	for i := range s.layers {
		attends[i] = i >= int64(len(types)) || types[i] == "full_attention"
	}
	if len(types) == 0 && c.Has("full_attn_idxs") {
		for i := range s.layers {
			attends[i] = false
		}
		for _, i := range c.Ints(nil, "full_attn_idxs") {
			attends[i] = true
		}
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	root := tape.NewModule()
	body := root.Child("model")
	table := embedding(body, "embed_tokens", s.vocab, s.h)
	list := body.Child("layers")
	var blocks []*lfm2Block
	for i := range s.layers {
		m := list.Child(fmt.Sprint(i))
		b := &lfm2Block{}
		if attends[i] {
			a := m.Child("self_attn")
			b.attn = &decoderBlock{spec: s, q: linear(a, "q_proj", s.h, s.heads*s.d, false),
				k: linear(a, "k_proj", s.h, s.kv*s.d, false),
				v: linear(a, "v_proj", s.h, s.kv*s.d, false),
				o: linear(a, "out_proj", s.heads*s.d, s.h, false)}
			b.attn.qNorm, b.attn.kNorm = rmsNorm(a, "q_layernorm", s.d), rmsNorm(a, "k_layernorm", s.d)
		} else {
			a := m.Child("conv")
			t := a.Child("conv")
			b.taps = convLayer{w: t.Param("weight", s.h, 1, 1, length), stride: 1, pad: length - 1,
				groups: s.h, dilation: 1, flat: true}
			if bias {
				b.taps.b = t.Param("bias", s.h)
			}
			b.in, b.out = linear(a, "in_proj", s.h, 3*s.h, bias), linear(a, "out_proj", s.h, s.h, bias)
		}
		f := m.Child("feed_forward")
		b.w1, b.w3 = linear(f, "w1", s.h, inner, false), linear(f, "w3", s.h, inner, false)
		b.w2 = linear(f, "w2", inner, s.h, false)
		b.first, b.mlp = rmsNorm(m, "operator_norm", s.h), rmsNorm(m, "ffn_norm", s.h)
		blocks = append(blocks, b)
	}
	rot := body.Child("rotary_emb")
	rot.Buffer(tape.F32, s.rot/2)
	rot.Buffer(tape.F32, s.rot/2)
	final := rmsNorm(body, "embedding_norm", s.h)
	head := causalHead(root, r, table, s.tied, s.vocab, s.h)
	return causalModel(root, r, head, s.layers, false, func(x *ctx, ids *tape.Tensor) *tape.Tensor {
		return x.lfm2Body(s, ids, table, blocks, final)
	}), nil
}

func (c *ctx) lfm2Body(s *decoder, ids *tape.Tensor, table *tape.Param, blocks []*lfm2Block,
	final norm) *tape.Tensor {
	f := c.Enter()
	var e, pos, mask, h, cos, sin *tape.Tensor
	c.In("embedding", func() {
		f.Set(&e, c.Embedding(ids, table))
		f.Set(&pos, c.positions(ids.Shape[1]))
		f.Set(&mask, c.causalMask(ids.Shape[0], ids.Shape[1], e.DType))
		f.Set(&h, e)
		f.Pair(&cos, &sin)(c.rotaryTable(rotary{dim: s.rot}, pos, h.DType))
	})
	for i, b := range blocks {
		f.Set(&h, c.layer(fmt.Sprintf("layers.%d", i),
			func(a []*tape.Tensor) *tape.Tensor { return b.run(c, a[0], a[1], a[2], a[3]) }, h, cos, sin,
			mask, pos))
	}
	c.In("norm", func() { f.Set(&h, final.rms(c.Graph, h)) })
	return f.Leave(h)
}

func (b *lfm2Block) run(c *ctx, x, cos, sin, mask *tape.Tensor) *tape.Tensor {
	f := c.Enter()
	var h, w *tape.Tensor
	normed := b.first.rms(c.Graph, x)
	if b.attn != nil {
		f.Pair(&h, &w)(b.attn.attend(c, normed, cos, sin, mask))
	} else {
		f.Set(&h, b.convolve(c, normed))
	}
	f.Set(&h, c.Add(h, x))
	g := c.Enter()
	y := b.mlp.rms(c.Graph, h)
	inner := c.Enter(y)
	up := inner.Leave(b.w2.run(c.Graph, c.Mul(c.Activation("silu", b.w1.run(c.Graph, y)),
		b.w3.run(c.Graph, y))))
	f.Set(&h, c.Add(h, g.Leave(up)))
	return f.Leave(h)
}

// convolve is Lfm2ShortConv without a cache: two gates around a convolution over a few tokens.
func (b *lfm2Block) convolve(c *ctx, x *tape.Tensor) *tape.Tensor {
	f := c.Enter(x)
	n, s, width := x.Shape[0], x.Shape[1], x.Dim(-1)
	var wide, gate, out, value, h, y *tape.Tensor
	f.Set(&wide, c.Transpose(b.in.run(c.Graph, x), 1, 2))
	parts := c.Split(wide, 1, width, width, width)
	f.Set(&gate, parts[0])
	f.Set(&out, parts[1])
	f.Set(&value, parts[2])
	f.Set(&h, c.Mul(gate, value))
	g := c.Enter(h)
	z := c.To(h, b.taps.w.DType)
	z = b.taps.run(c, c.View(z, n, width, 1, s))
	z = c.Slice(c.View(z, n, width, z.Dim(-1)), 2, s)
	f.Set(&h, g.Leave(c.To(z, h.DType)))
	f.Set(&y, c.Mul(out, h))
	f.Set(&y, c.Contiguous(c.Transpose(y, 1, 2)))
	f.Set(&y, b.out.run(c.Graph, y))
	return f.Leave(y)
}
