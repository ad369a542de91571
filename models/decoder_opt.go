package models

import (
	"fmt"

	"memroom/tape"
)

type optSpec struct {
	h, ffn, heads, layers, vocab, npos, embed int64
	act                                       string
	before, bias, affine, final, tied         bool
	drop, attnDrop                            float64
}

type optBlock struct {
	spec         *optSpec
	q, k, v, o   lin
	fc1, fc2     lin
	norm1, norm2 norm
}

// opt is OPTForCausalLM.
func opt(c *Config, r Run) (*Model, error) {
	s := &optSpec{h: c.Int(768, "hidden_size"), ffn: c.Int(3072, "ffn_dim"),
		heads: c.Int(12, "num_attention_heads"), layers: c.Int(12, "num_hidden_layers"),
		vocab: c.Int(50272, "vocab_size"), npos: c.Int(2048, "max_position_embeddings"),
		act: c.Str("relu", "activation_function"), before: c.Bool(true, "do_layer_norm_before"),
		bias: c.Bool(true, "enable_bias"), affine: c.Bool(true, "layer_norm_elementwise_affine"),
		tied: c.Bool(true, "tie_word_embeddings"),
		drop: c.Float(0.1, "dropout"), attnDrop: c.Float(0, "attention_dropout")}
	s.embed = c.Int(s.h, "word_embed_proj_dim")
	s.final = s.before && !c.Bool(false, "_remove_final_layer_norm")
	c.divides(s.h, s.heads, "hidden_size by num_attention_heads")
	c.longEnough(r.Seq, s.npos)
	if err := c.Err(); err != nil {
		return nil, err
	}
	root := tape.NewModule()
	body := root.Child("model").Child("decoder")
	table := embedding(body, "embed_tokens", s.vocab, s.embed)
	pos := embedding(body, "embed_positions", s.npos+2, s.h)
	var in, out lin
	if s.embed != s.h {
		out, in = linear(body, "project_out", s.h, s.embed, false),
			linear(body, "project_in", s.embed, s.h, false)
	}
	var final norm
	if s.final {
		final = s.norm(body, "final_layer_norm")
	}
	list := body.Child("layers")
	var blocks []*optBlock
	for i := range s.layers {
		blocks = append(blocks, s.block(list.Child(fmt.Sprint(i))))
	}
	head := causalHead(root, r, table, s.tied, s.vocab, s.embed)
	return causalModel(root, r, head, s.layers, true, func(x *ctx, ids *tape.Tensor) *tape.Tensor {
		return s.run(x, ids, table, pos, in, out, final, blocks)
	}), nil
}

func (s *optSpec) norm(m *tape.Module, name string) norm {
	if !s.affine {
		m.Child(name)
		return norm{}
	}
	return layerNorm(m, name, s.h)
}

func (s *optSpec) block(m *tape.Module) *optBlock {
	b := &optBlock{spec: s}
	a := m.Child("self_attn")
	b.k, b.v, b.q, b.o = linear(a, "k_proj", s.h, s.h, s.bias),
		linear(a, "v_proj", s.h, s.h, s.bias), linear(a, "q_proj", s.h, s.h, s.bias),
		linear(a, "out_proj", s.h, s.h, s.bias)
	b.norm1 = s.norm(m, "self_attn_layer_norm")
	b.fc1, b.fc2 = linear(m, "fc1", s.h, s.ffn, s.bias), linear(m, "fc2", s.ffn, s.h, s.bias)
	b.norm2 = s.norm(m, "final_layer_norm")
	return b
}

func (s *optSpec) run(c *ctx, ids *tape.Tensor, table, posTable *tape.Param, in, out lin,
	final norm, blocks []*optBlock) *tape.Tensor {
	f := c.Enter()
	b, n := ids.Shape[0], ids.Shape[1]
	var e, ones, pos, mask, pe, h *tape.Tensor
	c.In("embedding", func() {
		f.Set(&e, c.Embedding(ids, table))
		f.Set(&ones, c.Fresh("positions", tape.F32, b, n))
		f.Set(&pos, c.Fresh("positions", tape.F32, b, n))
		x := c.AddScalar(c.Mul(pos, ones))
		long := c.Fresh("positions", tape.I64, b, n)
		tape.Del(x)
		f.Set(&pos, long)
		f.Set(&mask, c.onesMask(b, n, e.DType))
		f.Set(&pe, c.Embedding(c.AddScalar(pos), posTable))
		if in.w != nil {
			f.Set(&e, in.run(c.Graph, e))
		}
		f.Set(&h, c.Add(e, pe))
	})
	for i, blk := range blocks {
		f.Set(&h, c.layer(fmt.Sprintf("layers.%d", i),
			func(a []*tape.Tensor) *tape.Tensor { return blk.run(c, a[0], a[1]) }, h, mask, pos))
	}
	if s.final {
		c.In("final_layer_norm", func() { f.Set(&h, final.layer(c.Graph, h)) })
	}
	if out.w != nil {
		f.Set(&h, out.run(c.Graph, h))
	}
	return f.Leave(h)
}

// onesMask is a causal mask from an attention mask of ones: tested, and not needed for SDPA.
func (c *ctx) onesMask(b, s int64, d tape.DType) *tape.Tensor {
	if c.Padded || c.Attn == "eager" {
		padded := c.Padded
		c.Padded = true
		m := c.buildMask(causal, b, s, s, d)
		c.Padded = padded
		return m
	}
	m := c.Fresh("mask test", tape.Bool, b, s)
	count := c.Fresh("mask test", tape.I64)
	tape.Del(c.Fresh("mask test", tape.I64, b, s))
	tape.Del(c.Fresh("mask test", tape.Bool), count, m)
	return nil
}

func (b *optBlock) run(c *ctx, x, mask *tape.Tensor) *tape.Tensor {
	f := c.Enter()
	s := b.spec
	var res, h, w *tape.Tensor
	f.Set(&res, x)
	f.Set(&h, x)
	if s.before {
		f.Set(&h, b.norm1.layer(c.Graph, h))
	}
	o, p := b.attend(c, h, mask)
	f.Set(&h, o)
	f.Set(&w, p)
	f.Set(&h, c.Dropout(h, s.drop))
	f.Set(&h, c.Add(res, h))
	if !s.before {
		f.Set(&h, b.norm1.layer(c.Graph, h))
	}
	shape := h.Shape
	f.Set(&h, c.Reshape(h, -1, s.h))
	f.Set(&res, h)
	if s.before {
		f.Set(&h, b.norm2.layer(c.Graph, h))
	}
	f.Set(&h, b.fc1.run(c.Graph, h))
	f.Set(&h, c.Activation(s.act, h))
	f.Set(&h, b.fc2.run(c.Graph, h))
	f.Set(&h, c.Dropout(h, s.drop))
	f.Set(&h, c.View(c.Add(res, h), shape...))
	if !s.before {
		f.Set(&h, b.norm2.layer(c.Graph, h))
	}
	return f.Leave(h)
}

func (b *optBlock) attend(c *ctx, x, mask *tape.Tensor) (out, weights *tape.Tensor) {
	f := c.Enter(x)
	d := b.spec.h / b.spec.heads
	var q, k, v, o, w *tape.Tensor
	f.Set(&q, c.Scale(b.q.run(c.Graph, x)))
	f.Set(&q, heads(c.Graph, q, d))
	f.Set(&k, b.k.run(c.Graph, x))
	f.Set(&v, b.v.run(c.Graph, x))
	f.Set(&k, heads(c.Graph, k, d))
	f.Set(&v, heads(c.Graph, v, d))
	ck, cv := c.cached(k, v)
	f.Set(&k, ck)
	f.Set(&v, cv)
	a, p := c.attend(attention{dropout: b.spec.attnDrop, groups: 1, upcast: true, causal: true}, q,
		k, v, mask)
	f.Set(&o, a)
	f.Set(&w, p)
	f.Set(&o, c.Reshape(o, o.Shape[0], o.Shape[1], b.spec.h))
	f.Set(&o, b.o.run(c.Graph, o))
	out, weights = o, w
	f.Leave(out, weights)
	return out, weights
}
