package allocsim

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"memroom/event"
)

// ReplayOptions control how a recording is checked.
type ReplayOptions struct {
	// Config and Version override those in the recording; nil and empty keep them.
	Config  *Config
	Version string
	// Limit is the cap on reserved bytes under which the recording was made, if known. A snapshot
	// does not store it; it only helps to distinguish the program's own calls of empty_cache from
	// the allocator's.
	Limit event.Bytes
	// Timeline asks for the requests as a timeline, for trying other settings on them.
	Timeline bool
	// Observe, when set, is called after each entry with the model's state.
	Observe func(index int, e *event.Entry, a *Allocator)

	against *Replayed // ends early where it explains the recording no better than this
}

// Replayed is what became of a recording that was checked against the model.
type Replayed struct {
	Config  Config
	Version Version
	Events  int
	Allocs  int

	// Mismatches counts entries that the model would have done otherwise, and blocks and segments
	// of the end state that differ. The recorded placement is then forced and the replay goes on.
	Mismatches int
	// index of the first such entry, Events if only the end state differs, -1 if nothing does
	DivergedAt  int
	Divergences []Divergence
	Placed      int // allocations in private pools, which were placed as recorded and not predicted

	Complete bool // the recording begins with an empty allocator
	Before   int  // blocks that were live before it began
	Inferred int  // of these, blocks whose size is not certain
	Warnings []string

	Stats           Stats
	AllocatedPeakAt int // index of the entry that reached the peak first
	ReservedPeakAt  int

	// LimitAtLeast and LimitBelow bracket the cap on reserved bytes where the recording shows
	// requests that failed at first; LimitBelow is 0 where it shows none.
	LimitAtLeast, LimitBelow event.Bytes

	// Timeline is what the program asked for; Prelude of its operations stand for blocks made
	// before the recording began.
	Timeline *event.Timeline
	Prelude  int
	// Mallocs are the segments that the driver gave, in order: see NewRecordedDriver.
	Mallocs []SegmentAt
	Start   []event.Segment // the state before the first entry

	streams []uint64 // the timeline numbers them in this order
	lowest  map[rangeKey]uint64
	manyAt  int // the entry at which it had differed manyMismatches times; 0 if it never had
}

// SegmentAt is a segment that cudaMalloc gave, or a mapped run.
type SegmentAt struct {
	Addr   uint64
	Size   int64
	stream uint64
	small  bool
}

// Exact reports whether the model did everything as recorded.
func (r *Replayed) Exact() bool { return r.Mismatches == 0 }

// Divergence is one entry that the model would have done otherwise.
type Divergence struct {
	At   int    `json:"at"`
	What string `json:"what"`
}

const maxDivergences = 20 // kept; all are counted

// ConfigOf returns the settings a recording was made with.
func ConfigOf(rec *event.Recording) (Config, error) {
	s := &rec.Settings
	c, err := ParseConf(s.Conf)
	if err != nil {
		c = DefaultConfig()
	}
	if !s.Known {
		c.Expandable = slices.ContainsFunc(rec.Segments,
			func(s event.Segment) bool { return s.Expandable })
		return c, err
	}
	c.MaxSplit, c.GCThreshold, c.Expandable = Unlimited, 0, s.Expandable
	switch {
	case s.MaxSplit >= int64(c.LargeSegment):
		c.MaxSplit = event.Bytes(s.MaxSplit)
	case s.MaxSplit > 0:
		err = fmt.Errorf("max_split_size is %s, below the segment size of %s",
			event.Bytes(s.MaxSplit), c.LargeSegment)
	}
	switch {
	case s.GCThreshold > 0 && s.GCThreshold < 1:
		c.GCThreshold = s.GCThreshold
	case s.GCThreshold != 0:
		err = fmt.Errorf("garbage_collection_threshold is %g, not between 0 and 1", s.GCThreshold)
	}
	for i := range c.Divisions {
		d, ok := s.Divisions[1<<i]
		switch {
		case ok && d >= 0 && d <= 1<<30 && bits.OnesCount(uint(d)) <= 1:
			c.Divisions[i] = d
		case ok:
			err = fmt.Errorf("roundup_power2_divisions has %d, not a power of two", d)
		}
	}
	return c, err
}

// Replay runs a recording through the model: every placement is predicted and compared, segments
// come and go as recorded. Where the recording's release is uncertain, the order of ties that
// explains it best is taken.
func Replay(rec *event.Recording, o ReplayOptions) (*Replayed, error) {
	r, err := replayOnce(rec, o)
	if err != nil || r.Exact() || o.Version != "" {
		return r, err
	}
	best, as := r, ""
	for _, version := range []string{"2.11", "2.12", "2.13"} {
		if v, _ := ParseVersion(version); v.ties() == r.Version.ties() {
			continue
		}
		try := ReplayOptions{Config: o.Config, Version: version, Limit: o.Limit, against: r}
		if other, err := replayOnce(rec, try); err == nil && other.Mismatches < best.Mismatches {
			best, as = other, version
		}
	}
	if best == r {
		return r, nil
	}
	known := r.Version
	o.Version = as
	if r, err = replayOnce(rec, o); err == nil {
		r.Warnings = append(r.Warnings, fmt.Sprintf("the keys look like torch %s, but the "+
			"placements are those of %s", known, as))
	}
	return r, err
}

// manyMismatches is when an order of ties must show that it explains a recording: the right one
// has differed less than half as often by then as the wrong one.
const manyMismatches = 1000

var errNoBetter = errors.New("another order of ties explains the recording no better")

func replayOnce(rec *event.Recording, o ReplayOptions) (*Replayed, error) {
	if !tidy(rec.Segments) {
		copied := *rec
		copied.Segments, copied.CutOff = nil, true
		rec = &copied
	}
	v := &verifier{rec: rec, opts: o, blocks: newAddrTable(), out: &Replayed{DivergedAt: -1}}
	if err := v.prepare(); err != nil {
		return nil, err
	}
	for i, e := range rec.History.All() {
		v.at = i
		if v.a.overworked(i) {
			return nil, errOverworked
		}
		if o.against != nil && i == o.against.manyAt && v.out.Mismatches > manyMismatches/2 {
			return nil, errNoBetter
		}
		v.step(e)
		v.notePeaks()
		if o.Observe != nil {
			o.Observe(i, e, v.a)
		}
	}
	v.finish()
	return v.out, nil
}

// survey is what one pass over the entries finds.
type survey struct {
	net     int64 // reserved bytes at the end minus those at the start
	top     int64 // highest reserved bytes, relative to the start
	lowest  map[rangeKey]uint64
	streams []uint64
	stacks  event.StackID
	kinds   [16]int
	lastSeg map[uint64]int // index of the last segment_alloc at a base that ends in a private pool
}

func (v *verifier) look() *survey {
	s := &survey{lowest: map[rangeKey]uint64{}, lastSeg: map[uint64]int{}}
	private := map[uint64]bool{}
	for _, seg := range v.rec.Segments {
		s.addStream(seg.Stream)
		for _, b := range seg.Blocks {
			s.stacks = max(s.stacks, b.Stack)
		}
		if seg.Pool != (event.PoolID{}) {
			private[seg.Addr] = true
		}
	}
	for i, e := range v.rec.History.All() {
		if !plausible(e) || s.net+e.Size > maxTotal || s.net-e.Size < -maxTotal {
			continue
		}
		s.kinds[e.Kind&15]++
		s.stacks = max(s.stacks, e.Stack)
		if e.Kind != event.KindSnapshot {
			s.addStream(e.Stream)
		}
		switch e.Kind {
		case event.KindSegmentAlloc:
			s.net += e.Size
			if private[e.Addr] {
				s.lastSeg[e.Addr] = i
			}
		case event.KindSegmentMap:
			s.net += e.Size
			k := rangeKey{e.Stream, e.Pool, e.Size == smallSegment}
			if at, ok := s.lowest[k]; !ok || e.Addr < at {
				s.lowest[k] = e.Addr
			}
		case event.KindSegmentFree, event.KindSegmentUnmap:
			s.net -= e.Size
		}
		s.top = max(s.top, s.net)
	}
	return s
}

func (s *survey) addStream(stream uint64) {
	if n := len(s.streams); n > 0 && s.streams[n-1] == stream {
		return
	}
	if i, found := slices.BinarySearch(s.streams, stream); !found && len(s.streams) < maxStreams {
		s.streams = slices.Insert(s.streams, i, stream)
	}
}

const maxStreams = 4096

// verifier is the state of one Replay.
type verifier struct {
	rec    *event.Recording
	opts   ReplayOptions
	a      *Allocator
	blocks *addrTable
	out    *Replayed
	survey *survey
	at     int // index of the current entry

	growth  []event.Entry // segment entries that wait for the allocation they were made for
	came    int64         // bytes of all segment entries so far
	run     releaseRun
	private bool // private pools exist
	skipped bool // free_completed entries were not recorded

	allocatedPeak, reservedPeak int64
	peakReserved                int64 // over the whole recording, known from the survey

	ids      int32
	deferred *event.Op // an OpFree that may yet turn out to be pending
	loaded   uint64    // births and orders up to here are of loaded blocks, in unknown order
	learned  int
	// uncertain has the blocks whose size is not known exactly, by address, and how much larger
	// they may be.
	uncertain map[uint64]int64
}

func (v *verifier) prepare() error {
	c, err := ConfigOf(v.rec)
	if err != nil {
		v.warn("the recording's allocator settings make no sense, so defaults are assumed: %v", err)
	}
	if v.opts.Config != nil {
		c = *v.opts.Config
	}
	version := v.opts.Version
	if version == "" {
		version = v.rec.Version
	}
	if v.a, err = New(Options{Config: c, Version: version,
		Driver: NewAscendingDriver()}); err != nil {
		return err
	}
	v.out.Config, v.out.Version, v.out.Events = c, v.a.ver, v.rec.History.Len()
	v.survey = v.look()
	v.out.streams = v.survey.streams
	v.out.lowest = map[rangeKey]uint64{}
	for k, addr := range v.survey.lowest {
		k.stream = uint64(v.out.streamRank(k.stream))
		v.out.lowest[k] = addr
	}
	if v.opts.Timeline {
		v.out.Timeline = &event.Timeline{Tags: make([]event.Tag, v.survey.stacks+1)}
		for i := range v.out.Timeline.Tags {
			v.out.Timeline.Tags[i].Stack = event.StackID(i)
		}
	}
	v.checkKinds()
	v.begin(&c)
	return nil
}

// begin loads the state before the first entry.
func (v *verifier) begin(c *Config) {
	var end int64
	for _, s := range v.rec.Segments {
		end += s.Size
		v.private = v.private || s.Pool != event.PoolID{}
	}
	before := end - v.survey.net
	switch {
	case v.rec.CutOff:
		v.warn("the recording's segments are damaged or newer than its history: its beginning is taken " +
			"as empty and its end is not compared")
		if !v.rec.Settings.Known {
			v.warn("the allocator's settings stand behind the history in the file and are lost: the default " +
				"ones are assumed")
		}
		before = 0
		v.out.Complete = true
	case before == 0:
		v.out.Complete = true
	default:
		start, uncertain, odd := rewind(v.rec, c)
		if odd > 0 {
			v.warn("%d entries contradict the segments at the end; other threads may have allocated while "+
				"the snapshot was taken", odd)
		}
		v.out.Inferred = len(uncertain)
		v.uncertain = uncertain
		v.out.Start = start
		v.a.load(start, v.survey.lowest, v.loadBlock)
		if v.out.Timeline != nil {
			v.out.Prelude = len(v.out.Timeline.Ops)
		}
	}
	v.loaded = max(v.a.births, v.a.orders)
	v.peakReserved = max(before, 0) + v.survey.top
	v.allocatedPeak, v.reservedPeak = v.a.stats.All.AllocatedBytes.Peak,
		v.a.stats.All.ReservedBytes.Peak
}

// loadBlock notes a block that was live before the recording began.
func (v *verifier) loadBlock(from event.Block, b Block) {
	v.out.Before++
	v.blocks.put(from.Addr, b, v.ids)
	g := v.a.groupOf(&v.a.blocks[b.ref])
	v.addOp(event.Op{Kind: event.OpAlloc, ID: v.ids, Size: max(from.Requested, 1),
		Tag: int32(from.Stack)}, g)
	if from.State == event.BlockPending {
		v.addOp(event.Op{Kind: event.OpFreePending, ID: v.ids}, g)
	}
	v.ids++
}

// checkKinds warns of recordings in which whole kinds of entries are missing.
func (v *verifier) checkKinds() {
	k := &v.survey.kinds
	if k[event.KindAlloc] > 0 && k[event.KindFreeRequested]+k[event.KindFreeCompleted] == 0 &&
		k[event.KindAlloc] > 100 {
		v.warn("the recording has no frees: either nothing was freed, or they were skipped when it was " +
			"made")
	}
	pending := 0
	for _, seg := range v.rec.Segments {
		for _, b := range seg.Blocks {
			pending += int(b.State) / int(event.BlockPending)
		}
	}
	if v.skipped = k[event.KindFreeRequested] > pending &&
		k[event.KindFreeCompleted] == 0; v.skipped {
		v.warn("the recording has no free_completed entries: frees are taken as complete when they were " +
			"asked for")
	}
}

func (v *verifier) warn(format string, args ...any) {
	v.out.Warnings = append(v.out.Warnings, fmt.Sprintf(format, args...))
}

// differ counts an entry that the model would have done otherwise.
func (v *verifier) differ(format string, args ...any) {
	if v.out.Mismatches++; v.out.Mismatches == manyMismatches {
		v.out.manyAt = v.at
	}
	if v.out.DivergedAt < 0 {
		v.out.DivergedAt = v.at
	}
	if len(v.out.Divergences) < maxDivergences {
		v.out.Divergences = append(v.out.Divergences, Divergence{v.at,
			fmt.Sprintf(format, args...)})
	}
}

// plausible reports whether an entry's numbers can be those of an allocator, because a file may
// hold anything. Segments and pages that come or go without a byte would leave blocks of no size.
func plausible(e *event.Entry) bool {
	switch e.Kind {
	case event.KindSegmentAlloc, event.KindSegmentMap, event.KindSegmentFree,
		event.KindSegmentUnmap:
		if e.Size == 0 {
			return false
		}
	}
	return e.Size >= 0 && e.Size <= maxRequest && e.Addr < 1<<62
}

// tidy reports whether segments are in order, apart from each other, and made of blocks without
// gaps.
func tidy(segments []event.Segment) bool {
	var end uint64
	var total int64
	for i := range segments {
		s := &segments[i]
		if s.Size <= 0 || s.Size > maxRequest || s.Addr >= 1<<62 || s.Addr < end {
			return false
		}
		if total += s.Size; total > maxTotal {
			return false
		}
		end = s.Addr
		for _, b := range s.Blocks {
			if b.Addr != end || b.Size <= 0 || b.Size > s.Size || b.Requested > maxRequest ||
				b.Requested < 0 {
				return false
			}
			end += uint64(b.Size)
		}
		if end != s.Addr+uint64(s.Size) {
			return false
		}
	}
	return true
}

func (v *verifier) step(e *event.Entry) {
	if !plausible(e) {
		v.differ("%s of %d bytes at %#x makes no sense", e.Kind, e.Size, e.Addr)
		return
	}
	v.endRun(e)
	switch e.Kind {
	case event.KindAlloc:
		v.alloc(e)
		v.run.completed, v.run.retried, v.run.released = false, false, false
	case event.KindFreeRequested:
		v.freeRequested(e)
	case event.KindFreeCompleted:
		v.freeCompleted(e)
	case event.KindSegmentAlloc, event.KindSegmentMap:
		if v.came+e.Size > maxTotal {
			v.differ("%s of %s at %#x: more came in all than any card can give", e.Kind,
				event.Bytes(e.Size), e.Addr)
			return
		}
		v.came += e.Size
		grown := *e
		grown.Pool = v.poolOf(e)
		v.setExpandable(&grown)
		v.growth = append(v.growth, grown)
	case event.KindSegmentFree:
		v.dropGrowth()
		v.segmentFree(e)
	case event.KindSegmentUnmap:
		v.dropGrowth()
		v.segmentUnmap(e)
	case event.KindOOM:
		v.dropGrowth()
		v.oom(e)
	}
}

// setExpandable follows a program that switches expandable segments on or off while it runs.
func (v *verifier) setExpandable(e *event.Entry) {
	maps := e.Kind == event.KindSegmentMap
	if maps == v.a.config.Expandable || e.Pool != (event.PoolID{}) {
		return
	}
	v.a.config.Expandable = maps
	if v.survey.kinds[event.KindSegmentMap] > 0 && v.survey.kinds[event.KindSegmentAlloc] > 0 {
		v.warn("entry %d: expandable segments were switched during the run", v.at)
	}
}

// notePeaks remembers where the peaks were reached.
func (v *verifier) notePeaks() {
	s := &v.a.stats.All
	if s.AllocatedBytes.Peak > v.allocatedPeak {
		v.allocatedPeak, v.out.AllocatedPeakAt = s.AllocatedBytes.Peak, v.at
	}
	if s.ReservedBytes.Peak > v.reservedPeak {
		v.reservedPeak, v.out.ReservedPeakAt = s.ReservedBytes.Peak, v.at
	}
}

// poolOf returns the pool that an entry's segment belongs to. Entries name it since 2.12; before,
// only the segments that are left at the end do.
func (v *verifier) poolOf(e *event.Entry) event.PoolID {
	if e.Pool != (event.PoolID{}) || !v.private {
		return e.Pool
	}
	if last, ok := v.survey.lastSeg[e.Addr]; e.Kind == event.KindSegmentAlloc &&
		(!ok || last != v.at) {
		return event.PoolID{}
	}
	i, found := slices.BinarySearchFunc(v.rec.Segments, e.Addr,
		func(s event.Segment, addr uint64) int {
			switch {
			case s.Addr+uint64(s.Size) <= addr:
				return -1
			case s.Addr > addr:
				return 1
			}
			return 0
		})
	if !found {
		return event.PoolID{}
	}
	return v.rec.Segments[i].Pool
}

func (v *verifier) finish() {
	v.flushFree()
	v.endRun(&event.Entry{Kind: event.KindSnapshot})
	v.dropGrowth()
	v.at = v.out.Events
	v.out.Stats = v.a.stats
	v.out.LimitAtLeast = event.Bytes(v.peakReserved)
	if !v.rec.CutOff && (len(v.rec.Segments) > 0 || v.a.reserved > 0) {
		v.compareEnd()
	}
	if v.learned > 0 {
		v.warn("the size or order of blocks older than the recording was learnt from %d choices it "+
			"shows", v.learned)
	}
}

// compareEnd compares the model's state with the recorded one, block by block.
func (v *verifier) compareEnd() {
	got := v.a.Segments()
	at := 0
	for i := range v.rec.Segments {
		want := &v.rec.Segments[i]
		for at < len(got) && got[at].Addr < want.Addr {
			v.differ("end: a segment of %s at %#x is in the model only", event.Bytes(got[at].Size),
				got[at].Addr)
			at++
		}
		if at == len(got) || got[at].Addr != want.Addr {
			v.differ("end: a segment of %s at %#x is in the recording only", event.Bytes(want.Size),
				want.Addr)
			continue
		}
		v.compareSegment(&got[at], want)
		at++
	}
	for ; at < len(got); at++ {
		v.differ("end: a segment of %s at %#x is in the model only", event.Bytes(got[at].Size),
			got[at].Addr)
	}
}

func (v *verifier) compareSegment(got, want *event.Segment) {
	if got.Size != want.Size || got.Stream != want.Stream || got.Small != want.Small ||
		len(got.Blocks) != len(want.Blocks) {
		v.differ("end: the segment at %#x has %s in %d blocks, recorded are %s in %d", want.Addr,
			event.Bytes(got.Size), len(got.Blocks),
			event.Bytes(want.Size), len(want.Blocks))
		return
	}
	for i := range got.Blocks {
		g, w := &got.Blocks[i], &want.Blocks[i]
		if g.Addr != w.Addr || g.Size != w.Size || g.State != w.State {
			v.differ("end: the block at %#x is %s of %s, recorded is %#x, %s of %s", g.Addr,
				g.State, event.Bytes(g.Size), w.Addr, w.State, event.Bytes(w.Size))
		}
	}
}
