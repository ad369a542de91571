package lint

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"memroom/event"
)

// TestDecodeGivesTheRulesWords: the walk's findings have the rule's own words around them. A fix is
// safe only if there is one.
func TestDecodeGivesTheRulesWords(t *testing.T) {
	rule := Rules()[0]
	line := fmt.Sprintf(`{"file":"a.py","note":"n","cells_skipped":2,"findings":[
		{"rule":%q,"message":"m","cell":3,"line":4,"column":5,"edits":[[1,2,3,4,"x"]],"safe":true},
		{"rule":%q,"message":"k","line":6,"safe":true},
		{"rule":%q,"message":"h","line":7,"edits":[[1,2,3,4,"x"]],"safe":true,"hint":true}]}`,
		rule.ID, rule.ID, rule.ID)
	got, err := Decode([]byte(line))
	if err != nil {
		t.Fatal(err)
	}
	first := Finding{File: "a.py", Cell: 3, Line: 4, Column: 5, Rule: rule.ID,
		Severity: rule.Severity, Message: "m", Why: rule.Why, Fix: rule.Fix, Safe: true,
		Remedy: rule.Remedy, Doc: rule.Title,
		Edits: []Edit{{Line: 1, Column: 2, EndLine: 3, EndColumn: 4, Text: "x"}}}
	second := Finding{File: "a.py", Line: 6, Rule: rule.ID, Severity: rule.Severity, Message: "k",
		Why: rule.Why, Fix: rule.Fix, Remedy: rule.Remedy, Doc: rule.Title}
	third := Finding{File: "a.py", Line: 7, Rule: rule.ID, Severity: Hint, Message: "h",
		Why: rule.Why, Fix: rule.Fix, Remedy: rule.Remedy, Doc: rule.Title, Edits: first.Edits}
	want := Answer{File: "a.py", Note: "n", CellsSkipped: 2, Findings: []Finding{first, second},
		Hints: []Finding{third}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got, err := Decode([]byte(`{"file":"b.py","error":"syntax"}`)); err != nil ||
		got.Error != "syntax" || got.File != "b.py" {
		t.Errorf("%+v, %v", got, err)
	}
	for text, says := range map[string]string{
		`{`:                                      "not JSON",
		`{"findings":[{"rule":"no-such-rule"}]}`: `unknown rule "no-such-rule"`,
	} {
		if _, err := Decode([]byte(text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestRulesAreWhole: every rule can be found by its name and has all its words.
func TestRulesAreWhole(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range Rules() {
		found, ok := Find(r.ID)
		if !ok || found.ID != r.ID || seen[r.ID] {
			t.Errorf("%s is not found, or is there twice", r.ID)
		}
		seen[r.ID] = true
		if r.Title == "" || r.Why == "" || r.Fix == "" {
			t.Errorf("%s has no words: %+v", r.ID, r)
		}
		if r.Severity != event.SeverityError && r.Severity != event.SeverityWarning &&
			r.Severity != event.SeverityInfo && r.Severity != Hint {
			t.Errorf("%s is %q", r.ID, r.Severity)
		}
	}
	if _, ok := Find(""); ok || len(seen) < 20 {
		t.Errorf("%d rules, and one without a name", len(seen))
	}
}

// TestMend: known answers, and what is refused.
func TestMend(t *testing.T) {
	const text = "abc\ndef\n"
	for name, c := range map[string]struct {
		edits []Edit
		want  string
		fails string
	}{
		"nothing":        {nil, text, ""},
		"a word":         {[]Edit{{1, 1, 1, 2, "X"}}, "aXc\ndef\n", ""},
		"an insertion":   {[]Edit{{2, 0, 2, 0, ">"}}, "abc\n>def\n", ""},
		"over a line":    {[]Edit{{1, 2, 2, 1, "-"}}, "ab-ef\n", ""},
		"at the end":     {[]Edit{{3, 0, 3, 0, "."}}, "abc\ndef\n.", ""},
		"in any order":   {[]Edit{{2, 0, 2, 1, "D"}, {1, 0, 1, 1, "A"}}, "Abc\nDef\n", ""},
		"the same twice": {[]Edit{{1, 0, 1, 1, "A"}, {1, 0, 1, 1, "A"}}, "Abc\ndef\n", ""},
		"side by side":   {[]Edit{{1, 0, 1, 1, "A"}, {1, 1, 1, 2, "B"}}, "ABc\ndef\n", ""},
		"two in a place": {[]Edit{{1, 0, 1, 2, "A"}, {1, 1, 1, 2, "B"}}, "", "same place"},
		"backwards":      {[]Edit{{1, 2, 1, 1, "A"}}, "", "same place"},
		"before line 1":  {[]Edit{{0, 0, 1, 1, "A"}}, "", "has changed"},
		"after the end":  {[]Edit{{4, 0, 4, 0, "A"}}, "", "has changed"},
		"past the text":  {[]Edit{{3, 1, 3, 1, "A"}}, "", "has changed"},
		"its end too":    {[]Edit{{1, 0, 9, 0, "A"}}, "", "has changed"},
		"left of a line": {[]Edit{{1, -1, 1, 0, "A"}}, "", "same place"},
	} {
		got, err := Mend(text, c.edits)
		if c.fails != "" {
			if err == nil || !strings.Contains(err.Error(), c.fails) {
				t.Errorf("%s: %q, %v", name, got, err)
			}
			continue
		}
		if err != nil || got != c.want {
			t.Errorf("%s: %q, %v, want %q", name, got, err, c.want)
		}
	}
}

// TestDiff: known answers as patch reads them.
func TestDiff(t *testing.T) {
	text := "1\n2\n3\n4\n5\n6\n7\n8\n9\n"
	for name, c := range map[string]struct {
		edits   []Edit
		context int
		want    string
	}{
		"nothing":         {nil, 3, ""},
		"no change":       {[]Edit{{1, 0, 1, 1, "1"}}, 3, ""},
		"does not fit":    {[]Edit{{99, 0, 99, 1, "x"}}, 3, ""},
		"a line more":     {[]Edit{{1, 0, 1, 1, "x\ny"}}, 3, ""},
		"in the middle":   {[]Edit{{5, 0, 5, 1, "x"}}, 1, "@@ -4,3 +4,3 @@\n 4\n-5\n+x\n 6\n"},
		"without context": {[]Edit{{5, 0, 5, 1, "x"}}, 0, "@@ -5,1 +5,1 @@\n-5\n+x\n"},
		"the first line":  {[]Edit{{1, 0, 1, 1, "x"}}, 1, "@@ -1,2 +1,2 @@\n-1\n+x\n 2\n"},
		"the last line":   {[]Edit{{9, 0, 9, 1, "x"}}, 1, "@@ -8,2 +8,2 @@\n 8\n-9\n+x\n"},
		"two neighbours": {[]Edit{{4, 0, 4, 1, "x"}, {5, 0, 5, 1, "y"}}, 1,
			"@@ -3,4 +3,4 @@\n 3\n-4\n-5\n+x\n+y\n 6\n"},
		"contexts that touch": {[]Edit{{3, 0, 3, 1, "x"}, {6, 0, 6, 1, "y"}}, 1,
			"@@ -2,6 +2,6 @@\n 2\n-3\n+x\n 4\n 5\n-6\n+y\n 7\n"},
		"far apart": {[]Edit{{2, 0, 2, 1, "x"}, {8, 0, 8, 1, "y"}}, 1,
			"@@ -1,3 +1,3 @@\n 1\n-2\n+x\n 3\n@@ -7,3 +7,3 @@\n 7\n-8\n+y\n 9\n"},
	} {
		want := c.want
		if want != "" {
			want = "--- a.py\n+++ a.py\n" + want
		}
		if got := Diff("a.py", text, c.edits, c.context); got != want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, want)
		}
	}
}

// TestDiffIsAPatch: a diff of any edits, applied to the text, yields the mended text.
func TestDiffIsAPatch(t *testing.T) {
	random := rand.New(rand.NewPCG(4, 2))
	for range 300 {
		var lines []string
		for range 1 + random.IntN(12) {
			lines = append(lines, fmt.Sprint("line ", random.IntN(4)))
		}
		text := strings.Join(lines, "\n") + "\n"
		var edits []Edit
		for i := range lines {
			if random.IntN(3) == 0 {
				edits = append(edits, Edit{i + 1, 0, i + 1, 4, "LINE"})
			}
		}
		mended, err := Mend(text, edits)
		if err != nil {
			t.Fatal(err)
		}
		diff := Diff("a.py", text, edits, random.IntN(4))
		if got := applied(t, text, diff); got != mended {
			t.Fatalf("%q and\n%s\ngive %q, want %q", text, diff, got, mended)
		}
	}
}

// applied does what patch does, strictly: every line of a hunk must be where the hunk places it.
func applied(t *testing.T, text, diff string) string {
	t.Helper()
	before := strings.Split(text, "\n")
	var out []string
	at := 0
	for line := range strings.SplitSeq(diff, "\n") {
		switch {
		case line == "" || strings.HasPrefix(line, "---") || strings.HasPrefix(line, "+++"):
		case strings.HasPrefix(line, "@@"):
			var from, count, to, after int
			if _, err := fmt.Sscanf(line, "@@ -%d,%d +%d,%d @@", &from, &count, &to, &after); err != nil ||
				from != to || count != after || from-1 < at {
				t.Fatalf("%s: %v", line, err)
			}
			out = append(out, before[at:from-1]...)
			at = from - 1
		case line[0] == '+':
			out = append(out, line[1:])
		default:
			if before[at] != line[1:] {
				t.Fatalf("line %d is %q, not %q", at+1, before[at], line[1:])
			}
			if line[0] == ' ' {
				out = append(out, before[at])
			}
			at++
		}
	}
	return strings.Join(append(out, before[at:]...), "\n")
}
