package models

import (
	"fmt"

	"memroom/tape"
)

// parallel is a decoder whose attention and MLP may read the same residual: GPT-NeoX (Pythia) and
// Phi.
type parallel struct {
	h, inner, heads, kv, d, rot, layers, vocab int64
	act                                        string
	bias                                       bool // of the attention projections
	parallel, tied                             bool
	drop, embDrop, attnDrop                    float64
	phi                                        bool
	qkNorm                                     bool
}

type parallelBlock struct {
	spec         *parallel
	norm1, norm2 norm
	qkv, q, k, v lin
	dense        lin
	fc1, fc2     lin
	qn, kn       norm
}

// ropeFactor is the part of each head that is rotated.
func ropeFactor(c *Config, def float64, names ...string) float64 {
	if r := c.Sub("rope_parameters"); r.Has("partial_rotary_factor") {
		return r.Float(def, "partial_rotary_factor")
	}
	return c.Float(def, append(names, "partial_rotary_factor")...)
}

func neox(c *Config, r Run) (*Model, error) {
	s := &parallel{h: c.Int(6144, "hidden_size"), inner: c.Int(24576, "intermediate_size"),
		heads: c.Int(64, "num_attention_heads"), layers: c.Int(44, "num_hidden_layers"),
		vocab: c.Int(50432, "vocab_size"), act: c.Str("gelu", "hidden_act"),
		bias: c.Bool(true, "attention_bias"), parallel: c.Bool(true, "use_parallel_residual"),
		tied: c.Bool(false, "tie_word_embeddings"), drop: c.Float(0, "hidden_dropout"),
		attnDrop: c.Float(0, "attention_dropout")}
	s.embDrop = s.drop
	c.divides(s.h, s.heads, "hidden_size by num_attention_heads")
	factor := ropeFactor(c, 0.25, "rotary_pct")
	if err := c.Err(); err != nil {
		return nil, err
	}
	s.kv, s.d = s.heads, s.h/s.heads
	s.rot = int64(float64(s.d) * factor)
	return s.model(r), nil
}

func phi(c *Config, r Run) (*Model, error) {
	s := &parallel{h: c.Int(2048, "hidden_size"), inner: c.Int(8192, "intermediate_size"),
		heads: c.Int(32, "num_attention_heads"), layers: c.Int(24, "num_hidden_layers"),
		vocab: c.Int(51200, "vocab_size"), act: c.Str("gelu_new", "hidden_act"), bias: true,
		parallel: true, phi: true, tied: c.Bool(false, "tie_word_embeddings"),
		drop: c.Float(0, "resid_pdrop"), embDrop: c.Float(0, "embd_pdrop"),
		attnDrop: c.Float(0, "attention_dropout"), qkNorm: c.Bool(false, "qk_layernorm")}
	s.kv = c.Int(s.heads, "num_key_value_heads")
	c.divides(s.h, s.heads, "hidden_size by num_attention_heads")
	factor := ropeFactor(c, 0.5)
	if err := c.Err(); err != nil {
		return nil, err
	}
	s.d = s.h / s.heads
	s.rot = int64(float64(s.d) * factor)
	return s.model(r), nil
}

func (s *parallel) model(r Run) *Model {
	root := tape.NewModule()
	bodyName, embName, finalName := "gpt_neox", "embed_in", "final_layer_norm"
	if s.phi {
		bodyName, embName, finalName = "model", "embed_tokens", "final_layernorm"
	}
	body := root.Child(bodyName)
	table := embedding(body, embName, s.vocab, s.h)
	list := body.Child("layers")
	var blocks []*parallelBlock
	for i := range s.layers {
		blocks = append(blocks, s.block(list.Child(fmt.Sprint(i))))
	}
	var final norm
	rot := func() {
		m := body.Child("rotary_emb")
		m.Buffer(tape.F32, s.rot/2)
		m.Buffer(tape.F32, s.rot/2)
	}
	if s.phi {
		rot()
		final = layerNorm(body, finalName, s.h)
	} else {
		final = layerNorm(body, finalName, s.h)
		rot()
	}
	var head lin
	if s.phi && !isClassifier(r.arch) {
		m := root.Child("lm_head")
		head.w = table
		if s.tied {
			m.Tie(table)
		} else {
			head.w = m.Param("weight", s.vocab, s.h)
		}
		head.b = m.Param("bias", s.vocab)
	} else {
		head = causalHead(root, r, table, s.tied, s.vocab, s.h)
	}
	return causalModel(root, r, head, s.layers, true, func(x *ctx, ids *tape.Tensor) *tape.Tensor {
		return s.run(x, ids, table, blocks, final)
	})
}

func (s *parallel) block(m *tape.Module) *parallelBlock {
	b := &parallelBlock{spec: s}
	if s.phi {
		a := m.Child("self_attn")
		b.q, b.k, b.v = linear(a, "q_proj", s.h, s.heads*s.d, true),
			linear(a, "k_proj", s.h, s.kv*s.d, true), linear(a, "v_proj", s.h, s.kv*s.d, true)
		b.dense = linear(a, "dense", s.heads*s.d, s.h, true)
		if s.qkNorm {
			b.qn, b.kn = layerNorm(a, "q_layernorm", s.d), layerNorm(a, "k_layernorm", s.d)
		}
		mlp := m.Child("mlp")
		b.fc1, b.fc2 = linear(mlp, "fc1", s.h, s.inner, true),
			linear(mlp, "fc2", s.inner, s.h, true)
		b.norm1 = layerNorm(m, "input_layernorm", s.h)
		return b
	}
	b.norm1, b.norm2 = layerNorm(m, "input_layernorm", s.h),
		layerNorm(m, "post_attention_layernorm", s.h)
	a := m.Child("attention")
	b.qkv, b.dense = linear(a, "query_key_value", s.h, 3*s.h, s.bias),
		linear(a, "dense", s.h, s.h, s.bias)
	mlp := m.Child("mlp")
	b.fc1, b.fc2 = linear(mlp, "dense_h_to_4h", s.h, s.inner, true),
		linear(mlp, "dense_4h_to_h", s.inner, s.h, true)
	return b
}

func (s *parallel) run(c *ctx, ids *tape.Tensor, table *tape.Param, blocks []*parallelBlock,
	final norm) *tape.Tensor {
	f := c.Enter()
	var e, pos, mask, h, cos, sin *tape.Tensor
	c.In("embedding", func() {
		f.Set(&e, c.Embedding(ids, table))
		f.Set(&pos, c.positions(ids.Shape[1]))
		f.Set(&mask, c.causalMask(ids.Shape[0], ids.Shape[1], e.DType))
		f.Set(&h, c.Dropout(e, s.embDrop))
		if s.phi {
			f.Set(&e, h)
		}
		co, si := c.rotaryTable(rotary{dim: s.rot}, pos, h.DType)
		f.Set(&cos, co)
		f.Set(&sin, si)
	})
	for i, b := range blocks {
		f.Set(&h, c.layer(fmt.Sprintf("layers.%d", i),
			func(a []*tape.Tensor) *tape.Tensor { return b.run(c, a[0], a[1], a[2], a[3]) }, h, cos,
			sin, mask, pos))
	}
	c.In("norm", func() { f.Set(&h, final.layer(c.Graph, h)) })
	return f.Leave(h)
}

func (b *parallelBlock) run(c *ctx, x, cos, sin, mask *tape.Tensor) *tape.Tensor {
	if b.spec.phi {
		return b.runPhi(c, x, cos, sin, mask)
	}
	f := c.Enter()
	var att, w, mlp, h *tape.Tensor
	o, p := b.attend(c, b.norm1.layer(c.Graph, x), cos, sin, mask)
	f.Set(&att, o)
	f.Set(&w, p)
	f.Set(&att, c.Dropout(att, b.spec.drop))
	if !b.spec.parallel {
		f.Set(&att, c.Add(att, x))
		f.Set(&mlp, b.mlp(c, b.norm2.layer(c.Graph, att)))
		f.Set(&mlp, c.Dropout(mlp, b.spec.drop))
		return f.Leave(c.Add(mlp, att))
	}
	f.Set(&mlp, b.mlp(c, b.norm2.layer(c.Graph, x)))
	f.Set(&mlp, c.Dropout(mlp, b.spec.drop))
	f.Set(&h, c.Add(c.Add(mlp, att), x))
	return f.Leave(h)
}

func (b *parallelBlock) runPhi(c *ctx, x, cos, sin, mask *tape.Tensor) *tape.Tensor {
	f := c.Enter()
	var h, att, w, ff *tape.Tensor
	f.Set(&h, b.norm1.layer(c.Graph, x))
	o, p := b.attend(c, h, cos, sin, mask)
	f.Set(&att, o)
	f.Set(&w, p)
	f.Set(&att, c.Dropout(att, b.spec.drop))
	f.Set(&ff, c.Dropout(b.mlp(c, h), b.spec.drop))
	f.Set(&h, c.Add(c.Add(att, ff), x))
	return f.Leave(h)
}

func (b *parallelBlock) mlp(c *ctx, x *tape.Tensor) *tape.Tensor {
	return c.mlp(b.fc1, b.fc2, b.spec.act, 0, x)
}

func (b *parallelBlock) attend(c *ctx, x, cos, sin, mask *tape.Tensor) (out, weights *tape.Tensor) {
	f := c.Enter(x)
	s := b.spec
	var qkv, q, k, v, o, w *tape.Tensor
	if s.phi {
		f.Set(&q, heads(c.Graph, b.q.run(c.Graph, x), s.d))
		f.Set(&k, heads(c.Graph, b.k.run(c.Graph, x), s.d))
		f.Set(&v, heads(c.Graph, b.v.run(c.Graph, x), s.d))
		if s.qkNorm {
			f.Set(&q, b.qn.layer(c.Graph, q))
			f.Set(&k, b.kn.layer(c.Graph, k))
		}
	} else {
		f.Set(&qkv, heads(c.Graph, b.qkv.run(c.Graph, x), 3*s.d))
		parts := c.Split(qkv, -1, s.d, s.d, s.d)
		f.Set(&q, parts[0])
		f.Set(&k, parts[1])
		f.Set(&v, parts[2])
	}
	if s.phi {
		c.rotatePhi(f, &q, &k, cos, sin, s.rot)
	} else {
		rq, rk := c.rotatePart(q, k, cos, sin, s.rot, true)
		f.Set(&q, rq)
		f.Set(&k, rk)
	}
	ck, cv := c.cached(k, v)
	f.Set(&k, ck)
	f.Set(&v, cv)
	a, p := c.attend(attention{dropout: s.attnDrop, groups: s.heads / s.kv, upcast: true,
		causal: true}, q, k, v, mask)
	f.Set(&o, a)
	f.Set(&w, p)
	f.Set(&o, c.Reshape(o, o.Shape[0], o.Shape[1], s.heads*s.d))
	f.Set(&o, b.dense.run(c.Graph, o))
	out, weights = o, w
	f.Leave(out, weights)
	return out, weights
}

// rotatePhi rotates part of each head with variables that live until attention is over.
func (c *ctx) rotatePhi(f *tape.Frame, q, k **tape.Tensor, cos, sin *tape.Tensor, rot int64) {
	d := (*q).Dim(-1)
	qr, qp := c.Slice(*q, -1, rot), c.Slice(*q, -1, d-rot)
	qRot := hold(f, qr)
	f.Keep(qp)
	kr, kp := c.Slice(*k, -1, rot), c.Slice(*k, -1, d-rot)
	kRot := hold(f, kr)
	f.Keep(kp)
	a, b := c.rotateBoth(*qRot, *kRot, cos, sin)
	f.Set(qRot, a)
	f.Set(kRot, b)
	f.Set(q, c.Cat(-1, *qRot, qp))
	f.Set(k, c.Cat(-1, *kRot, kp))
}

// hold makes a variable of a frame for a tensor.
func hold(f *tape.Frame, t *tape.Tensor) **tape.Tensor {
	v := new(*tape.Tensor)
	f.Set(v, t)
	return v
}

// rotatePart is apply_rotary_pos_emb on the first rot elements of each head; named reports whether
// the rotated part is a variable of its own (GPT-NeoX) or part of one expression (Phi-3).
func (c *ctx) rotatePart(q, k, cos, sin *tape.Tensor, rot int64, named bool) (rq, rk *tape.Tensor) {
	f := c.Enter()
	var cu, su, qRot, qPass, kRot, kPass, qe, ke *tape.Tensor
	d := q.Dim(-1)
	f.Set(&cu, c.Unsqueeze(cos, 1))
	f.Set(&su, c.Unsqueeze(sin, 1))
	f.Set(&qRot, c.Slice(q, -1, rot))
	f.Set(&qPass, c.Slice(q, -1, d-rot))
	f.Set(&kRot, c.Slice(k, -1, rot))
	f.Set(&kPass, c.Slice(k, -1, d-rot))
	if named {
		f.Set(&qe, c.rotate(qRot, cu, su))
		f.Set(&ke, c.rotate(kRot, cu, su))
		f.Set(&qe, c.Cat(-1, qe, qPass))
		f.Set(&ke, c.Cat(-1, ke, kPass))
	} else {
		f.Set(&qe, c.Cat(-1, c.rotate(qRot, cu, su), qPass))
		f.Set(&ke, c.Cat(-1, c.rotate(kRot, cu, su), kPass))
	}
	rq, rk = qe, ke
	f.Leave(rq, rk)
	return rq, rk
}
