package tape

// Convolution is one convolution as cuDNN sees it: what decides the size of its workspaces. A one-dimensional convolution
// has a height of one.
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

// RNNBytes are the workspace of a recurrent network, the same in all passes, and what it keeps for the backward pass.
type RNNBytes struct {
	Workspace int64 `json:"workspace"`
	Reserve   int64 `json:"reserve"`
}

// Workspaces is what was measured on a card.
type Workspaces struct {
	Conv map[Convolution]ConvBytes
	RNN  map[Recurrent]RNNBytes
}

// Shapes are the operations of a timeline whose workspaces cuDNN chooses, each once, in the order they were met.
type Shapes struct {
	Conv []Convolution `json:"convolutions"`
	RNN  []Recurrent   `json:"recurrent"`

	conv map[Convolution]bool
	rnn  map[Recurrent]bool
}

func (s *Shapes) meetConv(c Convolution) {
	if s.conv == nil {
		s.conv = map[Convolution]bool{}
	}
	if !s.conv[c] {
		s.conv[c] = true
		s.Conv = append(s.Conv, c)
	}
}

func (s *Shapes) meetRNN(r Recurrent) {
	if s.rnn == nil {
		s.rnn = map[Recurrent]bool{}
	}
	if !s.rnn[r] {
		s.rnn[r] = true
		s.RNN = append(s.RNN, r)
	}
}

// Add takes in what other has and s has not.
func (s *Shapes) Add(other Shapes) {
	for _, c := range other.Conv {
		s.meetConv(c)
	}
	for _, r := range other.RNN {
		s.meetRNN(r)
	}
}

var dtypeNames = [...]string{F32: "fp32", F16: "fp16", BF16: "bf16", F64: "fp64", I64: "int64", I32: "int32", Bool: "bool", U8: "uint8"}

// String is the name used in setups and files.
func (d DType) String() string { return dtypeNames[d] }

// key is the convolution without what our rules add.
func (c convCase) key() Convolution {
	k := Convolution{X: [4]int64(c.x), W: [4]int64(c.w), Groups: c.shape.Groups, DType: c.d.String(), ChannelsLast: c.last,
		Stride: [2]int64{c.shape.Stride, c.shape.Stride}, Pad: [2]int64{c.shape.Pad, c.shape.Pad}, Dilation: [2]int64{c.shape.Dilation, c.shape.Dilation}}
	if c.shape.Flat {
		k.Stride[0], k.Pad[0], k.Dilation[0] = 1, 0, 1
	}
	return k
}

// measured gives the sizes of a convolution where they are known from the card.
func (g *Graph) measured(c convCase) (ConvBytes, bool) {
	k := c.key()
	g.Shapes.meetConv(k)
	b, ok := g.Workspaces.Conv[k]
	return b, ok
}

// sizes decides how large the workspaces of a convolution are: as measured, else by rule, times the scale.
func (g *Graph) convBytes(c convCase) (b ConvBytes, known bool) {
	if b, ok := g.measured(c); ok {
		return b, true
	}
	return ConvBytes{Forward: c.forward(), InputGrad: c.inputGrad(), WeightGrad: c.weightGrad()}, c.patches()
}

func (r RNN) key(b, t int64, d DType) Recurrent {
	kind := "lstm"
	if r.Gates == 3 {
		kind = "gru"
	}
	return Recurrent{Kind: kind, Batch: b, Steps: t, In: r.In, Hidden: r.Hidden, Layers: r.Layers, Directions: r.Directions, Dropout: r.Dropout > 0, DType: d.String()}
}

// rnnBytes decides how much a recurrent network takes beside its tensors.
func (g *Graph) rnnBytes(r RNN, b, t int64, d DType) RNNBytes {
	k := r.key(b, t, d)
	g.Shapes.meetRNN(k)
	if m, ok := g.Workspaces.RNN[k]; ok {
		return m
	}
	g.Approx = true
	return RNNBytes{Workspace: r.workspace(b, t, d, g.ConvScale), Reserve: r.reserve(b, t, d)}
}
