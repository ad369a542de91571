package explain

import (
	"fmt"

	"memroom/diagnose"
	"memroom/event"
	"memroom/remedy"
	"memroom/trace"
)

// Material is everything an explanation may be made from.
type Material struct {
	Logs      []*trace.Log
	Snapshots []*trace.Snapshot
	Verdict   *event.Verdict  // of a run that memroom supervised
	Run       event.Run       // that run
	Seen      Seen            // what was seen of it
	HostLimit event.Bytes     // its --host-mem, 0 without one
	HostWall  event.Bytes     // the lowest wall for host memory while it ran, whoever set it; 0 unknown
	Alone     bool            // it never had a second process
	NoCard    bool            // no card was seen
	Findings  []event.Finding // what was noticed while it ran
	Setup     *remedy.Setup   // the user's description of the job, nil if none
	Planned   Saving          // savings by a plan of that setup, nil without one
	Warnings  []string
}

// Seen is what memroom observed during a run, apart from its end.
type Seen struct {
	Python     bool        // the probe reported from a Python of it
	Frameworks []string    // that its Pythons loaded
	Steps      int64       // training steps of the last attempt
	Held       event.Bytes // peak of host memory that cannot be dropped
	Tried      string      // why `run --fit` gave up, in its words; empty: it did not
}

// NothingFound returns the explanation of material that shows no crash.
func NothingFound() *Explanation {
	return &Explanation{Where: event.WhereUnknown, Framework: "other", Cause: CauseUnknown,
		Verdict: "Nothing recognised.", Evidence: []string{}, Remedies: []Advice{}}
}

// frameworkOf names the framework that appears in logs, for material that shows no crash.
func frameworkOf(logs []*trace.Log) string {
	for _, l := range logs {
		if f := frameworkSeen(&l.Hints); f != "" {
			return string(f)
		}
		if l.Hints.Frameworks["ray"] {
			return "ray"
		}
	}
	return "other"
}

// NothingIn is NothingFound with what the material still shows.
func NothingIn(m Material) *Explanation {
	x := NothingFound()
	x.Framework = frameworkOf(m.Logs)
	return x
}

// Explain combines the evidence of logs, snapshots and a verdict. It returns nil if none of them
// shows a crash or anything about memory.
func Explain(m Material) *Explanation {
	snapshot := fullest(m.Snapshots)
	saving := m.Planned
	if snapshot != nil {
		saving = either(snapshot.saving(), m.Planned)
	}
	var x *Explanation
	if log := joined(m.Logs); log != nil {
		x = explainLog(log, m.Setup, m.Run, saving)
	}
	switch {
	case x == nil && snapshot != nil:
		x = explainSnapshot(snapshot, saving)
	case x != nil && snapshot != nil && x.IsOOM && x.Where == event.WhereGPU:
		x.refine(snapshot, saving)
	}
	if x = withRun(x, m, saving); x == nil {
		if x = explainTable(m.Logs); x == nil {
			return nil
		}
	}
	x.Warnings = append(x.Warnings, m.Warnings...)
	return x
}

// either asks the first and, where that cannot tell, the second.
func either(first, second Saving) Saving {
	if first == nil || second == nil {
		if first == nil {
			return second
		}
		return first
	}
	return func(r *remedy.Remedy) (low, high event.Bytes, ok bool) {
		if low, high, ok = first(r); ok {
			return low, high, true
		}
		return second(r)
	}
}

// joined makes one log of several; their order is the order of their crashes.
func joined(logs []*trace.Log) *trace.Log {
	if len(logs) == 0 {
		return nil
	}
	all := *logs[0]
	for _, l := range logs[1:] {
		all.Crashes = append(all.Crashes[:len(all.Crashes):len(all.Crashes)], l.Crashes...)
		if len(l.Hints.Frameworks) > len(all.Hints.Frameworks) || l.Hints.Batch > 0 &&
			all.Hints.Batch == 0 {
			all.Hints = l.Hints
		}
	}
	return &all
}

// recorded is a snapshot with its analysis and the timeline it holds.
type recorded struct {
	*diagnose.Snapshot
	conf     string
	version  string
	timeline *event.Timeline
}

// fullest analyses the device with the most memory at its peak, of all snapshots.
func fullest(snapshots []*trace.Snapshot) *recorded {
	var best *recorded
	for _, s := range snapshots {
		for i := range s.Recordings {
			a := diagnose.AnalyseSnapshot(diagnose.LedgerOf(s, &s.Recordings[i], nil))
			if best == nil || a.AllocatedPeak > best.AllocatedPeak {
				best = &recorded{Snapshot: a, conf: s.Settings.Conf, version: s.Version.Use()}
			}
		}
	}
	if best != nil {
		best.timeline = best.Ledger().Timeline(best.Marks)
	}
	return best
}

// explainSnapshot explains a recording on its own.
func explainSnapshot(s *recorded, saving Saving) *Explanation {
	x := NothingFound()
	x.Framework, x.Certainty = "pytorch", 0.9
	x.job = remedy.Job{Framework: remedy.PyTorch, Where: event.WhereGPU, On: confOn(s.conf)}
	if len(s.OOMs) > 0 {
		o := s.OOMs[0]
		x.IsOOM, x.Where, x.Certainty = true, event.WhereGPU, 0.99
		idle := o.Reserved - o.Allocated
		x.Requested, x.Allocated, x.Idle = &o.Request, &o.Allocated, &idle
		if o.Limited && o.LimitHigh > 0 {
			x.Capacity = &o.LimitHigh
		}
		x.Account = []AccountLine{{"asked for", o.Request}, {"in use", o.Allocated},
			{"idle in the allocator's pool", idle}, {"largest idle piece", o.LargestFree},
			{"free on the card", o.DeviceFree}}
		if f, ok := diagnose.UserFrame(o.Frames); ok {
			x.Frame = &f
		}
		x.Verdict = fmt.Sprintf("The card ran out of memory: %s were asked for with %s in use and %s "+
			"idle in the pool", o.Request, o.Allocated, idle)
	} else {
		x.Verdict = fmt.Sprintf("No shortage is recorded: the peak was %s in use and %s reserved",
			s.AllocatedPeak, s.ReservedPeak)
	}
	j := s.judge()
	x.Cause, x.Detail, x.Confidence, x.Evidence = j.cause, j.detail, j.confidence, j.evidence
	x.Verdict += "; " + j.evidence[0] + "."
	x.Warnings = append(x.Warnings, s.Warnings...)
	x.advise(saving)
	return x
}

// refine adds to a log's explanation what only the recording knows.
func (x *Explanation) refine(s *recorded, saving Saving) {
	j := s.judge()
	if j.confidence > x.Confidence {
		x.Cause, x.Detail, x.Confidence = j.cause, j.detail, j.confidence
		x.Evidence = append(j.evidence, x.Evidence...)
		x.Remedies = []Advice{}
		x.advise(saving)
		return
	}
	x.Evidence = append(x.Evidence, j.evidence...)
}

// judge reads the cause off a recording: pieces, growth, or what is largest at the peak.
func (s *recorded) judge() judged {
	if len(s.OOMs) > 0 && s.OOMs[0].Fragmented {
		o := s.OOMs[0]
		return because(CauseFragmentation, "", 0.95,
			"idle and free memory would have been enough, but the largest idle piece was %s of the %s asked "+
				"for", o.LargestFree, o.Request)
	}
	if g := s.Growth; g != nil && g.Confidence >= 0.5 {
		j := because(CauseLeak, "", g.Confidence,
			"what stays allocated grows by %s a step from step %d to %d", g.PerStep, g.FirstStep,
			g.LastStep)
		for _, suspect := range g.Suspects[:min(2, len(g.Suspects))] {
			if f, ok := diagnose.UserFrame(suspect.Frames); ok {
				j.evidence = append(j.evidence, fmt.Sprintf("kept from %s:%d (%s a step)", f.File,
					f.Line, suspect.Bytes))
			}
		}
		return j
	}
	return s.byComposition()
}

func (s *recorded) byComposition() judged {
	var total, states, loss, passing event.Bytes
	for _, c := range s.Categories {
		total += c.Bytes
		switch c.Category {
		case event.CategoryWeights, event.CategoryGradients, event.CategoryOptimizer:
			states += c.Bytes
		case event.CategoryLoss:
			loss += c.Bytes
			passing += c.Bytes
		case event.CategoryActivations, event.CategoryInput, event.CategoryTemporary:
			passing += c.Bytes
		}
	}
	switch {
	case total == 0 || states+passing < total/2:
		return because(CauseUnknown, "", 0,
			"the recording does not show what most of the memory is for")
	case states > passing:
		return because(CauseModel, "", 0.75,
			"%s of %s at the peak are weights, gradients and optimizer state", states, total)
	case loss*2 > passing:
		return because(CauseBatch, "logits", 0.75,
			"%s of %s at the peak are logits and their gradients", loss, total)
	}
	return because(CauseBatch, "", 0.75,
		"%s of %s at the peak are activations and other parts of one batch", passing, total)
}
