package plan

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"

	"memroom/event"
)

const (
	rehearsalFormat  = "memroom-rehearsal"
	rehearsalVersion = 1
	maxRehearsalLine = 1 << 20
	maxRehearsalOps  = 50_000_000
)

// ReadRehearsal reads the record that the probe wrote (docs/format/rehearsal.md). It trusts
// nothing: a record that was cut off, names allocations twice or frees what it never made is an
// error with the line's number.
func ReadRehearsal(in io.Reader) (*Rehearsal, error) {
	r := &rehearsalReader{out: &Rehearsal{Timeline: event.Timeline{Tags: []event.Tag{{}}}},
		live: map[int64]int32{}, tags: map[int64]int32{}}
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 0, 64<<10), maxRehearsalLine)
	for lines.Scan() {
		r.line++
		if err := r.read(bytes.TrimSpace(lines.Bytes())); err != nil {
			return nil, unusable(r.line, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, unusable(r.line+1, err)
	}
	if !r.ended {
		return nil,
			fmt.Errorf("rehearsal: the record breaks off after %d lines: the script was killed, or its disk "+
				"is full", r.line)
	}
	return r.out, nil
}

func unusable(line int, err error) error {
	return fmt.Errorf("rehearsal: the record cannot be used, line %d: %w; rehearse again", line, err)
}

// rehearsalReader is the state of one read.
type rehearsalReader struct {
	out   *Rehearsal
	line  int
	ended bool
	live  map[int64]int32 // the record's allocation number -> our ID, -1 once freed
	tags  map[int64]int32
	next  int32
}

func (r *rehearsalReader) read(line []byte) error {
	switch {
	case r.line == 1:
		return r.head(line)
	case r.ended:
		return fmt.Errorf("something follows the end")
	case len(line) > 0 && line[0] == '{':
		return r.end(line)
	}
	var fields []json.RawMessage
	if err := json.Unmarshal(line, &fields); err != nil || len(fields) == 0 {
		return fmt.Errorf("not an event: %.60q", line)
	}
	if len(r.out.Timeline.Ops) >= maxRehearsalOps {
		return fmt.Errorf("more than %d events: rehearse fewer --steps", maxRehearsalOps)
	}
	switch kind := string(fields[0]); kind {
	case `"t"`:
		return r.tag(fields)
	case `"a"`:
		return r.alloc(fields)
	case `"f"`:
		return r.free(fields)
	case `"w"`:
		return r.larger(fields)
	case `"m"`:
		return r.mark(fields)
	case `"e"`:
		r.add(event.Op{Kind: event.OpEmptyCache})
		return nil
	default:
		return fmt.Errorf("unknown kind of event %.20s", kind)
	}
}

func (r *rehearsalReader) head(line []byte) error {
	var head struct {
		Format    string
		Version   int
		Torch     string
		Other     string
		Allocator string
	}
	if err := json.Unmarshal(line, &head); err != nil || head.Format != rehearsalFormat {
		return fmt.Errorf("not a record of a rehearsal")
	}
	if head.Version != rehearsalVersion {
		return fmt.Errorf("version %d of the format; this memroom reads version %d", head.Version,
			rehearsalVersion)
	}
	if head.Allocator != "" && head.Allocator != allocatorBFC {
		return fmt.Errorf("unknown allocator %.40q", head.Allocator)
	}
	r.out.Torch, r.out.Other, r.out.Allocator = head.Torch, head.Other, head.Allocator
	return nil
}

func (r *rehearsalReader) end(line []byte) error {
	var last struct {
		End struct {
			Reason   string
			Error    string
			Steps    int
			Files    []string
			Folders  []string
			Warnings []struct {
				Text  string
				Count int
			}
			Facts struct {
				DNN          bool  `json:"cudnn"`
				BLAS         *bool `json:"cublas"`
				Collectives  bool
				Convolutions bool
				Half         bool `json:"half_convolutions"`
				Recurrent    bool
				Benchmark    bool
				Scaled       bool
				Compiled     bool
				Graphs       bool
			}
		}
	}
	if err := json.Unmarshal(line, &last); err != nil {
		return fmt.Errorf("the end: %w", err)
	}
	e := last.End
	r.ended = true
	r.out.Reason, r.out.Error, r.out.Steps = e.Reason, e.Error, e.Steps
	r.out.Files, r.out.Folders = e.Files, e.Folders
	r.out.UsesDNN, r.out.Estimated = e.Facts.DNN, e.Facts.Convolutions || e.Facts.Recurrent
	r.out.Conv, r.out.HalfConv = e.Facts.Convolutions, e.Facts.Half
	r.out.Compiled = e.Facts.Compiled
	r.out.Graphs = e.Facts.Graphs
	r.out.Tries, r.out.Scaled = e.Facts.Benchmark, e.Facts.Scaled
	r.out.NoBLAS, r.out.Grouped = e.Facts.BLAS != nil && !*e.Facts.BLAS, e.Facts.Collectives
	for _, w := range e.Warnings {
		text := w.Text
		if w.Count > 1 {
			text += " (" + strconv.Itoa(w.Count) + " times)"
		}
		r.out.Warnings = append(r.out.Warnings, text)
	}
	return nil
}

func (r *rehearsalReader) tag(f []json.RawMessage) error {
	number, err := integer(f, 1)
	if err != nil {
		return err
	}
	var tag event.Tag
	for i, into := range []any{&tag.Category, &tag.Op, &tag.Module} {
		if len(f) <= i+2 || json.Unmarshal(f[i+2], into) != nil {
			return fmt.Errorf("a tag needs a category, an operation and a module")
		}
	}
	if len(f) > 5 && json.Unmarshal(f[5], &tag.Line) != nil {
		return fmt.Errorf("a tag's line is not a text")
	}
	r.tags[number] = int32(len(r.out.Timeline.Tags))
	r.out.Timeline.Tags = append(r.out.Timeline.Tags, tag)
	return nil
}

// identAndSize returns the first two numbers of a line about an allocation.
func identAndSize(f []json.RawMessage) (ident, size int64, err error) {
	if ident, err = integer(f, 1); err == nil {
		size, err = integer(f, 2)
	}
	return ident, size, err
}

func (r *rehearsalReader) alloc(f []json.RawMessage) error {
	ident, size, err := identAndSize(f)
	if err != nil {
		return err
	}
	tag, err := integer(f, 3)
	if err != nil {
		return err
	}
	if _, known := r.live[ident]; known {
		return fmt.Errorf("allocation %d is made twice", ident)
	}
	if size <= 0 || size > 1<<50 {
		return fmt.Errorf("allocation %d has the impossible size %d", ident, size)
	}
	op := event.Op{Kind: event.OpAlloc, Size: size, ID: r.next, Tag: r.tags[tag]}
	if len(f) > 4 {
		stream, err := integer(f, 4)
		if err != nil || stream < 0 || stream > math.MaxInt32 {
			return fmt.Errorf("allocation %d has no stream number", ident)
		}
		op.Stream = int32(stream)
	}
	r.live[ident] = r.next
	r.next++
	r.add(op)
	return nil
}

func (r *rehearsalReader) larger(f []json.RawMessage) error {
	ident, size, err := identAndSize(f)
	if err != nil {
		return err
	}
	id, known := r.live[ident]
	if !known || id < 0 || size <= 0 || size > 1<<50 {
		return fmt.Errorf("allocation %d cannot be %d bytes instead", ident, size)
	}
	if r.out.Larger == nil {
		r.out.Larger = map[int32]int64{}
	}
	r.out.Larger[id] = size
	return nil
}

func (r *rehearsalReader) free(f []json.RawMessage) error {
	ident, err := integer(f, 1)
	if err != nil {
		return err
	}
	id, known := r.live[ident]
	if !known || id < 0 {
		return fmt.Errorf("allocation %d is freed without being live", ident)
	}
	r.live[ident] = -1
	r.add(event.Op{Kind: event.OpFree, ID: id})
	return nil
}

func (r *rehearsalReader) mark(f []json.RawMessage) error {
	step, err := integer(f, 1)
	if err != nil {
		return err
	}
	var phase string
	if len(f) < 3 || json.Unmarshal(f[2], &phase) != nil {
		return fmt.Errorf("a mark needs a phase")
	}
	r.out.Timeline.Marks = append(r.out.Timeline.Marks, event.Mark{At: len(r.out.Timeline.Ops),
		Step: int(step), Phase: phase})
	return nil
}

func (r *rehearsalReader) add(op event.Op) { r.out.Timeline.Ops = append(r.out.Timeline.Ops, op) }

func integer(f []json.RawMessage, i int) (int64, error) {
	if i >= len(f) {
		return 0, fmt.Errorf("the event has %d fields, number %d is missing", len(f), i+1)
	}
	n, err := strconv.ParseInt(string(f[i]), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("field %d is not a whole number", i+1)
	}
	return n, nil
}
