package explain

import (
	"fmt"

	"memroom/lazyregexp"
	"memroom/remedy"
)

// noGraph matches the ways in which code turns off the recording of a graph. Libraries' loops have
// them.
var noGraph = lazyregexp.New(`no_grad|inference_mode|decorate_context|volatile=true|requires_grad_?\(false\)`)

// ownEvaluation: an evaluation in a loop that the user wrote fails although training fits. A pass
// that records its graph keeps the tensors that training frees in its backward pass.
func ownEvaluation(f *Facts, s Sums) (judged, bool) {
	c := f.Crash
	at, ok := evaluationIn(c)
	if !ok || !onCard(c) || c.Framework != "pytorch" || f.Tool != nil || f.Hints.Trainer != "" ||
		noGraph.MatchString(f.text) || s.Alone || generating(c.Frames) {
		return judged{}, false
	}
	frame := c.Frames[at]
	if installed.MatchString(frame.File) || !trainsFine.MatchString(f.text) {
		return judged{}, false
	}
	j := because(CauseLeak, "eval_graph", 0.7,
		"%s in %s evaluates in a loop of its own, and nothing in the text turns gradients off there", frame.Name,
		base(frame.File)).
		saying("an evaluation that records a graph keeps what training frees in each backward pass")
	j = j.also("training fits")
	j.frame = at
	j.cures = []remedy.ID{remedy.NoGrad, remedy.EvalBatch}
	j.typed = map[remedy.ID]string{remedy.NoGrad: fmt.Sprintf(
		"model.eval()\nwith torch.no_grad():   # around the loop of %s (%s:%d); keep loss.item(), not loss", frame.Name, base(frame.File), frame.Line)}
	return j, true
}

// installed are paths of packages.
var installed = lazyregexp.New(`site-packages|dist-packages|/lib/python`)

// trainsFine is what people write whose training fits.
var trainsFine = lazyregexp.New(`train(?:ing|s)?\b[^.\n]{0,60}\b(?:works?|fine|ok|okay|normal\w*|no problem|perfect\w*|success\w*)\b|only (?:when|during|in|at)[^.\n]{0,30}(?:valid|eval|test)|(?:jump|increase)[^.\n]{0,40}(?:valid|eval)`)
