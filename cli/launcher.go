package cli

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// launch is what a launcher such as torchrun would start.
type launch struct {
	args    []string // the command of one rank
	ranks   int      // of all machines; 0 where the launcher does not say
	perNode int      // of one machine; 0 likewise
	elastic bool     // by torchrun or what stands on it
}

// launched is the command that a launcher would start on each rank: the script of torchrun,
// accelerate launch, deepspeed or torch.distributed.run, with a Python before it. Other commands
// are themselves.
func launched(args []string) launch {
	rest, python, ok := cutLauncher(args)
	if !ok {
		return launch{args: args}
	}
	said, accelerate := rest, slices.Contains(args[:len(args)-len(rest)], "launch") ||
		args[min(2, len(args)-1)] == "accelerate.commands.launch"
	module, numbers := false, map[string]int{}
	for len(rest) > 0 && strings.HasPrefix(rest[0], "-") {
		flag, value, joined := strings.Cut(rest[0], "=")
		flag = strings.ReplaceAll(flag, "-", "_")
		switch {
		case flag == "_m" || flag == "__module":
			module, rest = true, rest[1:]
		case joined || slices.Contains(launcherSwitches, flag):
			rest = rest[1:]
		case len(rest) > 1:
			value, rest = rest[1], rest[2:]
		default:
			rest = nil
		}
		if _, most, ranged := strings.Cut(value, ":"); ranged { // --nnodes 1:4
			value = most
		}
		if n, err := strconv.Atoi(value); err == nil && n > 0 {
			numbers[strings.TrimLeft(flag, "_")] = n
		}
	}
	if len(rest) == 0 {
		return launch{args: args}
	}
	l := launch{args: append([]string{python}, rest...), elastic: filepath.Base(args[0]) != "deepspeed"}
	if module {
		l.args = append([]string{python, "-m"}, rest...)
	}
	if accelerate {
		l.args = append([]string{python, "-c", underAccelerate}, said...)
	}
	l.count(numbers)
	return l
}

// underAccelerate plays accelerate's launcher, which passes its flags and its configuration on to
// the script through the environment, and the script of one rank, in one process.
const underAccelerate = "import sys; from _memroom_probe.rehearse import accelerated; " +
	"accelerated.run(sys.argv[1:])"

// count reads how many ranks a launcher's flags speak of.
func (l *launch) count(numbers map[string]int) {
	machines := max(1, numbers["nnodes"], numbers["num_nodes"], numbers["num_machines"])
	l.perNode = max(numbers["nproc_per_node"], numbers["num_gpus"])
	l.ranks = l.perNode * machines
	if all := numbers["num_processes"]; all > 0 { // accelerate counts those of all machines
		l.ranks, l.perNode = all, max(1, all/machines)
	}
}

// launcherSwitches are options of launchers that take no value, with underscores for dashes.
var launcherSwitches = []string{"__standalone", "__no_python", "__run_path", "__multi_gpu", "__cpu",
	"__use_deepspeed", "__use_fsdp", "__use_megatron_lm", "__quiet", "_q", "__debug", "__mps", "__tpu",
	"__no_local_rank", "__no_ssh", "__use_xpu", "__use_env", "__main_training_function"}

// cutLauncher removes a launcher's own words from a command line. It also returns the Python that
// the launcher would start.
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
