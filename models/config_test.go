package models

import (
	"math"
	"strings"
	"testing"
)

func parse(t *testing.T, text string) *Config {
	t.Helper()
	c, err := ParseConfig([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestDefaultSequenceSuitsEveryModel: where no sequence is named, a model's default configuration
// must not be refused for its length; one token more than its positions is.
func TestDefaultSequenceSuitsEveryModel(t *testing.T) {
	for _, kind := range Types() {
		c := ConfigOf(map[string]any{"model_type": kind, "name": "resnet18", "vocab": 100.0,
			"embed": 8.0, "hidden": 8.0, "in": 8.0, "out": 8.0, "layers": 1.0})
		if _, err := New(c, Run{Batch: 1, Seq: c.DefaultSeq(), Attn: "sdpa"}); err != nil {
			if strings.Contains(err.Error(), "is missing") {
				continue // a configuration without sizes
			}
			t.Errorf("%s with its default sequence of %d: %v", kind, c.DefaultSeq(), err)
		}
		n := c.Positions()
		if n == 0 && c.DefaultSeq() > 0 { // no table, so no length is refused because of one
			_, err := New(c, Run{Batch: 1, Seq: 1 << 17, Attn: "sdpa"})
			if err != nil && strings.Contains(err.Error(), "positions") {
				t.Errorf("%s is said to have no table of positions: %v", kind, err)
			}
		}
		if n > 0 {
			if c.DefaultSeq() > n {
				t.Errorf("%s: default sequence %d of %d positions", kind, c.DefaultSeq(), n)
			}
			if _, err := New(c, Run{Batch: 1, Seq: n, Attn: "sdpa"}); err != nil {
				t.Errorf("%s: %v", kind, err)
			}
			_, err := New(c, Run{Batch: 1, Seq: n + 1, Attn: "sdpa"})
			if err == nil || !strings.Contains(err.Error(), "positions") {
				t.Errorf("%s with one token more than its %d positions: %v", kind, n, err)
			}
		}
	}
}

// TestPositionsComeFromTheConfiguration: a longer table admits longer sequences.
func TestPositionsComeFromTheConfiguration(t *testing.T) {
	for text, want := range map[string]int64{
		`{"model_type":"deberta-v2"}`:                                         512,
		`{"model_type":"deberta-v2","max_position_embeddings":1024}`:          1024,
		`{"model_type":"deberta-v2","position_biased_input":false}`:           0,
		`{"model_type":"siglip"}`:                                             64,
		`{"model_type":"siglip","text_config":{"max_position_embeddings":8}}`: 8,
		`{"model_type":"clip"}`:                                               77,
		`{"model_type":"clip","text_config":{"max_position_embeddings":248}}`: 248,
		`{"model_type":"roberta"}`:                                            510,
		`{"model_type":"roberta","max_position_embeddings":514}`:              512,
		`{"model_type":"gpt2","n_positions":2048}`:                            2048,
		`{"model_type":"whisper"}`:                                            448,
		`{"model_type":"whisper","max_target_positions":96}`:                  96,
		`{"model_type":"llama"}`:                                              0,
	} {
		if got := parse(t, text).Positions(); got != want {
			t.Errorf("%s has %d positions, want %d", text, got, want)
		}
	}
}

// TestPythonsNumbers: Python writes Infinity and NaN, which JSON does not have.
func TestPythonsNumbers(t *testing.T) {
	c := parse(t, `{"model_type":"llama","a":Infinity,"b":[0.0,-Infinity],"c":{"d":NaN},
		"Infinity":1,"said":"NaN \" Infinity","x":2.5}`)
	if got := c.fields["a"]; got != math.Inf(1) {
		t.Errorf("a is %v", got)
	}
	if got := c.fields["b"].([]any)[1]; got != math.Inf(-1) {
		t.Errorf("b is %v", c.fields["b"])
	}
	if got := c.Sub("c").fields["d"].(float64); !math.IsNaN(got) {
		t.Errorf("c is %v", c.fields["c"])
	}
	if got := c.Str("", "said"); got != `NaN " Infinity` || c.Int(0, "Infinity") != 1 {
		t.Errorf("said is %q", got)
	}
	if got := c.Float(0, "x"); got != 2.5 {
		t.Errorf("x is %v", got)
	}
	if c.Float(1, "a"); c.Err() == nil || !strings.Contains(c.Err().Error(), `"a"`) {
		t.Errorf("an infinite dropout was taken: %v", c.Err())
	}
	if _, err := ParseConfig([]byte(`{"a": Infinite}`)); err == nil {
		t.Error("a word that is no number was taken")
	}
}

// TestStoredWeights checks how the weights are stored according to config.json.
func TestStoredWeights(t *testing.T) {
	for text, want := range map[string]Stored{
		`{}`: {},
		`{"quantization_config":{"load_in_4bit":true,"bnb_4bit_use_double_quant":true}}`: {
			Method: "bitsandbytes", LoadIn: "4bit", Double: true},
		`{"quantization_config":{"quant_method":"bitsandbytes","_load_in_8bit":true}}`: {
			Method: "bitsandbytes", LoadIn: "8bit"},
		`{"quantization_config":{"quant_method":"gptq","bits":8}}`:   {Method: "gptq", LoadIn: "8bit"},
		`{"quantization_config":{"quant_method":"awq","bits":4}}`:    {Method: "awq", LoadIn: "4bit"},
		`{"quantization_config":{"quant_method":"mxfp4"}}`:           {Method: "mxfp4"},
		`{"quantization_config":{"quant_method":"fp8","bits":null}}`: {Method: "fp8"},
	} {
		got := parse(t, text).Quantization()
		if (got.Note != "") != (want.Method != "" && want.Method != "bitsandbytes") {
			t.Errorf("%s: note %q", text, got.Note)
		}
		got.Note = ""
		if got != want {
			t.Errorf("%s: %+v, want %+v", text, got, want)
		}
	}
	for text, want := range map[string]string{`{}`: "", `{"dtype":"bfloat16"}`: "bfloat16",
		`{"torch_dtype":"torch.float16"}`:            "float16",
		`{"text_config":{"torch_dtype":"bfloat16"}}`: "bfloat16"} {
		if got := parse(t, text).DType(); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

// TestTextModelOfALargerOne: the text model is found inside a type that is not described.
func TestTextModelOfALargerOne(t *testing.T) {
	whole := parse(t, `{"model_type":"gemma3","torch_dtype":"bfloat16","text_config":
		{"model_type":"gemma3_text","hidden_size":640},"vision_config":{"hidden_size":1152}}`)
	text := whole.TextOnly()
	if text == nil || text.Type() != "gemma3_text" || text.DType() != "bfloat16" {
		t.Fatalf("got %+v", text)
	}
	for _, none := range []string{`{"model_type":"llama"}`, `{"model_type":"siglip"}`,
		`{"model_type":"new","text_config":{"model_type":"newer"}}`} {
		if got := parse(t, none).TextOnly(); got != nil {
			t.Errorf("%s has the text model %+v", none, got)
		}
	}
}
