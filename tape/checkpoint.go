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

	nests bool        // there are regions inside
	outer *checkpoint // the region around this one, or nil
	lent  []int       // slots of the outer region where the arguments are, -1 for none
}

// stopRecompute ends a recompute: everything that is needed has been made.
type stopRecompute struct{ c *checkpoint }

// Checkpoint runs fn under checkpointing. args are kept until the last backward node of the region
// has run; fn borrows them.
func (g *Graph) Checkpoint(fn func(args []*Tensor) *Tensor, args ...*Tensor) *Tensor {
	switch {
	case g.noGrad > 0:
		return fn(args)
	case g.redo != nil:
		return g.nestedAgain(fn, args)
	case g.ckpt != nil:
		return g.nested(fn, args)
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

// nested runs a region inside another. It keeps its own tensors; its arguments are kept by the
// outer one, which drops them like the rest and makes them again.
func (g *Graph) nested(fn func(args []*Tensor) *Tensor, args []*Tensor) *Tensor {
	outer := g.ckpt
	outer.nests = true
	c := &checkpoint{g: g, run: fn, module: g.module, outer: outer}
	for _, a := range args {
		at := -1
		if a != nil {
			at = outer.slot().idx
		}
		c.lent = append(c.lent, at)
	}
	g.ckpt = c
	c.live++
	f := g.Enter(args...)
	out := f.Leave(fn(args))
	g.ckpt = outer
	c.done()
	return out
}

// nestedAgain is nested in the recompute of the outer region: the arguments are offered to it, and
// tensors kept inside are dropped once more.
func (g *Graph) nestedAgain(fn func(args []*Tensor) *Tensor, args []*Tensor) *Tensor {
	outer := g.redo
	if !outer.nests {
		return fn(args)
	}
	for _, a := range args {
		if a != nil {
			outer.offer(a)
		}
	}
	inner := &checkpoint{g: g, slots: -1}
	g.redo = inner
	out := fn(args)
	g.redo = outer
	outer.made = append(outer.made, inner.made...)
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
	for _, at := range c.lent {
		if at >= 0 {
			c.outer.done()
		}
	}
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

// take hands over a recomputed tensor.
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
	for _, at := range c.lent {
		var a *Tensor
		if at >= 0 {
			a = c.outer.take(at)
		}
		c.args = append(c.args, a)
	}
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
