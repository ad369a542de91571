package models

import (
	"fmt"

	"memroom/tape"
)

type modernSpec struct {
	*encoder
	attnBias, mlpBias, normBias bool
	embDrop, mlpDrop            float64
	window                      int64
	sliding                     []bool
	both                        bool // some layers slide and some do not: two rotary tables
	headBias, outBias           bool
	headAct                     string
	mean                        bool // a sample is classified by the mean of its tokens
}

type modernBlock struct {
	spec         *modernSpec
	norm1, norm2 norm
	qkv, o       lin
	wi, wo       lin
	slides       bool
}

// modernBert is ModernBertForMaskedLM and the classifiers on the same body.
func modernBert(c *Config, r Run) (*Model, error) {
	s := &modernSpec{encoder: readEncoder(c, Run{})}
	s.h, s.inner, s.heads, s.layers = c.Int(768, "hidden_size"), c.Int(1152, "intermediate_size"),
		c.Int(12, "num_attention_heads"), c.Int(22, "num_hidden_layers")
	s.vocab, s.act, s.attnDrop = c.Int(50368, "vocab_size"), c.Str("gelu", "hidden_activation"),
		c.Float(0, "attention_dropout")
	s.attnBias, s.mlpBias, s.normBias = c.Bool(false, "attention_bias"), c.Bool(false, "mlp_bias"),
		c.Bool(false, "norm_bias")
	s.embDrop, s.mlpDrop, s.clsDrop = c.Float(0, "embedding_dropout"), c.Float(0, "mlp_dropout"),
		c.Float(0, "classifier_dropout")
	s.headBias, s.outBias, s.headAct = c.Bool(false, "classifier_bias"),
		c.Bool(true, "decoder_bias"), c.Str("gelu", "classifier_activation")
	s.window, s.mean = c.Int(128, "local_attention")/2, c.Str("cls", "classifier_pooling") == "mean"
	types, every := c.Strings("layer_types"), c.Int(3, "global_attn_every_n_layers")
	for i := range s.layers {
		slides := i%every != 0
		if int(i) < len(types) {
			slides = types[i] == "sliding_attention"
		}
		s.sliding = append(s.sliding, slides)
		s.both = s.both || slides != s.sliding[0]
	}
	if c.Bool(false, "sparse_prediction") {
		c.complain("sparse_prediction depends on how many tokens are masked and is not described")
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	root := tape.NewModule()
	body := root.Child("model")
	em := body.Child("embeddings")
	word := embedding(em, "tok_embeddings", s.vocab, s.h)
	first := s.norm(em, "norm")
	list := body.Child("layers")
	var blocks []*modernBlock
	for i := range s.layers {
		blocks = append(blocks, s.block(list.Child(fmt.Sprint(i)), i))
	}
	final := s.norm(body, "final_norm")
	rot := body.Child("rotary_emb")
	for range s.tables() {
		rot.Buffer(tape.F32, s.h/s.heads/2)
		rot.Buffer(tape.F32, s.h/s.heads/2)
	}
	run := unpooled(func(x *ctx, in []*tape.Tensor) *tape.Tensor {
		return s.run(x, in[0], word,
			first, blocks, final)
	})
	return s.withHead(root, r, word, run), nil
}

func (s *modernSpec) tables() int {
	if s.both {
		return 2
	}
	return 1
}

// norm is a layer norm, mostly without bias.
func (s *modernSpec) norm(m *tape.Module, name string) norm {
	if s.normBias {
		return layerNorm(m, name, s.h)
	}
	return rmsNorm(m, name, s.h)
}

func (s *modernSpec) block(m *tape.Module, i int64) *modernBlock {
	b := &modernBlock{spec: s, slides: s.sliding[i]}
	if i > 0 {
		b.norm1 = s.norm(m, "attn_norm")
	}
	a := m.Child("attn")
	b.qkv, b.o = linear(a, "Wqkv", s.h, 3*s.h, s.attnBias), linear(a, "Wo", s.h, s.h, s.attnBias)
	b.norm2 = s.norm(m, "mlp_norm")
	mlp := m.Child("mlp")
	b.wi, b.wo = linear(mlp, "Wi", s.h, 2*s.inner, s.mlpBias),
		linear(mlp, "Wo", s.inner, s.h, s.mlpBias)
	return b
}

// withHead puts the head that the configuration names on the body. All but question answering share
// a dense layer.
func (s *modernSpec) withHead(root *tape.Module, r Run, word *tape.Param, run body) *Model {
	m := root.Child("head")
	dense, ln := linear(m, "dense", s.h, s.h, s.headBias), s.norm(m, "norm")
	predict := func(c *ctx, x *tape.Tensor) *tape.Tensor {
		f := c.Enter(x)
		return f.Leave(ln.layer(c.Graph, c.Activation(s.headAct, dense.run(c.Graph, x))))
	}
	if isClassifier(s.arch) {
		return s.classify(root, r, run, predict)
	}
	d := root.Child("decoder")
	out := lin{w: word}
	if s.tied {
		d.Tie(word)
	} else {
		out.w = d.Param("weight", s.vocab, s.h)
	}
	if s.outBias {
		out.b = d.Param("bias", s.vocab)
	}
	model := &Model{Root: root, Inputs: maskedInputs(r), Layers: s.layers, Run: r,
		Head: "ForMaskedLM"}
	model.Loss = func(g *tape.Graph, in []*tape.Tensor) *tape.Tensor {
		x := newCtx(g, r)
		f := g.Enter()
		var h, logits *tape.Tensor
		last, _ := run(x, in)
		f.Set(&h, last)
		x.In("decoder", func() {
			f.Set(&logits, x.logits(func() *tape.Tensor {
				return out.run(g,
					predict(x, h))
			}))
		})
		var loss *tape.Tensor
		x.In("loss", func() { loss = x.wideLoss(logits, in[0]) })
		return f.Leave(loss)
	}
	return model
}

func (s *modernSpec) classify(root *tape.Module, r Run, run body,
	predict func(c *ctx, x *tape.Tensor) *tape.Tensor) *Model {
	headed := func(x *ctx, in []*tape.Tensor) (last, pooled *tape.Tensor) {
		h, _ := run(x, in)
		if s.arch == "ForSequenceClassification" {
			return h, nil
		}
		f := x.Enter(h)
		return f.Leave(predict(x, h)), nil
	}
	return s.classifier(root, r, headed, func() sentence {
		cls := linear(root, "classifier", s.h, s.labels, true)
		return func(c *ctx, last, _ *tape.Tensor) *tape.Tensor {
			f := c.Enter()
			var x *tape.Tensor
			if s.mean {
				mask := c.Borrow(tape.I64, last.Shape[0], last.Shape[1], 1)
				f.Set(&x, c.Div(c.Sum(c.Mul(last, mask), false, 1),
					c.Fresh("mask", tape.I64, last.Shape[0], 1)))
			} else {
				f.Set(&x, c.Select(last, 1))
			}
			f.Set(&x, predict(c, x))
			f.Set(&x, c.Dropout(x, s.clsDrop))
			return f.Leave(cls.run(c.Graph, x))
		}
	})
}

func (s *modernSpec) run(c *ctx, ids *tape.Tensor, word *tape.Param, first norm,
	blocks []*modernBlock, final norm) *tape.Tensor {
	f := c.Enter()
	b, n := ids.Shape[0], ids.Shape[1]
	var pos, e, h, mask, near, cos, sin, cos2, sin2 *tape.Tensor
	c.In("embeddings", func() {
		f.Set(&pos, c.Unsqueeze(c.Fresh("positions", tape.I64, n), 0))
		// the arguments of the masks keep it
		f.Set(&e, c.Dropout(first.layer(c.Graph, c.Embedding(ids, word)), s.embDrop))
		f.Set(&h, e)
		f.Set(&mask, c.fullMask(b, n, h.DType))
		f.Set(&near, c.nearMask(b, n, s.window, h.DType))
		f.Pair(&cos, &sin)(c.rotaryTable(rotary{dim: s.h / s.heads}, pos, h.DType))
		f.Set(&cos2, cos)
		f.Set(&sin2, sin)
		if s.both {
			f.Pair(&cos2, &sin2)(c.rotaryTable(rotary{dim: s.h / s.heads}, pos, h.DType))
		}
	})
	for i, blk := range blocks {
		m, co, si := mask, cos, sin
		if blk.slides {
			m, co, si = near, cos2, sin2
		}
		f.Set(&h, c.layer(fmt.Sprintf("layers.%d", i),
			func(a []*tape.Tensor) *tape.Tensor { return blk.run(c, a[0], a[1], a[2], a[3]) }, h,
			co, si, m))
	}
	f.Set(&h, final.layer(c.Graph, h))
	return f.Leave(h)
}

func (b *modernBlock) run(c *ctx, x, cos, sin, mask *tape.Tensor) *tape.Tensor {
	f := c.Enter()
	var att, w, h *tape.Tensor
	in := x
	if b.norm1.w != nil {
		in = b.norm1.layer(c.Graph, x)
	}
	f.Pair(&att, &w)(b.attend(c, in, cos, sin, mask))
	f.Set(&h, c.Add(x, att))
	f.Set(&h, c.Add(h, b.mlp(c, b.norm2.layer(c.Graph, h))))
	return f.Leave(h)
}

func (b *modernBlock) mlp(c *ctx, x *tape.Tensor) *tape.Tensor {
	f := c.Enter(x)
	var in, gate *tape.Tensor
	parts := c.Split(b.wi.run(c.Graph, x), -1, b.spec.inner, b.spec.inner)
	f.Set(&in, parts[0])
	f.Set(&gate, parts[1])
	return f.Leave(b.wo.run(c.Graph, c.Dropout(c.Mul(c.Activation(b.spec.act, in), gate),
		b.spec.mlpDrop)))
}

func (b *modernBlock) attend(c *ctx, x, cos, sin, mask *tape.Tensor) (out, weights *tape.Tensor) {
	f := c.Enter(x)
	s := b.spec
	d := s.h / s.heads
	var qkv, q, k, v, o, w *tape.Tensor
	f.Set(&qkv, b.qkv.run(c.Graph, x))
	f.Set(&qkv, c.View(qkv, x.Shape[0], x.Shape[1], 3, s.heads, d))
	parts := c.Unbind(qkv, 2)
	f.Set(&q, parts[0])
	f.Set(&k, parts[1])
	f.Set(&v, parts[2])
	f.Set(&q, c.Transpose(q, 1, 2))
	f.Set(&k, c.Transpose(k, 1, 2))
	f.Set(&v, c.Transpose(v, 1, 2))
	byHalvesWide.run(c, f, &q, &k, cos, sin, d)
	f.Pair(&o, &w)(c.attend(attention{dropout: s.attnDrop, groups: 1, upcast: true}, q, k, v, mask))
	f.Set(&o, c.Contiguous(c.Reshape(o, o.Shape[0], o.Shape[1], s.h)))
	f.Set(&o, c.Dropout(b.o.run(c.Graph, o), s.attnDrop))
	return f.Both(o, w)
}
