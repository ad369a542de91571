package trace

import (
	"slices"
	"strings"

	"memroom/event"
)

// lookalike is an end that people mistake for a shortage of memory.
type lookalike struct {
	words     []string
	framework string
	what      string // the other error, in a few words
	sure      float64
	unless    string // a word on the line that makes it something else
}

// lookalikes name the other error. The sentence is shown to the user after "not a memory
// problem: ".
var lookalikes = []lookalike{
	{[]string{"illegal memory access"}, "pytorch",
		"a kernel touched memory it must not (illegal access); an index out of range or a wrong pointer, " +
			"not a shortage", 0.95, ""},
	{[]string{"device-side assert"}, "pytorch",
		"an assertion inside a kernel failed, nearly always an index beyond a table (token id, class " +
			"label)", 0.95, "to enable device-side"}, // a hint that PyTorch prints with every error
	{[]string{"srcindex < srcselectdimsize", "indexselectlargeindex", "scattergatherkernel",
		"t >= 0 && t < n_classes", "index out of bounds\" failed", "index out of bounds\"` failed",
		"index < sizes[i]", "indexing.cu:", "indexkernel.cu:", "loss.cu:", "scatterkernel",
		"embedding.cu:"}, "pytorch",
		"an assertion inside a kernel failed: an index is beyond its table (token id, class label)",
		0.95, ""},
	{[]string{"with negative dimension", "negative dimensions are not allowed",
		"maximum supported dimension", "array is too big", "maximum allowed dimension exceeded",
		"storage size calculation overflowed", "size calculation overflow"}, "python",
		"a size was computed wrongly (negative or beyond what a number can hold): a bug in a shape, or " +
			"an integer that overflowed", 0.9, ""},
	{[]string{"openencodesessionex failed", "nvencopenencodesessionex"}, "other",
		"the driver opens no further session of the video encoder: their number is limited, or driver and " +
			"library do not match", 0.93, ""},
	{[]string{"misaligned address"}, "pytorch", "a kernel read from a misaligned address", 0.9, ""},
	{[]string{"unspecified launch failure"}, "pytorch",
		"a kernel crashed (unspecified launch failure)", 0.9, ""},
	{[]string{"too many resources requested for launch", "launchoutofresources"}, "pytorch",
		"a kernel asks for more registers or threads than the card has, not for memory", 0.9, ""},
	{[]string{"out of resource: shared memory", "outofresources: out of resource",
		"out of resource: triton", "no valid triton configs"}, "pytorch",
		"a Triton kernel needs more on-chip shared memory than the card has; smaller blocks or fewer " +
			"stages help", 0.95, ""},
	{[]string{"collective operation timeout", "nccl timeout", "nccl communicator was aborted",
		"watchdog caught collective", "timed out waiting for", "heartbeat monitor timed out"},
		"pytorch", "a collective operation timed out: some rank did not arrive", 0.85, ""},
	{[]string{"due to preemption", "preempted"}, "slurm",
		"the scheduler took the job away for another one (preemption)", 0.93, "preemptionmode"},
	{[]string{"due to time limit"}, "slurm", "the job reached its time limit", 0.95, ""},
	{[]string{"term_owner", "term_admin", "killed by owner"}, "other", "somebody ended the job",
		0.93, ""},
	{[]string{"term_runlimit", "job killed: walltime"}, "other", "the job reached its time limit",
		0.95, ""},
	{[]string{"cuda failure"}, "pytorch",
		"a call to the driver failed, not for lack of memory", 0.7, "out of memory"},
	{[]string{"ncclsystemerror", "ncclremoteerror", "ncclinternalerror", "unhandled system error"},
		"pytorch", "a collective operation failed: a connection or a system call, not memory", 0.8,
		""},
	{[]string{"failed liveness probe"}, "kubernetes",
		"its liveness probe failed and the container was restarted", 0.9, ""},
	{[]string{"job requeue", "spot instance", "drain request", "node has died",
		"node was terminated", "being reclaimed", "was reclaimed", "preemption notice", "spot vm",
		"interruption notice", "instance interruption", "preemptible instance",
		"maintenance event", "node is shutting down", "instance is being terminated"}, "other",
		"the machine or the job was taken away (preemption, a node that left)", 0.85, ""},
	{[]string{"low on resource: ephemeral-storage", "low on resource: nodefs",
		"low on resource: imagefs"}, "kubernetes", "the node ran short of disk", 0.95, ""},
	{[]string{"maximum recursion depth"}, "python",
		"a function called itself too often (RecursionError)", 0.9, ""},
	{[]string{"buffer is not large enough"}, "pytorch",
		"a kernel of Apple's GPU got a buffer of the wrong size", 0.9, ""},
	{[]string{"due to node failure", "node_fail"}, "slurm", "a node failed", 0.9, ""},
	{[]string{"no space left on device", "disk quota exceeded", "enospc"}, "python",
		"a disk or a quota is full", 0.9, "/dev/shm"},
	{[]string{"outofdiskerror", "local disk is full", "disk is full", "input/output error",
		"out of disk space", "disk space runs out", "disk space ran out"},
		"python", "a disk is full or failed", 0.9, ""},
	{[]string{"driver/library version mismatch", "nvml_error_lib_rm_version_mismatch",
		"nvidia-smi has failed because", "forward compatibility was attempted"}, "other",
		"the driver and its libraries do not match, as after an update without a restart", 0.92,
		""},
	{[]string{"cuda driver version is insufficient", "driver on your system is too old"}, "other",
		"the driver of NVIDIA is older than the CUDA release that the program was built for, or there is none",
		0.93, ""},
	{[]string{"can't start new thread", "pthread_create failed", "blas_thread_init",
		"resource temporarily unavailable", "thread creation failed"}, "python",
		"a limit on the number of threads or processes was reached (ulimit -u, or the container's limit " +
			"on PIDs)", 0.88, ""},
	{[]string{"finished its bootstrapping"}, "pytorch",
		"worker processes were started without `if __name__ == '__main__':`", 0.95, ""},
	{[]string{"cannot re-initialize cuda in forked subprocess"}, "pytorch",
		"CUDA was used before a process was forked; start workers with spawn", 0.95, ""},
	{[]string{"ur_result_error_device_lost", "pi_error_device_not_found",
		"unable to find an engine to execute"}, "pytorch",
		"the driver lost the card, or a GPU library has no kernel for this call", 0.85, ""},
	{[]string{"memory access fault by gpu"}, "other",
		"a kernel touched memory it must not (AMD)", 0.93, ""},
	{[]string{"pytorchstreamreader failed", "unexpected eof, expected", "invalid magic number",
		"safetensors_rust.safetensorerror"}, "pytorch", "a file is damaged or incomplete", 0.88,
		"no space left"},
	{[]string{"pytorchstreamwriter failed", "storagefull"}, "pytorch",
		"a file could not be written, mostly because a disk or a quota is full", 0.9, ""},
	{[]string{"address already in use", "eaddrinuse"}, "pytorch",
		"the port of another job is taken", 0.85, ""},
	{[]string{"stack expects each tensor to be equal size"}, "pytorch",
		"the samples of a batch have different sizes and cannot be stacked", 0.9, ""},
	{[]string{"larger than currently supported by the mps backend"}, "pytorch",
		"a tensor has more elements than a kernel of Apple's GPU can address", 0.9, ""},
	{[]string{"expected all tensors to be on the same device"}, "pytorch",
		"tensors lie on different devices", 0.9, ""},
	{[]string{"no kernel image is available"}, "pytorch", "this build has no kernels for this card",
		0.95, ""},
	{[]string{"libcudnn.so", "libcudnn_ops", "libcublas.so", "cudnn64_", "cudnn_ops_infer64"}, "other",
		"a GPU library is missing or of another version", 0.86, "opened dynamic library"},
	{[]string{"loaded runtime cudnn library", "cudnn version incompatibility"}, "other",
		"the program was built for another version of cuDNN", 0.9, ""},
	{[]string{"uncorrectable ecc error", "fallen off the bus", "nvrm: xid", "gpu is lost"}, "other",
		"the card itself failed", 0.9, ""},
	{[]string{"segmentation fault", "sigsegv", "exitcode: -11", "code = -11", "code -11",
		"exit code 139", "code 139",
		"0xc0000005"}, "other", "a crash in native code (segmentation fault)", 0.8, ""},
	{[]string{"received 0 items of ancdata", "too many open files"}, "python",
		"too many open files (ulimit -n)", 0.9, ""},
	{[]string{"signal 15 (sigterm)", "got signal: 15", "signals.sigterm", "exit code 143",
		"code 143"}, "other", "somebody asked the job to end (SIGTERM)", 0.75, ""},
	{[]string{"invalid device ordinal", "no cuda-capable device", "no cuda gpus are available",
		"cuda error: initialization error"}, "pytorch", "the card or its driver is not usable",
		0.85, ""},
	{[]string{"cublas_status_execution_failed", "cublas_status_invalid_value",
		"cudnn_status_execution_failed", "cudnn_status_mapping_error",
		"cublas_status_arch_mismatch", "cudnn_status_not_supported"}, "pytorch",
		"a GPU library failed on its arguments or in its kernel", 0.8, ""},
	{[]string{"cancelled at"}, "slurm", "the job was cancelled", 0.6, "due to"},
	{[]string{"sigabrt", "code 134", "exitcode: -6"}, "other",
		"the program aborted itself (SIGABRT)", 0.55, ""},
	{[]string{"keyboardinterrupt"}, "python", "somebody interrupted it", 0.6, ""},
	{[]string{"loss is nan", "nan loss", "loss: nan", "loss=nan"}, "python",
		"the loss is not a number", 0.4, ""},
	{[]string{"connection reset by peer", "connection closed by peer", "socket timeout"}, "other",
		"a connection broke, as when another rank ended first", 0.3, ""},
}

var otherWords = append(lookalikeEntries(), entry{words: []string{"cuda error:", "hip error:"},
	endings: []*ending{cudaOther}},
	entry{words: []string{"assertion `"}, endings: []*ending{kernelAssert}},
	entry{words: []string{"traceback (most recent call last)"}, endings: []*ending{pythonOther}})

var (
	cudaOther   = &ending{kind: "other_cuda_error", read: readCUDAOther, frames: true}
	pythonOther = &ending{kind: "other_python", read: readPythonOther}
	// the kind of the words above it, after which other calls to the card fail as well
	kernelAssert = &ending{kind: "other_device-side_assert", read: readKernelAssert, frames: true}
	kernelFile   = later(`\.(?:cu|cuh|hip):\d+: `)
	cudaErrorIs  = later(`(?i)\b(?:CUDA|HIP) error: ([^.\n]{3,120})`)
	raised       = later(`^(?:[\w.]+\.)?(\w*(?:Error|Exception|Interrupt|Exit|Failed))\b:?\s?(.*)$`)
)

// readCUDAOther names an error of the driver that has nothing to do with memory running out.
func readCUDAOther(p *passage) *Crash {
	m := cudaErrorIs.FindStringSubmatch(p.line())
	if m == nil || strings.Contains(strings.ToLower(m[1]), "memory") ||
		strings.Contains(m[1], "_STATUS_") || aboutCode.MatchString(p.line()) {
		return nil
	}
	if named(p.line()) {
		return nil // another reader has a more specific pattern for these words
	}
	return &Crash{Class: Other, Sure: 0.8, Where: event.WhereUnknown, Framework: "pytorch",
		What: "the driver reports \"" + strings.TrimSpace(m[1]) + "\""}
}

// readKernelAssert reads what a kernel prints, one line for each thread, when its assertion fails.
func readKernelAssert(p *passage) *Crash {
	if !kernelFile.MatchString(p.line()) || named(p.line()) {
		return nil
	}
	return &Crash{Class: Other, Sure: 0.95, Where: event.WhereUnknown, Framework: "pytorch",
		What: "an assertion inside a kernel failed, nearly always an index beyond a table (token id, class " +
			"label)"}
}

// named reports whether a line holds the words of a known look-alike.
func named(line string) bool {
	lower := strings.ToLower(line)
	return slices.ContainsFunc(lookalikes, func(l lookalike) bool {
		return slices.ContainsFunc(l.words, func(w string) bool {
			return strings.Contains(lower,
				w)
		})
	})
}

// readPythonOther names the exception at the end of a traceback, for logs in which nothing else is
// found.
func readPythonOther(p *passage) *Crash {
	for _, line := range p.following(120) {
		if m := raised.FindStringSubmatch(line); m != nil {
			if strings.Contains(m[1], "Memory") || strings.Contains(strings.ToLower(m[2]),
				"memory") || strings.Contains(strings.ToLower(m[2]), "allocat") {
				return nil
			}
			return &Crash{Class: Other, Sure: 0.4, Where: event.WhereUnknown,
				What: "the program raised " + withReason(m[1], m[2])}
		}
	}
	return nil
}

// withReason adds an exception's own message to its name, if the message is short.
func withReason(name, message string) string {
	if message = strings.TrimSpace(message); message == "" || len(message) > 120 {
		return name
	}
	return name + " (" + strings.TrimRight(message, ".") + ")"
}

func lookalikeEntries() []entry {
	var entries []entry
	for _, l := range lookalikes {
		s := &ending{kind: "other_" + strings.ReplaceAll(l.words[0], " ", "_"), frames: true}
		s.read = func(p *passage) *Crash { return l.read(p) }
		entries = append(entries, entry{words: l.words, endings: []*ending{s}})
	}
	return entries
}

func (l lookalike) read(p *passage) *Crash {
	line := strings.ToLower(p.line())
	if aboutCode.MatchString(line) || l.unless != "" && strings.Contains(line, l.unless) {
		return nil
	}
	c := &Crash{Class: Other, Sure: l.sure, Where: event.WhereUnknown, Framework: l.framework,
		What: l.what}
	if strings.HasPrefix(p.word, "no space left") && spaceInShm(p) {
		return &Crash{Class: Exhausted, Sure: 0.95, Where: event.WhereShm, Framework: "pytorch"}
	}
	return c
}

// diskCommand is `df` at a prompt and its rows, which name /dev/shm whether it is full or not.
var diskCommand = later(`(?:^|[$#>] ?)df\b|^\s*\S+\s+\S+\s+\S+\s+\S+\s+(?:\d|[1-8]\d|9[0-4])%\s+/`)

// spaceInShm distinguishes a full /dev/shm from a full disk: both are "no space left on device".
func spaceInShm(p *passage) bool {
	near := slices.DeleteFunc(append(p.above(4), p.following(3)...), diskCommand.MatchString)
	text := strings.ToLower(strings.Join(near, "\n"))
	for _, sign := range []string{"/dev/shm", "</torch_", "bus error", "posix_fallocate", "psm_",
		"shared memory", "shm_open", "/nccl-", "memory file system", "pandarallel", "semlock",
		"ctx.lock(", "joblib will operate in serial"} {
		if strings.Contains(text, sign) {
			return true
		}
	}
	return false
}
