package diagnose

import (
	"math"
)

// Trend is a rise of a series' floor that goes on at its last point.
type Trend struct {
	Onset  int64   // last step before the rise began
	Steps  int64   // how long it has lasted
	Slope  float64 // bytes a step
	Error  float64 // of the slope, one standard deviation
	Wander float64 // bytes by which the rise strays from its line in one step, by chance
	Level  float64 // where the rise stands now, with what noise adds to it
	Noise  float64 // bytes, of single values around the line
	Growth float64 // bytes since the onset
	Rises  int     // how often it rose; under noise, the points of the window
	Before int64   // steps the series was level before the onset, 0 if it began with the series or under noise
	base   float64 // where it began
	clock  float64 // steps from rise to rise where they come like a clock, else 0
	amount float64 // bytes of one such rise
	last   int64   // step of the last one
	due    float64 // steps since the last rise, in usual gaps
	even   bool    // it rises as fast as it began
}

// maxRegime bounds the points a trend is judged on: enough for an interval, few enough to follow a change.
const maxRegime = 240

// TrendOf finds the rise that the series ends in, if there is one. Counters of an allocator rise without noise, and are
// judged rise by rise; where values also fall, statistics over growing windows decide.
func TrendOf(points []Point, limits Thresholds) (Trend, bool) {
	if len(points) == 0 {
		return Trend{}, false
	}
	steady, ok := steadyTrend(points, limits)
	if ok && steady.Steps >= limits.LeakSteps {
		return steady, true
	}
	if noisy, found := noisyTrend(points, limits); found { // a spike or a collection now and then only interrupts the rises
		return noisy, true
	}
	return steady, ok
}

// rise is one increase of a series.
type rise struct {
	at     int     // index of the point that is higher than the one before
	gap    float64 // steps to the next rise
	amount float64
}

// steadyTrend looks at the last run of rises that no fall and no pause interrupts.
func steadyTrend(points []Point, limits Thresholds) (Trend, bool) {
	rises := lastRises(points)
	rises = withoutFirstJumps(rises)
	if len(rises) < limits.MinRises {
		return Trend{}, false
	}
	first, last := rises[0], rises[len(rises)-1]
	now := points[len(points)-1]
	start := points[first.at-1]
	trend := Trend{
		Onset: start.Step, Steps: now.Step - start.Step, Rises: len(rises),
		base: start.Value, Level: now.Value, Growth: now.Value - start.Value, Before: levelBefore(points, first.at-1),
	}
	gap := usualGap(rises)
	trend.due = float64(now.Step-points[last.at].Step) / gap
	if trend.due > limits.Overdue {
		return Trend{}, false
	}
	trend.even = goesOn(points, rises, limits)
	if likeClock(rises) {
		trend.clock, trend.amount, trend.last = gap, usualAmount(rises), points[last.at].Step
	}
	trend.Slope, trend.Error, trend.Wander = steadySlope(points, rises)
	return trend, trend.Slope > 0
}

// lastRises walks back from the end of the series as long as it rises, and gives the rises in order.
func lastRises(points []Point) []rise {
	var found []rise
	var up, down float64
	lastStep := int64(0)
	for i := len(points) - 1; i > 0 && len(points)-i < maxRegime; i-- {
		change := points[i].Value - points[i-1].Value
		pause := float64(lastStep - points[i].Step)
		if len(found) >= 2 && pause > 4*(float64(points[len(points)-1].Step-points[i].Step)-pause)/float64(len(found)-1)+3 {
			break // the series was level for long: the rise began after that
		}
		switch {
		case change > 0:
			r := rise{at: i, amount: change}
			if len(found) > 0 {
				r.gap = pause
			}
			found, lastStep, up = append(found, r), points[i].Step, up+change
		case change < 0:
			if down -= change; down > 0.05*up {
				return reversed(found)
			}
		}
	}
	return reversed(found)
}

func reversed(rises []rise) []rise {
	for i, j := 0, len(rises)-1; i < j; i, j = i+1, j-1 {
		rises[i], rises[j] = rises[j], rises[i]
	}
	return rises
}

// withoutFirstJumps drops leading rises that dwarf the others: the optimizer's state, a workspace, a first batch.
func withoutFirstJumps(rises []rise) []rise {
	limit := 8 * usualAmount(rises)
	for len(rises) > 0 && rises[0].amount > limit {
		rises = rises[1:]
	}
	return rises
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
	for _, r := range rises {
		if r.gap > 0 {
			sum, count = sum+r.gap, count+1
		}
	}
	if count == 0 {
		return 1
	}
	return sum / float64(count)
}

// goesOn tells a leak from a cache that fills: the second half of the rise must bring about as much as the first. With
// a few rises only, they must come like a clock and be alike.
func goesOn(points []Point, rises []rise, limits Thresholds) bool {
	if len(rises) < limits.ClockRises {
		return likeClock(rises)
	}
	middle := (points[rises[0].at].Step + points[len(points)-1].Step) / 2
	var early, late float64
	for _, r := range bounded(rises) {
		if points[r.at].Step <= middle {
			early += r.amount
		} else {
			late += r.amount
		}
	}
	return late >= limits.Slackening*early
}

// likeClock says that the rises are alike and come at even distances.
func likeClock(rises []rise) bool {
	amount, gap := usualAmount(rises), usualGap(rises)
	for _, r := range rises {
		if math.Abs(r.amount-amount) > 0.1*amount || r.gap > 0 && math.Abs(r.gap-gap) > math.Max(0.1*gap, 0.5) {
			return false
		}
	}
	return true
}

// bounded gives the rises with single jumps cut to the usual size: one new buffer must not bend the line.
func bounded(rises []rise) []rise {
	amount := usualAmount(rises)
	cut := make([]rise, len(rises))
	for i, r := range rises {
		if cut[i] = r; r.amount > 8*amount {
			cut[i].amount = amount
		}
	}
	return cut
}

// levelBefore counts the steps for which the series did not rise before point i.
func levelBefore(points []Point, i int) int64 {
	j := i
	for j > 0 && points[j-1].Value >= points[j].Value {
		j--
	}
	return points[i].Step - points[j].Step
}

// steadySlope gives bytes a step over the newer half of the rise, its error and how it wanders. The error has two
// sources: chance, seen in how unequal single steps are, and bending, seen in how the two halves differ.
func steadySlope(points []Point, rises []rise) (slope, err, wander float64) {
	if len(rises) > 60 {
		rises = rises[len(rises)/2:]
	}
	start, end := points[rises[0].at-1].Step, points[len(points)-1].Step
	span := float64(end - start)
	var sum, squares, late float64
	for _, r := range bounded(rises) {
		sum, squares = sum+r.amount, squares+r.amount*r.amount
		if 2*(points[r.at].Step-start) > end-start+1 {
			late += r.amount
		}
	}
	slope = sum / span
	if !likeClock(rises) {
		wander = math.Sqrt(math.Max(0, squares/span-slope*slope))
	}
	bend := math.Abs(2*late-sum) / span // difference of the halves' slopes, halved
	return slope, math.Hypot(wander/math.Sqrt(span), bend/2), wander
}

// noisyTrend tries windows from short to long and takes the longest of the first run of them in which the rise stands
// out from the noise, is there from beginning to end, and does not slacken.
func noisyTrend(points []Point, limits Thresholds) (found Trend, ok bool) {
	last := points[len(points)-1].Step
	for steps := limits.ForecastSteps; steps <= last-points[0].Step; steps = nextWindow(steps, limits) {
		part := since(points, last-steps)
		trend, rises := Trend{}, false
		if standsOut(part, limits) {
			trend, rises = windowTrend(part, limits)
		}
		if ok && !rises {
			break
		}
		if rises {
			found, ok = trend, true
		}
	}
	return found, ok
}

// nextWindow grows windows by a sixth, and lets one be just long enough for a leak.
func nextWindow(steps int64, limits Thresholds) int64 {
	if steps < limits.LeakSteps {
		return limits.LeakSteps
	}
	return steps + steps/6
}

// falls says that values go down as well as up. Where they do not, rises are judged one by one, which sees more.
func falls(window []Point) bool {
	var up, down float64
	for i := 1; i < len(window); i++ {
		change := window[i].Value - window[i-1].Value
		up, down = up+math.Max(change, 0), down-math.Min(change, 0)
	}
	return down > 0.05*up
}

// standsOut is a quick look before the real test, on a few medians: it passes all that could pass that one.
func standsOut(window []Point, limits Thresholds) bool {
	return len(window) >= fewPoints && falls(window) && kendall(thin(window, 20), 0) > limits.Significance/2
}

// fewPoints is the least that statistics are done on. Steps may be told with gaps, so a window can hold fewer points than steps.
const fewPoints = 14

func windowTrend(window []Point, limits Thresholds) (Trend, bool) {
	sample := thin(window, 48)
	slopes := pairSlopes(sample)
	slope := median(slopes)
	significance := limits.Significance
	if len(sample) < 2*fewPoints { // a few points cannot reach it, however straight they lie
		significance *= 0.8
	}
	if !(slope > 0) || kendall(sample, slope) < significance {
		return Trend{}, false
	}
	first, last := window[0], window[len(window)-1]
	span := float64(last.Step - first.Step)
	rest := residuals(window, slope)
	noise := deviation(rest)
	if slope*span < limits.SignalToNoise*noise || !throughout(window, slope, noise) {
		return Trend{}, false
	}
	line := median(values(window)) + slope*(float64(last.Step)-median(stepsOf(window)))
	n := float64(len(window))
	return Trend{
		Onset: first.Step, Steps: last.Step - first.Step, Slope: slope, Error: 1.1 * noise * math.Sqrt(12/n) / span, Noise: noise,
		base: line - slope*span, Level: line + math.Max(quantile(rest, 0.98), 0), Growth: slope * span, Rises: len(window), even: true,
	}, true
}

// throughout says that the rise is there at the beginning and at the end of the window. The ends are as short as the noise
// allows, at most a third: what has just stopped must not be carried by what went before.
func throughout(window []Point, slope, noise float64) bool {
	perPoint := slope * float64(window[len(window)-1].Step-window[0].Step) / float64(len(window)-1)
	end := min(max(5, int(6*noise/perPoint)), len(window)/3)
	early := median(pairSlopes(thin(window[:len(window)/3], 24)))
	late := median(pairSlopes(thin(window[len(window)-end:], 24)))
	return early >= 0.3*slope && late >= 0.5*slope
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
