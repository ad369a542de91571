package models

import "memroom/tape"

// moe is a mixture of experts in place of the MLP: Mixtral, Qwen2-MoE and Qwen3-MoE.
type moe struct {
	experts, perToken, inner, shared int64
	act                              string
	kind                             string
	normTop                          bool // the chosen weights are normalised
	// GLM-4.5, DeepSeek-V3: experts are chosen by groups, from sigmoids; the shared one has no gate
	groups, chosenGroups int64
	soft                 bool  // DeepSeek-V2: from a softmax, with groups only where they are chosen
	mlpBias              bool  // of the shared expert
	kept, spread         int64 // experts on one rank; ranks over which they are sharded, 0 is all
}

// moeBlock is one such layer.
type moeBlock struct {
	spec                 *moe
	router, gateUp, down *tape.Param
	// gpt-oss has biases, and its weights lie the other way round
	routerBias, gateUpBias, downBias *tape.Param
	gate, up, downS, gateOne         lin
}

func (m *moe) build(mod *tape.Module, h int64) *moeBlock {
	b := m.buildWhole(mod, h)
	for _, p := range []*tape.Param{b.gateUp, b.down, b.gateUpBias, b.downBias} {
		if p != nil {
			p.Spread = m.spread
		}
	}
	return b
}

func (m *moe) buildWhole(mod *tape.Module, h int64) *moeBlock {
	b := &moeBlock{spec: m}
	name := "gate"
	if m.kind == "granitemoe" {
		name = "router"
	}
	if m.kind == "gpt_oss" {
		g := mod.Child("router")
		b.router, b.routerBias = g.Param("weight", m.experts, h), g.Param("bias", m.experts)
		e := mod.Child("experts").Experts()
		b.gateUp = e.Param("gate_up_proj", m.kept, h, 2*m.inner)
		b.gateUpBias = e.Param("gate_up_proj_bias", m.kept, 2*m.inner)
		b.down = e.Param("down_proj", m.kept, m.inner, h)
		b.downBias = e.Param("down_proj_bias", m.kept, h)
		return b
	}
	router := func() { b.router = mod.Child(name).Param("weight", m.experts, h) }
	experts := func() {
		e := mod.Child("experts").Experts()
		b.gateUp, b.down = e.Param("gate_up_proj", m.kept, 2*m.inner, h),
			e.Param("down_proj", m.kept, h, m.inner)
	}
	if m.kind == "qwen3_moe" || m.groups > 0 {
		experts()
		router()
		if m.groups > 0 {
			if !m.soft {
				mod.Child(name).Buffer(tape.F32, m.experts)
			}
			s := mod.Child("shared_experts")
			b.gate, b.up = linear(s, "gate_proj", h, m.shared, m.mlpBias),
				linear(s, "up_proj", h, m.shared, m.mlpBias)
			b.downS = linear(s, "down_proj", m.shared, h, m.mlpBias)
		}
		return b
	}
	router()
	experts()
	if m.shared > 0 {
		s := mod.Child("shared_expert")
		b.gate, b.up, b.downS = linear(s, "gate_proj", h, m.shared, false),
			linear(s, "up_proj", h, m.shared, false), linear(s, "down_proj", m.shared, h, false)
		b.gateOne = linear(mod, "shared_expert_gate", h, 1, false)
	}
	return b
}

func (b *moeBlock) run(c *ctx, x *tape.Tensor) *tape.Tensor {
	if b.spec.groups > 0 {
		return b.runGroups(c, x)
	}
	f := c.Enter(x)
	var flat, shared, logits, weights, places, out *tape.Tensor
	f.Set(&flat, c.View(x, -1, x.Dim(-1)))
	if b.spec.shared > 0 {
		g := c.Enter(flat)
		f.Set(&shared, g.Leave(b.downS.run(c.Graph, c.Mul(c.Activation(b.spec.act,
			b.gate.run(c.Graph, flat)), b.up.run(c.Graph, flat)))))
	}
	l, w, p := b.route(c, flat)
	f.Set(&logits, l)
	f.Set(&weights, w)
	f.Set(&places, p)
	// hidden_states is overwritten by the experts' result
	if b.spec.kind == "mixtral" || b.spec.kind == "gpt_oss" {
		f.Set(&flat, b.apply(c, flat, places, weights))
		f.Set(&flat, c.View(flat, x.Shape...))
		return f.Leave(flat)
	}
	f.Set(&out, b.apply(c, flat, places, weights))
	if b.spec.shared > 0 {
		f.Set(&shared, c.Mul(c.Activation("sigmoid", b.gateOne.run(c.Graph, flat)), shared))
		f.Set(&out, c.Add(out, shared))
	}
	return f.Leave(c.View(out, x.Shape...))
}

// runGroups is Glm4MoeMoE: the experts' result and that of a shared one, which reads the same.
func (b *moeBlock) runGroups(c *ctx, x *tape.Tensor) *tape.Tensor {
	f := c.Enter(x)
	var weights, places, h *tape.Tensor
	route := b.routeGroups
	if b.spec.soft {
		route = b.routeSoft
	}
	f.Pair(&weights, &places)(route(c, x))
	f.Set(&h, c.View(x, -1, x.Dim(-1)))
	f.Set(&h, c.View(b.apply(c, h, places, weights), x.Shape...))
	g := c.Enter(x)
	shared := g.Leave(b.downS.run(c.Graph, c.Mul(c.Activation(b.spec.act, b.gate.run(c.Graph, x)),
		b.up.run(c.Graph, x))))
	f.Set(&h, c.Add(h, shared))
	return f.Leave(h)
}

// routeGroups is Glm4MoeTopkRouter: a sigmoid of each expert, the best groups, the best of these.
func (b *moeBlock) routeGroups(c *ctx, x *tape.Tensor) (scores, places *tape.Tensor) {
	f := c.Enter(x)
	n, s := x.Shape[0]*x.Shape[1], b.spec
	var flat, logits, all, choice, best, group, mask, wide, idx, top, total *tape.Tensor
	f.Set(&flat, c.View(x, -1, x.Dim(-1)))
	f.Set(&logits, c.LinearT(c.To(flat, tape.F32), c.To(b.router.Tensor, tape.F32), nil))
	f.Set(&all, c.Activation("sigmoid", logits))
	f.Set(&choice, c.Add(all, c.Borrow(tape.F32, s.experts)))
	v, _ := c.TopK(c.View(choice, n, s.groups, s.experts/s.groups), 2)
	f.Set(&best, c.Sum(v, false, -1))
	_, i := c.TopK(best, s.chosenGroups)
	f.Set(&group, i)
	f.Set(&mask, c.Fresh("moe", tape.F32, n, s.groups))
	f.Set(&wide, c.Fresh("moe", tape.F32, n, s.experts))
	out := c.Fresh("moe", tape.Bool, n, s.experts)
	f.Set(&choice, c.MaskedFill(choice, out))
	_, i = c.TopK(choice, s.perToken)
	f.Set(&idx, i)
	f.Set(&top, c.Gather(all, idx))
	if s.normTop {
		f.Set(&total, c.AddScalar(c.Sum(top, true, -1)))
		f.Set(&top, c.DivInPlace(top, total))
	}
	f.Set(&top, c.Scale(top))
	return f.Both(top, idx)
}

// routeSoft is DeepseekV2TopkRouter: a softmax over all experts, of which the best groups stay.
func (b *moeBlock) routeSoft(c *ctx, x *tape.Tensor) (scores, places *tape.Tensor) {
	f := c.Enter(x)
	n, s := x.Shape[0]*x.Shape[1], b.spec
	var flat, logits, all, best, group, mask, wide, idx, top *tape.Tensor
	f.Set(&flat, c.View(x, -1, x.Dim(-1)))
	f.Set(&logits, c.LinearT(c.To(flat, tape.F32), c.To(b.router.Tensor, tape.F32), nil))
	f.Set(&all, c.Softmax(c.To(logits, tape.F32), tape.F32))
	if s.chosenGroups > 0 {
		f.Set(&best, c.Largest(c.View(all, n, s.groups, s.experts/s.groups)))
		_, i := c.TopK(c.Squeeze(best, 2), s.chosenGroups)
		f.Set(&group, i)
		f.Set(&mask, c.Fresh("moe", tape.F32, n, s.groups))
		f.Set(&wide, c.Fresh("moe", tape.F32, n, s.experts))
		f.Set(&all, c.MaskedFill(all, c.Fresh("moe", tape.Bool, n, s.experts)))
	}
	f.Pair(&top, &idx)(c.TopK(all, s.perToken))
	f.Set(&top, c.Scale(top))
	return f.Both(top, idx)
}

// route picks the experts of each token.
func (b *moeBlock) route(c *ctx, x *tape.Tensor) (logits, scores, places *tape.Tensor) {
	f := c.Enter(x)
	var l, probs, top, idx *tape.Tensor
	if b.spec.kind == "gpt_oss" { // the chosen logits are normalised in their own type
		f.Set(&l, c.Linear(x, b.router, b.routerBias))
		f.Pair(&top, &idx)(c.TopK(l, b.spec.perToken))
		c.NoAutocast(func() { f.Set(&probs, c.Softmax(top, top.DType)) })
		logits, scores, places = l, probs, idx
		f.Leave(logits, scores, places)
		return logits, scores, places
	}
	f.Set(&l, c.LinearT(x, b.router.Tensor, nil))
	if b.spec.kind == "granitemoe" { // the chosen logits are normalised
		f.Set(&l, c.To(l, tape.F32))
		f.Pair(&top, &idx)(c.TopK(l, b.spec.perToken))
		f.Set(&probs, c.To(c.Softmax(top, tape.F32), x.DType))
		logits, scores, places = l, probs, idx
		f.Leave(logits, scores, places)
		return logits, scores, places
	}
	if b.spec.kind == "mixtral" {
		f.Set(&probs, c.Softmax(c.To(l, tape.F32), tape.F32))
	} else {
		f.Set(&probs, c.Softmax(l, tape.F32))
	}
	f.Pair(&top, &idx)(c.TopK(probs, b.spec.perToken))
	if b.spec.normTop {
		f.Set(&top, c.DivInPlace(top, c.Sum(top, true, -1)))
	}
	if b.spec.kind != "mixtral" {
		f.Set(&top, c.To(top, l.DType))
	}
	logits, scores, places = l, top, idx
	f.Leave(logits, scores, places)
	return logits, scores, places
}

// apply is grouped_mm_experts_forward: tokens sorted by expert, one grouped product for each
// projection.
func (b *moeBlock) apply(c *ctx, x, places, weights *tape.Tensor) *tape.Tensor {
	f := c.Enter(x, places, weights)
	n, h, k := x.Shape[0], x.Shape[1], b.spec.perToken
	rows := n * k
	var sample, ids, sorted, perm, chosen, chosenW, ints, count, offsets, sentinel, bias, y,
		weighted, inverse *tape.Tensor
	f.Set(&sample, c.Reshape(weights, -1))
	f.Set(&ids, c.Reshape(places, -1))
	f.Pair(&sorted, &perm)(c.Sort(ids))
	f.Set(&chosen, c.Index(x, c.Scale(perm)))
	f.Set(&chosenW, c.Index(sample, perm))
	f.Set(&ints, c.Fresh("moe", tape.I32, rows))
	f.Set(&count, c.Fresh("moe", tape.I32, b.spec.experts))
	f.Set(&offsets, c.Fresh("moe", tape.I32, b.spec.experts))
	tape.Del(c.Fresh("moe", tape.U8, 1023))
	f.Set(&sentinel, c.Fresh("moe", tape.Bool, rows, 1))
	if b.gateUpBias != nil {
		f.Set(&bias, c.Index(b.gateUpBias.Tensor, sorted))
	}
	c.MaskedFillInPlace(chosen, sentinel)
	if c.Expert > 1 { // to the ranks that have the experts, and as many from others
		f.Set(&chosen, c.Transfer("all-to-all", chosen, chosen.Shape...))
	}
	project := func(t *tape.Tensor, w *tape.Param) *tape.Tensor {
		if w.Bits > 0 {
			return c.PackedGroups(t, w)
		}
		if b.gateUpBias != nil {
			return c.AddInPlace(c.GroupedMM(c.To(t, w.DType), w.Tensor, offsets), bias)
		}
		return c.GroupedMM(c.To(t, w.DType), c.Transpose(w.Tensor, 1, 2), offsets)
	}
	f.Set(&y, project(chosen, b.gateUp))
	f.Set(&y, c.MaskedFill(y, sentinel))
	f.Set(&y, b.activate(c, y))
	if b.downBias != nil {
		f.Set(&bias, c.Index(b.downBias.Tensor, sorted))
	}
	f.Set(&y, project(y, b.down))
	f.Set(&y, c.MaskedFill(y, sentinel))
	if c.Expert > 1 {
		f.Set(&y, c.Transfer("all-to-all", y, y.Shape...))
	}
	f.Set(&weighted, c.Mul(y, c.Unsqueeze(chosenW, -1)))
	f.Set(&inverse, c.Fresh("moe", tape.I64, rows))
	tape.Del(c.Fresh("moe", tape.I64, rows))
	f.Set(&weighted, c.Index(weighted, inverse))
	return f.Leave(c.To(c.Sum(c.View(weighted, n, k, h), false, 1), x.DType))
}

func (b *moeBlock) activate(c *ctx, x *tape.Tensor) *tape.Tensor {
	if b.spec.kind == "gpt_oss" {
		return c.gateClamped(x)
	}
	f := c.Enter(x)
	var gate, up *tape.Tensor
	parts := c.Split(x, -1, b.spec.inner, b.spec.inner)
	f.Set(&gate, parts[0])
	f.Set(&up, parts[1])
	return f.Leave(c.Mul(c.Activation(b.spec.act, gate), up))
}

// mixtral is MixtralForCausalLM and the mixtures of Qwen 2, Qwen 3, OLMoE and Granite.
func mixtral(c *Config, r Run) (*Model, error) {
	s := readDecoder(c, r)
	m := &moe{experts: c.Int(8, "num_local_experts", "num_experts"),
		perToken: c.Int(2, "num_experts_per_tok"), kind: c.Type(), act: s.act,
		inner: c.Int(s.inner, "moe_intermediate_size"), normTop: true}
	switch c.Type() {
	case "qwen2_moe":
		s.qkvBias = c.Bool(true, "qkv_bias")
		m.shared = c.Int(5632, "shared_expert_intermediate_size")
		m.normTop = c.Bool(false, "norm_topk_prob")
	case "qwen3_moe":
		s.headNorm = beforeHeads
		s.qkvBias = c.Bool(false, "attention_bias")
		s.outBias = s.qkvBias
		m.normTop = c.Bool(false, "norm_topk_prob")
	}
	switch c.Type() {
	case "olmoe":
		s.headNorm = wholeWidth
		s.qkvBias = c.Bool(false, "attention_bias")
		s.outBias = s.qkvBias
		m.inner, m.normTop = s.inner, c.Bool(false, "norm_topk_prob")
		if c.Has("clip_qkv") {
			c.complain("clip_qkv is not described")
		}
	case "granitemoe":
		s.qkvBias = c.Bool(false, "attention_bias")
		s.outBias = s.qkvBias
		s.embedScale, s.resScale, s.logitScale, s.expertsName = byConstant, true, true,
			"block_sparse_moe"
	}
	if m.perToken > m.experts {
		c.complain("num_experts_per_tok %d is more than the %d experts", m.perToken, m.experts)
	}
	s.experts = m
	return s.checked(c, r)
}

// glm4Moe is Glm4MoeForCausalLM (GLM-4.5): its first layers are dense.
func glm4Moe(c *Config, r Run) (*Model, error) {
	s := readDecoder(c, r)
	s.d = c.Int(s.h/max(s.heads, 1), "head_dim")
	s.qkvBias, s.rotation = c.Bool(false, "attention_bias"), partReturned
	s.rot = int64(float64(s.d) * ropeFactor(c, 0.5))
	if c.Bool(false, "use_qk_norm") {
		s.headNorm = beforeHeads
	}
	return s.withGroups(c, r)
}

// withGroups adds experts that are chosen by groups; the first layers are dense.
func (s *decoder) withGroups(c *Config, r Run) (*Model, error) {
	m := &moe{experts: c.Int(128, "n_routed_experts", "num_local_experts"), kind: c.Type(),
		perToken: c.Int(8, "num_experts_per_tok"), act: s.act,
		inner: c.Int(1408, "moe_intermediate_size"), normTop: c.Bool(true, "norm_topk_prob"),
		groups: c.Int(1, "n_group"), chosenGroups: c.Int(1, "topk_group")}
	m.shared = m.inner * c.Int(1, "n_shared_experts")
	s.dense = c.Count(1, "first_k_dense_replace")
	if m.perToken > m.experts {
		c.complain("num_experts_per_tok %d is more than the %d experts", m.perToken, m.experts)
	}
	c.divides(m.experts, m.groups, "n_routed_experts by n_group")
	s.experts = m
	return s.checked(c, r)
}
