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

// hostPressure tells a feed server what `run` would say at the same moment: by the same readings,
// and with the share of a limit at which --on-pressure acts and the stalls that make a finding.
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
		return pressureOf(sample, at, limits.PressureFull)
	}
}

func pressureOf(sample event.Sample, at, stalled float64) serve.Pressure {
	p := serve.Pressure{Low: true}
	full := 0.0 // percent of the last ten seconds in which nothing ran for want of memory
	if sample.Machine != nil {
		full = sample.Machine.PressureFull
	}
	if sample.Cgroup != nil {
		full = max(full, sample.Cgroup.PressureFull)
	}
	if full >= stalled {
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
