package plan

import (
	"bufio"
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"memroom/allocsim"
	"memroom/event"
	"memroom/models"
	"memroom/remedy"
	"memroom/tape"
	"memroom/testenv"
)

// lengths is a recorded run whose batches differ in length: [tokens, allocated, reserved] after
// each step.
type lengths struct {
	ID     string     `json:"id"`
	Conf   string     `json:"conf"`
	Series [][3]int64 `json:"series"`
}

func readLengths(t testing.TB) []lengths {
	t.Helper()
	data := testenv.Read(t, testenv.Shared(t, "traces", "index.jsonl"))
	var list []lengths
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var l lengths
		if json.Unmarshal(lines.Bytes(), &l) == nil && strings.HasPrefix(l.ID, "dynseq-") &&
			!strings.Contains(l.ID, "limit") && len(l.Series) > 0 {
			list = append(list, l)
		}
	}
	return list
}

func sixLayers() *models.Config {
	return models.ConfigOf(map[string]any{"model_type": "gpt2", "n_layer": 6.0})
}

// TestVaryingLengths plays the very lengths of recorded runs of GPT-2 with six layers, batch 8,
// bf16 autocast, under several settings of the allocator; what a user asks for with --shortest does
// not know them and returns an interval.
func TestVaryingLengths(t *testing.T) {
	for _, run := range readLengths(t) {
		t.Run(run.ID, func(t *testing.T) {
			conf, err := allocsim.ParseConf(run.Conf)
			if err != nil {
				t.Fatal(err)
			}
			s := Setup{Model: sixLayers(), Shortest: 128, Setup: remedy.Setup{Batch: 8, Seq: 1024,
				Precision: "amp_bf16"}}
			p, err := Predict(s, Target{Card: DefaultCard(), Alloc: conf, Torch: "2.11"})
			if err != nil {
				t.Fatal(err)
			}
			var truth int64
			l := loop{precision: "amp_bf16", optimizer: "adamw", steps: len(run.Series)}
			for _, step := range run.Series {
				truth = max(truth, step[2])
				l.batches = append(l.batches,
					func(g *tape.Graph) []*tape.Tensor {
						return []*tape.Tensor{g.Input(tape.I64, 8,
							step[0])}
					})
			}
			m, err := models.New(s.Model, s.run(8, 1024))
			if err != nil {
				t.Fatal(err)
			}
			res, err := allocsim.Run(train(m, h200, l).Timeline(),
				allocsim.Options{Config: conf, Version: "2.11"})
			if err != nil {
				t.Fatal(err)
			}
			over := DefaultCard().Context + DefaultCard().DNN
			low, high := p.Low-over, p.High-over
			t.Logf("real %s, with the same lengths %+.2f %%, with any %s in [%s, %s]",
				event.Bytes(truth), offBy(int64(res.ReservedPeak), truth), p.ReservedPeak, low,
				high)
			if e := offBy(int64(res.ReservedPeak), truth); e < -0.5 || e > 0.5 {
				t.Errorf("with the same lengths the peak is off by %.2f %%", e)
			}
			if run.Conf != "max_split_size_mb:128" && (int64(low) > truth || int64(high) < truth) {
				t.Errorf("the truth %d is not in [%d, %d]", truth, low, high)
			}
		})
	}
}

// TestEvaluation: evaluation costs nothing beyond training while it is small, and its logits while
// it is large.
func TestEvaluation(t *testing.T) {
	predict := func(batch, keep int) *Prediction {
		t.Helper()
		p, err := Predict(Setup{Model: sixLayers(), EvalBatch: batch, EvalKeep: keep,
			Setup: remedy.Setup{Batch: 4, Seq: 256, Precision: "amp_bf16"}}, testTarget())
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	none, small, large, kept := predict(0, 0), predict(1, 0), predict(64, 0), predict(64, 3)
	if small.AllocatedPeak != none.AllocatedPeak {
		t.Errorf("an evaluation of one sample moves the peak from %d to %d", none.AllocatedPeak,
			small.AllocatedPeak)
	}
	if large.Phase != "evaluation" {
		t.Errorf("the peak of a large evaluation is in the %s pass", large.Phase)
	}
	logits := event.Bytes(64 * 256 * 50257 * 2)
	if more := kept.AllocatedPeak - large.AllocatedPeak; more < 2*logits ||
		more > 2*logits+16*event.MiB {
		t.Errorf("keeping two more batches of logits of %s costs %s", logits, more)
	}
}

// TestKeptKeysAndValues: use_cache keeps a copy of keys and values of every layer through the loss.
func TestKeptKeysAndValues(t *testing.T) {
	predict := func(cache, checkpointing bool) event.Bytes {
		t.Helper()
		p, err := Predict(Setup{Model: sixLayers(), UseCache: cache,
			Setup: remedy.Setup{Batch: 4, Seq: 512, Precision: "bf16",
				Checkpointing: checkpointing}}, testTarget())
		if err != nil {
			t.Fatal(err)
		}
		return p.Phases[1].Allocated // forward
	}
	if with, without := predict(true, false), predict(false, false); with <= without {
		t.Errorf("the forward pass takes %s with a cache and %s without", with, without)
	}
	if with, without := predict(true, true), predict(false, true); with != without {
		t.Errorf("checkpointing switches the cache off, but it takes %s with and %s without", with,
			without)
	}
}
