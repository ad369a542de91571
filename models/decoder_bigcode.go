package models

import (
	"fmt"

	"memroom/tape"
)

type bigcodeBlock struct {
	ln1, ln2          norm
	attn, proj        lin
	fc, out           lin
	h, heads, d       int64
	shared            bool // one key and value head for all
	act               string
	attnDrop, resDrop float64
}

// bigcode is GPTBigCodeForCausalLM (SantaCoder, StarCoder): GPT-2 with plain linear layers and one
// key head.
func bigcode(c *Config, r Run) (*Model, error) {
	h, nh := c.Int(768, "n_embd", "hidden_size"), c.Int(12, "n_head", "num_attention_heads")
	layers, vocab, npos := c.Int(12, "n_layer", "num_hidden_layers"), c.Int(50257, "vocab_size"),
		c.Int(1024, "n_positions", "max_position_embeddings")
	inner, act, shared := c.Int(4*h, "n_inner"), c.Str("gelu_pytorch_tanh", "activation_function"),
		c.Bool(true, "multi_query")
	res, emb, att := c.Float(0.1, "resid_pdrop"), c.Float(0.1, "embd_pdrop"),
		c.Float(0.1, "attn_pdrop")
	tied := c.Bool(true, "tie_word_embeddings")
	c.divides(h, nh, "n_embd by n_head")
	if r.Seq > npos {
		c.complain("the sequence of %d tokens is longer than the %d positions of the model", r.Seq,
			npos)
	}
	if c.Bool(false, "add_cross_attention") {
		c.complain("add_cross_attention is not described")
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	d, kv := h/nh, h
	if shared {
		kv = d
	}
	root := tape.NewModule()
	body := root.Child("transformer")
	wte, wpe := embedding(body, "wte", vocab, h), embedding(body, "wpe", npos, h)
	list := body.Child("h")
	var blocks []*bigcodeBlock
	for i := range layers {
		m := list.Child(fmt.Sprint(i))
		b := &bigcodeBlock{h: h, heads: nh, d: d, shared: shared, act: act, attnDrop: att,
			resDrop: res, ln1: layerNorm(m, "ln_1", h)}
		a := m.Child("attn")
		b.attn, b.proj = linear(a, "c_attn", h, h+2*kv, true), linear(a, "c_proj", h, h, true)
		b.ln2 = layerNorm(m, "ln_2", h)
		mlp := m.Child("mlp")
		b.fc, b.out = linear(mlp, "c_fc", h, inner, true), linear(mlp, "c_proj", inner, h, true)
		blocks = append(blocks, b)
	}
	final := layerNorm(body, "ln_f", h)
	body.Buffer(tape.Bool, npos*npos)
	head := causalHead(root, r, wte, tied, vocab, h)
	loss := func(g *tape.Graph, in []*tape.Tensor) *tape.Tensor {
		x := newCtx(g, r)
		x.narrowLoss = true
		return x.causalLM(in, head, func() *tape.Tensor {
			return x.bigcodeBody(in[0], wte, wpe,
				blocks, final, emb)
		})
	}
	return &Model{Root: root, Inputs: tokenInputs(r), Loss: loss, Layers: layers, Run: r,
		Head: r.causalHead()}, nil
}

func (c *ctx) bigcodeBody(ids *tape.Tensor, wte, wpe *tape.Param, blocks []*bigcodeBlock,
	final norm, drop float64) *tape.Tensor {
	f := c.Enter()
	var e, pos, mask, p, h *tape.Tensor
	c.In("embedding", func() {
		f.Set(&e, c.Embedding(ids, wte))
		f.Set(&pos, c.positions(ids.Shape[1]))
		f.Set(&mask, c.causalMask(ids.Shape[0], ids.Shape[1], e.DType))
		f.Set(&p, c.Embedding(pos, wpe))
		f.Set(&h, c.Add(e, p))
		f.Set(&h, c.Dropout(h, drop))
	})
	for i, b := range blocks {
		f.Set(&h, c.layer(fmt.Sprintf("h.%d", i),
			func(a []*tape.Tensor) *tape.Tensor { return b.run(c, a[0], a[1]) }, h, mask))
	}
	c.In("ln_f", func() { f.Set(&h, final.layer(c.Graph, h)) })
	return f.Leave(h)
}

func (b *bigcodeBlock) run(c *ctx, x, mask *tape.Tensor) *tape.Tensor {
	f := c.Enter()
	var res, h, att, w, ff *tape.Tensor
	f.Set(&res, x)
	f.Set(&h, b.ln1.layer(c.Graph, x))
	o, p := b.attend(c, h, mask)
	f.Set(&att, o)
	f.Set(&w, p)
	f.Set(&h, c.Add(att, res))
	f.Set(&res, h)
	f.Set(&h, b.ln2.layer(c.Graph, h))
	g := c.Enter(h)
	var y *tape.Tensor
	g.Set(&y, b.fc.run(c.Graph, h))
	g.Set(&y, c.Activation(b.act, y))
	g.Set(&y, b.out.run(c.Graph, y))
	g.Set(&y, c.Dropout(y, b.resDrop))
	f.Set(&ff, g.Leave(y))
	f.Set(&h, c.Add(res, ff))
	return f.Leave(h)
}

func (b *bigcodeBlock) attend(c *ctx, x, mask *tape.Tensor) (out, weights *tape.Tensor) {
	f := c.Enter(x)
	bs, s := x.Shape[0], x.Shape[1]
	var q, k, v, o, w *tape.Tensor
	fused := b.attn.run(c.Graph, x)
	groups := int64(1)
	if b.shared {
		groups = b.heads
		parts := c.Split(c.Unsqueeze(fused, 1), 3, b.h, b.d, b.d)
		f.Set(&q, parts[0])
		f.Set(&k, parts[1])
		f.Set(&v, parts[2])
		f.Set(&q, c.Transpose(c.View(q, bs, s, b.heads, b.d), 1, 2))
	} else {
		parts := c.Split(c.Transpose(c.View(fused, bs, s, b.heads, 3*b.d), 1, 2), 3, b.d, b.d, b.d)
		f.Set(&q, parts[0])
		f.Set(&k, parts[1])
		f.Set(&v, parts[2])
	}
	ck, cv := c.cached(k, v)
	f.Set(&k, ck)
	f.Set(&v, cv)
	a, p := c.attend(attention{dropout: b.attnDrop, groups: groups, upcast: true, causal: true}, q,
		k, v, mask)
	f.Set(&o, a)
	f.Set(&w, p)
	f.Set(&o, c.Contiguous(c.Reshape(o, bs, s, b.h)))
	f.Set(&o, b.proj.run(c.Graph, o))
	f.Set(&o, c.Dropout(o, b.resDrop))
	out, weights = o, w
	f.Leave(out, weights)
	return out, weights
}
