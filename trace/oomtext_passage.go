package trace

import (
	"bytes"
	"html"
	"slices"
	"strconv"
	"strings"

	"memroom/event"
)

// passage is a place in the log together with the text around it, cleaned when asked for.
type passage struct {
	window *window
	at     int
	word   string // the telling word, lower case
	cached string
	whole  string
}

// line is the cleaned line of the telling word.
func (p *passage) line() string {
	if p.whole == "" {
		p.whole = cleanLine(p.window.lineAround(p.at))
	}
	return p.whole
}

// text is the message: the line of the telling word from a little before it, and the lines that
// follow, joined by blanks and without the prefixes that loggers and people put before each of
// them.
func (p *passage) text() string {
	if p.cached == "" {
		text := p.rejoined()
		if text == "" {
			text = healed(p.ownLines(14))
		}
		p.cached = untilAgain(text, p.word, p.earlier())
	}
	return p.cached
}

// streamMark is what launchers put before each line to name the rank that wrote it: torchrun's
// "[rank1]:", srun's "1:".
var streamMark = later(`^\s{0,8}(?:\[rank\d{1,5}\]:|\[\d{1,5}\]:|\d{1,4}: )`)

// streamOf returns the mark of a line, empty without one.
func streamOf(line string) string {
	if m := streamMark.FindStringSubmatch(line); m != nil {
		return m[0]
	}
	return ""
}

// reach is how many lines below a message are looked at for those of its own rank.
const reach = 40

// ownLines is following without the lines that other ranks wrote in between. Marks count only where
// that of the message comes again below: numbers that grep adds never do.
func (p *passage) ownLines(n int) []string {
	lines := p.following(n)
	mark := streamOf(p.line())
	if mark == "" {
		return lines
	}
	own, again := lines[:1:1], false
	end := p.window.lineEnd(p.at)
	for range reach {
		next := skipBreak(p.window.buf, end)
		if next >= len(p.window.buf) || len(own) > n {
			break
		}
		end = p.window.lineEnd(next)
		line := cleanLine(p.window.buf[next:end])
		switch streamOf(line) {
		case mark:
			again = true
			own = append(own, withoutPrefix(line))
		case "":
			own = append(own, withoutPrefix(line))
		}
	}
	if !again {
		return lines
	}
	return own
}

// earlier counts how often the telling word stands in the same line before it: a program may pass
// on the message of a library behind the same words of its own.
func (p *passage) earlier() int {
	start := max(p.window.lineStart(p.at), p.at-200)
	return strings.Count(strings.ToLower(string(p.window.buf[start:p.at])), p.word)
}

// untilAgain cuts a text where its telling word comes again after that of the message, before which
// it comes so many times: there another message begins.
func untilAgain(text, word string, before int) string {
	lower := strings.ToLower(text)
	first := strings.Index(lower, word)
	if first < 0 || len(lower) != len(text) {
		return text
	}
	for ; before > 0; before-- {
		next := strings.Index(lower[first+len(word):], word)
		if next < 0 {
			return text
		}
		first += len(word) + next
	}
	if second := strings.Index(lower[first+len(word):], word); second >= 0 {
		return text[:first+len(word)+second]
	}
	return text
}

// following returns the cleaned line of the word and up to n more, as far as the window reaches.
// The first is cut to begin at most 200 bytes before the word.
func (p *passage) following(n int) []string {
	start := max(p.window.lineStart(p.at), p.at-200)
	end := p.window.lineEnd(p.at)
	lines := []string{withoutPrefix(cleanLine(p.window.buf[start:end]))}
	for ; n > 0; n-- {
		next := skipBreak(p.window.buf, end)
		if next >= len(p.window.buf) {
			break
		}
		end = p.window.lineEnd(next)
		lines = append(lines, withoutPrefix(cleanLine(p.window.buf[next:end])))
	}
	return lines
}

// skipBreak steps over one end of a line.
func skipBreak(buf []byte, at int) int {
	switch {
	case bytes.HasPrefix(buf[at:], []byte("\r\n")), endsLine(buf, at):
		return at + 2
	case at < len(buf):
		return at + 1
	}
	return at
}

// above returns up to n cleaned lines before the one of the word, nearest first.
func (p *passage) above(n int) []string {
	var lines []string
	start := p.window.lineStart(p.at)
	for ; n > 0 && start > 0; n-- {
		end := start - 1
		if end > 0 && (endsLine(p.window.buf, end-1) || p.window.buf[end] == '\n' &&
			p.window.buf[end-1] == '\r') {
			end--
		}
		start = p.window.lineStart(end)
		lines = append(lines, cleanLine(p.window.buf[start:end]))
	}
	return lines
}

// wentOn is what programs print when they meet a shortage and carry on with less.
var wentOn = pattern(`\bretrying\b|will retry|retry with|\bskipping\b|\bskipped (?:batch|update|this|the)|reduc(?:ing|ed) (?:to )?batch|decreas(?:ing|ed) batch|batch[ _-]?size reduced|` +
	`attempting to recover|falling back|fall back to|attempting to copy inputs|tiled vae|trying again|try(?:ing)? with (?:a )?smaller|` +
	`clear(?:ing|ed) (?:the )?cache and|continuing (?:with|training|without)|moving to cpu|using cpu|recovered|continued with|on (?:the )?cpu instead|auto_find_batch_size|lowering batch|halving`)

// notCaught are words of an error that nobody caught in time.
var notCaught = later(`Exception during processing|Traceback \(most recent call last\)`)

const wentOnWithLess = "the program went on with less"

// gaveUp is what they print when nothing was left to try.
var gaveUp = pattern(`no executable batch size|reached zero|no more retries|giving up|retries exhausted|max(?:imum)? retries|failed after \d+ (?:attempts|retries)`)

// judgeSurvival classifies a shortage as survived if the lines around it show that the program goes
// on.
func (p *passage) judgeSurvival(c *Crash) {
	above := p.above(24)
	for _, line := range above {
		if strings.Contains(line, "Exception ignored in") {
			c.Class, c.What = Survived, "raised while the program was shutting down and ignored"
			return
		}
	}
	if p.insidePassedTest() {
		c.Class, c.What = Survived, "inside of a test that passed"
		return
	}
	below := p.following(4)
	near := strings.Join(append(below, above[:min(2, len(above))]...), " ")
	if notCaught.MatchString(strings.Join(below[:min(3, len(below))], "\n")) {
		near = strings.Join(below, " ") // what was tried before was of no use
	}
	if wentOn.MatchString(near) && !gaveUp.MatchString(near) {
		c.Class, c.What = Survived, wentOnWithLess
	}
}

// testLog heads what a test printed while it ran; testPassed ends a test that did what it should.
var (
	testLog    = later(`^-+ (?:live log|Captured) \w+|^\s*=== RUN\b|^\S+\.py::\w+`)
	testPassed = later(`^\s*(?:PASSED|ok)\b|^\S+\.py::\w+\S* PASSED|^\s*--- PASS: |\.\.\. ok$`)
	testFailed = later(`^\s*FAILED\b|\bFAILED\s|^\s*--- FAIL: |^E\s{2,}|\.\.\. (?:FAIL|ERROR)$`)
)

// insidePassedTest reports whether a test runner's words stand around the line: what a test prints
// before it passes was meant to happen.
func (p *passage) insidePassedTest() bool {
	if !slices.ContainsFunc(p.above(12), testLog.MatchString) {
		return false
	}
	for _, line := range p.following(12) {
		if testFailed.MatchString(line) {
			return false
		}
		if testPassed.MatchString(line) {
			return true
		}
	}
	return false
}

var (
	colours    = later(`(?:\x1b|\\u001b|\\x1b|\\033|\^\[)\[[0-9;?]*[A-Za-z]`)
	osCommands = later(`\x1b\][^\x07]*\x07`)
)

// cleanLine makes a raw line readable: no colours, no control characters, HTML and JSON escapes
// undone.
func cleanLine(raw []byte) string {
	s := string(raw)
	if strings.ContainsAny(s, "\x1b") || strings.Contains(s, "u001b") || strings.Contains(s, `\x1b`) || strings.Contains(s, `\033`) || strings.Contains(s, "^[[") {
		s = osCommands.ReplaceAllString(colours.ReplaceAllString(s, ""), "")
	}
	if strings.Contains(s, "&") {
		s = html.UnescapeString(s)
	}
	// a string inside JSON or Python source
	if strings.Contains(s, `\"`) || strings.Contains(s, `\u00`) || strings.Contains(s, `\'`) {
		s = strings.NewReplacer(`\"`, `"`, `\'`, `'`, `\t`, " ", `\u003c`, "<", `\u003e`, ">", `\u0026`, "&", `\r`, " ").Replace(s)
	}
	s = strings.Map(func(r rune) rune {
		if r < ' ' && r != '\t' || r == 0x7f || r == 0xfeff {
			return -1
		}
		if r == 0xa0 { // a blank that web pages put between a number and its unit
			return ' '
		}
		return r
	}, s)
	return strings.TrimRight(strings.ToValidUTF8(s, "?"), " \t")
}

// prefix is what stands before each line of a message without being part of it: quotes, comment
// marks, numbers that grep adds, ranks, worker names, times, names of containers, bars of tables.
var prefix = later(`^(?:\s|[>#|│*]+\s|//|--\s|\d+[:-]\s?|\[?rank\s?\d+\]?:|\[[Rr]ank\d*[ =:]?\d+\]:?|\((?:\w[^()]*)?pid=\d+[^)]*\)|` +
	`\[\d+\]:|\[\w+[-_]?\d*\]:|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?Z?(?:[+-]\d\d:?\d\d)?:?|\[\d{4}-\d\d-\d\d[^\]]*\]|` +
	`(?:ERROR|INFO|WARNING|WARN|DEBUG) \d\d-\d\d \d\d:\d\d:\d\d (?:\S+\.py:\d+\]|\[\S+\.py:\d+\])|[\w.-]+-\d+\s+\|)`)

func withoutPrefix(line string) string {
	for range 6 {
		found := prefix.FindStringIndex(line)
		if found == nil || found[1] == 0 {
			break
		}
		line = line[found[1]:]
	}
	return strings.TrimSpace(line)
}

var rankMark = later(`(?i)\[?\b(?:global_)?rank[ =:]?\s?(\d{1,6})\]?|RANK (\d{1,6})\b|worker_tp(\d+)|` +
	`^\s*\[\d+,(\d{1,6})\]<std(?:err|out)>`)

// rankIn returns the rank a line names before its message, -1 if none.
func rankIn(line string) int {
	if m := rankMark.FindStringSubmatch(line[:min(len(line), 120)]); m != nil {
		for _, digits := range m[1:] {
			if n, err := strconv.Atoi(digits); err == nil {
				return n
			}
		}
	}
	return -1
}

// size is the part of a pattern that matches a printed size: 1,024 bytes, 273. GiB, 15.48G,
// 167444480B.
const size = `([\d][\d,]*\.?\d*)\s?([KMGTP]i?B?|[kmgt]i?b?|bytes|byte|B|gigabytes|megabytes)?\b`

// sizeIn returns the first size a pattern captures as its groups 1 and 2. Sizes are binary whatever
// the unit is called, as the programs that print them mean it.
func sizeIn(re *expression, text string) *event.Bytes {
	m := re.FindStringSubmatch(text)
	if m == nil {
		return nil
	}
	return parseSize(m[1], m[2])
}

func parseSize(number, unit string) *event.Bytes {
	if whole, fraction, found := strings.Cut(number, ","); found && len(fraction) > 0 &&
		len(fraction) < 3 && !strings.ContainsAny(whole+fraction, ",.") {
		number = whole + "." + fraction // 1900,00 MiB where the locale writes fractions so
	}
	number = strings.ReplaceAll(strings.TrimRight(number, ".,"), ",", "")
	if unit == "" && len(number) < 4 && number != "0" {
		return nil // a message that was cut inside of its figure
	}
	switch strings.ToLower(unit) {
	case "gigabytes":
		unit = "GiB"
	case "megabytes":
		unit = "MiB"
	}
	v, err := event.ParseBytes(number + unit)
	if err != nil {
		whole, _, _ := strings.Cut(number, ".")
		if _, wrong := strconv.ParseFloat(number, 64); wrong != nil || len(whole) < 9 || unit == "" {
			return nil
		}
		v = 1 << 62 // more than a number of bytes can hold
	}
	return &v
}

// pattern compiles an expression in which {size} stands for a printed size, ignoring case.
func pattern(expr string) *expression {
	return later(`(?i)` + strings.ReplaceAll(expr, "{size}", size))
}

// minus returns a - b where both are known, not below zero.
func minus(a, b *event.Bytes) *event.Bytes {
	if a == nil || b == nil {
		return nil
	}
	d := max(0, *a-*b)
	return &d
}
