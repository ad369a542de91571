package diagnose

import (
	"testing"

	"memroom/event"
)

func stack(frames ...string) (out []event.Frame) {
	for i := 0; i+1 < len(frames); i += 2 {
		out = append(out, event.Frame{File: frames[i], Name: frames[i+1], Line: 1})
	}
	return out
}

const torchDir = "/venv/lib/python3.12/site-packages/torch/"

func TestStackTraits(t *testing.T) {
	for name, c := range map[string]struct {
		frames    []event.Frame
		want, not trait
	}{
		"moving a model": {stack(torchDir+"nn/modules/module.py", "convert",
			torchDir+"nn/modules/module.py", "_apply", "train.py", "<module>"), traitLoad,
			traitForward},
		"making a layer": {stack(torchDir+"nn/modules/linear.py", "__init__", "model.py",
			"__init__", "train.py", "main"), traitLoad, traitForward},
		"a layer": {stack(torchDir+"nn/modules/linear.py", "forward",
			torchDir+"nn/modules/module.py", "_call_impl"), traitForward,
			traitLoad | traitBackward},
		"Adam's state": {stack(torchDir+"optim/adam.py", "_init_group",
			torchDir+"optim/optimizer.py", "wrapper"), traitOptimizer, traitForward},
		"the scaler's step": {stack(torchDir+"amp/grad_scaler.py", "_unscale_grads_",
			"train.py", "main"), traitOptimizer, traitForward},
		"the scaler's loss": {stack(torchDir+"amp/grad_scaler.py", "scale", "train.py",
			"main"), traitFrames, traitOptimizer},
		"a loss": {stack(torchDir+"nn/functional.py", "cross_entropy", "train.py",
			"main"), traitLoss, traitBackward},
		"a user's loss": {stack("losses.py", "focal", "train.py", "main"), traitLoss,
			traitBackward},
		"a user's derivative": {stack("kernels.py", "backward", torchDir+"autograd/function.py",
			"apply"), traitBackward, traitLoad},
		"a user's function": {stack("kernels.py", "forward", torchDir+"autograd/function.py",
			"apply", "model.py", "forward"), traitForward, traitBackward},
		"the engine in C++": {stack("??", "torch::autograd::Engine::evaluate_function(...)",
			"??", "clone"), traitBackward, traitForward},
		"cuBLAS in C++": {stack("??", "at::cuda::setWorkspaceForHandle", "??",
			"at::cuda::getCurrentCUDABlasHandle()"), traitWorkspace, traitLoad},
		"a training constructor": {append(stack("a.py", "a", "b.py", "b", "c.py", "c", "d.py", "d",
			"e.py", "e", "f.py", "f", "g.py", "g", "h.py", "h"), stack("cli.py", "__init__")...),
			traitFrames, traitLoad},
		"Windows paths": {stack(`C:\venv\Lib\site-packages\torch\optim\sgd.py`, "step"), traitOptimizer, traitLoad},
		"a batch": {stack("accelerate/utils/operations.py", "send_to_device",
			"accelerate/data_loader.py", "__iter__"), traitInput, traitForward},
		"nothing": {nil, 0, traitFrames},
	} {
		got := stackTraits(c.frames)
		if got&c.want != c.want || got&c.not != 0 {
			t.Errorf("%s: traits %010b, want %010b and none of %010b", name, got, c.want, c.not)
		}
	}
}

func TestTellingFramesNameTheUsersLine(t *testing.T) {
	long := stack("??", "torch::unwind::unwind()", torchDir+"nn/functional.py", "linear",
		torchDir+"nn/modules/module.py", "_call_impl", torchDir+"nn/modules/linear.py", "forward",
		"/venv/site-packages/transformers/models/gpt2.py", "forward", "/home/me/train.py", "main",
		"/home/me/train.py", "<module>")
	got := TellingFrames(long)
	if len(got) != 3 || got[0].Name != "linear" || got[2].File != "/home/me/train.py" ||
		got[2].Name != "main" {
		t.Errorf("picked %+v", got)
	}
	if got := TellingFrames(stack("??", "torch::unwind::unwind()", "x.cpp",
		"at::native::add(...)")); len(got) != 1 || got[0].File != "x.cpp" {
		t.Errorf("of C++ alone picked %+v", got)
	}
}
