package tape

// CrossEntropy is F.cross_entropy of [rows, classes] logits with class indices: log-softmax in the
// logits' own type, then the negative log likelihood, which autocast runs in fp32.
func (g *Graph) CrossEntropy(logits, target *Tensor) *Tensor {
	f := g.Enter(logits, target)
	return f.Leave(g.nll(g.LogSoftmax(logits), target))
}

// LogSoftmax normalises the last dimension in the input's type.
func (g *Graph) LogSoftmax(a *Tensor) *Tensor { return g.logSoftmax(a, a.DType) }

// LogSoftmaxAs does so in another type: only fp16 is widened by the kernel itself.
func (g *Graph) LogSoftmaxAs(a *Tensor, d DType) *Tensor {
	if a.DType != d && a.DType != F16 {
		a = g.To(a, d)
	}
	return g.logSoftmax(a, d)
}

// CTC is PyTorch's own ctc_loss on [time, batch, classes] with targets of the given length: the
// forward variables are kept, the backward ones made next to the gradient.
func (g *Graph) CTC(logp *Tensor, target int64) *Tensor {
	g.op = "ctc_loss"
	steps, batch := logp.Shape[0], logp.Shape[1]
	n := g.prepare("ctc_loss", logp)
	n.save(logp)
	lengths := []*storage{g.alloc(8*batch, g.category()), g.alloc(8*batch, g.category()),
		g.alloc(8*batch, g.category())}
	alpha := g.New([]int64{batch, steps, 2*target + 1}, F32)
	each := g.New([]int64{batch}, F32)
	for _, st := range lengths {
		g.unrefStorage(st)
	}
	out := g.New(nil, F32)
	if n != nil {
		n.emit(out)
		n.save(alpha, each)
		n.backward = func(n *Node, p *pass) {
			p.scratch(4*batch*steps*(2*target+1), func() {
				p.out[0] = p.new(n.metas[0].shape,
					F32)
			})
		}
	}
	eat(alpha, each, logp)
	return out
}

func (g *Graph) logSoftmax(a *Tensor, d DType) *Tensor {
	g.op = "log_softmax"
	n := g.prepare("log_softmax", a)
	out := g.New(a.Shape, d)
	if !a.contiguous() {
		eat(g.New(a.Shape, a.DType))
	}
	if n != nil {
		n.emit(out)
		n.save(out)
		if g.WideSave {
			n.save(a)
		}
		n.backward = func(n *Node, b *pass) { b.out[0] = b.new(n.metas[0].shape, n.metas[0].dtype) }
	}
	eat(a)
	return out
}

func (g *Graph) nll(logp, target *Tensor) *Tensor {
	defer release(g.full(&logp))
	g.op = "nll_loss"
	n := g.prepare("nll_loss", logp)
	n.save(logp, target)
	out := g.New(nil, logp.DType)
	weight := g.New(nil, logp.DType)
	if n != nil {
		n.emit(out)
		n.save(weight)
		n.backward = func(n *Node, b *pass) { b.out[0] = b.new(n.metas[0].shape, n.metas[0].dtype) }
	}
	eat(weight, logp)
	return out
}

// MSE is nn.MSELoss.
func (g *Graph) MSE(a, target *Tensor) *Tensor {
	defer release(g.full(&a, &target))
	g.op = "mse_loss"
	n := g.prepare("mse_loss", a)
	n.save(a, target)
	// The scalar result lives in a storage of the input's size: it was allocated for the
	// differences, then shrunk.
	out := g.New(a.Shape, a.DType)
	out.Shape, out.stride = nil, nil
	tmp := g.New(a.Shape, a.DType)
	g.reduceScratch(a, allOf(len(a.Shape)))
	eat(tmp)
	if n != nil {
		n.emit(out)
		n.backward = func(n *Node, b *pass) { b.out[0] = b.new(n.metas[0].shape, n.metas[0].dtype) }
	}
	eat(a)
	return out
}

func allOf(n int) []bool {
	list := make([]bool, n)
	for i := range list {
		list[i] = true
	}
	return list
}

// BCEWithLogits is nn.BCEWithLogitsLoss.
func (g *Graph) BCEWithLogits(a, target *Tensor) *Tensor {
	defer release(g.full(&a, &target))
	g.op = "bce_loss"
	n := g.prepare("bce_loss", a)
	n.save(a, target)
	each := g.New(a.Shape, a.DType)
	tmp := g.New(a.Shape, a.DType)
	eat(tmp)
	out := g.New(nil, a.DType)
	eat(each)
	if n != nil {
		n.emit(out)
		n.backward = func(n *Node, b *pass) {
			t := b.new(n.metas[0].shape, n.metas[0].dtype)
			b.out[0] = b.new(n.metas[0].shape, n.metas[0].dtype)
			t.drop()
		}
	}
	eat(a, target)
	return out
}

// LogSumExp is the logarithm of the sum of exponentials over the last dimension. It keeps its input
// and its result.
func (g *Graph) LogSumExp(x *Tensor) *Tensor {
	g.op = "logsumexp"
	n := g.prepare("logsumexp", x)
	n.save(x)
	shape := x.Shape[:len(x.Shape)-1]
	largest, kept := g.New(shape, x.DType), g.New(shape, x.DType)
	apart := g.New(x.Shape, x.DType) // (x - largest).exp_()
	out := g.New(shape, x.DType)
	eat(apart, kept, largest)
	if n != nil {
		n.emit(out)
		n.save(out)
		n.backward = func(_ *Node, b *pass) { // grad * (x - out).exp()
			power := b.new(b.saved[0].Shape, b.saved[0].DType)
			b.out[0] = b.like(power)
			power.drop()
		}
	}
	eat(x)
	return out
}
