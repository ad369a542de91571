package diagnose

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"memroom/event"
	"memroom/remedy"
	"memroom/trace"
)

// judged is a cause with what speaks for it.
type judged struct {
	cause      Cause
	detail     string
	confidence float64
	evidence   []string
}

func because(cause Cause, detail string, confidence float64, format string, args ...any) judged {
	return judged{cause, detail, confidence, []string{fmt.Sprintf(format, args...)}}
}

// judge finds the likeliest cause. Figures speak before tracebacks, tracebacks before what the
// poster of a log says, and that before what is usual for such a message.
func judge(c *trace.Crash, h *trace.Hints) judged {
	steps := []func(*trace.Crash, *trace.Hints) (judged, bool){
		byWall, byNeighbour, byFragments, byData, byTraceback, byPhase, byWords,
	}
	for _, step := range steps {
		if j, ok := step(c, h); ok {
			return j
		}
	}
	return byCustom(c)
}

// byWall knows the causes that follow from the wall itself.
func byWall(c *trace.Crash, h *trace.Hints) (judged, bool) {
	switch {
	case c.Where == event.WhereShm:
		return because(CauseShm, "", 0.95,
			"shared memory (/dev/shm) is full: batches travel through it"), true
	case c.Kind == "serving_cache" && len(c.Neighbours) > 0:
		return because(CauseNeighbour, "", 0.8,
			"%s of the card were taken before this program started", neighbourBytes(c)), true
	case c.Kind == "serving_cache":
		return because(CauseModel, "kv_cache", 0.7,
			"the weights leave too little of the card for the cache of keys and values"), true
	case contextRefused.MatchString(c.Text):
		return because(CauseNeighbour, "context", 0.65,
			"not even a context fitted on the card: somebody else holds it"), true
	case c.Kind == "ggml", c.Kind == "ollama":
		return because(CauseModel, "", 0.7, "a buffer for weights or context does not fit"), true
	}
	return judged{}, false
}

// contextRefused are calls that fail before a program has memory of its own on a card.
var contextRefused = regexp.MustCompile(`cuDevicePrimaryCtxRetain|cuCtxCreate|cudaSetDevice|implicit initialization on GPU`)

// neighbourShare is the part of a card that others must hold to be the cause, unlistedShare the
// same for memory that no process is named for: a context, a display and libraries explain up to
// two gigabytes.
const (
	neighbourShare = 0.15
	unlistedShare  = 0.4
	unlistedFloor  = 2 * event.GiB
)

func byNeighbour(c *trace.Crash, _ *trace.Hints) (judged, bool) {
	if c.Where != event.WhereGPU || c.Capacity == nil || c.Framework == "ray" {
		return judged{}, false
	}
	others := neighbourBytes(c)
	if float64(others) >= neighbourShare*float64(*c.Capacity) && c.Requested != nil &&
		others > *c.Requested {
		return because(CauseNeighbour, "", 0.85, "%d other process(es) hold %s of the card's %s",
			len(c.Neighbours), others, *c.Capacity), true
	}
	if rest := unlisted(c); rest >= unlistedFloor &&
		float64(rest) >= unlistedShare*float64(*c.Capacity) && len(c.Neighbours) == 0 {
		return because(CauseNeighbour, "", 0.75,
			"%s of the card's %s belong neither to this program nor to what is free", rest,
			*c.Capacity), true
	} else if rest >= unlistedFloor && float64(rest) >= unlistedShare*float64(*c.Capacity) {
		return because(CauseNeighbour, "", 0.75,
			"%s of the card's %s are held by processes that the message does not list", rest,
			*c.Capacity), true
	}
	return judged{}, false
}

// byFragments compares what lies idle in the pool with what was asked for. Two gates: four times
// the request and not just the crumbs that every pool has, or half as much again when the idle part
// is a tenth of the card.
func byFragments(c *trace.Crash, h *trace.Hints) (judged, bool) {
	if c.Idle == nil || c.Requested == nil || c.Capacity == nil || *c.Requested <= 0 ||
		*c.Capacity <= 0 {
		return judged{}, false
	}
	times, share := float64(*c.Idle)/float64(*c.Requested), float64(*c.Idle)/float64(*c.Capacity)
	sure := times >= 4 && (share >= 0.05 || share >= 0.02 && *c.Idle >= 768*event.MiB)
	if !sure && (times < 1.5 || share < 0.1) {
		return judged{}, false
	}
	if !sure && (h.Batch >= 64 || slices.Contains(h.Says, "batch")) {
		return judged{}, false
	}
	j := because(CauseFragmentation, "", 0.8,
		"%s lie idle in the pool while %s were refused: %.0f %% of the card in pieces that do not fit", *c.Idle, *c.Requested, 100*share)
	if c.Allocated != nil && float64(*c.Allocated) > 0.93*float64(*c.Capacity) {
		j.confidence = 0.6
		j.evidence = append(j.evidence,
			fmt.Sprintf("the card is nearly full as well: %s of %s are live", *c.Allocated,
				*c.Capacity))
	}
	return j, true
}

// wholeData is the share of a pool that one block must have to be a data set rather than an
// activation.
const wholeData = 0.2

func byData(c *trace.Crash, h *trace.Hints) (judged, bool) {
	switch c.Kind {
	case "tf_tensor", "tf_allocator":
		if h.LargestChunk > 0 && c.Capacity != nil && c.Requested != nil &&
			float64(h.LargestChunk) >= wholeData*float64(*c.Capacity) &&
			h.LargestChunk >= 8**c.Requested {
			return because(CauseHostData, "", 0.6,
				"a single block of %s lies on the card: a whole data set rather than a batch",
				h.LargestChunk), true
		}
	case "tf_library":
		if strings.Contains(c.Text, "Dst tensor") {
			return because(CauseHostData, "", 0.6,
				"a large array did not fit when it was copied to the card"), true
		}
	case "array_memory", "memory_error", "r_vector", "notebook_ram", "dask":
		j := because(CauseHostData, "", 0.7,
			"the program asked for more host memory than there is, in one array or data frame")
		if c.Requested != nil && *c.Requested < 64*event.MiB {
			j.evidence = append(j.evidence,
				fmt.Sprintf("only %s were refused: the memory was full already", *c.Requested))
		}
		return j, true
	case "torch_worker":
		return because(CauseHostData, "workers", 0.6,
			"a DataLoader worker was killed: workers hold copies of the data and of prefetched batches"), true
	}
	return judged{}, false
}

// moment is a stage of a program that a traceback shows.
type moment struct {
	names  []string // of functions
	files  []string // parts of paths
	cause  Cause
	detail string
	sure   float64
	says   string
}

// moments are looked for in this order in all frames of a traceback.
var moments = []moment{
	{[]string{"set_device", "_lazy_init", "_cuda_init", "init_process_group"}, nil, CauseNeighbour,
		"context", 0.6, "before this program had anything on the card: its context did not fit"},
	{[]string{"save_checkpoint", "save_model", "_save_checkpoint", "save_pretrained", "_save",
		"full_state_dict", "consolidate"}, []string{"serialization.py"}, CauseModel,
		"checkpoint_save", 0.7, "while a checkpoint was saved"},
	{[]string{"from_pretrained", "load_state_dict", "load_checkpoint", "_load_pretrained_model",
		"load_model", "load_weights", "get_sharded", "_load_state_dict_into_model",
		"load_pretrained"}, []string{"/utils/weights.py", "model_loader"}, CauseModel, "load", 0.75,
		"while weights were loaded"},
	{[]string{"_init_group", "_multi_tensor_adamw", "_multi_tensor_adam", "adamw", "_fused_adam"},
		[]string{"torch/optim", "/optim/", "zero/stage", "bitsandbytes/optim"}, CauseModel,
		"optimizer_step", 0.7, "in the optimizer's step"},
	{[]string{"evaluate", "evaluation_loop", "prediction_step", "validation_step", "validate",
		"eval_epoch", "predict", "test_step", "evaluation_step", "run_evaluation", "val_epoch"},
		nil, CauseBatch, "eval_grad", 0.55, "during evaluation or prediction"},
	{[]string{"cross_entropy", "log_softmax", "nll_loss", "ForCausalLMLoss", "fixed_cross_entropy"},
		[]string{"loss_utils.py"}, CauseBatch, "logits", 0.65, "in the loss over the vocabulary"},
	{[]string{"backward", "_engine_run_backward", "_backward"}, []string{"torch/autograd"},
		CauseBatch, "backward", 0.65, "in the backward pass"},
	{[]string{"cuda", "to", "_apply", "convert", "half"}, []string{"accelerate/big_modeling"},
		CauseModel, "load", 0.6, "while the model was moved to the card"},
	{[]string{"forward", "_call_impl", "training_step", "__call__", "linear", "conv2d", "matmul",
		"scaled_dot_product_attention", "train_step", "compute_loss"}, []string{"modeling_"},
		CauseBatch, "forward", 0.6, "in the forward pass"},
}

func byTraceback(c *trace.Crash, h *trace.Hints) (judged, bool) {
	if len(c.Frames) == 0 || c.Where == event.WhereShm {
		return judged{}, false
	}
	if c.Kind == "torch_cpu" && c.Requested != nil && *c.Requested < 64*event.MiB {
		return because(CauseUnknown, "limit", 0.4,
			"only %s were refused: a limit of the process or a full machine, not a large tensor",
			*c.Requested), true
	}
	for _, m := range moments {
		if f, ok := m.in(c.Frames); ok {
			return because(m.cause, m.detail, m.sure, "%s (%s in %s)", m.says, f.Name, f.File), true
		}
	}
	return judged{}, false
}

func (m *moment) in(frames []event.Frame) (event.Frame, bool) {
	for _, f := range frames {
		if slices.Contains(m.names, f.Name) || slices.ContainsFunc(m.files,
			func(part string) bool { return strings.Contains(f.File, part) }) {
			return f, true
		}
	}
	return event.Frame{}, false
}

// byPhase uses what the log announced last where there is no traceback, as after a kill.
func byPhase(c *trace.Crash, h *trace.Hints) (judged, bool) {
	host := c.Where == event.WhereHost || c.Where == event.WhereCgroup
	switch {
	case h.Phase == "load" && (host || c.Where == event.WhereGPU):
		return because(CauseModel, "load", 0.55,
			"the last thing the log announced is the loading of weights"), true
	case h.Phase == "save" && host:
		return because(CauseModel, "checkpoint_save", 0.5,
			"the last thing the log announced is the saving of a checkpoint"), true
	}
	return judged{}, false
}

func byWords(c *trace.Crash, h *trace.Hints) (judged, bool) {
	if c.Kind == "paddle" { // its own advice names every cause
		return judged{}, false
	}
	for _, cause := range []Cause{CauseLeak, CauseBatch, CauseModel, CauseHostData,
		CauseNeighbour} {
		if !slices.Contains(h.Says, string(cause)) {
			continue
		}
		device := c.Where == event.WhereGPU || c.Where == event.WhereMPS
		if cause == CauseNeighbour && !device || cause == CauseHostData && device ||
			cause == CauseBatch && !device && c.Framework != "pytorch" &&
				c.Framework != "tensorflow" {
			continue
		}
		return because(cause, "", 0.5, "the text around the message speaks of it"), true
	}
	return judged{}, false
}

// byCustom is the usual cause of such a message when nothing else is known.
func byCustom(c *trace.Crash) judged {
	switch c.Where {
	case event.WhereGPU, event.WhereMPS:
		return because(CauseBatch, "", 0.4,
			"nothing in the text settles the cause; what a pass keeps grows with the batch, which is the usual one")
	case event.WhereCgroup:
		return because(CauseUnknown, "limit", 0.3,
			"the limit of the job was reached; the text does not say by what")
	}
	if c.Framework == "ray" {
		return because(CauseUnknown, "trial_packing", 0.4,
			"the tasks on the node together need more than it has; the text does not say which one is too large")
	}
	if c.Kind == "torch_cpu" && c.Requested != nil && *c.Requested >= event.GiB {
		return because(CauseHostData, "", 0.45, "one tensor of %s in host memory", *c.Requested)
	}
	return because(CauseUnknown, "", 0.3, "the text does not say what held the memory")
}

// jobOf says what remedies need to know.
func jobOf(c *trace.Crash, h *trace.Hints) remedy.Job {
	job := remedy.Job{Where: c.Where, Card: c.Card, Torch: h.Torch,
		Trainer: remedy.Trainer(h.Trainer), Slurm: c.Framework == "slurm",
		Kube: c.Framework == "kubernetes", On: map[remedy.ID]string{}}
	if c.Capacity != nil {
		job.Limit = *c.Capacity
	}
	switch c.Framework {
	case "pytorch", "tensorflow", "jax":
		job.Framework = remedy.Framework(c.Framework)
	case "ray":
		job.Trainer = remedy.RayTune
		job.Framework = frameworkSeen(h)
	case "python":
		job.Framework = remedy.Python
		if seen := frameworkSeen(h); seen != "" {
			job.Framework = seen
		}
	default:
		job.Framework = frameworkSeen(h)
	}
	for id, evidence := range h.Settings {
		job.On[remedy.ID(id)] = evidence
	}
	for id, conf := range confOn(h.AllocConf) {
		job.On[id] = conf
	}
	if h.Batch == 1 {
		job.On[remedy.MicroBatch] = "the batch is one already"
	}
	if h.Batch > 1 {
		job.Batch, job.Accumulate = h.Batch, h.Accumulate
	}
	job.Inference = h.Trainer == "vllm" || c.Kind == "serving_cache" || c.Kind == "ggml" ||
		c.Kind == "ollama" || generating(c.Frames)
	return job
}

func frameworkSeen(h *trace.Hints) remedy.Framework {
	for _, f := range []remedy.Framework{remedy.PyTorch, remedy.TensorFlow, remedy.JAX} {
		if h.Frameworks[string(f)] {
			return f
		}
	}
	return ""
}

// generating reports whether a traceback shows generation rather than training.
func generating(frames []event.Frame) bool {
	return slices.ContainsFunc(frames, func(f event.Frame) bool {
		return f.Name == "generate" || f.Name == "inference" ||
			strings.Contains(f.File, "diffusers/pipelines") || strings.Contains(f.File, "vllm/")
	})
}
