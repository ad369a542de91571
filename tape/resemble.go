package tape

import (
	"cmp"
	"math"
	"slices"
)

// A convolution that was never measured takes after the nearest one that was: cuDNN's heuristics
// choose alike for like shapes. Left out one geometry at a time, the three directions of measured
// convolutions are within 2 % of the maps they copy in 83 of 100 cases this way, and in 66 by the
// rules of ops_conv.go.

// likeness is what must be the same for two convolutions to be compared.
type likeness struct {
	kernel, stride [2]int64
	dtype          string
	last           bool
	groups         int // 0 one group, 1 several, 2 one filter a channel
	alignment      int // of the map: 0 a multiple of four pixels, 1 not, 2 a single pixel
	image          bool
}

// relative is a measured convolution with the sizes that decide how near another one is to it.
type relative struct {
	batch, in, out, pixels float64 // logarithms to base two
	maps, input, filter    int64   // bytes of input and output, of the input, of the filter
	summed                 int64   // bytes of filter gradients kept apart for each sample
	bytes                  ConvBytes
}

func (c Convolution) likeness() likeness {
	l := likeness{kernel: [2]int64{c.W[2], c.W[3]}, stride: c.Stride, dtype: c.DType,
		last: c.ChannelsLast, image: c.X[1] == 3}
	switch {
	case c.Groups > 1 && c.W[1] == 1:
		l.groups = 2
	case c.Groups > 1:
		l.groups = 1
	}
	switch pixels := c.X[2] * c.X[3]; {
	case pixels == 1:
		l.alignment = 2
	case pixels%4 != 0:
		l.alignment = 1
	}
	return l
}

func (c Convolution) relative() relative {
	item := int64(2)
	if c.DType == "fp32" {
		item = 4
	}
	side := func(d int) int64 {
		return (c.X[2+d]+2*c.Pad[d]-c.Dilation[d]*(c.W[2+d]-1)-1)/max(1,
			c.Stride[d]) + 1
	}
	filter := c.W[0] * c.W[1] * c.W[2] * c.W[3]
	r := relative{batch: math.Log2(float64(c.X[0])), in: math.Log2(float64(c.X[1])),
		out: math.Log2(float64(c.W[0])), pixels: math.Log2(float64(c.X[2] * c.X[3])),
		input: item * c.X[0] * c.X[1] * c.X[2] * c.X[3], filter: item * filter,
		summed: 4 * c.X[0] * filter}
	r.maps = r.input + item*c.X[0]*c.W[0]*side(0)*side(1)
	return r
}

// apart is how different two convolutions are.
func (r *relative) apart(o *relative) float64 {
	return math.Abs(r.batch+r.pixels-o.batch-o.pixels) + math.Abs(r.in-o.in) +
		math.Abs(r.out-o.out) + math.Abs(r.pixels-o.pixels)/2
}

// farthest is how different two convolutions may be: a factor of four in two of their sizes.
const farthest = 4

// resembling returns the sizes of a convolution after the nearest one that was measured.
func (w *Workspaces) resembling(c Convolution) (ConvBytes, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.alike == nil {
		w.compare()
	}
	if b, ok := w.resembled[c]; ok {
		return b, b != ConvBytes{Forward: -1}
	}
	b, ok := w.nearest(c)
	if !ok {
		b = ConvBytes{Forward: -1} // remembered as having no relative
	}
	w.resembled[c] = b
	return b, ok
}

// nearest looks through all measured convolutions.
func (w *Workspaces) nearest(c Convolution) (ConvBytes, bool) {
	own := c.relative()
	var best *relative
	near := float64(farthest)
	list := w.alike[c.likeness()]
	for i := range list {
		if d := own.apart(&list[i]); d < near {
			near, best = d, &list[i]
		}
	}
	if best == nil {
		return ConvBytes{}, false
	}
	return ConvBytes{own.after(best, best.bytes.Forward), own.after(best, best.bytes.InputGrad),
		own.after(best, best.bytes.WeightGrad)}, true
}

// compare prepares the measured convolutions for comparison, in an order of their own so that ties
// are always decided alike.
func (w *Workspaces) compare() {
	w.alike, w.resembled = map[likeness][]relative{}, map[Convolution]ConvBytes{}
	for k, b := range w.Each {
		r := k.relative()
		r.bytes = b
		w.alike[k.likeness()] = append(w.alike[k.likeness()], r)
	}
	for _, list := range w.alike {
		slices.SortFunc(list, func(a, b relative) int {
			return cmp.Or(cmp.Compare(a.batch, b.batch), cmp.Compare(a.in, b.in),
				cmp.Compare(a.out, b.out), cmp.Compare(a.pixels, b.pixels),
				cmp.Compare(a.maps, b.maps), cmp.Compare(a.filter, b.filter),
				cmp.Compare(a.bytes.Forward, b.bytes.Forward))
		})
	}
}

// after sizes one workspace like that of a relative: made of the same copies.
func (r *relative) after(o *relative, size int64) int64 {
	switch rest := size - o.maps; {
	case size <= smallWorkspace:
		return size
	case size == o.summed && r.summed > mostSummed:
		return r.maps
	case size == o.summed:
		return r.summed
	case rest >= o.filter && rest < 3*o.filter:
		return r.maps + int64(float64(rest)*float64(r.filter)/float64(o.filter))
	case rest >= 0:
		return r.maps + rest
	case size >= o.input && o.filter > 0:
		return r.input + int64(float64(size-o.input)*float64(r.filter)/float64(o.filter))
	}
	return int64(float64(size) * float64(r.maps) / float64(o.maps))
}
