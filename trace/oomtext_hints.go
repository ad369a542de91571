package trace

import (
	"strconv"
	"strings"

	"memroom/event"
)

// Hints is information about the job in a log, apart from its end. A zero value means that the log
// does not contain it.
type Hints struct {
	Frameworks map[string]bool // pytorch, tensorflow, jax, ray: whose files or loggers appear
	// transformers, lightning, accelerate, deepspeed, torchtune, axolotl, keras, vllm, kohya, mlx
	Trainer    string
	Torch      string            // version
	Batch      int               // micro-batch
	Accumulate int               //
	Seq        int               //
	Ranks      int               //
	Settings   map[string]string // what is on already, by remedy id, with the text that shows it
	AllocConf  string            // the allocator string, where it was set rather than advised
	Phase      string            // load, train, eval, save: the last one announced before the end
	// the cause according to the poster: batch, leak, fragmentation, model, neighbour
	Says   []string
	SaidOf map[string]string // the words, by cause

	Signs        Signs       // what stands anywhere in it
	LargestChunk event.Bytes // the largest block in use that a BFC dump lists
}

type limitSeen struct {
	offset int64
	bytes  event.Bytes
	by     string
}

// hintCollector gathers hints while the log goes by, up to a bound.
type hintCollector struct {
	Hints
	limits []limitSeen
	pool   poolSeen
	beside sizesSeen
}

// saidLine bounds what is kept of the words about a cause.
const saidLine = 160

// poolSeen is the last summary of a BFC allocator.
type poolSeen struct {
	limit, inUse *event.Bytes
}

var hintWords = []entry{
	{words: []string{"site-packages/torch", "site-packages\\torch", "torch\\utils",
		"dist-packages/torch", "import torch", "torchrun",
		"torch.distributed", "torch/distributed", "torch not compiled", "encountered in worker",
		"torch_xla", "xm.optimizer_step", "xm.mark_step",
		"ncclunique", "c10d key-value", "processgroupnccl", "torch.cuda", "torch/nn", "pytorch"},
		hint: saw("pytorch")},
	{words: []string{"tensorflow/", "tensorflow.python", "import tensorflow", "keras/"},
		hint: saw("tensorflow")},
	{words: []string{"xlaruntimeerror", "jaxlib", "jax/_src", "import jax", "jax.errors",
		"jaxruntimeerror", "external/org_tensorflow", "flaxauto", "modeling_flax", "flax.linen",
		"import flax", "from flax"}, hint: saw("jax")}, // as JAX builds XLA
	{words: []string{"ray.exceptions", "raylet", "import ray", "ray.tune"}, hint: saw("ray")},
	{words: []string{"transformers/trainer", "trainingarguments", "per_device_train_batch_size"},
		hint: trainer("transformers")},
	{words: []string{"lightning/", "pytorch_lightning", "lightning.pytorch", "gpu available: true",
		"auto_scale_batch_size", "scale_batch_size("},
		hint: trainer("lightning")},
	{words: []string{"deepspeed/", "train_micro_batch_size_per_gpu", "[deepspeed"},
		hint: trainer("deepspeed")},
	{words: []string{"accelerate launch", "accelerate/accelerator"}, hint: trainer("accelerate")},
	{words: []string{"torchtune/"}, hint: trainer("torchtune")},
	{words: []string{"axolotl"}, hint: trainer("axolotl")},
	{words: []string{"keras/engine", "keras/src", "model.fit", "tf.keras", "import keras",
		"from keras", "keras.models", "keras\\engine", "keras\\src", "keras/utils", "keras/backend"},
		hint: trainer("keras")},
	{words: []string{"sd-scripts", "kohya_ss", "kohya-ss", "fluxtrainer", "バッチサイズ",
		"library/train_util",
		"library\\train_util"}, hint: trainer("kohya")},
	{words: []string{"llamafactory", "llama-factory", "llama_factory", "llmtuner", "finetuning_type"},
		hint: trainer("llamafactory")},
	{words: []string{"ultralytics", "yolo task=", "yolo detect train", "yolo segment train",
		"imgsz="}, hint: trainer("ultralytics")},
	{words: []string{"mlx_lm", "mlx-lm", "mlx_vlm", "import mlx"}, hint: hintMLX},
	{words: []string{"/vllm/", "vllm.entrypoints", "gpu_memory_utilization", "max_model_len"},
		hint: trainer("vllm")},
	{words: []string{"per gpu", "per card", "per device", "on each gpu", "on each card"},
		hint: hintOneEach},
	{words: []string{"batch_size", "batch-size", "batch size", "batchsize", "ims_per_batch",
		"--batch", "batch=", "samples_per_gpu", "imgs_per_gpu", "images_per_gpu", "minibatch", "--bsz ",
		"gradient_accumulation_steps"}, hint: hintBatch},
	{words: []string{"max_seq_len", "seq_length", "sequence_len", "max_length", "block_size",
		"--seq_len"}, hint: hintSeq},
	{words: []string{"world_size", "nproc_per_node", "num_processes"}, hint: hintRanks},
	{words: []string{"mps_high_watermark_ratio"}, hint: hintWatermark},
	{words: []string{"expandable_segments:true", "max_split_size_mb:"}, hint: hintAllocConf},
	{words: []string{"torch.__version__", "torch version", "torch==", "torch=="}, hint: hintTorch},
	{words: []string{"loading checkpoint shards", "load_tensors:", "from_pretrained", "from_preset",
		"loading safetensors"}, follow: phase("load")},
	{words: []string{"loading model", "loading checkpoint from", "loading weights"},
		follow: announced("load")},
	{words: []string{"load_state_dict"}, follow: func(h *hintCollector, p *passage) {
		if p.at == 0 || p.window.buf[p.at-1] != 'f' { // else offload_state_dict
			h.Phase = "load"
		}
	}},
	{words: []string{"***** running evaluation", "evaluating", "validation sanity",
		"running prediction"}, follow: announced("eval")},
	{words: []string{"saving model checkpoint", "saving checkpoint", "save_checkpoint",
		"saving model weights", "save_16bit_model", "saving the model"},
		follow: func(h *hintCollector, p *passage) {
			if !saveSetting.MatchString(p.line()) {
				announced("save")(h, p)
			}
		}},
	{words: []string{"memory leak"}, hint: saysLeak},
	{words: []string{"memory keeps", "keeps increasing",
		"keeps growing", "memory usage increases", "memory grows", "grows over time",
		"slowly increas", "creeps up", "creep up", "steady increase", "steadily increas",
		"steadily grow", "gradually increas", "keeps rising", "keep increasing", "memory accumulates",
		"increases every epoch", "increases each epoch", "grows every epoch", "grows with every"},
		hint: says("leak")},
	{words: []string{"grows during", "grows while", "growing during", "growing while",
		"increases during", "increases while", "rises during", "grows steadily", "grow steadily",
		"growing steadily", "grows slowly", "grew steadily", "grew slowly", "grows until", "grew until",
		"increases steadily", "increased steadily", "increases slowly", "increases until",
		"rises steadily", "rises slowly", "rises until", "climbs steadily", "climbs slowly",
		"climbs until"}, hint: saysRise},
	{words: []string{"is increasing", "was increasing", "keep increas", "increases with",
		"increase with",
		"is growing", "keep growing", "grows with", "goes up with", "goes up after", "goes up every",
		"never comes down", "never goes down", "more and more", "increasing during", "increases linearly",
		"release the memory", "free the memory",
		"持续上涨", "逐渐增加", "逐渐增长", "逐渐上升", "一直增加", "不断增加", "越来越大", "持续增长"}, hint: saysRise},
	{words: []string{"reduce batch", "reduce the batch", "smaller batch", "decrease batch",
		"decrease your batch", "decrease the batch", "lower batch", "batch too large",
		"batch size too", "lower the batch",
		"reducing batch", "reducing the batch", "batch size was too", "too large batch",
		"reduce the context", "context length", "sequence too long", "reduce the resolution",
		"减小 batch", "减小batch"}, hint: saysBatch},
	{words: []string{"model too large", "model is too large", "model does not fit",
		"model doesn't fit", "smaller model", "too big for"}, hint: says("model")},
	{words: []string{"another process", "other users", "already in use by", "zombie process",
		"someone else"}, hint: says("neighbour")},
	{words: []string{"into memory", "whole dataset", "entire dataset", "dataset into ram",
		"load all data", "read_csv", "np.load(", "from_tensor_slices", "pickle.load"},
		hint: says("host_data")},
	{words: []string{"chunks of size"}, hint: hintChunk},
	{words: []string{"{'loss'", "running training", "train_loss", "epoch 1", "epoch: 1", "epoch [",
		"epoch: [",
		"training_step"}, follow: phase("train")},
	{words: []string{"global_step"}, follow: func(h *hintCollector, p *passage) {
		if p.at == 0 || p.window.buf[p.at-1] != '/' { // else a folder of a checkpoint
			h.Phase = "train"
		}
	}},
}

func saw(framework string) func(*hintCollector, *passage) {
	return func(h *hintCollector, _ *passage) {
		if h.Frameworks == nil {
			h.Frameworks = map[string]bool{}
		}
		h.Frameworks[framework] = true
	}
}

// trainerRank orders trainers by how much a mention means: a DeepSpeed config inside a Hugging Face
// run is set through Hugging Face, Lightning owns the loop wherever it appears.
var trainerRank = map[string]int{"accelerate": 1, "deepspeed": 2, "keras": 3, "transformers": 4,
	"torchtune": 5, "axolotl": 6, "lightning": 7, "vllm": 8,
	"llamafactory": 8, "ultralytics": 8, "kohya": 9, "mlx": 9}

func trainer(name string) func(*hintCollector, *passage) {
	return func(h *hintCollector, _ *passage) {
		if trainerRank[name] > trainerRank[h.Trainer] {
			h.Trainer = name
		}
	}
}

func phase(name string) func(*hintCollector, *passage) {
	return func(h *hintCollector, _ *passage) { h.Phase = name }
}

// wordsBefore is how many words may stand before those that announce a phase: a logger's name, a
// rank. In a sentence there are more.
const wordsBefore = 2

// announced is phase for words that people use in sentences, too.
func announced(name string) func(*hintCollector, *passage) {
	return func(h *hintCollector, p *passage) {
		start := p.window.lineStart(p.at)
		before := withoutPrefix(cleanLine(p.window.buf[start:p.at]))
		if len(plainWord.FindAllString(before, wordsBefore+1)) <= wordsBefore {
			h.Phase = name
		}
	}
}

// plainWord is a word as sentences have it.
var plainWord = later(`(?:^|\s)[A-Za-z']+(?:[\s,.]|$)`)

func says(what string) func(*hintCollector, *passage) {
	return func(h *hintCollector, p *passage) {
		line := strings.TrimSpace(p.line())
		if h.SaidOf == nil {
			h.SaidOf = map[string]string{}
		}
		if h.SaidOf[what] == "" && !strings.HasSuffix(line, "...") { // else announced, and then done
			if at := strings.Index(strings.ToLower(line), p.word); at > saidLine/4 && at < len(line) {
				line = "... " + strings.ToValidUTF8(line[at-saidLine/4:], "")
			}
			h.SaidOf[what] = cut(line, saidLine)
			h.Says = append(h.Says, what)
		}
	}
}

var (
	ofMemory    = later(`(?i)memory|\bv?ram\b|\brss\b|内存|显存`)
	notOfMemory = later(`(?i)\b(?:loss|accuracy|error|lr|learning rate|throughput)\b[^.\n]{0,30}(?:increas|grow|goes up)`)
)

// onlyPerhaps are sentences of programs and manuals that name a leak as one possibility, or deny
// it.
var onlyPerhaps = later(`(?i)\b(?:may|might|could|can|possibl[ey]|potential(?:ly)?|check(?:ing)?|detect\w*|avoid\w*|` +
	`prevent\w*|fix(?:e[sd])?|no|not a|without)\b[^.\n]{0,40}memory leak`)

// saysLeak notes that somebody names a leak.
func saysLeak(h *hintCollector, p *passage) {
	if !onlyPerhaps.MatchString(p.line()) {
		says("leak")(h, p)
	}
}

// saysRise notes that somebody saw memory rise.
func saysRise(h *hintCollector, p *passage) {
	if line := p.line(); ofMemory.MatchString(line) && !notOfMemory.MatchString(line) {
		says("leak")(h, p)
	}
}

var (
	batchValue = later(`(?i)(?:per_device_train_batch_size|train_micro_batch_size_per_gpu|micro_batch_size|train_batch_size|` +
		`batch[_\- ]?size(?:_per_\w+)?|ims_per_batch|samples_per_gpu|im(?:g|age)s_per_gpu|--batch|--bs|--bsz|minibatch|[ ,(]batch)["']?\s*` +
		`(?:[=:,]|(?:is|was|are)(?: set)?(?: to| at)?|set to|of| )\s*["']?(\d{1,6})\b`)
	otherValue = later(`(?i)(?:eval|evaluation|val|valid|validation|test|predict|infer\w*|total|global|effective)[_\- ]batch[_\- ]?size`)
	accumValue = later(`(?i)gradient_accumulation_steps["']?\s*[=: ]\s*["']?(\d{1,5})\b`)
	seqValue   = later(`(?i)(?:max_seq_len(?:gth)?|seq_length|sequence_len|max_length|block_size|--seq_len)["']?\s*[=: ]\s*["']?(\d{2,7})\b`)
	ranksValue = later(`(?i)(?:world_size|nproc_per_node|num_processes)["']?\s*[=: ]\s*["']?(\d{1,5})\b`)
	torchValue = later(`(?i)torch(?:\.__version__|\s?version| ?==)[^0-9\n]{0,12}(\d+\.\d+(?:\.\d+)?)`)
	confValue  = later(`PYTORCH_(?:CUDA_|HIP_)?ALLOC_CONF['"\]]*\s?[=:]\s?['"]?([\w:,.\[\]-]+)`)
)

// batchBlamed is what people write who found that the batch was too large.
var batchBlamed = later(`(?i)\b(?:lower|reduc|decreas|halv|dropp?|shrink|cut)\w*\s+(?:\w+ ){0,2}batch|` +
	`\bbatch[ _-]?size (?:of |to |from )?\d+ (?:works|runs|fits|is fine)|only batch[ _-]?size`)

// batchIsOne is what people write who have tried the smallest batch.
var batchIsOne = later(`(?i)\bno matter (?:what|which|how|the)\b[^.\n]{0,24}batch|regardless of (?:the )?` +
	`batch|(?:even|already) (?:with|at|using) (?:a )?(?:batch|bs)[ _-]?(?:size)?(?: of| =|=)? ?(?:1|one)\b|` +
	`batch[ _-]?size[^.\n]{0,30}\b(?:down to|until|to) (?:1|one)\b|` +
	`batch[ _-]?size[^，。\n]{0,12}(?:设为|设置为|改为|改成|已经?是|是|为)\s?1(?:\D|$)|` +
	`batch size per device[^\n=:]{0,12}[=:] ?1\b|batch size we found is 1\b|` +
	`batch[ _-]?size(?:[^.\n]|\.\w){0,30} to \[?(?:\d+ or )?1\b|batch size per (?:device|gpu|card) is (?:only )?1\b|` +
	`\b(?:one|1|single) (?:img|image|sample|example|clip|volume)s? (?:per|on each|on every|a) (?:gpu|card|device)`)

// inVain is what people write whom a smaller batch did not help.
var inVain = later(`(?i)\bbatch(?:[^.\n]|\.\w){0,90}(?:\bpersist\w*|\bstill\b|in vain|no effect|same (?:error|problem|issue)|` +
	`(?:not|n't|never) (?:help|work|solve|fix|change|matter|make (?:a|any) difference)\w*|no difference)|(?:n't|not|never) (?:\w+ ){0,3}(?:find|found|have|has|see) (?:\w+ ){0,2}batch|\beven (?:after|with|when|if|on)\b[^.\n]{0,80}\bbatch`)

// Batch sizes that did not fail: one that a tuner has tried, or that works according to the poster.
var (
	tunedTo    = later(`(?i)batch size \d+ succeeded, trying batch size (\d+)`)
	batchWorks = later(`(?i)^batch[ _-]?size (?:of )?\d+[^\n]{0,16}?[., ]\s?(?:\w+ ){0,3}?(?:works?|is fine|is ok|runs|fits|succeeded)\b`)
)

// afterWord is the text from the telling word on, a sentence or two.
func afterWord(p *passage) []byte {
	return p.window.buf[p.at:min(p.window.lineEnd(p.at), p.at+80)]
}

// saysBatch notes that somebody names the batch, unless it was made smaller in vain.
func saysBatch(h *hintCollector, p *passage) {
	if !inVain.MatchString(p.line()) {
		says("batch")(h, p)
	}
}

// hintOneEach notes that each card gets one sample.
func hintOneEach(h *hintCollector, p *passage) {
	if line := p.line(); batchIsOne.MatchString(line) && !oneWorks.MatchString(line) {
		h.Batch = 1
	}
}

// oneWorks is said of a batch of one that fits.
var oneWorks = later(`(?i)\b(?:works|is fine|is ok|runs|fits|succeed\w*)\b`)

func hintBatch(h *hintCollector, p *passage) {
	if batchIsOne.MatchString(p.line()) {
		h.Batch = 1
		return
	}
	if batchBlamed.MatchString(p.line()) {
		saysBatch(h, p)
	}
	if m := tunedTo.FindStringSubmatch(p.line()); m != nil { // the last one is what was tried
		h.Batch, _ = strconv.Atoi(m[1])
		return
	}
	if n := numberIn(batchValue, p); n > 0 && h.Batch == 0 && !ofOtherBatch(p) &&
		batchWorks.FindSubmatch(afterWord(p)) == nil {
		h.Batch = n
	}
	if n := numberIn(accumValue, p); n > 0 && h.Accumulate == 0 {
		h.Accumulate = n
	}
}

// ofOtherBatch reports whether the size belongs to evaluation, or to all ranks together.
func ofOtherBatch(p *passage) bool {
	from := max(p.window.lineStart(p.at), p.at-14)
	return otherValue.MatchString(string(p.window.buf[from:min(p.window.lineEnd(p.at), p.at+12)]))
}

func hintSeq(h *hintCollector, p *passage) {
	if n := numberIn(seqValue, p); n > 0 && h.Seq == 0 {
		h.Seq = n
	}
}

func hintRanks(h *hintCollector, p *passage) {
	if n := numberIn(ranksValue, p); n > 0 {
		h.Ranks = max(h.Ranks, n)
	}
}

func numberIn(re *expression, p *passage) int {
	from := max(p.window.lineStart(p.at), p.at-24)
	m := re.FindSubmatch(p.window.buf[from:min(p.window.lineEnd(p.at), p.at+64)])
	if m == nil {
		return 0
	}
	n, _ := strconv.Atoi(string(m[1]))
	return n
}

func hintTorch(h *hintCollector, p *passage) {
	if m := torchValue.FindStringSubmatch(p.line()); m != nil && h.Torch == "" {
		h.Torch = m[1]
	}
}

func hintAllocConf(h *hintCollector, p *passage) {
	line := p.line()
	if adviceAbout.MatchString(line) {
		return
	}
	if m := confValue.FindStringSubmatch(line); m != nil {
		h.AllocConf = strings.TrimRight(m[1], ".,")
	}
}

// wholeWeights matches the flag for training all weights, of a command that trains adapters by
// default.
var (
	mlxCommand   = later(`mlx_lm(?:\.| )lora\b`)
	wholeWeights = later(`fine-tune-type[= ](?:full|dora)`)
)

// hintMLX notes the trainer, and adapters where its command trains them.
func hintMLX(h *hintCollector, p *passage) {
	trainer("mlx")(h, p)
	if line := p.line(); mlxCommand.MatchString(line) && !wholeWeights.MatchString(line) {
		h.set("lora", "mlx_lm.lora")
	}
}

// watermarkOff is Apple's limit switched off, as a setting and not as the message's advice.
var watermarkOff = later(`\bPYTORCH_MPS_HIGH_WATERMARK_RATIO["']?[=:] ?["']?0(?:\.0+)?\b`)

// watermarkVain is what people write who know of the limit and ask for something else.
var watermarkVain = later(`(?i)\b(?:exc?ept|exept|besides|other than|apart from|already|tried|without|instead of)\b` +
	`[^.\n]{0,40}PYTORCH_MPS_HIGH_WATERMARK`)

// hintWatermark notes that the limit is off already. The message itself names the variable too, and
// inside a program it is set too late.
func hintWatermark(h *hintCollector, p *passage) {
	line := p.line()
	if watermarkVain.MatchString(line) {
		h.set("raise_limit", "PYTORCH_MPS_HIGH_WATERMARK_RATIO is not wanted, or was tried")
	}
	if watermarkOff.MatchString(line) && !strings.Contains(line, "to disable upper limit") &&
		!strings.Contains(line, "environ") && !adviceAbout.MatchString(line) {
		h.set("raise_limit", "PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0")
	}
}

var chunkLine = later(`(?i)\d+ Chunks of size (\d+) totalling`)

func hintChunk(h *hintCollector, p *passage) {
	if m := chunkLine.FindSubmatch(p.window.lineAround(p.at)); m != nil {
		if n, err := strconv.ParseInt(string(m[1]), 10, 64); err == nil {
			h.LargestChunk = max(h.LargestChunk, event.Bytes(n))
		}
	}
}

var (
	bfcLimit = later(`(?:memory_limit_:|\bLimit:)\s+(\d+)`)
	bfcInUse = later(`\bInUse:\s+(\d+)`)
)

func hintBFC(h *hintCollector, p *passage) {
	text := strings.Join(append(p.above(3), p.following(2)...), "\n")
	if m := bfcLimit.FindStringSubmatch(text); m != nil {
		h.pool.limit = parseSize(m[1], "")
	}
	if m := bfcInUse.FindStringSubmatch(text); m != nil {
		h.pool.inUse = parseSize(m[1], "")
	}
}

var (
	kubeLimit   = later(`(?i)\bmemory(?: limit)?["']?\s*[:=]\s*["']?(\d+(?:\.\d+)?)([KMGT]i?)?\b`)
	dockerLimit = later(`--memory[= ](\d+)([bkmgBKMG])?\b`)
	slurmLimit  = later(`--mem[= ](\d+)([KMGTkmgt])?[bB]?\b`)
	dockerBytes = later(`"Memory": (\d{6,})`)
)

// hintLimits keeps memory limits as they are declared, to be joined with a kill that names none.
func hintLimits(h *hintCollector, p *passage) {
	if len(h.limits) > 256 {
		return
	}
	at := p.window.offset(p.at)
	switch {
	case strings.HasPrefix(p.word, "--memory"):
		if m := dockerLimit.FindStringSubmatch(p.line()); m != nil {
			h.addLimit(at, parseSize(m[1], m[2]), "docker")
		}
	case strings.HasPrefix(p.word, "--mem"):
		if m := slurmLimit.FindStringSubmatch(p.line()); m != nil {
			unit := m[2]
			if unit == "" {
				unit = "M" // Slurm counts in megabytes
			}
			h.addLimit(at, parseSize(m[1], unit), "slurm")
		}
	case p.word == `"memory":`:
		if m := dockerBytes.FindStringSubmatch(p.line()); m != nil {
			h.addLimit(at, parseSize(m[1], ""), "docker")
		}
	default:
		text := strings.Join(p.following(4), "\n")
		text, _, _ = strings.Cut(text, "equests")
		if m := kubeLimit.FindStringSubmatch(text); m != nil {
			h.addLimit(at, kubeSize(m[1], m[2]), "kube")
		}
	}
}

// kubeSize reads a Kubernetes quantity, where G is 10^9 and Gi 2^30.
func kubeSize(number, unit string) *event.Bytes {
	decimal := map[string]float64{"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}[strings.ToUpper(unit)]
	if decimal == 0 {
		return parseSize(number, unit)
	}
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || v*decimal > 1e18 {
		return nil
	}
	b := event.Bytes(v * decimal)
	return &b
}

func (h *hintCollector) addLimit(at int64, b *event.Bytes, by string) {
	if b != nil && *b > 0 {
		h.limits = append(h.limits, limitSeen{at, *b, by})
	}
}

// finish hands the hints over and joins what stands apart in the log: pools with refusals, limits
// with kills.
func (h *hintCollector) finish(log *Log) {
	for i := range log.Crashes {
		c := &log.Crashes[i]
		switch c.Kind {
		case "tf_tensor", "tf_allocator", "tf_class":
			if c.Where == event.WhereGPU {
				c.Pooled = c.Capacity == nil && h.pool.limit != nil
				c.Capacity, c.Allocated = firstSize(c.Capacity, h.pool.limit),
					firstSize(c.Allocated, h.pool.inUse)
			}
		case "kernel_kill", "kernel_invoked":
			if c.Where == event.WhereCgroup {
				c.Capacity = firstSize(c.Capacity, h.nearest(c.offset, "kernel"),
					h.nearest(c.offset, "docker"), h.nearest(c.offset, "kube"))
			}
		case "kube_oom":
			c.Capacity = firstSize(c.Capacity, h.nearest(c.offset, "kube"),
				h.nearest(c.offset, "docker"))
		case "slurm_oom", "slurm_state":
			c.Capacity = firstSize(c.Capacity, h.nearest(c.offset, "slurm"))
		case "exit_137", "bare_kill":
			if limit := h.nearest(c.offset, "docker"); limit != nil {
				c.Where, c.Capacity = event.WhereCgroup, limit
			}
		}
	}
	settleFigures(log, h.beside)
	log.Hints = h.Hints
}

// nearest returns the limit declared closest to a place in the log.
func (h *hintCollector) nearest(offset int64, by string) *event.Bytes {
	var best *limitSeen
	for i := range h.limits {
		l := &h.limits[i]
		if l.by == by && (best == nil || distance(l.offset, offset) < distance(best.offset,
			offset)) {
			best = l
		}
	}
	if best == nil {
		return nil
	}
	return &best.bytes
}

func distance(a, b int64) int64 { return max(a-b, b-a) }

// saveSetting is a setting of where and when checkpoints are saved: none is being saved there.
var saveSetting = later(`(?i)-save_checkpoint|save_checkpoint(?:s?_\w+|["']?\s*[=:])`)
