package fit

import (
	"slices"

	"memroom/event"
	"memroom/remedy"
)

// Stage is one rung: what is put into effect together. A stage holds enough at once to fit, not a
// little more each time.
type Stage struct {
	Why      string   `json:"why"`
	Remedies []Remedy `json:"remedies"`
}

// Ladder gives the stages for a wall, cheapest first. What changes the mathematics is on it only
// with consent, and after what does not.
func Ladder(f Facts, o Options) []Stage {
	var stages []Stage
	if f.onHost() {
		stages = hostLadder(f)
	} else {
		stages = deviceLadder(f, o)
	}
	stages = append(stages, consentedStage(f, o)...)
	for i := range stages {
		stages[i].Remedies = slices.DeleteFunc(stages[i].Remedies,
			func(r Remedy) bool { return isForced(o, r) || o.Uncut && r.cuts() })
	}
	return stages
}

// consentedStage is the last one, where anything was allowed.
func consentedStage(f Facts, o Options) []Stage {
	consented := withConsent(f, o)
	if len(consented) == 0 {
		return nil
	}
	return []Stage{{"these change the mathematics and were allowed", consented}}
}

// isForced: a remedy that the user fixed is not turned up behind their back.
func isForced(o Options, r Remedy) bool {
	return slices.ContainsFunc(o.Forced, func(f Remedy) bool { return f.ID == r.ID })
}

// tighter is the share of the room that each further stage plans with: a plan that ran out was too
// bold.
var tighter = []float64{1, 0.75, 0.5}

func deviceLadder(f Facts, o Options) []Stage {
	process := func(id remedy.ID, params map[string]any) Remedy {
		return Remedy{ID: id, Level: remedy.LevelProcess, Params: params}
	}
	batch := func(stage int, failed bool) []Remedy {
		var params map[string]any
		set := func(key string, value any) {
			if params == nil {
				params = map[string]any{}
			}
			params[key] = value
		}
		if failed {
			set("failed", true)
		}
		if stage > 0 {
			set("factor", tighter[stage])
		}
		return []Remedy{process(remedy.MicroBatch, params), process(remedy.Checkpointing, params)}
	}
	// A step in slices makes the same numbers as one over all parameters, and costs nothing: it
	// need not wait until a second attempt runs out there.
	first := []Remedy{{ID: remedy.ExpandableSegments, Level: remedy.LevelEnv},
		process(remedy.ChunkedLoss, nil),
		process(remedy.OptimizerFused, map[string]any{"slices": true})}
	why := "exact and cheap"
	byArguments := o.Mapping.Possible()
	if byArguments {
		first = append(first, Remedy{ID: remedy.MicroBatch, Level: remedy.LevelArgs,
			Params: map[string]any{"factor": f.factor()}})
		why += "; the program accumulates by its own arguments"
	}
	// Inside the process the rest is done by measure: where other remedies may be enough, only as
	// far as needed.
	first = append(first, batch(0, !byArguments && !f.fragmented())...)
	first = append(first, process(remedy.ActivationOffload, map[string]any{"measured": true}),
		process(remedy.OptimizerOffload, map[string]any{"measured": true}))
	second := append(batch(1, true), process(remedy.SetToNone, nil),
		process(remedy.OptimizerOffload, nil))
	third := append(batch(2, true), process(remedy.ActivationOffload, nil))
	return []Stage{
		{why, first},
		{"exact; optimizer state travels between steps", second},
		{"exact; activations travel to host memory, which is slow", third},
	}
}

// Prevention is what can be in place before anything has run out: exact, and idle where the longest
// batch is measured to fit.
func Prevention() []Remedy {
	return []Remedy{{ID: remedy.ExpandableSegments, Level: remedy.LevelEnv},
		{ID: remedy.MicroBatch, Level: remedy.LevelProcess, Params: map[string]any{"worst": true}},
		{ID: remedy.Checkpointing, Level: remedy.LevelProcess},
		{ID: remedy.ActivationOffload, Level: remedy.LevelProcess,
			Params: map[string]any{"measured": true}},
		{ID: remedy.OptimizerFused, Level: remedy.LevelProcess,
			Params: map[string]any{"slices": true}}}
}

// fragmented reports whether the allocation would have fitted into what was reserved and free.
func (f Facts) fragmented() bool {
	return f.Reserved > f.Allocated && f.Requested > 0 && f.Limit > 0 &&
		f.Reserved-f.Allocated >= f.Requested && f.Allocated+f.Requested <= f.Limit*9/10
}

// factor is by how much the program's own arguments shrink the micro-batch: activations are what
// grows, and the earlier in the step it ran out the more of them were still to come.
func (f Facts) factor() int {
	if f.Phase == "backward" || f.Phase == "optimizer" {
		return 2
	}
	return 4
}

// hostPieces is how many pieces of a batch the last stage for host memory makes.
const hostPieces = 16

func hostLadder(f Facts) []Stage {
	process := func(id remedy.ID, params map[string]any) Remedy {
		return Remedy{ID: id, Level: remedy.LevelProcess, Params: params}
	}
	batch := func() []Remedy {
		if !f.trainsOnCPU() {
			return nil // activations are on the card: what grew on the host is data
		}
		params := map[string]any{"failed": true, "factor": tighter[0]}
		if f.Limit > 0 {
			params["limit"] = int64(f.Limit)
		}
		return []Remedy{process(remedy.MicroBatch, params), process(remedy.Checkpointing, params)}
	}
	// Pieces by measure went wrong, or there was nothing to measure with: a fixed number of them.
	// Not many: tensors below a megabyte come from the C library's heap, whose holes are not given
	// back.
	pieces := func() []Remedy {
		if !f.trainsOnCPU() {
			return nil
		}
		return []Remedy{process(remedy.MicroBatch, map[string]any{"pieces": hostPieces})}
	}
	workers := func(n int) Remedy {
		return process(remedy.DataLoaderWorkers,
			map[string]any{"workers": n})
	}
	return []Stage{
		{"fewer copies of the data at once", append([]Remedy{workers(1),
			process(remedy.PinMemory, nil)}, batch()...)},
		{"no copies of the data at all", append([]Remedy{workers(0)}, pieces()...)},
	}
}

// Consents are the kinds of change to the mathematics that can be allowed: those of which the probe
// can apply a remedy.
func Consents() []string {
	var kinds []string
	for _, r := range remedy.Catalogue() {
		if r.Consent != "" && canApply(r) && !slices.Contains(kinds, r.Consent) {
			kinds = append(kinds, r.Consent)
		}
	}
	return kinds
}

// withConsent are the remedies that change the mathematics and can be applied, by the name under
// which they are allowed.
func withConsent(f Facts, o Options) []Remedy {
	var found []Remedy
	for _, r := range remedy.Catalogue() {
		if r.Consent == "" || !slices.Contains(o.Allow, r.Consent) || !canApply(r) ||
			!slices.Contains(r.Walls, f.wall()) {
			continue
		}
		found = append(found, Remedy{ID: r.ID, Level: remedy.LevelProcess})
	}
	return found
}

// canApply reports whether the probe knows how to put a remedy that changes the mathematics into
// effect.
func canApply(r *remedy.Remedy) bool {
	return slices.Contains([]remedy.ID{remedy.MixedPrecision, remedy.Quantize8Bit,
		remedy.Quantize4Bit}, r.ID)
}

func (f Facts) wall() event.Where {
	if f.Where == "" || f.Where == event.WhereUnknown {
		return event.WhereGPU
	}
	return f.Where
}

// notAllowed lists what consent would add.
func notAllowed(f Facts, o Options) []Left {
	var left []Left
	for _, r := range remedy.Catalogue() {
		if f.trainsOnCPU() && r.Consent == "quantize" {
			continue // weights are not what it runs out of
		}
		if r.Consent != "" && !slices.Contains(o.Allow, r.Consent) && canApply(r) &&
			slices.Contains(r.Walls, f.wall()) {
			left = append(left, Left{r.ID, "changes the mathematics: --allow " + r.Consent})
		}
	}
	return left
}
