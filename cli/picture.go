package cli

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"golang.org/x/term"

	"memroom/diagnose"
	"memroom/event"
	"memroom/report"
	"memroom/supervise"
)

// eachLine decodes the new lines of a file; one that cannot be read is left out.
func eachLine[T any](t *tail, f func(T)) {
	for line := range strings.Lines(string(t.next())) {
		var v T
		if json.Unmarshal([]byte(line), &v) == nil {
			f(v)
		}
	}
}

// picture draws on the terminal's second screen, so that what was on the first comes back.
type picture struct {
	s   *session
	out *os.File
}

func newPicture(s *session, out *os.File) *picture {
	fmt.Fprint(out, "\x1b[?1049h\x1b[?25l")
	return &picture{s, out}
}

func (p *picture) close() { fmt.Fprint(p.out, "\x1b[?25h\x1b[?1049l") }

// draw shows the run, and below it the end of the command's output where there is any to show.
func (p *picture) draw(f *follower, output []string) {
	columns, rows, err := term.GetSize(int(p.out.Fd()))
	if err != nil || columns < 20 || rows < 5 {
		columns, rows = 80, 24
	}
	lines := p.compose(f, columns, rows)
	for _, line := range output {
		if len(lines) >= rows-1 {
			break
		}
		lines = append(lines, clip(line, columns))
	}
	var b strings.Builder
	b.WriteString("\x1b[H")
	for i := range rows - 1 {
		if i < len(lines) {
			b.WriteString(lines[i])
		}
		b.WriteString("\x1b[K\r\n")
	}
	b.WriteString(p.s.paint(dim, clip("q: quit (the run continues)", columns)) + "\x1b[K")
	fmt.Fprint(p.out, b.String())
}

// compose returns the lines of the picture without the output below.
func (p *picture) compose(f *follower, columns, rows int) []string {
	head := fmt.Sprintf("%s  %s  %s", f.folder.ID, report.Span(float64(f.last.AtMS)/1000),
		strings.Join(f.run.Command, " "))
	lines := []string{p.s.paint(bold, clip(head, columns)), ""}
	lines = append(lines, p.kindLines("host memory", f, columns,
		func(s event.Sample) (event.Bytes, event.Bytes) {
			return s.Unreclaimable(), wallOf(f.run, s)
		})...)
	for i, d := range f.last.Devices {
		lines = append(lines, p.kindLines(fmt.Sprintf("%s, %d %% busy", d.Name, d.Utilisation), f,
			columns, func(s event.Sample) (event.Bytes, event.Bytes) {
				if i >= len(s.Devices) {
					return 0, 0
				}
				return s.Devices[i].Used, s.Devices[i].Total
			})...)
	}
	if m := f.last.Machine; m != nil && m.ShmUsed > 0 {
		lines = append(lines, clip(fmt.Sprintf("/dev/shm     %s", m.ShmUsed.Of(m.ShmTotal)),
			columns))
	}
	if f.step.Step.Step > 0 {
		lines = append(lines, clip(fmt.Sprintf("step %d, %.3g a second; allocated %s, reserved %s",
			f.step.Step.Step, f.stepRate,
			f.step.Allocated, f.step.Reserved), columns))
	}
	for _, line := range f.forecasts() {
		lines = append(lines, p.s.paint(red, clip(line, columns)))
	}
	lines = append(lines, accountLines(f.now, columns)...)
	for _, finding := range lastOf(f.findings, 4) {
		lines = append(lines, p.s.paint(yellow, clip(finding.Kind+": "+finding.Title, columns)))
	}
	for _, note := range lastOf(f.notes, 2) {
		lines = append(lines, clip(note, columns))
	}
	return append(lines, "")
}

func lastOf[T any](list []T, n int) []T { return list[max(0, len(list)-n):] }

// kindLines shows one kind of memory: a bar against its limit and a graph of its past.
func (p *picture) kindLines(name string, f *follower, columns int,
	read func(event.Sample) (event.Bytes, event.Bytes)) []string {
	used, wall := read(f.last)
	share := 0.0
	if wall > 0 {
		share = float64(used) / float64(wall)
	}
	color := green
	if share > 0.92 {
		color = red
	} else if share > 0.75 {
		color = yellow
	}
	text := fmt.Sprintf("%s  %s (%.0f %%)", name, used.Of(wall), 100*share)
	values := make([]float64, 0, len(f.history))
	for _, s := range f.history {
		if u, w := read(s); w > 0 {
			values = append(values, float64(u)/float64(w))
		}
	}
	return []string{clip(text, columns), p.s.paint(color, bar(share, columns)),
		p.s.paint(color, graph(values, columns)), ""}
}

// bar fills a line by a share.
func bar(share float64, width int) string {
	full := int(min(1, max(0, share)) * float64(width))
	return strings.Repeat("█", full) + strings.Repeat("░", width-full)
}

var heights = []rune(" ▁▂▃▄▅▆▇█")

// graph shows shares of a limit over time, the newest at the right. Each column is the highest of
// its span: a peak must not vanish between two columns.
func graph(values []float64, width int) string {
	if len(values) == 0 {
		return ""
	}
	out := make([]rune, 0, width)
	columns := min(width, len(values))
	for c := range columns {
		from, to := c*len(values)/columns, (c+1)*len(values)/columns
		highest := 0.0
		for _, v := range values[from:max(to, from+1)] {
			highest = max(highest, v)
		}
		out = append(out, heights[int(min(1, max(0, highest))*float64(len(heights)-1)+0.5)])
	}
	return string(out)
}

// accountLines shows what each card's memory is made of, largest lines in the order of the account.
func accountLines(now supervise.Now, columns int) []string {
	var lines []string
	for _, uuid := range slices.Sorted(maps.Keys(now.Accounts)) {
		lines = append(lines, wrapSum("account      ", accountText(now.Accounts[uuid]), columns)...)
	}
	if now.Host != nil {
		lines = append(lines, wrapSum("host account ", accountText(*now.Host), columns)...)
	}
	return lines
}

// wrapSum breaks a sum where it has a sign, indented below its name.
func wrapSum(name, text string, columns int) []string {
	var lines []string
	columns = max(columns, 4)
	line := name
	for i, part := range strings.Split(text, " + ") {
		if i > 0 {
			part = "+ " + part
		}
		switch {
		case i == 0:
			line += part
		case len(line)+1+len(part) <= columns:
			line += " " + part
		default:
			lines, line = append(lines, clip(line, columns)), strings.Repeat(" ", len(name))+part
		}
	}
	return append(lines, clip(line, columns))
}

func accountText(a diagnose.Account) string {
	var parts []string
	for _, line := range a.Lines {
		if line.Bytes != 0 {
			parts = append(parts, line.Name+" "+line.Bytes.String())
		}
	}
	text := strings.Join(parts, " + ") + " = " + a.Limit.String()
	switch {
	case a.Over > 0:
		text += fmt.Sprintf(", and %s more than that", a.Over)
	case a.Overlap > 0:
		text += fmt.Sprintf(" (read a moment apart: %s that two readings claimed are in it once)",
			a.Overlap)
	}
	return text
}
