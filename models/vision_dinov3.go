package models

import (
	"fmt"

	"memroom/tape"
)

type dino3Spec struct {
	h, inner, heads, layers, img, patch, ch, registers int64
	act                                                string
	attnDrop, path                                     float64
	qBias, kBias, vBias, oBias, mlpBias, gated         bool
	// random changes of the patches' places while training: shift, stretch, scale
	moves int
}

type dino3Block struct {
	spec           *dino3Spec
	norm1, norm2   norm
	q, k, v, o     lin
	gate, up, down lin
	scale1, scale2 *tape.Param
}

// dinov3 is DINOv3ViTModel. It has no head of its own, so the mean of its output stands for a loss.
func dinov3(c *Config, r Run) (*Model, error) {
	s := &dino3Spec{h: c.Int(384, "hidden_size"), inner: c.Int(1536, "intermediate_size"),
		heads: c.Int(6, "num_attention_heads"), layers: c.Int(12, "num_hidden_layers"),
		img: c.Int(224, "image_size"), patch: c.Int(16, "patch_size"), ch: c.Int(3, "num_channels"),
		registers: c.Count(0, "num_register_tokens"), act: c.Str("gelu", "hidden_act"),
		attnDrop: c.Float(0, "attention_dropout"), path: c.Float(0, "drop_path_rate"),
		qBias: c.Bool(true, "query_bias"), kBias: c.Bool(false, "key_bias"),
		vBias: c.Bool(true, "value_bias"), oBias: c.Bool(true, "proj_bias"),
		mlpBias: c.Bool(true, "mlp_bias"), gated: c.Bool(false, "use_gated_mlp")}
	for _, name := range []string{"pos_embed_shift", "pos_embed_jitter", "pos_embed_rescale"} {
		if c.Has(name) {
			s.moves++
		}
	}
	c.divides(s.h, s.heads, "hidden_size by num_attention_heads")
	if r.Image == 0 {
		r.Image = s.img
	}
	if s.patch > r.Image {
		c.complain("patch_size %d is larger than the image of %d pixels", s.patch, r.Image)
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	root := tape.NewModule()
	em := root.Child("embeddings")
	cls := em.Param("cls_token", 1, 1, s.h)
	em.Param("mask_token", 1, 1, s.h)
	registers := em.Param("register_tokens", 1, s.registers, s.h)
	proj := conv(em, "patch_embeddings", s.ch, s.h, s.patch, s.patch, 0, 1, true)
	root.Child("rope_embeddings").Buffer(tape.F32, s.h/s.heads/4)
	list := root.Child("model").Child("layer")
	var blocks []*dino3Block
	for i := range s.layers {
		blocks = append(blocks, s.block(list.Child(fmt.Sprint(i))))
	}
	final := layerNorm(root, "norm", s.h)
	m := &Model{Root: root, Inputs: imageInputs(r, s.ch), Layers: s.layers, Run: r,
		Notes: []string{"DINOv3 has no head of its own: the mean of its outputs stands for the loss"}}
	m.Loss = func(g *tape.Graph, in []*tape.Tensor) *tape.Tensor {
		x := newCtx(g, r)
		f := x.Enter()
		var h, pooled, loss *tape.Tensor
		f.Set(&h, s.run(x, in[0], cls, registers, proj, blocks, final))
		f.Set(&pooled, x.Select(h, 1))
		x.In("loss", func() {
			f.Set(&loss, x.Mean(x.To(h, tape.F32), false, 0, 1, 2))
			f.Set(&loss, x.Add(loss, x.Mean(x.To(pooled, tape.F32), false, 0, 1)))
		})
		return f.Leave(loss)
	}
	return m, nil
}

func (s *dino3Spec) block(m *tape.Module) *dino3Block {
	b := &dino3Block{spec: s, norm1: layerNorm(m, "norm1", s.h)}
	a := m.Child("attention")
	b.k, b.v = linear(a, "k_proj", s.h, s.h, s.kBias), linear(a, "v_proj", s.h, s.h, s.vBias)
	b.q, b.o = linear(a, "q_proj", s.h, s.h, s.qBias), linear(a, "o_proj", s.h, s.h, s.oBias)
	b.scale1 = m.Child("layer_scale1").Param("lambda1", s.h)
	b.norm2 = layerNorm(m, "norm2", s.h)
	mlp := m.Child("mlp")
	if s.gated {
		b.gate = linear(mlp, "gate_proj", s.h, s.inner, s.mlpBias)
	}
	b.up = linear(mlp, "up_proj", s.h, s.inner, s.mlpBias)
	b.down = linear(mlp, "down_proj", s.inner, s.h, s.mlpBias)
	b.scale2 = m.Child("layer_scale2").Param("lambda1", s.h)
	return b
}

func (s *dino3Spec) run(c *ctx, pixels *tape.Tensor, cls, registers *tape.Param, proj convLayer,
	blocks []*dino3Block, final norm) *tape.Tensor {
	f := c.Enter()
	var h, cos, sin *tape.Tensor
	var patches int64
	c.In("embeddings", func() {
		g := c.Enter()
		var y *tape.Tensor
		g.Set(&y, c.patches(pixels, proj))
		patches = y.Shape[1]
		first := g.Keep(c.Expand(cls.Tensor, y.Shape[0], 1, s.h))
		parts := []*tape.Tensor{first}
		if s.registers > 0 {
			parts = append(parts, g.Keep(c.Expand(registers.Tensor, y.Shape[0], s.registers, s.h)))
		}
		f.Set(&h, g.Leave(c.Cat(1, append(parts, y)...)))
	})
	c.NoGrad(func() { s.places(c, f, &cos, &sin, patches, pixels.DType) })
	for i, b := range blocks {
		f.Set(&h, c.layer(fmt.Sprintf("layer.%d", i),
			func(a []*tape.Tensor) *tape.Tensor { return b.run(c, a[0], a[1], a[2]) }, h, cos, sin))
	}
	f.Set(&h, final.layer(c.Graph, h))
	return f.Leave(h)
}

// places is DINOv3ViTRopePositionEmbedding: angles of the middle of each patch, in fp32.
func (s *dino3Spec) places(c *ctx, f *tape.Frame, cos, sin **tape.Tensor, n int64, as tape.DType) {
	c.NoAutocast(func() {
		g := c.Enter()
		d := s.h / s.heads
		var at, angles, co, si *tape.Tensor
		g.Set(&at, c.Fresh("places", tape.F32, n, 2))
		for range s.moves {
			tape.Del(c.Fresh("places", tape.F32, 2))
			g.Set(&at, c.Fresh("places", tape.F32, n, 2))
		}
		g.Set(&angles, c.Scale(c.Unsqueeze(at, 2)))
		g.Set(&angles, c.Fresh("places", tape.F32, n, d/2))
		g.Set(&angles, c.Fresh("places", tape.F32, n, d))
		g.Set(&co, c.Scale(angles))
		g.Set(&si, c.Scale(angles))
		a, b := c.To(co, as), c.To(si, as)
		g.Leave(a, b)
		f.Set(cos, a)
		f.Set(sin, b)
	})
}

func (b *dino3Block) run(c *ctx, x, cos, sin *tape.Tensor) *tape.Tensor {
	f := c.Enter()
	s := b.spec
	var res, h, w *tape.Tensor
	f.Set(&res, x)
	f.Set(&h, b.norm1.layer(c.Graph, x))
	f.Pair(&h, &w)(b.attend(c, h, cos, sin))
	f.Set(&h, c.Mul(h, b.scale1.Tensor))
	f.Set(&h, c.Add(c.DropPath(h, s.path), res))
	f.Set(&res, h)
	f.Set(&h, b.norm2.layer(c.Graph, h))
	f.Set(&h, b.mlp(c, h))
	f.Set(&h, c.Mul(h, b.scale2.Tensor))
	f.Set(&h, c.Add(c.DropPath(h, s.path), res))
	return f.Leave(h)
}

func (b *dino3Block) mlp(c *ctx, x *tape.Tensor) *tape.Tensor {
	f := c.Enter(x)
	if b.spec.gated {
		return f.Leave(b.down.run(c.Graph, c.Mul(c.Activation(b.spec.act, b.gate.run(c.Graph, x)),
			b.up.run(c.Graph, x))))
	}
	return f.Leave(b.down.run(c.Graph, c.Activation(b.spec.act, b.up.run(c.Graph, x))))
}

func (b *dino3Block) attend(c *ctx, x, cos, sin *tape.Tensor) (out, weights *tape.Tensor) {
	f := c.Enter(x)
	d := b.spec.h / b.spec.heads
	var q, k, v, o, w *tape.Tensor
	f.Set(&q, b.q.run(c.Graph, x))
	f.Set(&k, b.k.run(c.Graph, x))
	f.Set(&v, b.v.run(c.Graph, x))
	f.Set(&q, heads(c.Graph, q, d))
	f.Set(&k, heads(c.Graph, k, d))
	f.Set(&v, heads(c.Graph, v, d))
	f.Pair(&q, &k)(c.rotatePatches(q, k, cos, sin))
	f.Pair(&o, &w)(c.attend(attention{dropout: b.spec.attnDrop, groups: 1, plain: true}, q, k, v, nil))
	f.Set(&o, c.Contiguous(c.Reshape(o, o.Shape[0], o.Shape[1], b.spec.h)))
	f.Set(&o, b.o.run(c.Graph, o))
	return f.Both(o, w)
}

// rotatePatches turns queries and keys of the patches; the tokens before them stay.
func (c *ctx) rotatePatches(q, k, cos, sin *tape.Tensor) (rq, rk *tape.Tensor) {
	f := c.Enter()
	n := cos.Shape[0]
	var q1, q2, k1, k2 *tape.Tensor
	parts := c.Split(q, 2, q.Shape[2]-n, n)
	f.Set(&q1, parts[0])
	f.Set(&q2, parts[1])
	parts = c.Split(k, 2, k.Shape[2]-n, n)
	f.Set(&k1, parts[0])
	f.Set(&k2, parts[1])
	f.Set(&q2, c.rotate(q2, cos, sin))
	f.Set(&k2, c.rotate(k2, cos, sin))
	rq = c.Cat(2, q1, q2)
	f.Keep(rq)
	rk = c.Cat(2, k1, k2)
	return f.Both(rq, rk)
}
