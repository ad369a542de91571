package courses

import (
	"math"
	"math/rand/v2"
)

// level makes a course around one base.
func level(r *rand.Rand, steps int, rest func(step int) float64) course {
	base := baseOf(r)
	return course{steps: steps, floor: func(s int) float64 { return base + rest(s) }}
}

// moving makes a course in which what stays, and much more so what a step needs, follows the size
// of the work.
func moving(r *rand.Rand, steps int, size func(step int) float64) course {
	c := level(r, steps, size)
	factor, last := between(r, 4, 40), 0.0
	floor := c.floor
	c.floor = func(s int) float64 { last = floor(s); return last }
	base := floor(0)
	c.work = func(int) float64 { return factor * math.Max(0, last-base) }
	return c
}

// toothed rises by each until lasts() steps have passed, then falls back.
func toothed(lasts func() int, each float64) func(int) float64 {
	up, left := 0.0, lasts()
	return func(s int) float64 {
		if up++; s == 0 || left == 0 {
			up, left = 0, lasts()
		}
		left--
		return each * up
	}
}

// collected is a cache of keys that come by chance: it fills fast, then ever more slowly.
func collected(r *rand.Rand, weights []float64, entry float64) func(int) float64 {
	seen, sum, total := make([]bool, len(weights)), 0.0, 0.0
	for _, w := range weights {
		total += w
	}
	return func(int) float64 {
		at := r.Float64() * total
		for k, w := range weights {
			if at -= w; at < 0 {
				if !seen[k] {
					seen[k], sum = true, sum+entry
				}
				break
			}
		}
		return sum
	}
}

func alike(n int) []float64 {
	weights := make([]float64, n)
	for i := range weights {
		weights[i] = 1
	}
	return weights
}

func zipf(n int) []float64 {
	weights := make([]float64, n)
	for i := range weights {
		weights[i] = 1 / float64(i+1)
	}
	return weights
}

func filling(from, fill int, entry float64) func(int) float64 {
	return func(s int) float64 { return entry * math.Min(after(from, s), float64(fill)) }
}

var healthyFamilies = []family{
	{"level", Healthy, func(r *rand.Rand) course { return level(r, 300, nothing) }},
	{"optimizer state, workspaces", Healthy, func(r *rand.Rand) course {
		state, work, at := between(r, mib, 1000*mib), between(r, mib, 64*mib), evenly(r, 2, 20)
		return level(r, 200, func(s int) float64 {
			return when(s >= 1, state) +
				when(s >= at, work)
		})
	}},
	{"state made lazily, part by part", Healthy, func(r *rand.Rand) course {
		part, parts := between(r, 64<<10, 32*mib), evenly(r, 3, 30)
		return level(r, 250, filling(0, parts, part))
	}},
	{"autotuning in the first steps", Healthy, func(r *rand.Rand) course {
		total, lasts := 0.0, evenly(r, 5, 30)
		return level(r, 250, func(s int) float64 {
			if s < lasts && r.IntN(2) == 0 {
				total += between(r, mib, 64*mib)
			}
			return total
		})
	}},
	{"experts met by and by", Healthy, func(r *rand.Rand) course {
		return level(r, 400, collected(r, alike(evenly(r, 6, 24)), between(r, mib, 64*mib)))
	}},
	{"shapes compiled by and by", Healthy, func(r *rand.Rand) course {
		return level(r, 500, collected(r, zipf(evenly(r, 8, 40)), between(r, 64<<10, 16*mib)))
	}},
	{"noise", Healthy, func(r *rand.Rand) course {
		n := noise(r, between(r, 64<<10, 64*mib))
		return level(r, 1000, func(int) float64 { return n() })
	}},
	{"two levels", Healthy, func(r *rand.Rand) course {
		big := between(r, 64<<10, 64*mib)
		return level(r, 1000, func(int) float64 {
			return big*float64(r.IntN(2)) +
				big/100*r.Float64()
		})
	}},
	{"correlated noise", Healthy, func(r *rand.Rand) course {
		wave, keep, big := 0.0, 0.3+0.6*r.Float64(), between(r, 64<<10, 16*mib)
		return level(r, 1000, func(int) float64 {
			wave = keep*wave +
				big*r.NormFloat64()
			return wave
		})
	}},
	{"slow waves of the data", Healthy, func(r *rand.Rand) course {
		period, big := between(r, 40, 400), between(r, 64<<10, 16*mib)
		return moving(r, 800,
			func(s int) float64 { return big * (1 - math.Cos(2*math.Pi*float64(s)/period)) })
	}},
	{"length buckets", Healthy, func(r *rand.Rand) course {
		buckets, stays, big := evenly(r, 3, 8), evenly(r, 1, 20), between(r, 64<<10, 16*mib)
		now := 0
		return moving(r, 800, func(int) float64 {
			if r.IntN(stays) == 0 {
				now = r.IntN(buckets)
			}
			return big * float64(now)
		})
	}},
	{"sorted by length in each epoch", Healthy, func(r *rand.Rand) course {
		epoch, big := evenly(r, 40, 200), between(r, 64<<10, 4*mib)
		return moving(r, 3*epoch, func(s int) float64 { return big * float64(s%epoch) / 10 })
	}},
	{"longest batch so far", Healthy, func(r *rand.Rand) course {
		record, big := 0.0, between(r, 64<<10, 16*mib)
		return level(r, 600, func(int) float64 {
			record = math.Max(record,
				r.ExpFloat64())
			return big * record
		})
	}},
	{"longest batch so far, bounded", Healthy, func(r *rand.Rand) course {
		record, big := 0.0, between(r, 64<<10, 16*mib)
		return level(r, 600, func(int) float64 {
			record = math.Max(record,
				r.Float64())
			return big * record
		})
	}},
	{"cache fills for 5-36", Healthy, func(r *rand.Rand) course {
		return level(r, 200, filling(0, evenly(r, 5, 36), between(r, 512, 32*mib)))
	}},
	{"cache fills later", Healthy, func(r *rand.Rand) course {
		return level(r, 300, filling(evenly(r, 20, 150), evenly(r, 5, 36), between(r, 512, 8*mib)))
	}},
	{"cache fills under noise", Healthy, func(r *rand.Rand) course {
		entry := between(r, 64<<10, 8*mib)
		n, f := noise(r, entry*between(r, 0.5, 5)), filling(evenly(r, 0, 60), evenly(r, 5, 30),
			entry)
		return level(r, 300, func(s int) float64 { return f(s) + n() })
	}},
	{"cache that fills ever more slowly", Healthy, func(r *rand.Rand) course {
		size, tau, from := between(r, mib, 600*mib), between(r, 3, 40), evenly(r, 0, 60)
		return level(r, 400, func(s int) float64 {
			return size * (1 - math.Exp(-after(from,
				s)/tau))
		})
	}},
	{"the same under noise", Healthy, func(r *rand.Rand) course {
		size, tau := between(r, mib, 600*mib), between(r, 3, 30)
		n := noise(r, size*between(r, 0.01, 0.1))
		return level(r, 400, func(s int) float64 {
			return size*(1-math.Exp(-float64(s)/tau)) +
				n()
		})
	}},
	{"sawtooth", Healthy, func(r *rand.Rand) course {
		period := evenly(r, 3, 34)
		return level(r, 400, toothed(func() int { return period }, between(r, 512, 8*mib)))
	}},
	{"sawtooth by chance", Healthy, func(r *rand.Rand) course {
		mean := evenly(r, 4, 12)
		return level(r, 600, toothed(func() int { return int(float64(mean)*r.ExpFloat64()) + 1 },
			between(r, 64<<10, 8*mib)))
	}},
	{"garbage collected now and then", Healthy, func(r *rand.Rand) course {
		mean := float64(evenly(r, 8, 25))
		n, t := noise(r, 64<<10), toothed(func() int { return int(mean * (0.8 + 0.4*r.Float64())) },
			between(r, 64<<10, 8*mib))
		return level(r, 600, func(s int) float64 { return t(s) + n() })
	}},
	{"log flushed every 10-35", Healthy, func(r *rand.Rand) course {
		every, rate := evenly(r, 10, 35), between(r, 512, 64<<10)
		n := noise(r, rate*between(r, 0.1, 2))
		return level(r, 500, func(s int) float64 { return rate*float64(s%every) + n() })
	}},
	{"evaluation every k", Healthy, func(r *rand.Rand) course {
		every, lasts, size := evenly(r, 10, 60), evenly(r, 1, 4), between(r, mib, 400*mib)
		return level(r, 400, func(s int) float64 { return when(s%every >= every-lasts, size) })
	}},
	{"evaluation leaves something once", Healthy, func(r *rand.Rand) course {
		every, size := evenly(r, 20, 60), between(r, mib, 100*mib)
		return level(r, 400, func(s int) float64 { return size * math.Min(2, float64(s/every)) })
	}},
	{"checkpoints in noise", Healthy, func(r *rand.Rand) course {
		every, size := evenly(r, 30, 100), between(r, mib, 400*mib)
		n := noise(r, between(r, 64<<10, 8*mib))
		return level(r, 600, func(s int) float64 { return when(s%every == every-1, size) + n() })
	}},
	{"epochs of a loader", Healthy, func(r *rand.Rand) course {
		epoch, size := evenly(r, 20, 80), between(r, 64<<10, 64*mib)
		n := noise(r, size*between(r, 0.01, 0.5))
		return level(r, 600, func(s int) float64 { return when(s%epoch < epoch-2, size) + n() })
	}},
	{"accumulation", Healthy, func(r *rand.Rand) course {
		period, grads := evenly(r, 2, 16), between(r, mib, 300*mib)
		return level(r, 400, func(s int) float64 { return when(s%period != period-1, grads) })
	}},
	{"averaged weights begin late", Healthy, func(r *rand.Rand) course {
		at, size := evenly(r, 20, 300), between(r, mib, 400*mib)
		n := noise(r, size*between(r, 0.001, 0.3))
		return level(r, 500, func(s int) float64 { return when(s >= at, size) + n() })
	}},
	{"curriculum", Healthy, func(r *rand.Rand) course {
		until, big := float64(evenly(r, 40, 400)), between(r, 16<<10, mib)
		return moving(r, 500, func(s int) float64 { return big * math.Min(float64(s), until) })
	}},
	{"curriculum in stages", Healthy, func(r *rand.Rand) course {
		stage, big := evenly(r, 15, 100), between(r, 64<<10, 16*mib)
		return moving(r, 6*stage, func(s int) float64 { return big * float64(s/stage) })
	}},
	{"images grow, in noise", Healthy, func(r *rand.Rand) course {
		stage, big := evenly(r, 15, 60), between(r, 64<<10, 16*mib)
		n := noise(r, big/3)
		return moving(r, 6*stage, func(s int) float64 {
			return big*math.Pow(1.3, float64(s/stage)) +
				n()
		})
	}},
	{"few steps up", Healthy, func(r *rand.Rand) course {
		up, big := 0.0, between(r, 64<<10, 64*mib)
		return level(r, 600, func(int) float64 {
			if r.IntN(90) == 0 && up < 5 {
				up++
			}
			return big * up
		})
	}},
	{"reserved grows, nothing else", Healthy, func(r *rand.Rand) course {
		c, cache := level(r, 400, nothing), 0.0
		c.work = func(int) float64 { cache += when(r.IntN(3) == 0, 2*mib); return cache }
		return c
	}},
	{"a walk that comes back", Healthy, func(r *rand.Rand) course {
		at, big := 0.0, between(r, 64<<10, 4*mib)
		return level(r, 1000,
			func(int) float64 { at += big*(r.Float64()-0.5) - 0.03*at; return at })
	}},
}

var openFamilies = []family{
	{"open: cache fills for 45-300", Open, func(r *rand.Rand) course {
		fill := evenly(r, 45, 300)
		c := level(r, fill+200, filling(0, fill, between(r, 512, 8*mib)))
		c.ends = fill
		return c
	}},
	{"open: replay buffer in noise", Open, func(r *rand.Rand) course {
		fill, entry := evenly(r, 80, 400), between(r, 4<<10, mib)
		n, f := noise(r, entry*between(r, 0.5, 5)), filling(0, fill, entry)
		c := level(r, fill+200, func(s int) float64 { return f(s) + n() })
		c.ends = fill
		return c
	}},
	{"open: log flushed every 100", Open, func(r *rand.Rand) course {
		rate := block(between(r, 512, 64<<10))
		c := level(r, 500, func(s int) float64 { return rate * float64(s%100) })
		c.ends = 100
		return c
	}},
	{"open: fills very slowly", Open, func(r *rand.Rand) course {
		size, tau := between(r, mib, 600*mib), between(r, 60, 200)
		c := level(r, int(6*tau),
			func(s int) float64 { return size * (1 - math.Exp(-float64(s)/tau)) })
		c.ends = int(3 * tau)
		return c
	}},
}
