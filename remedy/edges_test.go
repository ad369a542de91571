package remedy

import (
	"strings"
	"testing"

	"memroom/event"
)

// TestLargerLimits: half as much again, never rounded down, in the unit that reads well.
func TestLargerLimits(t *testing.T) {
	for _, c := range []struct {
		limit event.Bytes
		unit  string
		want  string
	}{
		{0, "g", "MORE"}, {-1, "Gi", "MORE"}, {1, "g", "1m"}, {2, "g", "1m"}, {event.MiB, "GiB", "2MiB"},
		{100 * event.MiB, "Gi", "150Mi"}, {100*event.MiB + 1, "Gi", "151Mi"}, {event.GiB, "G", "1536M"},
		{4 * event.GiB / 3, "g", "2048m"}, {4*event.GiB/3 + 2, "g", "3g"}, {2 * event.GiB, "GiB", "3GiB"},
		{2*event.GiB + 1, "GiB", "4GiB"}, {10 * event.GiB, "g", "15g"},
	} {
		if got := larger(c.limit, c.unit); got != c.want {
			t.Errorf("%d bytes in %s: %s, want %s", c.limit, c.unit, got, c.want)
		}
	}
}

// TestMicroBatchesDownToOne: the smallest batch is said as a number too.
func TestMicroBatchesDownToOne(t *testing.T) {
	for _, c := range []struct {
		before, after int
		want          string
	}{{2, 1, "inputs.split(1)"}, {8, 4, "inputs.split(4)"}, {8, 8, "inputs.split(HALF_YOUR_BATCH)"},
		{8, 0, "inputs.split(HALF_YOUR_BATCH)"}} {
		job := Job{Setup: &Setup{Batch: c.before}, Inference: true}
		if how := howMicroBatch(job, Setup{Batch: c.after}); !strings.Contains(how.Code, c.want) {
			t.Errorf("from %d to %d: %s, want %s", c.before, c.after, how.Code, c.want)
		}
	}
}

// TestSlowdownOfSmallerBatches: nothing is known of a batch of one; a card far from saturation
// loses most, a saturated one nothing to speak of.
func TestSlowdownOfSmallerBatches(t *testing.T) {
	for _, c := range []struct {
		setup Setup
		want  float64
	}{
		{Setup{Batch: 1, Seq: 128}, 1.05}, {Setup{Batch: 8}, 1.05},
		{Setup{Batch: 2, Seq: 256}, 1.5},             // 512 of 1024 becomes 256 of 768
		{Setup{Batch: 8, Image: 256}, 1.2},           // 2048 tokens, one a patch of 16 by 16
		{Setup{Batch: 8, Seq: 64, Image: 9999}, 1.5}, // a text is counted by its tokens
	} {
		if got := smallerBatchSlowdown(c.setup); got < c.want-1e-9 || got > c.want+1e-9 {
			t.Errorf("%+v: %v, want %v", c.setup, got, c.want)
		}
	}
}
