package explain

import (
	"cmp"
	"slices"
	"strings"

	"memroom/event"
	"memroom/lazyregexp"
	"memroom/remedy"
)

// mostAdvice is how many remedies an explanation names. Where only words speak for them, what comes
// further down is the least supported and was wrong most often, so fewer are named: two, and three
// where the phase is shown but not which of the things that fill it there.
const (
	mostAdvice  = 5
	mostByWords = 2
	mostInPhase = 3
)

// spare is how many more are looked at, for those that turn out to be vague.
const spare = 3

// openPhases are situations that name a phase of the work, whose cures are alternatives.
var openPhases = []string{"eval_batch", "eval_late", "eval_each"}

// most is how many remedies this explanation may name: more where the job was watched or where the
// bytes that each saves are known.
func (x *Explanation) most(saving Saving) int {
	if x.job.Facts == nil || saving != nil {
		return mostAdvice
	}
	if slices.Contains(openPhases, x.Detail) {
		return mostInPhase
	}
	return mostByWords
}

// advise fills in the best remedies, those with known bytes by what they save among equals.
func (x *Explanation) advise(saving Saving) {
	for _, w := range x.words {
		if r, ok := remedy.Find(w.id); ok && x.job.On[w.id] == "" && !x.has(w.id) {
			a := adviceOf(r, x.job)
			a.Title, a.How = w.title, remedy.How{Args: w.args}
			x.Remedies = append(x.Remedies, a)
		}
	}
	list := x.cures()
	if len(x.Remedies) > 0 && len(x.given) == 0 {
		list = nil // the case has cures of its own: those of the cause in general are less sure
	}
	for _, id := range list {
		r, ok := remedy.Find(id)
		if !ok || len(x.Remedies) == x.most(saving)+spare || x.has(id) || r.Fits(x.job) != "" &&
			!x.stands(id) {
			continue
		}
		of := x.supposed(id)
		if _, set := x.tool().setting(id); of != "" && !set && slices.ContainsFunc(x.Remedies,
			func(a Advice) bool { return a.If == of }) {
			continue // one for each of the parts that may fill it
		}
		a := adviceOf(r, x.job)
		if a.If = of; of != "" && strings.HasPrefix(a.Title, "if ") {
			a.Title = a.Title[strings.LastIndex(a.Title, ": ")+2:]
		}
		if text := x.typed[id]; text != "" && id != remedy.InParts {
			a.How = remedy.How{Args: text}
		} else if x.facts != nil {
			if a, ok = x.facts.reach(a, x.sums); !ok {
				continue
			}
		}
		if of == ofStates && x.facts != nil && vague.MatchString(a.How.Args) && a.How.Env+a.How.Code == "" {
			if x.facts.says("lora", "peft", "adapter", "fsdp", "zero", "8bit", "8-bit") {
				continue
			}
			a.Title, a.How.Args = "smaller or fewer states", "sharding over cards (FSDP, ZeRO), an 8-bit optimizer, or adapters (LoRA)"
		}
		if saving != nil {
			if low, high, ok := saving(r); ok {
				if high <= 0 {
					continue // by the engine's estimate it would not help here
				}
				a.SavesLow, a.SavesHigh = &low, &high
			}
		}
		x.Remedies = append(x.Remedies, a)
	}
	if len(x.Remedies) == 0 && len(x.given) > 0 { // none of the case's own can be had here
		x.given = nil
		x.advise(saving)
		return
	}
	concrete := slices.DeleteFunc(slices.Clone(x.Remedies), func(a Advice) bool {
		return vague.MatchString(a.How.Args) && a.How.Env+a.How.Code == ""
	})
	if len(concrete) > 0 { // advice that names no place is dropped if other advice does
		x.Remedies = concrete
	}
	x.Remedies = x.licensed(x.Remedies)
	x.ownLevers(x.most(saving))
	if x.facts != nil && slices.Contains(indefinite, x.Detail) && x.Confidence < sureOfPieces &&
		x.Cause != CauseFragmentation && !x.has(remedy.LongestBatch) { // the person's own settings first
		slices.SortStableFunc(x.Remedies, func(a, b Advice) int {
			return cmp.Compare(x.general(a), x.general(b))
		})
	}
	if x.facts != nil && saving == nil {
		x.placed()
		if x.Cause == CauseUnknown { // a batch that the text does not show comes last
			slices.SortStableFunc(x.Remedies, func(a, b Advice) int {
				return strings.Count(a.How.Args, "HALF_") - strings.Count(b.How.Args, "HALF_")
			})
		}
	}
	x.Remedies = x.Remedies[:min(len(x.Remedies), x.most(saving))]
}

// general is 0 for a setting of the person's own, else 1.
func (x *Explanation) general(a Advice) int {
	if _, own := x.facts.ownKey(a.ID); own || strings.HasSuffix(a.How.Args, " of your text") {
		return 0
	}
	return 1
}

// broad are cures that help a little against nearly everything.
var broad = slices.Concat(shrinking, keeping, []remedy.ID{remedy.RaiseLimit, remedy.LessAtOnce,
	remedy.MixedPrecision, remedy.KeepLess, remedy.EmptyCache, remedy.Quantize8Bit})

// bareLines are the lines of a message that stands alone: most often a batch is too large then.
const bareLines = 2

// placed drops cures of a kind that is not right nine times of ten by itself: general words for one
// of several parts that may fill a memory, and broad ones beside another cure. A fact that carries
// one keeps its place.
func (x *Explanation) placed() {
	kept := x.Remedies[:0]
	for _, a := range x.Remedies {
		general := a.If == "" && (len(kept) == 0 || !slices.Contains(broad, a.ID))
		batched := x.job.Work == remedy.Training || len(x.facts.lines) <= bareLines
		if x.carried(a) || general && (batched || !slices.Contains(shrinking, a.ID)) {
			kept = append(kept, a)
		}
	}
	x.Remedies = kept
}

// carried reports whether a fact speaks for a cure: a setting of the person's own or of the tool,
// the case that was matched, or what it acts on.
func (x *Explanation) carried(a Advice) bool {
	_, set := x.facts.Tool.setting(a.ID)
	switch {
	case set, x.general(a) == 0, x.typed[a.ID] != "", slices.Contains(x.given, a.ID),
		slices.ContainsFunc(x.words, func(w ownCure) bool { return w.id == a.ID }):
		return true
	case a.If != "" && x.Detail != "open" && !slices.Contains(shrinking, a.ID) &&
		slices.Contains(situations[x.Detail].cures, a.ID):
		return true
	}
	switch a.ID {
	case remedy.MicroBatch:
		batched := x.job.Facts[remedy.Batches] || x.Detail != "open" && learns(x.facts.Crash, x.facts.Hints)
		return batched && !x.job.Inference || x.Where == event.WhereMPS && x.Allocated == nil // one array
	case remedy.SmallerImage:
		return x.job.Facts[remedy.Pictures] && (x.job.On[remedy.MicroBatch] != "" ||
			strings.HasPrefix(x.Detail, "eval_") || x.Detail == "one_sample")
	case remedy.EvalBatch:
		return slices.Contains(openPhases, x.Detail)
	case remedy.StreamData:
		return x.job.Facts[remedy.Reads]
	case remedy.Checkpointing:
		return x.facts.Ran.Adapted || x.trainsBatches() && (x.Detail == "forward" || x.Detail == "backward")
	case remedy.ShorterSequence:
		return x.Detail == "logits" || x.Detail == "attention"
	case remedy.RaiseLimit:
		return x.Where == event.WhereCgroup || x.Where == event.WhereMPS && x.Allocated != nil
	case remedy.KeepLess:
		return slices.Contains(x.facts.Hints.Says, string(CauseLeak))
	}
	return a.If == ofStates && x.Rank != nil && !x.job.Inference
}

// stands reports whether the text has a setting by which a cure is applied to the memory that ran
// out. Then nothing else need be shown of it.
func (x *Explanation) stands(id remedy.ID) bool {
	if x.facts == nil || x.job.Facts == nil || x.job.On[id] != "" || !onHost(x.facts.Crash) {
		return false
	}
	_, own := x.facts.ownKey(id)
	return own && slices.ContainsFunc(ofWall[x.Where],
		func(q Quantity) bool { return remedyOf[q] == id })
}

// ofWall are the settings that decide how much of a memory a job takes, most telling first.
var ofWall = map[event.Where][]Quantity{
	event.WhereGPU:  {Tokens, Samples, Length, Side, Count, Answers, Boxes, Share},
	event.WhereMPS:  {Tokens, Samples, Length, Side, Count, Answers},
	event.WhereHost: {Processes, Workers, Buffered}, event.WhereCgroup: {Processes, Workers, Buffered},
	event.WhereShm: {Workers},
}

// ownLevers adds settings that stand in the text, where too little else is left to say and the
// cause is open.
func (x *Explanation) ownLevers(most int) {
	if x.facts == nil || x.job.Facts == nil || x.Cause != CauseUnknown &&
		x.Confidence >= sureOfPieces ||
		len(x.words)+len(x.given) > 0 || x.Tensor != "" || x.Cause == CauseNeighbour ||
		x.Cause == CauseSetting || x.Cause == CauseShm || x.Cause == CauseLeak ||
		x.Cause == CauseModel && onHost(x.facts.Crash) {
		return
	}
	for _, q := range ofWall[x.Where] {
		id := remedyOf[q]
		r, ok := remedy.Find(id)
		if _, own := x.facts.ownKey(id); !ok || !own || x.has(id) || x.job.On[id] != "" ||
			len(x.Remedies) >= most || (q == Samples || q == Tokens) && x.facts.ranBefore() {
			continue
		}
		if a, ok := x.facts.reach(adviceOf(r, x.job), x.sums); ok && x.proved(a) {
			x.Remedies = append(x.Remedies, a)
		}
	}
}

// trainsBatches reports whether the text shows a training that works in batches.
func (x *Explanation) trainsBatches() bool {
	return learns(x.facts.Crash, x.facts.Hints) && x.job.Facts[remedy.Batches]
}

// vague are words for a library whose settings we do not know.
var vague = lazyregexp.New(`where the (?:library|program)(?:'s settings have| has| lets)|in the program's own settings|the library's settings`)

// The parts that may fill a memory, with their cures.
const (
	ofBatch  = "if it grows with the batch"
	ofStates = "if weights and optimizer states fill it"
)

var curesOf = []struct {
	of  string
	ids []remedy.ID
}{
	{ofBatch, []remedy.ID{remedy.MicroBatch, remedy.Checkpointing, remedy.ActivationOffload,
		remedy.MixedPrecision, remedy.ShorterSequence, remedy.SmallerImage, remedy.LongestBatch}},
	{ofStates, []remedy.ID{remedy.OptimizerOffload, remedy.Optimizer8Bit, remedy.LoRA, remedy.ZeRO,
		remedy.FSDP,
		remedy.Quantize8Bit, remedy.Quantize4Bit, remedy.OptimizerAdafactor, remedy.HalfWeights}},
	{"if other processes hold it", []remedy.ID{remedy.FreeNeighbour}},
	{"if the pool is in pieces", []remedy.ID{remedy.ExpandableSegments, remedy.MaxSplitSize,
		remedy.GCThreshold}},
	{"if it grows from step to step", []remedy.ID{remedy.Detach, remedy.KeepLess}},
	{"if workers of the loader hold it", []remedy.ID{remedy.DataLoaderWorkers}},
	{"if the data that is read fills it", []remedy.ID{remedy.StreamData}},
}

func (x *Explanation) tool() *Tool {
	if x.facts == nil {
		return nil
	}
	return x.facts.Tool
}

// supposed returns what must be so for a cure to help; empty where the cause is known, or the case
// names its cures itself.
func (x *Explanation) supposed(id remedy.ID) string {
	if x.Cause != CauseUnknown || len(x.given) > 0 || len(x.found) > 0 {
		return ""
	}
	for _, row := range curesOf {
		if slices.Contains(row.ids, id) {
			return row.of
		}
	}
	return ""
}

// adviceOf puts a remedy into the words of a job.
func adviceOf(r *remedy.Remedy, job remedy.Job) Advice {
	return Advice{ID: r.ID, Title: r.TitleFor(job), Why: r.WhyFor(job),
		Slowdown: r.Slowdown(setupOf(job)), Equivalence: r.Equivalence, How: r.HowTo(job),
		Unvalidated: r.Unvalidated}
}

// cures lists what helps in the situation, then what helps against its cause. On a card whose cause
// is unknown, it takes one cure for each of the parts that may fill it. In a notebook the second is
// always what failed cells still hold.
func (x *Explanation) cures() []remedy.ID {
	if len(x.given) > 0 {
		return x.given
	}
	s := situations[x.Detail]
	list := slices.Concat(s.cures, cures[x.Cause])
	if x.beside != "" && !s.alone {
		list = x.sideBySide(list)
	}
	switch {
	case len(x.found) > 0:
		list = nil
		for _, id := range x.found {
			list = append(list, remedy.ID(id))
		}
	case s.alone:
		list = s.cures
	case x.Cause == CauseUnknown && (x.Where == event.WhereGPU || x.Where == event.WhereMPS):
		list = slices.Concat(s.cures, situations["open"].cures)
	}
	// where a model is trained, activations are mostly the larger part
	if x.Detail == "open" && x.job.Work == remedy.Training {
		list = slices.Clone(list)
		i, j := slices.Index(list, remedy.OptimizerOffload), slices.Index(list, remedy.Checkpointing)
		if i >= 0 && j >= 0 { // what a finding names need not have them
			list[i], list[j] = list[j], list[i]
		}
	}
	switch { // one array that large is as often a mistake
	case x.Cause != CauseHostData || x.Detail != "" || x.job.Asked < wrongShape || len(list) == 0:
	case x.job.Asked >= nobodysArray:
		list = slices.Insert(slices.Clone(list), 0, remedy.CheckShapes)
	default:
		list = slices.Insert(slices.Clone(list), 1, remedy.CheckShapes)
	}
	if x.job.Framework == remedy.JAX && x.Where == event.WhereGPU && x.Cause == CauseUnknown &&
		x.Capacity == nil && x.job.Maker != remedy.Google && len(list) > 0 {
		list = slices.Insert(slices.Clone(list), 1, remedy.TFGrowth) // it takes a part of a card only
	}
	if x.job.Framework == remedy.JAX && x.Where == event.WhereGPU && x.Cause == CauseBatch &&
		x.job.Work != remedy.Training && !ofTPU.MatchString(x.Text) &&
		x.Detail != "oversized" && len(list) > 0 {
		list = slices.Insert(slices.Clone(list), 1, remedy.ShorterSequence)
	}
	if x.job.Notebook && x.Where == event.WhereGPU && x.Cause != CauseNeighbour &&
		x.Cause != CauseSetting && x.Cause != CauseBug && len(list) > 0 {
		list = slices.Insert(slices.Clone(list), 1, remedy.NotebookState)
	}
	return list
}

// sideBySide puts the cures of the second situation behind the first of the cause that fits.
func (x *Explanation) sideBySide(own []remedy.ID) []remedy.ID {
	at := slices.IndexFunc(own, func(id remedy.ID) bool {
		r, ok := remedy.Find(id)
		return ok && r.Fits(x.job) == ""
	})
	return slices.Concat(own[:at+1], situations[x.beside].cures, own[at+1:])
}

func (x *Explanation) has(id remedy.ID) bool {
	return slices.ContainsFunc(x.Remedies, func(a Advice) bool { return a.ID == id })
}

func setupOf(job remedy.Job) remedy.Setup {
	if job.Setup != nil {
		return *job.Setup
	}
	return remedy.Setup{Batch: job.Batch, Accumulate: job.Accumulate}
}
