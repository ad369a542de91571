package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"memroom/event"
	"memroom/explain"
	"memroom/remedy"
)

// What the short answer shows of each part; the long one shows all.
const (
	shortEvidence = 2
	shortCures    = 2
	shortTyped    = 2 // lines of what to type
)

// ExplainText writes an explanation for people in at most twelve lines: the verdict, why, what to
// type, and what to do if that fails. The long form has the sums and everything else.
func ExplainText(t *Text, x *explain.Explanation, long bool) {
	t.linef("%s", t.paint("1", x.Verdict))
	if x.Rank != nil {
		t.linef("  rank %d", *x.Rank)
	}
	evidence := x.Evidence
	if !long {
		evidence = evidence[:min(shortEvidence, len(evidence))]
	}
	for _, e := range evidence {
		t.linef("  - %s", cleanText(e))
	}
	if yourLineIsNew(x, evidence) {
		t.linef("  - your line: %s", yourLine(x.Frame))
	}
	open := isOpen(x)
	if x.Next != "" && open {
		t.linef("%s %s", t.paint("1", whenNext(x)), x.Next)
	}
	explainRemedies(t, x, long)
	if x.Next != "" && !open {
		t.linef("%s %s", t.paint("1", whenNext(x)), x.Next)
	}
	if long {
		explainRest(t, x)
	} else if len(x.Others) > 0 && (x.Others[0].IsOOM || !x.IsOOM) {
		t.linef("Also line %d: %s", x.Others[0].Line, cleanText(cutRunes(x.Others[0].What, 160)))
	}
	for _, w := range x.Warnings {
		t.linef("%s %s", t.paint("33", "note:"), w)
	}
}

// isOpen reports whether memory ran out and it is unknown what filled it.
func isOpen(x *explain.Explanation) bool { return x.Cause == explain.CauseUnknown && x.IsOOM }

// yourLineIsNew reports whether the user's line is known and the evidence does not name it.
func yourLineIsNew(x *explain.Explanation, evidence []string) bool {
	return x.Frame != nil && !slices.ContainsFunc(evidence, func(e string) bool {
		return strings.Contains(e, x.Frame.File) ||
			strings.Contains(e, fmt.Sprintf(":%d (", x.Frame.Line))
	})
}

func yourLine(f *event.Frame) string { return fmt.Sprintf("%s:%d in %s", f.File, f.Line, f.Name) }

// whenNext returns when the measurement is due.
func whenNext(x *explain.Explanation) string {
	if isOpen(x) {
		return "This decides it:"
	}
	if !x.IsOOM || len(x.Remedies) == 0 {
		return "Next:"
	}
	return "If that does not help:"
}

// explainRest is what the short answer leaves out: the cause by its name, the sum, the message and
// other ends.
func explainRest(t *Text, x *explain.Explanation) {
	switch {
	case x.Cause != explain.CauseUnknown:
		t.linef("\ncause: %s%s, %s", x.Cause, inBrackets(x.Detail), howSure(x.Confidence))
	// that memory ran out and what filled it are two questions; only the second is open
	case x.IsOOM && x.Certainty >= 0.8:
		t.linef("\nmemory ran out; what filled it is not known")
	case x.IsOOM:
		t.linef("\nmemory probably ran out (%.0f %%); what filled it is not known", 100*x.Certainty)
	}
	if x.Line > 0 && x.IsOOM {
		t.linef("line %d: %s", x.Line, cleanText(cutRunes(x.Text, 300)))
	}
	if len(x.Account) > 0 {
		t.heading("The sum")
		var rows [][]string
		for _, l := range x.Account {
			rows = append(rows, []string{l.Bytes.String(), l.What})
		}
		t.table([]string{">bytes", "what"}, rows)
	}
	explainFigures(t, x)
	explainOthers(t, x)
}

// explainFigures lists what else the log counts, the largest first.
func explainFigures(t *Text, x *explain.Explanation) {
	if len(x.Figures) == 0 {
		return
	}
	names := slices.SortedFunc(maps.Keys(x.Figures), func(a, b string) int {
		return cmp.Or(cmp.Compare(x.Figures[b], x.Figures[a]), cmp.Compare(a, b))
	})
	t.heading("The log's own figures")
	var rows [][]string
	for _, name := range names[:min(8, len(names))] {
		rows = append(rows, []string{x.Figures[name].String(), cleanText(cutRunes(name, 60))})
	}
	t.table([]string{">bytes", "what"}, rows)
}

// howSure puts a confidence into words: a figure would promise more than labelled logs can check.
func howSure(confidence float64) string {
	switch {
	case confidence >= 0.8:
		return "nearly certain"
	case confidence >= 0.6:
		return "likely"
	}
	return "possible"
}

func inBrackets(s string) string {
	if s == "" {
		return ""
	}
	return ", " + s
}

func explainOthers(t *Text, x *explain.Explanation) {
	if len(x.Others) == 0 {
		return
	}
	t.heading("Also in the log")
	const most = 6
	for i, o := range x.Others {
		if i == most {
			t.linef("  ... and %d more", len(x.Others)-most)
			break
		}
		t.linef("  line %d: %s", o.Line, cleanText(cutRunes(o.What, 160)))
	}
}

// explainRemedies writes the cures. Where the cause is not known each stands behind what it is a
// cure of.
func explainRemedies(t *Text, x *explain.Explanation, long bool) {
	cures := x.Remedies
	if !long {
		cures = cures[:min(shortCures, len(cures))]
	}
	for i, a := range cures {
		t.linef("  %d. %s%s", i+1, t.paint("1", cureTitle(a)), savings(a))
		if long {
			t.linef("     %s: %s, %s", a.ID, usually(a.Slowdown), meaning[a.Equivalence])
			if a.Unvalidated != "" {
				t.linef("     not validated: %s", a.Unvalidated)
			}
		}
		explainTyped(t, a.How, long)
	}
}

func cureTitle(a explain.Advice) string {
	if a.If != "" {
		return a.If + ": " + a.Title
	}
	return a.Title
}

// explainTyped writes what to type: in the short answer the first way that there is.
func explainTyped(t *Text, how remedy.How, long bool) {
	shown := 0
	for _, text := range []string{how.Env, how.Args, how.Code, how.Fit} {
		for line := range strings.Lines(text) {
			if !long && shown == shortTyped {
				return
			}
			t.linef("       %s", strings.TrimRight(line, "\n"))
			shown++
		}
		if !long && shown > 0 {
			return
		}
	}
}

var meaning = map[remedy.Equivalence]string{
	remedy.Exact: "same mathematics", remedy.Expected: "same in expectation",
	remedy.Changes: "changes the mathematics",
}

// savings is empty where the bytes are unknown.
func savings(a explain.Advice) string {
	switch {
	case a.SavesLow == nil || a.SavesHigh == nil:
		return ""
	case *a.SavesLow == *a.SavesHigh:
		return fmt.Sprintf(" (saves %s)", *a.SavesLow)
	}
	return fmt.Sprintf(" (saves %s to %s)", *a.SavesLow, *a.SavesHigh)
}

// usually words a slowdown that was not measured in this job.
func usually(slowdown float64) string {
	if words := speed(slowdown); strings.HasPrefix(words, "about") {
		return "usually " + words
	}
	return speed(slowdown)
}

func speed(slowdown float64) string {
	switch {
	case slowdown < 0.97:
		return fmt.Sprintf("about %.0f %% faster", 100*(1-slowdown))
	case slowdown <= 1.03:
		return "no slower"
	}
	return fmt.Sprintf("about %.0f %% slower", 100*(slowdown-1))
}

func cutRunes(s string, most int) string {
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + " ..."
	}
	return s
}
