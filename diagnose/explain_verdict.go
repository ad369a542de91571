package diagnose

import (
	"fmt"
	"strings"

	"memroom/event"
	"memroom/trace"
)

// verdict says in one sentence what ran out and why.
func verdict(c *trace.Crash, j judged) string {
	var s strings.Builder
	s.WriteString(subject(c))
	if figures := figures(c); figures != "" {
		s.WriteString(": " + figures)
	}
	if reason := reason(c, j); reason != "" {
		s.WriteString("; " + reason)
	}
	return s.String() + "."
}

func subject(c *trace.Crash) string {
	probably := ""
	if c.Sure < 0.8 {
		probably = "probably "
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

func killed(c *trace.Crash) string {
	if c.Process == "" {
		return ""
	}
	return " and the kernel killed " + c.Process
}

func capital(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

func figures(c *trace.Crash) string {
	var parts []string
	if c.Requested != nil {
		parts = append(parts, c.Requested.String()+" were asked for")
	}
	switch {
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

func reason(c *trace.Crash, j judged) string {
	switch j.cause {
	case CauseFragmentation:
		return fmt.Sprintf("%s lie idle in PyTorch's pool in pieces that do not fit", *c.Idle)
	case CauseNeighbour:
		return j.evidence[0]
	case CauseShm:
		return "the workers' batches do not fit into it"
	case CauseHostData:
		return "the data held at once is too large"
	case CauseModel:
		return "what the model itself needs does not fit" + detailWords[j.detail]
	case CauseLeak:
		return "memory seems to grow from step to step"
	case CauseBatch:
		if j.confidence < 0.5 {
			return "what one batch keeps is the likeliest part to shrink"
		}
		return "what one batch keeps is too large" + detailWords[j.detail]
	}
	return ""
}

var detailWords = map[string]string{"load": " (while loading)",
	"optimizer_step": " (in the optimizer's step)", "checkpoint_save": " (while saving)",
	"kv_cache": " beside the cache of keys and values",
	"logits":   " (in the loss over the vocabulary)", "eval_grad": " (during evaluation)",
	"backward": " (in the backward pass)", "forward": " (in the forward pass)"}
