package diagnose

import (
	"fmt"
	"slices"
	"strings"

	"memroom/event"
	"memroom/trace"
)

// doubt is something in a log that contradicts a claim.
type doubt struct {
	is   func(*trace.Crash, *trace.Hints, judged) bool
	says func(*trace.Crash, *trace.Hints) string
}

// claim is the rule under which an explanation may name a cause.
type claim struct {
	needs  string  // the evidence that the step which makes the claim must have seen
	unless []doubt // any of these takes it back
}

// The rules by situation. A claim without a situation has the rule of its cause, see causeClaims.
// Every situation has one; TestEveryClaimHasARule holds them to it.
var claims = map[string]claim{
	// a training step
	"forward":  {"frames of a forward pass", training},
	"backward": {"frames of a backward pass", training},
	"logits":   {"frames of the loss over a vocabulary, 64 MiB or more asked for", training},
	"attention": {"frames of attention that writes its scores, 64 MiB or more asked for",
		append([]doubt{fewKeys}, training...)},
	"pairs":         {"frames that compare all with all", training},
	"longest_batch": {"steps that passed, then a request of an activation's size", grows},
	"one_sample":    {"a shape whose first dimension is one", grows},
	"oversized":     {"a request larger than the card", nil},
	"host_tensor":   {"a request for one tensor of 64 GiB or more", nil},
	"bad_size":      {"a request that no machine could serve", nil},
	"full":          {"a small refusal after steps, or one without figures at the start", nil},
	"late":          {"steps that passed", nil},
	"open":          {"nothing: it claims no cause", nil},
	"optimizer_step": {"frames or nodes of an optimizer",
		[]doubt{deeper, statesExist, epochPassed, growthSeen}},
	"images": {"a program that generates images", nil},

	// evaluation and generation
	"eval_outputs": {"frames that join outputs, a list that takes them, or a rise in evaluation",
		[]doubt{littleAsked}},
	"eval_tensor":     {"frames of an evaluation, and a request of half the card", nil},
	"eval_results":    {"frames that collect or pickle, inside an evaluation", nil},
	"pickled":         {"frames that pickle", nil},
	"engine_weights":  {"an engine's own words about its buffer", nil},
	"engine_compute":  {"an engine's own words about its buffer", nil},
	"engine_load":     {"frames of an engine that loads or creates weights", nil},
	"request_batch":   {"a server's words, and a shape that tells the batch", nil},
	"serving_request": {"a server's own words, and nothing of training", nil},
	"eval_batch":      {"frames, a progress bar or words of an evaluation", []doubt{littleAsked}},
	"metric_kept":     {"frames of a metric object, and words of a rise", nil},
	"eval_late":       {"a progress bar far into an evaluation", nil},
	"generation":      {"frames of generation", nil},
	"kv_cache":        {"frames or words of an engine's cache", nil},
	"serving_warmup": {"frames or words of an engine's warm-up",
		nil},
	"serving_start": {"an engine's own figures of the card", nil},
	"dispatched":    {"the loader's own words", nil},
	"predict_loop":  {"a node of predict, and words of a loop", nil},

	// weights on their way
	"load":            {"frames or nodes that load or create weights", []doubt{deeper, modelFitted}},
	"load_to_card":    {"frames that restore a saved state", []doubt{deeper}},
	"load_host":       {"frames that restore a saved state, and host memory that ran out", nil},
	"load_beside":     {"frames that restore a saved state, and a card that others hold", nil},
	"checkpoint_save": {"frames, words or a step of saving", []doubt{deeper}},
	"save_copy":       {"a run that saw the copy being made", nil},
	"full_state_dict": {"frames or words that gather a state dict", []doubt{deeper}},
	"joining":         {"words of a tool that joins shards", nil},
	"merge":           {"frames or words of merging adapters", []doubt{deeper}},
	"ranks_load":      {"words of loading, and several ranks", nil},
	"resume_host":     {"words of a checkpoint, and no step", nil},
	"resumed":         {"words of a checkpoint, and a small request", grows},
	"offload_host":    {"a setting that offloads", nil},
	"not_sharded":     {"a setting that shards, and words that memory stays", nil},

	// other holders of the card
	"context": {"frames that open a context, and nothing on the card yet",
		[]doubt{deeper, stepsMade, holdsMuch}},
	"contexts":       {"several small processes on the card", nil},
	"ranks_on_card":  {"a rank on the card of another", nil},
	"first_card":     {"frames of DataParallel's gathering", nil},
	"full_before":    {"a small refusal at the start", []doubt{stepsMade, holdsMuch}},
	"host_neighbour": {"a table of processes with another program in it", nil},
	"trial_left":     {"a card that others hold, and trials of Ray", nil},
	"handle":         {"the refusal of a library's handle, in a forward pass", nil},
	"library_start":  {"the refusal of a library's handle", []doubt{stepsMade}},
	"cells":          {"a notebook with much on the card before", nil},

	// limits and settings
	"small_device":  {"the message's own figure of the device", nil},
	"cuda_graphs":   {"the message's figure of private pools", nil},
	"pinned":        {"frames that lock host memory", nil},
	"wsl":           {"WSL, and a message without figures", nil},
	"own_cap":       {"the message's own cap, with more free than asked", nil},
	"refused":       {"the message's own figures: more free than asked", nil},
	"page_file":     {"Windows' own words", nil},
	"mps_elsewhere": {"the message's own figures", nil},
	"one_piece":     {"the message's own figures", nil},
	"board":         {"the words of a board with one memory", nil},
	"heap":          {"the words of a heap with its own limit", nil},
	"workspace":     {"TensorRT's words", nil},
	"nccl":          {"NCCL's words", nil},
	"shm_map":       {"a mapping that was refused", nil},
	"mappings":      {"a mapping of a file that was refused, or a table that shows room", nil},
	"elsewhere":     {"the message's own figures of the process and of PyTorch", nil},

	// data in host memory
	"workers":        {"a worker that was killed, or frames of the loader", nil},
	"pool_workers":   {"a pool that lost a worker", nil},
	"spawn_copy":     {"frames of spawning", nil},
	"fork":           {"frames of forking", nil},
	"retraced":       {"a run that counted the traces of a function", nil},
	"worker_cache":   {"a run that saw the dataset in a worker grow", nil},
	"ranks_read":     {"a run whose ranks read the same file", nil},
	"map_writer":     {"frames or words of map (datasets)", nil},
	"shuffle_buffer": {"tf.data's words about its buffer", nil},
	"ranks_data":     {"several ranks that name the same data", nil},
	"data_on_card":   {"a line or tensor that holds a whole array", []doubt{stepsMade}},
	"not_copied":     {"TensorFlow's words about a copy", nil},
	"dask_worker":    {"Dask's own words", nil},
	"tree_data":      {"words of boosted trees or tables", nil},
	"table_share":    {"the message's own figures of what it takes and what is free", nil},
	"object_store":   {"Ray's own words", nil},
	"ray_data":       {"Ray Data's words, and a store over its limit", nil},
	"trial_packing":  {"Ray's table of processes", nil},

	// what grows
	"growth_host":       {"figures of memory that rise", nil},
	"growth_seen":       {"figures of memory that rise", nil},
	"trials_in_process": {"two trials or folds of one process", nil},
	"models_in_loop":    {"a node's name that counts models", nil},
	"limit":             {"nothing: it claims no cause", nil},
}

// causeClaims are the rules of claims that name no situation.
var causeClaims = map[Cause]claim{
	CauseBatch: {"steps that passed, a large request, or a batch that is named",
		append([]doubt{serves, littleAsked}, training...)},
	CauseModel:         {"words or frames of weights", []doubt{modelFitted}},
	CauseFragmentation: {"more idle in the pool than was asked for", []doubt{expands}},
	CauseLeak:          {"figures or words of a rise", nil},
	CauseNeighbour:     {"memory of the card that this program does not hold", []doubt{ownProcess}},
	CauseHostData:      {"a refused array, or words of data", []doubt{loadsWeights}},
	CauseShm:           {"the words of a full /dev/shm", nil},
	CauseSetting:       {"the words of a limit", nil},
	CauseBug:           {"a request that no machine could serve", nil},
}

// What speaks against the activations of one batch, and against one long batch.
var (
	grows    = []doubt{epochPassed, growthSeen}
	training = append([]doubt{onlySample}, grows...)
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
	}, fixed("the batch is one sample already, and the request is small: what the model itself needs, or " +
		"this sample")}
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
		return c.Steps >= lateSteps
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

// hostWeights are frames that read weights into host memory.
var hostWeights = stage{names: []string{"from_pretrained", "load_state_dict", "load_checkpoint",
	"_load_pretrained_model", "load_weights", "load_model", "_load_state_dict_into_model",
	"load_pretrained"}, files: []string{"model_loader", "modeling_utils.py"},
	code: []string{"from_pretrained("}}

// passes are functions that only a forward or backward pass runs.
var passes = []string{"forward", "backward", "_engine_run_backward", "training_step",
	"scaled_dot_product_attention", "conv2d", "cross_entropy"}

func passIn(frames []event.Frame) bool {
	return slices.ContainsFunc(frames, func(f event.Frame) bool {
		return slices.Contains(passes, f.Name)
	})
}

// ruleOf gives the rule of a claim.
func ruleOf(j judged) claim {
	if rule, ok := claims[j.detail]; ok && j.detail != "" {
		return rule
	}
	return causeClaims[j.cause]
}

// contradicted says what in the log takes a claim back; empty where nothing does.
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
