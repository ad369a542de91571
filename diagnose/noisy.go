package diagnose

import (
	"math"
	"slices"
)

// noisyTrend tries windows from short to long. It takes the longest of the first run of windows in
// which the rise stands out from the noise, and in which a line fits better than a harmless jump or
// a rise that has ended.
func noisyTrend(points []Point, limits Thresholds) (found Trend, ok bool) {
	last := points[len(points)-1].Step
	points = withoutJumps(points)
	quick := sumsOf(points)
	for steps := limits.ForecastSteps; steps <= last-points[0].Step; steps = nextWindow(steps,
		limits) {
		window, trend, rises := since(points, last-steps), Trend{}, false
		if quick.mayRise(len(points) - len(window)) {
			trend, rises = windowTrend(window, limits)
		}
		rises = rises && (steps >= 2*limits.LeakSteps || !slower(points, trend))
		if ok && !rises {
			break
		}
		if rises {
			found, ok = trend, true
		}
	}
	return found, ok
}

// withoutJumps takes out single jumps to a higher level, such as workspaces and kernels that are
// made when they are first needed, by lifting what came before. Where there are many they are the
// way it grows, and stay.
func withoutJumps(points []Point) []Point {
	var changes []float64
	for i := max(1, len(points)-maxRegime); i < len(points); i++ {
		if change := math.Abs(points[i].Value - points[i-1].Value); change > 0 {
			changes = append(changes, change)
		}
	}
	limit := shape.LevelJump * median(changes)
	var jumps []int
	for i := 1; i < len(points); i++ {
		if points[i].Value-points[i-1].Value > limit && stays(points, i, limit/2) {
			jumps = append(jumps, i)
		}
	}
	if len(jumps) == 0 || shape.JumpsMany*len(jumps) > len(points) {
		return points
	}
	usual := usualChange(points)
	lifted := slices.Clone(points)
	for _, at := range jumps {
		jump := points[at].Value - points[at-1].Value - usual*float64(points[at].Step-points[at-1].Step)
		for i := range at {
			lifted[i].Value += jump
		}
	}
	return lifted
}

// usualChange is the middle one of all changes from step to step, of which jumps are few.
func usualChange(points []Point) float64 {
	changes := make([]float64, 0, len(points))
	for i := 1; i < len(points); i++ {
		changes = append(changes,
			(points[i].Value-points[i-1].Value)/float64(points[i].Step-points[i-1].Step))
	}
	return median(changes)
}

// stays reports whether the values around a jump are still as far apart: it is no spike, nor the
// end of a dip.
func stays(points []Point, at int, distance float64) bool {
	before, after := values(points[max(0, at-shape.JumpAround):at]),
		values(points[at:min(len(points), at+shape.JumpAround)])
	return len(after) >= 3 && slices.Min(after)-slices.Max(before) > distance
}

// sums of the values, and of their squares, before each point.
type sums struct{ values, squares []float64 }

func sumsOf(points []Point) sums {
	s := sums{make([]float64, len(points)+1), make([]float64, len(points)+1)}
	for i, p := range points {
		v := p.Value - points[0].Value
		s.values[i+1], s.squares[i+1] = s.values[i]+v, s.squares[i]+v*v
	}
	return s
}

// mayRise is a quick look at the points from one on: the last third of what rises lies well above
// the first.
func (s sums) mayRise(from int) bool {
	end := len(s.values) - 1
	third := (end - from) / 3
	if third < 2 {
		return false
	}
	mean := func(i int) (mean, variance float64) {
		n := float64(third)
		mean = (s.values[i+third] - s.values[i]) / n
		return mean, math.Max(0, (s.squares[i+third]-s.squares[i])/n-mean*mean)
	}
	early, before := mean(from)
	late, now := mean(end - third)
	return late > early && square(late-early)*float64(third) > square(shape.Quick)*(before+now)
}

// slower reports whether the series rose faster right before this window: a cache that fills ever
// more slowly is nearly straight at its end. In a window twice as long that shows.
func slower(points []Point, t Trend) bool {
	before := since(points, t.Onset-t.Steps)
	before = before[:len(before)-len(since(before, t.Onset))]
	if len(before) < shape.FewPoints/2 {
		return false
	}
	l, rises := robustLine(thin(before, shape.MostPoints))
	span := l.x[len(l.x)-1] - l.x[0]
	return rises && l.slope > shape.FasterBefore*t.Slope &&
		l.slope*span > shape.FasterNoise*math.Max(l.noise, t.Noise)
}

// nextWindow grows windows by a quarter, and lets one be just long enough for a leak.
func nextWindow(steps int64, limits Thresholds) int64 {
	if steps < limits.LeakSteps {
		return limits.LeakSteps
	}
	return steps + steps/4
}

// falls reports whether values go down as well as up. Where they do not, rises are judged one by
// one, which sees more.
func falls(window []Point) bool {
	up, down := ways(window)
	if down == 0 || down > shape.Falls*up {
		return down > 0
	}
	up, down = ways(withoutJumps(window)) // next to a large jump falls look small
	return down > shape.Falls*up
}

// ways adds up how far a series went up and down.
func ways(points []Point) (up, down float64) {
	for i := 1; i < len(points); i++ {
		change := points[i].Value - points[i-1].Value
		up, down = up+math.Max(change, 0), down-math.Min(change, 0)
	}
	return up, down
}

// windowTrend judges one window. Not all steps are reported, so it can hold fewer points than
// steps.
func windowTrend(window []Point, limits Thresholds) (Trend, bool) {
	if len(window) < shape.FewPoints || !falls(window) {
		return Trend{}, false
	}
	sample := thin(window, shape.MostPoints)
	l, ok := robustLine(sample)
	if !ok {
		return Trend{}, false
	}
	first, last := window[0], window[len(window)-1]
	span := float64(last.Step - first.Step)
	spread := l.noise * math.Sqrt(12/l.independent()) / span // of the slope
	if l.slope < limits.Significance*spread || l.wanders(limits) || !l.better(limits) ||
		!l.goesOn(window) {
		return Trend{}, false
	}
	level := l.at(float64(last.Step))
	if last.Value < level-shape.Lost*l.slope*span { // it has just been lost again
		return Trend{}, false
	}
	var above []float64
	for _, p := range window {
		above = append(above, p.Value-l.at(float64(p.Step)))
	}
	return Trend{
		Onset: first.Step, Steps: last.Step - first.Step, Slope: l.slope,
		Error: shape.SlopeMargin * spread,
		Noise: l.noise,
		base:  level - l.slope*span, Level: level + math.Max(quantile(above, shape.NoiseTop), 0),
		Growth: l.slope * span, Rises: len(window), even: true,
		lasted: float64(last.Step - first.Step), stride: stride(window),
	}, true
}

// line is the best one through points, of which those far off count no more than some distance.
type line struct {
	slope, start, middle float64   // start at the step in the middle
	x, y                 []float64 // steps, and values drawn towards the line
	noise                float64   // standard deviation around it
}

func (l line) at(step float64) float64 { return l.start + l.slope*(step-l.middle) }

// robustLine begins with the medians of the outer thirds and improves on them by least squares. It
// returns false for points that do not rise.
func robustLine(sample []Point) (line, bool) {
	third := len(sample) / 3
	early, late := sample[:third], sample[len(sample)-third:]
	l := line{x: stepsOf(sample), y: values(sample)}
	l.middle = (l.x[0] + l.x[len(l.x)-1]) / 2
	from, to := median(values(early)), median(values(late))
	if !(to > from) {
		return l, false
	}
	l.slope = (to - from) / (median(stepsOf(late)) - median(stepsOf(early)))
	rest := make([]float64, len(sample))
	for i := range sample {
		rest[i] = l.y[i] - l.slope*(l.x[i]-l.middle)
	}
	l.start = median(rest)
	for range 3 {
		for i, p := range sample {
			rest[i] = math.Abs(p.Value - l.at(l.x[i]))
		}
		most := math.Max(shape.Outlier*quantile(rest, shape.OutlierAt)/1.44,
			1e-6*l.slope*(l.x[len(l.x)-1]-l.x[0]))
		for i, p := range sample {
			l.y[i] = l.at(l.x[i]) + math.Max(-most, math.Min(most, p.Value-l.at(l.x[i])))
		}
		l.fit()
	}
	return l, l.slope > 0
}

// fit puts the line through the values by least squares.
func (l *line) fit() {
	var sy, xx, xy float64
	mean := 0.0
	for i := range l.x {
		mean, sy = mean+l.x[i], sy+l.y[i]
	}
	n := float64(len(l.x))
	l.middle, l.start = mean/n, sy/n
	for i := range l.x {
		xx, xy = xx+square(l.x[i]-l.middle), xy+(l.x[i]-l.middle)*(l.y[i]-l.start)
	}
	l.slope = xy / xx
	left := 0.0
	for i := range l.x {
		left += square(l.y[i] - l.at(l.x[i]))
	}
	l.noise = math.Sqrt(left / (n - 2))
}

// wanders reports whether values keep to where they are from step to step, and that such a walk
// comes as far by chance.
func (l line) wanders(limits Thresholds) bool {
	n := float64(len(l.x))
	if n/l.independent() < 2 {
		return false
	}
	squares := 0.0
	for i := 1; i < len(l.y); i++ {
		squares += square(l.y[i] - l.y[i-1])
	}
	return l.slope*(l.x[len(l.x)-1]-l.x[0]) < limits.WalkDeviations*math.Sqrt(squares)
}

// independent is how many values without memory would tell as much as these, whose neighbours
// resemble each other. A line takes part of the resemblance away, which is given back.
func (l line) independent() float64 {
	n := float64(len(l.x))
	rest := make([]float64, len(l.x))
	for i := range rest {
		rest[i] = l.y[i] - l.at(l.x[i])
	}
	r := correlation(rest)
	r = math.Max(0, math.Min(0.97, r+(1+4*r)/n))
	return math.Max(2, n*(1-r)/(1+r))
}

// better weighs the line against what is harmless and rises as well, by how much of the values each
// leaves unexplained: two levels with a jump between them, and a rise that begins or ends within
// the window. One that begins in it is for a shorter window.
func (l line) better(limits Thresholds) bool {
	left := leftBy(l.x, l.y)
	return l.independent()*math.Log(jumpLeaves(l.y)/left) > limits.LineOverJump &&
		float64(len(l.x))*math.Log(left/partLeaves(l.x, l.y)) < limits.PartOverLine
}

// goesOn reports whether the rise is still there in the last points of the window, as few as can
// show it through the noise: what has just stopped must not be carried by what went before.
func (l line) goesOn(window []Point) bool {
	perPoint := l.slope * (l.x[len(l.x)-1] - l.x[0]) / float64(len(window)-1)
	n := min(max(shape.EndPoints, int(math.Cbrt(square(shape.EndNoise*l.noise/perPoint)))),
		len(window)/2)
	end := window[len(window)-n:]
	x, y := stepsOf(end), values(end)
	for i := range y {
		y[i] = l.at(x[i]) + math.Max(-3*l.noise, math.Min(3*l.noise, y[i]-l.at(x[i])))
	}
	late := line{x: x, y: y}
	late.fit()
	return late.slope > shape.EndSlope*l.slope
}

// jumpLeaves returns the squares left by the best two levels, none shorter than a tenth.
func jumpLeaves(y []float64) float64 {
	n := len(y)
	var sum, squares float64
	for _, v := range y {
		sum, squares = sum+v, squares+v*v
	}
	best, before := math.Inf(1), 0.0
	for i := 1; i < n; i++ {
		before += y[i-1]
		if i < n/10+1 || n-i < n/10+1 {
			continue
		}
		after := sum - before
		best = math.Min(best, squares-before*before/float64(i)-after*after/float64(n-i))
	}
	return math.Max(best, 1e-9*squares)
}

// partLeaves returns the squares left by the best rise that takes up part of the window, with
// levels before and after.
func partLeaves(x, y []float64) float64 {
	best := math.Inf(1)
	bent := make([]float64, len(x))
	first, span := x[0], x[len(x)-1]-x[0]
	for begin := 0.0; begin < 0.65; begin += 0.1 {
		for end := 1.0; end > begin+0.15; end -= 0.1 {
			for i := range x {
				bent[i] = math.Max(first+begin*span, math.Min(x[i], first+end*span))
			}
			best = math.Min(best, leftBy(bent, y))
		}
	}
	return best
}

// leftBy returns the squares that the best line of y over x leaves.
func leftBy(x, y []float64) float64 {
	n := float64(len(x))
	var sx, sy float64
	for i := range x {
		sx, sy = sx+x[i], sy+y[i]
	}
	var xx, xy, yy float64
	for i := range x {
		dx, dy := x[i]-sx/n, y[i]-sy/n
		xx, xy, yy = xx+dx*dx, xy+dx*dy, yy+dy*dy
	}
	if xx == 0 {
		return yy
	}
	return math.Max(yy-xy*xy/xx, 1e-9*yy)
}

func values(points []Point) []float64 {
	all := make([]float64, len(points))
	for i, p := range points {
		all[i] = p.Value
	}
	return all
}

func stepsOf(points []Point) []float64 {
	all := make([]float64, len(points))
	for i, p := range points {
		all[i] = float64(p.Step)
	}
	return all
}
