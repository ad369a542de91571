package diagnose

import "memroom/remedy"

// situation is what a detail of an explanation means: how the verdict ends, and what helps.
type situation struct {
	reason string // a clause; empty: the cause speaks for itself
	cures  []remedy.ID
	alone  bool // only these cures; else those of the cause follow
}

var situations = map[string]situation{
	// evaluation and generation
	"eval_outputs": {"the outputs (logits) of all evaluation batches are kept until the metrics are " +
		"computed",
		[]remedy.ID{remedy.EvalOutputs, remedy.EvalBatch, remedy.RaiseLimit}, true},
	"eval_batch": {"a batch of evaluation is too large (its batch size is not that of training)",
		[]remedy.ID{remedy.EvalBatch, remedy.NoGrad, remedy.EvalOutputs, remedy.EmptyCache}, true},
	"generation": {"generation keeps keys and values of every token, beam and sequence",
		[]remedy.ID{remedy.GenerationCache, remedy.EvalBatch, remedy.Quantize8Bit,
			remedy.ShorterSequence, remedy.DeviceMap}, true},
	"kv_cache": {"what the model itself needs leaves too little for the cache of keys and values",
		[]remedy.ID{remedy.ServingShare, remedy.ShorterSequence, remedy.MicroBatch,
			remedy.Quantize8Bit, remedy.DeviceMap, remedy.FreeNeighbour}, false},
	"serving_warmup": {"what an inference engine takes beside weights and cache does not fit (requests " +
		"at once, CUDA graphs)", []remedy.ID{remedy.ServingShare, remedy.CUDAGraphSizes,
		remedy.ShorterSequence}, true},
	"dispatched": {"the weights, even packed, do not fit the cards",
		[]remedy.ID{remedy.DeviceMap, remedy.Quantize4Bit, remedy.Quantize8Bit,
			remedy.FreeNeighbour}, true},
	"serving_start": {"", []remedy.ID{remedy.ServingShare, remedy.FreeNeighbour,
		remedy.ShorterSequence}, false},

	// stages of training
	"logits": {"the logits over the vocabulary are too large for one batch",
		[]remedy.ID{remedy.ChunkedLoss, remedy.MicroBatch, remedy.ShorterSequence,
			remedy.FSDP, remedy.LoRA, remedy.Checkpointing}, false},
	"pairs": {"all pairs of boxes or points are in memory at once: samples with many objects set the " +
		"peak",
		[]remedy.ID{remedy.FewerPairs, remedy.MicroBatch, remedy.LongestBatch,
			remedy.SmallerImage}, true},
	"images": {"the parts of the image generator do not fit beside each other",
		[]remedy.ID{remedy.PipelineOffload, remedy.SmallerImage, remedy.Quantize8Bit,
			remedy.MicroBatch}, true},
	"attention": {"the scores of all pairs of tokens are kept, which grow with the square of the " +
		"length",
		[]remedy.ID{remedy.Attention, remedy.MicroBatch, remedy.ShorterSequence,
			remedy.Checkpointing}, true},
	"library_start": {"a GPU library found no room for its handle beside what was taken already",
		[]remedy.ID{remedy.TFGrowth, remedy.FreeNeighbour, remedy.MicroBatch}, true},
	"optimizer_step": {"what the model itself needs does not fit (weights, gradients, optimizer state)",
		[]remedy.ID{remedy.OptimizerFused, remedy.OptimizerOffload, remedy.Optimizer8Bit,
			remedy.OptimizerAdafactor, remedy.SmallerLayer}, false},
	"backward": {"the activations of one batch are too large (in the backward pass)", nil, false},
	"forward":  {"the activations of one batch are too large (in the forward pass)", nil, false},
	"longest_batch": {"one batch needs more than all before it: its samples are longer",
		[]remedy.ID{remedy.LongestBatch, remedy.ShorterSequence, remedy.MicroBatch,
			remedy.Checkpointing}, true},
	"late": {"", []remedy.ID{remedy.LongestBatch, remedy.Detach, remedy.MicroBatch,
		remedy.ShorterSequence, remedy.EmptyCache}, true},
	"open": {"", []remedy.ID{remedy.MicroBatch, remedy.Checkpointing, remedy.OptimizerOffload,
		remedy.MixedPrecision, remedy.LoRA, remedy.RaiseLimit, remedy.TFGrowth,
		remedy.ShorterSequence, remedy.SmallerImage}, true},
	"oversized": {"one tensor alone is larger than the card",
		[]remedy.ID{remedy.CheckShapes, remedy.Attention, remedy.MicroBatch,
			remedy.ShorterSequence}, true},
	"bad_size": {"", []remedy.ID{remedy.CheckShapes, remedy.OtherVersion}, true},

	// weights on their way from and to a disk
	"load": {"what the model itself needs does not fit (while loading)",
		[]remedy.ID{remedy.LoadOnce, remedy.Quantize8Bit, remedy.Quantize4Bit, remedy.DeviceMap,
			remedy.FSDP, remedy.RaiseLimit}, false},
	"load_to_card": {"the checkpoint was loaded to the card it was saved from, beside what is there",
		[]remedy.ID{remedy.LoadToHost, remedy.FreeNeighbour, remedy.SelectCard}, true},
	"load_beside": {"", []remedy.ID{remedy.LoadToHost, remedy.FreeNeighbour, remedy.SelectCard}, true},
	"checkpoint_save": {"while saving, the copies for the checkpoint did not fit",
		[]remedy.ID{remedy.SaveSharded, remedy.EmptyCache, remedy.RaiseLimit}, true},
	"full_state_dict": {"the whole state dict was gathered to save a checkpoint",
		[]remedy.ID{remedy.SaveSharded, remedy.EmptyCache, remedy.RaiseLimit}, true},
	"joining": {"joining the shards of a checkpoint needs the whole model in host memory",
		[]remedy.ID{remedy.RaiseLimit, remedy.SaveSharded}, true},
	"merge": {"merging the adapters needs the full weights beside what is there",
		[]remedy.ID{remedy.MergeOnHost, remedy.DeviceMap, remedy.LoadOnce, remedy.EmptyCache,
			remedy.RaiseLimit}, true},

	// several ranks
	"ranks_load": {"each rank loads the whole model into host memory",
		[]remedy.ID{remedy.LoadOnce, remedy.ShardAtLoad, remedy.RaiseLimit}, true},
	"offload_host": {"the optimizer's state and weights that are offloaded to host memory do not fit " +
		"there",
		[]remedy.ID{remedy.OffloadLess, remedy.LoRA, remedy.RaiseLimit, remedy.LoadOnce}, true},
	"not_sharded": {"the model is not sharded, although it is configured to be",
		[]remedy.ID{remedy.ShardAtLoad, remedy.FSDP, remedy.ZeRO}, false},
	"first_card": {"DataParallel gathers all outputs on the first card, which holds the loss too",
		[]remedy.ID{remedy.DDP, remedy.MicroBatch}, true},
	"ranks_on_card": {"", []remedy.ID{remedy.SelectCard, remedy.FreeNeighbour}, false},

	// the system
	"cuda_graphs": {"CUDA graphs keep a private pool for each input size",
		[]remedy.ID{remedy.CUDAGraphSizes, remedy.LongestBatch}, true},
	"pinned": {"", []remedy.ID{remedy.PinMemory, remedy.WSLMemory, remedy.DataLoaderWorkers}, true},
	"wsl": {"", []remedy.ID{remedy.WSLMemory, remedy.PinMemory, remedy.PageFile,
		remedy.DataLoaderWorkers}, true},
	"own_cap": {"the program's own cap was reached, not the card", []remedy.ID{remedy.MicroBatch},
		true},
	"refused": {"", []remedy.ID{remedy.PageFile, remedy.ExpandableSegments}, true},
	"page_file": {"Windows' commit limit was reached: the page file is too small",
		[]remedy.ID{remedy.PageFile, remedy.DataLoaderWorkers, remedy.StreamData}, true},
	"mps_elsewhere": {"most of it is not PyTorch's pool but other allocations of the process",
		[]remedy.ID{remedy.RaiseLimit, remedy.MicroBatch, remedy.ShorterSequence}, true},
	"one_piece": {"the driver refuses single allocations of that size, not the card",
		[]remedy.ID{remedy.MicroBatch, remedy.ShorterSequence}, true},
	"board": {"on such a board host and card share one memory",
		[]remedy.ID{remedy.MicroBatch, remedy.MixedPrecision, remedy.Quantize8Bit,
			remedy.DataLoaderWorkers}, true},
	"context": {"", []remedy.ID{remedy.FreeNeighbour, remedy.SelectCard, remedy.TFGrowth}, true},

	// the loader and other data in host memory
	"workers": {"DataLoader workers hold copies of the data and prefetched batches",
		[]remedy.ID{remedy.DataLoaderWorkers, remedy.StreamData, remedy.PinMemory,
			remedy.RaiseLimit}, true},
	"pool_workers": {"the worker processes together need more host memory than there is",
		[]remedy.ID{remedy.FewerProcesses, remedy.MapProcesses, remedy.DataLoaderWorkers,
			remedy.StreamData, remedy.RaiseLimit}, true},
	"full_before": {"the card was full before this program needed much",
		[]remedy.ID{remedy.FreeNeighbour, remedy.TFGrowth, remedy.SelectCard}, true},
	"growth_seen": {"the program's own figures of memory rise from step to step",
		[]remedy.ID{remedy.Detach, remedy.NoGrad, remedy.RemoveHooks, remedy.DataLoaderWorkers,
			remedy.EmptyCache, remedy.FreshProcess}, true},
	"spawn_copy": {"each spawned worker gets its own copy of the whole data set",
		[]remedy.ID{remedy.DataLoaderWorkers, remedy.StreamData, remedy.PageFile}, true},
	"fork": {"the kernel would not promise the parent's memory to another process",
		[]remedy.ID{remedy.MapProcesses, remedy.DataLoaderWorkers, remedy.StreamData}, true},
	"map_writer": {"the processes of map hold their results and captured objects in host memory",
		[]remedy.ID{remedy.MapProcesses, remedy.StreamData, remedy.RaiseLimit}, true},
	"shuffle_buffer": {"the shuffle buffer holds more decoded elements than there is memory",
		[]remedy.ID{remedy.ShuffleBuffer, remedy.TFDataBudget, remedy.StreamData,
			remedy.RaiseLimit}, true},
	"data_on_card": {"the data held at once is too large for the card",
		[]remedy.ID{remedy.StreamData, remedy.MicroBatch}, false},

	// trials
	"trial_packing": {"", []remedy.ID{remedy.FewerTrials, remedy.TrialResources,
		remedy.DataLoaderWorkers, remedy.StreamData, remedy.RaiseLimit}, true},
	"trial_left": {"a process of an earlier trial is probably still there",
		[]remedy.ID{remedy.WaitForGPU, remedy.FreshProcess, remedy.FreeNeighbour}, true},
	"trials_in_process": {"earlier trials of the same process may still hold their models",
		[]remedy.ID{remedy.FreshProcess, remedy.ClearSession, remedy.EmptyCache,
			remedy.MicroBatch}, true},
	"resumed": {"what was loaded from the checkpoint may still be held beside the model",
		[]remedy.ID{remedy.LoadToHost, remedy.OptimizerOffload, remedy.MicroBatch,
			remedy.Checkpointing}, true},
	"models_in_loop": {"earlier models of the same process are still in memory",
		[]remedy.ID{remedy.ClearSession, remedy.FreshProcess, remedy.SmallerLayer,
			remedy.OptimizerAdafactor}, true},
	"object_store": {"objects that are still referenced fill it",
		[]remedy.ID{remedy.ObjectStore, remedy.RayBlocks, remedy.FewerTrials}, true},
	"ray_data": {"Ray Data holds more blocks and buffers than the node has room for",
		[]remedy.ID{remedy.RayBlocks, remedy.ObjectStore, remedy.TrialResources,
			remedy.FewerTrials}, true},
}

// cures lists the remedies of a cause, best first: those that keep the mathematics and cost little
// before the others.
var cures = map[Cause][]remedy.ID{
	CauseBatch: {remedy.MicroBatch, remedy.Checkpointing, remedy.MixedPrecision,
		remedy.ExpandableSegments, remedy.ActivationOffload, remedy.TFGrowth,
		remedy.ShorterSequence, remedy.SmallerImage},
	CauseModel: {remedy.OptimizerFused, remedy.OptimizerOffload, remedy.ZeRO, remedy.FSDP,
		remedy.DeviceMap, remedy.LoRA, remedy.Optimizer8Bit,
		remedy.Quantize8Bit, remedy.Quantize4Bit, remedy.MixedPrecision, remedy.RaiseLimit},
	CauseFragmentation: {remedy.ExpandableSegments, remedy.TFAllocator, remedy.Roundup,
		remedy.MaxSplitSize, remedy.GCThreshold, remedy.EmptyCache, remedy.MicroBatch},
	CauseLeak: {remedy.Detach, remedy.KeepLess, remedy.NoGrad, remedy.RemoveHooks,
		remedy.EmptyCache, remedy.DataLoaderWorkers, remedy.RaiseLimit},
	CauseNeighbour: {remedy.FreeNeighbour, remedy.SelectCard, remedy.TFGrowth, remedy.MicroBatch,
		remedy.Checkpointing, remedy.MixedPrecision, remedy.ShorterSequence, remedy.Quantize8Bit},
	CauseHostData: {remedy.StreamData, remedy.TFDataBudget, remedy.DataLoaderWorkers,
		remedy.PinMemory, remedy.RaiseLimit, remedy.MicroBatch,
		remedy.TrialResources, remedy.MixedPrecision, remedy.TFAllocator},
	CauseShm: {remedy.ShmSize, remedy.DataLoaderWorkers, remedy.MicroBatch},
	CauseUnknown: {remedy.TrialResources, remedy.RaiseLimit, remedy.DataLoaderWorkers,
		remedy.StreamData, remedy.TFDataBudget, remedy.PinMemory, remedy.MicroBatch},
}
