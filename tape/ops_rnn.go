package tape

import (
	"memroom/event"
	"memroom/tape/kernels"
)

// RNN is the shape of a cuDNN recurrent network over [batch, time, features].
type RNN struct {
	Gates              int64 // 4 for LSTM, 3 for GRU
	In, Hidden, Layers int64
	Directions         int64
	Dropout            float64
	Weights            []*Param // in order of registration; they share one flat buffer
}

// RunRNN is nn.LSTM or nn.GRU with batch_first and zero initial states; it returns the output,
// [batch, time, hidden].
func (g *Graph) RunRNN(x *Tensor, r RNN) *Tensor {
	g.op = "rnn"
	g.UsesDNN = true
	b, t := x.Shape[0], x.Shape[1]
	states := r.states()
	stateShape := []int64{r.Layers * r.Directions, b, r.Hidden}
	f := g.Enter(x)
	var zeros []*Tensor
	for range states {
		zeros = append(zeros, f.Keep(g.New(stateShape, x.DType)))
	}
	if r.Dropout > 0 && !g.rnnState {
		g.rnnState = true
		g.temp(8, event.CategoryTemporary)
		g.forever(kernels.Facts.DropoutState, "cudnn dropout")
	}
	inputs := []*Tensor{x}
	for _, w := range r.Weights {
		inputs = append(inputs, w.Tensor)
	}
	in := x
	d := x.DType
	var flat *Tensor
	if g.autocastOn() && d == F32 {
		d = g.Half
		flat = g.New([]int64{r.elements()}, d)
		for i := range zeros {
			zeros[i] = g.New(stateShape, d)
		}
		in = g.New(x.Shape, d)
	}
	n := g.prepare("rnn", inputs...)
	n.save(in)
	n.save(zeros...)
	if flat != nil {
		n.save(flat)
	}
	major := g.New(x.Shape, d)
	out := g.New([]int64{b, t, r.Hidden * r.Directions}, d)
	out.stride = permutedStrides(out.Shape, []int{1, 0, 2}) // time-major
	var last []*Tensor
	for range states {
		last = append(last, g.New(stateShape, d))
	}
	// torch does not lay such weights out as cuDNN wants them: each call gathers them
	if d == BF16 && flat == nil {
		gathered := g.New([]int64{r.elements()}, d)
		n.save(gathered)
		defer eat(gathered)
	}
	size := g.rnnBytes(r, b, t, d)
	work := g.alloc(size.Workspace, event.CategoryWorkspace)
	reserve := g.New([]int64{size.Reserve}, U8)
	g.unrefStorage(work)
	eat(major)
	if n != nil {
		n.emit(out)
		n.save(out, reserve)
		n.backward = func(n *Node, p *pass) { p.rnnGrad(n, r, d, size.Workspace) }
	}
	eat(reserve)
	if flat != nil {
		eat(flat, in)
		eat(zeros...)
	}
	eat(last...)
	return f.Leave(out)
}

func (r RNN) states() int {
	if r.Gates == 4 {
		return 2
	}
	return 1
}

func (r RNN) elements() int64 {
	var n int64
	for _, w := range r.Weights {
		n += w.Numel()
	}
	return n
}

// unit is one feature map of the hidden size over the whole sequence.
func (r RNN) unit(b, t int64, d DType) int64 { return d.Size() * b * t * r.Hidden }

// reserve is the buffer that cuDNN keeps for the backward pass.
func (r RNN) reserve(b, t int64, d DType) int64 {
	u := r.unit(b, t, d)
	per := r.Gates + 1
	if r.Gates == 3 {
		per = 6
	}
	n := r.Directions * (per*r.Layers + r.Layers - 1) * u
	if r.Dropout > 0 {
		n += (r.Layers - 1) * r.Directions * r.Directions * u / 32
	}
	return n + 256
}

// workspace is cuDNN's scratch, from 186 shapes measured on an H200: a copy of the weights, 8 MiB
// and some state a layer and direction, the gates of one layer, its input, and its output once or
// several times.
func (r RNN) workspace(b, t int64, d DType, scale float64) int64 {
	u := r.unit(b, t, d)
	state, outputs := r.scratch()
	n := d.Size()*r.matrices() + r.Layers*r.Directions*(kernels.Facts.RNNLayer+
		state*d.Size()*b*r.Hidden) + d.Size()*b*t*r.In + 512
	n += u * (r.Directions*r.Gates + outputs)
	if r.Hidden <= 128 && d != BF16 { // kernels that keep the weights on the card
		n += 16*u - (4-r.Gates)*3*u/2
	}
	return int64(float64(n) * scale)
}

// scratch is how many states, for each layer and direction, and how many outputs the workspace
// holds.
func (r RNN) scratch() (states, outputs int64) {
	lstm := r.Gates == 4
	switch {
	case lstm:
		states, outputs = 10, min(r.Layers, 2)
	default:
		states, outputs = 5, 2
	}
	switch {
	case r.Directions > 1:
		states, outputs = states+2, 6
		if !lstm && r.Layers > 1 {
			outputs = 7
		}
	case r.Layers > 3 && lstm: // seen at four layers only
		states, outputs = 21, 0
	case r.Layers > 3:
		states, outputs = 15, 1
	}
	return states, outputs
}

// usual reports whether the formula of the workspace is certain: it was exact within a few KiB for
// all such shapes.
func (r RNN) usual(batch int64) bool {
	return r.Hidden > 128 && batch >= 8 && r.Layers <= 3 && (r.Hidden > 256 || batch >= 32)
}

// matrices is how many values the weights hold without the biases.
func (r RNN) matrices() int64 {
	var n int64
	for _, w := range r.Weights {
		if len(w.Shape) > 1 {
			n += w.Numel()
		}
	}
	return n
}

func (p *pass) rnnGrad(n *Node, r RNN, d DType, work int64) {
	g := p.g
	x := p.saved[0]
	stateShape := []int64{r.Layers * r.Directions, x.Shape[0], r.Hidden}
	var zeros, dstates []*Tensor
	for range r.states() {
		zeros = append(zeros, p.new(stateShape, d))
	}
	major := p.new(x.Shape, d)
	grad := p.new(p.grad[0].Shape, d)
	dx := p.new(x.Shape, d)
	for range r.states() {
		dstates = append(dstates, p.new(stateShape, d))
	}
	g.temp(work, event.CategoryWorkspace)
	grad.drop()
	major.drop()
	again := p.new(x.Shape, d)
	flat := p.new([]int64{r.elements()}, d)
	g.temp(work, event.CategoryWorkspace)
	again.drop()
	for _, z := range append(zeros, dstates...) {
		z.drop()
	}
	p.out[0] = dx
	for i, w := range r.Weights {
		if p.needs(i + 1) {
			v := g.alias(flat, w.Shape, contiguousStrides(w.Shape))
			v.floating = false
			p.out[i+1] = v
		}
	}
	flat.drop()
}

// Flatten moves the parameters of a module into one buffer, as flatten_parameters does after
// loading.
func (g *Graph) flatten(m *Module) {
	var bytes int64
	for _, p := range m.params {
		bytes += p.st.bytes
	}
	flat := g.alloc(bytes, event.CategoryWeights)
	flat.refs = int32(len(m.params))
	for _, p := range m.params {
		g.unrefStorage(p.st)
		p.st = flat
	}
}
