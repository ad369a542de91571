package models

import (
	"fmt"

	"memroom/tape"
)

// plainDecoder is GPT-J, CodeGen and GPT-Neo: attention is written out in Python, with scores in
// fp32.
type plainDecoder struct {
	h, inner, heads, layers, vocab, npos int64
	// rotated part of a head, 0 with learned positions (GPT-Neo)
	rot                     int64
	act                     string
	drop, embDrop, attnDrop float64
	tied                    bool
	neo                     bool
	fused                   bool // CodeGen: one projection for q, k and v
}

type plainBlock struct {
	spec       *plainDecoder
	ln1, ln2   norm
	qkv        lin
	q, k, v, o lin
	fc1, fc2   lin
}

func gptj(c *Config, r Run) (*Model, error) {
	s := &plainDecoder{h: c.Int(4096, "n_embd", "hidden_size"),
		heads: c.Int(16, "n_head", "num_attention_heads"), layers: c.Int(28, "n_layer",
			"num_hidden_layers"),
		vocab: c.Int(50400, "vocab_size"), npos: c.Int(2048, "n_positions",
			"max_position_embeddings"), rot: c.Int(64, "rotary_dim"),
		act: c.Str("gelu_new", "activation_function"), drop: c.Float(0, "resid_pdrop"),
		embDrop:  c.Float(0, "embd_pdrop"),
		attnDrop: c.Float(0, "attn_pdrop"), tied: c.Bool(false, "tie_word_embeddings"),
		fused: c.Type() == "codegen"}
	s.inner = c.Int(4*s.h, "n_inner")
	return s.checked(c, r)
}

func gptNeo(c *Config, r Run) (*Model, error) {
	s := &plainDecoder{h: c.Int(2048, "hidden_size"), heads: c.Int(16, "num_heads",
		"num_attention_heads"), layers: c.Int(24, "num_layers", "num_hidden_layers"),
		vocab: c.Int(50257, "vocab_size"), npos: c.Int(2048, "max_position_embeddings"),
		act:  c.Str("gelu_new", "activation_function"),
		drop: c.Float(0, "resid_dropout"), embDrop: c.Float(0, "embed_dropout"),
		attnDrop: c.Float(0, "attention_dropout"),
		tied:     c.Bool(true, "tie_word_embeddings"), neo: true}
	s.inner = c.Int(4*s.h, "intermediate_size")
	return s.checked(c, r)
}

func (s *plainDecoder) checked(c *Config, r Run) (*Model, error) {
	c.divides(s.h, s.heads, "hidden_size by num_attention_heads")
	if s.fused {
		c.divides(s.heads, logicalCores, "num_attention_heads by the parts of the projection")
	}
	if s.rot > s.h/max(s.heads, 1) || s.rot%2 != 0 {
		c.complain("rotary_dim %d: expected an even number of at most the %d elements of a head",
			s.rot, s.h/max(s.heads, 1))
	}
	c.longEnough(r.Seq, s.npos)
	if err := c.Err(); err != nil {
		return nil, err
	}
	r.Attn = "eager"
	return s.model(r), nil
}

func (s *plainDecoder) model(r Run) *Model {
	root := tape.NewModule()
	body := root.Child("transformer")
	table := embedding(body, "wte", s.vocab, s.h)
	var pos *tape.Param
	if s.neo {
		pos = embedding(body, "wpe", s.npos, s.h)
	}
	list := body.Child("h")
	var blocks []*plainBlock
	for i := range s.layers {
		blocks = append(blocks, s.block(list.Child(fmt.Sprint(i))))
	}
	final := layerNorm(body, "ln_f", s.h)
	head := causalHead(root, r, table, s.tied, s.vocab, s.h)
	if !s.neo && !isClassifier(r.arch) {
		head.b = root.Last().Param("bias", s.vocab)
	}
	return causalModel(root, r, head, s.layers, false, func(x *ctx, ids *tape.Tensor) *tape.Tensor {
		return s.run(x, ids, table, pos, blocks, final)
	})
}

func (s *plainDecoder) block(m *tape.Module) *plainBlock {
	b := &plainBlock{spec: s, ln1: layerNorm(m, "ln_1", s.h)}
	a := m.Child("attn")
	if s.neo {
		a = a.Child("attention")
	}
	switch {
	case s.fused:
		b.qkv, b.o = linear(a, "qkv_proj", s.h, 3*s.h, false),
			linear(a, "out_proj", s.h, s.h, false)
	default:
		b.k, b.v, b.q = linear(a, "k_proj", s.h, s.h, false), linear(a, "v_proj", s.h, s.h, false),
			linear(a, "q_proj", s.h, s.h, false)
		b.o = linear(a, "out_proj", s.h, s.h, s.neo)
	}
	if s.neo {
		a.Buffer(tape.Bool, s.npos*s.npos)
		b.ln2 = layerNorm(m, "ln_2", s.h)
		mlp := m.Child("mlp")
		b.fc1, b.fc2 = linear(mlp, "c_fc", s.h, s.inner, true),
			linear(mlp, "c_proj", s.inner, s.h, true)
		return b
	}
	a.Buffer(tape.F32, s.npos*s.rot)
	mlp := m.Child("mlp")
	b.fc1, b.fc2 = linear(mlp, "fc_in", s.h, s.inner, true),
		linear(mlp, "fc_out", s.inner, s.h, true)
	return b
}

func (s *plainDecoder) run(c *ctx, ids *tape.Tensor, table, posTable *tape.Param,
	blocks []*plainBlock, final norm) *tape.Tensor {
	f := c.Enter()
	b, n := ids.Shape[0], ids.Shape[1]
	var e, pos, mask, p, h, weights *tape.Tensor
	c.In("embedding", func() {
		f.Set(&e, c.Embedding(ids, table))
		f.Set(&pos, c.positions(n))
		f.Set(&mask, c.causalMask(b, n, e.DType))
		f.Set(&h, e)
		if posTable != nil {
			f.Set(&p, c.Embedding(pos, posTable))
			f.Set(&h, c.Add(e, p))
		}
		f.Set(&h, c.Dropout(h, s.embDrop))
	})
	for i, blk := range blocks {
		var w *tape.Tensor
		out := c.layer(fmt.Sprintf("h.%d", i), func(a []*tape.Tensor) *tape.Tensor {
			var y *tape.Tensor
			y, w = blk.run(c, a[0], a[1], a[2])
			return y
		}, h, mask, pos)
		f.Set(&weights, w) // part of the block's result, until the next block has run
		f.Set(&h, out)
	}
	c.In("ln_f", func() { f.Set(&h, final.layer(c.Graph, h)) })
	return f.Leave(c.View(h, -1, n, s.h))
}

func (b *plainBlock) run(c *ctx, x, mask, pos *tape.Tensor) (out, weights *tape.Tensor) {
	f := c.Enter()
	s := b.spec
	var res, h, att, w, ff *tape.Tensor
	f.Set(&res, x)
	f.Set(&h, b.ln1.layer(c.Graph, x))
	a, p := b.attend(c, h, mask, pos)
	f.Set(&att, a)
	f.Set(&w, p)
	if s.neo {
		f.Set(&h, c.Add(att, res))
		f.Set(&res, h)
		f.Set(&h, b.ln2.layer(c.Graph, h))
		f.Set(&ff, c.mlp(b.fc1, b.fc2, s.act, s.drop, h))
		f.Set(&h, c.Add(res, ff))
	} else {
		f.Set(&ff, c.mlp(b.fc1, b.fc2, s.act, s.drop, h))
		f.Set(&h, c.Add(c.Add(att, ff), res))
	}
	out, weights = h, w
	f.Leave(out, weights)
	return out, weights
}

func (b *plainBlock) attend(c *ctx, x, mask, pos *tape.Tensor) (out, weights *tape.Tensor) {
	f := c.Enter(x)
	s := b.spec
	d := s.h / s.heads
	var q, k, v, o, w *tape.Tensor
	if s.neo {
		f.Set(&q, b.q.run(c.Graph, x))
		f.Set(&k, b.k.run(c.Graph, x))
		f.Set(&v, b.v.run(c.Graph, x))
		f.Set(&q, heads(c.Graph, q, d))
		f.Set(&k, heads(c.Graph, k, d))
		f.Set(&v, heads(c.Graph, v, d))
	} else {
		b.project(c, f, x, &q, &k, &v)
		b.rotate(c, f, &q, &k, pos)
		f.Set(&k, c.Permute(k, 0, 2, 1, 3))
		f.Set(&q, c.Permute(q, 0, 2, 1, 3))
	}
	ck, cv := c.cached(k, v)
	f.Set(&k, ck)
	f.Set(&v, cv)
	a, p := b.scores(c, q, k, v, mask)
	f.Set(&o, a)
	f.Set(&w, p)
	f.Set(&o, c.View(c.Contiguous(c.Permute(o, 0, 2, 1, 3)), x.Shape[0], x.Shape[1], s.h))
	f.Set(&o, b.o.run(c.Graph, o))
	f.Set(&o, c.Dropout(o, s.drop))
	out, weights = o, w
	f.Leave(out, weights)
	return out, weights
}

// project makes q and k as [B, S, heads, d], and v with its heads before its positions.
func (b *plainBlock) project(c *ctx, f *tape.Frame, x *tape.Tensor, q, k, v **tape.Tensor) {
	d := b.spec.h / b.spec.heads
	if b.spec.fused {
		b.projectParts(c, f, x, q, k, v)
		return
	}
	split := func(t *tape.Tensor) *tape.Tensor { return c.View(t, x.Shape[0], x.Shape[1], -1, d) }
	f.Set(q, b.q.run(c.Graph, x))
	f.Set(k, b.k.run(c.Graph, x))
	f.Set(v, b.v.run(c.Graph, x))
	f.Set(q, split(*q))
	f.Set(k, split(*k))
	f.Set(v, heads(c.Graph, *v, d))
}

// logicalCores is into how many parts CodeGen's projection is ordered.
const logicalCores = 4

// projectParts is CodeGen's projection: q, v and k of every part stand next to each other, and are
// copied apart.
func (b *plainBlock) projectParts(c *ctx, f *tape.Frame, x *tape.Tensor, q, k, v **tape.Tensor) {
	s := b.spec
	d, local := s.h/s.heads, s.h/logicalCores
	var qkv, parts *tape.Tensor
	f.Set(&qkv, b.qkv.run(c.Graph, x))
	f.Set(&parts, c.Reshape(qkv, x.Shape[0], x.Shape[1], logicalCores, 3*local))
	three := c.Split(parts, -1, local, local, local)
	f.Set(q, three[0])
	f.Set(v, three[1])
	f.Set(k, three[2])
	split := func(t *tape.Tensor) *tape.Tensor {
		return c.Reshape(t, x.Shape[0], x.Shape[1], s.heads, d)
	}
	f.Set(q, split(*q))
	f.Set(k, split(*k))
	f.Set(v, split(*v))
	f.Set(v, c.Permute(*v, 0, 2, 1, 3))
}

// scores is _attn: q and k in fp32, mask, softmax, and the probabilities in the type of v.
func (b *plainBlock) scores(c *ctx, q, k, v, mask *tape.Tensor) (out, weights *tape.Tensor) {
	f := c.Enter()
	var qf, kf, w, low *tape.Tensor
	f.Set(&qf, c.To(q, tape.F32))
	f.Set(&kf, c.To(k, tape.F32))
	f.Set(&w, c.Matmul(qf, c.Transpose(kf, -1, -2)))
	if b.spec.neo {
		f.Set(&low, c.Fresh("mask", w.DType))
		f.Set(&w, c.WhereElse(c.Borrow(tape.Bool, 1, 1, w.Dim(-2), w.Dim(-1)), w, low))
	} else if !b.spec.fused {
		f.Set(&w, c.Scale(w))
	}
	f.Set(&w, c.Add(w, mask))
	if b.spec.fused {
		f.Set(&w, c.Scale(w))
	}
	f.Set(&w, c.Softmax(w, w.DType))
	f.Set(&w, c.To(w, v.DType))
	f.Set(&w, c.Dropout(w, b.spec.attnDrop))
	out, weights = c.Matmul(w, v), w
	f.Leave(out, weights)
	return out, weights
}

// rotate turns pairs of neighbouring elements by sines and cosines looked up in a table.
func (b *plainBlock) rotate(c *ctx, f *tape.Frame, q, k **tape.Tensor, pos *tape.Tensor) {
	s := b.spec
	n, d := (*k).Shape[1], (*k).Dim(-1)
	var table, index, both, sin, cos *tape.Tensor
	keep := func(v **tape.Tensor, t *tape.Tensor) { *v = f.Keep(t) }
	if s.fused { // CodeGen looks its table up as it is, in the type of the weights
		keep(&both, c.Fresh("rotary table", c.Float, 1, n, s.rot))
	} else {
		keep(&table, c.Fresh("rotary table", c.Float, 1, s.npos, s.rot))
		keep(&index, c.Fresh("rotary table", tape.I64, 1, n, s.rot))
		keep(&both, c.To(c.Fresh("rotary table", c.Float, 1, n, s.rot), (*k).DType))
	}
	parts := c.Split(both, -1, s.rot/2, s.rot/2)
	keep(&sin, parts[0])
	keep(&cos, parts[1])
	kr, kp := hold(f, c.Slice(*k, -1, s.rot)), f.Keep(c.Slice(*k, -1, d-s.rot))
	qr, qp := hold(f, c.Slice(*q, -1, s.rot)), f.Keep(c.Slice(*q, -1, d-s.rot))
	f.Set(kr, c.rotatePairs(*kr, sin, cos))
	f.Set(qr, c.rotatePairs(*qr, sin, cos))
	f.Set(k, c.Cat(-1, *kr, kp))
	f.Set(q, c.Cat(-1, *qr, qp))
}

// rotatePairs is apply_rotary_pos_emb of GPT-J.
func (c *ctx) rotatePairs(x, sin, cos *tape.Tensor) *tape.Tensor {
	f := c.Enter()
	var s, o *tape.Tensor
	twice := func(t *tape.Tensor) *tape.Tensor {
		return c.Fresh("rotary table", t.DType, 1, t.Shape[1], 1, 2*t.Dim(-1))
	}
	f.Set(&s, twice(sin))
	f.Set(&o, twice(cos))
	return f.Leave(c.Add(c.Mul(x, o), c.Mul(c.everyTwo(x), s)))
}

// everyTwo is rotate_every_two: neighbours change places, the first negated.
func (c *ctx) everyTwo(x *tape.Tensor) *tape.Tensor {
	f := c.Enter()
	var even, odd, y *tape.Tensor
	f.Set(&even, c.Step2(x, -1))
	f.Set(&odd, c.Step2(x, -1))
	f.Set(&y, c.Cat(-1, c.Unsqueeze(c.Neg(odd), -1), c.Unsqueeze(even, -1)))
	return f.Leave(c.View(y, x.Shape...))
}
