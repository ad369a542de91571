package remedy

import (
	"fmt"

	"memroom/event"
)

// inputs: smaller samples.
func inputs() []*Remedy {
	return []*Remedy{{
		ID:    ShorterSequence,
		Title: "cut sequences to half the length",
		Why: "activations and logits grow with the length, eager attention with its square; one " +
			"long sample sets the peak",
		Equivalence: Changes,
		Consent:     "data",
		Walls:       anywhere,
		needs: func(job Job) string {
			if job.Setup != nil && job.Setup.Seq == 0 {
				return "the input is not a sequence"
			}
			return ""
		},
		rewrite:  func(s Setup) (Setup, bool) { s.Seq /= 2; return s, s.Seq >= 16 },
		slowdown: constant(0.55),
		how:      howShorter,
	}, {
		ID:          SmallerImage,
		Title:       "train on smaller images",
		Why:         "activations grow with the area of the image",
		Equivalence: Changes,
		Consent:     "data",
		Walls:       anywhere,
		needs: func(job Job) string {
			if job.Setup != nil && job.Setup.Image == 0 {
				return "the input is not an image"
			}
			return ""
		},
		rewrite: func(s Setup) (Setup, bool) {
			s.Image = s.Image * 3 / 4 / 32 * 32 // strides and patches divide multiples of 32
			return s, s.Image >= 32
		},
		slowdown: constant(0.6),
		how: func(job Job, after Setup) How {
			side := "SMALLER"
			if job.Setup != nil && after.Image > 0 {
				side = fmt.Sprint(after.Image)
			}
			if job.Framework == TensorFlow {
				return How{Code: "dataset = dataset.map(lambda x, y: (tf.image.resize(x, (" + side +
					", " + side + ")), y))"}
			}
			if job.Facts != nil && job.Facts[Detection] {
				return How{Args: "a smaller scale in the pipeline of the configuration; for one whole image: " +
					"test_cfg=dict(mode='slide', crop_size=(512, 512), stride=(341, 341))"}
			}
			if job.Facts != nil && (!job.Facts[VisionSeen] || job.Facts[Drawing] || job.Facts[Windowed]) {
				return How{Args: "a smaller width and height where the images are read or asked for"}
			}
			return How{Code: "transforms.Resize((" + side + ", " + side + "))"}
		},
	}}
}

func howShorter(job Job, after Setup) How {
	length := "HALF_YOUR_LENGTH"
	if job.Setup != nil && after.Seq > 0 {
		length = fmt.Sprint(after.Seq)
	}
	how := How{Code: "batch = tokenizer(texts, truncation=True, max_length=" + length + ")"}
	switch job.Trainer {
	case Transformers:
		how.Args = "--max_seq_length " + length
	case Torchtune:
		how.Args = "tokenizer.max_seq_len=" + length
	case Axolotl:
		how.Args = "sequence_len: " + length
	case VLLM:
		how.Args = "--max-model-len " + length
	}
	if job.Work == Serving { // a server cuts by its own settings
		how.Code = ""
		if how.Args == "" {
			how.Args = "a shorter context in the server's own settings"
		}
	}
	return how
}

// attentions: implementations that never hold the matrix of scores.
func attentions() []*Remedy {
	return []*Remedy{{
		ID:          Attention,
		Title:       "use the built-in attention kernel (SDPA) instead of an explicit one",
		Why:         "the scores of every head (length squared) are never kept",
		Equivalence: Exact,
		Walls:       onDevice,
		Frameworks:  []Framework{PyTorch, JAX},
		on:          func(s Setup) bool { return s.Attention != "eager" },
		rewrite:     func(s Setup) (Setup, bool) { s.Attention = "sdpa"; return s, s.Seq > 0 },
		slowdown:    constant(0.8),
		args: map[Trainer]string{
			Transformers: "--attn_implementation sdpa   # or attn_implementation='sdpa' in from_pretrained",
			Axolotl:      "sdp_attention: true",
		},
		code: map[Framework]string{
			PyTorch: "y = torch.nn.functional.scaled_dot_product_attention(q, k, v)   # is_causal=True in a decoder",
			JAX:     "y = jax.nn.dot_product_attention(q, k, v, implementation='cudnn')   # is_causal=True in a decoder",
		},
	}}
}

// losses: logits of large vocabularies in pieces.
func losses() []*Remedy {
	return []*Remedy{{
		ID:    ChunkedLoss,
		Title: "compute the loss over the vocabulary in chunks",
		Why: "the logits, their fp32 copy and their gradient (each batch x length x vocabulary) " +
			"never exist whole",
		Equivalence: Exact,
		Walls:       []event.Where{event.WhereGPU},
		Frameworks:  torch,
		Training:    true,
		Levels:      []Level{LevelProcess},
		on:          func(s Setup) bool { return s.ChunkedLoss },
		rewrite:     func(s Setup) (Setup, bool) { s.ChunkedLoss = true; return s, s.Seq > 0 },
		slowdown:    constant(1.02),
		args: map[Trainer]string{
			Transformers: "--use_liger_kernel True",
			Axolotl: "plugins:\n  - " +
				"axolotl.integrations.liger.LigerPlugin\nliger_fused_linear_cross_entropy: true",
			Torchtune: "loss=torchtune.modules.loss.LinearCrossEntropyLoss",
		},
		code: map[Framework]string{PyTorch: lines("def chunk_loss(h, y): return "+
			"F.cross_entropy(lm_head(h).float(), y, reduction='sum')",
			"loss = sum(checkpoint(chunk_loss, h, y, use_reentrant=False)",
			"           for h, y in zip(hidden.split(1024), labels.split(1024))) / labels.numel()")},
	}}
}
