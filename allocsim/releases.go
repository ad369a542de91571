package allocsim

import (
	"math"
	"slices"

	"memroom/event"
)

// releaseRun is a run of segment_free and segment_unmap entries. The allocator makes them when a
// request does not fit, or when garbage collection is on; the program makes them by calling
// empty_cache. The trace does not record which of them it was, but the state shows it.
type releaseRun struct {
	entries   []SegmentAt
	all       []SegmentAt // what emptying the cache would have released at its beginning, in order
	reserved  int64       // before
	op        int         // operations in the timeline before
	grew      bool        // memory from the driver followed
	completed bool        // frees that waited for other streams completed since the last allocation
	retried   bool        // a retry was counted for the request that is under way
	// memory was released right before it, perhaps after its search for a free block
	released bool
}

func (v *verifier) beginRun() {
	if len(v.run.entries) > 0 {
		return
	}
	v.flushFree()
	v.run.all = v.a.emptyable()
	v.run.reserved = v.a.reserved
	if v.out.Timeline != nil {
		v.run.op = len(v.out.Timeline.Ops)
	}
}

// emptyable lists what EmptyCache would return.
func (a *Allocator) emptyable() (all []SegmentAt) {
	for _, p := range []*pool{&a.pools[0][large], &a.pools[0][small]} {
		var pages []SegmentAt
		for _, g := range p.groups {
			g.free.each(func(k *freeKey) {
				a.effort++
				b := &a.blocks[k.block]
				if seg := &a.segs[b.seg]; seg.expandable {
					if begin, end := seg.pagesInside(b); begin < end {
						pages = append(pages, SegmentAt{seg.base + begin, int64(end - begin),
							g.stream, p.small})
					}
				} else if b.whole() {
					all = append(all, SegmentAt{b.addr, b.size, g.stream, p.small})
				}
			})
		}
		all = append(all, pages...)
	}
	return all
}

// release notes memory that went back to the driver and returns the free block it is part of, 0 if
// there is none.
func (v *verifier) release(e *event.Entry) blockRef {
	ref := v.a.freeAround(e.Addr, e.Size)
	v.run.entries = append(v.run.entries, SegmentAt{e.Addr, e.Size, e.Stream,
		ref != 0 && v.a.groupOf(&v.a.blocks[ref]).pool.small})
	return ref
}

func (v *verifier) segmentFree(e *event.Entry) {
	v.beginRun()
	ref := v.release(e)
	if ref == 0 || !v.a.blocks[ref].whole() || v.a.blocks[ref].size != e.Size ||
		v.a.segs[v.a.blocks[ref].seg].expandable {
		v.differ("segment_free of %s at %#x: in the model this is not a free segment",
			event.Bytes(e.Size), e.Addr)
		return
	}
	v.a.returnSegment(ref)
}

func (v *verifier) segmentUnmap(e *event.Entry) {
	v.beginRun()
	ref := v.release(e)
	if ref == 0 || !v.a.segs[v.a.blocks[ref].seg].expandable {
		v.differ("segment_unmap of %s at %#x: in the model these pages are not free",
			event.Bytes(e.Size), e.Addr)
		return
	}
	v.a.unmapExactly(ref, e.Addr, e.Size)
	v.a.dropIfUnmapped(ref)
}

func (v *verifier) oom(e *event.Entry) {
	if !v.run.retried {
		v.a.stats.AllocRetries++ // it released nothing, so it left no trace
	}
	v.run.retried = false
	v.a.stats.OOMs++
	size := v.a.config.segmentSize(e.Size)
	v.failedWith(v.a.reserved + size)
	if v.out.Timeline != nil && e.Size > 0 && e.Size <= maxRequest {
		v.flushFree()
		v.out.Timeline.Ops = append(v.out.Timeline.Ops, event.Op{Kind: event.OpTry, Size: e.Size,
			Stream: v.streamRank(e.Stream)})
		v.requestBeforeCompletions()
	}
}

// failedWith notes that reserving this much in total was refused.
func (v *verifier) failedWith(reserved int64) {
	if v.out.LimitBelow == 0 || event.Bytes(reserved) < v.out.LimitBelow {
		v.out.LimitBelow = event.Bytes(reserved)
	}
}

// endRun decides what a run of releases was, once its outcome is known. When memory from the driver
// follows, the decision waits for the allocation that needed it, because only that entry has the
// size of the request.
func (v *verifier) endRun(next *event.Entry) {
	if len(v.run.entries) == 0 {
		return
	}
	switch next.Kind {
	case event.KindSegmentFree, event.KindSegmentUnmap:
		return
	case event.KindSegmentAlloc, event.KindSegmentMap:
		v.run.grew = true
		return
	case event.KindFreeCompleted:
		if v.pendingAt(next.Addr) {
			return // part of the same flush, which waits for all other streams
		}
	}
	run := v.run
	v.run.entries, v.run.all, v.run.grew = nil, nil, false
	v.run.released = next.Kind == event.KindAlloc
	switch {
	case next.Kind == event.KindOOM:
		v.judge(&run, next.Size, next)
	case next.Kind == event.KindAlloc && run.grew:
		v.judge(&run, v.a.config.Round(max(next.Size, 1)), next)
	default:
		v.emptiedCache(&run)
	}
}

func (v *verifier) pendingAt(addr uint64) bool {
	slot := v.blocks.find(addr)
	return slot != nil && v.a.live(slot.block, statePending) &&
		(v.deferred == nil || v.deferred.ID != slot.id)
}

// judge decides whether a run of releases before a request for s bytes was made by the allocator
// for it, or by the program.
func (v *verifier) judge(run *releaseRun, s int64, next *event.Entry) {
	needed := run.reserved + v.a.config.segmentSize(s)
	flush := run.isFlush()
	if run.wouldServe(&v.a.config, s, next.Stream) {
		v.emptiedCache(run)
		return
	}
	if next.Kind != event.KindOOM && !v.wouldFail(needed) {
		// Garbage collection takes whole segments of the large pool only.
		if v.a.config.GCThreshold == 0 || slices.ContainsFunc(run.entries,
			func(s SegmentAt) bool { return s.small }) {
			v.emptiedCache(run)
		}
		return
	}
	v.failedWith(needed)
	oversize, enough := v.oversizeFor(run, s, next.Stream)
	if flush && (next.Kind == event.KindOOM || !enough || !slices.Equal(run.entries, oversize)) {
		v.a.stats.AllocRetries++
		v.run.retried = true
	}
}

// requestBeforeCompletions moves the request just written down in front of the completions of frees
// right before it. They were part of the flush that this request caused, which waits for all other
// streams: the search for a free block, which comes first, did not see those blocks.
func (v *verifier) requestBeforeCompletions() {
	if v.out.Timeline == nil {
		return
	}
	ops := v.out.Timeline.Ops
	last := len(ops) - 1
	at := last
	for at > 0 && ops[at-1].Kind == event.OpFreeDone {
		at--
	}
	request := ops[last]
	v.a.effort += int64(last - at)
	copy(ops[at+1:], ops[at:last])
	ops[at] = request
}

// wouldServe reports whether a request would have been given one of the released blocks, had it
// come before the release: then it was not this request that made the allocator release them.
func (r *releaseRun) wouldServe(c *Config, s int64, stream uint64) bool {
	if r.completed {
		return false // some were released only because the flush waited for other streams
	}
	best := int64(math.MaxInt64)
	for _, seg := range r.entries {
		if seg.stream == stream && seg.small == (s <= smallLimit) && seg.Size >= s {
			best = min(best, seg.Size)
		}
	}
	if s < int64(c.MaxSplit) {
		return best < int64(c.MaxSplit) && best != math.MaxInt64
	}
	return best-s < int64(c.MaxNonSplitRounding)
}

// wouldFail reports whether reserving this much in total can have been refused. Without the limit,
// the highest that reserved memory ever was is a lower bound of it.
func (v *verifier) wouldFail(reserved int64) bool {
	if v.opts.Limit > 0 {
		return reserved > int64(v.opts.Limit)
	}
	return reserved > v.peakReserved
}

// isFlush reports whether everything that could be released was.
func (r *releaseRun) isFlush() bool {
	if len(r.entries) < len(r.all) {
		return false
	}
	released := make(map[SegmentAt]bool, len(r.entries))
	for _, s := range r.entries {
		released[s] = true
	}
	for _, s := range r.all {
		if !released[s] {
			return false
		}
	}
	return true
}

// oversizeFor lists what max_split_size releases for a request before the cache is flushed (see
// releaseOversize), and reports whether that was enough for another attempt.
func (v *verifier) oversizeFor(run *releaseRun, s int64, stream uint64) (chosen []SegmentAt,
	enough bool) {
	least := int64(v.a.config.MaxSplit)
	want := max(s, least)
	var released int64
	for _, seg := range run.all {
		if seg.Size >= want && seg.stream == stream {
			return []SegmentAt{seg}, true
		}
	}
	for _, seg := range slices.Backward(run.all) {
		if seg.Size >= least && seg.stream == stream && released < want {
			chosen = append(chosen, seg)
			released += seg.Size
		}
	}
	return chosen, released >= want
}

// emptiedCache notes that the program called empty_cache.
func (v *verifier) emptiedCache(run *releaseRun) {
	if t := v.out.Timeline; t != nil {
		v.a.effort += int64(len(t.Ops)-run.op) / 8
		t.Ops = slices.Insert(t.Ops, run.op, event.Op{Kind: event.OpEmptyCache})
	}
}
