package report

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text writes a report for a terminal or a file. The first error is kept and everything after it is
// dropped, so that callers check once.
type Text struct {
	out   io.Writer
	color bool
	err   error
}

// NewText writes to out, with colours if wanted.
func NewText(out io.Writer, color bool) *Text { return &Text{out: out, color: color} }

// Err returns the first error of writing.
func (t *Text) Err() error { return t.err }

func (t *Text) linef(format string, args ...any) {
	if t.err == nil {
		_, t.err = fmt.Fprintf(t.out, format+"\n", args...)
	}
}

// sentence writes running text, broken into lines at words, each with the same indent.
func (t *Text) sentence(indent, attribute, text string) {
	const width = 110
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			t.linef("%s%s", indent, t.paint(attribute, line))
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	if line != "" {
		t.linef("%s%s", indent, t.paint(attribute, line))
	}
}

// heading begins a part of the report.
func (t *Text) heading(title string) { t.linef("\n%s", t.paint("1", title)) }

// paint wraps s in a terminal attribute when colours are on.
func (t *Text) paint(attribute, s string) string {
	if !t.color || attribute == "" {
		return s
	}
	return "\x1b[" + attribute + "m" + s + "\x1b[0m"
}

// table writes rows in columns: a column whose head begins with ">" is aligned right. The last
// column is not padded.
func (t *Text) table(heads []string, rows [][]string) {
	widths := make([]int, len(heads))
	right := make([]bool, len(heads))
	names := make([]string, len(heads))
	for i, h := range heads {
		names[i], right[i] = strings.CutPrefix(h, ">")
		widths[i] = utf8.RuneCountInString(names[i])
	}
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	t.linef("%s", t.paint("2", "  "+alignRow(names, widths, right)))
	for _, row := range rows {
		t.linef("  %s", alignRow(row, widths, right))
	}
}

func alignRow(cells []string, widths []int, right []bool) string {
	var line strings.Builder
	for i, cell := range cells {
		if i > 0 {
			line.WriteString("  ")
		}
		gap := strings.Repeat(" ", max(0, widths[i]-utf8.RuneCountInString(cell)))
		switch {
		case right[i]:
			line.WriteString(gap + cell)
		case i == len(cells)-1:
			line.WriteString(cell)
		default:
			line.WriteString(cell + gap)
		}
	}
	return strings.TrimRight(line.String(), " ")
}

// cleanText makes text from a file safe to print: no control characters, which could move the
// cursor, change colours or reach the terminal's clipboard, no characters that turn the direction
// of writing, and a bounded length.
func cleanText(s string) string {
	const longest = 400
	var b strings.Builder
	for _, r := range s {
		if b.Len() > longest {
			b.WriteString("...")
			break
		}
		switch {
		case r == utf8.RuneError || unicode.IsControl(r) || unicode.Is(unicode.Cf, r) ||
			r == '\u2028' || r == '\u2029':
			b.WriteRune('?')
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// grouped writes a number with commas: 55,047.
func grouped(n int) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// counted writes a number with its noun.
func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return grouped(n) + " " + many
}

func percent(part, whole float64) string {
	switch {
	case whole <= 0:
		return "0 %"
	case part/whole < 0.0995:
		return fmt.Sprintf("%.1f %%", 100*part/whole)
	default:
		return fmt.Sprintf("%.0f %%", 100*part/whole)
	}
}
