package models

import (
	"memroom/event"
	"memroom/tape"
)

// ctx is what block functions share.
type ctx struct {
	*tape.Graph
	Run
	kv       *tape.Frame // the key-value cache, while one is in use
	kvWindow bool        // the cache is of a sliding-window layer
	softcap  bool        // logits are squeezed by tanh before the loss
	scaled   bool        // logits are multiplied by a number before the loss
	// older releases computed this model's loss in the type of its logits
	narrowLoss bool
}

// cached is DynamicCache.update: keys and values are copied into the cache, which keeps them.
func (c *ctx) cached(k, v *tape.Tensor) (ck, cv *tape.Tensor) {
	if c.kv == nil || c.Checkpointing {
		return k, v
	}
	if c.kvWindow {
		c.kv.Keep(c.Fresh("cache", tape.I64))
	}
	ck = c.kv.Keep(c.Cat(2, k))
	// the cache is made in the type of the keys
	empty := c.Borrow(k.DType, v.Shape[0], v.Shape[1], 0, v.Shape[3])
	cv = c.kv.Keep(c.Cat(2, empty, v))
	return ck, cv
}

func newCtx(g *tape.Graph, r Run) *ctx { return &ctx{Graph: g, Run: r} }

// layer runs a block, under checkpointing where asked. All arguments are kept until it returns.
func (c *ctx) layer(name string, fn func(args []*tape.Tensor) *tape.Tensor,
	args ...*tape.Tensor) *tape.Tensor {
	var out *tape.Tensor
	run := func(args []*tape.Tensor) *tape.Tensor { return c.Unit(name, fn, args) }
	c.In(name, func() {
		if c.Checkpointing {
			out = c.Graph.Checkpoint(run, args...)
			return
		}
		f := c.Enter(args...)
		out = f.Leave(run(args))
	})
	return out
}

// lin is nn.Linear, or GPT-2's linear layer with a transposed weight.
type lin struct {
	w, b       *tape.Param
	transposed bool
	apart      bool // Falcon's: a product with the transposed weight and, on its own, the bias
}

func linear(m *tape.Module, name string, in, out int64, bias bool) lin {
	c := m.Child(name).Linear()
	l := lin{w: c.Param("weight", out, in)}
	if bias {
		l.b = c.Param("bias", out)
	}
	return l
}

func (l lin) run(g *tape.Graph, x *tape.Tensor) *tape.Tensor {
	switch {
	case l.transposed:
		return g.Conv1D(x, l.w, l.b)
	case !l.apart || l.w.Bits > 0 || l.w.Lora != nil: // replaced by the library's own layer
		return g.Linear(x, l.w, l.b)
	}
	y := g.Product(x, g.Transpose(l.w.Tensor, 0, 1))
	if l.b == nil {
		return y
	}
	f := g.Enter(x)
	return f.Leave(g.Add(y, l.b.Tensor))
}

// conv1d is GPT-2's transposed linear layer.
func conv1d(m *tape.Module, name string, in, out int64) lin {
	c := m.Child(name).Transposed()
	return lin{w: c.Param("weight", in, out), b: c.Param("bias", out), transposed: true}
}

// norm is LayerNorm (with bias) or a norm with a weight only.
type norm struct{ w, b *tape.Param }

func layerNorm(m *tape.Module, name string, size int64) norm {
	c := m.Child(name)
	return norm{c.Param("weight", size), c.Param("bias", size)}
}

func rmsNorm(m *tape.Module, name string, size int64) norm {
	return norm{w: m.Child(name).Param("weight", size)}
}

func (n norm) layer(g *tape.Graph, x *tape.Tensor) *tape.Tensor { return g.LayerNorm(x, n.w, n.b) }

func (n norm) rms(g *tape.Graph, x *tape.Tensor) *tape.Tensor { return g.RMSNorm(x, n.w, false) }

func embedding(m *tape.Module, name string, rows, width int64) *tape.Param {
	return m.Child(name).Param("weight", rows, width)
}

// heads views [B, S, n*d] as [B, n, S, d].
func heads(g *tape.Graph, x *tape.Tensor, d int64) *tape.Tensor {
	return g.Transpose(g.View(x, x.Shape[0], x.Shape[1], -1, d), 1, 2)
}

// tokenInputs is a batch of token ids for a decoder, with labels that share them unless its head
// classifies. With padding there is a mask.
func tokenInputs(r Run) func(g *tape.Graph) []*tape.Tensor {
	r.MaskGiven = false
	switch r.arch {
	case "ForSequenceClassification":
		return classInputs(r)
	case "ForTokenClassification":
		return tokenClassInputs(r)
	case "ForQuestionAnswering":
		return spanInputs(r)
	}
	return maskedInputs(r)
}

// maskedInputs is a batch of token ids with the attention mask that tokenizers return.
func maskedInputs(r Run) func(g *tape.Graph) []*tape.Tensor {
	return func(g *tape.Graph) []*tape.Tensor {
		in := []*tape.Tensor{g.Input(tape.I64, r.Batch, r.Seq)}
		if r.MaskGiven || r.Padded {
			in = append(in, g.Input(tape.I64, r.Batch, r.Seq))
		}
		return in
	}
}

// positions is torch.arange(S) + 0, a row.
func (c *ctx) positions(s int64) *tape.Tensor {
	return c.Unsqueeze(c.AddScalar(c.Fresh("positions", tape.I64, s)), 0)
}

// causalMaskTest is transformers' search for packed sequences: it allocates a few index tensors and
// finds none.
func (c *ctx) causalMaskTest(b, s int64) {
	f := c.Enter()
	var first, diff, packed *tape.Tensor
	f.Set(&first, c.Fresh("mask test", tape.I64, b, 1))
	joined := c.Fresh("mask test", tape.I64, b, s+1)
	f.Set(&diff, c.Fresh("mask test", tape.I64, b, s))
	tape.Del(joined)
	ne := c.Fresh("mask test", tape.Bool, b, s)
	f.Set(&packed, c.Fresh("mask test", tape.I64, b, s))
	tape.Del(c.Fresh("mask test", tape.I64, b, s))
	tape.Del(ne)
	eq := c.Fresh("mask test", tape.Bool, b)
	tape.Del(c.Fresh("mask test", tape.Bool, 1), eq)
	f.Leave()
}

// targetInputs is a batch of an encoder-decoder: the source, and the target where it has a length
// of its own. [Run.target] finds it.
func targetInputs(r Run) func(g *tape.Graph) []*tape.Tensor {
	source := tokenInputs(r)
	if r.Target == 0 {
		return source
	}
	return func(g *tape.Graph) []*tape.Tensor {
		return append(source(g), g.Input(tape.I64, r.Batch, r.Target))
	}
}

// target is the labels of an encoder-decoder's batch: the source itself where no length was given.
func (r Run) target(in []*tape.Tensor) *tape.Tensor {
	if r.Target == 0 {
		return in[0]
	}
	return in[len(in)-1]
}

// Releases of transformers that changed the loss of decoders: until the first each model widened
// its own logits, until the second shifted logits were copied, until the third some models did not
// use the common loss.
const (
	commonLoss  = 446
	uncopied    = 449
	everyModels = 450
)

// before reports whether the run is one of an older transformers.
func (r Run) before(release int) bool { return r.Transformers > 0 && r.Transformers < release }

// ofLogits runs a loss on logits, which are among the model's outputs.
func (c *ctx) ofLogits(logits *tape.Tensor, loss func(*tape.Frame) *tape.Tensor) *tape.Tensor {
	var out *tape.Tensor
	c.Outputs.Also(logits)
	c.Given(logits)
	c.As(event.CategoryLoss, func() {
		f := c.Enter(logits)
		out = f.Leave(loss(f))
	})
	return out
}

// causalLoss is ForCausalLMLoss: fp32 logits against labels shifted by one.
func (c *ctx) causalLoss(logits, labels *tape.Tensor) *tape.Tensor {
	if c.before(uncopied) || c.narrowLoss && c.before(everyModels) {
		return c.copiedLoss(logits, labels)
	}
	return c.ofLogits(logits, func(f *tape.Frame) *tape.Tensor {
		var l, padded, shifted *tape.Tensor
		f.Set(&l, c.To(logits, tape.F32))
		b, s := labels.Shape[0], labels.Shape[1]
		f.Set(&padded, c.Fresh("shift labels", tape.I64, b, s+1))
		f.Set(&shifted, c.Fresh("shift labels", tape.I64, b, s))
		f.Set(&l, c.View(l, -1, logits.Dim(-1)))
		f.Set(&shifted, c.View(shifted, -1))
		return c.CrossEntropy(l, shifted)
	})
}

// copiedLoss is the loss of older releases: the logits of all tokens but the last are copied.
func (c *ctx) copiedLoss(logits, labels *tape.Tensor) *tape.Tensor {
	return c.ofLogits(logits, func(f *tape.Frame) *tape.Tensor {
		var l, shifted, targets *tape.Tensor
		l = logits
		if !c.narrowLoss {
			f.Set(&l, c.To(logits, tape.F32))
		}
		b, s := labels.Shape[0], labels.Shape[1]
		f.Set(&shifted, c.Contiguous(c.Slice(l, 1, s-1)))
		f.Set(&targets, c.Fresh("shift labels", tape.I64, b, s-1))
		f.Set(&shifted, c.View(shifted, -1, logits.Dim(-1)))
		f.Set(&targets, c.View(targets, -1))
		return c.CrossEntropy(shifted, targets)
	})
}

// wideLoss is ForMaskedLMLoss: fp32 logits against the labels as they are.
func (c *ctx) wideLoss(logits, labels *tape.Tensor) *tape.Tensor {
	return c.ofLogits(logits, func(f *tape.Frame) *tape.Tensor {
		var l *tape.Tensor
		f.Set(&l, c.To(logits, tape.F32))
		f.Set(&l, c.View(l, -1, logits.Dim(-1)))
		return c.CrossEntropy(l, c.View(labels, -1))
	})
}

// plainLoss is CrossEntropyLoss on logits flattened to rows.
func (c *ctx) plainLoss(logits, labels *tape.Tensor) *tape.Tensor {
	return c.ofLogits(logits, func(*tape.Frame) *tape.Tensor {
		return c.CrossEntropy(c.View(logits, -1, logits.Dim(-1)), c.View(labels, -1))
	})
}

// asInput returns the output of a model's input layer. Adapters under checkpointing need its
// gradient.
func (c *ctx) asInput(x *tape.Tensor) *tape.Tensor {
	if c.InputGrads {
		return c.WantGrad(x)
	}
	return x
}

// logits runs a head with its result counted as part of the loss.
func (c *ctx) logits(fn func() *tape.Tensor) *tape.Tensor {
	var out *tape.Tensor
	c.As(event.CategoryLoss, func() { out = fn() })
	return out
}

// mlp is two linear layers with an activation between them, and dropout.
func (c *ctx) mlp(fc1, fc2 lin, act string, drop float64, x *tape.Tensor) *tape.Tensor {
	f := c.Enter(x)
	var h *tape.Tensor
	f.Set(&h, fc1.run(c.Graph, x))
	f.Set(&h, c.Activation(act, h))
	f.Set(&h, fc2.run(c.Graph, h))
	f.Set(&h, c.Dropout(h, drop))
	return f.Leave(h)
}
