package trace

import (
	"slices"
	"strings"

	"memroom/event"
)

// settle decides what no single line can: which refusals were survived, whose framework a bare
// message is, and which passages are about the same end.
func settle(log *Log) {
	settleBackpedal(log)
	for i := range log.Crashes {
		settleFramework(&log.Crashes[i], log)
	}
	settleWorkers(log)
	settleStrangers(log)
	settleHandles(log)
	mergeAccounting(log)
	settleRetries(log)
	settleSkipped(log)
	dropEchoes(log)
}

// ranksPart is what ranks print that are no longer at the same step: a collective call got
// something else than it should, or never ended.
var ranksPart = later(`(?i)all_?gather|all_?reduce|distributed_utils|torch[/.\\]distributed|` +
	`multiprocessing[/.\\]spawn|Process \d+ terminated|inconsistent between workers|` +
	`gradients are inconsistent|\bNCCL|` +
	`UnpicklingError|Expected to have finished reduction`)

// skippedLines is how many lines may lie between a batch that was left out and the end of ranks
// that waited for it.
const skippedLines = 40

// settleSkipped takes back that a shortage was survived where one rank left a batch out and the
// ranks ended over it.
func settleSkipped(log *Log) {
	for i := range log.Crashes {
		c := &log.Crashes[i]
		if c.Class != Survived || c.What != wentOnWithLess {
			continue
		}
		if slices.ContainsFunc(log.Crashes, func(end Crash) bool {
			return end.Class == Other && end.Line > c.Line && end.Line-c.Line <= skippedLines &&
				(ranksPart.MatchString(end.Text) || ranksPart.MatchString(end.What))
		}) {
			c.Class = Exhausted
			c.What = "one rank left a batch out, and the ranks were no longer at the same step"
		}
	}
}

// settleRetries sets the end of a series of ever smaller batches to the figures of its last one.
func settleRetries(log *Log) {
	end := slices.IndexFunc(log.Crashes, func(c Crash) bool { return c.Kind == "no_batch_left" })
	if end < 0 || log.Crashes[end].Requested != nil {
		return
	}
	for i := range log.Crashes {
		c, to := &log.Crashes[i], &log.Crashes[end]
		if c.Kind == "torch_device" && c.Class != Other && c.Requested != nil && i < end {
			c.Class, c.What = Survived, "the program tried again with a smaller batch"
			to.Requested, to.Capacity, to.Allocated = c.Requested, c.Capacity, c.Allocated
			to.Idle, to.Free = c.Idle, c.Free
		}
	}
}

// settleWorkers assigns a killed worker the limit that the system names for the kill.
func settleWorkers(log *Log) {
	wall := slices.IndexFunc(log.Crashes, func(c Crash) bool {
		return c.Class == Exhausted && c.Where == event.WhereCgroup && c.Sure >= 0.8
	})
	if wall < 0 {
		return
	}
	for i := range log.Crashes {
		c, by := &log.Crashes[i], &log.Crashes[wall]
		if c.Kind == "torch_worker" && c.Where == event.WhereHost {
			c.Where, c.Capacity = event.WhereCgroup, firstSize(c.Capacity, by.Capacity)
			c.Allocated = firstSize(c.Allocated, by.Allocated)
		}
	}
}

// Exceptions that a process raises because another one is gone.
var lostOther = later(`(?i)connection|broken ?pipe|EOFError|timeout|refused|unavailable|ActorDied|WorkerCrashed`)

// settleStrangers looks at kills by the kernel in logs that also contain the program's own
// exception. If the victim is another program on the machine, the exception is what ended this one.
func settleStrangers(log *Log) {
	raised := slices.IndexFunc(log.Crashes, func(c Crash) bool {
		return c.Kind == "other_python" && !lostOther.MatchString(c.What)
	})
	if raised < 0 {
		return
	}
	stranger, own := "", false
	for i := range log.Crashes {
		c := &log.Crashes[i]
		if c.Kind != "kernel_kill" {
			continue
		}
		if c.Process == "" || pythonProcess.MatchString(c.Process) {
			own = true
			continue
		}
		stranger = "the kernel killed another program of the machine (" + c.Process + ")"
		c.Class, c.What = Survived, stranger
	}
	for i := range log.Crashes {
		if c := &log.Crashes[i]; c.Kind == "kernel_invoked" && stranger != "" && !own {
			c.Class, c.What = Survived, stranger
		}
	}
}

// wrongIndex are words of an index that is out of range, on the CPU or in a kernel.
var wrongIndex = later(`(?i)index out of range in self|device-side assert(?:ion)? (?:triggered|failed)|indexSelect\w*|srcIndex < |` +
	`t >= 0 && t < n_classes|index out of bounds|out of range \(expected to be in range`)

// saidRoom is what people write who have looked whether the card is full.
var saidRoom = later(`(?i)\b(?:gpu|cuda|video|card'?s?|v)[ _-]?(?:memory|ram)\b[^.,;\n]{0,30}\b(?:fine|ok(?:ay)?|` +
	`no problem|not the (?:problem|issue|cause|reason)|is enough|sufficient|mostly free|nearly empty)\b|` +
	`\b(?:I|we|there) (?:still )?(?:have|is) (?:enough|sufficient|plenty of) ` +
	`(?:free )?(?:gpu|cuda|video) (?:memory|ram)\b|` +
	`(?:nvidia-smi|the card|the gpu) (?:shows|is|was) (?:\w+ ){0,3}(?:free|empty|idle)\b`)

// settleHandles looks at libraries that could not make their handle in logs that tell of an index
// out of range: the kernel that met it had failed before.
func settleHandles(log *Log) {
	for i := range log.Crashes {
		c := &log.Crashes[i]
		if c.Kind == "library_status" && c.Sure < 0.8 && (log.Hints.Signs[SignIndex] != "" ||
			c.Signs[SignIndex] != "") {
			c.Class, c.Sure, c.Where = Other, 0.9, event.WhereUnknown
			c.What = "an index out of range (a label or a token beyond the table), reported by the next call of a " +
				"GPU library"
		} else if c.Kind == "library_status" && c.Sure < 0.8 && c.Signs[SignRoom] != "" {
			c.Class, c.Sure, c.Where = Other, 0.6, event.WhereUnknown
			c.What = "a GPU library could not make its handle although the card is said to have room; a kernel " +
				"that failed before it (an index out of range) is the usual reason then, and a run with " +
				"CUDA_LAUNCH_BLOCKING=1 or on the CPU shows it"
		}
	}
}

// smallRefusal is a size below which a refusal means that nothing was left: TensorFlow's asking for
// less and less has ended.
const smallRefusal = 64 * event.MiB

// absurdRefusal is a share of a card that no card has: its size was read wrongly.
const absurdRefusal = 64 * event.TiB

// settleBackpedal looks at a row of shrinking refusals as one: it was survived unless it went down
// to nearly nothing.
func settleBackpedal(log *Log) {
	smallest := -1
	for i, c := range log.Crashes {
		if c.Kind == "tf_backpedal" && c.Requested != nil &&
			(smallest < 0 || *c.Requested < *log.Crashes[smallest].Requested) {
			smallest = i
		}
	}
	if smallest < 0 {
		return
	}
	switch c := &log.Crashes[smallest]; {
	case *c.Requested < smallRefusal:
		c.Class, c.Sure, c.What = Exhausted, 0.8, "the driver refused even a small size"
	case *c.Requested > absurdRefusal:
		c.Class, c.Sure, c.What = Exhausted, 0.9, "the driver was asked for what no card has"
	}
}

func settleFramework(c *Crash, log *Log) {
	seen := log.Hints.Frameworks
	if c.Framework == "" {
		switch {
		case seen["pytorch"]:
			c.Framework = "pytorch"
		case seen["tensorflow"]:
			c.Framework = "tensorflow"
		case seen["jax"]:
			c.Framework = "jax"
		default:
			c.Framework = "other"
		}
	}
	if c.Class == Other && c.Framework == "pytorch" && !seen["pytorch"] {
		switch { // the driver's words are the same for all
		case seen["tensorflow"]:
			c.Framework = "tensorflow"
		case seen["jax"]:
			c.Framework = "jax"
		}
	}
	switch c.Kind {
	case "any_generic":
		c.Where = event.WhereHost
		if seen["pytorch"] || seen["tensorflow"] || seen["jax"] {
			c.Where = event.WhereGPU
		}
	case "tf_allocator", "tf_backpedal", "tf_soft", "tf_library", "library_status", "device_code":
		if seen["jax"] { // whose allocator still carries TensorFlow's paths
			c.Framework = "jax"
		}
	case "torch_raw":
		if c.Framework == "pytorch" && !seen["pytorch"] && !ofPython.MatchString(c.Text) &&
			len(c.Frames) == 0 {
			c.Framework = "other" // the driver's words, which any program prints
		}
	case "jax_exhausted":
		if !seen["jax"] && seen["pytorch"] { // torch_xla, whose messages carry TensorFlow's paths
			c.Framework = "pytorch"
		} else if !seen["jax"] && (strings.Contains(c.Text, "tensorflow") || seen["tensorflow"] &&
			!strings.Contains(c.Text, "XlaRuntimeError")) {
			c.Framework = "tensorflow"
		}
	case "other_segmentation_fault", "other_signal_15_(sigterm)", "other_no_space_left_on_device",
		"other_received_0_items_of_ancdata":
		if seen["pytorch"] {
			c.Framework = "pytorch"
		}
	case "bare_kill", "exit_137":
		if c.Framework == "other" && seen["pytorch"] {
			c.Framework = "pytorch"
		} else if c.Framework == "python" && seen["pytorch"] {
			c.Framework = "pytorch"
		} else if (c.Framework == "other" || c.Framework == "python") && seen["tensorflow"] {
			c.Framework = "tensorflow"
		}
	}
}

// ofPython are words of an exception of Python or of PyTorch's own libraries.
var ofPython = later(`RuntimeError|AcceleratorError|torch|THC|c10|NCCL|Traceback|CUDA kernel errors|pythonInterface|csrc/`)

// echoes are kinds that only repeat, with less detail, what messages of other kinds report.
var echoes = map[string][]string{
	"kernel_invoked": {"kernel_kill"},
	"bare_kill": {"kernel_kill", "slurm_oom", "slurm_state", "kube_oom", "ray_oom", "exit_137",
		"notebook_ram", "dask", "batch_limit", "yarn"},
	"exit_137": {"kernel_kill", "kernel_invoked", "slurm_oom", "slurm_state", "kube_oom",
		"ray_oom", "notebook_ram", "batch_limit", "yarn"},
	"launcher_kill": {"exit_137", "bare_kill", "kernel_kill", "torch_device", "torch_raw",
		"array_memory",
		"memory_error", "other_python"},
	"user_killer":  {"kernel_kill", "kernel_invoked", "slurm_oom", "kube_oom", "ray_oom"},
	"slurm_state":  {"slurm_oom"},
	"torch_warned": {"torch_device"},
	"tf_class": {"tf_tensor", "tf_allocator", "jax_exhausted", "array_memory",
		"memory_error"},
	"torch_class":  {"torch_device", "torch_async", "torch_raw", "torch_mps"},
	"memory_error": {"array_memory"},
	"device_generic": {"catboost", "torch_device", "torch_raw", "torch_mps", "ggml", "cupy", "paddle",
		"jax_exhausted", "tf_tensor", "tf_allocator"},
	"device_code":    {"torch_device", "torch_raw", "jax_exhausted", "tf_tensor"},
	"torch_raw":      {"ggml"},
	"tf_library":     {"tf_tensor"},
	"library_status": {"tf_library"},
	"any_generic": {"catboost", "torch_device", "torch_raw", "torch_mps", "ggml", "cupy", "paddle",
		"jax_exhausted", "tf_tensor", "tf_allocator", "device_generic", "device_code",
		"kernel_kill", "kernel_invoked", "slurm_state", "slurm_oom", "heap", "array_memory",
		"memory_error"},
	"no_batch_left": {"torch_device"},
	"bare_bus":      {"torch_worker", "torch_shm"},
	"pool_worker": {"kernel_kill", "slurm_oom", "slurm_state", "kube_oom", "ray_oom", "page_file",
		"array_memory", "memory_error", "errno_memory", "torch_cpu", "bad_alloc"},
	"kernel_died": {"kernel_kill", "kube_oom", "torch_device", "notebook_ram", "tf_tensor",
		"memory_error", "array_memory", "page_file", "torch_cpu"},
}

// dropEchoes removes them. A device message and a host kill are different ends and both stay.
func dropEchoes(log *Log) {
	present := map[string]bool{}
	for _, c := range log.Crashes {
		if c.Class == Exhausted {
			present[c.Kind] = true
		}
	}
	ended := slices.ContainsFunc(log.Crashes, func(c Crash) bool {
		return c.Class != Survived && c.Kind != "other_python"
	})
	empty := slices.ContainsFunc(log.Crashes, func(c Crash) bool {
		return c.Kind == "jax_exhausted" && c.Class == Other && c.What == emptyTensor
	})
	log.Crashes = slices.DeleteFunc(log.Crashes, func(c Crash) bool {
		if c.Kind == "other_python" && ended {
			return true // the content of the exception has been used already
		}
		if c.Class != Exhausted {
			return false
		}
		if empty && c.Kind == "tf_class" {
			return true // the name of the same exception
		}
		if !c.hasFigures() && slices.ContainsFunc(log.Crashes, func(full Crash) bool {
			return full.Class == Exhausted && full.Kind == c.Kind && full.Where == c.Where &&
				full.hasFigures() && c.Rank < 0
		}) {
			return true // a title or a sentence before the message itself
		}
		return slices.ContainsFunc(echoes[c.Kind],
			func(better string) bool { return present[better] })
	})
	dropAftermath(log)
	mergeTensorAndAllocator(log)
}

// broken are ends after which every further call to the card fails, in whatever words.
var broken = []string{"other_device-side_assert", "other_srcindex_<_srcselectdimsize",
	"other_illegal_memory_access", "other_unspecified_launch_failure", "other_misaligned_address"}

// aftermath are failures without figures that follow from a broken context as well as from a full
// card.
var aftermath = []string{"library_status", "torch_raw", "tf_library", "device_code"}

// dropAftermath removes what only follows from a kernel that failed before, and the words for
// "no memory" in which a program passes on that an encoder did not open.
func dropAftermath(log *Log) {
	if encoder := slices.IndexFunc(log.Crashes, func(c Crash) bool {
		return c.Kind == "other_openencodesessionex_failed"
	}); encoder >= 0 {
		from := log.Crashes[encoder].offset
		log.Crashes = slices.DeleteFunc(log.Crashes, func(c Crash) bool {
			return c.Class == Exhausted && c.offset > from && c.Requested == nil &&
				(c.Kind == "errno_memory" || c.Kind == "device_generic" || c.Kind == "any_generic")
		})
	}
	first := slices.IndexFunc(log.Crashes,
		func(c Crash) bool { return slices.Contains(broken, c.Kind) })
	if first < 0 {
		return
	}
	from := log.Crashes[first].offset
	log.Crashes = slices.DeleteFunc(log.Crashes, func(c Crash) bool {
		return slices.Contains(aftermath, c.Kind) && c.offset > from && c.Requested == nil
	})
}

// mergeAccounting joins the rows of one table of Slurm's: the job has the limit, its step the
// usage. The kill that the table accounts for gets both.
func mergeAccounting(log *Log) {
	first := slices.IndexFunc(log.Crashes, func(c Crash) bool {
		return c.Kind == "slurm_oom" || c.Kind == "slurm_state"
	})
	if first < 0 {
		return
	}
	for i := range log.Crashes {
		if c := &log.Crashes[i]; i != first && c.Kind == "slurm_state" {
			log.Crashes[first].Allocated = firstSize(log.Crashes[first].Allocated, c.Allocated)
			log.Crashes[first].Capacity = firstSize(log.Crashes[first].Capacity, c.Capacity)
		}
	}
}

// mergeTensorAndAllocator joins the two messages of TensorFlow and of JAX about one refusal: the
// allocator's and the operation's.
func mergeTensorAndAllocator(log *Log) {
	tensor := slices.IndexFunc(log.Crashes, func(c Crash) bool {
		return (c.Kind == "tf_tensor" || c.Kind == "jax_exhausted" &&
			log.Hints.Frameworks["jax"]) && c.Class == Exhausted
	})
	if tensor < 0 { // a failed copy shows who asked for it, the allocator how much
		tensor = slices.IndexFunc(log.Crashes, func(c Crash) bool {
			return c.Kind == "tf_library" && strings.Contains(c.Text, "Dst tensor")
		})
		if tensor < 0 {
			return
		}
		for _, c := range log.Crashes[:tensor] {
			if c.Kind == "tf_allocator" && c.Class == Exhausted {
				log.Crashes[tensor].Requested = firstSize(log.Crashes[tensor].Requested, c.Requested)
			}
		}
	}
	log.Crashes = slices.DeleteFunc(log.Crashes,
		func(c Crash) bool { return c.Kind == "tf_allocator" && c.Class == Exhausted })
}

// First returns the index of the cause: the earliest sure shortage, else the likeliest one, else an
// end of another kind. It returns -1 if the log shows no end at all.
func (l *Log) First() int {
	best, score := -1, 0.0
	for i, c := range l.Crashes {
		if s := weight(c); s > score {
			best, score = i, s
		}
	}
	if best >= 0 && l.Crashes[best].Heading() {
		for i := best + 1; i < len(l.Crashes); i++ {
			c := &l.Crashes[i]
			if weight(*c) == score && c.Kind == l.Crashes[best].Kind && c.Requested != nil {
				return i
			}
		}
	}
	return best
}

// Heading reports whether a passage is the title of a report, which names a message without its
// figures.
func (c *Crash) Heading() bool {
	return c.Line <= 1 && c.Class == Exhausted && c.Requested == nil && c.Allocated == nil &&
		len(c.Frames) == 0
}

// weight ranks passages: those equally sure keep their order, because only a greater weight
// replaces an earlier one.
func weight(c Crash) float64 {
	switch {
	case c.Class == Exhausted && c.Sure >= 0.8:
		return 10
	case c.Class == Other && c.Sure >= 0.85:
		return 7
	case c.Class == Exhausted && c.Sure >= 0.5:
		return 6
	case c.Class == Other && c.Sure >= 0.75:
		return 5
	case c.Class == Other && c.Sure >= 0.5:
		return 4
	case c.Class == Survived:
		return 2
	}
	return 1
}
