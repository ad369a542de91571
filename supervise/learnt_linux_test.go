package supervise

import (
	"testing"

	"memroom/event"
)

// TestRaiseKnowsOthers: where the machine is the limit and others hold most of it, that is kept.
// Not where a cgroup is the limit, nor where the run itself holds most.
func TestRaiseKnowsOthers(t *testing.T) {
	machine := &event.MachineSample{Total: 62 * event.GiB, Available: 2 * event.GiB}
	for name, c := range map[string]struct {
		anonymous, limit, want event.Bytes
	}{
		"others":   {event.GiB, 62 * event.GiB, 59 * event.GiB},
		"the run":  {50 * event.GiB, 62 * event.GiB, 0},
		"a cgroup": {event.GiB, 8 * event.GiB, 0},
	} {
		var p event.Peaks
		raise(&p, event.Sample{Anonymous: c.anonymous, Machine: machine}, c.limit)
		if p.HostOthers != c.want {
			t.Errorf("%s: others hold %s, want %s", name, p.HostOthers, c.want)
		}
	}
}
