package explain

import (
	"testing"

	"memroom/event"
	"memroom/trace"
)

// wherever it was asked for.
func TestSizesThatNobodyMeans(t *testing.T) {
	const gib = event.GiB
	size := func(b event.Bytes) *event.Bytes { return &b }
	frames := []event.Frame{{File: "train.py", Line: 3}}
	for name, c := range map[string]struct {
		crash trace.Crash
		bug   bool
	}{
		"sixteen cards": {trace.Crash{Where: event.WhereGPU, Requested: size(16 * 24 * gib),
			Capacity: size(24 * gib), Frames: frames}, true},
		"hardly less": {trace.Crash{Where: event.WhereGPU, Requested: size(16*24*gib - 1),
			Capacity: size(24 * gib), Frames: frames}, false},
		"the host's": {trace.Crash{Where: event.WhereHost, Requested: size(16 * 24 * gib),
			Capacity: size(24 * gib)}, false},
		"64 TiB on the host": {trace.Crash{Where: event.WhereHost,
			Requested: size(64 * event.TiB)}, true},
		"less than that": {trace.Crash{Where: event.WhereHost,
			Requested: size(64*event.TiB - 1)}, false},
		"a cache of a server": {trace.Crash{Kind: "serving_cache", Requested: size(64 * event.TiB)},
			false},
		"no size": {trace.Crash{Where: event.WhereGPU, Capacity: size(gib)}, false},
	} {
		if j, found := byMistake(&c.crash, &trace.Hints{}); found != c.bug ||
			found && j.cause != CauseBug {
			t.Errorf("%s: %v, %+v", name, found, j)
		}
	}
}

// TestFullStores: Ray's own progress shows a store that is over its limit.
func TestFullStores(t *testing.T) {
	for text, want := range map[string]bool{"5.1 GiB/5.0 GiB object_store_memory": true,
		"5.0GiB/5.0GiB object_store_memory": false, "900.0MiB/1.0GiB object_store_memory": false,
		"1.5GiB/1.0GiB memory": false} {
		if got := overStore(&trace.Crash{Text: text}); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}
