package models

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// FuzzParseConfig asks every question of configurations that anybody may have written. Answers may
// be errors; they must come.
func FuzzParseConfig(f *testing.F) {
	for _, text := range []string{`{"model_type":"llama","hidden_size":64,"num_hidden_layers":2}`,
		`{"model_type":"gpt2","n_embd":9e99,"architectures":["GPT2LMHeadModel"]}`,
		`{"text_config":{"text_config":{"hidden_size":-1}}}`, `{"id2label":{"0":"a"}}`, `[]`,
		`{"hidden_size":"64","layer_types":["a",1,null],"moe":[true,false]}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := ParseConfig(data)
		if err != nil {
			return
		}
		c.Int(1, "hidden_size", "n_embd")
		c.Count(1, "num_hidden_layers")
		c.Float(0, "attention_dropout")
		c.Ints(nil, "layer_types")
		c.Strings("layer_types")
		c.Flags("moe")
		c.Labels()
		c.Architecture()
		c.Positions()
		if sub := c.Sub("text_config"); sub != nil {
			sub.Type()
		}
		_ = c.Err()
	})
}

// FuzzSafetensors reads headers of weights files.
func FuzzSafetensors(f *testing.F) {
	for _, header := range []string{`{"model.layers.0.self_attn.q_proj.weight":{"shape":[64,64]},` +
		`"model.layers.0.mlp.gate_proj.weight":{"shape":[128,64]}}`, `{"a":{"shape":[-1]}}`,
		`{"h.0.attn.c_attn.weight":{"shape":[64,192]}}`, `{"__metadata__":{}}`, `{}`} {
		f.Add(uint64(len(header)), []byte(header))
	}
	f.Add(uint64(1)<<63, []byte("{}"))
	f.Fuzz(func(t *testing.T, size uint64, header []byte) {
		file := append(binary.LittleEndian.AppendUint64(nil, size), header...)
		if c, err := FromSafetensors(bytes.NewReader(file)); err == nil && c.Type() == "" {
			t.Error("a model of no type")
		}
	})
}
