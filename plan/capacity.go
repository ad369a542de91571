package plan

import (
	"strings"

	"memroom/event"
	"memroom/tape"
)

// decide reports whether the setup fits the target.
func (r *simulations) decide(p *Prediction, s *Setup, t *Target) verdict {
	here := t.judge(s, r)
	over := t.overhead(r.all[0].usesDNN)
	p.conclude(here.fits, here.wall+over)
	if !here.fits && s.maybePairs() {
		p.warn("for preference training (DPO and its kin) a pair is two sequences, chosen and rejected: " +
			"--batch is twice its batch size, and a reference model comes on top unless adapters are " +
			"switched off for it")
	}
	t.hardest = r.highest()
	guess := *t
	guess.likely = true
	switch {
	case here.fits:
		p.confine(here.wall+over, over)
	case p.Verdict == ProbablyDoesNot && guess.judge(s, r).fits:
		p.Verdict = ProbablyFits
		p.stayBelow(here.wall+over, over)
	}
	return here
}

// reach finds the largest batch and the longest sequence that fit.
func (t *Target) reach(p *Prediction, s *Setup, here verdict) {
	// Not beyond the first batch that does not fit: who raises a batch until it fails stops there,
	// and a last, smaller one of an epoch comes too.
	withBatch := func(n int64) *Setup {
		try := *s
		try.Batch = int(n)
		return &try
	}
	batch := t.furthest(int64(s.Batch), here, maxBatchSize, withBatch)
	p.MaxBatch = &batch
	if batch == 0 && p.Low <= p.Room*maxLikely {
		guess := *t
		guess.likely = true
		likely := guess.furthest(int64(s.Batch), guess.try(s), maxBatchSize, withBatch)
		p.LikelyBatch = &likely
	}
	if s.Seq > 0 {
		withSeq := func(n int64) *Setup {
			try := *s
			try.Seq = int(n)
			return &try
		}
		seq := t.furthest(int64(s.Seq), here, maxSeqOf(s), withSeq)
		if !s.varies() {
			seq = beyond(seq, maxSeqOf(s), once(func(n int64) verdict { return t.try(withSeq(n)) }))
		}
		p.MaxSeq = &seq
	}
}

// maxLikely is how many times the room a setup may need for a smaller batch of it to be looked at
// once more, without the interval.
const maxLikely = 64

// furthest finds the largest value up to limit that fits. Where samples differ in length, the
// search asks one order of them, the one that failed last. The others are run on what it finds; one
// that fails there leads the search from then on.
func (t *Target) furthest(from int64, here verdict, limit int64, with func(int64) *Setup) int64 {
	try := once(func(n int64) verdict { return t.try(with(n)) })
	if !with(from).varies() {
		return t.largest(0, from, here, limit, try)
	}
	var low int64 // fits in every order
	if here.fits {
		low = min(from, limit)
	}
	for {
		hardest := func(n int64) verdict { return t.tryOrders(with(n), 1) }
		found := t.largest(low, from, here, limit, hardest)
		if found == low {
			return found
		}
		v := try(found)
		if v.fits {
			return found
		}
		from, here = found, v
	}
}

// once remembers answers: the search comes back to values it has tried.
func once(try func(int64) verdict) func(int64) verdict {
	known := map[int64]verdict{}
	return func(n int64) verdict {
		v, ok := known[n]
		if !ok {
			v = try(n)
			known[n] = v
		}
		return v
	}
}

// maxSeqOf bounds the search for the longest sequence: the model's positions where it has a table
// of them.
func maxSeqOf(s *Setup) int64 {
	if n := s.Model.Positions(); n > 0 {
		return n
	}
	return maxSeq
}

// verdict is whether a setup fits, and how much it needs of how much there is: the search steers by
// them.
type verdict struct {
	fits       bool
	need, wall event.Bytes
	static     event.Bytes // weights, gradients and optimizer state: what no smaller batch saves
	least      event.Bytes // what is allocated at the peak: no allocator needs less
	exact      bool        // one run with no doubt about what is reserved
}

// try simulates a setup, unless what it keeps at any batch size is too much already.
func (t *Target) try(s *Setup) verdict {
	var worst verdict
	for i, stage := range s.stageKinds() {
		one := *s
		one.stage = stage
		if v := t.tryStage(&one); i == 0 || v.worse(worst) {
			worst = v
		}
	}
	return worst
}

// worse reports whether another verdict is the better one.
func (v verdict) worse(other verdict) bool {
	if v.fits != other.fits {
		return !v.fits
	}
	return v.need > other.need
}

// tryStage is try for one stage of a pipeline.
func (t *Target) tryStage(s *Setup) verdict {
	m, err := s.model()
	if err != nil {
		return verdict{}
	}
	v := verdict{static: staticBytes(s, m.Root), wall: t.wall(true)}
	if v.static > v.wall {
		v.need = v.static
		return v
	}
	if s.varies() {
		return t.tryOrders(s, lengthOrders)
	}
	r, err := simulateAll(s, t)
	if err != nil {
		return verdict{}
	}
	return t.judge(s, r)
}

// tryOrders judges a setup whose samples differ in length by some of their orders. A setup that
// does not fit usually fails with the longest samples alone, or in the order that failed last:
// these come first, and the first failure ends it.
func (t *Target) tryOrders(s *Setup, orders int) verdict {
	longest := *s
	longest.Shortest = 0
	if v := t.try(&longest); v.least > v.wall || v.wall == 0 {
		return v
	}
	r := &simulations{orders: true}
	for i := range orders {
		order := (t.hardest + i) % lengthOrders
		m, err := s.model()
		if err != nil {
			return verdict{}
		}
		sim, err := simulate(m, s, t, variant{scale: 1, order: order})
		if err != nil {
			return verdict{}
		}
		r.model, r.all = m, append(r.all, sim)
		one := &simulations{model: m, orders: true, all: []simulation{sim}}
		if v := t.judge(s, one); !v.fits || orders == 1 {
			t.hardest = order
			return v
		}
	}
	return t.judge(s, r)
}

// staticBytes is what is live at the end of every optimizer step's gradients: weights, gradients,
// optimizer state.
func staticBytes(s *Setup, root *tape.Module) event.Bytes {
	d := weightType(s.Precision).Size()
	state := tape.StateBytes(s.Optimizer, root.Parameters(), weightType(s.Precision))
	if s.Offloads("optimizer") {
		state = 0
	}
	// packed and sharded weights, paged state: the simulation knows
	if s.LoadIn != "" || s.Ranks > 1 || strings.HasPrefix(s.Optimizer, "paged") {
		return 0
	}
	return event.Bytes((root.Count()+root.Trainable())*d + state)
}

// wall is how many bytes the allocator may reserve.
func (t *Target) wall(usesDNN bool) event.Bytes {
	if t.Given && (t.AllocLimit == 0 || t.room(usesDNN) < t.AllocLimit) {
		return t.room(usesDNN)
	}
	return t.AllocLimit
}

// judge decides by the upper end of the interval. Where that is above the wall, the run may still
// succeed, because the allocator frees its cache before it fails. So the timeline is run again
// under the wall, lowered by the margin.
func (t *Target) judge(s *Setup, r *simulations) verdict {
	probe := &Prediction{}
	reserved := r.interval(probe, s, t)
	dnn := r.all[0].usesDNN
	v := verdict{wall: t.wall(dnn), static: staticBytes(s, r.model.Root), least: r.lowest(),
		exact: len(r.all) == 1 && reserved == 0}
	_, high := r.spread()
	margin := probe.High - t.overhead(dnn) - high
	// a cap counts reserved bytes alone: nothing beyond the allocator matters
	if v.wall == t.AllocLimit {
		margin = scaleBytes(high, reserved)
	}
	if t.likely {
		high, margin = r.typical(), 0
	}
	v.need = high + margin
	v.fits = v.need <= v.wall || r.lowest() <= v.wall && r.survives(t, v.wall-margin)
	return v
}

// survives reports whether every run lives under a cap on reserved bytes.
func (r *simulations) survives(t *Target, limit event.Bytes) bool {
	for _, sim := range r.all {
		res, err := t.replay(sim.tl, limit)
		if err != nil || res.OOM != nil {
			return false
		}
	}
	return true
}

// highest is the index of the run that reserves most.
func (r *simulations) highest() int {
	at := 0
	for i, s := range r.all {
		if s.res.ReservedPeak > r.all[at].res.ReservedPeak {
			at = i
		}
	}
	return at
}

// lowest is the least that any allocator would need: the peak of allocated bytes.
func (r *simulations) lowest() event.Bytes {
	var n event.Bytes
	for _, s := range r.all {
		n = max(n, s.res.AllocatedPeak)
	}
	return n
}

// largest finds the largest value up to limit that fits, to within one in a hundred, starting from
// a value whose verdict is known; low is one that fits, or 0. Memory beyond the static part grows
// about linearly with batch and sequence, so the first tries are where a straight line meets the
// wall. Halving the bracket does the rest.
func (t *Target) largest(low, from int64, known verdict, limit int64,
	try func(int64) verdict) int64 {
	if from > limit {
		return limit
	}
	high := int64(0) // does not fit; 0 is not known yet
	at, v := from, known
	for tries := 1; ; tries++ {
		if v.fits {
			low = at
		} else {
			high = at
			if v.static > v.wall {
				return low // nothing smaller helps
			}
		}
		if low >= limit || high > 0 && high-low <= max(1, low/100) {
			return min(low, limit)
		}
		at = aim(low, high, limit, at, v, tries)
		v = try(at)
	}
}

// islands is how many values above the first wall are looked at.
const islands = 12

// beyond looks for a larger value that fits than the one found: how much the allocator's cache
// wastes goes up and down with the sizes of blocks, so that a value may fail where a larger one
// fits. It looks only where allocated bytes leave room for more than the search may miss, and only
// where the run is known exactly: the pattern of a guess means nothing.
func beyond(found, limit int64, try func(int64) verdict) int64 {
	if found == 0 || found >= limit {
		return found
	}
	v := try(found)
	if !v.fits || !v.exact || v.least <= v.static || v.wall <= v.least {
		return found
	}
	room := float64(v.wall-v.least) / float64(v.least-v.static) * float64(found)
	top := min(limit, found+int64(min(room, float64(found))))
	if top-found <= max(1, found*3/100) {
		return found
	}
	high := top + 1
	for k := int64(islands); k > 0; k-- {
		at := found + (top-found)*k/islands
		if at <= found || at >= high {
			continue
		}
		if try(at).fits {
			return beyond(between(at, high, try), limit, try)
		}
		high = at
	}
	return found
}

// between halves the way from a value that fits to one that does not, to within one in a hundred.
func between(low, high int64, try func(int64) verdict) int64 {
	for high-low > max(1, low/100) {
		if mid := low + (high-low)/2; try(mid).fits {
			low = mid
		} else {
			high = mid
		}
	}
	return low
}

// aim is the next value to try.
func aim(low, high, limit, at int64, v verdict, tries int) int64 {
	line := int64(0)
	if v.need > v.static && v.wall > v.static {
		line = int64(float64(at) * float64(v.wall-v.static) / float64(v.need-v.static))
	}
	switch {
	case high == 0: // nothing has failed yet: go beyond the line
		return min(max(line+line/200, low+max(1, low/50)), limit)
	case tries <= 3 && line > low && line < high:
		return line
	}
	return low + (high-low)/2
}
