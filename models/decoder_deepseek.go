package models

import "memroom/tape"

// latent is DeepSeek's attention: queries, keys and values come from small vectors, and only a part
// of each head is rotated.
type latent struct {
	qRank, kvRank    int64 // widths of the small vectors; qRank 0 is none for queries
	plain, turned, v int64 // parts of a head: not rotated, rotated, and of the values
	bias             bool
	pairs            bool // neighbours are rotated together, not halves
	numbers          bool // DeepSeek-V2: as complex numbers
}

// latentBlock is the attention of one layer.
type latentBlock struct {
	spec         *latent
	q, qA, qB    lin
	kvA, kvB, o  lin
	qNorm, kNorm norm
}

func (l *latent) build(m *tape.Module, h, heads int64) *latentBlock {
	b := &latentBlock{spec: l}
	if l.qRank == 0 {
		b.q = linear(m, "q_proj", h, heads*(l.plain+l.turned), false)
	} else {
		b.qA, b.qNorm = linear(m, "q_a_proj", h, l.qRank, l.bias), rmsNorm(m, "q_a_layernorm", l.qRank)
		b.qB = linear(m, "q_b_proj", l.qRank, heads*(l.plain+l.turned), false)
	}
	b.kvA = linear(m, "kv_a_proj_with_mqa", h, l.kvRank+l.turned, l.bias)
	b.kNorm = rmsNorm(m, "kv_a_layernorm", l.kvRank)
	b.kvB = linear(m, "kv_b_proj", l.kvRank, heads*(l.plain+l.v), false)
	b.o = linear(m, "o_proj", heads*l.v, h, l.bias)
	return b
}

// attend is DeepseekV3Attention.forward.
func (b *latentBlock) attend(c *ctx, x, cos, sin, mask *tape.Tensor, drop float64) (out,
	weights *tape.Tensor) {
	f := c.Enter(x)
	l := b.spec
	n, s := x.Shape[0], x.Shape[1]
	var q, qPlain, qTurned, small, kv, kTurned, query, key, value, o, w *tape.Tensor
	if l.qRank == 0 {
		f.Set(&q, b.q.run(c.Graph, x))
	} else {
		f.Set(&q, b.qB.run(c.Graph, b.qNorm.rms(c.Graph, b.qA.run(c.Graph, x))))
	}
	f.Set(&q, heads(c.Graph, q, l.plain+l.turned))
	parts := c.Split(q, -1, l.plain, l.turned)
	f.Set(&qPlain, parts[0])
	f.Set(&qTurned, parts[1])
	f.Set(&small, b.kvA.run(c.Graph, x))
	parts = c.Split(small, -1, l.kvRank, l.turned)
	f.Set(&kv, parts[0])
	f.Set(&kTurned, parts[1])
	f.Set(&kv, b.kNorm.rms(c.Graph, kv))
	f.Set(&kv, c.View(kv, n, 1, s, l.kvRank))
	f.Set(&kTurned, c.View(kTurned, n, 1, s, l.turned))
	var rq, rk *tape.Tensor
	switch {
	case l.numbers:
		rq, rk = c.rotateComplex(qTurned, kTurned, cos)
	case l.pairs:
		rq, rk = c.rotateNeighbours(qTurned, kTurned, cos, sin)
	default:
		rq, rk = c.rotateBoth(qTurned, kTurned, cos, sin)
	}
	f.Set(&qTurned, rq)
	f.Set(&kTurned, rk)
	f.Pair(&kv, &kTurned)(c.cached(kv, kTurned))
	f.Set(&query, c.Cat(-1, qPlain, qTurned))
	f.Pair(&key, &value)(b.expand(c, kv, kTurned))
	f.Pair(&o, &w)(c.attend(attention{dropout: drop, groups: 1, upcast: true, causal: true}, query, key,
		value, mask))
	f.Set(&o, c.Contiguous(c.Reshape(o, n, s, o.Shape[2]*l.v)))
	f.Set(&o, b.o.run(c.Graph, o))
	return f.Both(o, w)
}

// expand is expand_kv: keys and values of every head from the small vector.
func (b *latentBlock) expand(c *ctx, kv, turned *tape.Tensor) (key, value *tape.Tensor) {
	f := c.Enter(kv, turned)
	l := b.spec
	n, s := kv.Shape[0], kv.Shape[2]
	var wide, plain, v, rot, k *tape.Tensor
	f.Set(&wide, c.Transpose(c.View(b.kvB.run(c.Graph, kv), n, s, -1, l.plain+l.v), 1, 2))
	parts := c.Split(wide, -1, l.plain, l.v)
	f.Set(&plain, parts[0])
	f.Set(&v, parts[1])
	f.Set(&rot, c.Expand(turned, n, wide.Shape[1], s, l.turned))
	f.Set(&k, c.Fresh("keys", wide.DType, n, wide.Shape[1], s, l.plain+l.turned))
	c.WriteInto(k, plain)
	c.WriteInto(k, rot)
	return f.Both(k, v)
}

// rotateNeighbours is apply_rotary_pos_emb_interleave: the even and the odd elements of a head.
func (c *ctx) rotateNeighbours(q, k, cos, sin *tape.Tensor) (rq, rk *tape.Tensor) {
	f := c.Enter()
	var cu, su, q1, q2, k1, k2, qe, ke *tape.Tensor
	half := func(t *tape.Tensor) *tape.Tensor { return c.Unsqueeze(c.Slice(t, -1, t.Dim(-1)/2), 1) }
	f.Set(&cu, half(cos))
	f.Set(&su, half(sin))
	f.Set(&q1, c.Step2(q, -1))
	f.Set(&q2, c.Step2(q, -1))
	f.Set(&k1, c.Step2(k, -1))
	f.Set(&k2, c.Step2(k, -1))
	f.Set(&qe, c.turnPair(q1, q2, cu, su))
	f.Set(&ke, c.turnPair(k1, k2, cu, su))
	return f.Both(qe, ke)
}

// turnPair turns two halves of a head and joins them.
func (c *ctx) turnPair(a, b, cos, sin *tape.Tensor) *tape.Tensor {
	first := c.Sub(c.Mul(a, cos), c.Mul(b, sin))
	return c.Cat(-1, first, c.Add(c.Mul(b, cos), c.Mul(a, sin)))
}

// deepseekV3 is DeepseekV3ForCausalLM.
func deepseekV3(c *Config, r Run) (*Model, error) {
	s := readDecoder(c, r)
	s.latent = &latent{qRank: c.Count(0, "q_lora_rank"), kvRank: c.Int(512, "kv_lora_rank"),
		plain: c.Int(128, "qk_nope_head_dim"), turned: c.Int(64, "qk_rope_head_dim"),
		v: c.Int(128, "v_head_dim"), bias: c.Bool(false, "attention_bias"),
		pairs: c.Bool(true, "rope_interleave")}
	s.kv, s.d, s.rot = s.heads, s.latent.turned, s.latent.turned
	return s.withGroups(c, r)
}

// rotateComplex is apply_rotary_emb of DeepSeek-V2: neighbours are a complex number, which here has
// the bytes of two elements in fp32.
func (c *ctx) rotateComplex(q, k, table *tape.Tensor) (rq, rk *tape.Tensor) {
	f := c.Enter()
	var qc, kc, t *tape.Tensor
	f.Set(&qc, c.To(q, tape.F32))
	f.Set(&kc, c.To(k, tape.F32))
	f.Set(&t, c.Unsqueeze(table, 1))
	rq = c.To(c.Mul(qc, t), q.DType)
	f.Keep(rq)
	rk = c.To(c.Mul(kc, t), k.DType)
	return f.Both(rq, rk)
}

// complexTable is DeepseekV2RotaryEmbedding: an angle for each pair as a complex number.
func (c *ctx) complexTable(r rotary, pos *tape.Tensor) (table *tape.Tensor) {
	f := c.Enter()
	c.NoGrad(func() {
		c.NoAutocast(func() {
			s := pos.Dim(-1)
			var inv, p, freqs, polar *tape.Tensor
			f.Set(&inv, c.To(c.Borrow(c.Float, 1, r.dim/2, 1), tape.F32))
			f.Set(&p, c.Fresh("rotary table", tape.F32, 1, 1, s))
			f.Set(&freqs, c.Transpose(c.Bmm(inv, p), 1, 2))
			ones := c.Fresh("rotary table", tape.F32, 1, s, r.dim/2)
			f.Set(&polar, c.Fresh("rotary table", tape.F32, 1, s, r.dim))
			tape.Del(ones)
			f.Set(&polar, c.Scale(polar))
			table = polar
			f.Leave(table)
		})
	})
	return table
}

// deepseekV2 is DeepseekV2ForCausalLM: experts are chosen by a softmax.
func deepseekV2(c *Config, r Run) (*Model, error) {
	s := readDecoder(c, r)
	s.latent = &latent{qRank: c.Count(0, "q_lora_rank"), kvRank: c.Int(512, "kv_lora_rank"),
		plain: c.Int(128, "qk_nope_head_dim"), turned: c.Int(64, "qk_rope_head_dim"),
		v: c.Int(128, "v_head_dim"), bias: c.Bool(false, "attention_bias"), numbers: true}
	s.kv, s.d, s.rot, s.complexTable = s.heads, s.latent.turned, s.latent.turned, true
	s.mlpBias = c.Bool(false, "mlp_bias")
	m := &moe{experts: c.Int(64, "n_routed_experts", "num_experts"), kind: c.Type(), act: s.act,
		perToken: c.Int(required, "num_experts_per_tok"), groups: 1, soft: true,
		inner: c.Int(1407, "moe_intermediate_size"), mlpBias: s.mlpBias}
	m.shared = m.inner * c.Int(2, "n_shared_experts")
	s.dense = c.Count(0, "first_k_dense_replace")
	switch method := c.Str("greedy", "topk_method"); method {
	case "greedy":
	case "group_limited_greedy":
		m.groups, m.chosenGroups = c.Int(required, "n_group"), c.Int(required, "topk_group")
		c.divides(m.experts, m.groups, "n_routed_experts by n_group")
	default:
		c.complain("topk_method %q is not described", method)
	}
	if m.perToken > m.experts {
		c.complain("num_experts_per_tok %d is more than the %d experts", m.perToken, m.experts)
	}
	s.experts = m
	return s.checked(c, r)
}
