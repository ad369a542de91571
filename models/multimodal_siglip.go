package models

import (
	"memroom/event"
	"memroom/tape"
)

// siglip is SiglipModel trained with its pairwise loss, and the image classifier on its vision
// tower.
func siglip(c *Config, r Run) (*Model, error) {
	tc, vc := c.Sub("text_config"), c.Sub("vision_config")
	text, vision := readTower(tc, 768, 12, 3072, 12), readTower(vc, 768, 12, 3072, 12)
	text.act, vision.act = tc.Str("gelu_pytorch_tanh", "hidden_act"),
		vc.Str("gelu_pytorch_tanh", "hidden_act")
	text.normFirst, vision.normFirst = true, true
	vocab, npos, dim := tc.Int(32000, "vocab_size"), tc.Int(64, "max_position_embeddings"),
		tc.Int(text.h, "projection_size")
	img, patch, ch := vc.Int(224, "image_size"), vc.Int(16, "patch_size"), vc.Int(3, "num_channels")
	pool := vc.Bool(true, "vision_use_head")
	if patch > img {
		c.complain("patch_size %d is larger than image_size %d", patch, img)
	}
	if r.Image != 0 && r.Image != img {
		c.complain("the image of %d pixels differs from the model's image_size %d", r.Image, img)
	}
	if classify := r.arch == "ForImageClassification"; !classify {
		c.longEnough(r.Seq, npos)
		if dim != vision.h || !pool {
			c.complain("the text tower projects to %d elements and the vision tower to %d: they must agree", dim, vision.h)
		}
	}
	for _, k := range []*Config{tc, vc, c} {
		if err := k.Err(); err != nil {
			return nil, err
		}
	}
	r.Image = img
	root := tape.NewModule()
	if r.arch == "ForImageClassification" {
		eyes := buildSiglipVision(root.Child("vision_model"), vision, ch, img/patch, patch, pool)
		return towerClassifier(root, r, vision, ch, c.Labels(), eyes.run,
			func(x *ctx, h *tape.Tensor) *tape.Tensor { return x.Mean(h, false, 1) }), nil
	}
	scale, bias := root.Param("logit_scale", 1), root.Param("logit_bias", 1)
	tm := root.Child("text_model")
	te := tm.Child("embeddings")
	words, tpos := embedding(te, "token_embedding", vocab, text.h),
		embedding(te, "position_embedding", npos, text.h)
	te.Buffer(tape.I64, npos)
	text.build(tm)
	tnorm, thead := layerNorm(tm, "final_layer_norm", text.h), linear(tm, "head", text.h, dim, true)
	eyes := buildSiglipVision(root.Child("vision_model"), vision, ch, img/patch, patch, pool)
	m := &Model{Root: root, Layers: text.layers + vision.layers, Run: r}
	m.Inputs = func(g *tape.Graph) []*tape.Tensor {
		return []*tape.Tensor{g.Input(tape.I64, r.Batch, r.Seq),
			g.Input(r.Float, r.Batch, ch, img, img)}
	}
	read := func(x *ctx, ids *tape.Tensor) (last, pooled *tape.Tensor) {
		f := x.Enter()
		var h, y, p *tape.Tensor
		f.Set(&h, x.Add(x.Embedding(ids, words), x.Embedding(x.Borrow(tape.I64, 1, ids.Shape[1]),
			tpos)))
		f.Set(&y, text.encode(x, h, false))
		f.Set(&y, tnorm.layer(x.Graph, y))
		f.Set(&p, x.Select(y, 1))
		f.Set(&p, thead.run(x.Graph, p))
		return f.Both(y, p)
	}
	m.Loss = func(g *tape.Graph, in []*tape.Tensor) *tape.Tensor {
		x := newCtx(g, r)
		f := g.Enter()
		var vlast, vout, vin, tlast, tout, tin *tape.Tensor
		f.Pair(&vlast, &vin)(eyes.run(x, in[1]))
		f.Pair(&tlast, &tin)(read(x, in[0]))
		f.Set(&vout, x.Div(vin, x.OldNorm(vin, -1)))
		f.Set(&tout, x.Div(tin, x.OldNorm(tin, -1)))
		var loss *tape.Tensor
		x.As(event.CategoryLoss, func() { loss = x.pairLoss(f, tout, vout, scale, bias) })
		return f.Leave(loss)
	}
	return m, nil
}

// pairLoss is the loss of every pair of a text and an image.
func (c *ctx) pairLoss(f *tape.Frame, text, image *tape.Tensor, scale,
	bias *tape.Param) *tape.Tensor {
	var logits, eye, sign, likely, nll *tape.Tensor
	b := text.Shape[0]
	f.Set(&logits, c.Matmul(text, c.Transpose(image, 0, 1)))
	f.Set(&logits, c.Add(c.Mul(logits, c.Activation("exp", scale.Tensor)), bias.Tensor))
	f.Set(&eye, c.Fresh("pairs", tape.F32, b, b))
	ones := c.Neg(c.Fresh("pairs", logits.DType, b, b))
	f.Set(&sign, c.Add(ones, c.Scale(eye)))
	f.Set(&likely, c.Activation("logsigmoid", c.Mul(sign, logits)))
	f.Set(&nll, c.Neg(c.Sum(likely, false, -1)))
	return c.Mean(nll, false, 0)
}

// siglipVision is SiglipVisionModel: no class token, and a pooling that attends with one learned
// query.
type siglipVision struct {
	tower      *clipTower
	tokens     int64
	pos, probe *tape.Param
	proj       convLayer
	post, norm norm
	att        multihead
	fc1, fc2   lin
	pool       bool
}

func buildSiglipVision(m *tape.Module, t *clipTower, ch, side, patch int64,
	pool bool) *siglipVision {
	v := &siglipVision{tower: t, tokens: side * side, pool: pool}
	e := m.Child("embeddings")
	v.proj = conv(e, "patch_embedding", ch, t.h, patch, patch, 0, 1, true)
	v.pos = embedding(e, "position_embedding", v.tokens, t.h)
	e.Buffer(tape.I64, v.tokens)
	t.build(m)
	v.post = layerNorm(m, "post_layernorm", t.h)
	if pool {
		h := m.Child("head")
		v.probe = h.Param("probe", 1, 1, t.h)
		v.att = newMultihead(h, "attention", t.h, t.heads)
		v.norm = layerNorm(h, "layernorm", t.h)
		mlp := h.Child("mlp")
		v.fc1, v.fc2 = linear(mlp, "fc1", t.h, t.inner, true),
			linear(mlp, "fc2", t.inner, t.h, true)
	}
	return v
}

func (v *siglipVision) run(c *ctx, pixels *tape.Tensor) (last, pooled *tape.Tensor) {
	f := c.Enter()
	var h, y, p *tape.Tensor
	f.Set(&h, v.embed(c, pixels))
	f.Set(&y, v.tower.encode(c, h, false))
	f.Set(&y, v.post.layer(c.Graph, y))
	last = y
	if v.pool {
		f.Set(&p, v.attendOnce(c, y))
	}
	pooled = p
	return f.Both(last, pooled)
}

func (v *siglipVision) embed(c *ctx, pixels *tape.Tensor) *tape.Tensor {
	f := c.Enter()
	var y, all *tape.Tensor
	f.Set(&y, c.patches(pixels, v.proj))
	f.Set(&all, c.Add(y, c.Embedding(c.Borrow(tape.I64, 1, v.tokens), v.pos)))
	return f.Leave(all)
}

// attendOnce is SiglipMultiheadAttentionPoolingHead.
func (v *siglipVision) attendOnce(c *ctx, x *tape.Tensor) *tape.Tensor {
	f := c.Enter(x)
	var probe, h, res *tape.Tensor
	f.Set(&probe, c.Repeat(v.probe.Tensor, x.Shape[0]))
	f.Set(&h, v.att.across(c, probe, x))
	f.Set(&res, h)
	f.Set(&h, v.norm.layer(c.Graph, h))
	f.Set(&h, c.Add(res, (&vitBlock{fc1: v.fc1, fc2: v.fc2, act: v.tower.act}).mlp(c, h)))
	return f.Leave(c.Select(h, 1))
}

// across is attention of q to x, with weights that nobody looks at.
func (a multihead) across(c *ctx, q, x *tape.Tensor) *tape.Tensor {
	f := c.Enter(q, x)
	b, s, h := x.Shape[0], x.Shape[1], x.Shape[2]
	t := q.Shape[1]
	var query, key, value, scaled, w, o *tape.Tensor
	qp, kp, vp := a.project(c, c.Transpose(q, 1, 0), c.Transpose(x, 1, 0))
	f.Set(&query, qp)
	f.Set(&key, kp)
	f.Set(&value, vp)
	f.Set(&query, c.Transpose(c.View(query, t, b*h/a.d, a.d), 0, 1))
	f.Set(&key, c.Transpose(c.View(key, s, b*h/a.d, a.d), 0, 1))
	f.Set(&value, c.Transpose(c.View(value, s, b*h/a.d, a.d), 0, 1))
	f.Set(&scaled, c.Scale(query))
	f.Set(&w, c.Bmm(scaled, c.Transpose(key, -2, -1)))
	f.Set(&w, c.Softmax(w, w.DType))
	f.Set(&o, c.Bmm(w, value))
	f.Set(&o, c.View(c.Contiguous(c.Transpose(o, 0, 1)), t*b, h))
	f.Set(&o, a.out.run(c.Graph, o))
	f.Set(&o, c.View(o, t, b, h))
	f.Set(&w, c.Mean(c.View(w, b, h/a.d, t, s), false, 1))
	return f.Leave(c.Transpose(o, 1, 0))
}

// project is _in_projection_packed where keys and values come from one tensor and queries from
// another.
func (a multihead) project(c *ctx, q, x *tape.Tensor) (query, key, value *tape.Tensor) {
	f := c.Enter(q, x)
	h := x.Shape[2]
	var both *tape.Tensor
	ws, bs := c.Split(a.w.Tensor, 0, h, 2*h), c.Split(a.b.Tensor, 0, h, 2*h)
	for _, t := range append(ws, bs...) {
		f.Keep(t)
	}
	query = c.LinearT(q, ws[0], bs[0])
	f.Set(&both, c.LinearT(x, ws[1], bs[1]))
	f.Set(&both, c.Contiguous(c.Squeeze(c.Transpose(c.Unsqueeze(c.View(both, x.Shape[0], x.Shape[1],
		2, h), 0), 0, -2), -2)))
	key, value = c.Select(both, 0), c.Select(both, 0)
	f.Leave(query, key, value)
	return query, key, value
}
