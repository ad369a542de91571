package models

import (
	"fmt"

	"memroom/tape"
)

// mpnet is MPNetForMaskedLM: BERT with a bias for the distance of two tokens, and attention that is
// written out.
func mpnet(c *Config, r Run) (*Model, error) {
	e := readEncoder(c, Run{})
	e.vocab, e.npos = c.Int(30527, "vocab_size"), c.Int(512, "max_position_embeddings")
	buckets := c.Int(32, "relative_attention_num_buckets")
	c.longEnough(r.Seq, e.npos-2)
	if isClassifier(e.arch) {
		c.complain("only the masked language model of this type is described")
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	r.Attn, r.Checkpointing = "eager", false // it has no other attention, and no checkpoints
	root := tape.NewModule()
	body := root.Child("mpnet")
	em := body.Child("embeddings")
	word := embedding(em, "word_embeddings", e.vocab, e.h)
	pos := embedding(em, "position_embeddings", e.npos, e.h)
	first := layerNorm(em, "LayerNorm", e.h)
	em.Buffer(tape.I64, e.npos)
	enc := body.Child("encoder")
	var blocks []*encoderBlock
	for i := range e.layers {
		blocks = append(blocks, e.mpnetBlock(enc.Child("layer").Child(fmt.Sprint(i))))
	}
	bias := embedding(enc, "relative_attention_bias", buckets, e.heads)
	head := e.lmHead(root.Child("lm_head"), word)
	run := unpooled(func(x *ctx, in []*tape.Tensor) *tape.Tensor {
		return e.mpnetRun(x, in[0], word, pos, bias, first, blocks)
	})
	return e.masked(root, r, head, run), nil
}

func (e *encoder) mpnetBlock(m *tape.Module) *encoderBlock {
	b := &encoderBlock{d: e.h / e.heads, act: e.act, drop: e.drop, attnDrop: e.attnDrop}
	att := m.Child("attention")
	a := att.Child("attn")
	b.q, b.k, b.v = linear(a, "q", e.h, e.h, true), linear(a, "k", e.h, e.h, true),
		linear(a, "v", e.h, e.h, true)
	b.o, b.norm1 = linear(a, "o", e.h, e.h, true), layerNorm(att, "LayerNorm", e.h)
	b.inter = linear(m.Child("intermediate"), "dense", e.h, e.inner, true)
	out := m.Child("output")
	b.out, b.norm2 = linear(out, "dense", e.inner, e.h, true), layerNorm(out, "LayerNorm", e.h)
	return b
}

func (e *encoder) mpnetRun(c *ctx, ids *tape.Tensor, word, pos, bias *tape.Param, first norm,
	blocks []*encoderBlock) *tape.Tensor {
	f := c.Enter()
	b, n := ids.Shape[0], ids.Shape[1]
	var emb, mask, near, h *tape.Tensor
	c.In("embeddings", func() {
		g := c.Enter()
		var at, words, places, y *tape.Tensor
		g.Set(&at, c.countedPositions(b, n))
		g.Set(&words, c.Embedding(ids, word))
		g.Set(&places, c.Embedding(at, pos))
		g.Set(&y, c.Add(words, places))
		g.Set(&y, first.layer(c.Graph, y))
		g.Set(&y, c.Dropout(y, e.drop))
		f.Set(&emb, g.Leave(y))
	})
	f.Set(&mask, c.fullMask(b, n, emb.DType))
	g := c.Enter(emb)
	buckets := g.Keep(c.Fresh("buckets", tape.I64, n, n)) // reckoned on the host
	var y *tape.Tensor
	g.Set(&y, c.Embedding(buckets, bias))
	g.Set(&y, c.Unsqueeze(c.Permute(y, 2, 0, 1), 0))
	g.Set(&y, c.Contiguous(c.Expand(y, b, e.heads, n, n)))
	f.Set(&near, g.Leave(y))
	f.Set(&h, emb)
	for i, blk := range blocks {
		c.In(fmt.Sprintf("layer.%d", i), func() { f.Set(&h, blk.runNear(c, h, mask, near)) })
	}
	return f.Leave(h)
}

// runNear is MPNetLayer.
func (b *encoderBlock) runNear(c *ctx, x, mask, near *tape.Tensor) *tape.Tensor {
	f := c.Enter()
	var att, self, inter *tape.Tensor
	g := c.Enter(x)
	g.Set(&self, b.attendNear(c, x, mask, near))
	f.Set(&att, g.Leave(b.norm1.layer(c.Graph, c.Add(c.Dropout(self, b.drop), x))))
	f.Set(&inter, b.intermediate(c, att))
	return f.Leave(b.output(c, b.out, b.norm2, inter, att))
}

func (b *encoderBlock) attendNear(c *ctx, x, mask, near *tape.Tensor) *tape.Tensor {
	f := c.Enter(x)
	var q, k, v, scores, probs, o *tape.Tensor
	f.Set(&q, heads(c.Graph, b.q.run(c.Graph, x), b.d))
	f.Set(&k, heads(c.Graph, b.k.run(c.Graph, x), b.d))
	f.Set(&v, heads(c.Graph, b.v.run(c.Graph, x), b.d))
	f.Set(&scores, c.Matmul(q, c.Transpose(k, 2, 3)))
	f.Set(&scores, c.Scale(scores))
	f.Set(&scores, c.AddInPlace(scores, near))
	if mask != nil {
		f.Set(&scores, c.Add(scores, mask))
	}
	f.Set(&probs, c.Softmax(scores, scores.DType))
	f.Set(&probs, c.Dropout(probs, b.attnDrop))
	f.Set(&o, c.Matmul(probs, v))
	f.Set(&o, c.Contiguous(c.Permute(o, 0, 2, 1, 3)))
	f.Set(&o, c.View(o, o.Shape[0], o.Shape[1], x.Dim(-1)))
	return f.Leave(b.o.run(c.Graph, o))
}
