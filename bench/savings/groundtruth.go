package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"memroom/event"
	"memroom/remedy"
)

// earlier are pairs among the measured setups that plan itself is checked on (shared/groundtruth).
var earlier = []struct {
	before, after string
	remedy        remedy.ID
}{
	{"gpt2-b8-s512-fp32", "gpt2-b8-s512-amp_bf16", remedy.MixedPrecision},
	{"gpt2-b8-s1024-amp_bf16", "gpt2-b8-s512-amp_bf16", remedy.ShorterSequence},
	{"gpt2-b8-s512-amp_bf16", "gpt2-b8-s512-ckpt", remedy.Checkpointing},
	{"gpt2-b8-s512-eager", "gpt2-b8-s512-fp32", remedy.Attention},
	{"gpt2-b8-s512-fp32", "gpt2-b8-s512-adafactor", remedy.OptimizerAdafactor},
	{"llama160m-b8-s1024-fp32", "llama160m-b8-s1024-amp_bf16", remedy.MixedPrecision},
	{"llama160m-b8-s1024-amp_bf16", "llama160m-b8-s1024-ckpt", remedy.Checkpointing},
	{"llama160m-b8-s1024-eager", "llama160m-b8-s1024-amp_bf16", remedy.Attention},
	{"llama1b-b4-s2048-bf16", "llama1b-b4-s2048-ckpt-bf16", remedy.Checkpointing},
}

// truth is one line of h200-peaks.jsonl.
type truth struct {
	ID   string `json:"id"`
	Case struct {
		Family    string         `json:"family"`
		Config    map[string]any `json:"config"`
		Batch     int            `json:"batch"`
		Seq       int            `json:"seq"`
		Precision string         `json:"precision"`
		Optim     string         `json:"optim"`
		Attn      string         `json:"attn"`
		Ckpt      bool           `json:"ckpt"`
	} `json:"case"`
	Reserved event.Bytes `json:"peak_reserved"`
	Device   struct {
		Name  string `json:"name"`
		Torch string `json:"torch"`
	} `json:"device"`
}

func (t truth) setup() remedy.Setup {
	s := remedy.Setup{Batch: t.Case.Batch, Seq: t.Case.Seq, Precision: t.Case.Precision,
		Optimizer: t.Case.Optim, Attention: t.Case.Attn, Checkpointing: t.Case.Ckpt, Accumulate: 1}
	for _, d := range []struct {
		value *string
		usual string
	}{{&s.Precision, "fp32"}, {&s.Optimizer, "adamw"}, {&s.Attention, "sdpa"}} {
		if *d.value == "" {
			*d.value = d.usual
		}
	}
	return s
}

// readTruth returns the earlier pairs as results and the pairs themselves.
func readTruth(folder string) (*results, []pair, error) {
	file, err := os.Open(filepath.Join(folder, "h200-peaks.jsonl"))
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	all := map[string]truth{}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var t truth
		if err := json.Unmarshal(lines.Bytes(), &t); err != nil {
			return nil, nil, err
		}
		all[t.ID] = t
	}
	data, err := os.ReadFile(filepath.Join(folder, "h200-configs.json"))
	if err != nil {
		return nil, nil, err
	}
	configs := map[string]map[string]any{}
	if err := json.Unmarshal(data, &configs); err != nil {
		return nil, nil, err
	}
	r := newResults()
	var pairs []pair
	for _, e := range earlier {
		b, a := all[e.before], all[e.after]
		for _, t := range []truth{b, a} {
			r.add(measured{Family: t.Case.Family, Config: b.Case.Config, Setup: t.setup(),
				Reserved: t.Reserved, Card: t.Device.Name, Torch: t.Device.Torch,
				Model: configs[e.before]})
		}
		found, ok := remedy.Find(e.remedy)
		after, rewritten := found.Rewrite(b.setup())
		if !ok || !rewritten || key(after) != key(a.setup()) {
			return nil, nil, fmt.Errorf("%s is not %s with %s", e.after, e.before, e.remedy)
		}
		pairs = append(pairs, pair{ID: e.before, Family: b.Case.Family, Config: b.Case.Config,
			Remedy: e.remedy, Before: b.setup(), After: after})
	}
	return r, pairs, lines.Err()
}
