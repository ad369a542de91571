package tape

import (
	"slices"

	"memroom/event"
)

// Index picks rows of x by a vector of indices; its gradient is scattered back with a sort.
func (g *Graph) Index(x, idx *Tensor) *Tensor {
	g.op = "index"
	n := g.prepare("index", x)
	n.save(idx)
	shape := append(slices.Clone(idx.Shape), x.Shape[1:]...)
	out := g.New(shape, x.DType)
	if n != nil {
		n.emit(out)
		n.backward = func(n *Node, b *pass) {
			b.out[0] = b.new(n.metas[0].shape, b.grad[0].DType)
			b.g.scatterScratch(b.saved[0].Numel(), b.grad[0])
		}
	}
	eat(x, idx)
	return out
}

// IndexPair is x[rows, columns]: one vector of x's last dimension for each pair of indices.
func (g *Graph) IndexPair(x, rows, columns *Tensor) *Tensor {
	g.op = "index"
	n := g.prepare("index", x)
	n.save(rows, columns)
	out := g.New([]int64{rows.Shape[0], x.Dim(-1)}, x.DType)
	if n != nil {
		n.emit(out)
		n.backward = func(n *Node, b *pass) {
			b.out[0] = b.new(n.metas[0].shape, b.grad[0].DType)
			g, count := b.g, b.saved[0].Numel()
			long := func() *storage { return g.alloc(8*count, event.CategoryTemporary) }
			first := long()
			linear := long()
			g.unrefStorage(first)
			scaled, sum := long(), long()
			g.unrefStorage(scaled)
			g.unrefStorage(sum)
			g.scatterSorted(count, linear)
		}
	}
	eat(x, rows, columns)
	return out
}

// IndexOne picks one place of a dimension by a list of one index, as x[:, [-1]]: a copy, unlike a
// slice.
func (g *Graph) IndexOne(x *Tensor, dim int) *Tensor {
	g.op = "index"
	idx := g.New([]int64{1}, I64)
	n := g.prepare("index", x)
	n.save(idx)
	shape := slices.Clone(x.Shape)
	shape[dim] = 1
	out := g.New(shape, x.DType)
	if n != nil {
		n.emit(out)
		n.backward = func(n *Node, b *pass) {
			b.out[0] = b.new(n.metas[0].shape, b.grad[0].DType)
			b.g.scatterScratch(1, nil)
		}
	}
	eat(x, idx)
	return out
}

// Gather picks elements of the last dimension (or, for a matrix, of the first) by an index of the
// result's shape. Its gradient is added into zeros; the input is kept for its shape.
func (g *Graph) Gather(x, idx *Tensor) *Tensor {
	g.op = "gather"
	n := g.prepare("gather", x)
	n.save(x, idx)
	out := g.New(idx.Shape, x.DType)
	if n != nil {
		n.emit(out)
		n.backward = func(n *Node, b *pass) { b.out[0] = b.new(n.metas[0].shape, b.grad[0].DType) }
	}
	eat(x, idx)
	return out
}

// scatterScratch is the scratch of index_put_ with accumulation to sort n indices and to read the
// gradient row by row.
func (g *Graph) scatterScratch(n int64, grad *Tensor) {
	long := func() *storage { return g.alloc(8*n, event.CategoryTemporary) }
	linear := long()
	sorted := long()
	g.unrefStorage(linear)
	var rows *Tensor
	if grad != nil {
		rows = g.denseCopy(grad)
	}
	g.scatterSorted(n, sorted)
	rows.drop()
}

// scatterSorted sorts n linear indices and releases them.
func (g *Graph) scatterSorted(n int64, linear *storage) {
	long := func() *storage { return g.alloc(8*n, event.CategoryTemporary) }
	orig, keys, order := long(), long(), long()
	g.temp(scatterSort(n), event.CategoryTemporary)
	for _, st := range []*storage{order, keys, orig, linear} {
		g.unrefStorage(st)
	}
}

// scatterSort is CUB's temporary storage for sorting n indices: nothing while one block can do it.
func scatterSort(n int64) int64 {
	if n < 2048 {
		return 1
	}
	return 3583
}

// TopK returns the k largest of the last dimension and their places.
func (g *Graph) TopK(x *Tensor, k int64) (values, places *Tensor) {
	g.op = "topk"
	n := g.prepare("topk", x)
	shape := slices.Clone(x.Shape)
	shape[len(shape)-1] = k
	values = g.New(shape, x.DType)
	places = g.New(shape, I64)
	if n != nil {
		n.emit(values)
		n.save(places)
		n.backward = func(n *Node, b *pass) { b.out[0] = b.new(n.metas[0].shape, b.grad[0].DType) }
	}
	eat(x)
	return values, places
}

// DivInPlace is a /= b: autograd keeps a copy of a from before.
func (g *Graph) DivInPlace(a, b *Tensor) *Tensor {
	g.op = "div"
	n := g.prepare("div", a, b)
	if n != nil {
		c := g.newStrided(a.Shape, denseLike(a), a.DType)
		n.save(c, b)
		eat(c)
		n.backward = divBackward
		a.rebase(n)
	}
	eat(b)
	return a
}

// Sort orders a vector of integers; it returns the sorted values and where they came from.
func (g *Graph) Sort(x *Tensor) (values, order *Tensor) {
	g.op = "sort"
	values = g.New(x.Shape, x.DType)
	order = g.New(x.Shape, I64)
	g.temp(x.Numel()*x.DType.Size(), event.CategoryTemporary)
	eat(x)
	return values, order
}

// MaskedFillInPlace is x.masked_fill_(mask, number).
func (g *Graph) MaskedFillInPlace(x, mask *Tensor) *Tensor {
	if n := g.prepare("masked_fill", x); n != nil {
		n.save(mask)
		n.backward = oneResult
		x.rebase(n)
	}
	return x
}

// GroupedMM multiplies groups of rows of x by one matrix each: weight is [groups, in, out].
func (g *Graph) GroupedMM(x, weight, offsets *Tensor) *Tensor {
	g.op = "grouped_mm"
	n := g.prepare("grouped_mm", x, weight)
	if n != nil {
		n.save(offsets)
		n.saveIf(weight.needs, x)
		n.saveIf(x.needs, weight)
	}
	groups := weight.Shape[0]
	out := g.New([]int64{x.Shape[0], weight.Shape[2]}, x.DType)
	g.groupedScratch(groups, x.DType)
	if n != nil {
		n.emit(out)
		stride := slices.Clone(weight.stride)
		n.backward = func(n *Node, b *pass) {
			if b.needs(1) {
				b.out[1] = b.newStrided(n.metas[1].shape, stride, b.grad[0].DType)
				b.out[1].isView = true
				b.g.groupedScratch(groups, b.grad[0].DType)
			}
			if b.needs(0) {
				b.out[0] = b.new(n.metas[0].shape, b.grad[0].DType)
				b.g.groupedScratch(groups, b.grad[0].DType)
			}
		}
	}
	eat(x, weight, offsets)
	return out
}

// groupedScratch is the argument table and workspace of the grouped kernel; in fp32 there is a loop
// of plain products.
func (g *Graph) groupedScratch(groups int64, d DType) {
	if !d.Half() {
		g.blas(false)
		return
	}
	table := g.alloc(60*groups, event.CategoryWorkspace)
	g.temp(512*g.SMs, event.CategoryWorkspace)
	g.unrefStorage(table)
}

// WriteInto is whole[..., a:b].copy_(part) along the last dimension. In its backward the gradient
// is copied for the whole, and the written part of it once more.
func (g *Graph) WriteInto(whole, part *Tensor) {
	g.op = "copy"
	n := g.prepare("copy", whole, part)
	if n != nil {
		n.backward = func(n *Node, b *pass) {
			all := b.like(b.grad[0])
			written := b.new(n.metas[1].shape, b.grad[0].DType)
			if b.needs(0) {
				zeros := b.new(n.metas[1].shape, b.grad[0].DType)
				zeros.drop()
				b.out[0] = all
			}
			b.out[1] = written
			if !b.needs(0) {
				all.drop()
			}
		}
		whole.rebase(n)
	}
	eat(part)
}

// Largest is x.max(dim=-1, keepdim=True).values. Its gradient goes into zeros at the place of the
// largest.
func (g *Graph) Largest(x *Tensor) *Tensor {
	g.op = "max"
	n := g.prepare("max", x)
	shape := slices.Clone(x.Shape)
	shape[len(shape)-1] = 1
	out, places := g.New(shape, x.DType), g.New(shape, I64)
	if n != nil {
		n.emit(out)
		n.save(places)
		n.backward = func(n *Node, b *pass) { b.out[0] = b.new(n.metas[0].shape, b.grad[0].DType) }
	}
	eat(places)
	eat(x)
	return out
}

// Masked is x[mask] for a mask over all dimensions but the last, of which rows are true. The places
// are found first; the gradient is scattered back into zeros.
func (g *Graph) Masked(x, mask *Tensor, rows int64) *Tensor {
	g.op = "index"
	n := g.prepare("index", x)
	n.save(mask)
	places := g.alloc(8*rows*int64(len(mask.Shape)), g.category())
	out := g.New([]int64{rows, x.Dim(-1)}, x.DType)
	g.unrefStorage(places)
	if n != nil {
		n.emit(out)
		n.backward = func(n *Node, b *pass) {
			b.out[0] = b.new(n.metas[0].shape, b.grad[0].DType)
			at := b.g.alloc(8*rows*int64(len(n.metas[0].shape)-1), event.CategoryTemporary)
			b.g.scatterScratch(rows, nil)
			b.g.unrefStorage(at)
		}
	}
	eat(x, mask)
	return out
}
