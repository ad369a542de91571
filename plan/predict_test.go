package plan

import (
	"testing"

	"memroom/allocsim"
	"memroom/event"
	"memroom/models"
	"memroom/remedy"
)

func mustConfig(t testing.TB, text string) *models.Config {
	t.Helper()
	c, err := models.ParseConfig([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func testTarget() Target {
	return Target{Card: DefaultCard(), Alloc: allocsim.DefaultConfig(), Torch: "2.11"}
}

const llama70b = `{"model_type":"llama","hidden_size":8192,"intermediate_size":28672,"num_hidden_layers":80,"num_attention_heads":64,"num_key_value_heads":8,"vocab_size":128256}`

// The caps were tried on an H200 with set_per_process_memory_fraction: the largest batch that
// trained is the truth.
func TestLargestBatchUnderACap(t *testing.T) {
	for _, c := range []struct {
		config string
		setup  remedy.Setup
		limit  event.Bytes
		truth  int64
	}{
		{`{"model_type":"gpt2"}`, remedy.Setup{Batch: 8, Seq: 512}, 12 * event.GiB, 13},
		{llama160m, remedy.Setup{Batch: 8, Seq: 1024}, 24 * event.GiB, 22},
		{`{"model_type":"torchvision","name":"resnet50"}`, remedy.Setup{Batch: 128, Image: 224}, 8 * event.GiB, 180},
	} {
		target := testTarget()
		target.AllocLimit = c.limit
		p, err := Predict(Setup{Model: mustConfig(t, c.config), Setup: c.setup}, target)
		if err != nil {
			t.Fatal(err)
		}
		if got := *p.MaxBatch; got > c.truth || got < c.truth-max(1, c.truth*3/100) {
			t.Errorf("%s in %s: largest batch %d, really %d", c.config, c.limit, got, c.truth)
		}
	}
}

func Benchmark70B(b *testing.B) {
	target := testTarget()
	target.Given = true
	for b.Loop() {
		if _, err := Predict(Setup{Model: mustConfig(b, llama70b),
			Setup: remedy.Setup{Seq: 4096, Precision: "bf16"}}, target); err != nil {
			b.Fatal(err)
		}
	}
}

func Benchmark8B(b *testing.B) {
	target := testTarget()
	target.Given = true
	for b.Loop() {
		if _, err := Predict(Setup{Model: mustConfig(b, `{"model_type":"llama","hidden_size":4096,"intermediate_size":14336,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,"vocab_size":128256}`), Setup: remedy.Setup{Seq: 2048, Precision: "bf16"}}, target); err != nil {
			b.Fatal(err)
		}
	}
}

func presetModel(name string) (*models.Model, error) {
	c, err := models.Preset(name)
	if err != nil {
		return nil, err
	}
	return models.New(c, models.Run{Batch: 1, Seq: 128, Attn: "sdpa"})
}
