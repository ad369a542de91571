package allocsim

import (
	"strings"
	"testing"

	"memroom/event"
)

// TestRecommendation has tables of outcomes, the first one recorded, and the one to take.
func TestRecommendation(t *testing.T) {
	out := func(peak event.Bytes, retries int64, oom bool) Outcome {
		return Outcome{ReservedPeak: peak * event.MiB, Retries: retries, OOM: oom}
	}
	for name, c := range map[string]struct {
		outcomes []Outcome
		take     int
		say      string
	}{
		"three percent are worth it": {[]Outcome{out(1000, 0, false), out(970, 0, false)}, 1,
			"instead of"},
		"one percent is not": {[]Outcome{out(1000, 0, false), out(990, 0, false)}, 0,
			"as good as any"},
		"two percent are not": {[]Outcome{out(1000, 0, false), out(980, 0, false)}, 0,
			"as good as any"},
		"five percent are worth it": {[]Outcome{out(1000, 0, false), out(950, 0, false)}, 1,
			"instead of"},
		"the least of several": {[]Outcome{out(1000, 0, false), out(900, 0, false),
			out(800, 0, false)}, 2, "instead of"},
		"getting through beats less": {[]Outcome{out(500, 0, true), out(1000, 9, false)}, 1,
			"gets through"},
		"running out is never better": {[]Outcome{out(1000, 9, false), out(500, 0, true)}, 0,
			"flushed 9 times"},
		"no flush beats less": {[]Outcome{out(900, 3, false), out(1000, 0, false)}, 1,
			"never has to flush"},
		"flushes are not taken for less": {[]Outcome{out(1000, 0, false), out(900, 3, false)}, 0,
			"as good as any"},
		"fewer flushes alone are no gain": {[]Outcome{out(1000, 5, false), out(1000, 2, false)}, 0,
			"flushed 5 times"},
		"nothing helps": {[]Outcome{out(1000, 0, true), out(900, 0, true)}, -1,
			"no setting avoids"},
	} {
		table := Table{Outcomes: c.outcomes}
		table.Outcomes[0].Recorded = true
		table.Outcomes[1].Conf = "other"
		table.recommend()
		for i, o := range table.Outcomes {
			if o.Recommended != (i == c.take) {
				t.Errorf("%s: outcome %d recommended: %v (%s)", name, i, o.Recommended,
					table.Reason)
			}
		}
		if !strings.Contains(table.Reason, c.say) {
			t.Errorf("%s: %q, want %q", name, table.Reason, c.say)
		}
	}
}
