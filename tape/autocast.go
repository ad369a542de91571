package tape

// cachedCast is a half-precision copy of a weight, kept until the autocast region ends.
type cachedCast struct {
	param *Param
	copy  *Tensor
}

// EndAutocast leaves the autocast region: the cached copies of weights go, unless the graph keeps
// them.
func (g *Graph) EndAutocast() { g.endCasts() }

func (g *Graph) endCasts() {
	for _, c := range g.casts {
		c.copy.drop()
	}
	g.casts = nil
}

// half casts arguments for an operation of autocast's half-precision list, from right to left. The
// temporaries that were cast live until the operation is over: they are returned, to be released
// then.
func (g *Graph) half(args ...**Tensor) (late []*Tensor) {
	if !g.autocastOn() {
		return nil
	}
	for i := len(args) - 1; i >= 0; i-- {
		if t := *args[i]; t != nil && t.DType.Floating() && t.DType != g.Half && t.DType != F64 {
			late = append(late, t)
			*args[i] = g.autocast(t)
		}
	}
	return late
}

// autocast returns the half-precision copy of a tensor: for a weight in training, one copy for the
// whole region.
func (g *Graph) autocast(t *Tensor) *Tensor {
	if !t.leaf || t.param == nil || !t.needs {
		return g.castKept(t, g.Half)
	}
	for _, c := range g.casts {
		if c.param == t.param {
			return c.copy
		}
	}
	c := g.castKept(t, g.Half)
	g.casts = append(g.casts, cachedCast{t.param, c.sink()})
	return c
}

// full casts arguments for an operation of autocast's fp32 list; see half.
func (g *Graph) full(args ...**Tensor) (late []*Tensor) {
	if !g.autocastOn() {
		return nil
	}
	for i := len(args) - 1; i >= 0; i-- {
		if t := *args[i]; t != nil && t.DType.Half() {
			late = append(late, t)
			*args[i] = g.castKept(t, F32)
		}
	}
	return late
}

// castKept casts without releasing a temporary.
func (g *Graph) castKept(t *Tensor, d DType) *Tensor {
	floating := t.floating
	t.floating = false
	c := g.To(t, d)
	t.floating = floating
	return c
}

// To casts; a cast to the same type is the tensor itself.
func (g *Graph) To(t *Tensor, d DType) *Tensor {
	if t.DType == d {
		return t
	}
	op := g.op
	g.op = "cast"
	c := g.newStrided(t.Shape, denseLike(t), d)
	g.op = op
	if n := g.record("cast", c, t); n != nil {
		n.backward = passThrough
	}
	eat(t)
	return c
}

// release is for `defer release(g.half(...))`: the cast temporaries go when the operation is over.
func release(late []*Tensor) { eat(late...) }
