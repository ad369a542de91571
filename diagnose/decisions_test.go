package diagnose_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"memroom/diagnose"
	"memroom/event"
)

// TestDecisions: what is decided about every sample log, words left out: where memory ran out, the
// sizes, the cause and how sure it is, what is told beside it, and the cures in their order. A rule
// that is changed for one log changes others too; here is which. The labels beside the logs say
// what must be so; this says what is. A log that is not in the record yet is passed over. After a
// change that is meant:
//
//	go test ./diagnose -run TestDecisions -update
func TestDecisions(t *testing.T) {
	var got []string
	for _, folder := range []string{"kinds", "logs", "reports", "situations"} {
		files, err := filepath.Glob(filepath.Join("testdata", folder, "*.txt"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no logs in %s, %v", folder, err)
		}
		for _, path := range files {
			name := folder + "/" + strings.TrimSuffix(filepath.Base(path), ".txt")
			got = append(got, name+": "+decision(explainFile(t, path)))
		}
	}
	record := filepath.Join("testdata", "decisions.txt")
	if *update {
		if err := os.WriteFile(record, []byte(strings.Join(got, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		want[name] = rest
	}
	for _, line := range got {
		name, rest, _ := strings.Cut(line, ": ")
		if was, known := want[name]; known && rest != was {
			t.Errorf("%s\n got %s\nwant %s", name, rest, want[name])
		}
		delete(want, name)
	}
	if len(want) > 0 {
		t.Errorf("logs that are gone: %q", slices.Sorted(maps.Keys(want)))
	}
}

// decision is an answer without its words.
func decision(x *diagnose.Explanation) string {
	size := func(b *event.Bytes) string {
		if b == nil {
			return "-"
		}
		return fmt.Sprint(int64(*b))
	}
	parts := []string{fmt.Sprintf("oom %v %s %s", x.IsOOM, x.Where, x.Framework),
		fmt.Sprintf("%s/%s %.3g %.3g", x.Cause, x.Detail, x.Confidence, x.Certainty),
		strings.Join([]string{size(x.Requested), size(x.Capacity), size(x.Allocated), size(x.Idle)}, " "),
		fmt.Sprintf("line %d, evidence %d, warnings %d, next %v", x.Line, len(x.Evidence),
			len(x.Warnings), x.Next != "")}
	if x.Rank != nil {
		parts = append(parts, fmt.Sprint("rank ", *x.Rank))
	}
	if x.Frame != nil {
		parts = append(parts, fmt.Sprintf("at %s:%d %s", x.Frame.File, x.Frame.Line, x.Frame.Name))
	}
	for _, a := range x.Account {
		parts = append(parts, fmt.Sprintf("%s %d", a.What, int64(a.Bytes)))
	}
	for _, name := range slices.Sorted(maps.Keys(x.Figures)) {
		parts = append(parts, fmt.Sprintf("%s %d", name, int64(x.Figures[name])))
	}
	for _, o := range x.Others {
		parts = append(parts, fmt.Sprintf("also line %d %q %v %s %s %s %s", o.Line, o.What, o.IsOOM,
			size(o.Requested), size(o.Capacity), size(o.Allocated), size(o.Free)))
	}
	var cures []string
	for _, a := range x.Remedies {
		cure := string(a.ID)
		if a.SavesLow != nil {
			cure += " " + size(a.SavesLow) + " " + size(a.SavesHigh)
		}
		cures = append(cures, cure)
	}
	if len(cures) == 0 {
		return strings.Join(append(parts, "no cures"), "; ")
	}
	return strings.Join(append(parts, "cures "+strings.Join(cures, ", ")), "; ")
}
