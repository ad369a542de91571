package tape

import "slices"

func contiguousStrides(shape []int64) []int64 {
	s := make([]int64, len(shape))
	n := int64(1)
	for i := len(shape) - 1; i >= 0; i-- {
		s[i] = n
		n *= max(shape[i], 1)
	}
	return s
}

func isContiguous(shape, stride []int64) bool {
	n := int64(1)
	for i := len(shape) - 1; i >= 0; i-- {
		if shape[i] == 1 {
			continue
		}
		if stride[i] != n {
			return false
		}
		n *= shape[i]
	}
	return true
}

// Contiguous reports whether the elements lie in row-major order without gaps.
func (t *Tensor) contiguous() bool { return isContiguous(t.Shape, t.stride) }

// byStride orders dimensions from the slowest to the fastest.
func byStride(shape, stride []int64) []int {
	p := make([]int, len(shape))
	for i := range p {
		p[i] = i
	}
	slices.SortStableFunc(p, func(a, b int) int {
		switch {
		case stride[a] > stride[b]:
			return -1
		case stride[a] < stride[b]:
			return 1
		}
		return 0
	})
	return p
}

// dense reports whether the elements fill their range without gaps or overlap, in any order of
// dimensions.
func (t *Tensor) dense() bool {
	if t.contiguous() {
		return true
	}
	n := int64(1)
	p := byStride(t.Shape, t.stride)
	for i := len(p) - 1; i >= 0; i-- {
		d := p[i]
		if t.Shape[d] == 1 {
			continue
		}
		if t.stride[d] != n {
			return false
		}
		n *= t.Shape[d]
	}
	return true
}

// denseLike returns strides without gaps in the order of t's dimensions: what empty_like does.
func denseLike(t *Tensor) []int64 {
	if t.contiguous() {
		return contiguousStrides(t.Shape)
	}
	if t.dense() {
		return t.stride
	}
	return permutedStrides(t.Shape, byStride(t.Shape, t.stride))
}

func permutedStrides(shape []int64, slowToFast []int) []int64 {
	s := make([]int64, len(shape))
	n := int64(1)
	for i := len(slowToFast) - 1; i >= 0; i-- {
		s[slowToFast[i]] = n
		n *= max(shape[slowToFast[i]], 1)
	}
	return s
}

// elementwiseStrides returns the strides that PyTorch's iterator chooses for the result of an
// elementwise operation: dimensions in the order of the operands' strides.
func elementwiseStrides(shape []int64, args []*Tensor) []int64 {
	allContiguous := true
	for _, a := range args {
		if a == nil || len(a.Shape) == 0 {
			continue
		}
		if !slices.Equal(a.Shape, shape) || !a.contiguous() {
			allContiguous = false
		}
	}
	if allContiguous {
		return contiguousStrides(shape)
	}
	if s := sameLayout(shape, args); s != nil {
		return s
	}
	n := len(shape)
	strideOf := func(a *Tensor, d int) int64 {
		i := d - (n - len(a.Shape))
		if i < 0 || a.Shape[i] == 1 && shape[d] != 1 {
			return 0
		}
		return a.stride[i] * a.DType.Size()
	}
	// The comparison of TensorIterator: the first operand with two different non-zero strides
	// decides; equal strides are ambiguous and then the smaller dimension goes first.
	shouldSwap := func(d0, d1 int) int {
		for _, a := range args {
			if a == nil || len(a.Shape) == 0 {
				continue
			}
			s0, s1 := strideOf(a, d0), strideOf(a, d1)
			if s0 == 0 || s1 == 0 {
				continue
			}
			if s0 < s1 {
				return -1
			}
			if s0 > s1 {
				return 1
			}
			if shape[d0] > shape[d1] {
				return 1
			}
		}
		return 0
	}
	perm := make([]int, n) // fastest first
	for i := range perm {
		perm[i] = n - 1 - i
	}
	for i := 1; i < n; i++ {
		at := i
		for j := i - 1; j >= 0; j-- {
			c := shouldSwap(perm[j], perm[at])
			if c > 0 {
				perm[j], perm[at] = perm[at], perm[j]
				at = j
			} else if c < 0 {
				break
			}
		}
	}
	slices.Reverse(perm)
	return permutedStrides(shape, perm)
}

// sameLayout returns the common strides if all operands have the full shape and one dense layout.
func sameLayout(shape []int64, args []*Tensor) []int64 {
	var common []int64
	for _, a := range args {
		if a == nil {
			continue
		}
		if len(a.Shape) == 0 {
			continue
		}
		if !slices.Equal(a.Shape, shape) || !a.dense() {
			return nil
		}
		if common == nil {
			common = a.stride
		} else if !slices.Equal(common, a.stride) {
			return nil
		}
	}
	return common
}

// viewStrides returns the strides of a view with another shape, or nil if the elements would have
// to move.
func viewStrides(oldShape, oldStride, shape []int64) []int64 {
	if numel(oldShape) == 0 || isContiguous(oldShape, oldStride) {
		return contiguousStrides(shape)
	}
	s := make([]int64, len(shape))
	d := len(shape) - 1
	chunk := oldStride[len(oldStride)-1]
	tn, vn := int64(1), int64(1)
	for t := len(oldShape) - 1; t >= 0; t-- {
		tn *= oldShape[t]
		if t == 0 || oldShape[t-1] != 1 && oldStride[t-1] != tn*chunk {
			for d >= 0 && (vn < tn || shape[d] == 1) {
				s[d] = vn * chunk
				vn *= shape[d]
				d--
			}
			if vn != tn {
				return nil
			}
			if t > 0 {
				chunk = oldStride[t-1]
				tn, vn = 1, 1
			}
		}
	}
	if d != -1 {
		return nil
	}
	return s
}

// fill replaces one -1 in shape.
func fill(shape []int64, n int64) []int64 {
	out := slices.Clone(shape)
	known, at := int64(1), -1
	for i, d := range out {
		if d == -1 {
			at = i
		} else {
			known *= d
		}
	}
	if at >= 0 {
		out[at] = n / max(known, 1)
	}
	return out
}

// view records a view operation whose backward is a view of the gradient too.
func (g *Graph) view(t *Tensor, shape, stride []int64, op string, bw backwardFn) *Tensor {
	v := g.alias(t, shape, stride)
	if n := g.record(op, v, t); n != nil {
		n.backward = bw
		n.in0 = t.Shape
	}
	eat(t)
	return v
}

// View returns the tensor in another shape; panics if the elements would have to move.
func (g *Graph) View(t *Tensor, shape ...int64) *Tensor {
	shape = fill(shape, t.Numel())
	s := viewStrides(t.Shape, t.stride, shape)
	if s == nil {
		panic("tape: view of incompatible strides in " + g.module)
	}
	return g.view(t, shape, s, "view", viewBackward)
}

func viewBackward(n *Node, b *pass) { b.out[0] = b.g.reshapeRaw(b.grad[0], n.in0) }

// reshapeRaw is reshape without recording; the result is owned by the caller.
func (g *Graph) reshapeRaw(t *Tensor, shape []int64) *Tensor {
	if s := viewStrides(t.Shape, t.stride, shape); s != nil {
		v := g.alias(t, shape, s)
		v.floating = false
		return v
	}
	c := g.newStrided(t.Shape, contiguousStrides(t.Shape), t.DType)
	c.floating = false
	v := g.alias(c, shape, contiguousStrides(shape))
	v.floating = false
	c.drop()
	return v
}

// Reshape returns the tensor in another shape, copying if need be.
func (g *Graph) Reshape(t *Tensor, shape ...int64) *Tensor {
	shape = fill(shape, t.Numel())
	if s := viewStrides(t.Shape, t.stride, shape); s != nil {
		return g.view(t, shape, s, "reshape", viewBackward)
	}
	return g.View(g.Clone(t), shape...)
}

// Clone copies into row-major order.
func (g *Graph) Clone(t *Tensor) *Tensor {
	c := g.newStrided(t.Shape, contiguousStrides(t.Shape), t.DType)
	if n := g.record("copy", c, t); n != nil {
		n.backward = passThrough
	}
	eat(t)
	return c
}

func passThrough(_ *Node, b *pass) { b.out[0] = b.grad[0].hold() }

// Contiguous copies unless the elements are in row-major order already.
func (g *Graph) Contiguous(t *Tensor) *Tensor {
	if t.contiguous() {
		return t
	}
	return g.Clone(t)
}

// Transpose swaps two dimensions.
func (g *Graph) Transpose(t *Tensor, a, b int) *Tensor {
	if a < 0 {
		a += len(t.Shape)
	}
	if b < 0 {
		b += len(t.Shape)
	}
	shape, stride := slices.Clone(t.Shape), slices.Clone(t.stride)
	shape[a], shape[b] = shape[b], shape[a]
	stride[a], stride[b] = stride[b], stride[a]
	return g.view(t, shape, stride, "transpose", func(_ *Node,
		p *pass) {
		p.out[0] = p.g.transposeRaw(p.grad[0], a, b)
	})
}

func (g *Graph) transposeRaw(t *Tensor, a, b int) *Tensor {
	shape, stride := slices.Clone(t.Shape), slices.Clone(t.stride)
	shape[a], shape[b] = shape[b], shape[a]
	stride[a], stride[b] = stride[b], stride[a]
	v := g.alias(t, shape, stride)
	v.floating = false
	return v
}

// Permute reorders dimensions.
func (g *Graph) Permute(t *Tensor, order ...int) *Tensor {
	shape, stride := make([]int64, len(order)), make([]int64, len(order))
	inverse := make([]int, len(order))
	for i, d := range order {
		if d < 0 {
			d += len(order)
		}
		shape[i], stride[i], inverse[d] = t.Shape[d], t.stride[d], i
	}
	return g.view(t, shape, stride, "permute", func(_ *Node, p *pass) {
		gr := p.grad[0]
		sh, st := make([]int64, len(inverse)), make([]int64, len(inverse))
		for i, d := range inverse {
			sh[i], st[i] = gr.Shape[d], gr.stride[d]
		}
		v := p.g.alias(gr, sh, st)
		v.floating = false
		p.out[0] = v
	})
}

// Unsqueeze inserts a dimension of size one.
func (g *Graph) Unsqueeze(t *Tensor, at int) *Tensor {
	if at < 0 {
		at += len(t.Shape) + 1
	}
	step := int64(1)
	if at < len(t.Shape) {
		step = t.Shape[at] * t.stride[at]
	}
	return g.view(t, slices.Insert(slices.Clone(t.Shape), at, 1),
		slices.Insert(slices.Clone(t.stride), at, step), "unsqueeze", viewBackward)
}

// Squeeze removes a dimension of size one.
func (g *Graph) Squeeze(t *Tensor, at int) *Tensor {
	if at < 0 {
		at += len(t.Shape)
	}
	return g.view(t, slices.Delete(slices.Clone(t.Shape), at, at+1),
		slices.Delete(slices.Clone(t.stride), at, at+1), "squeeze", viewBackward)
}

// Slice takes size elements of a dimension.
func (g *Graph) Slice(t *Tensor, dim int, size int64) *Tensor {
	if dim < 0 {
		dim += len(t.Shape)
	}
	if size == t.Shape[dim] {
		return g.view(t, slices.Clone(t.Shape), slices.Clone(t.stride), "slice", passThrough)
	}
	shape := slices.Clone(t.Shape)
	shape[dim] = size
	return g.view(t, shape, slices.Clone(t.stride), "slice", padBackward)
}

// Step2 takes every second element of a dimension.
func (g *Graph) Step2(t *Tensor, dim int) *Tensor {
	if dim < 0 {
		dim += len(t.Shape)
	}
	shape, stride := slices.Clone(t.Shape), slices.Clone(t.stride)
	shape[dim] /= 2
	stride[dim] *= 2
	return g.view(t, shape, stride, "slice", padBackward)
}

// padBackward puts the gradient of a part into zeros of the whole.
func padBackward(n *Node, b *pass) { b.out[0] = b.new(n.in0, b.grad[0].DType) }

// Select takes one index of a dimension and removes the dimension.
func (g *Graph) Select(t *Tensor, dim int) *Tensor {
	if dim < 0 {
		dim += len(t.Shape)
	}
	return g.view(t, slices.Delete(slices.Clone(t.Shape), dim, dim+1),
		slices.Delete(slices.Clone(t.stride), dim, dim+1), "select", padBackward)
}

// Expand repeats dimensions of size one without copying.
func (g *Graph) Expand(t *Tensor, shape ...int64) *Tensor {
	shape = slices.Clone(shape)
	lead := len(shape) - len(t.Shape)
	stride := make([]int64, len(shape))
	for i := range t.Shape {
		if shape[lead+i] == -1 {
			shape[lead+i] = t.Shape[i]
		}
		if t.Shape[i] == shape[lead+i] {
			stride[lead+i] = t.stride[i]
		}
	}
	if slices.Equal(shape, t.Shape) {
		return g.view(t, shape, slices.Clone(t.stride), "expand", passThrough)
	}
	return g.view(t, shape, stride, "expand",
		func(n *Node, p *pass) { p.out[0] = p.g.sumTo(p.grad[0], n.in0) })
}

// Repeat copies a tensor n times along its first dimension.
func (g *Graph) Repeat(t *Tensor, n int64) *Tensor {
	g.op = "repeat"
	node := g.prepare("repeat", t)
	shape := slices.Clone(t.Shape)
	shape[0] *= n
	out := g.New(shape, t.DType)
	if node != nil {
		node.emit(out)
		in := t.Shape
		node.backward = func(_ *Node, p *pass) { // viewed as n copies, which are summed
			gr := p.grad[0]
			v := p.g.alias(gr, append([]int64{n}, in...), append([]int64{in[0] * gr.stride[0]},
				gr.stride...))
			v.floating = false
			s := p.g.sumTo(v, in)
			s.isView = false
			v.drop()
			p.out[0] = s
		}
	}
	eat(t)
	return out
}

// Split cuts a dimension into parts of the given sizes. Their backward is one concatenation.
func (g *Graph) Split(t *Tensor, dim int, sizes ...int64) []*Tensor {
	if dim < 0 {
		dim += len(t.Shape)
	}
	parts := make([]*Tensor, len(sizes))
	for i, size := range sizes {
		shape := slices.Clone(t.Shape)
		shape[dim] = size
		parts[i] = g.alias(t, shape, slices.Clone(t.stride))
	}
	if n := g.recordMany("split", parts, t); n != nil {
		n.in0 = t.Shape
		n.backward = func(n *Node, b *pass) {
			// Missing gradients become zeros, then all are joined in the layout of the first.
			var zeros []*Tensor
			for i, gr := range b.grad {
				if gr == nil {
					shape := slices.Clone(n.in0)
					shape[dim] = sizes[i]
					zeros = append(zeros, b.new(shape, b.dtype(n)))
				}
			}
			first := b.grad[0]
			if first == nil {
				b.out[0] = b.new(n.in0, b.dtype(n))
			} else {
				b.out[0] = b.newStrided(n.in0, catStrides(n.in0, b.grad), first.DType)
			}
			for _, z := range zeros {
				z.drop()
			}
		}
	}
	eat(t)
	return parts
}

// Unbind cuts a tensor into its slices along a dimension. Their backward stacks them again.
func (g *Graph) Unbind(t *Tensor, dim int) []*Tensor {
	n := t.Shape[dim]
	sizes := make([]int64, n)
	for i := range sizes {
		sizes[i] = 1
	}
	parts := g.Split(t, dim, sizes...)
	for i, p := range parts {
		parts[i] = g.Squeeze(p, dim)
	}
	return parts
}

// catStrides is the layout of a concatenation: channels-last if all parts are, else row-major.
func catStrides(shape []int64, parts []*Tensor) []int64 {
	if len(shape) == 4 {
		all := true
		for _, p := range parts {
			all = all && p != nil && p.channelsLast()
		}
		if all {
			return channelsLastStrides(shape)
		}
	}
	return contiguousStrides(shape)
}

func channelsLastStrides(shape []int64) []int64 { return permutedStrides(shape, []int{0, 2, 3, 1}) }

func (t *Tensor) channelsLast() bool {
	return len(t.Shape) == 4 && !t.contiguous() && slices.Equal(t.stride,
		channelsLastStrides(t.Shape))
}

// Stride2 takes every second row and column of a [B, H, W, C] map. Its gradient is padded back in
// two steps.
func (g *Graph) Stride2(t *Tensor) *Tensor {
	rows := g.view(t, []int64{t.Shape[0], t.Shape[1] / 2, t.Shape[2], t.Shape[3]},
		[]int64{t.stride[0], 2 * t.stride[1], t.stride[2], t.stride[3]}, "slice", padBackward)
	return g.view(rows, []int64{t.Shape[0], t.Shape[1] / 2, t.Shape[2] / 2, t.Shape[3]},
		[]int64{t.stride[0], 2 * t.stride[1], 2 * t.stride[2], t.stride[3]}, "slice", padBackward)
}
