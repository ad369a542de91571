package trace

import (
	"bytes"
	"io"
)

// The window over a log: history for tracebacks above a message, text ahead for messages that go on over lines.
const (
	windowSize    = 1 << 20
	windowHistory = 64 << 10
	windowAhead   = 32 << 10
	longestLine   = 8 << 10 // what is looked at of a line on either side of a telling word
)

// window is a buffer that slides over the log. Positions are indices into buf; offset turns them into places in the log.
type window struct {
	r        io.Reader
	buf      []byte
	start    int // first byte not yet searched
	end      int // search up to here: beyond it lies text that is only looked at
	base     int64
	eof      bool
	newlines int64 // before buf[counted]
	counted  int
}

func newWindow(r io.Reader) *window {
	return &window{r: r, buf: make([]byte, 0, windowSize+windowHistory)}
}

// fill reads on. It reports false when the log has ended and everything in the buffer may be searched.
func (w *window) fill() (bool, error) {
	if drop := min(w.start, len(w.buf)) - windowHistory; drop > 0 {
		w.countTo(drop)
		w.buf = w.buf[:copy(w.buf, w.buf[drop:])]
		w.start, w.base, w.counted = w.start-drop, w.base+int64(drop), 0
	}
	var err error
	for !w.eof && len(w.buf) < cap(w.buf) {
		var n int
		n, err = w.r.Read(w.buf[len(w.buf):cap(w.buf)])
		fresh := w.buf[len(w.buf) : len(w.buf)+n]
		w.buf = w.buf[:len(w.buf)+len(withoutNUL(fresh))]
		if err != nil {
			w.eof = true
		}
	}
	if err == io.EOF {
		err = nil
	}
	w.end = len(w.buf)
	if !w.eof {
		w.end -= windowAhead
	}
	return !w.eof, err
}

// withoutNUL drops zero bytes in place: UTF-16 text, which Windows shells write, becomes readable by that alone.
func withoutNUL(b []byte) []byte {
	if bytes.IndexByte(b, 0) < 0 {
		return b
	}
	kept := b[:0]
	for _, c := range b {
		if c != 0 {
			kept = append(kept, c)
		}
	}
	return kept
}

// next finds the next telling word in the part that may be searched.
func (w *window) next() (int, *telling, bool) {
	at, word := vocabulary.find(w.buf[:w.end], w.start)
	if word == nil {
		w.start = max(w.start, w.end-vocabulary.longest)
		if w.eof {
			w.start = w.end
		}
		return 0, nil, false
	}
	w.start = at + 1
	return at, word, true
}

func (w *window) offset(at int) int64 { return w.base + int64(at) }
func (w *window) consumed() int64     { return w.base + int64(len(w.buf)) }

func (w *window) countTo(at int) {
	if at > w.counted {
		w.newlines += int64(bytes.Count(w.buf[w.counted:at], newline))
		w.counted = at
	}
}

var newline = []byte{'\n'}

// lineNumber is 1-based. It may only be asked in ascending order.
func (w *window) lineNumber(at int) int64 {
	w.countTo(at)
	return w.newlines + 1
}

func (w *window) lines() int64 {
	w.countTo(len(w.buf))
	if len(w.buf) == 0 || w.buf[len(w.buf)-1] == '\n' {
		return w.newlines
	}
	return w.newlines + 1
}

// lineAround gives the raw line that holds a position, cut to longestLine on either side. Carriage returns and the two
// characters backslash and n end a line as newlines do: progress bars and JSON strings.
func (w *window) lineAround(at int) []byte { return w.buf[w.lineStart(at):w.lineEnd(at)] }

func (w *window) lineStart(at int) int {
	from := max(0, at-longestLine)
	before := w.buf[from:at]
	start := from + bytes.LastIndexAny(before, "\n\r") + 1
	for i := bytes.LastIndex(before, escapedNewline); i >= 0 && from+i >= start; i = bytes.LastIndex(before[:i], escapedNewline) {
		if endsLine(w.buf, from+i) {
			return from + i + 2
		}
	}
	return start
}

func (w *window) lineEnd(at int) int {
	to := min(len(w.buf), at+longestLine)
	rest := w.buf[at:to]
	if i := bytes.IndexAny(rest, "\n\r"); i >= 0 {
		rest = rest[:i]
	}
	for from := 0; ; {
		i := bytes.Index(rest[from:], escapedNewline)
		if i < 0 {
			return at + len(rest)
		}
		if endsLine(w.buf, at+from+i) {
			return at + from + i
		}
		from += i + 2
	}
}

var escapedNewline = []byte(`\n`)

// endsLine tells the two characters backslash and n of a quoted string from a piece of a Windows path (C:\new, a\\nb).
func endsLine(buf []byte, at int) bool {
	if at < 0 || !bytes.HasPrefix(buf[at:], escapedNewline) || at > 0 && buf[at-1] == '\\' {
		return false
	}
	from := max(0, at-200)
	token := buf[from:at]
	token = token[bytes.LastIndexAny(token, " \t\n\"'(")+1:]
	return !bytes.Contains(token, []byte(`:\`)) && !bytes.HasPrefix(token, []byte(`.`))
}

// telling is a word that may stand in a passage worth reading.
type telling struct {
	text    string // lower case
	endings []*ending
	hint    func(h *hintCollector, p *passage)
}

// words finds many words in one pass, ignoring case, by the method of Wu and Manber: pairs of bytes decide how far the
// search may jump.
type words struct {
	shortest   int
	longest    int
	shift      [1 << 16]uint8
	candidates map[uint16][]*telling // by the pair of bytes at the end of the first `shortest` bytes
}

func newWords(list []*telling) *words {
	w := &words{shortest: len(list[0].text), candidates: map[uint16][]*telling{}}
	for _, t := range list {
		w.shortest, w.longest = min(w.shortest, len(t.text)), max(w.longest, len(t.text))
	}
	for i := range w.shift {
		w.shift[i] = uint8(w.shortest - 1)
	}
	for _, t := range list {
		for i := 0; i+1 < w.shortest; i++ {
			for _, pair := range casings(t.text[i], t.text[i+1]) {
				w.shift[pair] = min(w.shift[pair], uint8(w.shortest-2-i))
				if i == w.shortest-2 {
					w.candidates[pair] = append(w.candidates[pair], t)
				}
			}
		}
	}
	return w
}

// casings gives a pair of bytes in upper and lower case.
func casings(a, b byte) []uint16 {
	var pairs []uint16
	for _, x := range bothCases(a) {
		for _, y := range bothCases(b) {
			pairs = append(pairs, uint16(x)<<8|uint16(y))
		}
	}
	return pairs
}

func bothCases(c byte) []byte {
	if 'a' <= c && c <= 'z' {
		return []byte{c, c - 'a' + 'A'}
	}
	return []byte{c}
}

// find gives the first word at or after from, the longest where several begin at the same place.
func (w *words) find(text []byte, from int) (int, *telling) {
	for i := from + w.shortest - 1; i < len(text); {
		pair := uint16(text[i-1])<<8 | uint16(text[i])
		if shift := w.shift[pair]; shift > 0 {
			i += int(shift)
			continue
		}
		at := i - w.shortest + 1
		if found := longestAt(w.candidates[pair], text[at:]); found != nil {
			return at, found
		}
		i++
	}
	return 0, nil
}

func longestAt(candidates []*telling, text []byte) *telling {
	var best *telling
	for _, t := range candidates {
		if (best == nil || len(t.text) > len(best.text)) && hasPrefixFold(text, t.text) {
			best = t
		}
	}
	return best
}

func hasPrefixFold(text []byte, lower string) bool {
	if len(text) < len(lower) {
		return false
	}
	for i := 0; i < len(lower); i++ {
		c := text[i]
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}
