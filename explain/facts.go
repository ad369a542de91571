package explain

import (
	"slices"
	"strconv"
	"strings"

	"memroom/event"
	"memroom/lazyregexp"
	"memroom/remedy"
	"memroom/trace"
)

// works are the situations that say themselves what was under way. Of the others the log's own
// words decide, see workOf.
var works = map[string]remedy.Work{
	"backward": remedy.Training, "optimizer_step": remedy.Training, "resumed": remedy.Training,
	"models_in_loop": remedy.Training, "trials_in_process": remedy.Training,
	"gathered_all": remedy.Training,
	"offload_host": remedy.Training, "not_sharded": remedy.Training,

	"eval_outputs": remedy.Evaluating, "eval_batch": remedy.Evaluating,
	"eval_late": remedy.Evaluating, "metric_kept": remedy.Evaluating,
	"eval_tensor": remedy.Evaluating, "predict_loop": remedy.Evaluating,
	"eval_results": remedy.Evaluating, "eval_phase": remedy.Evaluating,
	"prefilled": remedy.Tables, "logged_samples": remedy.Evaluating, "eval_sample": remedy.Evaluating,
	"eval_window": remedy.Evaluating, "eval_host": remedy.Evaluating, "engine_wakes": remedy.Serving,

	"engine_weights": remedy.Serving, "engine_compute": remedy.Serving,
	"serving_request": remedy.Serving, "request_batch": remedy.Serving, "pickled": remedy.Saving,

	"generation": remedy.Generating, "images": remedy.Generating,
	"kv_cache": remedy.Serving, "serving_warmup": remedy.Serving, "serving_start": remedy.Serving,

	"engine_load": remedy.Loading, "load_host": remedy.Loading,
	"load": remedy.Loading, "load_to_card": remedy.Loading, "load_beside": remedy.Loading,
	"dispatched": remedy.Loading, "ranks_load": remedy.Loading, "resume_host": remedy.Loading,
	"merge":           remedy.Loading,
	"checkpoint_save": remedy.Saving, "full_state_dict": remedy.Saving, "joining": remedy.Saving,

	"workers": remedy.Preparing, "pool_workers": remedy.Preparing, "spawn_copy": remedy.Preparing,
	"map_count": remedy.Preparing, "fork": remedy.Preparing, "map_writer": remedy.Preparing,
	"shuffle_buffer": remedy.Preparing,
	"ranks_data":     remedy.Preparing, "data_on_card": remedy.Preparing, "shm_map": remedy.Preparing,
	"object_store": remedy.Preparing, "ray_data": remedy.Preparing,
	"tree_data": remedy.Tables, "table_share": remedy.Tables,
}

// workOf returns what the program was doing. Only frames and words that are specific to training
// count as evidence of training; "loss" alone does not.
func workOf(c *trace.Crash, h *trace.Hints, job *remedy.Job, j judged) remedy.Work {
	if work, ok := works[j.detail]; ok {
		return work
	}
	_, evaluates := evaluationIn(c)
	switch {
	case j.cause == CauseShm:
		return remedy.Preparing
	case evaluates || has(c, trace.SignEvalLast):
		return remedy.Evaluating
	case job.Inference && serverOf(c, h) != "" && !job.Images:
		return remedy.Serving
	case job.Inference:
		return remedy.Generating
	case learns(c, h):
		return remedy.Training
	case seen(c, h, trace.SignInfers) && job.Framework != remedy.Python && onCard(c):
		return remedy.Generating
	case !onCard(c) && (slices.Contains(arrayKinds, c.Kind) || job.Foreign):
		return remedy.Tables
	}
	return remedy.Undecided
}

// learning are names of functions and files that only training has.
var learning = lazyregexp.New(`(?i)^(?:_?backward|_engine_run_backward|training_step|fit|` +
	`_?(?:inner_)?train(?:ing)?(?:_\w+)?|\w+_train|train\w*(?:loop|step|epoch|batch))$`)

// gradientNode are operations of TensorFlow that only training has.
var gradientNode = lazyregexp.New(`(?:^|/)gradients(?:_\d+)?/|_grad/`)

// onlyTrains are programs that do nothing but train.
var onlyTrains = []string{"kohya", "axolotl", "torchtune"}

// learns reports whether a model is being trained.
func learns(c *trace.Crash, h *trace.Hints) bool {
	if c.Steps > 0 && seen(c, h, trace.SignTraining) && !seen(c, h, trace.SignServing) ||
		has(c, trace.SignEpochs) ||
		h.Phase == "train" || h.Accumulate > 0 {
		return true
	}
	if gradientNode.MatchString(c.Node) || slices.Contains(onlyTrains, h.Trainer) {
		return true
	}
	if slices.ContainsFunc(c.Frames, func(f event.Frame) bool {
		return learning.MatchString(f.Name) || strings.Contains(f.File, "torch/optim") ||
			strings.Contains(strings.ToLower(base(f.File)), "train")
	}) {
		return true
	}
	return seen(c, h, trace.SignLearning) && !seen(c, h, trace.SignServing)
}

// base is the last part of a path of either kind.
func base(path string) string {
	return path[strings.LastIndexAny(path, `/\`)+1:]
}

// factsOf lists what the log shows of that which remedies take for granted.
func factsOf(c *trace.Crash, h *trace.Hints, job *remedy.Job, j judged) map[remedy.Fact]bool {
	torch := job.Framework == remedy.PyTorch
	network := torch || job.Framework == remedy.TensorFlow || job.Framework == remedy.JAX ||
		c.Kind == "paddle" || job.Trainer != remedy.Plain && job.Trainer != remedy.RayTune
	text := seen(c, h, trace.SignText) || h.Seq > 0 || job.Trainer == remedy.VLLM ||
		job.Trainer == remedy.MLX ||
		slices.Contains([]string{"logits", "generation", "kv_cache"}, j.detail)
	work := job.Work
	facts := map[remedy.Fact]bool{
		remedy.Batches: inBatches(c, h),
		remedy.Text:    text,
		remedy.Pictures: job.Images || seen(c, h, trace.SignPictures) ||
			seen(c, h, trace.SignDiffusion) || ofPictures(c) || j.tensor != nil &&
			slices.Contains(j.tensor.op.also, remedy.SmallerImage),
		remedy.Ranks: max(c.Ranks, h.Ranks) > 1 || c.Rank > 0 ||
			c.Alike > 1 || joinsRanks(c) || slices.Contains([]string{"ranks_load",
			"ranks_on_card", "contexts", "not_sharded"}, j.detail),
		remedy.Cards: j.detail == "idle_card" || c.Card != nil && *c.Card > 0 || seen(c, h,
			trace.SignCards) ||
			max(c.Ranks, h.Ranks) > 1 || j.detail == "first_card",
		remedy.Loader: has(c, trace.SignLoader) || seen(c, h, trace.SignWorkers) ||
			c.Kind == "torch_worker" || c.Kind == "torch_shm" && !onHost(c) || j.detail == "workers" ||
			torch && (j.cause == CauseShm && !collective(c) || job.Spawned && work == remedy.Training),
		remedy.Segments: j.cause == CauseShm && collective(c),
		remedy.Processes: job.Spawned || has(c, trace.SignPool) ||
			slices.Contains([]string{"fork", "pool_workers"}, j.detail),
		remedy.Scores: seen(c, h, trace.SignScores) || j.detail == "attention" ||
			strings.Contains(strings.ToLower(c.Node), "att"),
		remedy.Tune: seen(c, h, trace.SignRayTune) || c.Kind == "ray_gpu_wait",
		remedy.Growing: has(c, trace.SignGrowth) || j.cause == CauseLeak || c.Steps > 0 ||
			has(c, trace.SignEpochs) || slices.Contains(h.Says, string(CauseLeak)),
		remedy.DataSeen: readsData(c, j) || has(c, trace.SignLoader) || has(c, trace.SignDatasets),
		remedy.Pretrained: torch && (seen(c, h, trace.SignPretrained) || h.Trainer == "transformers" ||
			h.Trainer == "axolotl" || h.Trainer == "llamafactory" ||
			h.Trainer == "vllm" || c.Kind == "dispatched" ||
			has(c, trace.SignMerging)) ||
			c.Kind == "ggml" || c.Kind == "ollama",
		remedy.OwnScript: drawsByScript(c),
		remedy.Rays:      job.Trainer == remedy.RayTune || c.Framework == "ray",
		remedy.Windows:   seen(c, h, trace.SignWindows) || c.Kind == "page_file",
		remedy.WSL:       seen(c, h, trace.SignWSL),
		remedy.Optuna:    has(c, trace.SignStudy),
		remedy.Detection: has(c, trace.SignDetection),
		remedy.Mapped:    has(c, trace.SignDatasets) || j.detail == "map_writer",
		remedy.Hooks:     has(c, trace.SignHooks),
		remedy.Offloaded: seen(c, h, trace.SignOffload) || j.detail == "offload_host",
		remedy.Split: seen(c, h, trace.SignZeRO3) || j.detail == "full_state_dict" ||
			j.detail == "gathered" ||
			j.detail == "joining" || h.Trainer == "deepspeed" || framesOf(c, "distributed/checkpoint"),
		remedy.TorchSeen:  torch,
		remedy.Metrics:    has(c, trace.SignMetrics),
		remedy.SGDSeen:    has(c, trace.SignSGD),
		remedy.AllAtOnce:  allAtOnce(c),
		remedy.TreesSeen:  has(c, trace.SignTrees) || c.Kind == "catboost",
		remedy.FramesOnly: framesOnly(c),
		remedy.LightGBM:   treesOf(c) == "lightgbm",
		remedy.CatBoost:   treesOf(c) == "catboost",
		remedy.Pinned:     j.detail == "pinned" || seen(c, h, trace.SignPinned),
		remedy.Networks:   network,
		remedy.OnCard:     onCard(c) && !network && !has(c, trace.SignTrees),
		remedy.Engine:     job.Program != "" && job.Program != "other",
		remedy.Elsewhere:  job.Framework == remedy.TensorFlow || job.Framework == remedy.JAX,
		remedy.Flat:       flatLayer.MatchString(c.Node+c.Text) || wideWeight(c),
		remedy.Table:      wideWeight(c) && !flatLayer.MatchString(c.Node+c.Text),
		remedy.IdlePool:   j.cause == CauseFragmentation || j.detail == "refused" || idleCounts(c),
		remedy.Killed:     onHost(c) && len(c.Frames) == 0 && j.cause != CauseBatch,
		remedy.Ended:      slices.Contains(signalled, c.Kind),
		remedy.Drawing:    job.Images,
		remedy.Refused:    j.detail == "refused",
		remedy.Posix:      posix(c) && !seen(c, h, trace.SignWindows) && !seen(c, h, trace.SignWSL),
		remedy.MayTrain:   network && onCard(c) && work == remedy.Undecided && mayTrain(c, h),
		remedy.Arrays:     has(c, trace.SignData),
		remedy.Reads:      seen(c, h, trace.SignReads),

		remedy.KerasSeen: job.Trainer == remedy.Keras || seen(c, h, trace.SignKeras) &&
			!seen(c, h, trace.SignGraphs) || framesOf(c, "keras") || j.detail == "models_in_loop",
		remedy.Graphs: job.Framework == remedy.TensorFlow && seen(c, h, trace.SignGraphs) &&
			!framesOf(c, "keras"),
		remedy.FSDPSeen: seen(c, h, trace.SignFSDP) || framesOf(c, "fsdp"),
		remedy.OtherSharding: (seen(c, h, trace.SignSharder) || h.Trainer == "deepspeed") &&
			!seen(c, h, trace.SignFSDP),
		remedy.Rollouts:      seen(c, h, trace.SignRollouts),
		remedy.Windowed:      inWindows(c) != "" || j.detail == "eval_window",
		remedy.ObjectsShared: j.detail == "objects",
		remedy.Caching:       has(c, trace.SignCaching),
		remedy.OptaxSeen:     seen(c, h, trace.SignOptax),
		remedy.FlaxSeen:      seen(c, h, trace.SignFlax),
		remedy.VisionSeen:    seen(c, h, trace.SignVision),
		remedy.Toolkit:       seen(c, h, trace.SignToolkit),
		remedy.LengthFlag:    seen(c, h, trace.SignLengthFlag),
		remedy.TrainerCLI:    seen(c, h, trace.SignTrainerCLI),
		remedy.Padded:        padded.MatchString(c.Text),
		remedy.RayData:       seen(c, h, trace.SignRayData),
		remedy.DiskFull:      diskOver.MatchString(c.Text),
		remedy.LinesSeen:     seen(c, h, trace.SignLines),
		remedy.CSVSeen:       seen(c, h, trace.SignCSV),
		remedy.NPYSeen:       seen(c, h, trace.SignNPY),
		remedy.ToDisk:        seen(c, h, trace.SignNVMe),
		remedy.OneArray: slices.Contains(arrayKinds, c.Kind) || c.Kind == "torch_cpu" ||
			c.Kind == "r_vector",
		remedy.OwnLoop: ownLoops(c, h),
		remedy.DrawTrained: seen(c, h, trace.SignDiffusion) && learns(c, h) && !job.Images &&
			h.Trainer != "kohya",
		remedy.Shards:    has(c, trace.SignShards),
		remedy.OldPython: seen(c, h, trace.SignOldPython),
		remedy.Gathering: j.detail == "gathered",
		remedy.Diffusers: seen(c, h, trace.SignDiffusion) && !has(c, trace.SignText),
		remedy.OthersHold: j.cause == CauseNeighbour || len(c.Neighbours) > 0 ||
			unlisted(c) >= unlistedFloor || slices.Contains(h.Says, string(CauseNeighbour)) ||
			slices.Contains(mayBeOthers, j.detail) && !filledBefore(c),
	}
	return facts
}

// signalled are kinds of ends by a signal.
var signalled = []string{trace.KindTold, "bare_kill", "exit_137", "kernel_kill", "kernel_invoked",
	"user_killer", "launcher_kill", "torch_worker", "pool_worker", "kernel_died"}

// ownLoops reports whether a traceback runs through a file that no library has installed. Lines of
// a loop have a place only there.
func ownLoops(c *trace.Crash, h *trace.Hints) bool {
	_, ok := c.UserFrame()
	return ok && !seen(c, h, trace.SignToolkit)
}

// batchTrainers are libraries whose loops take batches of a data set.
var batchTrainers = []string{"transformers", "lightning", "accelerate", "deepspeed", "torchtune",
	"axolotl", "keras", "kohya", "mlx", "llamafactory", "ultralytics"}

// inBatches reports whether something shows that the program works in batches. A loss and its
// backward pass alone do not: one view, one long sequence or one graph has them too.
func inBatches(c *trace.Crash, h *trace.Hints) bool {
	if h.Batch > 1 || slices.Contains(h.Says, "batch") || seen(c, h, trace.SignBatches) ||
		slices.Contains(batchTrainers, h.Trainer) || has(c, trace.SignLoader) ||
		seen(c, h, trace.SignWorkers) || has(c, trace.SignEpochs) {
		return true
	}
	m := leadingShape.FindStringSubmatch(c.Text)
	return c.Framework == "tensorflow" && m != nil && m[1] != "1" && m[2] != "" &&
		!ofBoxes.MatchString(c.Node+" "+c.Text) && !weightNode.MatchString(c.Node) &&
		!optimizerNode.MatchString(c.Node)
}

// mayBeOthers are situations in which nothing shows who filled the card, so that it may be others.
var mayBeOthers = []string{
	"full", "one_piece", "not_copied", "library_start", "handle", "nccl",
	"load_to_card", "load_beside",
}

// framesOf reports whether a frame lies in files of that library.
func framesOf(c *trace.Crash, library string) bool {
	return slices.ContainsFunc(c.Frames, func(f event.Frame) bool {
		return strings.Contains(strings.ToLower(f.File), library)
	})
}

// inWindows names the library that works through a large input in windows; "other" where it is none
// that we know, empty where nothing does.
func inWindows(c *trace.Crash) string {
	i, ok := windowing.in(c)
	if !ok {
		return ""
	}
	for _, name := range []string{"monai", "nnunet", "mmseg"} {
		if strings.Contains(strings.ToLower(c.Frames[i].File), name) {
			return name
		}
	}
	return "other"
}

// drawsByScript reports whether the parts of an image generator are trained by a script that hands
// them to accelerate: it loads them itself, so flags of a loader have no place.
func drawsByScript(c *trace.Crash) bool {
	prepared := slices.ContainsFunc(c.Frames, func(f event.Frame) bool {
		return f.Name == "prepare_model" || f.Name == "_prepare_one"
	})
	return prepared && has(c, trace.SignPictures) && !has(c, trace.SignText)
}

// boosted are words of boosted trees, among those of libraries that keep tables on a card.
var boosted = lazyregexp.New(`(?i)xgboost|lightgbm|catboost|gpu_hist|device_helpers`)

// treesOf names the library of boosted trees that the message or what stands around it names.
func treesOf(c *trace.Crash) string {
	if c.Kind == "catboost" {
		return "catboost"
	}
	for _, text := range []string{c.Text, c.Signs[trace.SignTrees]} {
		lower := strings.ToLower(text)
		for _, name := range []string{"xgboost", "lightgbm", "catboost"} {
			if strings.Contains(lower, name) {
				return name
			}
		}
	}
	return ""
}

// framesOnly reports whether tables lie on the card and nothing speaks of boosted trees.
func framesOnly(c *trace.Crash) bool {
	if !has(c, trace.SignTrees) || boosted.MatchString(c.Signs[trace.SignTrees]+c.Text) {
		return false
	}
	return !slices.ContainsFunc(c.Frames, func(f event.Frame) bool {
		return boosted.MatchString(f.File)
	})
}

// posix reports whether the paths of a traceback are those of Linux or macOS.
func posix(c *trace.Crash) bool {
	return slices.ContainsFunc(c.Frames, func(f event.Frame) bool {
		return strings.HasPrefix(f.File, "/")
	})
}

// mayTrain reports whether a word speaks of training, or a message of PyTorch stands alone, and
// nothing speaks of other work.
func mayTrain(c *trace.Crash, h *trace.Hints) bool {
	if c.Kind == "no_batch_left" {
		return true
	}
	alone := c.Kind == "torch_device" && len(c.Frames) == 0 && !seen(c, h, trace.SignPictures)
	return (seen(c, h, trace.SignTraining) || alone) && !seen(c, h, trace.SignInfers) &&
		!seen(c, h, trace.SignServing)
}

// collective reports whether shared memory was asked for by NCCL, not by a loader.
func collective(c *trace.Crash) bool {
	return strings.Contains(strings.ToLower(c.Text), "nccl")
}

// readsData reports whether something shows that data fills host memory, or goes to the card as a
// whole: the cause itself, a refused array, or a line that reads.
func readsData(c *trace.Crash, j judged) bool {
	return j.cause == CauseHostData && j.detail != "host_tensor" ||
		slices.Contains(arrayKinds, c.Kind) || j.detail == "not_copied" ||
		onHost(c) && has(c, trace.SignData)
}

// makers are the words of cards that NVIDIA did not make.
var makers = []struct {
	is    *lazyregexp.Regexp
	maker remedy.Maker
}{
	{lazyregexp.New(`(?i)^hip|rocm|amdgpu|gfx`), remedy.AMD},
	{lazyregexp.New(`(?i)xpu|level|^ur|ipex`), remedy.Intel},
	{lazyregexp.New(`(?i)tpu|hbm|xla`), remedy.Google},
	{lazyregexp.New(`(?i)npu|ascend`), remedy.Ascend},
	{lazyregexp.New(`(?i)habana|hpu`), remedy.Others},
}

// makerOf returns the maker of the card. CUDA's words in the message itself outweigh another
// maker's words around it.
func makerOf(c *trace.Crash, h *trace.Hints) remedy.Maker {
	word := first(c.Signs[trace.SignMaker], h.Signs[trace.SignMaker])
	if word == "" || strings.Contains(c.Text, "CUDA out of memory") ||
		strings.Contains(c.Text, "CUDA error") {
		return remedy.NVIDIA
	}
	for _, m := range makers {
		if m.is.MatchString(word) {
			return m.maker
		}
	}
	return remedy.NVIDIA
}

// allAtOnce reports whether a step of PyTorch's own optimizers ran that makes temporary tensors as
// large as all parameters. One that fails while it makes its states is helped by no other step.
func allAtOnce(c *trace.Crash) bool {
	return slices.ContainsFunc(c.Frames, func(f event.Frame) bool {
		return strings.HasPrefix(f.Name, "_multi_tensor_")
	})
}

// flatLayer are layers whose weights grow with the whole input.
var flatLayer = lazyregexp.New(`(?i)dense|flatten|/fc\d?/|fully_connected`)

// wideRows is a dimension of a weight that only a table of words or classes has.
const wideRows = 100_000

var digitsOf = lazyregexp.New(`\d+`)

// wideWeight reports whether a weight, or the state of one, has such a dimension.
func wideWeight(c *trace.Crash) bool {
	m := leadingShape.FindStringSubmatch(c.Text)
	if m == nil || !optimizerNode.MatchString(c.Node) && !weightNode.MatchString(c.Node) {
		return false
	}
	return slices.ContainsFunc(digitsOf.FindAllString(m[0], -1), func(digits string) bool {
		n, err := strconv.Atoi(digits)
		return err == nil && n >= wideRows
	})
}

// idleCounts reports whether what lies idle in the pool is half of what was asked for, no crumb.
func idleCounts(c *trace.Crash) bool {
	return c.Idle != nil && c.Requested != nil && c.Allocated != nil && c.Capacity != nil &&
		2**c.Idle >= *c.Requested && float64(*c.Idle) >= crumbs*float64(*c.Capacity)
}

// joinsRanks reports whether a traceback runs where ranks meet.
func joinsRanks(c *trace.Crash) bool {
	return slices.ContainsFunc(c.Frames, func(f event.Frame) bool {
		return f.Name == "barrier" || f.Name == "init_process_group" ||
			strings.Contains(f.File, "distributed_c10d")
	})
}

// plane is a tensor of four dimensions, two of which are as large as the sides of a picture.
var plane = lazyregexp.New(`(?i)shape ?\[\d+, ?\d+, ?(\d{3,}), ?(\d{3,})\]|` +
	`shape ?\[\d+, ?(\d{3,}), ?(\d{3,}), ?\d+\]`)

// ofPictures reports whether the tensor that found no room, or the operation, is one of images. Two
// equal sides may be the scores of attention.
func ofPictures(c *trace.Crash) bool {
	if imageShape.MatchString(c.Text) || imageShape.MatchString(c.Node) {
		return true
	}
	m := plane.FindStringSubmatch(c.Text)
	return m != nil && (m[1] != m[2] || m[3] != m[4])
}

// imageShape is a tensor of four dimensions or more whose channels come last or first.
var imageShape = lazyregexp.New(`(?i)shape ?\[\d+,(?: ?\d+,){1,2} ?\d+, ?[134]\]|` +
	`shape ?\[\d+, ?[134], ?\d+, ?\d+\]|(?i:conv2d|conv3d)`)

// programs are the names of servers and generators as logs write them.
var programs = []struct{ part, name string }{
	{"vllm", "vllm"}, {"sglang", "sglang"}, {"text", "tgi"}, {"ollama", "ollama"},
	{"llama.cpp", "llama.cpp"}, {"llama_", "llama.cpp"}, {"llm_load", "llama.cpp"},
	{"ggml", "llama.cpp"}, {"triton", "triton"}, {"comfyui", "comfyui"}, {"webui", "webui"},
	{"a1111", "webui"}, {"invokeai", "invokeai"}, {"tensorrt", "tensorrt-llm"},
	{"lmdeploy", "lmdeploy"},
}

// serverOf names the server or generator whose flags count; "other" where we know none of them.
func serverOf(c *trace.Crash, h *trace.Hints) string {
	switch {
	case c.Kind == "ollama":
		return "ollama"
	case h.Trainer == "vllm" || c.Kind == "serving_cache" && !has(c, trace.SignProgram):
		return "vllm"
	}
	seen := strings.ToLower(c.Signs[trace.SignProgram])
	if seen == "llm" { // the class of its library
		return "vllm"
	}
	if seen == "" && c.Kind == "ggml" {
		return "llama.cpp"
	}
	if seen == "" {
		return ""
	}
	for _, p := range programs {
		if strings.HasPrefix(seen, p.part) || strings.HasSuffix(seen, p.part) {
			return p.name
		}
	}
	return "other"
}
