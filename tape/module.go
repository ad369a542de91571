package tape

import (
	"slices"
	"strings"

	"memroom/event"
)

// Module is a torch.nn.Module as far as memory goes: parameters, buffers and children, each in
// order of registration.
type Module struct {
	name     string
	path     string
	params   []*Param
	buffers  []buffer
	children []*Module
	flat     bool // parameters share one buffer on the device

	linear     bool // a linear layer
	experts    bool // weights of experts
	saved      bool // trained whole next to adapters
	transposed bool // its weight is stored [in, out]
}

// FlattenParams makes the module's own parameters share one buffer once loaded, as recurrent
// networks do for cuDNN.
func (m *Module) FlattenParams() { m.flat = true }

// buffer is a tensor that is not trained; a floating one is cast along with the weights.
type buffer struct {
	elements int64
	dtype    DType
}

// NewModule makes the root of a model.
func NewModule() *Module { return &Module{} }

// Child adds a submodule.
func (m *Module) Child(name string) *Module {
	c := &Module{name: name, path: join(m.path, name)}
	m.children = append(m.children, c)
	return c
}

// Last is the submodule added last.
func (m *Module) Last() *Module { return m.children[len(m.children)-1] }

func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + "." + b
}

// Path is the module's full name.
func (m *Module) Path() string { return m.path }

// Param adds a parameter.
func (m *Module) Param(name string, shape ...int64) *Param {
	p := &Param{Name: join(m.path, name), Tensor: &Tensor{Shape: shape, leaf: true}}
	p.param = p
	m.params = append(m.params, p)
	return p
}

// Tie registers a parameter of another module here too: one tensor, two names.
func (m *Module) Tie(p *Param) *Param {
	m.params = append(m.params, p)
	return p
}

// Buffer adds a tensor that is not trained.
func (m *Module) Buffer(d DType, elements int64) {
	m.buffers = append(m.buffers,
		buffer{elements, d})
}

// Parameters lists the parameters as model.parameters() does: a module's own before its children's,
// each once.
func (m *Module) Parameters() []*Param {
	var list []*Param
	seen := map[*Param]bool{}
	m.visit(func(c *Module) {
		for _, p := range c.params {
			if !seen[p] {
				seen[p] = true
				list = append(list, p)
			}
		}
	})
	return list
}

func (m *Module) visit(fn func(*Module)) {
	fn(m)
	for _, c := range m.children {
		c.visit(fn)
	}
}

// Count is the number of parameters, each once.
func (m *Module) Count() int64 {
	var n int64
	for _, p := range m.Parameters() {
		n += p.Numel()
	}
	return n
}

// Freeze keeps only parameters whose name contains one of the substrings trainable.
func (m *Module) Freeze(keep []string) {
	for _, p := range m.Parameters() {
		p.Frozen = !slices.ContainsFunc(keep, func(s string) bool {
			return strings.Contains(p.Name,
				s)
		})
	}
}

// Load moves the model to the device as Module.to does: children first, then the module's own
// parameters, then buffers. Parameters with a type of their own (quantised weights) keep it.
func (g *Graph) Load(m *Module, d DType) {
	if g.FSDP != nil {
		g.spread(m)
	}
	g.load(m, d)
	if g.DDP != nil {
		g.wrap(m)
	}
	if g.Zero != nil {
		g.join(m)
	}
}

func (g *Graph) load(m *Module, d DType) {
	for _, c := range m.children {
		g.load(c, d)
	}
	g.module, g.op, g.cat = m.path, "load", event.CategoryWeights
	for _, p := range m.params {
		if p.st == nil {
			g.loadParam(p, d)
		}
	}
	if m.flat {
		g.flatten(m)
	}
	for _, b := range m.buffers {
		if b.dtype.Floating() {
			b.dtype = d
		}
		g.alloc(b.elements*b.dtype.Size(), event.CategoryWeights)
	}
	g.module, g.op, g.cat = "", "", event.CategoryUnknown
}

func (g *Graph) loadParam(p *Param, d DType) {
	if g.fsdp != nil {
		g.fsdp.loadPart(p)
		return
	}
	t := p.Tensor
	if p.Own {
		d = F32
	}
	t.g, t.DType, t.refs, t.needs = g, d, 1, !p.Frozen
	t.stride = contiguousStrides(t.Shape)
	bytes := t.Numel() * d.Size()
	if p.Bits > 0 {
		bytes = g.loadScales(p)
	}
	t.st = g.alloc(bytes, event.CategoryWeights)
	if g.Zero != nil && g.Zero.Stage == 3 { // zero.Init: each is cut as it is made
		whole := t.st
		part := divUp(bytes, g.Zero.Ranks)
		if g.HostParams {
			part = 0
		}
		t.st = g.alloc(part, event.CategoryWeights)
		g.unrefStorage(whole)
	}
}

// Weights lists the bytes of each weight that Load has left on the card.
func (g *Graph) Weights() []int64 {
	live := map[int32]int64{}
	var order []int32
	for _, op := range g.tl.Ops {
		if op.Kind != event.OpAlloc {
			delete(live, op.ID)
		} else if g.tl.Tags[op.Tag].Category == event.CategoryWeights {
			live[op.ID] = op.Size
			order = append(order, op.ID)
		}
	}
	var sizes []int64
	for _, id := range order {
		if bytes, ok := live[id]; ok {
			sizes = append(sizes, bytes)
			delete(live, id)
		}
	}
	return sizes
}

// ToChannelsLast rewrites four-dimensional parameters in channels-last order, as
// model.to(memory_format=...) does.
func (g *Graph) ToChannelsLast(m *Module) {
	for _, c := range m.children {
		g.ToChannelsLast(c)
	}
	g.op, g.cat = "load", event.CategoryWeights
	for _, p := range m.params {
		if len(p.Shape) != 4 {
			continue
		}
		stride := channelsLastStrides(p.Shape)
		old := p.st
		p.st = g.alloc(old.bytes, event.CategoryWeights)
		p.stride = stride
		g.unrefStorage(old)
	}
	g.op, g.cat = "", event.CategoryUnknown
}

// Trainable is the number of parameters that are trained.
func (m *Module) Trainable() int64 {
	var n int64
	for _, p := range m.Parameters() {
		if !p.Frozen {
			n += p.Numel()
		}
	}
	return n
}
