package local

import (
	"testing"

	"memroom/event"
)

// TestOwnPeakLeavesNeighboursOut: a container's driver names no processes, so its figure counts
// every trial on the card.
func TestOwnPeakLeavesNeighboursOut(t *testing.T) {
	for name, c := range map[string]struct{ used, reserved, named, want event.Bytes }{
		"alone":                  {7 * event.GiB, 6.5 * 1024 * event.MiB, 0, 7 * event.GiB},
		"beside others":          {40 * event.GiB, 6 * event.GiB, 0, 6*event.GiB + contextMost},
		"between two readings":   {0, 6 * event.GiB, 0, 6 * event.GiB},
		"no word of a framework": {3 * event.GiB, 0, 0, 3 * event.GiB},
		"silent beside others":   {40 * event.GiB, 0, 0, 12 * event.GiB},
		"the driver names it":    {40 * event.GiB, 6 * event.GiB, 6600 * event.MiB, 6600 * event.MiB},
	} {
		got := ownPeak(event.DevicePeak{Used: c.used, Reserved: c.reserved, Ours: c.named},
			12*event.GiB)
		if got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
