package explain

import (
	"fmt"
	"slices"

	"memroom/event"
	"memroom/remedy"
)

// oneTensor is the share of a memory from which one request is the point, rather than the last
// straw.
const oneTensor = 0.08

// largeTensor: the operation that asked is known, and what it asked for is a large part of the
// memory.
func largeTensor(f *Facts, s Sums) (judged, bool) { return tensorCase(f, s, false) }

func tensorCase(f *Facts, s Sums, late bool) (judged, bool) {
	c := f.Crash
	_, windows := windowing.in(c)
	_, whole := wholeImage.in(c)
	if windows || whole || c.Capped || s.Asked < 512*event.MiB || s.Beyond >= beyondReason ||
		2*s.Others > s.Capacity && s.Capacity > 0 ||
		s.Idle >= s.Asked && c.Idle != nil || s.HadRoom ||
		s.Capacity > 0 && float64(s.Asked) < oneTensor*float64(s.Capacity) {
		return judged{}, false
	}
	t := tensorOf(f, s, late)
	if t == nil || t.op.detail == "forward" {
		return judged{}, false
	}
	if s.Beyond >= beyondTheCard && t.op.form != square && t.Size == "" {
		return judged{}, false // a size that nobody meant
	}
	asks := "the line above the message asks for it"
	if len(c.Frames) > 0 {
		frame := c.Frames[t.frame]
		asks = fmt.Sprintf("%s:%d in %s asks for it", base(frame.File), frame.Line, frame.Name)
	}
	size := t.op.dims
	if t.Size != "" {
		size += ": " + t.Size
	}
	cause := t.op.cause
	sure := 0.75
	if cause == CauseUnknown {
		cause = CauseBatch
		if onHost(c) {
			cause = CauseHostData
		}
		sure = 0.6
	}
	if cause == CauseBatch && onHost(c) && c.Framework == "python" {
		cause = CauseHostData
	}
	j := because(cause, t.op.detail, sure, "%s", asks).
		saying("that is one tensor, %s (%s)", t.op.name, size)
	if s.Alone {
		j = j.also("one tensor alone is larger than the card: %s against %s", s.Asked, s.Capacity)
	} else if s.Mine > 0 {
		j = j.also("%s were in use before it", s.Mine)
	}
	j.frame, j.tensor = t.frame, t
	if f.evaluates() && t.op.detail != "eval_tensor" && t.op.detail != "eval_outputs" {
		j = j.also("it happens in evaluation or prediction: the training batch does not count")
	}
	j.cures = f.levers(t)
	_, tokens := f.key(Tokens)
	switch {
	case t.op.detail == "attention":
		j.cures = append([]remedy.ID{remedy.Attention}, j.cures...)
	case t.op.detail == "logits" && (tokens || f.evaluates()):
		j.cures = append(j.cures, remedy.ChunkedLoss)
	case t.op.detail == "logits" && slices.Contains(j.cures, remedy.InParts) && f.Tool != nil && f.Tool.set[remedy.InParts] != "":
	case t.op.detail == "logits":
		j.cures = append([]remedy.ID{remedy.ChunkedLoss}, j.cures...)
	}
	j.cures = append(slices.Clone(t.op.also), j.cures...)
	if parts := f.partsOf(t); parts != "" {
		j.typed = map[remedy.ID]string{remedy.InParts: parts}
	}
	return j, true
}

// String writes the tensor for JSON.
func (t *Tensor) String() string {
	if t.Size == "" {
		return fmt.Sprintf("%s (%s)", t.op.name, t.op.dims)
	}
	return fmt.Sprintf("%s (%s), %s", t.op.name, t.op.dims, t.Size)
}
