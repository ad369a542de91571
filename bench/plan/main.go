// Command plan prints how far predictions from a configuration are from what an H200 really gave up, case by case, beside
// accelerate's rule (four times the weights) and, where a Python with PyTorch is there, PyTorch's MemTracker on fake
// tensors from the same run. Usage: go run ./bench/plan [-all] (all cases through MemTracker: minutes).
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"memroom/allocsim"
	"memroom/plan"
	"memroom/plan/family"
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
	all := flag.Bool("all", false, "run MemTracker on every case, not only on the quick ones")
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
	peer := memTracker(dir, all)
	fmt.Printf("%-32s %10s %12s %12s %12s\n", "device bytes, error in %", "ours", "interval", "accelerate", "MemTracker")
	var ours, rule, tracked []float64
	exact, outside := 0, 0
	for _, m := range cases {
		truth := float64(m.End.Used - m.Base.Used)
		p, err := plan.Predict(m.setup(), plan.Target{Card: plan.DefaultCard(), Alloc: allocsim.DefaultConfig(), Torch: "2.11"})
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
		fmt.Printf("%-32s %+10.3f %5.3f-%5.3f %+12.1f %12s%s\n", m.ID, o, float64(p.Low)/truth, float64(p.High)/truth, r, note, in)
	}
	fmt.Printf("\nreserved byte-exact in %d of %d; truth outside the interval in %d\n", exact, len(ours), outside)
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
	fmt.Printf("%-20s median %.3f %%, 90th percentile %.2f %%, worst %.2f %% of %d cases\n", name, at(0.5), at(0.9), errors[len(errors)-1], len(errors))
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
	return plan.Setup{Model: family.ConfigOf(c.Config), Setup: remedy.Setup{Batch: c.Batch, Seq: c.Seq, Image: c.Image, Precision: precision, Optimizer: c.Optim,
		Attention: c.Attn, Checkpointing: c.Ckpt, Accumulate: c.Accum, Clip: c.Clip, KeepGrads: c.SetToNone != nil && !*c.SetToNone, TrainOnly: c.Freeze, ChannelsLast: c.Channels}}
}

// memTracker runs the peer; without a Python that has PyTorch there are no figures.
func memTracker(dir string, all bool) map[string]float64 {
	python := os.Getenv("MEMROOM_TEST_PYTHON")
	if python == "" {
		fmt.Println("MemTracker: set MEMROOM_TEST_PYTHON (testenv/ensure prints it) to have it beside ours")
		return nil
	}
	args := []string{filepath.Join("bench", "plan", "memtracker.py"), dir}
	if all {
		args = append(args, "--all")
	}
	cmd := exec.Command(python, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil || cmd.Start() != nil {
		return nil
	}
	peaks := map[string]float64{}
	for s := bufio.NewScanner(out); s.Scan(); {
		var line struct {
			ID   string
			Peak float64
		}
		if json.Unmarshal(s.Bytes(), &line) == nil && line.Peak > 0 {
			peaks[line.ID] = line.Peak
		}
	}
	_ = cmd.Wait()
	return peaks
}
