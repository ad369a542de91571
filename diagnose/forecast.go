package diagnose

import "math"

// Forecast is when a rising series will reach a limit.
type Forecast struct {
	Step      int64 // the first step above the limit
	Low, High int64 // very likely between these
	Trend     Trend
}

// Forecast extrapolates the rise to a limit on the series. It is silent without a trend, and about
// an end that is far off compared with how long the rise has been seen. A rise that began after a
// level stretch is extrapolated early when it has covered half of the way: a late warning is worth
// nothing.
func (s *Series) Forecast(limit float64, limits Thresholds) (Forecast, bool) {
	if !s.foreseeable(limit, limits) {
		return Forecast{}, false
	}
	now := s.floor[len(s.floor)-1].Step
	left := limit - s.trend.Level
	if s.trend.clock <= 1 {
		left -= s.trend.Slope * float64(now-s.judged)
	}
	f := s.trend.reaches(left, now)
	return f, s.near(f, limits)
}

// foreseeable reports whether the rise may be extrapolated to a limit on the series.
func (s *Series) foreseeable(limit float64, limits Thresholds) bool {
	t := s.trend
	return s.rising && t.even && limit > 0 && t.due < 1 && t.Steps >= 3*s.cycle &&
		!s.workGrows(limits) && (t.Steps >= limits.ForecastSteps || s.urgent(limit, limits))
}

// near reports whether an end is no further off than the rise's length allows to say.
func (s *Series) near(f Forecast, limits Thresholds) bool {
	now := s.floor[len(s.floor)-1].Step
	return float64(f.Step-now) <= limits.Horizon*float64(now-s.began)
}

// reaches extrapolates a rise that has so many bytes left.
func (t Trend) reaches(left float64, now int64) Forecast {
	if left <= 0 {
		return Forecast{Step: now + 1, Low: now + 1, High: now + 1, Trend: t}
	}
	f := Forecast{Step: now + stepsFor(left, t.Slope, t.bend), Trend: t}
	if t.clock > 1 { // stairs: it happens at a rise
		f.Step = max(now+1, t.last+int64(math.Min(math.Round((math.Floor(left/t.amount)+1)*t.clock),
			1e12)))
	}
	if t.spikeGap > 1 { // at a spike, or between two of them when it comes so far without
		f.Step = min(t.atSpike(f.Step), now+stepsFor(left+t.above, t.Slope, t.bend))
	}
	steps := float64(f.Step - now)
	final := t.Slope + t.bend*steps // the rate at which it gets there
	bytes := math.Sqrt(square(steps*t.Error) + steps*square(t.Wander) + square(t.Noise) +
		square(steps*steps*t.bendError/2)) // by which the level may be off then
	spread := bytes / math.Max(final, t.Slope/4)
	slack := int64(1 + shape.Spread*spread + shape.Slack*steps + t.clock + t.spikeGap/2)
	f.Low, f.High = max(now+1, f.Step-slack), f.Step+slack
	return f
}

// atSpike moves an end to the next spike, where memory stands highest.
func (t Trend) atSpike(step int64) int64 {
	if step <= t.spike {
		return step
	}
	return t.spike +
		int64(math.Min(math.Round(math.Ceil(float64(step-t.spike)/t.spikeGap)*t.spikeGap), 1e12))
}

// stepsFor is how many steps a rise takes to cover a distance, at a rate that changes by bend at
// each step. A rate that falls is taken as it is: a forecast errs on the early side.
func stepsFor(distance, rate, bend float64) int64 {
	steps := distance / rate
	if bend > 0 {
		steps = 2 * distance / (rate + math.Sqrt(rate*rate+2*bend*distance))
	}
	return int64(math.Min(math.Floor(steps)+1, 1e12))
}

func square(x float64) float64 { return x * x }

func (s *Series) urgent(limit float64, limits Thresholds) bool {
	t := s.trend
	return t.Before >= limits.LevelSteps && t.Rises >= limits.UrgentRises &&
		t.Growth >= limits.UrgentShare*(limit-t.base)
}
