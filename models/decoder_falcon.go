package models

import (
	"fmt"

	"memroom/tape"
)

type falconSpec struct {
	h, inner, heads, kv, layers, vocab  int64
	act                                 string
	grouped, multiQuery, parallel, bias bool
	norms                               int64 // in a parallel block
	alibi, tied                         bool
	drop, attnDrop                      float64
}

type falconBlock struct {
	spec         *falconSpec
	qkv, dense   lin
	fc1, fc2     lin
	norm1, norm2 norm
}

// falcon is FalconForCausalLM: the layout of 7B (one key head), of 40B and 180B (grouped heads),
// and of RW (ALiBi).
func falcon(c *Config, r Run) (*Model, error) {
	s := &falconSpec{h: c.Int(4544, "hidden_size"), heads: c.Int(71, "num_attention_heads",
		"n_head"), layers: c.Int(32, "num_hidden_layers", "n_layer"),
		vocab: c.Int(65024, "vocab_size"), act: c.Str("gelu", "activation"),
		grouped:    c.Bool(false, "new_decoder_architecture"),
		multiQuery: c.Bool(true, "multi_query"),
		parallel:   c.Bool(true, "parallel_attn"), bias: c.Bool(false, "bias"),
		alibi: c.Bool(false, "alibi"), tied: c.Bool(true, "tie_word_embeddings"),
		drop: c.Float(0, "hidden_dropout"), attnDrop: c.Float(0, "attention_dropout")}
	s.inner = c.Int(4*s.h, "ffn_hidden_size")
	s.kv = c.Int(s.heads, "num_kv_heads", "n_head_kv")
	c.divides(s.h, s.heads, "hidden_size by num_attention_heads")
	s.norms = 1
	if s.grouped {
		c.divides(s.heads, s.kv, "num_attention_heads by num_kv_heads")
		s.norms = c.Int(2, "num_ln_in_parallel_attn")
	} else {
		s.norms = c.Int(1, "num_ln_in_parallel_attn")
		s.kv = s.heads
		if s.multiQuery {
			s.kv = 1
		}
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	root := tape.NewModule()
	body := root.Child("transformer")
	table := embedding(body, "word_embeddings", s.vocab, s.h)
	list := body.Child("h")
	var blocks []*falconBlock
	for i := range s.layers {
		blocks = append(blocks, s.block(list.Child(fmt.Sprint(i))))
	}
	final := layerNorm(body, "ln_f", s.h)
	rot := body.Child("rotary_emb")
	rot.Buffer(tape.F32, s.h/s.heads/2)
	rot.Buffer(tape.F32, s.h/s.heads/2)
	head := causalHead(root, r, table, s.tied, s.vocab, s.h)
	return causalModel(root, r, head, s.layers, true, func(x *ctx, ids *tape.Tensor) *tape.Tensor {
		return s.run(x, ids, table, blocks, final)
	}), nil
}

func (s *falconSpec) block(m *tape.Module) *falconBlock {
	d := s.h / s.heads
	width := 3 * s.h
	switch {
	case s.grouped:
		width = (2*s.kv + s.heads) * d
	case s.multiQuery:
		width = s.h + 2*d
	}
	b := &falconBlock{spec: s}
	a := m.Child("self_attention")
	b.qkv, b.dense = linear(a, "query_key_value", s.h, width, s.bias),
		linear(a, "dense", s.h, s.h, s.bias)
	mlp := m.Child("mlp")
	b.fc1, b.fc2 = linear(mlp, "dense_h_to_4h", s.h, s.inner, s.bias),
		linear(mlp, "dense_4h_to_h", s.inner, s.h, s.bias)
	switch {
	case !s.parallel:
		b.norm2 = layerNorm(m, "post_attention_layernorm", s.h)
		b.norm1 = layerNorm(m, "input_layernorm", s.h)
	case s.norms == 2:
		b.norm1, b.norm2 = layerNorm(m, "ln_attn", s.h), layerNorm(m, "ln_mlp", s.h)
	default:
		b.norm1 = layerNorm(m, "input_layernorm", s.h)
	}
	return b
}

// product is FalconLinear: a product with the transposed weight and, on its own, the bias.
func (l lin) product(c *ctx, x *tape.Tensor) *tape.Tensor {
	if l.w.Bits > 0 || l.w.Lora != nil { // replaced by the library's own layer
		return l.run(c.Graph, x)
	}
	y := c.Product(x, c.Transpose(l.w.Tensor, 0, 1))
	if l.b == nil {
		return y
	}
	f := c.Enter(x)
	return f.Leave(c.Add(y, l.b.Tensor))
}

func (s *falconSpec) run(c *ctx, ids *tape.Tensor, table *tape.Param, blocks []*falconBlock,
	final norm) *tape.Tensor {
	f := c.Enter()
	b, n := ids.Shape[0], ids.Shape[1]
	var e, ones, alibi, pos, mask, h, cos, sin, weights *tape.Tensor
	c.In("embedding", func() {
		f.Set(&e, c.Embedding(ids, table))
		if s.alibi {
			f.Set(&ones, c.Fresh("alibi", tape.I64, b, n))
			f.Set(&alibi, c.falconAlibi(ones, s.heads, e.DType))
		}
		f.Set(&pos, c.positions(n))
		f.Set(&mask, c.buildMask(causal, b, n, n, e.DType))
		if s.alibi {
			s.biasMask(c, f, &mask, &alibi)
		}
		f.Set(&h, e)
		co, si := c.rotaryTable(rotary{dim: s.h / s.heads}, pos, h.DType)
		f.Set(&cos, co)
		f.Set(&sin, si)
	})
	for i, blk := range blocks {
		var w *tape.Tensor
		out := c.layer(fmt.Sprintf("h.%d", i), func(a []*tape.Tensor) *tape.Tensor {
			var y *tape.Tensor
			y, w = blk.run(c, a[0], a[1], a[2], a[3], a[4])
			return y
		}, h, alibi, mask, cos, sin, pos)
		f.Set(&weights, w)
		f.Set(&h, out)
	}
	c.In("ln_f", func() { f.Set(&h, final.layer(c.Graph, h)) })
	return f.Leave(h)
}

// falconAlibi is build_alibi_tensor: as Bloom's, with integers for positions and slopes in bf16.
func (c *ctx) falconAlibi(ones *tape.Tensor, nh int64, d tape.DType) *tape.Tensor {
	f := c.Enter()
	b, s := ones.Shape[0], ones.Shape[1]
	var slopes, pos, a *tape.Tensor
	c.alibiSlopes(f, &slopes, nh)
	f.Set(&pos, c.Unsqueeze(c.Mul(c.AddScalar(c.Fresh("alibi", tape.I64, b, s)), ones), 1))
	f.Set(&a, c.Mul(c.To(c.Unsqueeze(slopes, -1), tape.BF16), pos))
	return f.Leave(c.To(c.View(a, b*nh, 1, s), d))
}

// biasMask joins the causal mask and the position bias into one mask a head.
func (s *falconSpec) biasMask(c *ctx, f *tape.Frame, mask, alibi **tape.Tensor) {
	m := *mask
	b, n, d := m.Shape[0], m.Dim(-1), (*alibi).DType
	if m.DType == tape.Bool {
		zero, low := c.Fresh("mask", d), c.Fresh("mask", d)
		wide := c.Fresh("mask", d, b, 1, n, n)
		tape.Del(low, zero)
		f.Set(mask, wide)
	}
	f.Set(alibi, c.View(*alibi, b, s.heads, 1, n))
	scaled := c.Scale(*alibi)
	below := c.Fresh("mask", tape.Bool, b, 1, n, n)
	filled := c.Fresh("mask", d, b, s.heads, n, n)
	tape.Del(scaled, below)
	f.Set(mask, filled)
}

func (b *falconBlock) run(c *ctx, x, alibi, mask, cos, sin *tape.Tensor) (out,
	weights *tape.Tensor) {
	f := c.Enter()
	s := b.spec
	var res, ln, ln2, att, w, ff, y *tape.Tensor
	f.Set(&res, x)
	f.Set(&ln, b.norm1.layer(c.Graph, x))
	if s.grouped && s.norms == 2 {
		f.Set(&ln2, b.norm2.layer(c.Graph, x))
	}
	o, p := b.attend(c, ln, alibi, mask, cos, sin)
	f.Set(&att, o)
	f.Set(&w, p)
	switch {
	case s.grouped && s.norms == 2:
	case s.parallel || s.grouped:
		f.Set(&ln2, ln)
	default:
		f.Set(&res, c.Add(res, c.Dropout(att, s.attnDrop)))
		f.Set(&ln2, b.norm2.layer(c.Graph, res))
	}
	f.Set(&ff, b.mlp(c, ln2))
	if s.grouped || s.parallel {
		c.AddInPlace(ff, att)
	}
	f.Set(&y, c.Add(res, c.Dropout(ff, s.drop)))
	out, weights = y, w
	f.Leave(out, weights)
	return out, weights
}

func (b *falconBlock) mlp(c *ctx, x *tape.Tensor) *tape.Tensor {
	f := c.Enter(x)
	var h *tape.Tensor
	f.Set(&h, c.Activation(b.spec.act, b.fc1.product(c, x)))
	f.Set(&h, b.fc2.product(c, h))
	return f.Leave(h)
}

// split is _split_heads: q, k and v as [B, S, heads, d].
func (b *falconBlock) split(c *ctx, fused *tape.Tensor) (q, k, v *tape.Tensor) {
	f := c.Enter()
	s := b.spec
	bs, n, d := fused.Shape[0], fused.Shape[1], s.h/s.heads
	var all *tape.Tensor
	switch {
	case s.grouped:
		group := s.heads / s.kv
		f.Set(&all, c.View(fused, bs, n, s.kv, group+2, d))
		var qs, ks, vs *tape.Tensor
		f.Set(&qs, c.Slice(all, 3, group))
		f.Set(&ks, c.IndexOne(all, 3))
		f.Set(&vs, c.IndexOne(all, 3))
		f.Set(&ks, c.Expand(ks, qs.Shape...))
		f.Set(&vs, c.Expand(vs, qs.Shape...))
		flat := func(t *tape.Tensor) *tape.Tensor { return c.Reshape(t, bs, n, s.heads, d) }
		q, k, v = flat(qs), flat(ks), flat(vs)
	case s.multiQuery:
		f.Set(&all, c.View(fused, bs, n, s.heads+2, d))
		q, k, v = c.Slice(all, 2, s.heads), c.IndexOne(all, 2), c.IndexOne(all, 2)
	default:
		f.Set(&all, c.View(fused, bs, n, s.heads, 3, d))
		q, k, v = c.Select(all, 3), c.Select(all, 3), c.Select(all, 3)
	}
	f.Leave(q, k, v)
	return q, k, v
}

func (b *falconBlock) attend(c *ctx, x, alibi, mask, cos, sin *tape.Tensor) (out,
	weights *tape.Tensor) {
	f := c.Enter(x)
	s := b.spec
	var fused, q, k, v, o, w *tape.Tensor
	f.Set(&fused, b.qkv.product(c, x))
	qs, ks, vs := b.split(c, fused)
	f.Set(&q, qs)
	f.Set(&k, ks)
	f.Set(&v, vs)
	f.Set(&q, c.Transpose(q, 1, 2))
	f.Set(&k, c.Transpose(k, 1, 2))
	f.Set(&v, c.Transpose(v, 1, 2))
	if alibi == nil {
		rq, rk := c.rotateBoth(q, k, cos, sin)
		f.Set(&q, rq)
		f.Set(&k, rk)
	}
	ck, cv := c.cached(k, v)
	f.Set(&k, ck)
	f.Set(&v, cv)
	if c.Attn != "eager" {
		drop := 0.0
		if alibi != nil {
			drop = s.attnDrop
		}
		if q.Shape[1] == k.Shape[1] {
			f.Set(&o, c.SDPA(q, k, v, mask, drop, false))
		} else {
			f.Set(&o, c.SDPABroadcast(q, k, v, mask, drop))
		}
	} else {
		f.Set(&w, b.scores(c, q, k, alibi, mask, x.DType))
		f.Set(&o, c.Matmul(w, v))
	}
	f.Set(&o, c.Transpose(o, 1, 2))
	f.Set(&o, c.Reshape(o, x.Shape[0], x.Shape[1], s.h))
	f.Set(&o, b.dense.product(c, o))
	out, weights = o, w
	f.Leave(out, weights)
	return out, weights
}

// scores is eager attention; the position bias is added before the scaling.
func (b *falconBlock) scores(c *ctx, q, k, alibi, mask *tape.Tensor, d tape.DType) *tape.Tensor {
	f := c.Enter()
	var w, biased *tape.Tensor
	f.Set(&w, c.Matmul(q, c.Transpose(k, -1, -2)))
	if alibi == nil {
		c.ScaleInPlace(w)
		return f.Leave(c.Softmax(c.Add(w, mask), d))
	}
	if w.DType.Half() {
		f.Set(&w, c.To(w, tape.F32))
	}
	f.Set(&biased, c.Add(w, alibi))
	c.ScaleInPlace(biased)
	return f.Leave(c.Dropout(c.Softmax(c.Add(biased, mask), d), b.spec.attnDrop))
}
