package models

import (
	"fmt"

	"memroom/tape"
)

// --- ViT

var vits = map[string]struct{ patch, layers, heads, h, inner, image int64 }{
	"vit_b_16": {16, 12, 12, 768, 3072, 224}, "vit_b_32": {32, 12, 12, 768, 3072, 224},
	"vit_l_16": {16, 24, 16, 1024, 4096, 224},
	"vit_l_32": {32, 24, 16, 1024, 4096, 224}, "vit_h_14": {14, 32, 16, 1280, 5120, 224},
}

// multihead is nn.MultiheadAttention with batch_first: q, k and v from one weight, positions before
// the batch.
type multihead struct {
	w, b *tape.Param
	out  lin
	d    int64
}

func newMultihead(m *tape.Module, name string, h, heads int64) multihead {
	a := m.Child(name)
	return multihead{w: a.Param("in_proj_weight", 3*h, h), b: a.Param("in_proj_bias", 3*h),
		out: linear(a, "out_proj", h, h, true), d: h / heads}
}

func (a multihead) run(c *ctx, x *tape.Tensor) *tape.Tensor {
	f := c.Enter(x)
	b, s, h := x.Shape[0], x.Shape[1], x.Shape[2]
	var in, q, k, v, o *tape.Tensor
	f.Set(&in, c.Transpose(x, 1, 0))
	p := c.Enter()
	var proj *tape.Tensor
	p.Set(&proj, c.Linear(in, a.w, a.b))
	p.Set(&proj, c.Contiguous(c.Squeeze(c.Transpose(c.Unsqueeze(c.View(proj, s, b, 3, h), 0), 0,
		-2), -2)))
	qs, ks, vs := c.Select(proj, 0), c.Select(proj, 0), c.Select(proj, 0)
	p.Leave(qs, ks, vs)
	f.Set(&q, qs)
	f.Set(&k, ks)
	f.Set(&v, vs)
	split := func(t *tape.Tensor) *tape.Tensor {
		return c.Transpose(c.View(t, s, b*h/a.d, a.d), 0,
			1)
	}
	f.Set(&q, split(q))
	f.Set(&k, split(k))
	f.Set(&v, split(v))
	batched := func(t *tape.Tensor) *tape.Tensor { return c.View(t, b, h/a.d, s, a.d) }
	f.Set(&q, batched(q))
	f.Set(&k, batched(k))
	f.Set(&v, batched(v))
	f.Set(&o, c.SDPA(q, k, v, nil, 0, false))
	f.Set(&o, c.View(c.Contiguous(c.Permute(o, 2, 0, 1, 3)), b*s, h))
	f.Set(&o, a.out.run(c.Graph, o))
	f.Set(&o, c.View(o, s, b, h))
	return f.Leave(c.Transpose(o, 1, 0))
}

func vitTV(root *tape.Module, name string, classes, image int64) (step, error) {
	spec, ok := vits[name]
	if !ok {
		return nil, unknownVariant(name, keys(vits))
	}
	if image != spec.image {
		return nil, fmt.Errorf("torchvision's %s takes images of %d pixels, not %d", name,
			spec.image, image)
	}
	tokens := (image/spec.patch)*(image/spec.patch) + 1
	class := root.Param("class_token", 1, 1, spec.h)
	proj := conv(root, "conv_proj", 3, spec.h, spec.patch, spec.patch, 0, 1, true)
	enc := root.Child("encoder")
	pos := enc.Param("pos_embedding", 1, tokens, spec.h)
	list := enc.Child("layers")
	var blocks []step
	for i := range spec.layers {
		blocks = append(blocks, vitBlockTV(list.Child(fmt.Sprintf("encoder_layer_%d", i)), spec.h,
			spec.inner, spec.heads))
	}
	body, final := sequential(blocks...), layerNorm(enc, "ln", spec.h)
	head := sequential(linearStep(root.Child("heads"), "head", spec.h, classes))
	return func(c *ctx, x *tape.Tensor) *tape.Tensor {
		f := c.Enter(x)
		var h *tape.Tensor
		y := proj.run(c, x)
		f.Set(&h, c.Permute(c.Reshape(y, y.Shape[0], spec.h, -1), 0, 2, 1))
		token := f.Keep(c.Expand(class.Tensor, h.Shape[0], 1, spec.h))
		f.Set(&h, c.Cat(1, token, h))
		g := c.Enter(h)
		var in *tape.Tensor
		g.Set(&in, c.Add(h, pos.Tensor))
		f.Set(&h, g.Leave(final.layer(c.Graph, body(c, in))))
		f.Set(&h, c.Select(h, 1))
		f.Set(&h, head(c, h))
		return f.Leave(h)
	}, nil
}

func vitBlockTV(m *tape.Module, h, inner, heads int64) step {
	ln1, att := layerNorm(m, "ln_1", h), newMultihead(m, "self_attention", h, heads)
	ln2 := layerNorm(m, "ln_2", h)
	mlp := mlpTV(m.Child("mlp"), h, inner)
	path := m.Path()
	return func(c *ctx, in *tape.Tensor) *tape.Tensor {
		f := c.Enter(in)
		var x, y *tape.Tensor
		c.In(path, func() {
			f.Set(&x, ln1.layer(c.Graph, in))
			f.Set(&x, att.run(c, x))
			f.Set(&x, c.Add(x, in))
			f.Set(&y, ln2.layer(c.Graph, x))
			f.Set(&y, mlp(c, y))
			f.Set(&y, c.Add(x, y))
		})
		return f.Leave(y)
	}
}

// mlpTV is torchvision.ops.MLP without dropout: linear, GELU, (nothing), linear.
func mlpTV(m *tape.Module, h, inner int64) step {
	return sequential(linearStep(m, "0", h, inner), func(c *ctx,
		x *tape.Tensor) *tape.Tensor {
		return c.Activation("gelu", x)
	},
		linearStep(m, "3", inner, h))
}

// --- Swin

var swinsTV = map[string]struct {
	embed         int64
	depths, heads []int64
	drop          float64
}{
	"swin_t": {96, []int64{2, 2, 6, 2}, []int64{3, 6, 12, 24}, 0.2},
	"swin_s": {96, []int64{2, 2, 18, 2}, []int64{3, 6, 12, 24}, 0.3},
	"swin_b": {128, []int64{2, 2, 18, 2}, []int64{4, 8, 16, 32}, 0.5},
}

type windowAttention struct {
	qkv, proj            lin
	table                *tape.Param
	ch, heads, window, s int64
}

func swinTV(root *tape.Module, name string, classes, _ int64) (step, error) {
	spec, ok := swinsTV[name]
	if !ok {
		return nil, unknownVariant(name, keys(swinsTV))
	}
	feat := root.Child("features")
	stem := feat.Child("0")
	first := convStep(stem, "0", 3, spec.embed, 4, 4, 0, 1, true)
	ln := layerNorm(stem, "2", spec.embed)
	toLast := func(c *ctx, x *tape.Tensor) *tape.Tensor { return c.Permute(x, 0, 2, 3, 1) }
	norm := func(n norm) step {
		return func(c *ctx,
			x *tape.Tensor) *tape.Tensor {
			return n.layer(c.Graph, x)
		}
	}
	steps := []step{sequential(first, toLast, norm(ln))}
	total := int64(0)
	for _, d := range spec.depths {
		total += d
	}
	id, at := int64(0), 1
	for i, depth := range spec.depths {
		dim := spec.embed << i
		stage := feat.Child(fmt.Sprint(at))
		at++
		var blocks []step
		for j := range depth {
			blocks = append(blocks, swinBlockTV(stage.Child(fmt.Sprint(j)), dim, spec.heads[i],
				j%2*3, spec.drop*float64(id)/float64(total-1)))
			id++
		}
		steps = append(steps, sequential(blocks...))
		if i < len(spec.depths)-1 {
			d := feat.Child(fmt.Sprint(at))
			at++
			steps = append(steps, mergeTV(linear(d, "reduction", 4*dim, 2*dim, false),
				layerNorm(d, "norm", 4*dim)))
		}
	}
	features := spec.embed << (len(spec.depths) - 1)
	final := layerNorm(root, "norm", features)
	toFirst := func(c *ctx, x *tape.Tensor) *tape.Tensor { return c.Permute(x, 0, 3, 1, 2) }
	return sequential(sequential(steps...), norm(final), toFirst, globalPool, flatten,
		linearStep(root, "head", features, classes)), nil
}

func swinBlockTV(m *tape.Module, dim, heads, shift int64, depth float64) step {
	const window = 7
	n1 := layerNorm(m, "norm1", dim)
	am := m.Child("attn")
	a := &windowAttention{ch: dim, heads: heads, window: window, s: shift}
	a.table = am.Param("relative_position_bias_table", (2*window-1)*(2*window-1), heads)
	am.Buffer(tape.I64, window*window*window*window)
	a.qkv, a.proj = linear(am, "qkv", dim, 3*dim, true), linear(am, "proj", dim, dim, true)
	n2 := layerNorm(m, "norm2", dim)
	mlp := mlpTV(m.Child("mlp"), dim, 4*dim)
	path := m.Path()
	return func(c *ctx, x *tape.Tensor) *tape.Tensor {
		f := c.Enter(x)
		var h *tape.Tensor
		c.In(path, func() {
			f.Set(&h, c.Add(x, c.StochasticDepth(a.run(c, n1.layer(c.Graph, x)), depth)))
			f.Set(&h, c.Add(h, c.StochasticDepth(mlp(c, n2.layer(c.Graph, h)), depth)))
		})
		return f.Leave(h)
	}
}

// mergeTV is PatchMerging: four neighbours become one, twice as wide.
func mergeTV(reduce lin, ln norm) step {
	return func(c *ctx, x *tape.Tensor) *tape.Tensor {
		f := c.Enter(x)
		var h *tape.Tensor
		g := c.Enter()
		var padded *tape.Tensor
		n := x.Shape[1]
		g.Set(&padded, c.Pad(x, n%2, 1, 2))
		var parts []*tape.Tensor
		for range 4 {
			parts = append(parts, g.Keep(c.Stride2(padded)))
		}
		f.Set(&h, g.Leave(c.Cat(-1, parts...)))
		f.Set(&h, ln.layer(c.Graph, h))
		f.Set(&h, reduce.run(c.Graph, h))
		return f.Leave(h)
	}
}

// run is shifted_window_attention on [B, H, W, C].
func (a *windowAttention) run(c *ctx, in *tape.Tensor) *tape.Tensor {
	outer := c.Enter(in)
	var bias *tape.Tensor
	b := &swinBlock{window: a.window, table: a.table}
	outer.Set(&bias, b.bias(c))
	f := c.Enter()
	bs, n, w := in.Shape[0], in.Shape[1], a.window
	by := (w - n%w) % w
	np := n + by
	shift := a.s
	if w >= np {
		shift = 0
	}
	area, count := w*w, (np/w)*(np/w)
	var x, qkv, q, k, v, att, mask *tape.Tensor
	f.Set(&x, c.Pad(in, by, 1, 2))
	if shift > 0 {
		f.Set(&x, c.Roll(x))
	}
	f.Set(&x, c.View(x, bs, np/w, w, np/w, w, a.ch))
	f.Set(&x, c.Reshape(c.Permute(x, 0, 1, 3, 2, 4, 5), bs*count, area, a.ch))
	f.Set(&qkv, a.qkv.run(c.Graph, x))
	f.Set(&qkv, c.Permute(c.Reshape(qkv, bs*count, area, 3, a.heads, a.ch/a.heads), 2, 0, 3, 1, 4))
	f.Set(&q, c.Select(qkv, 0))
	f.Set(&k, c.Select(qkv, 0))
	f.Set(&v, c.Select(qkv, 0))
	f.Set(&q, c.Scale(q))
	f.Set(&att, c.Matmul(q, c.Transpose(k, -2, -1)))
	f.Set(&att, c.Add(att, bias))
	if shift > 0 {
		f.Set(&mask, c.windowMask(np, w, x.DType))
		f.Set(&att, c.View(att, bs, count, a.heads, area, area))
		f.Set(&att, c.Add(att, c.Unsqueeze(c.Unsqueeze(mask, 1), 0)))
		f.Set(&att, c.View(att, -1, a.heads, area, area))
	}
	f.Set(&att, c.Softmax(att, att.DType))
	f.Set(&x, c.Reshape(c.Transpose(c.Matmul(att, v), 1, 2), bs*count, area, a.ch))
	f.Set(&x, a.proj.run(c.Graph, x))
	f.Set(&x, c.View(x, bs, np/w, np/w, w, w, a.ch))
	f.Set(&x, c.Reshape(c.Permute(x, 0, 1, 3, 2, 4, 5), bs, np, np, a.ch))
	if shift > 0 {
		f.Set(&x, c.Roll(x))
	}
	if by > 0 {
		f.Set(&x, c.Contiguous(c.Slice(c.Slice(x, 1, n), 2, n)))
	} else {
		f.Set(&x, c.Slice(c.Slice(x, 1, n), 2, n))
	}
	return outer.Leave(f.Leave(x))
}

// windowMask returns which pairs of a shifted window are neighbours in the image.
func (c *ctx) windowMask(n, w int64, d tape.DType) *tape.Tensor {
	f := c.Enter()
	count, area := (n/w)*(n/w), w*w
	var m *tape.Tensor
	f.Set(&m, c.Fresh("mask", d, n, n))
	f.Set(&m, c.Fresh("mask", d, count, area))
	f.Set(&m, c.Fresh("mask", d, count, area, area))
	g := c.Enter(m)
	out := c.MaskedFill(m, c.Fresh("mask", tape.Bool, count, area, area))
	out = c.MaskedFill(out, c.Fresh("mask", tape.Bool, count, area, area))
	return f.Leave(g.Leave(out))
}
