// Command published holds predictions against memory figures that other projects published: their
// tables, their documentation, their issues. It reads ../shared/recipes in place and skips loudly
// without it. Usage: go run ./bench/published [-v].
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"memroom/allocsim"
	"memroom/event"
	"memroom/models"
	"memroom/plan"
)

// row is one published figure.
type row struct {
	ID        string         `json:"id"`
	Config    map[string]any `json:"config"`
	Published int64          `json:"published_bytes"`
	Measure   string         `json:"measure"`
	Setup     struct {
		Targets   string `json:"lora_targets"`
		Precision string `json:"precision"`
	} `json:"setup"`
	OOM     bool     `json:"published_oom"`
	Quality string   `json:"quality"`
	Source  string   `json:"source"`         // names the releases of torch and transformers, where known
	Unknown []string `json:"unknown"`        // what the source does not say and matters
	Beyond  []string `json:"cannot_express"` // what the flags could not say when the row was written
	Flags   string   `json:"flags_today"`
	Before  *float64 `json:"ratio_today"` // prediction / published with those flags
}

func main() {
	verbose := flag.Bool("v", false, "print every row, not only those that are far off")
	flag.Parse()
	if err := run(filepath.Join("..", "shared", "recipes", "published.jsonl"),
		*verbose); err != nil {
		fmt.Fprintln(os.Stderr, "bench/published:", err)
		os.Exit(1)
	}
}

func run(path string, verbose bool) error {
	rows, err := read(path)
	if errors.Is(err, fs.ErrNotExist) {
		fmt.Println("needs ../shared/recipes, the published figures beside this checkout: SKIPPED")
		return nil
	} else if err != nil {
		return err
	}
	var sum summary
	fmt.Printf("%-52s %-10s %10s %10s %7s %7s\n", "published figure", "measure", "published",
		"ours", "ratio", "before")
	for _, r := range rows {
		p, card, err := r.predict()
		if err != nil {
			fmt.Printf("%-52s %v\n", short(r.ID), err)
			sum.failed++
			continue
		}
		if r.OOM || r.Published == 0 {
			sum.verdict(r, p, card)
			continue
		}
		measure, ours := r.ours(p)
		ratio := float64(ours) / float64(r.Published)
		why := r.reason(card)
		sum.add(r, measure, ratio, why)
		if verbose || ratio > farOff || ratio < 1/farOff {
			fmt.Printf("%-52s %-10s %10s %10s %7.2f %7s  %s\n", short(r.ID), measure,
				event.Bytes(r.Published), ours, ratio, before(r.Before), why)
		}
	}
	sum.print()
	return nil
}

func read(path string) ([]*row, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var rows []*row
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		r := &row{}
		if err := json.Unmarshal(lines.Bytes(), r); err != nil {
			return nil, fmt.Errorf("line %d of %s: %w", len(rows)+1, path, err)
		}
		rows = append(rows, r)
	}
	return rows, lines.Err()
}

// predict plans the row's setup on its card, without asking whether it fits: the search for the
// largest batch is not compared.
func (r *row) predict() (*plan.Prediction, plan.Card, error) {
	s, gpu, err := r.setup()
	if err != nil {
		return nil, plan.Card{}, err
	}
	s.Model = models.ConfigOf(r.Config)
	s.Torch, s.Transformers = r.releases()
	card := plan.DefaultCard()
	if gpu != "" {
		if card, err = plan.FindCard(gpu); err != nil {
			return nil, card, err
		}
	}
	p, err := plan.Predict(s, plan.Target{Card: card, Alloc: allocsim.DefaultConfig(),
		Torch: s.Torch})
	return p, card, err
}

// ours is the prediction of what the row measured.
func (r *row) ours(p *plan.Prediction) (measure string, bytes event.Bytes) {
	switch {
	case strings.Contains(r.Measure, "reserved"):
		return "reserved", p.ReservedPeak
	case strings.HasPrefix(r.Measure, "nvidia-smi"):
		return "nvidia-smi", p.DevicePeak
	}
	return "allocated", p.AllocatedPeak
}

const farOff = 1.3

// summary collects errors by kind of setup and measure.
type summary struct {
	groups                map[string][]float64
	far, named            int
	right, wrong, failed  int
	compared, expressible int
}

func (s *summary) add(r *row, measure string, ratio float64, why string) {
	if s.groups == nil {
		s.groups = map[string][]float64{}
	}
	kind := "one card"
	if strings.Contains(r.Flags, "--shard") || strings.Contains(r.Flags, "--load-in") {
		kind = "sharded or quantised"
	}
	off := max(ratio, 1/ratio) - 1
	s.compared++
	if r.left() == "" {
		s.expressible++
		s.groups[kind+", "+measure] = append(s.groups[kind+", "+measure], off)
	}
	if off > farOff-1 {
		s.far++
		if why != "" {
			s.named++
		}
	}
}

// verdict compares whether it fits.
func (s *summary) verdict(r *row, p *plan.Prediction, card plan.Card) {
	if r.OOM == (p.DevicePeak > card.Total) {
		s.right++
		return
	}
	s.wrong++
	fmt.Printf("%-52s published: runs out %v, ours %s of %s\n", short(r.ID), r.OOM, p.DevicePeak,
		card.Total)
}

func (s *summary) print() {
	fmt.Printf("\n%d figures compared, %d of them with setups that flags can express\n", s.compared,
		s.expressible)
	for _, name := range slices.Sorted(maps.Keys(s.groups)) {
		list := s.groups[name]
		slices.Sort(list)
		fmt.Printf("  %-34s %3d rows: median error %5.1f %%, 90th percentile %5.1f %%\n", name,
			len(list), 100*list[len(list)/2], 100*list[len(list)*9/10])
	}
	fmt.Printf("more than %.1f x off: %d, of them %d with a named reason\n", farOff, s.far, s.named)
	fmt.Printf("verdicts: %d right, %d wrong; %d rows could not be planned\n", s.right, s.wrong,
		s.failed)
}

func before(v *float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf("%.2f", *v)
}

func short(s string) string {
	if len(s) > 51 {
		return s[:51]
	}
	return s
}
