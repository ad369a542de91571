package tape

import "memroom/event"

// Zero is DeepSpeed's ZeRO: optimizer states, gradients and weights cut into equal parts, one a
// rank, of all parameters joined to a flat one. A rank's part has a master copy in fp32.
type Zero struct {
	Stage   int64
	Ranks   int64
	Bucket  int64 // elements in which gradients are summed
	Overlap bool  // two such buckets, one filled while the other is summed
	Live    int64 // gathered elements that may stay (stage 3)
}

// zero is the state of one process.
type zero struct {
	Zero
	g       *Graph
	params  []*Param // trained, joined in this order
	half    DType
	part    int64    // elements of a rank's part
	own     int64    // elements of parameters that reach into the part
	flat    *Param   // the part, as the optimizer sees it
	buffer  *storage // of gradients on their way
	second  *storage
	filled  int64
	ours    bool            // the buffer holds gradients of the part
	mine    map[*Param]bool // parameters that reach into the part
	sums    *storage        // summed gradients of the part
	started bool

	// stage 3
	every    []*Param // trained or not: all are cut into parts
	gathered map[*Param]*storage
	live     int64
	traced   bool
	blocks   map[string][]*Param
}

// join moves the loaded parameters into one flat tensor and keeps the masters of a part.
func (g *Graph) join(m *Module) {
	z := &zero{Zero: *g.Zero, g: g, gathered: map[*Param]*storage{}, mine: map[*Param]bool{},
		blocks: map[string][]*Param{}}
	g.zero = z
	var all int64
	for _, p := range trained(m.Parameters()) {
		z.params, all, z.half = append(z.params, p), all+p.Numel(), p.DType
	}
	z.part = roundUp(all, 2*z.Ranks) / z.Ranks
	left := z.part
	for _, p := range z.params {
		if left > 0 {
			z.own += p.Numel()
			z.mine[p] = true
		}
		left -= p.Numel()
	}
	g.op = "zero"
	for _, p := range z.params { // to the host, and back as views of the flat one
		g.unrefStorage(p.st)
		p.st = g.alloc(0, event.CategoryWeights)
	}
	g.tl.Ops = append(g.tl.Ops, event.Op{Kind: event.OpEmptyCache})
	weights := z.part
	if z.Stage < 3 {
		weights *= z.Ranks
	}
	if !g.HostParams {
		g.alloc(weights*z.half.Size(), event.CategoryWeights)
	}
	if !g.HostOptim { // the masters
		copied := g.alloc(z.part*z.half.Size(), event.CategoryTemporary)
		g.alloc(z.part*4, event.CategoryOptimizer)
		g.unrefStorage(copied)
		g.temp(z.part*4, event.CategoryTemporary)
	}
	if z.Stage == 3 {
		z.every = m.Parameters()
		z.buffer = g.alloc(z.Bucket*z.half.Size(), event.CategoryGradients)
		if !g.HostOptim {
			z.sums = g.alloc(z.part*z.half.Size(), event.CategoryGradients)
		}
		z.group()
	}
	z.flat = &Param{Name: "partition", Tensor: &Tensor{g: g, Shape: []int64{z.part}, DType: F32,
		stride: []int64{1}, leaf: true, refs: 1, st: g.alloc(0, event.CategoryWeights)}}
	g.op = ""
}

// whole is the bytes of a gathered parameter, a multiple of the ranks' parts.
func (z *zero) whole(p *Param) int64 {
	if p.Bits > 0 {
		return roundUp(p.packedSizes()[0], z.Ranks)
	}
	return roundUp(p.Numel(), z.Ranks) * p.DType.Size()
}

// ready takes a gradient as it comes: it is copied into the buffer, and a full buffer is summed.
// In stage 1 that happens only once the backward pass is over.
func (z *zero) ready(p *Param) {
	z.start()
	if z.Stage > 1 || z.Overlap {
		z.take(p)
	}
}

func (z *zero) start() {
	if z.started {
		return
	}
	z.started = true
	z.g.op = "zero bucket"
	if z.Stage < 3 {
		z.buffer = z.g.alloc(z.Bucket*z.half.Size(), event.CategoryGradients)
	}
	if z.Overlap && z.Stage < 3 {
		z.second = z.g.alloc(z.Bucket*z.half.Size(), event.CategoryGradients)
	}
}

func (z *zero) take(p *Param) {
	if z.filled+p.Numel() > z.Bucket {
		z.sum()
	}
	z.filled, z.ours = z.filled+p.Numel(), z.ours || z.mine[p]
	if p.Grad != nil {
		p.Grad.drop()
		p.Grad = nil
	}
}

// sum joins the buffer's gradients, sums them over the ranks and keeps this rank's part.
func (z *zero) sum() {
	if z.filled == 0 {
		return
	}
	g := z.g
	g.op = "zero reduce"
	stream := int32(0)
	if z.Overlap || z.Stage == 3 { // whose default is to overlap
		stream = reduceStream
	}
	st := g.alloc(z.filled*z.half.Size(), event.CategoryTemporary)
	g.tl.Ops[st.op].Stream = stream
	g.unrefStorage(st)
	z.filled = 0
	if z.sums == nil && z.ours && !g.HostOptim { // else they go to the host as they come
		z.sums = g.alloc(z.own*z.half.Size(), event.CategoryGradients)
		g.tl.Ops[z.sums.op].Stream = stream
	}
	z.ours = false
}

// finish ends a backward pass.
func (z *zero) finish() {
	if !z.started {
		return
	}
	if z.Stage == 1 && !z.Overlap {
		for _, p := range z.params {
			if p.Grad != nil {
				z.take(p)
			}
		}
	}
	z.sum()
	if z.Stage == 2 {
		z.dropBuffers()
	}
	z.started = z.Stage == 1 // its gradients are views of the buffer until the step
	z.dropGathered()
	z.traced = true
}

func (z *zero) dropBuffers() {
	z.g.unrefStorage(z.buffer)
	z.g.unrefStorage(z.second)
	z.buffer, z.second, z.started = nil, nil, false
}

// step makes the fp32 gradients of the part for the optimizer.
func (z *zero) step() {
	g := z.g
	left := z.part
	for _, p := range z.params { // norms are found in double precision, one parameter at a time
		if n := min(left, p.Numel()); n > 0 && z.Stage < 3 {
			g.temp(8*n, event.CategoryTemporary)
			left -= n
		}
	}
	if z.Stage == 1 {
		z.dropBuffers()
	}
	if g.HostOptim {
		return
	}
	joined := g.alloc(z.part*z.half.Size(), event.CategoryGradients)
	z.flat.Grad = g.New([]int64{z.part}, F32)
	z.flat.Grad.floating = false
	g.unrefStorage(joined)
	if z.Stage < 3 {
		g.unrefStorage(z.sums)
		z.sums = nil
	}
}

// group sorts the parameters by block for stage 3.
func (z *zero) group() {
	for _, p := range z.every {
		name := blockOf(p.Name)
		z.blocks[name] = append(z.blocks[name], p)
	}
}

// gather brings the weights of a block in. Gathered weights stay while there is room for them; in
// the first pass, whose order is not known yet, only while it is used.
func (z *zero) gather(block string) {
	if z.Stage < 3 {
		return
	}
	for _, p := range z.every {
		st := z.gathered[p]
		if st != nil && blockOf(p.Name) != block && (!z.traced || z.live > z.Live) {
			z.g.unrefStorage(st)
			z.live -= p.Numel()
			delete(z.gathered, p)
		}
	}
	for _, p := range z.blocks[block] {
		if z.gathered[p] == nil {
			z.g.op = "all-gather"
			st := z.g.alloc(z.whole(p), event.CategoryWeights)
			z.g.tl.Ops[st.op].Stream = gatherStream
			z.gathered[p] = st
			z.live += p.Numel()
		}
	}
}

func (z *zero) dropGathered() {
	for _, p := range z.every {
		if st := z.gathered[p]; st != nil {
			z.g.unrefStorage(st)
			delete(z.gathered, p)
		}
	}
	z.live = 0
}
