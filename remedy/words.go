package remedy

import (
	"fmt"
	"strings"

	"memroom/event"
)

// trains reports whether words about gradients, losses and optimizers have a place: a model is
// trained, or the job was watched and nothing shows otherwise.
func (job Job) trains() bool {
	return job.Work == Training || job.Facts == nil && !job.Inference
}

// accumulates reports whether gradients can be added up over smaller batches, in code that we can
// write.
func (job Job) accumulates() bool {
	return job.trains() && (job.Facts == nil || job.Facts[Networks])
}

// batched reports whether words about a batch have a place: one is shown, or the job was watched.
func (job Job) batched() bool {
	return job.Facts == nil || job.Facts[Batches] || job.Batch > 1
}

// Maker is who made the card: its tools and its variables have other names.
type Maker string

// The makers whose tools are named. A card of another maker has none here.
const (
	NVIDIA Maker = ""
	AMD    Maker = "amd"
	Intel  Maker = "intel"
	Google Maker = "google" // TPU
	Ascend Maker = "ascend"
	Others Maker = "others" // Gaudi and so on
)

// device is what PyTorch calls the card.
func (job Job) device() string {
	switch {
	case job.Where == event.WhereMPS:
		return "mps"
	case job.Maker == Intel:
		return "xpu"
	case job.Maker == Google:
		return "xla"
	case job.Maker == Ascend:
		return "npu"
	}
	return "cuda"
}

// visible is the variable that chooses a card, and processes the command that lists who is on it.
// Both are empty where we know none.
func (job Job) visible() (variable, processes string) {
	switch job.Maker {
	case NVIDIA:
		return "CUDA_VISIBLE_DEVICES",
			"nvidia-smi --query-compute-apps=pid,used_memory,process_name --format=csv"
	case AMD:
		return "HIP_VISIBLE_DEVICES", "rocm-smi --showpids"
	case Intel:
		return "ZE_AFFINITY_MASK", "xpu-smi ps"
	case Ascend:
		return "ASCEND_RT_VISIBLE_DEVICES", "npu-smi info"
	}
	return "", ""
}

// onHost reports whether it is host memory that ran out.
func (job Job) onHost() bool {
	return job.Where == event.WhereHost || job.Where == event.WhereCgroup
}

// letGo returns the code that frees what names held.
func (job Job) letGo(names string) string {
	code := "del " + names + "; gc.collect()"
	if job.Framework == PyTorch && !job.onHost() {
		code += "; torch." + job.device() + ".empty_cache()"
	}
	return code
}

// TitleFor is the title in the words of the job's framework and work, with the number of pieces
// where that is known.
func (r *Remedy) TitleFor(job Job) string {
	title := r.titleFor(job)
	if _, ok := switches[r.ID]; !ok || job.Facts == nil || job.Setup != nil {
		return title
	}
	if rest, ok := strings.CutPrefix(title, ifTrained); ok {
		return strings.TrimSuffix(ifTrained, ": ") + ", and " +
			strings.TrimPrefix(switches[r.ID], "if ") + rest
	}
	return switches[r.ID] + title
}

// switches are remedies that a program has or has not on, and most logs do not say which. Their
// words leave that open.
var switches = map[ID]string{
	Checkpointing: "if it is still off: ", MixedPrecision: "if it runs in fp32: ",
	Optimizer8Bit: "if it is Adam in full precision: ", OptimizerAdafactor: "if it is Adam: ",
	OptimizerOffload: "if it is still on the card: ", LoRA: "if all weights are trained: ",
	FSDP: "if every rank holds all of it: ", ZeRO: "if every rank holds all of it: ",
	Quantize8Bit: "if the weights are not packed yet: ",
	Quantize4Bit: "if the weights are not packed yet: ",
	HalfWeights:  "if the weights are fp32: ", Attention: "if it is not in use: ",
	NoGrad: "if a graph is recorded there: ", PipelineOffload: "if it is not in use: ",
	LoadToHost: "if it is loaded to the card: ",
}

// ifTrained is said where the log does not show that a model is trained.
const ifTrained = "if a model is trained: "

func (r *Remedy) titleFor(job Job) string {
	switch {
	case job.perhaps(conditions[r.ID]):
		return ifTrained + r.Title
	case r.ID == PageFile && job.Facts != nil && !job.Facts[Windows]:
		return "on Windows: enlarge the page file"
	case r.ID == TreeData && job.Facts[FramesOnly]:
		return "keep less of the table on the card"
	case r.ID == MicroBatch && job.Work == Serving:
		return "take fewer or smaller requests at once"
	case r.ID == MicroBatch && !job.batched():
		return "give it less at once: smaller inputs, or fewer of them"
	case r.ID == MicroBatch && job.Inference:
		return "take fewer samples or requests at once"
	case r.ID == MicroBatch && r.inGeneral(job) && job.accumulates():
		return "take a smaller batch, and accumulate gradients over several"
	case r.ID == MicroBatch && r.inGeneral(job):
		return "take a smaller batch"
	case r.ID == MicroBatch && !job.accumulates():
		return "take fewer samples at once"
	case r.ID == MicroBatch && job.Pieces <= 1 && job.accumulates() && job.Trainer != Plain &&
		job.Batch > 1 && equalPieces(job.Batch, 2) > 2:
		return fmt.Sprintf("split the batch into %d micro-batches and accumulate their gradients",
			equalPieces(job.Batch, 2))
	case r.ID == MicroBatch && job.Pieces > 1:
		pieces := job.Pieces
		if job.Trainer != Plain && job.Batch > 0 {
			pieces = equalPieces(job.Batch, pieces) // trainers take whole batches only
		}
		return fmt.Sprintf("split the batch into %d micro-batches and accumulate their gradients",
			pieces)
	case r.ID == LongestBatch && job.Facts != nil && !job.Facts[Text]:
		return "run the largest samples first, and bound their size"
	case r.ID == KeepLess && job.Facts != nil:
		return "keep less from step to step"
	case r.ID == ObjectStore && job.Asked > job.Limit && job.Limit > 0:
		return "put it into Ray's object store in pieces"
	case r.ID == ServingShare && job.Program == "triton":
		return "let the server hold fewer copies of the models, and take smaller batches"
	case r.ID == ServingShare && (job.Program == "llama.cpp" || job.Program == "ollama"):
		return "use a shorter context, a smaller batch of the prompt, or fewer layers on the card"
	case r.ID == SmallerImage && !job.trains():
		return "use smaller images"
	case r.ID == Detach && job.Framework == TensorFlow:
		return "keep numbers, not tensors"
	case r.ID == Detach && !job.trains():
		return "keep numbers or copies without their graph"
	case r.ID == StreamData && job.onHost() && job.Facts[Caching]:
		return "do not cache decoded samples in host memory"
	case r.ID == StreamData && job.onHost() && !job.readsFiles():
		return "work on parts instead of holding all of it at once"
	case r.ID == LoadOnce && job.Facts != nil && !job.Facts[Ranks]:
		return "load the weights in their own precision, without a second copy"
	case r.ID == DDP && r.howTo(job).Code == "":
		return "start one process for each card, not one for all (DataParallel)"
	case r.ID == SaveSharded && job.Facts[Shards] && !job.onHost():
		return "copy the shards to host memory as they are put together"
	case r.ID == SaveSharded && job.onHost():
		return "save the shards, not the whole state dict"
	case r.ID == PipelineOffload && job.Where == event.WhereMPS:
		return "decode in tiles, and keep fewer parts of the pipeline loaded at once"
	case r.ID == PipelineOffload && job.Facts[DrawTrained]:
		return "keep on the card only the part that is trained"
	case r.ID == PipelineOffload && job.Trainer == Kohya:
		return "let parts of the model wait in host memory"
	case r.ID == SaveSharded && !job.shards():
		return "copy the weights to host memory one by one, and save those"
	case r.ID == RaiseLimit && job.Where == event.WhereMPS && job.Framework != PyTorch &&
		job.Facts != nil:
		return "let the GPU lock more of the machine's memory"
	case r.ID == RaiseLimit && job.Dask:
		return "give each worker more memory, or fewer tasks at once"
	case r.ID == RaiseLimit && job.Where == event.WhereHost && !job.HostLimit && !job.Slurm:
		return "use a machine with more memory, or raise the job's limit on host memory"
	case r.ID == RaiseLimit && job.onHost():
		return "raise the job's limit on host memory"
	}
	if title := r.titles[job.Framework]; title != "" {
		return title
	}
	return r.Title
}

// shards reports whether the job divides its weights over ranks.
func (job Job) shards() bool {
	return job.Facts == nil || job.Facts[Ranks] || job.Facts[Split]
}

// WhyFor describes the remedy's effect on memory, in words that fit the job.
func (r *Remedy) WhyFor(job Job) string {
	switch {
	case r.ID == MicroBatch && !job.batched():
		return "what is computed on the way grows with what the program is given at once"
	case r.ID == MicroBatch && !job.accumulates():
		return "what is computed for one batch, and the batch itself, shrink with the number of samples"
	case r.ID == MixedPrecision && !job.trains():
		return "what matrix products compute takes two bytes a number instead of four"
	case r.ID == SmallerLayer && job.Facts[Table] && job.Work == Loading:
		return "one table has a row for every word or class"
	case r.ID == SmallerLayer && job.Facts[Table]:
		return "one table has a row for every word or class, and Adam keeps two more of its size"
	case r.ID == TreeData && (job.Facts[LightGBM] || job.Facts[CatBoost]):
		return "the card holds the table as bins and a histogram for each node"
	case r.ID == TreeData && job.Facts[FramesOnly]:
		return "every frame, and what an operation makes of it, lies on the card as a whole"
	case r.ID == Detach && job.Framework == TensorFlow:
		return "a tensor that is put in a list stays, with its memory"
	case r.ID == Detach && !job.trains():
		return "a tensor that is put in a list stays, with all that it was computed from"
	case (r.ID == Quantize8Bit || r.ID == Quantize4Bit) && job.trains():
		return r.Why + "; to train such a model, add adapters (LoRA)"
	case r.ID == StreamData && job.onHost() && job.Facts[Caching]:
		return "decoded images are many times larger than their files, and the cache holds all of them"
	case r.ID == StreamData && job.onHost() && !job.readsFiles():
		return "only one part is in memory at any moment"
	case r.ID == LoadOnce && job.Facts != nil && !job.Facts[Ranks]:
		return "the model is built first and then the file is read, both in host memory; fp32 is twice " +
			"the size of the file where that holds half precision"
	case r.ID == SaveSharded && job.Facts[Shards] && !job.onHost():
		return "shards of weights and states lie on the card twice until they are written"
	case r.ID == SaveSharded && job.onHost():
		return "a whole state dict in one process needs host memory for all weights and states"
	case r.ID == PipelineOffload && job.Where == event.WhereMPS:
		return "decoding a whole image or clip at once is the peak; host and GPU share one memory there"
	case r.ID == PipelineOffload && job.Facts[DrawTrained]:
		return "the encoders of texts and images are not trained, and their results can be kept"
	case r.ID == PipelineOffload && job.Trainer == Kohya:
		return "blocks are copied to the card when they compute; encoders need not be there at all once " +
			"their results are kept"
	case r.ID == SaveSharded && !job.shards():
		return "copies that are made on the card for the file need room there"
	case r.ID == LongestBatch && job.Facts != nil && !job.Facts[Text]:
		return "one sample that is larger than the others sets the peak of the whole run"
	case r.ID == KeepLess && job.Facts != nil:
		return "what is added at every step stays: lists, caches, histories, or points and nodes that the program makes"
	case r.ID == RaiseLimit && job.Where == event.WhereMPS && job.Framework != PyTorch &&
		job.Facts != nil:
		return "the GPU may lock only a part of the machine's memory"
	case r.ID == RaiseLimit && job.Dask:
		return "the limit is Dask's own, not the machine's"
	case r.ID == RaiseLimit && job.Where == event.WhereHost && !job.HostLimit && !job.Slurm:
		return "the machine has no more to give, unless a limit of its own ended it"
	case r.ID == EvalOutputs && job.onHost() && job.Facts != nil:
		return "results of all batches stay in host memory until the metrics are computed, and are copied " +
			"when they are gathered or written"
	case r.ID == ObjectStore && job.Asked > job.Limit && job.Limit > 0:
		return "an object must fit into the store as a whole"
	case r.ID == ServingShare && job.Program == "triton":
		return "every copy of every model has weights and work space of its own on the card"
	case r.ID == ServingShare && (job.Program == "llama.cpp" || job.Program == "ollama"):
		return "the cache and the work of a prompt grow with the context; layers that are not on the card stay " +
			"in host memory"
	case r.ID == SelectCard && job.Framework == TensorFlow:
		return "every process takes nearly all of each card that it sees"
	case r.ID == ShorterSequence && !job.trains():
		return "what is kept of every token grows with the length; one long input sets the peak"
	}
	return r.Why
}
