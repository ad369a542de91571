package models

import (
	"fmt"

	"memroom/tape"
)

type vitBlock struct {
	q, k, v, o     lin
	fc1, fc2       lin
	norm1, norm2   norm
	d              int64
	act            string
	drop, attnDrop float64
	named          bool // CLIP: projections are variables before they are split into heads
	causal         bool
	plain          bool    // eager softmax stays in the scores' type (DistilBERT, ALBERT)
	outDrop        float64 // ALBERT: dropout and norm of the sum inside attention
	outNorm        norm
	residual       *tape.Tensor
	resFirst       bool // residual + h, not h + residual
}

// vit is ViTForImageClassification.
func vit(c *Config, r Run) (*Model, error) {
	h, inner, nh := c.Int(768, "hidden_size"), c.Int(3072, "intermediate_size"),
		c.Int(12, "num_attention_heads")
	layers, img, patch, ch := c.Int(12, "num_hidden_layers"), c.Int(224, "image_size"),
		c.Int(16, "patch_size"), c.Int(3, "num_channels")
	act, drop, attnDrop := c.Str("gelu", "hidden_act"), c.Float(0, "hidden_dropout_prob"),
		c.Float(0, "attention_probs_dropout_prob")
	bias, labels := c.Bool(true, "qkv_bias"), c.Labels()
	c.divides(h, nh, "hidden_size by num_attention_heads")
	if patch > img {
		c.complain("patch_size %d is larger than image_size %d", patch, img)
	}
	if r.Image != 0 && r.Image != img {
		c.complain("the image of %d pixels differs from the model's image_size %d", r.Image, img)
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	extra, name := int64(1), "vit"
	if c.Type() == "deit" {
		extra, name = 2, "deit"
	}
	tokens := (img/patch)*(img/patch) + extra
	root := tape.NewModule()
	body := root.Child(name)
	em := body.Child("embeddings")
	var cls []*tape.Param
	for i := range extra {
		cls = append(cls, em.Param([]string{"cls_token", "distillation_token"}[i], 1, 1, h))
	}
	pos := em.Param("position_embeddings", 1, tokens, h)
	proj := conv(em.Child("patch_embeddings"), "projection", ch, h, patch, patch, 0, 1, true)
	blocks := vitBlocks(body.Child("layers"), layers, h, inner, bias,
		vitBlock{d: h / nh, act: act, drop: drop, attnDrop: attnDrop})
	final := layerNorm(body, "layernorm", h)
	head := linear(root, "classifier", h, labels, true)
	r.Image = img
	m := &Model{Root: root, Inputs: imageInputs(r, ch), Layers: layers, Run: r,
		Head: "ForImageClassification"}
	m.Loss = func(g *tape.Graph, in []*tape.Tensor) *tape.Tensor {
		x := newCtx(g, r)
		return x.imageClassifier(in, head, func() *tape.Tensor {
			return x.vitBody(in[0], proj, cls,
				pos, blocks, final, drop)
		},
			func(h *tape.Tensor) *tape.Tensor { return x.Select(h, 1) })
	}
	return m, nil
}

// vitBlocks are layers of width h that have in common what `as` has.
func vitBlocks(list *tape.Module, layers, h, inner int64, bias bool, as vitBlock) []*vitBlock {
	blocks := make([]*vitBlock, layers)
	for i := range blocks {
		b, m := as, list.Child(fmt.Sprint(i))
		a := m.Child("attention")
		b.q, b.k, b.v, b.o = linear(a, "q_proj", h, h, bias), linear(a, "k_proj", h, h, bias),
			linear(a, "v_proj", h, h, bias), linear(a, "o_proj", h, h, true)
		b.norm1, b.norm2 = layerNorm(m, "layernorm_before", h), layerNorm(m, "layernorm_after", h)
		mlp := m.Child("mlp")
		b.fc1, b.fc2 = linear(mlp, "fc1", h, inner, true), linear(mlp, "fc2", inner, h, true)
		blocks[i] = &b
	}
	return blocks
}

// imageInputs is a batch of images with a class for each.
func imageInputs(r Run, channels int64) func(g *tape.Graph) []*tape.Tensor {
	return func(g *tape.Graph) []*tape.Tensor {
		return []*tape.Tensor{g.Input(r.Float, r.Batch, channels, r.Image, r.Image),
			g.Input(tape.I64, r.Batch)}
	}
}

// imageClassifier is the forward of ...ForImageClassification: body, pooling, head, cross-entropy.
func (c *ctx) imageClassifier(in []*tape.Tensor, head lin, body func() *tape.Tensor,
	pool func(*tape.Tensor) *tape.Tensor) *tape.Tensor {
	f := c.Enter()
	var h, pooled, logits *tape.Tensor
	f.Set(&h, body())
	f.Set(&pooled, pool(h))
	c.In("classifier", func() { f.Set(&logits, head.run(c.Graph, pooled)) })
	var loss *tape.Tensor
	c.In("loss", func() { loss = c.plainLoss(logits, in[1]) })
	return f.Leave(loss)
}

func (c *ctx) vitBody(pixels *tape.Tensor, proj convLayer, cls []*tape.Param, pos *tape.Param,
	blocks []*vitBlock, final norm, drop float64) *tape.Tensor {
	f := c.Enter()
	var e, h, out *tape.Tensor
	c.In("embeddings", func() { f.Set(&e, c.vitEmbed(pixels, proj, cls, pos, drop)) })
	f.Set(&h, e)
	for i, b := range blocks {
		f.Set(&h, c.layer(fmt.Sprintf("layers.%d", i),
			func(a []*tape.Tensor) *tape.Tensor { return b.run(c, a[0]) }, h))
	}
	c.In("layernorm", func() { f.Set(&out, final.layer(c.Graph, h)) })
	return f.Leave(out)
}

func (c *ctx) vitEmbed(pixels *tape.Tensor, proj convLayer, cls []*tape.Param, pos *tape.Param,
	drop float64) *tape.Tensor {
	f := c.Enter()
	var e *tape.Tensor
	f.Set(&e, c.patches(pixels, proj))
	b, h := e.Shape[0], e.Dim(-1)
	var parts []*tape.Tensor
	for _, t := range cls {
		parts = append(parts, f.Keep(c.Expand(t.Tensor, b, 1, h)))
	}
	f.Set(&e, c.Cat(1, append(parts, e)...))
	f.Set(&e, c.Add(e, pos.Tensor))
	f.Set(&e, c.Dropout(e, drop))
	return f.Leave(e)
}

// patches is the patch convolution, flattened to [B, tokens, h].
func (c *ctx) patches(pixels *tape.Tensor, proj convLayer) *tape.Tensor {
	y := c.asInput(proj.run(c, pixels))
	return c.Transpose(c.View(y, y.Shape[0], y.Shape[1], -1), 1, 2)
}

func (b *vitBlock) run(c *ctx, x *tape.Tensor) *tape.Tensor {
	f := c.Enter()
	var res, h, w *tape.Tensor
	f.Set(&res, x)
	f.Set(&h, b.norm1.layer(c.Graph, x))
	f.Pair(&h, &w)(b.attend(c, h, nil))
	f.Set(&h, c.Dropout(h, b.drop))
	f.Set(&h, b.join(c, h, res))
	f.Set(&res, h)
	f.Set(&h, b.norm2.layer(c.Graph, h))
	f.Set(&h, b.mlp(c, h))
	f.Set(&h, c.Dropout(h, b.drop))
	f.Set(&h, b.join(c, h, res))
	return f.Leave(h)
}

// join adds the residual: the sum is laid out in memory as the first of the two.
func (b *vitBlock) join(c *ctx, h, res *tape.Tensor) *tape.Tensor {
	if b.resFirst {
		return c.Add(res, h)
	}
	return c.Add(h, res)
}

func (b *vitBlock) mlp(c *ctx, x *tape.Tensor) *tape.Tensor {
	f := c.Enter(x)
	var h *tape.Tensor
	f.Set(&h, b.fc1.run(c.Graph, x))
	f.Set(&h, c.Activation(b.act, h))
	f.Set(&h, b.fc2.run(c.Graph, h))
	return f.Leave(h)
}

func (b *vitBlock) attend(c *ctx, x, mask *tape.Tensor) (out, weights *tape.Tensor) {
	f := c.Enter(x)
	var q, k, v, o, w *tape.Tensor
	f.Set(&q, heads(c.Graph, b.q.run(c.Graph, x), b.d))
	f.Set(&k, heads(c.Graph, b.k.run(c.Graph, x), b.d))
	f.Set(&v, heads(c.Graph, b.v.run(c.Graph, x), b.d))
	f.Pair(&o, &w)(c.attend(attention{dropout: b.attnDrop, groups: 1, upcast: !b.plain, plain: b.plain,
		causal: b.causal}, q, k, v, mask))
	f.Set(&o, c.Reshape(o, o.Shape[0], o.Shape[1], x.Dim(-1)))
	f.Set(&o, b.o.run(c.Graph, o))
	if b.residual != nil {
		f.Set(&o, c.Dropout(o, b.outDrop))
		f.Set(&o, b.outNorm.layer(c.Graph, c.Add(b.residual, o)))
	}
	return f.Both(o, w)
}
