package diagnose

import (
	"path"
	"strings"

	"memroom/event"
)

// trait is something that a call stack shows about the allocations it made.
type trait uint16

const (
	traitFrames    trait = 1 << iota // it has frames at all
	traitOptimizer                   // inside an optimizer's step or state
	traitBackward                    // inside the autograd engine
	traitLoad                        // moving, loading or initialising a module
	traitForward                     // inside a module's forward
	traitLoss                        // a loss function
	// a convolution or a recurrent layer: cuDNN with its workspaces
	traitConv
	traitInput      // moving a batch to the device
	traitCheckpoint // recomputing under activation checkpointing
	traitBuckets    // the gradient buckets of data parallelism
	traitWorkspace  // a library asking for its workspace
	traitPython     // it has frames of Python, or of C++ that Python called
)

func (t trait) has(want trait) bool { return t&want != 0 }

// stackTraits reads a stack, innermost frame first. File and function names of PyTorch and of the
// common libraries around it are the evidence; recordings often keep only the innermost frames, so
// each must be recognised alone.
func stackTraits(frames []event.Frame) trait {
	var t trait
	for i, f := range frames {
		t |= traitFrames | frameTraits(f, i)
	}
	if t.has(traitForward) { // a forward that moves a tensor is not loading the model
		t &^= traitLoad | traitInput
	}
	return t
}

func frameTraits(f event.Frame, depth int) trait {
	file := strings.ReplaceAll(f.File, `\`, "/")
	base, name := path.Base(file), f.Name
	var t trait
	switch {
	case isOptimizerFile(file, base) || isScalerFrame(base, name):
		t |= traitOptimizer
	case strings.HasSuffix(file, "utils/checkpoint.py"):
		t |= traitCheckpoint
	case strings.HasSuffix(file, "parallel/distributed.py") && strings.Contains(name, "ddp_init"):
		t |= traitBuckets
	case isLoadFrame(file, base, name, depth):
		t |= traitLoad
	}
	if !isNative(f) || strings.HasPrefix(name, "torch::autograd::THP") ||
		strings.Contains(name, "VariableType") {
		t |= traitPython
	}
	if isBackwardFrame(file, name) || isNative(f) && isNativeBackward(name) {
		t |= traitBackward
	}
	if isLossFrame(base, name) {
		t |= traitLoss
	}
	if isForwardFrame(file, name) {
		t |= traitForward
	}
	if isConvFrame(base, name) {
		t |= traitConv
	}
	if strings.Contains(name, "WorkspaceForHandle") || strings.Contains(name,
		"getCUDABlasLtWorkspace") {
		t |= traitWorkspace
	}
	if isInputFrame(file, base, name) {
		t |= traitInput
	}
	return t
}

func isOptimizerFile(file, base string) bool {
	return strings.Contains(file, "torch/optim/") || strings.Contains(file, "/optimizers/") ||
		strings.Contains(file, "bitsandbytes/optim") ||
		strings.Contains(file, "deepspeed/ops/adam") || strings.HasSuffix(file,
		"nn/utils/clip_grad.py") || base == "optimizer.py" || base == "adafactor.py" ||
		base == "galore.py"
}

// isScalerFrame knows the parts of mixed precision's gradient scaler that belong to the optimizer's
// step; it also scales the loss, which does not.
func isScalerFrame(base, name string) bool {
	if base != "grad_scaler.py" {
		return false
	}
	switch name {
	case "unscale_", "_unscale_grads_", "step", "_maybe_opt_step", "update":
		return true
	}
	return false
}

// isNativeBackward knows the derivatives of PyTorch's own functions by name: MmBackward0,
// native_layer_norm_backward.
func isNativeBackward(name string) bool {
	return strings.Contains(name, "Backward") || strings.Contains(name, "_backward") ||
		strings.Contains(name, "AccumulateGrad")
}

func isBackwardFrame(file, name string) bool {
	if strings.Contains(name, "autograd::Engine") || strings.Contains(name,
		"autograd::python::PythonEngine") {
		return true
	}
	// Tensor.backward and its wrappers wait on the main thread while the engine works on its own;
	// what they allocate themselves belongs to no pass. A function of this name elsewhere is the
	// user's own derivative.
	return name == "backward" && !strings.HasSuffix(file, "_tensor.py") &&
		!strings.HasSuffix(file, "autograd/__init__.py") &&
		!strings.HasSuffix(file, "accelerator.py")
}

// isLoadFrame knows where models are made, moved and filled. A constructor counts only near the
// inner end: some programs train inside one.
func isLoadFrame(file, base, name string, depth int) bool {
	switch name {
	case "_apply", "load_state_dict", "from_pretrained", "reset_parameters",
		"_load_state_dict_into_model", "_load_from_state_dict",
		"set_module_tensor_to_device", "dispatch_model", "flatten_parameters", "_init_weights",
		"init_weights", "materialize_tensors":
		return true
	case "convert", "<lambda>":
		return strings.HasSuffix(file, "nn/modules/module.py")
	case "to", "cuda":
		return strings.HasSuffix(file, "nn/modules/module.py") || base == "modeling_utils.py"
	case "__init__":
		return depth < 8 && base != "dataloader.py" && base != "tensor.py"
	}
	return strings.HasSuffix(file, "torch/nn/init.py") || strings.HasSuffix(file,
		"nn/parameter.py") || strings.Contains(file, "safetensors/") ||
		base == "core_model_loading.py" || strings.HasSuffix(file, "torch/serialization.py")
}

// isLossFrame knows loss functions by name, as programs write their own.
func isLossFrame(base, name string) bool {
	lower := strings.ToLower(name)
	if base == "loss.py" || base == "losses.py" || base == "loss_utils.py" {
		return true
	}
	return strings.Contains(lower, "cross_entropy") || strings.Contains(lower, "nll_loss") ||
		strings.HasSuffix(lower, "_loss") ||
		lower == "log_softmax" || strings.HasSuffix(name, "Loss") || lower == "compute_loss_func"
}

func isForwardFrame(file, name string) bool {
	return name == "forward" || name == "_call_impl" || name == "_wrapped_call_impl" ||
		name == "_conv_forward" ||
		strings.HasSuffix(file, "torch/nn/functional.py") ||
		strings.Contains(file, "integrations/sdpa_attention.py")
}

func isConvFrame(base, name string) bool {
	return name == "_conv_forward" || base == "conv.py" || base == "rnn.py" ||
		strings.Contains(name, "cudnn")
}

func isInputFrame(file, base, name string) bool {
	switch name {
	case "send_to_device", "_prepare_input", "_prepare_inputs", "move_data_to_device",
		"batch_to_device", "transfer_batch_to_device", "pin_memory":
		return true
	}
	return base == "dataloader.py" || strings.Contains(file, "torch/utils/data/")
}

// IsLibrary reports whether a frame belongs to an installed package or the interpreter rather than
// to the user's program.
func IsLibrary(f event.Frame) bool {
	file := strings.ReplaceAll(f.File, `\`, "/")
	return strings.Contains(file, "site-packages/") || strings.Contains(file, "dist-packages/") ||
		strings.HasPrefix(file, "<") ||
		strings.Contains(file, "/lib/python3") || file == "??" || file == "" ||
		strings.HasSuffix(file, ".so") || strings.Contains(file, ".cpp") ||
		strings.Contains(file, ".so.") || strings.HasSuffix(file, ".h")
}

// plumbing are frames that say nothing about what was allocated.
func plumbing(f event.Frame) bool {
	return f.Name == "_call_impl" || f.Name == "_wrapped_call_impl" ||
		strings.HasSuffix(f.File, "_contextlib.py") ||
		f.Name == "__call__" && IsLibrary(f) || f.Name == "wrapper" && IsLibrary(f)
}

// isNative reports whether a frame is of C++, not of Python. Recordings with stacks="all" mix them.
func isNative(f event.Frame) bool {
	return !strings.HasSuffix(f.File, ".py") && !strings.HasPrefix(f.File, "<") &&
		(strings.Contains(f.Name, "::") || f.File == "??" || f.File == "" ||
			strings.HasSuffix(f.File, ".cpp") || strings.HasSuffix(f.File, ".c") ||
			strings.HasSuffix(f.File, ".h") || strings.Contains(f.File, ".so"))
}

// nativePlumbing are the C++ frames at the inner end of every stack: unwinding, the allocator, the
// making of a tensor.
func nativePlumbing(f event.Frame) bool {
	for _, prefix := range []string{"torch::unwind", "torch::CapturedTraceback",
		"c10::cuda::CUDACachingAllocator", "at::detail::empty", "at::detail::(anonymous",
		"c10::StorageImpl"} {
		if strings.HasPrefix(f.Name, prefix) {
			return true
		}
	}
	return strings.Contains(f.Name, "gather_with_cpp")
}

// TellingFrames picks the frames of a stack that a reader needs: the innermost one, the next of the
// model's code and the first of the user's own program; innermost first, at most three. Python's
// frames come before those of C++.
func TellingFrames(frames []event.Frame) []event.Frame {
	if picked := pickFrames(frames, func(f event.Frame) bool {
		return isNative(f) ||
			plumbing(f)
	}); len(picked) > 0 {
		return picked
	}
	return pickFrames(frames, nativePlumbing)
}

func pickFrames(frames []event.Frame, skip func(event.Frame) bool) []event.Frame {
	var picked []event.Frame
	user := false
	for _, f := range frames {
		if skip(f) {
			continue
		}
		own := !IsLibrary(f)
		if len(picked) < 2 || own && !user {
			picked = append(picked, f)
			user = user || own
		}
		if user && len(picked) >= 2 || len(picked) == 3 {
			break
		}
	}
	return picked
}
