package models

import (
	"memroom/event"
	"memroom/tape"
)

// Objective is a training objective other than the next token, as TRL computes it.
type Objective string

// The objectives that need the logarithm of the probability of every token of an answer.
const (
	Tokens    Objective = "tokens"     // SFT: the mean over the tokens that are learnt
	Pairs     Objective = "pairs"      // DPO, KTO: the sum over an answer
	PairsAlso Objective = "pairs_also" // ORPO: the same, and the loss of the chosen answers
	Answers   Objective = "answers"    // GRPO, PPO: of the last Run.Keep tokens, with a temperature
)

// Releases of TRL that changed what is made of logits: the first has a kernel that keeps them and
// nothing else of their size, the second never makes them whole.
const (
	kernelTRL = 114
	fusedTRL  = 115
)

// olderTRL reports whether the run is one of a TRL before a release.
func (r Run) olderTRL(release int) bool { return r.TRL > 0 && r.TRL < release }

// FusedHead reports whether an objective's trainer, of a release of TRL (0 is the newest), makes no
// whole logits.
func (o Objective) FusedHead(trl int) bool {
	return (o == Tokens || o == Pairs || o == Answers) && (trl == 0 || trl >= fusedTRL)
}

// objectiveLoss is the forward of a decoder with its head for such an objective. outputs that
// autocast made in half precision are cast to fp32 first, as accelerate does.
func (c *ctx) objectiveLoss(in []*tape.Tensor, head lin, body func() *tape.Tensor) *tape.Tensor {
	if c.Objective.FusedHead(c.TRL) {
		return c.fusedLoss(in[0], head, body)
	}
	f := c.Enter()
	var h, logits, logps, loss *tape.Tensor
	f.Set(&h, body())
	if c.Keep > 0 { // logits_to_keep
		f.Set(&h, c.Slice(h, 1, min(c.Keep+1, h.Shape[1])))
	}
	c.In("lm_head", func() {
		f.Set(&logits, c.logits(func() *tape.Tensor { return c.headLogits(head, h) }))
	})
	f.Set(&h, nil)
	c.As(event.CategoryLoss, func() {
		c.In("loss", func() {
			if c.Autocast {
				f.Set(&logits, c.To(logits, tape.F32))
			}
			if c.Objective == Answers {
				f.Set(&logits, c.Scale(c.Slice(logits, 1, max(logits.Shape[1]-1, 1))))
			}
			if c.Objective == PairsAlso { // the first half of the batch was chosen
				half := max(logits.Shape[0]/2, 1)
				f.Set(&loss, c.chosenLoss(c.Slice(logits, 0, half)))
			}
			f.Set(&logps, c.tokenLogps(c.shifted(logits)))
			f.Set(&logps, c.Mean(c.Sum(logps, false, -1), false, 0))
			if loss != nil {
				f.Set(&logps, c.Add(loss, logps))
			}
		})
	})
	return f.Leave(logps)
}

// fusedLoss is the forward of a decoder with TRL's fused head: hidden states of the tokens that
// count are picked, and multiplied tile by tile.
func (c *ctx) fusedLoss(ids *tape.Tensor, head lin, body func() *tape.Tensor) *tape.Tensor {
	f := c.Enter()
	b, s := ids.Shape[0], ids.Shape[1]
	next := max(s-1, 1)
	count := next
	if c.Keep > 0 {
		count = min(c.Keep, next)
	}
	var h, labels, mask, picked, targets, logps, each *tape.Tensor
	f.Set(&labels, c.Fresh("labels", tape.I64, b, s))
	f.Set(&h, body())
	c.As(event.CategoryLoss, func() {
		c.In("loss", func() {
			f.Set(&mask, c.Fresh("labels", tape.Bool, b, next))
			f.Set(&picked, c.Masked(c.Slice(h, 1, next), mask, b*count))
			f.Set(&targets, c.Fresh("labels", tape.I64, b*count))
			f.Set(&logps, c.HeadLogps(picked, head.w.Tensor, head.bias(), targets, headNumbers))
			f.Set(&picked, nil)
			f.Set(&targets, nil)
			f.Set(&each, c.ScatterMasked(logps, mask))
			for range headNumbers {
				f.Keep(c.Fresh("labels", tape.F32, b, next))
			}
			f.Set(&each, c.Mean(c.Sum(each, false, -1), false, 0))
		})
	})
	return f.Leave(each)
}

// headNumbers is how many numbers are computed for a token in addition to its logarithm: entropy,
// mean logit and whether it is the likeliest. The log of the trainer shows them.
const headNumbers = 3

// bias is a linear layer's bias, nil where there is none.
func (l lin) bias() *tape.Tensor {
	if l.b == nil {
		return nil
	}
	return l.b.Tensor
}

// shifted leaves out the logits of the last token, which predicts nothing, where TRL does.
func (c *ctx) shifted(logits *tape.Tensor) *tape.Tensor {
	if c.Objective == Answers || c.olderTRL(kernelTRL) {
		return logits
	}
	return c.Slice(logits, 1, max(logits.Shape[1]-1, 1))
}

// tokenLogps is selective_log_softmax. TRL's kernel keeps the logits alone and makes their gradient
// at once. Before it went row by row, so that temporaries have the size of one sample: in fp32 the
// logits themselves are kept for the backward pass, in half precision what log_softmax makes of
// each row.
func (c *ctx) tokenLogps(logits *tape.Tensor) *tape.Tensor {
	if !c.olderTRL(kernelTRL) {
		return c.KernelLogps(logits, c.Fresh("labels", tape.I64, logits.Shape[0], logits.Shape[1]))
	}
	f := c.Enter(logits)
	b, s := logits.Shape[0], logits.Shape[1]
	var labels, picked *tape.Tensor
	f.Set(&labels, c.Fresh("labels", tape.I64, b, s))
	var rows []*tape.Tensor
	if logits.DType == tape.F32 {
		f.Set(&picked, c.Squeeze(c.Gather(logits, c.Unsqueeze(labels, -1)), 2))
		for _, row := range c.Unbind(logits, 0) {
			rows = append(rows, c.Unsqueeze(c.LogSumExp(row), 0))
		}
		return f.Leave(c.Sub(picked, c.Cat(0, rows...)))
	}
	var logp *tape.Tensor // a variable of the loop: one row's goes when the next one's is there
	for _, row := range c.Unbind(logits, 0) {
		f.Set(&logp, c.LogSoftmax(row))
		chosen := c.Squeeze(c.Gather(logp, c.Fresh("labels", tape.I64, s, 1)), 1)
		rows = append(rows, c.Unsqueeze(chosen, 0))
	}
	return f.Leave(c.Cat(0, rows...))
}

// chosenLoss is ORPO's loss of the chosen answers: cross-entropy on shifted logits.
func (c *ctx) chosenLoss(logits *tape.Tensor) *tape.Tensor {
	f := c.Enter(logits)
	b, s := logits.Shape[0], logits.Shape[1]
	var shifted, labels *tape.Tensor
	f.Set(&shifted, c.Contiguous(c.Slice(logits, 1, max(s-1, 1))))
	f.Set(&labels, c.Fresh("labels", tape.I64, b, max(s-1, 1)))
	return f.Leave(c.CrossEntropy(c.View(shifted, -1, logits.Dim(-1)), c.View(labels, -1)))
}

// CachePerToken is how many elements a decoder keeps for each token of text that it has written or
// read, in each of its layers.
func CachePerToken(c *Config) (layers, elements int64) {
	layers = c.Int(1, "num_hidden_layers", "n_layer", "n_layers", "num_layers")
	if rank := c.Count(0, "kv_lora_rank"); rank > 0 {
		return layers, rank + c.Count(0, "qk_rope_head_dim")
	}
	heads := c.Int(1, "num_attention_heads", "n_head", "n_heads", "num_heads")
	width := c.Int(heads, "hidden_size", "n_embd", "d_model")
	d := c.Int(max(width/heads, 1), "head_dim")
	kv := c.Int(heads, "num_key_value_heads", "num_kv_heads")
	if c.Bool(false, "multi_query") && !c.Bool(false, "new_decoder_architecture") {
		kv = 1
	}
	return layers, 2 * kv * d
}
