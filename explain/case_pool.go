package explain

import (
	"memroom/event"
	"memroom/lazyregexp"
	"memroom/remedy"
)

// poolInPieces: TensorFlow's pool has far more room by its own figures than was asked for, so the
// free memory lies in pieces.
func poolInPieces(f *Facts, s Sums) (judged, bool) {
	c := f.Crash
	if c.Framework != "tensorflow" && c.Framework != "jax" || c.Where != event.WhereGPU ||
		s.Asked == 0 || s.Mine == 0 ||
		s.Capacity == 0 || s.Capacity-s.Mine < 2*s.Asked || float64(s.Mine) > 0.8*float64(s.Capacity) {
		return judged{}, false
	}
	j := because(CauseFragmentation, "", 0.75,
		"%s of the pool's %s were in use, and %s were refused: what is free lies in pieces", s.Mine, s.Capacity, s.Asked)
	if largest := largestFree(f); largest != "" {
		j = j.also("the largest free piece was %s", largest)
	}
	j.cures = []remedy.ID{remedy.TFAllocator, remedy.TFGrowth}
	return j, true
}

var freePiece = lazyregexp.New(`(?i)largest (?:free|available) (?:chunk|block|piece)\D{0,20}([\d.]+ ?[KMG]i?B)`)

func largestFree(f *Facts) string {
	for _, l := range f.lines {
		if m := freePiece.FindStringSubmatch(l.Text); m != nil {
			return m[1]
		}
	}
	return ""
}
