package plan

import (
	"encoding/json"
	"math"
	"path/filepath"
	"testing"

	"memroom/allocsim"
	"memroom/event"
	"memroom/models"
	"memroom/testenv"
)

// kept is what one rank keeps, by PyTorch or by a timeline.
type kept struct {
	Weights     int64 `json:"weights"`
	Gradients   int64 `json:"gradients"`
	Optimizer   int64 `json:"optimizer"`
	Activations int64 `json:"activations"` // saved by a forward pass
}

// manySetup is the Llama of testdata/many.py.
func manySetup() Setup {
	s := Setup{Model: models.ConfigOf(llamaOf(512, 1408, 8, 8, 8, 8000))}
	s.Batch, s.Seq, s.Precision, s.bare = 2, 512, "amp_bf16", true
	return s
}

// torchKeeps asks PyTorch itself, as rank 0 of eight, for several ways to spread the model.
func torchKeeps(t *testing.T, hows ...string) map[string]kept {
	t.Helper()
	python := testenv.Python(t, "torch", "transformers")
	out := testenv.Program{Python: python,
		Args: append([]string{filepath.Join("testdata", "many.py")}, hows...)}.MustAsk(t).Out
	var k map[string]kept
	if err := json.Unmarshal(out, &k); err != nil || len(k) != len(hows) {
		t.Fatalf("many.py %v: %v in %q", hows, err, out)
	}
	return k
}

// planKeeps reads the same from the setup's timeline.
func planKeeps(t *testing.T, s Setup) (kept, *Prediction) {
	t.Helper()
	target := Target{Card: DefaultCard(), Torch: "2.11", Alloc: allocsim.DefaultConfig()}
	p, err := Predict(s, target)
	if err != nil {
		t.Fatal(err)
	}
	stage := s.stage
	s = s.WithDefaults()
	s.stage = stage
	runs, err := simulateAll(&s, &target)
	if err != nil {
		t.Fatal(err)
	}
	tl := runs.all[0].tl
	at := func(step int, phase string) map[event.Category]int64 {
		live := map[event.Category]int64{}
		for _, m := range tl.Marks {
			if m.Step == step && m.Phase == phase {
				for _, i := range allocsim.LiveAt(tl, m.At-1) {
					live[tl.Tags[tl.Ops[i].Tag].Category] += tl.Ops[i].Size
				}
				break
			}
		}
		return live
	}
	saved := at(1, "backward")
	return kept{Weights: at(1, "forward")[event.CategoryWeights],
		Gradients:   at(1, "optimizer")[event.CategoryGradients],
		Optimizer:   at(2, "forward")[event.CategoryOptimizer],
		Activations: saved[event.CategoryActivations] + saved[event.CategoryLoss]}, p
}

// off returns by how much a differs from b, as a fraction.
func off(a, b int64) float64 { return float64(a)/float64(max(b, 1)) - 1 }

// TestManyCards compares what rank 0 keeps with PyTorch's own sharding.
func TestManyCards(t *testing.T) {
	all := torchKeeps(t, "hsdp", "tensor", "sequence", "stage1", "stage2")
	for _, c := range []struct {
		how    string
		change func(*Setup)
	}{
		{"hsdp", func(s *Setup) { s.Ranks, s.Shard, s.Replicas = 8, "hsdp", 2 }},
		{"tensor", func(s *Setup) { s.Precision, s.Tensor = "bf16", 4 }},
		{"sequence", func(s *Setup) { s.Precision, s.Tensor, s.Sequence = "bf16", 4, true }},
		{"stage1", func(s *Setup) { s.Precision, s.Pipeline = "bf16", 4 }},
		{"stage2", func(s *Setup) { s.Precision, s.Pipeline, s.stage = "bf16", 4, 1 }},
	} {
		t.Run(c.how, func(t *testing.T) {
			s := manySetup()
			c.change(&s)
			got, _ := planKeeps(t, s)
			want := all[c.how]
			if s.Tensor > 1 { // the program cuts the embedding, and gathers the logits
				s.LossParallel = true
				words, _ := planKeeps(t, s)
				words.Activations = got.Activations
				got = words
			}
			t.Logf("planned %+v, PyTorch keeps %+v: activations %+.2f %%", got, want,
				100*off(got.Activations, want.Activations))
			for name, pair := range map[string][2]int64{"weights": {got.Weights, want.Weights},
				"gradients": {got.Gradients, want.Gradients},
				"optimizer": {got.Optimizer, want.Optimizer}} {
				if math.Abs(off(pair[0], pair[1])) > 0.001 {
					t.Errorf("%s: planned %d, PyTorch keeps %d", name, pair[0], pair[1])
				}
			}
			if math.Abs(off(got.Activations, want.Activations)) > 0.06 {
				t.Errorf("saved: planned %d, PyTorch %d", got.Activations, want.Activations)
			}
		})
	}
}

// TestParametersInHostMemory: FSDP's CPUOffloadPolicy, against PyTorch and by hand.
func TestParametersInHostMemory(t *testing.T) {
	s := manySetup()
	s.Ranks, s.Shard, s.Offload = 8, "fsdp", []string{"parameters"}
	got, p := planKeeps(t, s)
	if got.Weights > 2048 || got.Gradients != 0 || got.Optimizer != 0 {
		t.Errorf("on the card stay %+v, want nothing but tables", got)
	}
	want, h := torchKeeps(t, "offload")["offload"], p.Host
	if int64(h.Parameters) != 8*want.Weights || int64(h.Gradients) != 8*want.Gradients ||
		int64(h.Optimizer) != 8*want.Optimizer {
		t.Errorf("on the machine %+v, PyTorch has on each rank %+v", h, want)
	}
	if int64(h.PerRank) != want.Weights+want.Gradients+want.Optimizer {
		t.Errorf("a rank has %s", h.PerRank)
	}
	// by hand: one block's q, k, v, o, gate, up, down, norms in fp32 over 8 ranks, to powers of two
	block := 4*131072 + 3*524288 + 2*256
	rest := 2*2097152 + 256
	if want := event.Bytes(8 * 2 * (8*block + rest)); h.Pinned != want {
		t.Errorf("page-locked %s, want %s", h.Pinned, want)
	}
}
