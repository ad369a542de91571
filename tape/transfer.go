package tape

// Transfer is a collective that makes a new tensor of another shape, or of the same: an all-gather,
// a reduce-scatter, an all-to-all. Nothing is saved; the backward pass has the opposite one.
func (g *Graph) Transfer(op string, x *Tensor, shape ...int64) *Tensor {
	g.op = op
	out := g.New(shape, x.DType)
	if n := g.record(op, out, x); n != nil {
		in := x.Shape
		n.backward = func(_ *Node, b *pass) { b.out[0] = b.new(in, b.grad[0].DType) }
	}
	eat(x)
	return out
}

// AllReduce sums partial results over ranks into a new tensor; the gradient of each part is that of
// the sum.
func (g *Graph) AllReduce(x *Tensor) *Tensor {
	g.op = "all-reduce"
	out := g.New(x.Shape, x.DType)
	if n := g.record(g.op, out, x); n != nil {
		n.backward = passThrough
	}
	eat(x)
	return out
}

// FanOut hands a tensor to layers that are cut over ranks: the gradients they send back are sums of
// parts, which an all-reduce joins.
func (g *Graph) FanOut(x *Tensor) *Tensor {
	v := g.alias(x, x.Shape, x.stride)
	v.isView = x.isView
	if n := g.record("all-reduce", v, x); n != nil {
		shape := x.Shape
		n.backward = func(_ *Node, b *pass) { b.out[0] = b.new(shape, b.grad[0].DType) }
	}
	eat(x)
	return v
}

// Beside hands a tensor on, with scratch memory that the forward and the backward pass take there.
func (g *Graph) Beside(op string, x *Tensor, forward, backward int64) *Tensor {
	g.op = op
	g.temp(forward, g.category())
	v := g.alias(x, x.Shape, x.stride)
	v.isView = x.isView
	if n := g.record(op, v, x); n != nil {
		n.backward = func(n *Node, b *pass) {
			b.scratch(backward, nil)
			passThrough(n, b)
		}
	}
	eat(x)
	return v
}

// Received is the activations that another stage of a pipeline sent: they lie in a buffer of
// their own, and their gradient is sent back.
func (g *Graph) Received(d DType, shape ...int64) (*Tensor, *Param) {
	t := g.newTensor()
	t.g, t.Shape, t.stride, t.DType = g, shape, contiguousStrides(shape), d
	t.refs, t.floating, t.leaf, t.needs = 1, true, true, true
	t.st = g.alloc(0, g.category())
	p := &Param{Tensor: t, Name: "received", received: true}
	t.param = p
	return t, p
}

// SendBack drops the gradient of received activations once it is sent.
func (p *Param) SendBack() {
	p.Grad.drop()
	p.Grad = nil
}

// WantGrad is x as a leaf whose gradient is kept, as requires_grad_(True) makes it of an input.
// Both live as long as the graph that leads there: a loop's variable for the loss holds it until
// the next loss is there.
func (g *Graph) WantGrad(x *Tensor) *Tensor {
	if g.noGrad > 0 || x.needs {
		return x
	}
	v := g.alias(x, x.Shape, x.stride)
	v.leaf, v.needs = true, true
	v.param = &Param{Tensor: v, Name: "input", received: true}
	g.wanted = append(g.wanted, wanted{v.hold(), g.passes})
	eat(x)
	return v
}

// wanted is an input with a gradient, and how many backward passes there were when it was made.
type wanted struct {
	t      *Tensor
	passes int
}

// forgetWanted drops the inputs of earlier graphs, with their gradients.
func (g *Graph) forgetWanted() {
	for len(g.wanted) > 0 && g.wanted[0].passes < g.passes {
		old := g.wanted[0].t
		old.param.SendBack()
		old.drop()
		g.wanted = g.wanted[1:]
	}
	g.passes++
}
