package tape

import "slices"

// BatchNorm is nn.BatchNorm2d in training: the result and two vectors of statistics are made, the
// input is kept.
func (g *Graph) BatchNorm(x *Tensor, weight, bias *Param) *Tensor {
	g.op = "batch_norm"
	g.UsesDNN = true
	n := g.prepare("batch_norm", x, weight.Tensor, bias.Tensor)
	n.save(x, weight.Tensor)
	out := g.newStrided(x.Shape, denseLike(x), x.DType)
	if !g.Training { // the running statistics are used
		eat(x)
		return out
	}
	mean := g.New([]int64{x.Shape[1]}, F32)
	inv := g.New([]int64{x.Shape[1]}, F32)
	if n != nil {
		n.emit(out)
		n.save(mean, inv)
		n.backward = func(n *Node, p *pass) {
			p.out[0] = p.like(p.saved[0])
			p.out[1] = p.new(n.metas[1].shape, n.metas[1].dtype)
			p.out[2] = p.new(n.metas[2].shape, n.metas[2].dtype)
		}
	}
	eat(mean, inv, x)
	return out
}

// MaxPool is nn.MaxPool2d: it keeps its input and the index of each maximum.
func (g *Graph) MaxPool(x *Tensor, k, stride, pad int64) *Tensor {
	s := ConvShape{Stride: stride, Pad: pad, Dilation: 1, Groups: 1}
	return g.maxPool(x, s.out(x.Shape[2], k), s.out(x.Shape[3], k))
}

// MaxPoolCeil is nn.MaxPool2d with ceil_mode: a window that begins inside the image counts.
func (g *Graph) MaxPoolCeil(x *Tensor, k, stride int64) *Tensor {
	size := func(n int64) int64 {
		out := divUp(max(n-k, 0), stride) + 1
		if (out-1)*stride >= n {
			out--
		}
		return out
	}
	return g.maxPool(x, size(x.Shape[2]), size(x.Shape[3]))
}

func (g *Graph) maxPool(x *Tensor, height, width int64) *Tensor {
	g.op = "max_pool"
	n := g.prepare("max_pool", x)
	n.save(x)
	shape := []int64{x.Shape[0], x.Shape[1], height, width}
	stridesOf := g.like4(x, shape)
	out := g.newStrided(shape, stridesOf, x.DType)
	index := g.newStrided(shape, stridesOf, I64)
	if n != nil {
		n.emit(out)
		n.save(index)
		n.backward = func(n *Node, p *pass) { p.out[0] = p.like(p.saved[0]) }
	}
	eat(index, x)
	return out
}

// like4 is the layout of a feature map made from x.
func (g *Graph) like4(x *Tensor, shape []int64) []int64 {
	if x.channelsLast() {
		return channelsLastStrides(shape)
	}
	return contiguousStrides(shape)
}

// AvgPool is nn.AvgPool2d, and AdaptiveAvgPool2d with more than one output: the input is kept, if
// only for its shape.
func (g *Graph) AvgPool(x *Tensor, h, w int64) *Tensor {
	g.op = "avg_pool"
	n := g.prepare("avg_pool", x)
	n.save(x)
	shape := []int64{x.Shape[0], x.Shape[1], h, w}
	out := g.newStrided(shape, g.like4(x, shape), x.DType)
	if n != nil {
		n.emit(out)
		n.backward = func(n *Node, p *pass) { p.out[0] = p.like(p.saved[0]) }
	}
	eat(x)
	return out
}

// GlobalPool is AdaptiveAvgPool2d(1): a mean over the image. For a channels-last input the result
// is restrided, which costs a copy of the gradient.
func (g *Graph) GlobalPool(x *Tensor) *Tensor {
	last := x.channelsLast()
	out := g.Mean(x, true, 2, 3)
	if !last {
		return out
	}
	if n := g.prepare("as_strided", out); n != nil {
		n.backward = oneResult
		out.rebase(n)
	}
	out.stride = channelsLastStrides(out.Shape)
	return out
}

// StochasticDepth multiplies whole samples by zero or one.
func (g *Graph) StochasticDepth(x *Tensor, p float64) *Tensor {
	if p <= 0 || !g.Training {
		return x
	}
	shape := make([]int64, len(x.Shape))
	for i := range shape {
		shape[i] = 1
	}
	shape[0] = x.Shape[0]
	f := g.Enter(x)
	var noise *Tensor
	f.Set(&noise, g.Fresh("stochastic depth", x.DType, shape...))
	return f.Leave(g.Mul(x, noise))
}

// DropoutInPlace is nn.Dropout(inplace=True): autograd keeps the mask of noise in the input's type.
func (g *Graph) DropoutInPlace(x *Tensor, p float64) *Tensor {
	if p <= 0 || !g.Training {
		return x
	}
	g.op = "dropout"
	n := g.prepare("dropout", x)
	noise := g.newStrided(x.Shape, denseLike(x), x.DType)
	if n != nil {
		n.save(noise)
		n.backward = oneResultSaved
		if x.isView { // through a view: the gradient of the whole, a copy of the part, its product
			n.backward = func(_ *Node, b *pass) {
				b.out[0] = b.like(b.grad[0])
				part := b.like(b.grad[0])
				product := b.like(b.grad[0])
				product.drop()
				part.drop()
			}
		}
		x.rebase(n)
	}
	eat(noise)
	return x
}

// ToChannelsLastInput returns an image batch in channels-last order, as x.to(memory_format=...)
// does.
func (g *Graph) ToChannelsLastInput(x *Tensor) *Tensor {
	out := g.newStrided(slices.Clone(x.Shape), channelsLastStrides(x.Shape), x.DType)
	eat(x)
	return out
}

// Pad adds zeros at the end of dimensions: a copy, even for none.
func (g *Graph) Pad(x *Tensor, by int64, dims ...int) *Tensor {
	g.op = "pad"
	n := g.prepare("pad", x)
	shape := slices.Clone(x.Shape)
	for _, d := range dims {
		shape[(d+len(shape))%len(shape)] += by
	}
	out := g.New(shape, x.DType)
	if n != nil {
		n.emit(out)
		n.backward = func(n *Node, b *pass) { b.out[0] = b.new(n.metas[0].shape, b.grad[0].DType) }
	}
	eat(x)
	return out
}

// Roll shifts two dimensions cyclically: one copy for each.
func (g *Graph) Roll(x *Tensor) *Tensor {
	g.op = "roll"
	n := g.prepare("roll", x)
	first := g.New(x.Shape, x.DType)
	out := g.New(x.Shape, x.DType)
	eat(first)
	if n != nil {
		n.emit(out)
		n.backward = func(n *Node, b *pass) {
			t := b.new(n.metas[0].shape, b.grad[0].DType)
			b.out[0] = b.new(n.metas[0].shape, b.grad[0].DType)
			t.drop()
		}
	}
	eat(x)
	return out
}

// DropPath is stochastic depth as transformers writes it.
func (g *Graph) DropPath(x *Tensor, p float64) *Tensor {
	if p <= 0 || !g.Training {
		return x
	}
	f := g.Enter(x)
	shape := make([]int64, len(x.Shape))
	for i := range shape {
		shape[i] = 1
	}
	shape[0] = x.Shape[0]
	var noise *Tensor
	f.Set(&noise, g.Fresh("drop path", x.DType, shape...))
	f.Set(&noise, g.Scale(g.AddScalar(noise)))
	return f.Leave(g.Mul(g.Scale(x), noise))
}
