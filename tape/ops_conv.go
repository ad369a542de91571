package tape

import (
	"fmt"

	"memroom/event"
)

// ConvShape is the geometry of a convolution.
type ConvShape struct {
	Stride, Pad, Groups, Dilation int64
	Flat                          bool // one-dimensional: images one pixel high
}

// height is the output's height.
func (s ConvShape) height(n, k int64) int64 {
	if s.Flat {
		return 1
	}
	return s.out(n, k)
}

// Impossible is a panic value: the operation cannot be done with these shapes.
type Impossible struct{ Why string }

func (s ConvShape) out(n, k int64) int64 {
	room := n + 2*s.Pad - s.Dilation*(k-1) - 1
	if room < 0 && s.Flat {
		panic(Impossible{fmt.Sprintf("a kernel of %d does not fit on %d steps: the sequence is too short "+
			"for this network (speech models count samples of audio, 16,000 a second)", k, n)})
	}
	if room < 0 {
		panic(Impossible{fmt.Sprintf("a kernel of %d does not fit on %d pixels: the image is too small "+
			"for this network", k, n)})
	}
	return room/s.Stride + 1
}

// Conv is nn.Conv2d through cuDNN (benchmark off): the result, then a workspace that is released at
// once.
func (g *Graph) Conv(x *Tensor, weight, bias *Param, s ConvShape) *Tensor {
	return g.ConvT(x, weight.Tensor, tensorOf(bias), s)
}

// ConvT is a convolution whose weight need not be a parameter.
func (g *Graph) ConvT(x, w, b *Tensor, s ConvShape) *Tensor {
	defer release(g.half(&x, &w, &b))
	g.op = "conv"
	n := g.prepare("conv", x, w, b)
	n.save(x, w)
	shape := []int64{x.Shape[0], w.Shape[0], s.height(x.Shape[2], w.Shape[2]),
		s.out(x.Shape[3], w.Shape[3])}
	// one-dimensional ones are always made contiguous
	last := !s.Flat && (x.channelsLast() || w.channelsLast())
	stride := contiguousStrides(shape)
	if last {
		stride = channelsLastStrides(shape)
	}
	copied := g.convInput(x, last)
	out := g.newStrided(shape, stride, x.DType)
	c := convCase{x: x.Shape, w: w.Shape, y: shape, d: x.DType, shape: s, last: last,
		scale: g.ConvScale}
	g.UsesDNN = true
	size, known := g.convBytes(c)
	turned := g.convFilter(c, w)
	g.workspace(size.Forward, known)
	turned.drop()
	copied.drop()
	if n != nil {
		n.emit(out)
		n.backward = func(n *Node, p *pass) { p.convGrad(n, c, turned != nil, size, known) }
	}
	eat(x, w, b)
	return out
}

// convInput is the copy of an input whose layout the kernel does not take, or nil.
func (g *Graph) convInput(x *Tensor, last bool) *Tensor {
	if x.contiguous() || last && x.channelsLast() {
		return nil
	}
	c := g.New(x.Shape, x.DType)
	c.floating = false
	return c
}

// convFilter is the copy of a filter in the layout of its input, or nil where it has it.
func (g *Graph) convFilter(c convCase, w *Tensor) *Tensor {
	if !c.last || w.channelsLast() || w.Shape[1] == 1 || w.Shape[2]*w.Shape[3] == 1 {
		return nil
	}
	t := g.New(w.Shape, w.DType)
	t.floating = false
	return t
}

func (p *pass) convGrad(n *Node, c convCase, turned bool, size ConvBytes, known bool) {
	g, gr := p.g, p.grad[0]
	layout := func(shape []int64) []int64 {
		if c.last {
			return channelsLastStrides(shape)
		}
		return contiguousStrides(shape)
	}
	input := func() {
		if p.needs(0) {
			p.out[0] = p.newStrided(n.metas[0].shape, layout(n.metas[0].shape), gr.DType)
			// a strided gradient is copied for each of the two kernels
			copied := g.convInput(gr, c.last)
			var filter *Tensor
			if turned {
				filter = p.new(n.metas[1].shape, gr.DType)
			}
			g.workspace(size.InputGrad, known)
			if filter != nil {
				filter.drop()
			}
			copied.drop()
		}
	}
	weight := func() {
		if p.needs(1) {
			copied := g.convInput(gr, c.last)
			p.out[1] = p.newStrided(n.metas[1].shape, layout(n.metas[1].shape), gr.DType)
			g.workspace(size.WeightGrad, known)
			copied.drop()
		}
	}
	if c.depthwise() && !c.last { // PyTorch's own kernel
		weight()
		input()
	} else {
		input()
		weight()
	}
	if n.metas[2].shape != nil && p.needs(2) {
		p.out[2] = p.new(n.metas[2].shape, gr.DType)
		g.reduceScratch(gr, []bool{true, false, true, true})
	}
}

func (g *Graph) workspace(bytes int64, known bool) {
	if bytes > 0 {
		g.Approx = g.Approx || !known
		g.temp(bytes, event.CategoryWorkspace)
	}
}

// convCase is one convolution as cuDNN's heuristics see it.
type convCase struct {
	x, w, y []int64
	d       DType
	shape   ConvShape
	last    bool
	scale   float64
}

// padded is the number of channels that kernels read: three input channels of a half-precision
// image are widened.
func (c convCase) padded() int64 {
	if c.x[1] != 3 {
		return c.x[1]
	}
	switch c.d {
	case BF16:
		return 8
	case F16:
		return 4
	}
	return 3
}

// sizes are the bytes of input, output and filter in the kernel's layout.
func (c convCase) sizes() (i, o, w int64) {
	e, ch := c.d.Size(), c.padded()
	return e * c.x[0] * ch * c.x[2] * c.x[3], e * numel(c.y),
		e * c.w[0] * max(ch/c.shape.Groups, 1) * c.w[2] * c.w[3]
}

// patches reports whether this is the patch embedding of a vision transformer, whose workspaces are
// known exactly.
func (c convCase) patches() bool { return c.x[1] == 3 && c.w[2] == c.shape.Stride && c.w[2] >= 8 }

// partialFilters returns by how many bytes the filter's gradient may take less than under our rule.
// Three partial filters were seen where the images have a few thousand patches together; fewer
// patches were not measured.
func (c convCase) partialFilters() int64 {
	if _, _, w := c.sizes(); c.d == BF16 && !c.last && c.y[0]*c.y[2]*c.y[3] < manyPatches {
		return 6 * w
	}
	return 0
}

const manyPatches = 3000

func (c convCase) scaled(n int64) int64 {
	if c.patches() {
		return n
	}
	return int64(float64(n) * c.scale)
}

func (c convCase) pointwise() bool { return c.w[2] == 1 && c.w[3] == 1 && c.shape.Stride == 1 }

// small reports whether this is a first layer of a kernel of at most four pixels on an image.
func (c convCase) small() bool { return c.x[1] == 3 && c.w[2] <= 4 }

// single reports whether the input has one channel, as raw audio: both layouts are the same and
// nothing is copied.
func (c convCase) single() bool { return c.x[1] == 1 }

func (c convCase) depthwise() bool { return c.shape.Groups > 1 && c.w[1] == 1 }

// audible reports whether the rules of audio hold.
func (c convCase) audible() bool { return c.shape.Flat && !c.last && !c.depthwise() && c.w[3] > 1 }

// audio is what a one-dimensional convolution takes in NCHW, as seen with wav2vec 2.0's: copies of
// input, output and filter in the kernel's layout, fewer for two taps and for groups.
func (c convCase) audio() ConvBytes {
	i, o, w := c.sizes()
	switch {
	case c.single() && c.d == F32:
		return ConvBytes{}
	case c.single():
		all := 8*i + o + 8*w + 16 // channels in eights
		return ConvBytes{all, all, all}
	case c.d.Half() && c.shape.Groups > 1:
		return ConvBytes{Forward: i + w/2 + 2176, InputGrad: i + o + w + 16,
			WeightGrad: i + o + w + 16}
	case c.d.Half():
		all := c.scaled(i + o + w + 16)
		return ConvBytes{all, all, all}
	case c.shape.Groups > 1:
		return ConvBytes{Forward: i + 4224, InputGrad: i + w/2 + 4224, WeightGrad: i + o + w + 16}
	case c.w[3] <= 2:
		return ConvBytes{Forward: c.scaled(i + w + 16), InputGrad: c.scaled(i + o + w + 147),
			WeightGrad: c.scaled(i + o + w + 16)}
	}
	parts := int64(1966495)
	if c.y[3] > 2048 {
		parts = 2*w + 367
	}
	return ConvBytes{Forward: c.scaled(i + o + w + 16), InputGrad: c.scaled(i + o + w + 147),
		WeightGrad: c.scaled(i + o + w + parts)}
}

func (c convCase) forward() int64 {
	switch {
	case c.small() && c.d.Half() && !c.last: // the bias in the kernel's layout
		return 2 * c.w[0]
	case c.last || c.depthwise() || c.small():
		return 0
	}
	return c.reordered()
}

func (c convCase) inputGrad() int64 {
	if c.last || c.depthwise() {
		return 0
	}
	return c.reordered()
}

// reordered is what the kernels take that bring both maps and the filter into an order of their
// own: pointwise ones leave the filter as it is, and the maps too where rows come in fours.
func (c convCase) reordered() int64 {
	i, o, w := c.sizes()
	switch {
	case c.pointwise() && c.x[2]*c.x[3]%4 == 0:
		return 0
	case c.pointwise():
		return c.scaled(i + o + 16)
	}
	return c.scaled(i + o + w + 16)
}

func (c convCase) weightGrad() int64 {
	i, o, w := c.sizes()
	switch {
	// patches of four pixels: partial filters in fp32, channels in fours or eights
	case c.small() && c.w[2] == c.shape.Stride && !c.last:
		parts := max(1, 44/divUp(c.w[0], 128))
		if c.d == F32 {
			i, w, parts = i/3*4, w/3*4, max(1, 20/divUp(c.w[0], 128))
		}
		return i + o + w + parts*4*(w/c.d.Size()) + 144
	case c.last || c.depthwise() || c.d == F32 && c.x[1] == 3 && c.w[2] <= 4:
		return 0
	case c.patches() && c.d == BF16: // the partial filters are in fp32, three of them
		return i + o + 7*w + 144
	// partial filters, or a copy of both maps where that is less
	case c.pointwise() && c.x[2]*c.x[3]%4 == 0 && c.d.Half():
		return c.scaled(min(c.x[0]*4*numel(c.w), i+o+16))
	case c.pointwise() && c.x[2]*c.x[3]%4 == 0 && c.x[0]*4*numel(c.w) <= mostSummed:
		return c.scaled(c.x[0] * 4 * numel(c.w))
	case c.pointwise():
		return c.scaled(i + o + 16)
	}
	return c.scaled(i + o + w + c.splitK(w) + 700)
}

// mostSummed is the most that filter gradients kept apart for each sample take: of 3,711 in the
// table none has more, and 40 that would are made another way.
const mostSummed = 256 << 20

// splitK is the partial filters of a reduction split over the multiprocessors.
func (c convCase) splitK(w int64) int64 {
	tiles := divUp(c.w[0], 128) * divUp(c.w[1]*c.w[2]*c.w[3], 128)
	return min(max(132/tiles, 0)*w, 132*65536)
}
