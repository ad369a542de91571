package diagnose

import (
	"cmp"
	"slices"

	"memroom/event"
)

// addressRange is a piece of a device's address space.
type addressRange struct{ begin, end uint64 }

// freeAt returns the longest free piece inside the memory that was reserved after the entry at, and
// the number of free pieces. With a stream it looks only at memory of that stream, as the allocator
// does.
func (l *Ledger) freeAt(at int32, stream *uint64) (largest int64, pieces int) {
	reserved := l.reservedAt(at, stream)
	live := make([]addressRange, 0, 1024)
	for i := range l.Allocs {
		if a := &l.Allocs[i]; a.LiveAt(at) {
			live = append(live, addressRange{a.Addr, a.Addr + uint64(a.Size())})
		}
	}
	slices.SortFunc(live, func(x, y addressRange) int { return cmp.Compare(x.begin, y.begin) })
	next := 0
	for _, r := range reserved {
		for next < len(live) && live[next].begin < r.begin {
			next++
		}
		free := r.begin
		for ; next < len(live) && live[next].begin < r.end; next++ {
			if gap := int64(live[next].begin) - int64(free); gap > 0 {
				largest, pieces = max(largest, gap), pieces+1
			}
			free = max(free, live[next].end)
		}
		if free < r.end {
			largest, pieces = max(largest, int64(r.end-free)), pieces+1
		}
	}
	return largest, pieces
}

// reservedAt lists the reserved ranges by address. Neighbouring pages of expandable segments are
// one range: a block may span them.
func (l *Ledger) reservedAt(at int32, stream *uint64) []addressRange {
	var spans []SegmentSpan
	for _, s := range l.Segments {
		if s.Start <= at && s.End > at && (stream == nil || s.Stream == *stream) {
			spans = append(spans, s)
		}
	}
	slices.SortFunc(spans, func(x, y SegmentSpan) int { return cmp.Compare(x.Addr, y.Addr) })
	var ranges []addressRange
	for i, s := range spans {
		end := s.Addr + uint64(s.Size)
		if n := len(ranges); i > 0 && s.Expandable && spans[i-1].Expandable &&
			ranges[n-1].end == s.Addr && spans[i-1].Stream == s.Stream {
			ranges[n-1].end = end
			continue
		}
		ranges = append(ranges, addressRange{s.Addr, end})
	}
	return ranges
}

// explainOOMs fills in what was held and what was missing at each failed request.
func (l *Ledger) explainOOMs(reservedPeak event.Bytes) []OOMEvent {
	const most = 100 // a program that catches the error may fail thousands of times
	ooms := slices.Clone(l.OOMs)
	if len(ooms) > most {
		ooms = append(ooms[:most-1], ooms[len(ooms)-1])
	}
	for i := range ooms {
		o := &ooms[i]
		for j := range l.Allocs {
			a := &l.Allocs[j]
			if a.LiveAt(o.At) {
				o.Allocated += event.Bytes(a.Size())
			}
			if a.Stack == o.Stack && a.Start < o.At && o.Stack != 0 {
				o.Category = a.Category
			}
		}
		for _, r := range l.reservedAt(o.At, nil) {
			o.Reserved += event.Bytes(r.end - r.begin)
		}
		largest, _ := l.freeAt(o.At, &o.Stream)
		o.LargestFree = event.Bytes(largest)
		o.Frames = l.Frames(o.Stack)
		o.Categories = l.CategoriesAt(o.At)
		o.judge(reservedPeak)
	}
	return ooms
}

// judge distinguishes fragmentation from shortage. A process under a memory fraction fails while
// the card has plenty free. Then the limit is at least what was once reserved, and less than what
// this request would have made of it.
func (o *OOMEvent) judge(reservedPeak event.Bytes) {
	// the most it may have asked of the driver
	segment := max(20*event.MiB, event.Bytes(roundUp(int64(o.Request), int64(2*event.MiB))))
	o.Limited = o.DeviceFree >= segment
	o.Room = o.DeviceFree
	if o.Limited {
		o.LimitLow, o.LimitHigh = reservedPeak, o.Reserved+segment
		o.Room = max(0, min(o.LimitLow, o.LimitHigh)-o.Reserved)
	}
	available := o.Reserved - o.Allocated + o.Room
	o.Fragmented = available >= o.Request
	if !o.Fragmented {
		o.Missing = o.Request - available
	}
}

// Capacity is what could certainly be reserved when the request failed: the card's, or the lowest
// limit that explains it. A setting that needs more of a limit is not known to help.
func (o *OOMEvent) Capacity() event.Bytes {
	if o.Limited {
		return o.Reserved + o.Room
	}
	return o.Reserved + o.DeviceFree
}
