package remedy

import (
	"slices"
	"strconv"
	"strings"

	"memroom/lazyregexp"
)

// dialect is a library's own way of writing. Code in it is of no use to a program that
// does not run that library, so something must show that it does.
type dialect struct {
	is    *lazyregexp.Regexp // a text is written in it
	needs []Fact             // one of these must be shown; none: nothing need be
	never []Fact             // none of these may be shown
}

// dialects are the ways of writing that remedies use. A text in one whose evidence is missing is
// left out; what is left to say is in inWords.
var dialects = []dialect{
	{is: lazyregexp.New(`\btorch\.|\btorch import|PYTORCH_|DataLoader\(`),
		needs: []Fact{TorchSeen, Loader}},
	{is: lazyregexp.New(`zero_grad\(|\.chunk\(|\.split\(|\.cpu\(\)|\.detach\(|\.item\(\)|torchao|\bbnb\.|` +
		`DistributedDataParallel|\bpeft\b`), needs: []Fact{TorchSeen}},
	{is: lazyregexp.New(`state_dict_type\(|FullStateDict|ShardedStateDict`), needs: []Fact{FSDPSeen}},
	{is: lazyregexp.New(`\bfully_shard\b|\bfsdp\b`), never: []Fact{OtherSharding}},
	{is: lazyregexp.New(`\bdeepspeed\.`), needs: []Fact{Split}, never: []Fact{FSDPSeen}},
	{is: lazyregexp.New(`keras\.|\bmodel\.(?:fit|evaluate|predict\w*|compile|save_weights)\(|\blayers\.\w+\(\)`),
		needs: []Fact{KerasSeen}},
	{is: lazyregexp.New(`\btf\.(?:config|debugging|print|image|recompute_grad|data|device)\b|` +
		`bucket_by_sequence_length|dataset\.(?:map|unbatch)\(`), never: []Fact{Graphs}},
	{is: lazyregexp.New(`\bAutoModel|from_pretrained\(|\btokenizer\(|TrainingArguments\(|` +
		`\bmodel\.generate\(|\bpreprocess_logits`), needs: []Fact{Pretrained}},
	{is: lazyregexp.New(`torch\.optim\.Adafactor|torchao|max_tasks_per_child|keras\.(?:config|distribution|` +
		`optimizers\.Ada(?:factor|m\(1e-3, gradient_acc))|tf\.keras`), never: []Fact{OldPython}},
	{is: lazyregexp.New(`\bAutoModel`), never: []Fact{Diffusers, Toolkit}},
	{is: lazyregexp.New(`TrainingArguments\(|--use_liger|torch\.save\(\{name`), never: []Fact{Toolkit}},
	{is: lazyregexp.New(`gradient_checkpointing_kwargs|tokenizer\(texts`), never: []Fact{Toolkit}},
	// no argument of the Trainer: a script has it, or has not
	{is: lazyregexp.New(`--max_seq_length`), needs: []Fact{LengthFlag}, never: []Fact{Toolkit}},
	{is: lazyregexp.New(`in loader:|self\.blocks|loss_fn\(model|CPUOffloadOptimizer\(|model\.parameters\(\)|lm_head\(h\)|` +
		`accelerator\.accumulate|in dataset:`), needs: []Fact{OwnLoop}, never: []Fact{Toolkit}},
	{is: lazyregexp.New(`\btune\.`), needs: []Fact{Tune}, never: []Fact{Rollouts}},
	{is: lazyregexp.New(`\boptax\.`), needs: []Fact{OptaxSeen}},
	{is: lazyregexp.New(`\bmodel\.apply\(`), needs: []Fact{FlaxSeen}},
	{is: lazyregexp.New(`bucket_by_sequence_length`), needs: []Fact{Text}},
	{is: lazyregexp.New(`\btransforms\.Resize`), needs: []Fact{VisionSeen}, never: []Fact{Windowed}},
}

// written reports whether the job's own libraries understand a text.
func (job Job) written(text string) bool {
	if job.Facts == nil || text == "" {
		return true
	}
	shown := func(f Fact) bool { return job.Facts[f] }
	for _, d := range dialects {
		foreign := len(d.needs) > 0 && !slices.ContainsFunc(d.needs, shown) ||
			slices.ContainsFunc(d.never, shown)
		if foreign && d.is.MatchString(text) { // the costly question last
			return false
		}
	}
	return true
}

// inWords describes the remedy without any library's code. A remedy that has neither is not
// printed.
var inWords = map[ID]string{
	InParts:         "in pieces: a part of it at a time, keeping only the result of each",
	MicroBatch:      "a smaller batch where the batches are made",
	EvalBatch:       "a smaller batch_size where the batches of evaluation are made",
	EvalOutputs:     "keep numbers of each batch, not its outputs",
	KeepLess:        "keep a number of each step, not the object; bound lists, caches and histories",
	Detach:          "keep numbers of each step, not what they were computed from",
	ReleaseModels:   "keep scores and files of earlier models, not the models",
	FreshProcess:    "one process for each model or trial",
	ClearSession:    "clear_session of the backend before the next model is built",
	ShorterSequence: "a smaller maximum length where the input is cut",
	SmallerImage:    "a smaller width and height where the images are read",
	SaveSharded: "let each rank write its own part, or copy to host memory first, in the settings of the " +
		"library that saves",
	LongestBatch: "sort or group the samples by length or size, and cut what is beyond a limit",
	GenerationCache: "fewer new tokens, beams and sequences at once, in the settings of what " +
		"generates",
	HalfWeights:        "weights in bfloat16, or spread over several devices, where they are loaded",
	FewerTrials:        "fewer workers in the configuration",
	OptimizerOffload:   "the optimizer's states in host memory, where the library's settings have it",
	Optimizer8Bit:      "an optimizer with 8-bit states, where the library lets one choose it",
	OptimizerAdafactor: "Adafactor, where the library lets one choose the optimizer",
	Checkpointing:      "activation (gradient) checkpointing, where the library's settings have it",
	ActivationOffload:  "saved tensors in host memory (save_on_cpu) around the forward pass",
	OptimizerFused:     "fused=True where the optimizer is made",
	ChunkedLoss: "a loss that works on pieces of the logits (Liger, cut cross entropy), where the library has " +
		"it",
	MixedPrecision: "bfloat16 for what is computed: the type of the layers, or of parameters and " +
		"inputs before they are used",
}

// inGeneral reports whether the job gets words instead of code or settings.
func (r *Remedy) inGeneral(job Job) bool {
	args := r.HowTo(job).Args
	return args != "" && (args == inWords[r.ID] || args == inSettings[r.ID])
}

// Prose reports whether a text that says how to carry a remedy out is words for a person, nothing
// that can be typed.
func Prose(text string) bool {
	for _, table := range []map[ID]string{inWords, inSettings} {
		for _, words := range table {
			if text == words {
				return true
			}
		}
	}
	return false
}

// graphWords is what replaces code of TensorFlow 2 in programs that run graphs in sessions.
var graphWords = map[ID]string{
	TFGrowth: "config = tf.ConfigProto(); config.gpu_options.allow_growth = True; " +
		"tf.Session(config=config)",
}

// ofNVIDIA are words that only PyTorch for NVIDIA's cards understands, and that of AMD's in part.
var ofNVIDIA = lazyregexp.New(`PYTORCH_CUDA_ALLOC_CONF|torch\.cuda\.|'cuda'|CUDA_VISIBLE_DEVICES`)

// ofMaker writes a text in the words of the card's maker. It is empty where we know none.
func (job Job) ofMaker(text string) string {
	if !ofNVIDIA.MatchString(text) {
		return text
	}
	switch {
	case job.Maker == NVIDIA:
		return text
	case job.Maker == AMD: // torch.cuda is AMD's too
		return strings.NewReplacer("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF",
			"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES").Replace(text)
	case job.Maker == Ascend && !strings.Contains(text, "roundup"):
		return strings.NewReplacer("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NPU_ALLOC_CONF",
			"CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES", "torch.cuda.", "torch.npu.",
			"'cuda'", "'npu'").Replace(text)
	}
	return ""
}

// heard leaves out what the job's libraries do not understand. It is false where nothing is left.
func (r *Remedy) heard(job Job, how How) (How, bool) {
	lost := false
	for _, text := range []*string{&how.Env, &how.Args, &how.Code} {
		if spoken := job.ofMaker(*text); spoken == "" && *text != "" || !job.written(*text) {
			*text, lost = "", true
		} else {
			*text = spoken
		}
	}
	if job.Facts != nil && job.Torch != "" {
		how = job.ofRelease(how)
	}
	if job.Facts[Toolkit] && flags[job.Trainer] == nil && !ownCode[r.ID] { // no code of theirs either
		lost = lost || how.Code != ""
		how.Code = ""
	}
	if known, ok := flags[job.Trainer]; ok { // a program with flags, whose user writes no code
		lost = lost || how.Code != ""
		how.Code = ""
		if text := known[r.ID]; text != "" {
			how.Args = strings.ReplaceAll(text, "HALF_YOUR_BATCH", job.halfBatch())
			return how, true
		}
	}
	if lost && job.Facts[Graphs] && how.Code == "" {
		how.Code = graphWords[r.ID]
	}
	if !lost || how.Env+how.Args+how.Code != "" {
		return how, true
	}
	if flags[job.Trainer] != nil {
		return how, false
	}
	how.Args = inWords[r.ID]
	if text := inSettings[r.ID]; job.Facts[Toolkit] && text != "" {
		how.Args = text
	}
	return how, how.Args != ""
}

// ownCode are remedies whose code is that of the program itself, or of a notebook's cells.
var ownCode = map[ID]bool{WindowOnHost: true, NotebookState: true, InParts: true}

// inSettings describes what to look for in the settings of a program that trains by settings of its
// own, where we do not know their names.
var inSettings = map[ID]string{
	MicroBatch:        "a smaller batch for each device, in the program's own settings",
	EvalBatch:         "a smaller batch of evaluation, in the program's own settings",
	SmallerImage:      "a smaller size of the images (crops), in the program's own settings",
	ShorterSequence:   "a smaller maximum length, in the program's own settings",
	DataLoaderWorkers: "fewer workers of the data loader, in the program's own settings",
	PinMemory:         "batches that are not pinned, where the program's settings have it",
	StreamData:        "data that is read as it is used, where the program's settings have it",
	MapProcesses:      "fewer processes that prepare the data, in the program's own settings",
	Checkpointing:     "activation (gradient) checkpointing, where the program's settings have it",
	LoRA:              "adapters (LoRA) instead of all weights, where the program has them",
	ZeRO:              "states and weights divided over the ranks, where the program's settings have it",
	FSDP:              "states and weights divided over the ranks, where the program's settings have it",
	ShardAtLoad:       "weights that are divided while they are loaded, where the program's settings have it",
	Quantize8Bit:      "weights in 8 bits, where the program's settings have it",
	Quantize4Bit:      "weights in 4 bits, where the program's settings have it",
	Attention:         "attention that keeps no scores (flash attention), where the program's settings have it",
	MixedPrecision:    "half precision (bfloat16), where the program's settings have it",
	LoadToHost:        "a checkpoint that goes to host memory first, where the settings of what loads it have that",
	OffloadLess:       "less that is offloaded to host memory, in the program's own settings",
	CUDAGraphSizes:    "CUDA graphs of fewer sizes, or none, in the program's own settings",
	FewerPairs:        "fewer boxes or points compared at once, in the program's own settings",
	CheckShapes:       "the shapes of what it is given: a size that nobody meant",
	TrialResources:    "more memory asked for each task, or fewer at once, in the program's own settings",
	DDP:               "one process a card (torchrun), where the program can be started so",
	LoadOnce:          "weights in their own precision, loaded once, where the program's settings have it",
	SmallerLayer:      "fewer words or classes, or narrower layers, in the program's own settings",
}

// ofRelease takes out what the job's release of PyTorch does not have.
func (job Job) ofRelease(how How) How {
	if !atLeast(job.Torch, "1.11") {
		how.Code = strings.ReplaceAll(how.Code, ", use_reentrant=False", "")
	}
	if !atLeast(job.Torch, "1.10") && strings.Contains(how.Code, "torch.autocast(") {
		how.Code = ""
		how.Args = "half precision: NVIDIA's apex (amp), or torch.cuda.amp in PyTorch 1.6 and newer"
	}
	return how
}

// halfBatch is half of the job's batch, in words where it is not known.
func (job Job) halfBatch() string {
	if job.Batch < 2 {
		return "HALF_YOUR_BATCH"
	}
	return strconv.Itoa(job.Batch / 2)
}

// Flags returns the options for each remedy of a trainer that has flags alone; nil for others.
func Flags(trainer Trainer) map[ID]string { return flags[trainer] }

// flags are the options for a remedy of trainers that have flags alone. Code of a model has no
// place there, so a remedy without a flag is not printed.
var flags = map[Trainer]map[ID]string{
	Kohya: {
		MicroBatch:     "--train_batch_size HALF_YOUR_BATCH --gradient_accumulation_steps 2",
		Checkpointing:  "--gradient_checkpointing",
		MixedPrecision: "--mixed_precision bf16   # --full_bf16 trains the weights themselves in it",
		Optimizer8Bit:  "--optimizer_type AdamW8bit",
		OptimizerAdafactor: `--optimizer_type Adafactor --optimizer_args "scale_parameter=False" ` +
			`"relative_step=False" "warmup_init=False"`,
		Quantize8Bit: "--fp8_base   # adapters only",
		SmallerImage: "--resolution 512,512   # in a data set file: resolution",
		PipelineOffload: "--blocks_to_swap 16   # Flux, SD3: blocks wait in host memory; " +
			"--cache_latents_to_disk and --cache_text_encoder_outputs keep the other parts off the card",
	},
	LlamaFactory: {
		MicroBatch: "per_device_train_batch_size: HALF_YOUR_BATCH   # and twice the " +
			"gradient_accumulation_steps",
		ShorterSequence: "cutoff_len: HALF_YOUR_LENGTH",
		LongestBatch:    "cutoff_len: YOUR_LIMIT   # what is longer is cut",
		MixedPrecision:  "bf16: true",
		Quantize8Bit:    "quantization_bit: 8   # with finetuning_type: lora",
		Quantize4Bit:    "quantization_bit: 4   # with finetuning_type: lora",
		LoRA:            "finetuning_type: lora",
		ChunkedLoss:     "enable_liger_kernel: true   # for models that it knows",
		Attention:       "flash_attn: fa2",
		EvalBatch:       "per_device_eval_batch_size: 1",
		EvalOutputs:     "prediction_loss_only: true   # where only the loss is needed",
		ZeRO:            "deepspeed: examples/deepspeed/ds_z3_config.json",
		FSDP:            "deepspeed: examples/deepspeed/ds_z3_config.json",
		ShardAtLoad:     "deepspeed: examples/deepspeed/ds_z3_config.json",
		OptimizerOffload: "deepspeed: examples/deepspeed/ds_z2_offload_config.json   # needs host memory " +
			"for the states",
		Optimizer8Bit:     "optim: adamw_bnb_8bit",
		MapProcesses:      "preprocessing_num_workers: 2",
		StreamData:        "streaming: true   # with max_steps",
		DataLoaderWorkers: "dataloader_num_workers: 2",
		LoadOnce:          "low_cpu_mem_usage: true",
	},
	Ultralytics: {
		MicroBatch:        "batch=HALF_YOUR_BATCH",
		SmallerImage:      "imgsz=HALF_YOUR_SIZE",
		DataLoaderWorkers: "workers=2",
		StreamData:        "cache=False   # or cache='disk'",
		EvalBatch:         "batch=HALF_YOUR_BATCH   # validation takes it too",
		FewerPairs:        "a smaller batch, or samples with fewer objects",
	},
	MLX: {
		MicroBatch: "--batch-size HALF_YOUR_BATCH --grad-accumulation-steps 2   # in versions that have " +
			"the second",
		Checkpointing:   "--grad-checkpoint",
		ShorterSequence: "--max-seq-length HALF_YOUR_LENGTH",
		LoRA:            "--fine-tune-type lora --num-layers 8   # adapters in the last 8 layers",
		Quantize4Bit:    "mlx_lm.convert --hf-path MODEL -q   # 4-bit weights, with adapters on top",
		RaiseLimit: "sudo sysctl iogpu.wired_limit_mb=MEGABYTES   # the share that the GPU may lock; leave " +
			"some to the system",
	},
}

// trainerFlag is one setting of Lightning's Trainer as a flag of its command line.
var trainerFlag = lazyregexp.New(`^--trainer\.(\w+)=([\w-]+)$`)

// toTrainer writes flags of Lightning's command line as arguments of its Trainer. Most scripts have
// no such command line: a log must show it.
func (job Job) toTrainer(how How) How {
	if job.Facts == nil || job.Facts[TrainerCLI] || !strings.HasPrefix(how.Args, "--trainer.") {
		return how
	}
	m := trainerFlag.FindStringSubmatch(how.Args)
	switch {
	case strings.Contains(how.Code, "Trainer("): // said in Python already
		how.Args = ""
	case m != nil:
		how.Args = "Trainer(" + m[1] + "='" + m[2] + "')"
	default:
		how.Args = "with LightningCLI: " + how.Args
	}
	return how
}
