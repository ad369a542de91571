package fit

import (
	"fmt"
	"slices"
	"strings"

	"memroom/event"
	"memroom/remedy"
)

// impossible is the plan of which nothing comes: the reason, and the least that would be needed,
// where that is known.
func (f Facts) impossible(o Options, reason string) Plan {
	plan := Plan{Remedies: f.On, Factor: 1, Left: notAllowed(f, o)}
	plan.Impossible, plan.Needs = CannotFit(reason, max(f.Needs, f.Allocated+f.Requested), f.Limit)
	switch {
	case plan.Needs != 0 || !f.trainsOnCPU() || f.Foreign != "":
	case f.Whole != "":
		plan.Impossible += ". A higher limit helps"
	default:
		plan.Impossible += ". A higher limit helps, or micro-batches of a size that you choose: " +
			"--remedy micro_batch=SAMPLES"
	}
	if words := f.librariesWords(); words != "" && !strings.Contains(reason, words) {
		plan.Impossible += ". " + words
	}
	return plan
}

// CannotFit returns the reason for the end of the attempts, with the least amount needed if that is
// more than there is. A lower amount explains nothing, because memory ran out although there was
// more.
func CannotFit(why string, needs, limit event.Bytes) (string, event.Bytes) {
	switch {
	case needs == 0 || limit > 0 && needs <= limit:
		return why, 0
	case limit == 0:
		return fmt.Sprintf("it needs at least %s; %s", needs, why), needs
	}
	return fmt.Sprintf("it needs at least %s, and %s are there; %s", needs, limit, why), needs
}

// OfLeak is the end where a leak is why memory ran out.
const OfLeak = "what the program keeps grows with every step, until nothing is left. No remedy " +
	"stops a leak; a smaller batch or a higher limit only delays the end"

// leaks reports whether another attempt would be in vain because of a leak. The first time it would
// be where the leak took half of what there is next to libraries: to give back all of the rest
// would not make twice as many steps. With remedies in effect a large part is enough.
func (f Facts) leaks() bool {
	if f.Limit == 0 || f.Leaked == 0 {
		return false
	}
	inside := func(r Remedy) bool { return r.Level == remedy.LevelProcess }
	if slices.ContainsFunc(f.On, inside) && f.Leaked >= f.Limit/event.LargeLeak {
		return true
	}
	return f.Leaked >= (f.Limit-min(f.Libraries, f.Limit/2))/2
}

// GivenUp describes the end after the last attempt that may be made: the reason, and the least
// amount needed if that is known.
func (f Facts) GivenUp(attempts int) (string, event.Bytes) {
	if f.Hopeless != "" {
		return f.Hopeless, f.Needs
	}
	if f.leaks() {
		return OfLeak, 0
	}
	return CannotFit(fmt.Sprintf("%d attempts were made; --max-attempts allows no more%s",
		attempts, f.lastMoment()), f.Allocated+f.Requested, f.Limit)
}

// lastMoment describes where the last attempt ran out. It is empty if that is not known.
func (f Facts) lastMoment() string {
	if f.Requested == 0 || f.Allocated == 0 {
		return ""
	}
	where := ""
	if f.Phase != "" {
		where = " (" + f.Phase + ")"
	}
	text := fmt.Sprintf(". In the last one a request for %s failed with %s held%s", f.Requested,
		f.Allocated, where)
	if f.Phase == "optimizer" {
		text += ": weights, gradients and optimizer state are there at once then, whatever the batch. " +
			"What helps: an optimizer with less state, or fewer parameters that are trained"
	}
	return text
}

// outOfReach is what helps in frameworks that no remedy of ours changes from outside.
var outOfReach = map[string]string{
	"jax": "JAX programs are compiled as a whole, so nothing is changed from outside. What helps in " +
		"the script: jax.checkpoint(block) around each block; jax.jit(step, donate_argnums=(0, 1)), " +
		"so that new parameters and optimizer state take the place of the old ones; " +
		"optax.MultiSteps(optimizer, 4) with a quarter of the batch. Beside other programs: " +
		"XLA_PYTHON_CLIENT_PREALLOCATE=false",
}

// nothingToActOn explains why no remedy found anything to do, and what would help.
func (f Facts) nothingToActOn() string {
	const start = "memory ran out outside of a training step, where there is no batch to split. "
	switch {
	case f.oneTensor():
		return fmt.Sprintf("one tensor of %s is too large, and it is made outside of a batch. %s",
			f.Requested, kernelHelp)
	case f.librariesFill():
		return f.librariesWords() + ". What helps: a higher limit"
	case f.Where == event.WhereShm:
		return start + "What helps: fewer data loader workers, or a larger /dev/shm"
	case f.Framework == remedy.PyTorch:
		at, data := "", "Where data are loaded: less at once, or a higher limit"
		if f.Line != "" {
			at = " at " + f.Line
		}
		if !f.onHost() {
			data = "Where data and results are kept: keep them in host memory, and evaluate under " +
				"torch.no_grad()"
		}
		return "memory ran out" + at + ", and no module was called that could be made smaller. " + data +
			". Where the script calls module.forward(x): module(x) instead, a call that can be split " +
			"and run again. Where a network is written as functions, what helps in the script: " +
			"torch.utils.checkpoint.checkpoint around parts of the network, or a backward pass for " +
			"each part of the batch"
	case f.onHost():
		return start + "What helps: load less data at once, or raise the limit"
	}
	return start +
		"What helps: keep data and results in host memory, or evaluate under torch.no_grad()"
}

// kernelHelp is for matrices over all samples: exact Gaussian processes, pairwise distances.
const kernelHelp = "If it is a matrix over all samples, what helps is to compute it in chunks, " +
	"to " +
	"use fewer samples (inducing points) or a smaller data type"

// sameAgain reports that a tighter plan changed nothing about the moment at which memory runs out.
func (f Facts) sameAgain() string {
	text := fmt.Sprintf("a request for %s failed with %s held, as in the attempt before: no remedy "+
		"that keeps the results makes that moment smaller", f.Requested, f.Allocated)
	if f.oneTensor() {
		text += ". What helps: compute that tensor in chunks, a smaller batch or a smaller data type"
	}
	return text
}

// allTried reports that the ladder has ended, and why the batch stayed whole where it did.
func (f Facts) allTried() string {
	text := "every remedy that keeps the results was tried"
	if f.Whole != "" {
		text += ". The batch was not split: " + strings.TrimSuffix(f.Whole, ".")
		if f.oneTensor() {
			text += fmt.Sprintf(". It asked for one tensor of %s. %s", f.Requested, kernelHelp)
		}
	}
	return text
}

// oneTensor: a single allocation was a large part of all that there is, as a matrix over all
// samples is.
func (f Facts) oneTensor() bool {
	return f.Requested > 0 && f.Limit > 0 && f.Requested >= f.Limit/4
}

// librariesWords say what no remedy makes smaller, where that is much of the limit on host memory,
// and how little is left for all the rest.
func (f Facts) librariesWords() string {
	if !f.onHost() || f.Where == event.WhereShm || f.Libraries == 0 || f.Limit == 0 ||
		f.Libraries < f.Limit/3 {
		return ""
	}
	return fmt.Sprintf("Python and its libraries take %s of the %s before training begins, which leaves "+
		"%s for data, weights, gradients and optimizer state", f.Libraries, f.Limit, max(0, f.Limit-f.Libraries))
}

// librariesFill reports whether libraries alone explain that memory ran out.
func (f Facts) librariesFill() bool {
	return f.librariesWords() != "" && f.Libraries >= f.Limit*3/4
}
