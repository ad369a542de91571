package models

import (
	"memroom/event"
	"memroom/tape"
)

// isClassifier reports whether an architecture is one of the classifiers that encoders share.
func isClassifier(arch string) bool {
	switch arch {
	case "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering":
		return true
	}
	return false
}

// body runs a model without its head. It returns the last hidden states and, for models that have a
// pooler, the pooler's output.
type body func(x *ctx, in []*tape.Tensor) (last, pooled *tape.Tensor)

// unpooled is a body without a pooler.
func unpooled(run func(x *ctx, in []*tape.Tensor) *tape.Tensor) body {
	return func(x *ctx, in []*tape.Tensor) (last, pooled *tape.Tensor) { return run(x, in), nil }
}

// sentence is what stands between an encoder's states and the classes of a whole sample.
type sentence func(c *ctx, last, pooled *tape.Tensor) *tape.Tensor

// classifier puts one of the heads that encoders share on a body: classes for samples (by way of
// sentence), for tokens, or the first and last token of an answer. It is called before the model's
// other modules exist: build makes them.
func (e *encoder) classifier(root *tape.Module, r Run, run body, build func() sentence) *Model {
	m := &Model{Root: root, Layers: e.layers, Run: r, Head: e.arch}
	var out lin
	var whole sentence
	switch e.arch {
	case "ForSequenceClassification":
		whole = build()
		m.Inputs = classInputs(r)
	case "ForQuestionAnswering":
		out = linear(root, "qa_outputs", e.h, max(e.labels, 2), true)
		m.Inputs = spanInputs(r)
	default:
		out = linear(root, "classifier", e.h, e.labels, true)
		m.Inputs = tokenClassInputs(r)
	}
	m.Loss = func(g *tape.Graph, in []*tape.Tensor) *tape.Tensor {
		x := newCtx(g, r)
		if e.arch == "ForQuestionAnswering" {
			return x.answerSpan(in, out, e.qaDrop, func() *tape.Tensor {
				h,
					_ := run(x, in)
				return h
			})
		}
		f := g.Enter()
		var h, pooled, logits *tape.Tensor
		f.Pair(&h, &pooled)(run(x, in))
		x.In("classifier", func() {
			if whole != nil {
				f.Set(&logits, whole(x, h, pooled))
				return
			}
			y := f.Keep(g.Dropout(h, e.clsDrop))
			f.Set(&logits, out.run(g, y))
		})
		var loss *tape.Tensor
		x.In("loss", func() { loss = x.plainLoss(logits, in[1]) })
		return f.Leave(loss)
	}
	return m
}

// pooledSentence is dropout and a linear layer on the pooler's output (BERT, ALBERT).
func (e *encoder) pooledSentence(root *tape.Module) sentence {
	cls := linear(root, "classifier", e.h, e.labels, true)
	return func(c *ctx, _, pooled *tape.Tensor) *tape.Tensor {
		f := c.Enter()
		var y *tape.Tensor
		f.Set(&y, c.Dropout(pooled, e.clsDrop))
		return f.Leave(cls.run(c.Graph, y))
	}
}

// firstToken is RobertaClassificationHead: dense, activation and linear layer on the first token.
func (e *encoder) firstToken(root *tape.Module, act string) sentence {
	m := root.Child("classifier")
	dense, out := linear(m, "dense", e.h, e.h, true), linear(m, "out_proj", e.h, e.labels, true)
	return func(c *ctx, last, _ *tape.Tensor) *tape.Tensor {
		f := c.Enter()
		var x *tape.Tensor
		f.Set(&x, c.Select(last, 1))
		f.Set(&x, c.Dropout(x, e.clsDrop))
		f.Set(&x, dense.run(c.Graph, x))
		f.Set(&x, c.Activation(act, x))
		f.Set(&x, c.Dropout(x, e.clsDrop))
		f.Set(&x, out.run(c.Graph, x))
		return f.Leave(x)
	}
}

// classInputs is a batch of token ids with a class for each sample.
func classInputs(r Run) func(g *tape.Graph) []*tape.Tensor {
	return func(g *tape.Graph) []*tape.Tensor {
		return withMask(g, r, g.Input(tape.I64, r.Batch, r.Seq), g.Input(tape.I64, r.Batch))
	}
}

// tokenClassInputs is a batch of token ids with a class for each token.
func tokenClassInputs(r Run) func(g *tape.Graph) []*tape.Tensor {
	return func(g *tape.Graph) []*tape.Tensor {
		return withMask(g, r, g.Input(tape.I64, r.Batch, r.Seq), g.Input(tape.I64, r.Batch, r.Seq))
	}
}

// spanInputs is a batch of token ids with the first and last token of each answer.
func spanInputs(r Run) func(g *tape.Graph) []*tape.Tensor {
	return func(g *tape.Graph) []*tape.Tensor {
		return withMask(g, r, g.Input(tape.I64, r.Batch, r.Seq), g.Input(tape.I64, r.Batch),
			g.Input(tape.I64, r.Batch))
	}
}

// withMask adds the attention mask that tokenizers return.
func withMask(g *tape.Graph, r Run, in ...*tape.Tensor) []*tape.Tensor {
	if r.MaskGiven || r.Padded {
		in = append(in, g.Input(tape.I64, r.Batch, r.Seq))
	}
	return in
}

// answerSpan is the forward of ...ForQuestionAnswering: two scores a token, and the mean of two
// losses.
func (c *ctx) answerSpan(in []*tape.Tensor, out lin, drop float64,
	body func() *tape.Tensor) *tape.Tensor {
	f := c.Enter()
	var h, logits, first, last *tape.Tensor
	f.Set(&h, body())
	f.Set(&h, c.Dropout(h, drop))
	c.In("qa_outputs", func() { f.Set(&logits, out.run(c.Graph, h)) })
	parts := c.Split(logits, -1, 1, 1)
	f.Set(&first, parts[0])
	f.Set(&last, parts[1])
	f.Set(&first, c.Contiguous(c.Squeeze(first, -1)))
	f.Set(&last, c.Contiguous(c.Squeeze(last, -1)))
	var loss *tape.Tensor
	c.In("loss", func() {
		c.As(event.CategoryLoss, func() {
			g := c.Enter()
			var start, end, one, two *tape.Tensor
			g.Set(&start, c.Fresh("labels", tape.I64, in[1].Shape...)) // clamped
			g.Set(&end, c.Fresh("labels", tape.I64, in[2].Shape...))
			g.Set(&one, c.CrossEntropy(first, start))
			g.Set(&two, c.CrossEntropy(last, end))
			loss = g.Leave(c.Scale(c.Add(one, two)))
		})
	})
	return f.Leave(loss)
}
