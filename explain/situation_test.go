package explain_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"memroom/explain"
	"memroom/remedy"
	"memroom/trace"
)

// wanted is one line of testdata/situations/labels.jsonl; see the README next to it.
type wanted struct {
	File    string      `json:"file"`
	IsOOM   *bool       `json:"is_oom"`
	Where   string      `json:"where"`
	Cause   string      `json:"cause"`
	Detail  string      `json:"detail"`
	First   remedy.ID   `json:"first"`
	Has     []remedy.ID `json:"has"`
	Absent  []remedy.ID `json:"absent"`
	Says    []string    `json:"says"`
	NotSaid []string    `json:"not_said"`
	Nowhere []string    `json:"nowhere"`
	Next    bool        `json:"next"`
	Bytes   []int64     `json:"bytes"` // sizes that the answer must hold
}

func TestSituations(t *testing.T) { checkWanted(t, "situations", 60) }

// TestReports checks the logs that were written before the rules were looked at.
func TestReports(t *testing.T) { checkWanted(t, "reports", 40) }

// TestKinds checks one log for each kind that an earlier build answered wrongly or not at all, and
// the figures of all shapes in which programs print them.
func TestKinds(t *testing.T) { checkWanted(t, "kinds", 40) }

// TestTold checks texts in which only a person's words show what happened.
func TestTold(t *testing.T) { checkWanted(t, "told", 35) }

func checkWanted(t *testing.T, name string, least int) {
	t.Helper()
	folder := filepath.Join("testdata", name)
	file, err := os.Open(filepath.Join(folder, "labels.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	count := 0
	for lines := bufio.NewScanner(file); lines.Scan(); count++ {
		var want wanted
		if err := json.Unmarshal(lines.Bytes(), &want); err != nil {
			t.Fatal(err)
		}
		t.Run(want.File, func(t *testing.T) {
			want.check(t, explainFile(t, filepath.Join(folder, want.File)))
		})
	}
	if count < least {
		t.Errorf("only %d situations were read", count)
	}
}

// either reports whether an answer is among those that a label accepts, which are separated by
// bars.
func either(accepted, got string) bool { return slices.Contains(strings.Split(accepted, "|"), got) }

func (w wanted) check(t *testing.T, x *explain.Explanation) {
	t.Helper()
	if isOOM := w.IsOOM == nil || *w.IsOOM; x.IsOOM != isOOM {
		t.Fatalf("is_oom is %v: %s", x.IsOOM, x.Verdict)
	}
	text, _ := json.Marshal(x)
	for _, part := range w.Says {
		if !strings.Contains(string(text), part) {
			t.Errorf("the answer does not say %q: %s", part, text)
		}
	}
	for _, size := range w.Bytes {
		if !strings.Contains(string(text), ":"+strconv.FormatInt(size, 10)) {
			t.Errorf("the answer does not hold %d bytes: %s", size, text)
		}
	}
	if !x.IsOOM {
		return
	}
	if !either(w.Cause, string(x.Cause)) || w.Detail != "" && !either(w.Detail, x.Detail) {
		t.Errorf("cause %s/%s, want %s/%s: %q", x.Cause, x.Detail, w.Cause, w.Detail, x.Evidence)
	}
	if w.Where != "" && !either(w.Where, string(x.Where)) {
		t.Errorf("where is %s, want %s", x.Where, w.Where)
	}
	if (x.Cause == explain.CauseUnknown) != (x.Confidence == 0) {
		t.Errorf("cause %s with confidence %v", x.Cause, x.Confidence)
	}
	if w.Next && x.Next == "" {
		t.Error("no command that would find out")
	}
	var ids []remedy.ID
	for _, a := range x.Remedies {
		ids = append(ids, a.ID)
	}
	if w.First != "" && (len(ids) == 0 || ids[0] != w.First) {
		t.Errorf("remedies %v, want %s first", ids, w.First)
	}
	for _, id := range w.Has {
		if !slices.Contains(ids, id) {
			t.Errorf("remedies %v lack %s", ids, id)
		}
	}
	for _, id := range w.Absent {
		if slices.Contains(ids, id) {
			t.Errorf("remedies %v offer %s", ids, id)
		}
	}
	for _, part := range w.Nowhere {
		for _, said := range statements(x) {
			if strings.Contains(said, part) {
				t.Errorf("%q is said: %s", part, said)
			}
		}
	}
	for _, part := range w.NotSaid {
		if strings.Contains(x.Verdict+strings.Join(x.Evidence, " "), part) ||
			part == "docker run" && strings.Contains(string(text), part) {
			t.Errorf("the answer says %q", part)
		}
	}
}

// TestMegabytesOnOneLine: a progress bar that drew over itself for hours is one line, and the
// message at its end is read with its figures and the steps before it.
func TestMegabytesOnOneLine(t *testing.T) {
	var log strings.Builder
	for step := range 40_000 {
		fmt.Fprintf(&log, "%6d/90000 [%02d:%02d<9:00, 2.1it/s, loss=0.5]\r", step, step/60, step%60)
	}
	log.WriteString("CUDA out of memory. Tried to allocate 3.05 GiB (GPU 0; 15.90 GiB total capacity; " +
		"12.02 GiB already allocated; 2.10 GiB free; 12.90 GiB reserved in total by PyTorch)\n")
	read, err := trace.ReadLog(strings.NewReader(log.String()))
	if err != nil {
		t.Fatal(err)
	}
	x := explain.Explain(explain.Material{Logs: []*trace.Log{read}})
	if x == nil || x.Detail != "longest_batch" || x.Requested == nil ||
		!strings.Contains(strings.Join(x.Evidence, " "), "39,999 steps") {
		t.Errorf("%+v", x)
	}
}
