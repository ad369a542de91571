package models_test

import (
	"encoding/json"
	"math"
	"testing"

	"memroom/models"
	"memroom/testenv/recorded"
)

// TestModelsAskForWhatTheCardWasAsked: the parameters and every request for memory of real training
// on an H200, in order.
func TestModelsAskForWhatTheCardWasAsked(t *testing.T) {
	for _, r := range recorded.Plain(t) {
		t.Run(r.ID, func(t *testing.T) {
			model := r.Model(t)
			if got := model.Root.Count(); got != r.Params {
				t.Errorf("%d parameters, want %d", got, r.Params)
			}
			if wrong := recorded.Difference(r.Trained(model), r.Asked(t)); wrong != "" {
				t.Error(wrong)
			}
		})
	}
}

// TestPeaksOfVision: parameters of convolutional and recurrent networks, and the allocated peak of
// three steps on an H200 without cuDNN's workspaces, whose sizes package plan brings. Where they
// decide the peak, more is allowed.
func TestPeaksOfVision(t *testing.T) {
	workspaces := map[string]bool{"p-tv-mobilenet_v2-amp_bf16": true,
		"p-tv-efficientnet_b0-amp_bf16": true, "d-efficientnet_b3-b16-i300-amp_bf16": true,
		"c-mobilenet_v3_large-b64-amp_bf16": true, "d-resnet50-b40-i256-fp32": true}
	for _, r := range recorded.Vision(t) {
		t.Run(r.ID, func(t *testing.T) {
			model := r.Model(t)
			if got := model.Root.Count(); got != r.Params {
				t.Errorf("%d parameters, want %d", got, r.Params)
			}
			most := 0.015
			if workspaces[r.ID] {
				most = 0.045
			}
			got := r.TrainedPeak(model)
			if off := float64(got)/float64(r.Peak) - 1; math.Abs(off) > most {
				t.Errorf("peak %d, measured %d: %+.2f %%", got, r.Peak, 100*off)
			}
		})
	}
}

// TestPublishedParameterCounts: settings that configurations leave out have the library's default,
// and the totals are those that the models' authors published.
func TestPublishedParameterCounts(t *testing.T) {
	for name, c := range map[string]struct {
		config string
		want   int64
	}{
		"Llama-2-7B, whose file does not name its key heads": {`{"model_type": "llama",
			"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
			"num_attention_heads": 32, "vocab_size": 32000}`, 6738415616},
		"Llama-3-8B": {`{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
			"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
			"vocab_size": 128256}`, 8030261248},
		"GPT-2 by defaults alone": {`{"model_type": "gpt2"}`, 124439808},
		"OPT-125M by defaults": {`{"model_type": "opt", "hidden_size": 768, "ffn_dim": 3072,
			"num_hidden_layers": 12, "num_attention_heads": 12, "vocab_size": 50272,
			"max_position_embeddings": 2048, "word_embed_proj_dim": 768}`, 125239296},
		"ViT-base": {`{"model_type": "vit", "num_labels": 1000}`, 86567656},
	} {
		var config map[string]any
		if err := json.Unmarshal([]byte(c.config), &config); err != nil {
			t.Fatal(err)
		}
		m, err := models.New(models.ConfigOf(config), models.Run{Batch: 1, Seq: 16, Image: 224,
			Attn: "sdpa"})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := m.Root.Count(); got != c.want {
			t.Errorf("%s has %d parameters, want %d", name, got, c.want)
		}
	}
}

// TestTorchvisionParameterCounts: the totals in torchvision's documentation.
func TestTorchvisionParameterCounts(t *testing.T) {
	for name, want := range map[string]int64{
		"alexnet": 61100840, "vgg11": 132863336, "vgg13": 133047848, "vgg16": 138357544,
		"vgg19": 143667240, "resnet18": 11689512, "resnet34": 21797672, "resnet50": 25557032,
		"resnet101": 44549160, "resnet152": 60192808, "wide_resnet50_2": 68883240,
		"resnext50_32x4d": 25028904, "resnext101_32x8d": 88791336, "densenet121": 7978856,
		"densenet169": 14149480, "densenet201": 20013928, "densenet161": 28681000,
		"mobilenet_v2": 3504872, "mobilenet_v3_large": 5483032, "mobilenet_v3_small": 2542856,
		"efficientnet_b0": 5288548, "efficientnet_b1": 7794184, "efficientnet_b2": 9109994,
		"efficientnet_b3": 12233232, "efficientnet_b4": 19341616, "efficientnet_b5": 30389784,
		"efficientnet_b6": 43040704, "efficientnet_b7": 66347960, "convnext_tiny": 28589128,
		"convnext_small": 50223688, "convnext_base": 88591464, "convnext_large": 197767336,
		"regnet_x_400mf": 5495976, "regnet_y_400mf": 4344144, "regnet_y_800mf": 6432512,
		"regnet_x_800mf": 7259656, "squeezenet1_0": 1248424, "squeezenet1_1": 1235496,
		"mnasnet0_5": 2218512, "mnasnet1_0": 4383312, "shufflenet_v2_x0_5": 1366792,
		"shufflenet_v2_x1_0": 2278604, "vit_b_16": 86567656, "vit_l_16": 304326632,
		"swin_t": 28288354, "swin_s": 49606258, "swin_b": 87768224,
	} {
		m, err := models.New(models.ConfigOf(map[string]any{"model_type": "torchvision",
			"name": name}), models.Run{Batch: 1, Image: 224, Attn: "sdpa"})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := m.Root.Count(); got != want {
			t.Errorf("%s has %d parameters, want %d", name, got, want)
		}
	}
}

// TestDefaultsOfLlama: a configuration that leaves a key out trains as one that names the library's
// default, and not as one with another value.
func TestDefaultsOfLlama(t *testing.T) {
	trained := func(key string, value any) []recorded.Request {
		r := &recorded.Run{Config: map[string]any{"model_type": "llama", "hidden_size": 64.0,
			"intermediate_size": 128.0, "num_hidden_layers": 2.0, "num_attention_heads": 4.0,
			"vocab_size": 100.0}}
		if key != "" {
			r.Config[key] = value
		}
		r.Case.Batch, r.Case.Seq, r.Case.Precision, r.Case.Attn = 2, 32, "fp32", "eager"
		return r.Trained(r.Model(t))
	}
	plain := trained("", nil)
	for key, values := range map[string][2]any{"attention_dropout": {0.0, 0.1},
		"num_key_value_heads": {4.0, 2.0}, "tie_word_embeddings": {false, true},
		"attention_bias": {false, true}, "mlp_bias": {false, true}} {
		if wrong := recorded.Difference(plain, trained(key, values[0])); wrong != "" {
			t.Errorf("%s left out is not %v: %s", key, values[0], wrong)
		}
		if recorded.Difference(plain, trained(key, values[1])) == "" {
			t.Errorf("%s %v changes nothing", key, values[1])
		}
	}
}
