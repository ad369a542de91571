package diagnose

import (
	"fmt"
	"strings"

	"memroom/event"
)

// trialWatch judges trials and actors that Ray runs at the same time.
type trialWatch struct {
	largest map[string]event.Bytes // of each group, the most one process has had
	last    []event.RaySample
	kills   int64
	said    map[string]bool
}

const (
	trialsFull  = 0.85 // of the wall in use, at which those that run are too many
	trialsShare = 0.5  // of what is in use that a group must hold
	trialsRoom  = 0.9  // of the wall that may be planned with
)

// trials sees more of Ray's processes at work than memory has room for: when it is nearly full, or
// when the kernel has killed.
func (w *Watch) trials(s event.Sample) []event.Finding {
	t := &w.trial
	if t.largest == nil {
		t.largest, t.said = map[string]event.Bytes{}, map[string]bool{}
	}
	for _, g := range s.Ray {
		t.largest[g.Name] = max(t.largest[g.Name], g.Largest)
	}
	killed := s.Cgroup != nil && s.Cgroup.OOMKill > t.kills
	if s.Cgroup != nil {
		t.kills = s.Cgroup.OOMKill
	}
	groups := s.Ray
	if killed || len(groups) == 0 {
		groups = t.last // as it was before
	}
	if len(s.Ray) > 0 && !killed {
		t.last = s.Ray
	}
	wall, used := w.hostWall(s), s.Unreclaimable()
	if wall == 0 || !killed && float64(used) < trialsFull*float64(wall) {
		return nil
	}
	for _, g := range groups {
		ours := float64(g.Sum) >= trialsShare*float64(used) || killed
		if g.Count >= 2 && ours && !t.said[g.Name] {
			t.said[g.Name] = true
			return []event.Finding{t.tooMany(g, wall, used, killed)}
		}
	}
	return nil
}

func (t *trialWatch) tooMany(g event.RaySample, wall, used event.Bytes,
	killed bool) event.Finding {
	each := max(t.largest[g.Name], 1)
	others := max(0, used-g.Sum)
	fits := int((trialsRoom*float64(wall) - float64(others)) / float64(each))
	fits = max(1, min(fits, g.Count-1))
	f := event.Finding{Kind: "trials", Detail: "trial_packing", Severity: event.SeverityWarning,
		Bytes: g.Sum, Confidence: 0.85,
		Title: fmt.Sprintf("too many Ray workers at once: %d of %s with up to %s each in %s of host "+
			"memory; %d fit", g.Count, g.Name, each, wall, fits),
		Evidence: []string{fmt.Sprintf("together they held %s, everything else %s", g.Sum, others)},
		Remedies: []string{"fewer_trials", "trial_resources", "raise_limit"},
	}
	if killed {
		f.Evidence = append(f.Evidence, "the kernel killed a process of the run at this point")
	}
	return f
}

// fitting reads back how many fit, 0 unknown.
func fitting(title string) int {
	n := 0
	_, _ = fmt.Sscanf(title[strings.LastIndex(title, "; ")+1:], "%d fit", &n)
	return n
}
