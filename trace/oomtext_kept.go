package trace

import (
	"bytes"
	"io"
	"strings"
)

// Line is one line of a log with its number, cleaned of colours.
type Line struct {
	Number int64 // 1-based
	Text   string
}

// Bounds of the text of a log that is kept: its beginning, its end, and how much of a line.
const (
	keptHead = 192 << 10
	keptTail = 192 << 10
	keptLine = 4000
)

// keeper passes a log on and keeps its beginning and its end.
type keeper struct {
	r        io.Reader
	head     []byte
	tail     []byte
	newlines int64 // before the tail
}

func (k *keeper) Read(p []byte) (int, error) {
	n, err := k.r.Read(p)
	fresh := p[:n]
	if room := keptHead - len(k.head); room > 0 {
		k.head = append(k.head, fresh[:min(room, n)]...)
		fresh = fresh[min(room, n):]
	}
	k.tail = append(k.tail, fresh...)
	if drop := len(k.tail) - keptTail; drop > keptTail {
		k.newlines += int64(bytes.Count(k.tail[:drop], newline))
		k.tail = append(k.tail[:0], k.tail[drop:]...)
	}
	return n, err
}

// lines returns what was kept, cleaned, in order. A line that a cut went through is in two pieces.
func (k *keeper) lines() []Line {
	if k.newlines == 0 { // nothing was left out
		k.head, k.tail = append(k.head, k.tail...), nil
	}
	kept := numbered(nil, k.head, 1)
	return numbered(kept, k.tail, 1+int64(bytes.Count(k.head, newline))+k.newlines)
}

func numbered(kept []Line, text []byte, number int64) []Line {
	for raw := range bytes.SplitSeq(withoutNUL(text), newline) {
		line := strings.TrimRight(string(raw), "\r")
		line = line[strings.LastIndexByte(line, '\r')+1:] // what a progress bar wrote over
		pieces := []string{line}
		if strings.Count(line, `\n`) > 1 { // a text inside a JSON string
			pieces = strings.Split(line, `\n`)
		}
		for _, piece := range pieces {
			piece = strings.TrimRight(cleanLine([]byte(piece[:min(len(piece), keptLine)])), " \t")
			if piece != "" {
				kept = append(kept, Line{number, piece})
			}
		}
		number++
	}
	return kept
}
