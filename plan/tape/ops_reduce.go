package tape

import (
	"slices"

	"memroom/event"
)

func reducedShape(shape []int64, dims []int, keep bool) ([]int64, []bool) {
	reduced := make([]bool, len(shape))
	for _, d := range dims {
		if d < 0 {
			d += len(shape)
		}
		reduced[d] = true
	}
	var out []int64
	for i, s := range shape {
		if !reduced[i] {
			out = append(out, s)
		} else if keep {
			out = append(out, 1)
		}
	}
	return out, reduced
}

// Mean averages over dimensions.
func (g *Graph) Mean(a *Tensor, keep bool, dims ...int) *Tensor {
	g.op = "mean"
	n := g.prepare("mean", a)
	shape, reduced := reducedShape(a.Shape, dims, keep)
	out := g.New(shape, a.DType)
	g.reduceScratch(a, reduced)
	if n != nil {
		n.in0 = a.Shape
		n.emit(out)
		n.backward = func(n *Node, b *pass) { b.out[0] = b.new(n.in0, b.grad[0].DType) }
	}
	eat(a)
	return out
}

// Sum adds over dimensions; its gradient is a view.
func (g *Graph) Sum(a *Tensor, keep bool, dims ...int) *Tensor {
	g.full(&a)
	g.op = "sum"
	n := g.prepare("sum", a)
	shape, reduced := reducedShape(a.Shape, dims, keep)
	out := g.New(shape, a.DType)
	g.reduceScratch(a, reduced)
	if n != nil {
		n.in0 = a.Shape
		n.emit(out)
		n.backward = func(n *Node, b *pass) {
			v := b.g.alias(b.grad[0], n.in0, make([]int64, len(n.in0)))
			v.floating = false
			b.out[0] = v
		}
	}
	eat(a)
	return out
}

// Softmax normalises the last dimension. as is the type asked for in the call, or the input's own.
func (g *Graph) Softmax(a *Tensor, as DType) *Tensor {
	if g.autocastOn() && as.Half() {
		as = F32
	}
	op, cat := "softmax", g.category()
	_ = cat
	if a.DType != as && a.DType != F16 { // only fp16 to fp32 is fused into the kernel
		a = g.To(a, as)
	}
	g.op = op
	n := g.prepare(op, a)
	out := g.newStrided(a.Shape, contiguousStrides(a.Shape), as)
	if n != nil {
		n.emit(out)
		n.save(out)
		n.backward = func(n *Node, b *pass) {
			r := b.new(n.metas[0].shape, n.metas[0].dtype)
			t := b.like(b.grad[0], b.saved[0])
			t.drop()
			b.out[0] = r
		}
	}
	eat(a)
	return out
}

// Norms ------------------------------------------------------------------------------------------------------------

// LayerNorm is nn.LayerNorm over the last dimension; weight and bias may be nil.
func (g *Graph) LayerNorm(x *Tensor, weight, bias *Param) *Tensor {
	g.full(&x)
	if !x.contiguous() {
		x = g.layerNormCopy(x)
	}
	g.op = "layer_norm"
	w, b := tensorOf(weight), tensorOf(bias)
	n := g.prepare("layer_norm", x, w, b)
	n.save(x, w, b)
	rows := x.Numel() / x.Dim(-1)
	out := g.New(x.Shape, x.DType)
	mean := g.New([]int64{rows}, F32)
	rstd := g.New([]int64{rows}, F32)
	if n != nil {
		n.emit(out)
		n.save(mean, rstd)
		n.backward = func(n *Node, p *pass) {
			for i := range p.out {
				if n.metas[i].shape != nil && p.needs(i) {
					p.out[i] = p.new(n.metas[i].shape, n.metas[i].dtype)
				}
			}
		}
	}
	eat(mean, rstd, x)
	return out
}

// layerNormCopy is the contiguous copy that native_layer_norm makes of a strided input; autograd keeps the input itself.
func (g *Graph) layerNormCopy(x *Tensor) *Tensor { return g.Clone(x) }

func tensorOf(p *Param) *Tensor {
	if p == nil {
		return nil
	}
	return p.Tensor
}

// RMSNorm is the norm that Llama and T5 write in Python. plusOne is Gemma's variant: the product is taken in fp32 with
// 1 + weight.
func (g *Graph) RMSNorm(x *Tensor, weight *Param, plusOne bool) *Tensor {
	f := g.Enter(x)
	var h, variance *Tensor
	in := x.DType
	f.Set(&h, g.To(x, F32))
	f.Set(&variance, g.Mean(g.Pow(h), true, -1))
	f.Set(&h, g.Mul(h, g.Rsqrt(g.AddScalar(variance))))
	if plusOne {
		return f.Leave(g.To(g.Mul(h, g.AddScalar(g.To(weight.Tensor, F32))), in))
	}
	return f.Leave(g.Mul(weight.Tensor, g.To(h, in)))
}

// Embedding looks rows up.
func (g *Graph) Embedding(ids *Tensor, table *Param) *Tensor {
	g.op = "embedding"
	n := g.prepare("embedding", table.Tensor)
	n.save(ids)
	if !ids.contiguous() {
		flat := g.newStrided(ids.Shape, contiguousStrides(ids.Shape), ids.DType)
		defer eat(flat)
	}
	out := g.New(append(slices.Clone(ids.Shape), table.Shape[1]), table.DType)
	if n != nil {
		n.emit(out)
		n.backward = func(n *Node, b *pass) {
			ids := b.saved[0]
			if ids.contiguous() {
				b.out[0] = b.embeddingGrad(n.metas[0], ids.Numel())
				return
			}
			b.scratch(ids.Numel()*ids.DType.Size(), func() { b.out[0] = b.embeddingGrad(n.metas[0], ids.Numel()) })
		}
	}
	eat(ids)
	return out
}

// embeddingGrad is the dense gradient of a table. Above 3072 indices PyTorch sorts them and sums in two passes.
func (b *pass) embeddingGrad(m meta, indices int64) *Tensor {
	if indices <= 3072 {
		return b.new(m.shape, m.dtype)
	}
	return b.embeddingGradSorted(m, indices)
}

func (b *pass) embeddingGradSorted(m meta, indices int64) *Tensor {
	g := b.g
	rows, width := m.shape[0], m.shape[1]
	long := func(n int64) *storage { return g.alloc(8*n, event.CategoryTemporary) }
	sorted, orig := long(indices), long(indices)
	arange := long(indices)
	g.temp(radixSortScratch(indices), event.CategoryTemporary)
	g.unrefStorage(arange)
	out := b.new(m.shape, m.dtype)
	segments := min(indices, rows)
	partials := indices/10 + segments
	offsets := long(indices)
	count := long(1)
	g.temp(uniqueScratch(indices), event.CategoryTemporary)
	perSegment := long(segments)
	perSegmentOffset := long(segments)
	g.temp(767, event.CategoryTemporary)
	total := long(1)
	partial := long(partials)
	sums := g.alloc(4*partials*divUp(width, 32)*32, event.CategoryTemporary)
	for _, st := range []*storage{sums, partial, total, perSegmentOffset, perSegment, count, offsets, orig, sorted} {
		g.unrefStorage(st)
	}
	return out
}

// radixSortScratch and uniqueScratch are approximations of CUB's temporary storage; both are small beside the sums.
func radixSortScratch(n int64) int64 { return 16*n + 1024 }
func uniqueScratch(n int64) int64    { return n/4 + 1024 }
