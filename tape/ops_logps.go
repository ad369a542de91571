package tape

import "memroom/event"

// The tile in which TRL multiplies hidden states by its head: the buffer has the whole width of
// words even where the vocabulary is smaller.
const (
	tileTokens = 4096
	tileWords  = 32768
)

// HeadLogps is TRL's fused head on rows of hidden states: the logarithm of the probability of one
// word a row. Logits exist tile by tile, in the forward pass and again in the backward pass, where
// gradients add up in fp32. extra is how many more numbers are computed for a row (entropy and the
// like).
func (g *Graph) HeadLogps(h, w, bias, targets *Tensor, extra int) *Tensor {
	g.op = "fused head"
	as := h.DType
	if g.autocastOn() {
		as = g.Half
	}
	n := g.prepare("fused head", h, w, bias)
	n.save(h, w, targets)
	rows := h.Shape[0]
	row := func() *storage { return g.alloc(4*rows, g.category()) }
	held := make([]*storage, 0, 8+extra)
	for range 7 { // running maximum, sums, the target's logit
		held = append(held, row())
	}
	held = append(held, g.tiles(rows, w.Shape, [2]DType{h.DType, w.DType}, as, false)...)
	logZ := g.New([]int64{rows}, F32)
	out := g.New([]int64{rows}, F32)
	for range extra {
		held = append(held, row())
	}
	g.unrefAll(held)
	if n != nil {
		n.emit(out)
		n.save(logZ)
		from, to := [2]DType{h.DType, w.DType}, as
		n.backward = func(n *Node, p *pass) { p.headGrads(n, rows, from, to) }
	}
	eat(logZ, h, w, bias, targets)
	return out
}

// ScatterMasked is zeros.masked_scatter(mask, x): the numbers of a vector at the mask's places.
func (g *Graph) ScatterMasked(x, mask *Tensor) *Tensor {
	g.op = "masked_scatter"
	n := g.prepare("masked_scatter", x)
	n.save(mask)
	zeros := g.New(mask.Shape, x.DType)
	out := g.New(mask.Shape, x.DType)
	g.temp(8*mask.Numel(), g.category())
	eat(zeros)
	if n != nil {
		n.emit(out)
		n.backward = func(n *Node, b *pass) { b.out[0] = b.new(n.metas[0].shape, n.metas[0].dtype) }
	}
	eat(x, mask)
	return out
}

// KernelLogps is TRL's kernel over whole logits: it keeps them and four numbers a token, and makes
// their gradient at once.
func (g *Graph) KernelLogps(logits, labels *Tensor) *Tensor {
	g.op = "token logps"
	n := g.prepare("token logps", logits)
	n.save(logits, labels)
	shape := logits.Shape[:len(logits.Shape)-1]
	out, entropy := g.New(shape, F32), g.New(shape, F32)
	logZ, expected := g.New(shape, F32), g.New(shape, F32)
	if n != nil {
		n.emit(out)
		n.save(logZ, expected)
		n.backward = func(n *Node, b *pass) { b.out[0] = b.new(n.metas[0].shape, n.metas[0].dtype) }
	}
	eat(entropy, logZ, expected, logits, labels)
	return out
}

// headGrads is the backward pass of HeadLogps. Its results are still there when gradients are cast
// to the type of what they belong to.
func (b *pass) headGrads(n *Node, rows int64, from [2]DType, as DType) {
	var wide [3]*Tensor
	for i := range wide {
		if b.needs(i) {
			wide[i] = b.new(n.metas[i].shape, F32)
		}
	}
	buffers := b.g.tiles(rows, n.metas[1].shape, from, as, true)
	for i, t := range wide {
		if t != nil && n.metas[i].dtype != F32 {
			b.out[i] = b.new(t.Shape, n.metas[i].dtype)
			defer t.drop()
			continue
		}
		b.out[i] = t
	}
	b.g.unrefAll(buffers)
}

// tiles is the memory of the products: a buffer for a tile of logits, and copies of the hidden
// states and of the head's words in the type of the product. In the backward pass the words' copy
// has a name, so that two of them exist when the second is made. It returns what is held at the
// end.
func (g *Graph) tiles(rows int64, head []int64, from [2]DType, as DType, named bool) []*storage {
	vocab, width := head[0], head[1]
	buffer := g.alloc(min(rows, tileTokens)*tileWords*as.Size(), event.CategoryLoss)
	var states, words *storage
	set := func(at **storage, bytes int64) {
		next := g.alloc(bytes, event.CategoryTemporary)
		g.unrefStorage(*at)
		*at = next
	}
	for at := int64(0); at < rows; at += tileTokens {
		if from[0] != as {
			set(&states, min(rows-at, tileTokens)*width*as.Size())
		}
		for word := int64(0); word < vocab; word += tileWords {
			if from[1] != as {
				set(&words, min(vocab-word, tileWords)*width*as.Size())
			}
			g.blas(false)
			if !named {
				g.unrefStorage(words)
				words = nil
			}
		}
	}
	return []*storage{words, states, buffer}
}
