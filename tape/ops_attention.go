package tape

import "memroom/event"

// SDPA is F.scaled_dot_product_attention on [batch, heads, length, dim] tensors, with the kernel
// that PyTorch picks on the card. mask may be nil; causal is the flag of the call.
func (g *Graph) SDPA(q, k, v, mask *Tensor, dropout float64, causal bool) *Tensor {
	defer release(g.half(&q, &k, &v, &mask))
	d := q.Dim(-1)
	switch {
	// a transposed bias, trained or not (T5 under LoRA): no kernel reads it
	case mask != nil && mask.DType != Bool && mask.stride[len(mask.stride)-1] != 1:
		return g.sdpaMath(q, k, v, mask, dropout, causal, true)
	case mask != nil && mask.needs:
		return g.sdpaEfficient(q, k, v, mask)
	case q.DType.Half() && g.Hopper && d <= 256 && d%8 == 0:
		return g.sdpaCuDNN(q, k, v, mask)
	case q.DType.Half() && mask == nil && d <= 256:
		return g.sdpaFlash(q, k, v)
	case k.Shape[1] != q.Shape[1]: // grouped heads: the memory-efficient kernel has none
		return g.sdpaMath(q, k, v, mask, dropout, causal, true)
	}
	return g.sdpaEfficient(q, k, v, mask)
}

// SDPABroadcast is a call without enable_gqa whose k and v have one head for all of q's: only plain
// operations take that.
func (g *Graph) SDPABroadcast(q, k, v, mask *Tensor, dropout float64) *Tensor {
	defer release(g.half(&q, &k, &v, &mask))
	m := g.floatMask(mask, q.DType)
	out := g.sdpaMath(q, k, v, m, dropout, false, false)
	eat(mask)
	return out
}

// heads returns batch, query heads, lengths and dimension.
func attentionSizes(q, k *Tensor) (b, a, s, kv, d int64) {
	return q.Shape[0], q.Shape[1], q.Shape[2], k.Shape[2], q.Shape[3]
}

// outLike is the result [B, a, S, d] in the order of q's dimensions, as cuDNN and FlashAttention
// return it.
func (g *Graph) outLike(q, v *Tensor) *Tensor {
	shape := []int64{q.Shape[0], q.Shape[1], q.Shape[2], v.Shape[3]}
	return g.newStrided(shape, permutedStrides(shape, byStride(q.Shape, q.stride)), q.DType)
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
	bias := g.floatMask(mask, q.DType)
	seed, offset := g.New(nil, I64), g.New(nil, I64)
	out := g.outLike(q, v)
	lse := g.logSums(n, b, a, s, 1)
	g.temp(256, event.CategoryWorkspace)
	if n != nil {
		n.emit(out)
		n.save(out, lse, seed, offset)
		if bias != nil {
			n.save(bias)
		}
		grouped := k.Shape[1] != a
		n.backward = func(n *Node, p *pass) {
			for i := range 3 {
				p.out[i] = p.like(p.saved[i])
			}
			p.g.temp(cudnnWorkspace(b*a, s, kv, d, grouped), event.CategoryWorkspace)
		}
	}
	eat(seed, offset, lse, bias, q, k, v, mask)
	return out
}

// cudnnWorkspace returns the bytes that cuDNN's backward pass takes besides the gradients, for so
// many heads of all samples: the query's gradient in fp32, a sum a row, and keys and values of each
// query head where heads are grouped. The rehearsal's Python has the same rule;
// testdata/fused_attention.jsonl holds both to one answer.
func cudnnWorkspace(heads, s, kv, d int64, grouped bool) int64 {
	work := 4*heads*s*d + 4*heads*s + 256
	if grouped {
		work += 4 * heads * kv * d
	}
	return work
}

// flashWorkspace returns the bytes that FlashAttention-2's backward pass takes besides the
// gradients: a sum for every query, and the query's gradient in fp32. Queries are rounded up to
// 128, the dimension to 32, and to 256 above 192 (mha_bwd in PyTorch's flash_api.cpp). The
// rehearsal's Python has the same rule.
func flashWorkspace(heads, s, d int64) (sums, gradient int64) {
	rows, wide := divUp(s, 128)*128, divUp(d, 32)*32
	if d > 192 {
		wide = 256
	}
	return 4 * heads * rows, 4 * heads * rows * wide
}

// logSums is what the backward pass of a fused kernel needs of the softmax; without one it is not
// made.
func (g *Graph) logSums(n *Node, shape ...int64) *Tensor {
	if n == nil {
		return nil
	}
	return g.New(shape, F32)
}

// floatMask turns a boolean mask into an additive one.
func (g *Graph) floatMask(mask *Tensor, d DType) *Tensor {
	if mask == nil || mask.DType != Bool {
		return mask
	}
	low, zero := g.New(nil, d), g.New(nil, d)
	out := g.New(mask.Shape, d)
	eat(zero, low)
	return out
}

// sdpaFlash is FlashAttention-2, the first choice on Ampere and Ada.
func (g *Graph) sdpaFlash(q, k, v *Tensor) *Tensor {
	g.op = "sdpa"
	b, a, s, kv, d := attentionSizes(q, k)
	n := g.prepare("sdpa", q, k, v)
	n.save(q, k, v)
	out := g.outLike(q, v)
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
			sums, gradient := flashWorkspace(b*a, s, d)
			sum := p.g.alloc(sums, event.CategoryTemporary)
			acc := p.g.alloc(gradient, event.CategoryTemporary)
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

// sdpaEfficient is the memory-efficient kernel: fp32, and biases that want a gradient.
func (g *Graph) sdpaEfficient(q, k, v, mask *Tensor) *Tensor {
	b, a, s, kv, d := attentionSizes(q, k)
	bias := g.floatMask(mask, q.DType)
	if bias != nil {
		given := bias.hold() // the argument lives until the call is over
		defer given.drop()
		bias = g.alignBias(bias, b, a, s, kv)
	}
	g.op = "sdpa"
	n := g.prepare("sdpa", q, k, v, bias)
	n.save(q, k, v)
	if bias != nil {
		n.save(bias)
	}
	out := g.attentionOut(q, v)
	lse := g.logSums(n, b, a, divUp(s, 32)*32)
	if q.DType.Half() && d > 128 { // the output does not stay in registers: it is summed in fp32
		g.temp(4*b*a*s*v.Shape[3], event.CategoryWorkspace)
	}
	if n != nil {
		n.emit(out)
		n.save(out, lse)
		n.backward = func(n *Node, p *pass) { p.efficientGrad(n, b, a, s, kv, d) }
	}
	eat(lse, bias, q, k, v, mask)
	return out
}

// alignBias brings a bias to the kernel's alignment, rows of a multiple of eight, and expands it
// over the batch.
func (g *Graph) alignBias(bias *Tensor, b, a, s, kv int64) *Tensor {
	if kv%8 != 0 {
		bias = g.Slice(g.Pad(bias, divUp(kv, 8)*8-kv, -1), -1, kv)
	}
	return g.Expand(bias, b, a, s, kv)
}

func (p *pass) efficientGrad(n *Node, b, a, s, kv, d int64) {
	for i := range 3 { // always laid out as [B, S, heads, d]
		shape := p.saved[i].Shape
		p.out[i] = p.newStrided(shape, permutedStrides(shape, []int{0, 2, 1, 3}), p.saved[i].DType)
	}
	if n.metas[3].shape != nil && p.needs(3) {
		padded := []int64{b, a, s, divUp(kv, 16) * 16}
		t := p.new(padded, p.saved[0].DType)
		v := p.g.alias(t, n.metas[3].shape, t.stride)
		v.floating = false
		t.drop()
		p.out[3] = v
	}
	// delta = (grad_out * out).sum(-1), in half precision by one kernel; then the kernel's
	// accumulator
	delta := p.deltaOf(b, a, s, d)
	p.g.temp(efficientWorkspace(p.saved[0].DType.Half(), p.g.SMThreads != 1536, b*a, s, kv, d),
		event.CategoryWorkspace)
	p.g.unrefStorage(delta)
}

func (p *pass) deltaOf(b, a, s, d int64) *storage {
	g := p.g
	if p.saved[0].DType.Half() {
		return g.alloc(4*b*s*a, event.CategoryTemporary)
	}
	product := g.alloc(4*b*s*a*d, event.CategoryTemporary)
	sum := g.alloc(4*b*s*a, event.CategoryTemporary)
	delta := g.alloc(4*b*s*a, event.CategoryTemporary)
	g.unrefStorage(product)
	g.unrefStorage(sum)
	return delta
}

// efficientWorkspace is the accumulator of the memory-efficient backward kernel, for so many heads
// of all samples: partial gradients of the queries in fp32, a lock with each tile, and those of
// keys and values where the kernel cannot keep them in registers. large is a card with at least
// 160 KiB of shared memory a block (compute capability 8.0, 9.0, 10.0): it takes larger tiles. The
// rules are those of PyTorch's kernel list and its heuristic for splitting the keys. The rehearsal
// has them too (rehearse/attention.py); testdata/efficient_attention.jsonl holds both to one
// answer.
func efficientWorkspace(half, large bool, heads, s, kv, d int64) int64 {
	i, j, registers := efficientTile(half, large, d)
	queries := divUp(s, i) * divUp(d, j) * (4*i*j + 16)
	if !half || registers {
		return heads * queries
	}
	splits := max(1, min(divUp(kv, j), 200/heads))
	return heads * (queries + 2*4*splits*j*divUp(d, i)*i)
}

// efficientTile is the tile of queries and keys, and whether gradients of keys and values stay in
// registers.
func efficientTile(half, large bool, d int64) (queries, keys int64, registers bool) {
	switch {
	case d <= 64:
		return 64, 64, half
	case half && !large && d <= 96:
		return 128, 64, true
	case !large:
		return 64, 64, false
	case half && d <= 128:
		return 128, 128, true
	}
	return 128, 64, false
}

// sdpaMath is the fallback of plain operations: taken when the bias wants a gradient, and in fp32
// with grouped heads, which are repeated where the call marks them as grouped, else broadcast.
func (g *Graph) sdpaMath(q, k, v, mask *Tensor, dropout float64, causal, grouped bool) *Tensor {
	in := q.DType
	f := g.Enter(q, k, v, mask)
	g.noCast++
	var acc, qf, kf, vf, mf, x *Tensor
	f.Set(&acc, g.To(q, F32))
	f.Set(&kf, g.To(k, F32))
	f.Set(&vf, g.To(v, F32))
	if mask != nil {
		f.Set(&mf, mask)
	}
	f.Set(&qf, g.Scale(acc))
	if causal && mask == nil {
		f.Set(&mf, g.triangle(q.Shape[2], k.Shape[2]))
	}
	if n := q.Shape[1] / k.Shape[1]; n > 1 && grouped {
		f.Set(&kf, g.repeatInterleave(kf, n))
		f.Set(&vf, g.repeatInterleave(vf, n))
	}
	f.Set(&x, g.Matmul(qf, g.Scale(g.Transpose(kf, -2, -1))))
	if mf != nil {
		g.AddInPlace(x, mf)
	}
	f.Set(&x, g.safeSoftmax(x))
	f.Set(&x, g.Dropout(x, dropout))
	var probs *Tensor // the second result, cast back too and thrown away
	if in != F32 {
		probs = g.To(x, in)
	}
	out := g.To(g.Matmul(x, vf), in)
	eat(probs)
	g.noCast--
	return f.Leave(out)
}

// triangle is the causal mask as an additive float mask.
func (g *Graph) triangle(s, kv int64) *Tensor {
	g.op = "mask"
	ones := g.New([]int64{s, kv}, Bool)
	lower := g.New([]int64{s, kv}, Bool)
	eat(ones)
	low, zero := g.New(nil, F32), g.New(nil, F32)
	out := g.New([]int64{s, kv}, F32)
	eat(zero, low, lower)
	return out
}

// repeatInterleave copies each head n times.
func (g *Graph) repeatInterleave(t *Tensor, n int64) *Tensor {
	b, k, s, d := t.Shape[0], t.Shape[1], t.Shape[2], t.Shape[3]
	return g.View(g.Clone(g.Expand(g.Unsqueeze(t, 2), b, k, n, s, d)), b, k*n, s, d)
}

// safeSoftmax is softmax with a test for rows that are masked altogether.
func (g *Graph) safeSoftmax(x *Tensor) *Tensor {
	out := g.Softmax(x, x.DType)
	masked := g.New(x.Shape, Bool)
	rows := g.New(x.Shape[:3], Bool)
	eat(g.New(nil, F32), rows, masked)
	return out
}
