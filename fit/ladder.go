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

// Ladder returns the stages for a wall, cheapest first. What changes the mathematics is on it only
// with consent, and after what does not.
func Ladder(f Facts, o Options) []Stage {
	var stages []Stage
	switch {
	case f.Framework == remedy.TensorFlow:
		stages = tensorflowLadder(f)
	case f.onHost():
		stages = hostLadder(f)
	default:
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
	batch := func(p remedy.Params) []Remedy {
		p.Later = p.Failed && f.ranOutLater()
		return []Remedy{inProcess(remedy.MicroBatch, p), inProcess(remedy.Checkpointing, p)}
	}
	// A step in slices has the same result as one over all parameters, and costs nothing. So it
	// need not wait until a second attempt runs out there.
	first := []Remedy{{ID: remedy.ExpandableSegments, Level: remedy.LevelEnv},
		inProcess(remedy.ChunkedLoss, remedy.Params{}),
		inProcess(remedy.ActivationBudget, remedy.Params{}),
		inProcess(remedy.OptimizerFused, remedy.Params{Slices: true})}
	why := "exact and cheap"
	byArguments := o.Mapping.Possible()
	if byArguments {
		first = append(first, Remedy{ID: remedy.MicroBatch, Level: remedy.LevelArgs,
			Params: remedy.Params{Factor: float64(f.factor())}})
		why += "; the command accumulates gradients by its own arguments"
	}
	// Inside the process the rest is done by measuring: where other remedies may be enough, only as
	// far as needed.
	first = slices.Concat(first, batch(remedy.Params{Failed: !byArguments && !f.fragmented()}),
		[]Remedy{inProcess(remedy.ActivationOffload, remedy.Params{Measured: true}),
			inProcess(remedy.OptimizerOffload, remedy.Params{Measured: true})})
	second := append(batch(remedy.Params{Failed: true, Factor: tighter[1]}),
		inProcess(remedy.ActivationBudget, remedy.Params{Factor: tighter[1]}),
		inProcess(remedy.SetToNone, remedy.Params{}),
		inProcess(remedy.OptimizerOffload, remedy.Params{}))
	third := append(batch(remedy.Params{Failed: true, Factor: tighter[2]}),
		inProcess(remedy.ActivationOffload, remedy.Params{}))
	return []Stage{
		{why, first},
		{"exact; optimizer state moves to host memory between steps", second},
		{"exact; activations move to host memory, which is slow", third},
	}
}

// inProcess is a remedy that the probe puts into effect.
func inProcess(id remedy.ID, p remedy.Params) Remedy {
	return Remedy{ID: id, Level: remedy.LevelProcess, Params: p}
}

// Prevention is what can be in place before anything has run out: exact, and idle where the longest
// batch is measured to fit.
func Prevention() []Remedy {
	return []Remedy{{ID: remedy.ExpandableSegments, Level: remedy.LevelEnv},
		inProcess(remedy.MicroBatch, remedy.Params{Worst: true}),
		inProcess(remedy.Checkpointing, remedy.Params{}),
		inProcess(remedy.ActivationOffload, remedy.Params{Measured: true}),
		inProcess(remedy.OptimizerFused, remedy.Params{Slices: true})}
}

// fragmented reports whether the allocation would have fitted into what was reserved and free.
func (f Facts) fragmented() bool {
	return f.Reserved > f.Allocated && f.Requested > 0 && f.Limit > 0 &&
		f.Reserved-f.Allocated >= f.Requested && f.Allocated+f.Requested <= f.Limit*9/10
}

// ranOutLater reports whether training ran out that had done some steps with nothing changed: they
// fit as they are, and what ran out comes later. The step after the first has optimizer state
// next to it; a leak and fragmentation grow from the start.
func (f Facts) ranOutLater() bool {
	return f.Steps > 2 && len(f.On) == 0 && f.Leaked == 0 && !f.fragmented() &&
		(f.Phase == "forward" || f.Phase == "backward")
}

// factor is by how much the program's own arguments shrink the micro-batch: activations are what
// grows, and the earlier in the step it ran out the more of them were still to come.
func (f Facts) factor() int {
	if f.Phase == "backward" || f.Phase == "optimizer" {
		return 2
	}
	return 4
}

// hostPieces is how many micro-batches the last stage for host memory splits a batch into. Not
// many: tensors below a megabyte come from the C library's heap, whose holes are not given back.
const hostPieces = 16

func hostLadder(f Facts) []Stage {
	first := []Remedy{atMostWorkers(1), inProcess(remedy.PinMemory, remedy.Params{})}
	second := []Remedy{atMostWorkers(0)}
	var third []Remedy
	if f.trainsOnCPU() { // else activations are on the card, and what grew on the host is data
		p := remedy.Params{Failed: true, Factor: tighter[0], Limit: f.Limit}
		first = append(first, inProcess(remedy.MicroBatch, p), inProcess(remedy.Checkpointing, p),
			inProcess(remedy.ActivationBudget, remedy.Params{Limit: f.Limit}),
			inProcess(remedy.ChunkedLoss, remedy.Params{}))
		p.Factor = tighter[1]
		second = append(second, inProcess(remedy.MicroBatch, p), inProcess(remedy.Checkpointing, p))
		// Measuring went wrong, or there was nothing to measure with: a fixed number.
		if f.Whole == "" {
			third = append(third, inProcess(remedy.MicroBatch, remedy.Params{Pieces: hostPieces}))
		}
	}
	stages := []Stage{{"fewer copies of the data at once", first}}
	if f.Refused {
		return stages
	}
	return append(stages,
		Stage{"no copies of the data at all; less room is planned with", second},
		Stage{"a fixed number of micro-batches", third})
}

// tensorflowLadder has what the probe can do to a program in TensorFlow. Nothing is measured there:
// each stage splits the batch into more pieces.
func tensorflowLadder(f Facts) []Stage {
	first, why := []Remedy{}, "the batch in pieces"
	if f.onHost() {
		first = append(first, inProcess(remedy.TFDataBudget, remedy.Params{}))
		why = "fewer copies of the data at once; " + why
	}
	if f.onHost() && !f.trainsOnCPU() {
		return []Stage{{"fewer copies of the data at once", first}}
	}
	stages := []Stage{{Why: why}, {Why: "more pieces"}, {Why: "many pieces"}}
	for i, factor := range tighter {
		p := remedy.Params{Failed: true, Factor: factor}
		if f.onHost() {
			p.Limit = f.Limit
		}
		stages[i].Remedies = []Remedy{inProcess(remedy.MicroBatch, p)}
		if i == 0 { // of what stays whole: there is no more of it
			stages[i].Remedies = append(stages[i].Remedies, inProcess(remedy.Checkpointing, p))
		}
	}
	stages[0].Remedies = append(first, stages[0].Remedies...)
	if f.Whole != "" { // it would stay whole
		return stages[:1]
	}
	return stages
}

func atMostWorkers(n int) Remedy {
	return inProcess(remedy.DataLoaderWorkers, remedy.Params{Workers: &n})
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
		if f.Idle && f.Hopeless == "" || f.onHost() && !f.UsesGPU && r.Consent == "quantize" {
			continue // nothing is trained, or weights are not what it runs out of
		}
		if r.Consent != "" && !slices.Contains(o.Allow, r.Consent) && canApply(r) &&
			slices.Contains(r.Walls, f.wall()) {
			left = append(left, Left{r.ID, "it changes the mathematics; --allow " + r.Consent +
				" admits it"})
		}
	}
	return left
}
