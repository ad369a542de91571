package models

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"memroom/event"
)

// Config is a model's config.json. Getters take several names for one thing and a default; what is
// wrong is collected and reported together by err.
type Config struct {
	fields map[string]any
	wrong  []string
}

// maxConfigInt bounds every size in a configuration: larger ones are mistakes and would overflow
// products.
const maxConfigInt = 1 << 27

// maxLayers bounds repeated blocks: the deepest models have a few hundred.
const maxLayers = 10_000

// ParseConfig reads config.json.
func ParseConfig(data []byte) (*Config, error) {
	var fields map[string]any
	text := namedNumbers(data)
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, fmt.Errorf("%w (expected a model's config.json)", event.NotJSON(text, err))
	}
	if fields == nil {
		return nil,
			errors.New("model configuration is empty: expected a JSON object such as Hugging Face's " +
				"config.json")
	}
	for name, v := range fields {
		fields[name] = numbersNamed(v)
	}
	return &Config{fields: fields}, nil
}

// ConfigOf wraps fields that did not come from a file.
func ConfigOf(fields map[string]any) *Config { return &Config{fields: fields} }

func (c *Config) lookup(names []string) (any, string, bool) {
	for _, n := range names {
		if v, ok := c.fields[n]; ok && v != nil {
			return v, n, true
		}
	}
	return nil, names[0], false
}

func (c *Config) complain(format string, args ...any) {
	c.wrong = append(c.wrong, fmt.Sprintf(format, args...))
}

// Has reports whether a field is present and not null.
func (c *Config) Has(names ...string) bool { _, _, ok := c.lookup(names); return ok }

// Int reads a whole number that must be at least one; a missing field without default is an error.
func (c *Config) Int(def int64, names ...string) int64 {
	v, name, ok := c.lookup(names)
	if !ok {
		if def == required {
			c.complain("field %q is missing", strings.Join(names, " or "))
			return 1
		}
		return def
	}
	f, isNumber := v.(float64)
	if !isNumber || f != math.Trunc(f) || f > maxConfigInt {
		c.complain("field %q is %v: expected a whole number", name, v)
		return 1
	}
	if f < 1 && f != float64(def) {
		c.complain("field %q is %v: expected at least 1", name, v)
		return 1
	}
	if strings.Contains(name, "layer") && f > maxLayers {
		c.complain("field %q is %v: expected at most %d", name, v, maxLayers)
		return 1
	}
	return int64(f)
}

// Count reads a whole number that may be zero.
func (c *Config) Count(def int64, names ...string) int64 {
	v, name, ok := c.lookup(names)
	if !ok {
		return def
	}
	f, isNumber := v.(float64)
	if !isNumber || f != math.Trunc(f) || f > maxConfigInt {
		c.complain("field %q is %v: expected a whole number", name, v)
		return 0
	}
	return int64(f)
}

// required marks a field without a default.
const required = math.MinInt64

// Float reads a number.
func (c *Config) Float(def float64, names ...string) float64 {
	v, name, ok := c.lookup(names)
	if !ok {
		return def
	}
	f, isNumber := v.(float64)
	if !isNumber || math.IsInf(f, 0) || math.IsNaN(f) {
		c.complain("field %q is %v: expected a number", name, v)
		return def
	}
	return f
}

// Bool reads true or false.
func (c *Config) Bool(def bool, names ...string) bool {
	v, name, ok := c.lookup(names)
	if !ok {
		return def
	}
	b, isBool := v.(bool)
	if !isBool {
		c.complain("field %q is %v: expected true or false", name, v)
		return def
	}
	return b
}

// Str reads a string.
func (c *Config) Str(def string, names ...string) string {
	v, name, ok := c.lookup(names)
	if !ok {
		return def
	}
	s, isString := v.(string)
	if !isString {
		c.complain("field %q is %v: expected a string", name, v)
		return def
	}
	return s
}

// Strings reads a list of strings.
func (c *Config) Strings(names ...string) []string {
	v, _, ok := c.lookup(names)
	if !ok {
		return nil
	}
	if s, isString := v.(string); isString {
		return strings.Split(s, "|")
	}
	list, _ := v.([]any)
	var out []string
	for _, x := range list {
		if s, ok := x.(string); ok {
			out = append(out, s)
		}
	}
	return out
}

// Ints reads a list of whole numbers.
func (c *Config) Ints(def []int64, names ...string) []int64 {
	v, name, ok := c.lookup(names)
	if !ok {
		return def
	}
	list, isList := v.([]any)
	if !isList {
		c.complain("field %q is %v: expected a list of numbers", name, v)
		return def
	}
	out := make([]int64, 0, len(list))
	for _, x := range list {
		f, isNumber := x.(float64)
		if !isNumber || f < 1 || f != math.Trunc(f) || f > maxLayers {
			c.complain("field %q has the entry %v: expected whole numbers from 1 to %d", name, x,
				maxLayers)
			return def
		}
		out = append(out, int64(f))
	}
	return out
}

// Flags reads a list of true and false, or of ones and zeros; nil if there is none.
func (c *Config) Flags(names ...string) []bool {
	v, _, _ := c.lookup(names)
	list, _ := v.([]any)
	var out []bool
	for _, x := range list {
		out = append(out, x == true || x == 1.0)
	}
	return out
}

// layerFields are the names of the number of blocks.
var layerFields = []string{"num_hidden_layers", "n_layer", "n_layers", "num_layers",
	"encoder_layers", "decoder_layers", "num_decoder_layers"}

// HalfTheLayers returns the configuration of the same model with half of its blocks, false where it
// does not name their number.
func (c *Config) HalfTheLayers() (*Config, bool) {
	half, found := maps.Clone(c.fields), false
	for _, name := range layerFields {
		if n, ok := c.fields[name].(float64); ok && n >= 2 {
			half[name], found = math.Floor(n/2), true
		}
	}
	if types, ok := c.fields["layer_types"].([]any); ok {
		half["layer_types"] = types[:len(types)/2]
	}
	return &Config{fields: half}, found
}

// Sub reads a nested configuration; a missing one is empty, so that all its fields take their
// defaults.
func (c *Config) Sub(name string) *Config {
	m, _ := c.fields[name].(map[string]any)
	if m == nil {
		m = map[string]any{}
	}
	return &Config{fields: m}
}

// Labels is the number of classes of a classification head.
func (c *Config) Labels() int64 {
	if m, ok := c.fields["id2label"].(map[string]any); ok && len(m) > 0 {
		return int64(len(m))
	}
	return c.Int(2, "num_labels")
}

// Architecture is the head the configuration names, such as ForCausalLM, without the model's name.
func (c *Config) Architecture() string {
	list := c.Strings("architectures")
	if len(list) == 0 {
		return ""
	}
	for _, head := range []string{"ForCausalLM", "LMHeadModel", "ForMaskedLM",
		"ForConditionalGeneration", "ForImageClassification",
		"ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering",
		"ForPreTraining", "ForCTC", "ForSpeechSeq2Seq", "ForAudioClassification"} {
		if strings.HasSuffix(list[0], head) {
			return head
		}
	}
	return list[0]
}

// Type is the model_type.
func (c *Config) Type() string { return c.Str("", "model_type") }

// divides complains unless whole is a multiple of part.
func (c *Config) divides(whole, part int64, what string) {
	if part < 1 || whole%part != 0 {
		c.complain("%s: %d is not divisible by %d", what, whole, part)
	}
}

// longEnough complains unless a model has a position for each token of a sequence.
func (c *Config) longEnough(seq, positions int64) {
	if seq > positions {
		c.complain("the sequence of %d tokens is longer than the %d positions of the model", seq,
			positions)
	}
}

// Err returns everything that was wrong, as one error.
func (c *Config) Err() error {
	if len(c.wrong) == 0 {
		return nil
	}
	slices.Sort(c.wrong)
	return fmt.Errorf("model configuration (%s): %s", c.Str("no model_type", "model_type"),
		strings.Join(slices.Compact(c.wrong), "; "))
}

// Positions is the length of a model's table of learned positions, 0 if it has none.
func (c *Config) Positions() int64 {
	switch c.Type() {
	case "gpt2":
		return c.Count(1024, "n_positions", "max_position_embeddings")
	case "bert", "electra", "albert", "distilbert":
		return c.Count(512, "max_position_embeddings")
	case "deberta-v2":
		if c.Bool(true, "position_biased_input") {
			return c.Count(512, "max_position_embeddings")
		}
	case "clip":
		return c.Sub("text_config").Count(77, "max_position_embeddings")
	case "siglip":
		return c.Sub("text_config").Count(64, "max_position_embeddings")
	case "bart", "mbart", "m2m_100", "pegasus", "marian":
		return c.Count(1024, "max_position_embeddings")
	case "blenderbot":
		return c.Count(128, "max_position_embeddings")
	case "whisper":
		return c.Count(448, "max_target_positions") // of the text
	case "opt", "gptj", "codegen", "gpt_neo":
		return c.Count(2048, "n_positions", "max_position_embeddings")
	case "gpt_bigcode":
		return c.Count(1024, "n_positions", "max_position_embeddings")
	case "roberta", "xlm-roberta", "camembert", "mpnet":
		return c.Count(512, "max_position_embeddings") - 2
	case "esm":
		if c.Str("absolute", "position_embedding_type") != "rotary" {
			return c.Count(1026, "max_position_embeddings") - 2
		}
	}
	return 0
}

// TakesImages reports whether batches of the model have images. A configuration that cannot be
// built counts as one that does.
func (c *Config) TakesImages() bool {
	m, err := New(c, Run{Batch: 1, Seq: c.DefaultSeq()})
	return err != nil || m.Run.Image > 0
}

// DefaultSeq is the sequence a model is assumed to be trained with where none is named, 0 for
// models without one.
func (c *Config) DefaultSeq() int64 {
	switch c.Type() {
	case "vit", "deit", "swin", "swinv2", "convnext", "convnextv2", "resnet", "dinov2",
		"dinov2_with_registers", "torchvision", "mlp", "audio-spectrogram-transformer", "":
		return 0
	case "wav2vec2", "hubert":
		return 160000 // ten seconds at 16 kHz
	}
	if n := c.Positions(); n > 0 {
		return min(n, 1024)
	}
	return 1024
}
