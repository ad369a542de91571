package allocsim_test

import (
	"math/rand/v2"
	"testing"

	"memroom/allocsim"
	"memroom/event"
)

// churn records a program that frees blocks of few sizes in random order, so that the order of ties
// decides where the next block lies.
func churn(t *testing.T, version string, ops int) *event.Recording {
	t.Helper()
	rec := &event.Recording{}
	a, err := allocsim.New(allocsim.Options{Config: allocsim.DefaultConfig(), Version: version,
		Record: func(e event.Entry) { rec.History.Append(&e) }})
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	var live []allocsim.Block
	for range ops {
		if len(live) > 300 || len(live) > 0 && random.IntN(100) < 45 {
			i := random.IntN(len(live))
			a.Free(live[i])
			live[i] = live[len(live)-1]
			live = live[:len(live)-1]
			continue
		}
		b, err := a.Malloc([]int64{1 << 20, 3 << 20, 700}[random.IntN(3)], 0)
		if err != nil {
			t.Fatal(err)
		}
		live = append(live, b)
	}
	rec.Segments = a.Segments()
	return rec
}

// TestTheOrderOfTiesIsFound: a recording whose keys name another release is followed by the order
// of its own, and what is observed last is the pass that Replay answers with.
func TestTheOrderOfTiesIsFound(t *testing.T) {
	for _, c := range []struct{ made, named string }{{"2.13", "2.4"}, {"2.4", "2.13"},
		{"2.12", "2.13"}, {"2.4", "2.4"}} {
		rec := churn(t, c.made, 30_000)
		rec.Version = c.named
		last, allocated := -1, int64(0)
		r, err := allocsim.Replay(rec, allocsim.ReplayOptions{Timeline: true,
			Observe: func(i int, _ *event.Entry, a *allocsim.Allocator) {
				if i != 0 && i != last+1 {
					t.Fatalf("made by %s: entry %d follows %d", c.made, i, last)
				}
				last, allocated = i, a.Stats().All.AllocatedBytes.Current
			}})
		if err != nil {
			t.Fatal(err)
		}
		if !r.Exact() || (len(r.Warnings) > 0) != (c.made != c.named) {
			t.Errorf("made by %s, named %s: %d entries differ; %q", c.made, c.named, r.Mismatches,
				r.Warnings)
		}
		if last != rec.History.Len()-1 || allocated != r.Stats.All.AllocatedBytes.Current ||
			r.Timeline == nil {
			t.Errorf("made by %s, named %s: the last pass ended at %d of %d", c.made, c.named, last,
				rec.History.Len())
		}
	}
}

// TestAReleaseThatIsGivenCounts: no other is tried, even if it would explain more.
func TestAReleaseThatIsGivenCounts(t *testing.T) {
	rec := churn(t, "2.13", 3000)
	for version, exact := range map[string]bool{"2.13": true, "2.4": false} {
		r, err := allocsim.Replay(rec, allocsim.ReplayOptions{Version: version})
		if err != nil || r.Exact() != exact || r.Version.String() != version {
			t.Errorf("%s: %d entries differ as %s, %v", version, r.Mismatches, r.Version, err)
		}
	}
}

// TestAForeignRecordingIsReplayedOnce: placements that no release makes are followed without
// walking over all of them for each order of ties.
func TestAForeignRecordingIsReplayedOnce(t *testing.T) {
	rec := churn(t, "2.13", 30_000)
	entries := rec.History
	rec.History = event.History{}
	shift := map[uint64]uint64{} // every second small block lies 512 bytes further
	for _, e := range entries.All() {
		at := e.Addr
		if e.Kind == event.KindAlloc && e.Size == 700 {
			shift[at] = 512 * uint64(len(shift)%2)
		}
		e.Addr += shift[at]
		rec.History.Append(e)
	}
	passes, last := 0, -1
	r, err := allocsim.Replay(rec, allocsim.ReplayOptions{
		Observe: func(i int, _ *event.Entry, _ *allocsim.Allocator) {
			if i == 0 {
				passes++
			}
			last = i
		}})
	if err != nil {
		t.Fatal(err)
	}
	if r.Exact() || passes != 1 || last != rec.History.Len()-1 {
		t.Errorf("%d entries differ, %d passes were observed, the last to entry %d of %d",
			r.Mismatches, passes, last, rec.History.Len())
	}
}
