// Command anyarch prints predictions for models that Python built next to what the same steps took
// on a card: go run ./bench/anyarch SWEEP REAL, the folders of sweep.py without and with --real.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"memroom/allocsim"
	"memroom/plan"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: anyarch SWEEP REAL")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "anyarch:", err)
		os.Exit(1)
	}
}

func run(sweep, real string) error {
	measured, err := filepath.Glob(filepath.Join(real, "*.json"))
	if err != nil {
		return err
	}
	card, err := plan.FindCard("H200")
	if err != nil {
		return err
	}
	var off []float64
	inside := 0
	for _, path := range measured {
		var row struct{ Reserved int64 }
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if json.Unmarshal(text, &row) != nil || row.Reserved == 0 {
			continue
		}
		name := strings.TrimSuffix(filepath.Base(path), ".json")
		p, err := predicted(filepath.Join(sweep, name+".record"), plan.Target{Card: card,
			Given: true, Alloc: allocsim.DefaultConfig(), Torch: "2.11"})
		if err != nil {
			fmt.Printf("%-24s %v\n", name, err)
			continue
		}
		truth := row.Reserved + int64(p.DevicePeak-p.ReservedPeak)
		within := int64(p.Low) <= truth && truth <= int64(p.High)
		if within {
			inside++
		}
		error := 100 * (float64(p.ReservedPeak)/float64(row.Reserved) - 1)
		off = append(off, max(error, -error))
		fmt.Printf("%-24s reserved %10s, predicted %10s, %+6.2f %%, inside %v\n", name,
			sizeOf(row.Reserved), p.ReservedPeak, error, within)
	}
	if len(off) == 0 {
		return fmt.Errorf("no type is in both %s and %s", sweep, real)
	}
	slices.Sort(off)
	fmt.Printf("%d types: median %.2f %%, worst %.2f %%, %d inside the interval\n", len(off),
		off[len(off)/2], off[len(off)-1], inside)
	return nil
}

func predicted(path string, target plan.Target) (*plan.Prediction, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r, err := plan.ReadRehearsal(f)
	if err != nil {
		return nil, err
	}
	return r.Predict(target)
}

func sizeOf(n int64) string { return fmt.Sprintf("%.2fGiB", float64(n)/(1<<30)) }
