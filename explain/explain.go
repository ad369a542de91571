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

// Cause is why memory ran out.
type Cause string

// The causes that are distinguished.
const (
	CauseBatch         Cause = "batch" // also sequence, image or context length
	CauseModel         Cause = "model"
	CauseFragmentation Cause = "fragmentation"
	CauseLeak          Cause = "leak"
	CauseNeighbour     Cause = "neighbour"
	CauseHostData      Cause = "host_data"
	CauseShm           Cause = "shm"
	// a limit or setting of the system or the program, not the card's size
	CauseSetting Cause = "setting"
	CauseBug     Cause = "bug" // a size that nobody meant
	CauseUnknown Cause = "unknown"
)

// Explanation is the answer to "why did it die?". Unknown sizes are nil, and null in JSON.
type Explanation struct {
	IsOOM     bool         `json:"is_oom"`
	Where     event.Where  `json:"where"`
	Framework string       `json:"framework"`
	Requested *event.Bytes `json:"requested_bytes"`
	Capacity  *event.Bytes `json:"capacity_bytes"`
	Allocated *event.Bytes `json:"allocated_bytes"`
	Idle      *event.Bytes `json:"reserved_unallocated_bytes"`

	Cause Cause `json:"cause"`
	// the situation: eval_outputs, logits, load_to_card, limit, trial_packing, ...
	Detail     string  `json:"detail"`
	Confidence float64 `json:"confidence"` // in the cause, 0 where it is unknown
	Certainty  float64 `json:"certainty"`  // that memory ran out, or that it did not

	Verdict string `json:"verdict"` // one sentence
	// the one command that would find out what is not known
	Next      string        `json:"next,omitempty"`
	NotMemory string        `json:"not_memory,omitempty"`
	Evidence  []string      `json:"evidence"`
	Account   []AccountLine `json:"account,omitempty"`
	// further sizes that the log prints under names of its own
	Figures  map[string]event.Bytes `json:"figures,omitempty"`
	Line     int64                  `json:"line,omitempty"` // of the log
	Text     string                 `json:"text,omitempty"` // the message itself
	Rank     *int                   `json:"rank,omitempty"`
	Frame    *event.Frame           `json:"frame,omitempty"` // the user's own line, innermost
	Others   []OtherCrash           `json:"others,omitempty"`
	Remedies []Advice               `json:"remedies"`
	Warnings []string               `json:"warnings,omitempty"`

	Tensor string `json:"tensor,omitempty"` // the one that was refused
	Tool   string `json:"tool,omitempty"`   // whose settings the job has

	job    remedy.Job
	facts  *Facts // nil where no log was read
	sums   Sums
	given  []remedy.ID          // cures that the case names itself
	typed  map[remedy.ID]string // and what to type for them
	words  []ownCure            // first of all
	noRun  bool                 // memroom run does not support the system
	found  []string             // remedies of the finding that settled the cause
	beside string               // a second situation, whose cures are named too
}

// AccountLine is one term of the sum that fills the memory.
type AccountLine struct {
	What  string      `json:"what"`
	Bytes event.Bytes `json:"bytes"`
}

// OtherCrash is a further passage of the same log.
type OtherCrash struct {
	Line  int64  `json:"line"`
	What  string `json:"what"`
	Text  string `json:"text"`
	IsOOM bool   `json:"is_oom"`

	Requested *event.Bytes `json:"requested_bytes,omitempty"`
	Capacity  *event.Bytes `json:"capacity_bytes,omitempty"`
	Allocated *event.Bytes `json:"allocated_bytes,omitempty"`
	Free      *event.Bytes `json:"free_bytes,omitempty"`
}

// Advice is a remedy in the terms of this job.
type Advice struct {
	ID          remedy.ID          `json:"id"`
	If          string             `json:"if,omitempty"` // what it is a cure of, where the cause is open
	Title       string             `json:"title"`
	Why         string             `json:"why"`
	SavesLow    *event.Bytes       `json:"saves_low"`
	SavesHigh   *event.Bytes       `json:"saves_high"`
	Slowdown    float64            `json:"slowdown"`
	Equivalence remedy.Equivalence `json:"equivalence"`
	How         remedy.How         `json:"how"`
	Unvalidated string             `json:"unvalidated,omitempty"`
}

// Saving returns the interval of bytes that a remedy saves at the peak; ok is false if that is
// unknown.
type Saving func(*remedy.Remedy) (low, high event.Bytes, ok bool)

func explainLog(log *trace.Log, setup *remedy.Setup, run event.Run, saving Saving) *Explanation {
	first := log.First()
	if first < 0 {
		return nil
	}
	c := &log.Crashes[first]
	x := &Explanation{Framework: c.Framework, Line: c.Line, Text: c.Text, Certainty: c.Sure,
		Where: event.WhereUnknown, Cause: CauseUnknown, Remedies: []Advice{}}
	if c.Rank >= 0 {
		x.Rank = &c.Rank
	}
	if f, ok := c.UserFrame(); ok {
		x.Frame = &f
	}
	for i := range log.Crashes {
		o := &log.Crashes[i]
		if i != first && !(c.Class == trace.Other && bareEnd(o)) && !o.Heading() {
			x.Others = append(x.Others, other(o))
		}
	}
	own, _, _ := strings.Cut(short(c.Text), "  ") // lines of a post are joined by blanks
	switch c.Class {
	case trace.Other:
		if c.Kind == "other_python" { // an exception is no evidence about memory, either way
			x.Certainty = 0
			x.Verdict = "Nothing here is about memory: " + c.What + "."
			x.Evidence = []string{fmt.Sprintf("line %d: %s", c.Line, own)}
			return x
		}
		x.NotMemory = c.What
		x.Verdict = denial(c) + c.What + "."
		x.Evidence = []string{fmt.Sprintf("line %d: %s", c.Line, own)}
		return x
	case trace.Survived:
		x.NotMemory = "a warning that the program survived"
		x.Verdict = "Not a crash for lack of memory: " + c.What + endedBy(log, c) + "."
		x.Evidence = []string{fmt.Sprintf("line %d: %s", c.Line, own)}
		x.survived(c, &log.Hints)
		return x
	}
	x.facts = factsIn(log, c)
	c = x.facts.Crash
	x.sums = sumsOf(x.facts)
	if x.facts.Tool != nil {
		x.Tool = x.facts.Tool.Name
	}
	x.fill(c, &log.Hints)
	x.job.Setup, x.job.Run = setup, run
	x.check(x.facts, x.sums)
	x.advise(saving)
	x.capStands()
	if len(x.Remedies) == 0 && x.Next == "" {
		x.Next = nextCommand(c, &log.Hints, judged{}) // no remedy is shown to help: find out
	}
	if (x.noRun || seen(c, &log.Hints, trace.SignWindows)) && strings.HasPrefix(x.Next, "memroom run") {
		x.Next = elsewhereNext(c)
	}
	if onCard(c) && strings.HasPrefix(x.Next, "memroom run") && !slices.Contains(
		[]Runtime{Torch, Unnamed, "tensorflow", "jax"}, x.facts.Ran.Runtime) {
		x.Next = "nvidia-smi --query-compute-apps=pid,used_memory,process_name --format=csv -l 1   # who takes the card, and when"
	}
	if len(x.Remedies) == 0 && x.Next == "" && onCard(c) && c.Framework == "jax" {
		x.Next = "jax.jit(step).lower(*args).compile().memory_analysis()   # arguments, results and what is computed on the way"
	}
	if len(x.Remedies) == 0 && x.Next == "" && onCard(c) && x.Cause == CauseUnknown {
		x.Next = "the card's own monitor, before the start and while it runs: what is taken before belongs to others, " +
			"and the largest rise is what fills it"
	}
	x.Next = strings.Replace(x.Next, "memroom run -- YOUR COMMAND", run.Again(), 1)
	return x
}

// elsewhereNext is the measurement on systems where memroom run does not run.
func elsewhereNext(c *trace.Crash) string {
	switch {
	case c.Where == event.WhereGPU && c.Framework == "pytorch":
		return "print(torch.cuda.memory_allocated() / 2**30) after the model is on the card, after the first forward pass and " +
			"after the first step: the largest jump is what fills it"
	case c.Where == event.WhereMPS:
		return "print(torch.mps.current_allocated_memory() / 2**30) after the model is there and after each step: the largest " +
			"jump is what fills it"
	}
	return ""
}

// survived adds evidence from a refusal that TensorFlow recovered from: another process probably
// holds part of the card.
func (x *Explanation) survived(c *trace.Crash, h *trace.Hints) {
	if c.Kind != "tf_backpedal" {
		return
	}
	x.Evidence = append(x.Evidence, "TensorFlow asks for nearly all of a card at its start; a refusal means that "+
		"another process, or another rank of the same job, has part of it, or that this one may not have so much")
	names := [2]string{"", ""}
	if makerOf(c, h) == remedy.NVIDIA && !strings.Contains(c.Text, "HIP_ERROR") {
		names = [2]string{"CUDA_VISIBLE_DEVICES=N; ", " (nvidia-smi)"}
	}
	x.Warnings = append(x.Warnings, "if it ends for lack of memory all the same: let each process take what it "+
		"needs (TF_FORCE_GPU_ALLOW_GROWTH=true), give every rank a card of its own ("+names[0]+
		"with Horovod the card hvd.local_rank()), and look who else is there"+names[1])
}

// bareEnd reports whether a passage shows only that something was killed. The reason is then
// elsewhere in the log.
func bareEnd(c *trace.Crash) bool {
	return c.Kind == "exit_137" || c.Kind == "bare_kill" || c.Kind == "launcher_kill"
}

// denial returns opening words that show how sure it is that memory is not the reason.
func denial(c *trace.Crash) string {
	if c.Sure < 0.7 {
		return "Probably not a memory problem: "
	}
	return "Not a memory problem: "
}

// endedBy names the exception that ended a program after a shortage that it survived.
func endedBy(log *trace.Log, survived *trace.Crash) string {
	for i := range log.Crashes {
		if c := &log.Crashes[i]; c.Kind == "other_python" && c.Line > survived.Line ||
			c.Kind == "other_python" && survived.Kind == "kernel_kill" {
			return "; " + c.What
		}
	}
	return ""
}

// fill copies the figures and settles the cause.
func (x *Explanation) fill(c *trace.Crash, h *trace.Hints) {
	x.IsOOM, x.Where = true, c.Where
	x.Requested, x.Capacity, x.Allocated, x.Idle = c.Requested, c.Capacity, c.Allocated, c.Idle
	x.job = jobOf(c, h)
	x.job.Docker = x.job.Docker && !x.facts.says("docker build", " : run ")
	found := judge(x.facts, x.sums)
	x.given, x.typed, x.words = found.cures, found.typed, found.words
	x.job.Parts = found.typed[remedy.InParts]
	for id := range found.typed {
		delete(x.job.On, id) // the case knows why it does not help as it is
	}
	if found.tensor != nil {
		x.Tensor = found.tensor.String()
		for _, id := range found.tensor.op.vain {
			x.job.On[id] = "one tensor is too large, whatever is kept of others"
		}
	}
	x.Cause, x.Detail, x.Confidence, x.Evidence = found.cause, found.detail, found.confidence,
		found.evidence
	x.beside = found.beside
	if x.Evidence == nil {
		x.Evidence = []string{}
	}
	if found.detail == "logged_samples" {
		x.words = []ownCure{{remedy.InParts, "log fewer images, or less often", drawLess}}
	}
	if found.detail == "predict_loop" {
		x.job.Framework = remedy.TensorFlow // whose predict it is
	}
	if found.detail == "one_piece" {
		x.job.Card = nil // which is not full
	}
	if x.Allocated == nil {
		x.Allocated = c.Over
	}
	if found.detail == "dispatched" {
		delete(x.job.On, remedy.DeviceMap) // it names the limits, which the loader had found too low
	}
	x.job.Program, x.job.Maker = serverOf(c, h), makerOf(c, h)
	x.job.Work = workOf(c, h, &x.job, found)
	x.job.Facts = factsOf(c, h, &x.job, found)
	if _, ok := x.facts.key(Workers); ok {
		x.job.Facts[remedy.Loader] = true
	}
	if found.tensor != nil && x.facts.words() {
		x.job.Facts[remedy.Text] = true
	}
	if t := x.facts.Tool; t != nil && t.onlyLength() {
		x.job.Facts[remedy.Text] = true
	}
	x.job.Inference = x.job.Inference || x.job.Work == remedy.Serving ||
		x.job.Work == remedy.Generating
	x.job.Forked = found.detail == "fork"
	x.job.OwnCap = found.detail == "own_cap" && c.Framework == "pytorch"
	x.Account, x.Figures = account(c), figuresBeside(c)
	x.Verdict = verdict(c, found)
	if !x.job.Facts[remedy.Batches] && found.cause == CauseBatch {
		x.Verdict = strings.Replace(x.Verdict, "the activations of one batch are",
			"what one pass computes is", 1)
	}
	if x.Next = nextCommand(c, h, found); found.settled && len(found.words) > 0 {
		x.Next = ""
	}
	if found.detail == "pinned" || found.detail == "wsl" {
		x.Where = event.WhereHost // CUDA reports it as the card's
		x.job.Where = x.Where
	}
}

// inputImage is the shape of images as they are read: two sides and a few channels.
var inputImage = lazyregexp.New(`(?i)shape ?\[\d+, ?\d{3,}, ?\d{3,}, ?[134]\]|shape ?\[\d+, ?[134], ?\d{3,}, ?\d{3,}\]`)

// nobodysArray is an array that no machine holds.
const nobodysArray = 1024 * event.GiB

// nobodysBuffer is a buffer that few machines hold, and whose size is a setting.
const nobodysBuffer = 256 * event.GiB

// sureAlone is the certainty that a passage needs before a list states that it ran out of memory.
const sureAlone = 0.8

func other(c *trace.Crash) OtherCrash {
	what := c.What
	sure := c.Class == trace.Exhausted && c.Sure >= sureAlone
	switch {
	case sure:
		what = "ran out of memory (" + string(c.Where) + ")"
	case c.Class == trace.Exhausted && what == "":
		what = "may have run out of memory (" + string(c.Where) + ")"
	}
	return OtherCrash{Line: c.Line, What: what, Text: short(c.Text), IsOOM: sure,
		Requested: c.Requested, Capacity: c.Capacity,
		Allocated: c.Allocated, Free: c.Free}
}

// short cuts a message for a list.
func short(text string) string {
	const limit = 240
	if runes := []rune(text); len(runes) > limit {
		return string(runes[:limit]) + " ..."
	}
	return text
}

// oneContext is what a process takes on a card before it asks for anything, at most.
const oneContext = event.GiB

// account adds up what the message lists, so that nothing is left out silently.
func account(c *trace.Crash) []AccountLine {
	var lines []AccountLine
	add := func(what string, b *event.Bytes) {
		if b != nil {
			lines = append(lines, AccountLine{what, *b})
		}
	}
	add("asked for", c.Requested)
	add(wallName(c), c.Capacity)
	add("capacity of the card", c.Total)
	add("in use", c.Allocated)
	if c.InProcess != nil && c.Where == event.WhereGPU && *c.InProcess > 0 {
		add("of this process in all, as the driver counts it", c.InProcess)
	}
	add("other allocations of the process, outside of PyTorch's pool", c.Elsewhere)
	add("of these in private pools (CUDA graphs)", c.Private)
	add("idle in the allocator's pool", c.Idle)
	if n := neighbourBytes(c); n > 0 && c.Framework != "ray" {
		lines = append(lines, AccountLine{"held by " +
			event.Count(len(c.Neighbours), "other process"), n})
	}
	add("free", c.Free)
	if rest := unlisted(c); rest > 0 {
		what := "not listed: context, libraries, display or other processes"
		if rest < oneContext {
			what = "not listed: the context and the libraries of the process"
		}
		lines = append(lines, AccountLine{what, rest})
	}
	return lines
}

// figuresBeside are the sizes that stand around the message, without those of the message itself.
func figuresBeside(c *trace.Crash) map[string]event.Bytes {
	beside := map[string]event.Bytes{}
	for _, f := range c.Named {
		if !slices.ContainsFunc([]*event.Bytes{c.Requested, c.Capacity, c.Allocated, c.Idle, c.Free,
			c.InProcess, c.Elsewhere, c.Private, c.Total, c.Over},
			func(b *event.Bytes) bool { return b != nil && *b == f.Bytes }) {
			beside[f.What] = f.Bytes
		}
	}
	return beside
}

func wallName(c *trace.Crash) string {
	switch {
	case c.Capped:
		return "cap that the program set for itself"
	case c.Pooled:
		return "what TensorFlow may take of the card"
	}
	switch c.Where {
	case event.WhereCgroup:
		return "limit of the job"
	case event.WhereHost:
		return "memory of the machine"
	case event.WhereGPU:
		return "capacity of the card"
	}
	return "limit"
}

func neighbourBytes(c *trace.Crash) event.Bytes {
	var sum event.Bytes
	for _, n := range c.Neighbours {
		sum += n.Bytes
	}
	return sum
}

// unlisted is what fills a card beyond the figures of the message; 0 where they do not suffice to
// say.
func unlisted(c *trace.Crash) event.Bytes {
	if c.Where != event.WhereGPU || c.Capacity == nil || c.Allocated == nil || c.Free == nil {
		return 0
	}
	rest := *c.Capacity - *c.Allocated - *c.Free - neighbourBytes(c)
	if c.Idle != nil {
		rest -= *c.Idle
	}
	return max(0, rest)
}

// ownElsewhere is what this process holds on the card outside of PyTorch's pool, as the driver
// counts it; 0 where the message does not say.
func ownElsewhere(c *trace.Crash) event.Bytes {
	if c.InProcess == nil || c.Allocated == nil || c.Where != event.WhereGPU ||
		c.Capacity != nil && *c.InProcess > *c.Capacity { // a driver that counts host memory too
		return 0
	}
	rest := *c.InProcess - *c.Allocated
	if c.Idle != nil {
		rest -= *c.Idle
	}
	return max(0, rest)
}
