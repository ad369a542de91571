// Package relay carries what a trial does through an output stream: somebody else's scheduler runs
// `memroom run --relay ID`, and the log of the job is all that comes back. Between the bytes of the
// program stand records of ours; taking them out leaves the program's bytes as they were.
package relay

import (
	"bytes"
	"encoding/json"
	"io"
	"math"

	"memroom/event"
	"memroom/trial"
)

// A record begins with ASCII's record separator, which no text has, and ends with its line.
const (
	separator = 0x1e
	word      = "memroom:"
	// longest record; what does not end by then is no record
	longest = 1 << 20
)

// Begin is where a trial runs.
type Begin struct {
	Host string `json:"host"`
	Run  string `json:"run"` // in the store of that host
	// Memory is what the machine, or the cgroup around the job, really has; 0: unknown.
	Memory event.Bytes `json:"memory,omitempty"`
}

// Less reports whether a node has less than a job was given there.
func (b Begin) Less(given event.Bytes) bool { return b.Memory > 0 && b.Memory < given }

// record is one line of ours. One field is set.
type record struct {
	Begin  *Begin              `json:"begin,omitempty"`
	Values map[string]*float64 `json:"values,omitempty"` // null: not a number
	Step   int                 `json:"step,omitempty"`
	Final  bool                `json:"final,omitempty"`
	Usage  *trial.Usage        `json:"usage,omitempty"`
	End    *trial.Outcome      `json:"end,omitempty"`
}

// Writer is the side of the trial. It has one user.
type Writer struct {
	Out io.Writer
	ID  string // of the attempt: a run inside the run may relay too

	told   event.Bytes // last peak that was written
	failed error
}

// Failed is the first error in writing.
func (w *Writer) Failed() error { return w.failed }

// Begin writes where the attempt runs.
func (w *Writer) Begin(b Begin) { w.write(record{Begin: &b}) }

// Happened hands on output or a report.
func (w *Writer) Happened(h trial.Happening) {
	if len(h.Output) > 0 {
		w.bytes(h.Output)
	}
	if h.Values == nil {
		return
	}
	values := map[string]*float64{}
	for name, v := range h.Values {
		values[name] = nil
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			values[name] = &v
		}
	}
	w.write(record{Values: values, Step: h.Step, Final: h.Final})
}

// Usage writes the memory, if it rose by a twentieth since the last time.
func (w *Writer) Usage(u trial.Usage) {
	most := max(u.Peak, u.Host) + u.Device
	if float64(most) < 1.05*float64(w.told) {
		return
	}
	w.told = most
	w.write(record{Usage: &u})
}

// End is how it ended.
func (w *Writer) End(o trial.Outcome) { w.write(record{End: &o}) }

func (w *Writer) write(r record) {
	data, err := json.Marshal(r)
	if err != nil {
		return
	}
	line := append([]byte{separator}, word+w.ID+" "...)
	w.bytes(append(append(line, data...), '\n'))
}

func (w *Writer) bytes(data []byte) {
	if _, err := w.Out.Write(data); err != nil && w.failed == nil {
		w.failed = err
	}
}

// Parser takes the stream apart again, in pieces of any size.
type Parser struct {
	ID    string
	Begun *Begin         // once it was read
	Usage trial.Usage    // last
	End   *trial.Outcome // once it was read

	rest []byte // may be the beginning of a record
}

// Feed takes bytes and returns what the trial did.
func (p *Parser) Feed(data []byte) []trial.Happening {
	data = append(p.rest, data...)
	p.rest = nil
	var out []trial.Happening
	plain := func(b []byte) {
		if len(b) > 0 {
			out = append(out, trial.Happening{Output: bytes.Clone(b), Step: -1})
		}
	}
	head := []byte(word + p.ID + " ")
	for {
		at := bytes.IndexByte(data, separator)
		if at < 0 {
			plain(data)
			return out
		}
		plain(data[:at])
		data = data[at:]
		body := data[1:]
		if !bytes.HasPrefix(body, head) {
			if len(body) < len(head) && bytes.HasPrefix(head, body) {
				p.rest = bytes.Clone(data)
				return out
			}
			plain(data[:1]) // the program's own
			data = body
			continue
		}
		end := bytes.IndexByte(body, '\n')
		if end < 0 && len(body) < longest {
			p.rest = bytes.Clone(data)
			return out
		}
		var r record
		if end < 0 || json.Unmarshal(body[len(head):end], &r) != nil {
			plain(data[:1])
			data = body
			continue
		}
		if h, ok := p.take(r); ok {
			out = append(out, h)
		}
		data = body[end+1:]
	}
}

// take keeps the content of a record, and returns a report for the caller to pass on.
func (p *Parser) take(r record) (h trial.Happening, ok bool) {
	switch {
	case r.Begin != nil:
		p.Begun = r.Begin
	case r.Usage != nil:
		p.Usage = *r.Usage
	case r.End != nil:
		p.End = r.End
	case r.Values != nil:
		h = trial.Happening{Values: map[string]float64{}, Step: r.Step, Final: r.Final}
		for name, v := range r.Values {
			h.Values[name] = math.NaN()
			if v != nil {
				h.Values[name] = *v
			}
		}
		return h, true
	}
	return h, false
}
