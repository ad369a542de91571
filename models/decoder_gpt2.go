package models

import (
	"fmt"

	"memroom/tape"
)

// gpt2Spec is GPT-2 and GPTBigCode (SantaCoder, StarCoder), which has plain linear layers and may
// share one key head.
type gpt2Spec struct {
	h, heads, d, layers, vocab, npos, inner int64
	act                                     string
	tied, bigcode, shared                   bool // shared: one key and value head for all
	embDrop, attnDrop, resDrop              float64
}

type gpt2Block struct {
	*gpt2Spec
	ln1, ln2             norm
	attn, proj, fc1, fc2 lin
}

// gpt2 is GPT2LMHeadModel and GPTBigCodeForCausalLM.
func gpt2(c *Config, r Run) (*Model, error) {
	s := &gpt2Spec{h: c.Int(768, "n_embd", "hidden_size"),
		heads:  c.Int(12, "n_head", "num_attention_heads"),
		layers: c.Int(12, "n_layer", "num_hidden_layers"), vocab: c.Int(50257, "vocab_size"),
		npos: c.Int(1024, "n_positions", "max_position_embeddings"),
		tied: c.Bool(true, "tie_word_embeddings"), bigcode: c.Type() == "gpt_bigcode",
		embDrop: c.Float(0.1, "embd_pdrop"), attnDrop: c.Float(0.1, "attn_pdrop"),
		resDrop: c.Float(0.1, "resid_pdrop")}
	s.inner = c.Int(4*s.h, "n_inner")
	if s.bigcode {
		s.act, s.shared = c.Str("gelu_pytorch_tanh", "activation_function"), c.Bool(true, "multi_query")
		if c.Bool(false, "add_cross_attention") {
			c.complain("add_cross_attention is not described")
		}
	} else {
		s.act = c.Str("gelu_new", "activation_function")
	}
	c.divides(s.h, s.heads, "n_embd by n_head")
	c.longEnough(r.Seq, s.npos)
	if err := c.Err(); err != nil {
		return nil, err
	}
	s.d = s.h / s.heads
	root := tape.NewModule()
	body := root.Child("transformer")
	wte, wpe := embedding(body, "wte", s.vocab, s.h), embedding(body, "wpe", s.npos, s.h)
	var blocks []*gpt2Block
	list := body.Child("h")
	for i := range s.layers {
		blocks = append(blocks, s.block(list.Child(fmt.Sprint(i))))
	}
	final := layerNorm(body, "ln_f", s.h)
	if s.bigcode {
		body.Buffer(tape.Bool, s.npos*s.npos)
	}
	head := causalHead(root, r, wte, s.tied, s.vocab, s.h)
	return causalModel(root, r, head, s.layers, true, func(x *ctx, ids *tape.Tensor) *tape.Tensor {
		return s.run(x, ids, wte, wpe, blocks, final)
	}), nil
}

func (s *gpt2Spec) block(m *tape.Module) *gpt2Block {
	width, layer := 3*s.h, conv1d
	if s.bigcode {
		layer = func(m *tape.Module, name string, in, out int64) lin {
			return linear(m, name, in, out, true)
		}
	}
	if s.shared {
		width = s.h + 2*s.d
	}
	b := &gpt2Block{gpt2Spec: s, ln1: layerNorm(m, "ln_1", s.h)}
	a := m.Child("attn")
	b.attn, b.proj = layer(a, "c_attn", s.h, width), layer(a, "c_proj", s.h, s.h)
	b.ln2 = layerNorm(m, "ln_2", s.h)
	mlp := m.Child("mlp")
	b.fc1, b.fc2 = layer(mlp, "c_fc", s.h, s.inner), layer(mlp, "c_proj", s.inner, s.h)
	return b
}

func (s *gpt2Spec) run(c *ctx, ids *tape.Tensor, wte, wpe *tape.Param, blocks []*gpt2Block,
	final norm) *tape.Tensor {
	f := c.Enter()
	var e, pos, p, h, mask *tape.Tensor
	c.In("embedding", func() {
		if c.padID && !s.bigcode {
			c.padTest(ids.Shape[0])
		}
		makeMask := func() { f.Set(&mask, c.causalMask(ids.Shape[0], ids.Shape[1], e.DType)) }
		f.Set(&e, c.Embedding(ids, wte))
		f.Set(&pos, c.positions(ids.Shape[1]))
		if s.bigcode {
			makeMask()
		}
		f.Set(&p, c.Embedding(pos, wpe))
		f.Set(&h, c.Add(e, p))
		if !s.bigcode {
			makeMask()
		}
		f.Set(&h, c.Dropout(h, s.embDrop))
	})
	held := []*tape.Tensor{mask, pos}
	if s.bigcode {
		held = held[:1]
	}
	for i, b := range blocks {
		f.Set(&h, c.layer(fmt.Sprintf("h.%d", i),
			func(a []*tape.Tensor) *tape.Tensor { return b.run(c, a[0], a[1]) },
			append([]*tape.Tensor{h}, held...)...))
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
	f.Set(&ff, c.mlp(b.fc1, b.fc2, b.act, b.resDrop, h))
	f.Set(&h, c.Add(res, ff))
	return f.Leave(h)
}

func (b *gpt2Block) attend(c *ctx, x, mask *tape.Tensor) (out, weights *tape.Tensor) {
	f := c.Enter(x)
	var q, k, v, o, w *tape.Tensor
	groups := b.split(c, f, b.attn.run(c.Graph, x), &q, &k, &v)
	ck, cv := c.cached(k, v)
	f.Set(&k, ck)
	f.Set(&v, cv)
	a, p := c.attend(attention{dropout: b.attnDrop, groups: groups, upcast: b.bigcode,
		causal: true}, q, k, v, mask)
	f.Set(&o, a)
	f.Set(&w, p)
	f.Set(&o, c.Contiguous(c.Reshape(o, x.Shape[0], x.Shape[1], b.h)))
	f.Set(&o, b.proj.run(c.Graph, o))
	f.Set(&o, c.Dropout(o, b.resDrop))
	out, weights = o, w
	f.Leave(out, weights)
	return out, weights
}

// split makes q, k and v of the projection, with their heads before their positions. It returns how
// many query heads a key head has.
func (b *gpt2Block) split(c *ctx, f *tape.Frame, fused *tape.Tensor, q, k, v **tape.Tensor) int64 {
	bs, n := fused.Shape[0], fused.Shape[1]
	set := func(parts []*tape.Tensor) {
		f.Set(q, parts[0])
		f.Set(k, parts[1])
		f.Set(v, parts[2])
	}
	switch {
	case b.shared:
		set(c.Split(c.Unsqueeze(fused, 1), 3, b.h, b.d, b.d))
		f.Set(q, c.Transpose(c.View(*q, bs, n, b.heads, b.d), 1, 2))
		return b.heads
	case b.bigcode:
		set(c.Split(c.Transpose(c.View(fused, bs, n, b.heads, 3*b.d), 1, 2), 3, b.d, b.d, b.d))
	default:
		set(c.Split(fused, 2, b.h, b.h, b.h))
		f.Set(k, heads(c.Graph, *k, b.d))
		f.Set(v, heads(c.Graph, *v, b.d))
		f.Set(q, heads(c.Graph, *q, b.d))
	}
	return 1
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
