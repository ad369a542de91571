//go:build linux

package supervise

import (
	"testing"
	"time"

	"memroom/event"
)

// TestStepsWhenTheClockIsSet: ten steps a second are kept by the program's own clock, which
// somebody may set back or forward.
func TestStepsWhenTheClockIsSet(t *testing.T) {
	var thin stepThinner
	clock := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	for i := range 300 { // thirty seconds
		switch i {
		case 100:
			clock = clock.Add(-2 * time.Hour)
		case 200:
			clock = clock.Add(26 * time.Hour)
		}
		for range 10 {
			clock = clock.Add(10 * time.Millisecond)
			thin.add(event.RankedStep{PID: 1, Step: event.Step{Step: int64(i), End: clock}})
		}
	}
	if kept := len(thin.take()); kept < 290 || kept > 310 {
		t.Errorf("kept %d steps of thirty seconds", kept)
	}
}
