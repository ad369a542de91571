package models

import (
	"fmt"
	"slices"

	"memroom/tape"
)

// deberta is DeBERTa v2 and v3: BERT's blocks with scores of position against content added to
// those of content.
type deberta struct {
	*encoder
	relative, shared, c2p, p2c bool
	span                       int64 // relative distances that have an embedding, either way
	bucketed                   bool  // distances are put into buckets that grow with their logarithm
	norm                       bool  // of the table of relative embeddings
	biased                     bool  // absolute positions are added to the embeddings
	padID                      bool  // the configuration names a padding token
	pooler                     int64
	poolDrop                   float64
	kernel                     int64 // of the convolution after the first layer, 0 is none
	kernelGroups               int64
	kernelAct                  string
}

type debertaBlock struct {
	*encoderBlock
	spec       *deberta
	posK, posQ lin
}

func readDeberta(c *Config, r Run) *deberta {
	d := &deberta{encoder: readEncoder(c, Run{})}
	d.h, d.inner, d.heads, d.layers = c.Int(1536, "hidden_size"), c.Int(6144, "intermediate_size"),
		c.Int(24, "num_attention_heads"), c.Int(24, "num_hidden_layers")
	d.vocab, d.types, d.embed = c.Int(128100, "vocab_size"), c.Count(0, "type_vocab_size"),
		c.Int(d.h, "embedding_size")
	d.relative, d.shared = c.Bool(false, "relative_attention"), c.Bool(false, "share_att_key")
	kinds := c.Strings("pos_att_type")
	d.c2p, d.p2c = slices.Contains(kinds, "c2p"), slices.Contains(kinds, "p2c")
	far := c.Count(-1, "max_relative_positions")
	if far < 1 {
		far = d.npos
	}
	d.span = far
	if b := c.Count(-1, "position_buckets"); b > 0 {
		d.span, d.bucketed = b, true
	}
	d.norm = slices.Contains(c.Strings("norm_rel_ebd"), "layer_norm")
	d.biased, d.padID = c.Bool(true, "position_biased_input"),
		c.Has("pad_token_id") || !c.Has("model_type")
	d.pooler, d.poolDrop = c.Int(d.h, "pooler_hidden_size"), c.Float(0, "pooler_dropout")
	d.clsDrop = c.Float(d.drop, "cls_dropout")
	d.kernel, d.kernelGroups, d.kernelAct = c.Count(0, "conv_kernel_size"), c.Int(1, "conv_groups"),
		c.Str("tanh", "conv_act")
	c.divides(d.h, d.heads, "hidden_size by num_attention_heads")
	c.divides(d.h, d.kernelGroups, "hidden_size by conv_groups")
	if d.biased {
		c.longEnough(r.Seq, d.npos)
	}
	if !c.Bool(true, "legacy") {
		c.complain("the head of legacy=false is not described")
	}
	return d
}

// debertaV2 is DebertaV2ForMaskedLM and the classifiers on the same body.
func debertaV2(c *Config, r Run) (*Model, error) {
	d := readDeberta(c, r)
	if err := c.Err(); err != nil {
		return nil, err
	}
	root := tape.NewModule()
	body := root.Child("deberta")
	emb := d.embeddings(body.Child("embeddings"))
	enc := body.Child("encoder")
	list := enc.Child("layer")
	var blocks []*debertaBlock
	for i := range d.layers {
		blocks = append(blocks, d.block(list.Child(fmt.Sprint(i))))
	}
	rel := &debertaRelative{spec: d}
	if d.relative {
		rel.table = embedding(enc, "rel_embeddings", 2*d.span, d.h)
	}
	if d.norm {
		rel.ln = layerNorm(enc, "LayerNorm", d.h)
	}
	var local *debertaConv
	if d.kernel > 0 {
		local = d.convolution(enc.Child("conv"))
	}
	run := func(x *ctx, in []*tape.Tensor) *tape.Tensor {
		return x.debertaBody(in, d, emb, blocks,
			rel, local)
	}
	m := d.withHead(root, r, emb.word, run)
	m.MaskCosts = true
	return m, nil
}

type debertaEmbeddings struct {
	bertEmbeddings
	project lin
}

func (d *deberta) embeddings(m *tape.Module) debertaEmbeddings {
	e := debertaEmbeddings{}
	e.drop = d.drop
	e.word = embedding(m, "word_embeddings", d.vocab, d.embed)
	if d.biased {
		e.pos = embedding(m, "position_embeddings", d.npos, d.embed)
	}
	if d.types > 0 {
		e.typ = embedding(m, "token_type_embeddings", d.types, d.embed)
	}
	if d.embed != d.h {
		e.project = linear(m, "embed_proj", d.embed, d.h, false)
	}
	e.ln = layerNorm(m, "LayerNorm", d.h)
	m.Buffer(tape.I64, d.npos)
	return e
}

func (d *deberta) block(m *tape.Module) *debertaBlock {
	b := &debertaBlock{encoderBlock: &encoderBlock{d: d.h / d.heads, act: d.act, drop: d.drop,
		attnDrop: d.attnDrop}, spec: d}
	att := m.Child("attention")
	self := att.Child("self")
	b.q, b.k, b.v = linear(self, "query_proj", d.h, d.h, true),
		linear(self, "key_proj", d.h, d.h, true), linear(self, "value_proj", d.h, d.h, true)
	b.posK, b.posQ = b.k, b.q
	if d.relative && !d.shared && d.c2p {
		b.posK = linear(self, "pos_key_proj", d.h, d.h, true)
	}
	if d.relative && !d.shared && d.p2c {
		b.posQ = linear(self, "pos_query_proj", d.h, d.h, true)
	}
	so := att.Child("output")
	b.o, b.norm1 = linear(so, "dense", d.h, d.h, true), layerNorm(so, "LayerNorm", d.h)
	b.inter = linear(m.Child("intermediate"), "dense", d.h, d.inner, true)
	out := m.Child("output")
	b.out, b.norm2 = linear(out, "dense", d.inner, d.h, true), layerNorm(out, "LayerNorm", d.h)
	return b
}

// withHead puts the head that the configuration names on the body.
func (d *deberta) withHead(root *tape.Module, r Run, word *tape.Param,
	run func(x *ctx, in []*tape.Tensor) *tape.Tensor) *Model {
	switch {
	case d.arch == "ForSequenceClassification":
		m := &Model{Root: root, Inputs: classInputs(r), Layers: d.layers, Run: r, Head: d.arch}
		pool := linear(root.Child("pooler"), "dense", d.pooler, d.pooler, true)
		cls := linear(root, "classifier", d.h, d.labels, true)
		m.Loss = func(g *tape.Graph, in []*tape.Tensor) *tape.Tensor {
			x := newCtx(g, r)
			return d.classify(x, pool, cls, func() *tape.Tensor { return run(x, in) })
		}
		return m
	case isClassifier(d.arch):
		return d.classifier(root, r, unpooled(run), nil)
	}
	return d.masked(root, r, d.mlmHead(root.Child("cls").Child("predictions"), word), unpooled(run))
}

// classify is ContextPooler, dropout, classifier, and a loss over the samples that have a label.
func (d *deberta) classify(c *ctx, pool, cls lin, body func() *tape.Tensor) *tape.Tensor {
	f := c.Enter()
	var h, pooled, logits, index, labels, picked *tape.Tensor
	f.Set(&h, body())
	c.In("pooler", func() {
		p := c.Enter(h)
		var first, y *tape.Tensor
		p.Set(&first, c.Select(h, 1))
		p.Set(&first, c.Dropout(first, d.poolDrop))
		p.Set(&y, pool.run(c.Graph, first))
		p.Set(&y, c.Activation("gelu", y))
		f.Set(&pooled, p.Leave(y))
	})
	f.Set(&pooled, c.Dropout(pooled, d.clsDrop))
	f.Set(&logits, cls.run(c.Graph, pooled))
	b := logits.Shape[0]
	c.In("loss", func() {
		ge, count := c.Fresh("labels", tape.Bool, b), c.Fresh("labels", tape.I32)
		tape.Del(c.Fresh("labels", tape.U8))
		f.Set(&index, c.Fresh("labels", tape.I64, b, 1))
		tape.Del(c.Fresh("labels", tape.U8, 1023), count, ge)
		f.Set(&picked, c.Gather(logits, c.Expand(index, b, logits.Dim(-1))))
		f.Set(&labels, c.Fresh("labels", tape.I64, b))
	})
	var loss *tape.Tensor
	c.In("loss", func() { loss = c.plainLoss(c.To(picked, tape.F32), labels) })
	return f.Leave(loss)
}

// padTest is warn_if_padding_and_no_attention_mask: the first and last tokens are looked at where
// no mask is given.
func (c *ctx) padTest(b int64) {
	if c.MaskGiven || c.Padded {
		return
	}
	columns := c.Fresh("padding test", tape.I64, 2)
	ends := c.Fresh("padding test", tape.I64, b, 2)
	tape.Del(columns)
	tape.Del(c.Fresh("padding test", tape.Bool, b, 2), c.Fresh("padding test", tape.Bool), ends)
}

// debertaRelative is the table of relative embeddings and what is derived from the length.
type debertaRelative struct {
	spec  *deberta
	table *tape.Param
	ln    norm
	fused bool // the scripted function has run once and was compiled
}

func (c *ctx) debertaBody(in []*tape.Tensor, d *deberta, emb debertaEmbeddings,
	blocks []*debertaBlock, rel *debertaRelative, local *debertaConv) *tape.Tensor {
	f := c.Enter()
	ids := in[0]
	b, s := ids.Shape[0], ids.Shape[1]
	if d.padID {
		c.padTest(b)
	}
	var given, types, e, h *tape.Tensor
	if c.MaskGiven || c.Padded {
		f.Set(&given, c.Borrow(tape.I64, b, s))
	} else {
		f.Set(&given, c.Fresh("mask", tape.F32, b, s))
	}
	f.Set(&types, c.Fresh("token types", tape.I64, b, s))
	c.In("embeddings", func() { f.Set(&e, emb.run(c, ids, given, types)) })
	f.Set(&h, c.debertaEncode(e, given, blocks, rel, local))
	return f.Leave(h)
}

func (e debertaEmbeddings) run(c *ctx, ids, given, types *tape.Tensor) *tape.Tensor {
	f := c.Enter()
	var words, pos, sum, typ, mask *tape.Tensor
	f.Set(&words, c.Embedding(ids, e.word))
	f.Set(&sum, words)
	if e.pos != nil {
		f.Set(&pos, c.Embedding(c.Borrow(tape.I64, 1, ids.Shape[1]), e.pos))
		f.Set(&sum, c.Add(sum, pos))
	} else {
		f.Set(&pos, c.Fresh("positions", words.DType, words.Shape...))
	}
	if e.typ != nil {
		f.Set(&typ, c.Embedding(types, e.typ))
		f.Set(&sum, c.Add(sum, typ))
	}
	if e.project.w != nil {
		f.Set(&sum, e.project.run(c.Graph, sum))
	}
	f.Set(&sum, e.ln.layer(c.Graph, sum))
	f.Set(&mask, c.To(c.Unsqueeze(given, 2), sum.DType))
	f.Set(&sum, c.Mul(sum, mask))
	f.Set(&sum, c.Dropout(sum, e.drop))
	return f.Leave(sum)
}

// debertaEncode is the encoder's forward. It always collects the outputs of all layers.
func (c *ctx) debertaEncode(e, given *tape.Tensor, blocks []*debertaBlock, rel *debertaRelative,
	local *debertaConv) *tape.Tensor {
	f := c.Enter(e)
	b, s := e.Shape[0], e.Shape[1]
	var mask, pos, table, h *tape.Tensor
	f.Set(&mask, c.Fresh("mask", given.DType, b, 1, s, s))
	if rel.table != nil {
		f.Set(&pos, rel.positions(c, s))
		f.Set(&table, rel.table.Tensor)
		if rel.ln.w != nil {
			f.Set(&table, rel.ln.layer(c.Graph, rel.table.Tensor))
		}
	}
	f.Set(&h, e)
	for i, blk := range blocks {
		f.Set(&h, c.layer(fmt.Sprintf("layer.%d", i),
			func(a []*tape.Tensor) *tape.Tensor { return blk.run(c, a[0], a[1], a[2], a[3]) }, h,
			mask, pos, table))
		if i == 0 && local != nil {
			f.Set(&h, local.run(c, e, h, given))
		}
		f.Keep(h)
	}
	return f.Leave(h)
}

// positions is build_relative_position: distances, in buckets where asked.
func (r *debertaRelative) positions(c *ctx, s int64) *tape.Tensor {
	f := c.Enter()
	fresh := func(d tape.DType, shape ...int64) *tape.Tensor {
		return c.Fresh("relative positions",
			d, shape...)
	}
	var q, k, rel *tape.Tensor
	f.Set(&q, fresh(tape.I64, s))
	f.Set(&k, fresh(tape.I64, s))
	f.Set(&rel, fresh(tape.I64, s, s))
	switch {
	case r.spec.bucketed && r.fused:
		f.Set(&rel, c.fusedBuckets(s))
	case r.spec.bucketed:
		f.Set(&rel, c.logBuckets(s))
		r.fused = true
	}
	if rel.DType != tape.I64 {
		f.Set(&rel, fresh(tape.I64, s, s))
	}
	return f.Leave(c.Unsqueeze(rel, 0))
}

// fusedBuckets is make_log_bucket_position once TorchScript has joined its operations into a few
// kernels.
func (c *ctx) fusedBuckets(s int64) *tape.Tensor {
	fresh := func(d tape.DType) *tape.Tensor { return c.Fresh("relative positions", d, s, s) }
	sign, middle := fresh(tape.I64), c.Fresh("relative positions", tape.I64)
	ratio, abs := fresh(tape.F32), fresh(tape.I64)
	tape.Del(middle)
	log := fresh(tape.F32)
	tape.Del(ratio)
	out := fresh(tape.F32)
	tape.Del(sign, abs, log)
	return out
}

// logBuckets is make_log_bucket_position, a scripted function: a value goes after its last use.
func (c *ctx) logBuckets(s int64) *tape.Tensor {
	fresh := func(d tape.DType) *tape.Tensor { return c.Fresh("relative positions", d, s, s) }
	sign := fresh(tape.I64)
	below, above := fresh(tape.Bool), fresh(tape.Bool)
	near := fresh(tape.Bool)
	tape.Del(below, above)
	middle := c.Fresh("relative positions", tape.I64)
	far := fresh(tape.I64)
	abs := fresh(tape.I64)
	tape.Del(near, middle, far)
	log := fresh(tape.F32)
	for range 5 { // log, divided, scaled, rounded up, shifted
		next := fresh(tape.F32)
		tape.Del(log)
		log = next
	}
	inside := fresh(tape.Bool)
	tape.Del(abs)
	wide := fresh(tape.F32)
	signed := fresh(tape.F32)
	tape.Del(log, sign)
	out := fresh(tape.F32)
	tape.Del(inside, wide, signed)
	return out
}

func (b *debertaBlock) run(c *ctx, x, mask, pos, table *tape.Tensor) *tape.Tensor {
	f := c.Enter()
	var att, inter *tape.Tensor
	a := c.Enter(x)
	var o *tape.Tensor
	a.Set(&o, b.selfAttend(c, x, mask, pos, table))
	a.Set(&o, b.output(c, b.o, b.norm1, o, x))
	f.Set(&att, a.Leave(o))
	f.Set(&inter, b.intermediate(c, att))
	return f.Leave(b.output(c, b.out, b.norm2, inter, att))
}

// forScores is transpose_for_scores: [B, S, h] as [B*heads, S, d], a copy.
func (b *debertaBlock) forScores(c *ctx, x *tape.Tensor) *tape.Tensor {
	f := c.Enter(x)
	s := x.Shape[1]
	return f.Leave(c.View(c.Contiguous(c.Permute(c.View(x, x.Shape[0], s, -1, b.d), 0, 2, 1, 3)),
		-1, s, b.d))
}

func (b *debertaBlock) selfAttend(c *ctx, x, mask, pos, table *tape.Tensor) *tape.Tensor {
	f := c.Enter(x)
	d := b.spec
	var q, k, v, scores, rel, bias, bools, probs, out *tape.Tensor
	f.Set(&q, b.forScores(c, b.q.run(c.Graph, x)))
	f.Set(&k, b.forScores(c, b.k.run(c.Graph, x)))
	f.Set(&v, b.forScores(c, b.v.run(c.Graph, x)))
	f.Set(&scores, c.Bmm(q, c.Scale(c.Transpose(k, -1, -2))))
	if d.relative {
		f.Set(&rel, c.Dropout(table, b.drop))
		f.Set(&bias, b.positionBias(c, q, k, pos, rel))
	}
	if bias != nil {
		f.Set(&scores, c.Add(scores, bias))
	}
	s := scores.Dim(-1)
	f.Set(&scores, c.View(scores, -1, d.heads, s, s))
	f.Set(&bools, c.Fresh("mask", tape.Bool, mask.Shape...))
	f.Set(&scores, c.MaskedFill(scores, c.Fresh("mask", tape.Bool, mask.Shape...)))
	f.Set(&probs, c.Softmax(scores, scores.DType))
	f.Set(&probs, c.Dropout(probs, b.attnDrop))
	f.Set(&out, c.Bmm(c.View(probs, -1, s, s), v))
	f.Set(&out, c.Contiguous(c.Permute(c.View(out, -1, d.heads, s, b.d), 0, 2, 1, 3)))
	f.Set(&out, c.View(out, out.Shape[0], s, -1))
	return f.Leave(out)
}

// positionBias is disentangled_attention_bias: scores of content against positions and the other
// way round.
func (b *debertaBlock) positionBias(c *ctx, q, k, pos, table *tape.Tensor) *tape.Tensor {
	f := c.Enter()
	d := b.spec
	copies := q.Shape[0] / d.heads
	s := q.Shape[1]
	var rel, at, posQ, posK, score, c2p, c2pAt, p2c, p2cAt *tape.Tensor
	f.Set(&at, c.Unsqueeze(pos, 1))
	f.Set(&rel, c.Unsqueeze(c.Slice(table, 0, 2*d.span), 0))
	project := func(l lin) *tape.Tensor {
		return c.Repeat(b.forScores(c, l.run(c.Graph, rel)),
			copies)
	}
	if d.p2c && d.shared {
		f.Set(&posQ, project(b.posQ))
	}
	if d.c2p || d.shared {
		f.Set(&posK, project(b.posK))
	}
	if !d.shared && d.p2c {
		f.Set(&posQ, project(b.posQ))
	}
	fresh := func() *tape.Tensor { return c.Fresh("relative positions", tape.I64, 1, 1, s, s) }
	pick := func(scores, index *tape.Tensor) *tape.Tensor {
		return c.Gather(scores, c.Expand(c.Squeeze(index, 0), q.Shape[0], s, s))
	}
	if d.c2p {
		f.Set(&c2p, c.Bmm(q, c.Transpose(posK, -1, -2)))
		f.Set(&c2pAt, clamped(fresh(), fresh))
		f.Set(&c2p, pick(c2p, c2pAt))
		f.Set(&score, c.AddScalar(c.Scale(c2p)))
	}
	if d.p2c {
		neg := fresh()
		sum := fresh()
		tape.Del(neg)
		f.Set(&p2cAt, clamped(sum, fresh))
		f.Set(&p2c, c.Bmm(k, c.Transpose(posQ, -1, -2)))
		f.Set(&p2c, c.Transpose(pick(p2c, p2cAt), -1, -2))
		if score == nil {
			f.Set(&score, c.AddScalar(c.Scale(p2c)))
		} else {
			c.AddInPlace(score, c.Scale(p2c))
		}
	}
	return f.Leave(score)
}

// clamped is torch.clamp of a temporary.
func clamped(sum *tape.Tensor, fresh func() *tape.Tensor) *tape.Tensor {
	out := fresh()
	tape.Del(sum)
	return out
}

// debertaConv is the convolution over neighbouring tokens after the first layer (the xlarge models
// of v2).
type debertaConv struct {
	conv convLayer
	ln   norm
	drop float64
	act  string
}

func (d *deberta) convolution(m *tape.Module) *debertaConv {
	k := m.Child("conv")
	l := convLayer{w: k.Param("weight", d.h, d.h/d.kernelGroups, 1, d.kernel), stride: 1,
		pad: (d.kernel - 1) / 2, groups: d.kernelGroups, dilation: 1, flat: true}
	l.b = k.Param("bias", d.h)
	return &debertaConv{conv: l, ln: layerNorm(m, "LayerNorm", d.h), drop: d.drop, act: d.kernelAct}
}

func (l *debertaConv) run(c *ctx, x, residual, given *tape.Tensor) *tape.Tensor {
	f := c.Enter(x, residual)
	b, s, h := x.Shape[0], x.Shape[1], x.Shape[2]
	var out, mask, sum, y, in *tape.Tensor
	wide := c.Unsqueeze(c.Contiguous(c.Permute(x, 0, 2, 1)), 2)
	f.Set(&out, c.Contiguous(c.Permute(c.Squeeze(l.conv.run(c, wide), 2), 0, 2, 1)))
	inverse := c.Fresh("mask", given.DType, b, s)
	f.Set(&mask, c.Fresh("mask", tape.Bool, b, s))
	tape.Del(inverse)
	c.MaskedFillInPlace(out, c.Expand(c.Unsqueeze(mask, -1), b, s, h))
	f.Set(&out, c.Activation(l.act, c.Dropout(out, l.drop)))
	f.Set(&sum, c.Add(residual, out))
	f.Set(&y, c.To(l.ln.layer(c.Graph, sum), sum.DType))
	f.Set(&in, c.To(c.Unsqueeze(given, 2), y.DType))
	return f.Leave(c.Mul(y, in))
}
