package explain

import (
	"slices"

	"memroom/lazyregexp"
	"memroom/remedy"
)

// keepsGraph are calls that leave the graph of a step alive.
var keepsGraph = lazyregexp.New(`(retain_graph|create_graph) ?= ?true`)

// graphKept: the person's code keeps graphs, and memory is said to grow.
func graphKept(f *Facts, _ Sums) (judged, bool) {
	m := keepsGraph.FindStringSubmatch(f.text)
	if m == nil || !onCard(f.Crash) || !slices.Contains(f.Hints.Says, string(CauseLeak)) &&
		!growsLater.MatchString(f.text) {
		return judged{}, false
	}
	j := because(CauseLeak, "", 0.65,
		"your code has %s=True: the graph of a step lives as long as anything refers to its loss, and more fails after "+
			"some steps", m[1]).
		saying("graphs of earlier steps are kept (%s=True)", m[1])
	j.cures = []remedy.ID{remedy.Detach}
	j.typed = map[remedy.ID]string{remedy.Detach: "retain_graph=True for all but the last backward of a step only; what is kept beyond the step as " +
		"loss.item() or .detach(); zero_grad(set_to_none=True)"}
	return j, true
}

// growsLater are words for a failure that comes with time.
var growsLater = lazyregexp.New(`(?:iteration|epoch|step)s?\b[^.\n]{0,30}(?:grow|increas|later|goes)|after (?:a )?(?:few|some|several|\d+) (?:iteration|epoch|step)`)
