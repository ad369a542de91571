package trace

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// Widths of terminals that break lines, in the middle of words where these end there.
const (
	narrowest = 60
	widest    = 240
	nearLines = 30 // lines around a message that must not be wider than the terminal
)

// width is the width of the terminal that broke the line of the message, 0 where none did: the line
// is as wide as another near it, and none is wider.
func (p *passage) width() int {
	near := append(p.below(14), p.above(nearLines)...)
	most := utf8.RuneCountInString(near[0])
	if most < narrowest || most > widest || len(near) < 3 {
		return 0
	}
	alike := 0
	for _, line := range near[1:] {
		switch n := utf8.RuneCountInString(line); {
		case n > most:
			return 0
		case n == most:
			alike++
		}
	}
	if alike == 0 {
		return 0
	}
	return most
}

// below returns the cleaned line of the word and up to n more, with the blanks in front of them.
func (p *passage) below(n int) []string {
	start, end := p.window.lineStart(p.at), p.window.lineEnd(p.at)
	lines := []string{cleanLine(p.window.buf[start:end])}
	for ; n > 0; n-- {
		next := skipBreak(p.window.buf, end)
		if next >= len(p.window.buf) {
			break
		}
		end = p.window.lineEnd(next)
		lines = append(lines, cleanLine(p.window.buf[next:end]))
	}
	return lines
}

// rejoined is the message as it was before a terminal broke it; empty where none did.
func (p *passage) rejoined() string {
	width := p.width()
	if width == 0 {
		return ""
	}
	lines := p.below(14)
	slices.Reverse(lines)
	lines = unbroken(lines, width)
	slices.Reverse(lines)
	for i := range lines {
		lines[i] = withoutPrefix(lines[i])
	}
	return strings.Join(lines, " ")
}

// unbroken joins lines, nearest last first, that fill the width of a terminal with what follows
// them. A line that is one narrower ended in a blank.
func unbroken(lines []string, width int) []string {
	if width == 0 {
		return lines
	}
	var whole []string
	for _, line := range lines {
		n := utf8.RuneCountInString(line)
		switch last := len(whole) - 1; {
		case last >= 0 && n == width:
			whole[last] = line + whole[last]
		case last >= 0 && n == width-1 && whole[last] != "" && whole[last][0] > ' ':
			whole[last] = line + " " + whole[last]
		default:
			whole = append(whole, line)
		}
	}
	return whole
}

// Ends and beginnings of lines between which a number, or a unit, was broken.
var (
	numberEnds   = later(`(?:^|[\s(])\d[\d,]*\.?\d*$`)
	numberBegins = later(`^\.?\d[\d,]*\.?\d*\s?(?:[KMGTP]i?B|bytes|B)\b`)
	unitEnds     = later(`\d\s?[KMGTP]i?$`)
	unitBegins   = later(`^i?B\b`)
	wordEnds     = later(`[A-Za-z-]+$`)
	wordBegins   = later(`^[A-Za-z-]+`)
)

// messageWords are those of messages about memory, as far as figures stand beside them.
var messageWords = strings.Fields("allocate allocated unallocated already capacity capacty total free " +
	"reserved memory process pytorch non-pytorch including which has use tried requested limit bytes " +
	"currently active cached unable")

// healed joins the lines of a message. A line that ends inside of a number, a unit or a word of the
// message goes on without a blank.
func healed(lines []string) string {
	var text strings.Builder
	for i, line := range lines {
		if i > 0 && !splits(lines[i-1], line) {
			text.WriteByte(' ')
		}
		text.WriteString(line)
	}
	return text.String()
}

// splits reports whether a line break went through something that is one.
func splits(line, next string) bool {
	if numberEnds.MatchString(line) && numberBegins.MatchString(next) ||
		unitEnds.MatchString(line) && unitBegins.MatchString(next) {
		return true
	}
	end, begin := wordEnds.FindString(line), wordBegins.FindString(next)
	whole := strings.ToLower(end + begin)
	return end != "" && begin != "" && slices.Contains(messageWords, whole) &&
		!slices.Contains(messageWords, strings.ToLower(end))
}
