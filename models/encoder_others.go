package models

import (
	"fmt"

	"memroom/tape"
)

// roberta is RobertaForMaskedLM and its relatives with the same layout (XLM-RoBERTa, CamemBERT).
func roberta(c *Config, r Run) (*Model, error) {
	e := readEncoder(c, Run{})
	if !c.Has("vocab_size") {
		e.vocab = 50265
	}
	e.types = c.Int(2, "type_vocab_size")
	c.longEnough(r.Seq, e.npos-2)
	if err := c.Err(); err != nil {
		return nil, err
	}
	root := tape.NewModule()
	body := root.Child("roberta")
	em := body.Child("embeddings")
	b := bertEmbeddings{drop: e.drop, counted: true}
	b.word = embedding(em, "word_embeddings", e.vocab, e.h)
	b.typ = embedding(em, "token_type_embeddings", e.types, e.h)
	b.ln = layerNorm(em, "LayerNorm", e.h)
	b.pos = embedding(em, "position_embeddings", e.npos, e.h)
	em.Buffer(tape.I64, e.npos)
	em.Buffer(tape.I64, e.npos)
	blocks := e.blocks(body.Child("encoder").Child("layer"))
	run := func(x *ctx, in []*tape.Tensor) (last, pooled *tape.Tensor) {
		return x.bertPooled(in[0], b, lin{}, blocks, lin{})
	}
	if isClassifier(e.arch) {
		return e.classifier(root, r, run, func() sentence { return e.firstToken(root, "tanh") }),
			nil
	}
	return e.masked(root, r, e.lmHead(root.Child("lm_head"), b.word), run), nil
}

// masked makes a model of a body and a masked-language-model head.
func (e *encoder) masked(root *tape.Module, r Run, head mlmHead, run body) *Model {
	m := &Model{Root: root, Inputs: maskedInputs(r), Layers: e.layers, Run: r, Head: "ForMaskedLM"}
	m.Loss = func(g *tape.Graph, in []*tape.Tensor) *tape.Tensor {
		x := newCtx(g, r)
		return x.maskedLM(in[0], head, func() *tape.Tensor { h, _ := run(x, in); return h })
	}
	return m
}

// electra is ElectraForMaskedLM (the generator) or ElectraForPreTraining (the discriminator).
func electra(c *Config, r Run) (*Model, error) {
	e := readEncoder(c, r)
	e.h, e.inner, e.heads = c.Int(256, "hidden_size"), c.Int(1024, "intermediate_size"),
		c.Int(4, "num_attention_heads")
	e.embed = c.Int(128, "embedding_size")
	if err := c.Err(); err != nil {
		return nil, err
	}
	root := tape.NewModule()
	body := root.Child("electra")
	emb := e.embeddings(body.Child("embeddings"))
	var project lin
	if e.embed != e.h {
		project = linear(body, "embeddings_project", e.embed, e.h, true)
	}
	blocks := e.blocks(body.Child("encoder").Child("layer"))
	run := func(x *ctx, in []*tape.Tensor) (last, pooled *tape.Tensor) {
		return x.bertPooled(in[0], emb, project, blocks, lin{})
	}
	if isClassifier(e.arch) {
		return e.classifier(root, r, run, func() sentence { return e.firstToken(root, "gelu") }),
			nil
	}
	if e.arch == "ForPreTraining" {
		return e.discriminator(root, r, run), nil
	}
	g := root.Child("generator_predictions")
	head := mlmHead{act: "gelu", ln: layerNorm(g, "LayerNorm", e.embed),
		dense: linear(g, "dense", e.h, e.embed, true), split: true}
	d := root.Child("generator_lm_head")
	if e.tied {
		head.decoder = lin{w: d.Tie(emb.word), b: d.Param("bias", e.vocab)}
	} else {
		head.decoder = lin{w: d.Param("weight", e.vocab, e.embed), b: d.Param("bias", e.vocab)}
	}
	return e.masked(root, r, head, run), nil
}

// discriminator is ELECTRA's head that detects replaced tokens.
func (e *encoder) discriminator(root *tape.Module, r Run, run body) *Model {
	d := root.Child("discriminator_predictions")
	dense, one := linear(d, "dense", e.h, e.h, true), linear(d, "dense_prediction", e.h, 1, true)
	m := &Model{Root: root, Inputs: tokenClassInputs(r), Layers: e.layers, Run: r,
		Head: "ForPreTraining"}
	m.Loss = func(g *tape.Graph, in []*tape.Tensor) *tape.Tensor {
		x := newCtx(g, r)
		f := g.Enter()
		var h, logits *tape.Tensor
		last, _ := run(x, in)
		f.Set(&h, last)
		fr := g.Enter(h)
		var y *tape.Tensor
		fr.Set(&y, dense.run(g, h))
		fr.Set(&y, g.Activation(e.act, y))
		f.Set(&logits, fr.Leave(g.Squeeze(one.run(g, y), -1)))
		return f.Leave(g.BCEWithLogits(logits, g.Fresh("labels", tape.F32, in[1].Shape...)))
	}
	return m
}

// distilbert is DistilBertForMaskedLM.
func distilbert(c *Config, r Run) (*Model, error) {
	e := &encoder{h: c.Int(768, "dim", "hidden_size"), inner: c.Int(3072, "hidden_dim"),
		heads: c.Int(12, "n_heads", "num_attention_heads"), layers: c.Int(6, "n_layers",
			"num_hidden_layers"),
		vocab: c.Int(30522, "vocab_size"), npos: c.Int(512, "max_position_embeddings"),
		act: c.Str("gelu", "activation"), drop: c.Float(0.1, "dropout"),
		attnDrop: c.Float(0.1, "attention_dropout"), tied: c.Bool(true, "tie_word_embeddings"),
		labels: c.Labels(), arch: c.Architecture(), qaDrop: c.Float(0.1, "qa_dropout")}
	e.embed, e.clsDrop = e.h, e.drop
	c.divides(e.h, e.heads, "dim by n_heads")
	c.longEnough(r.Seq, e.npos)
	if err := c.Err(); err != nil {
		return nil, err
	}
	root := tape.NewModule()
	body := root.Child("distilbert")
	em := body.Child("embeddings")
	b := bertEmbeddings{drop: e.drop}
	b.word, b.pos = embedding(em, "word_embeddings", e.vocab, e.h),
		embedding(em, "position_embeddings", e.npos, e.h)
	b.ln = layerNorm(em, "LayerNorm", e.h)
	em.Buffer(tape.I64, e.npos)
	list := body.Child("transformer").Child("layer")
	var blocks []*distilBlock
	for i := range e.layers {
		m := list.Child(fmt.Sprint(i))
		d := &distilBlock{e: e}
		a := m.Child("attention")
		d.q, d.k, d.v, d.o = linear(a, "q_lin", e.h, e.h, true), linear(a, "k_lin", e.h, e.h, true),
			linear(a, "v_lin", e.h, e.h, true), linear(a, "out_lin", e.h, e.h, true)
		d.norm1 = layerNorm(m, "sa_layer_norm", e.h)
		ff := m.Child("ffn")
		d.lin1, d.lin2 = linear(ff, "lin1", e.h, e.inner, true),
			linear(ff, "lin2", e.inner, e.h, true)
		d.norm2 = layerNorm(m, "output_layer_norm", e.h)
		blocks = append(blocks, d)
	}
	run := unpooled(func(x *ctx, in []*tape.Tensor) *tape.Tensor {
		return x.distilBody(in[0], b,
			blocks)
	})
	if isClassifier(e.arch) {
		drop := c.Float(0.2, "seq_classif_dropout")
		return e.classifier(root, r, run, func() sentence { return e.distilSentence(root, drop) }),
			nil
	}
	head := mlmHead{act: e.act, dense: linear(root, "vocab_transform", e.h, e.h, true),
		ln: layerNorm(root, "vocab_layer_norm", e.h), oneFrame: true}
	p := root.Child("vocab_projector")
	if e.tied {
		head.decoder = lin{w: p.Tie(b.word), b: p.Param("bias", e.vocab)}
	} else {
		head.decoder = lin{w: p.Param("weight", e.vocab, e.h), b: p.Param("bias", e.vocab)}
	}
	return e.masked(root, r, head, run), nil
}

// distilSentence is dense, ReLU, dropout and a linear layer on the first token.
func (e *encoder) distilSentence(root *tape.Module, drop float64) sentence {
	pre, cls := linear(root, "pre_classifier", e.h, e.h, true),
		linear(root, "classifier", e.h, e.labels, true)
	return func(c *ctx, last, _ *tape.Tensor) *tape.Tensor {
		f := c.Enter()
		var x *tape.Tensor
		f.Set(&x, c.Select(last, 1))
		f.Set(&x, pre.run(c.Graph, x))
		f.Set(&x, c.Activation("relu", x))
		f.Set(&x, c.Dropout(x, drop))
		return f.Leave(cls.run(c.Graph, x))
	}
}

type distilBlock struct {
	e            *encoder
	q, k, v, o   lin
	lin1, lin2   lin
	norm1, norm2 norm
}

func (c *ctx) distilBody(ids *tape.Tensor, emb bertEmbeddings, blocks []*distilBlock) *tape.Tensor {
	f := c.Enter()
	var e, mask *tape.Tensor
	f.Set(&e, emb.run(c, ids))
	f.Set(&mask, c.fullMask(ids.Shape[0], ids.Shape[1], e.DType))
	g := c.Enter(e, mask)
	var h *tape.Tensor
	g.Set(&h, e)
	for i, b := range blocks {
		g.Set(&h, c.layer(fmt.Sprintf("layer.%d", i),
			func(a []*tape.Tensor) *tape.Tensor { return b.run(c, a[0], a[1]) }, h, mask))
	}
	return f.Leave(g.Leave(h))
}

func (b *distilBlock) run(c *ctx, x, mask *tape.Tensor) *tape.Tensor {
	f := c.Enter()
	var att, w, ff *tape.Tensor
	a := &vitBlock{q: b.q, k: b.k, v: b.v, o: b.o, d: b.e.h / b.e.heads, attnDrop: b.e.attnDrop,
		plain: true}
	f.Pair(&att, &w)(a.attend(c, x, mask))
	f.Set(&att, b.norm1.layer(c.Graph, c.Add(att, x)))
	g := c.Enter(att)
	var h *tape.Tensor
	g.Set(&h, b.lin1.run(c.Graph, att))
	g.Set(&h, c.Activation(b.e.act, h))
	g.Set(&h, b.lin2.run(c.Graph, h))
	g.Set(&h, c.Dropout(h, b.e.drop))
	f.Set(&ff, g.Leave(h))
	f.Set(&ff, b.norm2.layer(c.Graph, c.Add(ff, att)))
	return f.Leave(ff)
}

// albert is AlbertForMaskedLM: one layer's weights are used by all layers of a group.
func albert(c *Config, r Run) (*Model, error) {
	e := readEncoder(c, r)
	e.h, e.inner, e.heads = c.Int(4096, "hidden_size"), c.Int(16384, "intermediate_size"),
		c.Int(64, "num_attention_heads")
	e.embed, e.vocab, e.act = c.Int(128, "embedding_size"), c.Int(30000, "vocab_size"),
		c.Str("gelu_new", "hidden_act")
	e.drop, e.attnDrop = c.Float(0, "hidden_dropout_prob"), c.Float(0,
		"attention_probs_dropout_prob")
	groups, inner := c.Int(1, "num_hidden_groups"), c.Int(1, "inner_group_num")
	c.divides(e.layers, groups, "num_hidden_layers by num_hidden_groups")
	if err := c.Err(); err != nil {
		return nil, err
	}
	root := tape.NewModule()
	body := root.Child("albert")
	emb := e.embeddings(body.Child("embeddings"))
	enc := body.Child("encoder")
	mapping := linear(enc, "embedding_hidden_mapping_in", e.embed, e.h, true)
	list := enc.Child("albert_layer_groups")
	var shared [][]*albertLayer
	for gi := range groups {
		var layers []*albertLayer
		ll := list.Child(fmt.Sprint(gi)).Child("albert_layers")
		for j := range inner {
			layers = append(layers, e.albertLayer(ll.Child(fmt.Sprint(j))))
		}
		shared = append(shared, layers)
	}
	var pool lin
	if e.arch == "ForSequenceClassification" {
		pool = linear(body, "pooler", e.h, e.h, true)
	}
	run := func(x *ctx, in []*tape.Tensor) (last, pooled *tape.Tensor) {
		return e.albertBody(x, in[0], emb, mapping, shared, pool)
	}
	if isClassifier(e.arch) {
		e.clsDrop = c.Float(0.1, "classifier_dropout_prob")
		return e.classifier(root, r, run, func() sentence { return e.pooledSentence(root) }), nil
	}
	p := root.Child("predictions")
	bias := p.Param("bias", e.vocab)
	head := mlmHead{act: e.act, ln: layerNorm(p, "LayerNorm", e.embed),
		dense: linear(p, "dense", e.h, e.embed, true), oneFrame: true,
		decoder: e.decoder(p.Child("decoder"), emb.word, bias, false)}
	return e.masked(root, r, head, run), nil
}

func (e *encoder) albertBody(x *ctx, ids *tape.Tensor, emb bertEmbeddings, in lin,
	shared [][]*albertLayer, pool lin) (last, pooled *tape.Tensor) {
	f := x.Enter()
	groups := int64(len(shared))
	var em, mask, h, out, p *tape.Tensor
	f.Set(&em, emb.run(x, ids))
	f.Set(&mask, x.fullMask(ids.Shape[0], ids.Shape[1], em.DType))
	g := x.Enter(em, mask)
	g.Set(&h, in.run(x.Graph, em))
	for i := range e.layers {
		for _, l := range shared[i*groups/e.layers] {
			g.Set(&h, x.layer(fmt.Sprintf("layer.%d", i),
				func(a []*tape.Tensor) *tape.Tensor { return l.run(x, a[0], a[1]) }, h, mask))
		}
	}
	f.Set(&out, g.Leave(h))
	if pool.w != nil {
		f.Set(&p, x.Activation("tanh", pool.run(x.Graph, x.Select(out, 1))))
	}
	return f.Both(out, p)
}

type albertLayer struct {
	e          *encoder
	full, ln   norm
	q, k, v, o lin
	ffn, out   lin
}

func (e *encoder) albertLayer(m *tape.Module) *albertLayer {
	l := &albertLayer{e: e, full: layerNorm(m, "full_layer_layer_norm", e.h)}
	a := m.Child("attention")
	l.q, l.k, l.v, l.o = linear(a, "query", e.h, e.h, true), linear(a, "key", e.h, e.h, true),
		linear(a, "value", e.h, e.h, true), linear(a, "dense", e.h, e.h, true)
	l.ln = layerNorm(a, "LayerNorm", e.h)
	l.ffn, l.out = linear(m, "ffn", e.h, e.inner, true), linear(m, "ffn_output", e.inner, e.h, true)
	return l
}

func (l *albertLayer) run(c *ctx, x, mask *tape.Tensor) *tape.Tensor {
	f := c.Enter()
	var att, w, ff, h *tape.Tensor
	g := c.Enter(x)
	v := &vitBlock{q: l.q, k: l.k, v: l.v, o: l.o, d: l.e.h / l.e.heads, attnDrop: l.e.attnDrop,
		plain: true, outDrop: l.e.drop, outNorm: l.ln, residual: x}
	o, p := v.attend(c, x, mask)
	g.Leave(o, p)
	f.Set(&att, o)
	f.Set(&w, p)
	k := c.Enter(att)
	var y *tape.Tensor
	k.Set(&y, l.ffn.run(c.Graph, att))
	k.Set(&y, c.Activation(l.e.act, y))
	k.Set(&y, l.out.run(c.Graph, y))
	f.Set(&ff, k.Leave(y))
	f.Set(&h, l.full.layer(c.Graph, c.Add(ff, att)))
	return f.Leave(h)
}
