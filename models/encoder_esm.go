package models

import (
	"fmt"

	"memroom/tape"
)

// esmSpec is ESM-1 and ESM-2, language models of proteins.
type esmSpec struct {
	*encoder
	rotates, rescales bool // rotary positions; embeddings scaled for the masked tokens
}

type esmBlock struct {
	spec         *esmSpec
	q, k, v, o   lin
	up, down     lin
	norm1, norm2 norm
}

// esm is EsmForMaskedLM.
func esm(c *Config, r Run) (*Model, error) {
	s := &esmSpec{encoder: readEncoder(c, Run{})}
	s.vocab, s.npos = c.Int(33, "vocab_size"), c.Int(1026, "max_position_embeddings")
	s.rotates = c.Str("absolute", "position_embedding_type") == "rotary"
	s.rescales = c.Bool(false, "token_dropout")
	before := c.Bool(false, "emb_layer_norm_before")
	if !s.rotates {
		c.longEnough(r.Seq, s.npos-2)
	}
	if c.Bool(false, "is_decoder") || isClassifier(s.arch) || c.Bool(false, "is_folding_model") {
		c.complain("only ESM's masked language model is described")
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	root := tape.NewModule()
	body := root.Child("esm")
	em := body.Child("embeddings")
	word := embedding(em, "word_embeddings", s.vocab, s.h)
	var first norm
	var pos *tape.Param
	if before {
		first = layerNorm(em, "layer_norm", s.h)
	}
	em.Buffer(tape.I64, s.npos)
	if s.rotates {
		body.Child("rotary_embeddings").Buffer(tape.F32, s.h/s.heads/2)
	} else {
		pos = embedding(em, "position_embeddings", s.npos, s.h)
	}
	enc := body.Child("encoder")
	var blocks []*esmBlock
	for i := range s.layers {
		blocks = append(blocks, s.block(enc.Child("layer").Child(fmt.Sprint(i))))
	}
	final := layerNorm(enc, "emb_layer_norm_after", s.h)
	linear(body.Child("contact_head"), "regression", s.layers*s.heads, 1, true)
	h := root.Child("lm_head")
	bias := h.Param("bias", s.vocab)
	dense, ln := linear(h, "dense", s.h, s.h, true), layerNorm(h, "layer_norm", s.h)
	out := lin{w: word}
	if d := h.Child("decoder"); s.tied {
		d.Tie(word)
	} else {
		out.w = d.Param("weight", s.vocab, s.h)
	}
	m := &Model{Root: root, Inputs: maskedInputs(r), Layers: s.layers, Run: r, Head: "ForMaskedLM"}
	m.Loss = func(g *tape.Graph, in []*tape.Tensor) *tape.Tensor {
		x := newCtx(g, r)
		f := g.Enter()
		var last, scores *tape.Tensor
		f.Set(&last, s.run(x, in[0], word, pos, first, blocks, final))
		x.In("lm_head", func() {
			ff := g.Enter(last)
			var y *tape.Tensor
			ff.Set(&y, dense.run(g, last))
			ff.Set(&y, x.erfGelu(y))
			ff.Set(&y, ln.layer(g, y))
			ff.Set(&y, x.logits(func() *tape.Tensor { return g.Add(out.run(g, y), bias.Tensor) }))
			f.Set(&scores, ff.Leave(y))
		})
		var loss *tape.Tensor
		x.In("loss", func() { loss = x.plainLoss(scores, in[0]) })
		return f.Leave(loss)
	}
	return m, nil
}

func (s *esmSpec) block(m *tape.Module) *esmBlock {
	b := &esmBlock{spec: s}
	att := m.Child("attention")
	self := att.Child("self")
	b.q, b.k, b.v = linear(self, "query", s.h, s.h, true), linear(self, "key", s.h, s.h, true),
		linear(self, "value", s.h, s.h, true)
	b.o = linear(att.Child("output"), "dense", s.h, s.h, true)
	b.norm1 = layerNorm(att, "LayerNorm", s.h)
	b.up = linear(m.Child("intermediate"), "dense", s.h, s.inner, true)
	b.down = linear(m.Child("output"), "dense", s.inner, s.h, true)
	b.norm2 = layerNorm(m, "LayerNorm", s.h)
	return b
}

func (s *esmSpec) run(c *ctx, ids *tape.Tensor, word, pos *tape.Param, first norm,
	blocks []*esmBlock, final norm) *tape.Tensor {
	f := c.Enter()
	b, n := ids.Shape[0], ids.Shape[1]
	var e, h, mask, cos, sin *tape.Tensor
	c.In("embeddings", func() { f.Set(&e, s.embed(c, ids, word, pos, first)) })
	f.Set(&mask, c.fullMask(b, n, e.DType))
	if s.rotates {
		at := f.Keep(c.Unsqueeze(c.Fresh("positions", tape.I64, n), 0))
		f.Pair(&cos, &sin)(c.rotaryTable(rotary{dim: s.h / s.heads}, at, e.DType))
	}
	f.Set(&h, e)
	for i, blk := range blocks {
		f.Set(&h, c.layer(fmt.Sprintf("layer.%d", i),
			func(a []*tape.Tensor) *tape.Tensor { return blk.run(c, a[0], a[1], a[2], a[3]) },
			h, mask, cos, sin))
	}
	f.Set(&h, final.layer(c.Graph, h))
	return f.Leave(h)
}

func (s *esmSpec) embed(c *ctx, ids *tape.Tensor, word, pos *tape.Param,
	first norm) *tape.Tensor {
	f := c.Enter()
	var at, words, e *tape.Tensor
	f.Set(&at, c.countedPositions(ids.Shape[0], ids.Shape[1]))
	f.Set(&words, c.Embedding(ids, word))
	f.Set(&e, words)
	if s.rescales {
		hidden := c.Fresh("masked", tape.Bool, ids.Shape[0], ids.Shape[1], 1)
		f.Set(&e, c.MaskedFill(e, hidden))
		share := c.Fresh("masked", tape.F32, ids.Shape[0], 1, 1)
		f.Set(&e, c.Div(c.Scale(e), share))
	}
	if pos != nil {
		f.Set(&e, c.Add(e, c.Embedding(at, pos)))
	}
	if first.w != nil {
		f.Set(&e, first.layer(c.Graph, e))
	}
	return f.Leave(e)
}

func (b *esmBlock) run(c *ctx, x, mask, cos, sin *tape.Tensor) *tape.Tensor {
	f := c.Enter()
	s := b.spec
	var att, w, ln, y *tape.Tensor
	ff := c.Enter()
	ff.Set(&ln, b.norm1.layer(c.Graph, x))
	o, p := b.attend(c, ln, mask, cos, sin)
	var inner *tape.Tensor
	ff.Set(&inner, o)
	ff.Set(&w, p)
	f.Set(&att, ff.Leave(b.output(c, b.o, inner, x, s.drop)))
	ff = c.Enter(att)
	ff.Set(&ln, b.norm2.layer(c.Graph, att))
	up := c.Enter(ln)
	up.Set(&y, b.up.run(c.Graph, ln))
	ff.Set(&y, up.Leave(c.erfGelu(y)))
	return f.Leave(ff.Leave(b.output(c, b.down, y, att, s.drop)))
}

// output is dense, dropout and the sum with the residual.
func (b *esmBlock) output(c *ctx, dense lin, x, residual *tape.Tensor, drop float64) *tape.Tensor {
	f := c.Enter(x, residual)
	var h *tape.Tensor
	f.Set(&h, dense.run(c.Graph, x))
	f.Set(&h, c.Dropout(h, drop))
	f.Set(&h, c.Add(h, residual))
	return f.Leave(h)
}

func (b *esmBlock) attend(c *ctx, x, mask, cos, sin *tape.Tensor) (out, weights *tape.Tensor) {
	f := c.Enter(x)
	s := b.spec
	d := s.h / s.heads
	var q, k, v, o, w *tape.Tensor
	f.Set(&q, heads(c.Graph, b.q.run(c.Graph, x), d))
	f.Set(&k, heads(c.Graph, b.k.run(c.Graph, x), d))
	f.Set(&v, heads(c.Graph, b.v.run(c.Graph, x), d))
	f.Set(&q, c.Scale(q))
	if s.rotates {
		byHalvesWide.run(c, f, &q, &k, cos, sin, d)
	}
	f.Pair(&o, &w)(c.attend(attention{dropout: s.attnDrop, groups: 1, plain: true}, q, k, v, mask))
	f.Set(&o, c.Reshape(o, o.Shape[0], o.Shape[1], s.h))
	return f.Both(o, w)
}

// erfGelu is x * 0.5 * (1 + erf(x / sqrt(2))), written out.
func (c *ctx) erfGelu(x *tape.Tensor) *tape.Tensor {
	f := c.Enter(x)
	return f.Leave(c.Mul(c.Scale(x), c.AddScalar(c.Erf(c.Scale(x)))))
}
