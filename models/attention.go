package models

import "memroom/tape"

// attention describes how a block attends.
type attention struct {
	dropout float64
	groups  int64 // query heads per key head
	causal  bool  // tokens see only what came before
	upcast  bool  // eager: softmax asked for in fp32 (Llama) rather than in the scores' type
	softcap bool  // eager: scores are squeezed by tanh (Gemma 2)
	plain   bool  // eager: no cast after the softmax (BERT)
}

// attend is transformers' attention interface on [B, heads, S, d] tensors; it returns [B, S, heads,
// d], contiguous, and for eager attention the probabilities, which the caller's variables keep
// alive.
func (c *ctx) attend(a attention, q, k, v, mask *tape.Tensor) (out, weights *tape.Tensor) {
	if c.Attn == "eager" {
		return c.eager(a, q, k, v, mask)
	}
	f := c.Enter()
	var kk, vv, o *tape.Tensor
	f.Set(&kk, k)
	f.Set(&vv, v)
	if a.groups > 1 && mask != nil {
		f.Set(&kk, c.repeatKV(kk, a.groups))
		f.Set(&vv, c.repeatKV(vv, a.groups))
	}
	f.Set(&o, c.SDPA(c.aroundRing(q, kk, vv), kk, vv, mask, a.dropout, a.causal))
	f.Set(&o, c.Contiguous(c.Transpose(o, 1, 2)))
	return f.Leave(o), nil
}

// eager is eager_attention_forward of the Llama kind; GPT-2's differs in the type of the softmax
// only.
func (c *ctx) eager(a attention, q, k, v, mask *tape.Tensor) (out, weights *tape.Tensor) {
	f := c.Enter()
	var kk, vv, w, o *tape.Tensor
	f.Set(&kk, k)
	f.Set(&vv, v)
	if a.groups > 1 {
		f.Set(&kk, c.repeatKV(kk, a.groups))
		f.Set(&vv, c.repeatKV(vv, a.groups))
	}
	f.Set(&w, c.Scale(c.Matmul(q, c.Transpose(kk, 2, 3))))
	if a.softcap {
		f.Set(&w, c.Scale(w))
		f.Set(&w, c.Activation("tanh", w))
		f.Set(&w, c.Scale(w))
	}
	if mask != nil {
		f.Set(&w, c.Add(w, mask))
	}
	if a.upcast {
		f.Set(&w, c.To(c.Softmax(w, tape.F32), q.DType))
	} else {
		f.Set(&w, c.Softmax(w, w.DType))
		if !a.plain {
			f.Set(&w, c.To(w, v.DType))
		}
	}
	f.Set(&w, c.Dropout(w, a.dropout))
	f.Set(&o, c.Matmul(w, vv))
	f.Set(&o, c.Transpose(o, 1, 2))
	if a.upcast || a.plain {
		f.Set(&o, c.Contiguous(o))
	}
	return f.Both(o, w)
}

// repeatKV repeats key heads for grouped-query attention: a copy.
func (c *ctx) repeatKV(x *tape.Tensor, n int64) *tape.Tensor {
	b, k, s, d := x.Shape[0], x.Shape[1], x.Shape[2], x.Shape[3]
	return c.Reshape(c.Expand(c.Unsqueeze(x, 2), b, k, n, s, d), b, k*n, s, d)
}

// rotary is one model's rotary embedding.
type rotary struct {
	dim  int64
	half bool // angles are not repeated for the second half of a head
}

// table computes cos and sin for s positions in the type of x.
func (c *ctx) rotaryTable(r rotary, pos *tape.Tensor, as tape.DType) (cos, sin *tape.Tensor) {
	f := c.Enter()
	c.NoGrad(func() {
		c.NoAutocast(func() {
			s := pos.Dim(-1)
			var inv, p, freqs, emb *tape.Tensor
			f.Set(&inv, c.To(c.Borrow(c.Float, 1, r.dim/2, 1), tape.F32))
			f.Set(&p, c.Fresh("rotary table", tape.F32, 1, 1, s))
			f.Set(&freqs, c.Transpose(c.Bmm(inv, p), 1, 2))
			if r.half {
				f.Set(&emb, freqs)
			} else {
				f.Set(&emb, c.Cat(-1, freqs, freqs))
			}
			var cf, sf *tape.Tensor
			f.Set(&cf, c.Scale(c.Scale(emb)))
			f.Set(&sf, c.Scale(c.Scale(emb)))
			cos, sin = c.To(cf, as), c.To(sf, as)
			f.Leave(cos, sin)
		})
	})
	return cos, sin
}

// rotateHalf turns the second half of the last dimension, negated, before the first.
func (c *ctx) rotateHalf(x *tape.Tensor) *tape.Tensor {
	f := c.Enter(x)
	var x1, x2 *tape.Tensor
	half := x.Dim(-1) / 2
	f.Set(&x1, c.Slice(x, -1, half))
	f.Set(&x2, c.Slice(x, -1, half))
	return f.Leave(c.Cat(-1, c.Neg(x2), x1))
}

// rotate is apply_rotary_pos_emb on one of q and k.
func (c *ctx) rotate(x, cos, sin *tape.Tensor) *tape.Tensor {
	return c.Add(c.Mul(x, cos), c.Mul(c.rotateHalf(x), sin))
}

// rotateBoth is apply_rotary_pos_emb: cos and sin get a dimension for the heads.
func (c *ctx) rotateBoth(q, k, cos, sin *tape.Tensor) (rq, rk *tape.Tensor) {
	f := c.Enter()
	var cu, su, qe, ke *tape.Tensor
	f.Set(&cu, c.Unsqueeze(cos, 1))
	f.Set(&su, c.Unsqueeze(sin, 1))
	f.Set(&qe, c.rotate(q, cu, su))
	f.Set(&ke, c.rotate(k, cu, su))
	return f.Both(qe, ke)
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
	return f.Both(qe, ke)
}

// everyTwo is rotate_every_two: neighbours change places, the first negated.
func (c *ctx) everyTwo(x *tape.Tensor) *tape.Tensor {
	f := c.Enter()
	var even, odd, y *tape.Tensor
	f.Set(&even, c.Step2(x, -1))
	f.Set(&odd, c.Step2(x, -1))
	f.Set(&y, c.Cat(-1, c.Unsqueeze(c.Neg(odd), -1), c.Unsqueeze(even, -1)))
	return f.Leave(c.View(y, x.Shape...))
}
