package family

import (
	"fmt"

	"memroom/plan/tape"
)

// decoder is the Llama kind of decoder with the switches in which its relatives differ.
type decoder struct {
	h, inner, heads, kv, d, layers, vocab int64
	act                                   string
	qkvBias, outBias, mlpBias             bool
	headNorm                              bool // Qwen3: norm of q and k per head
	tied                                  bool
	attnDrop                              float64
	window                                int64 // sliding window, 0 is none
	experts                               *moe
}

type decoderBlock struct {
	spec           *decoder
	q, k, v, o     lin
	gate, up, down lin
	norm1, norm2   norm
	qNorm, kNorm   norm
}

func readDecoder(c *Config, r Run) *decoder {
	s := &decoder{
		h: c.Int(required, "hidden_size"), inner: c.Int(required, "intermediate_size"), layers: c.Int(required, "num_hidden_layers"),
		heads: c.Int(required, "num_attention_heads"), vocab: c.Int(required, "vocab_size"),
		act: c.Str("silu", "hidden_act", "hidden_activation"), tied: c.Bool(false, "tie_word_embeddings"),
		attnDrop: c.Float(0, "attention_dropout"),
	}
	s.kv = c.Int(s.heads, "num_key_value_heads")
	s.d = c.Int(s.h/max(s.heads, 1), "head_dim")
	c.divides(s.heads, s.kv, "num_attention_heads by num_key_value_heads")
	if !c.Has("head_dim") {
		c.divides(s.h, s.heads, "hidden_size by num_attention_heads")
	}
	if c.Bool(c.Type() == "mistral", "use_sliding_window") || c.Type() == "mistral" || c.Type() == "mixtral" {
		s.window = c.Count(0, "sliding_window")
	}
	return s
}

// llama is LlamaForCausalLM and those that differ by a switch.
func llama(c *Config, r Run) (*Model, error) {
	s := readDecoder(c, r)
	switch c.Type() {
	case "qwen2":
		s.qkvBias = true
	case "qwen3":
		s.headNorm = true
		s.qkvBias = c.Bool(false, "attention_bias")
		s.outBias = s.qkvBias
	default:
		s.qkvBias = c.Bool(false, "attention_bias")
		s.outBias = s.qkvBias
		s.mlpBias = c.Bool(false, "mlp_bias")
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	return s.model(r), nil
}

func (s *decoder) model(r Run) *Model {
	root := tape.NewModule()
	body := root.Child("model")
	table := embedding(body, "embed_tokens", s.vocab, s.h)
	var blocks []*decoderBlock
	list := body.Child("layers")
	for i := range s.layers {
		blocks = append(blocks, s.block(list.Child(fmt.Sprint(i))))
	}
	final := rmsNorm(body, "norm", s.h)
	rot := body.Child("rotary_emb")
	rot.Buffer(tape.F32, s.d/2)
	rot.Buffer(tape.F32, s.d/2)
	head := causalHead(root, "lm_head", table, s.tied, s.vocab, s.h)
	loss := func(g *tape.Graph, in []*tape.Tensor) *tape.Tensor {
		x := &ctx{g, r}
		return x.causalLM(in[0], head, func() *tape.Tensor { return s.run(x, in[0], table, blocks, final) })
	}
	return &Model{Root: root, Inputs: tokenInputs(r), Loss: loss, Layers: s.layers, Run: r}
}

func (s *decoder) block(m *tape.Module) *decoderBlock {
	b := &decoderBlock{spec: s}
	a := m.Child("self_attn")
	b.q, b.k, b.v = linear(a, "q_proj", s.h, s.heads*s.d, s.qkvBias), linear(a, "k_proj", s.h, s.kv*s.d, s.qkvBias), linear(a, "v_proj", s.h, s.kv*s.d, s.qkvBias)
	b.o = linear(a, "o_proj", s.heads*s.d, s.h, s.outBias)
	if s.headNorm {
		b.qNorm, b.kNorm = rmsNorm(a, "q_norm", s.d), rmsNorm(a, "k_norm", s.d)
	}
	mlp := m.Child("mlp")
	b.gate, b.up, b.down = linear(mlp, "gate_proj", s.h, s.inner, s.mlpBias), linear(mlp, "up_proj", s.h, s.inner, s.mlpBias), linear(mlp, "down_proj", s.inner, s.h, s.mlpBias)
	b.norm1, b.norm2 = rmsNorm(m, "input_layernorm", s.h), rmsNorm(m, "post_attention_layernorm", s.h)
	return b
}

func (s *decoder) run(c *ctx, ids *tape.Tensor, table *tape.Param, blocks []*decoderBlock, final norm) *tape.Tensor {
	f := c.Enter()
	var e, pos, mask, h, cos, sin *tape.Tensor
	c.In("embedding", func() {
		f.Set(&e, c.Embedding(ids, table))
		f.Set(&pos, c.positions(ids.Shape[1]))
		f.Set(&mask, c.causalMask(ids.Shape[0], ids.Shape[1], e.DType))
		f.Set(&h, e)
		co, si := c.rotaryTable(rotary{s.d}, pos, h.DType)
		f.Set(&cos, co)
		f.Set(&sin, si)
	})
	for i, b := range blocks {
		f.Set(&h, c.layer(fmt.Sprintf("layers.%d", i), func(a []*tape.Tensor) *tape.Tensor { return b.run(c, a[0], a[1], a[2], a[3]) }, h, cos, sin, mask, pos))
	}
	c.In("norm", func() { f.Set(&h, final.rms(c.Graph, h)) })
	return f.Leave(h)
}

func (b *decoderBlock) run(c *ctx, x, cos, sin, mask *tape.Tensor) *tape.Tensor {
	f := c.Enter()
	var res, h, weights *tape.Tensor
	f.Set(&res, x)
	f.Set(&h, b.norm1.rms(c.Graph, x))
	o, w := b.attend(c, h, cos, sin, mask)
	f.Set(&h, o)
	f.Set(&weights, w)
	f.Set(&h, c.Add(res, h))
	f.Set(&res, h)
	f.Set(&h, b.norm2.rms(c.Graph, h))
	f.Set(&h, b.mlp(c, h))
	f.Set(&h, c.Add(res, h))
	return f.Leave(h)
}

func (b *decoderBlock) attend(c *ctx, x, cos, sin, mask *tape.Tensor) (out, weights *tape.Tensor) {
	f := c.Enter(x)
	s := b.spec
	var q, k, v, o, w *tape.Tensor
	project := func(l lin, n norm) *tape.Tensor {
		y := l.run(c.Graph, x)
		if n.w == nil {
			return heads(c.Graph, y, s.d)
		}
		return c.Transpose(n.rms(c.Graph, c.View(y, y.Shape[0], y.Shape[1], -1, s.d)), 1, 2)
	}
	f.Set(&q, project(b.q, b.qNorm))
	f.Set(&k, project(b.k, b.kNorm))
	f.Set(&v, project(b.v, norm{}))
	rq, rk := c.rotateBoth(q, k, cos, sin)
	f.Set(&q, rq)
	f.Set(&k, rk)
	a, p := c.attend(attention{dropout: s.attnDrop, groups: s.heads / s.kv, upcast: true}, q, k, v, mask)
	f.Set(&o, a)
	f.Set(&w, p)
	f.Set(&o, c.Reshape(o, o.Shape[0], o.Shape[1], s.heads*s.d))
	f.Set(&o, b.o.run(c.Graph, o))
	out, weights = o, w
	f.Leave(out, weights)
	return out, weights
}

func (b *decoderBlock) mlp(c *ctx, x *tape.Tensor) *tape.Tensor {
	f := c.Enter(x)
	return f.Leave(b.down.run(c.Graph, c.Mul(c.Activation(b.spec.act, b.gate.run(c.Graph, x)), b.up.run(c.Graph, x))))
}

// moe is a mixture of experts in place of the MLP.
type moe struct{ experts, perToken, inner int64 }
