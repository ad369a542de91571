package explain

import (
	"memroom/lazyregexp"
	"memroom/remedy"
)

// ranOnce is what people write of a program that ran, and failed when it ran again.
var ranOnce = lazyregexp.New(`\b(?:ran|run|runs|works?|worked)\b[^.\n]{0,30}\b(?:first|1st) (?:time|run)\b[^.\n]{0,60}(?:again|second|2nd|next|re-?run|then)|` +
	`\b(?:second|2nd) (?:time|run)\b[^.\n]{0,40}(?:fail|error|oom|out of memory)|(?:fail|error|oom|out of memory)[^.\n]{0,40}\b(?:second|2nd) (?:time|run)\b`)

// ranBefore: the same cells ran once and fail when they run again: the kernel still holds what the
// first run made.
func ranBefore(f *Facts, s Sums) (judged, bool) {
	c := f.Crash
	if !onCard(c) || !ranOnce.MatchString(f.text) ||
		!f.says("colab", "notebook", "jupyter", "ipython", ".ipynb", "kaggle") || len(c.Neighbours) > 0 {
		return judged{}, false
	}
	j := because(CauseLeak, "cells", 0.65, "the text says that it ran the first time: what that run made is still referred to").
		saying("the notebook still holds what its first run made")
	j.cures = []remedy.ID{remedy.NotebookState}
	j.typed = map[remedy.ID]string{remedy.NotebookState: "restart the kernel before it runs again; or del the model, parameters and results first, then gc.collect()"}
	if c.Framework == "pytorch" {
		j.typed[remedy.NotebookState] += " and torch.cuda.empty_cache()"
	}
	return j, true
}

// pointsTrained: a message without a traceback stands in a text about points that are trained.
func pointsTrained(f *Facts, _ Sums) (judged, bool) {
	if len(f.Crash.Frames) > 0 {
		return judged{}, false // the stages of a traceback ask for more
	}
	return byPoints(f.Crash, f.Hints)
}
