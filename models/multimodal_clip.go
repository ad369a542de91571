package models

import (
	"fmt"

	"memroom/event"
	"memroom/tape"
)

type clipTower struct {
	h, heads, inner, layers int64
	act                     string
	attnDrop                float64
	blocks                  []*vitBlock
	name                    string
	normFirst               bool // a layer's norms are made before what follows them
}

func readTower(c *Config, h, heads, inner, layers int64) *clipTower {
	t := &clipTower{h: c.Int(h, "hidden_size"), heads: c.Int(heads, "num_attention_heads"),
		inner:  c.Int(inner, "intermediate_size"),
		layers: c.Int(layers, "num_hidden_layers"), act: c.Str("quick_gelu", "hidden_act"),
		attnDrop: c.Float(0, "attention_dropout")}
	c.divides(t.h, t.heads, "hidden_size by num_attention_heads")
	return t
}

func (t *clipTower) build(m *tape.Module) {
	t.name = m.Path()
	list := m.Child("encoder").Child("layers")
	for i := range t.layers {
		l := list.Child(fmt.Sprint(i))
		b := &vitBlock{d: t.h / t.heads, act: t.act, attnDrop: t.attnDrop, named: true,
			resFirst: true}
		if t.normFirst {
			b.norm1 = layerNorm(l, "layer_norm1", t.h)
		}
		a := l.Child("self_attn")
		b.k, b.v, b.q, b.o = linear(a, "k_proj", t.h, t.h, true),
			linear(a, "v_proj", t.h, t.h, true), linear(a, "q_proj", t.h, t.h, true),
			linear(a, "out_proj", t.h, t.h, true)
		if t.normFirst {
			b.norm2 = layerNorm(l, "layer_norm2", t.h)
		} else {
			b.norm1 = layerNorm(l, "layer_norm1", t.h)
		}
		mlp := l.Child("mlp")
		b.fc1, b.fc2 = linear(mlp, "fc1", t.h, t.inner, true),
			linear(mlp, "fc2", t.inner, t.h, true)
		if !t.normFirst {
			b.norm2 = layerNorm(l, "layer_norm2", t.h)
		}
		t.blocks = append(t.blocks, b)
	}
}

func (t *clipTower) encode(c *ctx, x *tape.Tensor, causal bool) *tape.Tensor {
	f := c.Enter(x)
	var h *tape.Tensor
	f.Set(&h, x)
	for i, b := range t.blocks {
		b.causal = causal
		f.Set(&h, c.layer(fmt.Sprintf("%s.layers.%d", t.name, i),
			func(a []*tape.Tensor) *tape.Tensor { return b.run(c, a[0]) }, h))
	}
	return f.Leave(h)
}

// clip is CLIPModel trained with its contrastive loss.
func clip(c *Config, r Run) (*Model, error) {
	tc, vc := c.Sub("text_config"), c.Sub("vision_config")
	text, vision := readTower(tc, 512, 8, 2048, 12), readTower(vc, 768, 12, 3072, 12)
	vocab, npos := tc.Int(49408, "vocab_size"), tc.Int(77, "max_position_embeddings")
	img, patch, dim := vc.Int(224, "image_size"), vc.Int(32, "patch_size"),
		c.Int(512, "projection_dim")
	ch, eos := vc.Int(3, "num_channels"), tc.Int(49407, "eos_token_id")
	if patch > img {
		c.complain("patch_size %d is larger than image_size %d", patch, img)
	}
	c.longEnough(r.Seq, npos)
	for _, k := range []*Config{tc, vc, c} {
		if err := k.Err(); err != nil {
			return nil, err
		}
	}
	r.Image = img
	tokens := (img/patch)*(img/patch) + 1
	if r.arch == "ForImageClassification" {
		return clipClassifier(r, vision, ch, tokens, patch, c.Labels()), nil
	}
	root := tape.NewModule()
	scale := root.Param("logit_scale")
	tm := root.Child("text_model")
	te := tm.Child("embeddings")
	words, tpos := embedding(te, "token_embedding", vocab, text.h),
		embedding(te, "position_embedding", npos, text.h)
	te.Buffer(tape.I64, npos)
	text.build(tm)
	tnorm := layerNorm(tm, "final_layer_norm", text.h)
	eyes := buildClipVision(root.Child("vision_model"), vision, ch, tokens, patch)
	vproj, tproj := linear(root, "visual_projection", vision.h, dim, false),
		linear(root, "text_projection", text.h, dim, false)
	m := &Model{Root: root, Layers: text.layers + vision.layers, Run: r}
	m.Inputs = func(g *tape.Graph) []*tape.Tensor {
		return []*tape.Tensor{g.Input(tape.I64, r.Batch, r.Seq),
			g.Input(r.Float, r.Batch, ch, img, img)}
	}
	m.Loss = func(g *tape.Graph, in []*tape.Tensor) *tape.Tensor {
		x := newCtx(g, r)
		f := g.Enter()
		var vlast, vout, tlast, tout, logits *tape.Tensor
		f.Pair(&vlast, &vout)(eyes.run(x, in[1]))
		f.Set(&vout, vproj.run(g, vout))
		f.Set(&tlast, text.encode(x, x.Add(x.Embedding(in[0], words),
			x.Embedding(x.Borrow(tape.I64, 1, in[0].Shape[1]), tpos)), true))
		f.Set(&tlast, tnorm.layer(g, tlast))
		f.Set(&tout, x.endOfText(tlast, eos))
		f.Set(&tout, tproj.run(g, tout))
		f.Set(&vout, x.Div(vout, x.vectorNorm(vout)))
		f.Set(&tout, x.Div(tout, x.vectorNorm(tout)))
		x.As(event.CategoryLoss, func() {
			f.Set(&logits, x.Mm(tout, x.Transpose(vout, 0, 1)))
			f.Set(&logits, x.Mul(logits, x.Activation("exp", scale.Tensor)))
		})
		return f.Leave(x.bothWays(logits))
	}
	return m, nil
}

// bothWays is image_text_contrastive_loss.
func (c *ctx) bothWays(logits *tape.Tensor) *tape.Tensor {
	f := c.Enter(logits)
	var one, two *tape.Tensor
	f.Set(&one, c.CrossEntropy(logits, c.Fresh("labels", tape.I64, logits.Shape[0])))
	f.Set(&two, c.CrossEntropy(c.Transpose(logits, 0, 1), c.Fresh("labels", tape.I64,
		logits.Shape[0])))
	return f.Leave(c.Scale(c.Add(one, two)))
}

// endOfText picks the hidden state of the token that ends each text: the first eos, or the highest
// id where eos is 2.
func (c *ctx) endOfText(h *tape.Tensor, eos int64) *tape.Tensor {
	b, n := h.Shape[0], h.Shape[1]
	rows := c.Fresh("eos", tape.I64, b)
	ids := c.Fresh("eos", tape.I32, b, n)
	if eos != 2 {
		is := c.Fresh("eos", tape.Bool, b, n)
		tape.Del(ids)
		ids = c.Fresh("eos", tape.I32, b, n)
		tape.Del(is)
	}
	columns := c.Fresh("eos", tape.I64, b)
	tape.Del(ids)
	return c.IndexPair(h, rows, columns)
}

// clipVision is CLIPVisionModel.
type clipVision struct {
	tower     *clipTower
	tokens    int64
	cls, pos  *tape.Param
	proj      convLayer
	pre, post norm
}

func buildClipVision(m *tape.Module, t *clipTower, ch, tokens, patch int64) *clipVision {
	v := &clipVision{tower: t, tokens: tokens}
	e := m.Child("embeddings")
	v.cls = e.Param("class_embedding", t.h)
	v.proj = conv(e, "patch_embedding", ch, t.h, patch, patch, 0, 1, false)
	v.pos = embedding(e, "position_embedding", tokens, t.h)
	e.Buffer(tape.I64, tokens)
	v.pre = layerNorm(m, "pre_layrnorm", t.h)
	t.build(m)
	v.post = layerNorm(m, "post_layernorm", t.h)
	return v
}

func (v *clipVision) run(c *ctx, pixels *tape.Tensor) (last, pooled *tape.Tensor) {
	f := c.Enter()
	var h, y, first *tape.Tensor
	f.Set(&h, v.embed(c, pixels))
	f.Set(&h, v.pre.layer(c.Graph, h))
	f.Set(&y, v.tower.encode(c, h, false))
	f.Set(&first, c.Select(y, 1))
	f.Set(&first, v.post.layer(c.Graph, first))
	return f.Both(y, first)
}

func (v *clipVision) embed(c *ctx, pixels *tape.Tensor) *tape.Tensor {
	f := c.Enter()
	var y, first, all *tape.Tensor
	f.Set(&y, c.patches(pixels, v.proj))
	f.Set(&first, c.Expand(v.cls.Tensor, y.Shape[0], 1, v.tower.h))
	f.Set(&all, c.Cat(1, first, y))
	f.Set(&all, c.Add(all, c.Embedding(c.Borrow(tape.I64, 1, v.tokens), v.pos)))
	return f.Leave(all)
}

// clipClassifier is CLIPForImageClassification: the mean over the patches decides.
func clipClassifier(r Run, t *clipTower, ch, tokens, patch, labels int64) *Model {
	root := tape.NewModule()
	eyes := buildClipVision(root.Child("vision_model"), t, ch, tokens, patch)
	return towerClassifier(root, r, t, ch, labels, eyes.run,
		func(x *ctx, h *tape.Tensor) *tape.Tensor { return x.Mean(x.Slice(h, 1, tokens-1), false, 1) })
}

// towerClassifier classifies by a mean over what a tower sees; its pooling is made for nothing.
func towerClassifier(root *tape.Module, r Run, t *clipTower, ch, labels int64,
	run func(x *ctx, pixels *tape.Tensor) (last, pooled *tape.Tensor),
	mean func(x *ctx, h *tape.Tensor) *tape.Tensor) *Model {
	head := linear(root, "classifier", t.h, labels, true)
	m := &Model{Root: root, Inputs: imageInputs(r, ch), Layers: t.layers, Run: r, Head: r.arch}
	m.Loss = func(g *tape.Graph, in []*tape.Tensor) *tape.Tensor {
		x := newCtx(g, r)
		f := g.Enter()
		var unused *tape.Tensor
		body := func() *tape.Tensor {
			last, pooled := run(x, in[0])
			f.Set(&unused, pooled)
			return last
		}
		return f.Leave(x.imageClassifier(in, head, body,
			func(h *tape.Tensor) *tape.Tensor { return mean(x, h) }))
	}
	return m
}

// vectorNorm is the length of each row.
func (c *ctx) vectorNorm(x *tape.Tensor) *tape.Tensor {
	f := c.Enter(x)
	var sq, sum *tape.Tensor
	f.Set(&sq, c.Pow(x))
	f.Set(&sum, c.Sum(sq, true, -1))
	return f.Leave(c.Pow(sum))
}
