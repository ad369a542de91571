package models

import (
	"fmt"

	"memroom/tape"
)

// speechSpec is wav2vec 2.0 and HuBERT.
type speechSpec struct {
	h, inner, heads, layers, vocab, labels, proj int64
	dims, kernels, strides                       []int64
	act, featAct                                 string
	drop, actDrop, attnDrop, projDrop, finalDrop float64
	// layer norms after every convolution; norms first in the blocks
	layered, convBias, stable bool
	projNorm                  bool
	masks                     bool // parts of the input are replaced at random
	taps, groups              int64
	hubert                    bool
}

type speechBlock struct {
	spec         *speechSpec
	att          s2sAttention
	norm1, norm2 norm
	fc1, fc2     lin
}

type speechNet struct {
	spec    *speechSpec
	convs   []convLayer
	norms   []norm // after each convolution; or after the first alone
	ln      norm   // of the features
	project lin
	spare   *tape.Param
	gain    *tape.Param // the positional convolution's weight is a direction and a gain
	dir     *tape.Param
	posBias *tape.Param
	encNorm norm
	blocks  []*speechBlock
}

// wav2vec2 is Wav2Vec2ForCTC and HubertForCTC, or the classifier of a whole sample. The sequence
// counts audio samples.
func wav2vec2(c *Config, r Run) (*Model, error) {
	s := &speechSpec{h: c.Int(768, "hidden_size"), inner: c.Int(3072, "intermediate_size"),
		heads: c.Int(12, "num_attention_heads"), layers: c.Int(12, "num_hidden_layers"),
		vocab: c.Int(32, "vocab_size"), labels: c.Labels(), proj: c.Int(256,
			"classifier_proj_size"), dims: c.Ints([]int64{512, 512, 512, 512, 512, 512, 512},
			"conv_dim"),
		kernels: c.Ints([]int64{10, 3, 3, 3, 3, 2, 2}, "conv_kernel"),
		strides: c.Ints([]int64{5, 2, 2, 2, 2, 2, 2}, "conv_stride"),
		act:     c.Str("gelu", "hidden_act"),
		featAct: c.Str("gelu", "feat_extract_activation"), drop: c.Float(0.1, "hidden_dropout"),
		actDrop: c.Float(0.1, "activation_dropout"), attnDrop: c.Float(0.1,
			"attention_dropout"),
		projDrop: c.Float(0, "feat_proj_dropout"), finalDrop: c.Float(0.1, "final_dropout"),
		layered:  c.Str("group", "feat_extract_norm") == "layer",
		convBias: c.Bool(false, "conv_bias"),
		stable:   c.Bool(false, "do_stable_layer_norm"), projNorm: true,
		taps: c.Int(128, "num_conv_pos_embeddings"), groups: c.Int(16,
			"num_conv_pos_embedding_groups"), hubert: c.Type() == "hubert"}
	if s.hubert {
		s.projNorm = c.Bool(true, "feat_proj_layer_norm")
	}
	spare := c.Float(0.05, "mask_time_prob") > 0 || c.Float(0, "mask_feature_prob") > 0
	s.masks = spare && c.Bool(true, "apply_spec_augment")
	if len(s.dims) != len(s.kernels) || len(s.dims) != len(s.strides) || len(s.dims) == 0 {
		c.complain("conv_dim, conv_kernel and conv_stride have %d, %d and %d entries: they must agree", len(s.dims), len(s.kernels), len(s.strides))
	}
	c.divides(s.h, s.heads, "hidden_size by num_attention_heads")
	c.divides(s.h, s.groups, "hidden_size by num_conv_pos_embedding_groups")
	for _, name := range []string{"add_adapter", "conv_pos_batch_norm", "use_weighted_layer_sum"} {
		if c.Bool(false, name) {
			c.complain("%s is not described", name)
		}
	}
	if c.Has("adapter_attn_dim") {
		c.complain("adapter_attn_dim is not described")
	}
	drops := c.Float(0.1, "layerdrop") > 0
	if err := c.Err(); err != nil {
		return nil, err
	}
	root := tape.NewModule()
	n := s.build(root.Child(c.Type()), spare)
	m := s.withHead(root, r, n)
	if drops {
		m.Notes = append(m.Notes, "layerdrop leaves layers out at random: all of them are counted")
		m.Loose = true
	}
	return m, nil
}

func (s *speechSpec) build(m *tape.Module, spare bool) *speechNet {
	n := &speechNet{spec: s}
	if spare {
		n.spare = m.Param("masked_spec_embed", s.h)
	}
	list := m.Child("feature_extractor").Child("conv_layers")
	in := int64(1)
	for i, out := range s.dims {
		l := list.Child(fmt.Sprint(i))
		k := l.Child("conv")
		conv := convLayer{w: k.Param("weight", out, in, 1, s.kernels[i]), stride: s.strides[i],
			groups: 1, dilation: 1, flat: true}
		if s.convBias {
			conv.b = k.Param("bias", out)
		}
		n.convs = append(n.convs, conv)
		if s.layered || i == 0 {
			n.norms = append(n.norms, layerNorm(l, "layer_norm", out))
		}
		in = out
	}
	p := m.Child("feature_projection")
	if s.projNorm {
		n.ln = layerNorm(p, "layer_norm", in)
	}
	n.project = linear(p, "projection", in, s.h, true)
	enc := m.Child("encoder")
	k := enc.Child("pos_conv_embed").Child("conv")
	n.posBias = k.Param("bias", s.h)
	w := k.Child("parametrizations").Child("weight")
	n.gain, n.dir = w.Param("original0", 1, 1, s.taps), w.Param("original1", s.h, s.h/s.groups, 1,
		s.taps)
	n.encNorm = layerNorm(enc, "layer_norm", s.h)
	blocks := enc.Child("layers")
	spec := &seq2seq{h: s.h, attnDrop: s.attnDrop, keyBias: true}
	for i := range s.layers {
		l := blocks.Child(fmt.Sprint(i))
		b := &speechBlock{spec: s, att: spec.attention(l.Child("attention"), s.heads, false, false)}
		b.norm1 = layerNorm(l, "layer_norm", s.h)
		ff := l.Child("feed_forward")
		b.fc1, b.fc2 = linear(ff, "intermediate_dense", s.h, s.inner, true),
			linear(ff, "output_dense", s.inner, s.h, true)
		b.norm2 = layerNorm(l, "final_layer_norm", s.h)
		n.blocks = append(n.blocks, b)
	}
	return n
}

func (s *speechSpec) withHead(root *tape.Module, r Run, n *speechNet) *Model {
	m := &Model{Root: root, Layers: s.layers, Run: r, Head: "ForCTC"}
	if r.arch == "ForSequenceClassification" {
		m.Head = r.arch
		proj, cls := linear(root, "projector", s.h, s.proj, true),
			linear(root, "classifier", s.proj, s.labels, true)
		m.Inputs = func(g *tape.Graph) []*tape.Tensor {
			return []*tape.Tensor{g.Input(r.Float, r.Batch, 1, 1, r.Seq),
				g.Input(tape.I64, r.Batch)}
		}
		m.Loss = func(g *tape.Graph, in []*tape.Tensor) *tape.Tensor {
			x := newCtx(g, r)
			f := g.Enter()
			var h, pooled, logits *tape.Tensor
			f.Set(&h, n.run(x, in[0], f))
			f.Set(&h, proj.run(g, h))
			f.Set(&pooled, g.Mean(h, false, 1))
			f.Set(&logits, cls.run(g, pooled))
			return f.Leave(x.plainLoss(logits, in[1]))
		}
		return m
	}
	head := linear(root, "lm_head", s.h, s.vocab, true)
	text := max(r.Seq/1600, 1) // ten letters a second at 16 kHz
	m.Inputs = func(g *tape.Graph) []*tape.Tensor {
		return []*tape.Tensor{g.Input(r.Float, r.Batch, 1, 1, r.Seq),
			g.Input(tape.I64, r.Batch, text)}
	}
	m.Loss = func(g *tape.Graph, in []*tape.Tensor) *tape.Tensor {
		x := newCtx(g, r)
		f := g.Enter()
		var h, last, logits, ones, logp *tape.Tensor
		f.Set(&last, n.run(x, in[0], f)) // the body's output keeps it
		f.Set(&h, g.Dropout(last, s.finalDrop))
		f.Set(&logits, x.logits(func() *tape.Tensor { return head.run(g, h) }))
		f.Set(&ones, g.Fresh("lengths", tape.I64, in[0].Shape[0], in[0].Shape[3]))
		var loss *tape.Tensor
		x.In("loss", func() {
			f.Set(&logp, x.logits(func() *tape.Tensor {
				return g.Transpose(g.LogSoftmaxAs(logits,
					tape.F32), 0, 1)
			}))
			loss = g.CTC(logp, in[1].Dim(-1))
		})
		return f.Leave(loss)
	}
	return m
}

// run returns the encoder's result; what the body's output keeps next to it goes into the caller's
// frame.
func (n *speechNet) run(c *ctx, audio *tape.Tensor, outer *tape.Frame) *tape.Tensor {
	f := c.Enter()
	s := n.spec
	var features, normed, h *tape.Tensor
	f.Set(&features, n.features(c, audio))
	f.Set(&features, c.Transpose(c.View(features, features.Shape[0], features.Shape[1], -1), 1, 2))
	c.In("feature_projection", func() {
		f.Set(&normed, features)
		if s.projNorm {
			f.Set(&normed, n.ln.layer(c.Graph, features))
		}
		if !s.hubert {
			outer.Also(normed)
			f.Set(&features, normed)
		}
		f.Set(&h, c.Dropout(n.project.run(c.Graph, normed), s.projDrop))
		f.Set(&normed, nil)
	})
	if s.masks { // a boolean mask, and where it holds the embedding of nothing
		mask := c.Fresh("mask", tape.Bool, h.Shape[0], h.Shape[1])
		tape.Del(mask)
	}
	f.Set(&h, n.encode(c, h))
	return f.Leave(h)
}

// features is the stack of convolutions over raw audio.
func (n *speechNet) features(c *ctx, audio *tape.Tensor) *tape.Tensor {
	f := c.Enter()
	var h *tape.Tensor
	f.Set(&h, c.WantGrad(audio)) // the feature encoder asks for it, for the sake of checkpointing
	for i := range n.convs {
		c.In(fmt.Sprintf("feature_extractor.conv_layers.%d", i), func() {
			if c.Checkpointing { // they are checkpointed like the blocks of the encoder
				f.Set(&h, c.Graph.Checkpoint(func(a []*tape.Tensor) *tape.Tensor {
					return n.convolve(c, i, a[0])
				}, h))
				return
			}
			f.Set(&h, n.convolve(c, i, h))
		})
	}
	return f.Leave(h)
}

func (n *speechNet) convolve(c *ctx, i int, h *tape.Tensor) *tape.Tensor {
	l := c.Enter(h)
	var y *tape.Tensor
	l.Set(&y, n.convs[i].run(c, h))
	switch {
	case n.spec.layered:
		shape := y.Shape
		l.Set(&y, c.Transpose(c.View(y, shape[0], shape[1], -1), 1, 2))
		l.Set(&y, n.norms[i].layer(c.Graph, y))
		l.Set(&y, c.Unsqueeze(c.Transpose(y, 1, 2), 2))
	case i == 0:
		l.Set(&y, c.GroupNorm(y, n.norms[0].w, n.norms[0].b))
	}
	l.Set(&y, c.Activation(n.spec.featAct, y))
	return l.Leave(y)
}

func (n *speechNet) encode(c *ctx, x *tape.Tensor) *tape.Tensor {
	f := c.Enter(x)
	s := n.spec
	var pos, h *tape.Tensor
	c.In("encoder.pos_conv_embed", func() { f.Set(&pos, n.position(c, x)) })
	f.Set(&h, c.Add(x, pos))
	if !s.stable {
		f.Set(&h, n.encNorm.layer(c.Graph, h))
	}
	f.Set(&h, c.Dropout(h, s.drop))
	for i, b := range n.blocks {
		f.Set(&h, c.layer(fmt.Sprintf("encoder.layers.%d", i),
			func(a []*tape.Tensor) *tape.Tensor { return b.run(c, a[0]) }, h))
	}
	if s.stable {
		f.Set(&h, n.encNorm.layer(c.Graph, h))
	}
	return f.Leave(h)
}

// position is the positional convolution, wide and in groups, of a weight in direction and gain.
func (n *speechNet) position(c *ctx, x *tape.Tensor) *tape.Tensor {
	f := c.Enter(x)
	s := n.spec
	var h, w *tape.Tensor
	f.Set(&h, c.Unsqueeze(c.Transpose(x, 1, 2), 2))
	f.Set(&w, c.WeightNorm(n.dir.Tensor, n.gain.Tensor))
	y := c.ConvT(h, w, n.posBias.Tensor, tape.ConvShape{Stride: 1, Pad: s.taps / 2,
		Groups: s.groups, Dilation: 1, Flat: true})
	f.Set(&w, nil)
	f.Set(&h, y)
	if s.taps%2 == 0 {
		f.Set(&h, c.Slice(h, 3, h.Shape[3]-1))
	}
	f.Set(&h, c.Activation(s.featAct, h))
	f.Set(&h, c.Transpose(c.Squeeze(h, 2), 1, 2))
	return f.Leave(h)
}

func (b *speechBlock) run(c *ctx, x *tape.Tensor) *tape.Tensor {
	f := c.Enter()
	s := b.spec
	var res, h, w *tape.Tensor
	f.Set(&res, x)
	f.Set(&h, x)
	if s.stable {
		f.Set(&h, b.norm1.layer(c.Graph, x))
	}
	f.Pair(&h, &w)(b.att.run(c, h, nil, nil))
	f.Set(&h, c.Dropout(h, s.drop))
	f.Set(&h, c.Add(res, h))
	if s.stable {
		f.Set(&h, c.Add(h, b.feed(c, b.norm2.layer(c.Graph, h))))
		return f.Leave(h)
	}
	f.Set(&h, b.norm1.layer(c.Graph, h))
	f.Set(&h, c.Add(h, b.feed(c, h)))
	f.Set(&h, b.norm2.layer(c.Graph, h))
	return f.Leave(h)
}

func (b *speechBlock) feed(c *ctx, x *tape.Tensor) *tape.Tensor {
	f := c.Enter(x)
	var h *tape.Tensor
	f.Set(&h, b.fc1.run(c.Graph, x))
	f.Set(&h, c.Activation(b.spec.act, h))
	f.Set(&h, c.Dropout(h, b.spec.actDrop))
	f.Set(&h, b.fc2.run(c.Graph, h))
	f.Set(&h, c.Dropout(h, b.spec.drop))
	return f.Leave(h)
}
