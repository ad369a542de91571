package models

import (
	"strings"
	"testing"
)

// TestPresetsHaveTheirPublishedParameters builds every model of presets.txt: a wrong size, a
// missing bias or a head tied by mistake changes the count.
func TestPresetsHaveTheirPublishedParameters(t *testing.T) {
	p := readPresets()
	for _, name := range p.first {
		k := p.byName[strings.ToLower(name)]
		c, err := Preset(name)
		if err != nil {
			t.Error(err)
			continue
		}
		m, err := New(c, Run{Batch: 1, Seq: c.DefaultSeq(), Attn: "sdpa"})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := m.Root.Count(); got != k.count {
			t.Errorf("%s: %d parameters, published are %d", name, got, k.count)
		}
	}
	t.Logf("%d names of %d models", len(p.all), len(p.first))
}

// TestModelsByName: hub ids, short names, other writings of them; what is nearly a name finds it.
func TestModelsByName(t *testing.T) {
	p := readPresets()
	for name, want := range map[string]string{"org/Llama-3-8B-Instruct": "llama-3-8b",
		"meta-llama/Llama-3.1-8B": "llama-3-8b", "gpt2": "gpt2", "GPT2": "gpt2",
		"bert-base-uncased": "bert-base", "llama3_1_8b": "llama-3-8b", "Qwen/Qwen2.5-7B": "qwen2.5-7b",
		"qwen2.5-7b-instruct": "qwen2.5-7b", "mistralai/Mistral-7B-v0.1": "mistral-7b",
		"unsloth/llama-3-8b-bnb-4bit": "llama-3-8b"} {
		c, err := Preset(name)
		if err != nil {
			t.Error(err)
			continue
		}
		if fields := p.byName[want].fields; c.Str("", "model_type") != fields["model_type"] ||
			c.fields["vocab_size"] != fields["vocab_size"] {
			t.Errorf("%s is %v, want %s", name, c.fields, want)
		}
		if packed := c.Quantization().LoadIn; (packed == "4bit") != strings.HasSuffix(name, packedTail) {
			t.Errorf("%s is stored in %q", name, packed)
		}
	}
	for name, near := range map[string]string{"Qwen/Qwen2.6-7B": "Qwen/Qwen2.5-7B",
		"lama-3-8b": "llama-3-8b", "nobody/knows-this-one": "", "": "", "base": ""} {
		_, err := Preset(name)
		if unknown, ok := err.(*UnknownNameError); !ok || unknown.Nearest != near {
			t.Errorf("%q: %v, want %q", name, err, near)
		}
	}
	if _, err := Preset("llama"); err == nil || !strings.Contains(err.Error(),
		"did you mean one of llama-2-13b, llama-2-70b, ") || strings.Contains(err.Error(), "gpt2") {
		t.Errorf("the name of a family: %v", err)
	}
	if c, err := Preset("ResNet50"); err != nil || c.Str("", "name") != "resnet50" {
		t.Errorf("a name of torchvision's: %v, %v", c, err)
	}
}
