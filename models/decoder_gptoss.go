package models

import "memroom/tape"

// eagerSinks is eager_attention_forward of gpt-oss: every head has a learnt score that takes a
// share of the softmax and is dropped after it. transformers has no fused form of it.
func (c *ctx) eagerSinks(a attention, q, k, v, mask *tape.Tensor, sinks *tape.Param) (out,
	weights *tape.Tensor) {
	f := c.Enter()
	var kk, vv, w, wide, all, probs, part, o *tape.Tensor
	f.Set(&kk, c.repeatKV(k, a.groups))
	f.Set(&vv, c.repeatKV(v, a.groups))
	f.Set(&w, c.Scale(c.Matmul(q, c.Transpose(kk, 2, 3))))
	if mask != nil {
		f.Set(&w, c.Add(w, mask))
	}
	n := q.Shape[1]
	f.Set(&wide, c.Expand(c.View(sinks.Tensor, 1, n, 1, 1), q.Shape[0], n, q.Shape[2], 1))
	f.Set(&all, c.Cat(-1, w, wide))
	f.Set(&all, c.Sub(all, c.Largest(all)))
	c.NoAutocast(func() { f.Set(&probs, c.Softmax(all, all.DType)) }) // the call names its type
	f.Set(&part, c.Slice(probs, -1, probs.Dim(-1)-1))
	f.Set(&w, c.To(c.Dropout(part, a.dropout), vv.DType))
	f.Set(&o, c.Matmul(w, vv))
	f.Set(&o, c.Contiguous(c.Transpose(o, 1, 2)))
	return f.Both(o, w)
}

// rotateChunks is apply_rotary_pos_emb of gpt-oss: its table has half the width of a head.
func (c *ctx) rotateChunks(q, k, cos, sin *tape.Tensor) (rq, rk *tape.Tensor) {
	f := c.Enter()
	var cu, su, qe, ke *tape.Tensor
	f.Set(&cu, c.Unsqueeze(cos, 1))
	f.Set(&su, c.Unsqueeze(sin, 1))
	turn := func(x *tape.Tensor) *tape.Tensor {
		g := c.Enter(x)
		var one, two, a, b *tape.Tensor
		parts := c.Split(x, -1, x.Dim(-1)/2, x.Dim(-1)/2)
		g.Set(&one, parts[0])
		g.Set(&two, parts[1])
		g.Set(&a, c.Sub(c.Mul(one, cu), c.Mul(two, su)))
		g.Set(&b, c.Add(c.Mul(two, cu), c.Mul(one, su)))
		return g.Leave(c.Cat(-1, a, b))
	}
	f.Set(&qe, turn(q))
	f.Set(&ke, turn(k))
	return f.Both(qe, ke)
}

// gateClamped is GptOssExperts._apply_gate: even columns are gates, odd ones values.
func (c *ctx) gateClamped(x *tape.Tensor) *tape.Tensor {
	f := c.Enter(x)
	var gate, up, glu *tape.Tensor
	f.Pair(&gate, &up)(c.Step2(x, -1), c.Step2(x, -1))
	f.Set(&gate, c.ClampOne(gate))
	f.Set(&up, c.ClampTwo(up))
	f.Set(&glu, c.QuickGelu(gate))
	return f.Leave(c.Mul(c.AddScalar(up), glu))
}

// gptOss is GptOssForCausalLM.
func gptOss(c *Config, r Run) (*Model, error) {
	s := readDecoder(c, r)
	s.d = c.Int(64, "head_dim")
	s.norms, s.sinks, s.rotation, s.halfTable = rmsWide, true, byChunks, true
	s.qkvBias = c.Bool(true, "attention_bias")
	s.outBias = s.qkvBias
	s.experts = &moe{experts: c.Int(128, "num_local_experts"), kind: c.Type(), inner: s.inner,
		perToken: c.Int(4, "num_experts_per_tok", "experts_per_token"), act: s.act}
	if s.experts.perToken > s.experts.experts {
		c.complain("num_experts_per_tok %d is more than the %d experts", s.experts.perToken,
			s.experts.experts)
	}
	if c.Bool(false, "output_router_logits") {
		c.complain("output_router_logits is not described")
	}
	if r.Attn == "sdpa" {
		r.Attn = "eager"
	}
	return s.checked(c, r)
}
