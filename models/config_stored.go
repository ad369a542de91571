package models

import (
	"fmt"
	"strings"
)

// DType is the type in which the weights are stored, as dtype or torch_dtype name it: float32,
// bfloat16, float16, or "" where the configuration does not name it. from_pretrained loads them in
// this type unless another one is asked for.
func (c *Config) DType() string {
	name := c.Str("", "dtype", "torch_dtype")
	if name == "" {
		name = c.Sub("text_config").Str("", "dtype", "torch_dtype")
	}
	return strings.TrimPrefix(name, "torch.")
}

// Stored is how the weights are packed according to quantization_config.
type Stored struct {
	Method string // of quantization, such as bitsandbytes, gptq, awq, mxfp4; "" is none
	LoadIn string // 4bit or 8bit where weights stay packed while adapters train; "" is not
	Double bool   // the scales of 4-bit weights are quantised too
	Note   string // what a user should know
}

// Quantization reads quantization_config.
func (c *Config) Quantization() Stored {
	if !c.Has("quantization_config") {
		return Stored{}
	}
	q := c.Sub("quantization_config")
	s := Stored{Method: strings.ToLower(q.Str("", "quant_method"))}
	switch {
	case q.Bool(false, "load_in_4bit", "_load_in_4bit"):
		s.Method, s.LoadIn = "bitsandbytes", "4bit"
		s.Double = q.Bool(false, "bnb_4bit_use_double_quant")
	case q.Bool(false, "load_in_8bit", "_load_in_8bit"):
		s.Method, s.LoadIn = "bitsandbytes", "8bit"
	case s.Method == "gptq" || s.Method == "awq":
		s.LoadIn = "4bit"
		if q.Int(4, "bits", "w_bit") == 8 {
			s.LoadIn = "8bit"
		}
		s.Note = fmt.Sprintf("%s weights are counted as bitsandbytes packs them in %s", s.Method,
			s.LoadIn)
	case s.Method != "":
		s.Note = fmt.Sprintf(
			"config.json stores the weights as %s: they are counted unpacked, as they are for "+
				"training", s.Method)
	}
	return s
}

// TextOnly is the text model inside a configuration of a larger model that is not described, such
// as the language model of a vision-language model; nil if there is none.
func (c *Config) TextOnly() *Config {
	text := c.Sub("text_config")
	if Known(c.Type()) || !Known(text.Type()) {
		return nil
	}
	for _, name := range []string{"dtype", "torch_dtype", "quantization_config",
		"tie_word_embeddings"} {
		if v, ok := c.fields[name]; ok && !text.Has(name) {
			text.fields[name] = v
		}
	}
	return text
}
