package diagnose

import (
	"slices"
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
		"one has gone": {[]event.Sample{{Held: 8 * event.GiB, Ray: group(3, 2*event.GiB)},
			{AtMS: 1000, Held: 9 * event.GiB, Ray: group(2, 3*event.GiB)}},
			"3 of Trainer with up to 3GiB each in 10GiB of host memory; 2 fit"},
		"one comes later": {[]event.Sample{{Held: 9 * event.GiB, Ray: group(2, 4*event.GiB)},
			{AtMS: 1000, Held: 9 * event.GiB, Ray: group(3, 3*event.GiB)}},
			"3 of Trainer with up to 4GiB each in 10GiB of host memory; 2 fit"},
		"long ago": {[]event.Sample{{Held: 3 * event.GiB, Ray: group(3, event.GiB)},
			{AtMS: 60_000, Held: 9 * event.GiB, Ray: group(2, 4*event.GiB)}},
			"2 of Trainer with up to 4GiB each in 10GiB of host memory; 1 fit"},
	} {
		w := NewWatch(DefaultThresholds(), 10*event.GiB)
		var found []event.Finding
		for i, s := range append(c.samples, c.samples...) {
			s.AtMS += int64(i/len(c.samples)) * 120_000
			for _, f := range w.trials(s) {
				found = append(slices.DeleteFunc(found, f.Restates), f)
				sound(t, f)
			}
		}
		if c.says == "" && len(found) == 0 {
			continue
		}
		if len(found) != 1 || !strings.Contains(found[0].Title, c.says) || c.says == "" {
			t.Errorf("%s: %+v", name, found)
		}
	}
}

// TestActorsThatGrow: an actor that rises all the time is named once; one that loads and is level
// then, one that is level, and tasks are not. The store is named when it was filled.
func TestActorsThatGrow(t *testing.T) {
	for name, c := range map[string]struct {
		at    func(second int) event.Sample
		kinds string
	}{
		"grows":   {actorAt(true, func(n int) int { return 200 + 4*n }), "actor"},
		"loads":   {actorAt(true, func(n int) int { return 200 + 40*min(n, 12) }), ""},
		"level":   {actorAt(true, func(n int) int { return 200 + n%3 }), ""},
		"a task":  {actorAt(false, func(n int) int { return 200 + 4*n }), ""},
		"a store": {storeAt(100), "object_store"},
		"room":    {storeAt(2), ""},
	} {
		w := NewWatch(DefaultThresholds(), 0)
		kinds := ""
		for second := range 90 {
			for _, f := range w.trials(c.at(second)) {
				sound(t, f)
				kinds += f.Kind
			}
		}
		if kinds != c.kinds {
			t.Errorf("%s: found %q, want %q", name, kinds, c.kinds)
		}
	}
}

func actorAt(actor bool, mib func(second int) int) func(int) event.Sample {
	return func(second int) event.Sample {
		held := event.Bytes(mib(second)) * event.MiB
		return event.Sample{AtMS: int64(second) * 1000, Ray: []event.RaySample{{Name: "Buffer",
			Count: 1, Actor: actor, Largest: held, Sum: held}}}
	}
}

func storeAt(perSecond event.Bytes) func(int) event.Sample {
	return func(second int) event.Sample {
		return event.Sample{AtMS: int64(second) * 1000, RayStore: &event.RayStore{
			Capacity: event.GiB, Filled: event.Bytes(second) * perSecond * event.MiB}}
	}
}
