package models

import (
	"fmt"

	"memroom/tape"
)

type nomicBlock struct {
	e              *encoder
	d              int64
	q, k, v, o     lin
	gate, up, down lin
	norm1, norm2   norm
}

// nomicBert is NomicBertForMaskedLM: BERT with rotary positions and a gated MLP.
func nomicBert(c *Config, r Run) (*Model, error) {
	e := readEncoder(c, Run{})
	e.vocab, e.act = c.Int(30528, "vocab_size"), c.Str("silu", "hidden_act")
	e.drop, e.attnDrop = c.Float(0, "hidden_dropout_prob"),
		c.Float(0, "attention_probs_dropout_prob")
	e.npos = c.Int(2048, "max_position_embeddings")
	d := c.Int(e.h/max(e.heads, 1), "head_dim")
	if isClassifier(e.arch) {
		c.complain("only the masked language model of this type is described")
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	root := tape.NewModule()
	body := root.Child("nomic_bert")
	em := body.Child("embeddings")
	word := embedding(em, "word_embeddings", e.vocab, e.h)
	typ := embedding(em, "token_type_embeddings", e.types, e.h)
	first := layerNorm(em, "LayerNorm", e.h)
	em.Buffer(tape.I64, e.npos)
	em.Buffer(tape.I64, e.npos)
	rot := body.Child("rotary_emb")
	rot.Buffer(tape.F32, d/2)
	rot.Buffer(tape.F32, d/2)
	var blocks []*nomicBlock
	for i := range e.layers {
		blocks = append(blocks, e.nomicBlock(body.Child("layers").Child(fmt.Sprint(i)), d))
	}
	p := root.Child("cls").Child("predictions")
	head := mlmHead{act: e.act}
	bias := p.Param("bias", e.vocab)
	t := p.Child("transform")
	head.dense, head.ln = linear(t, "dense", e.h, e.h, true), layerNorm(t, "layer_norm", e.h)
	head.decoder = e.decoder(p.Child("decoder"), word, bias, true)
	run := unpooled(func(x *ctx, in []*tape.Tensor) *tape.Tensor {
		return e.nomicRun(x, in[0], word, typ, first, blocks, d)
	})
	return e.masked(root, r, head, run), nil
}

func (e *encoder) nomicBlock(m *tape.Module, d int64) *nomicBlock {
	b := &nomicBlock{e: e, d: d, norm1: layerNorm(m, "post_attention_layernorm", e.h)}
	mlp := m.Child("mlp")
	b.gate, b.up, b.down = linear(mlp, "gate_proj", e.h, e.inner, false),
		linear(mlp, "up_proj", e.h, e.inner, false), linear(mlp, "down_proj", e.inner, e.h, false)
	a := m.Child("self_attn")
	b.q, b.k, b.v = linear(a, "q_proj", e.h, e.heads*d, false),
		linear(a, "k_proj", e.h, e.heads*d, false), linear(a, "v_proj", e.h, e.heads*d, false)
	b.o = linear(a, "o_proj", e.heads*d, e.h, false)
	b.norm2 = layerNorm(m, "post_mlp_layernorm", e.h)
	return b
}

func (e *encoder) nomicRun(c *ctx, ids *tape.Tensor, word, typ *tape.Param, first norm,
	blocks []*nomicBlock, d int64) *tape.Tensor {
	f := c.Enter()
	b, n := ids.Shape[0], ids.Shape[1]
	var emb, h, mask, cos, sin *tape.Tensor
	at := f.Keep(c.Unsqueeze(c.Fresh("positions", tape.I64, n), 0))
	c.In("embeddings", func() {
		g := c.Enter()
		var words, types, y, z *tape.Tensor
		g.Set(&words, c.Embedding(ids, word))
		g.Set(&types, c.Fresh("token types", tape.I64, b, n))
		g.Set(&z, c.Embedding(types, typ))
		g.Set(&words, c.Add(words, z))
		g.Set(&y, first.layer(c.Graph, words))
		g.Set(&words, y)
		g.Set(&words, c.Dropout(words, e.drop))
		f.Set(&emb, g.Leave(words))
	})
	f.Set(&mask, c.fullMask(b, n, emb.DType))
	f.Set(&h, emb)
	f.Pair(&cos, &sin)(c.rotaryTable(rotary{dim: d}, at, h.DType))
	for i, blk := range blocks {
		f.Set(&h, c.layer(fmt.Sprintf("layers.%d", i),
			func(a []*tape.Tensor) *tape.Tensor { return blk.run(c, a[0], a[1], a[2], a[3]) },
			h, mask, cos, sin))
	}
	return f.Leave(h)
}

func (b *nomicBlock) run(c *ctx, x, mask, cos, sin *tape.Tensor) *tape.Tensor {
	f := c.Enter()
	var res, att, w, h *tape.Tensor
	f.Set(&res, x)
	f.Pair(&att, &w)(b.attend(c, x, mask, cos, sin))
	f.Set(&h, c.Add(res, c.Dropout(att, b.e.drop)))
	f.Set(&h, b.norm1.layer(c.Graph, h))
	f.Set(&res, h)
	g := c.Enter(h)
	var y *tape.Tensor
	g.Set(&y, b.down.run(c.Graph, c.Mul(c.Activation(b.e.act, b.gate.run(c.Graph, h)),
		b.up.run(c.Graph, h))))
	f.Set(&h, g.Leave(y))
	f.Set(&h, c.Add(res, c.Dropout(h, b.e.drop)))
	f.Set(&h, b.norm2.layer(c.Graph, h))
	return f.Leave(h)
}

func (b *nomicBlock) attend(c *ctx, x, mask, cos, sin *tape.Tensor) (out, weights *tape.Tensor) {
	f := c.Enter(x)
	var q, k, v, o, w *tape.Tensor
	f.Set(&q, heads(c.Graph, b.q.run(c.Graph, x), b.d))
	f.Set(&k, heads(c.Graph, b.k.run(c.Graph, x), b.d))
	f.Set(&v, heads(c.Graph, b.v.run(c.Graph, x), b.d))
	byHalves.run(c, f, &q, &k, cos, sin, b.d)
	f.Pair(&o, &w)(c.attend(attention{dropout: b.e.attnDrop, groups: 1, plain: true}, q, k, v, mask))
	f.Set(&o, c.Reshape(o, o.Shape[0], o.Shape[1], b.e.heads*b.d))
	f.Set(&o, b.o.run(c.Graph, o))
	return f.Both(o, w)
}
