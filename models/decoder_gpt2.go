package models

import (
	"fmt"

	"memroom/tape"
)

type gpt2Block struct {
	ln1, ln2          norm
	attn, proj        lin
	fc, out           lin
	d                 int64
	act               string
	attnDrop, resDrop float64
}

// gpt2 is GPT2LMHeadModel.
func gpt2(c *Config, r Run) (*Model, error) {
	h := c.Int(768, "n_embd", "hidden_size")
	layers, nh := c.Int(12, "n_layer", "num_hidden_layers"),
		c.Int(12, "n_head", "num_attention_heads")
	vocab, npos := c.Int(50257, "vocab_size"), c.Int(1024, "n_positions", "max_position_embeddings")
	inner := c.Int(4*h, "n_inner")
	act := c.Str("gelu_new", "activation_function")
	res, emb, att := c.Float(0.1, "resid_pdrop"), c.Float(0.1, "embd_pdrop"),
		c.Float(0.1, "attn_pdrop")
	tied := c.Bool(true, "tie_word_embeddings")
	c.divides(h, nh, "n_embd by n_head")
	if r.Seq > npos {
		c.complain("the sequence of %d tokens is longer than the %d positions of the model", r.Seq,
			npos)
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	root := tape.NewModule()
	body := root.Child("transformer")
	wte, wpe := embedding(body, "wte", vocab, h), embedding(body, "wpe", npos, h)
	var blocks []*gpt2Block
	list := body.Child("h")
	for i := range layers {
		m := list.Child(fmt.Sprint(i))
		b := &gpt2Block{d: h / nh, act: act, attnDrop: att, resDrop: res}
		b.ln1 = layerNorm(m, "ln_1", h)
		a := m.Child("attn")
		b.attn, b.proj = conv1d(a, "c_attn", h, 3*h), conv1d(a, "c_proj", h, h)
		b.ln2 = layerNorm(m, "ln_2", h)
		mlp := m.Child("mlp")
		b.fc, b.out = conv1d(mlp, "c_fc", h, inner), conv1d(mlp, "c_proj", inner, h)
		blocks = append(blocks, b)
	}
	final := layerNorm(body, "ln_f", h)
	head := causalHead(root, r, wte, tied, vocab, h)
	loss := func(g *tape.Graph, in []*tape.Tensor) *tape.Tensor {
		x := newCtx(g, r)
		x.narrowLoss = true
		return x.causalLM(in, head, func() *tape.Tensor {
			return x.gpt2Body(in[0], wte, wpe, blocks,
				final, emb)
		})
	}
	return &Model{Root: root, Inputs: tokenInputs(r), Loss: loss, Layers: layers, Run: r,
		Head: r.causalHead()}, nil
}

func (c *ctx) gpt2Body(ids *tape.Tensor, wte, wpe *tape.Param, blocks []*gpt2Block, final norm,
	drop float64) *tape.Tensor {
	f := c.Enter()
	var e, pos, p, h, mask *tape.Tensor
	c.In("embedding", func() {
		if c.padID {
			c.padTest(ids.Shape[0])
		}
		f.Set(&e, c.Embedding(ids, wte))
		f.Set(&pos, c.positions(ids.Shape[1]))
		f.Set(&p, c.Embedding(pos, wpe))
		f.Set(&h, c.Add(e, p))
		f.Set(&mask, c.causalMask(ids.Shape[0], ids.Shape[1], e.DType))
		f.Set(&h, c.Dropout(h, drop))
	})
	for i, b := range blocks {
		f.Set(&h, c.layer(fmt.Sprintf("h.%d", i),
			func(a []*tape.Tensor) *tape.Tensor { return b.run(c, a[0], a[1]) }, h, mask, pos))
	}
	c.In("ln_f", func() { f.Set(&h, final.layer(c.Graph, h)) })
	return f.Leave(h)
}

func (b *gpt2Block) run(c *ctx, x, mask *tape.Tensor) *tape.Tensor {
	f := c.Enter()
	var res, h, att, weights, ff *tape.Tensor
	f.Set(&res, x)
	f.Set(&h, b.ln1.layer(c.Graph, x))
	a, w := b.attend(c, h, mask)
	f.Set(&att, a)
	f.Set(&weights, w)
	f.Set(&h, c.Add(att, res))
	f.Set(&res, h)
	f.Set(&h, b.ln2.layer(c.Graph, h))
	f.Set(&ff, b.mlp(c, h))
	f.Set(&h, c.Add(res, ff))
	return f.Leave(h)
}

func (b *gpt2Block) attend(c *ctx, x, mask *tape.Tensor) (out, weights *tape.Tensor) {
	f := c.Enter(x)
	var q, k, v, o, w *tape.Tensor
	h := x.Dim(-1)
	qkv := c.Split(c.Conv1D(x, b.attn.w, b.attn.b), 2, h, h, h)
	f.Set(&q, qkv[0])
	f.Set(&k, qkv[1])
	f.Set(&v, qkv[2])
	f.Set(&k, heads(c.Graph, k, b.d))
	f.Set(&v, heads(c.Graph, v, b.d))
	f.Set(&q, heads(c.Graph, q, b.d))
	ck, cv := c.cached(k, v)
	f.Set(&k, ck)
	f.Set(&v, cv)
	a, p := c.attend(attention{dropout: b.attnDrop, groups: 1, causal: true}, q, k, v, mask)
	f.Set(&o, a)
	f.Set(&w, p)
	f.Set(&o, c.Contiguous(c.Reshape(o, o.Shape[0], o.Shape[1], h)))
	f.Set(&o, c.Conv1D(o, b.proj.w, b.proj.b))
	f.Set(&o, c.Dropout(o, b.resDrop))
	out, weights = o, w
	f.Leave(out, weights)
	return out, weights
}

func (b *gpt2Block) mlp(c *ctx, x *tape.Tensor) *tape.Tensor {
	f := c.Enter(x)
	var h *tape.Tensor
	f.Set(&h, c.Conv1D(x, b.fc.w, b.fc.b))
	f.Set(&h, c.Activation(b.act, h))
	f.Set(&h, c.Conv1D(h, b.out.w, b.out.b))
	f.Set(&h, c.Dropout(h, b.resDrop))
	return f.Leave(h)
}
