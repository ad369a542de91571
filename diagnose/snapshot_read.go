package diagnose

import (
	"memroom/event"
	"memroom/trace"
)

// LedgerOf makes the table of one recording. blocks gives the size of the block that the allocation at an entry got, or 0
// where it is not known; nil when nothing is.
func LedgerOf(s *trace.Snapshot, rec *event.Recording, blocks func(entry int) int64) *Ledger {
	var notes []Annotation
	for _, a := range s.Annotations {
		if a.Device == rec.Device {
			notes = append(notes, Annotation{Name: a.Name, Begin: a.Stage == "START", TimeUS: a.TimeUS})
		}
	}
	b := NewLedger(rec.Device, s.Stacks.Frames, notes)
	for i, e := range rec.History.All() {
		var block int64
		if blocks != nil && e.Kind == event.KindAlloc {
			block = blocks(i)
		}
		b.Add(*e, block)
	}
	for i := range rec.Segments {
		segment := &rec.Segments[i]
		b.FinalSegment(SegmentSpan{Addr: segment.Addr, Size: segment.Size, Stream: segment.Stream, Pool: segment.Pool, Expandable: segment.Expandable})
		for j := range segment.Blocks {
			if block := &segment.Blocks[j]; block.State == event.BlockActive {
				b.FinalBlock(block.Addr, block.Size, block.Requested, block.Stack)
			}
		}
	}
	return b.Finish()
}
