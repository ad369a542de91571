package explain

import (
	"fmt"
	"slices"

	"memroom/event"
	"memroom/lazyregexp"
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
	if s.OneSmall && (learns(c, f.Hints) || mayTrain(c, f.Hints)) {
		j.reason += ", the model with its gradients and optimizer states or a batch's activations"
	}
	return j
}

// batchOfOne reports whether the text sets a batch of one sample.
func (f *Facts) batchOfOne() bool {
	k, ok := f.key(Samples)
	return ok && k.Number() == 1
}

// lowPrecision are words of a job that computes in half precision already.
var lowPrecision = lazyregexp.New(`\b(?:bf16|fp16|bfloat16|float16|half_precision|amp|mixed[_-]precision|autocast)\b["']?\s{0,3}[=: ]\s{0,3}["']?(?:true|on|yes|1|bf16|fp16)?|torch\.(?:bfloat16|float16)|\.half\(\)`)
