package models

import "memroom/tape"

// attend is attention of the layers that share its outline: projections, positions, the cache,
// scores, the output projection.
func (b *earlyBlock) attend(c *ctx, x *tape.Tensor, in shared) (out, weights *tape.Tensor) {
	f := c.Enter(x)
	var q, k, v, o, w *tape.Tensor
	b.project(c, f, x, &q, &k, &v)
	b.rotate(c, f, &q, &k, in)
	f.Pair(&k, &v)(c.cached(k, v))
	f.Pair(&o, &w)(b.scores(c, q, k, v, in, x.DType))
	f.Set(&o, c.Reshape(o, x.Shape[0], x.Shape[1], b.h))
	f.Set(&o, b.proj.run(c.Graph, o))
	if b.family != "opt" && b.rot == 0 || b.writtenOut() { // the others drop out in the layer
		f.Set(&o, c.Dropout(o, b.drop))
	}
	return f.Both(o, w)
}

// project makes q, k and v with their heads before their positions; GPT-J's and CodeGen's q and k
// have them behind until they are rotated.
func (b *earlyBlock) project(c *ctx, f *tape.Frame, x *tape.Tensor, q, k, v **tape.Tensor) {
	bs, n := x.Shape[0], x.Shape[1]
	put := func(parts ...*tape.Tensor) {
		f.Set(q, parts[0])
		f.Set(k, parts[1])
		f.Set(v, parts[2])
	}
	head := func(t *tape.Tensor) *tape.Tensor { return heads(c.Graph, t, b.d) }
	switch b.family {
	case "gpt2":
		put(c.Split(b.qkv.run(c.Graph, x), 2, b.h, b.h, b.h)...)
		f.Set(k, head(*k))
		f.Set(v, head(*v))
		f.Set(q, head(*q))
	case "gpt_bigcode":
		fused := b.qkv.run(c.Graph, x)
		if b.kv == b.heads {
			put(c.Split(c.Transpose(c.View(fused, bs, n, b.heads, 3*b.d), 1, 2), 3, b.d, b.d,
				b.d)...)
			return
		}
		put(c.Split(c.Unsqueeze(fused, 1), 3, b.h, b.d, b.d)...)
		f.Set(q, c.Transpose(c.View(*q, bs, n, b.heads, b.d), 1, 2))
	case "gpt_neox":
		put(c.Split(f.Keep(heads(c.Graph, b.qkv.run(c.Graph, x), 3*b.d)), -1, b.d, b.d, b.d)...)
	case "falcon":
		put(b.splitFalcon(c, f.Keep(b.qkv.run(c.Graph, x)))...)
		put(c.Transpose(*q, 1, 2), c.Transpose(*k, 1, 2), c.Transpose(*v, 1, 2))
	case "codegen":
		b.projectParts(c, f, x, put)
		split := func(t *tape.Tensor) *tape.Tensor { return c.Reshape(t, bs, n, b.heads, b.d) }
		put(split(*q), split(*k), c.Permute(split(*v), 0, 2, 1, 3))
	case "gptj":
		split := func(t *tape.Tensor) *tape.Tensor { return c.View(t, bs, n, -1, b.d) }
		put(split(b.q.run(c.Graph, x)), split(b.k.run(c.Graph, x)), head(b.v.run(c.Graph, x)))
	case "gpt_neo":
		put(b.q.run(c.Graph, x), b.k.run(c.Graph, x), b.v.run(c.Graph, x))
		put(head(*q), head(*k), head(*v))
	case "opt":
		put(head(c.Scale(b.q.run(c.Graph, x))), b.k.run(c.Graph, x), b.v.run(c.Graph, x))
		f.Set(k, head(*k))
		f.Set(v, head(*v))
	default:
		put(head(b.q.run(c.Graph, x)), head(b.k.run(c.Graph, x)), head(b.v.run(c.Graph, x)))
		if b.qkNorm {
			f.Set(q, b.qnorm.layer(c.Graph, *q))
			f.Set(k, b.knorm.layer(c.Graph, *k))
		}
	}
}

// logicalCores is into how many parts CodeGen's projection is ordered.
const logicalCores = 4

// projectParts is CodeGen's projection: q, v and k of every part stand next to each other, and are
// copied apart.
func (b *earlyBlock) projectParts(c *ctx, f *tape.Frame, x *tape.Tensor,
	put func(...*tape.Tensor)) {
	local := b.h / logicalCores
	qkv := f.Keep(b.qkv.run(c.Graph, x))
	parts := f.Keep(c.Reshape(qkv, x.Shape[0], x.Shape[1], logicalCores, 3*local))
	three := c.Split(parts, -1, local, local, local)
	put(three[0], three[2], three[1])
}

// splitFalcon is _split_heads: q, k and v as [B, S, heads, d].
func (b *earlyBlock) splitFalcon(c *ctx, fused *tape.Tensor) []*tape.Tensor {
	f := c.Enter()
	bs, n := fused.Shape[0], fused.Shape[1]
	var all *tape.Tensor
	var q, k, v *tape.Tensor
	switch {
	case b.grouped:
		group := b.heads / b.kv
		f.Set(&all, c.View(fused, bs, n, b.kv, group+2, b.d))
		var qs, ks, vs *tape.Tensor
		f.Set(&qs, c.Slice(all, 3, group))
		f.Set(&ks, c.IndexOne(all, 3))
		f.Set(&vs, c.IndexOne(all, 3))
		f.Set(&ks, c.Expand(ks, qs.Shape...))
		f.Set(&vs, c.Expand(vs, qs.Shape...))
		flat := func(t *tape.Tensor) *tape.Tensor { return c.Reshape(t, bs, n, b.heads, b.d) }
		q, k, v = flat(qs), flat(ks), flat(vs)
	case b.kv == 1:
		f.Set(&all, c.View(fused, bs, n, b.heads+2, b.d))
		q, k, v = c.Slice(all, 2, b.heads), c.IndexOne(all, 2), c.IndexOne(all, 2)
	default:
		f.Set(&all, c.View(fused, bs, n, b.heads, 3, b.d))
		q, k, v = c.Select(all, 3), c.Select(all, 3), c.Select(all, 3)
	}
	f.Leave(q, k, v)
	return []*tape.Tensor{q, k, v}
}

// rotate turns q and k by their position, where the family does.
func (b *earlyBlock) rotate(c *ctx, f *tape.Frame, q, k **tape.Tensor, in shared) {
	var rq, rk *tape.Tensor
	switch {
	case b.family == "phi":
		c.rotatePhi(f, q, k, in.cos, in.sin, b.rot)
		return
	case b.family == "gpt_neox":
		rq, rk = c.rotatePart(*q, *k, in.cos, in.sin, b.rot, true)
	case b.family == "falcon" && in.alibi == nil:
		rq, rk = c.rotateBoth(*q, *k, in.cos, in.sin)
	case b.writtenOut() && b.family != "gpt_neo":
		b.rotateNeighbours(c, f, q, k)
		rk, rq = c.Permute(*k, 0, 2, 1, 3), c.Permute(*q, 0, 2, 1, 3)
	default:
		return
	}
	f.Set(q, rq)
	f.Set(k, rk)
}

// rotateNeighbours turns pairs of neighbouring elements by sines and cosines looked up in a table.
func (b *earlyBlock) rotateNeighbours(c *ctx, f *tape.Frame, q, k **tape.Tensor) {
	n, d := (*k).Shape[1], (*k).Dim(-1)
	var both *tape.Tensor
	if b.family == "codegen" { // looks its table up as it is, in the type of the weights
		both = f.Keep(c.Fresh("rotary table", c.Float, 1, n, b.rot))
	} else {
		f.Keep(c.Fresh("rotary table", c.Float, 1, b.npos, b.rot))
		f.Keep(c.Fresh("rotary table", tape.I64, 1, n, b.rot))
		both = f.Keep(c.To(c.Fresh("rotary table", c.Float, 1, n, b.rot), (*k).DType))
	}
	parts := c.Split(both, -1, b.rot/2, b.rot/2)
	sin, cos := f.Keep(parts[0]), f.Keep(parts[1])
	kr, kp := hold(f, c.Slice(*k, -1, b.rot)), f.Keep(c.Slice(*k, -1, d-b.rot))
	qr, qp := hold(f, c.Slice(*q, -1, b.rot)), f.Keep(c.Slice(*q, -1, d-b.rot))
	f.Set(kr, c.rotatePairs(*kr, sin, cos))
	f.Set(qr, c.rotatePairs(*qr, sin, cos))
	f.Set(k, c.Cat(-1, *kr, kp))
	f.Set(q, c.Cat(-1, *qr, qp))
}

// rotatePairs is apply_rotary_pos_emb of GPT-J.
func (c *ctx) rotatePairs(x, sin, cos *tape.Tensor) *tape.Tensor {
	f := c.Enter()
	var s, o *tape.Tensor
	twice := func(t *tape.Tensor) *tape.Tensor {
		return c.Fresh("rotary table", t.DType, 1, t.Shape[1], 1, 2*t.Dim(-1))
	}
	f.Set(&s, twice(sin))
	f.Set(&o, twice(cos))
	return f.Leave(c.Add(c.Mul(x, o), c.Mul(c.everyTwo(x), s)))
}

// scores returns the result of attention as [B, S, heads, d], and its probabilities where they are
// whole.
func (b *earlyBlock) scores(c *ctx, q, k, v *tape.Tensor, in shared, d tape.DType) (out,
	weights *tape.Tensor) {
	switch {
	case b.family == "falcon":
		out, weights = b.scoresFalcon(c, q, k, v, in, d)
	case b.writtenOut():
		out, weights = b.scoresWide(c, q, k, v, in.mask)
	default:
		return c.attend(attention{dropout: b.attnDrop, groups: b.heads / b.kv,
			upcast: b.family != "gpt2", causal: true}, q, k, v, in.mask)
	}
	return c.Transpose(out, 1, 2), weights
}

// scoresWide is _attn of GPT-Neo, GPT-J and CodeGen: q and k in fp32, mask, softmax, and the
// probabilities in the type of v.
func (b *earlyBlock) scoresWide(c *ctx, q, k, v, mask *tape.Tensor) (out, weights *tape.Tensor) {
	f := c.Enter()
	var qf, kf, w *tape.Tensor
	f.Set(&qf, c.To(q, tape.F32))
	f.Set(&kf, c.To(k, tape.F32))
	f.Set(&w, c.Matmul(qf, c.Transpose(kf, -1, -2)))
	switch b.family {
	case "gpt_neo":
		low := f.Keep(c.Fresh("mask", w.DType))
		f.Set(&w, c.WhereElse(c.Borrow(tape.Bool, 1, 1, w.Dim(-2), w.Dim(-1)), w, low))
	case "gptj":
		f.Set(&w, c.Scale(w))
	}
	f.Set(&w, c.Add(w, mask))
	if b.family == "codegen" {
		f.Set(&w, c.Scale(w))
	}
	f.Set(&w, c.Softmax(w, w.DType))
	f.Set(&w, c.To(w, v.DType))
	f.Set(&w, c.Dropout(w, b.attnDrop))
	return f.Both(c.Matmul(w, v), w)
}

func (b *earlyBlock) scoresFalcon(c *ctx, q, k, v *tape.Tensor, in shared, d tape.DType) (out,
	weights *tape.Tensor) {
	if c.Attn == "eager" {
		f := c.Enter()
		f.Set(&weights, b.probabilities(c, q, k, in, d))
		w := weights
		out = c.Matmul(w, v)
		return f.Both(out, w)
	}
	drop := 0.0
	if in.alibi != nil {
		drop = b.attnDrop
	}
	if q.Shape[1] == k.Shape[1] {
		return c.SDPA(q, k, v, in.mask, drop, false), nil
	}
	return c.SDPABroadcast(q, k, v, in.mask, drop), nil
}

// probabilities is Falcon's eager attention; the position bias is added before the scaling.
func (b *earlyBlock) probabilities(c *ctx, q, k *tape.Tensor, in shared,
	d tape.DType) *tape.Tensor {
	f := c.Enter()
	var w, biased *tape.Tensor
	f.Set(&w, c.Matmul(q, c.Transpose(k, -1, -2)))
	if in.alibi == nil {
		c.ScaleInPlace(w)
		return f.Leave(c.Softmax(c.Add(w, in.mask), d))
	}
	if w.DType.Half() {
		f.Set(&w, c.To(w, tape.F32))
	}
	f.Set(&biased, c.Add(w, in.alibi))
	c.ScaleInPlace(biased)
	return f.Leave(c.Dropout(c.Softmax(c.Add(biased, in.mask), d), b.attnDrop))
}

func (b *earlyBlock) attendBloom(c *ctx, x, res *tape.Tensor, in shared) (out,
	weights *tape.Tensor) {
	f := c.Enter(x, res)
	bs, s, d := x.Shape[0], x.Shape[1], b.d
	var fused, q, k, v, scores, w, probs, flat, ctxl, y *tape.Tensor
	f.Set(&fused, b.qkv.run(c.Graph, x))
	split := c.View(fused, bs, s, b.heads, 3, d)
	g := c.Enter(split)
	part := func() *tape.Tensor { return c.Transpose(c.Select(split, 3), 1, 2) }
	qs, ks, vs := part(), part(), part()
	g.Leave(qs, ks, vs)
	f.Set(&q, qs)
	f.Set(&k, ks)
	f.Set(&v, vs)
	f.Pair(&k, &v)(c.cached(k, v))
	f.Set(&q, c.Reshape(q, bs*b.heads, -1, d))
	f.Set(&k, c.Transpose(c.Reshape(k, bs*b.heads, -1, d), -1, -2))
	f.Set(&v, c.Reshape(v, bs*b.heads, -1, d))
	f.Set(&scores, c.Baddbmm(in.alibi, q, k))
	f.Set(&w, c.View(scores, bs, b.heads, s, -1))
	if in.mask != nil {
		f.Set(&w, c.Add(w, in.mask))
	}
	f.Set(&probs, c.To(c.Softmax(w, tape.F32), q.DType))
	f.Set(&probs, c.Dropout(probs, b.attnDrop))
	f.Set(&flat, c.View(probs, bs*b.heads, s, -1))
	f.Set(&ctxl, c.Bmm(flat, v))
	f.Set(&ctxl, c.Reshape(c.Permute(c.View(ctxl, bs, b.heads, s, d), 0, 2, 1, 3), bs, s, b.h))
	f.Set(&y, b.proj.run(c.Graph, ctxl))
	f.Set(&y, c.Add(res, c.Dropout(y, b.drop)))
	return f.Both(y, probs)
}

func (b *earlyBlock) attendMPT(c *ctx, x *tape.Tensor, in shared) (out, weights *tape.Tensor) {
	f := c.Enter(x)
	bs, s, d := x.Shape[0], x.Shape[1], b.d
	var qkv, q, k, v, scores, w, o *tape.Tensor
	f.Set(&qkv, b.qkv.run(c.Graph, x))
	if b.clip {
		f.Set(&qkv, c.Activation("clamp", qkv))
	}
	parts := c.Split(qkv, 2, b.h, b.h, b.h)
	f.Set(&q, parts[0])
	f.Set(&k, parts[1])
	f.Set(&v, parts[2])
	split := func(t *tape.Tensor) *tape.Tensor {
		return c.Transpose(c.Reshape(t, bs, s, b.heads, d),
			1, 2)
	}
	f.Set(&q, split(q))
	f.Set(&k, split(k))
	f.Set(&v, split(v))
	f.Pair(&k, &v)(c.cached(k, v))
	f.Set(&scores, c.Scale(c.Matmul(q, c.Transpose(k, -1, -2))))
	f.Set(&scores, c.Add(scores, c.Slice(in.alibi, 2, s)))
	f.Set(&scores, c.MaskedFill(scores, in.mask))
	f.Set(&w, c.To(c.Softmax(c.To(scores, tape.F32), tape.F32), v.DType))
	f.Set(&w, c.Dropout(w, b.drop))
	f.Set(&o, c.Matmul(w, v))
	f.Set(&o, c.View(c.Contiguous(c.Permute(o, 0, 2, 1, 3)), bs, s, b.h))
	y := b.proj.run(c.Graph, o)
	return f.Both(y, w)
}
