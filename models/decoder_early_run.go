package models

import (
	"fmt"

	"memroom/tape"
)

// shared is what every layer of an early decoder is handed next to its input, and what lives as
// long.
type shared struct{ alibi, mask, cos, sin, pos, words, places *tape.Tensor }

func (m *earlyModel) run(c *ctx, ids *tape.Tensor) *tape.Tensor {
	f := c.Enter()
	var h, weights *tape.Tensor
	var in shared
	c.In("embedding", func() { m.embedding(c, f, ids, &h, &in) })
	held := in
	if m.family == "gpt_bigcode" {
		held.pos = nil
	}
	for i, blk := range m.blocks {
		var w *tape.Tensor
		out := c.layer(fmt.Sprintf("%s.%d", m.list, i), func(a []*tape.Tensor) *tape.Tensor {
			var y *tape.Tensor
			y, w = blk.run(c, a[0], shared{alibi: a[1], mask: a[2], cos: a[3], sin: a[4]})
			return y
		}, h, held.alibi, held.mask, held.cos, held.sin, held.pos)
		// a block's result may be a tuple, which holds the probabilities until the next block has run
		f.Set(&weights, w)
		f.Set(&h, out)
	}
	if !m.bare {
		c.In(m.finalName(), func() { f.Set(&h, m.final.layer(c.Graph, h)) })
	}
	if m.out.w != nil {
		f.Set(&h, m.out.run(c.Graph, h))
	}
	if m.writtenOut() {
		return f.Leave(c.View(h, -1, ids.Shape[1], m.h))
	}
	return f.Leave(h)
}

// embedding makes the first hidden states, and what every layer shares.
func (m *earlyModel) embedding(c *ctx, f *tape.Frame, ids *tape.Tensor, h **tape.Tensor,
	in *shared) {
	b, n := ids.Shape[0], ids.Shape[1]
	if c.padID && m.family == "gpt2" {
		c.padTest(b)
	}
	e := f.Set(&in.words, c.Embedding(ids, m.words))
	switch m.family {
	case "opt":
		m.embedOPT(c, f, ids, h, in)
		return
	case "bloom":
		f.Set(h, m.before.layer(c.Graph, e))
		ones := f.Keep(c.Fresh("alibi", tape.F32, b, n))
		f.Set(&in.alibi, c.alibi(ones, m.heads, (*h).DType))
		f.Set(&in.mask, c.onesMask(b, n, e.DType))
		return
	case "mpt":
		f.Set(h, e)
		f.Set(&in.alibi, c.mptAlibi(m.heads, m.npos))
		wide := c.buildMask(causal, b, n, n, e.DType)
		f.Set(&in.mask, c.Fresh("mask", tape.Bool, b, 1, n, n))
		tape.Del(wide)
		return
	case "falcon":
		m.embedFalcon(c, f, ids, h, in)
		return
	}
	f.Set(&in.pos, c.positions(n))
	mask := func() { f.Set(&in.mask, c.causalMask(b, n, e.DType)) }
	if m.family != "gpt2" {
		mask()
	}
	if m.places != nil {
		f.Set(&in.places, c.Embedding(in.pos, m.places))
		f.Set(h, c.Add(e, in.places))
	} else {
		f.Set(h, e)
	}
	if m.family == "gpt2" {
		mask()
	}
	f.Set(h, c.Dropout(*h, m.embDrop))
	if m.family == "phi" { // names what is dropped as the embedding
		f.Set(&in.words, *h)
	}
	if m.family == "gpt_neox" || m.family == "phi" {
		cos, sin := c.rotaryTable(rotary{dim: m.rot}, in.pos, (*h).DType)
		f.Set(&in.cos, cos)
		f.Set(&in.sin, sin)
	}
}

func (m *earlyModel) embedOPT(c *ctx, f *tape.Frame, ids *tape.Tensor, h **tape.Tensor,
	in *shared) {
	b, n := ids.Shape[0], ids.Shape[1]
	ones := f.Keep(c.Fresh("positions", tape.F32, b, n))
	f.Set(&in.pos, c.Fresh("positions", tape.F32, b, n))
	x := c.AddScalar(c.Mul(in.pos, ones))
	long := c.Fresh("positions", tape.I64, b, n)
	tape.Del(x)
	f.Set(&in.pos, long)
	f.Set(&in.mask, c.onesMask(b, n, in.words.DType))
	f.Set(&in.places, c.Embedding(c.AddScalar(in.pos), m.places))
	if m.in.w != nil {
		f.Set(&in.words, m.in.run(c.Graph, in.words))
	}
	f.Set(h, c.Add(in.words, in.places))
}

func (m *earlyModel) embedFalcon(c *ctx, f *tape.Frame, ids *tape.Tensor, h **tape.Tensor,
	in *shared) {
	b, n, e := ids.Shape[0], ids.Shape[1], in.words
	if m.alibi {
		ones := f.Keep(c.Fresh("alibi", tape.I64, b, n))
		f.Set(&in.alibi, c.falconAlibi(ones, m.heads, e.DType))
	}
	f.Set(&in.pos, c.positions(n))
	f.Set(&in.mask, c.buildMask(causal, b, n, n, e.DType))
	if m.alibi {
		c.biasMask(f, m.heads, &in.mask, &in.alibi)
	}
	f.Set(h, e)
	cos, sin := c.rotaryTable(rotary{dim: m.rot}, in.pos, e.DType)
	f.Set(&in.cos, cos)
	f.Set(&in.sin, sin)
}

// finalName is where the norm after the last layer counts in reports.
func (m *earlyModel) finalName() string {
	switch m.family {
	case "gpt_neox", "phi":
		return "norm"
	case "opt":
		return "final_layer_norm"
	case "mpt":
		return "norm_f"
	}
	return "ln_f"
}

// run is a layer. The probabilities that it returns next to its result are nil where they end with
// it.
func (b *earlyBlock) run(c *ctx, x *tape.Tensor, in shared) (out, weights *tape.Tensor) {
	switch b.family {
	case "gpt_neox":
		return b.runNeoX(c, x, in), nil
	case "opt":
		return b.runOPT(c, x, in), nil
	case "falcon":
		return b.runFalcon(c, x, in)
	case "bloom":
		return b.runBloom(c, x, in)
	case "mpt":
		return b.runMPT(c, x, in)
	}
	f := c.Enter()
	var res, h, att, w, ff *tape.Tensor
	f.Set(&res, x)
	f.Set(&h, b.norm1.layer(c.Graph, x))
	f.Pair(&att, &w)(b.attend(c, h, in))
	inner, outer := b.drop, 0.0
	if b.family == "phi" {
		inner, outer = 0, b.drop
		f.Set(&att, c.Dropout(att, outer))
	}
	if !b.parallel {
		f.Set(&h, c.Add(att, res))
		f.Set(&res, h)
		f.Set(&h, b.norm2.layer(c.Graph, h))
	}
	f.Set(&ff, c.Dropout(c.mlp(b.up, b.down, b.act, inner, h), outer))
	sum := ff
	if b.parallel {
		sum = c.Add(att, ff)
	}
	f.Set(&h, c.Add(res, sum))
	if !b.writtenOut() {
		return f.Leave(h), nil
	}
	return f.Both(h, w)
}

func (b *earlyBlock) runNeoX(c *ctx, x *tape.Tensor, in shared) *tape.Tensor {
	f := c.Enter()
	var att, w, mlp *tape.Tensor
	f.Pair(&att, &w)(b.attend(c, b.norm1.layer(c.Graph, x), in))
	f.Set(&att, c.Dropout(att, b.drop))
	read := x
	if !b.parallel {
		f.Set(&att, c.Add(att, x))
		read = att
	}
	f.Set(&mlp, c.mlp(b.up, b.down, b.act, 0, b.norm2.layer(c.Graph, read)))
	f.Set(&mlp, c.Dropout(mlp, b.drop))
	sum := c.Add(mlp, att)
	if b.parallel {
		sum = c.Add(sum, x)
	}
	return f.Leave(sum)
}

func (b *earlyBlock) runOPT(c *ctx, x *tape.Tensor, in shared) *tape.Tensor {
	f := c.Enter()
	var res, h, w *tape.Tensor
	norm := func(n norm, now bool) {
		if now {
			f.Set(&h, n.layer(c.Graph, h))
		}
	}
	f.Set(&res, x)
	f.Set(&h, x)
	norm(b.norm1, b.first)
	f.Pair(&h, &w)(b.attend(c, h, in))
	f.Set(&h, c.Dropout(h, b.drop))
	f.Set(&h, c.Add(res, h))
	norm(b.norm1, !b.first)
	shape := h.Shape
	f.Set(&h, c.Reshape(h, -1, b.h))
	f.Set(&res, h)
	norm(b.norm2, b.first)
	f.Set(&h, b.up.run(c.Graph, h))
	f.Set(&h, c.Activation(b.act, h))
	f.Set(&h, b.down.run(c.Graph, h))
	f.Set(&h, c.Dropout(h, b.drop))
	f.Set(&h, c.View(c.Add(res, h), shape...))
	norm(b.norm2, !b.first)
	return f.Leave(h)
}

func (b *earlyBlock) runFalcon(c *ctx, x *tape.Tensor, in shared) (out, weights *tape.Tensor) {
	f := c.Enter()
	var res, ln, ln2, att, w, ff, y *tape.Tensor
	f.Set(&res, x)
	f.Set(&ln, b.norm1.layer(c.Graph, x))
	two := b.grouped && b.norms == 2
	if two {
		f.Set(&ln2, b.norm2.layer(c.Graph, x))
	}
	f.Pair(&att, &w)(b.attend(c, ln, in))
	inLine := b.parallel || b.grouped
	switch {
	case two:
	case inLine:
		f.Set(&ln2, ln)
	default:
		f.Set(&res, c.Add(res, c.Dropout(att, b.attnDrop)))
		f.Set(&ln2, b.norm2.layer(c.Graph, res))
	}
	f.Set(&ff, c.mlp(b.up, b.down, b.act, 0, ln2))
	if inLine {
		c.AddInPlace(ff, att)
	}
	f.Set(&y, c.Add(res, c.Dropout(ff, b.drop)))
	return f.Both(y, w)
}

func (b *earlyBlock) runBloom(c *ctx, x *tape.Tensor, in shared) (out, weights *tape.Tensor) {
	f := c.Enter()
	var ln, res, att, w, h *tape.Tensor
	norm := func(n norm, x *tape.Tensor) {
		f.Set(&ln, n.layer(c.Graph, x))
		f.Set(&res, x)
		if b.post {
			f.Set(&res, ln)
		}
	}
	norm(b.norm1, x)
	f.Pair(&att, &w)(b.attendBloom(c, ln, res, in))
	norm(b.norm2, att)
	g := c.Enter(ln, res)
	g.Set(&h, c.BloomGelu(b.up.run(c.Graph, ln)))
	out = g.Leave(c.Add(res, c.Dropout(g.Keep(b.down.run(c.Graph, h)), b.drop)))
	weights = w
	return f.Both(out, weights)
}

func (b *earlyBlock) runMPT(c *ctx, x *tape.Tensor, in shared) (out, weights *tape.Tensor) {
	f := c.Enter()
	var ln, res, att, w, h, y *tape.Tensor
	f.Set(&ln, b.norm1.layer(c.Graph, x))
	f.Set(&res, x)
	f.Pair(&att, &w)(b.attendMPT(c, ln, in))
	f.Set(&res, c.Add(c.Dropout(att, b.drop), res))
	f.Set(&ln, b.norm2.layer(c.Graph, res))
	g := c.Enter(ln, res)
	g.Set(&h, c.Activation("gelu", b.up.run(c.Graph, ln)))
	g.Set(&y, c.Dropout(g.Keep(b.down.run(c.Graph, h)), b.drop))
	out = g.Leave(c.Add(y, res))
	weights = w
	return f.Both(out, weights)
}
