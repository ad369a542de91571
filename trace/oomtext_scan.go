package trace

import (
	"bytes"
	"encoding/binary"
	"io"
)

// The window over a log: history for tracebacks above a message, text ahead for messages that go on
// over lines.
const (
	windowSize    = 1 << 20
	windowHistory = 64 << 10
	windowAhead   = 32 << 10
	longestLine   = 8 << 10 // what is looked at of a line on either side of a telling word
)

// window is a buffer that slides over the log. Positions are indices into buf; offset turns them
// into places in the log.
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

// fill reads on. It reports false when the log has ended and everything in the buffer may be
// searched.
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

// withoutNUL drops zero bytes in place: UTF-16 text, which Windows shells write, becomes readable
// by that alone.
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
	known := vocabulary()
	at, word := known.find(w.buf[:w.end], w.start)
	if word == nil {
		w.start = max(w.start, w.end-known.longest)
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

// near returns the bytes right around a position, lines or not.
func (w *window) near(at int) []byte { return w.buf[max(0, at-96):min(len(w.buf), at+160)] }

// lineAround returns the raw line that holds a position, cut to longestLine on either side.
// Carriage returns and the two characters backslash and n end a line as newlines do: progress bars
// and JSON strings.
func (w *window) lineAround(at int) []byte { return w.buf[w.lineStart(at):w.lineEnd(at)] }

func (w *window) lineStart(at int) int {
	from := max(0, at-longestLine)
	if i := bytes.LastIndexByte(w.buf[from:at], '\n'); i >= 0 {
		from += i + 1
	}
	if i := bytes.LastIndexByte(w.buf[from:at], '\r'); i >= 0 {
		from += i + 1
	}
	for end := at; ; {
		i := bytes.LastIndexByte(w.buf[from:end], '\\')
		if i < 0 {
			return from
		}
		if end = from + i; end+2 <= at && endsLine(w.buf, end) {
			return end + 2
		}
	}
}

func (w *window) lineEnd(at int) int {
	end := min(len(w.buf), at+longestLine)
	for _, c := range []byte{'\n', '\r'} {
		if i := bytes.IndexByte(w.buf[at:end], c); i >= 0 {
			end = at + i
		}
	}
	for from := at; ; {
		i := bytes.IndexByte(w.buf[from:end], '\\')
		if i < 0 {
			return end
		}
		if from += i; endsLine(w.buf, from) {
			return from
		}
		from++
	}
}

var escapedNewline = []byte(`\n`)

// endsLine reports whether the two characters backslash and n are a line break in a quoted string.
// They may also be part of a Windows path (C:\new, a\\nb).
func endsLine(buf []byte, at int) bool {
	if at < 0 || !bytes.HasPrefix(buf[at:], escapedNewline) || at > 0 && buf[at-1] == '\\' {
		return false
	}
	from := max(0, at-200)
	token := buf[from:at]
	token = token[bytes.LastIndexAny(token, " \t\n\"'(")+1:]
	drive := len(token) == 2 && token[1] == ':'
	return !drive && !bytes.Contains(token, []byte(`:\`)) && !bytes.HasPrefix(token, []byte(`.`))
}

// telling is a word that may stand in a passage worth reading.
type telling struct {
	text    string // lower case
	endings []*ending
	hint    func(h *hintCollector, p *passage)
	follow  func(h *hintCollector, p *passage)
	number  int // its place in the vocabulary
}

// words finds many words in one pass, ignoring case, by the method of Wu and Manber: three bytes,
// folded to lower case and hashed, decide how far the search may jump. The jump is at most the
// length of the shortest word less two, so short words are dear; the tables keep to six bytes and
// more.
type words struct {
	count    int
	shortest int
	longest  int
	shift    [1 << 16]uint8
	// by the hash of the last three of the first `shortest` bytes: index into candidates
	list       [1 << 16]uint16
	candidates [][]*telling // the first is empty
}

// triple hashes the last three of four bytes without regard to case. Setting the bit of lower case
// also joins a few signs, which only costs a comparison. The multiplier is Knuth's.
func triple(four uint32) uint16 { return uint16((four>>8 | 0x202020) * 2654435761 >> 16) }

func tripleOf(s string) uint16 {
	return triple(uint32(s[0])<<8 | uint32(s[1])<<16 | uint32(s[2])<<24)
}

func newWords(list []*telling) *words {
	w := &words{count: len(list), shortest: len(list[0].text), candidates: make([][]*telling, 1)}
	for i, t := range list {
		t.number = i
		w.shortest, w.longest = min(w.shortest, len(t.text)), max(w.longest, len(t.text))
	}
	for i := range w.shift {
		w.shift[i] = uint8(w.shortest - 2)
	}
	for _, t := range list {
		for i := 0; i+2 < w.shortest; i++ {
			h := tripleOf(t.text[i : i+3])
			w.shift[h] = min(w.shift[h], uint8(w.shortest-3-i))
			if i == w.shortest-3 {
				if w.list[h] == 0 {
					w.list[h] = uint16(len(w.candidates))
					w.candidates = append(w.candidates, nil)
				}
				w.candidates[w.list[h]] = append(w.candidates[w.list[h]], t)
			}
		}
	}
	return w
}

// find returns the first word at or after from, the longest where several begin at the same place.
func (w *words) find(text []byte, from int) (int, *telling) {
	for i := from + w.shortest - 1; i < len(text); { // i is at least 3: words are longer
		h := triple(binary.LittleEndian.Uint32(text[i-3:]))
		if shift := w.shift[h]; shift > 0 {
			i += int(shift)
			continue
		}
		at := i - w.shortest + 1
		if found := longestAt(w.candidates[w.list[h]], text[at:]); found != nil {
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
