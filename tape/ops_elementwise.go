package tape

import (
	"slices"

	"memroom/event"
)

// promote returns the common type of operands; scalars (zero dimensions) do not widen.
func promote(args ...*Tensor) DType {
	d, any := Bool, false
	for pass := 0; pass < 2 && !any; pass++ {
		for _, a := range args {
			if a == nil || pass == 0 && len(a.Shape) == 0 {
				continue
			}
			if !any {
				d, any = a.DType, true
				continue
			}
			d = wider(d, a.DType)
		}
	}
	return d
}

func wider(a, b DType) DType {
	switch {
	case a == b:
		return a
	case a.Floating() && !b.Floating():
		return a
	case b.Floating() && !a.Floating():
		return b
	case a == F64 || b == F64:
		return F64
	case a.Floating():
		return F32 // two different floats
	case a == I64 || b == I64:
		return I64
	case a == I32 || b == I32:
		return I32
	}
	return U8
}

func broadcast(args ...*Tensor) []int64 {
	n, same := 0, true
	var first *Tensor
	for _, a := range args {
		if a == nil {
			continue
		}
		if first == nil {
			first = a
		} else if !slices.Equal(first.Shape, a.Shape) {
			same = false
		}
		n = max(n, len(a.Shape))
	}
	if same {
		return first.Shape
	}
	shape := make([]int64, n)
	for i := range shape {
		shape[i] = 1
	}
	for _, a := range args {
		if a == nil {
			continue
		}
		lead := n - len(a.Shape)
		for i, d := range a.Shape {
			if d != 1 {
				shape[lead+i] = d
			}
		}
	}
	return shape
}

// elementwise makes the result of an elementwise operation, unrecorded.
func (g *Graph) elementwise(args ...*Tensor) *Tensor {
	return g.elementwiseAs(promote(args...), args...)
}

func (g *Graph) elementwiseAs(d DType, args ...*Tensor) *Tensor {
	shape := broadcast(args...)
	return g.newStrided(shape, elementwiseStrides(shape, args), d)
}

// Add is a + b.
func (g *Graph) Add(a, b *Tensor) *Tensor {
	g.op = "add"
	n := g.prepare("add", a, b)
	out := g.elementwise(a, b)
	if n != nil {
		n.backward = addBackward
		n.emit(out)
	}
	eat(a, b)
	return out
}

func addBackward(n *Node, b *pass) {
	for i := range b.out {
		if b.needs(i) {
			b.out[i] = b.grad[0].hold()
		}
	}
}

// AddInPlace is a += b; the result is a.
func (g *Graph) AddInPlace(a, b *Tensor) *Tensor {
	if n := g.prepare("add", a, b); n != nil {
		n.backward = addBackward
		a.rebase(n)
	}
	eat(b)
	return a
}

// rebase makes n the producer of a tensor that an in-place operation changed.
func (t *Tensor) rebase(n *Node) {
	old := t.node
	t.node = nil
	n.emit(t)
	if old != nil {
		old.unref()
	}
}

// AddScalar is a + number (or a - number): nothing is kept, the gradient passes through.
func (g *Graph) AddScalar(a *Tensor) *Tensor { return g.unary("add", a, nil, passThrough) }

// Sub is a - b.
func (g *Graph) Sub(a, b *Tensor) *Tensor {
	g.op = "sub"
	n := g.prepare("sub", a, b)
	out := g.elementwise(a, b)
	if n != nil {
		n.backward = func(n *Node, p *pass) {
			if p.needs(1) {
				p.out[1] = p.like(p.grad[0])
			}
			if p.needs(0) {
				p.out[0] = p.grad[0].hold()
			}
		}
		n.emit(out)
	}
	eat(a, b)
	return out
}

// Mul is a * b.
func (g *Graph) Mul(a, b *Tensor) *Tensor {
	g.op = "mul"
	n := g.prepare("mul", a, b)
	if n != nil {
		n.saveIf(b.needs, a)
		n.saveIf(a.needs, b)
	}
	out := g.elementwise(a, b)
	if n != nil {
		n.backward = func(n *Node, p *pass) {
			if p.needs(1) {
				p.out[1] = p.like(p.grad[0], p.saved[0])
			}
			if p.needs(0) {
				p.out[0] = p.like(p.grad[0], p.saved[1])
			}
		}
		n.emit(out)
	}
	eat(a, b)
	return out
}

// saveIf keeps t if cond holds, else an empty slot that takes part in nothing.
func (n *Node) saveIf(cond bool, t *Tensor) {
	if cond {
		n.saveOne(t)
		return
	}
	n.saved = append(n.saved, slot{})
}

// Div is a / b.
func (g *Graph) Div(a, b *Tensor) *Tensor {
	g.op = "div"
	n := g.prepare("div", a, b)
	if n != nil {
		n.saveIf(b.needs, a)
		n.save(b)
	}
	out := g.elementwise(a, b)
	if n != nil {
		n.backward = divBackward
		n.emit(out)
	}
	eat(a, b)
	return out
}

func divBackward(_ *Node, p *pass) {
	gr := p.grad[0]
	if p.needs(1) { // -grad * ((a / b) / b)
		neg := p.like(gr)
		q := p.like(p.saved[0], p.saved[1])
		q2 := p.like(q, p.saved[1])
		p.out[1] = p.like(neg, q2)
		neg.drop()
		q.drop()
		q2.drop()
	}
	if p.needs(0) {
		p.out[0] = p.like(gr, p.saved[1])
	}
}

// Scale is a times or divided by a number.
func (g *Graph) Scale(a *Tensor) *Tensor { return g.unary("scale", a, nil, oneResult) }

// Neg is -a.
func (g *Graph) Neg(a *Tensor) *Tensor { return g.unary("neg", a, nil, oneResult) }

// ScaleInPlace is a *= number.
func (g *Graph) ScaleInPlace(a *Tensor) *Tensor {
	if n := g.prepare("scale", a); n != nil {
		n.backward = oneResult
		a.rebase(n)
	}
	return a
}

func oneResult(_ *Node, b *pass) { b.out[0] = b.like(b.grad[0]) }

func oneResultSaved(_ *Node, b *pass) { b.out[0] = b.like(b.grad[0], b.saved[0]) }

// keepWhat is the side of a unary operation that its backward needs.
type keepWhat uint8

const (
	keepInput keepWhat = iota + 1
	keepResult
)

// unary is an elementwise operation of one argument.
func (g *Graph) unary(op string, a *Tensor, keep *keepWhat, bw backwardFn) *Tensor {
	g.op = op
	n := g.prepare(op, a)
	if n != nil && keep != nil && *keep == keepInput {
		n.save(a)
	}
	out := g.elementwise(a)
	if n != nil {
		n.backward = bw
		n.emit(out)
		if keep != nil && *keep == keepResult {
			n.save(out)
		}
	}
	eat(a)
	return out
}

var (
	theInput  = func() *keepWhat { k := keepInput; return &k }()
	theResult = func() *keepWhat { k := keepResult; return &k }()
)

// Activation applies a fused activation kernel by name.
func (g *Graph) Activation(name string, a *Tensor) *Tensor {
	switch name {
	case "relu", "tanh", "sigmoid", "exp":
		return g.unary(name, a, theResult, oneResultSaved)
	case "linear", "identity":
		return a
	case "gelu_new", "gelu_fast", "gelu_python_tanh":
		return g.GeluNew(a)
	case "quick_gelu":
		return g.QuickGelu(a)
	case "gelu_10":
		return g.unary("gelu", a, theInput, oneResultSaved)
	case "relu2":
		f := g.Enter(a)
		return f.Leave(g.Square(f.Keep(g.unary("relu", a, theResult, oneResultSaved))))
	case "softplus", "mish":
		return g.unary(name, a, theInput, oneResultSaved)
	}
	return g.unary(name, a, theInput, oneResultSaved)
}

// ReluInPlace is relu_: the result takes the place of the input and is kept.
func (g *Graph) ReluInPlace(a *Tensor) *Tensor { return g.inPlace("relu", a, true) }

// ClampOne is clamp with one bound.
func (g *Graph) ClampOne(a *Tensor) *Tensor {
	return g.unary("clamp", a, theInput, func(_ *Node, b *pass) { // where(a <= bound, grad, 0)
		zero := b.new(nil, b.grad[0].DType)
		mask := b.new(b.saved[0].Shape, Bool)
		b.out[0] = b.like(b.grad[0])
		zero.drop()
		mask.drop()
	})
}

// ClampTwo is clamp with two bounds.
func (g *Graph) ClampTwo(a *Tensor) *Tensor {
	// where(a >= low and a <= high, grad, 0)
	return g.unary("clamp", a, theInput, func(_ *Node, b *pass) {
		low, high := b.new(b.saved[0].Shape, Bool), b.new(b.saved[0].Shape, Bool)
		high.drop()
		zero := b.new(nil, b.grad[0].DType)
		b.out[0] = b.like(b.grad[0])
		zero.drop()
		low.drop()
	})
}

// ReluInPlaceOfView is relu_ of a view: in its backward the gradient is copied for the view, for
// the base and for the part of the base that was written to.
func (g *Graph) ReluInPlaceOfView(a *Tensor) *Tensor {
	g.inPlace("relu", a, true)
	if n := g.prepare("relu", a); n != nil {
		a.node.backward = func(_ *Node, b *pass) {
			b.out[0] = b.like(b.grad[0])
			part := b.like(b.grad[0])
			b.like(part, b.saved[0]).drop()
			part.drop()
		}
		n.backward = oneResult
		a.rebase(n)
	}
	return a
}

// inPlace is an activation that overwrites its input. keepOut keeps the result; else a copy of the
// input would be needed, which only activations that save their result avoid.
func (g *Graph) inPlace(op string, a *Tensor, keepOut bool) *Tensor {
	g.op = op
	n := g.prepare(op, a)
	if n == nil {
		return a
	}
	n.backward = oneResultSaved
	a.rebase(n)
	if keepOut {
		n.save(a)
	}
	return a
}

// ClampInPlaceInput is an in-place activation (hardswish, hardsigmoid, silu, relu6) whose backward
// needs its input: autograd keeps a copy made before the input is overwritten.
func (g *Graph) ClampInPlaceInput(op string, a *Tensor) *Tensor {
	g.op = op
	n := g.prepare(op, a)
	if n == nil {
		return a
	}
	c := g.newStrided(a.Shape, denseLike(a), a.DType)
	n.save(c)
	eat(c)
	n.backward = oneResultSaved
	a.rebase(n)
	return a
}

// QuickGelu is x * sigmoid(1.702 x).
func (g *Graph) QuickGelu(x *Tensor) *Tensor {
	return g.Mul(x, g.Activation("sigmoid", g.Scale(x)))
}

// Pow is a to the power of a number.
func (g *Graph) Pow(a *Tensor) *Tensor {
	defer release(g.full(&a))
	return g.unary("pow", a, theInput, powBackward)
}

// powBackward is grad * (exponent * self.pow(exponent - 1)).
func powBackward(_ *Node, b *pass) {
	p := b.like(b.saved[0])
	e := b.like(p)
	b.out[0] = b.like(b.grad[0], e)
	e.drop()
	p.drop()
}

// Square is a * a.
func (g *Graph) Square(a *Tensor) *Tensor { return g.Pow(a) }

// Erf is the error function. Its gradient is one C++ expression, whose intermediate results live
// until its end: 2 / sqrt(pi) * exp(-a^2) * grad.
func (g *Graph) Erf(a *Tensor) *Tensor {
	return g.unary("erf", a, theInput, func(_ *Node, b *pass) {
		square, minus, exp, scaled := b.like(b.saved[0]), b.like(b.saved[0]), b.like(b.saved[0]),
			b.like(b.saved[0])
		b.out[0] = b.like(scaled, b.grad[0])
		for _, t := range []*Tensor{scaled, exp, minus, square} {
			t.drop()
		}
	})
}

// Rsqrt is 1 / sqrt(a).
func (g *Graph) Rsqrt(a *Tensor) *Tensor {
	defer release(g.full(&a))
	return g.unary("rsqrt", a, theResult, func(_ *Node, b *pass) {
		x := b.like(b.grad[0])
		c := b.like(b.saved[0])
		b.out[0] = b.like(x, c)
		c.drop()
		x.drop()
	})
}

// GeluNew is the tanh approximation written out in Python:
// 0.5 * x * (1 + tanh(c * (x + 0.044715 * x^3))).
func (g *Graph) GeluNew(x *Tensor) *Tensor {
	f := g.Enter(x)
	return f.Leave(g.Mul(g.Scale(x), g.AddScalar(g.Activation("tanh",
		g.Scale(g.Add(x, g.Scale(g.Pow(x))))))))
}

// Dropout keeps a byte per element for the backward pass; with p = 0 it is the input itself.
func (g *Graph) Dropout(a *Tensor, p float64) *Tensor {
	if p <= 0 || !g.Training {
		return a
	}
	g.op = "dropout"
	n := g.prepare("dropout", a)
	mask := g.newStrided(a.Shape, denseLike(a), Bool)
	out := g.newStrided(a.Shape, denseLike(a), a.DType)
	if n != nil {
		n.emit(out)
		n.save(mask)
		n.backward = oneResult
	}
	eat(mask, a)
	return out
}

// MaskedFill replaces elements where mask holds.
func (g *Graph) MaskedFill(a, mask *Tensor) *Tensor {
	g.op = "masked_fill"
	n := g.prepare("masked_fill", a)
	n.save(mask)
	out := g.elementwiseAs(a.DType, a, mask)
	if n != nil {
		n.backward = oneResult
		n.emit(out)
	}
	eat(a, mask)
	return out
}

// Input makes data of the batch; it belongs to the caller.
func (g *Graph) Input(d DType, shape ...int64) *Tensor {
	var t *Tensor
	g.op = "batch"
	g.As(event.CategoryInput, func() { t = g.New(shape, d) })
	return t
}

// Fresh makes a constant without a gradient, such as a range or a mask.
func (g *Graph) Fresh(op string, d DType, shape ...int64) *Tensor {
	g.op = op
	return g.New(shape, d)
}

// Borrow makes a tensor that stands for memory that is there already, such as a buffer.
func (g *Graph) Borrow(d DType, shape ...int64) *Tensor {
	t := g.newTensor()
	t.g, t.Shape, t.stride, t.DType = g, shape, contiguousStrides(shape), d
	t.refs, t.floating = 1, true
	t.st = g.alloc(0, event.CategoryWeights)
	return t
}

// Where picks a where cond holds, a number elsewhere.
func (g *Graph) Where(cond, a *Tensor) *Tensor {
	g.op = "where"
	n := g.prepare("where", a)
	n.save(cond)
	number := g.New(nil, a.DType)
	out := g.elementwiseAs(a.DType, cond, a)
	eat(number)
	if n != nil {
		n.backward = func(_ *Node, b *pass) {
			// where(cond, grad, 0)
			b.scratch(b.grad[0].DType.Size(), func() { b.out[0] = b.like(b.grad[0]) })
		}
		n.emit(out)
	}
	eat(cond, a)
	return out
}

// WhereElse is torch.where(cond, a, other) with a constant other.
func (g *Graph) WhereElse(cond, a, other *Tensor) *Tensor {
	g.op = "where"
	n := g.prepare("where", a)
	n.save(cond)
	out := g.elementwiseAs(a.DType, cond, a)
	if n != nil {
		n.backward = func(_ *Node, b *pass) {
			b.scratch(b.grad[0].DType.Size(), func() { b.out[0] = b.like(b.grad[0]) })
		}
		n.emit(out)
	}
	eat(cond, a, other)
	return out
}

// BloomGelu is Bloom's own autograd function: only its input is kept, and the backward pass is
// written out.
func (g *Graph) BloomGelu(x *Tensor) *Tensor {
	f := g.Enter(x)
	n := g.prepare("gelu", x)
	n.save(x)
	var out *Tensor
	g.NoGrad(func() {
		out = g.Mul(g.Scale(x), g.AddScalar(g.Activation("tanh",
			g.Mul(g.Scale(x), g.AddScalar(g.Mul(g.Scale(x), x))))))
	})
	if n != nil {
		n.emit(out)
		n.backward = bloomGeluBackward
	}
	return f.Leave(out)
}

func bloomGeluBackward(_ *Node, b *pass) {
	g, x := b.g, b.saved[0]
	f := g.Enter()
	var tanh, ff *Tensor
	f.Set(&tanh, g.Activation("tanh", g.Mul(g.Scale(x), g.AddScalar(g.Mul(g.Scale(x), x)))))
	f.Set(&ff, g.Add(g.Mul(g.Scale(x), g.Mul(g.AddScalar(g.Mul(tanh, tanh)),
		g.AddScalar(g.Mul(g.Scale(x), x)))), g.Scale(g.AddScalar(tanh))))
	out := g.Mul(ff, b.grad[0])
	f.Leave(out)
	b.out[0] = out.sink()
}
