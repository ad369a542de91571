// Package lint knows the memory mistakes that training code makes: which there are, why each costs
// memory, how to fix it. The walk over the syntax tree is Python (lint/py), because the machine
// that trains has the right Python and its grammar. The walk finds where a rule is broken, this
// package explains what that means.
//
// [Rules] is the catalogue, [Decode] reads what the walk found in one file, [Mend] applies edits
// and [Diff] shows them.
package lint

import (
	"encoding/json"
	"fmt"
	"sort"
	"strings"

	"memroom/event"
)

// Finding is a broken rule at a line of a file.
type Finding struct {
	File string `json:"file"`
	// code cell of a notebook, from 1; Line counts within it
	Cell     int            `json:"cell,omitempty"`
	Line     int            `json:"line"`
	Column   int            `json:"column"` // bytes, from 0
	Rule     string         `json:"rule"`
	Severity event.Severity `json:"severity"`
	Message  string         `json:"message"`
	Why      string         `json:"why"`
	Fix      string         `json:"fix"`      // a diff where the mend is mechanical, else what to do
	Safe     bool           `json:"safe_fix"` // proven to change no result: --fix applies it
	Remedy   string         `json:"remedy"`   // id in the catalogue of remedies, "" if none
	Doc      string         `json:"-"`        // the rule's title
	Edits    []Edit         `json:"-"`        // the mend, in the file as it was read
}

// Edit replaces the text between two positions. Lines count from 1, columns are bytes from 0.
type Edit struct {
	Line, Column, EndLine, EndColumn int
	Text                             string
}

// UnmarshalJSON reads [line, column, end line, end column, text].
func (e *Edit) UnmarshalJSON(data []byte) error {
	fields := []any{&e.Line, &e.Column, &e.EndLine, &e.EndColumn, &e.Text}
	return json.Unmarshal(data, &fields)
}

// Answer is the walk's result for one file.
type Answer struct {
	File         string
	Findings     []Finding
	Hints        []Finding // what may be a mistake: the file alone does not show it
	Error        string    // why the file could not be analysed; Findings is then empty
	CellsSkipped int       // cells of a notebook that are not Python
	Note         string    // what the reader should know about the file; "" for most
}

// Decode reads one line of the walk's output and adds the words of every finding.
func Decode(line []byte) (Answer, error) {
	var raw struct {
		File         string `json:"file"`
		Error        string `json:"error"`
		CellsSkipped int    `json:"cells_skipped"`
		Note         string `json:"note"`
		Findings     []struct {
			Rule    string `json:"rule"`
			Message string `json:"message"`
			Cell    int    `json:"cell"`
			Line    int    `json:"line"`
			Column  int    `json:"column"`
			Edits   []Edit `json:"edits"`
			Safe    bool   `json:"safe"`
			Hint    bool   `json:"hint"`
		} `json:"findings"`
	}
	if err := json.Unmarshal(line, &raw); err != nil {
		return Answer{}, fmt.Errorf("the linter's answer is not JSON: %w", err)
	}
	answer := Answer{File: raw.File, Error: raw.Error, CellsSkipped: raw.CellsSkipped,
		Note: raw.Note}
	for _, f := range raw.Findings {
		rule, ok := Find(f.Rule)
		if !ok {
			return Answer{}, fmt.Errorf("the linter names the unknown rule %q", f.Rule)
		}
		found := Finding{File: raw.File, Cell: f.Cell,
			Line: f.Line, Column: f.Column, Rule: f.Rule,
			Severity: rule.Severity, Message: f.Message, Why: rule.Why, Fix: rule.Fix,
			Safe:   f.Safe && len(f.Edits) > 0,
			Remedy: rule.Remedy, Doc: rule.Title, Edits: f.Edits}
		if f.Hint || rule.Severity == Hint {
			found.Severity, found.Safe = Hint, false
			answer.Hints = append(answer.Hints, found)
		} else {
			answer.Findings = append(answer.Findings, found)
		}
	}
	return answer, nil
}

// Mend applies edits to a text. Edits that do not fit the text, or overlap, are refused: the file
// has changed since.
func Mend(text string, edits []Edit) (string, error) {
	starts := lineStarts(text)
	offset := func(line, column int) (int, error) {
		if line < 1 || line > len(starts) || starts[line-1]+column > len(text) {
			return 0, fmt.Errorf("the file has changed since it was read")
		}
		return starts[line-1] + column, nil
	}
	type span struct {
		from, to int
		text     string
	}
	var spans []span
	for _, e := range edits {
		from, err := offset(e.Line, e.Column)
		if err != nil {
			return "", err
		}
		to, err := offset(e.EndLine, e.EndColumn)
		if err != nil {
			return "", err
		}
		spans = append(spans, span{from, to, e.Text})
	}
	sort.SliceStable(spans, func(i, j int) bool { return spans[i].from < spans[j].from })
	var out strings.Builder
	at := 0
	for i, s := range spans {
		if i > 0 && s == spans[i-1] {
			continue // two findings with the same mend
		}
		if s.from < at || s.to < s.from {
			return "", fmt.Errorf("two fixes touch the same place: apply one, then run again")
		}
		out.WriteString(text[at:s.from])
		out.WriteString(s.text)
		at = s.to
	}
	out.WriteString(text[at:])
	return out.String(), nil
}

func lineStarts(text string) []int {
	starts := []int{0}
	for i := range len(text) {
		if text[i] == '\n' {
			starts = append(starts, i+1)
		}
	}
	return starts
}

// Diff shows edits as a unified diff with this many lines of context; "" where they do not fit the
// text. It is a patch that `patch -p0` takes.
func Diff(file, text string, edits []Edit, context int) string {
	mended, err := Mend(text, edits)
	if err != nil || mended == text {
		return ""
	}
	before, after := strings.Split(text, "\n"), strings.Split(mended, "\n")
	if len(before) != len(after) {
		return "" // an edit stays within its lines; another needs a real line diff
	}
	var out strings.Builder
	fmt.Fprintf(&out, "--- %s\n+++ %s\n", file, file)
	for _, h := range hunks(before, after, context) {
		fmt.Fprintf(&out, "@@ -%d,%d +%d,%d @@\n", h.from+1, h.to-h.from, h.from+1, h.to-h.from)
		h.write(&out, before, after)
	}
	return out.String()
}

// hunk is a range of lines, from 0, the end not included.
type hunk struct{ from, to int }

// hunks finds the changed lines of two texts of equal length and joins those that share context.
func hunks(before, after []string, context int) []hunk {
	var found []hunk
	for i := range before {
		if before[i] == after[i] {
			continue
		}
		from, to := max(0, i-context), min(len(before), i+context+1)
		if to == len(before) && before[to-1] == "" && to-1 > i {
			to-- // what follows the last line break is not a line
		}
		if n := len(found); n > 0 && from <= found[n-1].to {
			found[n-1].to = to
			continue
		}
		found = append(found, hunk{from, to})
	}
	return found
}

func (h hunk) write(out *strings.Builder, before, after []string) {
	for i := h.from; i < h.to; {
		if before[i] == after[i] {
			out.WriteString(" " + before[i] + "\n")
			i++
			continue
		}
		end := i
		for end < h.to && before[end] != after[end] {
			end++
		}
		for _, line := range before[i:end] {
			out.WriteString("-" + line + "\n")
		}
		for _, line := range after[i:end] {
			out.WriteString("+" + line + "\n")
		}
		i = end
	}
}
