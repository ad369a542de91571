package diagnose

import "testing"

// TestLeakReadSeldomIsNotTakenBack: after a leak was found hooks may rest, and the few steps read
// from then on are jumps. As long as the floor gains what it did, the leak goes on; a floor that
// stays level ends it.
func TestLeakReadSeldomIsNotTakenBack(t *testing.T) {
	for name, after := range map[string]struct {
		slope float64
		over  bool
	}{"goes on": {512 << 10, false}, "slower but on": {300 << 10, false}, "full": {0, true}} {
		s, leak := &Series{}, Trend{}
		value := 50.0 * (1 << 20)
		step := int64(1)
		for ; step <= 50; step++ {
			value += 512 << 10
			s.Add(step, value, 0, 0, DefaultThresholds())
			if found, ok := s.Leak(DefaultThresholds()); ok && leak.Steps == 0 {
				leak = found
			}
		}
		if leak.Steps == 0 {
			t.Fatal("no leak found to begin with")
		}
		over := false
		for gap := int64(30); step < 600; gap += 7 { // few, uneven readings
			step += gap
			value += after.slope * float64(gap)
			s.Add(step, value, 0, 0, DefaultThresholds())
			s.rising = false // the hardest case: the trend is not seen any more
			_, now := s.Ended(leak, DefaultThresholds())
			over = over || now
		}
		if over != after.over {
			t.Errorf("%s: over %v, want %v", name, over, after.over)
		}
	}
}
