package plan

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"memroom/models"
	"memroom/tape"
	"memroom/testenv"
	"memroom/testenv/recorded"
)

// measured is the description and the outcome of a real run.
type measured struct {
	ID            string        `json:"id"`
	Case          recorded.Case `json:"case"`
	Params        int64         `json:"params"`
	PeakAllocated int64         `json:"peak_allocated"`
	PeakReserved  int64         `json:"peak_reserved"`
	maskGiven     bool
	useCache      bool
	UseCache      *bool                `json:"use_cache"` // nil is true: the first runs had it on
	Config        map[string]any       `json:"config"`
	Base          struct{ Used int64 } `json:"nvml_base"`
	End           struct{ Used int64 } `json:"nvml_end"`
}

func (m *measured) device() int64 { return m.End.Used - m.Base.Used }

func (m *measured) model(t testing.TB) *models.Model {
	t.Helper()
	c := m.Case
	cfg := map[string]any{"model_type": c.Family}
	if m.Config != nil {
		cfg = m.Config
	} else {
		for k, v := range c.Config {
			cfg[k] = v
		}
		for k, v := range testDefaults[c.Family] {
			if _, ok := cfg[k]; !ok {
				cfg[k] = v
			}
		}
	}
	if _, ok := c.Config["name"]; ok && c.Family == "torchvision" {
		cfg = c.Config
		cfg["model_type"] = "torchvision"
	}
	if c.Head != "" {
		cfg["architectures"] = []any{"X" + "For" + c.Head}
	}
	attn := c.Attn
	if attn == "" {
		attn = "sdpa"
	}
	model, err := models.New(models.ConfigOf(cfg), models.Run{Batch: c.Batch, Seq: c.Seq,
		Image: c.Image, Attn: attn, Checkpointing: c.Ckpt,
		Float: weightType(c.Precision), Padded: c.Pad, ChannelsLast: c.Channels,
		MaskGiven: m.Config == nil || m.maskGiven, Cache: m.useCache})
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Freeze) > 0 {
		model.Root.Freeze(c.Freeze)
	}
	if c.Lora > 0 {
		model.Root.AddLora(tape.Adapters{Rank: c.Lora, Targets: []string{"q_proj", "v_proj"}})
		for _, p := range model.Root.Parameters() {
			p.Own = false // this run's adapters had the weights' type
		}
	}
	return model
}

// testDefaults are values the library fills in for configurations given in part.
var testDefaults = map[string]map[string]any{"vit": {"num_labels": 1000.0}}

func (m *measured) loop() loop {
	c := m.Case
	l := loop{precision: c.Precision, optimizer: c.Optim, accumulate: c.Accum, clip: c.Clip,
		channelsLast: c.Channels, steps: c.Steps}
	if l.optimizer == "" {
		l.optimizer = "adamw"
	}
	if name, ok := optimizerNames[l.optimizer]; ok {
		l.optimizer = name
	}
	if l.steps == 0 {
		l.steps = 3
	}
	l.keepGrads = c.SetToNone != nil && !*c.SetToNone
	if c.Evaluate > 0 {
		l.evaluation = func(g *tape.Graph) []*tape.Tensor {
			return []*tape.Tensor{g.Input(tape.I64,
				c.Evaluate, c.Seq)}
		}
		l.keepLogits = 2
	}
	return l
}

// optimizerNames are optimizers that the recorded runs called otherwise.
var optimizerNames = map[string]string{"sgd_wd": "sgdm_wd", "sgd_wdonly": "sgd_wd",
	"sgd_nesterov": "sgdm_nesterov"}

var h200 = tape.Options{SMs: 132, SMThreads: 2048, Hopper: true, BLAS: 32 << 20, BLASLt: 1 << 20}

func readMeasured(t testing.TB, path string) []*measured {
	t.Helper()
	data := testenv.Read(t, path)
	return parseMeasured(t, data)
}

func parseMeasured(t testing.TB, data []byte) []*measured {
	t.Helper()
	var list []*measured
	for _, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
		m := &measured{}
		if err := json.Unmarshal([]byte(line), m); err != nil {
			t.Fatal(err)
		}
		list = append(list, m)
	}
	return list
}

// inexact lists recorded runs whose timeline differs, and why.
var inexact = map[string]string{
	"op-resnet50-fp32":     "workspaces of cuDNN",
	"op-resnet50-amp_fp16": "workspaces of cuDNN; its first optimizer steps were skipped by the scaler",
	"op-vgg16-fp32":        "workspaces of cuDNN", "op-lstm": "workspace of cuDNN",
}

func TestTimelinesEqualRecordedOnes(t *testing.T) {
	for _, m := range readMeasured(t, filepath.Join("testdata", "ops", "index.jsonl")) {
		if !models.Known(m.Case.Family) {
			continue
		}
		t.Run(m.ID, func(t *testing.T) {
			g := train(m.model(t), h200, m.loop())
			want := recorded.Read(t, filepath.Join("testdata", "ops", m.ID+".trace.gz"))
			switch diff := recorded.Difference(recorded.Requests(g.Timeline()), want); {
			case diff != "" && inexact[m.ID] == "":
				t.Error(diff)
			case diff == "" && inexact[m.ID] != "":
				t.Errorf("equal now: take it off the list of inexact ones")
			}
		})
	}
}

// TestFamiliesEqualRecordedOnes compares small models of every family with two steps of the real
// ones on an H200. These runs had no attention mask, and use_cache was on unless the index turns it
// off.
func TestFamiliesEqualRecordedOnes(t *testing.T) {
	for _, m := range readMeasured(t, filepath.Join("testdata", "families", "index.jsonl")) {
		t.Run(m.ID, func(t *testing.T) {
			m.useCache = m.UseCache == nil || *m.UseCache
			if m.Config == nil {
				m.Config = m.Case.Config
				m.Config["model_type"] = m.Case.Family
			}
			model := m.model(t)
			if got := model.Root.Count(); got != m.Params {
				t.Errorf("%d parameters, want %d", got, m.Params)
			}
			g := train(model, h200, m.loop())
			want := recorded.Read(t, filepath.Join("testdata", "families", m.ID+".trace.gz"))
			if diff := recorded.Difference(recorded.Requests(g.Timeline()), want); diff != "" {
				t.Error(diff)
			}
		})
	}
}
