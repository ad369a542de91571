package diagnose

import (
	"strings"
	"testing"

	"memroom/event"
)

// TestFeedingMattersByItsShare: what feeding takes is named once where it is a fifth of host memory
// or half of /dev/shm, also when the walls become known after it; else it stays in the record.
func TestFeedingMattersByItsShare(t *testing.T) {
	loader := event.Feed{Source: "DataLoader", Each: 32 * event.MiB, Workers: 4, Prefetch: 2,
		Total: 256 * event.MiB, File: "/a/t.py", Line: 3}
	pinned, alone, shuffle := loader, loader, loader
	pinned.Pinned, alone.Workers = true, 0
	shuffle.Source = "tf.data shuffle"
	for name, c := range map[string]struct {
		feed        event.Feed
		limit, shm  event.Bytes
		says, cures string
	}{
		"host": {loader, event.GiB, 0, "0.25GiB of 1GiB of host memory", "dataloader_workers stream_data"},
		"pinned": {pinned, event.GiB, 0, "1GiB of host memory",
			"dataloader_workers pin_memory stream_data"},
		"alone": {alone, event.GiB, 0, "one batch", "micro_batch stream_data"},
		"shm": {loader, 64 * event.GiB, 500 * event.MiB, "256MiB of 500MiB of /dev/shm",
			"dataloader_workers shm_size pin_memory"},
		"shuffle": {shuffle, event.GiB, 100 * event.MiB, "1GiB of host memory",
			"shuffle_buffer tf_data_budget stream_data"},
		"little": {loader, 2 * event.GiB, event.GiB, "", ""},
	} {
		w := NewWatch(DefaultThresholds(), c.limit)
		found := w.Feeding(1, c.feed)
		found = append(found, w.Sample(event.Sample{Machine: &event.MachineSample{
			Total: 64 * event.GiB, Available: 60 * event.GiB, ShmTotal: c.shm}})...)
		found = append(found, w.Feeding(1, c.feed)...)
		sound(t, found...)
		if c.says == "" {
			if len(found) > 0 {
				t.Errorf("%s: %+v", name, found)
			}
			continue
		}
		if len(found) != 1 || !strings.Contains(found[0].Title, c.says) ||
			strings.Join(found[0].Remedies, " ") != c.cures {
			t.Errorf("%s: %+v", name, found)
		}
	}
}

// TestBuffersThatFill: what a buffer of elements of unknown size takes is measured while it fills;
// a leak that was said of a cache's growth is taken back.
func TestBuffersThatFill(t *testing.T) {
	cache := event.Feed{Source: "tf.data cache", Total: 300 * event.MiB, Measured: true, Batches: 40,
		File: "/a/t.py", Line: 3}
	shuffle, small := cache, cache
	shuffle.Source, shuffle.Count, shuffle.Each = "tf.data shuffle", 300, event.MiB
	small.Total = event.MiB
	for says, feed := range map[string]event.Feed{
		"takes 0.29GiB of 1GiB of host memory: tf.data cache: memory rose by 300MiB in 40 batches": cache,
		"tf.data shuffle: 300 x about 1MiB, as measured when it filled (t.py:3)":                   shuffle,
		"": small,
	} {
		w := NewWatch(DefaultThresholds(), event.GiB)
		w.processes[place{1, event.HostDevice}] = &process{leak: &Trend{Slope: 1e6, Onset: 5}}
		found := w.Feeding(1, feed)
		back := 1
		if feed.Count > 0 {
			back = 0
		}
		if len(found) != back+len(says[:min(1, len(says))]) {
			t.Fatalf("%q: %+v", says, found)
		}
		if says != "" && !strings.Contains(found[back].Title, says) {
			t.Errorf("%q: %s", says, found[back].Title)
		}
		if back == 1 && (found[0].Kind != "leak" || found[0].Severity != event.SeverityInfo) {
			t.Errorf("the leak is not taken back: %+v", found)
		}
	}
}
