package diagnose

// Trend is a rise of a series' floor that goes on at its last point.
type Trend struct {
	Onset     int64   // last step before the rise began
	Steps     int64   // how long it has lasted
	Slope     float64 // bytes a step
	Error     float64 // of the slope, one standard deviation
	Wander    float64 // bytes by which the rise strays from its line in one step, by chance
	Level     float64 // where the rise stands now, with what noise adds to it
	Noise     float64 // bytes, of single values around the line
	Growth    float64 // bytes since the onset
	Rises     int     // how often it rose; under noise, the points of the window
	Before    int64   // level steps before the onset; 0 at the start and under noise
	base      float64 // where it began
	bend      float64 // change of the slope from step to step, 0 where none is known
	bendError float64
	clock     float64 // steps from rise to rise where they come like a clock, else 0
	amount    float64 // bytes of one such rise
	last      int64   // step of the last one
	spike     int64   // step of the last spike on top of it; 0 without spikes
	spikeGap  float64 // steps from one spike to the next
	above     float64 // how high they are
	due       float64 // steps since the last rise, in usual gaps
	lasted    float64 // steps it has probably lasted: it may begin between two readings
	stride    int64   // steps from one reading to the next, lately
	exact     bool    // its rises are alike and come like a clock, at least the last of them
	even      bool    // it rises as fast as it began
}

// maxRegime bounds the points a trend is judged on rise by rise: enough for an interval, few enough
// to follow a change.
const maxRegime = 240

// TrendOf finds the rise that the series ends in, if there is one. Counters of an allocator rise
// without noise, and are judged rise by rise, as they are or underneath their spikes; where values
// also fall, statistics over growing windows decide.
func TrendOf(points []Point, limits Thresholds) (Trend, bool) {
	if len(points) == 0 {
		return Trend{}, false
	}
	steady, ok := steadyTrend(points, limits)
	if !falls(newest(points, maxRegime)) {
		return steady, ok
	}
	if under, found := trendUnderneath(points, limits); found && under.Steps >= steady.Steps {
		return under, true
	}
	if ok && steady.Steps >= limits.LeakSteps {
		return steady, true
	}
	if noisy, found := noisyTrend(points, limits); found {
		return noisy, true
	}
	return steady, ok
}

// trendUnderneath judges the floor under spikes and short teeth. Values stand above it by as much
// as they lately did.
func trendUnderneath(points []Point, limits Thresholds) (Trend, bool) {
	points = newest(points, maxRegime)
	low := underneath(points, limits.SpikeSteps)
	trend, ok := steadyTrend(low, limits)
	// what comes at once may have come since the last time
	if lead := int64(trend.clock - 1); lead > 0 {
		lead = min(lead, trend.Onset-points[0].Step)
		trend.Onset, trend.Steps, trend.lasted = trend.Onset-lead, trend.Steps+lead,
			trend.lasted+float64(lead)
	}
	if !ok || !trend.even || trend.Steps < limits.ForecastSteps {
		return Trend{}, false
	}
	if !trend.exact { // the lowest values of noise rise by chance now and then
		if _, stands := windowTrend(since(points, trend.Onset), limits); !stands {
			return Trend{}, false
		}
	}
	points = points[len(points)-len(since(points, trend.Onset+1)):]
	trend.spikesOf(points, low[len(low)-len(since(low, trend.Onset+1)):])
	now := points[len(points)-1].Step
	if now-low[len(low)-1].Step < int64(trend.clock) { // the next rise is not due yet
		trend.lasted += float64(now - trend.Onset - trend.Steps)
		trend.Steps = now - trend.Onset
	}
	trend.Level += trend.Slope*float64(now-low[len(low)-1].Step) + trend.above
	return trend, true
}

// spikesOf notes how far values stand above the floor, and when they do.
func (t *Trend) spikesOf(points, low []Point) {
	for i, p := range low {
		t.above = max(t.above, points[i].Value-p.Value)
	}
	first, count, high := int64(0), 0, true
	for i, p := range low {
		was := high
		high = points[i].Value-p.Value >= shape.SpikeHigh*t.above
		if high && !was {
			if count++; count == 1 {
				first = p.Step
			}
			t.spike = p.Step
		}
	}
	if count > 1 {
		t.spikeGap = float64(t.spike-first) / float64(count-1)
	}
}

func newest(points []Point, n int) []Point { return points[max(0, len(points)-n):] }
