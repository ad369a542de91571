package tape

import "slices"

// Mm is the product of two matrices.
func (g *Graph) Mm(a, b *Tensor) *Tensor {
	defer release(g.half(&a, &b))
	return g.mm(a, b)
}

func (g *Graph) mm(a, b *Tensor) *Tensor {
	g.op = "linear"
	n := g.prepare("linear", a, b)
	if n != nil {
		n.saveIf(b.needs, a)
		n.saveIf(a.needs, b)
	}
	out := g.New([]int64{a.Shape[0], b.Shape[1]}, a.DType)
	g.blas(false)
	if n != nil {
		n.emit(out)
		n.backward = func(n *Node, p *pass) {
			if p.needs(1) {
				p.out[1] = p.weightGrad(p.grad[0], n.metas[1], n.in0)
			}
			if p.needs(0) {
				p.out[0] = p.product(n.metas[0].shape, p.grad[0].DType)
			}
		}
		n.in0 = slices.Clone(b.stride)
	}
	eat(a, b)
	return out
}

// product makes the result of a matrix product in the backward pass.
func (b *pass) product(shape []int64, d DType) *Tensor {
	t := b.new(shape, d)
	b.g.blas(false)
	return t
}

// weightGrad is the gradient of the second factor. For a transposed (column-major) one PyTorch
// computes the transpose and returns a view.
func (b *pass) weightGrad(gr *Tensor, m meta, stride []int64) *Tensor {
	if stride[0] != 1 || m.shape[1] == 1 {
		return b.product(m.shape, gr.DType)
	}
	t := b.product([]int64{m.shape[1], m.shape[0]}, gr.DType)
	v := b.g.transposeRaw(t, 0, 1)
	t.drop()
	return v
}

// Addmm is bias + a @ b, as one kernel.
func (g *Graph) Addmm(bias, a, b *Tensor) *Tensor {
	defer release(g.half(&bias, &a, &b))
	return g.addmm(bias, a, b)
}

func (g *Graph) addmm(bias, a, b *Tensor) *Tensor {
	g.op = "linear"
	n := g.prepare("linear", bias, a, b)
	if n != nil {
		n.saveIf(b.needs, a)
		n.saveIf(a.needs, b)
	}
	out := g.New([]int64{a.Shape[0], b.Shape[1]}, a.DType)
	g.blas(len(bias.Shape) == 1)
	if n != nil {
		n.emit(out)
		n.in0 = slices.Clone(b.stride)
		n.backward = func(n *Node, p *pass) {
			gr := p.grad[0]
			if p.needs(1) {
				p.out[1] = p.product(n.metas[1].shape, gr.DType)
			}
			if p.needs(2) {
				p.out[2] = p.weightGrad(gr, n.metas[2], n.in0)
			}
			if p.needs(0) {
				p.out[0] = gr.hold() // summed to the bias's shape afterwards
			}
		}
	}
	eat(bias, a, b)
	return out
}

// Linear is nn.Linear: x @ w.T + bias. bias may be nil. Adapters and packed weights are taken into
// account.
func (g *Graph) Linear(x *Tensor, w, bias *Param) *Tensor {
	base := func() *Tensor {
		if w.Bits > 0 {
			return g.quantLinear(x, w, tensorOf(bias))
		}
		return g.LinearT(x, w.Tensor, tensorOf(bias))
	}
	switch {
	case w.Lora == nil || g.AdaptersOff:
		return base()
	case w.Lora.Magnitude != nil:
		return g.doraLinear(x, base, w, tensorOf(bias), false)
	case w.Bits > 0:
		return g.packedLora(x, base, w.Lora, w.Bits)
	}
	return g.loraLinear(x, base, w.Lora)
}

// LinearT is Linear on plain tensors.
func (g *Graph) LinearT(x, w, bias *Tensor) *Tensor {
	defer release(g.half(&x, &w, &bias))
	shape := slices.Clone(x.Shape)
	shape[len(shape)-1] = w.Shape[0]
	k := x.Dim(-1)
	switch {
	case bias != nil && len(x.Shape) == 2:
		return g.addmm(bias, x, g.Transpose(w, 0, 1))
	case bias != nil && (x.contiguous() && len(x.Shape) >= 3):
		flat := g.View(x, -1, k)
		return g.View(g.addmm(bias, flat, g.Transpose(w, 0, 1)), shape...)
	case len(x.Shape) == 2:
		return g.mm(x, g.Transpose(w, 0, 1))
	}
	f := g.Enter(x)
	out := g.View(g.mm(g.Reshape(x, -1, k), g.Transpose(w, 0, 1)), shape...)
	if bias != nil {
		g.AddInPlace(out, bias)
	}
	return f.Leave(out)
}

// Product is x @ w for an x of three or more dimensions and a matrix: one product over all rows.
func (g *Graph) Product(x, w *Tensor) *Tensor {
	defer release(g.half(&x, &w))
	shape := slices.Clone(x.Shape)
	shape[len(shape)-1] = w.Shape[1]
	f := g.Enter(x)
	return f.Leave(g.View(g.mm(g.Reshape(x, -1, x.Dim(-1)), w), shape...))
}

// Conv1D is GPT-2's linear layer: its weight is stored [in, out].
func (g *Graph) Conv1D(x *Tensor, w, bias *Param) *Tensor {
	base := func() *Tensor {
		if w.Bits > 0 {
			return g.quantLinear(x, &Param{Tensor: &Tensor{Shape: []int64{w.Shape[1], w.Shape[0]}},
				Bits: w.Bits}, bias.Tensor)
		}
		shape := slices.Clone(x.Shape)
		shape[len(shape)-1] = w.Shape[1]
		flat := g.View(x, -1, x.Dim(-1))
		return g.View(g.Addmm(bias.Tensor, flat, w.Tensor), shape...)
	}
	switch {
	case w.Lora == nil || g.AdaptersOff:
		return base()
	case w.Lora.Magnitude != nil:
		return g.doraLinear(x, base, w, bias.Tensor, true)
	}
	return g.loraLinear(x, base, w.Lora)
}

// Bmm is the batched product of two stacks of matrices.
func (g *Graph) Bmm(a, b *Tensor) *Tensor {
	defer release(g.half(&a, &b))
	g.op = "matmul"
	n := g.prepare("matmul", a, b)
	if n != nil {
		n.saveIf(b.needs, a)
		n.saveIf(a.needs, b)
	}
	out := g.New([]int64{a.Shape[0], a.Shape[1], b.Shape[2]}, a.DType)
	g.blas(false)
	if n != nil {
		n.emit(out)
		n.backward = func(n *Node, p *pass) {
			if p.needs(1) {
				p.out[1] = p.product(n.metas[1].shape, p.grad[0].DType)
			}
			if p.needs(0) {
				p.out[0] = p.product(n.metas[0].shape, p.grad[0].DType)
			}
		}
	}
	eat(a, b)
	return out
}

// Baddbmm is beta*c + alpha*a@b for stacks of matrices.
func (g *Graph) Baddbmm(c, a, b *Tensor) *Tensor {
	defer release(g.half(&c, &a, &b))
	g.op = "matmul"
	n := g.prepare("matmul", c, a, b)
	if n != nil {
		n.saveIf(b.needs, a)
		n.saveIf(a.needs, b)
	}
	out := g.New([]int64{a.Shape[0], a.Shape[1], b.Shape[2]}, a.DType)
	g.blas(false)
	if n != nil {
		n.emit(out)
		n.backward = func(n *Node, p *pass) {
			gr := p.grad[0]
			for i := 1; i <= 2; i++ {
				if !p.needs(i) {
					continue
				}
				q := p.product(n.metas[i].shape, gr.DType)
				p.out[i] = p.like(q) // times alpha
				q.drop()
			}
			if p.needs(0) {
				p.out[0] = p.like(gr)
			}
		}
	}
	eat(c, a, b)
	return out
}

// Matmul is torch.matmul of two tensors of three or more dimensions with equal leading ones.
func (g *Graph) Matmul(a, b *Tensor) *Tensor {
	defer release(g.half(&a, &b))
	if len(a.Shape) == 3 && len(b.Shape) == 3 {
		return g.Bmm(a, b)
	}
	f := g.Enter(a, b) // the caller's arguments live until the product exists
	lead := broadcast(&Tensor{Shape: a.Shape[:len(a.Shape)-2]},
		&Tensor{Shape: b.Shape[:len(b.Shape)-2]})
	batch := numel(lead)
	am, ak, bn := a.Dim(-2), a.Dim(-1), b.Dim(-1)
	a = g.Expand(a, append(slices.Clone(lead), am, ak)...)
	a = g.Reshape(a, batch, am, ak)
	b = g.Expand(b, append(slices.Clone(lead), ak, bn)...)
	b = g.Reshape(b, batch, ak, bn)
	return f.Leave(g.View(g.Bmm(a, b), append(slices.Clone(lead), am, bn)...))
}

// Cat joins tensors along a dimension.
func (g *Graph) Cat(dim int, parts ...*Tensor) *Tensor {
	g.op = "cat"
	if dim < 0 {
		dim += len(parts[0].Shape)
	}
	shape := slices.Clone(parts[0].Shape)
	shape[dim] = 0
	for _, p := range parts {
		shape[dim] += p.Shape[dim]
	}
	n := g.prepare("cat", parts...)
	out := g.newStrided(shape, catStrides(shape, parts), promote(parts...))
	if n != nil {
		n.emit(out)
		n.backward = func(n *Node, p *pass) {
			for i := range p.out {
				if p.needs(i) {
					v := p.g.alias(p.grad[0], n.metas[i].shape, slices.Clone(p.grad[0].stride))
					v.floating = false
					p.out[i] = v
				}
			}
		}
	}
	eat(parts...)
	return out
}
