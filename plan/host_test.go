package plan

import (
	"testing"

	"memroom/allocsim"
	"memroom/event"
	"memroom/models"
)

// hostOf is what a setup of a small Llama needs of a machine, and its prediction.
func hostOf(t *testing.T, dtype string, change func(*Setup)) (*HostNeed, *Prediction) {
	t.Helper()
	config := map[string]any{"model_type": "llama", "hidden_size": 512.0,
		"intermediate_size": 1408.0, "num_hidden_layers": 4.0, "num_attention_heads": 8.0,
		"num_key_value_heads": 8.0, "vocab_size": 32000.0}
	if dtype != "" {
		config["dtype"] = dtype
	}
	s := Setup{Model: models.ConfigOf(config)}
	s.Batch, s.Seq, s.Precision = 1, 128, "bf16"
	change(&s)
	p, err := Predict(s, Target{Card: DefaultCard(), Torch: "2.11",
		Alloc: allocsim.DefaultConfig()})
	if err != nil {
		t.Fatal(err)
	}
	return p.Host, p
}

// Files whose type is kept are mapped; where it changes, each process of a machine has weights.
func TestLoadingByType(t *testing.T) {
	plain := func(*Setup) {}
	same, p := hostOf(t, "bfloat16", plain)
	if same.Loading.Host != 0 || int64(same.Loading.Mapped) != 2*p.Parameters ||
		int64(same.Loading.Card) != 2*p.Parameters {
		t.Errorf("kept type: %+v", same.Loading)
	}
	turned, _ := hostOf(t, "float32", plain)
	if int64(turned.Loading.Host) != 2*p.Parameters || int64(turned.Loading.Mapped) != 4*p.Parameters {
		t.Errorf("changed type: %+v", turned.Loading)
	}
	ranks, _ := hostOf(t, "float32", func(s *Setup) { s.Ranks = 16 })
	if ranks.Processes != 8 || int64(ranks.Loading.Host) != 8*2*p.Parameters {
		t.Errorf("16 ranks: %d processes, %+v", ranks.Processes, ranks.Loading)
	}
	packed, _ := hostOf(t, "bfloat16", func(s *Setup) { s.LoadIn, s.LoRARank = "4bit", 8 })
	if packed.Loading.Host != 0 || packed.Loading.Card >= same.Loading.Card ||
		packed.Loading.Card < event.Bytes(2*32000*512) {
		t.Errorf("packed: %+v, whole: %+v", packed.Loading, same.Loading)
	}
}

// What DeepSpeed takes off the card is on the host: masters, gradients, states, and the weights.
func TestOffloadedZero(t *testing.T) {
	zero3 := func(offload ...string) func(*Setup) {
		return func(s *Setup) {
			s.Precision, s.Shard, s.Ranks, s.Offload, s.Bucket = "amp_bf16", "zero3", 4, offload, 1<<20
		}
	}
	_, none := hostOf(t, "", zero3())
	optim, p := hostOf(t, "", zero3("optimizer"))
	if got, want := int64(optim.Optimizer), 16*p.Parameters; got < want-want/50 || got > want+want/50 {
		t.Errorf("%d bytes of optimizer state on the host, want 16 a parameter: %d", got, want)
	}
	if p.Categories["optimizer"] > event.MiB || none.Categories["optimizer"] < 50*event.MiB {
		t.Errorf("on the card %s, without offload %s", p.Categories["optimizer"],
			none.Categories["optimizer"])
	}
	both, q := hostOf(t, "", zero3("optimizer", "parameters"))
	if int64(both.Parameters) < 2*q.Parameters-8 || q.AllocatedPeak >= p.AllocatedPeak {
		t.Errorf("weights on the host %s, allocated %s, with weights on the card %s", both.Parameters,
			q.AllocatedPeak, p.AllocatedPeak)
	}
	ddp, _ := hostOf(t, "", func(s *Setup) { s.Ranks, s.Offload = 4, []string{"optimizer"} })
	if int64(ddp.Optimizer) != 4*2*2*q.Parameters {
		t.Errorf("every rank has the whole state: %s", ddp.Optimizer)
	}
}
