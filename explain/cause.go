package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"memroom/event"
	"memroom/lazyregexp"
	"memroom/remedy"
	"memroom/trace"
)

// judged is a cause with what speaks for it.
type judged struct {
	cause      Cause
	detail     string // names the situation, see situations
	confidence float64
	evidence   []string
	reason     string // ends the verdict; empty: the words of the situation or the cause
	beside     string // a second situation, whose cures follow
	frame      int    // of the traceback that shows it, 0: the innermost, or none

	cures  []remedy.ID          // instead of those of the situation; nil: those
	typed  map[remedy.ID]string // what to type for them, where the situation knows it
	words  []ownCure            // first of all, in the case's own words
	tensor *Tensor              // that was refused, where it is known
	cased  bool                 // decided by a case, which rests on what it has matched
	// its cures need no measurement before them
	settled bool
}

func because(cause Cause, detail string, confidence float64, format string, args ...any) judged {
	return judged{cause: cause, detail: detail, confidence: confidence,
		evidence: []string{fmt.Sprintf(format, args...)}}
}

func (j judged) saying(format string, args ...any) judged {
	j.reason = fmt.Sprintf(format, args...)
	return j
}

func (j judged) also(format string, args ...any) judged {
	j.evidence = append(j.evidence, fmt.Sprintf(format, args...))
	return j
}

// judge finds the cause that the evidence names. Figures that leave no other reading come first,
// then walls and stages that only one kind of work reaches, then figures again, then the stages of
// any training, then what people say. A claim that its rule takes back is passed over, see claims.
// Where none of them speaks, the cause is unknown.
func judge(f *Facts, s Sums) judged {
	c, h := f.Crash, f.Hints
	if j, ok := byMistake(c, h); ok && j.detail == "bad_size" {
		return j
	}
	if j, ok := byCase(f, s); ok {
		return j
	}
	j := manyCopies(byStages(c, h), f)
	if slices.Contains(indefinite, j.detail) && j.confidence < sureOfPieces {
		if late, ok := tensorCase(f, s, true); ok {
			late.cased = true
			return late
		}
	}
	if told, ok := byTopic(f, j); ok {
		return told
	}
	if onlyTold(f) && onCard(c) && !has(c, trace.SignPredicts) &&
		(len(c.Frames) == 0 || j.cause == CauseUnknown) {
		return judged{cause: CauseUnknown, detail: "told", cased: true}
	}
	return ownTensors(j, f, s)
}

// manyCopies adds how many processes prepare the data, where they are what fills host memory.
func manyCopies(j judged, f *Facts) judged {
	k, ok := f.key(Processes)
	if j.detail != "map_writer" || !ok || k.Number() < 8 {
		return j
	}
	return j.also("%s: as many copies of the interpreter, of what the function captures and of results", k.Text).
		saying("%s processes prepare the data, each with its own copy of what it needs", k.Value)
}

// indefinite are situations that say no more than that a pass was under way.
var indefinite = []string{"", "open", "limit", "forward", "backward", "oversized", "host_tensor"}

// bySettings are situations that a program's words alone suggest: what a person tells of the end
// says more.
var bySettings = []string{"serving_request", "eval_batch", "images"}

// byStages asks the rules about stages of work, most telling first.
func byStages(c *trace.Crash, h *trace.Hints) judged {
	steps := []func(*trace.Crash, *trace.Hints) (judged, bool){
		byMistake, byPredicts, bySystem, byWall,
		byRay, byFullBefore, byNeighbour, byPickle, byStage, byFragments,
		byElsewhere, byOverflow, byLauncher, byPool, byData, byGrowth, byImages, byEvalBar, byServer,
		byResumed,
		byTraceback, byNode, byPhase, byOtherBatch, byWords, bySteps, bySize, bySetting,
	}
	var doubts []string
	for _, step := range steps {
		j, ok := step(c, h)
		if !ok || !proven(j, c, h) {
			continue
		}
		if against := contradicted(j, c, h); against != "" {
			doubts = append(doubts, against)
			continue
		}
		return withDoubts(withEngine(withFigures(withStage(j, c, h), c), c, h), doubts)
	}
	return withDoubts(withFigures(notKnown(c, h), c), doubts)
}

// drawLess is how to log fewer images, where the training of an image generator logs them.
const drawLess = "fewer images and steps where they are logged (N, max_images, num_validation_images, ddim_steps), logged more " +
	"rarely (batch_frequency, validation_steps) or not at all"

// withDoubts adds what took back the claims before.
func withDoubts(j judged, doubts []string) judged {
	for _, d := range doubts {
		if !slices.Contains(j.evidence, d) {
			j.evidence = append(j.evidence, d)
		}
	}
	return j
}

// notMapped is the refusal of a mapping, which a full /dev/shm does not give.
var notMapped = lazyregexp.New(`unable to mmap[^\n]*Cannot allocate memory`)

// sharedPiece is the name of a piece of shared memory: PyTorch counts those of a process in it.
var sharedPiece = lazyregexp.New(`unable to mmap \d+ bytes from file </torch_\d+_\d+_(\d+)>: Cannot allocate`)

// manyPieces is a number of mappings from which the kernel's usual limit is near.
const manyPieces = 50_000

// piecesMade is how many pieces of shared memory a process had made, 0 where the message does not
// tell.
func piecesMade(text string) int {
	m := sharedPiece.FindStringSubmatch(text)
	if m == nil {
		return 0
	}
	n, _ := strconv.Atoi(m[1])
	return n
}

// engineWarmup is what inference engines say when their start takes more than they reckoned.
var engineWarmup = lazyregexp.New(`(?i)memory occurred (?:when|during|while) (?:warming up|capturing|` +
	`cuda graph)|lowering .max_num_seqs.|unable to warm ?up|not enough memory to handle \d+ prefill|` +
	`method warmup encountered`)

// cacheShort is what an engine's own figures say where they leave no room for its cache.
const cacheShort = "what the model itself needs leaves too little for the cache of keys and values"

// locksMade are calls and warnings of locks between processes.
var locksMade = lazyregexp.New(`(?i)semlock|ctx\.lock\(|joblib will operate in serial`)

// byWall knows the causes that follow from the wall itself.
func byWall(c *trace.Crash, h *trace.Hints) (judged, bool) {
	switch {
	case c.Kind == "ray_store":
		return objectStore(c), true
	case c.Where == event.WhereShm && strings.Contains(strings.ToLower(c.Text), "nccl"):
		return because(CauseShm, "", 0.95,
			"shared memory (/dev/shm) is full: ranks exchange data in it").
			saying("the buffers of collective operations (NCCL) do not fit into it"), true
	case c.Where == event.WhereShm && piecesMade(c.Text) >= manyPieces:
		return because(CauseSetting, "map_count", 0.75,
			"the name of the piece counts %s that this process has shared: a process may have "+
				"65,530 mappings by default (vm.max_map_count)", thousands(int64(piecesMade(c.Text)))), true
	case c.Where == event.WhereShm && notMapped.MatchString(c.Text):
		return because(CauseShm, "shm_map", 0.6,
			"shared memory could not be mapped (ENOMEM): host memory or a limit on it (ulimit -v, "+
				"vm.max_map_count) is short, rather than the size of /dev/shm"), true
	case c.Kind == "heap":
		j := because(CauseUnknown, "heap", 0,
			"the heap of Java and of JavaScript has a limit of its own (-Xmx, --max-old-space-size): the "+
				"machine may have more memory than that").saying("what filled it is not shown")
		j.words = []ownCure{{remedy.RaiseLimit, "a larger heap, or less in it at once",
			"-Xmx16g (Java), spark.driver.memory=16g (Spark; toPandas and collect bring all rows to the driver), " +
				"NODE_OPTIONS=--max-old-space-size=16384 (Node)"}}
		return j, true
	case c.Where == event.WhereShm && locksMade.MatchString(c.Text+strings.Join(c.Code, " ")):
		j := because(CauseShm, "", 0.9, "a lock of multiprocessing is a file in /dev/shm, and found no room there").
			saying("no room was left for a lock of multiprocessing")
		j.words = []ownCure{{remedy.ShmSize, "look what is left in /dev/shm, or make it larger",
			"df -h /dev/shm; ls /dev/shm   # files of programs that have ended can go; a container: --shm-size=8g or --ipc=host"}}
		return j, true
	case c.Where == event.WhereShm:
		return because(CauseShm, "", 0.95,
				"shared memory (/dev/shm) is full: DataLoader workers hand their batches over in it"),
			true
	case c.Where == event.WhereGPU && (c.Requested == nil || strings.Contains(c.What, "NCCL")) &&
		strings.Contains(strings.ToLower(c.Text+c.What), "nccl"):
		return because(CauseUnknown, "nccl", 0,
			"NCCL takes its buffers from the card beside the framework's pool, which had left too "+
				"little").saying("the buffers of collective operations (NCCL) did not fit beside what the " +
			"framework holds"), true
	case engineWarmup.MatchString(c.Text):
		return because(CauseModel, "serving_warmup", 0.7,
			"the engine's warm-up did not fit beside its weights and its share for the cache"), true
	case c.Kind == "dispatched":
		return because(CauseModel, "dispatched", 0.8,
			"the loader counted what the cards have free and placed part of the model elsewhere"), true
	case c.Kind == "board":
		return because(CauseUnknown, "board", 0,
			"a Jetson has one memory: what the host's programs, the desktop and the page cache hold is "+
				"missing on the card; the message does not say how much that was"), true
	case c.Kind == "serving_cache" && len(c.Neighbours) > 0:
		return because(CauseNeighbour, "serving_start", 0.8,
			"%s of the card were taken before this program started", neighbourBytes(c)), true
	case c.Kind == "serving_cache" && has(c, trace.SignEngineSum):
		return because(CauseModel, "kv_cache", 0.8, "%s: no room is left for the cache",
			c.Signs[trace.SignEngineSum]).saying(cacheShort), true
	case c.Kind == "serving_cache":
		return because(CauseModel, "kv_cache", 0.7,
				"the weights leave too little of the card for the cache of keys and values: no room for its blocks").
				saying(cacheShort),
			true
	case c.Where == event.WhereGPU && has(c, trace.SignCapturing) && has(c, trace.SignServing) &&
		c.Steps == 0:
		return because(CauseModel, "serving_warmup", 0.65,
			"an inference engine was recording CUDA graphs, beside its share of the card (%s)",
			first(c.Signs[trace.SignEngine], h.Signs[trace.SignEngine], "not said")), true
	case strings.Contains(c.Text, "cuDevicePrimaryCtxRetain"), contextRefused.MatchString(c.Text):
		return because(CauseNeighbour, "context", 0.65,
			"not even a context fitted on the card: another process holds it"), true
	case c.Kind == "cupy" && c.Capacity != nil && c.Allocated != nil:
		return because(CauseSetting, "own_cap", 0.75,
			"CuPy's pool is limited to %s (set_limit or CUPY_GPU_MEMORY_LIMIT), of which %s are taken",
			*c.Capacity, *c.Allocated), true
	case c.Kind == "catboost" && c.Free != nil && c.Requested != nil:
		return because(CauseNeighbour, "table_share", 0.65,
			"CatBoost takes a share of the whole card at its start (%s), and only %s were free: another process "+
				"or the desktop holds the rest", *c.Requested, *c.Free), true
	case c.Kind == "tensorrt":
		return because(CauseUnknown, "workspace", 0,
			"TensorRT asks for work space to try a kernel while it builds an engine; what else lies on the "+
				"card is not shown, and a lower limit on work space makes it try other kernels").
			saying("the work space of a kernel that TensorRT tried did not fit"), true
	case c.Kind == "ggml", c.Kind == "ollama":
		return byBuffer(c), true
	}
	return judged{}, false
}

// neighbourShare is the part of a card that others must hold to be the cause, unlistedShare the
// same for memory that no process is named for: a context, a display and libraries explain up to
// two gigabytes.
const (
	neighbourShare = 0.15
	unlistedShare  = 0.33
	unlistedFloor  = 2 * event.GiB
)

func byNeighbour(c *trace.Crash, h *trace.Hints) (judged, bool) {
	if onHost(c) {
		return byStranger(c)
	}
	if j, ok := byTable(c, h); ok {
		return j, true
	}
	if c.Where != event.WhereGPU || c.Capacity == nil || c.Framework == "ray" {
		return judged{}, false
	}
	others, left := neighbourBytes(c), ""
	if seen(c, h, trace.SignRayTune) {
		left = "trial_left"
		if seen(c, h, trace.SignShares) || alikeNeighbours(c) {
			left = "trials_share"
		}
	}
	if c.Requested == nil && 2*others > *c.Capacity && len(c.Neighbours) > 0 {
		n := c.Neighbours[0]
		return because(CauseNeighbour, left, 0.75,
			"process %d (%s) holds %s of the card's %s, as listed after this program had ended", n.PID,
			n.Name, n.Bytes, *c.Capacity), true
	}
	if float64(others) >= neighbourShare*float64(*c.Capacity) && c.Requested != nil &&
		others > *c.Requested && (5*others >= *c.Capacity || c.Allocated == nil ||
		float64(*c.Allocated) < 0.7*float64(*c.Capacity)) {
		j := because(CauseNeighbour, left, 0.85, "%s of the card's %s are held by %s", others,
			*c.Capacity, event.Count(len(c.Neighbours), "other process"))
		for _, n := range c.Neighbours {
			if n.Name != "" {
				j = j.also("process %d (%s) holds %s, as a table in the log lists it", n.PID, n.Name, n.Bytes)
			}
		}
		if ranksOnOneCard(c) {
			j.detail = "ranks_on_card"
			j = j.also("this is rank %d, and the others have contexts on its card", c.Rank)
		}
		return j, true
	}
	rest := unlisted(c) - ownElsewhere(c)
	if rest < unlistedFloor || float64(rest) < unlistedShare*float64(*c.Capacity) {
		return judged{}, false
	}
	if n := len(c.Neighbours); n > 0 && others == 0 {
		j := because(CauseNeighbour, left, 0.75,
			"%s of the card's %s are not this program's: the message lists %s on it and counts "+
				"0 bytes for each, as drivers do inside of containers", rest, *c.Capacity,
			event.Count(n, "other process"))
		if n >= manyContexts-1 && left == "" {
			j.detail = "ranks_on_card"
			j = j.also("so many at once are mostly ranks of the same job, which did not select their own card")
		}
		return j, true
	}
	if len(c.Neighbours) == 0 {
		return because(CauseNeighbour, left, 0.75,
			"%s of the card's %s are neither in this program's pool nor free: other processes hold them, or "+
				"this one outside of its pool", rest, *c.Capacity), true
	}
	return because(CauseNeighbour, left, 0.75,
		"%s of the card's %s are held by processes that the message does not list", rest,
		*c.Capacity), true
}

// alikeNeighbours reports whether several processes hold about as much of the card each: trials
// that run side by side.
func alikeNeighbours(c *trace.Crash) bool {
	if len(c.Neighbours) < 2 {
		return false
	}
	least, most := c.Neighbours[0].Bytes, c.Neighbours[0].Bytes
	for _, n := range c.Neighbours[1:] {
		least, most = min(least, n.Bytes), max(most, n.Bytes)
	}
	return least > oneContext && 2*least > most
}

// byTable recognises a card that a table in the log shows as taken. It applies where the refusal
// has no figures of its own, because the driver refused before the program had a pool to count. The
// table may have been made while this program ran; the answer mentions that.
func byTable(c *trace.Crash, h *trace.Hints) (judged, bool) {
	if c.Where != event.WhereGPU || c.Requested != nil || c.Steps > 0 || len(c.Neighbours) > 0 ||
		!has(c, trace.SignTaken) || c.Capacity == nil || passIn(c.Frames) {
		return judged{}, false
	}
	sure := 0.6
	if slices.Contains(h.Says, string(CauseNeighbour)) {
		sure = 0.75
	}
	return because(CauseNeighbour, "full_before", sure,
		"a table above shows a card of which %s of %s are taken: by another process, unless this program "+
			"itself was running when it was made", c.Signs[trace.SignTaken], *c.Capacity), true
}

// strangerShare is the part of a machine that one other program must hold to be the cause.
const strangerShare = 0.4

// byStranger knows a table of processes in which another program holds most of host memory.
func byStranger(c *trace.Crash) (judged, bool) {
	if c.Capacity == nil || c.Framework == "ray" || len(c.Neighbours) == 0 {
		return judged{}, false
	}
	largest := slices.MaxFunc(c.Neighbours, func(a, b trace.Holder) int {
		return cmp.Compare(a.Bytes, b.Bytes)
	})
	if float64(largest.Bytes) < strangerShare*float64(*c.Capacity) {
		return judged{}, false
	}
	return because(CauseNeighbour, "host_neighbour", 0.75,
		"another program of the machine, process %d (%s), holds %s of its %s", largest.PID, largest.Name,
		largest.Bytes, *c.Capacity), true
}

// elsewhereShare is the part of a card that the process must hold outside of PyTorch's pool before
// that is worth saying first.
const elsewhereShare = 0.25

// byElsewhere recognises memory that the process itself holds outside PyTorch's pool.
func byElsewhere(c *trace.Crash, _ *trace.Hints) (judged, bool) {
	rest := ownElsewhere(c)
	if c.Capacity == nil || rest < unlistedFloor ||
		float64(rest) < elsewhereShare*float64(*c.Capacity) {
		return judged{}, false
	}
	return because(CauseUnknown, "elsewhere", 0,
		"%s of the card's %s belong to this process but not to PyTorch's pool: another framework or engine "+
			"in the same process, NCCL's buffers, or recorded CUDA graphs", rest, *c.Capacity), true
}

// byOverflow knows a program that has more allocated than the card holds: the driver of Windows
// moves what does not fit to main memory, until that is full too.
func byOverflow(c *trace.Crash, h *trace.Hints) (judged, bool) {
	if c.Capacity == nil || c.Where != event.WhereGPU || posix(c) || c.InProcess != nil ||
		seen(c, h, trace.SignWSL) {
		return judged{}, false
	}
	if whole, ok := reservedBeyond(c); ok && c.Over == nil {
		j := because(CauseUnknown, "overflow", 0,
			"%s are reserved on a card of %s: as on Windows, where the driver keeps in main memory what does not fit",
			whole, *c.Capacity).saying("PyTorch has reserved %s, more than the card has", whole)
		if c.Requested != nil && 10**c.Requested >= 9**c.Capacity {
			j.cause, j.detail, j.confidence = CauseBatch, "oversized", 0.6
			j = j.saying("one tensor alone takes nearly the whole card")
		}
		return j, true
	}
	if c.Over == nil {
		return judged{}, false
	}
	return because(CauseUnknown, "overflow", 0,
		"%s are allocated on a card of %s: as on Windows, where the driver keeps in main memory "+
			"what does not fit, until that is full too", *c.Over, *c.Capacity), true
}

// reservedBeyond returns what PyTorch has reserved where that is more than the card has.
func reservedBeyond(c *trace.Crash) (event.Bytes, bool) {
	if c.Allocated == nil || c.Idle == nil || c.Capacity == nil {
		return 0, false
	}
	whole := *c.Allocated + *c.Idle
	return whole, float64(whole) > 1.05*float64(*c.Capacity)
}

// ranksOnOneCard reports whether a rank other than the first shares a card with several small
// processes: each rank opened a context there.
func ranksOnOneCard(c *trace.Crash) bool {
	return c.Rank > 0 && c.Card != nil && *c.Card != c.Rank && contexts(c) >= 2
}

// sureOfPieces is the confidence from which idle pieces alone are the cause.
const sureOfPieces = 0.7

// byFragments compares what lies idle in the pool with what was asked for. Idle memory that would
// have served the request is fragmentation by definition; it is the cause where it is a fifth of
// the card, or many times the request and not just the crumbs that every pool has.
func byFragments(c *trace.Crash, h *trace.Hints) (judged, bool) {
	if strings.Contains(c.Text, "Due to fragmentation, the largest") && c.Free != nil &&
		c.Requested != nil && *c.Free > *c.Requested {
		return because(CauseFragmentation, "", 0.6,
			"%s are free and %s were refused, because no piece is large enough; the message says so",
			*c.Free, *c.Requested).
			also("so little is free that memory is nearly full as well"), true
	}
	if c.Idle == nil || c.Requested == nil || c.Capacity == nil || *c.Requested <= 0 ||
		*c.Capacity <= 0 {
		return judged{}, false
	}
	if _, beyond := reservedBeyond(c); beyond || c.Allocated == nil { // figures that contradict
		return judged{}, false
	}
	times, share := float64(*c.Idle)/float64(*c.Requested), float64(*c.Idle)/float64(*c.Capacity)
	sure := times >= 4 && (share >= 0.05 || times >= 8 && *c.Idle >= 768*event.MiB &&
		share >= crumbs)
	if !sure && (times < 1 || share < 0.2) && (times < 1.5 || share < 0.1) {
		return judged{}, false
	}
	if !sure && (h.Batch >= 64 || slices.Contains(h.Says, "batch")) {
		return judged{}, false
	}
	beside := ""
	if seen(c, h, trace.SignServing) && !learns(c, h) {
		beside = "serving_request" // whose share of the card leaves that little
	}
	compiled := seen(c, h, trace.SignCompiled) && !seen(c, h, trace.SignNoGraphs) && beside == ""
	if compiled {
		beside = "cuda_graphs"
	}
	j := because(CauseFragmentation, "", 0.8,
		"%s lie idle in the pool while %s were refused: %.0f %% of the card in pieces that do not fit",
		*c.Idle, *c.Requested, 100*share)
	j.beside = beside
	if compiled {
		j = j.also("CUDA graphs are spoken of: what a graph has recorded stays in a pool of its own, which counts " +
			"as idle and serves nothing else")
	}
	if c.Allocated != nil && float64(*c.Allocated) > 0.93*float64(*c.Capacity) {
		j.confidence = 0.6 // below sureOfPieces: what was being done counts too
		j = j.also("the card is nearly full as well: %s of %s are live", *c.Allocated, *c.Capacity).
			saying("it is nearly full, and %s lie idle in PyTorch's pool in pieces that do not fit", *c.Idle)
		if j.beside == "" {
			j.beside = "open"
		}
	}
	return j, true
}

// wholeData is the share of a pool that one block must have to be a data set rather than an
// activation.
const wholeData = 0.2

// byData knows the causes that follow from what was asked for in host memory, or copied from it.
func byData(c *trace.Crash, h *trace.Hints) (judged, bool) {
	if c.Where == event.WhereGPU && has(c, trace.SignTrees) && c.Framework != "pytorch" &&
		c.Framework != "tensorflow" {
		what := "boosted trees or tables"
		if framesOnly(c) {
			what = "tables"
		}
		j := because(CauseHostData, "tree_data", 0.65,
			"%s on the card (%s): there is no batch, the whole table is there at once", what,
			c.Signs[trace.SignTrees])
		if strings.Contains(c.Text, "Maximum pool size exceeded") {
			j = j.also("the pool had reached its maximum: the size that it was given (maximum_pool_size, " +
				"rmm_pool_size), or the card")
		}
		return j, true
	}
	if j, ok := byMappings(c); ok {
		return j, true
	}
	switch c.Kind {
	case "tf_tensor", "tf_allocator":
		if h.LargestChunk > 0 && c.Capacity != nil && c.Requested != nil &&
			float64(h.LargestChunk) >= wholeData*float64(*c.Capacity) &&
			h.LargestChunk >= 8**c.Requested {
			return because(CauseHostData, "data_on_card", 0.6,
				"a single block of %s lies on the card: a whole data set rather than a batch",
				h.LargestChunk), true
		}
	case "tf_library":
		if strings.Contains(c.Text, "Dst tensor") {
			return notCopied(c), true
		}
	case "dask":
		return because(CauseHostData, "dask_worker", 0.6,
			"a worker reached the limit that Dask gives it: its tasks hold more than that at once"), true
	case "notebook_ram":
		if h.Phase == "load" && c.Steps == 0 { // a later step reports weights being loaded
			return judged{}, false
		}
		return arrayTooLarge(c), true
	case "array_memory", "memory_error", "r_vector":
		if at, ok := frameOf(c, buffering); ok && onHost(c) {
			return because(CauseHostData, "prefilled", 0.7,
				"a buffer of fixed size was made (%s): all of it is asked for at once, however little is in it",
				at), true
		}
		if m := arrayShape.FindStringSubmatch(c.Text); m != nil && len(m[1]) >= 5 &&
			has(c, trace.SignReplay) && onHost(c) && large(c) {
			return because(CauseHostData, "prefilled", 0.55,
				"an array with %s places was asked for, and the text tells of reinforcement learning (%s): the "+
					"buffer of past steps, which is made in its full size", m[1], c.Signs[trace.SignReplay]), true
		}
		return arrayTooLarge(c), true
	case "torch_worker":
		end := "was killed"
		if !strings.Contains(c.Text, "is killed by signal") {
			end = "died without a message"
		}
		if few := h.Settings[string(remedy.DataLoaderWorkers)]; noWorkers.MatchString(few) {
			return because(CauseUnknown, "", 0,
				"a DataLoader worker %s, and none is said to run (%s): what one sample or batch takes, or what else "+
					"fills host memory, is not shown", end, few), true
		}
		return because(CauseHostData, "workers", 0.6,
			"a DataLoader worker %s: each worker ends up with its own copy of the Python "+
				"objects it touches, and holds prefetched batches", end), true
	}
	return judged{}, false
}

// noWorkers is the setting of a loader that works in the program's own process.
var noWorkers = lazyregexp.New(`(?i)workers\D{0,14}0\b`)

// arrayShape is the shape that NumPy names, from its first dimension on.
var arrayShape = lazyregexp.New(`with shape \((\d+),`)

// mapsFile are refusals of a mapping of a file, which takes no memory before it is read.
var mapsFile = lazyregexp.New(`(?i)memory[- ]mapp?(?:ing|ed)?\b[^\n]{0,60}(?:cannot allocate|failed)|mmap\b[^\n]{0,60}` +
	`cannot allocate`)

// roomLeft is the part of a machine that was to be had, by its own table, from which a refusal was
// not the machine's.
const roomLeft = 0.2

// byMappings knows refusals of host memory that the machine did not run out of: a table shows room,
// or it was a mapping of a file that was refused. Limits of the process are what is left.
func byMappings(c *trace.Crash) (judged, bool) {
	if onHost(c) && c.Kind == "torch_shm" { // an ordinary file, such as weights
		return because(CauseUnknown, "mappings", 0,
			"a file could not be mapped, which takes no memory before it is read: a limit on the address space "+
				"(ulimit -v), a kernel that promises no more than it has (vm.overcommit_memory=2), or too many "+
				"mappings"), true
	}
	if !onHost(c) || c.Kind != "errno_memory" && c.Kind != "memory_error" && c.Kind != "bad_alloc" &&
		c.Kind != "array_memory" && c.Kind != "torch_cpu" {
		return judged{}, false
	}
	room := c.Available != nil && c.Capacity != nil &&
		float64(*c.Available) > roomLeft*float64(*c.Capacity) &&
		(c.Requested == nil || *c.Available > *c.Requested)
	maps := c.Kind == "errno_memory" && mapsFile.MatchString(c.Text)
	switch {
	case maps:
		j := because(CauseSetting, "mappings", 0.6,
			"a file could not be mapped, which takes no memory yet: the number of mappings of a process "+
				"(vm.max_map_count, 65,530 by default) or its address space (ulimit -v) is limited")
		if room {
			j = j.also("%s of %s were to be had when `free` was asked", *c.Available, *c.Capacity)
		}
		return j, true
	case room:
		return because(CauseUnknown, "mappings", 0,
			"%s of %s were to be had when `free` was asked: if it was asked at that time, a limit of the process "+
				"(ulimit -v, a cgroup, vm.max_map_count) refused, not the machine", *c.Available,
			*c.Capacity), true
	}
	return judged{}, false
}

// Who asks TensorFlow to copy a tensor to the card: weights, or arrays of data.
var (
	copiesWeights = stage{names: []string{"load_weights", "set_weights", "batch_set_value",
		"restore", "load_model", "_load_weights"},
		code: []string{"load_weights(", "set_weights(", "load_model(", "tf.Variable(", ".restore("}}
	copiesData = stage{files: []string{"data_adapter"}, code: []string{".fit(", ".predict(",
		".evaluate(", "from_tensor_slices(", "convert_to_tensor(", "tf.constant("}}
)

// notCopied explains TensorFlow's "Dst tensor is not initialized": the card had no room for a copy.
// The message names neither its size nor what it was, so only the caller can tell.
func notCopied(c *trace.Crash) judged {
	if at, ok := frameOf(c, copiesWeights); ok {
		return because(CauseModel, "load", 0.65,
			"weights did not fit when they were copied to the card (%s)", at)
	}
	if at, ok := frameOf(c, copiesData); ok {
		return because(CauseHostData, "data_on_card", 0.6,
			"an array did not fit when it was copied to the card (%s)", at).
			also("an array given to fit or predict goes to the card as a whole, not by batches")
	}
	cause, sure := CauseUnknown, 0.0
	if strings.Contains(c.Text, "_EagerConst") { // a constant of eager code: mostly an array of data
		cause, sure = CauseHostData, 0.5
	}
	return because(cause, "not_copied", sure,
		"the message says neither how large the tensor was nor what fills the card: arrays that are given "+
			"whole, weights, or another process")
}

// wrongShape is a size of one array from which a mistake in its shape is as likely as much data.
const wrongShape = 32 * event.GiB

// smallArray is less than any machine has: what was held before it fills the memory.
const smallArray = 256 * event.MiB

func arrayTooLarge(c *trace.Crash) judged {
	switch {
	case c.Requested == nil:
		return because(CauseHostData, "", 0.55,
			"the program asked for more host memory than there is; the message names no size")
	case *c.Requested < smallArray:
		return because(CauseHostData, "", 0.5,
			"only %s were refused: host memory was full before that, or a limit of the process was reached",
			*c.Requested).saying("what filled it is not shown")
	}
	j := because(CauseHostData, "", 0.7,
		"the program asked for %s of host memory at once, in one array or data frame", *c.Requested).
		saying("one array alone was to take that much")
	if *c.Requested >= wrongShape {
		j = j.also("a wrong shape or index gives such a size, too: check how the shape is computed")
	}
	return j
}

// has reports whether a crash shows a circumstance.
func has(c *trace.Crash, sign string) bool { return c.Signs[sign] != "" }

// seen reports whether the crash or the log as a whole shows a circumstance.
func seen(c *trace.Crash, h *trace.Hints, sign string) bool {
	return c.Signs[sign] != "" || h.Signs[sign] != ""
}

func onHost(c *trace.Crash) bool {
	return c.Where == event.WhereHost || c.Where == event.WhereCgroup
}

func onCard(c *trace.Crash) bool {
	return c.Where == event.WhereGPU || c.Where == event.WhereMPS
}
