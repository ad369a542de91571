package tape

import (
	"slices"
	"strings"

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
	defer release(g.full(&a))
	g.op = "sum"
	n := g.prepare("sum", a)
	shape, reduced := reducedShape(a.Shape, dims, keep)
	out := g.New(shape, a.DType)
	g.reduceScratch(a, reduced)
	if n != nil {
		n.in0 = a.Shape
		n.emit(out)
		n.backward = func(n *Node, b *pass) {
			v := b.g.alias(b.grad[0], n.in0, expandedStrides(b.grad[0], reduced, keep))
			v.floating = false
			b.out[0] = v
		}
	}
	eat(a)
	return out
}

// VectorNorm is torch.linalg.vector_norm over dimensions, which stay with size one. Autocast asks
// for a result in fp32 and leaves the input alone.
func (g *Graph) VectorNorm(a *Tensor, dims ...int) *Tensor {
	return g.norm(a, dims, func(b *pass) { // self * (grad / norm), zero where the norm is
		q := b.like(b.grad[0], b.saved[1])
		zero := b.new(b.saved[1].Shape, Bool)
		b.out[0] = b.like(b.saved[0], q)
		zero.drop()
		q.drop()
	})
}

// OldNorm is torch.norm, whose backward has another order.
func (g *Graph) OldNorm(a *Tensor, dims ...int) *Tensor {
	return g.norm(a, dims, func(b *pass) { // grad * (self / norm), zero where the norm is
		q := b.like(b.saved[0], b.saved[1])
		zero := b.new(b.saved[1].Shape, Bool)
		b.out[0] = b.like(b.grad[0], q)
		zero.drop()
		q.drop()
	})
}

func (g *Graph) norm(a *Tensor, dims []int, backward func(b *pass)) *Tensor {
	d := a.DType
	if g.autocastOn() && d.Half() {
		d = F32
	}
	g.op = "norm"
	n := g.prepare("norm", a)
	n.save(a)
	shape, reduced := reducedShape(a.Shape, dims, true)
	out := g.New(shape, d)
	g.reduceScratch(a, reduced)
	if n != nil {
		n.emit(out)
		n.save(out)
		n.backward = func(_ *Node, b *pass) { backward(b) }
	}
	eat(a)
	return out
}

// expandedStrides are those of a gradient repeated along the dimensions that were summed.
func expandedStrides(gr *Tensor, reduced []bool, keep bool) []int64 {
	stride := make([]int64, len(reduced))
	at := 0
	for i := range reduced {
		if !reduced[i] {
			stride[i] = gr.stride[at]
		}
		if !reduced[i] || keep {
			at++
		}
	}
	return stride
}

// Softmax normalises the last dimension. as is the type asked for in the call, or the input's own.
func (g *Graph) Softmax(a *Tensor, as DType) *Tensor {
	if g.autocastOn() && as.Half() {
		as = F32
	}
	if a.DType != as && a.DType != F16 { // only fp16 to fp32 is fused into the kernel
		a = g.To(a, as)
	}
	g.op = "softmax"
	n := g.prepare("softmax", a)
	out := g.newStrided(a.Shape, contiguousStrides(a.Shape), as)
	if n != nil {
		n.emit(out)
		n.save(out)
		if g.WideSave {
			n.save(a)
		}
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

// Norms
// ----------------------------------------------------------------------------------------

// LayerNorm is nn.LayerNorm over the last dimension; weight and bias may be nil. A strided input is
// kept as it is and copied for the kernel, in the forward and again in the backward pass.
func (g *Graph) LayerNorm(x *Tensor, weight, bias *Param) *Tensor {
	return g.LayerNormT(x, tensorOf(weight), tensorOf(bias))
}

// LayerNormT is layer_norm with a weight and a bias that need not be parameters.
func (g *Graph) LayerNormT(x, w, b *Tensor) *Tensor {
	defer release(g.full(&x, &w, &b))
	g.op = "layer_norm"
	n := g.prepare("layer_norm", x, w, b)
	n.save(x, w, b)
	copied := g.denseCopy(x)
	rows := x.Numel() / x.Dim(-1)
	out := g.New(x.Shape, x.DType)
	mean := g.New([]int64{rows}, F32)
	rstd := g.New([]int64{rows}, F32)
	copied.drop()
	if n != nil {
		n.emit(out)
		n.save(mean, rstd)
		n.backward = layerNormBackward
	}
	eat(mean, rstd, x, w, b)
	return out
}

func layerNormBackward(n *Node, p *pass) {
	x := p.g.denseCopy(p.saved[0])
	for i := range p.out {
		if n.metas[i].shape != nil && p.needs(i) {
			p.out[i] = p.new(n.metas[i].shape, n.metas[i].dtype)
		}
	}
	grad := p.g.denseCopy(p.grad[0])
	grad.drop()
	x.drop()
}

// GroupNorm is nn.GroupNorm with a group for each channel, on [B, C, ...]; autocast runs it in
// fp32.
func (g *Graph) GroupNorm(x *Tensor, weight, bias *Param) *Tensor {
	defer release(g.full(&x))
	g.op = "group_norm"
	n := g.prepare("group_norm", x, weight.Tensor, bias.Tensor)
	n.save(x, weight.Tensor)
	rows := x.Shape[0] * x.Shape[1]
	out := g.New(x.Shape, x.DType)
	mean, rstd := g.New([]int64{rows}, x.DType), g.New([]int64{rows}, x.DType)
	a, b := g.New([]int64{rows}, F32), g.New([]int64{rows}, F32) // scale and shift of the kernel
	eat(b, a)
	if n != nil {
		n.emit(out)
		n.save(mean, rstd)
		n.backward = func(n *Node, p *pass) {
			p.out[0] = p.new(n.metas[0].shape, n.metas[0].dtype)
			p.out[1] = p.new(n.metas[1].shape, n.metas[1].dtype)
			p.out[2] = p.new(n.metas[2].shape, n.metas[2].dtype)
			p.scratch(4*rows, func() {
				p.scratch(4*rows, func() {
					p.scratch(4*rows,
						func() { p.scratch(4*rows, nil) })
				})
			})
		}
	}
	eat(mean, rstd, x)
	return out
}

// WeightNorm is a weight made of a direction and a gain for each index of its last dimension.
func (g *Graph) WeightNorm(v, gain *Tensor) *Tensor {
	g.op = "weight_norm"
	n := g.prepare("weight_norm", v, gain)
	out := g.New(v.Shape, v.DType)
	norms := g.New([]int64{v.Dim(-1)}, F32)
	if n != nil {
		n.emit(out)
		n.save(v, gain, norms)
		n.backward = func(n *Node, p *pass) {
			p.out[0] = p.new(n.metas[0].shape, n.metas[0].dtype)
			p.out[1] = p.new(n.metas[1].shape, n.metas[1].dtype)
		}
	}
	eat(norms)
	return out
}

// denseCopy is the row-major copy of a strided tensor, or nil.
func (g *Graph) denseCopy(t *Tensor) *Tensor {
	if t.contiguous() {
		return nil
	}
	c := g.New(t.Shape, t.DType)
	c.floating = false
	return c
}

func tensorOf(p *Param) *Tensor {
	if p == nil {
		return nil
	}
	return p.Tensor
}

// RMSNorm is the norm that Llama and T5 write in Python. plusOne is Gemma's variant: the product is
// taken in fp32 with 1 + weight.
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
	return g.EmbeddingCut(ids, table, 1)
}

// EmbeddingCut looks rows up in one of so many parts of a table. PyTorch's gradient of a part has
// the rows of all parts: the rank's own are a view of it, which keeps the whole.
func (g *Graph) EmbeddingCut(ids *Tensor, table *Param, parts int64) *Tensor {
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
			ids, m := b.saved[0], n.metas[0]
			g := b.g
			var held []*storage
			if ids.Numel() > sortedIndices && !b.grad[0].contiguous() {
				held = append(held, g.alloc(b.grad[0].Numel()*b.grad[0].DType.Size(),
					event.CategoryTemporary))
			}
			if !ids.contiguous() {
				held = append(held, g.alloc(ids.Numel()*ids.DType.Size(), event.CategoryTemporary))
			}
			whole := meta{[]int64{m.shape[0] * parts, m.shape[1]}, m.dtype}
			b.out[0] = b.embeddingGrad(whole, ids.Numel())
			if parts > 1 {
				b.out[0] = g.rowsOf(b.out[0], m.shape)
			}
			for _, st := range held {
				g.unrefStorage(st)
			}
		}
	}
	eat(ids)
	if g.InputGrads && table.words() {
		return g.WantGrad(out)
	}
	return out
}

// words reports whether a table is the one of a model's input tokens, by its name: others hold
// positions, types or biases.
func (p *Param) words() bool {
	for _, other := range []string{"pos", "wpe", "type", "bias"} {
		if strings.Contains(p.Name, other) {
			return false
		}
	}
	return true
}

// rowsOf is the first rows of a matrix that nobody else holds, as a view.
func (g *Graph) rowsOf(t *Tensor, shape []int64) *Tensor {
	v := g.alias(t, shape, slices.Clone(t.stride))
	v.floating = false
	t.drop()
	return v
}

// sortedIndices is the number of indices above which PyTorch sorts them and sums in two passes.
const sortedIndices = 3072

// embeddingGrad is the dense gradient of a table.
func (b *pass) embeddingGrad(m meta, indices int64) *Tensor {
	if indices <= sortedIndices {
		return b.new(m.shape, m.dtype)
	}
	return b.embeddingGradSorted(m, indices)
}

func (b *pass) embeddingGradSorted(m meta, indices int64) *Tensor {
	g := b.g
	rows, width := m.shape[0], m.shape[1]
	long := func(n int64) *storage { return g.alloc(8*n, event.CategoryTemporary) }
	sorted, orig := long(indices), long(indices)
	order := long(indices)
	g.temp(radixSortScratch(indices), event.CategoryTemporary)
	g.unrefStorage(order)
	out := b.new(m.shape, m.dtype)
	segments := min(indices, rows)
	partials := indices/10 + segments
	offsets, count, unique := long(indices), long(1), long(indices)
	g.temp(scanScratch, event.CategoryTemporary)
	g.unrefStorage(unique)
	perSegment, perSegmentOffset := long(segments), long(segments)
	g.temp(scanScratch, event.CategoryTemporary)
	total, partial := long(1), long(partials)
	bytes := 4 * partials * width
	if width < 32 { // narrow tables, such as position biases, are summed by another kernel, in fp32
		bytes = 8 * partials
	}
	sums := g.alloc(bytes, event.CategoryTemporary)
	var wide *storage
	if width < 32 && m.dtype.Half() {
		wide = g.alloc(4*rows*width, event.CategoryTemporary)
	}
	for _, st := range []*storage{wide, sums, partial, total, perSegmentOffset, perSegment, count,
		offsets, orig, sorted} {
		g.unrefStorage(st)
	}
	return out
}

// radixSortScratch is CUB's temporary storage for sorting n pairs of 64-bit integers: a second copy
// of both, a histogram per tile of 4096, and constants.
func radixSortScratch(n int64) int64 { return 2*divUp(8*n, 256)*256 + 1024*divUp(n, 4096) + 16895 }

// scanScratch is CUB's temporary storage for a scan or a selection of a few thousand items.
const scanScratch = 1279
