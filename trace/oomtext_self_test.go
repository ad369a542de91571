package trace

import (
	"testing"

	"memroom/event"
)

// TestOwnProcessIsNoNeighbour: in a container PyTorch lists its own process under a number that it
// does not know. Who holds as much as this process and a little for its context is this process.
func TestOwnProcessIsNoNeighbour(t *testing.T) {
	const gib, mib = event.GiB, event.MiB
	size := func(b event.Bytes) *event.Bytes { return &b }
	for name, c := range map[string]struct {
		capacity   event.Bytes // in GiB; 0: not said
		idle       event.Bytes // 0: not said
		neighbours []event.Bytes
		own        event.Bytes // 0: none of them is us
	}{
		"its bytes and a context":     {80, gib, []event.Bytes{11*gib + 500*mib}, 11*gib + 500*mib},
		"two gibibytes more at most":  {80, gib, []event.Bytes{13 * gib}, 13 * gib},
		"more than that is another":   {80, gib, []event.Bytes{13*gib + mib}, 0},
		"less than it holds, too":     {80, gib, []event.Bytes{11*gib - mib}, 0},
		"the second of two":           {80, gib, []event.Bytes{40 * gib, 12 * gib}, 12 * gib},
		"two would not fit":           {24, gib, []event.Bytes{14 * gib}, 14 * gib},
		"without figures of the card": {0, 0, []event.Bytes{10 * gib}, 10 * gib},
	} {
		crash := Crash{Allocated: size(10 * gib)}
		if c.capacity > 0 {
			crash.Idle, crash.Capacity = size(c.idle), size(c.capacity*gib)
		}
		for i, bytes := range c.neighbours {
			crash.Neighbours = append(crash.Neighbours, Holder{PID: int64(100 + i), Bytes: bytes})
		}
		crash.dropSelf()
		left := len(c.neighbours)
		if c.own > 0 {
			left--
		}
		if len(crash.Neighbours) != left || (crash.InProcess != nil) != (c.own > 0) ||
			crash.InProcess != nil && *crash.InProcess != c.own {
			t.Errorf("%s: %d neighbours left, own %v; want %d and %s", name, len(crash.Neighbours),
				crash.InProcess, left, c.own)
		}
	}
}
