package models

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"strconv"
)

// maxHeader bounds a safetensors header: the format allows 100 MB.
const maxHeader = 100 << 20

// FromSafetensors guesses a configuration from the names and shapes in a weights file's header. It
// knows the Llama kind, GPT-2 and BERT; the number of heads is not in the file and is taken from
// the usual head size.
func FromSafetensors(r io.Reader) (*Config, error) {
	var size uint64
	if err := binary.Read(r, binary.LittleEndian, &size); err != nil {
		return nil, fmt.Errorf("safetensors header: %w", err)
	}
	if size == 0 || size > maxHeader {
		return nil, fmt.Errorf("safetensors header of %d bytes: not a safetensors file", size)
	}
	data, err := readAll(r, int(size))
	if err != nil {
		return nil, err
	}
	var entries map[string]json.RawMessage
	if err := json.Unmarshal(data, &entries); err != nil {
		return nil, fmt.Errorf("safetensors header: %w", err)
	}
	shapes := map[string][]int64{}
	for name, raw := range entries {
		var e struct {
			Shape []int64 `json:"shape"`
		}
		if name != "__metadata__" && json.Unmarshal(raw, &e) == nil {
			shapes[name] = e.Shape
		}
	}
	return guess(shapes)
}

// readAll grows with what really arrives, so that a false size costs nothing.
func readAll(r io.Reader, size int) ([]byte, error) {
	out, err := io.ReadAll(io.LimitReader(r, int64(size)))
	if err != nil {
		return nil, fmt.Errorf("safetensors header: %w", err)
	}
	if len(out) < size {
		return nil, fmt.Errorf("safetensors header ends after %d of %d bytes", len(out), size)
	}
	return out, nil
}

var layerNumber = regexp.MustCompile(`\.(?:layers|h|layer)\.(\d+)\.`)

func guess(shapes map[string][]int64) (*Config, error) {
	layers := int64(0)
	for name := range shapes {
		if m := layerNumber.FindStringSubmatch(name); m != nil {
			if n, err := strconv.ParseInt(m[1], 10, 32); err == nil {
				layers = max(layers, n+1)
			}
		}
	}
	dim := func(i int, names ...string) float64 {
		for _, n := range names {
			if s := shapes[n]; len(s) > i {
				return float64(s[i])
			}
		}
		return 0
	}
	const first = "model.layers.0."
	switch {
	case dim(0, first+"self_attn.q_proj.weight") > 0 && dim(0, first+"mlp.gate_proj.weight") > 0:
		h := dim(1, first+"self_attn.q_proj.weight")
		d := 128.0
		if h < 2048 {
			d = 64
		}
		kind := "llama"
		if dim(0, first+"self_attn.q_proj.bias") > 0 {
			kind = "qwen2"
		}
		if s := dim(0, first+"self_attn.q_norm.weight"); s > 0 {
			kind, d = "qwen3", s
		}
		return ConfigOf(decoderFields(kind, h, dim(0, first+"mlp.gate_proj.weight"),
			float64(layers), dim(0, first+"self_attn.q_proj.weight")/d,
			dim(0, first+"self_attn.k_proj.weight")/d, dim(0, "model.embed_tokens.weight"),
			"head_dim", d, "tie_word_embeddings", shapes["lm_head.weight"] == nil)), nil
	case dim(0, "h.0.attn.c_attn.weight", "transformer.h.0.attn.c_attn.weight") > 0:
		h := dim(0, "h.0.attn.c_attn.weight", "transformer.h.0.attn.c_attn.weight")
		return ConfigOf(fieldsOf("gpt2", "n_embd", h, "n_layer", float64(layers), "n_head", h/64,
			"vocab_size", dim(0, "wte.weight", "transformer.wte.weight"),
			"n_positions", dim(0, "wpe.weight", "transformer.wpe.weight"))), nil
	case dim(0, "bert.embeddings.word_embeddings.weight") > 0:
		h := dim(1, "bert.embeddings.word_embeddings.weight")
		return ConfigOf(fieldsOf("bert", "hidden_size", h, "num_hidden_layers", float64(layers),
			"num_attention_heads", h/64,
			"vocab_size", dim(0, "bert.embeddings.word_embeddings.weight"),
			"max_position_embeddings", dim(0, "bert.embeddings.position_embeddings.weight"),
			"intermediate_size", dim(0, "bert.encoder.layer.0.intermediate.dense.weight"))), nil
	}
	return nil,
		fmt.Errorf("the names of the %d tensors fit no known family: put the model's config.json next to "+
			"the file", len(shapes))
}

func decoderFields(kind string, h, inner, layers, heads, kv, vocab float64,
	extra ...any) map[string]any {
	m := fieldsOf(kind, extra...)
	maps.Copy(m, map[string]any{"hidden_size": h, "intermediate_size": inner,
		"num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv,
		"vocab_size": vocab})
	return m
}

func fieldsOf(kind string, fields ...any) map[string]any {
	m := map[string]any{"model_type": kind}
	for i := 0; i+1 < len(fields); i += 2 {
		m[fields[i].(string)] = fields[i+1]
	}
	return m
}
