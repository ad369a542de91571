package diagnose

import (
	"slices"

	"memroom/event"
	"memroom/remedy"
)

// mostAdvice is how many remedies an explanation names.
const mostAdvice = 5

// cures lists the remedies of a cause, best first: those that keep the mathematics and cost little
// before the others.
var cures = map[Cause][]remedy.ID{
	CauseBatch: {remedy.MicroBatch, remedy.Checkpointing, remedy.MixedPrecision,
		remedy.ExpandableSegments, remedy.ActivationOffload, remedy.TFGrowth,
		remedy.ShorterSequence, remedy.SmallerImage},
	CauseModel: {remedy.OptimizerFused, remedy.OptimizerOffload, remedy.ZeRO, remedy.FSDP,
		remedy.DeviceMap, remedy.LoRA, remedy.Optimizer8Bit,
		remedy.Quantize8Bit, remedy.Quantize4Bit, remedy.MixedPrecision, remedy.RaiseLimit},
	CauseFragmentation: {remedy.ExpandableSegments, remedy.TFAllocator, remedy.Roundup,
		remedy.MaxSplitSize, remedy.GCThreshold, remedy.EmptyCache, remedy.MicroBatch},
	CauseLeak: {remedy.Detach, remedy.NoGrad, remedy.RemoveHooks, remedy.EmptyCache,
		remedy.DataLoaderWorkers, remedy.RaiseLimit},
	CauseNeighbour: {remedy.FreeNeighbour, remedy.TFGrowth, remedy.MicroBatch,
		remedy.Checkpointing, remedy.MixedPrecision, remedy.ShorterSequence, remedy.Quantize8Bit},
	CauseHostData: {remedy.StreamData, remedy.TFDataBudget, remedy.DataLoaderWorkers,
		remedy.PinMemory, remedy.RaiseLimit, remedy.MicroBatch,
		remedy.TrialResources, remedy.MixedPrecision, remedy.TFAllocator},
	CauseShm: {remedy.ShmSize, remedy.DataLoaderWorkers, remedy.MicroBatch},
	CauseUnknown: {remedy.TrialResources, remedy.RaiseLimit, remedy.DataLoaderWorkers,
		remedy.StreamData, remedy.TFDataBudget, remedy.PinMemory, remedy.MicroBatch},
}

// firstFor puts remedies in front where a detail is known.
var firstFor = map[string][]remedy.ID{
	"logits": {remedy.ChunkedLoss, remedy.MicroBatch},
	"optimizer_step": {remedy.OptimizerFused, remedy.OptimizerOffload, remedy.Optimizer8Bit,
		remedy.OptimizerAdafactor},
	"eval_grad":       {remedy.NoGrad, remedy.MicroBatch, remedy.EmptyCache},
	"checkpoint_save": {remedy.EmptyCache, remedy.OptimizerOffload, remedy.FSDP, remedy.RaiseLimit},
	"load": {remedy.Quantize8Bit, remedy.Quantize4Bit, remedy.DeviceMap, remedy.FSDP,
		remedy.RaiseLimit},
	"kv_cache": {remedy.ShorterSequence, remedy.MicroBatch, remedy.Quantize8Bit,
		remedy.DeviceMap, remedy.FreeNeighbour},
	"workers": {remedy.DataLoaderWorkers, remedy.StreamData, remedy.PinMemory,
		remedy.RaiseLimit},
	"trial_packing": {remedy.TrialResources, remedy.DataLoaderWorkers, remedy.StreamData,
		remedy.RaiseLimit},
}

// advise fills in the best remedies, those with known bytes by what they save among equals.
func (x *Explanation) advise(saving Saving) {
	for _, id := range slices.Concat(firstFor[x.Detail], x.cures()) {
		r, ok := remedy.Find(id)
		if !ok || len(x.Remedies) == mostAdvice || x.has(id) || r.Applies(x.job) != "" {
			continue
		}
		a := Advice{ID: id, Title: r.TitleFor(x.job), Why: r.Why,
			Slowdown: r.Slowdown(setupOf(x.job)), Equivalence: r.Equivalence, How: r.HowTo(x.job),
			Unvalidated: r.Unvalidated}
		if saving != nil {
			if low, high, ok := saving(r); ok {
				if high <= 0 {
					continue // the engine says that it would not help here
				}
				a.SavesLow, a.SavesHigh = &low, &high
			}
		}
		x.Remedies = append(x.Remedies, a)
	}
}

// noteSavings says once what would make the bytes known that remedies save, where they are not.
func (x *Explanation) noteSavings(m Material, saving Saving) {
	switch {
	case len(x.Remedies) == 0 || slices.ContainsFunc(x.Remedies,
		func(a Advice) bool { return a.SavesLow != nil }):
	case saving != nil:
		x.Warnings = append(x.Warnings, mutedSavings)
	case m.Verdict != nil || len(m.Findings) > 0:
		x.Warnings = append(x.Warnings, recordSavings)
	default:
		x.Warnings = append(x.Warnings, logSavings)
	}
}

// cures lists what helps against the cause; on a card whose cause is unknown, what a batch keeps is
// the part to shrink.
func (x *Explanation) cures() []remedy.ID {
	if x.Cause == CauseUnknown && (x.Where == event.WhereGPU || x.Where == event.WhereMPS) {
		return cures[CauseBatch]
	}
	return cures[x.Cause]
}

func (x *Explanation) has(id remedy.ID) bool {
	return slices.ContainsFunc(x.Remedies, func(a Advice) bool { return a.ID == id })
}

func setupOf(job remedy.Job) remedy.Setup {
	if job.Setup != nil {
		return *job.Setup
	}
	return remedy.Setup{Batch: job.Batch, Accumulate: job.Accumulate}
}
