package diagnose

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"memroom/event"
)

// trialWatch judges trials and actors that Ray runs at the same time.
type trialWatch struct {
	largest map[string]event.Bytes // of each group, the most one process has had
	crowds  map[string]crowd       // of each group, as it was when most of it lived of late
	kills   int64
	said    map[string]bool
	counted map[string]crowd         // of each group that was too many, what was said
	actors  map[string][]event.Bytes // of each actor, its largest process at the last readings
	since   map[string]int64         // when those begin, ms
}

// crowd is a group at one reading.
type crowd struct {
	event.RaySample
	used event.Bytes // by the whole run
	atMS int64
}

// crowdMS is how long a reading of a group stays the one that counts while fewer of it live: one
// may be gone, or not have its name yet, at the reading that finds memory full.
const crowdMS = 10_000

// gather takes the groups of a reading.
func (t *trialWatch) gather(s event.Sample, used event.Bytes) {
	for _, g := range s.Ray {
		t.largest[g.Name] = max(t.largest[g.Name], g.Largest)
		before, known := t.crowds[g.Name]
		if !known || g.Count > before.Count || g.Count == before.Count && g.Sum >= before.Sum ||
			s.AtMS-before.atMS > crowdMS {
			t.crowds[g.Name] = crowd{g, used, s.AtMS}
		}
	}
	for name, c := range t.crowds {
		if s.AtMS-c.atMS > crowdMS {
			delete(t.crowds, name)
		}
	}
}

const (
	trialsFull  = 0.85 // of the wall in use, at which those that run are too many
	trialsShare = 0.5  // of what is in use that a group must hold
	trialsRoom  = 0.9  // of the wall that may be planned with
)

// trials sees more of Ray's processes at work than memory has room for: when it is nearly full, or
// when the kernel has killed. More of them at a later reading are said again.
func (w *Watch) trials(s event.Sample) []event.Finding {
	t := &w.trial
	if t.largest == nil {
		t.largest, t.said = map[string]event.Bytes{}, map[string]bool{}
		t.crowds, t.counted = map[string]crowd{}, map[string]crowd{}
	}
	wall, used := w.hostWall(s), s.Unreclaimable()
	t.gather(s, used)
	found := append(t.growing(s), t.store(s)...)
	killed := s.Cgroup != nil && s.Cgroup.OOMKill > t.kills
	if s.Cgroup != nil {
		t.kills = s.Cgroup.OOMKill
	}
	for _, name := range slices.Sorted(maps.Keys(t.crowds)) {
		c := t.crowds[name]
		full := killed || float64(used) >= trialsFull*float64(wall) &&
			float64(c.Sum) >= trialsShare*float64(used)
		before, said := t.counted[name]
		full = full || said && s.AtMS-before.atMS <= crowdMS
		if wall > 0 && full && c.Count >= 2 && c.Count > before.Count {
			t.counted[name] = c
			return append(found, t.tooMany(c, wall, killed))
		}
	}
	return found
}

const (
	// readings of an actor, one a second, before a rise is judged: by then most have built their
	// model and read their data
	actorReadings = 30
	storeFull     = 0.8 // of the store, from which Ray writes objects to disk
)

// growing sees an actor whose memory rises through all readings of the last half minute or more.
func (t *trialWatch) growing(s event.Sample) []event.Finding {
	if t.actors == nil {
		t.actors, t.since = map[string][]event.Bytes{}, map[string]int64{}
	}
	var found []event.Finding
	for _, g := range s.Ray {
		key := "actor " + g.Name
		if !g.Actor || t.said[key] {
			continue
		}
		if len(t.actors[g.Name]) == 0 {
			t.since[g.Name] = s.AtMS
		}
		held := append(t.actors[g.Name], g.Largest)
		t.actors[g.Name] = held
		if len(held) < actorReadings {
			continue
		}
		took := time.Duration(s.AtMS-t.since[g.Name]) * time.Millisecond
		if grown, rises := risesThrough(held); rises {
			t.said[key] = true
			found = append(found, actorGrows(g, grown, took))
		} else if len(held) >= 2*actorReadings {
			delete(t.actors, g.Name) // its start predicts nothing
		}
	}
	return found
}

func actorGrows(g event.RaySample, grown event.Bytes, took time.Duration) event.Finding {
	return event.Finding{Kind: "actor", Detail: "kept", Severity: event.SeverityWarning, Bytes: grown,
		Confidence: 0.8,
		Title: fmt.Sprintf("the Ray actor %s grows: by %s in %s, to %s, and still rises", g.Name,
			grown, inWords(took), g.Largest),
		Evidence: []string{"what a method adds to self stays as long as the actor lives",
			"an actor that is still reading its data looks the same"},
		Remedies: []string{"keep_less"}}
}

// store sees that Ray's object store was filled.
func (t *trialWatch) store(s event.Sample) []event.Finding {
	r := s.RayStore
	if r == nil || t.said["store"] || float64(r.Filled) < storeFull*float64(r.Capacity) {
		return nil
	}
	t.said["store"] = true
	return []event.Finding{{Kind: "object_store", Detail: "object_store",
		Severity: event.SeverityWarning, Bytes: r.Filled, Confidence: 0.85,
		Title: fmt.Sprintf("Ray's object store was filled to %s: an object stays while a "+
			"reference to it lives; what no longer fits is written to disk", r.Filled.Of(r.Capacity)),
		Evidence: []string{"`ray memory` lists the references and the lines that made them"},
		Remedies: []string{"object_store"}}}
}

func (t *trialWatch) tooMany(g crowd, wall event.Bytes, killed bool) event.Finding {
	each := max(t.largest[g.Name], 1)
	others := max(0, g.used-g.Sum)
	fits := int((trialsRoom*float64(wall) - float64(others)) / float64(each))
	fits = max(1, min(fits, g.Count-1))
	f := event.Finding{Kind: "trials", Key: "trials " + g.Name,
		Detail: "trial_packing", Severity: event.SeverityWarning,
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

// Fitting reads back how many fit, 0 unknown.
func Fitting(title string) int {
	n := 0
	_, _ = fmt.Sscanf(title[strings.LastIndex(title, "; ")+1:], "%d fit", &n)
	return n
}
