package remedy

import (
	"slices"
	"strings"

	"memroom/event"
)

// ID names a remedy on the command line, in records and to the probe. The set is closed and never
// renamed.
type ID string

// Every remedy there is.
const (
	MicroBatch         ID = "micro_batch"
	MixedPrecision     ID = "mixed_precision"
	Checkpointing      ID = "checkpointing"
	ActivationBudget   ID = "activation_budget"
	ActivationOffload  ID = "activation_offload"
	OptimizerFused     ID = "optimizer_fused"
	Optimizer8Bit      ID = "optimizer_8bit"
	OptimizerAdafactor ID = "optimizer_adafactor"
	OptimizerPaged     ID = "optimizer_paged"
	OptimizerOffload   ID = "optimizer_offload"
	SetToNone          ID = "set_to_none"
	Quantize8Bit       ID = "quantize_8bit"
	Quantize4Bit       ID = "quantize_4bit"
	LoRA               ID = "lora"
	Prune              ID = "prune"
	Distill            ID = "distill"
	ShorterSequence    ID = "shorter_sequence"
	SmallerImage       ID = "smaller_image"
	Attention          ID = "attention"
	ChunkedLoss        ID = "chunked_loss"
	ExpandableSegments ID = "expandable_segments"
	MaxSplitSize       ID = "max_split_size"
	Roundup            ID = "roundup"
	GCThreshold        ID = "gc_threshold"
	EmptyCache         ID = "empty_cache"
	Detach             ID = "detach"
	NoGrad             ID = "no_grad"
	RemoveHooks        ID = "remove_hooks"
	KeepLess           ID = "keep_less" // what a loop collects without a graph
	DDPBucketView      ID = "ddp_bucket_view"
	FSDP               ID = "fsdp"
	ZeRO               ID = "zero"
	DeviceMap          ID = "device_map"
	TFGrowth           ID = "tf_growth"
	TFAllocator        ID = "tf_allocator"
	TFDataBudget       ID = "tf_data_budget"
	DataLoaderWorkers  ID = "dataloader_workers"
	PinMemory          ID = "pin_memory"
	ShmSize            ID = "shm_size"
	ShareData          ID = "share_data"
	StreamData         ID = "stream_data"
	TreeData           ID = "tree_data"
	TrialResources     ID = "trial_resources"
	RaiseLimit         ID = "raise_limit"
	FreeNeighbour      ID = "free_neighbour"

	// The rest is advice for one situation each; --fit does not apply it.
	EvalOutputs     ID = "eval_outputs"     // outputs that evaluation keeps of every batch
	EvalBatch       ID = "eval_batch"       // the batch of evaluation
	GenerationCache ID = "generation_cache" // keys and values of generation
	AutocastCache   ID = "autocast_cache"   // autocast's copies of the weights
	LongestBatch    ID = "longest_batch"    // samples of very different length
	CUDAGraphSizes  ID = "cuda_graph_sizes" // one CUDA graph for every input size
	RightDevice     ID = "right_device"     // the discrete card instead of the integrated one
	HalfWeights     ID = "half_weights"     // weights in half precision, or on several devices
	SaveParts       ID = "save_parts"       // large objects in several files
	LessAtOnce      ID = "less_at_once"     // a library that is no network of ours
	CheckShapes     ID = "check_shapes"     // a size that cannot be meant
	OtherVersion    ID = "other_version"    // a bug of a library
	LoadToHost      ID = "load_to_host"     // checkpoints go to host memory first
	SaveSharded     ID = "save_sharded"     // no whole state dict on a card
	SaveAsItIs      ID = "save_as_it_is"    // no copy of the weights for the file
	SmallerBuffer   ID = "smaller_buffer"   // a buffer of fixed size
	WindowOnHost    ID = "window_on_host"   // results of windows are put together in host memory
	ObjectsOnHost   ID = "objects_on_host"  // objects of all ranks do not pass through the card
	MergeOnHost     ID = "merge_on_host"    // adapters are merged outside the card
	LoadOnce        ID = "load_once"        // not every rank loads the whole model
	ShardAtLoad     ID = "shard_at_load"    // ZeRO's settings before the model is built
	OffloadLess     ID = "offload_less"     // optimizer state that fills host memory
	FreshProcess    ID = "fresh_process"    // one process for each trial or model
	ReleaseModels   ID = "release_models"   // earlier models of the same process
	ClearSession    ID = "clear_session"    // Keras models built in a loop
	PredictCall     ID = "predict_call"     // Keras' predict in a loop
	WaitForGPU      ID = "wait_for_gpu"     // the trial before still holds the card
	FewerTrials     ID = "fewer_trials"     // as many at once as fit
	ObjectStore     ID = "object_store"     // Ray's store of objects
	RayBlocks       ID = "ray_blocks"       // blocks and buffers of Ray Data
	ShuffleBuffer   ID = "shuffle_buffer"   // tf.data's buffer of whole elements
	MapFile         ID = "map_file"         // a file that every rank reads
	WorkerCache     ID = "worker_cache"     // what datasets keep in every worker
	SteadyTraces    ID = "steady_traces"    // functions of TensorFlow that are traced anew
	MapProcesses    ID = "map_processes"    // processes and buffers of datasets' map
	SelectCard      ID = "select_card"      // each process on its own card
	PageFile        ID = "page_file"        // Windows' limit on committed memory
	WSLMemory       ID = "wsl_memory"       // the share of the machine that WSL has
	NewerTorch      ID = "newer_torch"      // a version with settings against pieces
	MetricReset     ID = "metric_reset"     // metric objects that keep predictions
	ProcessLimits   ID = "process_limits"   // on mappings and address space
	OtherPrograms   ID = "other_programs"   // of the machine, which hold its memory
	ServingShare    ID = "serving_share"    // an inference server's share of the card
	NotebookState   ID = "notebook_state"   // what failed cells still hold
	DDP             ID = "ddp"              // one process a card instead of DataParallel
	PipelineOffload ID = "pipeline_offload" // parts of an image generator that wait
	FewerPairs      ID = "fewer_pairs"      // all boxes or points against all others
	FewerPoints     ID = "fewer_points"     // points that a scene is made of
	FewerProcesses  ID = "fewer_processes"  // worker processes of a pool
	SmallerLayer    ID = "smaller_layer"    // one layer that holds most weights
	Layout          ID = "layout"           // arrays that a TPU pads
	LiveParameters  ID = "live_parameters"  // parameters that ZeRO 3 keeps gathered at a time
	UnifiedMemory   ID = "unified_memory"   // JAX beyond the card, in host memory
	InParts         ID = "in_parts"         // one large tensor in pieces, or not at all
)

// Equivalence is a remedy's effect on the results of training.
type Equivalence string

// Exact keeps the mathematics (floating-point rounding may differ), Expected keeps it in
// expectation (random numbers such as dropout masks are drawn in another order), Changes does not
// keep it and needs the user's consent.
const (
	Exact    Equivalence = "exact"
	Expected Equivalence = "expected"
	Changes  Equivalence = "changes"
)

// Level is how `memroom run --fit` puts a remedy into effect without an edit of the user's code.
type Level string

// The levels, least intrusive first.
const (
	LevelEnv     Level = "env"
	LevelArgs    Level = "args"
	LevelProcess Level = "process"
)

// Framework is what the job computes with.
type Framework string

// Frameworks whose code we can write.
const (
	PyTorch    Framework = "pytorch"
	TensorFlow Framework = "tensorflow"
	JAX        Framework = "jax"
	Python     Framework = "python" // no framework of ours, but Python
)

// Trainer is the library that owns the user's training loop, and so its arguments.
type Trainer string

// Trainers whose arguments we know. Plain is a loop of the user's own.
const (
	Plain        Trainer = ""
	Transformers Trainer = "transformers"
	Accelerate   Trainer = "accelerate"
	Lightning    Trainer = "lightning"
	DeepSpeed    Trainer = "deepspeed"
	Torchtune    Trainer = "torchtune"
	Axolotl      Trainer = "axolotl"
	Keras        Trainer = "keras"
	RayTune      Trainer = "ray"
	VLLM         Trainer = "vllm"
	Kohya        Trainer = "kohya" // sd-scripts and what is built on them
	MLX          Trainer = "mlx"   // mlx_lm on Apple's GPU
	LlamaFactory Trainer = "llamafactory"
	Ultralytics  Trainer = "ultralytics" // YOLO, by its settings
)

// Job is what is known of the job that a remedy would be applied to. Zero values mean "not known".
type Job struct {
	Where     event.Where
	Framework Framework
	Trainer   Trainer
	Torch     string        // version, such as "2.3"
	Slurm     bool          // the limit belongs to Slurm
	Kube      bool          // the limit belongs to Kubernetes
	Dask      bool          // the limit is that of a worker of Dask
	Yarn      bool          // the limit belongs to YARN
	Docker    bool          // the container is Docker's or Podman's, by its own words
	Container bool          // it runs in a container, for all that is seen
	Notebook  bool          // it runs in a notebook
	Spawned   bool          // workers are spawned, not forked: each gets a pickled copy of the data set
	Bare      bool          // it is said to run outside of containers
	Forked    bool          // the kernel would not promise the parent's memory to a child
	OwnCap    bool          // the limit is a cap that the program set for its share of the card
	HostLimit bool          // the limit is that of `memroom run --host-mem`
	Images    bool          // it generates images or clips
	Maker     Maker         // of the card; empty: NVIDIA, as nothing shows otherwise
	Foreign   bool          // it computes with none of the frameworks whose code we can write
	Pool      string        // whose worker processes: joblib, datasets, nnunet; empty: unknown
	Windows   string        // who works through windows: monai, nnunet, mmseg; empty: unknown
	Inference bool          // serving or generating, not training: nothing is kept for a backward pass
	Work      Work          // under way when memory ran out
	Facts     map[Fact]bool // what is shown; nil: the job was watched, nothing was left to words
	Type      string        // of the array that was refused: float64, float32, ...; empty: unknown
	Program   string        // whose flags a server or generator has: vllm, sglang, tgi, ollama, ...
	On        map[ID]string // remedies seen to be on already, each with the evidence
	Setup     *Setup

	Card  *int        // the card that is full, as the program numbers its cards
	Limit event.Bytes // the wall of the job, 0 if unknown
	// as a log shows them, for the words of a remedy where there is no setup
	Batch, Accumulate int
	Asked             event.Bytes // the allocation that failed, 0 if unknown
	// of the card, as the message counts: asked for beyond what was free, in use, idle in the pool
	Missing    event.Bytes
	Held, Idle *event.Bytes
	Fits       int // how many trials, or tokens, fit; 0: unknown
	// of the card that is free for a server; 0: unknown, LessShare: less than now
	Share float64
	// that the batch was seen to fit in, for the words of MicroBatch; 0: unknown
	Pieces int
	Parts  string    // how the tensor that was refused is made in parts; empty: unknown
	Run    event.Run // that the job was; its command is written into what to type
}

// LessShare in Job.Share means that a server must take less of the card than now, whatever that is.
const LessShare = -1

// How holds the words with which a user applies a remedy. An empty field is a way that does not
// exist.
type How struct {
	Env  string `json:"env"`
	Args string `json:"args"`
	Code string `json:"code"`
	Fit  string `json:"fit"`
}

// Remedy is one cure.
type Remedy struct {
	ID          ID
	Title       string // imperative, one line
	Why         string // its effect on memory, one sentence
	Equivalence Equivalence
	// the name under which `--allow` admits it; empty for what keeps the mathematics
	Consent     string
	Walls       []event.Where // where memory must have run out for it to help
	Frameworks  []Framework   // empty: any
	Training    bool          // helps only where there is a backward pass
	Levels      []Level       // how --fit applies it; empty: it cannot
	Unvalidated string        // why its effect has not been checked on real hardware; empty when it has

	on func(Setup) bool // already in effect in this setup
	// the setup with the remedy, false if it has no place in it
	rewrite  func(Setup) (Setup, bool)
	timeline func(*event.Timeline) (*event.Timeline, bool) // the recorded timeline with the remedy
	conf     func(string) string                           // the allocator string with the remedy
	// time of a step after / before; 1 is free
	slowdown func(before Setup) float64
	// a reason why it does not apply, empty if it does
	needs func(Job) string
	// the whole answer, for remedies whose words depend on numbers
	how    func(job Job, after Setup) How
	titles map[Framework]string // where another framework's words differ from Title
	env    map[Framework]string // else: these tables
	args   map[Trainer]string   //
	code   map[Framework]string //
}

// Catalogue returns every remedy, those that keep the mathematics first. The caller must not change
// what it points at.
func Catalogue() []*Remedy { return slices.Clone(all) }

var all = gather(
	batching(), allocators(), memoryLeaks(), attentions(), losses(), gradients(), checkpoints(),
	optimizers(), sharding(),
	precisions(), inputs(), quantized(), smallerModels(), tensorflows(), data(), limits(),
	evaluations(), checkpointFiles(), halfWeights(), trials(), pipelines(), systems(), mistakes(),
)

func gather(groups ...[]*Remedy) []*Remedy { return slices.Concat(groups...) }

// Find returns the remedy of that name.
func Find(id ID) (*Remedy, bool) {
	for _, r := range all {
		if r.ID == id {
			return r, true
		}
	}
	return nil, false
}

// IsOn reports whether the setup has the remedy already.
func (r *Remedy) IsOn(s Setup) bool { return r.on != nil && r.on(s) }

// Rewrite returns the setup with the remedy applied, one notch of it if it comes in notches (the
// batch is halved, not reduced to one). It returns false if the remedy is on already or has no
// effect on such a setup.
func (r *Remedy) Rewrite(s Setup) (Setup, bool) {
	if r.IsOn(s) {
		return s, false
	}
	if r.conf != nil {
		after := s
		after.AllocConf = r.conf(s.AllocConf)
		return after, after.AllocConf != s.AllocConf
	}
	if r.rewrite == nil {
		return s, false
	}
	return r.rewrite(s.clone())
}

// RewriteConf returns the allocator string with the remedy; the user's own keys stay as they are.
// It is false for remedies that are no allocator settings.
func (r *Remedy) RewriteConf(conf string) (string, bool) {
	if r.conf == nil {
		return conf, false
	}
	after := r.conf(conf)
	return after, after != conf
}

// RewriteTimeline returns a copy of a recorded timeline as it would have been with the remedy. It
// is false where the timeline does not say enough: most rewrites need blocks that are tagged by
// category.
func (r *Remedy) RewriteTimeline(t *event.Timeline) (*event.Timeline, bool) {
	if r.timeline == nil {
		return nil, false
	}
	return r.timeline(t)
}

// Slowdown is the time of a step after the remedy divided by the time before it, as far as it is
// known without running: 1 is free, below 1 is faster. For a zero Setup it returns the usual
// figure.
func (r *Remedy) Slowdown(before Setup) float64 {
	if r.slowdown == nil {
		return 1
	}
	return r.slowdown(before)
}

// Applies returns an empty string where the remedy can help the job, else the reason why not.
func (r *Remedy) Applies(job Job) string {
	switch {
	case job.Where != "" && job.Where != event.WhereUnknown && !slices.Contains(r.Walls, job.Where):
		return "it does not relieve this kind of memory"
	case job.Framework != "" && len(r.Frameworks) > 0 && !slices.Contains(r.Frameworks,
		job.Framework):
		return "it belongs to another framework"
	case r.Training && job.Inference:
		return "nothing is trained here"
	case job.Foreign && (r.Training || len(r.Frameworks) > 0):
		return "it belongs to a framework that is not used here"
	case job.Framework == "" && len(r.Frameworks) > 0 && !slices.Contains(r.Frameworks, PyTorch):
		return "nothing shows that the job uses " + string(r.Frameworks[0])
	}
	if evidence, on := job.On[r.ID]; on {
		return "already on: " + evidence
	}
	if job.Setup != nil && r.IsOn(*job.Setup) {
		return "already on in this setup"
	}
	if r.needs != nil {
		return r.needs(job)
	}
	return ""
}

// HowTo returns what the user types, in the terms of their framework and trainer.
func (r *Remedy) HowTo(job Job) How {
	how, _ := r.heard(job, r.howTo(job))
	return how
}

func (r *Remedy) howTo(job Job) How {
	if job.Setup == nil && job.Batch > 0 {
		job.Setup = &Setup{Batch: job.Batch, Accumulate: job.Accumulate}
	}
	var after Setup
	if job.Setup != nil {
		after = *job.Setup
		if rewritten, ok := r.Rewrite(after); ok {
			after = rewritten
		}
	}
	var how How
	if r.how != nil {
		how = r.how(job, after)
	} else {
		how = r.fromTables(job)
	}
	how = job.toTrainer(how)
	// --fit reaches into PyTorch and TensorFlow only, on cards whose memory it can read
	if how.Fit == "" && len(r.Levels) > 0 && job.Framework != JAX && flags[job.Trainer] == nil &&
		(job.Facts == nil || job.Facts[TorchSeen] || job.Framework == TensorFlow &&
			!job.Facts[Graphs]) &&
		(job.Maker == NVIDIA || job.Maker == AMD) && (job.accumulates() ||
		slices.Contains(r.Levels, LevelEnv)) && (r.ID != MicroBatch || job.batched()) {
		flags := []string{"--fit", "--remedy", string(r.ID)}
		if r.Consent != "" {
			flags = append(flags, "--allow", r.Consent)
		}
		how.Fit = job.Run.Again(flags...)
		if r.ID == MicroBatch {
			how.Fit += "   # no edit; a third slower where the forward pass runs twice"
		}
	}
	return how
}

func (r *Remedy) fromTables(job Job) How {
	framework := job.Framework
	if framework == "" || r.code[framework] == "" && r.env[framework] == "" {
		framework = r.home()
	}
	how := How{Env: r.env[framework], Args: r.args[job.Trainer], Code: r.code[framework]}
	if job.Trainer == VLLM && how.Args != "" {
		how.Code = "" // an engine has flags; its user writes no code of the model
	}
	if job.Facts != nil && r.Training && how.Args != "" {
		how.Code = "" // a trainer owns the loop, so the lines of a loop of the user's own have no place
	}
	return how
}

// home is the framework whose words we use when the job's is not known.
func (r *Remedy) home() Framework {
	if len(r.Frameworks) > 0 {
		return r.Frameworks[0]
	}
	return PyTorch
}

// constant makes a slowdown that does not depend on the setup.
func constant(factor float64) func(Setup) float64 { return func(Setup) float64 { return factor } }

// lines joins the lines of a code snippet.
func lines(s ...string) string { return strings.Join(s, "\n") }

var (
	onDevice = []event.Where{event.WhereGPU, event.WhereMPS}
	// a CPU trains too
	anywhere = []event.Where{event.WhereGPU, event.WhereMPS, event.WhereHost, event.WhereCgroup}
	onHost   = []event.Where{event.WhereHost, event.WhereCgroup}
	torch    = []Framework{PyTorch}
)
