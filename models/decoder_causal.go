package models

import (
	"memroom/event"
	"memroom/tape"
)

// causalHead is lm_head, tied to the embedding or not, or the layer of a classifier on a decoder.
func causalHead(root *tape.Module, r Run, table *tape.Param, tied bool, vocab, h int64) lin {
	switch {
	case r.arch == "ForSequenceClassification":
		return linear(root, "score", h, r.labels, false)
	case r.arch == "ForTokenClassification":
		return linear(root, "score", h, r.labels, true)
	case r.arch == "ForQuestionAnswering":
		return linear(root, "qa_outputs", h, 2, true)
	case tied:
		m := root.Child("lm_head")
		return lin{w: m.Tie(table)}
	}
	return linear(root, "lm_head", h, vocab, false)
}

// causalHead is the name of the head that a decoder gets.
func (r Run) causalHead() string {
	if isClassifier(r.arch) {
		return r.arch
	}
	return "ForCausalLM"
}

// causalModel is a decoder with its head and its loss. narrow: older releases computed the loss of
// this model in the type of its logits.
func causalModel(root *tape.Module, r Run, head lin, layers int64, narrow bool,
	body func(x *ctx, ids *tape.Tensor) *tape.Tensor) *Model {
	loss := func(g *tape.Graph, in []*tape.Tensor) *tape.Tensor {
		x := newCtx(g, r)
		x.narrowLoss = narrow
		return x.causalLM(in, head, func() *tape.Tensor { return body(x, in[0]) })
	}
	return &Model{Root: root, Inputs: tokenInputs(r), Loss: loss, Layers: layers, Run: r,
		Head: r.causalHead()}
}

// causalLM runs body, head and loss: the forward of every ...ForCausalLM, and of classifiers on
// decoders.
func (c *ctx) causalLM(in []*tape.Tensor, head lin, body func() *tape.Tensor) *tape.Tensor {
	f := c.Enter()
	if c.Cache && !c.Checkpointing {
		c.kv = f
	}
	if c.Objective != "" {
		return f.Leave(c.objectiveLoss(in, head, body))
	}
	switch c.arch {
	case "ForSequenceClassification":
		return f.Leave(c.lastToken(in, head, body))
	case "ForTokenClassification":
		return f.Leave(c.everyToken(in, head, body))
	case "ForQuestionAnswering":
		return f.Leave(c.answerSpan(in, head, 0, body))
	}
	var h, logits *tape.Tensor
	f.Set(&h, body())
	if c.ChunkLogits {
		var loss *tape.Tensor
		c.In("loss", func() {
			c.As(event.CategoryLoss, func() {
				loss = c.Graph.ChunkedLoss(h,
					head.w.Tensor)
			})
		})
		return f.Leave(loss)
	}
	c.In("lm_head", func() {
		f.Set(&logits, c.logits(func() *tape.Tensor {
			return c.headLogits(head,
				h)
		}))
	})
	if c.scaled {
		c.As(event.CategoryLoss, func() { f.Set(&logits, c.Scale(logits)) })
	}
	if c.softcap {
		c.As(event.CategoryLoss, func() {
			f.Set(&logits, c.Scale(logits))
			f.Set(&logits, c.Activation("tanh", logits))
			f.Set(&logits, c.Scale(logits))
		})
	}
	// the model's own variable was the wide one
	if !c.narrowLoss && (c.before(commonLoss) || c.scaled && c.before(uncopied)) {
		c.As(event.CategoryLoss, func() { f.Set(&logits, c.To(logits, tape.F32)) })
	}
	var loss *tape.Tensor
	c.In("loss", func() { loss = c.causalLoss(logits, in[0]) })
	return f.Leave(loss)
}

// lastToken is the forward of ...ForSequenceClassification on a decoder: scores of all tokens, of
// which the last one that is not padding counts.
func (c *ctx) lastToken(in []*tape.Tensor, head lin, body func() *tape.Tensor) *tape.Tensor {
	f := c.Enter()
	ids := in[0]
	b, s := ids.Shape[0], ids.Shape[1]
	var h, logits, mask, at, last, pooled *tape.Tensor
	f.Set(&h, body())
	c.In("score", func() { f.Set(&logits, head.run(c.Graph, h)) })
	if c.padID {
		ne := c.Fresh("last token", tape.Bool, b, s)
		f.Set(&mask, c.Fresh("last token", tape.I32, b, s))
		tape.Del(ne)
		f.Set(&at, c.Fresh("last token", tape.I32, s))
		product := c.Fresh("last token", tape.I32, b, s)
		f.Set(&last, c.Fresh("last token", tape.I64, b))
		tape.Del(product)
	} else {
		f.Set(&last, c.Fresh("last token", tape.I64, b))
	}
	f.Set(&pooled, c.IndexPair(logits, c.Fresh("last token", tape.I64, b), last))
	var loss *tape.Tensor
	c.In("loss", func() { loss = c.plainLoss(pooled, in[1]) })
	return f.Leave(loss)
}

// everyToken is the forward of ...ForTokenClassification on a decoder.
func (c *ctx) everyToken(in []*tape.Tensor, head lin, body func() *tape.Tensor) *tape.Tensor {
	f := c.Enter()
	var h, logits *tape.Tensor
	f.Set(&h, body())
	f.Set(&h, c.Dropout(h, c.drop))
	c.In("score", func() { f.Set(&logits, head.run(c.Graph, h)) })
	var loss *tape.Tensor
	c.In("loss", func() {
		c.As(event.CategoryLoss, func() {
			l := c.To(c.View(logits, -1, logits.Dim(-1)), tape.F32)
			loss = c.CrossEntropy(l, c.View(in[1], -1))
		})
	})
	return f.Leave(loss)
}
