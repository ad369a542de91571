package report

import (
	"fmt"

	"memroom/diagnose"
	"memroom/event"
)

// BFCText writes the report about a TensorFlow dump. sizes bounds the rows of the table.
func BFCText(t *Text, s *diagnose.BFCState, sizes int) {
	t.linef("%s: TensorFlow's allocator when a request failed, after %s",
		t.paint("1", cleanText(s.Allocator)), counted(int(s.Allocs), "allocation", "allocations"))
	t.heading("Memory")
	t.table([]string{"what", ">bytes", ""}, [][]string{
		{"taken from the driver", s.Pool.String(), counted(s.Regions, "region", "regions")},
		{"in use", s.InUse.String(),
			fmt.Sprintf("highest %s; %s of it asked for, the rest is rounding", s.PeakInUse,
				s.Requested)},
		{"free", s.Free.String(), fmt.Sprintf("in %s, the longest %s",
			counted(s.FreePieces, "piece", "pieces"), s.LargestFree)},
	})
	t.linef("  %s", bfcVerdict(s))
	if len(s.Sizes) == 0 || sizes == 0 {
		return
	}
	t.heading("Chunks in use, by size")
	var rows [][]string
	var rest event.Bytes
	for i, size := range s.Sizes {
		if i < sizes {
			rows = append(rows, []string{size.Bytes.String(),
				percent(float64(size.Bytes), float64(s.InUse)), size.Size.String(),
				grouped(size.Chunks)})
		} else {
			rest += size.Bytes
		}
	}
	if rest > 0 {
		rows = append(rows, []string{rest.String(), percent(float64(rest), float64(s.InUse)),
			counted(len(s.Sizes)-sizes, "more size", "more sizes"), ""})
	}
	t.table([]string{">bytes", ">share", ">chunk", ">chunks"}, rows)
}

// bfcVerdict distinguishes fragmentation from shortage as far as a dump can: it does not hold the
// size of the failed request.
func bfcVerdict(s *diagnose.BFCState) string {
	switch {
	case s.Free*20 < s.Pool:
		return "The pool is full: this is shortage, not fragmentation."
	case s.Fragmentation > 0.5:
		return fmt.Sprintf("Fragmented: requests above %s fail although %s is free (%.0f %% of the free "+
			"memory is outside the longest piece).", s.LargestFree, s.Free, 100*s.Fragmentation)
	default:
		return fmt.Sprintf("Requests up to %s still fit into the pool.", s.LargestFree)
	}
}
