package models

import (
	"fmt"

	"memroom/event"
	"memroom/tape"
)

// seq2seq is BART's shape and that of its relatives, among them Whisper's layers.
type seq2seq struct {
	h, encLayers, decLayers, encHeads, decHeads, encFF, decFF int64
	act                                                       string
	drop, attnDrop, actDrop                                   float64
	// norms come before attention and MLP
	before  bool
	keyBias bool
	// Whisper: q is scaled beforehand, and q, k, v are made contiguous
	scaledQuery bool
	// a norm of the embeddings, of each stack's result
	embedNorm, lastNorm bool
	positions           positionKind
	// mBART: the last token becomes the first
	shiftsLast bool
}

// positionKind is how a stack knows its positions.
type positionKind uint8

const (
	learnedOffset positionKind = iota // BART: a table with two rows too many
	learned                           // Blenderbot
	sinusoidal                        // Pegasus, Marian: a table that is not trained
	counted                           // M2M100: a buffer, looked up by the places of words
)

type s2sAttention struct {
	q, k, v, o lin
	d          int64
	causal     bool
	decoder    bool
	scaled     bool // Whisper: q is scaled beforehand, and q, k, v are made contiguous
	drop       float64
}

type s2sLayer struct {
	spec                *seq2seq
	self, cross         s2sAttention
	norm1, norm2, norm3 norm
	fc1, fc2            lin
	dec                 bool
}

func (s *seq2seq) attention(m *tape.Module, heads int64, dec, causal bool) s2sAttention {
	a := s2sAttention{d: s.h / heads, causal: causal, decoder: dec, drop: s.attnDrop,
		scaled: s.scaledQuery}
	a.k, a.v = linear(m, "k_proj", s.h, s.h, s.keyBias), linear(m, "v_proj", s.h, s.h, true)
	a.q, a.o = linear(m, "q_proj", s.h, s.h, true), linear(m, "out_proj", s.h, s.h, true)
	return a
}

func (s *seq2seq) layer(m *tape.Module, dec bool) *s2sLayer {
	l := &s2sLayer{spec: s, dec: dec}
	heads, ff := s.encHeads, s.encFF
	if dec {
		heads, ff = s.decHeads, s.decFF
	}
	l.self = s.attention(m.Child("self_attn"), heads, dec, dec)
	l.norm1 = layerNorm(m, "self_attn_layer_norm", s.h)
	if dec {
		l.cross = s.attention(m.Child("encoder_attn"), heads, dec, false)
		l.norm2 = layerNorm(m, "encoder_attn_layer_norm", s.h)
	}
	l.fc1, l.fc2 = linear(m, "fc1", s.h, ff, true), linear(m, "fc2", ff, s.h, true)
	l.norm3 = layerNorm(m, "final_layer_norm", s.h)
	return l
}

func (a s2sAttention) run(c *ctx, x, kv, mask *tape.Tensor) (out, weights *tape.Tensor) {
	f := c.Enter(x, kv)
	src := x
	if kv != nil {
		src = kv
	}
	var q, k, v, o, w *tape.Tensor
	if a.scaled {
		f.Set(&q, c.Contiguous(heads(c.Graph, c.Scale(a.q.run(c.Graph, x)), a.d)))
		f.Set(&k, c.Contiguous(heads(c.Graph, a.k.run(c.Graph, src), a.d)))
		f.Set(&v, c.Contiguous(heads(c.Graph, a.v.run(c.Graph, src), a.d)))
	} else {
		f.Set(&q, heads(c.Graph, a.q.run(c.Graph, x), a.d))
		f.Set(&k, a.k.run(c.Graph, src))
		f.Set(&v, a.v.run(c.Graph, src))
		f.Set(&k, heads(c.Graph, k, a.d))
		f.Set(&v, heads(c.Graph, v, a.d))
	}
	if a.decoder {
		f.Pair(&k, &v)(c.cached(k, v))
	}
	f.Pair(&o, &w)(c.attend(attention{dropout: a.drop, groups: 1, plain: true, causal: a.causal},
		q, k, v, mask))
	f.Set(&o, c.Reshape(o, o.Shape[0], o.Shape[1], -1))
	f.Set(&o, a.o.run(c.Graph, o))
	return f.Both(o, w)
}

func (l *s2sLayer) run(c *ctx, x, enc, mask *tape.Tensor) *tape.Tensor {
	f := c.Enter()
	s := l.spec
	var res, h, w *tape.Tensor
	f.Set(&h, x)
	sub := func(n norm, fn func() *tape.Tensor) {
		f.Set(&res, h)
		if s.before {
			f.Set(&h, n.layer(c.Graph, h))
		}
		f.Set(&h, fn())
		f.Set(&h, c.Dropout(h, s.drop))
		f.Set(&h, c.Add(res, h))
		if !s.before {
			f.Set(&h, n.layer(c.Graph, h))
		}
	}
	attend := func(a s2sAttention, kv, m *tape.Tensor) func() *tape.Tensor {
		return func() *tape.Tensor {
			o, p := a.run(c, h, kv, m)
			f.Set(&w, p)
			return o
		}
	}
	sub(l.norm1, attend(l.self, nil, mask))
	if l.dec {
		sub(l.norm2, attend(l.cross, enc, nil))
	}
	sub(l.norm3, func() *tape.Tensor {
		f.Set(&h, c.Activation(s.act, l.fc1.run(c.Graph, h)))
		f.Set(&h, c.Dropout(h, s.actDrop))
		return l.fc2.run(c.Graph, h)
	})
	return f.Leave(h)
}

// bart is BartForConditionalGeneration, and mBART, Pegasus, Marian and Blenderbot.
func bart(c *Config, r Run) (*Model, error) {
	s := &seq2seq{h: c.Int(1024, "d_model"), encLayers: c.Int(12, "encoder_layers"),
		decLayers: c.Int(12, "decoder_layers"), encHeads: c.Int(16, "encoder_attention_heads"),
		decHeads: c.Int(16, "decoder_attention_heads"), encFF: c.Int(4096, "encoder_ffn_dim"),
		decFF: c.Int(4096, "decoder_ffn_dim"), act: c.Str("gelu", "activation_function"),
		drop: c.Float(0.1, "dropout"), attnDrop: c.Float(0, "attention_dropout"),
		actDrop: c.Float(0, "activation_dropout"), keyBias: true}
	vocab, npos := c.Int(50265, "vocab_size"), c.Int(1024, "max_position_embeddings")
	switch c.Type() {
	case "bart":
		s.embedNorm = true
	case "mbart":
		s.embedNorm, s.before, s.lastNorm, s.shiftsLast = true, true, true, true
	case "pegasus":
		s.before, s.lastNorm, s.positions = true, true, sinusoidal
	case "marian":
		s.positions = sinusoidal
		vocab = c.Int(58101, "vocab_size")
		if !c.Bool(true, "share_encoder_decoder_embeddings") {
			c.complain("share_encoder_decoder_embeddings=false is not described")
		}
	case "m2m_100":
		s.before, s.lastNorm, s.positions, s.act = true, true, counted,
			c.Str("relu", "activation_function")
		s.attnDrop, vocab = c.Float(0.1, "attention_dropout"), c.Int(128112, "vocab_size")
	case "blenderbot":
		s.before, s.lastNorm, s.positions = true, true, learned
		vocab, npos = c.Int(8008, "vocab_size"), c.Int(128, "max_position_embeddings")
	}
	c.divides(s.h, s.encHeads, "d_model by encoder_attention_heads")
	c.divides(s.h, s.decHeads, "d_model by decoder_attention_heads")
	c.longEnough(r.Seq, npos)
	for _, name := range []string{"encoder_layerdrop", "decoder_layerdrop"} {
		if c.Float(0, name) > 0 && c.Type() != "m2m_100" { // whose steps mostly skip none
			c.complain("%s skips layers at random: set it to 0", name)
		}
	}
	tied := c.Bool(true, "tie_word_embeddings")
	if err := c.Err(); err != nil {
		return nil, err
	}
	root := tape.NewModule()
	body := root.Child("model")
	shared := embedding(body, "shared", vocab, s.h)
	enc, dec := s.bartStack(body.Child("encoder"), shared, npos, false),
		s.bartStack(body.Child("decoder"), shared, npos, true)
	r.arch = "" // no classifier is described
	lm := causalHead(root, r, shared, tied, vocab, s.h)
	if s.positions != counted {
		root.Buffer(tape.F32, vocab)
	}
	m := &Model{Root: root, Inputs: targetInputs(r), Layers: s.encLayers + s.decLayers, Run: r,
		Head: "ForConditionalGeneration"}
	m.Loss = func(g *tape.Graph, in []*tape.Tensor) *tape.Tensor {
		x := newCtx(g, r)
		f := g.Enter()
		var ids, h, y, logits *tape.Tensor
		if s.shiftsLast {
			f.Set(&ids, x.shiftLast(r.target(in)))
		} else {
			f.Set(&ids, x.shiftRight(r.target(in)))
		}
		f.Set(&h, enc.run(x, in[0], shared, nil))
		f.Set(&y, dec.run(x, ids, shared, h))
		x.In("lm_head", func() {
			x.As(event.CategoryLoss, func() {
				f.Set(&logits, lm.run(g, y))
				if s.positions == counted { // no bias of the logits
					return
				}
				f.Set(&logits, g.Add(logits, g.Borrow(r.bufferType(), 1, vocab)))
			})
		})
		var loss *tape.Tensor
		x.In("loss", func() { loss = x.plainLoss(logits, r.target(in)) })
		return f.Leave(loss)
	}
	return m, nil
}

// shiftLast is mBART's shift_tokens_right: the last token that is not padding is found and put
// first.
func (c *ctx) shiftLast(labels *tape.Tensor) *tape.Tensor {
	f := c.Enter()
	b, s := labels.Shape[0], labels.Shape[1]
	fresh := func(d tape.DType, shape ...int64) *tape.Tensor {
		return c.Fresh("shift right", d,
			shape...)
	}
	var out, last, start *tape.Tensor
	f.Set(&out, fresh(tape.I64, b, s))
	tape.Del(fresh(tape.Bool, b, s))
	ne := fresh(tape.Bool, b, s)
	sum := fresh(tape.I64, b)
	tape.Del(fresh(tape.I64, b, s), ne)
	f.Set(&last, fresh(tape.I64, b))
	tape.Del(sum)
	f.Set(&start, fresh(tape.I64, b))
	tape.Del(fresh(tape.I64, b, s-1))
	return f.Leave(out)
}

type bartStack struct {
	layers   []*s2sLayer
	pos      *tape.Param
	ln, last norm
	spec     *seq2seq
	dec      bool
	name     string
}

func (s *seq2seq) bartStack(m *tape.Module, shared *tape.Param, npos int64, dec bool) *bartStack {
	st := &bartStack{spec: s, dec: dec, name: m.Path()}
	m.Child("embed_tokens").Tie(shared)
	if s.positions == learnedOffset {
		npos += 2
	}
	if s.positions == counted {
		m.Child("embed_positions").Buffer(tape.F32, (npos+2)*s.h)
	} else {
		st.pos = embedding(m, "embed_positions", npos, s.h)
		st.pos.Frozen = s.positions == sinusoidal
	}
	list := m.Child("layers")
	n := s.encLayers
	if dec {
		n = s.decLayers
	}
	for i := range n {
		st.layers = append(st.layers, s.layer(list.Child(fmt.Sprint(i)), dec))
	}
	if s.embedNorm {
		st.ln = layerNorm(m, "layernorm_embedding", s.h)
	}
	if s.lastNorm {
		st.last = layerNorm(m, "layer_norm", s.h)
	}
	return st
}

func (st *bartStack) run(c *ctx, ids *tape.Tensor, shared *tape.Param,
	enc *tape.Tensor) *tape.Tensor {
	f := c.Enter(enc)
	s := st.spec
	b, n := ids.Shape[0], ids.Shape[1]
	var e, position, ones, mask, pos, h *tape.Tensor
	f.Set(&e, c.Scale(c.Embedding(ids, shared)))
	if st.dec {
		if s.positions != counted {
			f.Set(&position, c.AddScalar(c.Fresh("positions", tape.I64, n)))
		}
		f.Set(&ones, c.Fresh("mask", tape.F32, b, n))
		f.Set(&mask, c.onesMask(b, n, e.DType))
		if s.embedNorm && !s.before || s.positions == counted { // BART overwrites its mask
			f.Set(&ones, nil)
		}
	}
	f.Set(&pos, st.position(c, position, b, n))
	// all but BART and Pegasus overwrite them
	if s.positions == sinusoidal && !s.lastNorm || s.shiftsLast || s.positions == learned {
		f.Set(&position, nil)
	}
	f.Set(&h, c.Add(e, pos))
	if s.embedNorm {
		f.Set(&h, st.ln.layer(c.Graph, h))
	}
	f.Set(&h, c.Dropout(h, s.drop))
	if !st.dec && c.Padded {
		f.Set(&mask, c.fullMask(b, n, e.DType))
	}
	for i, l := range st.layers {
		f.Set(&h, c.layer(fmt.Sprintf("%s.layers.%d", st.name, i),
			func(a []*tape.Tensor) *tape.Tensor { return l.run(c, a[0], a[1], a[2]) }, h, enc,
			mask))
	}
	if s.lastNorm {
		f.Set(&h, st.last.layer(c.Graph, h))
	}
	return f.Leave(h)
}

// position looks the positions up: given is the decoder's own list of them.
func (st *bartStack) position(c *ctx, given *tape.Tensor, b, n int64) *tape.Tensor {
	f := c.Enter()
	var ids *tape.Tensor
	switch {
	case st.spec.positions == counted:
	case given == nil:
		f.Set(&ids, c.Fresh("positions", tape.I64, n))
	default:
		f.Set(&ids, given)
	}
	if st.spec.positions == counted {
		f.Set(&ids, c.countedPositions(b, n))
		return f.Leave(c.Fresh("positions", c.Float, b, n, st.spec.h))
	}
	if st.spec.positions != learnedOffset {
		return f.Leave(c.Embedding(ids, st.pos))
	}
	if given == nil {
		f.Set(&ids, c.Expand(ids, b, n))
	} else {
		f.Set(&ids, c.Unsqueeze(ids, 0))
	}
	return f.Leave(c.Embedding(c.AddScalar(ids), st.pos))
}
