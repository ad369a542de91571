// Command plan prints how far predictions from a configuration are from what an H200 really gave
// up, case by case, next to accelerate's rule (four times the weights) and PyTorch's MemTracker on
// fake tensors. MemTracker takes most of an hour for all cases, so its figures are kept next to
// this file; a few are made again in every run where a Python with PyTorch is there, and all of
// them with -all. Usage: go run ./bench/plan [-all].
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
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
	all := flag.Bool("all", false, "run MemTracker on every case again, not only on the quick ones")
	flag.Parse()
	if err := run(*all); err != nil {
		fmt.Fprintln(os.Stderr, "bench/plan:", err)
		os.Exit(1)
	}
}

func run(all bool) error {
	dir := filepath.Join("..", "shared", "groundtruth")
	cases, err := read(dir)
	if os.IsNotExist(err) {
		fmt.Println("needs ../shared/groundtruth, the measurements beside this checkout: skipped")
		return nil
	} else if err != nil {
		return err
	}
	peer, err := memTracker(dir, all)
	if err != nil {
		return err
	}
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

// peerResults holds MemTracker's peaks, a JSON line a case; see memtracker.py.
var peerResults = filepath.Join("bench", "plan", "memtracker.jsonl")

// quick are the cases MemTracker is run on again every time, to show that the kept figures are its
// own.
var quick = []string{"llama160m-b8-s1024-bf16", "bert-b8-s128", "vitb16-b32-fp32"}

// memTracker returns the peer's peaks and failures: kept ones, and those of a fresh run where a
// Python with PyTorch is there.
func memTracker(dir string, all bool) (map[string]float64, error) {
	peaks, failed, err := readPeer(peerResults)
	if err != nil {
		return nil, err
	}
	fmt.Printf("MemTracker: %d figures kept in %s, %d more cases fail\n", len(peaks), peerResults,
		failed)
	python := os.Getenv("MEMROOM_TEST_PYTHON")
	if python == "" {
		fmt.Println("MemTracker: not run again; set MEMROOM_TEST_PYTHON (testenv/ensure prints it) for " +
			"that")
		return peaks, nil
	}
	fresh := filepath.Join(os.TempDir(), fmt.Sprintf("memroom-memtracker-%d.jsonl", os.Getpid()))
	defer os.Remove(fresh)
	args := []string{filepath.Join("bench", "plan", "memtracker.py"), dir, fresh}
	if all {
		args[2] = peerResults + ".new"
		fmt.Println("MemTracker: running every case into", args[2],
			"(most of an hour; can be stopped and resumed)")
		fresh = args[2]
	} else {
		args = append(args, quick...)
	}
	if out, err := exec.Command(python, args...).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("MemTracker: %w: %s", err, out)
	}
	again, _, err := readPeer(fresh)
	if err != nil {
		return nil, err
	}
	for id, v := range again {
		if old, ok := peaks[id]; ok && old != v {
			fmt.Printf("MemTracker: %s gives %.0f now, %.0f is kept\n", id, v, old)
		}
		peaks[id] = v
	}
	fmt.Printf("MemTracker: run again on %d cases\n", len(again))
	return peaks, nil
}

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
