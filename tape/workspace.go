package tape

import (
	"cmp"
	"maps"
	"slices"
	"sync"
)

// Convolution is one convolution as cuDNN sees it: what decides the size of its workspaces. A
// one-dimensional convolution has a height of one.
type Convolution struct {
	X            [4]int64 `json:"x"` // batch, channels, height, width
	W            [4]int64 `json:"w"` // channels out, channels in of a group, height, width
	Stride       [2]int64 `json:"stride"`
	Pad          [2]int64 `json:"pad"`
	Dilation     [2]int64 `json:"dilation"`
	Groups       int64    `json:"groups"`
	DType        string   `json:"dtype"` // fp32, bf16 or fp16
	ChannelsLast bool     `json:"channels_last,omitempty"`
}

// Recurrent is one recurrent network as cuDNN sees it.
type Recurrent struct {
	Kind       string `json:"kind"` // lstm or gru
	Batch      int64  `json:"batch"`
	Steps      int64  `json:"steps"`
	In         int64  `json:"in"`
	Hidden     int64  `json:"hidden"`
	Layers     int64  `json:"layers"`
	Directions int64  `json:"directions"`
	Dropout    bool   `json:"dropout,omitempty"`
	DType      string `json:"dtype"`
}

// ConvBytes are the workspaces of one convolution.
type ConvBytes struct {
	Forward    int64 `json:"forward"`
	InputGrad  int64 `json:"input_grad"`
	WeightGrad int64 `json:"weight_grad"`
}

// RNNBytes are the workspace of a recurrent network, the same in all passes, and what it keeps for
// the backward pass.
type RNNBytes struct {
	Workspace int64 `json:"workspace"`
	Reserve   int64 `json:"reserve"`
}

// Workspaces is what was measured on a card. The nil one knows nothing. Sizes may be looked up by
// several at once, but not while they are added.
type Workspaces struct {
	// by everything but the batch, which is 0 in the key; smallest batch first
	conv map[Convolution][]batchBytes
	rnn  map[Recurrent]RNNBytes

	mu sync.Mutex // guards the tables made while sizes are looked up
	// the same convolutions, to be compared with others; made when first needed
	alike     map[likeness][]relative
	resembled map[Convolution]ConvBytes // what was found by comparing
}

type batchBytes struct {
	batch int64
	bytes ConvBytes
}

// AddConv keeps the sizes of a convolution; those it had before are replaced.
func (w *Workspaces) AddConv(c Convolution, b ConvBytes) {
	if w.conv == nil {
		w.conv = map[Convolution][]batchBytes{}
	}
	w.alike = nil
	batch := c.X[0]
	c.X[0] = 0
	list := w.conv[c]
	at, found := slices.BinarySearchFunc(list, batch, func(e batchBytes,
		n int64) int {
		return cmp.Compare(e.batch, n)
	})
	if found {
		list[at].bytes = b
		return
	}
	w.conv[c] = slices.Insert(list, at, batchBytes{batch, b})
}

// Measured returns the sizes of a convolution at this very shape.
func (w *Workspaces) Measured(c Convolution) (ConvBytes, bool) {
	b, how := w.forConv(c, 0)
	return b, how == measured
}

// Each yields every convolution that was measured.
func (w *Workspaces) Each(yield func(Convolution, ConvBytes) bool) {
	if w == nil {
		return
	}
	for c, list := range w.conv {
		for _, e := range list {
			c.X[0] = e.batch
			if !yield(c, e.bytes) {
				return
			}
		}
	}
}

// Clone is a copy that can be added to.
func (w *Workspaces) Clone() *Workspaces {
	if w == nil {
		return &Workspaces{}
	}
	c := &Workspaces{conv: make(map[Convolution][]batchBytes, len(w.conv)), rnn: maps.Clone(w.rnn)}
	for k, list := range w.conv {
		c.conv[k] = slices.Clone(list)
	}
	return c
}

// AddRNN keeps the sizes of a recurrent network.
func (w *Workspaces) AddRNN(r Recurrent, b RNNBytes) {
	if w.rnn == nil {
		w.rnn = map[Recurrent]RNNBytes{}
	}
	w.rnn[r] = b
}

// knowledge is where a size comes from.
type knowledge int

const (
	byRule   knowledge = iota
	alike              // from another convolution like it
	nearby             // from the same convolution at other batch sizes
	measured           // at this very shape
)

// forConv returns the sizes of a convolution: as measured, or from batches near it at which it was.
// maps is the bytes of one sample's input and output.
func (w *Workspaces) forConv(c Convolution, maps int64) (ConvBytes, knowledge) {
	if w == nil {
		return ConvBytes{}, byRule
	}
	batch := c.X[0]
	c.X[0] = 0
	list := w.conv[c]
	at, found := slices.BinarySearchFunc(list, batch, func(e batchBytes,
		n int64) int {
		return cmp.Compare(e.batch, n)
	})
	if found {
		return list[at].bytes, measured
	}
	var below, above *batchBytes // nearest on either side, no farther than a factor of two
	if at > 0 && list[at-1].batch*2 >= batch {
		below = &list[at-1]
	}
	if at < len(list) && list[at].batch <= 2*batch {
		above = &list[at]
	}
	switch {
	case below != nil && above != nil:
		return between(*below, *above, batch), nearby
	case below != nil:
		return from(*below, batch, maps), nearby
	case above != nil:
		return from(*above, batch, maps), nearby
	}
	c.X[0] = batch
	if b, ok := w.resembling(c); ok {
		return b, alike
	}
	return ConvBytes{}, byRule
}

// smallWorkspace is the most that kernels take for flags and counters: no copies are in it.
const smallWorkspace = 4096

// between draws a line through the sizes at two batches: workspaces are copies of inputs and
// outputs, which grow with the batch, and of filters, which do not. Where only one of the two holds
// any, another kernel was chosen: the nearer one is followed.
func between(a, b batchBytes, batch int64) ConvBytes {
	share := float64(batch-a.batch) / float64(b.batch-a.batch)
	on := func(va, vb int64) int64 {
		switch {
		case va > smallWorkspace && vb > smallWorkspace:
			return va + int64(share*float64(vb-va))
		case share < 0.5:
			return va
		}
		return vb
	}
	return ConvBytes{on(a.bytes.Forward, b.bytes.Forward), on(a.bytes.InputGrad, b.bytes.InputGrad),
		on(a.bytes.WeightGrad, b.bytes.WeightGrad)}
}

// from continues the sizes at one batch to another: what holds copies of input and output grows by
// them, less stays.
func from(a batchBytes, batch, maps int64) ConvBytes {
	on := func(v int64) int64 {
		if v < maps*a.batch {
			return v
		}
		return max(0, v+maps*(batch-a.batch))
	}
	return ConvBytes{on(a.bytes.Forward), on(a.bytes.InputGrad), on(a.bytes.WeightGrad)}
}

// Shapes are the operations of a timeline whose workspaces cuDNN chooses, each once, in the order
// they were met.
type Shapes struct {
	Conv []Convolution `json:"convolutions"`
	RNN  []Recurrent   `json:"recurrent"`

	conv map[Convolution]bool
	rnn  map[Recurrent]bool
}

func (s *Shapes) meetConv(c Convolution) { meet(&s.conv, &s.Conv, c) }

func (s *Shapes) meetRNN(r Recurrent) { meet(&s.rnn, &s.RNN, r) }

// meet adds a shape to a list unless it has been seen.
func meet[T comparable](seen *map[T]bool, list *[]T, shape T) {
	if *seen == nil {
		*seen = map[T]bool{}
	}
	if !(*seen)[shape] {
		(*seen)[shape] = true
		*list = append(*list, shape)
	}
}

// Add copies the entries of other that s lacks.
func (s *Shapes) Add(other Shapes) {
	for _, c := range other.Conv {
		s.meetConv(c)
	}
	for _, r := range other.RNN {
		s.meetRNN(r)
	}
}

var dtypeNames = [...]string{F32: "fp32", F16: "fp16", BF16: "bf16", F64: "fp64", I64: "int64",
	I32: "int32", Bool: "bool", U8: "uint8"}

// String is the name used in setups and files.
func (d DType) String() string { return dtypeNames[d] }

// key is the convolution without what our rules add.
func (c convCase) key() Convolution {
	k := Convolution{X: [4]int64(c.x), W: [4]int64(c.w), Groups: c.shape.Groups,
		DType: c.d.String(), ChannelsLast: c.last,
		Stride: [2]int64{c.shape.Stride, c.shape.Stride}, Pad: [2]int64{c.shape.Pad, c.shape.Pad},
		Dilation: [2]int64{c.shape.Dilation, c.shape.Dilation}}
	if c.shape.Flat {
		k.Stride[0], k.Pad[0], k.Dilation[0] = 1, 0, 1
	}
	return k
}

// convBytes decides how large the workspaces of a convolution are, and whether that is certain.
func (g *Graph) convBytes(c convCase) (b ConvBytes, known bool) {
	k := c.key()
	g.Shapes.meetConv(k)
	i, o, _ := c.sizes()
	b, how := g.workspaces().forConv(k, (i+o)/max(1, c.x[0]))
	if how == measured {
		return b, true
	}
	if c.patches() {
		g.Doubt = max(g.Doubt, c.partialFilters())
		return ConvBytes{Forward: c.forward(), InputGrad: c.inputGrad(),
			WeightGrad: c.weightGrad()}, true
	}
	if how != nearby {
		g.Guess = true
		g.Unsure = g.Unsure || c.last && c.d == F32 && !c.depthwise()
	}
	if how == byRule && c.audible() {
		return c.audio(), false
	}
	if how == byRule {
		return ConvBytes{Forward: c.forward(), InputGrad: c.inputGrad(),
			WeightGrad: c.weightGrad()}, false
	}
	return ConvBytes{c.scaled(b.Forward), c.scaled(b.InputGrad), c.scaled(b.WeightGrad)}, false
}

func (g *Graph) workspaces() *Workspaces {
	if g.Workspaces == nil {
		return nil
	}
	return g.Workspaces()
}

func (r RNN) key(b, t int64, d DType) Recurrent {
	kind := "lstm"
	if r.Gates == 3 {
		kind = "gru"
	}
	return Recurrent{Kind: kind, Batch: b, Steps: t, In: r.In, Hidden: r.Hidden, Layers: r.Layers,
		Directions: r.Directions, Dropout: r.Dropout > 0, DType: d.String()}
}

// rnnBytes decides how much a recurrent network takes next to its tensors.
func (g *Graph) rnnBytes(r RNN, b, t int64, d DType) RNNBytes {
	k := r.key(b, t, d)
	g.Shapes.meetRNN(k)
	if w := g.workspaces(); w != nil {
		if m, ok := w.rnn[k]; ok {
			return m
		}
	}
	g.Approx = g.Approx || !r.usual(b)
	return RNNBytes{Workspace: r.workspace(b, t, d, g.ConvScale), Reserve: r.reserve(b, t, d)}
}
