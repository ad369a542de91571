package explain

import (
	"fmt"
	"strconv"

	"memroom/lazyregexp"
	"memroom/remedy"
)

// Darknet's two settings of a batch: how many samples a step has, and in how many parts it goes
// through the network.
var (
	netBatch   = lazyregexp.New(`\bbatch(?:[_ ]?size)?(?: (?:is|of|to))? ?[=:]? ?(\d{1,4})\b`)
	netDivided = lazyregexp.New(`\bsubdivisions?(?: (?:is|of|to))? ?[=:]? ?(\d{1,4})\b`)
)

// darknetParts: what Darknet computes at once is its batch divided by its subdivisions.
func darknetParts(f *Facts, _ Sums) (judged, bool) {
	m, d := netBatch.FindStringSubmatch(f.text), netDivided.FindStringSubmatch(f.text)
	if !onCard(f.Crash) || m == nil || d == nil {
		return judged{}, false
	}
	n, _ := strconv.Atoi(m[1])
	parts, _ := strconv.Atoi(d[1])
	if parts < 1 || n < 1 {
		return judged{}, false
	}
	smaller := ownCure{remedy.SmallerImage, "a smaller input of the network, and one that stays so",
		f.smallerNet() + " in [net] (multiples of 32), random=0 in every [yolo]: with random=1 the input grows up to 1.4 times"}
	if n > parts {
		j := because(CauseBatch, "", 0.6, "batch %d in %d subdivisions is %d images at once", n, parts,
			n/parts).
			saying("%d images at once are too many", n/parts)
		j.words = []ownCure{{remedy.MicroBatch, "fewer images at once, with the same batch",
			"subdivisions=" + strconv.Itoa(min(n, 2*parts))}, smaller}
		return j, true
	}
	j := because(CauseBatch, "one_sample", 0.65, "batch %d in %d subdivisions is one image at a time already: more of them do not help",
		n, parts)
	j = j.also("where random=1 is set the network's input changes every 10 batches, so that it fails after some time")
	j.words = []ownCure{smaller}
	j.cures = []remedy.ID{remedy.SmallerImage}
	return j.saying("it computes one image at a time already: the network's input is too large"), true
}

// netInput is the network's input as Darknet prints and reads it.
var netInput = lazyregexp.New(`\b(\d{3,4}) x +\d{3,4} x +[13]\b|\bwidth ?= ?(\d{3,4})\b`)

// smallerNet writes a smaller input of the network than the one that the text shows.
func (f *Facts) smallerNet() string {
	m := netInput.FindStringSubmatch(f.text)
	if m == nil {
		return "a smaller width and height"
	}
	side, _ := strconv.Atoi(first(m[1:]...))
	side = max(32, side*3/4/32*32)
	return fmt.Sprintf("width=%d height=%d", side, side)
}
