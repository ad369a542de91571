package models_test

import (
	"flag"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"memroom/models"
	"memroom/tape"
	"memroom/testenv/recorded"
)

var update = flag.Bool("update", false, "write what every model asks for to testdata/built.golden")

// torchvisionNames are models of torchvision, one of each row of the tables.
const torchvisionNames = "alexnet vgg11 vgg19_bn resnet18 resnet34 resnet50 resnet101 resnet152 " +
	"resnext50_32x4d resnext101_32x8d resnext101_64x4d wide_resnet50_2 wide_resnet101_2 " +
	"mobilenet_v2 mobilenet_v3_large mobilenet_v3_small efficientnet_v2_s efficientnet_v2_m " +
	"efficientnet_v2_l efficientnet_b0 efficientnet_b1 efficientnet_b2 efficientnet_b3 " +
	"efficientnet_b4 efficientnet_b5 efficientnet_b6 efficientnet_b7 densenet121 densenet161 " +
	"densenet169 densenet201 convnext_tiny convnext_small convnext_base convnext_large " +
	"regnet_y_400mf regnet_y_800mf regnet_y_1_6gf regnet_y_3_2gf regnet_y_8gf regnet_x_400mf " +
	"regnet_x_800mf regnet_x_1_6gf regnet_x_3_2gf shufflenet_v2_x0_5 " +
	"shufflenet_v2_x1_0 shufflenet_v2_x1_5 shufflenet_v2_x2_0 squeezenet1_0 " +
	"squeezenet1_1 mnasnet0_5 mnasnet0_75 mnasnet1_0 mnasnet1_3 vit_b_16 vit_b_32 vit_l_16 " +
	"vit_l_32 vit_h_14 swin_t swin_s swin_b"

// TestWhatEveryModelAsksFor: parameters and all requests for memory of three steps, of every type
// with the library's defaults, every named model and every row of torchvision's tables. Whether
// they are right is shown by the recordings from a card; this shows that none changes unnoticed. A
// model that the file does not know is not compared: -update adds it.
func TestWhatEveryModelAsksFor(t *testing.T) {
	path := filepath.Join("testdata", "built.golden")
	text, err := os.ReadFile(path)
	if err != nil && !*update {
		t.Fatal(err)
	}
	want := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, said, _ := strings.Cut(strings.TrimSpace(line), ": ")
		want[name] = said
	}
	var now strings.Builder
	seen := map[string]bool{}
	see := func(name, got string) {
		seen[name] = true
		fmt.Fprintf(&now, "%s: %s\n", name, got)
		if w, known := want[name]; known && w != got && !*update {
			t.Errorf("%s: %s, want %s", name, got, w)
		}
	}
	for _, kind := range models.Types() {
		see("type "+kind, asked(map[string]any{"model_type": kind, "name": "resnet18",
			"vocab": 100.0, "embed": 8.0, "hidden": 8.0, "in": 8.0, "out": 8.0, "layers": 1.0}))
	}
	for _, kind := range models.Types() { // some have no defaults; two layers show how they repeat
		see("small "+kind, asked(map[string]any{"model_type": kind, "name": "resnet18",
			"vocab": 100.0, "embed": 8.0, "hidden": 8.0, "in": 8.0, "out": 8.0, "layers": 2.0,
			"hidden_size": 64.0, "intermediate_size": 96.0, "num_hidden_layers": 2.0,
			"num_attention_heads": 4.0, "num_key_value_heads": 2.0, "vocab_size": 100.0,
			"rotary_dim": 8.0}))
	}
	for _, name := range strings.Fields(torchvisionNames) {
		see("torchvision "+name, asked(map[string]any{"model_type": "torchvision", "name": name}))
	}
	for _, name := range models.PresetNames() {
		config, err := models.Preset(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		see("preset "+name, built(config))
	}
	for name := range want {
		if !seen[name] && !*update {
			t.Errorf("%s is gone", name)
		}
	}
	if *update {
		if err := os.WriteFile(path, []byte(now.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// built counts the parameters of a configuration.
func built(c *models.Config) string {
	m, err := models.New(c, models.Run{Batch: 1, Seq: 16, Image: 224, Attn: "sdpa"})
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%d parameters", m.Root.Count())
}

// asked is what a model asks for in two ways of training it: the number of requests and a hash of
// their sizes in order. A configuration that is refused gives the reason.
func asked(config map[string]any) string {
	c := models.ConfigOf(config)
	said := []string{built(models.ConfigOf(config))}
	if !strings.HasSuffix(said[0], "parameters") {
		return said[0]
	}
	for _, attention := range []string{"sdpa", "eager"} {
		few := min(c.DefaultSeq(), 48)
		requests, err := trained(config, attention, few)
		if err != nil { // sound is counted in samples, of which 48 are too few
			requests, err = trained(config, attention, c.DefaultSeq())
		}
		if err != nil {
			said = append(said, err.Error())
			continue
		}
		sum := fnv.New32a()
		for _, one := range requests {
			fmt.Fprintln(sum, one)
		}
		said = append(said, fmt.Sprintf("%s %d requests %08x", attention, len(requests),
			sum.Sum32()))
	}
	return strings.Join(said, ", ")
}

// trained are the requests of three steps.
func trained(config map[string]any, attention string, seq int64) (requests []string, err error) {
	defer func() {
		if why := recover(); why != nil {
			impossible, ok := why.(tape.Impossible)
			if !ok {
				panic(why)
			}
			err = fmt.Errorf("impossible: %v", impossible)
		}
	}()
	r := &recorded.Run{Config: config}
	r.Case.Precision = map[string]string{"sdpa": "fp32", "eager": "amp_bf16"}[attention]
	m, err := models.New(models.ConfigOf(config), models.Run{Batch: 2, Seq: seq, Attn: attention,
		Cache: true})
	if err != nil {
		return nil, err
	}
	return r.Trained(m), nil
}
