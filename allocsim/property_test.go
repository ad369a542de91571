package allocsim_test

import (
	"errors"
	"fmt"
	"testing"

	"memroom/allocsim"
	"memroom/event"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// drawn is a generated run: the allocator at its end, and everything it wrote down.
type drawn struct {
	options allocsim.Options
	a       *allocsim.Allocator
	live    []allocsim.Block
	pending []allocsim.Block
	history event.History
	// deferred means that a free waited for another stream, emptied that the program called
	// empty_cache.
	deferred, emptied bool
}

// drawOptions chooses a release, settings and a limit.
func drawOptions(t *rapid.T) allocsim.Options {
	conf := rapid.SampledFrom([]string{
		"", "expandable_segments:True", "max_split_size_mb:32", "max_split_size_mb:128",
		"roundup_power2_divisions:4",
		"roundup_power2_divisions:[2:8,4:2,>:1]", "garbage_collection_threshold:0.6",
		"max_split_size_mb:64,max_non_split_rounding_mb:64",
		"large_segment_size_mb:40", "expandable_segments:True,garbage_collection_threshold:0.5",
		"expandable_segments:True,max_split_size_mb:64",
		"max_split_size_mb:48,garbage_collection_threshold:0.7",
		"expandable_segments:True,large_segment_size_mb:32",
	}).Draw(t, "conf")
	c, err := allocsim.ParseConf(conf)
	if err != nil {
		t.Fatal(err)
	}
	o := allocsim.Options{Config: c, Version: rapid.SampledFrom([]string{"2.4", "2.11", "2.12",
		"2.13"}).Draw(t, "version")}
	if rapid.Bool().Draw(t, "limited") {
		o.Limit = event.Bytes(rapid.IntRange(30, 400).Draw(t, "limit")) * event.MiB
	}
	return o
}

// drawSize chooses sizes around the edges of the rules.
func drawSize(t *rapid.T) int64 {
	const mib = 1 << 20
	edge := rapid.SampledFrom([]int64{1, 512, 513, 4096, 300_000, mib, 2 * mib, 5 * mib, 10 * mib,
		17 * mib, 19 * mib, 20 * mib, 31 * mib, 64 * mib}).Draw(t, "edge")
	return max(1, edge+int64(rapid.IntRange(-700, 700).Draw(t, "offset"))+int64(rapid.IntRange(0,
		3).Draw(t, "halves"))*mib/2*int64(btoi(edge > mib)))
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func newDrawn(t *rapid.T, o allocsim.Options) *drawn {
	d := &drawn{options: o}
	o.Record = func(e event.Entry) {
		e.TimeUS = int64(d.history.Len())
		d.history.Append(&e)
	}
	a, err := allocsim.New(o)
	if err != nil {
		t.Fatal(err)
	}
	d.a = a
	return d
}

// step does one random thing.
func (d *drawn) step(t *rapid.T) {
	what := rapid.IntRange(0, 99).Draw(t, "what")
	switch {
	case what < 55 || len(d.live) == 0:
		b, err := d.a.Malloc(drawSize(t), uint64(rapid.IntRange(0, 2).Draw(t, "stream")))
		var oom *allocsim.OutOfMemory
		if errors.As(err, &oom) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		d.live = append(d.live, b)
	case what < 88:
		d.a.Free(d.takeLive(t))
	case what < 94:
		b := d.takeLive(t)
		d.deferred = true
		d.a.FreePending(b)
		d.pending = append(d.pending, b)
	case what < 98 && len(d.pending) > 0:
		i := rapid.IntRange(0, len(d.pending)-1).Draw(t, "done")
		d.a.FreeDone(d.pending[i])
		d.pending = append(d.pending[:i], d.pending[i+1:]...)
	default:
		d.emptied = true
		d.a.EmptyCache()
	}
}

func (d *drawn) takeLive(t *rapid.T) allocsim.Block {
	i := rapid.IntRange(0, len(d.live)-1).Draw(t, "which")
	b := d.live[i]
	d.live = append(d.live[:i], d.live[i+1:]...)
	return b
}

// knownLimit returns the limit for Replay, as a user who knows it would pass it. Without it, an
// empty_cache right before a new peak looks like a request that failed.
func (d *drawn) knownLimit() event.Bytes {
	if d.options.Limit == 0 {
		return event.PiB
	}
	return d.options.Limit
}

// recording is the run as PyTorch would have written it down.
func (d *drawn) recording() *event.Recording {
	divisions := map[int]int{}
	for i, v := range d.options.Config.Divisions {
		divisions[1<<i] = v
	}
	maxSplit := int64(-1)
	if d.options.Config.MaxSplit != allocsim.Unlimited {
		maxSplit = int64(d.options.Config.MaxSplit)
	}
	conf := fmt.Sprintf("large_segment_size_mb:%d,max_non_split_rounding_mb:%d",
		d.options.Config.LargeSegment/event.MiB, d.options.Config.MaxNonSplitRounding/event.MiB)
	return &event.Recording{History: d.history, Segments: d.a.Segments(),
		Version: d.options.Version,
		Settings: event.AllocatorSettings{Known: true, Conf: conf, MaxSplit: maxSplit,
			GCThreshold: d.options.Config.GCThreshold,
			Expandable:  d.options.Config.Expandable, Divisions: divisions}}
}

func TestAllocatorKeepsItsPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := newDrawn(t, drawOptions(t))
		for range rapid.IntRange(1, 120).Draw(t, "steps") {
			d.step(t)
			checkState(t, d)
		}
		for _, b := range d.live {
			if !d.a.Free(b) {
				t.Fatal("a live block could not be freed")
			}
			if d.a.Free(b) {
				t.Fatal("a block was freed twice")
			}
		}
		d.a.EmptyCache()
		if s := &d.a.Stats().All; s.ReservedBytes.Current != 0 || s.ActiveBytes.Current != 0 ||
			s.AllocatedBytes.Current != 0 ||
			s.RequestedBytes.Current != 0 || s.InactiveSplitBytes.Current != 0 ||
			s.InactiveSplit.Current != 0 || s.Segment.Current != 0 {
			t.Fatalf("everything is freed and the cache is empty, but %+v", s)
		}
	})
}

// checkState compares the allocator's books with the blocks it really has.
func checkState(t *rapid.T, d *drawn) {
	var reserved, active, allocated, inactiveSplit int64
	var end uint64
	for _, s := range d.a.Segments() {
		if s.Addr < end {
			t.Fatalf("segment at %#x overlaps the one before", s.Addr)
		}
		end = s.Addr + uint64(s.Size)
		reserved += s.Size
		at, freeBefore := s.Addr, false
		for _, b := range s.Blocks {
			if b.Addr != at || b.Size <= 0 {
				t.Fatalf("block at %#x, expected one at %#x", b.Addr, at)
			}
			at += uint64(b.Size)
			free := b.State == event.BlockFree
			if free && freeBefore {
				t.Fatalf("two free blocks side by side at %#x", b.Addr)
			}
			if freeBefore = free; !free {
				active += b.Size
			} else if !s.Expandable && len(s.Blocks) > 1 {
				inactiveSplit += b.Size
			}
			if b.State == event.BlockActive {
				allocated += b.Size
			}
		}
		if at != end {
			t.Fatalf("blocks of the segment at %#x end at %#x, not at %#x", s.Addr, at, end)
		}
	}
	s := &d.a.Stats().All
	if s.ReservedBytes.Current != reserved || s.ActiveBytes.Current != active ||
		s.AllocatedBytes.Current != allocated || s.InactiveSplitBytes.Current != inactiveSplit {
		t.Fatalf("books: reserved %d, active %d, allocated %d, inactive split %d; blocks: %d, %d, %d, "+
			"%d", s.ReservedBytes.Current, s.ActiveBytes.Current,
			s.AllocatedBytes.Current, s.InactiveSplitBytes.Current, reserved, active, allocated,
			inactiveSplit)
	}
	if allocated > active || active > reserved || s.RequestedBytes.Current > active {
		t.Fatalf("allocated %d <= active %d <= reserved %d does not hold", allocated, active,
			reserved)
	}
	if d.options.Limit > 0 && reserved > int64(d.options.Limit) && !d.options.Config.Expandable {
		t.Fatalf("%d reserved above the limit of %s", reserved, d.options.Limit)
	}
}

func TestReplayOfAGeneratedRunEqualsItsRecording(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := newDrawn(t, drawOptions(t))
		for range rapid.IntRange(1, 150).Draw(t, "steps") {
			d.step(t)
		}
		r, err := allocsim.Replay(d.recording(), allocsim.ReplayOptions{Timeline: true,
			Limit: d.knownLimit()})
		if err != nil {
			t.Fatal(err)
		}
		if !r.Exact() || !r.Complete {
			t.Fatalf("%d mismatches, complete %v: %v", r.Mismatches, r.Complete, r.Divergences)
		}
		want, got := *d.a.Stats(), r.Stats
		// flushes that release nothing leave no trace
		want.SyncAllStreams, got.SyncAllStreams = 0, 0
		want.OversizeAllocations, want.OversizeSegments = got.OversizeAllocations,
			got.OversizeSegments
		// Some runs leave entries that can be read in two ways: a free that the next request's
		// flush completes looks like an immediate one, an empty_cache right before a request that
		// would have failed looks like its flush, and so do these combinations of settings.
		if c := &d.options.Config; d.deferred || d.emptied || c.GCThreshold > 0 ||
			(c.Expandable && c.MaxSplit != allocsim.Unlimited) {
			want.AllocRetries, got.AllocRetries = 0, 0
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("statistics (-run +replay):\n%s", diff)
		}
	})
}

// TestWhatIfUnderTheSameSettingsIsTheSameRun replays the requests of a generated run freely, with
// nothing forced.
func TestWhatIfUnderTheSameSettingsIsTheSameRun(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := newDrawn(t, drawOptions(t))
		for range rapid.IntRange(1, 150).Draw(t, "steps") {
			d.step(t)
		}
		if c := &d.options.Config; c.GCThreshold > 0 || (c.Expandable &&
			c.MaxSplit != allocsim.Unlimited) || (d.deferred && d.options.Limit > 0) {
			return // see above: the requests are not fully known
		}
		r, err := allocsim.Replay(d.recording(), allocsim.ReplayOptions{Timeline: true,
			Limit: d.knownLimit()})
		if err != nil {
			t.Fatal(err)
		}
		got, err := r.Run(allocsim.Options{Config: d.options.Config, Limit: d.options.Limit,
			Version: d.options.Version})
		if err != nil {
			t.Fatal(err)
		}
		want := d.a.Stats()
		if got.Stats.All.ReservedBytes.Peak != want.All.ReservedBytes.Peak ||
			got.Stats.All.AllocatedBytes.Peak != want.All.AllocatedBytes.Peak ||
			got.OOMs != want.OOMs {
			t.Fatalf("reserved peak %d, allocated peak %d, %d OOMs; the run had %d, %d, %d",
				got.ReservedPeak, got.AllocatedPeak, got.OOMs,
				want.All.ReservedBytes.Peak, want.All.AllocatedBytes.Peak, want.OOMs)
		}
	})
}
