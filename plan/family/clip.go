package family

import (
	"fmt"

	"memroom/event"
	"memroom/plan/tape"
)

type clipTower struct {
	h, heads, inner, layers int64
	act                     string
	attnDrop                float64
	blocks                  []*vitBlock
	name                    string
}

func readTower(c *Config, h, heads, inner, layers int64) *clipTower {
	t := &clipTower{h: c.Int(h, "hidden_size"), heads: c.Int(heads, "num_attention_heads"), inner: c.Int(inner, "intermediate_size"),
		layers: c.Int(layers, "num_hidden_layers"), act: c.Str("quick_gelu", "hidden_act"), attnDrop: c.Float(0, "attention_dropout")}
	c.divides(t.h, t.heads, "hidden_size by num_attention_heads")
	return t
}

func (t *clipTower) build(m *tape.Module) {
	t.name = m.Path()
	list := m.Child("encoder").Child("layers")
	for i := range t.layers {
		l := list.Child(fmt.Sprint(i))
		b := &vitBlock{d: t.h / t.heads, act: t.act, attnDrop: t.attnDrop, named: true}
		a := l.Child("self_attn")
		b.k, b.v, b.q, b.o = linear(a, "k_proj", t.h, t.h, true), linear(a, "v_proj", t.h, t.h, true), linear(a, "q_proj", t.h, t.h, true), linear(a, "out_proj", t.h, t.h, true)
		b.norm1 = layerNorm(l, "layer_norm1", t.h)
		mlp := l.Child("mlp")
		b.fc1, b.fc2 = linear(mlp, "fc1", t.h, t.inner, true), linear(mlp, "fc2", t.inner, t.h, true)
		b.norm2 = layerNorm(l, "layer_norm2", t.h)
		t.blocks = append(t.blocks, b)
	}
}

func (t *clipTower) encode(c *ctx, x *tape.Tensor, causal bool) *tape.Tensor {
	f := c.Enter(x)
	var h *tape.Tensor
	f.Set(&h, x)
	for i, b := range t.blocks {
		b.causal = causal
		f.Set(&h, c.layer(fmt.Sprintf("%s.layers.%d", t.name, i), func(a []*tape.Tensor) *tape.Tensor { return b.run(c, a[0]) }, h))
	}
	return f.Leave(h)
}

// clip is CLIPModel trained with its contrastive loss.
func clip(c *Config, r Run) (*Model, error) {
	tc, vc := c.Sub("text_config"), c.Sub("vision_config")
	text, vision := readTower(tc, 512, 8, 2048, 12), readTower(vc, 768, 12, 3072, 12)
	vocab, npos := tc.Int(49408, "vocab_size"), tc.Int(77, "max_position_embeddings")
	img, patch, dim := vc.Int(224, "image_size"), vc.Int(32, "patch_size"), c.Int(512, "projection_dim")
	if patch > img {
		c.complain("patch_size %d is larger than image_size %d", patch, img)
	}
	if r.Seq > npos {
		c.complain("the sequence of %d tokens is longer than the %d positions of the model", r.Seq, npos)
	}
	for _, k := range []*Config{tc, vc, c} {
		if err := k.Err(); err != nil {
			return nil, err
		}
	}
	r.Image = img
	tokens := (img/patch)*(img/patch) + 1
	root := tape.NewModule()
	scale := root.Param("logit_scale")
	tm := root.Child("text_model")
	te := tm.Child("embeddings")
	words, tpos := embedding(te, "token_embedding", vocab, text.h), embedding(te, "position_embedding", npos, text.h)
	te.Buffer(tape.I64, npos)
	text.build(tm)
	tnorm := layerNorm(tm, "final_layer_norm", text.h)
	vm := root.Child("vision_model")
	ve := vm.Child("embeddings")
	cls := ve.Param("class_embedding", vision.h)
	proj := conv(ve, "patch_embedding", 3, vision.h, patch, patch, 0, 1, false)
	vpos := embedding(ve, "position_embedding", tokens, vision.h)
	ve.Buffer(tape.I64, tokens)
	pre := layerNorm(vm, "pre_layrnorm", vision.h)
	vision.build(vm)
	post := layerNorm(vm, "post_layernorm", vision.h)
	vproj, tproj := linear(root, "visual_projection", vision.h, dim, false), linear(root, "text_projection", text.h, dim, false)
	m := &Model{Root: root, Layers: text.layers + vision.layers, Run: r, Loose: true}
	m.Inputs = func(g *tape.Graph) []*tape.Tensor {
		return []*tape.Tensor{g.Input(tape.I64, r.Batch, r.Seq), g.Input(r.Float, r.Batch, 3, img, img)}
	}
	m.Loss = func(g *tape.Graph, in []*tape.Tensor) *tape.Tensor {
		x := newCtx(g, r)
		f := g.Enter()
		var vlast, vout, tlast, tout, logits *tape.Tensor
		e := g.Enter()
		var y, first *tape.Tensor
		e.Set(&y, x.patches(in[1], proj))
		e.Set(&first, x.Expand(cls.Tensor, in[0].Shape[0], 1, vision.h))
		e.Set(&y, x.Cat(1, first, y))
		e.Set(&y, x.Add(y, x.Embedding(x.Borrow(tape.I64, 1, tokens), vpos)))
		emb := e.Leave(y)
		f.Set(&vlast, vision.encode(x, pre.layer(g, emb), false))
		f.Set(&vout, vproj.run(g, post.layer(g, x.Select(vlast, 1))))
		f.Set(&tlast, text.encode(x, x.Add(x.Embedding(in[0], words), x.Embedding(x.Borrow(tape.I64, 1, in[0].Shape[1]), tpos)), true))
		f.Set(&tlast, tnorm.layer(g, tlast))
		f.Set(&tout, tproj.run(g, x.Index(x.View(tlast, -1, text.h), x.Fresh("eos", tape.I64, in[0].Shape[0]))))
		f.Set(&vout, x.Div(vout, x.vectorNorm(vout)))
		f.Set(&tout, x.Div(tout, x.vectorNorm(tout)))
		x.As(event.CategoryLoss, func() {
			f.Set(&logits, x.Mm(tout, x.Transpose(vout, 0, 1)))
			f.Set(&logits, x.Mul(logits, x.Scale(scale.Tensor)))
		})
		one := x.CrossEntropy(logits, x.Fresh("labels", tape.I64, in[0].Shape[0]))
		two := x.CrossEntropy(x.Transpose(logits, 0, 1), x.Fresh("labels", tape.I64, in[0].Shape[0]))
		return f.Leave(x.Scale(x.Add(one, two)))
	}
	return m, nil
}

// vectorNorm is the length of each row.
func (c *ctx) vectorNorm(x *tape.Tensor) *tape.Tensor {
	f := c.Enter(x)
	var sq, sum *tape.Tensor
	f.Set(&sq, c.Pow(x))
	f.Set(&sum, c.Sum(sq, true, -1))
	return f.Leave(c.Pow(sum))
}
