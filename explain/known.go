package explain

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"memroom/event"
	"memroom/lazyregexp"
	"memroom/trace"
)

// optimizerNode are operations of TensorFlow on weights and optimizer state, not on a batch.
var (
	optimizerNode = lazyregexp.New(`(?i)/(?:adam|adamw|rmsprop|momentum|adagrad|adadelta|nadam|sgd|ftrl)\w*/|(?:^|/)(?:adam|adamw|rmsprop|adagrad)_?\d*/`)
	weightNode    = lazyregexp.New(`(?i)initializer|random_uniform|random_normal|truncated_normal|/assign|kernel/|/zeros$|embeddings?/(?:read|assign|init\w*|adam\w*)`)
	modelNumber   = lazyregexp.New(`(?i)^training_(\d+)/|^(?:model|sequential|functional)_(\d+)/|^(?:adam|rmsprop|sgd)_(\d+)/`)
	leadingShape  = lazyregexp.New(`(?i)shape ?\[(\d+)((?:, ?\d+)*)\]`)
)

// recurrent are operations over the time steps of a sequence.
var recurrent = lazyregexp.New(`(?i)(?:rnn|lstm|gru|decoder|recurrent)\w*/.*(?:TensorArray|while/)|` +
	`(?:^|/)\w*(?:rnn|lstm|gru)\w*/`)

// ofBoxes are operations whose first dimension counts boxes of a detector.
var ofBoxes = lazyregexp.New(`(?i)crop_?and_?resize|roi_?(?:align|pool)|proposals?\b|non_?max_?suppression`)

// manySamples is a first dimension that is a data set rather than a batch, where the operation
// moves whole arrays.
const manySamples = 5000

var wholeArray = lazyregexp.New(`\[Op:(?:GatherV2|_EagerConst|Cast|ConcatV2|TensorSliceDataset|` +
	`Pack|StridedSlice|Identity)\]`)

// madeInLoop are names of variables and operations with a number that one model does not reach.
var madeInLoop = lazyregexp.New(`\b(?:Variable|dense|conv2d|lstm|gru|embedding|sub|mul|add|training)_\d{3,}\b`)

// manyLayers are names of layers with a number that several models of one process reach, and one
// model does not.
var manyLayers = lazyregexp.New(`(?i)\b(?:(?:dense|lstm|gru|embedding|flatten|dropout|bidirectional)_(?:[2-9]\d\d|\d{4,})|` +
	`(?:conv[123]d|batch_normalization|activation|re_lu|leaky_re_lu|add|concatenate)_\d{4,})\b`)

// predicting are the functions that Keras makes of a model for predict and evaluate.
var predicting = lazyregexp.New(`(?:__inference_|\bnode )(predict|test)_(?:function|step)|` +
	`(predict|test)_function/`)

// manyModels is the number in an operation's name from which models must have been built in a loop.
// A model may have parts that are models themselves: only more of them tell of a loop.
const (
	manyModels = 3
	manyParts  = 8
)

// byNode uses the operation that TensorFlow names.
func byNode(c *trace.Crash, h *trace.Hints) (judged, bool) {
	if c.Framework != "tensorflow" || c.Where != event.WhereGPU {
		return judged{}, false
	}
	if m := modelNumber.FindStringSubmatch(c.Node); m != nil {
		least := manyModels
		if m[1] == "" && !has(c, trace.SignTrials) {
			least = manyParts
		}
		if n, _ := strconv.Atoi(first(m[1:]...)); n >= least {
			return because(CauseLeak, "models_in_loop", 0.75,
				"the operation's name (%s) counts %d earlier models in this process: their weights and optimizer "+
					"state are still there",
				c.Node, n).also("the weights of one model and its optimizer come on top"), true
		}
	}
	if m := predicting.FindStringSubmatch(c.Text); m != nil {
		if has(c, trace.SignPredicts) || slices.Contains(h.Says, string(CauseLeak)) {
			return calledInLoop(first(m[1:]...)), true
		}
		return because(CauseBatch, "eval_batch", 0.6,
			"in %s of Keras, which has a batch size of its own", m[1]), true
	}
	if seen(c, h, trace.SignEvaluating) && has(c, trace.SignEvalLoop) {
		return because(CauseBatch, "eval_batch", 0.6,
			"in a loop of evaluation or prediction (%s), which has a batch size of its own",
			c.Signs[trace.SignEvalLoop]), true
	}
	if made := madeInLoop.FindString(c.Text); made != "" && has(c, trace.SignTrials) {
		return because(CauseLeak, "models_in_loop", 0.65,
			"the operation's name (%s) counts what this process has built before, and models are said to be made "+
				"one after the other: earlier ones are still there", made), true
	}
	if made := manyLayers.FindString(c.Node); made != "" {
		return because(CauseLeak, "models_in_loop", 0.65,
			"the layer's name (%s) counts more layers than one model has: models were built one "+
				"after the other in this process, and earlier ones may still be there", made).
			saying("earlier models of the same process may still be in memory"), true
	}
	switch {
	case optimizerNode.MatchString(c.Node):
		return because(CauseModel, "optimizer_step", nodeSure(c),
			"the operation (%s) makes or updates the state of the optimizer", c.Node), true
	case weightNode.MatchString(c.Node):
		return because(CauseModel, "load", nodeSure(c),
			"the operation (%s) creates weights", c.Node), true
	}
	m := leadingShape.FindStringSubmatch(c.Text)
	if m == nil || len(lazyregexp.New(`\d+`).FindAllString(m[2], -1)) < 2 {
		return judged{}, false
	}
	if isKernel(m[1] + m[2]) {
		return because(CauseUnknown, "open", 0,
			"the tensor [%s%s] is the kernel of a convolution, a weight: its first dimension is no batch", m[1], m[2]), true
	}
	if recurrent.MatchString(c.Node) {
		return because(CauseBatch, "longest_batch", 0.6,
			"the operation (%s) is one of a recurrent layer, whose tensors have time first: %s steps of one "+
				"batch, as long as its longest sample", c.Node, m[1]), true
	}
	if m[1] == "1" {
		return because(CauseBatch, "one_sample", 0.6,
			"the tensor holds one sample (shape [1%s]): how large it is counts, not how many there are",
			m[2]), true
	}
	if ofBoxes.MatchString(c.Node) || ofBoxes.MatchString(c.Text) {
		return because(CauseUnknown, "open", 0,
			"the operation works on boxes: the %s in its first dimension are proposals or crops, not samples, and "+
				"fewer of them need less", m[1]), true
	}
	if n, _ := strconv.Atoi(m[1]); n >= manySamples && (wholeArray.MatchString(c.Text) ||
		len(c.Frames) > 0 && strings.Contains(c.Frames[0].File, "data_adapter")) {
		return because(CauseHostData, "data_on_card", 0.75,
			"the tensor has %s rows and is copied or sliced as a whole: the data set, not a batch", m[1]), true
	}
	return because(CauseBatch, "", min(0.6, nodeSure(c)),
		"one tensor of shape [%s%s] was refused: most often what one batch computes", m[1], m[2]), true
}

// isKernel reports whether a shape is that of a convolution's weights: small equal sides first,
// then
// channels.
func isKernel(shape string) bool {
	dims := digitsOf.FindAllString(shape, -1)
	if len(dims) != 4 && len(dims) != 5 || dims[0] != dims[1] {
		return false
	}
	side, _ := strconv.Atoi(dims[0])
	in, _ := strconv.Atoi(dims[len(dims)-2])
	out, _ := strconv.Atoi(dims[len(dims)-1])
	return side <= 11 && in >= 16 && out >= 16
}

// calledInLoop explains Keras' predict or evaluate that is said to be called again and again.
func calledInLoop(name string) judged {
	return because(CauseLeak, "predict_loop", 0.6,
		"in %s, which is called again and again: each call of it builds a data pipeline, and what that holds is "+
			"freed late", name)
}

// nodeSure is how sure the name of an operation makes a cause: without the figures of the card, it
// may as well have been full before.
func nodeSure(c *trace.Crash) float64 {
	if c.Capacity == nil && c.Allocated == nil {
		return 0.55
	}
	return 0.7
}

// everyTrial are words of trials, folds or models that follow each other.
var everyTrial = lazyregexp.New(`(?i)trial|fold|loop|optuna|search|sweep`)

func byWords(c *trace.Crash, h *trace.Hints) (judged, bool) {
	if c.Kind == "paddle" { // its own advice names every cause
		return judged{}, false
	}
	if has(c, trace.SignUnsharded) && seen(c, h, trace.SignZeRO3) {
		return because(CauseModel, "not_sharded", 0.6,
			"sharding is configured, but memory does not shrink with more cards: the model is not sharded"), true
	}
	for _, cause := range []Cause{CauseLeak, CauseBatch, CauseModel, CauseHostData,
		CauseNeighbour} {
		if !slices.Contains(h.Says, string(cause)) {
			continue
		}
		if cause == CauseBatch && has(c, trace.SignBatchVain) {
			continue
		}
		if cause == CauseNeighbour && !onCard(c) || cause == CauseHostData && onCard(c) ||
			cause == CauseBatch && !onCard(c) && c.Framework != "pytorch" &&
				c.Framework != "tensorflow" {
			continue
		}
		if cause == CauseLeak && everyTrial.MatchString(c.Signs[trace.SignTrials]) && onCard(c) &&
			!has(c, trace.SignRayTune) {
			return because(CauseLeak, "trials_in_process", 0.55,
				"the text says that memory grows, and tells of trials or models one after the other (%s)",
				c.Signs[trace.SignTrials]).saying("memory is said to grow from trial to trial"), true
		}
		if cause == CauseLeak {
			return because(cause, "", 0.5, "the text around the message says that memory grows: %q", h.SaidOf[string(cause)]).
				saying("memory is said to grow while it runs"), true
		}
		return because(cause, "", 0.5, "the text says %q", h.SaidOf[string(cause)]), true
	}
	return judged{}, false
}

// Bounds from which one request must be an activation: weights of one layer are rarely so large.
const (
	largeRequest = 128 * event.MiB
	largeShare   = 0.025 // of the card
	hugeTensor   = 64 * event.GiB
	lateSteps    = 20 // by then every state exists and the usual batch has fitted
)

func large(c *trace.Crash) bool {
	return c.Requested != nil && *c.Requested >= largeRequest && (c.Capacity == nil ||
		float64(*c.Requested) >= largeShare*float64(*c.Capacity))
}

// bySteps uses that training steps had been made: what the model itself needs does fit.
func bySteps(c *trace.Crash, h *trace.Hints) (judged, bool) {
	switch {
	case !onCard(c) || c.Steps == 0 || c.Kind == "torch_raw" || c.Framework == "other":
		return judged{}, false
	case c.Framework == "jax" && !large(c) && c.Requested != nil:
		return because(CauseUnknown, "full", 0,
			"only %s were refused after steps that passed: the card was full already, by what is kept from "+
				"them, by the pool that JAX takes, or by another process", *c.Requested), true
	case c.Steps >= lateSteps && large(c) && !inBatches(c, h):
		return because(CauseBatch, "longest_batch", 0.55,
			"it ran for %s steps before %s were asked for at once: one step needed more than those before",
			thousands(c.Steps), *c.Requested).
			saying("it may be that one step needs more than all before it, as with " +
				"longer or larger samples"), true
	case c.Steps >= lateSteps && large(c):
		return because(CauseBatch, "longest_batch", 0.55,
			"it ran for %s steps before %s were asked for at once: a batch with longer samples than before",
			thousands(c.Steps), *c.Requested), true
	case c.Steps >= lateSteps && !inBatches(c, h):
		return because(CauseUnknown, "late", 0,
			"it ran for %s steps: what one step usually needs fits; something that the program holds has grown (also "+
				"points or nodes that it adds), or one step needed more than those before", thousands(c.Steps)), true
	case c.Steps >= lateSteps:
		return because(CauseUnknown, "late", 0,
			"it ran for %s steps: the model and the usual batch fit; either a batch was longer than all "+
				"before, or something grows slowly",
			thousands(c.Steps)), true
	}
	if !learns(c, h) || seen(c, h, trace.SignInfers) && !seen(c, h, trace.SignLearning) {
		return because(CauseBatch, "", 0.5,
			"the first steps passed: the model fits, what is computed for one input does not"), true
	}
	return because(CauseBatch, "", 0.5,
		"the first steps passed: weights, gradients and optimizer state fit, the activations of a batch "+
			"do not"), true
}

// thousands writes a count with separators.
func thousands(n int64) string {
	if n < 1000 {
		return strconv.FormatInt(n, 10)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}

// byResumed knows jobs that fail right after they continue from a checkpoint.
func byResumed(c *trace.Crash, _ *trace.Hints) (judged, bool) {
	if c.Where != event.WhereGPU || !has(c, trace.SignResumed) || c.Framework != "pytorch" ||
		large(c) || c.Kind == "torch_raw" {
		return judged{}, false
	}
	return because(CauseModel, "resumed", 0.5,
		"training continues from a checkpoint: the loaded dict, restored to the card it was saved from, "+
			"may still be held"), true
}

// programParts is XLA's table of a compiled program, where its arguments are not nothing.
var programParts = lazyregexp.New(`\bprogram\s+([\d.]+[MG])\s+arguments\s+([1-9][\d.]*[MG])`)

// bufferParts is XLA's own sum of the buffers of a compiled program.
var bufferParts = lazyregexp.New(`parameter allocation:\s+([\d.]+[KMGT]?i?B)[\s\S]*?maybe_live_out allocation:\s+` +
	`([\d.]+[KMGT]?i?B)[\s\S]*?preallocated temp allocation:\s+([\d.]+[KMGT]?i?B)[\s\S]*?total allocation:\s+` +
	`([\d.]+[KMGT]?i?B)`)

// slightProgram is less than any card has: a program that takes no more is not what fills it.
const slightProgram = event.GiB

// madeOfData are lines that put data together in one tensor.
var madeOfData = lazyregexp.New(`torch\.(?:\w+Tensor|tensor|as_tensor|from_numpy|stack|cat|concat)\(|` +
	`np\.(?:array|stack|concatenate|vstack|load)\(`)

// oversizedBy names what makes one tensor larger than a card.
func oversizedBy(c *trace.Crash, h *trace.Hints) string {
	if seen(c, h, trace.SignScores) {
		return "all pairs at once, full attention over a long input, or a wrong shape"
	}
	return "all pairs at once, a whole input in one piece, or a wrong shape"
}

// leftOf returns the words for the memory that a program found on the device, or "" if the message
// does not print it.
func leftOf(c *trace.Crash) string {
	if c.Free != nil {
		return "is free"
	}
	return ""
}

// oversizedBuffer is Metal's refusal of one buffer.
var oversizedBuffer = lazyregexp.New(`(?i)invalid buffer size`)

// oversized explains one request that is larger than the card.
func oversized(c *trace.Crash, h *trace.Hints) judged {
	if c.Pooled {
		return because(CauseBatch, "oversized", 0.6,
			"%s alone are more than the %s that TensorFlow may take of the card: %s", *c.Requested, *c.Capacity,
			oversizedBy(c, h)).saying("one tensor alone is larger than TensorFlow's share of the card")
	}
	return because(CauseBatch, "oversized", 0.6, "%s alone are more than the card's %s: %s",
		*c.Requested, *c.Capacity, oversizedBy(c, h))
}

// deviceBuffer matches the runtime's message when there is no room for an array. The message for a
// compiled program that does not fit is different.
var deviceBuffer = lazyregexp.New(`(?i)error allocating device buffer|` +
	`attempting to allocate [\d.]+ ?[KMGT]?i?B?\. that was not possible`)

// placedArray explains a message that mentions one array, but not whose arrays fill the rest.
func placedArray(c *trace.Crash) judged {
	return because(CauseUnknown, "placed_array", 0,
		"one array found no place beside what is on the device already: arrays that this program still "+
			"refers to (jax.live_arrays() lists them), those of an earlier run in the same process, or "+
			"another process that has not ended")
}

// bySize uses the size of the request: large tensors belong to a batch.
func bySize(c *trace.Crash, h *trace.Hints) (judged, bool) {
	switch {
	case c.Kind == "jax_exhausted" && bufferParts.MatchString(c.Text):
		m := bufferParts.FindStringSubmatch(c.Text)
		if total, err := event.ParseBytes(m[4]); err == nil && total < slightProgram {
			return because(CauseUnknown, "full", 0,
				"by XLA's own sum the compiled program takes %s only: what fills the card is something else, "+
					"arrays that this process still refers to, programs compiled before, or another process", m[4]).
				saying("the compiled program itself takes %s only", m[4]), true
		}
		return because(CauseBatch, "", 0.6,
			"by XLA's own sum the compiled program takes %s: %s parameters, %s results, and %s that "+
				"it computes on the way; all but the parameters grow with the batch or the input",
			m[4], m[1], m[2], m[3]).
			saying("the compiled program takes %s in all", m[4]), true
	case c.Kind == "jax_exhausted" && c.Requested != nil && c.Capacity != nil &&
		programParts.MatchString(c.Text):
		m := programParts.FindStringSubmatch(c.Text)
		return because(CauseBatch, "", 0.5,
			"the program needs %s, and %s are there: %s are its arguments (weights, optimizer state), %s what "+
				"the step itself needs, which grows with the batch", *c.Requested, *c.Capacity, m[2], m[1]).
			saying("its arguments and what the step itself needs do not fit together"), true
	case c.Kind == "jax_exhausted" && deviceBuffer.MatchString(c.Text):
		return placedArray(c), true
	case c.Kind == "jax_exhausted" && c.Requested != nil && c.Capacity != nil:
		there := fmt.Sprintf("%s are there", *c.Capacity)
		if c.Free != nil {
			there = fmt.Sprintf("%s of %s were free", *c.Free, *c.Capacity)
		}
		return because(CauseBatch, "", 0.55,
			"the compiled program needs %s, and %s: its arguments (weights and what belongs to them), "+
				"and what one step computes, which grows with the batch", *c.Requested, there).
			saying("the compiled program alone needs more than %s", first(leftOf(c), "that")), true
	case timesCard(c) >= largerThanCard:
		return oversized(c, h), true
	case c.Kind == "jax_exhausted" && onCard(c) && c.Capacity == nil && c.Requested != nil &&
		*c.Requested < event.GiB: // one array of many, not what a step needs
		return judged{}, false
	case c.Kind == "jax_exhausted" && onCard(c) && large(c):
		return because(CauseBatch, "", 0.55,
			"the program asked for %s at once: what the step itself needs, which grows with the batch or the input",
			*c.Requested), true
	case c.Where == event.WhereMPS && large(c) && oversizedBuffer.MatchString(c.Text):
		return because(CauseBatch, "", 0.6,
			"Metal grants no single buffer of %s: what is computed for one batch at once, which "+
				"grows with its size", *c.Requested).
			saying("one buffer of that size is more than Metal grants at once"), true
	case onCard(c) && large(c) && c.Framework != "other" && has(c, trace.SignBatchVain):
		return because(CauseUnknown, "vain", 0,
			"a smaller batch is no way out, as the text says: one long or large sample, what the model itself needs, "+
				"or what earlier steps left"), true
	case onCard(c) && large(c) && c.Framework != "other":
		return because(CauseBatch, "", 0.55,
			"%s were asked for at once: most often what one %s needs, which grows with its size",
			*c.Requested, map[bool]string{true: "batch", false: "input"}[inBatches(c, h)]), true
	case c.Kind == "torch_cpu" && c.Requested != nil && *c.Requested >= hugeTensor &&
		!slices.ContainsFunc(c.Code, madeOfData.MatchString):
		return because(CauseUnknown, "host_tensor", 0,
			"one tensor of %s was asked for in host memory: a wrong shape (one that broadcasts, or an index "+
				"used as a size), or all pairs of something", *c.Requested), true
	case c.Kind == "torch_cpu" && c.Requested != nil && *c.Requested >= event.GiB:
		return because(CauseHostData, "", 0.5, "one tensor of %s in host memory", *c.Requested),
			true
	}
	return judged{}, false
}

// byOtherBatch uses two batch sizes: one that is said to work, and the one that did not.
func byOtherBatch(c *trace.Crash, h *trace.Hints) (judged, bool) {
	works, err := strconv.Atoi(c.Signs[trace.SignOtherBatch])
	if err != nil || works < 1 || works >= h.Batch || !onCard(c) {
		return judged{}, false
	}
	j := because(CauseBatch, "", 0.6, "a batch of %d works, as the text says, and %d does not", works,
		h.Batch)
	if seen(c, h, trace.SignRanksSaid) {
		j = j.also("with one process a card (DDP) the batch size is that of each card, not of all together")
	}
	return j.saying("a batch of %d is too large, one of %d works", h.Batch, works), true
}

// bySetting uses a batch size that the log shows.
func bySetting(c *trace.Crash, h *trace.Hints) (judged, bool) {
	if !onCard(c) || h.Batch < 2 || c.Framework == "other" {
		return judged{}, false
	}
	return because(CauseBatch, "", 0.5, "the log shows a batch of %d, which can be made smaller",
		h.Batch).saying("its batch of %d can be made smaller", h.Batch), true
}

// manyContexts is how many small processes on one card are those of other ranks.
const manyContexts = 3

// contexts counts the processes on the card that hold little more than a context.
func contexts(c *trace.Crash) int {
	small := 0
	for _, n := range c.Neighbours {
		if n.Bytes < event.GiB {
			small++
		}
	}
	return small
}

// fullAlready reports whether so little was refused that what asked for it is not the cause. JAX
// asks for all that a program needs at once.
func fullAlready(c *trace.Crash) bool {
	return onCard(c) && c.Framework == "jax" && c.Requested != nil && *c.Requested < smallAsk &&
		c.Capacity == nil && c.Free == nil
}

// notKnown reports what is known when no evidence points to a cause.
func notKnown(c *trace.Crash, h *trace.Hints) judged {
	j := judged{cause: CauseUnknown}
	switch {
	case onCard(c) && contexts(c) >= manyContexts:
		j.detail = "contexts"
		j = j.also("%d other processes hold %s of the card, about %s each: contexts, as of ranks that did "+
			"not select their own card", len(c.Neighbours), neighbourBytes(c),
			neighbourBytes(c)/event.Bytes(len(c.Neighbours)))
	case fullAlready(c):
		j.detail = "full"
		j = j.also("only %s were refused: the card was full already, by what this process keeps, by the pool "+
			"that JAX takes, or by another process", *c.Requested)
	case onCard(c) && has(c, trace.SignEpochs):
		j.detail = "late"
		j = j.also("whole epochs had passed: the model and the usual batch fit; either something is kept from " +
			"step to step, the pool fell into pieces, or a batch came out larger than all before")
	case onCard(c):
		j.detail = "open"
		if c.Idle != nil && c.Requested != nil && c.Allocated != nil && (*c.Idle < *c.Requested ||
			*c.Idle < 2**c.Requested && c.Capacity != nil &&
				float64(*c.Idle) < crumbs*float64(*c.Capacity)) {
			j = j.also("%s are live and only %s idle: a true shortage, no fragmentation",
				*c.Allocated, *c.Idle)
		}
		if rest := unlisted(c) - ownElsewhere(c); rest > event.GiB && c.Capacity != nil &&
			4*rest > *c.Capacity {
			j = j.also("%s of the card are outside this program's pool: its CUDA context, the desktop or other processes",
				rest)
		}
	case onHost(c) && has(c, trace.SignWorkerKill) && !oneWorker.is(c, h, j):
		return because(CauseHostData, "workers", 0.55,
			"a DataLoader worker was among those killed: workers hold copies of the data and prefetched "+
				"batches")
	case c.Kind == "kube_evicted":
		j.detail = "limit"
		j = j.also("the node itself ran short of memory, and pods that use more than they request are " +
			"evicted first: a request of what it really uses keeps it")
	case c.Where == event.WhereCgroup:
		j.detail = "limit"
	case c.Framework == "ray":
		j.detail = "trial_packing"
		if unsure(c, j) {
			return j.also("a worker is gone, and the text names memory as one of several reasons: the tasks on the node together " +
				"may need more than Ray lets them have")
		}
		if name, bytes := largestTask(c.Neighbours); name != "" {
			j = j.also("the tasks on the node together need more than Ray lets them have; the largest that the "+
				"text lists is %s with %s", name, bytes)
		} else {
			j = j.also("the tasks on the node together need more than Ray lets them have")
		}
		if belowFull(c) {
			j = j.also("%s of %s is no full node: Ray's threshold (RAY_memory_usage_threshold) is set low",
				*c.Allocated, *c.Capacity)
		}
	}
	if onCard(c) && has(c, trace.SignNotebook) {
		j = j.also("in a notebook, what failed cells held stays on the card until it is let go of")
	}
	return j
}

// largestTask returns the Ray task or actor that holds most memory, or "" if none is listed.
func largestTask(holders []trace.Holder) (string, event.Bytes) {
	name, most := "", event.Bytes(0)
	for _, h := range holders {
		if (strings.HasPrefix(h.Name, "ray::") || strings.HasPrefix(h.Name, "ray_")) &&
			!strings.HasPrefix(h.Name, "ray::IDLE") && h.Bytes > most {
			name, most = h.Name, h.Bytes
		}
	}
	return name, most
}

// crumbs is the share of a card that lies idle in every pool.
const crumbs = 0.02

// padded is XLA's line about an array that its layout makes larger.
var padded = lazyregexp.New(`Extra memory due to padding: ([\d.]+[KMG]) \(([\d.]+)x expansion\)|Unpadded \(([\d.]+)([KMG])\) Padded \(([\d.]+)([KMG])\)`)

// paddedTimes returns how many times larger the layout makes an array, and by how much; 0 where XLA
// prints no such thing.
func paddedTimes(text string) (times float64, what string) {
	m := padded.FindStringSubmatch(text)
	if m == nil {
		return 0, ""
	}
	if times, _ = strconv.ParseFloat(m[2], 64); times > 0 {
		return times, m[1] + " more"
	}
	before, _ := strconv.ParseFloat(m[3], 64)
	after, _ := strconv.ParseFloat(m[5], 64)
	step := strings.Index("KMG", m[6]) - strings.Index("KMG", m[4])
	times = after / max(before, 0.001) * math.Pow(1024, float64(step))
	return times, m[3] + m[4] + " become " + m[5] + m[6]
}

// reservable is what a TPU has left in one piece, by its own words.
var reservable = lazyregexp.New(`and ([\d.]+[KMG]) reservable`)

// manyTimes is an expansion that no layout needs.
const manyTimes = 4

// withFigures adds evidence from the figures to the cause that was found.
func withFigures(j judged, c *trace.Crash) judged {
	times, what := paddedTimes(c.Text)
	if times >= manyTimes && (c.Kind == "jax_exhausted" || c.Framework == "jax") {
		j = j.also("the layout pads one array %.0f times (%s): its last dimension is short; reshape or "+
			"transpose it so that a long one comes last (multiples of 128)", times, what)
		if j.cause == CauseBatch && j.detail == "" {
			j.detail, j.confidence, j.reason = "padded", 0.6, ""
		}
	}
	if m := reservable.FindStringSubmatch(c.Text); m != nil && c.Free != nil {
		j = j.also("of the %s that were free only %s could be had in one piece", *c.Free, m[1])
	}
	if c.Over != nil && j.detail != "overflow" {
		return j.also("the message's figures contradict each other: more is said to be allocated than the card " +
			"has, so they cannot be added up")
	}
	return j
}
