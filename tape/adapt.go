package tape

import (
	"slices"
	"strings"

	"memroom/event"
)

// Lora is a pair of low-rank adapters next to a weight.
type Lora struct {
	A, B      *Param
	Dropout   float64 // on the adapters' input
	Magnitude *Param  // DoRA's length of each row of the weight; nil is plain LoRA
}

// Adapters describes which linear layers get adapters, and of what kind.
type Adapters struct {
	Rank    int64
	Targets []string // names of modules, or AllLinear alone
	Dropout float64
	DoRA    bool     // the weight's direction is adapted, its length trained apart
	Save    []string // names of modules that are trained whole, as copies next to the frozen ones
}

// AllLinear as the only target means every linear layer but the head.
const AllLinear = "all-linear"

// heads are the names of output layers: PEFT's all-linear leaves them out, and quantisation too.
var heads = []string{"lm_head", "embed_out", "score", "classifier", "qa_outputs", "decoder",
	"proj_out", "out_proj_head"}

func (m *Module) isHead() bool { return slices.Contains(heads, m.name) }

// AddLora freezes the model and puts adapters next to the linear layers that the targets name. It
// returns the number of adapted layers. Adapters are kept in fp32 next to half weights, as PEFT
// does.
func (m *Module) AddLora(a Adapters) int {
	m.Freeze(nil)
	all := len(a.Targets) == 1 && a.Targets[0] == AllLinear
	n := 0
	m.visit(func(c *Module) {
		if !c.linear || all && c.isHead() || !all && !slices.Contains(a.Targets, c.name) {
			return
		}
		for _, p := range c.params {
			if len(p.Shape) != 2 || !strings.HasSuffix(p.Name, "weight") || p.Lora != nil {
				continue
			}
			in, out := p.Shape[1], p.Shape[0]
			if c.transposed {
				in, out = out, in
			}
			p.Lora = &Lora{A: c.Child("lora_A").Param("weight", a.Rank, in),
				B: c.Child("lora_B").Param("weight", out, a.Rank), Dropout: a.Dropout}
			p.Lora.A.Own, p.Lora.B.Own = true, true
			if a.DoRA {
				p.Lora.Magnitude = c.Child("lora_magnitude_vector").Param("weight", out)
				p.Lora.Magnitude.Own = true
			}
			n++
		}
	})
	return n
}

// TrainWhole makes copies of the named modules that are trained next to their frozen originals, as
// PEFT's modules_to_save does. It returns the number of modules found.
func (m *Module) TrainWhole(names []string) int {
	n := 0
	m.visit(func(c *Module) {
		if slices.Contains(names, c.name) && !c.saved {
			n++
			kept := &Module{}
			c.visit(func(part *Module) { part.train(kept) })
			c.children = append(c.children, kept.children...)
		}
	})
	return n
}

// train unfreezes a module's own parameters; frozen copies of them go below kept.
func (m *Module) train(kept *Module) {
	m.saved = true
	if len(m.params) == 0 {
		return
	}
	original := kept.Child("original_module")
	original.saved = true
	for _, p := range m.params {
		p.Frozen = false
		original.Param(p.Name[strings.LastIndex(p.Name, ".")+1:], p.Shape...).Frozen = true
	}
}

// LinearNames lists the names that linear layers have, each once, in the model's order.
func (m *Module) LinearNames() []string {
	var names []string
	m.visit(func(c *Module) {
		if c.linear && !c.isHead() && !slices.Contains(names, c.name) {
			names = append(names, c.name)
		}
	})
	return names
}

// Linear marks a module as a linear layer.
func (m *Module) Linear() *Module { m.linear = true; return m }

// Experts marks a module whose parameters are the weights of many experts, one after the other.
func (m *Module) Experts() *Module { m.experts = true; return m }

// Transposed marks a linear layer whose weight is stored [in, out].
func (m *Module) Transposed() *Module { m.transposed = true; return m.Linear() }

// Packing is how weights are quantised.
type Packing struct {
	Bits   int64
	Double bool // the scales of 4-bit weights are quantised too
	Upcast bool // what stays unpacked is kept in fp32, as prepare_model_for_kbit_training leaves it
}

// Quantize packs the weights of experts and of every linear layer except the head. It returns the
// number of packed weights.
func (m *Module) Quantize(how Packing) int {
	n := 0
	m.visit(func(c *Module) {
		for _, p := range c.params {
			if how.Upcast {
				p.Own = true
			}
			matrix := c.linear && !c.saved && !c.isHead() && len(p.Shape) == 2 &&
				strings.HasSuffix(p.Name, "weight")
			if matrix || c.experts {
				p.Bits, p.Double, p.Frozen = how.Bits, how.Double, true
				n++
			}
		}
	})
	return n
}

// packedSizes are the tensors of a quantised weight, as bitsandbytes makes them: the packed values,
// then their scales and tables. Blocks of 64 values share a scale in 4 bits; rows do in 8 bits.
func (p *Param) packedSizes() []int64 {
	n := p.Numel()
	if p.Bits == 8 {
		return []int64{n, 4 * p.Shape[0]}
	}
	blocks, table := divUp(n, 64), int64(16*4)
	if !p.Double {
		return []int64{divUp(n, 2), 4 * blocks, table}
	}
	return []int64{divUp(n, 2), table, 4, blocks, 4 * divUp(blocks, 256), 256 * 4}
}

// scaleBytes is the size of the scales while a weight is unpacked, if they must be unpacked first.
func (p *Param) scaleBytes() int64 {
	if p.Bits == 4 && p.Double {
		return 4 * divUp(p.Numel(), 64)
	}
	return 0
}

// quantLinear multiplies by a packed weight. The result has the input's type, whatever the product
// was computed in.
func (g *Graph) quantLinear(x *Tensor, w *Param, bias *Tensor) *Tensor {
	if w.Bits == 8 {
		return g.int8Linear(x, w, bias)
	}
	given, compute := x.DType, BF16
	switch {
	case given.Half():
		compute = given
	case g.Half.Half():
		compute = g.Half
	}
	f := g.Enter()
	var in, out *Tensor
	f.Set(&in, g.To(x, compute))
	f.Set(&out, g.nf4Linear(in, w))
	if bias != nil {
		g.AddInPlace(out, bias)
	}
	return f.Leave(g.To(out, given))
}

// nf4Linear is x times the unpacked weight, which is unpacked again in the backward pass. The input
// is not saved: the weight is frozen.
func (g *Graph) nf4Linear(x *Tensor, w *Param) *Tensor {
	g.op = "linear"
	n := g.prepare("linear", x)
	whole := g.unpacked(w, x.DType)
	out := g.New(withLast(x.Shape, w.Shape[0]), x.DType)
	g.blas(false)
	g.unrefStorage(whole)
	if n != nil {
		n.emit(out)
		n.backward = w.packedBackward(x.DType)
	}
	return out
}

// int8Linear is bitsandbytes' product in 8 bits: the input goes to fp16 and then to 8 bits, the
// sums have 32 bits, the result is fp16 before it takes the input's type. The input is saved, in an
// attribute of the node that neither autograd nor checkpointing clears.
func (g *Graph) int8Linear(x *Tensor, w *Param, bias *Tensor) *Tensor {
	g.op = "linear"
	n := g.prepare("linear", x)
	rows, in := x.Numel()/x.Dim(-1), x.Dim(-1)
	half := g.alloc(2*rows*in, event.CategoryTemporary)
	scales, packed := g.alloc(4*rows, event.CategoryTemporary),
		g.alloc(rows*in, event.CategoryTemporary)
	g.unrefStorage(half)
	sums := g.alloc(4*rows*w.Shape[0], event.CategoryTemporary)
	shape := withLast(x.Shape, w.Shape[0])
	out := g.New(shape, F16)
	g.unrefStorage(sums)
	if x.DType != F16 {
		wide := g.New(shape, x.DType)
		eat(out)
		out = wide
	}
	g.unrefStorage(scales)
	g.unrefStorage(packed)
	if n != nil {
		n.attach(x)
		n.emit(out)
		n.backward = w.packedBackward(x.DType)
	}
	if bias != nil {
		g.AddInPlace(out, bias)
	}
	eat(x)
	return out
}

// packedBackward multiplies the gradient by the unpacked weight.
func (p *Param) packedBackward(d DType) backwardFn {
	return func(n *Node, b *pass) {
		whole := b.g.unpacked(p, d)
		b.out[0] = b.product(n.metas[0].shape, d)
		b.g.unrefStorage(whole)
	}
}

func withLast(shape []int64, last int64) []int64 {
	shape = slices.Clone(shape)
	shape[len(shape)-1] = last
	return shape
}

// PackedGroups multiplies groups of rows by packed weights of experts, one expert's weight unpacked
// at a time. The result has the input's type.
func (g *Graph) PackedGroups(x *Tensor, w *Param) *Tensor {
	one := &Param{Tensor: &Tensor{Shape: w.Shape[1:]}, Bits: w.Bits, Double: w.Double}
	f := g.Enter(x)
	return f.Leave(g.quantLinear(x, one, nil))
}

// unpacked is a weight in a type that can be multiplied.
func (g *Graph) unpacked(w *Param, d DType) *storage {
	var scales *storage
	if n := w.scaleBytes(); n > 0 {
		scales = g.alloc(n, event.CategoryTemporary)
	}
	whole := g.alloc(w.Numel()*d.Size(), event.CategoryTemporary)
	g.unrefStorage(scales)
	return whole
}

// loraLinear is base(x) + B(A(x)) * scale, with the input cast to the adapters' type. The sum takes
// the place of the base's result before it is cast back.
func (g *Graph) loraLinear(x *Tensor, base func() *Tensor, l *Lora) *Tensor {
	f := g.Enter(x)
	var y, in *Tensor
	f.Set(&y, base())
	d := y.DType
	f.Set(&in, g.To(x, l.A.DType))
	low := g.LinearT(g.LinearT(g.Dropout(in, l.Dropout), l.A.Tensor, nil), l.B.Tensor, nil)
	f.Set(&y, g.Add(y, g.Scale(low)))
	return f.Leave(g.To(y, d))
}

// doraLinear is base(x) turned into the adapted direction and given the trained length. The weight
// is widened, and the adapters are multiplied out, to find the present length of each row. turned
// is set where the weight is stored [in, out].
func (g *Graph) doraLinear(x *Tensor, base func() *Tensor, w *Param, bias *Tensor,
	turned bool) *Tensor {
	l := w.Lora
	f := g.Enter(x)
	var y, in, wet, straight, bent *Tensor
	f.Set(&y, base())
	d := y.DType
	f.Set(&in, g.To(x, l.A.DType))
	f.Set(&wet, in)
	if l.Dropout > 0 && g.Training {
		f.Set(&wet, g.Dropout(in, l.Dropout))
	} else {
		straight = y
	}
	f.Set(&bent, g.bend(wet, straight, w, bias, turned))
	f.Set(&y, g.Add(y, bent))
	f.Set(&bent, nil)
	f.Set(&wet, nil)
	return f.Leave(g.To(y, d))
}

// bend is what DoRA adds to the base's result, which is computed again from the widened weight
// where the adapters' input was dropped out (straight is nil).
func (g *Graph) bend(in, straight *Tensor, w *Param, bias *Tensor, turned bool) *Tensor {
	l := w.Lora
	h := g.Enter()
	var eye, turnedA, wide, norm, scale, low *Tensor
	k := in.Dim(-1)
	h.Set(&eye, g.Fresh("eye", in.DType, k, k))
	h.Set(&turnedA, g.LinearT(g.LinearT(eye, l.A.Tensor, nil), l.B.Tensor, nil))
	if w.Bits > 0 {
		h.Set(&wide, g.To(g.Fresh("dequantize", BF16, w.Shape...), in.DType))
	} else {
		h.Set(&wide, g.To(w.Tensor, in.DType))
	}
	g.NoGrad(func() {
		scaled := g.Fresh("scale", in.DType, w.Shape...)
		sum := g.Fresh("add", in.DType, w.Shape...)
		Del(scaled)
		h.Set(&norm, g.Fresh("norm", in.DType, l.B.Shape[0]))
		Del(sum)
	})
	h.Set(&scale, g.View(g.Div(l.Magnitude.Tensor, norm), 1, -1))
	h.Set(&low, g.LinearT(g.LinearT(in, l.A.Tensor, nil), l.B.Tensor, nil))
	switch {
	case straight != nil && bias != nil:
		h.Set(&straight, g.Sub(straight, bias))
	case straight == nil && turned:
		h.Set(&straight, g.LinearT(in, g.Transpose(wide, 0, 1), nil))
	case straight == nil:
		h.Set(&straight, g.LinearT(in, wide, nil))
	}
	first := g.Mul(g.AddScalar(scale), straight)
	return h.Leave(g.Add(first, g.Scale(g.Mul(scale, low))))
}

// packedLora is loraLinear next to a packed weight, where PEFT copies the result of a 4-bit base
// and casts only without autocast.
func (g *Graph) packedLora(x *Tensor, base func() *Tensor, l *Lora, bits int64) *Tensor {
	f := g.Enter(x)
	var y, in, out *Tensor
	f.Set(&y, base())
	if bits == 4 {
		f.Set(&y, g.Clone(y))
	}
	in = x
	if !g.autocastOn() {
		f.Set(&in, g.To(x, l.A.DType))
	}
	f.Set(&out, g.Scale(g.LinearT(g.LinearT(g.Dropout(in, l.Dropout), l.A.Tensor, nil), l.B.Tensor,
		nil)))
	f.Set(&out, g.To(out, y.DType))
	f.Set(&y, g.Add(y, out))
	return f.Leave(y)
}

// ChunkedLoss is a loss whose logits are never whole, as Liger's fused linear cross-entropy: chunks
// of tokens are multiplied, differentiated in place and dropped. The gradients of the hidden
// states, and of the head where it is trained, are made in the forward pass.
func (g *Graph) ChunkedLoss(h *Tensor, w *Tensor) *Tensor {
	defer release(g.half(&h, &w))
	g.op = "chunked loss"
	n := g.prepare("chunked loss", h, w)
	rows, vocab, size := h.Numel()/h.Dim(-1), w.Shape[0], h.DType.Size()
	chunk := chunkRows(rows, vocab, h.Dim(-1))
	dh := g.New(h.Shape, h.DType)
	var dw *Tensor
	if w.needs {
		dw = g.New(w.Shape, w.DType)
	}
	g.temp(4*rows, g.category()) // a loss for each token
	logits := g.alloc(chunk*vocab*size, g.category())
	g.blas(false)
	g.temp(chunk*h.Dim(-1)*size, g.category())
	if w.needs {
		g.temp(w.Numel()*w.DType.Size(), g.category())
	}
	g.unrefStorage(logits)
	out := g.New(nil, F32)
	if n != nil {
		n.emit(out)
		n.save(dh, dw)
		n.backward = func(n *Node, p *pass) {
			for i := range p.out {
				if p.needs(i) {
					p.out[i] = p.saved[i].hold()
				}
			}
		}
	}
	eat(dh, dw, h, w)
	return out
}

// chunkRows is how many tokens a chunk has: as many as keep the logits of a chunk about as large as
// the hidden states of all, rounded up to a power of two.
func chunkRows(rows, vocab, width int64) int64 {
	want := divUp(rows, divUp(vocab, width))
	chunk := int64(1)
	for chunk < want {
		chunk *= 2
	}
	return min(chunk, rows)
}

// enterBlock notes which block runs, for ZeRO's third stage.
func (g *Graph) enterBlock(module string) {
	if g.zero == nil || g.zero.Stage < 3 {
		return
	}
	if block := blockOf(module); block != g.inBlock {
		g.inBlock = block
		g.zero.gather(block)
	}
}

// blockOf is the repeated block a module belongs to: the path up to its first number.
func blockOf(module string) string {
	parts := strings.Split(module, ".")
	for i, p := range parts {
		if p != "" && p[0] >= '0' && p[0] <= '9' {
			if i > 0 {
				return parts[i-1] + "." + p
			}
			return p
		}
	}
	return "root"
}
