package models_test

import (
	"flag"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
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
// with the library's defaults, every named model and every row of torchvision's tables; of decoders
// also a rank's part, and of some images that windows and patches do not divide. Whether
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
		see("small "+kind, asked(small(kind)))
		if m, err := models.New(models.ConfigOf(small(kind)), models.Run{Batch: 1, Seq: 16,
			Attn: "sdpa"}); err != nil || m.Parts == nil {
			continue
		}
		for name, division := range divisions {
			see(name+" "+kind, askedIn(small(kind), models.Run{Division: division}))
		}
	}
	for _, kind := range []string{"dinov2", "swin", "swinv2", "vit"} {
		see("odd image "+kind, askedIn(small(kind), models.Run{Image: 200}))
	}
	for _, name := range strings.Fields(torchvisionNames) {
		see("torchvision "+name, asked(map[string]any{"model_type": "torchvision", "name": name}))
	}
	for name := range want {
		if !seen[name] && !*update {
			t.Errorf("%s is gone", name)
		}
	}
	if *update {
		lines := strings.SplitAfter(now.String(), "\n")
		slices.Sort(lines)
		if err := os.WriteFile(path, []byte(strings.Join(lines, "")), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// small is a configuration of two layers.
func small(kind string) map[string]any {
	return map[string]any{"model_type": kind, "name": "resnet18",
		"vocab": 100.0, "embed": 8.0, "hidden": 8.0, "in": 8.0, "out": 8.0, "layers": 2.0,
		"hidden_size": 64.0, "intermediate_size": 96.0, "num_hidden_layers": 2.0,
		"num_attention_heads": 4.0, "num_key_value_heads": 2.0, "vocab_size": 100.0,
		"rotary_dim": 8.0}
}

// divisions are a rank's part of each kind.
var divisions = map[string]models.Division{
	"tensor":      {Tensor: 2},
	"sequence":    {Tensor: 2, Sequence: true, WholeWords: true},
	"experts":     {Expert: 2},
	"first stage": {Stage: 0, Stages: 2},
}

// TestPartsMakeTheWhole: the parameters of a pipeline's stages add up to those of the model, and
// two ranks of tensor parallelism have all of them, some twice, but not more than twice.
func TestPartsMakeTheWhole(t *testing.T) {
	count := func(kind string, d models.Division) int64 {
		config := small(kind)
		config["tie_word_embeddings"] = false
		m, err := models.New(models.ConfigOf(config), models.Run{Batch: 1, Seq: 16, Attn: "sdpa",
			Division: d})
		if err != nil {
			return 0
		}
		return m.Root.Count()
	}
	divided := 0
	for _, kind := range models.Types() {
		whole := count(kind, models.Division{})
		first := count(kind, models.Division{Stage: 0, Stages: 2})
		last := count(kind, models.Division{Stage: 1, Stages: 2})
		half := count(kind, models.Division{Tensor: 2})
		if first == whole {
			continue // not divided
		}
		divided++
		if whole == 0 || first+last != whole {
			t.Errorf("%s: stages of %d and %d parameters, the model has %d", kind, first, last, whole)
		}
		if half != 0 && (2*half < whole || half >= whole) {
			t.Errorf("%s: a rank of two has %d parameters of %d", kind, half, whole)
		}
	}
	if divided < 10 {
		t.Errorf("%d types are divided", divided)
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

// asked returns what a model requests in two ways of training it: the number of requests and a hash
// of their sizes in order. For a configuration that is refused it returns the reason.
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
		said = append(said, fmt.Sprintf("%s %d requests %08x", attention, len(requests),
			summed(requests)))
	}
	return strings.Join(said, ", ")
}

// askedIn is asked of one way to run.
func askedIn(config map[string]any, run models.Run) string {
	if run.Image > 0 {
		config["image_size"] = float64(run.Image)
	}
	c := models.ConfigOf(config)
	run.Batch, run.Seq, run.Attn = 2, min(c.DefaultSeq(), 48), "sdpa"
	requests, err := trainedIn(config, run)
	if err != nil {
		run.Seq = c.DefaultSeq()
		requests, err = trainedIn(config, run)
	}
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%d requests %08x", len(requests), summed(requests))
}

func summed(requests []recorded.Request) uint32 {
	sum := fnv.New32a()
	for _, one := range requests {
		fmt.Fprintln(sum, one)
	}
	return sum.Sum32()
}

// trained are the requests of three steps.
func trained(config map[string]any, attention string, seq int64) ([]recorded.Request, error) {
	return trainedIn(config, models.Run{Batch: 2, Seq: seq, Attn: attention, Cache: true})
}

func trainedIn(config map[string]any, run models.Run) (requests []recorded.Request, err error) {
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
	r.Case.Precision = map[string]string{"sdpa": "fp32", "eager": "amp_bf16"}[run.Attn]
	m, err := models.New(models.ConfigOf(config), run)
	if err != nil {
		return nil, err
	}
	return r.Trained(m), nil
}
