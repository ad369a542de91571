// Command savings checks what remedies are predicted to save against a real card.
//
//	go run ./bench/savings cases > bench/gpu/savings.json     the setups before and after each remedy
//	python3 bench/gpu/savings.py OUT                          on a machine with a card: one result a setup
//	go run ./bench/savings table OUT [SHARED]                 prediction next to measurement, misses included
//	go run ./bench/savings pack OUT > bench/savings/h200.jsonl
package main

import (
	"fmt"

	"memroom/remedy"
)

// pair is a setup and a remedy that is applied to it.
type pair struct {
	ID     string         `json:"id"`
	Family string         `json:"family"` // a Hugging Face model type, or torchvision
	Config map[string]any `json:"config"`
	Remedy remedy.ID      `json:"remedy"`
	Before remedy.Setup   `json:"before"`
	After  remedy.Setup   `json:"after"`
}

type model struct {
	family string
	config map[string]any
}

var (
	gpt2       = model{"gpt2", map[string]any{}}
	gpt2Medium = model{"gpt2", map[string]any{"n_embd": 1024, "n_layer": 24, "n_head": 16}}
	llama      = model{"llama", map[string]any{"hidden_size": 768, "num_hidden_layers": 12,
		"num_attention_heads": 12, "num_key_value_heads": 12,
		"intermediate_size": 3072, "vocab_size": 32000, "max_position_embeddings": 4096}}
	llamaWide = model{"llama", map[string]any{"hidden_size": 2048, "num_hidden_layers": 8,
		"num_attention_heads": 16, "num_key_value_heads": 16,
		"intermediate_size": 5504, "vocab_size": 16000, "max_position_embeddings": 2048}}
	bert   = model{"bert", map[string]any{}}
	vit    = model{"vit", map[string]any{}}
	resnet = model{"torchvision", map[string]any{"name": "resnet50"}}
)

// cases are chosen so that each remedy saves at least a twentieth of the peak.
func cases() ([]pair, error) {
	var pairs []pair
	var failed error
	add := func(m model, id remedy.ID, before remedy.Setup) {
		r, ok := remedy.Find(id)
		if !ok {
			failed = fmt.Errorf("there is no remedy %s", id)
			return
		}
		after, ok := r.Rewrite(before)
		if !ok {
			failed = fmt.Errorf("%s does not rewrite %+v", id, before)
			return
		}
		pairs = append(pairs, pair{fmt.Sprintf("%s-%s-%d", m.family, id, len(pairs)), m.family,
			m.config, id, before, after})
	}
	text := func(batch, seq int, precision string) remedy.Setup {
		return remedy.Setup{Batch: batch, Seq: seq, Precision: precision, Optimizer: "adamw",
			Attention: "sdpa", Accumulate: 1}
	}
	image := func(batch, side int, precision, optimizer string) remedy.Setup {
		return remedy.Setup{Batch: batch, Image: side, Precision: precision, Optimizer: optimizer,
			Accumulate: 1}
	}
	add(gpt2, remedy.MicroBatch, text(16, 512, "fp32"))
	add(gpt2, remedy.MixedPrecision, text(16, 512, "fp32"))
	add(gpt2, remedy.Checkpointing, text(16, 512, "amp_bf16"))
	add(gpt2, remedy.ChunkedLoss, text(16, 512, "amp_bf16"))
	add(gpt2, remedy.ShorterSequence, text(8, 1024, "amp_bf16"))
	eager := text(8, 1024, "amp_bf16")
	eager.Attention = "eager"
	add(gpt2, remedy.Attention, eager)
	kept := text(1, 128, "fp32")
	kept.KeepGrads, kept.Optimizer = true, "sgd"
	add(gpt2Medium, remedy.SetToNone, kept)
	add(llama, remedy.MicroBatch, text(8, 1024, "amp_bf16"))
	add(llama, remedy.Checkpointing, text(8, 1024, "amp_bf16"))
	add(llama, remedy.ActivationOffload, text(8, 1024, "amp_bf16"))
	add(llamaWide, remedy.OptimizerFused, text(1, 256, "amp_bf16"))
	add(llamaWide, remedy.OptimizerAdafactor, text(1, 256, "amp_bf16"))
	add(llamaWide, remedy.OptimizerOffload, text(1, 256, "amp_bf16"))
	add(llamaWide, remedy.LoRA, text(2, 512, "bf16"))
	add(bert, remedy.MixedPrecision, text(64, 128, "fp32"))
	add(bert, remedy.MicroBatch, text(64, 128, "amp_bf16"))
	add(vit, remedy.Checkpointing, image(64, 224, "amp_bf16", "adamw"))
	add(vit, remedy.MicroBatch, image(64, 224, "fp32", "adamw"))
	add(resnet, remedy.SmallerImage, image(64, 224, "fp32", "sgdm"))
	add(resnet, remedy.MixedPrecision, image(64, 224, "fp32", "sgdm"))
	add(resnet, remedy.MicroBatch, image(64, 224, "amp_bf16", "sgdm"))
	return pairs, failed
}
