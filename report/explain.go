package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"memroom/diagnose"
	"memroom/remedy"
)

// ExplainText writes an explanation for people: the sentence, the sum, why we think so, and what to
// type.
func ExplainText(t *Text, x *diagnose.Explanation) {
	t.linef("%s", t.paint("1", x.Verdict))
	if x.Frame != nil {
		t.linef("  your line: %s:%d in %s", x.Frame.File, x.Frame.Line, x.Frame.Name)
	}
	if x.Rank != nil {
		t.linef("  rank %d", *x.Rank)
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
	t.heading("Why we think so")
	switch {
	case x.Cause != diagnose.CauseUnknown:
		t.linef("  cause: %s%s, %s", x.Cause, inBrackets(x.Detail), howSure(x.Confidence))
	// that memory ran out and what filled it are two questions; only the second is open
	case x.IsOOM && x.Certainty >= 0.8:
		t.linef("  memory ran out; what filled it is not known")
	case x.IsOOM:
		t.linef("  memory probably ran out (%.0f %%); what filled it is not known",
			100*x.Certainty)
	}
	for _, e := range x.Evidence {
		t.linef("  - %s", cleanText(e))
	}
	if x.Line > 0 && x.IsOOM {
		t.linef("  - line %d: %s", x.Line, cleanText(cutRunes(x.Text, 300)))
	}
	if x.Next != "" {
		t.heading("To find out")
		t.linef("  %s", x.Next)
	}
	explainOthers(t, x)
	explainRemedies(t, x)
	for _, w := range x.Warnings {
		t.linef("\n%s %s", t.paint("33", "note:"), w)
	}
}

// explainFigures lists what else the log counts, the largest first.
func explainFigures(t *Text, x *diagnose.Explanation) {
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

func explainOthers(t *Text, x *diagnose.Explanation) {
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

func explainRemedies(t *Text, x *diagnose.Explanation) {
	if len(x.Remedies) == 0 {
		return
	}
	if x.Cause == diagnose.CauseUnknown {
		t.heading("What may help, each against another cause")
	} else {
		t.heading("What to do, best first")
	}
	for i, a := range x.Remedies {
		t.linef("\n  %d. %s %s", i+1, t.paint("1", a.Title), t.paint("2", "("+string(a.ID)+")"))
		t.linef("     %s%s, %s", savings(a), usually(a.Slowdown), meaning[a.Equivalence])
		if a.Unvalidated != "" {
			t.linef("     not validated: %s", a.Unvalidated)
		}
		for _, way := range []struct{ name, text string }{{"environment", a.How.Env},
			{"arguments", a.How.Args}, {"code", a.How.Code}, {"or", a.How.Fit}} {
			if way.text != "" {
				t.linef("     %-11s  %s", way.name, strings.ReplaceAll(way.text, "\n",
					"\n"+strings.Repeat(" ", 18)))
			}
		}
	}
}

var meaning = map[remedy.Equivalence]string{
	remedy.Exact: "same mathematics", remedy.Expected: "same in expectation",
	remedy.Changes: "changes the mathematics",
}

// savings is empty where the bytes are unknown; a note at the end says once what would make them
// known.
func savings(a diagnose.Advice) string {
	switch {
	case a.SavesLow == nil || a.SavesHigh == nil:
		return ""
	case *a.SavesLow == *a.SavesHigh:
		return fmt.Sprintf("saves %s, ", *a.SavesLow)
	}
	return fmt.Sprintf("saves %s to %s, ", *a.SavesLow, *a.SavesHigh)
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
