package event_test

import (
	"testing"

	"memroom/event"
)

// TestFeedsAreSaidAsTheirArguments: the sum is written with the arguments that make it.
func TestFeedsAreSaidAsTheirArguments(t *testing.T) {
	for _, c := range []struct {
		feed      event.Feed
		sum, cure string
		shm       event.Bytes
	}{
		{event.Feed{Source: "DataLoader", Each: event.MiB, Workers: 4, Prefetch: 2, Pinned: true,
			File: "/a/t.py", Line: 3},
			"DataLoader: 4 workers x 2 batches x 1MiB x 2, for they are pinned (t.py:3)",
			"a lower prefetch_factor or num_workers", 8 * event.MiB},
		{event.Feed{Source: "DataLoader", Each: event.MiB, Prefetch: 1},
			"DataLoader: one batch of 1MiB", "a smaller batch_size", 0},
		{event.Feed{Source: "DataLoader", Each: event.MiB, Workers: 1, Prefetch: 2,
			Persistent: true}, "DataLoader: 1 worker x 2 batches x 1MiB, also between epochs",
			"a lower prefetch_factor or num_workers", 2 * event.MiB},
		{event.Feed{Source: "tf.data shuffle", Count: 1000, Each: event.KiB},
			"tf.data shuffle: 1000 x 1KiB", "a lower buffer_size, or shuffle before decoding", 0},
		{event.Feed{Source: "tf.data cache", Count: 9},
			"tf.data cache: 9 x elements of unknown size", "cache(filename), or no cache", 0},
		{event.Feed{Source: "datasets map", Count: 1000, Workers: 8, Each: event.MiB},
			"datasets map: 8 processes x 1000 rows x 1MiB",
			"a lower writer_batch_size or num_proc", 0},
	} {
		if got := c.feed.Sum(); got != c.sum {
			t.Errorf("%q, want %q", got, c.sum)
		}
		if got := c.feed.Change(); got != c.cure {
			t.Errorf("%q, want %q", got, c.cure)
		}
		if got := c.feed.Shm(); got != c.shm {
			t.Errorf("%s in /dev/shm, want %s", got, c.shm)
		}
	}
}

// TestOnlyWorkersOfADataLoaderUseShm: a pool of processes elsewhere has workers and prefetches too.
func TestOnlyWorkersOfADataLoaderUseShm(t *testing.T) {
	for source, want := range map[string]event.Bytes{"DataLoader": 6 * event.MiB,
		"datasets map": 0, "tf.data shuffle": 0, "tf.data cache": 0} {
		feed := event.Feed{Source: source, Each: event.MiB, Workers: 3, Prefetch: 2, Count: 5}
		if got := feed.Shm(); got != want {
			t.Errorf("%s: %s in /dev/shm, want %s", source, got, want)
		}
	}
}
