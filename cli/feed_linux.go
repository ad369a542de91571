package cli

import (
	"fmt"

	"memroom/diagnose"
	"memroom/event"
	"memroom/feed/serve"
	"memroom/meter"
	"memroom/supervise"
)

// calmBelow is how much further from the wall than the alarm memory must be before a server takes
// room again, as a share of the limit.
const calmBelow = 0.05

// hostPressure returns a function with which a feed server judges memory pressure exactly as `run`
// would. It uses the same readings, the same share of a limit at which --on-pressure acts, and the
// same stalls that make a finding.
func hostPressure(root string) func() serve.Pressure {
	proc := meter.NewProc(root)
	cgroup, _ := meter.FindCgroup(root, "self")
	at, limits := supervise.DefaultOptions().PressureAt, diagnose.DefaultThresholds()
	return func() serve.Pressure {
		var sample event.Sample
		if machine, err := proc.Machine(); err == nil {
			sample.Machine = &machine
		}
		if cgroup != nil {
			if c, err := cgroup.Read(); err == nil {
				sample.Cgroup = &c
			}
		}
		return pressureOf(sample, at, limits)
	}
}

func pressureOf(sample event.Sample, at float64, limits diagnose.Thresholds) serve.Pressure {
	p := serve.Pressure{Low: true}
	if _, full, _ := diagnose.Pressure(sample, limits); full >= limits.PressureFull {
		p = serve.Pressure{High: true, Why: fmt.Sprintf("every process waited for memory %.0f %% of the "+
			"last 10 s", full)}
	}
	used, limit, what := supervise.Closest(sample, 0)
	if limit == 0 {
		return p
	}
	share := float64(used) / float64(limit)
	if share >= at {
		p = serve.Pressure{High: true, Why: fmt.Sprintf("%s at %s of %s", what, used, limit)}
	}
	p.Low = p.Low && share < at-calmBelow
	return p
}
