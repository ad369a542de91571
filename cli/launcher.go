package cli

import (
	"path/filepath"
	"slices"
	"strings"
)

// launched is the command that a launcher would start on each rank: the script of torchrun,
// accelerate launch, deepspeed or torch.distributed.run, with a Python before it. Other commands
// are themselves.
func launched(args []string) []string {
	rest, python, ok := cutLauncher(args)
	if !ok {
		return args
	}
	module := false
	for len(rest) > 0 && strings.HasPrefix(rest[0], "-") {
		flag, _, joined := strings.Cut(rest[0], "=")
		switch {
		case flag == "-m" || flag == "--module":
			module, rest = true, rest[1:]
		case joined || slices.Contains(launcherSwitches, strings.ReplaceAll(flag, "-", "_")):
			rest = rest[1:]
		case len(rest) > 1:
			rest = rest[2:]
		default:
			rest = nil
		}
	}
	if len(rest) == 0 {
		return args
	}
	if module {
		return append([]string{python, "-m"}, rest...)
	}
	return append([]string{python}, rest...)
}

// launcherSwitches are options of launchers that take no value, with underscores for dashes.
var launcherSwitches = []string{"__standalone", "__no_python", "__run_path", "__multi_gpu", "__cpu",
	"__use_deepspeed", "__use_fsdp", "__use_megatron_lm", "__quiet", "_q", "__debug", "__mps", "__tpu",
	"__no_local_rank", "__no_ssh", "__use_xpu", "__use_env", "__main_training_function"}

// cutLauncher takes a launcher's own words away; it gives the Python that it would start.
func cutLauncher(args []string) (rest []string, python string, ok bool) {
	name := filepath.Base(args[0])
	beside := "python3" // the one that the launcher belongs to
	if dir := filepath.Dir(args[0]); dir != "." {
		beside = filepath.Join(dir, "python")
	}
	switch {
	case name == "torchrun" || name == "deepspeed":
		return args[1:], beside, true
	case name == "accelerate" && len(args) > 1 && args[1] == "launch":
		return args[2:], beside, true
	case strings.HasPrefix(name, "python") && len(args) > 2 && args[1] == "-m" &&
		slices.Contains([]string{"torch.distributed.run", "torch.distributed.launch",
			"accelerate.commands.launch"}, args[2]):
		return args[3:], args[0], true
	}
	return nil, "", false
}
