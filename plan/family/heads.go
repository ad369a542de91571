package family

import (
	"memroom/event"
	"memroom/plan/tape"
)

// isClassifier says whether an architecture is one of the classifiers that encoders share.
func isClassifier(arch string) bool {
	switch arch {
	case "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering":
		return true
	}
	return false
}

// tokenHead makes the model a classifier of tokens, or of the first and last token of an answer.
func (e *encoder) tokenHead(m *Model, root *tape.Module, r Run, run func(x *ctx, in []*tape.Tensor) *tape.Tensor) {
	if e.arch == "ForQuestionAnswering" {
		out := linear(root, "qa_outputs", e.h, 2, true)
		m.Inputs = func(g *tape.Graph) []*tape.Tensor {
			return []*tape.Tensor{g.Input(tape.I64, r.Batch, r.Seq), g.Input(tape.I64, r.Batch), g.Input(tape.I64, r.Batch)}
		}
		m.Loss = func(g *tape.Graph, in []*tape.Tensor) *tape.Tensor {
			x := newCtx(g, r)
			return x.answerSpan(in, out, func() *tape.Tensor { return run(x, in) })
		}
		return
	}
	drop := e.drop
	out := linear(root, "classifier", e.h, e.labels, true)
	m.Inputs = func(g *tape.Graph) []*tape.Tensor {
		return []*tape.Tensor{g.Input(tape.I64, r.Batch, r.Seq), g.Input(tape.I64, r.Batch, r.Seq)}
	}
	m.Loss = func(g *tape.Graph, in []*tape.Tensor) *tape.Tensor {
		x := newCtx(g, r)
		f := g.Enter()
		var h, logits *tape.Tensor
		f.Set(&h, run(x, in))
		f.Set(&h, g.Dropout(h, drop))
		x.In("classifier", func() { f.Set(&logits, out.run(g, h)) })
		var loss *tape.Tensor
		x.In("loss", func() { loss = x.plainLoss(logits, in[1]) })
		return f.Leave(loss)
	}
}

// answerSpan is the forward of ...ForQuestionAnswering: two scores a token, and the mean of two losses.
func (c *ctx) answerSpan(in []*tape.Tensor, out lin, body func() *tape.Tensor) *tape.Tensor {
	f := c.Enter()
	var h, logits, first, last *tape.Tensor
	f.Set(&h, body())
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
			g.Set(&start, c.Fresh("labels", tape.I64, in[1].Shape...))
			g.Set(&end, c.Fresh("labels", tape.I64, in[2].Shape...))
			g.Set(&one, c.CrossEntropy(first, start))
			g.Set(&two, c.CrossEntropy(last, end))
			loss = g.Leave(c.Scale(c.Add(one, two)))
		})
	})
	return f.Leave(loss)
}
