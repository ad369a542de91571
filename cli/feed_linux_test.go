package cli

import (
	"strings"
	"testing"

	"memroom/diagnose"
	"memroom/event"
)

func TestPressureOf(t *testing.T) {
	machine := func(available event.Bytes, full float64) *event.MachineSample {
		return &event.MachineSample{Total: 1000, Available: available, PressureFull: full}
	}
	group := func(anon, file event.Bytes) *event.CgroupSample {
		return &event.CgroupSample{Limit: 100, Current: anon + file, Anon: anon, File: file}
	}
	roomy := machine(500, 0)
	for name, c := range map[string]struct {
		sample    event.Sample
		high, low bool
		why       string
	}{
		"nothing known":      {event.Sample{}, false, true, ""},
		"room":               {event.Sample{Machine: machine(500, 0)}, false, true, ""},
		"nearly full":        {event.Sample{Machine: machine(70, 0)}, true, false, "machine"},
		"between":            {event.Sample{Machine: machine(100, 0)}, false, false, ""},
		"stalls":             {event.Sample{Machine: machine(99, 12)}, true, false, "waited"},
		"others stall":       {event.Sample{Machine: machine(500, 12)}, false, true, ""},
		"cgroup full":        {event.Sample{Machine: roomy, Cgroup: group(93, 0)}, true, false, "cgroup"},
		"full of file pages": {event.Sample{Machine: roomy, Cgroup: group(30, 69)}, false, true, ""},
		"cgroup without limit": {event.Sample{Machine: machine(20, 0), Cgroup: &event.CgroupSample{}},
			true, false, "machine"},
	} {
		p := pressureOf(c.sample, 0.92, diagnose.DefaultThresholds())
		if p.High != c.high || p.Low != c.low || !strings.Contains(p.Why, c.why) {
			t.Errorf("%s: %+v", name, p)
		}
	}
}
