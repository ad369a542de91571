package models

import "memroom/tape"

// swinV2 is Swinv2ForImageClassification: cosine attention, positions from a small network, norms
// after the layers.
func swinV2(c *Config, r Run) (*Model, error) {
	s := readSwin(c)
	s.second = true
	if s.patch<<(len(s.depths)-1) > s.img {
		c.complain("patch_size %d and %d stages are too much for image_size %d", s.patch,
			len(s.depths), s.img)
	}
	if s.absolute {
		c.complain("use_absolute_embeddings: transformers cannot run it in this model")
	}
	for i := range s.heads {
		c.divides(s.embed<<i, s.heads[i], "embed_dim by num_heads")
	}
	return s.model(c, r, "swinv2")
}

type swinV2Block struct {
	swinBlock
	scale      *tape.Param
	pos1, pos2 lin
}

func (b *swinV2Block) build(m *tape.Module, inner int64, bias bool) {
	a := m.Child("attention")
	self := a.Child("self")
	b.scale = self.Param("logit_scale", b.heads, 1, 1)
	mlp := self.Child("continuous_position_bias_mlp")
	b.pos1, b.pos2 = linear(mlp, "0", 2, 512, true), linear(mlp, "2", 512, b.heads, false)
	self.Buffer(tape.F32, 2*(2*b.window-1)*(2*b.window-1))
	self.Buffer(tape.I64, b.window*b.window*b.window*b.window)
	b.q, b.k, b.v = linear(self, "query", b.ch, b.ch, bias), linear(self, "key", b.ch, b.ch, false),
		linear(self, "value", b.ch, b.ch, bias)
	b.o = linear(a.Child("output"), "dense", b.ch, b.ch, true)
	b.norm1 = layerNorm(m, "layernorm_before", b.ch)
	b.fc1 = linear(m.Child("intermediate"), "dense", b.ch, inner, true)
	b.fc2 = linear(m.Child("output"), "dense", inner, b.ch, true)
	b.norm2 = layerNorm(m, "layernorm_after", b.ch)
}

func (b *swinV2Block) run(c *ctx, x *tape.Tensor, n int64) *tape.Tensor {
	bs, ch, window := x.Shape[0], b.ch, b.window
	f := c.Enter()
	var short, h, shifted, wins, mask, att, whole, back, out *tape.Tensor
	f.Set(&short, x)
	f.Set(&h, c.View(x, bs, n, n, ch))
	by := (window - n%window) % window
	f.Set(&h, c.Pad(h, by, 1, 2))
	np := n + by
	f.Set(&shifted, h)
	if b.shift > 0 {
		f.Set(&shifted, c.Roll(h))
	}
	f.Set(&wins, c.windows(shifted, window))
	f.Set(&wins, c.View(wins, -1, window*window, ch))
	if b.shift > 0 { // made on the host
		f.Set(&mask, c.Fresh("mask", h.DType, (np/window)*(np/window), window*window,
			window*window))
	}
	f.Set(&att, b.attend(c, wins, mask))
	f.Set(&whole, c.View(c.Contiguous(c.Transpose(c.View(att, -1, np/window, np/window, window,
		window, ch), 2, 3)), -1, np, np, ch))
	f.Set(&back, whole)
	if b.shift > 0 {
		f.Set(&back, c.Roll(whole))
	}
	if by > 0 {
		f.Set(&back, c.Contiguous(c.Slice(c.Slice(back, 1, n), 2, n)))
	}
	f.Set(&back, c.View(back, bs, n*n, ch))
	f.Set(&h, b.norm1.layer(c.Graph, back))
	f.Set(&h, c.Add(short, c.DropPath(h, b.depth)))
	f.Set(&out, b.mlp(c, h))
	f.Set(&out, c.Dropout(b.fc2.run(c.Graph, out), b.drop))
	f.Set(&out, c.Add(h, c.DropPath(b.norm2.layer(c.Graph, out), b.depth)))
	return f.Leave(out)
}

// mlp is Swinv2Intermediate.
func (b *swinV2Block) mlp(c *ctx, x *tape.Tensor) *tape.Tensor {
	f := c.Enter(x)
	var h *tape.Tensor
	f.Set(&h, b.fc1.run(c.Graph, x))
	return f.Leave(c.Activation(b.act, h))
}

func (b *swinV2Block) attend(c *ctx, x, mask *tape.Tensor) *tape.Tensor {
	f := c.Enter(x, mask)
	var own, y *tape.Tensor
	f.Set(&own, b.cosine(c, x, mask))
	f.Set(&y, b.o.run(c.Graph, own))
	return f.Leave(c.Dropout(y, b.attnDrop))
}

// cosine is Swinv2SelfAttention.
func (b *swinV2Block) cosine(c *ctx, x, mask *tape.Tensor) *tape.Tensor {
	f := c.Enter(x, mask)
	d, area := b.ch/b.heads, b.window*b.window
	var q, k, v, scores, scale, table, bias, probs, o *tape.Tensor
	f.Set(&q, heads(c.Graph, b.q.run(c.Graph, x), d))
	f.Set(&k, heads(c.Graph, b.k.run(c.Graph, x), d))
	f.Set(&v, heads(c.Graph, b.v.run(c.Graph, x), d))
	f.Set(&scores, c.Matmul(c.unit(q), c.Transpose(c.unit(k), -1, -2)))
	f.Set(&scale, c.Activation("exp", c.ClampOne(b.scale.Tensor)))
	f.Set(&scores, c.Mul(scores, scale))
	f.Set(&table, b.positions(c))
	f.Set(&bias, c.View(c.Index(table, c.Borrow(tape.I64, area*area)), area, area, -1))
	f.Set(&bias, c.Contiguous(c.Permute(bias, 2, 0, 1)))
	f.Set(&bias, c.Scale(c.Activation("sigmoid", bias)))
	f.Set(&scores, c.Add(scores, c.Unsqueeze(bias, 0)))
	if mask != nil {
		nw := mask.Shape[0]
		wide := c.Unsqueeze(c.Unsqueeze(mask, 1), 0)
		f.Set(&scores, c.Add(c.View(scores, -1, nw, b.heads, area, area), wide))
		f.Set(&scores, c.Add(scores, c.Unsqueeze(c.Unsqueeze(mask, 1), 0)))
		f.Set(&scores, c.View(scores, -1, b.heads, area, area))
	}
	f.Set(&probs, c.Softmax(scores, scores.DType))
	f.Set(&probs, c.Dropout(probs, b.attnDrop))
	f.Set(&o, c.Matmul(probs, v))
	f.Set(&o, c.Contiguous(c.Permute(o, 0, 2, 1, 3)))
	f.Set(&o, c.View(o, x.Shape[0], area, b.ch))
	return f.Leave(o)
}

// positions is the small network over relative coordinates.
func (b *swinV2Block) positions(c *ctx) *tape.Tensor {
	f := c.Enter()
	side := 2*b.window - 1
	var h *tape.Tensor
	f.Set(&h, b.pos1.run(c.Graph, c.Borrow(c.Float, 1, side, side, 2)))
	f.Set(&h, c.ReluInPlaceOfView(h))
	f.Set(&h, b.pos2.run(c.Graph, h))
	return f.Leave(c.View(h, -1, b.heads))
}

// unit is F.normalize over the last dimension.
func (c *ctx) unit(x *tape.Tensor) *tape.Tensor {
	f := c.Enter(x)
	var denom *tape.Tensor
	f.Set(&denom, c.ClampOne(c.OldNorm(x, -1)))
	return f.Leave(c.Div(x, c.Expand(denom, x.Shape...)))
}
