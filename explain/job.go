package explain

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"memroom/event"
	"memroom/lazyregexp"
	"memroom/remedy"
	"memroom/trace"
)

// jobOf returns the properties of the job that remedies depend on.
func jobOf(c *trace.Crash, h *trace.Hints) remedy.Job {
	job := remedy.Job{Where: c.Where, Card: c.Card, Torch: first(h.Torch, c.Wording()),
		Trainer: remedy.Trainer(h.Trainer), Slurm: c.Framework == "slurm",
		Kube: c.Framework == "kubernetes", On: map[remedy.ID]string{}}
	if c.Capacity != nil {
		job.Limit = *c.Capacity
	}
	if c.Where == event.WhereGPU && c.Requested != nil && c.Free != nil {
		job.Missing, job.Held, job.Idle = *c.Requested-*c.Free, c.Allocated, c.Idle
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
	job.Bare, job.Container = seen(c, h, trace.SignBare), has(c, trace.SignContainer)
	job.Dask = c.Kind == "dask"
	job.Docker, job.Yarn = has(c, trace.SignDocker), c.Kind == "yarn"
	job.Slurm = job.Slurm || onHost(c) && has(c, trace.SignSlurm)
	if c.Where == event.WhereShm && has(c, trace.SignKube) {
		job.Kube = true
	}
	if seen(c, h, trace.SignRayTune) && (h.Trainer == "" || h.Trainer == "lightning") {
		job.Trainer = remedy.RayTune
	}
	if (job.Framework == remedy.Python || job.Framework == "") &&
		(has(c, trace.SignWorkers) || has(c, trace.SignMerging) || has(c, trace.SignWorkerKill)) {
		job.Framework = remedy.PyTorch // whose arguments and adapters these are
	}
	if (job.Framework == remedy.Python || job.Framework == "") &&
		(slices.Contains(torchTrainers, h.Trainer) || seen(c, h, trace.SignPretrained)) {
		job.Framework = remedy.PyTorch
	}
	job.Notebook = has(c, trace.SignNotebook)
	if job.Trainer == remedy.Plain && seen(c, h, trace.SignEvalToHost) {
		job.Trainer = remedy.Transformers // whose argument that is
	}
	if job.Framework == remedy.JAX && slices.Contains(torchTrainers, h.Trainer) {
		job.Trainer = remedy.Plain // scripts of Flax share arguments with the Trainer, not what they do
	}
	if seen(c, h, trace.SignToolkit) && slices.Contains(below, job.Trainer) {
		job.Trainer = remedy.Plain // its settings are those of the program around it
	}
	if m := arrayType.FindStringSubmatch(c.Text); m != nil {
		job.Type = m[1]
	}
	if c.Requested != nil {
		job.Asked = *c.Requested
	}
	if c.Free != nil && c.Capacity != nil && *c.Capacity > 0 && c.Kind == "serving_cache" {
		job.Share = math.Floor(95*float64(*c.Free)/float64(*c.Capacity)) / 100
	} else if now, err := strconv.ParseFloat(first(c.Signs[trace.SignEngine],
		h.Signs[trace.SignEngine]), 64); err == nil && now > 0.3 && now <= 1 {
		job.Share = min(0.95, now+0.1)
	}
	if c.Kind != "serving_cache" && onCard(c) { // the card itself was full: the share must leave more
		job.Share = lessShare(first(c.Signs[trace.SignEngine], h.Signs[trace.SignEngine]))
	}
	job.Fits, job.Spawned = c.Fits, spawned(c)
	if fits := fittingOn(c); fits > 0 {
		job.Fits = fits
	}
	job.Pool, job.Windows, job.Images = poolOf(c), inWindows(c), drawing(c, h)
	inUse(job.On, c, h)
	job.Foreign = slices.Contains(foreignKinds, c.Kind) && frameworkSeen(h) == ""
	if slices.Contains(arrayKinds, c.Kind) {
		job.On[remedy.MicroBatch] = "an array was refused, not a batch"
	}
	for _, pair := range covers {
		if on := job.On[pair[0]]; on != "" && job.On[pair[1]] == "" {
			job.On[pair[1]] = on
		}
	}
	if h.Batch == 1 {
		job.On[remedy.MicroBatch] = "the batch is one already"
		if job.Trainer == remedy.Plain { // trainers have a batch of evaluation of its own
			job.On[remedy.EvalBatch] = "the batch is one already"
		}
	}
	if seen(c, h, trace.SignEvalOne) {
		job.On[remedy.EvalBatch] = first(c.Signs[trace.SignEvalOne], h.Signs[trace.SignEvalOne])
	}
	if vain := c.Signs[trace.SignShareVain]; vain != "" {
		job.On[remedy.ServingShare] = vain
	}
	if vain := c.Signs[trace.SignBatchVain]; vain != "" {
		job.On[remedy.MicroBatch], job.On[remedy.EvalBatch] = vain, vain
	}
	if text := c.Signs[trace.SignAdapters]; text != "" && job.On[remedy.LoRA] == "" {
		job.On[remedy.LoRA] = text
	}
	if adapters := job.On[remedy.LoRA]; adapters != "" {
		for _, id := range []remedy.ID{remedy.OptimizerOffload, remedy.Optimizer8Bit,
			remedy.OptimizerAdafactor, remedy.OptimizerPaged, remedy.OptimizerFused} {
			job.On[id] = "only adapters are trained (" + adapters + "), whose states are small"
		}
	}
	if h.Batch > 1 {
		job.Batch, job.Accumulate = h.Batch, h.Accumulate
	}
	notShown(job.On, c, h)
	job.Inference = h.Trainer == "vllm" || seen(c, h, trace.SignServing) && !trains(c, h) || c.Kind == "serving_cache" || c.Kind == "ggml" ||
		c.Kind == "ollama" || generating(c.Frames) || job.Images
	return job
}

// below are libraries on which programs are built that have settings of their own.
var below = []remedy.Trainer{remedy.Transformers, remedy.Accelerate, remedy.Lightning,
	remedy.DeepSpeed, remedy.Keras}

// covers are pairs of remedies: where the first is on, the second has nothing left to save.
var covers = [][2]remedy.ID{
	{remedy.Quantize4Bit, remedy.Quantize8Bit}, {remedy.Quantize4Bit, remedy.HalfWeights},
	{remedy.Quantize8Bit, remedy.HalfWeights}, {remedy.Quantize4Bit, remedy.MixedPrecision},
	{remedy.OptimizerAdafactor, remedy.Optimizer8Bit}, {remedy.Optimizer8Bit, remedy.OptimizerPaged},
	{remedy.MixedPrecision, remedy.HalfWeights}, {remedy.ZeRO, remedy.FSDP},
}

// arrayType is the type that NumPy names for an array that it could not make.
var arrayType = lazyregexp.New(`data type <?(\w+)`)

// lessShare is a share that leaves more of the card than the one that was in use.
func lessShare(now string) float64 {
	share, err := strconv.ParseFloat(now, 64)
	if err != nil || share <= 0.3 || share > 1 {
		return remedy.LessShare
	}
	return share - 0.08
}

// torchTrainers are libraries that train with PyTorch only.
var torchTrainers = []string{"transformers", "lightning", "accelerate", "deepspeed", "torchtune",
	"axolotl", "kohya", "vllm", "llamafactory", "ultralytics"}

// trains reports whether anything shows that a model is trained.
func trains(c *trace.Crash, h *trace.Hints) bool {
	return c.Steps > 0 || has(c, trace.SignTraining) || has(c, trace.SignEpochs) ||
		h.Phase == "train" || h.Accumulate > 0 || slices.ContainsFunc(ofTraining, func(id remedy.ID) bool {
		return h.Settings[string(id)] != ""
	})
}

// ofTraining are settings that only training has.
var ofTraining = []remedy.ID{remedy.Checkpointing, remedy.LoRA, remedy.OptimizerOffload,
	remedy.Optimizer8Bit, remedy.OptimizerAdafactor}

// notShown takes back cures of a loader where nothing shows that the program is a Python one.
func notShown(on map[remedy.ID]string, c *trace.Crash, h *trace.Hints) {
	if c.Kind == "" || !onHost(c) || len(h.Frameworks) > 0 || len(c.Frames) > 0 ||
		has(c, trace.SignPython) ||
		strings.Contains(strings.ToLower(c.Process), "python") || c.Framework == "python" ||
		c.Framework == "pytorch" || c.Framework == "ray" {
		return
	}
	for _, id := range []remedy.ID{remedy.DataLoaderWorkers, remedy.PinMemory, remedy.StreamData,
		remedy.MicroBatch} {
		on[id] = "nothing shows a training program"
	}
}

// Kinds of messages that only programs write which use none of our frameworks, and those about
// arrays and tables, which have no batches.
var (
	foreignKinds = []string{"catboost", "cupy", "onnxruntime", "tensorrt", "heap", "yarn", "r_vector",
		"paddle"}
	arrayKinds = []string{"array_memory", "memory_error", "notebook_ram", "dask"}
)

func poolOf(c *trace.Crash) string {
	switch {
	case has(c, trace.SignJoblib):
		return "joblib"
	case has(c, trace.SignNNUNet):
		return "nnunet"
	case has(c, trace.SignDatasets):
		return "datasets"
	}
	return ""
}

// spawned reports whether a traceback shows workers that are spawned rather than forked.
func spawned(c *trace.Crash) bool {
	return slices.ContainsFunc(c.Frames, func(f event.Frame) bool {
		return strings.Contains(f.File, "spawn")
	})
}

// inUse notes cures that the traceback or the surroundings show to be in use.
func inUse(on map[remedy.ID]string, c *trace.Crash, h *trace.Hints) {
	if _, ok := withoutGraph.in(c); ok {
		on[remedy.NoGrad] = "the traceback runs under no_grad"
	}
	for _, id := range byDefault[h.Trainer] {
		on[id] = h.Trainer + " has it on by itself"
	}
	switch h.Trainer {
	case "transformers", "lightning", "axolotl", "vllm":
		on[remedy.NoGrad] = h.Trainer + " evaluates without a graph"
	}
	if seen(c, h, trace.SignToolkit) || slices.ContainsFunc(c.Frames, func(f event.Frame) bool {
		return ownLoop.MatchString(f.File)
	}) {
		on[remedy.NoGrad] = "its library evaluates without a graph"
	}
	if text := first(c.Signs[trace.SignZeRO3], h.Signs[trace.SignZeRO3]); text != "" &&
		!has(c, trace.SignUnsharded) {
		on[remedy.FSDP], on[remedy.ZeRO] = text, text
	}
	if text := first(c.Signs[trace.SignOffload], h.Signs[trace.SignOffload]); text != "" {
		on[remedy.OptimizerOffload] = text
	}
	if packed := c.Signs[trace.SignPacked]; packed != "" {
		on[remedy.Quantize8Bit], on[remedy.Quantize4Bit] = packed, packed
	}
	if halfInUse(c) {
		on[remedy.MixedPrecision] = "the traceback runs in half precision"
	}
	if !seen(c, h, trace.SignWSL) && c.Kind != "" {
		on[remedy.WSLMemory] = "nothing shows that it runs under WSL"
	}
	if len(c.Frames) > 0 && strings.Contains(c.Frames[0].File, "scaled_dot") {
		on[remedy.Attention] = "the traceback runs in SDPA"
	}
}

// byDefault are remedies that trainers apply by default.
var byDefault = map[string][]remedy.ID{
	"llamafactory": {remedy.Checkpointing, remedy.NoGrad},
	"ultralytics":  {remedy.MixedPrecision, remedy.NoGrad},
}

// Files and lines of training in half precision.
var (
	halfFiles = lazyregexp.New(`(?i)(?:^|[/\\_])fp16|[/\\]amp[/\\]|grad_scaler|autocast_mode`)
	halfLines = lazyregexp.New(`\bscaled_loss\b|\bscaler\.(?:scale|step|unscale_)\(|\bautocast\(`)
)

// halfInUse reports whether a traceback shows that numbers of half width are in use.
func halfInUse(c *trace.Crash) bool {
	return slices.ContainsFunc(c.Frames, func(f event.Frame) bool {
		return halfFiles.MatchString(f.File)
	}) || slices.ContainsFunc(c.Code, halfLines.MatchString)
}

// ownLoop are files of libraries that have a loop for evaluation, without a graph.
var ownLoop = lazyregexp.New(`(?i)nnunet|/mm(?:det|seg|engine|cv|action|pose)\w*/|detectron2|ultralytics|` +
	`fairseq|/nemo/|espnet|/trl/|lightning|keras|tensorflow|sentence_transformers|monai/|timm/|torchtune`)

func frameworkSeen(h *trace.Hints) remedy.Framework {
	for _, f := range []remedy.Framework{remedy.PyTorch, remedy.TensorFlow, remedy.JAX} {
		if h.Frameworks[string(f)] {
			return f
		}
	}
	return ""
}

// drawing reports whether images are generated, by one of the programs that people use for it.
func drawing(c *trace.Crash, h *trace.Hints) bool {
	train := slices.ContainsFunc(c.Frames, func(f event.Frame) bool {
		return strings.Contains(f.Name, "train") || f.Name == "backward"
	})
	return !train && h.Trainer != "kohya" && h.Accumulate == 0 &&
		(seen(c, h, trace.SignImages) || has(c, trace.SignDiffusion) && !learns(c, h))
}

// generating reports whether a traceback shows generation rather than training.
func generating(frames []event.Frame) bool {
	return slices.ContainsFunc(frames, func(f event.Frame) bool {
		return f.Name == "generate" || f.Name == "inference" ||
			strings.Contains(f.File, "diffusers/pipelines") || strings.Contains(f.File, "vllm/")
	})
}
