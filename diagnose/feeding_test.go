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
		"host": {loader, event.GiB, 0, "256MiB of 1GiB of host memory", "dataloader_workers stream_data"},
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
