package supervise

import (
	"regexp"
	"strings"

	"memroom/event"
)

// ending is what a text in the output says about the end of a job.
type ending struct {
	pattern *regexp.Regexp
	where   event.Where
	by      string
	oom     bool
	line    string // the line it was found in
}

// endings are the texts by which programs say that memory ran out, the most telling first: a worker that Ray killed also
// fails the task that waited for it. Sources: PyTorch c10/cuda/CUDACachingAllocator.cpp and torch/utils/data, TensorFlow's
// BFC allocator, XLA, Ray's memory monitor, slurmstepd.
var endings = []ending{
	{pattern: line(`ray\.exceptions\.OutOfMemoryError|killed due to the node running low on memory|Workers \(tasks / actors\) killed due to memory pressure`), where: event.WhereHost, by: "ray", oom: true},
	{pattern: line(`slurmstepd.*(oom[-_]kill event|Exceeded (job|step) memory limit)|Detected \d+ oom[-_]kill event`), where: event.WhereCgroup, by: "slurm", oom: true},
	{pattern: line(`slurmstepd.*CANCELLED AT .*(DUE TO|TIME LIMIT)|slurmstepd.*CANCELLED AT`), by: "slurm"},
	{pattern: line(`Bus error.*(out of shared memory|shared memory|dataloader)|out of shared memory|unable to (mmap|write to file|open shared memory object).*(/torch_|No space left|\(28\))|No space left on device.*(/dev/shm|torch_)`), where: event.WhereShm, by: "kernel", oom: true},
	{pattern: line(`MPS backend out of memory`), where: event.WhereMPS, by: "itself", oom: true},
	{pattern: line(`(CUDA|HIP|XPU) out of memory|CUDA error: out of memory|OutOfMemoryError: (CUDA|HIP|Allocation on device)|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|NCCL.*out of memory`), where: event.WhereGPU, by: "itself", oom: true},
	{pattern: line(`DefaultCPUAllocator: (can't|not enough memory)|std::bad_alloc|(numpy\.|_)?(ArrayMemoryError|MemoryError)\b|OSError: \[Errno 12\]|Cannot allocate memory`), where: event.WhereHost, by: "itself", oom: true},
	{pattern: line(`(ResourceExhaustedError|RESOURCE_EXHAUSTED|OOM when allocating tensor).*(by allocator (cpu|mklcpu)|on /job:\S+device:CPU)`), where: event.WhereHost, by: "itself", oom: true},
	{pattern: line(`OOM when allocating tensor|ResourceExhaustedError|RESOURCE_EXHAUSTED: (Out of memory|OOM)|Out of memory (while )?trying to allocate|failed to allocate .* bytes .*on device|Allocator \(GPU_\d+_bfc\) ran out of memory`), where: event.WhereGPU, by: "itself", oom: true},
}

func line(pattern string) *regexp.Regexp { return regexp.MustCompile(`(?im)^.*(?:` + pattern + `).*$`) }

// findText looks for the most telling text in the end of the output.
func findText(tail string) (ending, bool) {
	for _, e := range endings {
		if found := e.pattern.FindAllString(tail, -1); found != nil {
			e.line = firstLine(strings.TrimSpace(found[len(found)-1]))
			return e, true
		}
	}
	return ending{}, false
}
