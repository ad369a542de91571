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

// longSample is a length from which one sample computes much.
const longSample = 4096

// longNotPieces: idle memory of the pool would just serve the request, and the job computes one
// long
// sample at a time. Its length is the larger part, pieces are what tipped it.
func longNotPieces(f *Facts, s Sums) (judged, bool) {
	c := f.Crash
	k, ok := f.key(Length)
	if c.Framework != "pytorch" || c.Where != event.WhereGPU || !ok || k.Number() < longSample ||
		!f.batchOfOne() ||
		s.Idle < s.Asked || s.Idle >= 4*s.Asked || s.Asked < 512*event.MiB ||
		s.Others > s.Capacity/10 || len(c.Frames) > 0 {
		return judged{}, false
	}
	j := because(CauseBatch, "logits", 0.6, "%s with one sample at a time: activations and logits grow with every token of it", k.Text).
		saying("one sample is too long (%s)", k.Text)
	j = j.also("%s lie idle in the pool in pieces: they would serve one such request, not the next", s.Idle)
	j.cures = []remedy.ID{remedy.ShorterSequence, remedy.Checkpointing, remedy.ChunkedLoss,
		remedy.MaxSplitSize}
	return j, true
}
