package plan

import (
	"os"
	"testing"
	"time"

	"memroom/allocsim"
	"memroom/event"
	"memroom/plan/family"
	"memroom/remedy"
)

func mustConfig(t testing.TB, text string) *family.Config {
	t.Helper()
	c, err := family.ParseConfig([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func testTarget() Target {
	return Target{Card: DefaultCard(), Alloc: allocsim.DefaultConfig(), Torch: "2.11"}
}

const llama70b = `{"model_type":"llama","hidden_size":8192,"intermediate_size":28672,"num_hidden_layers":80,"num_attention_heads":64,"num_key_value_heads":8,"vocab_size":128256}`

func TestLargestBatchUnderACap(t *testing.T) {
	for _, c := range []struct {
		config string
		seq    int
		limit  event.Bytes
		want   int64
	}{
		{`{"model_type":"gpt2"}`, 512, 12 * event.GiB, 13},
		{`{"model_type":"llama","hidden_size":768,"num_hidden_layers":12,"num_attention_heads":12,"num_key_value_heads":12,"intermediate_size":2048,"vocab_size":32000}`, 1024, 24 * event.GiB, 22},
	} {
		target := testTarget()
		target.AllocLimit = c.limit
		start := time.Now()
		p, err := Predict(Setup{Model: mustConfig(t, c.config), Setup: remedy.Setup{Batch: 8, Seq: c.seq}}, target)
		if err != nil {
			t.Fatal(err)
		}
		if *p.MaxBatch != c.want {
			t.Errorf("%s in %s: largest batch %d, want %d", c.config, c.limit, *p.MaxBatch, c.want)
		}
		if os.Getenv("SHOW") != "" {
			t.Logf("%v max batch %d seq %d %v", time.Since(start), *p.MaxBatch, *p.MaxSeq, p.Categories)
		}
	}
}

func Benchmark70B(b *testing.B) {
	target := testTarget()
	target.Given = true
	for b.Loop() {
		if _, err := Predict(Setup{Model: mustConfig(b, llama70b), Setup: remedy.Setup{Seq: 4096, Precision: "bf16"}}, target); err != nil {
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

func presetModel(name string) (*family.Model, error) {
	c, err := family.Preset(name)
	if err != nil {
		return nil, err
	}
	return family.New(c, family.Run{Batch: 1, Seq: 128, Attn: "sdpa"})
}
