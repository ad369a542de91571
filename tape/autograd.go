package tape

import (
	"container/heap"
	"slices"

	"memroom/event"
)

// backwardFn computes the gradients of a node's inputs into pass.out, allocating as the real
// formula does.
type backwardFn func(n *Node, b *pass)

// meta is what autograd remembers of an input: gradients are summed to its shape and cast to its
// type.
type meta struct {
	shape []int64
	dtype DType
}

type edge struct {
	node *Node
	out  int
}

// Node is one recorded operation.
type Node struct {
	g        *Graph
	op       string
	module   string
	cat      event.Category
	backward backwardFn
	inputs   []edge
	metas    []meta
	saved    []slot
	grads    []*Tensor // incoming gradients, one for each output
	outs     []meta
	in0      []int64 // shape of the first input, for view operations
	seq      uint64
	refs     int32
	waiting  int32 // consumers that have not delivered their gradient yet
	seen     bool
	param    *Param // for the node that stores a leaf's gradient
	holds    bool   // what it saved lives as long as the graph, not only until its backward
	before   func() // called when its gradients are there, before it runs; may be nil
}

// slot is a tensor kept for the backward pass. Under checkpointing it is empty until the region is
// recomputed.
type slot struct {
	t    *Tensor
	reg  *checkpoint
	idx  int
	away *Tensor // a description of a tensor that waits in host memory
}

// record makes the node of an operation with one result; nil when no gradient flows.
func (g *Graph) record(op string, out *Tensor, inputs ...*Tensor) *Node {
	var outs [1]*Tensor
	outs[0] = out
	return g.recordMany(op, outs[:], inputs...)
}

func (g *Graph) wants(inputs ...*Tensor) bool {
	if g.noGrad > 0 || g.inBackwardOps() {
		return false
	}
	for _, t := range inputs {
		if t != nil && t.needs {
			return true
		}
	}
	return false
}

func (g *Graph) recordMany(op string, outs []*Tensor, inputs ...*Tensor) *Node {
	n := g.prepare(op, inputs...)
	if n != nil {
		n.emit(outs...)
	}
	return n
}

// prepare makes the node before the operation runs, so that its inputs can be saved first, as
// autograd does.
func (g *Graph) prepare(op string, inputs ...*Tensor) *Node {
	if !g.wants(inputs...) {
		return nil
	}
	g.seq++
	n := &Node{g: g, op: op, module: g.module, cat: g.cat, seq: g.seq}
	n.inputs = make([]edge, len(inputs))
	n.metas = make([]meta, len(inputs))
	for i, t := range inputs {
		if t == nil {
			continue
		}
		n.metas[i] = meta{t.Shape, t.DType}
		if !t.needs {
			continue
		}
		to := t.gradNode()
		to.refs++
		n.inputs[i] = edge{to, t.out}
	}
	if g.redo != nil {
		g.redo.last = n
	}
	return n
}

// gradNode is where gradients of t go.
func (t *Tensor) gradNode() *Node {
	if t.node != nil {
		return t.node
	}
	if t.param.acc == nil {
		t.param.acc = &Node{g: t.g, op: "accumulate", module: t.param.Name, seq: ^uint64(0),
			param: t.param, outs: []meta{{t.Shape, t.DType}}, refs: 1}
	}
	return t.param.acc
}

// emit makes the node the producer of its results.
func (n *Node) emit(outs ...*Tensor) {
	n.outs = make([]meta, len(outs))
	for i, t := range outs {
		if t == nil {
			continue
		}
		n.outs[i] = meta{t.Shape, t.DType}
		t.node, t.out, t.needs = n, i, true
		n.refs++
	}
}

// save keeps a tensor for the backward pass.
func (n *Node) save(ts ...*Tensor) {
	if n == nil {
		return
	}
	for _, t := range ts {
		n.saveOne(t)
	}
}

func (n *Node) saveOne(t *Tensor) {
	g := n.g
	switch {
	case t == nil:
		n.saved = append(n.saved, slot{})
	case g.redo != nil:
		g.redo.offer(t)
		n.saved = append(n.saved, slot{})
	case g.ckpt != nil:
		n.saved = append(n.saved, g.ckpt.slot())
	case g.Offload && !t.leaf && t.st.bytes > 0 && t.DType.Floating():
		g.toHost(t.Numel() * t.DType.Size())
		n.saved = append(n.saved, slot{away: t})
	default:
		if !t.leaf && n.cat == event.CategoryUnknown {
			t.retag(event.CategoryActivations)
		}
		if t.node == n { // its own result: held without the node, which would hold itself
			own := g.alias(t, t.Shape, t.stride)
			own.floating = false
			n.saved = append(n.saved, slot{t: own})
			return
		}
		n.saved = append(n.saved, slot{t: t.hold()})
	}
}

// attach keeps t in an attribute of the node: checkpointing does not see it there, so it stays, and
// as long as the graph does.
func (n *Node) attach(t *Tensor) {
	n.holds = true
	if n.g.redo != nil { // the graph of a recompute is gone at its end
		n.saved = append(n.saved, slot{})
		return
	}
	if !t.leaf && n.cat == event.CategoryUnknown {
		t.retag(event.CategoryActivations)
	}
	n.saved = append(n.saved, slot{t: t.hold()})
}

func (n *Node) unref() {
	n.refs--
	if n.refs > 0 {
		return
	}
	n.release()
	for _, gr := range n.grads {
		gr.drop()
	}
	n.grads = nil
	inputs := n.inputs
	n.inputs = nil
	for _, e := range inputs {
		if e.node != nil {
			e.node.unref()
		}
	}
	if n.param != nil {
		n.param.acc = nil
	}
}

// release drops what was kept.
func (n *Node) release() {
	for i := range n.saved {
		s := &n.saved[i]
		if s.t != nil {
			s.t.drop()
			s.t = nil
		}
		if s.reg != nil {
			s.reg.done()
			s.reg = nil
		}
		if s.away != nil {
			n.g.toHost(-s.away.Numel() * s.away.DType.Size())
			s.away = nil
		}
	}
	n.saved = nil
}

// toHost counts offloaded activations: each saved tensor is a copy of its own in host memory.
func (g *Graph) toHost(bytes int64) {
	g.hostNow += bytes
	g.HostPeak = max(g.HostPeak, g.hostNow)
}

// pass is one execution of a node.
type pass struct {
	g     *Graph
	grad  []*Tensor // incoming, borrowed
	out   []*Tensor // outgoing, owned
	saved []*Tensor // borrowed
	n     *Node
}

// needs reports whether input i wants a gradient.
func (b *pass) needs(i int) bool { return b.n.inputs[i].node != nil }

func (b *pass) dtype(n *Node) DType { return n.outs[0].dtype }

func (b *pass) new(shape []int64, d DType) *Tensor {
	t := b.g.New(shape, d)
	t.floating = false
	return t
}

func (b *pass) newStrided(shape, stride []int64, d DType) *Tensor {
	t := b.g.newStrided(shape, stride, d)
	t.floating = false
	return t
}

// like makes a result in the layout that an elementwise operation on the arguments has.
func (b *pass) like(args ...*Tensor) *Tensor {
	t := b.g.elementwise(args...)
	t.floating = false
	return t
}

// scratch requests memory for the length of fn.
func (b *pass) scratch(bytes int64, fn func()) {
	st := b.g.alloc(bytes, event.CategoryTemporary)
	if fn != nil {
		fn()
	}
	b.g.unrefStorage(st)
}

type nodeHeap []*Node

func (h nodeHeap) Len() int           { return len(h) }
func (h nodeHeap) Less(i, j int) bool { return h[i].seq > h[j].seq }
func (h nodeHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *nodeHeap) Push(x any)        { *h = append(*h, x.(*Node)) }
func (h *nodeHeap) Pop() any {
	old := *h
	n := old[len(old)-1]
	*h = old[:len(old)-1]
	return n
}

// Backward runs the backward pass from a scalar.
func (g *Graph) Backward(loss *Tensor) {
	if loss.node == nil {
		return
	}
	g.forgetWanted()
	g.inEngine = true
	// the gradient of the loss, made by the caller: it outlives the pass
	root := g.New(loss.Shape, loss.DType)
	root.floating = false
	g.backwardFrom(loss, root)
}

// BackwardSent runs the backward pass of a stage from the gradient that the next stage sent, which
// lies in a buffer of its own.
func (g *Graph) BackwardSent(out *Tensor) {
	if out.node == nil {
		return
	}
	g.inEngine = true
	root := g.Borrow(out.DType, out.Shape...)
	root.sink()
	g.backwardFrom(out, root)
}

// backwardFrom runs the backward pass; root is the gradient it begins with.
func (g *Graph) backwardFrom(loss, root *Tensor) {
	g.countConsumers(loss.node)
	saved := g.module
	loss.node.deliver(loss.out, root.hold())
	g.ready = g.ready[:0]
	heap.Push(&g.ready, loss.node)
	for len(g.ready) > 0 {
		g.step(heap.Pop(&g.ready).(*Node))
	}
	if g.fsdp != nil {
		g.fsdp.finish()
	}
	if g.zero != nil {
		g.zero.finish()
	}
	root.drop()
	g.inBlock = ""
	g.inEngine = false
	g.module, g.op = saved, ""
}

// countConsumers finds how many gradients each node has to wait for.
func (g *Graph) countConsumers(root *Node) {
	root.seen = true
	stack := []*Node{root}
	for len(stack) > 0 {
		n := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		for _, e := range n.inputs {
			if e.node == nil {
				continue
			}
			e.node.waiting++
			if !e.node.seen {
				e.node.seen = true
				stack = append(stack, e.node)
			}
		}
	}
}

// step runs one node whose gradients have all arrived.
func (g *Graph) step(n *Node) {
	n.seen = false
	if n.param != nil {
		n.accumulate()
		return
	}
	g.module, g.op, g.cat = n.module, n.op, n.cat
	g.enterBlock(n.module)
	if n.before != nil {
		n.before()
		g.module, g.op = n.module, n.op
	}
	b := &pass{g: g, grad: n.grads, out: make([]*Tensor, len(n.inputs)), n: n}
	n.grads = nil
	recomputed := b.unpack()
	g.module, g.op, g.cat = n.module, n.op, n.cat
	if slices.ContainsFunc(b.grad, func(t *Tensor) bool { return t != nil }) {
		n.backward(n, b)
	}
	for _, t := range recomputed {
		t.drop()
	}
	b.validate()
	for _, gr := range b.grad {
		gr.drop()
	}
	if !n.holds {
		n.release()
	}
	b.handOn()
	g.cat = event.CategoryUnknown
}

// unpack fetches the saved tensors; those of a checkpointed region are owned by this pass and
// returned.
func (b *pass) unpack() (owned []*Tensor) {
	n := b.n
	b.saved = make([]*Tensor, len(n.saved))
	for i := range n.saved {
		s := &n.saved[i]
		if s.away != nil { // brought back for this node
			t := b.newStrided(s.away.Shape, denseLike(s.away), s.away.DType)
			b.saved[i] = t
			owned = append(owned, t)
			continue
		}
		if s.reg == nil {
			b.saved[i] = s.t
			continue
		}
		t := s.reg.take(s.idx)
		b.saved[i] = t
		owned = append(owned, t)
	}
	return owned
}

// validate brings each result to the shape and type of the input it belongs to.
func (b *pass) validate() {
	for i, t := range b.out {
		if t == nil {
			continue
		}
		m := b.n.metas[i]
		if !b.needs(i) {
			t.drop()
			b.out[i] = nil
			continue
		}
		if !slices.Equal(t.Shape, m.shape) {
			s := b.g.sumTo(t, m.shape)
			t.drop()
			t = s
		}
		if t.DType != m.dtype {
			c := b.g.newStrided(t.Shape, denseLike(t), m.dtype)
			c.floating = false
			t.drop()
			t = c
		}
		b.out[i] = t
	}
}

// handOn delivers the results and queues the nodes that have all of theirs.
func (b *pass) handOn() {
	for i, e := range b.n.inputs {
		if e.node == nil {
			continue
		}
		if t := b.out[i]; t != nil {
			b.out[i] = nil
			e.node.deliver(e.out, t)
		}
		e.node.waiting--
		if e.node.waiting == 0 {
			heap.Push(&b.g.ready, e.node)
		}
	}
}

// deliver adds a gradient to a node's input buffer: into the stored one if nobody else can see it,
// else into a new one.
func (n *Node) deliver(out int, t *Tensor) {
	if n.grads == nil {
		n.grads = make([]*Tensor, len(n.outs))
	}
	old := n.grads[out]
	if old == nil {
		n.grads[out] = t
		return
	}
	if old.refs == 1 && old.st.refs == 1 && !old.isView && old.dense() {
		t.drop()
		return
	}
	sum := n.g.elementwise(old, t)
	sum.floating = false
	old.drop()
	t.drop()
	n.grads[out] = sum
}

// accumulate stores the gradient of a leaf, or adds it to the one that is there.
func (n *Node) accumulate() {
	p, gr := n.param, n.grads[0]
	n.grads = nil
	if gr == nil {
		return
	}
	g := n.g
	g.module, g.op, g.cat = p.Name, "accumulate", event.CategoryGradients
	switch {
	case p.part != nil:
		p.part.whole = g.ownGrad(gr, p)
	case p.Grad != nil:
		gr.drop()
	default:
		p.Grad = g.ownGrad(gr, p)
	}
	if p.received {
		g.cat = event.CategoryUnknown
		return
	}
	if g.ddp != nil {
		g.ddp.ready(p)
	}
	if g.zero != nil {
		g.zero.ready(p)
	}
	if g.eager != nil {
		g.eager.stepOne(p)
	}
	g.cat = event.CategoryUnknown
}

// ownGrad is a gradient as its parameter keeps it: itself, or a copy where others hold it or its
// layout differs.
func (g *Graph) ownGrad(gr *Tensor, p *Param) *Tensor {
	if gr.refs == 1 && obeysLayout(gr, p.Tensor) {
		gr.retag(event.CategoryGradients)
		return gr
	}
	own := g.newStrided(p.Shape, denseLike(p.Tensor), gr.DType)
	own.floating = false
	gr.drop()
	return own
}

// obeysLayout reports whether a gradient can be kept as it is: same strides as its parameter.
func obeysLayout(gr, p *Tensor) bool {
	if !p.dense() {
		return gr.contiguous()
	}
	for i, d := range p.Shape {
		if d != 1 && gr.stride[i] != p.stride[i] {
			return false
		}
	}
	return true
}
