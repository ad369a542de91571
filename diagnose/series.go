package diagnose

import (
	"math"
	"slices"
)

// Point is one reading of a series: memory right after a step.
type Point struct {
	Step  int64
	Value float64 // bytes
}

// median of values; NaN for none. It does not change its argument.
func median(values []float64) float64 { return quantile(values, 0.5) }

// quantile by linear interpolation between order statistics.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Clone(values)
	slices.Sort(sorted)
	at := q * float64(len(sorted)-1)
	low := int(at)
	if low+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[low] + (at-float64(low))*(sorted[low+1]-sorted[low])
}

// deviation is a robust standard deviation: the median distance from the median, scaled as for a normal distribution.
func deviation(values []float64) float64 {
	middle := median(values)
	distances := make([]float64, len(values))
	for i, v := range values {
		distances[i] = math.Abs(v - middle)
	}
	return 1.4826 * median(distances)
}

// pairSlopes gives the slope of every pair of points at different steps (Theil, Sen).
func pairSlopes(points []Point) []float64 {
	slopes := make([]float64, 0, len(points)*(len(points)-1)/2)
	for i := range points {
		for j := i + 1; j < len(points); j++ {
			if run := float64(points[j].Step - points[i].Step); run > 0 {
				slopes = append(slopes, (points[j].Value-points[i].Value)/run)
			}
		}
	}
	return slopes
}

// kendall gives the Mann-Kendall statistic: how many standard deviations the count of rising pairs lies above chance.
// Neighbouring values that resemble each other make chance look like a trend, so the result is weakened by the
// correlation that is left after taking the slope out; with slope 0 it is not.
func kendall(points []Point, slope float64) float64 {
	n := float64(len(points))
	if n < 4 {
		return 0
	}
	count := 0.0
	for i := range points {
		for j := i + 1; j < len(points); j++ {
			switch {
			case points[j].Value > points[i].Value:
				count++
			case points[j].Value < points[i].Value:
				count--
			}
		}
	}
	z := count / math.Sqrt(n*(n-1)*(2*n+5)/18)
	if slope == 0 {
		return z
	}
	if r := correlation(residuals(points, slope)); r > 0 {
		z *= math.Sqrt((1 - r) / (1 + r))
	}
	return z
}

// residuals gives the values minus a line of this slope through their median.
func residuals(points []Point, slope float64) []float64 {
	rest := make([]float64, len(points))
	for i, p := range points {
		rest[i] = p.Value - slope*float64(p.Step-points[0].Step)
	}
	middle := median(rest)
	for i := range rest {
		rest[i] -= middle
	}
	return rest
}

// correlation of each value with the next, between -1 and 0.95.
func correlation(values []float64) float64 {
	var product, square float64
	for i, v := range values {
		square += v * v
		if i > 0 {
			product += v * values[i-1]
		}
	}
	if square == 0 {
		return 0
	}
	return math.Min(product/square, 0.95)
}

// thin gives at most n points, each the median of a run of neighbours.
func thin(points []Point, n int) []Point {
	if len(points) <= n {
		return points
	}
	thinned := make([]Point, 0, n)
	for i := range n {
		group := points[i*len(points)/n : (i+1)*len(points)/n]
		values := make([]float64, len(group))
		for j, p := range group {
			values[j] = p.Value
		}
		thinned = append(thinned, Point{Step: group[len(group)/2].Step, Value: median(values)})
	}
	return thinned
}
