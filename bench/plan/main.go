// Command plan prints how far predictions from a configuration are from what an H200 really gave
// up, case by case, next to accelerate's rule (four times the weights) and PyTorch's MemTracker on
// fake tensors. MemTracker takes most of an hour for all cases, so its figures are kept next to
// this file; bench/rehearse runs it again. Usage: go run ./bench/plan.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"memroom/allocsim"
	"memroom/models"
	"memroom/plan"
	"memroom/remedy"
)

// measured is one line of the ground truth.
type measured struct {
	ID   string `json:"id"`
	Case struct {
		Family, Precision, Optim, Attn string
		Config                         map[string]any
		Batch, Seq, Image, Accum       int
		Ckpt, Clip                     bool
		SetToNone                      *bool `json:"set_to_none"`
		Freeze                         []string
		Channels                       bool `json:"channels_last"`
	} `json:"case"`
	Params   int64                `json:"params"`
	Reserved int64                `json:"peak_reserved"`
	Base     struct{ Used int64 } `json:"nvml_base"`
	End      struct{ Used int64 } `json:"nvml_end"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench/plan:", err)
		os.Exit(1)
	}
}

func run() error {
	dir := filepath.Join("..", "shared", "groundtruth")
	cases, err := read(dir)
	if os.IsNotExist(err) {
		fmt.Println("needs ../shared/groundtruth, the measurements beside this checkout: skipped")
		return nil
	} else if err != nil {
		return err
	}
	peer, failed, err := readPeer(peerResults)
	if err != nil {
		return err
	}
	fmt.Printf("MemTracker: %d figures kept in %s, %d more cases fail\n", len(peer), peerResults,
		failed)
	fmt.Printf("%-32s %10s %12s %12s %12s\n", "device bytes, error in %", "ours", "interval",
		"accelerate", "MemTracker")
	var ours, rule, tracked []float64
	exact, outside := 0, 0
	for _, m := range cases {
		truth := float64(m.End.Used - m.Base.Used)
		p, err := plan.Predict(m.setup(), plan.Target{Card: plan.DefaultCard(),
			Alloc: allocsim.DefaultConfig(), Torch: "2.11"})
		if err != nil {
			fmt.Printf("%-32s %v\n", m.ID, err)
			continue
		}
		off := func(v float64) float64 { return 100 * (v/truth - 1) }
		o, r := off(float64(p.DevicePeak)), off(float64(4*4*m.Params))
		ours, rule = append(ours, abs(o)), append(rule, abs(r))
		if int64(p.ReservedPeak) == m.Reserved {
			exact++
		}
		note := "-"
		if v, ok := peer[m.ID]; ok {
			t := off(v)
			tracked = append(tracked, abs(t))
			note = fmt.Sprintf("%+.1f", t)
		}
		in := ""
		if float64(p.Low) > truth || float64(p.High) < truth {
			in, outside = " (outside)", outside+1
		}
		fmt.Printf("%-32s %+10.3f %5.3f-%5.3f %+12.1f %12s%s\n", m.ID, o, float64(p.Low)/truth,
			float64(p.High)/truth, r, note, in)
	}
	fmt.Printf("\nreserved byte-exact in %d of %d; truth outside the interval in %d\n", exact,
		len(ours), outside)
	summary("ours", ours)
	summary("accelerate's rule", rule)
	summary("MemTracker", tracked)
	return nil
}

func summary(name string, errors []float64) {
	if len(errors) == 0 {
		fmt.Printf("%-20s not run\n", name)
		return
	}
	slices.Sort(errors)
	at := func(q float64) float64 { return errors[min(int(q*float64(len(errors))), len(errors)-1)] }
	fmt.Printf("%-20s median %.3f %%, 90th percentile %.2f %%, worst %.2f %% of %d cases\n", name,
		at(0.5), at(0.9), errors[len(errors)-1], len(errors))
}

func abs(v float64) float64 { return max(v, -v) }

func read(dir string) ([]*measured, error) {
	configs := map[string]map[string]any{}
	data, err := os.ReadFile(filepath.Join(dir, "h200-configs.json"))
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, &configs); err != nil {
		return nil, err
	}
	if data, err = os.ReadFile(filepath.Join(dir, "h200-peaks.jsonl")); err != nil {
		return nil, err
	}
	var list []*measured
	for _, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
		m := &measured{}
		if err := json.Unmarshal([]byte(line), m); err != nil {
			return nil, err
		}
		if full := configs[m.ID]; full != nil {
			m.Case.Config = full
		} else {
			m.Case.Config["model_type"] = m.Case.Family
		}
		list = append(list, m)
	}
	return list, nil
}

func (m *measured) setup() plan.Setup {
	c := m.Case
	precision := c.Precision
	if precision == "" {
		precision = "fp32"
	}
	return plan.Setup{Model: models.ConfigOf(c.Config), Setup: remedy.Setup{Batch: c.Batch,
		Seq: c.Seq, Image: c.Image, Precision: precision, Optimizer: c.Optim,
		Attention: c.Attn, Checkpointing: c.Ckpt, Accumulate: c.Accum, Clip: c.Clip,
		KeepGrads: c.SetToNone != nil && !*c.SetToNone, TrainOnly: c.Freeze,
		ChannelsLast: c.Channels}}
}

// peerResults holds MemTracker's peaks with torch 2.11 on 2026-11-15, a JSON line a case.
var peerResults = filepath.Join("bench", "plan", "memtracker.jsonl")

func readPeer(path string) (peaks map[string]float64, failed int, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, 0, err
	}
	peaks = map[string]float64{}
	for _, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
		var l struct {
			ID     string
			Peak   float64
			Failed string
		}
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			return nil, 0, fmt.Errorf("%s: %w", path, err)
		}
		if l.Failed != "" {
			failed++
		} else {
			peaks[l.ID] = l.Peak
		}
	}
	return peaks, failed, nil
}
