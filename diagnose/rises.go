package diagnose

import (
	"math"
	"slices"
)

// rise is one increase of a series.
type rise struct {
	at     int     // index of the point that is higher than the one before
	span   float64 // steps since that one: those in between were not read
	gap    float64 // steps since the rise before, 0 for the first
	amount float64
}

// rate is in bytes per step, as far as the readings show it.
func (r rise) rate() float64 { return r.amount / r.span }

// steadyTrend looks at the last run of rises that no fall and no pause interrupts.
func steadyTrend(points []Point, limits Thresholds) (Trend, bool) {
	all := lastRises(points)
	rises := withoutFirstJumps(all)
	if len(rises) < limits.MinRises || !calm(points, rises) {
		return Trend{}, false
	}
	first, last := rises[0], rises[len(rises)-1]
	now, start := points[len(points)-1], points[first.at-1]
	trend := Trend{
		Onset: onsetOf(points, all, rises), Rises: len(rises),
		base: start.Value, Level: now.Value, Growth: now.Value - start.Value,
		Before: levelBefore(points, first.at-1),
	}
	trend.Steps = now.Step - trend.Onset
	if bursts := burstsOf(points, rises); !likeClock(rises) && len(bursts) >= limits.MinRises &&
		likeClock(bursts) {
		rises, first = bursts, bursts[0]
	}
	gap := usualGap(rises)
	trend.due = float64(now.Step-points[last.at].Step) / gap
	if trend.due > limits.Overdue {
		return Trend{}, false
	}
	tail := evenTail(rises)
	pace := paceOf(points, rises)
	switch {
	case likeClock(rises):
		trend.even, trend.exact = len(rises) >= limits.ClockRises, true
		trend.clock, trend.amount, trend.last = gap, usualAmount(rises), points[last.at].Step
	case len(rises) >= limits.ClockRises && (straight(rises) || len(rises) > limits.ClockRises &&
		stairs(points, rises)):
		trend.even, trend.exact = true, true
	// something else filled besides and is full
	case len(tail) > limits.EvenRises && last.amount > shape.OtherGrew*pace.mean:
		trend.even, trend.exact, pace = true, true, paceOf(points, tail)
	case len(rises) >= limits.EvenRises:
		trend.even = !pace.slackens(limits) && !pace.stalls(points) &&
			!slackensSinceEver(points, limits)
	}
	trend.lasted, trend.stride = lasted(points, rises, trend), stride(points)
	trend.Growth = math.Min(trend.Growth, pace.mean*float64(trend.Steps)) // without single jumps
	trend.Slope, trend.Error, trend.Wander, trend.bend, trend.bendError = pace.rate, pace.rateError,
		pace.wander, pace.bend, pace.bendError
	return trend, trend.Slope > 0
}

// lasted returns how many steps the rise has gone on for when not all of them were read. It began
// somewhere between two readings, and what it gained since then shows where.
func lasted(points []Point, rises []rise, trend Trend) float64 {
	first, last := rises[0], rises[len(rises)-1]
	between := float64(points[last.at].Step - points[first.at].Step)
	if first.span == 1 || between == 0 {
		return float64(trend.Steps)
	}
	gained := 0.0
	for _, r := range rises {
		gained += r.amount
	}
	before := math.Min(first.amount*between/(gained-first.amount), first.span)
	return math.Min(float64(trend.Steps),
		between+before+float64(points[len(points)-1].Step-points[last.at].Step))
}

// stride is the distance at which the next reading is to be expected: the longest of the last few.
func stride(points []Point) int64 {
	var longest int64
	for i := max(1, len(points)-4); i < len(points); i++ {
		longest = max(longest, points[i].Step-points[i-1].Step)
	}
	return longest
}

// onsetOf is the step before the rise began. Jumps that came right before it may have hidden its
// first steps, unless it is seen to have begun after them.
func onsetOf(points []Point, all, rises []rise) int64 {
	start := rises[0].at - 1
	onset := points[start].Step
	if rises[0].span > 1 && rises[0].rate() < shape.LateStart*usualRate(rises) {
		return onset
	}
	for i := len(all) - 1; i >= 0; i-- {
		if before := points[all[i].at-1].Step; all[i].at <= start &&
			points[all[i].at].Step == onset && before >= points[start].Step-shape.Hidden {
			onset = before
		}
	}
	return onset
}

// calm reports whether the series hardly falls between its rises; jumps, which say nothing about
// the rest, count as usual rises.
func calm(points []Point, rises []rise) bool {
	var up, down float64
	jump := jumpAmong(rises)
	for _, r := range rises {
		if jump.is(r) {
			up += jump.amount / shape.Jump
		} else {
			up += r.amount
		}
	}
	for i := rises[0].at; i < len(points); i++ {
		down += math.Max(0, points[i-1].Value-points[i].Value)
	}
	return down <= shape.Falls*up
}

// burstsOf joins rises that follow each other closely, such as those of one evaluation.
func burstsOf(points []Point, rises []rise) []rise {
	var bursts []rise
	for _, r := range rises {
		if n := len(bursts); n > 0 && r.gap <= shape.Burst {
			bursts[n-1].amount += r.amount
			continue
		}
		bursts = append(bursts, r)
	}
	for i := len(bursts) - 1; i > 0; i-- {
		bursts[i].gap = float64(points[bursts[i].at].Step - points[bursts[i-1].at].Step)
	}
	return bursts
}

// lastRises walks back from the end of the series as long as it rises, and returns the rises in
// order.
func lastRises(points []Point) []rise {
	var found []rise
	var up, down, spans float64
	// of the rise found before, which comes after; and of the point right before that
	lastStep, levelUntil := int64(0), int64(0)
	for i := len(points) - 1; i > 0 && len(points)-i < maxRegime; i-- {
		change := points[i].Value - points[i-1].Value
		pause := float64(lastStep - points[i].Step)
		level := float64(levelUntil - points[i].Step) // reported steps that did not rise
		if n := float64(len(found)); n >= 2 {
			gap := (float64(points[len(points)-1].Step-points[i].Step) - pause) / (n - 1)
			// as far as it is not for want of readings
			if level > shape.Pause*math.Max(1, gap-spans/n+1)+shape.PauseSteps {
				break // the series was level for long: the rise began after that
			}
		}
		switch {
		case change > 0:
			if len(found) > 0 {
				found[len(found)-1].gap = pause
			}
			found, lastStep, levelUntil, up = append(found, rise{at: i,
				span: float64(points[i].Step - points[i-1].Step), amount: change}), points[i].Step,
				points[i-1].Step, up+change
			spans += found[len(found)-1].span
		case change < 0:
			if down -= change; down > shape.Falls*up {
				slices.Reverse(found)
				return found
			}
		}
	}
	slices.Reverse(found)
	return found
}

// withoutFirstJumps drops leading rises that dwarf the others: the optimizer's state, a workspace,
// a first batch.
func withoutFirstJumps(rises []rise) []rise {
	jump := jumpAmong(rises)
	for len(rises) > 0 && jump.is(rises[0]) {
		rises = rises[1:]
	}
	// the others are alike: it needs not to be as large
	if n := len(rises); n > 4 && straight(rises[1:n-1]) {
		if rest := jumpAmong(rises[1:]); rises[0].amount > shape.FirstJump*rest.amount/shape.Jump &&
			rises[0].rate() > shape.FirstJump*rest.rate/shape.Jump {
			return rises[1:]
		}
	}
	return rises
}

// jump is how large a rise must be, at once and a step, to dwarf the usual ones.
type jump struct{ amount, rate float64 }

func jumpAmong(rises []rise) jump {
	return jump{shape.Jump * usualAmount(rises), shape.Jump * usualRate(rises)}
}

func (j jump) is(r rise) bool { return r.amount > j.amount && r.rate() > j.rate }

func usualRate(rises []rise) float64 {
	rates := make([]float64, len(rises))
	for i, r := range rises {
		rates[i] = r.rate()
	}
	return median(rates)
}

func usualAmount(rises []rise) float64 {
	amounts := make([]float64, len(rises))
	for i, r := range rises {
		amounts[i] = r.amount
	}
	return median(amounts)
}

// usualGap is the mean distance between rises, in steps.
func usualGap(rises []rise) float64 {
	sum, count := 0.0, 0
	for _, r := range rises[1:] {
		sum, count = sum+r.gap, count+1
	}
	if count == 0 {
		return 1
	}
	return sum / float64(count)
}

// likeClock reports whether the rises are alike and come at even distances.
func likeClock(rises []rise) bool {
	amount, gap := usualAmount(rises), usualGap(rises)
	for i, r := range rises {
		if math.Abs(r.amount-amount) > shape.Alike*amount || i > 0 &&
			math.Abs(r.gap-gap) > math.Max(shape.Alike*gap, shape.ClockSlip) {
			return false
		}
	}
	return true
}

// straight reports whether every point since the first rise is higher than the one before, by about
// as much per step. When only some steps are reported, a leak of one block per step rises by more
// the more steps were left out. It may begin between two readings.
func straight(rises []rise) bool {
	usual := usualRate(rises)
	for i, r := range rises {
		if i > 0 && r.at != rises[i-1].at+1 {
			return false
		}
		if off := r.rate() - usual; math.Abs(off) > shape.Alike*usual &&
			(i > 0 || off > 0 || r.span == 1) {
			return false
		}
	}
	return true
}

// stairs reports whether the series rises like a clock of which only some ticks are read: no
// reading is further from the line than one of the rises, and both halves gain the same but for
// one.
func stairs(points []Point, rises []rise) bool {
	first, last := rises[0], rises[len(rises)-1]
	if float64(last.at-first.at+1) == float64(points[last.at].Step-points[first.at-1].Step) {
		return false // every step was read: a clock would have shown
	}
	rest := points[first.at : last.at+1]
	rate := (rest[len(rest)-1].Value - rest[0].Value) / float64(rest[len(rest)-1].Step-rest[0].Step)
	low, high, least := 0.0, 0.0, math.Inf(1)
	for _, r := range rises {
		least = math.Min(least, r.amount)
	}
	for _, p := range rest {
		off := p.Value - rest[0].Value - rate*float64(p.Step-rest[0].Step)
		low, high = math.Min(low, off), math.Max(high, off)
	}
	return high-low <= shape.StairHeight*least && last.rate() > shape.StairRate*rate &&
		math.Abs(bulge(rest, rate)) <= shape.StairBulge*least
}

// bulge is how far the series stands above a line of this rate half way through, on the average of
// the readings around it: above if it slackens.
func bulge(points []Point, rate float64) float64 {
	sum, from := 0.0, len(points)/3
	middle := points[from : len(points)-from]
	for _, p := range middle {
		sum += p.Value - points[0].Value - rate*float64(p.Step-points[0].Step)
	}
	return sum / float64(len(middle))
}

// evenTail returns the last rises that are equal to the byte, or nearly, and come at the same
// distance. A cache that fills ever more slowly has none; a leak next to a cache that is full now
// does.
func evenTail(rises []rise) []rise {
	last := rises[len(rises)-1]
	i := len(rises) - 1
	for i > 0 && math.Abs(rises[i-1].amount-last.amount) <= shape.Equal*last.amount &&
		rises[i].gap == last.gap {
		i--
	}
	return rises[i:]
}

// pace is how the rate of a rise behaves: a line through what the series gained at each step.
type pace struct {
	mean      float64 // bytes a step, over the whole rise
	rate      float64 // at its end, as far as it is known to differ from the mean
	rateError float64
	bend      float64 // change of the rate from step to step, 0 where it is not known to change
	bendError float64
	wander    float64 // deviation of single gains
	end       float64 // the line's rate at the end, as a share of the mean
	z         float64 // its slope in standard errors: below 0 the rise slackens
	share     float64 // of the steps that gained something
	steps     float64
}

// paceOf fits a line to the gains of the steps since the first rise. Single jumps are cut to the
// usual size: one new buffer must not bend the line.
func paceOf(points []Point, rises []rise) pace {
	start := points[rises[0].at-1].Step
	n := float64(points[len(points)-1].Step - start)
	middle := (n + 1) / 2
	jump := jumpAmong(rises)
	var sum, squares, moment, covered float64
	for _, r := range rises {
		amount := r.amount
		if jump.is(r) {
			amount = math.Min(amount, math.Max(jump.amount, jump.rate*r.span)/shape.Jump)
		}
		at := float64(points[r.at].Step-start) - middle
		if before := math.Max(r.gap, r.span); before > 1 {
			at -= (before - 1) / 2 // what came at once belongs to the steps since the rise before
		}
		sum, squares, moment, covered = sum+amount, squares+amount*amount/r.span, moment+amount*at,
			covered+r.span
	}
	spread := n * (n*n - 1) / 12 // of the steps around their middle
	p := pace{mean: sum / n, share: covered / n, steps: n}
	p.wander = math.Sqrt(math.Max(0, squares/n-p.mean*p.mean))
	slope := moment / math.Max(spread, 1)
	// what the line leaves unexplained
	rest := math.Sqrt(math.Max(0, p.wander*p.wander-slope*slope*spread/n))
	p.bendError = rest / math.Sqrt(math.Max(spread, 1))
	p.end = 1 + slope*n/2/p.mean
	p.z = slope * math.Sqrt(spread) / math.Max(p.wander, 1e-9*p.mean)
	p.rate, p.rateError = p.mean, p.wander/math.Sqrt(n)
	if n >= shape.BendPoints && math.Abs(slope) > shape.BendErrors*p.bendError &&
		math.Abs(p.end-1) > shape.BendLeast {
		p.rate, p.bend = p.mean+slope*n/2, slope
		p.rateError, p.wander = 2*rest/math.Sqrt(n), rest
	}
	return p
}

// slackens reports whether the gains get smaller, beyond chance and by a good part: a cache that
// fills, a warm-up. Where only some steps gain, less is asked for: so does a cache whose keys come
// by chance, and it has few rises to show it.
func (p pace) slackens(limits Thresholds) bool {
	deviations := limits.SlackDeviations
	if p.share < shape.Gaining {
		deviations /= 2
	}
	return p.z < -deviations && p.end < limits.Slackening
}

// stalls reports whether the last quarter of the rise gained next to nothing: a few large jumps lie
// before it. Where only some steps are read there are few rises to see it slacken by, and it must
// have gained more.
func (p pace) stalls(points []Point) bool {
	last := points[len(points)-1]
	late := since(points, last.Step-int64(p.steps/4))
	if len(late) < 3 {
		late = newest(points, 3)
	}
	least := shape.Stalled
	if float64(len(points)-1) < shape.ReadMost*float64(last.Step-points[0].Step) {
		least = shape.StalledRead
	}
	return last.Value-late[0].Value < least*p.mean*float64(last.Step-late[0].Step)
}

// slackensSinceEver looks at all rises of the series: where chance fills a cache, rises become
// rare, and the last of them can look like a slow and even leak.
func slackensSinceEver(points []Point, limits Thresholds) bool {
	var all []rise
	last := int64(-1)
	for i := 1; i < len(points); i++ {
		if change := points[i].Value - points[i-1].Value; change > 0 {
			r := rise{at: i, span: float64(points[i].Step - points[i-1].Step), amount: change}
			if last >= 0 {
				r.gap = 1 // as if it came at once: pauses are what is looked for
			}
			all, last = append(all, r), points[i].Step
		} else if change < 0 {
			return false
		}
	}
	if len(all) < limits.MinRises {
		return false
	}
	p := paceOf(points, all)
	return p.z < -shape.EverErrors && p.end < shape.EverSlack
}

// levelBefore counts the steps for which the series did not rise before point i.
func levelBefore(points []Point, i int) int64 {
	j := i
	for j > 0 && points[j-1].Value >= points[j].Value {
		j--
	}
	return points[i].Step - points[j].Step
}

// underneath returns the least of each point and those that follow it within some steps: what
// spikes, the gradients that accumulate and short teeth stand on. Its last points have few
// followers; those that stand out are left off.
func underneath(points []Point, width int64) []Point {
	low := make([]Point, len(points))
	for i, p := range points {
		for j := i + 1; j < len(points) && points[j].Step < p.Step+width; j++ {
			p.Value = math.Min(p.Value, points[j].Value)
		}
		low[i] = p
	}
	var up []float64
	for i := 1; i < len(low); i++ {
		if change := low[i].Value - low[i-1].Value; change > 0 {
			up = append(up, change)
		}
	}
	usual := median(up)
	for i := max(1, len(low)-int(width)); i < len(low); i++ {
		if low[i].Value-low[i-1].Value > shape.SpikeOver*usual {
			return low[:i]
		}
	}
	return low
}
