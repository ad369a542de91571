package models

import (
	"fmt"

	"memroom/tape"
)

// encoder is BERT with the switches in which its relatives differ.
type encoder struct {
	h, inner, heads, layers, vocab, npos, types int64
	// width of the embeddings (ELECTRA, ALBERT), else h
	embed          int64
	act            string
	drop, attnDrop float64
	tied           bool
	labels         int64
	arch           string
	// before a classifier, before the scores of an answer
	clsDrop, qaDrop float64
}

type encoderBlock struct {
	q, k, v, o     lin
	inter, out     lin
	norm1, norm2   norm
	d              int64
	act            string
	drop, attnDrop float64
}

func readEncoder(c *Config, r Run) *encoder {
	e := &encoder{
		h: c.Int(768, "hidden_size"), inner: c.Int(3072, "intermediate_size"),
		heads:  c.Int(12, "num_attention_heads"),
		layers: c.Int(12, "num_hidden_layers"), vocab: c.Int(30522, "vocab_size"),
		npos:  c.Int(512, "max_position_embeddings"),
		types: c.Count(2, "type_vocab_size"), act: c.Str("gelu", "hidden_act"),
		drop:     c.Float(0.1, "hidden_dropout_prob"),
		attnDrop: c.Float(0.1, "attention_probs_dropout_prob"),
		tied:     c.Bool(true, "tie_word_embeddings"),
		labels:   c.Labels(), arch: c.Architecture(),
	}
	e.embed = e.h
	e.clsDrop = c.Float(e.drop, "classifier_dropout")
	c.divides(e.h, e.heads, "hidden_size by num_attention_heads")
	c.longEnough(r.Seq, e.npos)
	return e
}

// bert is BertForMaskedLM, or BertForSequenceClassification where the configuration names it.
func bert(c *Config, r Run) (*Model, error) {
	e := readEncoder(c, r)
	if err := c.Err(); err != nil {
		return nil, err
	}
	root := tape.NewModule()
	body := root.Child("bert")
	emb := e.embeddings(body.Child("embeddings"))
	blocks := e.blocks(body.Child("encoder").Child("layer"))
	var pool lin
	if e.arch == "ForSequenceClassification" {
		pool = linear(body.Child("pooler"), "dense", e.h, e.h, true)
	}
	run := func(x *ctx, in []*tape.Tensor) (last, pooled *tape.Tensor) {
		return x.bertPooled(in[0], emb, lin{}, blocks, pool)
	}
	if isClassifier(e.arch) {
		return e.classifier(root, r, run, func() sentence { return e.pooledSentence(root) }), nil
	}
	head := e.mlmHead(root.Child("cls").Child("predictions"), emb.word)
	return e.masked(root, r, head, run), nil
}

type bertEmbeddings struct {
	word, pos, typ *tape.Param
	ln             norm
	drop           float64
	counted        bool // positions are counted from the padding index (RoBERTa)
}

func (e *encoder) embeddings(m *tape.Module) bertEmbeddings {
	b := bertEmbeddings{drop: e.drop}
	b.word = embedding(m, "word_embeddings", e.vocab, e.embed)
	b.pos = embedding(m, "position_embeddings", e.npos, e.embed)
	b.typ = embedding(m, "token_type_embeddings", e.types, e.embed)
	b.ln = layerNorm(m, "LayerNorm", e.embed)
	m.Buffer(tape.I64, e.npos)
	m.Buffer(tape.I64, e.npos)
	return b
}

func (e *encoder) blocks(list *tape.Module) []*encoderBlock {
	var blocks []*encoderBlock
	for i := range e.layers {
		blocks = append(blocks, e.block(list.Child(fmt.Sprint(i))))
	}
	return blocks
}

func (e *encoder) block(m *tape.Module) *encoderBlock {
	b := &encoderBlock{d: e.h / e.heads, act: e.act, drop: e.drop, attnDrop: e.attnDrop}
	att := m.Child("attention")
	self := att.Child("self")
	b.q, b.k, b.v = linear(self, "query", e.h, e.h, true), linear(self, "key", e.h, e.h, true),
		linear(self, "value", e.h, e.h, true)
	so := att.Child("output")
	b.o, b.norm1 = linear(so, "dense", e.h, e.h, true), layerNorm(so, "LayerNorm", e.h)
	b.inter = linear(m.Child("intermediate"), "dense", e.h, e.inner, true)
	out := m.Child("output")
	b.out, b.norm2 = linear(out, "dense", e.inner, e.h, true), layerNorm(out, "LayerNorm", e.h)
	return b
}

// mlmHead is the prediction head of masked language models.
type mlmHead struct {
	oneFrame bool // all of it is one function (RoBERTa): the input lives until the end
	split    bool // the decoder is called by the model itself (ELECTRA)
	dense    lin
	ln       norm
	act      string
	decoder  lin
}

func (e *encoder) mlmHead(m *tape.Module, word *tape.Param) mlmHead {
	h := mlmHead{act: e.act}
	bias := m.Param("bias", e.vocab)
	t := m.Child("transform")
	h.dense, h.ln = linear(t, "dense", e.h, e.embed, true), layerNorm(t, "LayerNorm", e.embed)
	h.decoder = e.decoder(m.Child("decoder"), word, bias, false)
	return h
}

// decoder is the last layer of a head: the table of words, or weights of its own. Which of weight
// and bias a module names first is the order in which they are moved.
func (e *encoder) decoder(m *tape.Module, word, bias *tape.Param, biasFirst bool) (out lin) {
	if biasFirst {
		out.b = m.Tie(bias)
	}
	if e.tied {
		out.w = m.Tie(word)
	} else {
		out.w = m.Param("weight", e.vocab, e.embed)
	}
	if !biasFirst {
		out.b = m.Tie(bias)
	}
	return out
}

// lmHead is the head of RoBERTa, which is one function.
func (e *encoder) lmHead(m *tape.Module, word *tape.Param) mlmHead {
	bias := m.Param("bias", e.vocab)
	return mlmHead{act: "gelu", dense: linear(m, "dense", e.h, e.h, true),
		ln: layerNorm(m, "layer_norm", e.h), oneFrame: true,
		decoder: e.decoder(m.Child("decoder"), word, bias, true)}
}

func (h mlmHead) run(c *ctx, x *tape.Tensor) *tape.Tensor {
	f := c.Enter(x)
	var y *tape.Tensor
	if h.oneFrame {
		f.Set(&y, h.dense.run(c.Graph, x))
		f.Set(&y, c.Activation(h.act, y))
		f.Set(&y, h.ln.layer(c.Graph, y))
		f.Set(&y, c.logits(func() *tape.Tensor { return h.decoder.run(c.Graph, y) }))
		return f.Leave(y)
	}
	f.Set(&y, h.transform(c, x))
	f.Set(&y, c.logits(func() *tape.Tensor { return h.decoder.run(c.Graph, y) }))
	return f.Leave(y)
}

func (h mlmHead) transform(c *ctx, x *tape.Tensor) *tape.Tensor {
	f := c.Enter(x)
	var y *tape.Tensor
	f.Set(&y, h.dense.run(c.Graph, x))
	f.Set(&y, c.Activation(h.act, y))
	f.Set(&y, h.ln.layer(c.Graph, y))
	return f.Leave(y)
}

// maskedLM runs body, head and CrossEntropyLoss: the forward of ...ForMaskedLM.
func (c *ctx) maskedLM(ids *tape.Tensor, head mlmHead, body func() *tape.Tensor) *tape.Tensor {
	f := c.Enter()
	var h, scores *tape.Tensor
	f.Set(&h, body())
	c.In("cls", func() { f.Set(&scores, head.run(c, h)) })
	var loss *tape.Tensor
	c.In("loss", func() { loss = c.plainLoss(scores, ids) })
	return f.Leave(loss)
}

// bertPooled is the forward of BertModel: embeddings, layers and, where there is one, the pooler on
// the first token.
func (c *ctx) bertPooled(ids *tape.Tensor, emb bertEmbeddings, project lin, blocks []*encoderBlock,
	pool lin) (last, pooled *tape.Tensor) {
	f := c.Enter()
	var e, mask, h, p *tape.Tensor
	c.In("embeddings", func() { f.Set(&e, emb.run(c, ids)) })
	if project.w != nil {
		f.Set(&e, project.run(c.Graph, e))
	}
	f.Set(&mask, c.fullMask(ids.Shape[0], ids.Shape[1], e.DType))
	f.Set(&h, c.encode(e, mask, blocks))
	if pool.w != nil {
		c.In("pooler", func() {
			g := c.Enter(h)
			var first, y *tape.Tensor
			g.Set(&first, c.Select(h, 1))
			g.Set(&y, pool.run(c.Graph, first))
			g.Set(&y, c.Activation("tanh", y))
			f.Set(&p, g.Leave(y))
		})
	}
	return f.Both(h, p)
}

// encode is the encoder's own forward: its caller keeps the embeddings.
func (c *ctx) encode(e, mask *tape.Tensor, blocks []*encoderBlock) *tape.Tensor {
	f := c.Enter(e)
	var h *tape.Tensor
	f.Set(&h, e)
	for i, b := range blocks {
		f.Set(&h, c.layer(fmt.Sprintf("layer.%d", i),
			func(a []*tape.Tensor) *tape.Tensor { return b.run(c, a[0], a[1]) }, h, mask))
	}
	return f.Leave(h)
}

func (e bertEmbeddings) run(c *ctx, ids *tape.Tensor) *tape.Tensor {
	f := c.Enter()
	b, s := ids.Shape[0], ids.Shape[1]
	var position, types, typeIDs, words, typ, sum, pos *tape.Tensor
	if e.counted {
		f.Set(&position, c.countedPositions(b, s))
	} else {
		f.Set(&position, c.Borrow(tape.I64, 1, s))
	}
	if e.typ != nil {
		f.Set(&types, c.Fresh("token types", tape.I64, position.Shape...))
		f.Set(&typeIDs, c.Expand(types, b, s))
	}
	f.Set(&words, c.Embedding(ids, e.word))
	f.Set(&sum, words)
	if e.typ != nil {
		f.Set(&typ, c.Embedding(typeIDs, e.typ))
		f.Set(&sum, c.Add(words, typ))
	}
	f.Set(&pos, c.Embedding(position, e.pos))
	f.Set(&sum, c.Add(sum, pos))
	f.Set(&sum, e.ln.layer(c.Graph, sum))
	f.Set(&sum, c.Dropout(sum, e.drop))
	return f.Leave(sum)
}

// countedPositions is create_position_ids_from_input_ids: positions of tokens that are not padding.
func (c *ctx) countedPositions(b, s int64) *tape.Tensor {
	f := c.Enter()
	fresh := func(d tape.DType) *tape.Tensor { return c.Fresh("positions", d, b, s) }
	var mask, idx *tape.Tensor
	ne := fresh(tape.Bool)
	f.Set(&mask, fresh(tape.I32))
	tape.Del(ne)
	sum := fresh(tape.I64) // cumsum counts in 64 bits
	tape.Del(fresh(tape.I64))
	narrow := fresh(tape.I32)
	tape.Del(sum)
	f.Set(&idx, c.Mul(c.AddScalar(narrow), mask))
	return f.Leave(c.AddScalar(fresh(tape.I64)))
}

func (b *encoderBlock) run(c *ctx, x, mask *tape.Tensor) *tape.Tensor {
	f := c.Enter()
	var att, w, inter *tape.Tensor
	f.Pair(&att, &w)(b.attend(c, x, mask))
	ff := c.Enter(att)
	ff.Set(&inter, b.intermediate(c, att))
	y := ff.Leave(b.output(c, b.out, b.norm2, inter, att))
	return f.Leave(y)
}

func (b *encoderBlock) intermediate(c *ctx, x *tape.Tensor) *tape.Tensor {
	f := c.Enter(x)
	var h *tape.Tensor
	f.Set(&h, b.inter.run(c.Graph, x))
	f.Set(&h, c.Activation(b.act, h))
	return f.Leave(h)
}

// output is dense, dropout and the norm of the sum with the residual.
func (b *encoderBlock) output(c *ctx, dense lin, ln norm, x, residual *tape.Tensor) *tape.Tensor {
	f := c.Enter(x, residual)
	var h *tape.Tensor
	f.Set(&h, dense.run(c.Graph, x))
	f.Set(&h, c.Dropout(h, b.drop))
	f.Set(&h, ln.layer(c.Graph, c.Add(h, residual)))
	return f.Leave(h)
}

func (b *encoderBlock) attend(c *ctx, x, mask *tape.Tensor) (out, weights *tape.Tensor) {
	f := c.Enter(x)
	var o, w *tape.Tensor
	f.Pair(&o, &w)(b.selfAttend(c, x, mask))
	f.Set(&o, b.output(c, b.o, b.norm1, o, x))
	return f.Both(o, w)
}

func (b *encoderBlock) selfAttend(c *ctx, x, mask *tape.Tensor) (out, weights *tape.Tensor) {
	f := c.Enter(x)
	var q, k, v, o, w *tape.Tensor
	f.Set(&q, heads(c.Graph, b.q.run(c.Graph, x), b.d))
	f.Set(&k, heads(c.Graph, b.k.run(c.Graph, x), b.d))
	f.Set(&v, heads(c.Graph, b.v.run(c.Graph, x), b.d))
	f.Pair(&o, &w)(c.attend(attention{dropout: b.attnDrop, groups: 1, plain: true}, q, k, v, mask))
	f.Set(&o, c.Reshape(o, o.Shape[0], o.Shape[1], x.Dim(-1)))
	return f.Both(o, w)
}
