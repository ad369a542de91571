package tape

// checkpoint is one region under non-reentrant checkpointing: what its operations would keep is
// dropped, and made again by running the region once more when the first of its backward nodes
// asks.
type checkpoint struct {
	g       *Graph
	run     func(args []*Tensor) *Tensor
	args    []*Tensor
	slots   int       // tensors the region would have kept
	live    int       // of these, not yet released
	counter int       // tensors offered so far in the recompute
	again   []*Tensor // recomputed tensors, by slot
	ran     bool      // the recompute has happened
	module  string
	// every tensor of the recompute: temporaries that the early stop cut off are released at its
	// end
	made []*Tensor
	last *Node // of the recompute: the early stop may leave it without a result
}

// stopRecompute ends a recompute: everything that is needed has been made.
type stopRecompute struct{ c *checkpoint }

// Checkpoint runs fn under checkpointing. args are kept until the last backward node of the region
// has run; fn borrows them.
func (g *Graph) Checkpoint(fn func(args []*Tensor) *Tensor, args ...*Tensor) *Tensor {
	if g.noGrad > 0 || g.redo != nil {
		return fn(args)
	}
	g.Checkpointed = true
	c := &checkpoint{g: g, run: fn, module: g.module}
	for _, a := range args {
		if a != nil {
			a.sink()
		}
		c.args = append(c.args, a)
	}
	g.ckpt = c
	c.live++ // the region itself, until its forward has returned
	out := fn(c.args)
	g.ckpt = nil
	c.done()
	return out
}

func (c *checkpoint) slot() slot {
	c.slots++
	c.live++
	return slot{reg: c, idx: c.slots - 1}
}

// done is called for each slot that is released; with the last one the region's arguments go.
func (c *checkpoint) done() {
	c.live--
	if c.live > 0 {
		return
	}
	for _, a := range c.args {
		a.drop()
	}
	c.args = nil
	for _, t := range c.again {
		t.drop()
	}
	c.again = nil
}

// offer takes a tensor that the recompute would keep.
func (c *checkpoint) offer(t *Tensor) {
	if c.counter < len(c.again) {
		c.again[c.counter] = t.hold()
	}
	c.counter++
	if c.counter == c.slots {
		panic(stopRecompute{c})
	}
}

// take gives a recomputed tensor away.
func (c *checkpoint) take(idx int) *Tensor {
	if !c.ran {
		c.recompute()
	}
	t := c.again[idx]
	c.again[idx] = nil
	return t
}

func (c *checkpoint) recompute() {
	g := c.g
	c.ran = true
	c.again = make([]*Tensor, c.slots)
	module, op, cat := g.module, g.op, g.cat
	depth := len(g.frames)
	outer := g.casts
	g.casts = nil
	g.redo, g.module, g.cat = c, c.module, 0
	func() {
		defer func() {
			if r := recover(); r != nil {
				if s, ok := r.(stopRecompute); !ok || s.c != c {
					panic(r)
				}
			}
		}()
		eat(c.run(c.args))
	}()
	g.redo = nil
	eat(c.made...)
	c.made = nil
	for i := len(g.frames) - 1; i >= depth; i-- {
		g.frames[i].release()
	}
	g.frames = g.frames[:depth]
	g.endCasts()
	g.casts = outer
	if n := c.last; n != nil && n.refs == 0 && n.inputs != nil { // nothing holds it: let its inputs go
		n.refs = 1
		n.unref()
	}
	c.last = nil
	g.module, g.op, g.cat = module, op, cat
}
