package models

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Preset gives the configuration of a well-known model, or of a torchvision model as
// torchvision/NAME.
func Preset(name string) (*Config, error) {
	key := strings.ToLower(strings.TrimSpace(name))
	if tv, ok := strings.CutPrefix(key, "torchvision/"); ok {
		return ConfigOf(map[string]any{"model_type": "torchvision", "name": tv}), nil
	}
	if f, ok := presets[key]; ok {
		return ConfigOf(maps.Clone(f)), nil
	}
	return nil, fmt.Errorf("preset %q is not known: use one of %s, or torchvision/NAME", name,
		strings.Join(PresetNames(), ", "))
}

// PresetNames lists the models known by name.
func PresetNames() []string { return slices.Sorted(maps.Keys(presets)) }

func decoderPreset(kind string, h, inner, layers, heads, kv, vocab float64,
	extra ...any) map[string]any {
	m := map[string]any{"model_type": kind, "hidden_size": h, "intermediate_size": inner,
		"num_hidden_layers":   layers,
		"num_attention_heads": heads, "num_key_value_heads": kv, "vocab_size": vocab}
	for i := 0; i+1 < len(extra); i += 2 {
		m[extra[i].(string)] = extra[i+1]
	}
	return m
}

func preset(kind string, fields ...any) map[string]any {
	m := map[string]any{"model_type": kind}
	for i := 0; i+1 < len(fields); i += 2 {
		m[fields[i].(string)] = fields[i+1]
	}
	return m
}

// presets are the published sizes of models people ask for by name.
var presets = map[string]map[string]any{
	"gpt2":        preset("gpt2"),
	"gpt2-medium": preset("gpt2", "n_embd", 1024.0, "n_layer", 24.0, "n_head", 16.0),
	"gpt2-large":  preset("gpt2", "n_embd", 1280.0, "n_layer", 36.0, "n_head", 20.0),
	"gpt2-xl":     preset("gpt2", "n_embd", 1600.0, "n_layer", 48.0, "n_head", 25.0),
	"llama-2-7b":  decoderPreset("llama", 4096, 11008, 32, 32, 32, 32000),
	"llama-2-13b": decoderPreset("llama", 5120, 13824, 40, 40, 40, 32000),
	"llama-2-70b": decoderPreset("llama", 8192, 28672, 80, 64, 8, 32000),
	"llama-3-8b":  decoderPreset("llama", 4096, 14336, 32, 32, 8, 128256),
	"llama-3-70b": decoderPreset("llama", 8192, 28672, 80, 64, 8, 128256),
	"llama-3.2-1b": decoderPreset("llama", 2048, 8192, 16, 32, 8, 128256, "tie_word_embeddings",
		true),
	"llama-3.2-3b": decoderPreset("llama", 3072, 8192, 28, 24, 8, 128256, "tie_word_embeddings",
		true, "head_dim", 128.0),
	"tinyllama":  decoderPreset("llama", 2048, 5632, 22, 32, 4, 32000),
	"mistral-7b": decoderPreset("mistral", 4096, 14336, 32, 32, 8, 32000),
	"qwen2.5-0.5b": decoderPreset("qwen2", 896, 4864, 24, 14, 2, 151936, "tie_word_embeddings",
		true),
	"qwen2.5-1.5b": decoderPreset("qwen2", 1536, 8960, 28, 12, 2, 151936, "tie_word_embeddings",
		true),
	"qwen2.5-7b": decoderPreset("qwen2", 3584, 18944, 28, 28, 4, 152064),
	"qwen3-0.6b": decoderPreset("qwen3", 1024, 3072, 28, 16, 8, 151936, "tie_word_embeddings",
		true, "head_dim", 128.0),
	"qwen3-8b": decoderPreset("qwen3", 4096, 12288, 36, 32, 8, 151936, "head_dim", 128.0),
	"mixtral-8x7b": decoderPreset("mixtral", 4096, 14336, 32, 32, 8, 32000, "num_local_experts",
		8.0),
	"opt-125m": preset("opt"),
	"opt-1.3b": preset("opt", "hidden_size", 2048.0, "ffn_dim", 8192.0, "num_hidden_layers",
		24.0, "num_attention_heads", 32.0),
	"pythia-160m": preset("gpt_neox", "hidden_size", 768.0, "intermediate_size", 3072.0,
		"num_hidden_layers", 12.0, "num_attention_heads", 12.0, "vocab_size", 50304.0),
	"pythia-1.4b": preset("gpt_neox", "hidden_size", 2048.0, "intermediate_size", 8192.0,
		"num_hidden_layers", 24.0, "num_attention_heads", 16.0, "vocab_size", 50304.0),
	"phi-2": preset("phi", "hidden_size", 2560.0, "intermediate_size", 10240.0,
		"num_hidden_layers", 32.0, "num_attention_heads", 32.0, "partial_rotary_factor", 0.4),
	"gemma-2b":   decoderPreset("gemma", 2048, 16384, 18, 8, 1, 256000, "head_dim", 256.0),
	"gemma-2-2b": decoderPreset("gemma2", 2304, 9216, 26, 8, 4, 256000, "head_dim", 256.0),
	"t5-small":   preset("t5"),
	"t5-base": preset("t5", "d_model", 768.0, "d_ff", 3072.0, "num_layers", 12.0, "num_heads",
		12.0),
	"roberta-base": preset("roberta", "max_position_embeddings", 514.0, "type_vocab_size", 1.0),
	"distilbert":   preset("distilbert"),
	"bart-base": preset("bart", "d_model", 768.0, "encoder_layers", 6.0, "decoder_layers", 6.0,
		"encoder_attention_heads", 12.0, "decoder_attention_heads", 12.0, "encoder_ffn_dim", 3072.0,
		"decoder_ffn_dim", 3072.0),
	"swin-tiny": preset("swin", "num_labels", 1000.0),
	"bert-base": preset("bert"),
	"bert-large": preset("bert", "hidden_size", 1024.0, "num_hidden_layers", 24.0,
		"num_attention_heads", 16.0, "intermediate_size", 4096.0),
	"vit-base": preset("vit", "num_labels", 1000.0),
	"vit-large": preset("vit", "num_labels", 1000.0, "hidden_size", 1024.0, "num_hidden_layers",
		24.0, "num_attention_heads", 16.0, "intermediate_size", 4096.0),
}
