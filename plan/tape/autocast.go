package tape

// cachedCast is a half-precision copy of a weight, kept until the autocast region ends.
type cachedCast struct {
	param *Param
	copy  *Tensor
}

// EndAutocast leaves the autocast region: the cached copies of weights go, unless the graph keeps them.
func (g *Graph) EndAutocast() { g.endCasts() }

func (g *Graph) endCasts() {
	for _, c := range g.casts {
		c.copy.drop()
	}
	g.casts = nil
}

// half casts arguments for an operation of autocast's half-precision list, from right to left.
func (g *Graph) half(args ...**Tensor) {
	if !g.autocastOn() {
		return
	}
	for i := len(args) - 1; i >= 0; i-- {
		if t := *args[i]; t != nil && t.DType == F32 {
			*args[i] = g.autocast(t)
		} else if t != nil && t.DType.Half() && t.DType != g.Half {
			*args[i] = g.To(t, g.Half)
		}
	}
}

func (g *Graph) autocast(t *Tensor) *Tensor {
	if !t.leaf || t.param == nil || !t.needs {
		return g.To(t, g.Half)
	}
	for _, c := range g.casts {
		if c.param == t.param {
			return c.copy
		}
	}
	c := g.To(t, g.Half)
	g.casts = append(g.casts, cachedCast{t.param, c.sink()})
	return c
}

// full casts arguments for an operation of autocast's fp32 list.
func (g *Graph) full(args ...**Tensor) {
	if !g.autocastOn() {
		return
	}
	for i := len(args) - 1; i >= 0; i-- {
		if t := *args[i]; t != nil && t.DType.Half() {
			*args[i] = g.To(t, F32)
		}
	}
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
