package allocsim_test

import (
	"testing"

	"memroom/allocsim"
	"memroom/event"

	"pgregory.net/rapid"
)

// TestPrivatePoolsAreTakenAsRecorded mixes allocations of the default pool with those of private
// pools, as CUDA graphs make them. Since 2.12 entries name their pool; before, only the segments
// left at the end do.
func TestPrivatePoolsAreTakenAsRecorded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		named := rapid.Bool().Draw(t, "named")
		o := allocsim.Options{Config: allocsim.DefaultConfig(), Version: "2.11"}
		if named {
			o.Version = "2.13"
		}
		d := newDrawn(t, o)
		for range rapid.IntRange(1, 120).Draw(t, "steps") {
			if rapid.IntRange(0, 3).Draw(t, "private") > 0 {
				d.step(t)
				continue
			}
			b, err := d.a.MallocIn(rapid.IntRange(1, 2).Draw(t, "pool"), drawSize(t), 0)
			if err != nil {
				t.Fatal(err)
			}
			d.live = append(d.live, b)
		}
		rec := d.recording()
		if !named {
			rec.History = withoutPools(&rec.History)
		}
		r, err := allocsim.Replay(rec, allocsim.ReplayOptions{Timeline: true, Limit: event.PiB})
		if err != nil {
			t.Fatal(err)
		}
		if !r.Exact() {
			t.Fatalf("%d mismatches: %v", r.Mismatches, r.Divergences)
		}
		got, err := r.Run(allocsim.Options{Config: o.Config})
		if err != nil {
			t.Fatal(err)
		}
		if want := d.a.Stats().All.ReservedBytes.Peak; got.ReservedPeak != event.Bytes(want) {
			t.Fatalf("the same requests reserve %s, the run %s", got.ReservedPeak,
				event.Bytes(want))
		}
	})
}

func withoutPools(h *event.History) (bare event.History) {
	for _, e := range h.All() {
		copied := *e
		copied.Pool = event.PoolID{}
		bare.Append(&copied)
	}
	return bare
}

// TestPoolsBeyondThoseThatACountCanNameShareTheLast: a timeline numbers pools with a byte. Pools
// that it cannot number share its last number; none takes that of an earlier pool.
func TestPoolsBeyondThoseThatACountCanNameShareTheLast(t *testing.T) {
	d := &drawn{options: allocsim.Options{Config: allocsim.DefaultConfig(), Version: "2.13"}}
	o := d.options
	o.Record = func(e event.Entry) { e.TimeUS = int64(d.history.Len()); d.history.Append(&e) }
	var err error
	if d.a, err = allocsim.New(o); err != nil {
		t.Fatal(err)
	}
	const pools = 300
	for pool := range pools {
		if _, err := d.a.MallocIn(pool, int64(1000+512*pool), 0); err != nil {
			t.Fatal(err)
		}
	}
	r, err := allocsim.Replay(d.recording(), allocsim.ReplayOptions{Timeline: true,
		Limit: event.PiB})
	if err != nil {
		t.Fatal(err)
	}
	ops := r.Timeline.Ops
	if len(ops) != pools {
		t.Fatalf("%d operations, want %d", len(ops), pools)
	}
	for i, op := range ops {
		if want := uint8(min(i, 255)); op.Pool != want {
			t.Fatalf("request %d is in pool %d, want %d", i, op.Pool, want)
		}
	}
}
