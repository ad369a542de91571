package report

import (
	"strings"

	"memroom/explain"
	"memroom/remedy"
)

// ExplainPage is an explanation as data for pages, the best cure first.
type ExplainPage struct {
	Verdict  string   `json:"verdict"`
	Evidence []string `json:"evidence,omitempty"`
	Line     string   `json:"line,omitempty"` // the user's own line of code
	// Next is what to do when the cures do not help; When is the phrase before it. With an open
	// cause it is the measurement that decides.
	When     string   `json:"when,omitempty"`
	Next     string   `json:"next,omitempty"`
	Cures    []Cure   `json:"cures,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
}

// Cure is one cure on a page: what to do, what it costs, what to type, or how in words where
// nothing can be typed.
type Cure struct {
	Title string `json:"title"`
	Cost  string `json:"cost"`
	Typed string `json:"typed,omitempty"`
	Words string `json:"words,omitempty"`
}

// PageOf returns an explanation for pages.
func PageOf(x *explain.Explanation) ExplainPage {
	p := ExplainPage{Verdict: x.Verdict, Next: x.Next, Warnings: x.Warnings}
	for _, e := range x.Evidence {
		p.Evidence = append(p.Evidence, cleanText(e))
	}
	if yourLineIsNew(x, p.Evidence) {
		p.Line = yourLine(x.Frame)
	}
	if p.Next != "" {
		p.When = whenNext(x)
	}
	for _, a := range x.Remedies {
		cure := Cure{Title: cureTitle(a) + savings(a),
			Cost: usually(a.Slowdown) + ", " + meaning[a.Equivalence], Typed: typed(a.How)}
		if remedy.Prose(cure.Typed) {
			cure.Typed, cure.Words = "", cure.Typed
		}
		p.Cures = append(p.Cures, cure)
	}
	return p
}

// typed returns the first way of a cure that there is.
func typed(how remedy.How) string {
	for _, text := range []string{how.Env, how.Args, how.Code, how.Fit} {
		if text != "" {
			return strings.TrimRight(text, "\n")
		}
	}
	return ""
}
