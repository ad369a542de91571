package models

import (
	"fmt"

	"memroom/tape"
)

// swinSpec is what both versions of Swin are told.
type swinSpec struct {
	second                        bool // Swin V2
	embed, patch, img, ch, window int64
	depths, heads                 []int64
	ratio                         float64
	bias, absolute                bool
	act                           string
	labels                        int64
	drop, attnDrop, path          float64
}

type swinBlock struct {
	ch, heads, window, shift int64
	q, k, v, o, fc1, fc2     lin
	table                    *tape.Param
	norm1, norm2             norm
	act                      string
	drop, attnDrop, depth    float64
}

type swinStage struct {
	spec   *swinSpec
	number int
	blocks []swinLayer
	reduce lin
	norm   norm
}

// swinLayer is a block of either version; n is the number of patches a side.
type swinLayer interface {
	run(c *ctx, x *tape.Tensor, n int64) *tape.Tensor
}

func readSwin(c *Config) *swinSpec {
	s := &swinSpec{embed: c.Int(96, "embed_dim"), patch: c.Int(4, "patch_size"),
		img: c.Int(224, "image_size"), ch: c.Int(3, "num_channels"),
		depths: c.Ints([]int64{2, 2, 6, 2}, "depths"), heads: c.Ints([]int64{3, 6, 12, 24},
			"num_heads"), window: c.Int(7, "window_size"),
		ratio: c.Float(4, "mlp_ratio"), bias: c.Bool(true, "qkv_bias"),
		absolute: c.Bool(false, "use_absolute_embeddings"),
		act:      c.Str("gelu", "hidden_act"), labels: c.Labels(),
		drop: c.Float(0, "hidden_dropout_prob"), attnDrop: c.Float(0,
			"attention_probs_dropout_prob"), path: c.Float(0.1, "drop_path_rate")}
	if len(s.heads) != len(s.depths) {
		c.complain("depths has %d entries and num_heads %d: they must agree", len(s.depths),
			len(s.heads))
	}
	return s
}

// swin is SwinForImageClassification.
func swin(c *Config, r Run) (*Model, error) {
	s := readSwin(c)
	if s.patch > s.img {
		c.complain("patch_size %d is larger than image_size %d", s.patch, s.img)
	}
	return s.model(c, r, "swin")
}

func (s *swinSpec) model(c *Config, r Run, name string) (*Model, error) {
	if r.Image != 0 && r.Image != s.img {
		c.complain("the image of %d pixels differs from the model's image_size %d", r.Image, s.img)
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	r.Image = s.img
	root := tape.NewModule()
	body := root.Child(name)
	em := body.Child("embeddings")
	var pos *tape.Param
	if s.absolute {
		pos = em.Param("position_embeddings", 1, (s.img/s.patch)*(s.img/s.patch), s.embed)
	}
	proj := conv(em.Child("patch_embeddings"), "projection", s.ch, s.embed, s.patch, s.patch, 0, 1,
		true)
	first := layerNorm(em, "norm", s.embed)
	total, done := int64(0), int64(0)
	for _, d := range s.depths {
		total += d
	}
	list := body.Child("encoder").Child("layers")
	var stages []*swinStage
	for i := range s.depths {
		stages = append(stages, s.stage(list.Child(fmt.Sprint(i)), i, done, total))
		done += s.depths[i]
	}
	features := s.embed << (len(s.depths) - 1)
	final := layerNorm(body, "layernorm", features)
	head := linear(root, "classifier", features, s.labels, true)
	m := &Model{Root: root, Inputs: imageInputs(r, s.ch), Layers: total, Run: r,
		Head: "ForImageClassification"}
	m.Loss = func(g *tape.Graph, in []*tape.Tensor) *tape.Tensor {
		x := newCtx(g, r)
		var pooled *tape.Tensor // made by the body, whose output holds the last hidden states too
		body := func() (out *tape.Tensor) {
			encode := func(e *tape.Tensor) *tape.Tensor { return s.encode(x, e, stages) }
			out, pooled = x.swinBody(in[0], proj, pos, first, final, encode, s.drop)
			return out
		}
		return x.imageClassifier(in, head, body, func(*tape.Tensor) *tape.Tensor { return pooled })
	}
	return m, nil
}

// stage makes a stage before which so many of all blocks were made.
func (s *swinSpec) stage(m *tape.Module, i int, done, total int64) *swinStage {
	st := &swinStage{spec: s, number: i}
	dim, side := s.embed<<i, (s.img/s.patch)>>i
	list := m.Child("blocks")
	for j := range s.depths[i] {
		b := swinBlock{ch: dim, heads: s.heads[i], window: s.window, act: s.act, drop: s.drop,
			attnDrop: s.attnDrop, depth: s.path * float64(done+j) / float64(max(total-1, 1))}
		if s.second {
			b.window = min(s.window, side)
		}
		if j%2 == 1 && (!s.second || side > b.window) {
			b.shift = s.window / 2
		}
		at, inner := list.Child(fmt.Sprint(j)), int64(s.ratio*float64(dim))
		if s.second {
			two := &swinV2Block{swinBlock: b}
			two.build(at, inner, s.bias)
			st.blocks = append(st.blocks, two)
		} else {
			b.build(at, inner, s.bias)
			st.blocks = append(st.blocks, &b)
		}
	}
	if i < len(s.depths)-1 {
		d, width := m.Child("downsample"), 4*dim
		if s.second { // the norm comes after
			width = 2 * dim
		}
		st.reduce, st.norm = linear(d, "reduction", 4*dim, 2*dim, false), layerNorm(d, "norm", width)
	}
	return st
}

func (b *swinBlock) build(m *tape.Module, inner int64, bias bool) {
	a := m.Child("attention")
	b.q, b.k, b.v, b.o = linear(a, "q_proj", b.ch, b.ch, bias),
		linear(a, "k_proj", b.ch, b.ch, bias), linear(a, "v_proj", b.ch, b.ch, bias),
		linear(a, "o_proj", b.ch, b.ch, true)
	p := a.Child("relative_position_bias")
	side := 2*b.window - 1
	b.table = p.Param("relative_position_bias_table", side*side, b.heads)
	p.Buffer(tape.I64, b.window*b.window*b.window*b.window)
	b.norm1, b.norm2 = layerNorm(m, "layernorm_before", b.ch), layerNorm(m, "layernorm_after", b.ch)
	mlp := m.Child("mlp")
	b.fc1, b.fc2 = linear(mlp, "fc1", b.ch, inner, true), linear(mlp, "fc2", inner, b.ch, true)
}

func (c *ctx) swinBody(pixels *tape.Tensor, proj convLayer, pos *tape.Param, first, final norm,
	encode func(*tape.Tensor) *tape.Tensor, drop float64) (last, pooled *tape.Tensor) {
	f := c.Enter()
	var e, h, out *tape.Tensor
	c.In("embeddings", func() {
		g := c.Enter()
		var y *tape.Tensor
		g.Set(&y, c.patches(pixels, proj))
		g.Set(&y, first.layer(c.Graph, y))
		if pos != nil {
			g.Set(&y, c.Add(y, pos.Tensor))
		}
		g.Set(&y, c.Dropout(y, drop))
		f.Set(&e, g.Leave(y))
	})
	f.Set(&h, encode(e))
	f.Set(&out, final.layer(c.Graph, h))
	pooled = c.Reshape(c.GlobalPool(c.Unsqueeze(c.Transpose(out, 1, 2), 2)), out.Shape[0], -1)
	last = out
	return f.Both(last, pooled)
}

func (s *swinSpec) encode(c *ctx, x *tape.Tensor, stages []*swinStage) *tape.Tensor {
	f := c.Enter(x)
	var h, also *tape.Tensor
	f.Set(&h, x)
	n := s.img / s.patch
	for i, st := range stages {
		var more *tape.Tensor
		side := n // a recompute comes after the loop has gone on
		stage := func(a []*tape.Tensor) *tape.Tensor {
			var y *tape.Tensor
			y, more = st.run(c, a[0], side)
			return y
		}
		var out *tape.Tensor
		switch {
		case s.second: // a checkpoint is a whole stage
			out = c.layer(fmt.Sprintf("layers.%d", i), stage, h)
		case c.Checkpointing: // the stage, and each block in it
			out = c.Graph.Checkpoint(stage, h)
		default:
			out = stage([]*tape.Tensor{h})
		}
		f.Set(&h, out)
		f.Set(&also, more)
		if st.reduce.w != nil {
			n = (n + 1) / 2
		}
	}
	return f.Leave(h)
}

// run applies the blocks of one stage to a map with the given number of patches a side, and then
// merges patches. The second version also returns what there was before the merge, the first one
// the result as a picture, which is made for every stage, used or not.
func (st *swinStage) run(c *ctx, x *tape.Tensor, side int64) (out, also *tape.Tensor) {
	f := c.Enter(x)
	var y, before *tape.Tensor
	f.Set(&y, x)
	for j, b := range st.blocks {
		if st.spec.second {
			f.Set(&y, b.run(c, y, side))
			continue
		}
		f.Set(&y, c.layer(fmt.Sprintf("layers.%d.blocks.%d", st.number, j),
			func(a []*tape.Tensor) *tape.Tensor { return b.run(c, a[0], side) }, y))
	}
	f.Set(&before, y)
	if st.reduce.w != nil {
		f.Set(&y, st.merge(c, y, side))
		side = (side + 1) / 2
	}
	also = before
	if !st.spec.second {
		also = c.Contiguous(c.Permute(c.View(y, y.Shape[0], side, side, y.Dim(-1)), 0, 3, 1, 2))
	}
	out = y
	return f.Both(out, also)
}

// merge is SwinPatchMerging.
func (st *swinStage) merge(c *ctx, x *tape.Tensor, n int64) *tape.Tensor {
	norm := func(y *tape.Tensor) *tape.Tensor { return st.norm.layer(c.Graph, y) }
	reduce := func(y *tape.Tensor) *tape.Tensor { return st.reduce.run(c.Graph, y) }
	if st.spec.second {
		return c.mergePatches(x, n, reduce, norm)
	}
	return c.mergePatches(x, n, norm, reduce)
}

// mergePatches makes four neighbours one, by the steps given.
func (c *ctx) mergePatches(x *tape.Tensor, n int64,
	steps ...func(y *tape.Tensor) *tape.Tensor) *tape.Tensor {
	f := c.Enter(x)
	b, ch := x.Shape[0], x.Dim(-1)
	var y *tape.Tensor
	f.Set(&y, c.View(x, b, n, n, ch))
	if n%2 == 1 {
		f.Set(&y, c.Pad(y, 1, 1, 2))
	}
	var parts []*tape.Tensor
	for range 4 {
		parts = append(parts, c.Stride2(y))
	}
	f.Set(&y, c.Cat(-1, parts...))
	f.Set(&y, c.View(y, b, -1, 4*ch))
	for _, step := range steps {
		f.Set(&y, step(y))
	}
	return f.Leave(y)
}

func (b *swinBlock) run(c *ctx, x *tape.Tensor, n int64) *tape.Tensor {
	window, shift := b.window, b.shift
	if n <= window {
		window, shift = n, 0
	}
	bs, ch := x.Shape[0], b.ch
	f := c.Enter()
	var short, h, wins, mask, att, w, back, res *tape.Tensor
	f.Set(&short, x)
	f.Set(&h, b.norm1.layer(c.Graph, x))
	f.Set(&h, c.View(h, bs, n, n, ch))
	by := (window - n%window) % window
	f.Set(&h, c.Pad(h, by, 1, 2))
	np := n + by
	y := h
	if shift > 0 {
		y = c.Roll(h)
	}
	f.Set(&wins, c.windows(y, window))
	f.Set(&wins, c.View(wins, -1, window*window, ch))
	if shift > 0 {
		f.Set(&mask, c.swinMask(np, window, h.DType))
	}
	f.Pair(&att, &w)(b.attend(c, wins, mask, window))
	f.Set(&att, c.Dropout(att, b.drop))
	f.Set(&back, c.View(att, -1, window, window, ch))
	rev := c.View(c.Contiguous(c.Transpose(c.View(back, -1, np/window, np/window, window, window,
		ch), 2, 3)), -1, np, np, ch)
	if shift > 0 {
		rev = c.Roll(rev)
	}
	f.Set(&back, rev)
	f.Set(&back, c.View(back, bs, n*n, ch))
	f.Set(&h, c.Add(short, c.DropPath(back, b.depth)))
	f.Set(&res, h)
	f.Set(&h, b.norm2.layer(c.Graph, h))
	v := &vitBlock{fc1: b.fc1, fc2: b.fc2, act: b.act}
	f.Set(&h, v.mlp(c, h))
	f.Set(&h, c.Add(c.Dropout(h, b.drop), res))
	return f.Leave(h)
}

// windows is window_partition.
func (c *ctx) windows(x *tape.Tensor, window int64) *tape.Tensor {
	f := c.Enter(x)
	b, n, ch := x.Shape[0], x.Shape[1], x.Dim(-1)
	return f.Leave(c.View(c.Contiguous(c.Transpose(c.View(x, b, n/window, window, n/window, window,
		ch), 2, 3)), -1, window, window, ch))
}

// swinMask is get_attn_mask: which pairs of a shifted window are neighbours in the image.
func (c *ctx) swinMask(n, window int64, d tape.DType) *tape.Tensor {
	f := c.Enter()
	var hi, wi, hr, wr, img, wins, m *tape.Tensor
	f.Set(&hi, c.Fresh("mask", tape.I64, n))
	f.Set(&wi, c.Fresh("mask", tape.I64, n))
	region := func() *tape.Tensor {
		long := func() *tape.Tensor {
			ge := c.Fresh("mask", tape.Bool, n)
			l := c.Fresh("mask", tape.I64, n)
			tape.Del(ge)
			return l
		}
		return c.Add(long(), long())
	}
	f.Set(&hr, region())
	f.Set(&wr, region())
	scaled := c.Fresh("mask", tape.I64, 1, n, 1, 1)
	sum := c.Fresh("mask", tape.I64, 1, n, n, 1)
	tape.Del(scaled)
	f.Set(&img, c.Fresh("mask", d, 1, n, n, 1))
	tape.Del(sum)
	f.Set(&wins, c.windows(img, window))
	f.Set(&wins, c.View(wins, -1, window*window))
	f.Set(&m, c.Sub(c.Unsqueeze(wins, 1), c.Unsqueeze(wins, 2)))
	count, area := wins.Shape[0], window*window
	out := c.MaskedFill(m, c.Fresh("mask", tape.Bool, count, area, area))
	out = c.MaskedFill(out, c.Fresh("mask", tape.Bool, count, area, area))
	return f.Leave(out)
}

func (b *swinBlock) attend(c *ctx, x, mask *tape.Tensor, window int64) (out, weights *tape.Tensor) {
	f := c.Enter(x, mask)
	d := b.ch / b.heads
	var q, k, v, bias, big, both, o, w *tape.Tensor
	f.Set(&q, heads(c.Graph, b.q.run(c.Graph, x), d))
	f.Set(&k, heads(c.Graph, b.k.run(c.Graph, x), d))
	f.Set(&v, heads(c.Graph, b.v.run(c.Graph, x), d))
	f.Set(&bias, b.bias(c))
	f.Set(&both, bias)
	if mask != nil {
		nw, area := mask.Shape[0], mask.Dim(-1)
		f.Set(&big, c.Reshape(c.Expand(c.Unsqueeze(c.Unsqueeze(mask, 1), 0), x.Shape[0]/nw, nw, 1,
			area, area), -1, 1, area, area))
		f.Set(&both, c.Add(bias, big))
	}
	f.Pair(&o, &w)(c.attend(attention{dropout: b.attnDrop, groups: 1, upcast: true}, q, k, v, both))
	f.Set(&o, c.Reshape(o, o.Shape[0], o.Shape[1], b.ch))
	f.Set(&o, b.o.run(c.Graph, o))
	return f.Both(o, w)
}

// bias is the relative position bias, [1, heads, area, area].
func (b *swinBlock) bias(c *ctx) *tape.Tensor {
	f := c.Enter()
	area := b.window * b.window
	var t *tape.Tensor
	f.Set(&t, c.Index(b.table.Tensor, c.Borrow(tape.I64, area*area)))
	f.Set(&t, c.View(t, area, area, -1))
	return f.Leave(c.Unsqueeze(c.Contiguous(c.Permute(t, 2, 0, 1)), 0))
}
