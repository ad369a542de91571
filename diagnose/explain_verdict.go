package diagnose

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"memroom/event"
	"memroom/trace"
)

// verdict says in one sentence what ran out and why.
func verdict(c *trace.Crash, j judged) string {
	var s strings.Builder
	s.WriteString(subject(c, j))
	if figures := figures(c); figures != "" {
		s.WriteString(": " + figures)
	}
	if reason := reason(c, j); reason != "" {
		s.WriteString("; " + hedged(reason, j))
	}
	return s.String() + "."
}

// plainFacts are situations whose clause says what the log shows, and no cause.
var plainFacts = []string{"eval_batch", "eval_late", "load_host"}

// hedged says of a clause that its evidence is thin what it is: one possibility.
func hedged(reason string, j judged) string {
	switch {
	case j.confidence == 0 || j.confidence >= 0.6 || j.reason != "":
		return reason
	case slices.Contains(plainFacts, j.detail):
		return reason + "; what filled it is not shown"
	}
	return "what filled it is not shown; it may be that " + reason
}

func subject(c *trace.Crash, j judged) string {
	probably := ""
	if c.Sure < 0.8 {
		probably = "probably "
	}
	switch {
	case j.cause == CauseBug:
		return "An allocation of an impossible size failed"
	case j.detail == "refused" && c.Where == event.WhereMPS:
		return "Apple's GPU refused memory below its limit"
	case j.detail == "refused":
		return "The driver refused memory although the card was not full"
	case j.detail == "own_cap":
		return "The program's own cap on the card's memory was reached"
	case j.detail == "heap":
		return "The limit of the program's own heap was reached"
	case j.detail == "mappings":
		return "Host memory was refused to the process"
	case j.detail == "shm_map", j.detail == "map_count":
		return "Shared memory could not be had"
	case j.detail == "pinned", j.detail == "wsl":
		return "CUDA could not get memory"
	case j.detail == "object_store":
		return "Ray's object store " + probably + "ran out of room"
	case j.detail == "dask_worker":
		return "A worker of Dask " + probably + "reached its own limit on memory"
	case c.Kind == "ray_oom" && belowFull(c):
		return "Ray's own limit on the memory of the node was reached"
	case c.Kind == "ray_gpu_wait":
		return "The card did not become free"
	}
	switch {
	case c.Where == event.WhereGPU && ofTPU.MatchString(c.Text):
		return "The memory of the TPU " + probably + "ran out"
	}
	switch c.Where {
	case event.WhereGPU:
		return "The card " + probably + "ran out of memory"
	case event.WhereMPS:
		return "The memory that Apple's GPU may use " + probably + "ran out"
	case event.WhereShm:
		return "Shared memory (/dev/shm) " + probably + "ran out"
	case event.WhereCgroup:
		return capital(probably + "the job's own limit on host memory was reached" + killed(c))
	case event.WhereHost:
		return capital(probably + "host memory ran out" + killed(c))
	}
	return capital(probably + "memory ran out")
}

// ofTPU are words of the memory of a TPU.
var ofTPU = regexp.MustCompile(`(?i)\bhbm (?:capacity|usage)|memory space hbm|[\d.]+[KMGT] hbm|tpu_worker`)

// belowFull reports whether a node was well below its capacity, by the figures of the message.
func belowFull(c *trace.Crash) bool {
	return c.Allocated != nil && c.Capacity != nil &&
		float64(*c.Allocated) < 0.85*float64(*c.Capacity)
}

func killed(c *trace.Crash) string {
	if c.Process == "" {
		return ""
	}
	if c.Kind == "kube_oom" {
		return " by " + c.Process
	}
	return " and the kernel killed " + c.Process
}

func capital(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

func figures(c *trace.Crash) string {
	var parts []string
	if c.Requested != nil {
		parts = append(parts, printed(*c.Requested)+" were asked for")
	}
	switch {
	case c.Elsewhere != nil && c.Allocated != nil && c.Capacity != nil:
		parts = append(parts,
			fmt.Sprintf("%s in PyTorch's pool and %s elsewhere in the process, %s allowed",
				*c.Allocated, *c.Elsewhere, *c.Capacity))
	case c.Capped && c.Free != nil && c.Capacity != nil:
		parts = append(parts,
			fmt.Sprintf("the program allows itself %s, %s were free", *c.Capacity, *c.Free))
	case c.Free != nil && c.Capacity != nil:
		parts = append(parts, fmt.Sprintf("%s of %s were free", *c.Free, *c.Capacity))
	case c.Allocated != nil && c.Capacity != nil:
		parts = append(parts, fmt.Sprintf("%s of %s were in use", *c.Allocated, *c.Capacity))
	case c.Capacity != nil:
		parts = append(parts, fmt.Sprintf("the limit is %s", *c.Capacity))
	case c.Allocated != nil:
		parts = append(parts, c.Allocated.String()+" were in use")
	}
	return strings.Join(parts, ", ")
}

// reason is the clause of the verdict about the cause; empty where it is not known.
func reason(c *trace.Crash, j judged) string {
	if j.reason != "" {
		return j.reason
	}
	if s := situations[j.detail]; s.reason != "" {
		return s.reason
	}
	switch j.cause {
	case CauseFragmentation:
		if c.Idle != nil {
			return fmt.Sprintf("%s lie idle in PyTorch's pool in pieces that do not fit", *c.Idle)
		}
		return "its pool is fragmented"
	case CauseNeighbour:
		return j.evidence[0]
	case CauseShm:
		return "the workers' batches do not fit into it"
	case CauseHostData:
		return "the data held at once is too large"
	case CauseModel:
		return "what the model itself needs does not fit"
	case CauseLeak:
		return "memory seems to grow from step to step"
	case CauseBatch:
		return "the activations of one batch are too large"
	case CauseUnknown:
		if j.confidence == 0 && len(j.evidence) > 0 && c.Kind != "" {
			return "the log does not show what filled it"
		}
	}
	return ""
}

// nextCommand is the one command that would find out what a log does not show; empty where the
// cause is known, or where no command of ours can tell.
func nextCommand(c *trace.Crash, h *trace.Hints, j judged) string {
	if j.confidence >= 0.6 || j.cause == CauseSetting || c.Framework == "other" && onCard(c) {
		return ""
	}
	switch {
	case c.Kind == "serving_cache" || h.Trainer == "vllm":
		return "memroom plan MODEL --gpu SIZE   # what the weights need"
	case c.Framework == "slurm" || c.Framework == "kubernetes":
		return "memroom run -- YOUR COMMAND   # inside the job: records which process grows, and how fast"
	case onHost(c):
		return "memroom run -- YOUR COMMAND   # records which process grows, and how fast"
	case c.Framework == "pytorch" && c.Where == event.WhereGPU:
		return "memroom run -- YOUR COMMAND   # records what fills the card, with the line of code, and " +
			"takes a snapshot when it is full"
	}
	return "memroom run -- YOUR COMMAND   # records what fills the memory"
}
