package tape

import "memroom/event"

// SDPA is F.scaled_dot_product_attention on [batch, heads, length, dim] tensors, with the kernel that PyTorch picks on
// the card. mask may be nil.
func (g *Graph) SDPA(q, k, v, mask *Tensor, dropout float64) *Tensor {
	g.half(&q, &k, &v, &mask)
	switch {
	case mask != nil && mask.needs:
		return g.sdpaMath(q, k, v, mask, dropout)
	case q.DType.Half() && g.Hopper:
		return g.sdpaCuDNN(q, k, v, mask)
	case q.DType.Half() && mask == nil:
		return g.sdpaFlash(q, k, v)
	}
	return g.sdpaEfficient(q, k, v, mask)
}

// heads gives batch, query heads, lengths and dimension.
func attentionSizes(q, k *Tensor) (b, a, s, kv, d int64) {
	return q.Shape[0], q.Shape[1], q.Shape[2], k.Shape[2], q.Shape[3]
}

// attentionOut is the result [B, a, S, d] laid out as [B, S, a, d].
func (g *Graph) attentionOut(q, v *Tensor) *Tensor {
	shape := []int64{q.Shape[0], q.Shape[1], q.Shape[2], v.Shape[3]}
	return g.newStrided(shape, permutedStrides(shape, []int{0, 2, 1, 3}), q.DType)
}

func (g *Graph) sdpaCuDNN(q, k, v, mask *Tensor) *Tensor {
	g.UsesDNN = true
	g.op = "sdpa"
	b, a, s, kv, d := attentionSizes(q, k)
	n := g.prepare("sdpa", q, k, v)
	n.save(q, k, v)
	seed, offset := g.New(nil, I64), g.New(nil, I64)
	out := g.attentionOut(q, v)
	lse := g.New([]int64{b, a, s, 1}, F32)
	g.temp(256, event.CategoryWorkspace)
	if n != nil {
		n.emit(out)
		n.save(out, lse, seed, offset)
		if mask != nil {
			n.save(mask)
		}
		grouped := k.Shape[1] != a
		n.backward = func(n *Node, p *pass) {
			for i := range 3 {
				p.out[i] = p.like(p.saved[i])
			}
			work := 4*b*s*a*d + 4*b*s*a + 256
			if grouped {
				work += 4 * b * a * kv * d
			}
			p.g.temp(work, event.CategoryWorkspace)
		}
	}
	eat(seed, offset, lse, q, k, v, mask)
	return out
}

// sdpaFlash is FlashAttention-2, the first choice on Ampere and Ada.
func (g *Graph) sdpaFlash(q, k, v *Tensor) *Tensor {
	g.op = "sdpa"
	b, a, s, kv, d := attentionSizes(q, k)
	n := g.prepare("sdpa", q, k, v)
	n.save(q, k, v)
	out := g.attentionOut(q, v)
	lse := g.New([]int64{b, a, s}, F32)
	rng, unused := g.New([]int64{2}, I64), g.New([]int64{1}, I64)
	if n != nil {
		n.emit(out)
		n.save(out, lse, rng, unused)
		grouped := k.Shape[1] != a
		n.backward = func(n *Node, p *pass) {
			for i := range 3 {
				p.out[i] = p.like(p.saved[i])
			}
			round := func(x int64) int64 { return divUp(x, 128) * 128 }
			sum := p.g.alloc(4*b*a*round(s), event.CategoryTemporary)
			acc := p.g.alloc(4*b*round(s)*a*d, event.CategoryTemporary)
			if grouped {
				p.scratch(2*b*kv*a*d, func() { p.scratch(2*b*kv*a*d, nil) })
			}
			p.g.unrefStorage(acc)
			p.g.unrefStorage(sum)
		}
	}
	eat(lse, rng, unused, q, k, v)
	return out
}

func (g *Graph) sdpaEfficient(q, k, v, mask *Tensor) *Tensor {
	g.op = "sdpa"
	b, a, s, kv, d := attentionSizes(q, k)
	n := g.prepare("sdpa", q, k, v)
	n.save(q, k, v)
	if mask != nil {
		n.save(mask)
	}
	out := g.attentionOut(q, v)
	lse := g.New([]int64{b, a, divUp(s, 32) * 32}, F32)
	if n != nil {
		n.emit(out)
		n.save(out, lse)
		n.backward = func(n *Node, p *pass) {
			for i := range 3 {
				p.out[i] = p.like(p.saved[i])
			}
			// delta = (grad_out * out).sum(-1), then the workspace of the kernel
			product := p.g.alloc(4*b*s*a*d, event.CategoryTemporary)
			sum := p.g.alloc(4*b*s*a, event.CategoryTemporary)
			delta := p.g.alloc(4*b*s*a, event.CategoryTemporary)
			p.g.unrefStorage(product)
			p.g.unrefStorage(sum)
			p.g.temp(efficientWorkspace(b, a, s, kv, d), event.CategoryWorkspace)
			p.g.unrefStorage(delta)
		}
	}
	eat(lse, q, k, v, mask)
	return out
}

// efficientWorkspace is the accumulator of the memory-efficient backward kernel in fp32.
func efficientWorkspace(b, a, s, kv, d int64) int64 {
	if d <= 64 {
		return b * a * divUp(kv, 64) * (256*d + 16)
	}
	return b * a * (divUp(kv, 64)*64*d*8 + divUp(s, 64)*64*d*4)
}

// sdpaMath is the fallback of plain operations, taken when the bias wants a gradient.
func (g *Graph) sdpaMath(q, k, v, mask *Tensor, dropout float64) *Tensor {
	in := q.DType
	f := g.Enter(q, k, v, mask)
	g.noCast++
	var qf, kf, vf, mf, x *Tensor
	f.Set(&qf, g.To(q, F32))
	f.Set(&kf, g.To(k, F32))
	f.Set(&vf, g.To(v, F32))
	f.Set(&mf, g.To(mask, F32))
	f.Set(&qf, g.Scale(qf))
	f.Set(&x, g.Matmul(qf, g.Scale(g.Transpose(kf, -2, -1))))
	g.AddInPlace(x, mf)
	f.Set(&x, g.Softmax(x, F32))
	if dropout > 0 && g.Training {
		f.Set(&x, g.dropoutMath(x, dropout))
	}
	out := g.Matmul(x, vf)
	out = g.To(out, in)
	g.noCast--
	return f.Leave(out)
}

func (g *Graph) dropoutMath(x *Tensor, p float64) *Tensor { return g.Dropout(x, p) }
