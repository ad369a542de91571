package explain

import (
	"fmt"
	"slices"
	"strings"

	"memroom/event"
	"memroom/lazyregexp"
	"memroom/remedy"
	"memroom/trace"
)

// verdict returns one sentence about what ran out and why.
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

// plainFacts are situations whose clause states what the log shows, without a cause.
var plainFacts = []string{"eval_batch", "eval_late", "eval_phase", "load_host"}

// hedged marks a clause with thin evidence as one possibility.
func hedged(reason string, j judged) string {
	switch {
	case j.confidence == 0 || j.confidence >= 0.6 || j.reason != "":
		return reason
	case slices.Contains(plainFacts, j.detail):
		return reason
	}
	return "it may be that " + reason
}

// opening is a row of the words that a verdict begins with: what ran out. The first row whose
// evidence the log shows is taken.
type opening struct {
	needs string // the evidence, in words
	is    func(*trace.Crash, judged) bool
	says  string // PROBABLY stands where a doubt is said
}

// openings has a row for everything that a verdict can begin with.
var openings = []opening{
	{"a size many times the card", situated("far_beyond"), "One allocation was far too large"},
	{"a size that nobody meant", ofCause(CauseBug), "An allocation of an impossible size failed"},
	{"Apple's refusal below its limit", allOf(situated("refused"), within(event.WhereMPS)),
		"Apple's GPU refused memory below its limit"},
	{"figures of a card with room", situated("refused", "one_piece"),
		"The driver refused memory although the card was not full"},
	{"the program's own cap", situated("own_cap"),
		"The program's own cap on the card's memory was reached"},
	{"words of a heap", situated("heap"), "The limit of the program's own heap was reached"},
	{"a mapping that was refused", situated("mappings"), "Host memory was refused to the process"},
	{"a shared mapping that was refused", situated("shm_map", "map_count"),
		"Shared memory could not be had"},
	{"locked host memory, or WSL", situated("pinned", "wsl"), "CUDA could not get memory"},
	{"Ray's words about its store", situated("object_store"),
		"Ray's object store PROBABLY ran out of room"},
	{"Dask's own words", situated("dask_worker"),
		"A worker of Dask PROBABLY reached its own limit on memory"},
	{"figures of a node with room", allOf(ofKind("ray_oom"), func(c *trace.Crash, _ judged) bool {
		return belowFull(c)
	}), "Ray's own limit on the memory of the node was reached"},
	{"Ray's words about waiting", ofKind("ray_gpu_wait"), "The card did not become free"},
	{"a handle that was refused, without figures", situated("handle"),
		"A GPU library could not make its handle, probably because the card was full"},
	{"a kernel of a notebook that is gone, and no reason", allOf(ofKind("kernel_died"), unsure),
		"The notebook's kernel died, perhaps because host memory ran out"},
	{"a rank that is gone, and no reason", ofKind("launcher_kill"),
		"A rank ended without a message, perhaps because host memory ran out"},
	{"a worker that is gone, and words or figures of memory", allOf(ofKind("pool_worker"),
		func(c *trace.Crash, _ judged) bool { return c.Sure >= 0.6 && c.Sure < 0.8 }),
		"A worker process died, probably because host memory ran out"},
	{"a worker that is gone, and no reason", allOf(ofKind("pool_worker"), unsure),
		"A worker process died, perhaps because host memory ran out"},
	{"CUDA's refusal without a figure", allOf(ofKind("torch_raw"), func(c *trace.Crash, _ judged) bool {
		return c.Requested == nil && c.Capacity == nil && c.Allocated == nil && c.Free == nil
	}), "CUDA was refused memory"},
	{"a person's words about a memory that they do not name", allOf(ofKind(trace.KindTold), within(event.WhereUnknown)),
		"By its words memory ran out"},
	{"a person's words about how much is taken, and no end", allOf(ofKind(trace.KindTold), func(c *trace.Crash,
		_ judged) bool {
		return c.Sure < 0.55
	}), "By its words it takes more memory than it should, and no end for lack of it is shown"},
	{"a person's words about a rise, and no end", allOf(ofKind(trace.KindTold), func(c *trace.Crash,
		_ judged) bool {
		return c.Sure < 0.6
	}), "By its words memory grows, and no end for lack of it is shown"},
	{"a person's words about host memory", allOf(ofKind(trace.KindTold), func(c *trace.Crash,
		_ judged) bool {
		return onHost(c)
	}), "By its words host memory ran out"},
	{"a person's words about Apple's GPU", allOf(ofKind(trace.KindTold), within(event.WhereMPS)),
		"By its words Apple's GPU ran out of memory"},
	{"a person's words about /dev/shm", allOf(ofKind(trace.KindTold), within(event.WhereShm)),
		"By its words shared memory ran out"},
	{"a person's words about a card", ofKind(trace.KindTold),
		"By its words the card ran out of memory"},
	{"words of a TPU's memory", allOf(within(event.WhereGPU), func(c *trace.Crash, _ judged) bool {
		return ofTPU.MatchString(c.Text)
	}), "The memory of the TPU PROBABLY ran out"},
	{"a refusal of the card", within(event.WhereGPU), "The card PROBABLY ran out of memory"},
	{"a refusal of Apple's GPU", within(event.WhereMPS),
		"The memory that Apple's GPU may use PROBABLY ran out"},
	{"words of /dev/shm", within(event.WhereShm), "Shared memory (/dev/shm) PROBABLY ran out"},
	{"words of a job's limit", within(event.WhereCgroup),
		"PROBABLY the job's own limit on host memory was reached"},
	{"words of host memory", within(event.WhereHost), "PROBABLY host memory ran out"},
	{"words of memory", func(*trace.Crash, judged) bool { return true }, "PROBABLY memory ran out"},
}

func ofCause(cause Cause) func(*trace.Crash, judged) bool {
	return func(_ *trace.Crash, j judged) bool { return j.cause == cause }
}

func situated(details ...string) func(*trace.Crash, judged) bool {
	return func(_ *trace.Crash, j judged) bool { return slices.Contains(details, j.detail) }
}

func ofKind(kind string) func(*trace.Crash, judged) bool {
	return func(c *trace.Crash, _ judged) bool { return c.Kind == kind }
}

func within(where event.Where) func(*trace.Crash, judged) bool {
	return func(c *trace.Crash, _ judged) bool { return c.Where == where }
}

func unsure(c *trace.Crash, _ judged) bool { return c.Sure < 0.8 }

func allOf(a, b func(*trace.Crash, judged) bool) func(*trace.Crash, judged) bool {
	return func(c *trace.Crash, j judged) bool { return a(c, j) && b(c, j) }
}

// subject returns the opening words of a verdict.
func subject(c *trace.Crash, j judged) string {
	row := slices.IndexFunc(openings, func(o opening) bool { return o.is(c, j) })
	probably := ""
	if unsure(c, j) {
		probably = "probably "
	}
	says := capital(strings.Replace(openings[row].says, "PROBABLY ", probably, 1))
	if c.Where == event.WhereCgroup || c.Where == event.WhereHost {
		says += killed(c)
	}
	return says
}

// ofTPU are words of the memory of a TPU.
var ofTPU = lazyregexp.New(`(?i)\bhbm (?:capacity|usage)|memory space hbm|[\d.]+[KMGT] hbm|tpu_worker|_HBM\d|at the bottom of memory`)

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
	case c.Free != nil && c.Allocated == nil:
		parts = append(parts, c.Free.String()+" were free")
	case c.Pooled && c.Allocated != nil && c.Capacity != nil:
		parts = append(parts, fmt.Sprintf("%s of the %s that TensorFlow may take were in use", *c.Allocated,
			*c.Capacity))
	case c.Allocated != nil && c.Capacity != nil:
		parts = append(parts, fmt.Sprintf("%s of %s were %s", *c.Allocated, *c.Capacity, heldBy(c)))
	case c.Capacity != nil:
		parts = append(parts, fmt.Sprintf("the limit is %s", *c.Capacity))
	case c.Allocated != nil && onHost(c) && (c.Process != "" || c.Kind == "torch_worker"):
		parts = append(parts, "one process held "+c.Allocated.String())
	case c.Allocated != nil:
		parts = append(parts, c.Allocated.String()+" were "+heldBy(c))
	}
	return strings.Join(parts, ", ")
}

// heldBy returns whose figure it is: the kernel prints that of the process that it killed, which
// may be one of many.
func heldBy(c *trace.Crash) string {
	if c.Kind == "kernel_kill" || c.Kind == "torch_worker" {
		return "held by the process that was killed"
	}
	return "in use"
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
		if j.confidence == 0 && c.Kind != "" && c.Kind != trace.KindTold {
			return "it is open what filled it"
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
	case !slices.Contains([]remedy.Maker{remedy.NVIDIA, remedy.AMD}, makerOf(c, h)) && onCard(c):
		return "" // nothing of ours reads their memory
	case c.Kind == "serving_cache" || h.Trainer == "vllm" && onCard(c):
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
