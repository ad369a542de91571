package tape

import (
	"slices"

	"memroom/event"
)

// sumTo sums a gradient down to a shape it was broadcast from; the result is owned by the caller.
func (g *Graph) sumTo(t *Tensor, shape []int64) *Tensor {
	reduced := make([]bool, len(t.Shape))
	lead := len(t.Shape) - len(shape)
	any := false
	for i := range t.Shape {
		reduced[i] = i < lead || shape[i-lead] == 1 && t.Shape[i] != 1
		any = any || reduced[i]
	}
	if !any {
		return t.hold()
	}
	out := g.New(shape, t.DType)
	out.floating = false
	out.isView = lead > 0
	g.reduceScratch(t, reduced)
	return out
}

type reduceDim struct{ size, stride int64 }

// reduceScratch requests the two buffers with which PyTorch's reduction kernel joins the partial
// sums of several blocks, where it uses more than one block for an output. The arithmetic follows
// setReduceConfig of aten's Reduce.cuh: block shape, values per thread, blocks per output.
func (g *Graph) reduceScratch(t *Tensor, reduced []bool) {
	var in, keep []reduceDim
	inputs, outputs := int64(1), int64(1)
	for i, size := range t.Shape {
		if reduced[i] {
			inputs *= size
		} else {
			outputs *= size
		}
		if size == 1 {
			continue
		}
		if reduced[i] {
			in = append(in, reduceDim{size, t.stride[i]})
		} else {
			keep = append(keep, reduceDim{size, t.stride[i]})
		}
	}
	in, keep = coalesce(in), coalesce(keep)
	if outputs == 0 || len(in) == 0 {
		return
	}
	const maxThreads, warp = 512, 32
	onFastest := len(keep) == 0 || in[0].stride < keep[0].stride
	dim0, dim1, fastest := inputs, outputs, in[0].stride
	if !onFastest {
		dim0, dim1, fastest = outputs, inputs, keep[0].stride
	}
	vec := int64(1)
	if fastest == 1 {
		if onFastest && dim0 > 128 && len(in)+len(keep) == 1 {
			dim0 /= 4
		} else if !onFastest {
			vec = outputVector(in, keep)
			dim0 /= vec
		}
	}
	limit := maxThreads / vec
	d0, d1 := lowerPowerOfTwo(dim0, limit), lowerPowerOfTwo(dim1, limit)
	width := min(d0, warp)
	height := min(d1, limit/width)
	width = min(d0, limit/height)
	stepIn, stepOut := int64(1), int64(1)
	if onFastest {
		stepIn *= width
	} else {
		stepOut *= width
	}
	perThread := func() int64 { return divUp(inputs, stepIn) }
	if perThread() < min(height*16, 256) {
		return // each row of the block makes its own output: no second block joins in
	}
	stepIn *= height
	grid := divUp(outputs/vec, stepOut)
	target := g.SMs * (g.SMThreads / (width * height))
	if perThread() < 256 || grid > target {
		return
	}
	blocks := max(min(divUp(target, grid), divUp(perThread(), 16)), divUp(perThread(), 256))
	if blocks <= 1 {
		return
	}
	bytes := 4 * outputs * blocks
	if !onFastest {
		bytes *= width * vec
	}
	buffer := g.alloc(bytes, event.CategoryTemporary)
	g.temp(4*grid, event.CategoryTemporary)
	g.unrefStorage(buffer)
}

// coalesce sorts dimensions fastest first and joins those that lie one after the other.
func coalesce(dims []reduceDim) []reduceDim {
	slices.SortStableFunc(dims, func(a, b reduceDim) int {
		return int(min(max(a.stride-b.stride,
			-1), 1))
	})
	var out []reduceDim
	for _, d := range dims {
		if n := len(out); n > 0 && out[n-1].size*out[n-1].stride == d.stride {
			out[n-1].size *= d.size
			continue
		}
		out = append(out, d)
	}
	return out
}

// outputVector is how many neighbouring outputs one thread makes: 4, 2 or 1, by divisibility.
func outputVector(in, keep []reduceDim) int64 {
	vec := int64(4)
	fit := func(n int64) {
		for n%vec != 0 {
			vec /= 2
		}
	}
	fit(keep[0].size)
	for _, d := range keep[1:] {
		fit(d.stride)
	}
	for _, d := range in {
		fit(d.stride)
	}
	return vec
}

func lowerPowerOfTwo(n, limit int64) int64 {
	if n >= limit {
		return limit
	}
	p := int64(1)
	for p*2 <= n {
		p *= 2
	}
	return p
}

func divUp(a, b int64) int64 { return (a + b - 1) / b }
