package allocsim

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"memroom/event"
)

const mib = int64(event.MiB)

// TestTidySegments checks the segments that a file may hold, each wrong in one way only.
func TestTidySegments(t *testing.T) {
	good := func() []event.Segment {
		return []event.Segment{
			{Addr: 1 << 20, Size: 1024, Blocks: []event.Block{{Addr: 1 << 20, Size: 512, Requested: 5},
				{Addr: 1<<20 + 512, Size: 512}}},
			{Addr: 1<<20 + 1024, Size: 512, Blocks: []event.Block{{Addr: 1<<20 + 1024, Size: 512}}},
		}
	}
	whole := func(s *event.Segment, addr uint64, size int64) {
		*s = event.Segment{Addr: addr, Size: size, Blocks: []event.Block{{Addr: addr, Size: size}}}
	}
	for name, c := range map[string]struct {
		change func(s []event.Segment)
		want   bool
	}{
		"nothing wrong":           {func([]event.Segment) {}, true},
		"the largest size":        {func(s []event.Segment) { whole(&s[1], 1<<40, maxRequest) }, true},
		"a larger one":            {func(s []event.Segment) { whole(&s[1], 1<<40, maxRequest+1) }, false},
		"the last address":        {func(s []event.Segment) { whole(&s[1], 1<<62-1, 512) }, true},
		"beyond it":               {func(s []event.Segment) { whole(&s[1], 1<<62, 512) }, false},
		"of no size":              {func(s []event.Segment) { s[1].Size, s[1].Blocks = 0, nil }, false},
		"less than nothing":       {func(s []event.Segment) { s[1].Size = -512 }, false},
		"over the one before":     {func(s []event.Segment) { whole(&s[1], 1<<20+512, 512) }, false},
		"a gap between blocks":    {func(s []event.Segment) { s[0].Blocks[1].Addr += 512 }, false},
		"a gap at the end":        {func(s []event.Segment) { s[0].Size += 512 }, false},
		"a block that leaves it":  {func(s []event.Segment) { s[1].Blocks[0].Size = 1024 }, false},
		"a block of no size":      {func(s []event.Segment) { s[0].Blocks[0].Size = 0 }, false},
		"a request below nothing": {func(s []event.Segment) { s[0].Blocks[0].Requested = -1 }, false},
		"the largest request": {func(s []event.Segment) {
			s[0].Blocks[0].Requested = maxRequest
		}, true},
		"a request beyond any card": {func(s []event.Segment) {
			s[0].Blocks[0].Requested = maxRequest + 1
		}, false},
	} {
		segments := good()
		c.change(segments)
		if got := tidy(segments); got != c.want {
			t.Errorf("%s: tidy %v", name, got)
		}
	}
	var many []event.Segment
	for i := range int64(maxTotal/maxRequest + 1) {
		s := event.Segment{}
		whole(&s, uint64(i)*maxRequest, maxRequest)
		many = append(many, s)
	}
	if !tidy(many[1:]) || tidy(many) {
		t.Error("more than all cards together have is the first that is too much")
	}
}

// describe writes segments as base+size and their blocks by state and size, in MiB.
func describe(segments []event.Segment) string {
	var words []string
	for _, s := range segments {
		word := fmt.Sprintf("%d+%d", int64(s.Addr)/mib, s.Size/mib)
		for _, b := range s.Blocks {
			word += fmt.Sprintf(" %.1s%d", b.State, b.Size/mib)
		}
		words = append(words, word)
	}
	return strings.Join(words, ", ")
}

// past makes a state out of mapped runs, given as base and size in MiB.
func past(runs ...[2]int64) *pastState {
	c := DefaultConfig()
	c.Expandable = true
	p := &pastState{config: &c, blocks: make([]pastBlock, 1)}
	for _, r := range runs {
		p.addSegment(event.Segment{Addr: uint64(r[0] * mib), Size: r[1] * mib, Expandable: true,
			Stream: 1})
	}
	return p
}

// TestPagesComeBackToTheirRun: unmapped pages join the runs of their stream that they touch on
// either side, and no others.
func TestPagesComeBackToTheirRun(t *testing.T) {
	for name, c := range map[string]struct {
		addr, size int64
		stream     uint64
		want       string
		odd        int
	}{
		"between two":             {40, 20, 1, "20+60", 0},
		"behind the first":        {40, 10, 1, "20+30, 60+20", 0},
		"before the second":       {50, 10, 1, "20+20, 50+30", 0},
		"alone":                   {100, 20, 1, "20+20, 60+20, 100+20", 0},
		"of another stream":       {40, 20, 2, "20+20, 40+20, 60+20", 0},
		"over the first":          {30, 20, 1, "20+20, 60+20", 1},
		"into the second":         {50, 20, 1, "20+20, 60+20", 1},
		"at the beginning of one": {60, 20, 1, "20+20, 60+20", 1},
	} {
		p := past([2]int64{20, 20}, [2]int64{60, 20})
		p.undo(&event.Entry{Kind: event.KindSegmentUnmap, Addr: uint64(c.addr * mib),
			Size: c.size * mib, Stream: c.stream})
		start, _ := p.result()
		for i := range start {
			start[i].Blocks = nil
		}
		if got := describe(start); got != c.want || p.odd != c.odd {
			t.Errorf("%s: %s, odd %d, want %s", name, got, p.odd, c.want)
		}
	}
	p := past()
	p.addSegment(event.Segment{Addr: uint64(20 * mib), Size: 20 * mib, Stream: 1}) // of cudaMalloc
	p.undo(&event.Entry{Kind: event.KindSegmentUnmap, Addr: uint64(40 * mib), Size: 20 * mib,
		Stream: 1})
	if start, _ := p.result(); len(start) != 2 {
		t.Errorf("pages joined a segment of another kind: %s", describe(start))
	}
}

// TestMemoryThatCameIsTakenOut: from the beginning, the middle or the end of a run.
func TestMemoryThatCameIsTakenOut(t *testing.T) {
	for name, c := range map[string]struct {
		addr, size int64
		want       string
		odd        int
	}{
		"all of it":     {20, 60, "", 0},
		"its beginning": {20, 20, "40+40", 0},
		"its middle":    {40, 20, "20+20, 60+20", 0},
		"its end":       {60, 20, "20+40", 0},
		"more than it":  {60, 30, "20+60", 1},
		"elsewhere":     {100, 20, "20+60", 1},
		"before it":     {10, 10, "20+60", 1},
	} {
		p := past([2]int64{20, 60})
		p.undo(&event.Entry{Kind: event.KindSegmentMap, Addr: uint64(c.addr * mib),
			Size: c.size * mib, Stream: 1})
		start, _ := p.result()
		for i := range start {
			start[i].Blocks = nil
		}
		if got := describe(start); got != c.want || p.odd != c.odd {
			t.Errorf("%s: %s, odd %d, want %s", name, got, p.odd, c.want)
		}
	}
}

// TestSizesOfTheFreed: a large block that was freed is as large as its rounded size, or up to 1 MiB
// larger where no free block fits behind it.
func TestSizesOfTheFreed(t *testing.T) {
	for name, c := range map[string]struct {
		requested, behind int64 // what was asked for, and where an active block begins, in KiB
		size              int64
		certain           bool
		split             event.Bytes
	}{
		"to the end":              {4096, 0, 20480, false, 0},
		"a neighbour right there": {4096, 4096, 4096, true, 0},
		"1 MiB further":           {4096, 5120, 5120, true, 0},
		"more than 1 MiB further": {4096, 5121, 4096, false, 0},
		"kept whole":              {4096, 0, 20480, true, 4 * event.MiB},
		"below what is kept":      {4096, 5120, 5120, true, 5 * event.MiB},
	} {
		config := DefaultConfig()
		if c.split > 0 {
			config.MaxSplit = c.split
		}
		p := &pastState{config: &config, blocks: make([]pastBlock, 1)}
		p.addSegment(event.Segment{Addr: 1 << 30, Size: 20 * mib})
		if c.behind > 0 {
			p.addActive(pastBlock{addr: 1<<30 + uint64(c.behind<<10), size: mib, known: true})
		}
		p.undo(&event.Entry{Kind: event.KindFreeCompleted, Addr: 1 << 30, Size: c.requested << 10})
		b, _ := p.at(1 << 30)
		if b == nil || b.known != c.certain || c.certain && b.size != c.size<<10 || !b.pending {
			t.Errorf("%s: %+v", name, b)
			continue
		}
		p.undo(&event.Entry{Kind: event.KindFreeRequested, Addr: 1 << 30, Size: c.requested << 10})
		if b.pending || p.odd != 0 {
			t.Errorf("%s: pending before it was freed: %+v, odd %d", name, b, p.odd)
		}
		p.undo(&event.Entry{Kind: event.KindFreeCompleted, Addr: 1 << 30, Size: c.requested << 10})
		if p.odd != 1 {
			t.Errorf("%s: freed twice and nothing odd", name)
		}
	}
}

// TestGapsBetweenBlocks: free blocks fill a segment; blocks that overlap or leave it are odd.
func TestGapsBetweenBlocks(t *testing.T) {
	for name, c := range map[string]struct {
		blocks [][2]int64 // at and size in MiB
		want   string
		odd    int
	}{
		"none":          {nil, "20+10 i10", 0},
		"all":           {[][2]int64{{20, 10}}, "20+10 a10", 0},
		"at both ends":  {[][2]int64{{20, 2}, {28, 2}}, "20+10 a2 i6 a2", 0},
		"in the middle": {[][2]int64{{22, 3}}, "20+10 i2 a3 i5", 0},
		"side by side":  {[][2]int64{{20, 4}, {24, 6}}, "20+10 a4 a6", 0},
		"overlapping":   {[][2]int64{{20, 4}, {23, 2}}, "20+10 a4 i6", 1},
		"beyond":        {[][2]int64{{28, 3}}, "20+10 i10", 1},
		"before":        {[][2]int64{{19, 3}}, "20+10 i10", 1},
	} {
		s := event.Segment{Addr: uint64(20 * mib), Size: 10 * mib}
		for _, b := range c.blocks {
			s.Blocks = append(s.Blocks, event.Block{Addr: uint64(b[0] * mib), Size: b[1] * mib,
				State: event.BlockActive})
		}
		odd := 0
		s.Blocks = withGaps(&s, &odd)
		if got := describe([]event.Segment{s}); got != c.want || odd != c.odd {
			t.Errorf("%s: %s, odd %d, want %s", name, got, odd, c.want)
		}
	}
}

// TestLoadedRanges: a range of an expandable segment begins at the lowest page that is known of it
// and has room for the whole card behind what is mapped. Runs that touch become one.
func TestLoadedRanges(t *testing.T) {
	const card = 8 * event.GiB
	run := func(at, size int64) event.Segment {
		return event.Segment{Addr: uint64(at * mib), Size: size * mib, Expandable: true,
			Blocks: []event.Block{{Addr: uint64(at * mib), Size: size * mib}}}
	}
	for name, c := range map[string]struct {
		runs   []event.Segment
		lowest int64
		base   int64
		end    int64 // of what is mapped
		want   string
	}{
		"one run":             {[]event.Segment{run(100, 20)}, 0, 100, 120, "100+20 i20"},
		"pages before it":     {[]event.Segment{run(100, 20)}, 60, 60, 120, "100+20 i20"},
		"not a page before":   {[]event.Segment{run(100, 20)}, 70, 100, 120, "100+20 i20"},
		"pages behind it":     {[]event.Segment{run(100, 20)}, 120, 100, 120, "100+20 i20"},
		"of any address":      {[]event.Segment{run(105, 20)}, 65, 65, 125, "105+20 i20"},
		"within a card":       {[]event.Segment{run(5000, 20)}, 4000, 4000, 5020, "5000+20 i20"},
		"further than a card": {[]event.Segment{run(9320, 20)}, 100, 9320, 9340, "9320+20 i20"},
		"two apart": {[]event.Segment{run(100, 20), run(9000, 20)}, 0, 100, 9020,
			"100+20 i20, 9000+20 i20"},
		"two that touch": {[]event.Segment{run(100, 20), run(120, 40)}, 0, 100, 160, "100+60 i60"},
	} {
		config := DefaultConfig()
		config.Expandable = true
		a, err := New(Options{Config: config, DeviceTotal: card})
		if err != nil {
			t.Fatal(err)
		}
		a.load(c.runs, map[rangeKey]uint64{{}: uint64(c.lowest * mib)}, func(event.Block, Block) {})
		if err := a.Check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := describe(a.Segments()); got != c.want || a.reserved != reservedIn(c.runs) {
			t.Errorf("%s: %s, %d reserved", name, got, a.reserved)
		}
		if len(a.segs) != 1 {
			t.Errorf("%s: %d ranges", name, len(a.segs))
			continue
		}
		s := a.segs[0]
		if int64(s.base) != c.base*mib || int64(s.base)+s.size < c.end*mib+int64(card) {
			t.Errorf("%s: the range has %d from %d", name, s.size/mib, s.base/uint64(mib))
		}
	}
}

func reservedIn(segments []event.Segment) (sum int64) {
	for _, s := range segments {
		sum += s.Size
	}
	return sum
}

// TestReleasesThatWouldServe: a request that one of the released segments fits did not cause their
// release.
func TestReleasesThatWouldServe(t *testing.T) {
	c := DefaultConfig()
	c.MaxSplit = 100 * event.MiB
	large := func(sizes ...int64) (r releaseRun) {
		for _, size := range sizes {
			r.entries = append(r.entries, SegmentAt{Size: size * mib})
		}
		return r
	}
	small := releaseRun{entries: []SegmentAt{{Size: 2 * mib, small: true}}}
	completed := large(20)
	completed.completed = true
	for name, want := range map[string]struct {
		size   int64 // of the request, in MiB
		stream uint64
		run    releaseRun
		serves bool
	}{
		"as large":                {20, 0, large(20), true},
		"larger":                  {10, 0, large(20), true},
		"smaller":                 {21, 0, large(20), false},
		"of another stream":       {20, 1, large(20), false},
		"of the small pool":       {2, 0, small, false},
		"a small request":         {1, 0, small, true},
		"it, and a large segment": {1, 0, large(20), false},
		"after others completed":  {20, 0, completed, false},
		"one that is kept whole":  {20, 0, large(100), false},
		"one that is not":         {20, 0, large(99), true},
		"the smaller of two":      {20, 0, large(100, 50), true},
		"a large request, slack":  {100, 0, large(119), true},
		"too much slack":          {100, 0, large(120), false},
		"nothing was released":    {20, 0, releaseRun{}, false},
	} {
		if got := want.run.wouldServe(&c, want.size*mib, want.stream); got != want.serves {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestFlushesReleaseEverything: all that could be released was, and perhaps more.
func TestFlushesReleaseEverything(t *testing.T) {
	a, b, c := SegmentAt{Addr: 1}, SegmentAt{Addr: 2}, SegmentAt{Addr: 3}
	for _, k := range []struct {
		entries, all []SegmentAt
		want         bool
	}{
		{[]SegmentAt{a, b}, []SegmentAt{b, a}, true}, {[]SegmentAt{a, b, c}, []SegmentAt{a, b}, true},
		{[]SegmentAt{a}, []SegmentAt{a, b}, false}, {[]SegmentAt{a, c}, []SegmentAt{a, b}, false},
		{[]SegmentAt{a, c, c}, []SegmentAt{a, b}, false}, {nil, nil, true},
	} {
		if got := (&releaseRun{entries: k.entries, all: k.all}).isFlush(); got != k.want {
			t.Errorf("%v of %v: %v", k.entries, k.all, got)
		}
	}
}

// TestOversizeBlocksThatGo: one that is large enough, else the largest until there is enough.
func TestOversizeBlocksThatGo(t *testing.T) {
	config := DefaultConfig()
	config.MaxSplit = 100 * event.MiB
	v := &verifier{a: &Allocator{config: config}}
	at := func(sizes ...int64) (all []SegmentAt) {
		for i, s := range sizes {
			all = append(all, SegmentAt{Addr: uint64(i + 1), Size: s * mib})
		}
		return all
	}
	for _, c := range []struct {
		all    []SegmentAt
		s      int64
		want   string
		enough bool
	}{
		{at(100, 200, 300), 150, "2", true}, {at(100, 200, 300), 200, "2", true},
		{at(100, 200, 300), 50, "1", true}, {at(100, 200, 300), 400, "3 2", true},
		{at(100, 200, 300), 300, "3", true}, {at(100, 200, 300), 500, "3 2", true},
		{at(100, 200, 300), 501, "3 2 1", true}, {at(100, 200, 300), 601, "3 2 1", false},
		{at(99, 300), 350, "2", false}, {at(99), 50, "", false}, {nil, 50, "", false},
	} {
		chosen, enough := v.oversizeFor(&releaseRun{all: c.all}, c.s*mib, 0)
		var words []string
		for _, s := range chosen {
			words = append(words, fmt.Sprint(s.Addr))
		}
		if strings.Join(words, " ") != c.want || enough != c.enough {
			t.Errorf("%d of %v: %v %v, want %s", c.s, c.all, words, enough, c.want)
		}
		if other, _ := v.oversizeFor(&releaseRun{all: c.all}, c.s*mib, 7); len(other) > 0 {
			t.Errorf("of another stream: %v", other)
		}
	}
}

// TestKindsOfEntriesThatAreMissing: a recording without frees, and one without their completion.
func TestKindsOfEntriesThatAreMissing(t *testing.T) {
	for name, c := range map[string]struct {
		allocs, requested, completed, pending int
		skipped                               bool
		warnings                              int
	}{
		"all kinds":             {200, 50, 50, 0, false, 0},
		"nothing freed":         {101, 0, 0, 0, false, 1},
		"few, nothing freed":    {100, 0, 0, 0, false, 0},
		"completions missing":   {10, 5, 0, 0, true, 1},
		"they are pending":      {10, 5, 0, 5, false, 0},
		"all but one pending":   {10, 5, 0, 4, true, 1},
		"one completion is one": {10, 5, 1, 0, false, 0},
	} {
		rec := &event.Recording{}
		var blocks []event.Block
		for range c.pending {
			blocks = append(blocks, event.Block{State: event.BlockPending})
		}
		rec.Segments = []event.Segment{{Blocks: append(blocks, event.Block{State: event.BlockActive})}}
		v := &verifier{rec: rec, out: &Replayed{}, survey: &survey{}}
		v.survey.kinds[event.KindAlloc] = c.allocs
		v.survey.kinds[event.KindFreeRequested] = c.requested
		v.survey.kinds[event.KindFreeCompleted] = c.completed
		v.checkKinds()
		if v.skipped != c.skipped || len(v.out.Warnings) != c.warnings {
			t.Errorf("%s: skipped %v, %q", name, v.skipped, v.out.Warnings)
		}
	}
}

// TestEndsThatDiffer: segments and blocks of the model against those that were recorded.
func TestEndsThatDiffer(t *testing.T) {
	model := func() (*Allocator, []event.Segment) {
		a, err := New(Options{Config: DefaultConfig(), Driver: NewAscendingDriver()})
		if err != nil {
			t.Fatal(err)
		}
		for _, size := range []int64{512, 5 * mib, 30 * mib} {
			if _, err := a.Malloc(size, 0); err != nil {
				t.Fatal(err)
			}
		}
		return a, a.Segments()
	}
	type list = []event.Segment
	for name, c := range map[string]struct {
		change func(s list) list
		differ int
		say    string
	}{
		"the same":         {func(s list) list { return s }, 0, ""},
		"one is missing":   {func(s list) list { return s[1:] }, 1, "in the model only"},
		"the last missing": {func(s list) list { return s[:2] }, 1, "in the model only"},
		"one more": {func(s list) list {
			return append(s, event.Segment{Addr: 1 << 60, Size: 512})
		}, 1, "in the recording only"},
		"one more in front": {func(s list) list {
			return append(list{{Addr: 1, Size: 512}}, s...)
		}, 1, "in the recording only"},
		"elsewhere":      {func(s list) list { s[1].Addr++; return s }, 2, "only"},
		"larger":         {func(s list) list { s[1].Size++; return s }, 1, "recorded are"},
		"another stream": {func(s list) list { s[1].Stream++; return s }, 1, "recorded are"},
		"another pool": {func(s list) list { s[1].Small = !s[1].Small; return s }, 1,
			"recorded are"},
		"fewer blocks": {func(s list) list { s[1].Blocks = s[1].Blocks[:1]; return s }, 1,
			"recorded are"},
		"a block elsewhere": {func(s list) list { s[1].Blocks[1].Addr++; return s }, 1,
			"the block at"},
		"a larger block": {func(s list) list { s[1].Blocks[1].Size++; return s }, 1,
			"the block at"},
		"a block in use": {func(s list) list {
			s[1].Blocks[1].State = event.BlockActive
			return s
		}, 1, "the block at"},
	} {
		a, segments := model()
		v := &verifier{a: a, out: &Replayed{DivergedAt: -1},
			rec: &event.Recording{Segments: c.change(segments)}}
		v.compareEnd()
		if v.out.Mismatches != c.differ ||
			c.differ > 0 && !strings.Contains(v.out.Divergences[0].What, c.say) {
			t.Errorf("%s: %d differ: %v", name, v.out.Mismatches, v.out.Divergences)
		}
	}
}

// TestWholeCardIsNoLimit: a fraction of one caps nothing, so garbage collection, which is a part of
// the cap, does not begin.
func TestWholeCardIsNoLimit(t *testing.T) {
	for fraction, want := range map[float64]int64{0: 0, 0.25: 2 << 30, 1: 0} {
		config := DefaultConfig()
		config.MemoryFraction, config.GCThreshold = fraction, 0.5
		a, err := New(Options{Config: config, DeviceTotal: 8 * event.GiB})
		if err != nil || a.limit != want || a.collecting() != (want > 0) {
			t.Errorf("fraction %g: limit %d, %v", fraction, a.limit, err)
		}
	}
}

// TestSearchesAreCounted: frees that wait are looked through at each completion, which a hostile
// recording could make take for ever.
func TestSearchesAreCounted(t *testing.T) {
	a, err := New(Options{Config: DefaultConfig()})
	if err != nil {
		t.Fatal(err)
	}
	var waiting []Block
	for range 400 {
		b, err := a.Malloc(512, 0)
		if err != nil || !a.FreePending(b) {
			t.Fatal(err)
		}
		waiting = append(waiting, b)
	}
	before := a.effort
	for _, b := range slices.Backward(waiting) {
		a.FreeDone(b)
	}
	if each := (a.effort - before) / 400; each < 10 || len(a.pending) != 0 {
		t.Errorf("%d steps each were counted, %d wait", each, len(a.pending))
	}
	a.effort = freeEffort + 10*effortPerEntry
	if a.overworked(10) || !a.overworked(9) {
		t.Error("the bound grows with the entries")
	}
}

// TestRunsThatCannotBegin: the error names the missing part.
func TestRunsThatCannotBegin(t *testing.T) {
	r := &Replayed{}
	if _, err := r.Run(Options{Config: DefaultConfig()}); err == nil ||
		!strings.Contains(err.Error(), "ReplayOptions.Timeline") {
		t.Errorf("without its requests: %v", err)
	}
	r.Timeline = &event.Timeline{}
	if _, err := r.WhatIf(Options{Limit: -1}, ""); err == nil {
		t.Error("a negative limit was accepted")
	}
	rec := &event.Recording{}
	if _, err := Replay(rec, ReplayOptions{Version: "none"}); err == nil {
		t.Error("a version that is none was accepted")
	}
	table, err := r.WhatIf(Options{}, "unheard_of:1")
	if err != nil || len(table.Outcomes) == 0 ||
		strings.Contains(table.Reason, "recording's settings") {
		t.Errorf("%+v %v", table, err)
	}
	for _, o := range table.Outcomes {
		if o.Recorded || strings.Contains(o.Conf, "garbage") {
			t.Errorf("%+v: without a limit", o)
		}
	}
	if table, err = r.WhatIf(Options{}, "garbage_collection_threshold:0.8"); err != nil ||
		!slices.ContainsFunc(table.Outcomes, func(o Outcome) bool { return o.Recorded }) {
		t.Errorf("%+v %v", table, err)
	}
}

// TestOneContradiction checks that a block that was freed and is in use at the end is reported,
// even if it is the only one.
func TestOneContradiction(t *testing.T) {
	rec := &event.Recording{Version: "2.11", Segments: []event.Segment{{Addr: 1 << 30, Size: 2 * mib,
		Small: true, Blocks: []event.Block{{Addr: 1 << 30, Size: 512, Requested: 512,
			State: event.BlockActive}, {Addr: 1<<30 + 512, Size: 2*mib - 512}}}}}
	for freed := range 3 {
		rec.History = event.History{}
		for range freed {
			rec.History.Append(&event.Entry{Kind: event.KindFreeCompleted, Addr: 1 << 30, Size: 512})
		}
		r, err := Replay(rec, ReplayOptions{})
		if err != nil {
			t.Fatal(err)
		}
		told := slices.ContainsFunc(r.Warnings, func(w string) bool {
			return strings.HasPrefix(w, fmt.Sprintf("%d entries contradict", freed))
		})
		if told != (freed > 0) || r.Before != 1 {
			t.Errorf("%d contradictions: %q, %d before", freed, r.Warnings, r.Before)
		}
	}
}

// TestRequestsBeyondAnyCard: a recording may have more than the range of the largest card that the
// model thinks of.
func TestRequestsBeyondAnyCard(t *testing.T) {
	for _, pages := range []int64{1 << 14, 1 << 17, 3 << 18} {
		const base = 1 << 55
		size := pages * 20 * mib
		rec := &event.Recording{Version: "2.11", Segments: []event.Segment{{Addr: base, Size: size,
			Expandable: true, Blocks: []event.Block{{Addr: base, Size: size, Requested: size,
				State: event.BlockActive}}}}}
		for _, kind := range []event.Kind{event.KindSegmentMap, event.KindAlloc} {
			rec.History.Append(&event.Entry{Kind: kind, Addr: base, Size: size})
		}
		r, err := Replay(rec, ReplayOptions{})
		if err != nil || !r.Exact() || !r.Complete {
			t.Errorf("%d: %+v %v", size, r, err)
		}
	}
}

// TestAddressesOfTheLinuxDriver: what is handed out never overlaps, holes are used before new
// ranges, lowest first, and ranges are multiples of 32 MiB below each other.
func TestAddressesOfTheLinuxDriver(t *testing.T) {
	d := NewLinuxDriver()
	const quantum = 32 << 20
	first, second := d.Malloc(20*mib), d.Malloc(40*mib)
	if first != mallocTop-quantum || second != first-2*quantum {
		t.Errorf("%#x, %#x", first, second)
	}
	// 12 MiB are left behind the first, 24 MiB behind the second, which is lower
	if a, b, c := d.Malloc(10*mib), d.Malloc(10*mib), d.Malloc(10*mib); a != second+uint64(40*mib) ||
		b != a+uint64(10*mib) || c != first+uint64(20*mib) {
		t.Errorf("%#x, %#x, %#x", a, b, c)
	}
	one, two := d.Reserve(1), d.Reserve(quantum)
	if three := d.Reserve(quantum + 1); one != reserveBase || two != one+quantum ||
		three != two+quantum || d.Reserve(1) != three+2*quantum {
		t.Errorf("%#x, %#x, %#x", one, two, three)
	}
	random := rand.New(rand.NewPCG(3, 0))
	d = NewLinuxDriver()
	live := map[uint64]int64{}
	for range 3000 {
		if len(live) > 40 || len(live) > 0 && random.IntN(3) == 0 {
			addr := slices.Sorted(maps.Keys(live))[random.IntN(len(live))]
			d.Free(addr, live[addr])
			delete(live, addr)
			continue
		}
		size := 2 * mib * (1 + random.Int64N(30))
		addr := d.Malloc(size)
		for at, other := range live {
			if addr < at+uint64(other) && at < addr+uint64(size) {
				t.Fatalf("%#x+%d lies over %#x+%d", addr, size, at, other)
			}
		}
		live[addr] = size
	}
	for addr, size := range live {
		d.Free(addr, size)
	}
	if len(d.ranges) != 0 || d.Malloc(20*mib) != first {
		t.Errorf("%d ranges are left when all is given back", len(d.ranges))
	}
}

// TestLoadedStateIsTheSame: a state that is written as segments and loaded again has the same
// blocks and counts the same.
func TestLoadedStateIsTheSame(t *testing.T) {
	for _, conf := range []string{"", "expandable_segments:True", "max_split_size_mb:40"} {
		config, err := ParseConf(conf)
		if err != nil {
			t.Fatal(err)
		}
		made, err := New(Options{Config: config})
		if err != nil {
			t.Fatal(err)
		}
		random := rand.New(rand.NewPCG(11, 0))
		var live []Block
		for range 300 {
			if len(live) > 0 && random.IntN(5) < 2 {
				at := random.IntN(len(live))
				if random.IntN(8) == 0 {
					made.FreePending(live[at])
				} else {
					made.Free(live[at])
				}
				live = slices.Delete(live, at, at+1)
				continue
			}
			b, err := made.Malloc(1+random.Int64N(1<<(9+random.IntN(18))), uint64(random.IntN(2)))
			if err != nil {
				t.Fatal(err)
			}
			live = append(live, b)
		}
		loaded, err := New(Options{Config: config})
		if err != nil {
			t.Fatal(err)
		}
		placed := 0
		loaded.load(made.Segments(), nil, func(event.Block, Block) { placed++ })
		if err := loaded.Check(); err != nil {
			t.Errorf("%q: %v", conf, err)
		}
		if want, got := describe(made.Segments()), describe(loaded.Segments()); got != want {
			t.Errorf("%q: %s\nwant %s", conf, got, want)
		}
		if placed != len(live)+len(made.pending) || loaded.Reserved() != made.Reserved() {
			t.Errorf("%q: %d blocks, %s", conf, placed, loaded.Reserved())
		}
		for name, pools := range map[string][2]PoolStats{
			"all":   {made.stats.All, loaded.stats.All},
			"small": {made.stats.Small, loaded.stats.Small},
			"large": {made.stats.Large, loaded.stats.Large},
		} {
			if want, got := currents(&pools[0]), currents(&pools[1]); got != want {
				t.Errorf("%q, %s: %v, want %v", conf, name, got, want)
			}
		}
	}
}

// currents are the figures of a pool at this moment.
func currents(p *PoolStats) (all [9]int64) {
	for i, s := range []Stat{p.Allocation, p.AllocatedBytes, p.Active, p.ActiveBytes, p.RequestedBytes,
		p.Segment, p.ReservedBytes, p.InactiveSplit, p.InactiveSplitBytes} {
		all[i] = s.Current
	}
	return all
}

// TestWherePeaksAre: at the entry that reached them first, however often they are reached again.
func TestWherePeaksAre(t *testing.T) {
	rec := &event.Recording{Version: "2.11"}
	a, err := New(Options{Config: DefaultConfig(), Version: "2.11", Driver: NewAscendingDriver(),
		Record: func(e event.Entry) { rec.History.Append(&e) }})
	if err != nil {
		t.Fatal(err)
	}
	malloc := func(size int64) Block {
		b, err := a.Malloc(size, 0)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	malloc(30 * mib)
	for range 3 { // the peak, three times
		b := malloc(40 * mib)
		a.Free(b)
	}
	malloc(5 * mib)
	rec.Segments = a.Segments()
	var allocated, reserved []int64
	r, err := Replay(rec, ReplayOptions{Observe: func(_ int, _ *event.Entry, a *Allocator) {
		allocated = append(allocated, a.stats.All.AllocatedBytes.Current)
		reserved = append(reserved, a.stats.All.ReservedBytes.Current)
	}})
	if err != nil || !r.Exact() {
		t.Fatalf("%+v %v", r, err)
	}
	if want := slices.Index(allocated, slices.Max(allocated)); r.AllocatedPeakAt != want {
		t.Errorf("allocated: at %d, want %d", r.AllocatedPeakAt, want)
	}
	if want := slices.Index(reserved, slices.Max(reserved)); r.ReservedPeakAt != want {
		t.Errorf("reserved: at %d, want %d", r.ReservedPeakAt, want)
	}
}

// TestMappingsAreCompared checks that pages are reported that were mapped at another place, in
// another size or by other calls than in the model. This also holds in a program that has private
// pools elsewhere.
func TestMappingsAreCompared(t *testing.T) {
	const base = 1 << 40
	private := event.Segment{Addr: 1 << 30, Size: 2 * mib, Small: true, Pool: event.PoolID{0, 1},
		Blocks: []event.Block{{Addr: 1 << 30, Size: 512, Requested: 512, State: event.BlockActive},
			{Addr: 1<<30 + 512, Size: 2*mib - 512}}}
	for name, c := range map[string]struct {
		maps  [][2]int64 // offset and size, in MiB
		exact bool
	}{
		"as it would":     {[][2]int64{{0, 20}}, true},
		"more":            {[][2]int64{{0, 40}}, false},
		"in two calls":    {[][2]int64{{0, 20}, {20, 20}}, false},
		"with a gap":      {[][2]int64{{0, 20}, {40, 20}}, false},
		"somewhere below": {[][2]int64{{-20, 20}, {0, 20}}, false},
	} {
		for _, pools := range []bool{false, true} {
			rec := &event.Recording{Version: "2.11", CutOff: !pools}
			if pools {
				rec.Segments = []event.Segment{private}
				rec.History.Append(&event.Entry{Kind: event.KindSegmentAlloc, Addr: private.Addr,
					Size: private.Size})
				rec.History.Append(&event.Entry{Kind: event.KindAlloc, Addr: private.Addr, Size: 512})
			}
			for _, m := range c.maps {
				rec.History.Append(&event.Entry{Kind: event.KindSegmentMap,
					Addr: uint64(base + m[0]*mib), Size: m[1] * mib})
			}
			for _, kind := range []event.Kind{event.KindAlloc, event.KindFreeRequested,
				event.KindFreeCompleted} {
				rec.History.Append(&event.Entry{Kind: kind, Addr: base, Size: 15 * mib})
			}
			for _, m := range c.maps {
				rec.History.Append(&event.Entry{Kind: event.KindSegmentUnmap,
					Addr: uint64(base + m[0]*mib), Size: m[1] * mib})
			}
			r, err := Replay(rec, ReplayOptions{Version: "2.11"})
			if err != nil || r.Exact() != c.exact {
				t.Errorf("%s, private pools %v: %v %v", name, pools, r.Divergences, err)
			}
		}
	}
}

// TestPoolsThatEntriesName: the name counts, also of a segment that is gone at the end.
func TestPoolsThatEntriesName(t *testing.T) {
	gone, left := event.PoolID{0, 1}, event.PoolID{0, 2}
	rec := &event.Recording{Version: "2.13", Segments: []event.Segment{{Addr: 1 << 32,
		Size: 2 * mib, Small: true, Pool: left, Blocks: []event.Block{{Addr: 1 << 32, Size: 512,
			Requested: 512, State: event.BlockActive}, {Addr: 1<<32 + 512, Size: 2*mib - 512}}}}}
	add := func(kind event.Kind, addr uint64, size int64, pool event.PoolID) {
		rec.History.Append(&event.Entry{Kind: kind, Addr: addr, Size: size, Pool: pool})
	}
	add(event.KindSegmentAlloc, 1<<30, 2*mib, gone)
	for _, kind := range []event.Kind{event.KindAlloc, event.KindFreeRequested,
		event.KindFreeCompleted} {
		add(kind, 1<<30, 512, gone)
	}
	add(event.KindSegmentFree, 1<<30, 2*mib, gone)
	add(event.KindSegmentAlloc, 1<<32, 2*mib, left)
	add(event.KindAlloc, 1<<32, 512, left)
	pools := map[event.PoolID]bool{}
	r, err := Replay(rec, ReplayOptions{Version: "2.13",
		Observe: func(_ int, _ *event.Entry, a *Allocator) {
			for _, s := range a.Segments() {
				pools[s.Pool] = true
			}
		}})
	if err != nil || !r.Exact() || !pools[gone] || !pools[left] || len(pools) != 2 {
		t.Errorf("%v, %v %v", pools, r.Divergences, err)
	}
}
