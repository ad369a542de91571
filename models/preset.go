package models

import (
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"memroom/event"
)

//go:embed presets.txt
var presetText string

// known is a model of presets.txt.
type known struct {
	name   string // its first
	count  int64  // parameters, as published
	fields map[string]any
}

// presets are the models of presets.txt by their names in lower case. first lists the first name
// of each, all every name as it is written.
type presets struct {
	byName     map[string]*known
	byBare     map[string]*known // by bareName; the first of several
	first, all []string
}

var readPresets = sync.OnceValue(func() presets { return parsePresets(presetText) })

// shortFields are the fields that most blocks of presets.txt have.
var shortFields = map[string]string{"h": "hidden_size", "ff": "intermediate_size",
	"l": "num_hidden_layers", "a": "num_attention_heads", "kv": "num_key_value_heads",
	"d": "head_dim", "v": "vocab_size", "tied": "tie_word_embeddings"}

// parsePresets reads presets.txt. A mistake in it is ours, and any test shows it: it panics.
func parsePresets(text string) presets {
	p := presets{byName: map[string]*known{}, byBare: map[string]*known{}}
	var at *known
	opened := false // the block has no name yet
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		switch {
		case len(words) == 0 || words[0] == "#" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "  "):
			for _, name := range words {
				p.add(name, at, opened)
				opened = false
			}
		case strings.HasPrefix(line, " "):
			at.take(words)
		default:
			count, err := strconv.ParseInt(words[0], 10, 64)
			if err != nil {
				panic("presets.txt: " + line)
			}
			at, opened = &known{count: count, fields: map[string]any{"model_type": words[1]}}, true
			if words[2] != "-" {
				at.fields["torch_dtype"] = words[2]
			}
			at.take(words[3:])
		}
	}
	slices.Sort(p.first)
	return p
}

func (p *presets) add(name string, at *known, first bool) {
	key := strings.ToLower(name)
	if p.byName[key] != nil {
		panic("presets.txt has two models named " + name)
	}
	p.byName[key] = at
	p.all = append(p.all, name)
	if bare := bareName(name); p.byBare[bare] == nil {
		p.byBare[bare] = at
	}
	if first {
		at.name = name
		p.first = append(p.first, name)
	}
}

// take adds fields such as h=4096, tied or text_config.hidden_size=512.
func (k *known) take(words []string) {
	for _, word := range words {
		name, text, given := strings.Cut(word, "=")
		if long, ok := shortFields[name]; ok {
			name = long
		}
		var value any = text
		if number, err := strconv.ParseFloat(text, 64); err == nil {
			value = number
		} else if !given || text == "true" || text == "false" {
			value = text != "false"
		}
		if name == "architectures" {
			value = []any{text}
		}
		fields := k.fields
		if section, inner, ok := strings.Cut(name, "."); ok {
			if fields[section] == nil {
				fields[section] = map[string]any{}
			}
			fields, name = fields[section].(map[string]any), inner
		}
		fields[name] = value
	}
}

// Preset returns the configuration of a model that is known by name: a hub id, a short name such as
// llama-3-8b, or a name of torchvision's, with or without torchvision/ before it. Case, separators,
// the owner and words for how a model was tuned do not count where the name as it stands is not
// known.
func Preset(name string) (*Config, error) {
	key := strings.ToLower(strings.TrimSpace(name))
	tv, isVision := strings.CutPrefix(key, "torchvision/")
	found := findPreset(key)
	if isVision || found == nil && visionNetOf(key) != nil {
		return ConfigOf(map[string]any{"model_type": "torchvision", "name": tv}), nil
	}
	if found == nil {
		e := &UnknownNameError{Name: name, Nearest: event.Nearest(name, readPresets().all)}
		if bare := bareName(key); len(bare) > 2 && e.Nearest == "" {
			e.family = slices.DeleteFunc(slices.Clone(PresetNames()),
				func(known string) bool { return !strings.HasPrefix(bareName(known), bare) })
		}
		return nil, e
	}
	fields := maps.Clone(found.fields)
	if strings.HasSuffix(key, packedTail) {
		fields["quantization_config"] = map[string]any{"quant_method": "bitsandbytes",
			"load_in_4bit": true}
	}
	return ConfigOf(fields), nil
}

func findPreset(key string) *known {
	p := readPresets()
	found, bare := p.byName[key], bareName(key)
	if found == nil && bare != "" {
		found = p.byBare[bare]
	}
	return found
}

// PresetName returns the first of the names of a model that is known by name; the word itself where
// none is.
func PresetName(word string) string {
	if found := findPreset(strings.ToLower(strings.TrimSpace(word))); found != nil {
		return found.name
	}
	return word
}

// UnknownNameError reports that no model is known by a name.
type UnknownNameError struct {
	Name, Nearest string
	family        []string // names that begin as the unknown one
}

func (e *UnknownNameError) Error() string {
	if e.Nearest != "" {
		return fmt.Sprintf("no model is known by the name %q, did you mean %q?", e.Name, e.Nearest)
	}
	if len(e.family) > 0 {
		return fmt.Sprintf("no model is known by the name %q, did you mean one of %s?", e.Name,
			strings.Join(e.family, ", "))
	}
	return fmt.Sprintf("no model is known by the name %q.", e.Name)
}

// PresetNames lists the models known by name, each by one of its names.
func PresetNames() []string { return readPresets().first }

// packedTail ends the hub ids of weights that bitsandbytes packed.
const packedTail = "-bnb-4bit"

// tunedWords end names of models that differ in their weights alone.
var tunedWords = []string{"bnb4bit", "instruct", "chat", "hf", "base", "it", "v10"}

// bareName is a model's name without its owner, its separators and the words for how it was tuned.
func bareName(name string) string {
	name = strings.ToLower(name)
	name = name[strings.LastIndexAny(name, "/")+1:]
	name = strings.NewReplacer("-", "", "_", "", ".", "", " ", "").Replace(name)
	name = strings.TrimPrefix(name, "meta")
	for {
		short := name
		for _, tail := range tunedWords {
			short = strings.TrimSuffix(short, tail)
		}
		if short == name {
			return name
		}
		name = short
	}
}
