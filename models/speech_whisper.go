package models

import (
	"fmt"

	"memroom/event"
	"memroom/tape"
)

// whisper is WhisperForConditionalGeneration: a convolutional front end, then BART's layers with
// the norms first. The sequence is the number of text tokens; the audio is always the model's whole
// window.
func whisper(c *Config, r Run) (*Model, error) {
	s := &seq2seq{h: c.Int(384, "d_model"), encLayers: c.Int(4, "encoder_layers"),
		decLayers: c.Int(4, "decoder_layers"), encHeads: c.Int(6, "encoder_attention_heads"),
		decHeads: c.Int(6, "decoder_attention_heads"), encFF: c.Int(1536, "encoder_ffn_dim"),
		decFF: c.Int(1536, "decoder_ffn_dim"), act: c.Str("gelu", "activation_function"),
		drop: c.Float(0, "dropout"), attnDrop: c.Float(0, "attention_dropout"),
		actDrop: c.Float(0, "activation_dropout"), before: true, scaledQuery: true}
	vocab, mel := c.Int(51865, "vocab_size"), c.Int(80, "num_mel_bins")
	frames, tokens := c.Int(1500, "max_source_positions"), c.Int(448, "max_target_positions")
	c.divides(s.h, s.encHeads, "d_model by encoder_attention_heads")
	c.longEnough(r.Seq, tokens)
	if err := c.Err(); err != nil {
		return nil, err
	}
	root := tape.NewModule()
	body := root.Child("model")
	w := &whisperNet{spec: s, frames: frames}
	e := body.Child("encoder")
	w.conv1, w.conv2 = conv1dLayer(e, "conv1", mel, s.h, 1), conv1dLayer(e, "conv2", s.h, s.h, 2)
	w.encPos = embedding(e, "embed_positions", frames, s.h)
	w.encPos.Frozen = true
	list := e.Child("layers")
	for i := range s.encLayers {
		w.enc = append(w.enc, s.layer(list.Child(fmt.Sprint(i)), false))
	}
	w.encNorm = layerNorm(e, "layer_norm", s.h)
	d := body.Child("decoder")
	w.table = embedding(d, "embed_tokens", vocab, s.h)
	w.decPos = embedding(d, "embed_positions", tokens, s.h)
	list = d.Child("layers")
	for i := range s.decLayers {
		w.dec = append(w.dec, s.layer(list.Child(fmt.Sprint(i)), true))
	}
	w.decNorm = layerNorm(d, "layer_norm", s.h)
	root.Child("proj_out").Tie(w.table)
	m := &Model{Root: root, Layers: s.encLayers + s.decLayers, Run: r}
	m.Inputs = func(g *tape.Graph) []*tape.Tensor {
		return []*tape.Tensor{g.Input(r.Float, r.Batch, mel, 1, 2*frames),
			g.Input(tape.I64, r.Batch, r.Seq)}
	}
	m.Loss = func(g *tape.Graph, in []*tape.Tensor) *tape.Tensor {
		x := newCtx(g, r)
		f := g.Enter()
		if x.Cache && !x.Checkpointing {
			x.kv = f
		}
		var ids, h, y, logits *tape.Tensor
		f.Set(&ids, x.shiftRight(in[1]))
		f.Set(&h, w.encode(x, in[0]))
		f.Set(&y, w.decode(x, ids, h))
		x.In("proj_out", func() {
			x.As(event.CategoryLoss, func() { f.Set(&logits, g.Linear(y, w.table, nil)) })
		})
		var loss *tape.Tensor
		x.In("loss", func() { loss = x.plainLoss(logits, in[1]) })
		return f.Leave(loss)
	}
	return m, nil
}

type whisperNet struct {
	spec             *seq2seq
	frames           int64
	conv1, conv2     convLayer
	encPos, decPos   *tape.Param
	table            *tape.Param
	enc, dec         []*s2sLayer
	encNorm, decNorm norm
}

// conv1dLayer is nn.Conv1d with three taps, as a convolution over images one pixel high.
func conv1dLayer(m *tape.Module, name string, in, out, stride int64) convLayer {
	c := m.Child(name)
	return convLayer{w: c.Param("weight", out, in, 1, 3), b: c.Param("bias", out), stride: stride,
		pad: 1, groups: 1, dilation: 1, flat: true}
}

func (w *whisperNet) encode(c *ctx, x *tape.Tensor) *tape.Tensor {
	f := c.Enter()
	var e, pos, h *tape.Tensor
	c.In("encoder.conv", func() {
		f.Set(&e, c.Activation("gelu", c.asInput(w.conv1.run(c, x))))
		f.Set(&e, c.Activation("gelu", w.conv2.run(c, e)))
	})
	f.Set(&e, c.Transpose(c.View(e, e.Shape[0], e.Shape[1], -1), 1, 2))
	f.Set(&pos, c.Fresh("positions", tape.I64, w.frames))
	f.Set(&h, c.Add(e, c.Embedding(pos, w.encPos)))
	f.Set(&h, c.Dropout(h, w.spec.drop))
	for i, l := range w.enc {
		f.Set(&h, c.layer(fmt.Sprintf("encoder.layers.%d", i),
			func(a []*tape.Tensor) *tape.Tensor { return l.run(c, a[0], nil, nil) }, h))
	}
	f.Set(&h, w.encNorm.layer(c.Graph, h))
	return f.Leave(h)
}

func (w *whisperNet) decode(c *ctx, ids, enc *tape.Tensor) *tape.Tensor {
	f := c.Enter(enc)
	b, n := ids.Shape[0], ids.Shape[1]
	var e, pos, p, mask, h *tape.Tensor
	f.Set(&e, c.Embedding(ids, w.table))
	f.Set(&pos, c.Clone(c.Expand(c.positions(n), b, n)))
	f.Set(&p, c.Index(w.decPos.Tensor, pos))
	f.Set(&h, c.Add(e, p))
	f.Set(&h, c.Dropout(h, w.spec.drop))
	f.Set(&mask, c.causalMask(b, n, e.DType))
	for i, l := range w.dec {
		f.Set(&h, c.layer(fmt.Sprintf("decoder.layers.%d", i),
			func(a []*tape.Tensor) *tape.Tensor { return l.run(c, a[0], a[1], a[2]) }, h, enc,
			mask))
	}
	f.Set(&h, w.decNorm.layer(c.Graph, h))
	return f.Leave(h)
}
