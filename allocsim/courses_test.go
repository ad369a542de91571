package allocsim

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"memroom/event"
)

func op(kind event.OpKind, id int32, size int64) event.Op {
	return event.Op{Kind: kind, ID: id, Size: size * mib}
}

// TestPeaksOfPhases: known by hand. A phase begins with what is there, and a peak is where it was
// reached first.
func TestPeaksOfPhases(t *testing.T) {
	line := timeline(op(event.OpAlloc, 0, 30), op(event.OpAlloc, 1, 50), op(event.OpFree, 1, 0),
		op(event.OpAlloc, 2, 40), op(event.OpFreePending, 2, 0), op(event.OpAlloc, 3, 20),
		op(event.OpFreeDone, 2, 0), op(event.OpFree, 3, 0), op(event.OpAlloc, 4, 50),
		op(event.OpFree, 0, 0))
	for i, at := range []int{0, 2, 6, 6, 10} {
		line.Marks = append(line.Marks, event.Mark{At: at, Step: i})
	}
	got, err := Run(line, Options{Config: DefaultConfig()})
	if err != nil {
		t.Fatal(err)
	}
	type phase struct {
		allocated, reserved, active int64
		at                          int
	}
	var phases []phase
	for _, m := range got.Marks {
		phases = append(phases, phase{int64(m.AllocatedPeak) / mib, int64(m.ReservedPeak) / mib,
			int64(m.ActivePeak) / mib, m.PeakAt})
	}
	// 40 MiB come out of the free 50, of which 10 are left: 20 need a segment of their own
	want := []phase{{80, 80, 80, 1}, {80, 100, 90, 2}, {50, 100, 90, 6}, {80, 100, 90, 8}}
	if fmt.Sprint(phases) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", phases, want)
	}
	if got.AllocatedPeakAt != 1 || got.ReservedPeakAt != 5 || got.ReservedAtPeak != 80*event.MiB ||
		got.AllocatedPeak != 80*event.MiB || got.ReservedPeak != 100*event.MiB ||
		got.ActivePeak != 90*event.MiB || got.RequestedPeak != 90*event.MiB || got.Ops != 10 ||
		got.Allocs != 5 {
		t.Errorf("%+v", got)
	}
	for at, want := range map[int][]int{-1: {}, 0: {0}, 1: {0, 1}, 2: {0}, 3: {0, 3}, 4: {0},
		5: {0, 5}, 6: {0, 5}, 8: {0, 8}, 9: {8}, 99: {8}} {
		if live := LiveAt(line, at); !slices.Equal(live, want) {
			t.Errorf("live after %d: %v, want %v", at, live, want)
		}
	}
}

// TestNumbersOfAllocations: from 0 to the number of operations; freed only while they live.
func TestNumbersOfAllocations(t *testing.T) {
	for name, c := range map[string]struct {
		ops []event.Op
		ok  bool
	}{
		"the last number": {[]event.Op{op(event.OpAlloc, 1, 1)}, true},
		"one more":        {[]event.Op{op(event.OpAlloc, 2, 1)}, false},
		"below 0":         {[]event.Op{op(event.OpFree, -1, 0)}, false},
		"never made":      {[]event.Op{op(event.OpAlloc, 0, 1), op(event.OpFree, 1, 0)}, false},
		"freed":           {[]event.Op{op(event.OpAlloc, 0, 1), op(event.OpFree, 0, 0)}, true},
		"of a freed one": {[]event.Op{op(event.OpAlloc, 0, 1), op(event.OpFree, 0, 0),
			op(event.OpFreePending, 0, 0)}, false},
		"done too often": {[]event.Op{op(event.OpAlloc, 0, 1), op(event.OpFreeDone, 0, 0),
			op(event.OpFreeDone, 0, 0)}, true},
		"after an attempt": {[]event.Op{op(event.OpTry, 0, 1), op(event.OpAlloc, 0, 1)}, true},
	} {
		got, err := Run(timeline(c.ops...), Options{Config: DefaultConfig()})
		if (err == nil) != c.ok || c.ok && got.Ops != len(c.ops) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// recording makes one out of entries, given as kind, address and size in MiB from the 1024th on.
func recording(entries ...event.Entry) *event.Recording {
	rec := &event.Recording{Version: "2.11"}
	for _, e := range entries {
		rec.History.Append(&e)
	}
	return rec
}

func entry(kind event.Kind, at, size int64) event.Entry {
	return event.Entry{Kind: kind, Addr: uint64(1<<30 + at*mib), Size: size * mib}
}

// TestFreesWithoutCompletion: a recorder that leaves free_completed out means that it followed at
// once.
func TestFreesWithoutCompletion(t *testing.T) {
	rec := recording(entry(event.KindSegmentAlloc, 0, 20), entry(event.KindAlloc, 0, 8),
		entry(event.KindFreeRequested, 0, 8), entry(event.KindAlloc, 0, 6),
		entry(event.KindFreeRequested, 0, 6))
	rec.Segments = []event.Segment{{Addr: 1 << 30, Size: 20 * mib,
		Blocks: []event.Block{{Addr: 1 << 30, Size: 20 * mib}}}}
	r, err := Replay(rec, ReplayOptions{Timeline: true})
	if err != nil || !r.Exact() || len(r.Warnings) != 1 ||
		!strings.Contains(r.Warnings[0], "no free_completed") {
		t.Fatalf("%+v %v", r, err)
	}
	want := []event.Op{op(event.OpAlloc, 0, 8), op(event.OpFree, 0, 0), op(event.OpAlloc, 1, 6),
		op(event.OpFree, 1, 0)}
	if diff := cmp.Diff(want, r.Timeline.Ops); diff != "" {
		t.Error(diff)
	}
}

// TestTimelinesOfFrees: a completion that follows at once is a free, another one waits.
func TestTimelinesOfFrees(t *testing.T) {
	rec := recording(entry(event.KindSegmentAlloc, 0, 20), entry(event.KindAlloc, 0, 8),
		entry(event.KindAlloc, 8, 4), entry(event.KindFreeRequested, 0, 8),
		entry(event.KindFreeRequested, 8, 4), entry(event.KindFreeCompleted, 8, 4),
		entry(event.KindFreeCompleted, 0, 8))
	rec.CutOff = true
	rec.Settings.Known = true
	r, err := Replay(rec, ReplayOptions{Timeline: true})
	if err != nil || !r.Exact() {
		t.Fatalf("%+v %v", r, err)
	}
	want := []event.Op{op(event.OpAlloc, 0, 8), op(event.OpAlloc, 1, 4),
		op(event.OpFreePending, 0, 0), op(event.OpFree, 1, 0), op(event.OpFreeDone, 0, 0)}
	if diff := cmp.Diff(want, r.Timeline.Ops); diff != "" {
		t.Error(diff)
	}
}

// TestWhatNoEntryExplains checks that frees of nothing, double frees and releases of memory in use
// are reported where the recording is complete. What may have its cause before the beginning of the
// recording is not reported.
func TestWhatNoEntryExplains(t *testing.T) {
	begin := []event.Entry{entry(event.KindSegmentAlloc, 0, 20), entry(event.KindAlloc, 0, 8)}
	for name, c := range map[string]struct {
		more   []event.Entry
		differ int
	}{
		"nothing":       {nil, 0},
		"another block": {[]event.Entry{entry(event.KindFreeRequested, 8, 8)}, 1},
		"freed twice": {[]event.Entry{entry(event.KindFreeRequested, 0, 8),
			entry(event.KindFreeRequested, 0, 8)}, 1},
		"completed for nobody": {[]event.Entry{entry(event.KindFreeCompleted, 9, 8)}, 0},
		"a segment in use":     {[]event.Entry{entry(event.KindSegmentFree, 0, 20)}, 1},
		"part of a segment":    {[]event.Entry{entry(event.KindSegmentFree, 8, 12)}, 1},
		"pages of none":        {[]event.Entry{entry(event.KindSegmentUnmap, 8, 12)}, 1},
	} {
		for _, cut := range []bool{false, true} {
			rec := recording(append(slices.Clone(begin), c.more...)...)
			// A completion elsewhere: kinds are not missing.
			rec.History.Append(&event.Entry{Kind: event.KindFreeCompleted, Addr: 5, Size: 512})
			rec.CutOff = cut
			if !cut {
				rec.Segments = []event.Segment{{Addr: 1 << 30, Size: 20 * mib, Blocks: []event.Block{
					{Addr: 1 << 30, Size: 8 * mib, Requested: 8 * mib, State: event.BlockActive},
					{Addr: 1<<30 + 8<<20, Size: 12 * mib}}}}
			}
			r, err := Replay(rec, ReplayOptions{})
			want := c.differ
			if cut && name == "another block" {
				want = 0
			}
			if err != nil {
				t.Fatal(err)
			}
			got := 0
			for _, d := range r.Divergences {
				if d.At < r.Events {
					got++
				}
			}
			if got != want {
				t.Errorf("%s, cut off %v: %v", name, cut, r.Divergences)
			}
		}
	}
}

// TestPoolsOfWaitingSegments: a segment that no allocation follows belongs to the pool that its
// entry names, and mapped pages of such a pool do not switch expandable segments on.
func TestPoolsOfWaitingSegments(t *testing.T) {
	own, left := event.PoolID{0, 1}, event.PoolID{0, 2}
	rec := &event.Recording{Version: "2.13", Segments: []event.Segment{{Addr: 1 << 32,
		Size: 2 * mib, Small: true, Pool: left, Blocks: []event.Block{{Addr: 1 << 32, Size: 2 * mib}}}}}
	for _, e := range []event.Entry{
		{Kind: event.KindSegmentAlloc, Addr: 1 << 30, Size: 2 * mib, Pool: own},
		{Kind: event.KindOOM, Size: 1 << 40},
		{Kind: event.KindSegmentFree, Addr: 1 << 30, Size: 2 * mib, Pool: own},
		{Kind: event.KindSegmentMap, Addr: 1 << 40, Size: 20 * mib, Pool: own},
		{Kind: event.KindOOM, Size: 1 << 40},
		{Kind: event.KindSegmentUnmap, Addr: 1 << 40, Size: 20 * mib, Pool: own},
		{Kind: event.KindSegmentAlloc, Addr: 1 << 32, Size: 2 * mib, Pool: left},
		{Kind: event.KindOOM, Size: 1 << 40},
	} {
		rec.History.Append(&e)
	}
	var pools []string
	r, err := Replay(rec, ReplayOptions{Version: "2.13",
		Observe: func(_ int, _ *event.Entry, a *Allocator) {
			for _, s := range a.Segments() {
				if word := fmt.Sprint(s.Pool[1]); len(pools) == 0 || pools[len(pools)-1] != word {
					pools = append(pools, word)
				}
			}
			if a.config.Expandable {
				t.Error("a private pool switched expandable segments on")
			}
		}})
	if err != nil || !r.Exact() || strings.Join(pools, " ") != "1 2" {
		t.Errorf("pools %v, %v %v", pools, r.Divergences, err)
	}
}

// TestLimitsThatRecordingsShow checks the bounds of the limit: a failed request bounds it from
// above, and the peak of reserved bytes from below.
func TestLimitsThatRecordingsShow(t *testing.T) {
	oom := func(size int64) event.Entry { return event.Entry{Kind: event.KindOOM, Size: size * mib} }
	grow := func(at, size int64) []event.Entry {
		return []event.Entry{entry(event.KindSegmentAlloc, at, size), entry(event.KindAlloc, at, size)}
	}
	for name, c := range map[string]struct {
		entries        []event.Entry
		atLeast, below event.Bytes
		retries, ooms  int64
	}{
		"none failed": {grow(0, 40), 40 * event.MiB, 0, 0, 0},
		"one failed":  {append(grow(0, 40), oom(30)), 40 * event.MiB, 70 * event.MiB, 1, 1},
		"the lower of two": {append(grow(0, 40), oom(30), oom(12)), 40 * event.MiB, 52 * event.MiB,
			2, 2},
		"the lower comes first": {append(grow(0, 40), oom(12), oom(30)), 40 * event.MiB,
			52 * event.MiB, 2, 2},
		"a byte": {append(grow(0, 40), event.Entry{Kind: event.KindOOM, Size: 1}), 40 * event.MiB,
			42 * event.MiB, 1, 1},
		"a small one": {append(grow(0, 40), event.Entry{Kind: event.KindOOM, Size: 512}),
			40 * event.MiB, 42 * event.MiB, 1, 1},
	} {
		rec := recording(c.entries...)
		rec.CutOff, rec.Settings.Known = true, true
		r, err := Replay(rec, ReplayOptions{Timeline: true})
		if err != nil || r.LimitAtLeast != c.atLeast || r.LimitBelow != c.below ||
			r.Stats.AllocRetries != c.retries || r.Stats.OOMs != c.ooms {
			t.Errorf("%s: from %s to %s, %d retries, %d failed (%v)", name, r.LimitAtLeast,
				r.LimitBelow, r.Stats.AllocRetries, r.Stats.OOMs, err)
		}
		// A request of nothing cannot be tried again.
		rec.History.Append(&event.Entry{Kind: event.KindOOM})
		if again, err := Replay(rec, ReplayOptions{Timeline: true}); err != nil ||
			len(again.Timeline.Ops) != len(r.Timeline.Ops) {
			t.Errorf("%s: %v %v", name, again.Timeline.Ops, err)
		}
		tries := 0
		for _, o := range r.Timeline.Ops {
			if o.Kind == event.OpTry {
				tries++
			}
		}
		if int64(tries) != c.ooms {
			t.Errorf("%s: %d attempts in the timeline", name, tries)
		}
	}
	for limit, want := range map[event.Bytes]map[int64]bool{0: {100: false, 101: true},
		90: {90: false, 91: true, 100: true}, 200: {101: false, 200: false, 201: true}} {
		v := &verifier{peakReserved: 100, opts: ReplayOptions{Limit: limit}}
		for reserved, fails := range want {
			if got := v.wouldFail(reserved); got != fails {
				t.Errorf("limit %d: %d fails: %v", limit, reserved, got)
			}
		}
	}
}

// TestWhoEmptiedTheCache: the program, where the request after it would have been served or had
// room anyway; the allocator, where it had not. A request that waits for other streams comes before
// what its flush completed.
func TestWhoEmptiedTheCache(t *testing.T) {
	// 40 MiB are cached and given back, then comes a request.
	begin := []event.Entry{entry(event.KindSegmentAlloc, 0, 40), entry(event.KindAlloc, 0, 40),
		entry(event.KindFreeRequested, 0, 40), entry(event.KindFreeCompleted, 0, 40),
		entry(event.KindSegmentFree, 0, 40)}
	grow := func(size int64) []event.Entry {
		return []event.Entry{entry(event.KindSegmentAlloc, 100, size), entry(event.KindAlloc, 100, size)}
	}
	for name, c := range map[string]struct {
		more    []event.Entry
		limit   event.Bytes
		emptied bool
		retries int64
	}{
		"nothing follows":           {nil, 0, true, 0},
		"as large a request":        {grow(40), 50 * event.MiB, true, 0},
		"a larger one, little room": {grow(60), 99 * event.MiB, false, 1},
		"a larger one, just enough": {grow(60), 100 * event.MiB, true, 0},
		"a larger one, any room":    {grow(60), 0, false, 1},
		"one that failed": {[]event.Entry{{Kind: event.KindOOM, Size: 60 * mib}}, 99 * event.MiB,
			false, 1},
	} {
		rec := recording(append(slices.Clone(begin), c.more...)...)
		rec.CutOff, rec.Settings.Known = true, true
		r, err := Replay(rec, ReplayOptions{Timeline: true, Limit: c.limit})
		if err != nil || !r.Exact() {
			t.Fatalf("%s: %v %v", name, r.Divergences, err)
		}
		at := slices.IndexFunc(r.Timeline.Ops, func(o event.Op) bool {
			return o.Kind == event.OpEmptyCache
		})
		if (at >= 0) != c.emptied || c.emptied && at != 2 || r.Stats.AllocRetries != c.retries {
			t.Errorf("%s: emptied at %d, %d retries", name, at, r.Stats.AllocRetries)
		}
	}
	done, free := op(event.OpFreeDone, 1, 0), op(event.OpFree, 2, 0)
	request := op(event.OpTry, 0, 7)
	for _, c := range []struct{ ops, want []event.Op }{
		{[]event.Op{free, done, done, request}, []event.Op{free, request, done, done}},
		{[]event.Op{done, free, request}, []event.Op{done, free, request}},
		{[]event.Op{done, request}, []event.Op{request, done}},
		{[]event.Op{request}, []event.Op{request}},
	} {
		v := &verifier{a: &Allocator{}, out: &Replayed{Timeline: &event.Timeline{Ops: c.ops}}}
		v.requestBeforeCompletions()
		if diff := cmp.Diff(c.want, v.out.Timeline.Ops); diff != "" {
			t.Error(diff)
		}
	}
}

// TestSurveyOfEntries checks what one pass over the entries finds.
func TestSurveyOfEntries(t *testing.T) {
	rec := &event.Recording{Segments: []event.Segment{{Addr: 70, Stream: 9, Pool: event.PoolID{0, 1},
		Blocks: []event.Block{{Stack: 4}}}, {Addr: 71, Stream: 2}}}
	at := func(kind event.Kind, addr uint64, size int64, stream uint64, stack event.StackID) {
		rec.History.Append(&event.Entry{Kind: kind, Addr: addr, Size: size, Stream: stream,
			Stack: stack})
	}
	at(event.KindSegmentAlloc, 70, 50, 5, 0)
	at(event.KindSegmentAlloc, 70, 10, 5, 7)
	at(event.KindSegmentAlloc, 71, 10, 5, 7)
	at(event.KindSegmentFree, 71, 40, 5, 0)
	at(event.KindSegmentMap, 300, smallSegment, 1, 0)
	at(event.KindSegmentMap, 200, smallSegment, 1, 0)
	at(event.KindSegmentMap, 250, smallSegment, 1, 0)
	at(event.KindSegmentMap, 100, 20*mib, 1, 0)
	at(event.KindSegmentUnmap, 100, 20*mib, 1, 0)
	at(event.KindSnapshot, 0, 0, 77, 0) // of no stream
	at(event.KindAlloc, 0, -5, 88, 99)  // makes no sense: nothing of it counts
	v := &verifier{rec: rec}
	s := v.look()
	if s.net != 30+3*smallSegment || s.top != 30+3*smallSegment+20*mib || s.stacks != 7 ||
		!slices.Equal(s.streams, []uint64{1, 2, 5, 9}) {
		t.Errorf("%+v", s)
	}
	if diff := cmp.Diff(map[uint64]int{70: 1}, s.lastSeg); diff != "" {
		t.Error(diff)
	}
	if s.lowest[rangeKey{stream: 1, small: true}] != 200 || s.lowest[rangeKey{stream: 1}] != 100 ||
		len(s.lowest) != 2 {
		t.Errorf("%v", s.lowest)
	}
	if s.kinds[event.KindSegmentMap] != 4 || s.kinds[event.KindAlloc] != 0 {
		t.Errorf("%v", s.kinds)
	}
	rec.Segments[0].Blocks = append(rec.Segments[0].Blocks, event.Block{Stack: 12},
		event.Block{Stack: 2})
	if got := v.look().stacks; got != 12 {
		t.Errorf("stacks up to %d", got)
	}
	many := &survey{}
	for i := range uint64(5000) {
		many.addStream(i)
		many.addStream(i)
	}
	if len(many.streams) != 4096 {
		t.Errorf("%d streams are told apart", len(many.streams))
	}
	var sums verifier // sums that would overflow are left out
	sums.rec = &event.Recording{}
	for range maxTotal/maxRequest + 3 {
		sums.rec.History.Append(&event.Entry{Kind: event.KindSegmentAlloc, Size: maxRequest})
	}
	if got := sums.look(); got.net != maxTotal || got.top != maxTotal {
		t.Errorf("%d in all, at most %d", got.net, got.top)
	}
	sums.rec = &event.Recording{}
	for range maxTotal/maxRequest + 3 {
		sums.rec.History.Append(&event.Entry{Kind: event.KindSegmentFree, Size: maxRequest})
	}
	if got := sums.look(); got.net != -maxTotal {
		t.Errorf("%d are left", got.net)
	}
}

// TestFirstOfManyDifferences: the first is remembered, all are counted, some are kept in words.
func TestFirstOfManyDifferences(t *testing.T) {
	v := &verifier{out: &Replayed{DivergedAt: -1}}
	for i := range 1500 {
		v.at = i + 3
		v.differ("entry %d", i)
	}
	if r := v.out; r.Mismatches != 1500 || r.DivergedAt != 3 || len(r.Divergences) != 20 ||
		r.manyAt != 1002 || r.Divergences[19] != (Divergence{22, "entry 19"}) || r.Exact() {
		t.Errorf("%d, first at %d, %d kept, many at %d: %v", r.Mismatches, r.DivergedAt,
			len(r.Divergences), r.manyAt, r.Divergences)
	}
}

// TestShapesOfSettings: a start is loaded only into an allocator that cuts memory in the same way.
func TestShapesOfSettings(t *testing.T) {
	same := DefaultConfig()
	same.GCThreshold, same.MemoryFraction, same.RejectEarly = 0.5, 0.5, true
	base := DefaultConfig()
	if !base.sameShape(&same) {
		t.Error("limits shape memory")
	}
	for name, change := range map[string]func(c *Config){
		"expandable": func(c *Config) { c.Expandable = true },
		"split":      func(c *Config) { c.MaxSplit = 100 * event.MiB },
		"divisions":  func(c *Config) { c.Divisions[3] = 4 },
		"segments":   func(c *Config) { c.LargeSegment = 40 * event.MiB },
	} {
		other := DefaultConfig()
		if change(&other); base.sameShape(&other) {
			t.Errorf("%s do not shape memory", name)
		}
	}
}

// TestSettingsFromOutside: those that are given count instead of the recording's own.
func TestSettingsFromOutside(t *testing.T) {
	rec := recording(entry(event.KindSegmentAlloc, 0, 40), entry(event.KindAlloc, 0, 40))
	rec.CutOff = true
	rec.Settings = event.AllocatorSettings{Known: true, MaxSplit: 100 * mib}
	given := DefaultConfig()
	given.MaxSplit = 60 * event.MiB
	for want, o := range map[event.Bytes]ReplayOptions{100 * event.MiB: {},
		60 * event.MiB: {Config: &given}} {
		if r, err := Replay(rec, o); err != nil || r.Config.MaxSplit != want {
			t.Errorf("%+v: %s, want %s (%v)", o, r.Config.MaxSplit, want, err)
		}
	}
	for d, taken := range map[int]bool{1 << 30: true, 1 << 31: false, 0: true, 1: true, 3: false} {
		rec.Settings.Divisions = map[int]int{4: d}
		c, err := ConfigOf(rec)
		if (err == nil) != taken || taken && c.Divisions[2] != d || !taken && c.Divisions[2] != 0 {
			t.Errorf("%d divisions: %v, %v", d, c.Divisions, err)
		}
	}
}

// TestPlacementsThatDiffer checks that each difference is reported once, with what the model would
// have done.
func TestPlacementsThatDiffer(t *testing.T) {
	begin := []event.Entry{entry(event.KindSegmentAlloc, 0, 20), entry(event.KindAlloc, 0, 8)}
	for name, c := range map[string]struct {
		more []event.Entry
		says string
	}{
		"as the model": {[]event.Entry{entry(event.KindAlloc, 8, 8)}, ""},
		"where nothing is": {[]event.Entry{entry(event.KindAlloc, 500, 16)},
			"the model finds no free block"},
		"elsewhere": {[]event.Entry{entry(event.KindAlloc, 500, 8)},
			"the model takes the free block of 12582912 bytes"},
		"inside a free block": {[]event.Entry{entry(event.KindAlloc, 10, 8)},
			"the model takes the free block of 12582912 bytes"},
		"in new memory": {[]event.Entry{entry(event.KindSegmentAlloc, 100, 20),
			entry(event.KindAlloc, 100, 8)}, "took new memory"},
		"in new memory that it needs": {[]event.Entry{entry(event.KindSegmentAlloc, 100, 16),
			entry(event.KindAlloc, 100, 16)}, ""},
		"in too large a segment": {[]event.Entry{entry(event.KindSegmentAlloc, 100, 40),
			entry(event.KindAlloc, 100, 16)}, "the model makes it 16777216"},
		"of no size":           {[]event.Entry{entry(event.KindAlloc, 8, 0)}, "an allocation of 0 bytes"},
		"that makes no sense":  {[]event.Entry{entry(event.KindAlloc, 8, -1)}, "makes no sense"},
		"a segment of nothing": {[]event.Entry{entry(event.KindSegmentAlloc, 8, 0)}, "makes no sense"},
	} {
		rec := recording(append(slices.Clone(begin), c.more...)...)
		rec.CutOff, rec.Settings.Known = true, true
		r, err := Replay(rec, ReplayOptions{Version: "2.11"})
		if err != nil {
			t.Fatal(err)
		}
		if want := one(c.says != ""); r.Mismatches != want ||
			want == 1 && !strings.Contains(r.Divergences[0].What, c.says) {
			t.Errorf("%s: %v, want %q", name, r.Divergences, c.says)
		}
	}
}
