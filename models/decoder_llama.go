package models

import (
	"fmt"
	"slices"

	"memroom/tape"
)

// layout is where a decoder block has its norms and what its MLP reads.
type layout uint8

const (
	preNorm      layout = iota // Llama: a norm before attention and before the MLP
	postNorm                   // OLMo 2: norms after them only
	sandwich                   // Gemma 2, GLM-4: before and after
	sideBySide                 // Cohere: attention and MLP read the same norm
	stablePre                  // StableLM: as Llama, with other variables
	stableInLine               // StableLM with use_parallel_residual
)

// decoder is the Llama kind of decoder with the switches in which its relatives differ.
type decoder struct {
	h, inner, heads, kv, d, layers, vocab int64
	act                                   string
	qkvBias, outBias, mlpBias             bool
	norms                                 normKind
	layout                                layout
	headNorm                              headNorm
	tied                                  bool
	attnDrop, resDrop                     float64
	// dropout inside attention and MLP, and of the embeddings
	innerDrop, embDrop float64
	window             int64  // sliding window, 0 is none
	sliding            []bool // which layers slide; nil is all of them
	turned             []bool // which layers rotate q and k; nil is all of them
	embedScale         embedScale
	// a number multiplies what is added to the residual, the logits
	resScale, logitScale bool
	softcap, finalCap    bool
	bothMasks            bool // the sliding mask is built even if no layer uses it
	twoTables            bool // a rotary table for each kind of layer
	fusedQKV, fusedMLP   bool // one projection for q, k, v; one for gate and up
	plainMLP             bool // no gate
	mlpNames             [2]string
	lateHeads            bool // q, k and v are split into heads after all three exist
	rotation             rotation
	rot                  int64   // rotated part of a head, if not all
	wideTable            bool    // cos and sin stay in fp32
	halfTable            bool    // cos and sin have half the width of a head
	complexTable         bool    // one table of complex numbers
	sinks                bool    // gpt-oss: a learnt score of each head in the softmax
	latent               *latent // DeepSeek's attention instead of q, k and v
	experts              *moe
	expertsName          string
	dense                int64 // the first layers have an MLP instead of experts
}

// embedScale is how embeddings are scaled.
type embedScale uint8

const (
	unscaled   embedScale = iota
	byTensor              // Gemma: times a buffer, inside the embedding
	byConstant            // Granite: times a number
)

type decoderBlock struct {
	spec           *decoder
	q, k, v, o     lin
	gate, up, down lin
	norm1, norm2   norm
	qNorm, kNorm   norm
	qNorms, kNorms []norm // one a head
	post1, post2   norm
	qkv, gateUp    lin
	slides, still  bool // attends to a window; does not rotate
	index          int64
	moe            *moeBlock
	latent         *latentBlock
	sinks          *tape.Param
}

func readDecoder(c *Config, r Run) *decoder {
	s := &decoder{
		h: c.Int(required, "hidden_size"), inner: c.Int(required, "intermediate_size"),
		layers: c.Int(required, "num_hidden_layers"),
		heads:  c.Int(required, "num_attention_heads"), vocab: c.Int(required, "vocab_size"),
		act:      c.Str("silu", "hidden_act", "hidden_activation"),
		tied:     c.Bool(false, "tie_word_embeddings"),
		attnDrop: c.Float(0, "attention_dropout"), mlpNames: [2]string{"up_proj", "down_proj"},
		expertsName: "mlp",
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

func (s *decoder) model(r Run) *Model {
	parts := s.parts()
	s.divide(r.Division)
	rows, headRows := s.words(r.Division)
	root := tape.NewModule()
	body := root.Child("model")
	var table *tape.Param
	if r.first() {
		em := body.Child("embed_tokens")
		table = em.Param("weight", rows, s.h)
		if s.embedScale == byTensor {
			em.Buffer(tape.F32, 1)
		}
	}
	setDefault(&s.rot, s.d)
	var blocks []*decoderBlock
	list := body.Child("layers")
	from, to := int64(0), s.layers
	if r.Stages > 1 {
		from, to = r.Stage*s.layers/r.Stages, (r.Stage+1)*s.layers/r.Stages
	}
	for i := from; i < to; i++ {
		b := s.block(list.Child(fmt.Sprint(i)), s.experts != nil && i >= s.dense)
		b.slides = s.window > 0 && (s.sliding == nil || s.sliding[i])
		b.still = s.turned != nil && !s.turned[i]
		b.index = i
		blocks = append(blocks, b)
	}
	var final norm
	if r.last() {
		final = s.norms.build(body, "norm", s.h)
	}
	rot := body.Child("rotary_emb")
	for range s.tables() {
		rot.Buffer(tape.F32, s.rot/2)
		rot.Buffer(tape.F32, s.rot/2)
	}
	var head lin
	if r.last() { // of a stage of its own it is no view of the embedding; nor of one of another size
		head = causalHead(root, r, table, s.tied && r.first() && rows == headRows, headRows, s.h)
	}
	loss := func(g *tape.Graph, in []*tape.Tensor) *tape.Tensor {
		x := newCtx(g, r)
		x.softcap, x.scaled = s.finalCap, s.logitScale
		source := in[0]
		if !r.first() { // what the stage before sent comes last
			source = in[len(in)-1]
		}
		body := func() *tape.Tensor { return s.run(x, source, table, blocks, final) }
		if !r.last() {
			return body()
		}
		return x.causalLM(in, head, body)
	}
	return &Model{Root: root, Inputs: tokenInputs(r), Loss: loss, Layers: s.layers, Run: r,
		Head: r.causalHead(), Parts: parts, Width: s.h}
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

func (s *decoder) block(m *tape.Module, mixes bool) *decoderBlock {
	b := &decoderBlock{spec: s}
	a := m.Child("self_attn")
	switch {
	case s.latent != nil:
		b.latent = s.latent.build(a, s.h, s.heads)
	case s.fusedQKV:
		b.o, b.qkv = linear(a, "o_proj", s.heads*s.d, s.h, false),
			linear(a, "qkv_proj", s.h, (s.heads+2*s.kv)*s.d, false)
	default:
		b.q, b.k, b.v = linear(a, "q_proj", s.h, s.heads*s.d, s.qkvBias),
			linear(a, "k_proj", s.h, s.kv*s.d, s.qkvBias), linear(a, "v_proj", s.h, s.kv*s.d,
				s.qkvBias)
		b.o = linear(a, "o_proj", s.heads*s.d, s.h, s.outBias)
	}
	s.buildHeadNorms(a, b)
	if s.sinks {
		b.sinks = a.Param("sinks", s.heads)
	}
	if !mixes {
		s.buildMLP(m.Child("mlp"), b)
		s.buildNorms(m, b)
		return b
	}
	if s.expertsName != "mlp" { // Granite registers its norms first
		s.buildNorms(m, b)
	}
	b.moe = s.experts.build(m.Child(s.expertsName), s.h)
	if s.expertsName == "mlp" {
		s.buildNorms(m, b)
	}
	return b
}

func (s *decoder) buildMLP(m *tape.Module, b *decoderBlock) {
	switch {
	case s.fusedMLP:
		b.gateUp, b.down = linear(m, "gate_up_proj", s.h, 2*s.inner, false),
			linear(m, "down_proj", s.inner, s.h, false)
	case s.plainMLP:
		b.up, b.down = linear(m, s.mlpNames[0], s.h, s.inner, s.mlpBias),
			linear(m, s.mlpNames[1], s.inner, s.h, s.mlpBias)
	default:
		b.gate = linear(m, "gate_proj", s.h, s.inner, s.mlpBias)
		b.up, b.down = linear(m, "up_proj", s.h, s.inner, s.mlpBias),
			linear(m, "down_proj", s.inner, s.h, s.mlpBias)
	}
}

func (s *decoder) run(c *ctx, ids *tape.Tensor, table *tape.Param, blocks []*decoderBlock,
	final norm) *tape.Tensor {
	f := c.Enter()
	var e, pos, mask, near, h, cos, sin, cos2, sin2 *tape.Tensor
	b, n := ids.Shape[0], ids.Shape[1]
	if !c.first() && c.Tensor > 1 && c.Division.Sequence { // activations, whose tokens are cut
		n *= c.Tensor
	}
	c.In("embedding", func() {
		if c.first() {
			f.Set(&e, s.embed(c, ids, table))
		} else {
			f.Set(&e, ids)
		}
		if s.embedScale == byConstant && c.first() {
			f.Set(&e, c.Scale(e))
		}
		f.Set(&pos, c.positions(n))
		if s.window == 0 || s.sliding != nil {
			f.Set(&mask, c.causalMask(b, n, e.DType))
		}
		if s.window > 0 || s.bothMasks {
			f.Set(&near, c.slidingMask(b, n, s.window, e.DType))
		}
		f.Set(&h, e)
		f.Set(&h, c.Dropout(h, s.embDrop))
		as := h.DType
		if s.wideTable {
			as = tape.F32
		}
		if s.complexTable {
			f.Set(&cos, c.complexTable(rotary{dim: s.rot}, pos))
			return
		}
		f.Pair(&cos, &sin)(c.rotaryTable(rotary{dim: s.rot, half: s.halfTable}, pos, as))
		if s.twoTables {
			f.Pair(&cos2, &sin2)(c.rotaryTable(rotary{dim: s.rot, half: s.halfTable}, pos, as))
		}
	})
	for _, blk := range blocks {
		m, co, si := mask, cos, sin
		if blk.slides {
			m = near
			if s.twoTables {
				co, si = cos2, sin2
			}
		}
		f.Set(&h, c.layer(fmt.Sprintf("layers.%d", blk.index),
			func(a []*tape.Tensor) *tape.Tensor { return blk.run(c, a[0], a[1], a[2], a[3]) }, h,
			co, si, m, pos))
	}
	if c.last() {
		c.In("norm", func() { f.Set(&h, s.norms.run(c, final, h)) })
	}
	return f.Leave(h)
}

// embed looks tokens up; Gemma multiplies by the square root of the width.
func (s *decoder) embed(c *ctx, ids *tape.Tensor, table *tape.Param) *tape.Tensor {
	parts := int64(1)
	if !c.WholeWords {
		parts = max(c.Tensor, 1)
	}
	e := c.EmbeddingCut(ids, table, parts)
	if !c.WholeWords || c.Division.Sequence { // each rank looked up its own words, or cuts the tokens
		e = c.outOf(e)
	}
	if s.embedScale != byTensor {
		return e
	}
	return c.Mul(e, c.Borrow(e.DType))
}

func (b *decoderBlock) run(c *ctx, x, cos, sin, mask *tape.Tensor) *tape.Tensor {
	switch b.spec.layout {
	case sideBySide, stablePre, stableInLine:
		return b.runAside(c, x, cos, sin, mask)
	}
	f := c.Enter()
	s := b.spec
	var res, h, weights *tape.Tensor
	add := func() {
		f.Set(&h, c.Dropout(h, s.resDrop))
		if s.resScale {
			f.Set(&h, c.Add(res, c.Scale(h)))
		} else {
			f.Set(&h, c.Add(res, h))
		}
	}
	f.Set(&res, x)
	f.Set(&h, x)
	if s.layout != postNorm {
		f.Set(&h, s.norms.run(c, b.norm1, x))
	}
	f.Pair(&h, &weights)(b.attend(c, h, cos, sin, mask))
	if s.layout != preNorm {
		f.Set(&h, s.norms.run(c, b.post1, h))
	}
	add()
	f.Set(&res, h)
	if s.layout != postNorm {
		f.Set(&h, s.norms.run(c, b.norm2, h))
	}
	f.Set(&h, b.mlp(c, h))
	if s.sinks { // the variable of the attention weights now holds the router's scores
		f.Set(&weights, nil)
	}
	if s.layout != preNorm {
		f.Set(&h, s.norms.run(c, b.post2, h))
	}
	add()
	return f.Leave(h)
}

// runAside is a block whose attention and MLP results are variables of their own.
func (b *decoderBlock) runAside(c *ctx, x, cos, sin, mask *tape.Tensor) *tape.Tensor {
	f := c.Enter()
	s := b.spec
	var res, h, att, weights, ff *tape.Tensor
	f.Set(&res, x)
	f.Set(&h, s.norms.run(c, b.norm1, x))
	f.Pair(&att, &weights)(b.attend(c, h, cos, sin, mask))
	if s.layout == stablePre {
		f.Set(&res, c.Add(res, att))
		f.Set(&ff, b.mlp(c, s.norms.run(c, b.norm2, res)))
		f.Set(&ff, c.Dropout(ff, s.resDrop))
		f.Set(&h, c.Add(res, ff))
		return f.Leave(h)
	}
	f.Set(&ff, b.mlp(c, h))
	f.Set(&ff, c.Dropout(ff, s.resDrop))
	f.Set(&h, c.Add(c.Add(res, att), ff))
	return f.Leave(h)
}

func (b *decoderBlock) attend(c *ctx, x, cos, sin, mask *tape.Tensor) (out, weights *tape.Tensor) {
	if c.Tensor < 2 {
		return b.attendHeads(c, x, cos, sin, mask)
	}
	f := c.Enter(x)
	var whole, o, w *tape.Tensor
	f.Set(&whole, c.into(x))
	a, p := b.attendHeads(c, whole, cos, sin, mask)
	f.Set(&w, p)
	f.Set(&o, c.outOf(a))
	return f.Both(o, w)
}

// attendHeads is attention over the heads that are here.
func (b *decoderBlock) attendHeads(c *ctx, x, cos, sin, mask *tape.Tensor) (out,
	weights *tape.Tensor) {
	if b.latent != nil {
		return b.latent.attend(c, x, cos, sin, mask, b.spec.attnDrop)
	}
	f := c.Enter(x)
	s := b.spec
	var qkv, q, k, v, o, w *tape.Tensor
	if s.fusedQKV {
		f.Set(&qkv, b.qkv.run(c.Graph, x))
		f.Set(&q, c.Slice(qkv, -1, s.heads*s.d))
		f.Set(&k, c.Slice(qkv, -1, s.kv*s.d))
		f.Set(&v, c.Slice(qkv, -1, s.kv*s.d))
		f.Set(&q, heads(c.Graph, q, s.d))
		f.Set(&k, heads(c.Graph, k, s.d))
		f.Set(&v, heads(c.Graph, v, s.d))
	} else {
		b.project(c, f, x, &q, &k, &v)
	}
	if !b.still {
		s.rotation.run(c, f, &q, &k, cos, sin, s.rot)
	}
	if s.headNorm == afterRotation {
		f.Set(&q, s.norms.run(c, b.qNorm, q))
		f.Set(&k, s.norms.run(c, b.kNorm, k))
	}
	c.kvWindow = b.slides
	f.Pair(&k, &v)(c.cached(k, v))
	how := attention{dropout: s.attnDrop, groups: s.heads / s.kv, upcast: true, causal: true,
		softcap: s.softcap}
	var a, p *tape.Tensor
	if b.sinks != nil && c.Attn == "eager" {
		a, p = c.eagerSinks(how, q, k, v, mask, b.sinks)
	} else {
		a, p = c.attend(how, q, k, v, mask)
	}
	f.Set(&o, a)
	f.Set(&w, p)
	f.Set(&o, c.Contiguous(c.Reshape(o, o.Shape[0], o.Shape[1], s.heads*s.d)))
	f.Set(&o, b.o.run(c.Graph, o))
	f.Set(&o, c.Dropout(o, s.innerDrop))
	return f.Both(o, w)
}

func (b *decoderBlock) mlp(c *ctx, x *tape.Tensor) *tape.Tensor {
	if c.Tensor < 2 {
		return b.mlpPart(c, x)
	}
	f := c.Enter(x)
	var whole *tape.Tensor
	f.Set(&whole, c.into(x))
	return f.Leave(c.outOf(b.mlpPart(c, whole)))
}

// mlpPart is the MLP as far as it is here.
func (b *decoderBlock) mlpPart(c *ctx, x *tape.Tensor) *tape.Tensor {
	if b.moe != nil {
		return b.moe.run(c, x)
	}
	f := c.Enter(x)
	s := b.spec
	var h, gate *tape.Tensor
	switch {
	case s.fusedMLP:
		f.Set(&h, b.gateUp.run(c.Graph, x))
		parts := c.Split(h, -1, s.inner, s.inner)
		f.Set(&gate, parts[0])
		f.Set(&h, parts[1])
		f.Set(&h, c.Mul(h, c.Activation(s.act, gate)))
		return f.Leave(b.down.run(c.Graph, h))
	case s.plainMLP && s.mlpNames[0] == "up_proj": // one expression
		return f.Leave(b.down.run(c.Graph, c.Activation(s.act, b.up.run(c.Graph, x))))
	case s.plainMLP:
		f.Set(&h, b.up.run(c.Graph, x))
		f.Set(&h, c.Activation(s.act, h))
		f.Set(&h, b.down.run(c.Graph, h))
	default:
		f.Set(&h, b.down.run(c.Graph, c.Mul(c.Activation(s.act, b.gate.run(c.Graph, x)),
			b.up.run(c.Graph, x))))
	}
	f.Set(&h, c.Dropout(h, s.innerDrop))
	return f.Leave(h)
}
