package models

import (
	"fmt"

	"memroom/tape"
)

type dinoSpec struct {
	h, inner, heads, layers, img, patch, ch, labels int64
	// extra tokens between the class and the patches
	registers              int64
	act                    string
	drop, attnDrop, path   float64
	bias, gated, maskToken bool
}

type dinoBlock struct {
	spec           *dinoSpec
	norm1, norm2   norm
	q, k, v, o     lin
	fc1, fc2       lin
	scale1, scale2 *tape.Param
}

// dinov2 is Dinov2ForImageClassification, with or without register tokens.
func dinov2(c *Config, r Run) (*Model, error) {
	s := &dinoSpec{h: c.Int(768, "hidden_size"), heads: c.Int(12, "num_attention_heads"),
		layers: c.Int(12, "num_hidden_layers"), img: c.Int(224, "image_size"),
		ch: c.Int(3, "num_channels"), labels: c.Labels(), act: c.Str("gelu", "hidden_act"),
		drop:     c.Float(0, "hidden_dropout_prob"),
		attnDrop: c.Float(0, "attention_probs_dropout_prob"), path: c.Float(0, "drop_path_rate"),
		bias: c.Bool(true, "qkv_bias"), gated: c.Bool(false, "use_swiglu_ffn"),
		maskToken: true}
	switch c.Type() {
	case "dinov2":
		s.patch, s.maskToken = c.Int(14, "patch_size"), c.Bool(true, "use_mask_token")
	default:
		s.patch, s.registers = c.Int(16, "patch_size"), c.Int(4, "num_register_tokens")
	}
	s.inner = int64(float64(s.h) * c.Float(4, "mlp_ratio"))
	c.divides(s.h, s.heads, "hidden_size by num_attention_heads")
	if s.patch > s.img {
		c.complain("patch_size %d is larger than image_size %d", s.patch, s.img)
	}
	if r.Image != 0 && r.Image != s.img {
		c.complain("the image of %d pixels differs from the model's image_size %d", r.Image, s.img)
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	r.Image = s.img
	return s.model(r), nil
}

type dinoEmbeddings struct {
	cls, pos, registers *tape.Param
	proj                convLayer
}

func (s *dinoSpec) model(r Run) *Model {
	root := tape.NewModule()
	body := root.Child("dinov2")
	em := body.Child("embeddings")
	e := dinoEmbeddings{cls: em.Param("cls_token", 1, 1, s.h)}
	if s.maskToken {
		em.Param("mask_token", 1, s.h)
	}
	if s.registers > 0 {
		e.registers = em.Param("register_tokens", 1, s.registers, s.h)
	}
	e.proj = conv(em.Child("patch_embeddings"), "projection", s.ch, s.h, s.patch, s.patch, 0, 1,
		true)
	e.pos = em.Param("position_embeddings", 1, (s.img/s.patch)*(s.img/s.patch)+1, s.h)
	list := body.Child("encoder").Child("layer")
	var blocks []*dinoBlock
	for i := range s.layers {
		blocks = append(blocks, s.block(list.Child(fmt.Sprint(i))))
	}
	final := layerNorm(body, "layernorm", s.h)
	head := linear(root, "classifier", 2*s.h, s.labels, true)
	m := &Model{Root: root, Inputs: imageInputs(r, s.ch), Layers: s.layers, Run: r,
		Head: "ForImageClassification"}
	m.Loss = func(g *tape.Graph, in []*tape.Tensor) *tape.Tensor {
		x := newCtx(g, r)
		f := x.Enter() // the class and the patches are variables of the classifier
		var cls, rest *tape.Tensor
		return f.Leave(x.imageClassifier(in, head, func() *tape.Tensor {
			return s.run(x, in[0], e,
				blocks, final)
		}, func(h *tape.Tensor) *tape.Tensor {
			f.Set(&cls, x.Select(h, 1))
			f.Set(&rest, x.Slice(h, 1, h.Shape[1]-1))
			return x.Cat(1, cls, x.Mean(rest, false, 1))
		}))
	}
	return m
}

func (s *dinoSpec) block(m *tape.Module) *dinoBlock {
	b := &dinoBlock{spec: s, norm1: layerNorm(m, "norm1", s.h)}
	att := m.Child("attention")
	a := att.Child("attention")
	b.q, b.k, b.v = linear(a, "query", s.h, s.h, s.bias), linear(a, "key", s.h, s.h, s.bias),
		linear(a, "value", s.h, s.h, s.bias)
	b.o = linear(att.Child("output"), "dense", s.h, s.h, true)
	b.scale1 = m.Child("layer_scale1").Param("lambda1", s.h)
	b.norm2 = layerNorm(m, "norm2", s.h)
	mlp := m.Child("mlp")
	if s.gated {
		inner := (s.inner*2/3 + 7) / 8 * 8
		b.fc1, b.fc2 = linear(mlp, "weights_in", s.h, 2*inner, true),
			linear(mlp, "weights_out", inner, s.h, true)
	} else {
		b.fc1, b.fc2 = linear(mlp, "fc1", s.h, s.inner, true),
			linear(mlp, "fc2", s.inner, s.h, true)
	}
	b.scale2 = m.Child("layer_scale2").Param("lambda1", s.h)
	return b
}

func (s *dinoSpec) run(c *ctx, pixels *tape.Tensor, e dinoEmbeddings, blocks []*dinoBlock,
	final norm) *tape.Tensor {
	f := c.Enter()
	var emb, h *tape.Tensor
	c.In("embeddings", func() {
		g := c.Enter()
		var y *tape.Tensor
		g.Set(&y, c.patches(pixels, e.proj))
		cls := g.Keep(c.Expand(e.cls.Tensor, y.Shape[0], 1, s.h))
		g.Set(&y, c.Cat(1, cls, y))
		g.Set(&y, c.Add(y, e.pos.Tensor))
		if e.registers != nil {
			g.Set(&y, c.Cat(1, c.Slice(y, 1, 1), c.Expand(e.registers.Tensor, y.Shape[0],
				s.registers, s.h), c.Slice(y, 1, y.Shape[1]-1)))
		}
		g.Set(&y, c.Dropout(y, s.drop))
		f.Set(&emb, g.Leave(y))
	})
	g := c.Enter(emb)
	var x *tape.Tensor
	g.Set(&x, emb)
	for i, b := range blocks {
		g.Set(&x, c.layer(fmt.Sprintf("layer.%d", i),
			func(a []*tape.Tensor) *tape.Tensor { return b.run(c, a[0]) }, x))
	}
	f.Set(&h, g.Leave(x))
	f.Set(&h, final.layer(c.Graph, h))
	return f.Leave(h)
}

func (b *dinoBlock) run(c *ctx, x *tape.Tensor) *tape.Tensor {
	f := c.Enter()
	s := b.spec
	var ln, att, h, y *tape.Tensor
	f.Set(&ln, b.norm1.layer(c.Graph, x))
	f.Set(&att, b.attend(c, ln))
	f.Set(&att, c.Mul(att, b.scale1.Tensor))
	f.Set(&h, c.Add(c.DropPath(att, s.path), x))
	f.Set(&y, b.norm2.layer(c.Graph, h))
	f.Set(&y, b.mlp(c, y))
	f.Set(&y, c.Mul(y, b.scale2.Tensor))
	f.Set(&y, c.Add(c.DropPath(y, s.path), h))
	return f.Leave(y)
}

func (b *dinoBlock) mlp(c *ctx, x *tape.Tensor) *tape.Tensor {
	if !b.spec.gated {
		v := &vitBlock{fc1: b.fc1, fc2: b.fc2, act: b.spec.act}
		return v.mlp(c, x)
	}
	f := c.Enter(x)
	var h, one, two, y *tape.Tensor
	f.Set(&h, b.fc1.run(c.Graph, x))
	half := h.Dim(-1) / 2
	parts := c.Split(h, -1, half, half)
	f.Set(&one, parts[0])
	f.Set(&two, parts[1])
	f.Set(&y, c.Mul(c.Activation("silu", one), two))
	return f.Leave(b.fc2.run(c.Graph, y))
}

func (b *dinoBlock) attend(c *ctx, x *tape.Tensor) *tape.Tensor {
	f := c.Enter(x)
	d := b.spec.h / b.spec.heads
	var att, o *tape.Tensor
	g := c.Enter(x)
	var q, k, v, y, w *tape.Tensor
	g.Set(&k, heads(c.Graph, b.k.run(c.Graph, x), d))
	g.Set(&v, heads(c.Graph, b.v.run(c.Graph, x), d))
	g.Set(&q, heads(c.Graph, b.q.run(c.Graph, x), d))
	g.Pair(&y, &w)(c.attend(attention{dropout: b.spec.attnDrop, groups: 1, plain: true}, q, k, v, nil))
	f.Set(&att, g.Leave(c.Reshape(y, y.Shape[0], y.Shape[1], b.spec.h)))
	f.Set(&o, c.Dropout(b.o.run(c.Graph, att), b.spec.drop))
	return f.Leave(o)
}
