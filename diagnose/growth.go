package diagnose

import (
	"cmp"
	"fmt"
	"math"
	"path"
	"slices"

	"memroom/event"
)

// Series is the floor of one kind of memory in one process: its value after each step, the newest
// kept.
type Series struct {
	// Quantum is the change below which the floor counts as level: allocators of the host round and
	// keep small things.
	Quantum float64

	floor    []Point
	reserved []Point // what the allocator took from the driver at the same steps, if known
	working  []Point // what a step needs above the floor, at the steps at which it was read
	cycle    int64   // steps of the longest rise that was freed again: garbage
	trend    Trend
	rising   bool
	began    int64   // onset of the rise that goes on, also beyond what trend looks back on
	rose     int64   // last step at which it did
	height   float64 // and how high it stood
	judged   int64   // last step at which trend was looked for
}

const (
	maxPoints  = 1200
	dropPoints = 300 // dropped at once, so that the buffer is seldom moved
)

// Add takes the reading after a step. Steps must ascend; reserved and working are 0 where unknown
// or not read anew.
func (s *Series) Add(step int64, floor, reserved, working float64, limits Thresholds) {
	if n := len(s.floor); n > 0 && step <= s.floor[n-1].Step {
		return
	}
	if n := len(s.floor); n > 0 && math.Abs(floor-s.floor[n-1].Value) < s.Quantum {
		floor = s.floor[n-1].Value
	}
	s.noteSetback(floor)
	s.floor = append(s.floor, Point{step, floor})
	s.reserved = append(s.reserved, Point{step, reserved})
	if working != 0 {
		s.working = append(s.working, Point{step, working})
	}
	if len(s.floor) > maxPoints {
		s.floor = append(s.floor[:0], s.floor[dropPoints:]...)
		s.reserved = append(s.reserved[:0], s.reserved[dropPoints:]...)
		s.working = append(s.working[:0], since(s.working, s.floor[0].Step)...)
	}
	if step > s.judged+s.patience(limits) {
		s.trend, s.rising = TrendOf(s.floor, limits)
		s.judged = step
	}
	if s.rising {
		if s.rose == 0 || s.trend.Onset > s.rose+limits.LeakSteps {
			s.began = s.trend.Onset
		}
		s.rose, s.height = step, floor
	}
}

func (s *Series) last() float64 { return s.floor[len(s.floor)-1].Value }

// lately is the slope of the last steps, 0 where they do not rise or are too few to tell.
func (s *Series) lately(steps int64) float64 {
	last := since(s.floor, s.floor[len(s.floor)-1].Step-steps)
	if len(last) < shape.FewPoints/2 {
		return 0
	}
	l, rises := robustLine(thin(last, shape.MostPoints))
	if !rises {
		return 0
	}
	return l.slope
}

// patience is how many steps the judgement can wait: the longer the series, the less one more of
// them can change.
func (s *Series) patience(limits Thresholds) int64 {
	switch {
	case !s.rising:
		return int64(len(s.floor)) / 300
	case s.trend.Steps > 4*limits.LeakSteps:
		return 3
	}
	return 0
}

// noteSetback remembers the longest rise that was lost again: garbage that is collected now and
// then, data that comes and goes in waves. What has risen since the series was last as low as it is
// now is gone.
func (s *Series) noteSetback(value float64) {
	n := len(s.floor)
	if n == 0 || value >= s.floor[n-1].Value {
		return
	}
	start := n - 1
	for start >= 0 && s.floor[start].Value > value {
		start--
	}
	if start < 0 { // never as low before: a level was left, no rise was lost
		return
	}
	lost := s.floor[start:]
	peak := 0
	for i, p := range lost {
		if p.Value > lost[peak].Value {
			peak = i
		}
	}
	if length := lost[peak].Step - lost[0].Step; length > s.cycle && peak >= 3 &&
		climbs(lost[:peak+1]) {
		s.cycle = length
	}
}

// climbs reports whether values rise along the way, not by one jump or by chance.
func climbs(points []Point) bool {
	sample := thin(points, 24)
	x, y := stepsOf(sample), values(sample)
	return leftBy(x, y) < shape.Climb*leftBy(make([]float64, len(x)), y) &&
		jumpLeaves(y) > leftBy(x, y)
}

// Suspect reports whether the floor has risen for some steps: too early to say so, early enough to
// look where from.
func (s *Series) Suspect(limits Thresholds) bool {
	return s.rising && s.trend.even && s.trend.Steps >= limits.SuspectSteps &&
		s.trend.Steps > s.cycle
}

// Leak returns the rise if it has lasted so long and so evenly that it is a leak.
func (s *Series) Leak(limits Thresholds) (Trend, bool) {
	t := s.trend
	if !s.rising || !t.even || !t.longEnough(limits) || t.Steps < 3*s.cycle || s.workGrows(limits) {
		return Trend{}, false
	}
	return t, true
}

// longEnough reports whether a rise has lasted for as long as a leak must. Where only some steps
// are read and the next reading would come too late, what has risen up to this very point is judged
// now, if it has lasted longer than caches fill for all the same.
func (t Trend) longEnough(limits Thresholds) bool {
	switch {
	case t.exact && t.due >= 1: // the rise that is due has not come
		return false
	case t.exact && t.lasted >= float64(limits.LeakSteps) || !t.exact &&
		t.Steps >= limits.LeakSteps:
		return true
	case t.stride < 2 || t.stride > limits.EarlyStride || t.due > 0:
		return false
	}
	return t.lasted >= float64(limits.EarlySteps) && t.Steps+t.stride > limits.LeakSteps
}

// Ended reports whether a rise that was called a leak is over, and whether what it had gained is
// lost again. A pause is no end: as many steps as made it a leak must be level, or an eighth of its
// length.
func (s *Series) Ended(leak Trend, limits Thresholds) (lost, over bool) {
	now := s.floor[len(s.floor)-1]
	if s.rising && s.trend.Onset <= leak.Onset+leak.Steps {
		return false, false
	}
	lasted := s.rose - leak.Onset
	gained := leak.Slope * float64(lasted)
	if now.Value < leak.base+shape.HalfLost*gained {
		// far below, something else was given back
		back := now.Value > leak.base-shape.FarBelow*gained &&
			s.lowFor(leak.base+shape.HalfLost*gained, shape.LowPoints)
		return back, back
	}
	return false, !s.rising && now.Step-s.rose >= max(limits.LeakSteps, lasted/shape.LevelPart) &&
		s.levelSince(s.rose, leak.Slope)
}

// levelSince reports whether since a step the floor has gained less than a quarter of what the rise
// would have: a rise that is only harder to see, because few steps were read, goes on.
func (s *Series) levelSince(step int64, slope float64) bool {
	rest := since(s.floor, step)
	if len(rest) < 2 {
		return false
	}
	first, last := rest[0], rest[len(rest)-1]
	return last.Value-first.Value < shape.LevelShare*slope*float64(last.Step-first.Step)
}

// lowFor reports whether the last points lie below a level: a program that ends frees everything in
// its last step.
func (s *Series) lowFor(level float64, points int) bool {
	last := newest(s.floor, points)
	return !slices.ContainsFunc(last, func(p Point) bool { return p.Value >= level })
}

// workGrows reports whether the program does more at each step, longer sequences for instance: then
// what a step needs above the floor grows along with what stays, where a leak leaves it as it is;
// and reserved bytes grow much faster than both.
func (s *Series) workGrows(limits Thresholds) bool {
	floor := since(s.floor, s.trend.Onset)
	if len(floor) < len(quarters{}) {
		return false
	}
	working := since(s.working, s.trend.Onset)
	if len(working) == 3 { // read seldom: it must rise from one to the next
		working = []Point{working[0], working[1], working[1], working[2]}
	}
	return len(working) >= len(quarters{}) && quartersOf(working).outpace(s.trend.Slope,
		limits.Workload) ||
		// a buffer lifts both
		quartersOf(since(s.reserved, s.trend.Onset)).outpace(quartersOf(floor).pace(),
			limits.Reserving)
}

// quarters are the middles of a series' quarters, which noise hardly moves.
type quarters [4]Point

func quartersOf(points []Point) (middle quarters) {
	for q := range middle {
		part := slices.Clone(points[q*len(points)/4 : (q+1)*len(points)/4])
		steps := part[len(part)/2].Step
		slices.SortFunc(part, func(a, b Point) int { return cmp.Compare(a.Value, b.Value) })
		// a value that was there: between two of them one jump would count twice
		middle[q] = Point{steps, part[len(part)/2].Value}
	}
	return middle
}

// pace is bytes a step.
func (q quarters) pace() float64 { return (q[3].Value - q[0].Value) / float64(q[3].Step-q[0].Step) }

// outpace reports whether a series grows so many times as fast as another, and did so twice or more
// on the way, once in the second half: not by a single block, nor only at the beginning.
func (q quarters) outpace(pace, factor float64) bool {
	growth, rose := factor*pace*float64(q[3].Step-q[0].Step), 0
	for i := 1; i < len(q); i++ {
		if q[i].Value-q[i-1].Value >= growth*shape.Quarter {
			rose++
		}
	}
	return growth > 0 && q[3].Value-q[0].Value >= growth && rose >= 2 &&
		q[3].Value-q[1].Value >= growth*shape.Quarter
}

func since(points []Point, step int64) []Point {
	for i, p := range points {
		if p.Step >= step {
			return points[i:]
		}
	}
	return nil
}

// MattersOnHost reports whether a rise of host memory is more than programs creep by: lists of
// losses on the heap, or what allocators and interpreters keep of their pages.
func (t Trend) MattersOnHost(heap bool, limits Thresholds) bool {
	if heap {
		return t.Growth >= float64(limits.HeapGrowth)
	}
	return t.Growth >= math.Max(float64(limits.HostGrowth), limits.HostShare*t.Level)
}

// callerOf is the program's outermost frame, the line of its loop, if that is not the line that
// allocated: what forward made is kept by somebody who called it.
func callerOf(line event.Frame, frames []event.Frame) (event.Frame, bool) {
	for i := len(frames) - 1; i >= 0; i-- {
		if !IsLibrary(frames[i]) {
			return frames[i], frames[i] != line
		}
	}
	return event.Frame{}, false
}

// leakFinding words a leak of "GPU 0 memory" or "host memory".
func leakFinding(what string, t Trend, frames []event.Frame) event.Finding {
	f := event.Finding{
		Kind: "leak", Severity: event.SeverityWarning, Step: t.Onset + t.Steps,
		Bytes: event.Bytes(t.Growth), Memory: what, Frames: frames,
		Confidence: 0.9,
		Title: fmt.Sprintf("possible leak in %s: %s kept per step since step %d", what,
			event.Bytes(math.Round(t.Slope)), t.Onset),
		Evidence: []string{
			fmt.Sprintf("grew by %s in %d steps and did not fall back", event.Bytes(t.Growth),
				t.Steps),
			fmt.Sprintf("growth per step is accurate to ±%s", event.Bytes(math.Ceil(2*t.Error))),
			"a cache that is still filling looks the same; memroom withdraws this if growth stops",
		},
		Remedies: []string{"detach", "keep_less", "remove_hooks"},
	}
	if line, known := UserFrame(frames); known {
		f.Title += fmt.Sprintf(" (allocated at %s:%d", path.Base(line.File), line.Line)
		if from, other := callerOf(line, frames); other {
			f.Title += fmt.Sprintf(", called from %s:%d", path.Base(from.File), from.Line)
		}
		f.Title += ")"
	}
	return f
}
