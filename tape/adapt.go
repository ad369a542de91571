package tape

import (
	"slices"
	"strings"

	"memroom/event"
)

// Lora is a pair of low-rank adapters beside a weight.
type Lora struct{ A, B *Param }

// AddLora freezes the model and puts adapters of a rank beside every linear weight whose module
// ends with one of the names. It gives the number of adapted layers. own is the adapters' type:
// PEFT keeps them in fp32 beside half weights.
func (m *Module) AddLora(rank int64, targets []string) int {
	m.Freeze(nil)
	n := 0
	m.visit(func(c *Module) {
		if !slices.ContainsFunc(targets, func(t string) bool { return c.name == t }) {
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
			p.Lora = &Lora{A: c.Child("lora_A").Param("weight", rank, in),
				B: c.Child("lora_B").Param("weight", out, rank)}
			p.Lora.A.Own, p.Lora.B.Own = true, true
			n++
		}
	})
	return n
}

// Transposed marks a module whose weight is stored [in, out].
func (m *Module) Transposed() *Module { m.transposed = true; return m }

// Quantize packs every linear weight of the blocks into 4 or 8 bits. Embeddings, the head and norms
// stay, in fp32, as prepare_model_for_kbit_training leaves them. It gives the number of packed
// weights.
func (m *Module) Quantize(bits int64) int {
	n := 0
	m.visit(func(c *Module) {
		block := strings.ContainsFunc(c.path, func(r rune) bool { return r >= '0' && r <= '9' })
		for _, p := range c.params {
			p.Own = true
			if block && len(p.Shape) == 2 && strings.HasSuffix(p.Name, "weight") && p.Lora == nil &&
				!strings.Contains(p.Name, "lora_") || p.Lora != nil {
				p.Bits = bits
				p.Frozen = true
				n++
			}
		}
	})
	return n
}

// packedBytes is the size of a quantised weight: the packed values and their scales.
func (p *Param) packedBytes() (values, scales int64) {
	n := p.Numel()
	if p.Bits == 4 {
		return divUp(n, 2), 4 * divUp(n, 64)
	}
	return n, 4 * p.Shape[0]
}

// quantLinear multiplies by a packed weight: it is unpacked for the product, and again in the
// backward pass.
func (g *Graph) quantLinear(x *Tensor, w *Param, bias *Tensor) *Tensor {
	compute := g.Half
	if !g.Autocast {
		compute = x.DType
	}
	if x.DType != compute {
		x = g.To(x, compute)
	}
	shape := slices.Clone(x.Shape)
	shape[len(shape)-1] = w.Shape[0]
	rows := x.Numel() / x.Dim(-1)
	g.op = "linear"
	n := g.prepare("linear", x)
	out := g.New(shape, compute)
	if w.Bits == 4 {
		g.temp(w.Numel()*compute.Size(), event.CategoryTemporary)
	} else { // int8 kernel: the input in 8 bits, the sums in 32
		in := g.alloc(rows*x.Dim(-1), event.CategoryTemporary)
		g.temp(4*rows*w.Shape[0], event.CategoryTemporary)
		g.unrefStorage(in)
	}
	g.blas(false)
	if n != nil {
		n.emit(out)
		n.backward = func(n *Node, p *pass) {
			t := p.g.alloc(w.Numel()*compute.Size(), event.CategoryTemporary)
			p.out[0] = p.product(n.metas[0].shape, compute)
			p.g.unrefStorage(t)
		}
	}
	eat(x)
	if bias != nil {
		g.AddInPlace(out, bias)
	}
	return out
}

// loraLinear is base(x) + B(A(x)) * scale.
func (g *Graph) loraLinear(x *Tensor, base func() *Tensor, l *Lora) *Tensor {
	f := g.Enter(x)
	var y *Tensor
	f.Set(&y, base())
	in := x
	if !g.autocastOn() {
		in = g.To(x, l.A.DType)
	}
	return f.Leave(g.To(g.Add(y, g.Scale(g.LinearT(g.LinearT(in, l.A.Tensor, nil), l.B.Tensor,
		nil))), y.DType))
}

// ChunkedLoss is a loss whose logits are never whole: chunks of rows are multiplied, differentiated
// and dropped; the gradients of the hidden states and the head are made in the forward pass.
func (g *Graph) ChunkedLoss(h *Tensor, w *Tensor) *Tensor {
	defer release(g.half(&h, &w))
	g.op = "chunked loss"
	n := g.prepare("chunked loss", h, w)
	rows, vocab := h.Numel()/h.Dim(-1), w.Shape[0]
	chunk := min(rows, 1024)
	dh := g.New(h.Shape, h.DType)
	dw := g.New(w.Shape, w.DType)
	logits := g.alloc(chunk*vocab*h.DType.Size(), g.category())
	probs := g.alloc(4*chunk*vocab, g.category())
	g.temp(4*chunk*vocab, g.category())
	g.unrefStorage(probs)
	g.unrefStorage(logits)
	g.blas(false)
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

// Shard says how states are spread over ranks; each number divides what one rank holds.
type Shard struct{ Weights, Grads, Optim int64 }

func (s Shard) part(bytes, n int64) int64 {
	if n <= 1 {
		return bytes
	}
	return divUp(bytes, n)
}

// gatherFor brings the whole weights of a block in, keeping the block before it until the one after
// arrives: the all-gather of FSDP and ZeRO-3 with one block prefetched.
func (g *Graph) gatherFor(module string) {
	if g.Shard.Weights <= 1 {
		return
	}
	block := blockOf(module)
	if block == g.gathered {
		return
	}
	g.gathered = block
	bytes := g.blockBytes[block]
	if bytes == 0 {
		return
	}
	op := g.op
	g.op = "all-gather"
	st := g.alloc(bytes, event.CategoryWeights)
	g.op = op
	g.held = append(g.held, st)
	for len(g.held) > 2 {
		g.unrefStorage(g.held[0])
		g.held = g.held[1:]
	}
}

// dropGathered releases gathered weights at the end of a step.
func (g *Graph) dropGathered() {
	for _, st := range g.held {
		g.unrefStorage(st)
	}
	g.held, g.gathered = nil, ""
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

// measureBlocks adds up the bytes of each block for gatherFor.
func (g *Graph) measureBlocks(m *Module, d DType) {
	g.blockBytes = map[string]int64{}
	for _, p := range m.Parameters() {
		g.blockBytes[blockOf(p.Name)] += p.Numel() * d.Size()
	}
}

// Buckets requests DDP's gradient buckets: one of 1 MiB, then of 25 MiB, in reverse order of the
// parameters.
func (g *Graph) Buckets(params []*Param, d DType) {
	limit, sum := int64(1<<20), int64(0)
	g.op = "ddp bucket"
	flush := func() {
		if sum > 0 {
			g.alloc(sum, event.CategoryGradients)
		}
		limit, sum = 25<<20, 0
	}
	for i := len(params) - 1; i >= 0; i-- {
		if params[i].Frozen {
			continue
		}
		sum += params[i].Numel() * d.Size()
		if sum >= limit {
			flush()
		}
	}
	flush()
	g.op = ""
}
