package models

import "memroom/tape"

// spectrogram is ASTForAudioClassification: a ViT on overlapping patches of a spectrogram.
func spectrogram(c *Config, r Run) (*Model, error) {
	h, inner, nh := c.Int(768, "hidden_size"), c.Int(3072, "intermediate_size"),
		c.Int(12, "num_attention_heads")
	layers, patch := c.Int(12, "num_hidden_layers"), c.Int(16, "patch_size")
	bins, frames := c.Int(128, "num_mel_bins"), c.Int(1024, "max_length")
	high, long := c.Int(10, "frequency_stride"), c.Int(10, "time_stride")
	act, drop, attnDrop := c.Str("gelu", "hidden_act"), c.Float(0, "hidden_dropout_prob"),
		c.Float(0, "attention_probs_dropout_prob")
	bias, labels := c.Bool(true, "qkv_bias"), c.Labels()
	c.divides(h, nh, "hidden_size by num_attention_heads")
	if patch > bins || patch > frames {
		c.complain("patch_size %d is larger than the spectrogram, %d x %d", patch, bins, frames)
	}
	if high != long {
		c.complain("frequency_stride and time_stride differ, which is not described")
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	tokens := ((bins-patch)/high+1)*((frames-patch)/long+1) + 2
	root := tape.NewModule()
	body := root.Child("audio_spectrogram_transformer")
	em := body.Child("embeddings")
	first := []*tape.Param{em.Param("cls_token", 1, 1, h), em.Param("distillation_token", 1, 1, h)}
	pos := em.Param("position_embeddings", 1, tokens, h)
	proj := conv(em.Child("patch_embeddings"), "projection", 1, h, patch, high, 0, 1, true)
	blocks := vitBlocks(body.Child("layers"), layers, h, inner, bias,
		vitBlock{d: h / nh, act: act, drop: drop, attnDrop: attnDrop})
	final := layerNorm(body, "layernorm", h)
	top := root.Child("classifier")
	ln, dense := layerNorm(top, "layernorm", h), linear(top, "dense", h, labels, true)
	m := &Model{Root: root, Layers: layers, Run: r, Head: "ForAudioClassification"}
	m.Inputs = func(g *tape.Graph) []*tape.Tensor {
		return []*tape.Tensor{g.Input(r.Float, r.Batch, frames, bins), g.Input(tape.I64, r.Batch)}
	}
	m.Loss = func(g *tape.Graph, in []*tape.Tensor) *tape.Tensor {
		x := newCtx(g, r)
		f := x.Enter()
		var last, pooled, logits *tape.Tensor
		pixels := x.Transpose(x.Unsqueeze(in[0], 1), 2, 3)
		f.Set(&last, x.vitBody(pixels, proj, first, pos, blocks, final, drop))
		f.Set(&pooled, x.Scale(x.Add(x.Select(last, 1), x.Select(last, 1))))
		x.In("classifier", func() {
			f.Set(&logits, dense.run(g, ln.layer(g, pooled)))
		})
		var loss *tape.Tensor
		x.In("loss", func() { loss = x.plainLoss(logits, in[1]) })
		return f.Leave(loss)
	}
	return m, nil
}
