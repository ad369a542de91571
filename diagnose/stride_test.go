package diagnose

import (
	"fmt"
	"testing"
)

// named returns the step at which a floor, read at some steps only, is called a leak; -1 never.
func named(floor func(step int64) float64, steps []int64) int64 {
	limits := DefaultThresholds()
	var s Series
	for _, step := range steps {
		s.Add(step, 100*testMiB+floor(step), 0, 0, limits)
		if _, leaks := s.Leak(limits); leaks {
			return step
		}
	}
	return -1
}

// readings are the steps read at a stride: the first one, and then from some phase on.
func readings(stride, phase, until int64) []int64 {
	steps := []int64{1}
	for step := 2 + phase; step <= until; step += stride {
		steps = append(steps, step)
	}
	return steps
}

// TestLeaksAtStrides: where steps are short only some are read, and a leak of one block a step, or
// of one every few steps, must be named within 40 steps all the same.
func TestLeaksAtStrides(t *testing.T) {
	for stride := int64(1); stride <= 6; stride++ {
		for phase := range stride {
			for onset := int64(1); onset <= 60; onset += 7 {
				for _, every := range []int64{1, 2, 3} {
					at := named(func(step int64) float64 {
						return 32 * 1024 * float64(max(0, step-onset+every-1)/every)
					}, readings(stride, phase, 200))
					within := int64(40) + 2*(every-1)
					if stride > 5 {
						within += stride
					}
					if at < 0 || at > onset+within {
						t.Errorf("stride %d, phase %d: a block every %d steps from step %d on was named at step %d", stride, phase, every, onset, at)
					}
				}
			}
		}
	}
}

// TestCachesAtStrides: a cache that fills for 30 steps and is level from then on is never accused,
// however few of its steps are read, whether it gains a block a step or one every few steps, from
// the first step or after other things.
func TestCachesAtStrides(t *testing.T) {
	for stride := int64(1); stride <= 8; stride++ {
		for phase := range stride {
			for begin := int64(1); begin <= 60; begin += 6 {
				for _, every := range []int64{1, 2, 3, 5} {
					// optimizer state and kernels, made when the program begins
					for _, before := range []float64{0, 5 * testMiB} {
						cache := func(step int64) float64 {
							filled := min(max(0, step-begin+every-1), 30) / every
							state := 0.0
							if step > 1 {
								state = before
							}
							return state + 256*1024*float64(filled)
						}
						if at := named(cache, readings(stride, phase, 200)); at >= 0 {
							t.Error(fmt.Sprintf("stride %d, phase %d: a cache filled from step %d on, a block every %d "+
								"steps", stride, phase, begin, every), "was accused at step", at)
						}
					}
				}
			}
		}
	}
}
