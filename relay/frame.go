package relay

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"memroom/lazyregexp"
)

// Frame is a piece of a file of a run's record.
type Frame struct {
	File  string // a name that [Kept] knows
	At    int64  // where the piece begins
	Whole bool   // it replaces the file
	Data  []byte
}

// head is the line before a frame's bytes.
type head struct {
	File  string `json:"file"`
	At    int64  `json:"at"`
	Size  int    `json:"size"`
	Whole bool   `json:"whole,omitempty"`
}

// MostUnpacked bounds the frames of one request, unpacked.
const MostUnpacked = 16 << 20

// Kind is how a file of a record is sent.
type Kind int

// A file does not travel, grows, or is replaced as a whole.
const (
	Left Kind = iota
	Grows
	Replaced
)

var (
	growing = []string{"samples.jsonl", "steps.jsonl", "events.jsonl", "attempts.jsonl", "output",
		"output.err", "samples.roll", "steps.roll"}
	replaced = []string{"run.json", "keeper.json", "exit.json", "verdict.json", "summary.json",
		"watch.json", "fit.json"}
	applied = lazyregexp.New(`^apply-[0-9]{1,6}\.json$`)
	// a snapshot's name begins with a letter or digit: no hidden file, no way up
	dumped = lazyregexp.New(`^dumps/[A-Za-z0-9][A-Za-z0-9._-]{0,150}$`)
)

// Kept reports whether a file belongs to what is sent, and how. Every other name is refused, so
// that no name leads out of a run's folder.
func Kept(name string) Kind {
	switch {
	case slices.Contains(growing, name), dumped.MatchString(name) && !strings.Contains(name, ".."):
		return Grows
	case slices.Contains(replaced, name), applied.MatchString(name):
		return Replaced
	}
	return Left
}

// Pack writes frames as the body of a request.
func Pack(frames []Frame) ([]byte, error) {
	var body bytes.Buffer
	z, err := gzip.NewWriterLevel(&body, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	for _, f := range frames {
		line, err := json.Marshal(head{f.File, f.At, len(f.Data), f.Whole})
		if err != nil {
			return nil, err
		}
		if _, err := z.Write(append(line, '\n')); err != nil {
			return nil, err
		}
		if _, err := z.Write(f.Data); err != nil {
			return nil, err
		}
	}
	err = z.Close()
	return body.Bytes(), err
}

// Unpack reads the body of a request. It fails on names that are not kept, on frames whose form
// does not fit their file, and beyond [MostUnpacked].
func Unpack(r io.Reader) ([]Frame, error) {
	z, err := gzip.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("the frames are not packed as gzip: %w", err)
	}
	defer z.Close()
	in := bufio.NewReaderSize(io.LimitReader(z, MostUnpacked+1<<16), 64<<10)
	var frames []Frame
	total := 0
	for {
		line, err := in.ReadSlice('\n')
		if err == io.EOF && len(line) == 0 {
			return frames, nil
		}
		if err != nil {
			return nil, fmt.Errorf("a frame's head is cut or too long: %w", err)
		}
		f, size, err := readHead(line)
		if err != nil {
			return nil, err
		}
		if total += size; total > MostUnpacked || size < 0 {
			return nil, fmt.Errorf("the frames of one request hold more than %d bytes", MostUnpacked)
		}
		f.Data = make([]byte, size)
		if _, err := io.ReadFull(in, f.Data); err != nil {
			return nil, fmt.Errorf("the frame of %s is cut: %w", f.File, err)
		}
		frames = append(frames, f)
	}
}

func readHead(line []byte) (f Frame, size int, err error) {
	var h head
	if err := json.Unmarshal(line, &h); err != nil {
		return f, 0, fmt.Errorf("a frame's head is not JSON: %w", err)
	}
	switch kind := Kept(h.File); {
	case kind == Left:
		return f, 0, fmt.Errorf("%.80q is not a file of a record", h.File)
	case h.Whole != (kind == Replaced):
		return f, 0, fmt.Errorf("%s is sent in the wrong way: whole files are replaced, "+
			"others grow", h.File)
	case h.At < 0 || h.Whole && h.At != 0:
		return f, 0, errors.New("a frame begins at an impossible place")
	}
	return Frame{File: h.File, At: h.At, Whole: h.Whole}, h.Size, nil
}

// Hello is how a sender names its run.
type Hello struct {
	Key  string `json:"key"` // made up by the sender: 32 hexadecimal digits
	ID   string `json:"id"`  // of the run on its machine
	Host string `json:"host"`
	Now  int64  `json:"now_ms"` // by the sender's clock, since 1970
}

// Welcome is the answer to a [Hello].
type Welcome struct {
	ID string `json:"id"` // of the run at the server
	// Files is how much of each is kept. Replaced files are not listed.
	Files map[string]int64 `json:"files"`
	// Own means that the server reads the run's folder itself: nothing needs to be sent.
	Own bool `json:"own,omitempty"`
}

var keyForm = lazyregexp.New(`^[0-9a-f]{32}$`)

// ValidKey reports whether a text has the form of a key.
func ValidKey(key string) bool { return keyForm.MatchString(key) }
