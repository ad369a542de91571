package explain_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"memroom/event"
	"memroom/explain"
	"memroom/testenv"
	"memroom/trace"
)

// label is one line of a labels.jsonl; see testdata/logs/README.md.
type label struct {
	File        string       `json:"file"`
	IsOOM       bool         `json:"is_oom"`
	Where       event.Where  `json:"where"`
	Framework   string       `json:"framework"`
	Requested   *event.Bytes `json:"requested_bytes"`
	Capacity    *event.Bytes `json:"capacity_bytes"`
	Allocated   *event.Bytes `json:"allocated_bytes"`
	Idle        *event.Bytes `json:"reserved_unallocated_bytes"`
	LikelyCause string       `json:"likely_cause"`
	Note        string       `json:"note"`
}

// TestLabelledLogs checks every label of our own samples.
func TestLabelledLogs(t *testing.T) { checkLabels(t, filepath.Join("testdata", "logs")) }

// TestPostedLogs checks real logs that people posted. They are kept next to the checkout, not in
// it.
func TestPostedLogs(t *testing.T) { checkLabels(t, testenv.Shared(t, "oomlogs")) }

func checkLabels(t *testing.T, folder string) {
	t.Helper()
	labels := readLabels(t, filepath.Join(folder, "labels.jsonl"))
	for _, want := range labels {
		t.Run(want.File, func(t *testing.T) {
			got := explainFile(t, filepath.Join(folder, want.File))
			for _, problem := range compare(want, got) {
				t.Errorf("%s (%s)", problem, want.Note)
			}
		})
	}
	if len(labels) < 15 {
		t.Errorf("only %d labels were read", len(labels))
	}
}

func readLabels(t *testing.T, path string) []label {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var labels []label
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var l label
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		labels = append(labels, l)
	}
	return labels
}

// explained keeps answers by file: several tests look at the same ones.
var explained sync.Map

func explainFile(t *testing.T, path string) *explain.Explanation {
	t.Helper()
	if x, ok := explained.Load(path); ok {
		return x.(*explain.Explanation)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	log, err := trace.ReadLog(file)
	if err != nil {
		t.Fatal(err)
	}
	x := explain.Explain(explain.Material{Logs: []*trace.Log{log}})
	if x == nil {
		x = explain.NothingFound()
	}
	explained.Store(path, x)
	return x
}

func compare(want label, got *explain.Explanation) []string {
	var wrong []string
	say := func(what string, got, want any) {
		wrong = append(wrong, fmt.Sprintf("%s is %v, want %v", what, got, want))
	}
	if got.IsOOM != want.IsOOM {
		say("is_oom", got.IsOOM, want.IsOOM)
	}
	if got.Where != want.Where {
		say("where", got.Where, want.Where)
	}
	if got.Framework != want.Framework {
		say("framework", got.Framework, want.Framework)
	}
	accepted := string(got.Cause) == want.LikelyCause || strings.Contains(want.Note,
		"'"+string(got.Cause)+"'")
	if !accepted {
		say("cause", got.Cause, want.LikelyCause)
	}
	for _, f := range []struct {
		name      string
		got, want *event.Bytes
		slack     event.Bytes
	}{
		{"requested_bytes", got.Requested, want.Requested, 0},
		{"capacity_bytes", got.Capacity, want.Capacity, 0},
		{"allocated_bytes", got.Allocated, want.Allocated, 0},
		{"reserved_unallocated_bytes", got.Idle, want.Idle, event.GiB / 50},
	} {
		if !near(f.got, f.want, f.slack) {
			say(f.name, show(f.got), show(f.want))
		}
	}
	return wrong
}

// near allows one per cent, because figures are rounded as printed, and the slack of a difference
// of two such figures.
func near(got, want *event.Bytes, slack event.Bytes) bool {
	if got == nil || want == nil {
		return got == nil && want == nil
	}
	return math.Abs(float64(*got-*want)) <= max(0.01*float64(*want), float64(slack))
}

func show(b *event.Bytes) string {
	if b == nil {
		return "null"
	}
	return fmt.Sprintf("%d (%s)", int64(*b), *b)
}

// TestEveryShortageGetsAdvice: one to three remedies, none that is on already, each with something
// to type.
func TestEveryShortageGetsAdvice(t *testing.T) {
	folder := filepath.Join("testdata", "logs")
	for _, l := range readLabels(t, filepath.Join(folder, "labels.jsonl")) {
		x := explainFile(t, filepath.Join(folder, l.File))
		if !x.IsOOM {
			if len(x.Remedies) > 0 || x.Where != event.WhereUnknown {
				t.Errorf("%s: not memory, yet %d remedies at %s", l.File, len(x.Remedies), x.Where)
			}
			continue
		}
		if n := len(x.Remedies); n < 1 && x.Next == "" || n > 3 {
			t.Errorf("%s (%s, %s, %s): %d remedies", l.File, x.Where, x.Framework, x.Cause, n)
		}
		for _, a := range x.Remedies {
			if a.How.Env+a.How.Args+a.How.Code == "" {
				t.Errorf("%s: %s says nothing to type", l.File, a.ID)
			}
			if a.SavesLow != nil || a.SavesHigh != nil {
				t.Errorf("%s: %s claims bytes without a setup or a timeline", l.File, a.ID)
			}
		}
		if !strings.HasSuffix(x.Verdict, ".") || strings.Count(x.Verdict, "\n") > 0 {
			t.Errorf("%s: the verdict is no sentence: %q", l.File, x.Verdict)
		}
	}
}
