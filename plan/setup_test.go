package plan

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"memroom/event"
	"memroom/remedy"
)

// TestCheckChangesNothing: a check answers and leaves its receiver alone; defaults come from
// WithDefaults.
func TestCheckChangesNothing(t *testing.T) {
	s := Setup{Model: mustConfig(t, llama160m), Setup: remedy.Setup{Ranks: 4,
		Offload: []string{"optimizer"}}}
	before := s
	before.Offload = []string{"optimizer"}
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(s, before) {
		t.Errorf("the check made %+v of %+v", s, before)
	}
	full := s.WithDefaults()
	if full.Batch != 1 || full.Accumulate != 1 || full.Precision != "amp_bf16" ||
		full.Optimizer != "adamw" || full.Attention != "sdpa" || full.Seq != 1024 ||
		full.Shard != "ddp" {
		t.Errorf("defaults are %+v", full.Setup)
	}
	if full.WithDefaults().Setup.Batch != 1 || !reflect.DeepEqual(full.WithDefaults(), full) {
		t.Error("defaults of a full setup changed it")
	}
	full.Seq, full.Precision, full.Batch = 77, "fp16", 3
	if again := full.WithDefaults(); again.Seq != 77 || again.Precision != "fp16" ||
		again.Batch != 3 {
		t.Errorf("defaults replaced what was given: %+v", again.Setup)
	}
}

// TestOffloadedActivationsAreCountedOnTheHost: bytes that leave the card are on the host, in the
// JSON too.
func TestOffloadedActivationsAreCountedOnTheHost(t *testing.T) {
	base := remedy.Setup{Batch: 4, Seq: 512, Precision: "bf16"}
	plain := predict(t, llama160m, base)
	if plain.Host.Activation != 0 || plain.Host.Optimizer != 0 {
		t.Errorf("nothing is offloaded, yet %+v is counted", plain.Host)
	}
	offload := base
	offload.Offload = []string{"activations"}
	p := predict(t, llama160m, offload)
	left := plain.Categories["activations"] - p.Categories["activations"]
	if p.Host.Activation < left {
		t.Errorf("%s left the card, %s are counted on the host", left, p.Host.Activation)
	}
	text, err := json.Marshal(p)
	if err != nil || !strings.Contains(string(text), `"activations":`) {
		t.Errorf("%v, %s", err, text)
	}
	host := func(batch int) event.Bytes {
		offload.Batch = batch
		return predict(t, llama160m, offload).Host.Activation
	}
	// every sample adds the same; what no sample adds is the weights, which products save too
	each := host(5) - host(4)
	if got := host(8) - host(4); got != 4*each || each < left/4 {
		t.Errorf("four samples more need %s, one needs %s", got, each)
	}
	if fixed := host(4) - 4*each; fixed <= 0 || fixed > plain.Categories["weights"] {
		t.Errorf("%s are needed without a sample; the weights have %s", fixed,
			plain.Categories["weights"])
	}
	offload.Batch = 4
	offload.Accumulate = 4 // each micro-batch's copies go before the next one's come
	if got := predict(t, llama160m, offload).Host.Activation; got != p.Host.Activation {
		t.Errorf("with accumulation %s instead of %s", got, p.Host.Activation)
	}
}

// TestRanksTakeMemoryForCommunication: the fixed share of a card grows by the communicator's, and
// that once only, however the answer is found.
func TestRanksTakeMemoryForCommunication(t *testing.T) {
	one := predict(t, llama160m, remedy.Setup{Batch: 1, Seq: 128})
	four := predict(t, llama160m, remedy.Setup{Batch: 1, Seq: 128, Ranks: 4})
	if got := four.Categories["context"] - one.Categories["context"]; got != collectiveBytes ||
		got < 256*event.MiB {
		t.Errorf("four ranks take %s more beyond the allocator", got)
	}
	target := testTarget()
	target.Given = true
	s := Setup{Model: mustConfig(t, llama160m), Setup: remedy.Setup{Ranks: 4}}
	if a, b := target.with(s), target.with(s).with(s); a.overhead(false) != b.overhead(false) ||
		a.overhead(false) != target.Card.Context+collectiveBytes {
		t.Errorf("overheads %s and %s", a.overhead(false), b.overhead(false))
	}
}

// TestConfigurationDecidesWhatNoFlagNames checks that dtype, quantization_config and text_config
// are used and mentioned in the answer. A flag overrules them.
func TestConfigurationDecidesWhatNoFlagNames(t *testing.T) {
	const sizes = `"hidden_size":256,"num_hidden_layers":2,"num_attention_heads":4,
		"intermediate_size":512,"vocab_size":1000`
	for _, c := range []struct {
		name, config    string
		given           remedy.Setup
		precision, load string
		says            string
	}{
		{"bfloat16", `{"model_type":"llama","dtype":"bfloat16",` + sizes + `}`, remedy.Setup{},
			"bf16", "", "stores the weights in bfloat16"},
		{"float16", `{"model_type":"llama","torch_dtype":"float16",` + sizes + `}`, remedy.Setup{},
			"fp16", "", "stores the weights in float16"},
		{"float32", `{"model_type":"llama","dtype":"float32",` + sizes + `}`, remedy.Setup{},
			"amp_bf16", "", ""},
		{"a flag", `{"model_type":"llama","dtype":"bfloat16",` + sizes + `}`,
			remedy.Setup{Precision: "amp_bf16"}, "amp_bf16", "", ""},
		{"packed", `{"model_type":"llama","quantization_config":{"load_in_4bit":true},` + sizes +
			`}`, remedy.Setup{LoRARank: 8}, "amp_bf16", "4bit", "stores the weights in 4bit"},
		{"text model", `{"model_type":"seen_new","text_config":{"model_type":"llama",` + sizes +
			`}}`, remedy.Setup{}, "amp_bf16", "", "only the text model (llama) of seen_new"},
	} {
		p := predict(t, c.config, c.given)
		if p.Setup.Precision != c.precision || p.Setup.LoadIn != c.load {
			t.Errorf("%s: %s weights, packed %q", c.name, p.Setup.Precision, p.Setup.LoadIn)
		}
		notes := strings.Join(p.Warnings, "\n")
		if c.says != "" && strings.Count(notes, c.says) != 1 ||
			c.says == "" && strings.Contains(notes, "config.json") {
			t.Errorf("%s: said %q", c.name, notes)
		}
		if p.Validated && c.name == "text model" {
			t.Error("a part of a model counts as validated")
		}
	}
}
