// Command categories prints how well `memroom snapshot` infers what memory is for, against what
// recorded programs knew of themselves: bytes of parameters and buffers, of gradients and of
// optimizer state. There is no peer: PyTorch's viewer shows call stacks and no categories.
//
//	go run ./bench/categories [-traces ../shared/traces/ops]
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"memroom/diagnose"
	"memroom/event"
	"memroom/trace"
)

func main() {
	traces := flag.String("traces", filepath.Join("..", "shared", "traces", "ops"),
		"folder with index.jsonl and the snapshots it names")
	flag.Parse()
	if err := run(*traces); err != nil {
		fmt.Fprintln(os.Stderr, "bench/categories:", err)
		os.Exit(1)
	}
}

// program is one line of index.jsonl.
type program struct {
	ID     string `json:"id"`
	Params int64  `json:"param_bytes"`
	Buffer int64  `json:"buffer_bytes"`
}

func run(folder string) error {
	index, err := os.Open(filepath.Join(folder, "index.jsonl"))
	if err != nil {
		return err
	}
	defer index.Close()
	fmt.Printf("%-22s %18s %18s %18s %10s %10s\n", "program", "weights / known",
		"gradients / known", "state / parameters", "unknown", "unsure")
	for lines := bufio.NewScanner(index); lines.Scan(); {
		var p program
		if err := json.Unmarshal(lines.Bytes(), &p); err != nil {
			return err
		}
		if err := p.print(folder); err != nil {
			return err
		}
	}
	return nil
}

// print shows ratios to what is known, and the shares of the peak without a category and with one
// below 65 % confidence.
func (p *program) print(folder string) error {
	read, err := trace.Open(filepath.Join(folder, p.ID+".pickle.gz"))
	if err != nil {
		return err
	}
	s, _ := diagnose.ReplaySnapshot(read, &read.Recordings[0])
	most := mostByCategory(s.Ledger())
	var unknown, unsure event.Bytes
	for _, c := range s.Categories {
		if c.Category == event.CategoryUnknown {
			unknown += c.Bytes
		} else if c.Confidence < 0.65 {
			unsure += c.Bytes
		}
	}
	fmt.Printf("%-22s %18.4f %18.4f %18.4f %9.2f%% %9.2f%%\n", p.ID,
		ratio(most[event.CategoryWeights], p.Params+p.Buffer),
		ratio(most[event.CategoryGradients], p.Params),
		ratio(most[event.CategoryOptimizer], p.Params), 100*ratio(int64(unknown),
			int64(s.AllocatedPeak)), 100*ratio(int64(unsure), int64(s.AllocatedPeak)))
	return nil
}

// mostByCategory returns the most that each category ever held, as requested.
func mostByCategory(l *diagnose.Ledger) map[event.Category]int64 {
	now, most := map[event.Category]int64{}, map[event.Category]int64{}
	l.WalkBlocks(func(_ int32, a *diagnose.Allocation, freed bool) {
		if freed {
			now[a.Category] -= a.Requested()
		} else {
			now[a.Category] += a.Requested()
		}
		most[a.Category] = max(most[a.Category], now[a.Category])
	})
	return most
}

func ratio(a, b int64) float64 { return float64(a) / float64(max(b, 1)) }
