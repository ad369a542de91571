package lint

import "memroom/event"

// Rule is one known mistake.
type Rule struct {
	ID       string
	Severity event.Severity
	Title    string // what it is, in a few words
	Why      string // why it costs memory, or what the belief gets wrong
	Fix      string // what to write instead
	Remedy   string // id in package remedy, "" if none
}

// Rules lists every rule: kept graphs, accumulation, evaluation, the step, data, cards, frameworks.
func Rules() []Rule { return rules }

// Find gives the rule with this id.
func Find(id string) (Rule, bool) {
	for _, r := range rules {
		if r.ID == id {
			return r, true
		}
	}
	return Rule{}, false
}

// Hint is the severity of what is no finding: whether the code has this cost is decided by
// something the file does not show. A rule may be one as a whole, or the walk says so for a case.
const Hint event.Severity = "hint"

const (
	wrong  = event.SeverityError   // leaks, or computes something else than meant
	costly = event.SeverityWarning // costs memory or time for nothing
	sized  = event.SeverityInfo    // holds; whether it matters depends on sizes
)

var rules = []Rule{
	// graphs that are kept
	{"loss-graph-accumulated", wrong, "loss summed with its graph",
		"A loss tensor holds the graph that made it. backward() frees the activations it passes; " +
			"the graph itself, and the activations of every branch without a backward, stay as " +
			"long as the sum.",
		"Add a number: `total += loss.item()`. Or add `loss.detach()`, which does not wait for " +
			"the card.", "detach"},
	{"graph-kept-in-list", wrong, "tensors kept with their graph",
		"Each tensor keeps the graph it was computed with, and every activation that no backward " +
			"has freed. Memory grows with every iteration.",
		"Keep `x.detach()`, or `x.item()` for a single number, or `x.detach().cpu()`. Average " +
			"weights under `torch.no_grad()`.", "detach"},
	{"graph-kept-here", sized, "where a tensor is kept with its graph",
		"What a caller hands over with its graph stays here as long as the container.",
		"Keep a number: `float(value)`, or `value.detach()`. Or let the caller hand one over.",
		"detach"},
	{"meter-may-keep-graph", Hint, "loss handed to a meter with its graph",
		"A meter that adds up tensors keeps the graph of every iteration until it is reset. " +
			"Whether this one does is in another file.",
		"Hand over a number: `meter.update(loss.item())`.", "detach"},
	{"hook-keeps-tensors", wrong, "hook keeps what it sees",
		"The hook runs at every pass, so the list grows for ever, with the graph of every tensor " +
			"in it.",
		"Append `output.detach()`, empty the list after use, and remove the hook " +
			"(`handle.remove()`) when done.", "remove_hooks"},
	{"module-keeps-tensors", wrong, "module keeps its outputs",
		"What is stored on the module outlives the step, in training together with its graph.",
		"Store `x.detach()` (or `.item()`), and empty the list when it has been read: " +
			"`self.outputs.clear()` at the end of the epoch.", "detach"},
	{"cache-keeps-tensors", wrong, "cache that keeps tensors",
		"A cache holds every result it has seen, on the card and, in grad mode, together with the " +
			"graph and its activations.",
		"Compute it under `torch.no_grad()`, return `x.detach().cpu()`, and bound the cache " +
			"(`lru_cache(maxsize=256)`).", "detach"},
	{"hidden-state-not-detached", wrong, "hidden state carried with its graph",
		"Backward then goes through all earlier batches. Memory grows until it runs out.",
		"Cut the graph between batches: `hidden = hidden.detach()`. For an LSTM: " +
			"`tuple(h.detach() for h in hidden)`.", "detach"},
	{"retain-graph-in-loop", costly, "graph retained for nothing",
		"retain_graph keeps the activations after backward. Those of the next iteration come on " +
			"top.",
		"Call `backward()` without it. If an error then names a second backward, some tensor is " +
			"carried over from an earlier iteration: detach that one.", "detach"},
	{"backward-create-graph", costly, "gradients that keep their graph",
		"With create_graph=True the gradients are part of a graph that refers to the parameters. " +
			"The cycle is not freed when the iteration ends.",
		"Use `torch.autograd.grad(loss, parameters, create_graph=True)`, or set `p.grad = None` " +
			"after each use.", "detach"},
	{"exception-kept", costly, "exception kept with its frames",
		"An exception refers to its traceback, the traceback to every frame of the failed call, " +
			"and the frames to their tensors.",
		"Keep the text: `errors.append(str(e))`. Or call `traceback.clear_frames(e.__traceback__)` " +
			"first.", ""},
	{"retry-in-handler", costly, "retry while the exception is alive",
		"Inside the except block the exception is alive. It holds the frames of the failed call, " +
			"so their tensors cannot be freed, and empty_cache() finds nothing to return.",
		"Only note the failure in the handler (`failed = True`). Retry after the except block has " +
			"ended. In a notebook the last traceback (sys.last_traceback) holds it too.", ""},
	{"model-copies-kept", costly, "copies of the model pile up",
		"Each copy is as large as the weights and stays on the model's device.",
		"Write checkpoints to disk (torch.save), or keep only the best copy, on the CPU: " +
			"`{k: v.cpu().clone() for k, v in model.state_dict().items()}`.", ""},

	{"metric-never-reset", costly, "metric that is never reset",
		"Some metrics (AUROC, average precision, CatMetric, mAP) keep all predictions and targets " +
			"until they are reset. compute() does not reset them.",
		"Call `metric.reset()` after `compute()`, or log the metric object itself in Lightning, " +
			"which resets it. A binned form (`thresholds=200`) keeps counts only.", ""},
	{"optimizers-kept", costly, "optimizers pile up",
		"An optimizer keeps its state for every parameter: two moments, 8 bytes a parameter for " +
			"Adam. Kept in a list, the state of all of them stays on the card.",
		"Keep only the current optimizer, or one number of each (`opt.param_groups[0]['lr']`).", ""},

	// accumulation
	{"zero-grad-each-micro-step", wrong, "accumulation that forgets",
		"Zeroing at every micro-step leaves only the last micro-batch's gradients: the memory of " +
			"the small batch, but not the result of the large one.",
		"Call `zero_grad()` directly after `optimizer.step()`, inside the same `if`.",
		"micro_batch"},
	{"gradients-never-cleared", wrong, "gradients that add up for ever",
		"backward() adds to the gradients that are there. Never cleared, they are the sum over " +
			"all steps: no larger in bytes, but not the training that was meant.",
		"Call `optimizer.zero_grad()` before `loss.backward()`, or after each `optimizer.step()`.",
		"micro_batch"},
	{"accumulator-recreated", wrong, "accumulation that forgets",
		"Accumulators that start at zero in every step accumulate nothing.",
		"Create the accumulators once before the loop. Reset them only after apply_gradients().",
		"micro_batch"},
	{"accumulation-unscaled", costly, "accumulation without scaling",
		"Gradients add up over micro-batches, so their sum grows with the number of " +
			"micro-batches. The large batch would have used their mean.",
		"Divide: `(loss / accumulation_steps).backward()`.", "micro_batch"},
	{"accumulation-keeps-graphs", costly, "micro-batches summed before one backward",
		"Accumulation saves memory because each micro-batch's graph is freed by its own backward. " +
			"A sum of losses keeps them all: the memory of the large batch.",
		"Call `(loss / accumulation_steps).backward()` in every micro-step, and `optimizer.step()` " +
			"once in several.", "micro_batch"},
	{"scheduler-each-micro-step", costly, "scheduler ahead of the optimizer",
		"With accumulation an optimizer step is several micro-steps. The schedule counts " +
			"optimizer steps.",
		"Move `scheduler.step()` behind `optimizer.step()`, inside the same `if`.", "micro_batch"},
	{"last-window-dropped", Hint, "last partial window",
		"Batches left over at the end of an epoch are never applied, or are mixed into the next " +
			"epoch's first window.",
		"Step as well when `i + 1 == len(loader)`, or after the loop.", "micro_batch"},
	{"fsdp-unsynced-gradients", costly, "full gradients on every rank",
		"FSDP shards gradients when it reduces them. While the sync is off, every rank holds the " +
			"gradients of the whole model: 4 bytes a parameter in fp32.",
		"Reduce at every micro-batch: leave out `no_sync()`, or call " +
			"`set_requires_gradient_sync(True)`. It costs communication and saves the full " +
			"gradients.", ""},

	// evaluation
	{"eval-without-no-grad", costly, "evaluation that builds a graph",
		"eval() switches dropout and batch norm, not autograd. Without no_grad every activation " +
			"of the batch is kept for a backward that never comes.",
		"Put the loop under `with torch.no_grad():` (or `torch.inference_mode()`), or decorate " +
			"the function with it.", "no_grad"},
	{"rollout-with-grad", costly, "rollout that builds a graph",
		"What is collected here is used as it is. Its graphs, with the activations of every step, " +
			"stay until the buffer is emptied.",
		"Act under `with torch.no_grad():`. The update runs the model again, with gradients.",
		"no_grad"},
	{"outputs-kept-on-card", sized, "outputs of all batches kept on the card",
		"Without a graph the outputs still lie on the card. Kept for the whole dataset they take " +
			"the room of the model.",
		"Move each batch's outputs to the host, `preds.append(out.cpu())`, or keep only what the " +
			"metric needs (`out.argmax(-1)`).", "eval_outputs"},
	{"outputs-never-cleared", costly, "outputs of every evaluation pile up",
		"The list is older than the evaluation. Outputs of the whole dataset are added to it in " +
			"every epoch, and those of earlier epochs stay.",
		"Make the list at the start of each evaluation, or empty it (`outputs.clear()`) when the " +
			"metric has been computed.", "eval_outputs"},
	{"trainer-keeps-logits", costly, "logits of the whole evaluation kept",
		"The Trainer gathers the logits of all evaluation batches before it calls " +
			"compute_metrics: samples x sequence x vocabulary x 4 bytes.",
		"Reduce them batch by batch: preprocess_logits_for_metrics=lambda logits, labels: " +
			"logits.argmax(-1). Or move them to the host with eval_accumulation_steps=1. For " +
			"sequence-to-sequence models set predict_with_generate=True.", "eval_outputs"},
	{"eval-batch-default", sized, "evaluation batch larger than the training batch",
		"The default evaluation batch is 8. Evaluation also keeps logits, so it can need more " +
			"memory than the training step.",
		"Set the evaluation batch: per_device_eval_batch_size equal to the training batch.",
		"eval_batch"},
	{"lightning-keeps-step-outputs", costly, "Lightning keeps every step's result",
		"Before Lightning 2, training_epoch_end is given what every training_step returned, so " +
			"all of it stays on the card until the epoch ends.",
		"Return only the loss from training_step, and log or detach the rest (`.item()`, " +
			"`.detach().cpu()`). In Lightning 2 use on_train_epoch_end.", "detach"},
	{"frozen-model-with-grad", costly, "frozen model that builds a graph",
		"eval() does not switch autograd off. The activations of a teacher or reference model are " +
			"held until backward, and its weights get gradients that no optimizer uses.",
		"Call it under `with torch.no_grad():`, or freeze it once: " +
			"`teacher.requires_grad_(False)`.", "no_grad"},
	{"autocast-around-loop", sized, "autocast around the whole loop",
		"autocast caches a half-precision copy of each weight it casts. The cache is freed when " +
			"the autocast block ends: here, after the last batch. Under no_grad, torch before " +
			"1.7.1 adds copies with each batch.",
		"Put `with autocast():` inside the loop, around the forward pass. Or use " +
			"`autocast(cache_enabled=False)`.", "mixed_precision"},

	// the step
	{"loss-to-cpu-before-backward", costly, "the belief that loss.cpu() moves backward",
		"Each operation's backward runs on the device of its forward. Copying the scalar loss to " +
			"the CPU frees nothing.",
		"Leave the loss where it is. To save memory: a smaller micro-batch, activation " +
			"checkpointing, or offloading of activations.", "activation_offload"},
	{"gradients-kept-as-zeros", costly, "gradients kept as zeros",
		"One more copy of the weights stays allocated through the forward pass, where the peak is.",
		"Use `zero_grad(set_to_none=True)`, the default since PyTorch 2.0. It changes results " +
			"where a parameter gets no gradient in some steps: with zeros, momentum and weight " +
			"decay still move it. Code that reads `p.grad` must expect None.", "set_to_none"},
	{"empty-cache-in-loop", costly, "cache emptied at every step",
		"The cache is what makes the next step's allocations free. Emptying it does not lower " +
			"what the step needs.",
		"Remove it from the loop. If reserved memory is far above allocated, use " +
			"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.", "expandable_segments"},
	{"hook-in-loop", costly, "one more hook in every round",
		"A hook stays until its handle is removed. Hooks registered in a loop pile up, and each " +
			"keeps alive what its function refers to.",
		"Register the hook once before the loop, or keep the handle and call " +
			"`handle.remove()` in the same round.", "remove_hooks"},
	{"compiled-in-loop", costly, "compiled anew in every round",
		"Each call compiles a program for a new model object. The cache of compiled code keeps the " +
			"programs, their constants and, with CUDA graphs, their memory pools.",
		"Compile once before the loop. Where a new model is needed in every round, call " +
			"`torch.compiler.reset()` (`torch._dynamo.reset()`) at its end, or load new weights " +
			"into the compiled one.", ""},
	{"collector-off", costly, "garbage collector switched off",
		"Python frees cycles only when its collector runs. Models, trainers and exceptions are " +
			"often parts of cycles.",
		"Leave the collector on, or call `gc.collect()` once in a while (every epoch, every 1,000 " +
			"steps).", ""},
	{"memory-history-on", costly, "record of all allocations",
		"Each entry holds a stack trace in host memory. Without max_entries a long training fills " +
			"gigabytes.",
		"Give `max_entries=100000`, or stop it after the steps in question: " +
			"`torch.cuda.memory._record_memory_history(enabled=None)`.", ""},
	{"gradcheck-is-no-profiler", Hint, "the belief that gradcheck profiles memory",
		"gradcheck verifies gradients numerically. It says nothing about memory.",
		"Use `memroom run` or torch.cuda.memory._record_memory_history().", ""},
	{"profiler-around-loop", costly, "profiler around the whole training",
		"The profiler keeps every event until it is stopped: thousands for each step, in host " +
			"memory.",
		"Profile a few steps: schedule=torch.profiler.schedule(wait=1, warmup=1, active=3), and " +
			"call `profiler.step()`.", ""},
	{"anomaly-mode-on", sized, "anomaly detection left on",
		"It is made for finding a NaN: it stores a stack trace for each operation of the forward " +
			"pass.",
		"Remove it when the error is found, or put it around the few steps in question.", ""},
	{"cuda-graph-per-shape", sized, "one CUDA graph for each input shape",
		"Every new input shape is captured as a CUDA graph with a private memory pool that " +
			"nothing else can use. Batches padded to their longest sample have many shapes.",
		"Pad to a few fixed lengths (pad_to_multiple_of=64, padding=\"max_length\"), or use " +
			"mode=\"default\".", ""},

	// data
	{"dataset-on-gpu", costly, "dataset on the GPU",
		"Data that waits on the card takes the room of activations.",
		"Keep it on the host and move each batch in the loop, with pin_memory and " +
			"non_blocking=True.", "stream_data"},
	{"dataset-in-a-list", costly, "dataset read into a list",
		"A loader yields batches so that only a few exist at a time. A list holds them all.",
		"Iterate over the loader, or cache on disk.", "stream_data"},
	{"dataset-read-whole", sized, "dataset decoded before training",
		"Decoded samples are many times larger than their files, and all of them lie in host " +
			"memory for the whole run.",
		"Keep the paths and decode in `__getitem__`, or cache the decoded samples on disk " +
			"(np.memmap, LMDB, Arrow).", "stream_data"},
	{"frame-grown-in-loop", costly, "frame grown piece by piece",
		"Every concat copies all earlier rows into a new frame. At the last piece the data exists " +
			"twice.",
		"Gather the pieces in a list and join them once: `pd.concat(parts)`. Or write them to " +
			"Parquet one by one.", "stream_data"},
	{"workers-copy-python-list", costly, "Python objects shared by many workers",
		"Reading a Python object writes its reference count, and the page it lies in is copied " +
			"into each worker: host memory grows by the list's size times the workers.",
		"Write `samples = memroom.share(samples)`: workers map one copy. Or keep the items in one " +
			"numpy array or Arrow table.", "share_data"},
	{"list-copied-here", sized, "objects that workers copy",
		"Each of these objects has a reference count in the page it lies in. Workers that read " +
			"them copy the pages.",
		"Keep the fields in numpy arrays or one Arrow table, or write " +
			"`samples = memroom.share(samples)`.", "share_data"},
	{"card-in-workers", costly, "loader workers that use the card",
		"A process that touches the card gets a CUDA context. With many workers the contexts, and " +
			"the batches they hold, take gigabytes.",
		"Return CPU tensors from the dataset and move each batch in the training loop. " +
			"pin_memory=True makes that fast.", "dataloader_workers"},
	{"dataset-cache-per-worker", costly, "dataset cache in every worker",
		"Each DataLoader worker is a process with its own copy of the dataset object. After an " +
			"epoch the cached samples lie in host memory once for each worker.",
		"Cache on disk (np.memmap, LMDB, Arrow) or in shared memory, bound the cache " +
			"(lru_cache(maxsize=256)), or use num_workers=0.", "dataloader_workers"},
	{"dataset-cache-grows", sized, "dataset cache without a bound",
		"After an epoch the whole dataset lies in host memory.",
		"Cache on disk (np.memmap, LMDB, Arrow), or bound the cache (lru_cache(maxsize=256)).",
		"stream_data"},
	{"loader-buffers", sized, "batches that wait in the workers",
		"Host memory holds bytes per batch x prefetch_factor x num_workers, and pin_memory adds a " +
			"copy. Persistent workers never give it back.",
		"Use fewer workers, prefetch_factor=1 or 2, a smaller batch, or persistent_workers=False.",
		"dataloader_workers"},
	{"workers-in-loop", costly, "persistent workers of every round",
		"persistent_workers=True keeps the processes, their copies of the dataset and their batches " +
			"as long as the loader lives.",
		"Make the loader once before the loop (set_epoch on its sampler), or leave out " +
			"persistent_workers.", "dataloader_workers"},
	{"datasets-buffers", sized, "what datasets holds in memory",
		"Readers and map() work on large pieces, one for each process. keep_in_memory=True or one " +
			"batch of everything gives up memory mapping.",
		"Use fewer processes (num_proc=2), a smaller writer_batch_size, Parquet instead of JSON, " +
			"or streaming=True.", "stream_data"},
	{"figures-not-closed", costly, "figures that are never closed",
		"pyplot keeps a reference to every figure until it is closed. Each holds its pixels and " +
			"its data.",
		"Call `plt.close(fig)` after saving it.", ""},

	// checkpoints and cards
	{"checkpoint-kept", costly, "checkpoint kept on the card",
		"The loaded dict is a second copy of the weights, and of the optimizer state if that was " +
			"saved. It stays as long as the variable.",
		"Load with map_location=\"cpu\". After load_state_dict(), `del checkpoint`.", ""},
	{"checkpoint-without-map-location", sized, "checkpoint loaded to where it was saved",
		"A checkpoint saved from a card goes back to that card: a second copy of the weights as " +
			"long as the variable lives, and all ranks load to the same card.",
		"Load with map_location=\"cpu\". After load_state_dict(), `del checkpoint`.", ""},
	{"data-parallel-first-card", sized, "DataParallel fills the first card",
		"The first card holds the gathered outputs, the loss and their gradients beside its own " +
			"share of the work.",
		"Use DistributedDataParallel (one process for each card), or compute the loss inside the " +
			"model's forward, so that only numbers are gathered.", "ddp"},
	{"default-card", sized, "tensors on card 0 by default",
		"Without a number `.cuda()` means the current card, which is card 0 unless it is set.",
		"Call torch.cuda.set_device(n) first, use one device variable (`.to(device)`), or start " +
			"with CUDA_VISIBLE_DEVICES=n.", ""},
	{"kbit-upcast", sized, "parts of a quantized model in float32",
		"The quantized layers stay small. Embeddings and lm_head double from 2 to 4 bytes a " +
			"parameter, and float32 logits double too. For large vocabularies that can be more " +
			"than quantization saved.",
		"Skip prepare_model_for_kbit_training and freeze the base yourself, or cast embeddings " +
			"and lm_head back to bfloat16 after it. Keep gradient checkpointing on.",
		"checkpointing"},
	{"quantization-argument", wrong, "wrong quantization argument",
		"An option that does not exist leaves the model in full precision: the memory it should " +
			"have saved is used.",
		"See the arguments of transformers.BitsAndBytesConfig for your version.",
		"quantize_8bit"},

	// TensorFlow and Keras
	{"tf-function-retraced", costly, "tf.function traced again and again",
		"Every trace builds a graph that is kept for the life of the program.",
		"Define it once outside the loop. Pass tensors (`tf.constant(i)`), or give an " +
			"input_signature.", ""},
	{"tf-graph-grows", costly, "operations added in the loop",
		"In graph mode every call of a tf function adds operations to the graph, and their " +
			"constants with them. The session slows down and memory grows.",
		"Build the operation once before the loop, with a placeholder for what changes, and call " +
			"`tf.get_default_graph().finalize()` to be told.", ""},
	{"tape-around-loop", costly, "one tape around the whole loop",
		"A GradientTape records every operation inside its block and keeps what their gradients " +
			"need until the block ends.",
		"Open the tape inside the loop, around one step's forward pass.", ""},
	{"jit-in-loop", costly, "compiled anew in every round",
		"jax.jit remembers compiled programs by the function object. A new one in every round is " +
			"never found again.",
		"Call jax.jit once before the loop and use its result in the loop.", ""},
	{"jit-static-changes", costly, "a static argument that changes",
		"A static argument is part of the program: jax.jit compiles one for each of its values and " +
			"keeps them all.",
		"Leave it out of static_argnames and static_argnums, and pass it as an array.", ""},
	{"keras-model-in-loop", costly, "Keras models built in a loop",
		"Keras keeps layers, names and functions of every model in global state. Deleting the " +
			"variable does not free them.",
		"Call `keras.backend.clear_session()` at the start of each round, then `del model` and " +
			"`gc.collect()`. Or train each model in its own process.", "clear_session"},
	{"keras-loop-in-one-process", sized, "Keras models built in a loop",
		"Some TensorFlow versions keep the traced functions of compiled models even after " +
			"clear_session().",
		"If memory grows, train each model in its own process (multiprocessing with \"spawn\"), " +
			"and call gc.collect() after clear_session().", "clear_session"},
	{"keras-predict-in-loop", sized, "predict() called in a loop",
		"predict() is made for many samples at once. Each call sets up a pipeline, and in some " +
			"versions part of it stays in memory.",
		"Call the model itself, `model(x, training=False)`, or predict_on_batch(x), or predict() " +
			"once for all samples.", ""},
	{"tf-data-buffers", sized, "dataset held by cache or shuffle",
		"Both work on what comes before them. After decoding, that is tensors, not file names.",
		"Shuffle file names before the map that decodes, use a smaller shuffle buffer, and give " +
			"cache() a file name: cache(\"/scratch/cache\").", "tf_data_budget"},
	{"tf-constant-dataset", costly, "dataset as a constant",
		"The array exists twice: in NumPy and as a tensor.",
		"Stream it: tf.data from files, or a generator.", "tf_data_budget"},
	{"tf-dataset-from-array", sized, "dataset made from a whole array",
		"from_tensor_slices makes a copy of the array. Beside the original that is twice the data " +
			"in host memory.",
		"Read from files (TFRecord, Parquet), or use np.load(..., mmap_mode='r') and " +
			"Dataset.from_generator.", "tf_data_budget"},
	{"tf-no-growth", Hint, "TensorFlow takes the whole card",
		"By default TensorFlow reserves nearly all GPU memory at start.",
		"`tf.config.experimental.set_memory_growth(gpu, True)` for each GPU, or " +
			"TF_FORCE_GPU_ALLOW_GROWTH=true.", "tf_growth"},
	{"tflite-does-not-train", Hint, "the belief that a converted model trains smaller",
		"TFLite converts for inference. Training goes on with the original model in its own " +
			"precision.",
		"For training use mixed precision, a smaller batch, or fewer trainable weights.",
		"mixed_precision"},

	// searches and Ray
	{"trials-share-process", costly, "trials that share a process",
		"A trial's model, optimizer state and trainer refer to each other in cycles. They are " +
			"freed only when Python's garbage collector runs, often after the next trial has " +
			"allocated its own.",
		"End each trial with `del model, trainer; gc.collect(); torch.cuda.empty_cache()`, use " +
			"study.optimize(..., gc_after_trial=True), or run each trial in its own process.", ""},
	{"ray-trial-without-resources", costly, "trials without resources",
		"Ray then counts one CPU for each trial and starts as many as there are cores. Their " +
			"memory adds up.",
		"`resources_per_trial={\"cpu\": 4, \"gpu\": 1, \"memory\": 8 * 1024**3}` or " +
			"tune.with_resources(...).", "trial_resources"},
	{"ray-trial-without-memory", Hint, "trials packed without memory",
		"CPU and GPU counts say nothing about bytes.",
		"Add \"memory\": bytes to the trial's resources.", "trial_resources"},
	{"ray-stopped-trial-holds-card", Hint, "card still held by a stopped trial",
		"A scheduler that stops trials early starts the next one at once. The processes of the " +
			"stopped trial, and those they started, may not have ended and still hold the card.",
		"Wait at the start of the trainable (`ray.tune.utils.wait_for_gpu()`), end what the trial " +
			"started (del trainer, gc.collect()), or run each trial in its own process.",
		"trial_resources"},
	{"ray-captures-large-object", costly, "large object captured by a remote function",
		"What the function uses from outside is serialised with it, into every worker process.",
		"Put it into the object store once, `ref = ray.put(data)`, and pass `ref`. For Tune: " +
			"tune.with_parameters(train_fn, data=data).", "trial_resources"},
	{"ray-passes-large-object", costly, "large object passed at every call",
		"An argument passed by value is put into the object store again for every call. Each copy " +
			"stays until its task has ended.",
		"Put it once before the loop, `ref = ray.put(data)`, and pass `ref`.", ""},
}
