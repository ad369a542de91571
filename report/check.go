package report

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"strings"

	"memroom/event"
	"memroom/guard"
)

// CheckFormats are the formats of Check.
var CheckFormats = []string{"text", "markdown", "json", "sarif", "junit", "github"}

// Check writes the answer of memroom check in one of CheckFormats.
func Check(w io.Writer, r *guard.Report, format, version string, color bool) error {
	switch format {
	case "markdown":
		_, err := io.WriteString(w, checkMarkdown(r))
		return err
	case "json":
		return indented(w, r)
	case "sarif":
		return checkSARIF(w, r, version)
	case "junit":
		return checkJUnit(w, r)
	case "github":
		_, err := io.WriteString(w, checkGitHub(r))
		return err
	}
	return checkText(w, r, color)
}

func indented(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// How much of a difference is printed.
const (
	mostMoves   = 8
	mostChanges = 5
	mostAdded   = 6 // lines of one change
)

func checkText(w io.Writer, r *guard.Report, color bool) error {
	t := NewText(w, color)
	heads := []string{"check", "card", ">needs", ">budget"}
	if r.Against != "" {
		heads = append(heads, ">before", ">change")
	}
	var rows [][]string
	for i := range r.Results {
		one := &r.Results[i]
		rows = append(rows, append(checkCells(r, one), checkWord(one)))
	}
	t.table(append(heads, ""), rows)
	for i := range r.Results {
		t.checkResult(r, &r.Results[i])
	}
	return t.Err()
}

// checkCells are the figures of a row.
func checkCells(r *guard.Report, one *guard.Result) []string {
	needs, budget, before, change := "-", "-", "-", "-"
	if one.Now != nil {
		needs = one.Now.DevicePeak.String()
	}
	if one.Budget > 0 {
		budget = one.Budget.String()
	}
	if one.Before != nil {
		before, change = one.Before.DevicePeak.String(), signed(one.Difference.Device)
	}
	card := one.GPU
	if card == "" {
		card = "-"
	}
	cells := []string{cleanText(one.Name), cleanText(card), needs, budget}
	if r.Against != "" {
		cells = append(cells, before, change)
	}
	return cells
}

func checkWord(one *guard.Result) string {
	switch {
	case one.Error != "":
		return "no answer"
	case one.Failed():
		return "too much"
	case one.Cached:
		return "ok (unchanged)"
	}
	return "ok"
}

// signed is a difference with its sign.
func signed(n event.Bytes) string {
	if n > 0 {
		return "+" + n.String()
	}
	return n.String()
}

func (t *Text) checkResult(r *guard.Report, one *guard.Result) {
	if one.Error != "" {
		t.heading(cleanText(one.Name))
		t.sentence("  ", "31", "no answer: "+cleanText(one.Error))
		return
	}
	moved := one.Difference != nil && !one.Difference.Same()
	if !one.Failed() && !moved && one.NotCompared == "" {
		return
	}
	t.heading(cleanText(one.Name))
	for _, text := range one.Over {
		t.sentence("  ", "31", text)
	}
	if one.NotCompared != "" {
		t.sentence("  ", "33", "not compared with "+r.Against+": "+cleanText(one.NotCompared))
	}
	if moved {
		t.checkDifference(one)
		return
	}
	if one.Failed() && len(one.Now.Lines) > 0 {
		var rows [][]string
		for _, l := range one.Now.Lines[:min(len(one.Now.Lines), mostLines)] {
			rows = append(rows, []string{cleanText(l.Line), l.Bytes.String(), mostOf(l.Category)})
		}
		t.table([]string{"line", ">at the peak", "mostly"}, rows)
	}
}

func (t *Text) checkDifference(one *guard.Result) {
	d := one.Difference
	t.linef("  %s of device memory (allocated %s, reserved %s)", signed(d.Device),
		signed(d.Allocated), signed(d.Reserved))
	t.checkParts("by category", d.Categories)
	t.checkParts("by phase, allocated", d.Phases)
	var rows [][]string
	for _, m := range d.Lines[:min(len(d.Lines), mostMoves)] {
		rows = append(rows, []string{cleanText(moveWord(m)), m.Before.String(), m.Now.String(),
			signed(m.More()), m.Category})
	}
	if rows != nil {
		t.table([]string{"by line", ">before", ">now", ">change", "mostly"}, rows)
	}
	rows = nil
	for _, e := range d.Effects {
		word := signed(e.Device)
		if e.Error != "" {
			word = "does not run alone"
		}
		rows = append(rows, []string{cleanText(e.File), word})
	}
	if rows != nil {
		t.table([]string{"with only this file changed", ">change"}, rows)
	}
	if len(d.Changes) == 0 {
		t.linef("  no file that it reads has changed: is an input that git does not keep another?")
		return
	}
	t.linef("  %s", t.paint("2", "changed lines, the likeliest first"))
	for _, c := range d.Changes[:min(len(d.Changes), mostChanges)] {
		t.linef("  %s:%d%s", cleanText(c.File), c.NewFirst, nearWord(c))
		for _, line := range changedLines(c) {
			t.linef("    %s", t.paint(map[byte]string{'-': "31", '+': "32"}[line[0]], cleanText(line)))
		}
	}
}

func (t *Text) checkParts(title string, parts []guard.Part) {
	var rows [][]string
	for _, p := range parts {
		rows = append(rows, []string{p.Name, p.Before.String(), p.Now.String(), signed(p.More())})
	}
	if rows != nil {
		t.table([]string{title, ">before", ">now", ">change"}, rows)
	}
}

// moveWord names a line, and where it was if that is another place.
func moveWord(m guard.LineMove) string {
	switch {
	case m.Line == "":
		return m.Was + " (gone)"
	case m.Was != "":
		return m.Line + " (was " + m.Was + ")"
	}
	return m.Line
}

func nearWord(c guard.Change) string {
	switch {
	case c.Near == "":
		return ""
	case c.Apart == 0:
		return fmt.Sprintf(": %s here", signed(c.More))
	}
	return fmt.Sprintf(": %s from %s (%s)", event.Count(c.Apart, "line"), c.Near, signed(c.More))
}

// changedLines are the lines of a change as a diff shows them, shortened.
func changedLines(c guard.Change) []string {
	var out []string
	for _, l := range c.Removed {
		out = append(out, "-"+l)
	}
	for _, l := range c.Added {
		out = append(out, "+"+l)
	}
	if over := len(out) - 2*mostAdded; over > 0 {
		out = append(out[:2*mostAdded], fmt.Sprintf(" ... %s more", event.Count(over, "line")))
	}
	return out
}

// --- Markdown, for a comment of a pull request

// mostMarkdown is below the 65,536 characters that a comment of GitHub may have.
const mostMarkdown = 60000

func checkMarkdown(r *guard.Report) string {
	var b strings.Builder
	b.WriteString("### Device memory\n\n")
	head, rule := "| | check | card | needs | budget |", "|---|---|---|--:|--:|"
	if r.Against != "" {
		head, rule = head+" before | change |", rule+"--:|--:|"
	}
	b.WriteString(head + "\n" + rule + "\n")
	for i := range r.Results {
		one := &r.Results[i]
		mark := ":white_check_mark:"
		if one.Error != "" {
			mark = ":grey_question:"
		} else if one.Failed() {
			mark = ":x:"
		}
		cells := checkCells(r, one)
		for j := range cells {
			cells[j] = cell(cells[j])
		}
		fmt.Fprintf(&b, "| %s | %s |\n", mark, strings.Join(cells, " | "))
	}
	if r.Against != "" {
		fmt.Fprintf(&b, "\nCompared with `%s` (%.10s).\n", code(r.Against), r.Commit)
	}
	for i := range r.Results {
		var part strings.Builder
		markdownResult(&part, r, &r.Results[i])
		if b.Len()+part.Len() > mostMarkdown {
			fmt.Fprintf(&b, "\nMore checks than a comment holds: `memroom check` shows them all.\n")
			break
		}
		b.WriteString(part.String())
	}
	b.WriteString("\n<sub>Rehearsed by memroom on fake tensors, without a GPU.</sub>\n")
	return b.String()
}

func markdownResult(b *strings.Builder, r *guard.Report, one *guard.Result) {
	moved := one.Difference != nil && !one.Difference.Same()
	if one.Error == "" && !one.Failed() && !moved && one.NotCompared == "" {
		return
	}
	fmt.Fprintf(b, "\n**%s**", cell(cleanText(one.Name)))
	switch {
	case one.Error != "":
		fmt.Fprintf(b, ": no answer: `%s`\n", code(cleanText(one.Error)))
		return
	case one.Failed():
		fmt.Fprintf(b, ": %s\n", strings.Join(one.Over, "; "))
	case moved:
		fmt.Fprintf(b, ": %s\n", signed(one.Difference.Device))
	default:
		b.WriteString("\n")
	}
	if one.NotCompared != "" {
		fmt.Fprintf(b, "\nNot compared with `%s`: `%s`\n", code(r.Against),
			code(cleanText(one.NotCompared)))
	}
	var text strings.Builder
	t := NewText(&text, false)
	if moved {
		markdownPlaces(b, one.Difference)
		t.checkDifference(one)
	} else if one.Failed() {
		t.planLines(one.Now.Lines)
	}
	if text.Len() > 0 {
		fmt.Fprintf(b, "\n<details><summary>By category, phase, line and change</summary>\n\n%s\n"+
			"</details>\n", fenced(text.String()))
	}
}

// markdownPlaces names the likeliest changes above the fold.
func markdownPlaces(b *strings.Builder, d *guard.Difference) {
	for _, c := range d.Changes[:min(len(d.Changes), 2)] {
		fmt.Fprintf(b, "\n`%s:%d`%s\n%s", code(cleanText(c.File)), c.NewFirst, nearWord(c),
			fencedAs("diff", strings.Join(changedLines(c), "\n")+"\n"))
	}
}

// cell is text in a table of Markdown.
func cell(s string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", "`", "'", "\n", " ").Replace(s)
}

// code is text between backquotes.
func code(s string) string { return strings.ReplaceAll(s, "`", "'") }

func fenced(text string) string { return fencedAs("", text) }

// fencedAs is a block of code whose fence is longer than any in it.
func fencedAs(kind, text string) string {
	fence := "```"
	for strings.Contains(text, fence) {
		fence += "`"
	}
	return fence + kind + "\n" + text + fence + "\n"
}

// --- annotations and tools

// remark is one thing to show next to a line.
type remark struct {
	level, title, text, file string
	line                     int
}

// checkRemarks are what a reviewer should see, at the likeliest changed line, else at the check.
func checkRemarks(r *guard.Report) []remark {
	var out []remark
	for i := range r.Results {
		one := &r.Results[i]
		m := remark{level: "error", title: "Device memory: " + one.Name, file: r.Config,
			line: max(one.Line, 1)}
		switch {
		case one.Error != "":
			m.text = "no answer: " + one.Error
		case one.Failed():
			m.text = strings.Join(one.Over, "; ")
		case one.Difference != nil && !one.Difference.Same():
			m.level = "note"
			m.text = "needs " + one.Now.DevicePeak.String() + " of device memory, " +
				signed(one.Difference.Device)
		default:
			continue
		}
		if one.Error == "" {
			m.file, m.line = checkPlace(one, m.file, m.line)
			m.text += checkReason(one)
		}
		out = append(out, m)
	}
	return out
}

// checkPlace is the line to blame.
func checkPlace(one *guard.Result, file string, line int) (string, int) {
	if d := one.Difference; d != nil && len(d.Changes) > 0 && len(d.Changes[0].Added) > 0 {
		return d.Changes[0].File, d.Changes[0].NewFirst
	}
	return file, line
}

func checkReason(one *guard.Result) string {
	text := ""
	if d := one.Difference; d != nil && !d.Same() {
		for _, m := range d.Lines[:min(len(d.Lines), 3)] {
			text += fmt.Sprintf("; %s %s (%s)", moveWord(m), signed(m.More()), m.Category)
		}
	} else {
		for _, l := range one.Now.Lines[:min(len(one.Now.Lines), 3)] {
			text += fmt.Sprintf("; %s holds %s (%s)", l.Line, l.Bytes, mostOf(l.Category))
		}
	}
	return text
}

func checkGitHub(r *guard.Report) string {
	var b strings.Builder
	data := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	property := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
	for _, m := range checkRemarks(r) {
		level := map[string]string{"error": "error", "note": "notice"}[m.level]
		fmt.Fprintf(&b, "::%s file=%s,line=%d,title=%s::%s\n", level, property.Replace(m.file), m.line,
			property.Replace(cleanText(m.title)), data.Replace(m.text))
	}
	return b.String()
}

func checkSARIF(w io.Writer, r *guard.Report, version string) error {
	type text struct {
		Text string `json:"text"`
	}
	type object = map[string]any
	results := []object{}
	for _, m := range checkRemarks(r) {
		results = append(results, object{"ruleId": "device-memory", "level": m.level,
			"message": text{m.title + ": " + m.text},
			"locations": []object{{"physicalLocation": object{
				"artifactLocation": object{"uri": m.file},
				"region":           object{"startLine": m.line}}}}})
	}
	rules := []object{{"id": "device-memory", "shortDescription": text{"Device memory of training"},
		"fullDescription": text{"A training command needs more device memory than memroom.toml " +
			"allows, or another amount than before."},
		"help": text{"memroom check shows it by category, phase and line."}}}
	return indented(w, object{"$schema": "https://json.schemastore.org/sarif-2.1.0.json",
		"version": "2.1.0", "runs": []object{{"tool": object{"driver": object{"name": "memroom",
			"version": version, "rules": rules}}, "results": results}}})
}

type junitSuite struct {
	XMLName  xml.Name    `xml:"testsuite"`
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Errors   int         `xml:"errors,attr"`
	Cases    []junitCase `xml:"testcase"`
}

type junitCase struct {
	Class   string      `xml:"classname,attr"`
	Name    string      `xml:"name,attr"`
	File    string      `xml:"file,attr"`
	Line    int         `xml:"line,attr,omitempty"`
	Failure *junitWrong `xml:"failure,omitempty"`
	Error   *junitWrong `xml:"error,omitempty"`
	Out     string      `xml:"system-out,omitempty"`
}

type junitWrong struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

func checkJUnit(w io.Writer, r *guard.Report) error {
	suite := junitSuite{Name: "memroom", Tests: len(r.Results)}
	for i := range r.Results {
		one := &r.Results[i]
		c := junitCase{Class: "memroom", Name: one.Name, File: r.Config, Line: one.Line}
		var text strings.Builder
		NewText(&text, false).checkResult(r, one)
		switch {
		case one.Error != "":
			suite.Errors++
			c.Error = &junitWrong{Message: cleanText(one.Error), Text: text.String()}
		case one.Failed():
			suite.Failures++
			c.Failure = &junitWrong{Message: strings.Join(one.Over, "; "), Text: text.String()}
		default:
			c.Out = "needs " + one.Now.DevicePeak.String() + " of device memory\n" + text.String()
		}
		suite.Cases = append(suite.Cases, c)
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	enc := xml.NewEncoder(w)
	enc.Indent("", "  ")
	if err := enc.Encode(suite); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}
