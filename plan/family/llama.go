package family

import (
	"fmt"
	"slices"

	"memroom/plan/tape"
)

// decoder is the Llama kind of decoder with the switches in which its relatives differ.
type decoder struct {
	h, inner, heads, kv, d, layers, vocab int64
	act                                   string
	qkvBias, outBias, mlpBias             bool
	headNorm                              bool // Qwen3: norm of q and k per head
	tied                                  bool
	attnDrop                              float64
	window                                int64  // sliding window, 0 is none
	sliding                               []bool // which layers slide; nil is all of them
	gemma                                 bool   // norms multiply by 1 + weight, embeddings are scaled
	sandwich                              bool   // norms after attention and MLP too (Gemma 2 and 3)
	softcap, finalCap                     bool
	bothMasks                             bool // the sliding mask is built even if no layer uses it
	twoTables                             bool // Gemma 3: a rotary table for each kind of layer
	fused                                 bool // Phi-3: one projection for q, k, v and one for gate and up
	resDrop                               float64
	rot                                   int64 // rotated part of a head, if not all
	experts                               *moe
}

type decoderBlock struct {
	spec           *decoder
	q, k, v, o     lin
	gate, up, down lin
	norm1, norm2   norm
	qNorm, kNorm   norm
	post1, post2   norm
	qkv, gateUp    lin
	slides         bool
	moe            *moeBlock
}

// norm is the decoder's kind of RMSNorm.
func (s *decoder) norm(c *ctx, n norm, x *tape.Tensor) *tape.Tensor {
	if s.gemma {
		return c.gemmaNorm(n, x)
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

func readDecoder(c *Config, r Run) *decoder {
	s := &decoder{
		h: c.Int(required, "hidden_size"), inner: c.Int(required, "intermediate_size"), layers: c.Int(required, "num_hidden_layers"),
		heads: c.Int(required, "num_attention_heads"), vocab: c.Int(required, "vocab_size"),
		act: c.Str("silu", "hidden_act", "hidden_activation"), tied: c.Bool(false, "tie_word_embeddings"),
		attnDrop: c.Float(0, "attention_dropout"),
	}
	s.kv = c.Int(s.heads, "num_key_value_heads")
	s.d = c.Int(s.h/max(s.heads, 1), "head_dim")
	c.divides(s.heads, s.kv, "num_attention_heads by num_key_value_heads")
	if !c.Has("head_dim") {
		c.divides(s.h, s.heads, "hidden_size by num_attention_heads")
	}
	s.readWindow(c)
	return s
}

// readWindow finds which layers attend to a sliding window.
func (s *decoder) readWindow(c *Config) {
	types := c.Strings("layer_types")
	switch {
	case c.Type() == "mistral" || c.Type() == "mixtral" || c.Type() == "qwen3_moe":
		s.window = c.Count(0, "sliding_window")
	case slices.Contains(types, "sliding_attention"):
		s.window = c.Count(0, "sliding_window")
		s.sliding = make([]bool, s.layers)
		for i := range s.sliding {
			s.sliding[i] = i < len(types) && types[i] == "sliding_attention"
		}
	}
	s.bothMasks = c.Type() == "qwen2_moe"
}

// llama is LlamaForCausalLM and those that differ by a switch.
func llama(c *Config, r Run) (*Model, error) {
	s := readDecoder(c, r)
	switch c.Type() {
	case "qwen2":
		s.qkvBias = true
	case "qwen3":
		s.headNorm = true
		s.qkvBias = c.Bool(false, "attention_bias")
		s.outBias = s.qkvBias
	default:
		s.qkvBias = c.Bool(false, "attention_bias")
		s.outBias = s.qkvBias
		s.mlpBias = c.Bool(false, "mlp_bias")
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	return s.model(r), nil
}

func (s *decoder) model(r Run) *Model {
	root := tape.NewModule()
	body := root.Child("model")
	em := body.Child("embed_tokens")
	table := em.Param("weight", s.vocab, s.h)
	if s.gemma {
		em.Buffer(tape.F32, 1)
	}
	setDefault(&s.rot, s.d)
	var blocks []*decoderBlock
	list := body.Child("layers")
	for i := range s.layers {
		b := s.block(list.Child(fmt.Sprint(i)))
		b.slides = s.window > 0 && (s.sliding == nil || s.sliding[i])
		blocks = append(blocks, b)
	}
	final := rmsNorm(body, "norm", s.h)
	rot := body.Child("rotary_emb")
	for range s.tables() {
		rot.Buffer(tape.F32, s.rot/2)
		rot.Buffer(tape.F32, s.rot/2)
	}
	head := causalHead(root, "lm_head", table, s.tied, s.vocab, s.h)
	loss := func(g *tape.Graph, in []*tape.Tensor) *tape.Tensor {
		x := newCtx(g, r)
		x.softcap = s.finalCap
		return x.causalLM(in[0], head, func() *tape.Tensor { return s.run(x, in[0], table, blocks, final) })
	}
	return &Model{Root: root, Inputs: tokenInputs(r), Loss: loss, Layers: s.layers, Run: r}
}

// tables is the number of rotary tables.
func (s *decoder) tables() int {
	if s.twoTables {
		return 2
	}
	return 1
}

func setDefault(v *int64, def int64) {
	if *v == 0 {
		*v = def
	}
}

func (s *decoder) block(m *tape.Module) *decoderBlock {
	b := &decoderBlock{spec: s}
	a := m.Child("self_attn")
	if s.fused {
		b.o, b.qkv = linear(a, "o_proj", s.heads*s.d, s.h, false), linear(a, "qkv_proj", s.h, (s.heads+2*s.kv)*s.d, false)
		mlp := m.Child("mlp")
		b.gateUp, b.down = linear(mlp, "gate_up_proj", s.h, 2*s.inner, false), linear(mlp, "down_proj", s.inner, s.h, false)
		b.norm1, b.norm2 = rmsNorm(m, "input_layernorm", s.h), rmsNorm(m, "post_attention_layernorm", s.h)
		return b
	}
	b.q, b.k, b.v = linear(a, "q_proj", s.h, s.heads*s.d, s.qkvBias), linear(a, "k_proj", s.h, s.kv*s.d, s.qkvBias), linear(a, "v_proj", s.h, s.kv*s.d, s.qkvBias)
	b.o = linear(a, "o_proj", s.heads*s.d, s.h, s.outBias)
	if s.headNorm {
		b.qNorm, b.kNorm = rmsNorm(a, "q_norm", s.d), rmsNorm(a, "k_norm", s.d)
	}
	if s.experts != nil {
		b.moe = s.experts.build(m.Child("mlp"), s.h)
		b.norm1, b.norm2 = rmsNorm(m, "input_layernorm", s.h), rmsNorm(m, "post_attention_layernorm", s.h)
		return b
	}
	mlp := m.Child("mlp")
	b.gate, b.up, b.down = linear(mlp, "gate_proj", s.h, s.inner, s.mlpBias), linear(mlp, "up_proj", s.h, s.inner, s.mlpBias), linear(mlp, "down_proj", s.inner, s.h, s.mlpBias)
	b.norm1 = rmsNorm(m, "input_layernorm", s.h)
	if s.sandwich {
		b.post1 = rmsNorm(m, "post_attention_layernorm", s.h)
		b.norm2, b.post2 = rmsNorm(m, "pre_feedforward_layernorm", s.h), rmsNorm(m, "post_feedforward_layernorm", s.h)
		return b
	}
	b.norm2 = rmsNorm(m, "post_attention_layernorm", s.h)
	return b
}

func (s *decoder) run(c *ctx, ids *tape.Tensor, table *tape.Param, blocks []*decoderBlock, final norm) *tape.Tensor {
	f := c.Enter()
	var e, pos, mask, near, h, cos, sin, cos2, sin2 *tape.Tensor
	b, n := ids.Shape[0], ids.Shape[1]
	c.In("embedding", func() {
		f.Set(&e, s.embed(c, ids, table))
		f.Set(&pos, c.positions(n))
		if s.window == 0 || s.sliding != nil {
			f.Set(&mask, c.causalMask(b, n, e.DType))
		}
		if s.window > 0 || s.bothMasks {
			f.Set(&near, c.slidingMask(b, n, s.window, e.DType))
		}
		f.Set(&h, e)
		co, si := c.rotaryTable(rotary{s.rot}, pos, h.DType)
		f.Set(&cos, co)
		f.Set(&sin, si)
		if s.twoTables {
			co, si = c.rotaryTable(rotary{s.rot}, pos, h.DType)
			f.Set(&cos2, co)
			f.Set(&sin2, si)
		}
	})
	for i, blk := range blocks {
		m, co, si := mask, cos, sin
		if blk.slides {
			m = near
			if s.twoTables {
				co, si = cos2, sin2
			}
		}
		f.Set(&h, c.layer(fmt.Sprintf("layers.%d", i), func(a []*tape.Tensor) *tape.Tensor { return blk.run(c, a[0], a[1], a[2], a[3]) }, h, co, si, m, pos))
	}
	c.In("norm", func() { f.Set(&h, s.norm(c, final, h)) })
	return f.Leave(h)
}

// embed looks tokens up; Gemma multiplies by the square root of the width.
func (s *decoder) embed(c *ctx, ids *tape.Tensor, table *tape.Param) *tape.Tensor {
	e := c.Embedding(ids, table)
	if !s.gemma {
		return e
	}
	return c.Mul(e, c.Borrow(e.DType))
}

func (b *decoderBlock) run(c *ctx, x, cos, sin, mask *tape.Tensor) *tape.Tensor {
	f := c.Enter()
	s := b.spec
	var res, h, weights *tape.Tensor
	f.Set(&res, x)
	f.Set(&h, s.norm(c, b.norm1, x))
	o, w := b.attend(c, h, cos, sin, mask)
	f.Set(&h, o)
	f.Set(&weights, w)
	if s.sandwich {
		f.Set(&h, s.norm(c, b.post1, h))
	}
	f.Set(&h, c.Add(res, c.Dropout(h, s.resDrop)))
	f.Set(&res, h)
	f.Set(&h, s.norm(c, b.norm2, h))
	f.Set(&h, b.mlp(c, h))
	if s.sandwich {
		f.Set(&h, s.norm(c, b.post2, h))
	}
	f.Set(&h, c.Add(res, c.Dropout(h, s.resDrop)))
	return f.Leave(h)
}

func (b *decoderBlock) attend(c *ctx, x, cos, sin, mask *tape.Tensor) (out, weights *tape.Tensor) {
	f := c.Enter(x)
	s := b.spec
	var qkv, q, k, v, o, w *tape.Tensor
	if s.fused {
		f.Set(&qkv, b.qkv.run(c.Graph, x))
		f.Set(&q, c.Slice(qkv, -1, s.heads*s.d))
		f.Set(&k, c.Slice(qkv, -1, s.kv*s.d))
		f.Set(&v, c.Slice(qkv, -1, s.kv*s.d))
		f.Set(&q, heads(c.Graph, q, s.d))
		f.Set(&k, heads(c.Graph, k, s.d))
		f.Set(&v, heads(c.Graph, v, s.d))
	} else {
		f.Set(&q, b.project(c, b.q, b.qNorm, x))
		f.Set(&k, b.project(c, b.k, b.kNorm, x))
		f.Set(&v, b.project(c, b.v, norm{}, x))
	}
	if s.gemma && s.headNorm {
		f.Set(&q, s.norm(c, b.qNorm, q))
		f.Set(&k, s.norm(c, b.kNorm, k))
	}
	var rq, rk *tape.Tensor
	if s.fused {
		rq, rk = c.rotatePart(q, k, cos, sin, s.rot, false)
	} else {
		rq, rk = c.rotateBoth(q, k, cos, sin)
	}
	f.Set(&q, rq)
	f.Set(&k, rk)
	c.kvWindow = b.slides
	ck, cv := c.cached(k, v)
	f.Set(&k, ck)
	f.Set(&v, cv)
	a, p := c.attend(attention{dropout: s.attnDrop, groups: s.heads / s.kv, upcast: true, causal: true, softcap: s.softcap}, q, k, v, mask)
	f.Set(&o, a)
	f.Set(&w, p)
	f.Set(&o, c.Reshape(o, o.Shape[0], o.Shape[1], s.heads*s.d))
	f.Set(&o, b.o.run(c.Graph, o))
	out, weights = o, w
	f.Leave(out, weights)
	return out, weights
}

// project makes the heads of q, k or v; Qwen3 normalises them before they are transposed.
func (b *decoderBlock) project(c *ctx, l lin, n norm, x *tape.Tensor) *tape.Tensor {
	s := b.spec
	y := l.run(c.Graph, x)
	if n.w == nil || s.gemma {
		return heads(c.Graph, y, s.d)
	}
	return c.Transpose(n.rms(c.Graph, c.View(y, y.Shape[0], y.Shape[1], -1, s.d)), 1, 2)
}

func (b *decoderBlock) mlp(c *ctx, x *tape.Tensor) *tape.Tensor {
	if b.moe != nil {
		return b.moe.run(c, x)
	}
	f := c.Enter(x)
	if b.spec.fused {
		var up, gate *tape.Tensor
		f.Set(&up, b.gateUp.run(c.Graph, x))
		parts := c.Split(up, -1, b.spec.inner, b.spec.inner)
		f.Set(&gate, parts[0])
		f.Set(&up, parts[1])
		f.Set(&up, c.Mul(up, c.Activation(b.spec.act, gate)))
		return f.Leave(b.down.run(c.Graph, up))
	}
	return f.Leave(b.down.run(c.Graph, c.Mul(c.Activation(b.spec.act, b.gate.run(c.Graph, x)), b.up.run(c.Graph, x))))
}

// gemma is Gemma, Gemma 2 and Gemma 3 for causal language modelling.
func gemma(c *Config, r Run) (*Model, error) {
	s := readDecoder(c, r)
	s.gemma = true
	s.tied = c.Bool(true, "tie_word_embeddings")
	s.act = c.Str("gelu_pytorch_tanh", "hidden_activation", "hidden_act")
	if c.Type() == "gemma" {
		s.act = c.Str("gelu_pytorch_tanh", "hidden_act")
	}
	s.qkvBias = c.Bool(false, "attention_bias")
	s.outBias = s.qkvBias
	if c.Type() != "gemma" {
		s.sandwich = true
		s.window = c.Count(4096, "sliding_window")
		s.sliding = slidingLayers(c, s.layers)
		s.softcap = c.Has("attn_logit_softcapping") || c.Type() == "gemma2" && !c.Has("layer_types")
		s.finalCap = c.Has("final_logit_softcapping") || c.Type() == "gemma2" && !c.Has("layer_types")
	}
	if c.Type() == "gemma3_text" || c.Type() == "gemma3" {
		s.headNorm, s.twoTables = true, true
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	return s.model(r), nil
}

// slidingLayers reads layer_types, or alternates as the library does.
func slidingLayers(c *Config, layers int64) []bool {
	out := make([]bool, layers)
	types := c.Strings("layer_types")
	every := int64(2)
	if c.Type() != "gemma2" {
		every = c.Int(6, "sliding_window_pattern", "_sliding_window_pattern")
	}
	for i := range out {
		if i < len(types) {
			out[i] = types[i] == "sliding_attention"
		} else {
			out[i] = (int64(i)+1)%every != 0
		}
	}
	return out
}

// phi3 is Phi3ForCausalLM.
func phi3(c *Config, r Run) (*Model, error) {
	s := readDecoder(c, r)
	s.fused = true
	s.resDrop = c.Float(0, "resid_pdrop")
	s.window = c.Count(0, "sliding_window")
	s.rot = int64(float64(s.d) * ropeFactor(c, 1))
	if err := c.Err(); err != nil {
		return nil, err
	}
	return s.model(r), nil
}
