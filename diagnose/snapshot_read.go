package diagnose

import (
	"fmt"

	"memroom/allocsim"
	"memroom/event"
	"memroom/trace"
)

// ReplaySnapshot checks a recording against the model of the allocator. It analyses the recording
// with what the model knows in addition: the size of every block and the state before the first
// entry. A recording that the model cannot follow is analysed all the same; then Replayed is nil
// and a warning has the reason.
func ReplaySnapshot(s *trace.Snapshot, rec *event.Recording) (*Snapshot, *allocsim.Replayed) {
	sizes := &BlockSizes{}
	replayed, err := allocsim.Replay(rec,
		allocsim.ReplayOptions{Timeline: rec.History.Len() <= MaxTimeline, Observe: sizes.observe})
	if err != nil {
		a := AnalyseSnapshot(LedgerOf(s, rec, nil))
		a.Warnings = append(a.Warnings,
			fmt.Sprintf("the model of the allocator cannot follow the recording (%v): sizes are rounded "+
				"requests", err))
		return a, nil
	}
	sizes.start = replayed.Start
	a := AnalyseSnapshot(LedgerOf(s, rec, sizes))
	if rec.CutOff {
		a.Warnings = append(a.Warnings,
			"the history breaks off before the moment of the file's list of live blocks, so that list is "+
				"left out: what follows counts from an empty allocator, and is too low if the recording began in "+
				"mid-run")
	}
	if !replayed.Exact() {
		a.Warnings = append(a.Warnings,
			fmt.Sprintf("the model of the allocator differs from the recording at %d of %d entries, first at "+
				"%d: sizes and other settings are approximate",
				replayed.Mismatches, replayed.Events, replayed.DivergedAt))
	}
	return a, replayed
}

// MaxTimeline is the longest recording whose requests are kept for trying other settings on them:
// about a hundred megabytes, and ten seconds for every useful setting.
const MaxTimeline = 3_000_000

// BlockSizes is what a replay learns about the blocks of a recording, which itself only has the
// requested sizes.
type BlockSizes struct {
	start     []event.Segment // the state before the first entry
	blocks    []uint32        // of each allocation in order, in units of 512 bytes; 0 is not known
	allocated int64
}

// observe notes how much an entry added to the allocated bytes. Index 0 begins a new pass over the
// recording.
func (b *BlockSizes) observe(index int, e *event.Entry, a *allocsim.Allocator) {
	now := a.Stats().All.AllocatedBytes.Current
	if index == 0 {
		// not known exactly: the first one is checked below
		b.blocks, b.allocated = b.blocks[:0], now-e.Size
	}
	if e.Kind == event.KindAlloc {
		size := uint32(0)
		if grown := now - b.allocated; index > 0 && grown >= e.Size && grown>>9 < 1<<32 {
			size = uint32(grown >> 9)
		}
		b.blocks = append(b.blocks, size)
	}
	b.allocated = now
}

// next returns the size of the next allocation's block, in the order of the recording.
func (b *BlockSizes) next(i int) int64 {
	if b == nil || i >= len(b.blocks) {
		return 0
	}
	return int64(b.blocks[i]) << 9
}

// LedgerOf makes the table of one recording. With nil for sizes, blocks are taken as requests
// rounded up to 512 bytes.
func LedgerOf(s *trace.Snapshot, rec *event.Recording, sizes *BlockSizes) *Ledger {
	b := NewLedger(rec.Device, s.Stacks.Frames, notesOf(s, rec.Device))
	if sizes != nil {
		b.begin(sizes.start)
	}
	b.expect(countAllocs(rec))
	allocs := 0
	for _, e := range rec.History.All() {
		var block int64
		if e.Kind == event.KindAlloc {
			block = sizes.next(allocs)
			allocs++
		}
		b.Add(*e, block)
	}
	segments := rec.Segments
	// they are of a later moment than where the history breaks off: blocks made in between would
	// count as older
	if rec.CutOff {
		segments = nil
	}
	for i := range segments {
		segment := &segments[i]
		b.FinalSegment(spanOf(segment))
		for j := range segment.Blocks {
			if block := &segment.Blocks[j]; block.State == event.BlockActive {
				b.FinalBlock(block.Addr, block.Size, block.Requested, block.Stack)
			}
		}
	}
	return b.Finish()
}

func countAllocs(rec *event.Recording) (n int) {
	for _, e := range rec.History.All() {
		if e.Kind == event.KindAlloc {
			n++
		}
	}
	return n
}

func notesOf(s *trace.Snapshot, device int) (notes []Annotation) {
	for _, a := range s.Annotations {
		if a.Device == device {
			notes = append(notes, Annotation{Name: a.Name, Begin: a.Stage == "START",
				TimeUS: a.TimeUS})
		}
	}
	return notes
}

func spanOf(s *event.Segment) SegmentSpan {
	return SegmentSpan{Addr: s.Addr, Size: s.Size, Stream: s.Stream, Pool: s.Pool,
		Expandable: s.Expandable}
}
