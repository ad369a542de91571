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

// thin returns at most n points, each the median of a run of neighbours.
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
