package plan

import (
	"strings"
	"testing"

	"memroom/event"
	"memroom/remedy"
)

const llama160m = `{"model_type":"llama","hidden_size":768,"num_hidden_layers":12,"num_attention_heads":12,"num_key_value_heads":12,"intermediate_size":2048,"vocab_size":32000}`

func predict(t *testing.T, config string, s remedy.Setup) *Prediction {
	t.Helper()
	p, err := Predict(Setup{Model: mustConfig(t, config), Setup: s}, testTarget())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// What a change of the setup must do to memory, whatever the exact figures.
func TestChangesOfASetupMoveMemoryTheRightWay(t *testing.T) {
	base := remedy.Setup{Batch: 4, Seq: 512, Precision: "bf16"}
	with := func(change func(*remedy.Setup)) remedy.Setup {
		s := base
		change(&s)
		return s
	}
	plain := predict(t, llama160m, base)
	weights := plain.Categories["weights"]
	for _, c := range []struct {
		name  string
		setup remedy.Setup
		check func(p *Prediction) bool
	}{
		{"lora trains only adapters", with(func(s *remedy.Setup) { s.LoRARank = 8 }),
			func(p *Prediction) bool {
				return p.Trainable == 12*2*8*(768+768) &&
					p.Categories["optimizer"] < plain.Categories["optimizer"]/50 &&
					p.DevicePeak < plain.DevicePeak
			}},
		{"4 bits pack the blocks", with(func(s *remedy.Setup) { s.LoRARank, s.LoadIn = 8, "4bit" }),
			func(p *Prediction) bool {
				// embeddings and head in fp32, 4 bits and a scale for 64 elements in the blocks
				const packed = 12 * (4*768*768 + 3*768*2048)
				head, blocks := event.Bytes(2*32000*768*4), event.Bytes(packed/2+4*packed/64)
				adapters := event.Bytes(4 * p.Trainable)
				return p.Categories["weights"] > head+blocks+adapters &&
					p.Categories["weights"] < head+blocks+adapters+event.MiB
			}},
		{"ddp adds buckets", with(func(s *remedy.Setup) { s.Ranks, s.Shard = 4, "ddp" }),
			func(p *Prediction) bool {
				return p.Categories["gradients"] >= weights-event.MiB && p.Validated
			}},
		{"zero1 shards the state", with(func(s *remedy.Setup) { s.Ranks, s.Shard = 4, "zero1" }),
			func(p *Prediction) bool {
				// master and two moments in fp32, a quarter of each
				off := p.Categories["optimizer"] - weights*3/2
				return off < event.MiB && off > -event.MiB
			}},
		{"fsdp shards the weights", with(func(s *remedy.Setup) { s.Ranks, s.Shard = 4, "fsdp" }),
			func(p *Prediction) bool {
				return p.Categories["weights"] < weights &&
					p.Phases[0].Allocated < plain.Phases[0].Allocated/3
			}},
		{"the state can wait in host memory",
			with(func(s *remedy.Setup) { s.Offload = []string{"optimizer"} }),
			func(p *Prediction) bool {
				return p.Categories["optimizer"] == 0 && p.Host.Optimizer > 2*weights-event.MiB
			}},
		{"activations can wait in host memory",
			with(func(s *remedy.Setup) { s.Offload = []string{"activations"} }),
			func(p *Prediction) bool {
				return p.Categories["activations"] < plain.Categories["activations"]/4
			}},
		{"a chunked loss has no whole logits", with(func(s *remedy.Setup) { s.ChunkedLoss = true }),
			func(p *Prediction) bool {
				return p.AllocatedPeak < plain.AllocatedPeak
			}},
		{"checkpointing", with(func(s *remedy.Setup) { s.Checkpointing = true }),
			func(p *Prediction) bool {
				return p.Categories["activations"] < plain.Categories["activations"]/2
			}},
	} {
		if p := predict(t, llama160m, c.setup); !c.check(p) {
			t.Errorf("%s: %v, device %s (plain: %v, device %s)", c.name, p.Categories, p.DevicePeak,
				plain.Categories, plain.DevicePeak)
		}
	}
}

func TestPackedWeightsNeedAdapters(t *testing.T) {
	_, err := Predict(Setup{Model: mustConfig(t, llama160m), Setup: remedy.Setup{LoadIn: "4bit"}},
		testTarget())
	if err == nil || !strings.Contains(err.Error(), "--lora-rank") {
		t.Errorf("got %v", err)
	}
}

// parameterCounts are published totals.
func TestParameterCountsAreThePublishedOnes(t *testing.T) {
	for name, want := range map[string]int64{
		"gpt2": 124439808, "gpt2-xl": 1557611200, "llama-2-7b": 6738415616,
		"llama-3-8b": 8030261248, "mistral-7b": 7241732096, "tinyllama": 1100048384,
		"qwen2.5-0.5b": 494032768, "qwen2.5-7b": 7615616512, "qwen3-0.6b": 596049920,
		"vit-base": 86567656, "opt-125m": 125239296, "opt-1.3b": 1315758080,
		"mixtral-8x7b": 46702792704, "t5-small": 60506624, "t5-base": 222903552,
		"torchvision/resnet18": 11689512, "torchvision/resnet50": 25557032,
		"torchvision/resnet152": 60192808, "torchvision/vgg16": 138357544,
		"torchvision/densenet121": 7978856, "torchvision/mobilenet_v2": 3504872,
		"torchvision/mobilenet_v3_large": 5483032, "torchvision/efficientnet_b0": 5288548,
		"torchvision/convnext_tiny": 28589128, "torchvision/regnet_y_400mf": 4344144,
	} {
		m, err := presetModel(name)
		if err != nil {
			t.Error(err)
			continue
		}
		if got := m.Root.Count(); got != want {
			t.Errorf("%s has %d parameters, want %d", name, got, want)
		}
	}
}
