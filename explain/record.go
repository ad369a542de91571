package explain

import (
	"slices"

	"memroom/remedy"
)

// basis is what speaks for a cure: words alone or frames and figures, and whether they settle what
// filled memory.
type basis struct{ words, open bool }

// tally is how often a cure was judged by people who know what the cause of a report was.
type tally struct{ wrong, all int }

// record is what that gave for the cures that were wrong at least once and whose use no fact of the
// text separates from the right ones. A use that a licence bounds now is not counted.
var record = map[basis]map[remedy.ID]tally{
	{words: true, open: true}: {remedy.MicroBatch: {3, 3}, remedy.ShorterSequence: {1, 1},
		remedy.StreamData: {1, 1}, remedy.Checkpointing: {1, 1}, remedy.LessAtOnce: {1, 1},
		remedy.LongestBatch: {1, 1}},
	{words: true}: {remedy.KeepLess: {6, 9}, remedy.StreamData: {3, 9}, remedy.FreeNeighbour: {2, 3},
		remedy.Detach: {1, 1}, remedy.NoGrad: {1, 1}, remedy.EvalBatch: {1, 1}, remedy.LoadToHost: {1, 3},
		remedy.SaveSharded: {1, 1}, remedy.LongestBatch: {1, 1}, remedy.OffloadLess: {0, 2},
		remedy.PageFile: {0, 3}},
}

// A cure is said that is wrong in at most one of ten. What has few observations counts as if five
// more had been made, of which half of one was wrong.
const (
	mostWrong  = 0.1
	priorWrong = 0.5
	priorAll   = 5
)

// proved reports whether a cure of the catalogue may be named on what speaks for it here. A cure
// that a case or a topic words itself has its own evidence.
func (x *Explanation) proved(a Advice) bool {
	if x.typed[a.ID] != "" || slices.Contains(x.given, a.ID) || slices.Contains(x.found,
		string(a.ID)) ||
		slices.ContainsFunc(x.words, func(w ownCure) bool { return w.id == a.ID }) ||
		a.ID == remedy.MicroBatch && x.general(a) == 0 && x.facts.Ran.Trained { // the person's own flag
		return true
	}
	of := basis{words: onlyTold(x.facts), open: x.Confidence == 0}
	t := record[of][a.ID]
	return (float64(t.wrong)+priorWrong)/float64(t.all+priorAll) <= mostWrong
}
