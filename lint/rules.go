package lint

import "memroom/event"

// Rule is one known mistake.
type Rule struct {
	ID       string
	Severity event.Severity
	Title    string // what it is, in a few words
	Why      string // why it costs memory, or what the belief gets wrong
	Fix      string // what to do, where no mechanical edit is given
	Remedy   string // id in package remedy
}

// Rules lists every rule, worst first.
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

const (
	wrong  = event.SeverityError   // leaks, or computes something else than meant
	costly = event.SeverityWarning // costs memory or time for nothing
	hint   = event.SeverityInfo    // worth knowing
)

var rules = []Rule{
	{"loss-graph-accumulated", wrong, "loss summed with its graph",
		"A loss tensor holds the whole graph that made it. Summed over an epoch, no iteration's activations can be freed.",
		"Add a number: `total += loss.item()`, or `loss.detach()` to stay on the device.", "detach"},
	{"graph-kept-in-list", wrong, "tensors kept with their graph",
		"Each tensor in the list keeps the activations it was computed from.",
		"Append `x.detach()` (or `.item()`, `.detach().cpu()`).", "detach"},
	{"hook-keeps-tensors", wrong, "hook keeps what it sees",
		"The hook runs at every forward pass, so the list grows for ever, with the graph of every tensor in it.",
		"Append `output.detach()`, bound the list, and remove the hook (`handle.remove()`) when done.", "remove_hooks"},
	{"module-keeps-tensors", wrong, "module keeps its outputs",
		"What is stored on the module outlives the step, together with its graph.",
		"Store `x.detach()` and clear the list when it has been read.", "detach"},
	{"hidden-state-not-detached", wrong, "hidden state carried with its graph",
		"Backward then goes through all earlier batches; memory grows until it fails.",
		"Cut the graph between batches: `hidden = hidden.detach()` (for an LSTM: `tuple(h.detach() for h in hidden)`).", "detach"},
	{"zero-grad-each-micro-step", wrong, "accumulation that forgets",
		"Zeroing at every micro-step leaves only the last micro-batch's gradients: the small batch's memory, but not the large batch's result.",
		"Call `zero_grad()` directly after `optimizer.step()`, inside the same `if`.", "micro_batch"},
	{"gradients-never-cleared", wrong, "gradients that add up for ever",
		"backward() adds to the gradients that are there. Never cleared, they are the sum over all steps: no larger in bytes, but not the training that was meant, and the largest accumulation there is.",
		"Call `optimizer.zero_grad()` before `loss.backward()`, or once behind each `optimizer.step()`.", "micro_batch"},
	{"accumulator-recreated", wrong, "accumulation that forgets",
		"Accumulators that start at zero in every step accumulate nothing.",
		"Create the accumulators once before the loop and reset them only after apply_gradients().",
		"micro_batch"},
	{"accumulation-unscaled", costly, "accumulation without scaling",
		"Gradients add up over micro-batches. More micro-batches do not make each gradient larger, but their sum is: scale it back to a mean.",
		"Divide: `(loss / accumulation_steps).backward()`.", "micro_batch"},
	{"scheduler-each-micro-step", costly, "scheduler ahead of the optimizer",
		"With accumulation an optimizer step is several micro-steps; the schedule is meant in optimizer steps.",
		"Move `scheduler.step()` behind `optimizer.step()`, inside the same `if`.", "micro_batch"},
	{"last-window-dropped", hint, "last partial window",
		"Batches left over at the end of an epoch are never applied, or are mixed into the next epoch's first window.",
		"Step as well when `i + 1 == len(loader)`, or after the loop.", "micro_batch"},
	{"eval-without-no-grad", costly, "evaluation that builds a graph",
		"eval() switches dropout and batch norm, not autograd: without no_grad every activation of the batch is kept for a backward that never comes.",
		"Put the loop under `with torch.no_grad():` (or `torch.inference_mode()`), or decorate the function with it.", "no_grad"},
	{"retain-graph-in-loop", costly, "graph retained for nothing",
		"retain_graph keeps the saved tensors after backward; the next iteration's come on top.",
		"Call `backward()` without it. If an error then names a second backward, some tensor is carried over from an earlier iteration: detach it.", "detach"},
	{"loss-to-cpu-before-backward", costly, "the belief that loss.cpu() moves backward",
		"Each operation's backward runs on the device of its forward. Copying the scalar loss to the CPU frees nothing.",
		"Leave the loss where it is. To save memory: a smaller micro-batch, checkpointing, or offloading of saved activations.", "activation_offload"},
	{"gradients-kept-as-zeros", costly, "gradients kept as zeros",
		"One more copy of the weights stays allocated through the forward pass, where the peak is.",
		"Use `zero_grad(set_to_none=True)`, the default since PyTorch 2.0. It changes results where a parameter gets no gradient in some steps: zeros still apply momentum and weight decay to it. Code that reads `p.grad` must expect None.", "set_to_none"},
	{"empty-cache-in-loop", costly, "cache emptied at every step",
		"The cache is what makes the next step's allocations free. Emptying it does not lower what the step needs.",
		"Remove it from the loop. If reserved memory is far above allocated, use PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.", "expandable_segments"},
	{"gradcheck-is-no-profiler", hint, "the belief that gradcheck profiles memory",
		"gradcheck verifies gradients numerically; it says nothing about memory.",
		"Use `memroom run` or torch.cuda.memory._record_memory_history().", ""},
	{"dataset-on-gpu", costly, "dataset on the GPU",
		"Data that waits on the card takes the room of activations.",
		"Keep it on the host and move each batch in the loop, with pin_memory and non_blocking=True.", "stream_data"},
	{"dataset-in-a-list", costly, "dataset read into a list",
		"A loader yields batches so that only a few exist at a time; a list holds them all.",
		"Iterate over the loader, or cache on disk.", "stream_data"},
	{"workers-copy-python-list", costly, "Python objects shared by many workers",
		"Reading a Python object writes its reference count, and the page it lies in is copied into each worker: host memory grows by the list's size times the workers.",
		"Keep the items in one numpy array or Arrow table instead of a list of objects.",
		"dataloader_workers"},
	{"tf-function-retraced", costly, "tf.function traced again and again",
		"Every trace builds a graph that is kept for the life of the program.",
		"Define it once outside the loop; pass tensors (`tf.constant(i)`), or give an input_signature.", ""},
	{"tf-constant-dataset", costly, "dataset as a constant",
		"The array exists twice: in NumPy and as a tensor.",
		"Stream it: tf.data from files, or a generator.", "tf_data_budget"},
	{"tf-dataset-from-array", hint, "dataset made from a whole array",
		"from_tensor_slices embeds a copy of the array; beside the original that is twice the data in host memory.",
		"Read from files (TFRecord, Parquet) or with np.load(..., mmap_mode='r') and Dataset.from_generator.", "tf_data_budget"},
	{"tf-no-growth", hint, "TensorFlow takes the whole card",
		"By default nearly all GPU memory is reserved at start.",
		"`tf.config.experimental.set_memory_growth(gpu, True)` for each GPU, or TF_FORCE_GPU_ALLOW_GROWTH=true.", "tf_growth"},
	{"tflite-does-not-train", hint, "the belief that a converted model trains smaller",
		"TFLite converts for inference; training goes on with the original model in its own precision.",
		"For training use mixed precision, a smaller batch, or fewer trainable weights.",
		"mixed_precision"},
	{"ray-trial-without-resources", costly, "trials without resources",
		"Ray then counts one CPU a trial and starts as many as there are cores; their memory adds up.",
		"`resources_per_trial={\"cpu\": 4, \"gpu\": 1, \"memory\": 8 * 1024**3}` or tune.with_resources(...).", "trial_resources"},
	{"ray-trial-without-memory", hint, "trials packed without memory",
		"CPU and GPU counts say nothing about bytes.",
		"Add \"memory\": bytes to the trial's resources.", "trial_resources"},
	{"ray-captures-large-object", costly, "large object captured by a trainable",
		"What the function uses from outside is serialised with it, into every trial.",
		"Pass it once through the object store: tune.with_parameters(train_fn, data=data).",
		"trial_resources"},
	{"quantization-argument", wrong, "wrong quantization argument",
		"An option that is not there leaves the model in full precision: the memory it should have saved is used.",
		"See the arguments of transformers.BitsAndBytesConfig for your version.",
		"quantize_8bit"},
}
