package explain

import (
	"slices"

	"memroom/event"
	"memroom/remedy"
	"memroom/trace"
)

// objection is a reason why a cure is not offered in spite of its situation. The first that holds
// drops it.
type objection struct {
	of    []remedy.ID
	why   string
	holds func(*Facts, Sums, *Explanation) bool
}

// shrinking are cures that make what one pass computes smaller, at most by the batch.
var shrinking = []remedy.ID{remedy.MicroBatch, remedy.ShorterSequence, remedy.SmallerImage,
	remedy.EvalBatch}

// keeping are cures of what a training keeps between forward and backward pass.
var keeping = []remedy.ID{remedy.Checkpointing, remedy.ActivationOffload, remedy.ActivationBudget}

// pooling are settings of PyTorch's pool.
var pooling = []remedy.ID{remedy.ExpandableSegments, remedy.MaxSplitSize, remedy.GCThreshold,
	remedy.Roundup, remedy.EmptyCache}

// objections are what the sums and the person's own words say against cures.
var objections = []objection{
	{[]remedy.ID{remedy.MicroBatch}, "half a batch would still be more than the card",
		func(f *Facts, s Sums, _ *Explanation) bool {
			b := f.Hints.Batch
			k, own := f.ownKey(remedy.MicroBatch)
			switch {
			case s.Beyond <= 1:
				return false
			case own:
				return s.Beyond > k.Number()
			case b > 0:
				return s.Beyond > float64(b)
			}
			return s.Beyond > 2
		}},
	{keeping, "one tensor is too large, whatever is kept of others",
		func(_ *Facts, s Sums, _ *Explanation) bool {
			return s.Alone || 2*s.Asked > s.Capacity && s.Capacity > 0
		}},
	{slices.Concat(shrinking, keeping, []remedy.ID{remedy.MixedPrecision}), "what others hold is missing, and more than this asks for",
		func(_ *Facts, s Sums, x *Explanation) bool {
			return x.Cause == CauseNeighbour && s.Capacity > 0 && 4*s.Mine < s.Capacity &&
				s.Asked < s.Capacity/4
		}},
	{pooling, "the pool holds less than was asked for",
		func(f *Facts, s Sums, x *Explanation) bool {
			return x.Cause != CauseFragmentation && f.Crash.Idle != nil && s.Idle < s.Asked &&
				x.Detail != "refused"
		}},
	{pooling, "the driver refused although memory was free: the pool is not what is full",
		func(f *Facts, s Sums, x *Explanation) bool {
			return s.HadRoom && s.Idle < s.Asked && x.Detail == "refused"
		}},
	{[]remedy.ID{remedy.EvalBatch, remedy.LongestBatch}, "one tensor is larger than the card, or all is one graph",
		func(f *Facts, s Sums, _ *Explanation) bool {
			return s.Alone || f.says(" nodes") && !inBatches(f.Crash, f.Hints)
		}},
	{[]remedy.ID{remedy.EvalOutputs}, "one request is large, not what was kept of others",
		func(f *Facts, _ Sums, x *Explanation) bool { return x.Detail == "eval_batch" && aTenth(f.Crash) }},
	{[]remedy.ID{remedy.ShorterSequence}, "the length that fits is said already, or the engine has another key for it",
		func(f *Facts, _ Sums, x *Explanation) bool {
			return x.Detail == "kv_cache" && (f.Crash.Fits > 0 || len(x.words) == 0)
		}},
	{[]remedy.ID{remedy.EvalBatch}, "what is kept of all batches, or calls that pile up, stay the same",
		func(f *Facts, _ Sums, x *Explanation) bool {
			return x.Detail == "eval_outputs" || onHost(f.Crash) &&
				(x.Detail == "eval_phase" || x.Detail == "predict_loop")
		}},
	{[]remedy.ID{remedy.MicroBatch}, "nothing shows that it works in batches",
		func(f *Facts, _ Sums, x *Explanation) bool {
			return x.Detail == "one_piece" && f.Hints.Batch < 2 && !learns(f.Crash, f.Hints)
		}},
	{[]remedy.ID{remedy.StreamData}, "what was refused is small, and nothing shows what is read",
		func(f *Facts, s Sums, x *Explanation) bool {
			return x.Cause == CauseHostData && x.Detail == "" && s.Asked > 0 && s.Asked < 64*event.MiB &&
				!seen(f.Crash, f.Hints, trace.SignReads) && !has(f.Crash, trace.SignCaching)
		}},
	{[]remedy.ID{remedy.RaiseLimit}, "what grows fills more memory later",
		func(f *Facts, s Sums, x *Explanation) bool {
			return x.Where == event.WhereHost && s.Asked < smallArray && (x.Cause == CauseLeak ||
				slices.Contains(f.Hints.Says, string(CauseLeak)))
		}},
	{[]remedy.ID{remedy.RaiseLimit}, "nothing shows what fills it, nor how much would be enough",
		func(f *Facts, s Sums, x *Explanation) bool {
			return x.Cause == CauseUnknown && x.Detail+string(x.Where) == "host" && s.Asked+s.Capacity == 0 ||
				onlyTold(f) && x.Cause == CauseUnknown && onHost(f.Crash)
		}},
	{[]remedy.ID{remedy.StreamData}, "it is open what fills it, and no data is shown",
		func(_ *Facts, _ Sums, x *Explanation) bool {
			return x.Cause == CauseUnknown && x.Where == event.WhereCgroup
		}},
	{[]remedy.ID{remedy.RaiseLimit}, "no machine has that much",
		func(f *Facts, s Sums, x *Explanation) bool {
			return (x.Cause == CauseHostData || f.Crash.Kind == trace.KindTold) && (s.Asked >= nobodysArray ||
				x.Detail == "prefilled" && s.Asked >= nobodysBuffer)
		}},
	{[]remedy.ID{remedy.SelectCard}, "nothing shows that the others are ranks of the same job",
		func(f *Facts, _ Sums, x *Explanation) bool {
			return x.Cause == CauseNeighbour && x.Detail == "" && !severalRanks(f.Crash, f.Hints)
		}},
	{[]remedy.ID{remedy.Checkpointing, remedy.MixedPrecision}, "the tensor is the input itself",
		func(f *Facts, _ Sums, x *Explanation) bool {
			return x.Detail == "one_sample" && inputImage.MatchString(f.Crash.Text)
		}},
	{[]remedy.ID{remedy.NotebookState}, "nothing shows a notebook",
		func(f *Facts, _ Sums, x *Explanation) bool {
			return x.Detail == "placed_array" && !has(f.Crash, trace.SignNotebook)
		}},
	{[]remedy.ID{remedy.FreeNeighbour, remedy.SelectCard}, "the others are workers of the same tests",
		func(f *Facts, _ Sums, _ *Explanation) bool { return testRun.MatchString(f.text) }},
	{[]remedy.ID{remedy.FreeNeighbour}, "these are ranks of the same job",
		func(_ *Facts, s Sums, x *Explanation) bool { return s.OwnRanks && x.Detail == "ranks_on_card" }},
}

// testRun are words of a run of tests, whose workers share a card.
var testRun = re(`\bpytest\b|\bxdist\b|\bfailed tests?/\w+\.py::`)

// check drops the cures that the sums contradict. What it drops is in the log of reasons.
func (x *Explanation) check(f *Facts, s Sums) {
	if x.Detail == "eval_outputs" && (f.says("eval_accumulation") || f.Crash.Kind == trace.KindTold &&
		x.job.Trainer == remedy.Transformers) {
		x.typed = map[remedy.ID]string{remedy.EvalOutputs: "Trainer(..., preprocess_logits_for_metrics=lambda logits, labels: " +
			"logits.argmax(-1))   # logits may be a tuple: logits[0]; seq2seq: predict_with_generate=True"}
	}
	if x.Cause == CauseNeighbour && testRun.MatchString(f.text) {
		x.words = []ownCure{{remedy.FewerProcesses, "tests that need the card one after the other",
			"pytest -n 1, or --dist loadgroup with one xdist_group for those tests"}}
	}
	for _, a := range attempts {
		for _, id := range a.of {
			if x.job.On[id] == "" && x.typed[id] == "" && f.inVain(a.is) != "" {
				x.job.On[id] = "the person has tried it"
			}
		}
	}
	for _, o := range objections {
		if !o.holds(f, s, x) {
			continue
		}
		for _, id := range o.of {
			if x.job.On[id] == "" {
				x.job.On[id] = o.why
			}
		}
	}
	if f.Crash.Where == event.WhereMPS || f.mac() {
		x.noRun = true
	}
}

// mac reports whether the text is of Apple's system, which memroom run does not support.
func (f *Facts) mac() bool {
	return f.Crash.Where == event.WhereMPS || f.says("/users/", "macos", "darwin", "apple m1",
		"apple m2", "apple m3", "mps backend")
}
