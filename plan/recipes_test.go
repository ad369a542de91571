package plan

import (
	"bufio"
	"encoding/json"
	"os"
	"testing"

	"memroom/models"
	"memroom/remedy"
	"memroom/testenv"
)

// recipe is a peak of an adapted or quantised model on an H200.
type recipe struct {
	Name        string         `json:"name"`
	Config      map[string]any `json:"cfg"`
	Kind        string         `json:"kind"`
	Targets     any            `json:"targets"`
	Rank        int            `json:"r"`
	Optimizer   string         `json:"opt"`
	Batch       int            `json:"batch"`
	Seq         int            `json:"seq"`
	Checkpoint  bool           `json:"ckpt"`
	Compile     bool           `json:"compile"`
	DoubleQuant bool           `json:"dq"`
	Dropout     float64        `json:"dropout"`
	NoUpcast    bool           `json:"no_upcast"`
	Allocated   int64          `json:"allocated"`
	Reserved    int64          `json:"reserved"`
	Trainable   int64          `json:"trainable"`
}

// setup is the recipe as a user would ask for it; false for kinds that are not described.
func (r *recipe) setup() (Setup, bool) {
	r.Config["model_type"] = "llama"
	s := Setup{Model: models.ConfigOf(r.Config), LoRADropout: r.Dropout,
		Setup: remedy.Setup{Batch: r.Batch, Seq: r.Seq, Optimizer: r.Optimizer,
			LoRARank: r.Rank, Checkpointing: r.Checkpoint}}
	switch t := r.Targets.(type) {
	case string:
		s.LoRATargets = []string{t}
	case []any:
		for _, name := range t {
			s.LoRATargets = append(s.LoRATargets, name.(string))
		}
	}
	switch r.Kind {
	case "lora", "bf16":
		s.Precision = "bf16"
	case "qlora":
		s.Precision, s.LoadIn, s.DoubleQuant, s.NoUpcast = "amp_bf16", "4bit", r.DoubleQuant,
			r.NoUpcast
	case "int8":
		s.Precision, s.LoadIn, s.NoUpcast = "amp_bf16", "8bit", r.NoUpcast
	case "amp":
		s.Precision = "amp_bf16"
	default:
		return s, false
	}
	return s, !r.Compile
}

func readRecipes(t testing.TB, path string) []*recipe {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var list []*recipe
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		r := &recipe{}
		if err := json.Unmarshal(lines.Bytes(), r); err != nil {
			t.Fatal(err)
		}
		list = append(list, r)
	}
	return list
}

func TestRecipes(t *testing.T) {
	for _, r := range readRecipes(t, testenv.Shared(t, "recipes", "h200.jsonl")) {
		s, known := r.setup()
		if !known {
			continue
		}
		p, err := Predict(s, testTarget())
		if err != nil {
			t.Errorf("%s: %v", r.Name, err)
			continue
		}
		t.Logf("%-20s allocated %+.3f %%, reserved %+.3f %%  (%d, %d)", r.Name, offBy(int64(p.AllocatedPeak),
			r.Allocated), offBy(int64(p.ReservedPeak), r.Reserved), int64(p.AllocatedPeak)-r.Allocated, int64(p.ReservedPeak)-r.Reserved)
		if p.Trainable != r.Trainable {
			t.Errorf("%s trains %d parameters, want %d", r.Name, p.Trainable, r.Trainable)
		}
	}
}
