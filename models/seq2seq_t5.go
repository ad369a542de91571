package models

import (
	"fmt"

	"memroom/tape"
)

// t5Spec is T5's shape; Flan-T5 has gated feed-forward layers and a result that is not scaled.
type t5Spec struct {
	h, dkv, ff, heads, layers, decLayers, vocab, buckets int64
	act                                                  string
	gated, tied                                          bool
	own                                                  bool // a position bias in every block (UMT5)
	drop                                                 float64
}

type t5Attention struct {
	q, k, v, o lin
	bias       *tape.Param
	spec       *t5Spec
	decoder    bool
}

type t5Block struct {
	self, cross         t5Attention
	norm1, norm2, norm3 norm
	wi, wi1, wo         lin
	spec                *t5Spec
}

type t5Stack struct {
	blocks []*t5Block
	final  norm
	spec   *t5Spec
	dec    bool
	name   string
}

// t5 is T5ForConditionalGeneration and its multilingual relative, which never scales its result.
func t5(c *Config, r Run) (*Model, error) {
	s := &t5Spec{h: c.Int(512, "d_model"), dkv: c.Int(64, "d_kv"), ff: c.Int(2048, "d_ff"),
		heads: c.Int(8, "num_heads"), layers: c.Int(6, "num_layers"),
		vocab: c.Int(32128, "vocab_size"), buckets: c.Int(32, "relative_attention_num_buckets"),
		drop: c.Float(0.1, "dropout_rate")}
	s.decLayers = c.Int(s.layers, "num_decoder_layers")
	named := c.Bool(true, "tie_word_embeddings") // T5 1.1's files say no, and its result is not scaled
	s.tied = named || !r.before(500)             // since 5.0 transformers ties them all the same
	scaled := c.Bool(named, "scale_decoder_outputs")
	proj := "relu"
	if c.Type() == "mt5" {
		s.ff, s.heads, s.layers, s.vocab, scaled, proj = c.Int(1024, "d_ff"), c.Int(6, "num_heads"),
			c.Int(8, "num_layers"), c.Int(250112, "vocab_size"), false, "gated-gelu"
		s.decLayers = c.Int(s.layers, "num_decoder_layers")
	}
	if c.Type() == "umt5" {
		s.ff, s.heads, s.layers, s.vocab, scaled, proj = c.Int(1024, "d_ff"), c.Int(6, "num_heads"),
			c.Int(8, "num_layers"), c.Int(250112, "vocab_size"), s.tied, "gated-gelu"
		s.decLayers, s.own = c.Int(s.layers, "num_decoder_layers"), true
	}
	switch proj := c.Str(proj, "feed_forward_proj"); proj {
	case "relu":
		s.act = "relu"
	case "gated-gelu":
		s.act, s.gated = "gelu_new", true
	case "gated-silu":
		s.act, s.gated = "silu", true
	default:
		s.act = proj
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	root := tape.NewModule()
	shared := embedding(root, "shared", s.vocab, s.h)
	enc := s.stack(root.Child("encoder"), shared, s.layers, false)
	dec := s.stack(root.Child("decoder"), shared, s.decLayers, true)
	r.arch = "" // no classifier is described
	head := causalHead(root, r, shared, s.tied, s.vocab, s.h)
	loss := func(g *tape.Graph, in []*tape.Tensor) *tape.Tensor {
		x := newCtx(g, r)
		f := x.Enter()
		if x.Cache && !x.Checkpointing {
			x.kv = f
		}
		var h, ids, raw, y, logits *tape.Tensor
		f.Set(&h, enc.run(x, in[0], shared, nil))
		f.Set(&ids, x.shiftRight(r.target(in)))
		f.Set(&raw, dec.run(x, ids, shared, h))
		f.Set(&y, raw)
		if scaled {
			f.Set(&y, x.Scale(raw))
		}
		x.In("lm_head", func() {
			f.Set(&logits, x.logits(func() *tape.Tensor {
				return head.run(g,
					y)
			}))
		})
		var l *tape.Tensor
		x.In("loss", func() { l = x.plainLoss(logits, r.target(in)) })
		return f.Leave(l)
	}
	return &Model{Root: root, Inputs: targetInputs(r), Loss: loss, Layers: s.layers + s.decLayers,
		Run: r, Head: "ForConditionalGeneration"}, nil
}

// shiftRight makes decoder inputs of labels.
func (c *ctx) shiftRight(labels *tape.Tensor) *tape.Tensor {
	f := c.Enter()
	var out *tape.Tensor
	f.Set(&out, c.Fresh("shift right", tape.I64, labels.Shape...))
	// a clone of labels[:, :-1]
	tape.Del(c.Fresh("shift right", tape.I64, labels.Shape[0], labels.Shape[1]-1))
	tape.Del(c.Fresh("shift right", tape.Bool, labels.Shape...))
	return f.Leave(out)
}

func (s *t5Spec) stack(m *tape.Module, shared *tape.Param, layers int64, dec bool) *t5Stack {
	st := &t5Stack{spec: s, dec: dec, name: m.Path()}
	m.Child("embed_tokens").Tie(shared)
	list := m.Child("block")
	for i := range layers {
		l := list.Child(fmt.Sprint(i)).Child("layer")
		b := &t5Block{spec: s}
		at := 0
		next := func() *tape.Module { at++; return l.Child(fmt.Sprint(at - 1)) }
		sub := next()
		b.self = s.attention(sub.Child("SelfAttention"), i == 0 || s.own, dec)
		b.norm1 = rmsNorm(sub, "layer_norm", s.h)
		if dec {
			sub = next()
			b.cross = s.attention(sub.Child("EncDecAttention"), false, dec)
			b.norm2 = rmsNorm(sub, "layer_norm", s.h)
		}
		sub = next()
		d := sub.Child("DenseReluDense")
		if s.gated {
			b.wi, b.wi1 = linear(d, "wi_0", s.h, s.ff, false), linear(d, "wi_1", s.h, s.ff, false)
		} else {
			b.wi = linear(d, "wi", s.h, s.ff, false)
		}
		b.wo = linear(d, "wo", s.ff, s.h, false)
		b.norm3 = rmsNorm(sub, "layer_norm", s.h)
		st.blocks = append(st.blocks, b)
	}
	st.final = rmsNorm(m, "final_layer_norm", s.h)
	return st
}

func (s *t5Spec) attention(m *tape.Module, bias, dec bool) t5Attention {
	n := s.heads * s.dkv
	a := t5Attention{q: linear(m, "q", s.h, n, false), k: linear(m, "k", s.h, n, false),
		v: linear(m, "v", s.h, n, false), o: linear(m, "o", n, s.h, false), spec: s, decoder: dec}
	if bias {
		a.bias = embedding(m, "relative_attention_bias", s.buckets, s.heads)
	}
	return a
}

func (st *t5Stack) run(c *ctx, ids *tape.Tensor, shared *tape.Param,
	enc *tape.Tensor) *tape.Tensor {
	f := c.Enter()
	var e, mask, h, bias, crossBias *tape.Tensor
	b, s := ids.Shape[0], ids.Shape[1]
	c.In(st.name+".embed_tokens", func() { f.Set(&e, c.Embedding(ids, shared)) })
	if c.Padded && !st.dec {
		f.Set(&mask, c.fullMask(b, s, e.DType))
	}
	f.Set(&h, c.Dropout(e, st.spec.drop))
	for i, blk := range st.blocks {
		var ob, oc *tape.Tensor
		out := c.layer(fmt.Sprintf("%s.block.%d", st.name, i), func(a []*tape.Tensor) *tape.Tensor {
			var y *tape.Tensor
			y, ob, oc = blk.run(c, a[0], a[1], a[2], a[3], a[4], st.dec)
			return y
		}, h, mask, bias, enc, crossBias)
		f.Set(&h, out)
		f.Set(&bias, ob)
		if st.dec {
			f.Set(&crossBias, oc)
		}
	}
	c.In(st.name+".final_layer_norm", func() { f.Set(&h, c.t5Norm(st.final, h)) })
	f.Set(&h, c.Dropout(h, st.spec.drop))
	return f.Leave(h)
}

// t5Norm is T5LayerNorm: the variance of an fp32 copy, the product in the input's own type.
func (c *ctx) t5Norm(n norm, x *tape.Tensor) *tape.Tensor {
	f := c.Enter(x)
	var variance, h *tape.Tensor
	f.Set(&variance, c.Mean(c.Pow(c.To(x, tape.F32)), true, -1))
	f.Set(&h, c.Mul(x, c.Rsqrt(c.AddScalar(variance))))
	if n.w.DType.Half() {
		f.Set(&h, c.To(h, n.w.DType))
	}
	return f.Leave(c.Mul(n.w.Tensor, h))
}

func (b *t5Block) run(c *ctx, x, mask, bias, enc, crossBias *tape.Tensor, dec bool) (out, ob,
	oc *tape.Tensor) {
	f := c.Enter()
	var h, sb, cb *tape.Tensor
	f.Pair(&h, &sb)(c.t5Attend(b.self, b.norm1, x, nil, mask, bias, b.spec.drop))
	if dec {
		f.Pair(&h, &cb)(c.t5Attend(b.cross, b.norm2, h, enc, nil, crossBias, b.spec.drop))
	}
	f.Set(&h, b.feed(c, h))
	out, ob, oc = h, sb, cb
	f.Leave(out, ob, oc)
	return out, ob, oc
}

func (b *t5Block) feed(c *ctx, x *tape.Tensor) *tape.Tensor {
	f := c.Enter(x)
	var y *tape.Tensor
	f.Set(&y, c.t5Norm(b.norm3, x))
	f.Set(&y, b.dense(c, y))
	return f.Leave(c.Add(x, c.Dropout(y, b.spec.drop)))
}

func (b *t5Block) dense(c *ctx, x *tape.Tensor) *tape.Tensor {
	f := c.Enter(x)
	var h, up *tape.Tensor
	if b.spec.gated {
		var gelu *tape.Tensor
		f.Set(&gelu, c.Activation(b.spec.act, b.wi.run(c.Graph, x)))
		f.Set(&up, b.wi1.run(c.Graph, x))
		f.Set(&h, c.Mul(gelu, up))
	} else {
		f.Set(&h, b.wi.run(c.Graph, x))
		f.Set(&h, c.Activation(b.spec.act, h))
	}
	f.Set(&h, c.Dropout(h, b.spec.drop))
	f.Set(&h, c.To(h, b.wo.w.DType))
	f.Set(&h, b.wo.run(c.Graph, h))
	return f.Leave(h)
}

// t5Attend is T5LayerSelfAttention or T5LayerCrossAttention; it returns the sum with the residual
// and the position bias.
func (c *ctx) t5Attend(a t5Attention, n norm, x, kv, mask, bias *tape.Tensor, drop float64) (out,
	ob *tape.Tensor) {
	f := c.Enter(x, kv)
	var y, att, nb *tape.Tensor
	f.Set(&y, c.t5Norm(n, x))
	f.Pair(&att, &nb)(a.run(c, y, kv, mask, bias))
	f.Set(&att, c.Add(x, c.Dropout(att, drop)))
	return f.Both(att, nb)
}

func (a t5Attention) run(c *ctx, x, kv, mask, bias *tape.Tensor) (out, ob *tape.Tensor) {
	f := c.Enter(x, kv, bias)
	src := x
	if kv != nil {
		src = kv
	}
	var q, k, v, pb, o, w *tape.Tensor
	f.Set(&q, heads(c.Graph, a.q.run(c.Graph, x), a.spec.dkv))
	f.Set(&k, heads(c.Graph, a.k.run(c.Graph, src), a.spec.dkv))
	f.Set(&v, heads(c.Graph, a.v.run(c.Graph, src), a.spec.dkv))
	if a.decoder {
		f.Pair(&k, &v)(c.cached(k, v))
	}
	f.Set(&pb, bias)
	if bias == nil || a.spec.own {
		f.Set(&pb, a.positionBias(c, x.Shape[1], k.Shape[2], q.DType))
	}
	f.Pair(&o, &w)(c.biasedAttend(a, q, k, v, mask, pb, kv == nil && a.decoder && !a.spec.own))
	f.Set(&o, c.Reshape(o, o.Shape[0], o.Shape[1], -1))
	f.Set(&o, a.o.run(c.Graph, o))
	if a.spec.own { // each block makes its own
		return f.Leave(o), nil
	}
	return f.Both(o, pb)
}

// positionBias is [1, heads, S, KV]: learned in the first block of self-attention, zeros in
// cross-attention.
func (a t5Attention) positionBias(c *ctx, s, kv int64, d tape.DType) *tape.Tensor {
	if a.bias == nil {
		return c.Fresh("position bias", d, 1, a.spec.heads, s, kv)
	}
	f := c.Enter()
	var ctxPos, memPos, rel, bucket, values *tape.Tensor
	f.Set(&ctxPos, c.AddScalar(c.Fresh("position bias", tape.I64, s, 1)))
	f.Set(&memPos, c.Fresh("position bias", tape.I64, 1, kv))
	f.Set(&rel, c.Sub(memPos, ctxPos))
	f.Set(&bucket, c.t5Buckets(rel, !a.decoder))
	f.Set(&values, c.Embedding(bucket, a.bias))
	f.Set(&values, c.Unsqueeze(c.Permute(values, 2, 0, 1), 0))
	return f.Leave(values)
}

// t5Buckets is _relative_position_bucket on int64 positions.
func (c *ctx) t5Buckets(rel *tape.Tensor, bidirectional bool) *tape.Tensor {
	f := c.Enter()
	var r, buckets, small, large *tape.Tensor
	shape := rel.Shape
	fresh := func(d tape.DType) *tape.Tensor { return c.Fresh("position bias", d, shape...) }
	if bidirectional {
		gt := fresh(tape.Bool)
		long := fresh(tape.I64)
		tape.Del(gt)
		f.Set(&buckets, fresh(tape.I64)) // times num_buckets
		tape.Del(long)
		sum := fresh(tape.I64) // 0 + ...
		f.Set(&buckets, sum)
		f.Set(&r, fresh(tape.I64))
	} else {
		zeros := fresh(tape.I64)
		low := fresh(tape.I64)
		tape.Del(zeros)
		f.Set(&r, fresh(tape.I64))
		tape.Del(low)
	}
	f.Set(&small, fresh(tape.Bool))
	fl := fresh(tape.F32)
	x := c.Scale(fl)
	for range 3 {
		x = c.Scale(x)
	}
	long := fresh(tape.I64)
	tape.Del(x)
	f.Set(&large, fresh(tape.I64))
	tape.Del(long)
	full := fresh(tape.I64)
	f.Set(&large, fresh(tape.I64))
	tape.Del(full)
	where := fresh(tape.I64)
	if bidirectional { // += in place
		tape.Del(where)
		return f.Leave(buckets)
	}
	f.Set(&buckets, fresh(tape.I64))
	tape.Del(where)
	return f.Leave(buckets)
}

// biasedAttend is the attention interface with a position bias.
func (c *ctx) biasedAttend(a t5Attention, q, k, v, mask, bias *tape.Tensor, causal bool) (out,
	weights *tape.Tensor) {
	f := c.Enter()
	var m, o, w *tape.Tensor
	if c.Attn == "eager" {
		f.Set(&w, c.Scale(c.Matmul(q, c.Transpose(k, 2, 3))))
		f.Set(&w, c.Add(w, bias))
		if mask != nil {
			f.Set(&w, c.Add(w, mask))
		}
		f.Set(&w, c.Softmax(w, w.DType))
		f.Set(&w, c.Dropout(w, a.spec.drop))
		f.Set(&o, c.Contiguous(c.Transpose(c.Matmul(w, v), 1, 2)))
		return f.Both(o, w)
	}
	switch {
	case mask != nil:
		f.Set(&m, c.Where(mask, bias))
	case causal:
		var tri *tape.Tensor
		s, kv := q.Shape[2], k.Shape[2]
		rows, cols := c.Fresh("mask", tape.I64, s), c.Fresh("mask", tape.I64, kv)
		f.Set(&tri, c.Fresh("mask", tape.Bool, 1, 1, s, kv))
		tape.Del(cols, rows)
		f.Set(&m, c.Where(tri, bias))
	default:
		f.Set(&m, bias)
	}
	f.Set(&o, c.SDPA(q, k, v, m, a.spec.drop, false))
	f.Set(&o, c.Contiguous(c.Transpose(o, 1, 2)))
	return f.Leave(o), nil
}
