package models

import (
	"fmt"

	"memroom/tape"
)

// normKind is how a decoder normalises.
type normKind uint8

const (
	rms        normKind = iota // LlamaRMSNorm: cast back, then times the weight
	rmsWide                    // OLMo 2: times the weight in fp32, then cast back
	rmsWidest                  // Helium: the weight is cast to fp32 too
	gemmaRMS                   // all in fp32, times 1 + weight
	layerKind                  // nn.LayerNorm
	bareLayer                  // OLMo: layer norm in fp32 without weights
	cohereNorm                 // LayerNorm written in Python, without bias
	onePlus                    // Nemotron: LayerNorm with 1 + weight, in autocast's type
)

func (k normKind) build(m *tape.Module, name string, size int64) norm {
	switch k {
	case layerKind, onePlus:
		return layerNorm(m, name, size)
	case bareLayer:
		m.Child(name)
		return norm{}
	}
	return rmsNorm(m, name, size)
}

func (k normKind) run(c *ctx, n norm, x *tape.Tensor) *tape.Tensor {
	switch k {
	case rmsWide, rmsWidest:
		return c.wideNorm(n, x, k == rmsWidest)
	case gemmaRMS:
		return c.gemmaNorm(n, x)
	case layerKind:
		return n.layer(c.Graph, x)
	case bareLayer:
		f := c.Enter(x)
		return f.Leave(c.To(c.LayerNorm(c.To(x, tape.F32), nil, nil), x.DType))
	case cohereNorm:
		return c.centredNorm(n, x)
	case onePlus:
		return c.layerNorm1P(n, x)
	}
	return n.rms(c.Graph, x)
}

// gemmaNorm is GemmaRMSNorm: all in fp32, times 1 + weight.
func (c *ctx) gemmaNorm(n norm, x *tape.Tensor) *tape.Tensor {
	f := c.Enter(x)
	var out *tape.Tensor
	xf := c.To(x, tape.F32)
	g := c.Enter(xf)
	f.Set(&out, g.Leave(c.Mul(xf, c.Rsqrt(c.AddScalar(c.Mean(c.Pow(xf), true, -1))))))
	f.Set(&out, c.Mul(out, c.AddScalar(c.To(n.w.Tensor, tape.F32))))
	return f.Leave(c.To(out, x.DType))
}

// wideNorm is an RMS norm whose weight multiplies in fp32.
func (c *ctx) wideNorm(n norm, x *tape.Tensor, castWeight bool) *tape.Tensor {
	f := c.Enter(x)
	var h, variance *tape.Tensor
	f.Set(&h, c.To(x, tape.F32))
	f.Set(&variance, c.Mean(c.Pow(h), true, -1))
	f.Set(&h, c.Mul(h, c.Rsqrt(c.AddScalar(variance))))
	w := n.w.Tensor
	if castWeight {
		w = c.To(w, tape.F32)
	}
	return f.Leave(c.To(c.Mul(w, h), x.DType))
}

// centredNorm is CohereLayerNorm.
func (c *ctx) centredNorm(n norm, x *tape.Tensor) *tape.Tensor {
	f := c.Enter(x)
	var h, mean, variance *tape.Tensor
	f.Set(&h, c.To(x, tape.F32))
	f.Set(&mean, c.Mean(h, true, -1))
	f.Set(&variance, c.Mean(c.Pow(c.Sub(h, mean)), true, -1))
	f.Set(&h, c.Mul(c.Sub(h, mean), c.Rsqrt(c.AddScalar(variance))))
	f.Set(&h, c.Mul(c.To(n.w.Tensor, tape.F32), h))
	return f.Leave(c.To(h, x.DType))
}

// layerNorm1P is NemotronLayerNorm1P: under autocast its arguments are cast to half first.
func (c *ctx) layerNorm1P(n norm, x *tape.Tensor) *tape.Tensor {
	f := c.Enter(x)
	in, w, b := x, c.AddScalar(n.w.Tensor), n.b.Tensor
	if c.Autocast {
		args := c.Enter(w)
		in, w, b = c.To(in, c.Half), c.To(w, c.Half), c.To(b, c.Half)
		args.Leave(in, w, b)
		for _, t := range []*tape.Tensor{in, w, b} {
			f.Keep(t)
		}
	}
	var out *tape.Tensor
	c.NoAutocast(func() { out = c.LayerNormT(in, w, b) })
	return f.Leave(out)
}

// headNorm is where q and k are normalised.
type headNorm uint8

const (
	noHeadNorm    headNorm = iota
	beforeHeads            // Qwen3: each head, before heads and positions change places
	afterHeads             // Gemma 3, EXAONE 4: after
	wholeWidth             // OLMo 2, OLMoE: all heads at once
	perHead                // Cohere: a weight for every head
	oneEach                // StableLM: a norm module for every head
	afterRotation          // Hunyuan
)

func (s *decoder) buildHeadNorms(m *tape.Module, b *decoderBlock) {
	switch s.headNorm {
	case noHeadNorm:
	case wholeWidth:
		b.qNorm, b.kNorm = rmsNorm(m, "q_norm", s.heads*s.d), rmsNorm(m, "k_norm", s.kv*s.d)
	case perHead:
		b.qNorm.w, b.kNorm.w = m.Child("q_norm").Param("weight", s.heads, s.d),
			m.Child("k_norm").Param("weight", s.kv, s.d)
	case afterRotation:
		b.qNorm, b.kNorm = rmsNorm(m, "query_layernorm", s.d), rmsNorm(m, "key_layernorm", s.d)
	case oneEach:
		list := func(name string, n int64) (out []norm) {
			l := m.Child(name).Child("norms")
			for i := range n {
				out = append(out, norm{w: l.Child(fmt.Sprint(i)).Param("weight", s.d)})
			}
			return out
		}
		b.qNorms, b.kNorms = list("q_layernorm", s.heads), list("k_layernorm", s.kv)
	default:
		b.qNorm, b.kNorm = rmsNorm(m, "q_norm", s.d), rmsNorm(m, "k_norm", s.d)
	}
}

func (s *decoder) buildNorms(m *tape.Module, b *decoderBlock) {
	build := func(name string) norm { return s.norms.build(m, name, s.h) }
	switch s.layout {
	case postNorm:
		b.post1, b.post2 = build("post_attention_layernorm"), build("post_feedforward_layernorm")
	case sandwich:
		b.norm1 = build("input_layernorm")
		if s.norms == gemmaRMS {
			b.post1, b.norm2, b.post2 = build("post_attention_layernorm"),
				build("pre_feedforward_layernorm"), build("post_feedforward_layernorm")
			return
		}
		b.norm2, b.post1, b.post2 = build("post_attention_layernorm"),
			build("post_self_attn_layernorm"), build("post_mlp_layernorm")
	case sideBySide, stableInLine:
		b.norm1 = build("input_layernorm")
	default:
		b.norm1, b.norm2 = build("input_layernorm"), build("post_attention_layernorm")
	}
}

// project makes q, k and v as [B, heads, S, d], normalised where the family does.
func (b *decoderBlock) project(c *ctx, f *tape.Frame, x *tape.Tensor, q, k, v **tape.Tensor) {
	s := b.spec
	split := func(t *tape.Tensor) *tape.Tensor { return c.View(t, t.Shape[0], t.Shape[1], -1, s.d) }
	swap := func(t *tape.Tensor) *tape.Tensor { return c.Transpose(t, 1, 2) }
	switch s.headNorm {
	case beforeHeads:
		f.Set(q, swap(s.norms.run(c, b.qNorm, split(b.q.run(c.Graph, x)))))
		f.Set(k, swap(s.norms.run(c, b.kNorm, split(b.k.run(c.Graph, x)))))
		f.Set(v, heads(c.Graph, b.v.run(c.Graph, x), s.d))
		return
	case wholeWidth:
		f.Set(q, s.norms.run(c, b.qNorm, b.q.run(c.Graph, x)))
		f.Set(k, s.norms.run(c, b.kNorm, b.k.run(c.Graph, x)))
		f.Set(v, b.v.run(c.Graph, x))
	case perHead:
		f.Set(q, split(b.q.run(c.Graph, x)))
		f.Set(k, split(b.k.run(c.Graph, x)))
		f.Set(v, split(b.v.run(c.Graph, x)))
		f.Set(q, s.norms.run(c, b.qNorm, *q))
		f.Set(k, s.norms.run(c, b.kNorm, *k))
		f.Set(q, swap(*q))
		f.Set(k, swap(*k))
		f.Set(v, swap(*v))
		return
	}
	switch {
	case s.headNorm == wholeWidth:
	case s.lateHeads:
		f.Set(q, b.q.run(c.Graph, x))
		f.Set(k, b.k.run(c.Graph, x))
		f.Set(v, b.v.run(c.Graph, x))
	default:
		f.Set(q, heads(c.Graph, b.q.run(c.Graph, x), s.d))
		f.Set(k, heads(c.Graph, b.k.run(c.Graph, x), s.d))
		f.Set(v, heads(c.Graph, b.v.run(c.Graph, x), s.d))
	}
	if s.lateHeads || s.headNorm == wholeWidth {
		f.Set(q, heads(c.Graph, *q, s.d))
		f.Set(k, heads(c.Graph, *k, s.d))
		f.Set(v, heads(c.Graph, *v, s.d))
	}
	switch s.headNorm {
	case afterHeads:
		f.Set(q, s.norms.run(c, b.qNorm, *q))
		f.Set(k, s.norms.run(c, b.kNorm, *k))
	case oneEach:
		f.Set(q, c.normEach(b.qNorms, *q))
		f.Set(k, c.normEach(b.kNorms, *k))
	}
}

// normEach is StableLmLayerNormPerHead: a layer norm for each head, joined again.
func (c *ctx) normEach(norms []norm, x *tape.Tensor) *tape.Tensor {
	f := c.Enter(x)
	sizes := make([]int64, len(norms))
	for i := range sizes {
		sizes[i] = 1
	}
	parts := c.Split(x, 1, sizes...)
	for _, p := range parts {
		f.Keep(p)
	}
	done := make([]*tape.Tensor, len(parts))
	for i, p := range parts {
		done[i] = norms[i].layer(c.Graph, p)
	}
	return f.Leave(c.Cat(1, done...))
}

// rotation is how a decoder turns q and k by their position.
type rotation uint8

const (
	byHalves     rotation = iota // Llama: the halves of a head are a pair
	byHalvesCast                 // OLMo: with a table in fp32, cast back
	partOfHead                   // Phi-3: only the first part of a head
	// StableLM: the same, with variables that live until attention is over
	partNamed
	partReturned // Nemotron: the same, joined on return
	byPairs      // Cohere: neighbours are a pair, in fp32
	byPairsPart  // GLM: neighbours, the first part of a head
	byPairsWhole // Helium: neighbours, the whole head
	byPairsCast  // ERNIE 4.5: neighbours, each product in fp32
	byHalvesWide // ModernBERT: halves, each product in fp32
	byChunks     // gpt-oss: halves, with a table of half the width
)

func (k rotation) run(c *ctx, f *tape.Frame, q, k2 **tape.Tensor, cos, sin *tape.Tensor,
	rot int64) {
	var rq, rk *tape.Tensor
	switch k {
	case partNamed:
		c.rotatePhi(f, q, k2, cos, sin, rot)
		return
	case partOfHead:
		rq, rk = c.rotatePart(*q, *k2, cos, sin, rot, false)
	case byHalves:
		rq, rk = c.rotateBoth(*q, *k2, cos, sin)
	case byChunks:
		rq, rk = c.rotateChunks(*q, *k2, cos, sin)
	default:
		rq, rk = k.apply(c, *q, *k2, cos, sin, rot)
	}
	f.Set(q, rq)
	f.Set(k2, rk)
}

// apply is apply_rotary_pos_emb of the families that do it neither Llama's nor Phi's way.
func (k rotation) apply(c *ctx, q, key, cos, sin *tape.Tensor, rot int64) (rq, rk *tape.Tensor) {
	f := c.Enter()
	var cu, su, qf, kf, qe, ke *tape.Tensor
	f.Set(&qf, q)
	f.Set(&kf, key)
	if k == byPairs {
		f.Set(&qf, c.To(q, tape.F32))
		f.Set(&kf, c.To(key, tape.F32))
	}
	f.Set(&cu, c.Unsqueeze(cos, 1))
	f.Set(&su, c.Unsqueeze(sin, 1))
	if k == byPairsPart || k == byPairsWhole || k == byPairsCast {
		twice := func(t *tape.Tensor) *tape.Tensor {
			return c.Fresh("rotary table", t.DType,
				t.Shape...)
		}
		f.Set(&cu, twice(cu))
		f.Set(&su, twice(su))
	}
	part := k == byPairsPart || k == partReturned
	var qPass, kPass *tape.Tensor
	if part {
		d := q.Dim(-1)
		qr := c.Slice(qf, -1, rot)
		f.Set(&qPass, c.Slice(qf, -1, d-rot))
		f.Set(&qf, qr)
		kr := c.Slice(kf, -1, rot)
		f.Set(&kPass, c.Slice(kf, -1, d-rot))
		f.Set(&kf, kr)
	}
	f.Set(&qe, k.turn(c, qf, cu, su))
	f.Set(&ke, k.turn(c, kf, cu, su))
	if part && k == byPairsPart {
		f.Set(&qe, c.Cat(-1, qe, qPass))
		f.Set(&ke, c.Cat(-1, ke, kPass))
	}
	rq, rk = qe, ke
	switch k {
	case partReturned:
		rq, rk = c.Cat(-1, qe, qPass), c.Cat(-1, ke, kPass)
	case byHalvesCast, byPairs, byPairsCast, byHalvesWide:
		rq, rk = c.To(qe, q.DType), c.To(ke, key.DType)
	}
	return f.Both(rq, rk)
}

// turn is x * cos + rotated(x) * sin.
func (k rotation) turn(c *ctx, x, cos, sin *tape.Tensor) *tape.Tensor {
	switch k {
	case byHalvesCast, partReturned:
		return c.rotate(x, cos, sin)
	case byHalvesWide:
		return c.Add(c.Mul(c.To(x, tape.F32), cos), c.Mul(c.rotateHalf(c.To(x, tape.F32)), sin))
	case byPairsCast:
		return c.Add(c.Mul(c.To(x, tape.F32), cos), c.Mul(c.To(c.everyTwo(x), tape.F32), sin))
	}
	return c.Add(c.Mul(x, cos), c.Mul(c.everyTwo(x), sin))
}
