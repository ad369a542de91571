package models

import (
	"fmt"

	"memroom/tape"
)

type bloomBlock struct {
	h, heads             int64
	norm1, norm2         norm
	qkv, dense, fc1, fc2 lin
	post                 bool
	drop, attnDrop       float64
}

// bloom is BloomForCausalLM. It has no fused attention: scores are whole.
func bloom(c *Config, r Run) (*Model, error) {
	h, nh := c.Int(64, "hidden_size", "n_embed"), c.Int(8, "n_head", "num_attention_heads")
	layers, vocab := c.Int(2, "n_layer", "num_hidden_layers"), c.Int(250880, "vocab_size")
	drop, attnDrop, post := c.Float(0, "hidden_dropout"), c.Float(0, "attention_dropout"),
		c.Bool(false, "apply_residual_connection_post_layernorm")
	tied := c.Bool(true, "tie_word_embeddings")
	c.divides(h, nh, "hidden_size by n_head")
	if err := c.Err(); err != nil {
		return nil, err
	}
	r.Attn = "eager"
	root := tape.NewModule()
	body := root.Child("transformer")
	table := embedding(body, "word_embeddings", vocab, h)
	first := layerNorm(body, "word_embeddings_layernorm", h)
	list := body.Child("h")
	var blocks []*bloomBlock
	for i := range layers {
		m := list.Child(fmt.Sprint(i))
		b := &bloomBlock{h: h, heads: nh, post: post, drop: drop, attnDrop: attnDrop}
		b.norm1 = layerNorm(m, "input_layernorm", h)
		a := m.Child("self_attention")
		b.qkv, b.dense = linear(a, "query_key_value", h, 3*h, true), linear(a, "dense", h, h, true)
		b.norm2 = layerNorm(m, "post_attention_layernorm", h)
		mlp := m.Child("mlp")
		b.fc1, b.fc2 = linear(mlp, "dense_h_to_4h", h, 4*h, true),
			linear(mlp, "dense_4h_to_h", 4*h, h, true)
		blocks = append(blocks, b)
	}
	final := layerNorm(body, "ln_f", h)
	head := causalHead(root, r, table, tied, vocab, h)
	return causalModel(root, r, head, layers, true, func(x *ctx, ids *tape.Tensor) *tape.Tensor {
		return x.bloomBody(ids, table, first, final, blocks, nh)
	}), nil
}

func (c *ctx) bloomBody(ids *tape.Tensor, table *tape.Param, first, final norm,
	blocks []*bloomBlock, nh int64) *tape.Tensor {
	f := c.Enter()
	b, s := ids.Shape[0], ids.Shape[1]
	var e, h, ones, alibi, mask, weights *tape.Tensor
	c.In("embedding", func() {
		f.Set(&e, c.Embedding(ids, table))
		f.Set(&h, first.layer(c.Graph, e))
		f.Set(&ones, c.Fresh("alibi", tape.F32, b, s))
		f.Set(&alibi, c.alibi(ones, nh, h.DType))
		f.Set(&mask, c.onesMask(b, s, e.DType))
	})
	for i, blk := range blocks {
		var w *tape.Tensor
		out := c.layer(fmt.Sprintf("h.%d", i), func(a []*tape.Tensor) *tape.Tensor {
			var y *tape.Tensor
			y, w = blk.run(c, a[0], a[1], a[2])
			return y
		}, h, alibi, mask)
		// the block's result is a tuple, which holds the probabilities until the next block has run
		f.Set(&weights, w)
		f.Set(&h, out)
	}
	c.In("ln_f", func() { f.Set(&h, final.layer(c.Graph, h)) })
	return f.Leave(h)
}

// alibi is build_alibi_tensor.
func (c *ctx) alibi(ones *tape.Tensor, nh int64, d tape.DType) *tape.Tensor {
	f := c.Enter(ones)
	b, s := ones.Shape[0], ones.Shape[1]
	var slopes, pos, a *tape.Tensor
	c.alibiSlopes(f, &slopes, nh)
	f.Set(&pos, c.Unsqueeze(c.Mul(c.AddScalar(c.Fresh("alibi", tape.F32, b, s)), ones), 1))
	f.Set(&a, c.Mul(c.Unsqueeze(slopes, -1), pos))
	return f.Leave(c.To(c.View(a, b*nh, 1, s), d))
}

// alibiSlopes makes a slope for each head; all variables live until the caller's function returns.
func (c *ctx) alibiSlopes(f *tape.Frame, slopes **tape.Tensor, nh int64) {
	pow2 := int64(1)
	for pow2*2 <= nh {
		pow2 *= 2
	}
	f.Keep(c.Fresh("alibi", tape.F32))
	f.Keep(c.Fresh("alibi", tape.I32, pow2))
	f.Set(slopes, c.Fresh("alibi", tape.F32, pow2))
	if pow2 != nh {
		f.Keep(c.Fresh("alibi", tape.F32))
		f.Keep(c.Fresh("alibi", tape.I32, nh-pow2))
		f.Set(slopes, c.Cat(0, *slopes, c.Fresh("alibi", tape.F32, nh-pow2)))
	}
}

func (b *bloomBlock) run(c *ctx, x, alibi, mask *tape.Tensor) (out, weights *tape.Tensor) {
	f := c.Enter()
	var ln, res, att, w, y *tape.Tensor
	f.Set(&ln, b.norm1.layer(c.Graph, x))
	f.Set(&res, x)
	if b.post {
		f.Set(&res, ln)
	}
	o, p := b.attend(c, ln, res, alibi, mask)
	f.Set(&att, o)
	f.Set(&w, p)
	f.Set(&ln, b.norm2.layer(c.Graph, att))
	f.Set(&res, att)
	if b.post {
		f.Set(&res, ln)
	}
	f.Set(&y, b.mlp(c, ln, res))
	out, weights = y, w
	f.Leave(out, weights)
	return out, weights
}

func (b *bloomBlock) mlp(c *ctx, x, res *tape.Tensor) *tape.Tensor {
	f := c.Enter(x, res)
	var h, y *tape.Tensor
	f.Set(&h, c.BloomGelu(b.fc1.run(c.Graph, x)))
	f.Set(&y, b.fc2.run(c.Graph, h))
	return f.Leave(c.Add(res, c.Dropout(y, b.drop)))
}

func (b *bloomBlock) attend(c *ctx, x, res, alibi, mask *tape.Tensor) (out, weights *tape.Tensor) {
	f := c.Enter(x, res)
	bs, s, d := x.Shape[0], x.Shape[1], b.h/b.heads
	var fused, q, k, v, scores, w, probs, flat, ctxl, y *tape.Tensor
	f.Set(&fused, b.qkv.run(c.Graph, x))
	split := c.View(fused, bs, s, b.heads, 3, d)
	g := c.Enter(split)
	part := func() *tape.Tensor { return c.Transpose(c.Select(split, 3), 1, 2) }
	qs, ks, vs := part(), part(), part()
	g.Leave(qs, ks, vs)
	f.Set(&q, qs)
	f.Set(&k, ks)
	f.Set(&v, vs)
	ck, cv := c.cached(k, v)
	f.Set(&k, ck)
	f.Set(&v, cv)
	f.Set(&q, c.Reshape(q, bs*b.heads, -1, d))
	f.Set(&k, c.Transpose(c.Reshape(k, bs*b.heads, -1, d), -1, -2))
	f.Set(&v, c.Reshape(v, bs*b.heads, -1, d))
	f.Set(&scores, c.Baddbmm(alibi, q, k))
	f.Set(&w, c.View(scores, bs, b.heads, s, -1))
	if mask != nil {
		f.Set(&w, c.Add(w, mask))
	}
	f.Set(&probs, c.To(c.Softmax(w, tape.F32), q.DType))
	f.Set(&probs, c.Dropout(probs, b.attnDrop))
	f.Set(&flat, c.View(probs, bs*b.heads, s, -1))
	f.Set(&ctxl, c.Bmm(flat, v))
	f.Set(&ctxl, c.Reshape(c.Permute(c.View(ctxl, bs, b.heads, s, d), 0, 2, 1, 3), bs, s, b.h))
	f.Set(&y, b.dense.run(c.Graph, ctxl))
	f.Set(&y, c.Add(res, c.Dropout(y, b.drop)))
	out, weights = y, probs
	f.Leave(out, weights)
	return out, weights
}
