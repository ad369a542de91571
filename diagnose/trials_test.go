package diagnose

import (
	"strings"
	"testing"

	"memroom/event"
)

// TestTooManyTrials: workers are too many when they fill memory, or when one was killed; the number
// that fits leaves room for everything else.
func TestTooManyTrials(t *testing.T) {
	group := func(n int, each event.Bytes) []event.RaySample {
		return []event.RaySample{{Name: "Trainer", Count: n, Largest: each,
			Sum: event.Bytes(n) * each}}
	}
	for name, c := range map[string]struct {
		samples []event.Sample
		says    string
	}{
		"full": {[]event.Sample{{Held: 9 * event.GiB, Ray: group(4, 2*event.GiB)}},
			"4 of Trainer with up to 2GiB each in 10GiB of host memory; 3 fit"},
		"alone":      {[]event.Sample{{Held: 9 * event.GiB, Ray: group(1, 8*event.GiB)}}, ""},
		"room left":  {[]event.Sample{{Held: 8 * event.GiB, Ray: group(3, 2*event.GiB)}}, ""},
		"not theirs": {[]event.Sample{{Held: 9 * event.GiB, Ray: group(3, event.GiB)}}, ""},
		"killed": {[]event.Sample{{Held: 6 * event.GiB, Ray: group(3, 2*event.GiB)},
			{Held: 4 * event.GiB, Ray: group(2, 2*event.GiB), Cgroup: &event.CgroupSample{
				OOMKill: 1}}}, "3 of Trainer with up to 2GiB each in 10GiB of host memory; 2 fit"},
	} {
		w := NewWatch(DefaultThresholds(), 10*event.GiB)
		var found []event.Finding
		for _, s := range append(c.samples, c.samples...) {
			found = append(found, w.trials(s)...)
		}
		if c.says == "" && len(found) == 0 {
			continue
		}
		if len(found) != 1 || !strings.Contains(found[0].Title, c.says) || c.says == "" {
			t.Errorf("%s: %+v", name, found)
		}
	}
}
