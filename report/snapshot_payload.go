package report

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"io"
	"slices"

	"memroom/allocsim"
	"memroom/diagnose"
	"memroom/event"
)

// A page lists at most this many blocks of a device one by one; the smallest of the others are
// summed up. It keeps the page of a recording with millions of events at some megabytes and its
// redraws instant.
const pageBlocks = 150_000

// pagePoints bounds the points of a curve.
const pagePoints = 8192

// pageDevice is one device as web/model.js reads it. Arrays are named in Arrays and follow the
// header as binary.
type pageDevice struct {
	Device   int                  `json:"device"`
	Entries  int                  `json:"entries"`
	Snapshot *pageSnapshot        `json:"snapshot"`
	WhatIf   *allocsim.Table      `json:"what_if,omitempty"`
	Stacks   [][]uint32           `json:"stacks"` // indexes into FrameTable, innermost first
	Frames   [][3]any             `json:"frameTable"`
	Omitted  int                  `json:"omitted"`  // blocks that are only summed up
	Smallest event.Bytes          `json:"smallest"` // of those that are listed
	Arrays   map[string]pageArray `json:"arrays"`
}

// pageSnapshot is the analysis without what the page computes for any moment itself.
type pageSnapshot struct {
	*diagnose.Snapshot
	Categories any       `json:"categories,omitempty"`
	Groups     any       `json:"groups,omitempty"`
	OOMs       []pageOOM `json:"ooms,omitempty"`
}

type pageOOM struct {
	diagnose.OOMEvent
	Text string `json:"text"`
}

type pageArray struct {
	Type   string `json:"type"` // f64, i32, u32, u8
	Offset int    `json:"offset"`
	Length int    `json:"length"`
}

// payloadWriter lays the arrays one after the other, each on a multiple of eight bytes as typed
// arrays need.
type payloadWriter struct{ data bytes.Buffer }

func addArray[T any](w *payloadWriter, arrays map[string]pageArray, name, kind string, values []T) {
	arrays[name] = pageArray{kind, w.data.Len(), len(values)}
	if len(values) > 0 {
		_ = binary.Write(&w.data, binary.LittleEndian, values) // a buffer does not fail
	}
	pad(&w.data)
}

func pad(b *bytes.Buffer) {
	for b.Len()%8 != 0 {
		b.WriteByte(0)
	}
}

// SnapshotData writes what a page of a snapshot is drawn from: the length of the header, the
// header, the arrays.
func SnapshotData(out io.Writer, file string, warnings []string, devices []Device) error {
	w := &payloadWriter{}
	header := struct {
		File     string       `json:"file"`
		Warnings []string     `json:"warnings,omitempty"`
		Devices  []pageDevice `json:"devices"`
	}{File: cleanText(file), Warnings: warnings}
	for _, d := range devices {
		header.Devices = append(header.Devices, w.device(d))
	}
	text, err := json.Marshal(header)
	if err != nil {
		return err
	}
	var head bytes.Buffer
	_ = binary.Write(&head, binary.LittleEndian, uint32(len(text)))
	head.Write(text)
	pad(&head)
	for _, part := range [][]byte{head.Bytes(), w.data.Bytes()} {
		if _, err := out.Write(part); err != nil {
			return err
		}
	}
	return nil
}

func (w *payloadWriter) device(d Device) pageDevice {
	s, l := d.Snapshot, d.Snapshot.Ledger()
	page := pageDevice{Device: s.Device, Entries: s.Entries, Snapshot: trimSnapshot(s),
		WhatIf: d.WhatIf, Arrays: map[string]pageArray{}}
	listed := w.blocks(&page, l)
	w.rest(&page, l, listed)
	w.segments(&page, l)
	w.reserved(&page, l)
	w.times(&page, l)
	return page
}

func trimSnapshot(s *diagnose.Snapshot) *pageSnapshot {
	page := &pageSnapshot{Snapshot: s}
	for _, o := range s.OOMs {
		page.OOMs = append(page.OOMs, pageOOM{o, oomSentence(o)})
	}
	return page
}

// choose returns which blocks are listed: all, or the largest.
func chooseBlocks(l *diagnose.Ledger) (smallest int64, include func(*diagnose.Allocation) bool) {
	if len(l.Allocs) <= pageBlocks {
		return 0, func(*diagnose.Allocation) bool { return true }
	}
	sizes := make([]int64, len(l.Allocs))
	for i := range l.Allocs {
		sizes[i] = l.Allocs[i].Size()
	}
	slices.Sort(sizes)
	// of equal ones all or none, so that the limit holds
	smallest = sizes[len(sizes)-pageBlocks] + 1
	return smallest, func(a *diagnose.Allocation) bool { return a.Size() >= smallest }
}

func (w *payloadWriter) blocks(page *pageDevice,
	l *diagnose.Ledger) func(*diagnose.Allocation) bool {
	smallest, include := chooseBlocks(l)
	stacks := stackTable{index: map[event.StackID]uint32{}, frames: map[event.Frame]uint32{}}
	var addr, size []float64
	var start, end []int32
	var stack []uint32
	var kind []uint8
	for i := range l.Allocs {
		a := &l.Allocs[i]
		if !include(a) {
			page.Omitted++
			continue
		}
		addr, size = append(addr, float64(a.Addr)), append(size, float64(a.Size()))
		start, end = append(start, a.Start), append(end, a.End)
		stack, kind = append(stack, stacks.add(l, a.Stack)), append(kind, uint8(a.Category))
	}
	page.Smallest, page.Stacks, page.Frames = event.Bytes(smallest), stacks.stacks, stacks.table
	addArray(w, page.Arrays, "addr", "f64", addr)
	addArray(w, page.Arrays, "size", "f64", size)
	addArray(w, page.Arrays, "start", "i32", start)
	addArray(w, page.Arrays, "end", "i32", end)
	addArray(w, page.Arrays, "stack", "u32", stack)
	addArray(w, page.Arrays, "kind", "u8", kind)
	return include
}

// stackTable numbers the stacks and frames that a page shows, from 0.
type stackTable struct {
	index  map[event.StackID]uint32
	frames map[event.Frame]uint32
	stacks [][]uint32
	table  [][3]any
}

func (t *stackTable) add(l *diagnose.Ledger, id event.StackID) uint32 {
	if n, ok := t.index[id]; ok {
		return n
	}
	n := uint32(len(t.stacks))
	t.index[id] = n
	refs := []uint32{}
	for _, f := range l.Frames(id) {
		ref, ok := t.frames[f]
		if !ok {
			ref = uint32(len(t.table))
			t.frames[f] = ref
			t.table = append(t.table, [3]any{f.File, f.Name, f.Line})
		}
		refs = append(refs, ref)
	}
	t.stacks = append(t.stacks, refs)
	return n
}

// rest is the curve of the blocks that are not listed, the highest value of each of its pieces.
func (w *payloadWriter) rest(page *pageDevice, l *diagnose.Ledger,
	listed func(*diagnose.Allocation) bool) {
	curve := newCurve(page.Entries)
	if page.Omitted > 0 {
		var sum int64
		next := 0
		enter := func(until int32) {
			for ; next < len(l.Allocs) && l.Allocs[next].Start <= until; next++ {
				if a := &l.Allocs[next]; !listed(a) {
					sum += a.Size()
					curve.add(max(a.Start, 0), sum)
				}
			}
		}
		for _, f := range l.Frees {
			if a := &l.Allocs[f]; !listed(a) {
				enter(a.End - 1)
				sum -= a.Size()
				curve.add(a.End, sum)
			}
		}
		enter(diagnose.Never)
	}
	addArray(w, page.Arrays, "restWhen", "i32", curve.when)
	addArray(w, page.Arrays, "restBytes", "f64", curve.value)
}

func (w *payloadWriter) segments(page *pageDevice, l *diagnose.Ledger) {
	segments := slices.Clone(l.Segments)
	if len(segments) > pageBlocks {
		slices.SortFunc(segments, func(x, y diagnose.SegmentSpan) int {
			return cmp.Compare(y.Size,
				x.Size)
		})
		segments = segments[:pageBlocks]
	}
	var addr, size []float64
	var start, end []int32
	var expandable []uint8
	for _, s := range segments {
		addr, size = append(addr, float64(s.Addr)), append(size, float64(s.Size))
		start, end = append(start, s.Start), append(end, s.End)
		flag := uint8(0)
		if s.Expandable {
			flag = 1
		}
		expandable = append(expandable, flag)
	}
	addArray(w, page.Arrays, "segAddr", "f64", addr)
	addArray(w, page.Arrays, "segSize", "f64", size)
	addArray(w, page.Arrays, "segStart", "i32", start)
	addArray(w, page.Arrays, "segEnd", "i32", end)
	addArray(w, page.Arrays, "segExpandable", "u8", expandable)
}

func (w *payloadWriter) reserved(page *pageDevice, l *diagnose.Ledger) {
	curve := newCurve(page.Entries)
	l.WalkReserved(func(at int32, reserved int64) { curve.add(max(at, 0), reserved) })
	addArray(w, page.Arrays, "reservedWhen", "i32", curve.when)
	addArray(w, page.Arrays, "reservedBytes", "f64", curve.value)
}

// times samples the clock, in seconds since the first entry.
func (w *payloadWriter) times(page *pageDevice, l *diagnose.Ledger) {
	var when []int32
	var value []float64
	for at := 0; at < l.Entries && l.FirstUS != 0; at += 1 + l.Entries/2048 {
		when = append(when, int32(at))
		value = append(value, l.SecondsAt(int32(at)))
	}
	addArray(w, page.Arrays, "timeWhen", "i32", when)
	addArray(w, page.Arrays, "timeSeconds", "f64", value)
}

// curve thins a step curve to a bounded number of points: of each piece of the recording its
// highest value is kept.
type curve struct {
	piece int32 // entries that share a point
	when  []int32
	value []float64
}

func newCurve(entries int) *curve { return &curve{piece: int32(max(1, entries/pagePoints))} }

func (c *curve) add(at int32, bytes int64) {
	n := len(c.when)
	if n > 0 && c.when[n-1]/c.piece == at/c.piece && c.piece > 1 {
		c.value[n-1] = max(c.value[n-1], float64(bytes))
		return
	}
	c.when, c.value = append(c.when, at), append(c.value, float64(bytes))
}
