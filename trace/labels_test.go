package trace

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"memroom/event"
	"memroom/testenv"
)

// TestLabelledLogs: the samples of package diagnose, each with what a person read in it. What
// package diagnose adds to the text (causes, remedies) is its own to test.
func TestLabelledLogs(t *testing.T) {
	dir := filepath.Join(testenv.Root(t), "explain", "testdata", "logs")
	text, err := os.ReadFile(filepath.Join(dir, "labels.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if len(lines) < 100 {
		t.Errorf("only %d labels", len(lines))
	}
	for _, line := range lines {
		var want struct {
			File      string       `json:"file"`
			IsOOM     bool         `json:"is_oom"`
			Where     event.Where  `json:"where"`
			Framework string       `json:"framework"`
			Requested *event.Bytes `json:"requested_bytes"`
			Capacity  *event.Bytes `json:"capacity_bytes"`
			Allocated *event.Bytes `json:"allocated_bytes"`
			Idle      *event.Bytes `json:"reserved_unallocated_bytes"`
		}
		if err := json.Unmarshal([]byte(line), &want); err != nil {
			t.Fatal(err)
		}
		t.Run(want.File, func(t *testing.T) {
			file, err := os.Open(filepath.Join(dir, want.File))
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			log, err := ReadLog(file)
			if err != nil {
				t.Fatal(err)
			}
			at := log.First()
			if at < 0 || log.Crashes[at].Class != Exhausted {
				if want.IsOOM {
					t.Errorf("not found: %d passages", len(log.Crashes))
				}
				return
			}
			got := log.Crashes[at]
			if !want.IsOOM {
				t.Errorf("%q was taken for a shortage", got.Text)
				return
			}
			if got.Where != want.Where || got.Framework != want.Framework {
				t.Errorf("%s of %s, want %s of %s", got.Where, got.Framework, want.Where,
					want.Framework)
			}
			for name, c := range map[string][2]*event.Bytes{"requested": {got.Requested, want.Requested},
				"capacity": {got.Capacity, want.Capacity}, "allocated": {got.Allocated, want.Allocated},
				"idle": {got.Idle, want.Idle}} {
				if (c[0] == nil) != (c[1] == nil) {
					t.Errorf("%s: %v, want %v", name, c[0], c[1])
				} else if c[0] != nil && max(*c[0]-*c[1], *c[1]-*c[0]) > *c[1]/1000 {
					t.Errorf("%s: %s, want %s", name, *c[0], *c[1])
				}
			}
		})
	}
}
