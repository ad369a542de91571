package explain

import (
	"fmt"
	"slices"

	"memroom/event"
	"memroom/lazyregexp"
	"memroom/remedy"
	"memroom/trace"
)

// ownShare is the part of a card that live tensors of one process must hold to be what fills it.
const ownShare = 0.6

// ownTensors explains a card that is full of this job's own live tensors where no stage of the work
// shows which ones. It names the user's own settings that make a step smaller.
func ownTensors(j judged, f *Facts, s Sums) judged {
	c := f.Crash
	if j.cause != CauseUnknown || j.detail != "open" ||
		c.Where != event.WhereGPU || c.Framework != "pytorch" || s.Capacity == 0 || c.Capped ||
		c.Requested == nil || float64(s.Mine) < ownShare*float64(s.Capacity) ||
		float64(s.Others) > 0.1*float64(s.Capacity) ||
		s.Idle >= 2*s.Asked && float64(s.Idle) > 0.05*float64(s.Capacity) ||
		slices.Contains(f.Hints.Says, string(CauseLeak)) || serverOf(c, f.Hints) != "" {
		return j
	}
	j.reason = fmt.Sprintf("this job's own tensors fill it (%s)", s.Mine)
	j.cures = f.makesSmaller()
	return j
}

// makesSmaller are the cures of a step that is too large, the person's own settings first.
func (f *Facts) makesSmaller() []remedy.ID {
	var list []remedy.ID
	for _, id := range []remedy.ID{remedy.MicroBatch, remedy.ShorterSequence, remedy.SmallerImage} {
		if _, own := f.ownKey(id); own {
			list = append(list, id)
		}
	}
	rest := []remedy.ID{remedy.MicroBatch, remedy.LessAtOnce, remedy.MixedPrecision,
		remedy.Checkpointing}
	if f.tried(remedy.MicroBatch) != "" || f.batchOfOne() {
		rest = []remedy.ID{remedy.MixedPrecision, remedy.Checkpointing, remedy.Optimizer8Bit}
	}
	if i := slices.Index(rest, remedy.MixedPrecision); f.words() { // in half precision, mostly
		rest[i], rest[i+1] = rest[i+1], rest[i]
	}
	if lowPrecision.MatchString(f.text) {
		rest = slices.DeleteFunc(rest, func(id remedy.ID) bool { return id == remedy.MixedPrecision })
	}
	for _, id := range rest {
		if !slices.Contains(list, id) {
			list = append(list, id)
		}
	}
	if has(f.Crash, trace.SignNotebook) {
		list = slices.Insert(list, min(1, len(list)), remedy.NotebookState)
	}
	switch {
	case f.pictures() && !f.words():
		list = append(list, remedy.SmallerImage)
	case f.words():
		list = append(list, remedy.ShorterSequence)
	}
	return list
}

// batchOfOne reports whether the text sets a batch of one sample.
func (f *Facts) batchOfOne() bool {
	k, ok := f.key(Samples)
	return ok && k.Number() == 1
}

// lowPrecision are words of a job that computes in half precision already.
var lowPrecision = lazyregexp.New(`\b(?:bf16|fp16|bfloat16|float16|half_precision|amp|mixed[_-]precision|autocast)\b["']?\s{0,3}[=: ]\s{0,3}["']?(?:true|on|yes|1|bf16|fp16)?|torch\.(?:bfloat16|float16)|\.half\(\)`)
