package models

import (
	"fmt"

	"memroom/tape"
)

type mptBlock struct {
	h, heads     int64
	norm1, norm2 norm
	qkv, o       lin
	up, down     lin
	drop         float64
	clip         bool
}

// mpt is MptForCausalLM: ALiBi, no biases, scores written out in Python.
func mpt(c *Config, r Run) (*Model, error) {
	h, nh := c.Int(2048, "d_model", "hidden_size"), c.Int(16, "n_heads", "num_attention_heads")
	layers, vocab, longest := c.Int(24, "n_layers", "num_hidden_layers"),
		c.Int(50368, "vocab_size"), c.Int(2048, "max_seq_len")
	att := c.Sub("attn_config")
	drop, clip := att.Float(0, "attn_pdrop"), att.Has("clip_qkv")
	tied := c.Bool(true, "tie_word_embeddings")
	c.divides(h, nh, "d_model by n_heads")
	if r.Seq > longest {
		c.complain("the sequence of %d tokens is longer than max_seq_len %d", r.Seq, longest)
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	r.Attn = "eager"
	root := tape.NewModule()
	body := root.Child("transformer")
	table := embedding(body, "wte", vocab, h)
	list := body.Child("blocks")
	var blocks []*mptBlock
	for i := range layers {
		m := list.Child(fmt.Sprint(i))
		b := &mptBlock{h: h, heads: nh, drop: drop, clip: clip, norm1: rmsNorm(m, "norm_1", h)}
		a := m.Child("attn")
		b.qkv, b.o = linear(a, "Wqkv", h, 3*h, false), linear(a, "out_proj", h, h, false)
		b.norm2 = rmsNorm(m, "norm_2", h)
		f := m.Child("ffn")
		b.up, b.down = linear(f, "up_proj", h, 4*h, false), linear(f, "down_proj", 4*h, h, false)
		blocks = append(blocks, b)
	}
	final := rmsNorm(body, "norm_f", h)
	head := causalHead(root, r, table, tied, vocab, h)
	return causalModel(root, r, head, layers, true, func(x *ctx, ids *tape.Tensor) *tape.Tensor {
		return x.mptBody(ids, table, final, blocks, nh, longest)
	}), nil
}

func (c *ctx) mptBody(ids *tape.Tensor, table *tape.Param, final norm, blocks []*mptBlock, nh,
	longest int64) *tape.Tensor {
	f := c.Enter()
	b, s := ids.Shape[0], ids.Shape[1]
	var e, h, alibi, mask, weights *tape.Tensor
	c.In("embedding", func() {
		f.Set(&e, c.Embedding(ids, table))
		f.Set(&h, e)
		f.Set(&alibi, c.mptAlibi(nh, longest))
		wide := c.buildMask(causal, b, s, s, e.DType)
		narrow := c.Fresh("mask", tape.Bool, b, 1, s, s)
		tape.Del(wide)
		f.Set(&mask, narrow)
	})
	for i, blk := range blocks {
		var w *tape.Tensor
		out := c.layer(fmt.Sprintf("blocks.%d", i), func(a []*tape.Tensor) *tape.Tensor {
			var y *tape.Tensor
			y, w = blk.run(c, a[0], a[1], a[2])
			return y
		}, h, alibi, mask)
		f.Set(&weights, w)
		f.Set(&h, out)
	}
	c.In("norm_f", func() { f.Set(&h, final.layer(c.Graph, h)) })
	return f.Leave(h)
}

// mptAlibi is build_mpt_alibi_tensor, for the longest sequence.
func (c *ctx) mptAlibi(nh, longest int64) *tape.Tensor {
	f := c.Enter()
	pow2 := int64(1)
	for pow2 < nh {
		pow2 *= 2
	}
	var alibi, base, slopes *tape.Tensor
	f.Set(&alibi, c.Fresh("alibi", tape.I32, 1, 1, 1, longest))
	ints := c.Fresh("alibi", tape.I64, pow2)
	f.Set(&base, c.Fresh("alibi", tape.F32, pow2))
	tape.Del(ints)
	f.Set(&base, c.Scale(base))
	power := c.Scale(base) // 2 to the power
	tape.Del(c.Fresh("alibi", tape.I64))
	inverse := c.Fresh("alibi", tape.F32, pow2)
	f.Set(&slopes, c.Scale(inverse))
	tape.Del(power)
	if pow2 != nh {
		f.Set(&slopes, c.Fresh("alibi", tape.F32, pow2))
	}
	f.Set(&alibi, c.Fresh("alibi", tape.F32, nh, 1, longest))
	return f.Leave(alibi)
}

func (b *mptBlock) run(c *ctx, x, alibi, mask *tape.Tensor) (out, weights *tape.Tensor) {
	f := c.Enter()
	var ln, res, att, w, h, y *tape.Tensor
	f.Set(&ln, b.norm1.layer(c.Graph, x))
	f.Set(&res, x)
	o, p := b.attend(c, ln, alibi, mask)
	f.Set(&att, o)
	f.Set(&w, p)
	f.Set(&h, c.Add(c.Dropout(att, b.drop), res))
	f.Set(&ln, b.norm2.layer(c.Graph, h))
	f.Set(&res, h)
	f.Set(&y, b.mlp(c, ln, res))
	out, weights = y, w
	f.Leave(out, weights)
	return out, weights
}

func (b *mptBlock) mlp(c *ctx, x, res *tape.Tensor) *tape.Tensor {
	f := c.Enter(x, res)
	var h, mid, y *tape.Tensor
	f.Set(&h, c.Activation("gelu", b.up.run(c.Graph, x)))
	f.Set(&mid, b.down.run(c.Graph, h))
	f.Set(&y, c.Dropout(mid, b.drop))
	f.Set(&y, c.Add(y, res))
	return f.Leave(y)
}

func (b *mptBlock) attend(c *ctx, x, alibi, mask *tape.Tensor) (out, weights *tape.Tensor) {
	f := c.Enter(x)
	bs, s, d := x.Shape[0], x.Shape[1], b.h/b.heads
	var qkv, q, k, v, scores, w, o *tape.Tensor
	f.Set(&qkv, b.qkv.run(c.Graph, x))
	if b.clip {
		f.Set(&qkv, c.Activation("clamp", qkv))
	}
	parts := c.Split(qkv, 2, b.h, b.h, b.h)
	f.Set(&q, parts[0])
	f.Set(&k, parts[1])
	f.Set(&v, parts[2])
	split := func(t *tape.Tensor) *tape.Tensor {
		return c.Transpose(c.Reshape(t, bs, s, b.heads, d),
			1, 2)
	}
	f.Set(&q, split(q))
	f.Set(&k, split(k))
	f.Set(&v, split(v))
	ck, cv := c.cached(k, v)
	f.Set(&k, ck)
	f.Set(&v, cv)
	f.Set(&scores, c.Scale(c.Matmul(q, c.Transpose(k, -1, -2))))
	f.Set(&scores, c.Add(scores, c.Slice(alibi, 2, s)))
	f.Set(&scores, c.MaskedFill(scores, mask))
	f.Set(&w, c.To(c.Softmax(c.To(scores, tape.F32), tape.F32), v.DType))
	f.Set(&w, c.Dropout(w, b.drop))
	f.Set(&o, c.Matmul(w, v))
	f.Set(&o, c.View(c.Contiguous(c.Permute(o, 0, 2, 1, 3)), bs, s, b.h))
	y := b.o.run(c.Graph, o)
	out, weights = y, w
	f.Leave(out, weights)
	return out, weights
}
