package explain

import (
	"slices"
	"strconv"
	"strings"

	"memroom/event"
	"memroom/lazyregexp"
	"memroom/remedy"
	"memroom/trace"
)

// Stages of filling host memory.
var hostStages = []stage{
	{names: []string{"spawn_main"},
		files:  []string{"multiprocessing/spawn.py", "popen_spawn_win32", "popen_spawn_posix"},
		cause:  CauseHostData,
		detail: "spawn_copy", sure: 0.75,
		says: "a worker is spawned: the whole data set is pickled, and every worker gets its own copy"},
	{files: []string{"popen_fork.py", "popen_forkserver.py"}, code: []string{"os.fork("},
		cause: CauseHostData, detail: "fork", sure: 0.75,
		says: "a process could not be forked: the kernel must promise all of the parent's memory again " +
			"for each child"},
	{files: []string{"arrow_writer.py", "arrow_dataset.py", "datasets/builder.py"},
		cause: CauseHostData, detail: "map_writer", sure: 0.7,
		says: "in map of datasets: each process holds writer_batch_size results, and what the function " +
			"captures"},
	{like: lazyregexp.New(`(?i)^_?(?:load|fill|build|make)_(?:\w+_)?cache|^_?cache_(?:images|data|dataset|all|` +
		`items?|samples)$`), cause: CauseHostData, detail: "", sure: 0.65,
		says: "while a data set was read into a cache in host memory, which holds all of it"},
	{names: []string{"default_collate", "collate", "collate_fn", "fetch", "_next_data",
		"_worker_loop"}, files: []string{"_utils/collate.py", "_utils/fetch.py",
		"_utils/worker.py"},
		cause: CauseHostData, detail: "workers", sure: 0.65,
		says: "while a DataLoader built a batch: batch size, prefetch_factor and workers multiply"},
}

// byLauncher knows what fills host memory where a traceback or the launcher's words show it.
func byLauncher(c *trace.Crash, h *trace.Hints) (judged, bool) {
	if !onHost(c) {
		return judged{}, false
	}
	if c.Kind == "errno_memory" && c.Requested == nil && slices.ContainsFunc(c.Code,
		iterates.MatchString) &&
		!slices.ContainsFunc(c.Frames, func(f event.Frame) bool {
			return strings.Contains(f.File,
				"subprocess")
		}) {
		return because(CauseHostData, "fork", 0.65,
			"a loop over the loader was to begin, which forks its workers: for each of them the kernel must "+
				"promise all of the parent's memory again"), true
	}
	for i := range hostStages {
		if j, ok := hostStages[i].judge(c); ok {
			return j, true
		}
	}
	if has(c, trace.SignJoining) {
		return because(CauseModel, "joining", 0.7,
			"the shards of a checkpoint are being joined (%s): all weights, in fp32 twice while they are "+
				"written, lie in host memory", c.Signs[trace.SignJoining]), true
	}
	if size := first(c.Signs[trace.SignShuffle], h.Signs[trace.SignShuffle]); size != "" {
		return because(CauseHostData, "shuffle_buffer", 0.7,
			"tf.data fills a shuffle buffer of %s whole elements in host memory", size), true
	}
	if len(c.Frames) > 0 {
		return judged{}, false
	}
	if every, err := strconv.ParseInt(first(c.Signs[trace.SignSaveSteps],
		h.Signs[trace.SignSaveSteps]), 10, 64); err == nil && every > 1 && c.Steps > 0 &&
		c.Steps%every == 0 {
		return because(CauseModel, "checkpoint_save", 0.7,
				"it ended at step %d, where a checkpoint was due (every %d steps)", c.Steps, every),
			true
	}
	return byRanks(c, h)
}

// byRanks knows what several ranks on one machine do to its memory.
func byRanks(c *trace.Crash, h *trace.Hints) (judged, bool) {
	ranks := max(c.Ranks, h.Ranks)
	switch {
	case seen(c, h, trace.SignEvalToHost) && seen(c, h, trace.SignEvaluating):
		return because(CauseBatch, "eval_outputs", 0.65,
			"eval_accumulation_steps moves the logits of all batches to host memory, on every rank"), true
	case seen(c, h, trace.SignOffload) && seen(c, h, trace.SignNVMe):
		return because(CauseModel, "offload_host", 0.5,
			"optimizer or parameters are offloaded to NVMe: pinned buffers (buffer_count times buffer_size of "+
				"each) and what is read on its way lie in host memory"), true
	case seen(c, h, trace.SignOffload):
		return because(CauseModel, "offload_host", 0.65,
			"optimizer or parameters are offloaded (%s): Adam keeps 12 bytes a parameter in host memory, "+
				"with gradients and pinned buffers 16 to 20",
			first(c.Signs[trace.SignOffload], h.Signs[trace.SignOffload])), true
	case has(c, trace.SignStates) && c.Steps == 0:
		return because(CauseModel, "offload_host", 0.65,
			"the last thing that DeepSpeed announced is the making of the optimizer's states, and "+
				"host memory ran out: the states were being made there, 8 bytes a parameter and 4 "+
				"for its fp32 copy"), true
	case has(c, trace.SignDataLoad) && c.Steps == 0:
		return because(CauseHostData, "ranks_data", 0.65,
			"several ranks read their own copy of the data (%s): each of them holds all of it in host memory",
			c.Signs[trace.SignDataLoad]), true
	case has(c, trace.SignResumed) && c.Steps == 0:
		return because(CauseModel, "resume_host", 0.6,
			"it ended while a checkpoint was being loaded (%s): each rank reads weights and optimizer state "+
				"into host memory, beside what it holds", c.Signs[trace.SignResumed]), true
	case h.Phase == "load" && ranks > 1:
		return because(CauseModel, "ranks_load", 0.65,
			"the last thing the log announced is the loading of weights, and each of the ranks (%d or more) "+
				"loads the whole model into host memory",
			ranks), true
	}
	return judged{}, false
}

// iterates are lines that begin to read from a loader.
var iterates = lazyregexp.New(`^for .* in (?:enumerate\(|tqdm\(|\w*(?:loader|bar|iter))`)

// cutTraceback is the number of frames up to which a traceback, in which no stage was found, shows
// only where the program entered its training.
const cutTraceback = 2

// lateEval is the number of evaluation batches after which the usual batch has been shown to fit.
const lateEval = 20

// byEvalBar uses a progress bar of evaluation right above the crash, where the traceback does not
// show the evaluation itself: a loop written at the top of a script.
func byEvalBar(c *trace.Crash, _ *trace.Hints) (judged, bool) {
	done, err := strconv.Atoi(c.Signs[trace.SignEvalLast])
	if err != nil || !onCard(c) || len(c.Frames) == 0 ||
		slices.ContainsFunc(c.Frames, func(f event.Frame) bool {
			return strings.Contains(f.Name, "train") || f.Name == "backward" || f.Name == "fit" ||
				strings.Contains(f.File, "torch/optim")
		}) {
		return judged{}, false
	}
	if done >= lateEval {
		return lateInEval(done), true
	}
	return because(CauseBatch, "eval_batch", 0.6,
		"the log shows the start of an evaluation, which has a batch size of its own"), true
}

// lateInEval returns what may fill a card in the middle of an evaluation.
func lateInEval(done int) judged {
	return because(CauseBatch, "eval_late", 0.5,
		"%s batches of the evaluation had passed: either something of every batch is kept, or one sample "+
			"is larger than all before", thousands(int64(done)))
}

// byPhase uses what the log announced last where there is no traceback, as after a kill.
func byPhase(c *trace.Crash, h *trace.Hints) (judged, bool) {
	switch {
	case h.Phase == "load" && c.Steps == 0 && onHost(c) && c.Alike > 1:
		return because(CauseModel, "ranks_load", 0.7,
			"%d processes of that name hold about as much each, and the last thing the log announced is the "+
				"loading of weights: every rank reads the whole model into host memory", c.Alike), true
	case h.Phase == "load" && c.Steps == 0 && (onHost(c) || c.Where == event.WhereGPU):
		return because(CauseModel, "load", 0.55,
			"the last thing the log announced is the loading of weights"), true
	case has(c, trace.SignLoadSaid) && c.Steps == 0 && c.Where == event.WhereGPU && !passIn(c.Frames):
		return because(CauseModel, "load", 0.55,
			"the text says that it happens while weights are loaded"), true
	case h.Phase == "save" && onHost(c):
		return because(CauseModel, "checkpoint_save", 0.5,
			"the last thing the log announced is the saving of a checkpoint"), true
	case len(c.Frames) > cutTraceback:
		return judged{}, false
	case c.Signs[trace.SignEvalBar] == "0" || c.Signs[trace.SignEvalBar] == "1":
		return because(CauseBatch, "eval_batch", 0.6,
			"a progress bar shows the first batches of an evaluation, which has a batch size of its own"), true
	case has(c, trace.SignEvalBar):
		return because(CauseBatch, "eval_phase", 0.5,
			"a progress bar shows an evaluation after %s batches: what is kept of each may add up",
			c.Signs[trace.SignEvalBar]), true
	case h.Phase == "eval" && (onHost(c) || c.Where == event.WhereGPU):
		return because(CauseBatch, "eval_phase", 0.5,
			"the last thing the log announced is an evaluation: what is kept of each batch may add up"), true
	}
	return judged{}, false
}

// byPredicts knows Keras' predict in a loop, on a host that fills up.
func byPredicts(c *trace.Crash, h *trace.Hints) (judged, bool) {
	if !has(c, trace.SignPredicts) || !onHost(c) || c.Framework != "tensorflow" &&
		!seen(c, h, trace.SignKeras) {
		return judged{}, false
	}
	return calledInLoop("predict"), true
}

// byRay knows what Ray does to a machine.
func byRay(c *trace.Crash, h *trace.Hints) (judged, bool) {
	switch {
	case c.Kind == "ray_gpu_wait":
		return because(CauseNeighbour, "trial_left", 0.8,
			"a trial waited for the card in vain: a worker of the previous trial is still alive and holds "+
				"it"), true
	case c.Kind != "ray_oom":
		return judged{}, false
	}
	if seen(c, h, trace.SignRayData) && (seen(c, h, trace.SignSpilled) || overStore(c)) {
		return because(CauseHostData, "ray_data", 0.65,
			"the object store is over its limit and spills: Ray Data's limits are soft, blocks in "+
				"flight and local shuffle buffers come on top").
			also("the monitor kills the newest task, not the largest"), true
	}
	name, count, each := mostCommon(c.Neighbours)
	if savingNow.MatchString(name) && c.Allocated != nil {
		j := because(CauseModel, "checkpoint_save", 0.65,
			"the largest processes, %s, hold %s each while they save: a copy of weights and states lies in host memory beside "+
				"what is offloaded there", name, each)
		j.words = []ownCure{{remedy.SaveSharded, "save what each rank has, without a full copy of it", "sharded checkpoints, in the program's settings"},
			{remedy.OffloadLess, "offload less to host memory, where the cards have room", "param_offload=False, optimizer_offload=False; or fewer workers on a node"}}
		return j, true
	}
	if m := rayVictim.FindStringSubmatch(c.Text); m != nil && c.Allocated != nil {
		held, err := event.ParseBytes(m[2] + "GiB")
		if err == nil && 4*held < *c.Allocated && count < 2 {
			j := because(CauseUnknown, "trial_packing", 0,
				"the process that Ray ended, %s, held %s of %s: it was the newest, not the largest", m[1], held, *c.Allocated).
				saying("many processes fill the node together, not the one that was ended")
			j.words = []ownCure{{remedy.FewerTrials, "fewer of them at once",
				"as many " + strings.SplitN(m[1], ".", 2)[0] +
					" actors or tasks as fit, by the program's own setting for them, or ray.init(num_cpus=N)"}}
			return j, true
		}
	}
	if count < 2 || c.Capacity == nil {
		return judged{}, false
	}
	if used := c.Allocated; used != nil && shareMemory(c) {
		return because(CauseUnknown, "trial_packing", 0,
			"%d processes %s hold %s each; those that the message lists add up to %s, more than the %s in "+
				"use: they share a part of it", count, name, each, neighbourBytes(c), *used).
			saying("many processes run on one node, %s among them", name), true
	}
	if used := c.Allocated; used != nil && fittingOn(c) == 0 {
		return because(CauseUnknown, "trial_packing", 0,
			"%d processes %s hold %s each; those that the message lists are %s of the %s in use, so more "+
				"run than it shows", count, name, each, neighbourBytes(c), *used).
			saying("many processes run on one node, %s among them", name), true
	}
	return because(CauseUnknown, "trial_packing", 0,
		"%d processes %s hold %s each on a node of %s: about %d of them fit", count, name, each,
		*c.Capacity, fittingOn(c)).
		saying("%d processes %s of %s each are too many at once, about %d of them fit", count, name,
			each, fittingOn(c)), true
}

// rayVictim is the process that Ray ended, and savingNow the name of one that saves.
var (
	rayVictim = re(`name=([^,)\s]+), pid=\d+, memory used=([\d.]+) ?GB`)
	savingNow = re(`(?i)save_(?:checkpoint|model|state)`)
)

// shareMemory reports whether the processes of a list together hold more than is in use. Pages that
// several of them share are then counted for each one, so the number of processes does not show how
// many fit.
func shareMemory(c *trace.Crash) bool {
	return c.Allocated != nil && float64(neighbourBytes(c)) > 1.1*float64(*c.Allocated)
}

// fittingOn returns how many of the processes that fill a node fit there. That is fewer than ran
// when it was full. It leaves room for other memory in use, and a tenth of the node free.
func fittingOn(c *trace.Crash) int {
	_, count, each := mostCommon(c.Neighbours)
	if count < 2 || c.Capacity == nil || each <= 0 || shareMemory(c) || c.Allocated != nil &&
		2*neighbourBytes(c) < *c.Allocated { // most of what is used is not listed
		return 0
	}
	rest := neighbourBytes(c) - event.Bytes(count)*each
	if c.Allocated != nil {
		rest = max(rest, *c.Allocated-event.Bytes(count)*each)
	}
	fits := int((event.Bytes(0.9*float64(*c.Capacity)) - max(0, rest)) / each)
	return max(1, min(fits, count-1))
}

var storeUse = lazyregexp.New(`([\d.]+) ?([GM])iB/([\d.]+) ?([GM])iB object_store_memory`)

// overStore reports whether Ray Data's progress line shows more in the object store than its limit.
func overStore(c *trace.Crash) bool {
	m := storeUse.FindStringSubmatch(c.Text)
	if m == nil {
		return false
	}
	used, err1 := strconv.ParseFloat(m[1], 64)
	limit, err2 := strconv.ParseFloat(m[3], 64)
	return err1 == nil && err2 == nil && m[2] == m[4] && used > limit
}

// mostCommon returns the name that most processes of a table share, the number of those processes,
// and their mean size.
func mostCommon(holders []trace.Holder) (name string, count int, each event.Bytes) {
	sums, counts := map[string]event.Bytes{}, map[string]int{}
	for _, h := range holders {
		if !strings.HasPrefix(h.Name, "ray::") && !strings.HasPrefix(h.Name, "ray_") ||
			strings.HasPrefix(h.Name, "ray::IDLE") { // workers that wait for work
			continue
		}
		sums[h.Name] += h.Bytes
		counts[h.Name]++
		if n := counts[h.Name]; n > count || n == count && sums[h.Name] > event.Bytes(count)*each {
			name, count = h.Name, n
		}
		if name != "" {
			each = sums[name] / event.Bytes(counts[name])
		}
	}
	return name, count, each
}

// diskOver matches Ray's message when it cannot spill objects.
var diskOver = lazyregexp.New(`(?i)disk'?s? utilization is over capacity|OutOfDiskError`)

// objectStore explains a full store of Ray, which is a limit of its own and not /dev/shm's.
func objectStore(c *trace.Crash) judged {
	if c.Requested != nil && c.Capacity != nil && *c.Requested > *c.Capacity {
		return because(CauseShm, "object_store", 0.9,
			"one object of %s is larger than the whole store of %s: it cannot fit, whatever else is there",
			*c.Requested, *c.Capacity).
			saying("one object is larger than the whole store: it must be put there in pieces")
	}
	if diskOver.MatchString(c.Text) {
		return because(CauseShm, "object_store", 0.9,
			"Ray's object store is full, and so is the disk that it spills objects to (over 95 %% by default)").
			saying("the disk that its objects spill to is full as well")
	}
	j := because(CauseShm, "object_store", 0.9,
		"Ray's object store is full of objects that are still referenced; its size is a setting of Ray")
	if c.Requested != nil && *c.Requested >= event.GiB {
		j = j.also("one object of %s was put there: weights or data sets that large are better kept in "+
			"files or actors",
			*c.Requested)
	}
	return j
}
