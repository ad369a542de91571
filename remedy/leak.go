package remedy

// memoryLeaks: edits that release what a loop keeps by accident.
func memoryLeaks() []*Remedy {
	return []*Remedy{{
		ID:    Detach,
		Title: "keep numbers, not tensors with their graph",
		Why: "a loss or output that is summed or put in a list keeps every activation it was " +
			"computed from",
		Equivalence: Exact,
		Walls:       anywhere,
		Frameworks:  []Framework{PyTorch, TensorFlow},
		how: func(job Job, _ Setup) How {
			switch {
			case job.Framework == TensorFlow && !job.trains():
				return How{Code: "outputs.append(y.numpy())"}
			case job.Framework == TensorFlow:
				return How{Code: "history.append(float(loss))"}
			case !job.trains():
				return How{Code: "outputs.append(y.detach().cpu())"}
			}
			return How{Code: lines("total += loss.item()", "outputs.append(y.detach().cpu())",
				"average.lerp_(weight.detach(), 0.01)   # a moving average of weights, in place")}
		},
	}, {
		ID:    KeepLess,
		Title: "keep fewer of them: numbers, the last few, or files",
		Why: "what a loop adds to a list or dictionary at every step stays until the list is " +
			"gone, with or without a graph",
		Equivalence: Exact,
		Walls:       anywhere,
		how: func(job Job, _ Setup) How {
			if job.Facts != nil { // a log does not show which object is kept
				return How{Args: inWords[KeepLess]}
			}
			framework := job.Framework
			if keepCode[framework] == "" {
				framework = PyTorch
			}
			return How{Code: keepCode[framework]}
		},
	}, {
		ID:          NoGrad,
		Title:       "evaluate and predict without recording a graph",
		Why:         "nothing of the layers in between is kept for later",
		Equivalence: Exact,
		Walls:       anywhere,
		Frameworks:  torch,
		args: map[Trainer]string{Transformers: "--per_device_eval_batch_size 1 " +
			"--eval_accumulation_steps 1   # outputs go to the host as they come"},
		code: map[Framework]string{PyTorch: lines("model.eval()",
			"with torch.no_grad():", "    y = model(x)")},
	}, {
		ID:    RemoveHooks,
		Title: "remove hooks and closures that keep activations",
		Why: "a hook that stores its input or output holds it, and its graph, until the hook is " +
			"removed",
		Equivalence: Exact,
		Walls:       onDevice,
		Frameworks:  torch,
		code: map[Framework]string{PyTorch: lines(
			"handle = layer.register_forward_hook(keep)", "...", "handle.remove(); kept.clear()")},
	}}
}

// keepCode is how a loop keeps less, in each framework's words.
var keepCode = map[Framework]string{
	PyTorch: lines("history.append(out.mean().item())            # a number for each step",
		"history = collections.deque(maxlen=100)      # or only the last steps",
		"torch.save(out, f'out-{step}.pt')            # or a file for each",
		"errors.append(str(error))                    # an exception keeps variables, with their graphs"),
	TensorFlow: lines("history.append(float(tf.reduce_mean(out)))   # a number for each step",
		"history = collections.deque(maxlen=100)      # or only the last steps"),
	JAX: lines("history.append(float(out.mean()))            # a number for each step",
		"history = collections.deque(maxlen=100)      # or only the last steps"),
	Python: "history = collections.deque(maxlen=100)      # only the last steps",
}
