package cli

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// randomSetup is one setup of bench/gpu/sweep.py, with the peaks of its rehearsal.
type randomSetup struct {
	Seed      int             `json:"seed"`
	Config    json.RawMessage `json:"config"`
	Flags     []string        `json:"flags"`
	Allocated int64           `json:"allocated"`
	Reserved  int64           `json:"reserved"`
}

// TestRandomSetups: setups that chance made are planned as PyTorch's own operations ask on fake
// tensors. The truth is in every interval; convolutions, whose workspaces no table has, and FSDP1,
// whose host runs ahead, may be off by more than nine in ten are.
func TestRandomSetups(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "random_setups.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var off []float64
	for _, line := range bytes.Split(bytes.TrimSpace(text), []byte("\n")) {
		var s randomSetup
		if err := json.Unmarshal(line, &s); err != nil {
			t.Fatal(err)
		}
		path := writeConfig(t, string(s.Config))
		p, message, code := planned(t, append([]string{path, "--python", "none"}, s.Flags...)...)
		if code != exitOK {
			t.Errorf("seed %d: exit %d: %s", s.Seed, code, message)
			continue
		}
		truth := s.Reserved + int64(p.DevicePeak-p.ReservedPeak)
		if truth < int64(p.Low) || truth > int64(p.High) {
			t.Errorf("seed %d: the truth %d is outside [%d, %d]", s.Seed, truth, p.Low, p.High)
		}
		one := 100 * math.Abs(float64(p.ReservedPeak)/float64(s.Reserved)-1)
		t.Logf("seed %d: reserved off by %.2f %%, allocated by %.2f %%", s.Seed, one,
			100*math.Abs(float64(p.AllocatedPeak)/float64(s.Allocated)-1))
		off = append(off, one)
	}
	slices.Sort(off)
	// when they were taken: 0.00 and 0.85
	if median, most := off[len(off)/2], off[len(off)*85/100]; median > 0.01 || most > 1 {
		t.Errorf("%d setups: reserved off by %.2f %% at the median, %.2f %% at the 85th percentile",
			len(off), median, most)
	}
}
