package diagnose

import (
	"cmp"
	"slices"

	"memroom/event"
	"memroom/trace"
)

// BFCState is TensorFlow's allocator at the moment a request failed.
type BFCState struct {
	Allocator string `json:"allocator"`
	Allocs    int64  `json:"allocs"`
	// runs of neighbouring chunks; two regions that touch count as one
	Regions      int         `json:"regions"`
	Pool         event.Bytes `json:"pool"` // taken from the driver
	InUse        event.Bytes `json:"in_use"`
	PeakInUse    event.Bytes `json:"peak_in_use"`
	Requested    event.Bytes `json:"requested"` // what the program asked for, of what is in use
	Free         event.Bytes `json:"free"`
	FreePieces   int         `json:"free_pieces"`
	LargestFree  event.Bytes `json:"largest_free"`
	LargestAlloc event.Bytes `json:"largest_alloc"`
	// part of the free pool that is not in the largest free chunk
	Fragmentation float64   `json:"fragmentation"`
	Sizes         []BFCSize `json:"sizes"` // chunks in use by size, most bytes first
}

// BFCSize is how many chunks of one size are in use.
type BFCSize struct {
	Size   event.Bytes `json:"size"`
	Chunks int         `json:"chunks"`
	Bytes  event.Bytes `json:"bytes"`
}

// AnalyseBFC reads TensorFlow's dump.
func AnalyseBFC(d *trace.BFCDump) *BFCState {
	s := &BFCState{Allocator: d.Allocator, Allocs: d.Allocs, PeakInUse: d.PeakInUse,
		LargestAlloc: d.LargestAlloc}
	counts := map[event.Bytes]int{}
	end := uint64(0)
	for i, c := range d.Chunks {
		if i == 0 || c.Addr != end {
			s.Regions++
		}
		end = c.Addr + uint64(c.Size)
		s.Pool += c.Size
		if !c.InUse {
			s.Free += c.Size
			s.FreePieces++
			s.LargestFree = max(s.LargestFree, c.Size)
			continue
		}
		s.InUse += c.Size
		s.Requested += c.Requested
		counts[c.Size]++
	}
	if s.Free > 0 {
		s.Fragmentation = float64(s.Free-s.LargestFree) / float64(s.Free)
	}
	for size, n := range counts {
		s.Sizes = append(s.Sizes, BFCSize{size, n, size * event.Bytes(n)})
	}
	slices.SortFunc(s.Sizes, func(x, y BFCSize) int {
		return cmp.Or(cmp.Compare(y.Bytes, x.Bytes),
			cmp.Compare(y.Size, x.Size))
	})
	return s
}
