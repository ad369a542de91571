package explain

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"memroom/event"
	"memroom/lazyregexp"
	"memroom/trace"
)

// doubt is something in a log that contradicts a claim.
type doubt struct {
	is   func(*trace.Crash, *trace.Hints, judged) bool
	says func(*trace.Crash, *trace.Hints) string
}

// claim is the row under which a verdict may print a clause. Where it is not met, the clause of the
// next claim that is met stands instead, and in the end what ran out, what is known, and the one
// command that would find out.
type claim struct {
	needs  string   // the evidence, in words
	shown  []source // where it may stand: one of these; none: the row claims nothing
	unless []doubt  // any of these takes it back
	run    bool     // only a watched run shows it
}

// The rows by situation. A claim without a situation has the row of its cause, see causeClaims.
// Every situation has one, and every row is held to its sources: see explain_evidence_test.go.
var claims = map[string]claim{
	// a training step
	"forward": rule("frames of a forward pass", append([]doubt{feedsData}, training...),
		stageOf("forward", "logits", "attention")),
	"backward": rule("frames of a backward pass", training, stageOf("backward")),
	"logits": rule("frames of the loss over a vocabulary, 64 MiB or more asked for", grows,
		stageOf("logits")),
	"attention": rule("frames of attention that writes its scores, 64 MiB or more asked for",
		append([]doubt{fewKeys}, training...), stageOf("attention")),
	"pairs": rule("frames that compare all with all", training, stageOf("pairs")),
	"longest_batch": rule("steps that passed, then a request of an activation's size", grows,
		together(passed(lateSteps), largeAsk), worded(recurrent)),
	"one_sample":  rule("a shape whose first dimension is one", grows, worded(leadingShape)),
	"one_tensor":  rule("nothing: its case has matched it", nil),
	"other_card":  rule("nothing: its case has matched it", nil),
	"idle_card":   rule("nothing: its case has matched it", nil),
	"kept_arrays": rule("nothing: its case has matched it", nil),
	"oversized":   rule("a request larger than the card", nil, figure(requested, capacity)),
	"host_tensor": rule("a request for one tensor of 64 GiB or more", nil, figure(requested)),
	"prefilled": rule("frames of a buffer that is made in its full size", nil, inStage(&buffering),
		sign(trace.SignReplay)),
	"far_beyond": rule("a request many times the card", nil, figure(requested)),
	"bad_size":   rule("a request that no machine could serve", nil, figure(requested)),
	"full":       rule("nothing: it claims no cause", nil),
	"late":       rule("nothing: it claims no cause", nil),
	"vain":       rule("nothing: it claims no cause", nil),
	"points":     rule("words of points that are trained", nil, sign(trace.SignPoints)),
	"padded":     rule("XLA's own words about a layout", nil, worded(padded)),
	"gathered":   rule("nothing: it claims no cause", nil),
	"open":       rule("nothing: it claims no cause", nil),
	"told":       rule("nothing: it claims no cause", nil),
	"rises":      rule("words of a rise", nil, namedCause(CauseLeak), worded(rises)),
	"optimizer_step": rule("frames or nodes of an optimizer",
		[]doubt{deeper, statesExist, epochPassed, growthSeen},
		stageOf("optimizer_step"), worded(optimizerNode)),
	"images": rule("a program that generates images", []doubt{learnsHere}, sign(trace.SignImages)),

	// evaluation and generation
	"eval_outputs": rule("frames that join outputs, a list that takes them, or a rise in evaluation",
		[]doubt{littleAsked}, together(evaluates, keepsOutputs)),
	"eval_phase": rule("a progress bar or words of an evaluation, as the last thing announced", nil,
		evaluates),
	"eval_sample": rule("frames of an evaluation, and of one image or a first dimension of one", nil,
		together(evaluates, worded(leadingShape)), together(evaluates, inStage(&wholeImage)),
		together(evaluates, inStage(&oneImage))),
	"eval_host": rule("frames of an evaluation, and a large request in host memory", nil,
		together(evaluates, figure(requested))),
	"eval_each": rule("frames of an evaluation, and a line that hands over one sample", nil,
		together(evaluates, oneByOne)),
	"logged_samples": rule("frames that log images", nil, stageOf("logged_samples")),
	"eval_window":    rule("frames that put results of windows together", nil, inStage(&windowing)),
	"objects":        rule("frames that exchange objects between ranks", nil, inStage(&exchanging)),
	"engine_wakes": rule("frames of an engine that wakes up", nil,
		together(stageOf("kv_cache"), inStage(&waking))),
	"eval_tensor": rule("frames of an evaluation, and a request of half the card", nil,
		together(evaluates, figure(requested, capacity))),
	"eval_results": rule("frames that collect or pickle, inside an evaluation", nil, inStage(&pickling)),
	"pickled":      rule("frames that pickle", nil, inStage(&pickling)),
	"engine_weights": rule("an engine's own words about its buffer", nil,
		kind("ggml", "ollama")),
	"engine_compute": rule("an engine's own words about its buffer", nil, kind("ggml", "ollama")),
	"engine_load": rule("frames of an engine that loads or creates weights", nil,
		inStage(&engineLoads)),
	"request_batch": rule("a server's words, and a shape that tells the batch", nil,
		together(sign(trace.SignServing), worded(leadingShape))),
	"serving_request": rule("a server's own words, and nothing of training", []doubt{learnsHere},
		sign(trace.SignServing)),
	"eval_batch": rule("frames, a progress bar or words of an evaluation", []doubt{littleAsked},
		evaluates),
	"metric_kept": rule("frames of a metric object, and words of a rise", nil,
		together(inStage(&metricState), namedCause(CauseLeak))),
	"eval_late":  rule("a progress bar far into an evaluation", nil, sign(trace.SignEvalLast)),
	"generation": rule("frames of generation", nil, inStage(&generation)),
	"kv_cache": rule("frames or words of an engine's cache", nil, stageOf("kv_cache"),
		kind("serving_cache")),
	"serving_warmup": rule("frames or words of an engine's warm-up", nil, stageOf("serving_warmup"),
		worded(engineWarmup), sign(trace.SignCapturing)),
	"serving_start": rule("an engine's own figures of the card", nil, kind("serving_cache")),
	"dispatched":    rule("the loader's own words", nil, kind("dispatched")),
	"predict_loop": rule("a node of predict, and words of a loop", nil, worded(predicting),
		sign(trace.SignPredicts)),

	// weights on their way
	"load": rule("frames, nodes or words that load or create weights", []doubt{deeper, modelFitted},
		stageOf("load"), inStage(&movingModel), inStage(&copiesWeights), worded(weightNode),
		phase("load"), sign(trace.SignLoadSaid)),
	"load_to_card": rule("frames that restore a saved state", []doubt{deeper},
		stageOf("load_to_card", "load")),
	"load_host": rule("frames that restore a saved state, and host memory that ran out", nil,
		together(stageOf("load_to_card"), hostKill)),
	"load_beside": rule("frames that restore a saved state, and a card that others hold", nil,
		stageOf("load_to_card")),
	"checkpoint_save": rule("frames, words or a step of saving", []doubt{deeper},
		stageOf("checkpoint_save"), stageOf("full_state_dict"), sign(trace.SignSaveSteps), phase("save")),
	"save_copy": watched("a run that saw the copy being made"),
	"gathered_all": rule("frames that gather the parameters of a whole model", nil,
		stageOf("gathered_all")),
	"full_state_dict": rule("frames or words that gather a state dict", []doubt{deeper},
		stageOf("full_state_dict")),
	"joining": rule("words of a tool that joins shards", nil, sign(trace.SignJoining)),
	"merge": rule("frames or words of merging adapters", []doubt{deeper}, stageOf("merge"),
		sign(trace.SignMerging)),
	"ranks_load": rule("words of loading, and several ranks", nil,
		together(phase("load"), severalRanks)),
	"resume_host": rule("words of a checkpoint, and no step", nil, sign(trace.SignResumed)),
	"resumed":     rule("words of a checkpoint, and a small request", grows, sign(trace.SignResumed)),
	"offload_host": rule("a setting that offloads, or states that were being made in host memory",
		nil, sign(trace.SignOffload), together(sign(trace.SignStates), hostKill)),
	"not_sharded": rule("a setting that shards, and words that memory stays", nil,
		together(sign(trace.SignUnsharded), sign(trace.SignZeRO3))),

	// other holders of the card
	"context": rule("frames or a call that opens a context, and nothing on the card yet",
		[]doubt{deeper, stepsMade, holdsMuch}, stageOf("context"), worded(contextRefused),
		worded(contextKept)),
	"contexts":      rule("several small processes on the card", nil, listed),
	"ranks_on_card": rule("a rank on the card of another", nil, listed),
	"first_card":    rule("frames of DataParallel's gathering", nil, stageOf("first_card")),
	"full_before": rule("a small refusal at the start, or a table of a full card",
		[]doubt{stepsMade, holdsMuch}, figure(requested), sign(trace.SignTaken, trace.SignSmallPool)),
	"host_neighbour": rule("a table of processes with another program in it", nil, listed),
	"trials_share": rule("a card that others hold, and trials of Ray that get parts of it", nil,
		together(sign(trace.SignRayTune), sign(trace.SignShares)), together(sign(trace.SignRayTune),
			listed)),
	"trial_left": rule("a card that others hold, and trials of Ray", nil, kind("ray_gpu_wait"),
		sign(trace.SignRayTune)),
	"handle": rule("the refusal of a library's handle, in a forward pass", nil,
		kind("library_status")),
	"library_start": rule("the refusal of a library's handle", []doubt{stepsMade},
		kind("library_status", "tf_library")),
	"placed_array": rule("nothing: it claims no cause", nil),
	"cells": rule("a notebook with much on the card before", nil,
		together(sign(trace.SignNotebook), figure(allocated))),

	// limits and settings
	"small_device": rule("the message's own figure of the device", nil, figure(capacity)),
	"cuda_graphs":  rule("the message's figure of private pools", nil, figure(private, allocated)),
	"pinned": rule("frames or words of host memory that is locked", nil, inStage(&locking),
		worded(lockedHost)),
	"wsl": rule("WSL, and a message without figures", nil, sign(trace.SignWSL)),
	"own_cap": rule("the message's own cap, with more free than asked", nil,
		figure(capacity, free, requested), kind("cupy")),
	"refused": rule("the message's own figures: more free than asked", nil,
		figure(requested, free, capacity), figure(allocated, elsewhere, capacity, requested)),
	"page_file":     rule("Windows' own words", nil, kind("page_file")),
	"mps_elsewhere": rule("the message's own figures", nil, figure(capacity, elsewhere, allocated)),
	"one_piece":     rule("the message's own figures", nil, figure(requested, capacity, allocated)),
	"board":         rule("the words of a board with one memory", nil, kind("board")),
	"heap":          rule("the words of a heap with its own limit", nil, kind("heap")),
	"workspace":     rule("TensorRT's words", nil, kind("tensorrt")),
	"nccl":          rule("NCCL's words", nil, worded(ncclWord)),
	"map_count":     rule("a count of mappings near the kernel's limit", nil, worded(sharedPiece)),
	"overflow": rule("the message's own figures: more allocated than the card has", nil,
		figure(over)),
	"shm_map": rule("a mapping that was refused", nil, worded(notMapped)),
	"mappings": rule("a mapping that was refused, or a table that shows room", nil,
		kind("torch_shm", "errno_memory", "memory_error", "bad_alloc", "array_memory", "torch_cpu")),
	"elsewhere": rule("the message's own figures of the process and of PyTorch", nil,
		figure(inProcess, allocated, capacity)),

	// data in host memory
	"workers": rule("a worker that was killed, or frames of the loader", []doubt{oneWorker},
		kind("torch_worker"), stageOf("workers"), sign(trace.SignWorkerKill)),
	"pool_workers": rule("a pool that lost a worker", nil, kind("pool_worker"),
		sign(trace.SignPool)),
	"spawn_copy": rule("frames of spawning", nil, stageOf("spawn_copy")),
	"fork": rule("frames of forking, or of a loop that begins", nil, stageOf("fork"),
		kind("errno_memory")),
	"retraced":     watched("a run that counted the traces of a function"),
	"worker_cache": watched("a run that saw the dataset in a worker grow"),
	"ranks_read":   watched("a run whose ranks read the same file"),
	"map_writer": rule("frames or words of map (datasets)", nil, stageOf("map_writer"),
		sign(trace.SignDatasets)),
	"shuffle_buffer": rule("tf.data's words about its buffer", nil, sign(trace.SignShuffle)),
	"ranks_data":     rule("several ranks that name the same data", nil, sign(trace.SignDataLoad)),
	"data_on_card": rule("a line or tensor that holds a whole array", []doubt{stepsMade},
		codeMoves, inStage(&copiesData), worded(leadingShape), largestChunk),
	"not_copied":  rule("TensorFlow's words about a copy", nil, kind("tf_library")),
	"dask_worker": rule("Dask's own words", nil, kind("dask")),
	"tree_data":   rule("words of boosted trees or tables", nil, sign(trace.SignTrees)),
	"table_share": rule("the message's own figures of what it takes and what is free", nil,
		figure(requested, free)),
	"object_store": rule("Ray's own words", nil, kind("ray_store")),
	"ray_data": rule("Ray Data's words, and a store over its limit", nil,
		sign(trace.SignRayData)),
	"trial_packing": rule("Ray's own words", nil, rayRuns),

	// what grows
	"growth_host": rule("figures of memory that rise", nil, sign(trace.SignGrowth)),
	"growth_seen": rule("figures of memory that rise", nil, sign(trace.SignGrowth)),
	"trials_in_process": rule("two trials or folds of one process", nil, sign(trace.SignTrialNo),
		together(sign(trace.SignTrials), namedCause(CauseLeak))),
	"models_in_loop": rule("a node's name that counts models or their layers", nil,
		worded(modelNumber), worded(madeInLoop), worded(manyLayers)),
	"limit": rule("nothing: it claims no cause", nil),
}

// causeClaims are the rows of claims that name no situation.
var causeClaims = map[Cause]claim{
	CauseBatch: rule("steps that passed, a large request, or a batch that is named",
		append([]doubt{serves, littleAsked, settingUp}, training...), passed(1), largeAsk, batchNamed,
		namedCause(CauseBatch), figure(requested, capacity)),
	CauseModel: rule("words or frames of weights", []doubt{modelFitted}, namedCause(CauseModel),
		kind("no_batch_left")),
	CauseFragmentation: rule("more idle in the pool than was asked for", []doubt{expands},
		figure(idle, requested, capacity), worded(saysPieces)),
	CauseLeak: rule("figures or words of a rise", nil, namedCause(CauseLeak), sign(trace.SignGrowth)),
	CauseNeighbour: rule("memory of the card that this program does not hold", []doubt{ownProcess},
		listed, notOurs, namedCause(CauseNeighbour), kind("tf_backpedal")),
	CauseHostData: rule("a refused array, or words of data", []doubt{loadsWeights},
		kind("array_memory", "memory_error", "notebook_ram", "r_vector", "torch_cpu"),
		namedCause(CauseHostData), stageOf("")),
	CauseShm:     rule("the words of a full /dev/shm", nil, sharedFull),
	CauseSetting: rule("the words of a limit", nil),
	CauseBug:     rule("a request that no machine could serve", nil, figure(requested)),
}

// What speaks against the activations of one batch, and against one long batch.
var (
	grows    = []doubt{epochPassed, growthSeen}
	training = append([]doubt{onlySample, usualFitted}, grows...)
)

func fixed(text string) func(*trace.Crash, *trace.Hints) string {
	return func(*trace.Crash, *trace.Hints) string { return text }
}

var (
	// epochPassed: every batch has fitted once. What fails later is not the usual batch.
	// A request of a tenth of the card is a batch all the same, and so is what a smaller batch cured.
	epochPassed = doubt{func(c *trace.Crash, h *trace.Hints, _ judged) bool {
		return has(c, trace.SignEpochs) && onCard(c) && !slices.Contains(h.Says, "batch") &&
			(c.Requested == nil || c.Capacity == nil || 10**c.Requested < *c.Capacity)
	}, func(c *trace.Crash, _ *trace.Hints) string {
		return fmt.Sprintf("it reached %s: all batches of an epoch had fitted before, so something grew, "+
			"the pool fell into pieces, or a batch came out larger than in the epochs before",
			c.Signs[trace.SignEpochs])
	}}
	// growthSeen: the text or its figures tell of a rise.
	growthSeen = doubt{func(c *trace.Crash, h *trace.Hints, _ judged) bool {
		return has(c, trace.SignGrowth) || slices.Contains(h.Says, string(CauseLeak)) &&
			(c.Steps == 0 || c.Steps >= lateSteps)
	}, fixed("memory is said to rise while it runs")}
	// onlySample: a batch of one cannot be made smaller, and a small request does not show that its
	// activations are what is large.
	onlySample = doubt{func(c *trace.Crash, h *trace.Hints, j judged) bool {
		return h.Batch == 1 && !large(c) && h.Seq == 0 && j.detail != "logits"
	}, func(c *trace.Crash, _ *trace.Hints) string {
		if c.Requested == nil {
			return "the batch is one sample already: what the model itself needs, or this sample"
		}
		return fmt.Sprintf("the batch is one sample already, and only %s were asked for: what the model "+
			"itself needs, or this sample", *c.Requested)
	}}
	// usualFitted: hundreds of steps fitted, and what was asked for is small: the usual batch does fit.
	usualFitted = doubt{func(c *trace.Crash, h *trace.Hints, _ judged) bool {
		return c.Steps >= 10*lateSteps && onCard(c) && c.Requested != nil && !large(c) &&
			!slices.Contains(h.Says, "batch")
	}, func(c *trace.Crash, _ *trace.Hints) string {
		return fmt.Sprintf("%s steps had passed and only %s were asked for: the usual batch fits, so something "+
			"grew, or a sample came out larger than those before", thousands(c.Steps), *c.Requested)
	}}
	// serves: a program that answers requests trains nothing; weights and its cache come first.
	serves = doubt{func(c *trace.Crash, h *trace.Hints, _ judged) bool {
		return seen(c, h, trace.SignServing) && !trains(c, h)
	}, fixed("the program serves or generates: its weights and its cache are what fills a card")}
	// fewKeys: the scores of attention are large where the request is.
	fewKeys = doubt{func(c *trace.Crash, _ *trace.Hints, _ judged) bool {
		return c.Requested != nil && *c.Requested < 64*event.MiB
	}, fixed("the request is too small for the scores of attention")}
	// deeper: a forward or backward pass runs inside of the frame that the claim is made from.
	deeper = doubt{func(c *trace.Crash, _ *trace.Hints, j judged) bool {
		return j.frame > 0 && passIn(c.Frames[:j.frame])
	}, fixed("a forward or backward pass ran inside of it")}
	// statesExist: the optimizer has made its state in the first step.
	statesExist = doubt{func(c *trace.Crash, _ *trace.Hints, _ judged) bool {
		return c.Steps >= lateSteps && !slices.ContainsFunc(c.Frames, func(f event.Frame) bool {
			return makesStates.MatchString(f.Name) // steps of another rank, or of an earlier attempt
		})
	}, func(c *trace.Crash, _ *trace.Hints) string {
		return fmt.Sprintf("in the optimizer's step, whose state existed since the first of %s steps",
			thousands(c.Steps))
	}}
	// modelFitted: training steps passed, so the model was on the card with all that it needs.
	modelFitted = doubt{func(c *trace.Crash, _ *trace.Hints, _ judged) bool {
		return c.Steps >= 2 && onCard(c)
	}, func(c *trace.Crash, _ *trace.Hints) string {
		return fmt.Sprintf("%s steps had passed: the model fits, what was loaded came on top of it",
			thousands(c.Steps))
	}}
	stepsMade = doubt{func(c *trace.Crash, _ *trace.Hints, _ judged) bool { return c.Steps >= 2 },
		func(c *trace.Crash, _ *trace.Hints) string {
			return fmt.Sprintf("%s steps had passed", thousands(c.Steps))
		}}
	// learnsHere: a model is trained, by frames or words that nothing else has.
	learnsHere = doubt{func(c *trace.Crash, h *trace.Hints, _ judged) bool { return learns(c, h) },
		fixed("a model is trained here")}
	// feedsData: a Python function of TensorFlow's input pipeline ran, not a layer.
	feedsData = doubt{func(c *trace.Crash, _ *trace.Hints, _ judged) bool {
		_, ok := pipelines.in(c)
		return ok && onHost(c)
	}, fixed("it failed in a Python function of the input pipeline, not in a layer")}
	// settingUp: a size alone is no activation while a program is still being put together.
	settingUp = doubt{func(c *trace.Crash, _ *trace.Hints, j judged) bool {
		return c.Steps == 0 && !passIn(c.Frames) && slices.ContainsFunc(
			c.Frames[:min(len(c.Frames), 3)], func(f event.Frame) bool {
				return settingName.MatchString(f.Name)
			})
	}, func(c *trace.Crash, _ *trace.Hints) string {
		return fmt.Sprintf("it failed while something was set up (%s in %s), before the first step",
			c.Frames[0].Name, c.Frames[0].File)
	}}
	// oneWorker: fewer workers than one or none cannot help.
	oneWorker = doubt{func(c *trace.Crash, h *trace.Hints, _ judged) bool {
		n, err := strconv.Atoi(first(c.Signs[trace.SignWorkers], h.Signs[trace.SignWorkers]))
		return err == nil && n <= 1
	}, fixed("the loader has one worker or none: what the data set or the program keeps fills it")}
	// littleAsked: what asked for so little is not what fills the card.
	littleAsked = doubt{func(c *trace.Crash, _ *trace.Hints, _ judged) bool { return fullAlready(c) },
		func(c *trace.Crash, _ *trace.Hints) string {
			return fmt.Sprintf("only %s were refused", *c.Requested)
		}}
	// holdsMuch: the program itself had memory on the card.
	holdsMuch = doubt{func(c *trace.Crash, _ *trace.Hints, _ judged) bool {
		return c.Allocated != nil && *c.Allocated > smallProgram && !has(c, trace.SignTaken)
	}, func(c *trace.Crash, _ *trace.Hints) string {
		return fmt.Sprintf("the program itself held %s", *c.Allocated)
	}}
	// expands: with expandable segments the pool has no pieces that do not fit.
	expands = doubt{func(c *trace.Crash, h *trace.Hints, _ judged) bool {
		return strings.Contains(strings.ToLower(h.AllocConf), "expandable_segments:true") &&
			onCard(c)
	}, fixed("expandable segments are on, which leave no pieces that do not fit: what is idle may belong " +
		"to another stream or a private pool")}
	// ownProcess: the driver counts most of the card as this process's own.
	ownProcess = doubt{func(c *trace.Crash, _ *trace.Hints, _ judged) bool {
		return c.InProcess != nil && c.Capacity != nil && neighbourBytes(c) == 0 &&
			2**c.InProcess > *c.Capacity
	}, func(c *trace.Crash, _ *trace.Hints) string {
		return fmt.Sprintf("the driver counts %s as this process's own", *c.InProcess)
	}}
	// loadsWeights: the array that was refused is part of a model.
	loadsWeights = doubt{func(c *trace.Crash, _ *trace.Hints, j judged) bool {
		_, ok := hostWeights.in(c)
		return ok && j.detail == "" && onHost(c)
	}, fixed("it failed while weights were read, not data")}
)

// makesStates are functions in which an optimizer makes its states.
var makesStates = lazyregexp.New(`^(?:_init_group|init_state|_?initialize_optimizer_states)$`)

// settingName are functions that put a program together.
var settingName = lazyregexp.New(`(?i)^(?:__init__|_{0,2}(?:setup|init|initialize|prepare|build|create|configure|` +
	`wrap|register)(?:_\w+)?|\w+_wrapper)$`)

// pipelines are frames of Python functions that an input pipeline calls.
var pipelines = stage{names: []string{"generator_py_func", "py_function", "_py_func",
	"numpy_function"},
	files: []string{"tensorflow/python/ops/script_ops", "data/ops/dataset_ops",
		"data/ops/from_generator_op"}}

// Words that are evidence by themselves.
var (
	contextKept = lazyregexp.New(`cuDevicePrimaryCtxRetain`)
	lockedHost  = lazyregexp.New(`cudaHostAlloc|cudaHostRegister|bytes on host: CUDA_ERROR_OUT_OF_MEMORY|` +
		`pinned host memory`)
	ncclWord   = lazyregexp.New(`(?i)nccl`)
	saysPieces = lazyregexp.New(`Due to fragmentation, the largest`)
)

func sharedFull(c *trace.Crash, _ *trace.Hints) bool { return c.Where == event.WhereShm }

func rayRuns(c *trace.Crash, _ *trace.Hints) bool { return c.Framework == "ray" }

// codeMoves: a line of code moves a whole array to the card.
func codeMoves(c *trace.Crash, _ *trace.Hints) bool { _, ok := byMovedData(c); return ok }

// largestChunk: one block of the pool is a large part of it.
func largestChunk(_ *trace.Crash, h *trace.Hints) bool { return h.LargestChunk > 0 }

// hostWeights are frames that read weights into host memory.
var hostWeights = stage{names: []string{"from_pretrained", "load_state_dict", "load_checkpoint",
	"_load_pretrained_model", "load_weights", "load_model", "_load_state_dict_into_model",
	"load_pretrained"}, files: []string{"model_loader", "modeling_utils.py"},
	code: []string{"from_pretrained("}}

// passes are functions that only a forward or backward pass runs.
var passes = []string{"_conv_forward", "forward", "backward", "_engine_run_backward",
	"training_step",
	"scaled_dot_product_attention", "conv2d", "cross_entropy"}

func passIn(frames []event.Frame) bool {
	return slices.ContainsFunc(frames, func(f event.Frame) bool {
		return slices.Contains(passes, f.Name)
	})
}

// ruleOf returns the rule of a claim.
func ruleOf(j judged) claim {
	if j.cased {
		return claim{}
	}
	if rule, ok := claims[j.detail]; ok && j.detail != "" {
		return rule
	}
	return causeClaims[j.cause]
}

// contradicted returns the evidence in the log that contradicts a claim, or "" if there is none.
func contradicted(j judged, c *trace.Crash, h *trace.Hints) string {
	if j.cause == CauseUnknown {
		return ""
	}
	for _, d := range ruleOf(j).unless {
		if d.is(c, h, j) {
			return d.says(c, h)
		}
	}
	return ""
}
