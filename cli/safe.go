package cli

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// safeWriter stands between every command and the terminal. Names, tags, log lines and error
// messages come from files that others wrote: what a terminal would obey, or what turns the
// direction of writing, is printed as an escape that can be read (\x1b, \u202e). Only the output of
// the user's own command goes past it.
type safeWriter struct {
	mu    sync.Mutex // a server writes from many requests
	out   io.Writer
	color bool   // our own colours pass
	part  []byte // the beginning of a character or a colour that is not complete yet
	err   error  // the first error of writing
}

// Write implements io.Writer.
func (w *safeWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := append(w.part, p...)
	clean := make([]byte, 0, len(text)+16)
	for len(text) > 0 {
		n, whole := w.next(text)
		if !whole {
			break
		}
		clean = appendSafe(clean, text[:n], w.color)
		text = text[n:]
	}
	w.part = append([]byte(nil), text...)
	if len(clean) > 0 {
		if _, err := w.out.Write(clean); err != nil {
			w.keep(err)
			return 0, err
		}
	}
	return len(p), nil
}

// flush writes what never became complete.
func (w *safeWriter) flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	var clean []byte
	for _, b := range w.part {
		clean = appendVisible(clean, []byte{b})
	}
	w.part = nil
	if len(clean) > 0 {
		_, err := w.out.Write(clean)
		w.keep(err)
	}
}

func (w *safeWriter) keep(err error) {
	if w.err == nil {
		w.err = err
	}
}

// next returns the length of the next unit: a character, a line end of two, or a colour. It is not
// whole where more has to come.
func (w *safeWriter) next(text []byte) (n int, whole bool) {
	switch {
	case text[0] == '\r':
		if len(text) == 1 {
			return 0, false
		}
		if text[1] == '\n' {
			return 2, true
		}
		return 1, true
	case text[0] == '\x1b' && w.color:
		return colourLength(text)
	}
	if !utf8.FullRune(text) {
		return 0, false
	}
	_, n = utf8.DecodeRune(text)
	return n, true
}

// colourLength is the length of a colour of ours at the beginning of a text, else 1.
func colourLength(text []byte) (n int, whole bool) {
	const longest = len("\x1b[38;5;255m")
	for i := 1; i < len(text) && i < longest; i++ {
		c := text[i]
		switch {
		case i == 1 && c != '[', i > 1 && c != 'm' && c != ';' && (c < '0' || c > '9'):
			return 1, true
		case c == 'm':
			return i + 1, true
		}
	}
	return 1, len(text) >= longest
}

// appendSafe adds a unit as it may be printed.
func appendSafe(to, unit []byte, color bool) []byte {
	if color && len(unit) > 1 && unit[0] == '\x1b' && isOurColour(string(unit)) ||
		string(unit) == "\r\n" {
		return append(to, unit...)
	}
	if r, n := utf8.DecodeRune(unit); n == len(unit) && (r != utf8.RuneError || n > 1) &&
		(r == '\n' || r == '\t' || !isUnsafe(r)) {
		return append(to, unit...)
	}
	return appendVisible(to, unit)
}

// isOurColour: the attributes that we use. Hidden and black text are not among them.
func isOurColour(sequence string) bool {
	for _, code := range strings.Split(sequence[2:len(sequence)-1], ";") {
		n, err := strconv.Atoi(code)
		if err != nil || n > 2 && (n < 31 || n > 37) && (n < 91 || n > 97) {
			return false
		}
	}
	return true
}

// isUnsafe: control characters, and those that cannot be seen but change how text is shown.
func isUnsafe(r rune) bool {
	return unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp)
}

// appendVisible adds a unit as an escape. Those above ASCII are written as JSON writes them, so
// that JSON stays what it was.
func appendVisible(to, unit []byte) []byte {
	for len(unit) > 0 {
		r, n := utf8.DecodeRune(unit)
		switch {
		case r == utf8.RuneError && n == 1 || r < 0x20:
			to = fmt.Appendf(to, `\x%02x`, unit[0])
		case r > 0xffff:
			high, low := (r-0x10000)>>10+0xd800, (r-0x10000)&0x3ff+0xdc00
			to = fmt.Appendf(to, `\u%04x\u%04x`, high, low)
		case isUnsafe(r):
			to = fmt.Appendf(to, `\u%04x`, r)
		default:
			to = append(to, unit[:n]...)
		}
		unit = unit[n:]
	}
	return to
}

// fileOf returns the file below a stream: for the user's command, which writes what it likes, and
// to ask whether it is a terminal.
func fileOf(stream any) (*os.File, bool) {
	if safe, ok := stream.(*safeWriter); ok {
		stream = safe.out
	}
	file, ok := stream.(*os.File)
	return file, ok
}

// raw is a stream for what the user's command has written, byte for byte.
func raw(stream io.Writer) io.Writer {
	if safe, ok := stream.(*safeWriter); ok {
		return safe.out
	}
	return stream
}

// clip shortens a text to so many characters, on one line and without what a terminal would obey.
func clip(text string, n int) string {
	runes := []rune(text)
	for i, r := range runes {
		switch {
		case unicode.IsControl(r):
			runes[i] = ' '
		case isUnsafe(r):
			runes[i] = '?'
		}
	}
	if len(runes) <= n {
		return string(runes)
	}
	return string(runes[:n-3]) + "..."
}
