package main

import (
	"fmt"
	"math"
	"math/rand/v2"

	"memroom/diagnose"
)

const mib = 1 << 20

// shape makes the floor and the reserved bytes of a step.
type shape func(r *rand.Rand, step int) (floor, reserved float64)

// families makes one series of each kind: leaks of every shape we could think of, and healthy look-alikes.
func families(seed uint64) []series {
	var all []series
	r := rand.New(rand.NewPCG(seed, 99))
	add := func(name string, onset int64, steps int, f shape) {
		s := series{name: fmt.Sprintf("%s#%d", name, seed), onset: onset}
		for step := range steps {
			floor, reserved := f(r, step)
			s.floor = append(s.floor, diagnose.Point{Step: int64(step), Value: math.Round(floor/512) * 512})
			s.reserved = append(s.reserved, reserved)
		}
		all = append(all, s)
	}
	leaks(r, add)
	healthy(r, add)
	return all
}

type adder func(name string, onset int64, steps int, f shape)

func leaks(r *rand.Rand, add adder) {
	base := 145*mib + float64(r.IntN(100))*mib
	rate := math.Exp(math.Log(8<<10) + r.Float64()*6.5) // 8 KiB to 5 MiB a step
	from := func(onset, step int) float64 { return math.Max(0, float64(step-onset)) }
	add("leak steady", 0, 150, func(_ *rand.Rand, s int) (float64, float64) { return base + rate*from(0, s), 0 })
	late := 50 + r.IntN(100)
	add("leak late", int64(late), late+100, func(_ *rand.Rand, s int) (float64, float64) { return base + rate*from(late, s), 0 })
	state := 200.0 * mib
	add("leak after optimizer state", 1, 150, func(_ *rand.Rand, s int) (float64, float64) {
		return base + state*math.Min(1, float64(s)) + rate*from(1, s), 0
	})
	every := 2 + r.IntN(11)
	add("leak every k steps", int64(every)-1, 200, func(_ *rand.Rand, s int) (float64, float64) {
		return base + rate*float64(s/every), 0
	})
	cache := 20 + r.IntN(10)
	add("leak after a cache fills", 60, 200, func(_ *rand.Rand, s int) (float64, float64) {
		return base + 16*mib*math.Min(float64(s), float64(cache)) + rate*from(60, s), 0
	})
	sum := 0.0
	add("leak of varying size", 0, 150, func(r *rand.Rand, s int) (float64, float64) {
		if s > 0 {
			sum += rate * (0.5 + r.Float64())
		}
		return base + sum, 0
	})
	now := 0.0
	add("leak by chance (half of the steps)", 0, 150, func(r *rand.Rand, s int) (float64, float64) {
		if s > 0 && r.IntN(2) == 0 {
			now += rate
		}
		return base + now, 0
	})
	noise := rate * (1 + 2*r.Float64())
	add("leak in noise of 1-3 steps", 0, 200, func(r *rand.Rand, s int) (float64, float64) {
		return base + rate*float64(s) + noise*r.Float64(), 0
	})
	add("leak in noise, late", 70, 250, func(r *rand.Rand, s int) (float64, float64) {
		return base + rate*from(70, s) + noise*r.Float64(), 0
	})
	small := rate / 10
	add("leak in noise of 20 steps (slow)", 0, 600, func(r *rand.Rand, s int) (float64, float64) {
		return base + small*float64(s) + 20*small*r.Float64(), 0
	})
	add("leak with evaluation spikes", 0, 200, func(_ *rand.Rand, s int) (float64, float64) {
		spike := 0.0
		if s%25 == 24 {
			spike = 64 * mib
		}
		return base + rate*float64(s) + spike, 0
	})
	add("leak under a sawtooth", 0, 400, func(_ *rand.Rand, s int) (float64, float64) {
		return base + rate*float64(s) + rate*float64(s%10), 0
	})
	add("leak that speeds up", 0, 150, func(_ *rand.Rand, s int) (float64, float64) {
		return base + rate*float64(s) + 0.002*rate*float64(s*s), 0
	})
	add("leak with one new buffer", 0, 150, func(_ *rand.Rand, s int) (float64, float64) {
		jump := 0.0
		if s >= 17 {
			jump = 100 * rate
		}
		return base + rate*float64(s) + jump, 0
	})
}

func healthy(r *rand.Rand, add adder) {
	base := 145*mib + float64(r.IntN(100))*mib
	big := math.Exp(math.Log(64<<10) + r.Float64()*6)
	add("healthy level", -1, 300, func(_ *rand.Rand, s int) (float64, float64) { return base, 0 })
	add("healthy optimizer state", -1, 200, func(_ *rand.Rand, s int) (float64, float64) {
		return base + 300*mib*math.Min(1, float64(s)) + 8*mib*math.Min(1, float64(s/3)), 0
	})
	add("healthy noise", -1, 1000, func(r *rand.Rand, s int) (float64, float64) { return base + big*r.Float64(), 0 })
	add("healthy two levels", -1, 1000, func(r *rand.Rand, s int) (float64, float64) {
		return base + big*float64(r.IntN(2)) + big/100*r.Float64(), 0
	})
	add("healthy normal noise", -1, 1000, func(r *rand.Rand, s int) (float64, float64) { return base + big*r.NormFloat64(), 0 })
	wave := 0.0
	add("healthy correlated noise", -1, 1000, func(r *rand.Rand, s int) (float64, float64) {
		wave = 0.8*wave + big*r.NormFloat64()
		return base + wave, 0
	})
	for _, fill := range []int{5, 12, 20, 28, 30, 33} {
		add(fmt.Sprintf("healthy cache fills for %d", fill), -1, 200, func(_ *rand.Rand, s int) (float64, float64) {
			return base + 16*mib*math.Min(float64(s), float64(fill)), 0
		})
	}
	add("healthy cache fills later", -1, 250, func(_ *rand.Rand, s int) (float64, float64) {
		return base + 4*mib*math.Max(0, math.Min(float64(s-50), 30)), 0
	})
	add("healthy cache fills under noise", -1, 250, func(r *rand.Rand, s int) (float64, float64) {
		return base + 4*mib*math.Min(float64(s), 30) + 2*mib*r.Float64(), 0
	})
	seen := map[int]bool{}
	add("healthy cache of random keys", -1, 400, func(r *rand.Rand, s int) (float64, float64) {
		seen[r.IntN(24)] = true
		return base + big*float64(len(seen)), 0
	})
	add("healthy warm-up that slackens", -1, 400, func(_ *rand.Rand, s int) (float64, float64) {
		return base + 300*mib*(1-math.Exp(-float64(s)/15)), 0
	})
	for _, period := range []int{7, 13, 25, 34} {
		add(fmt.Sprintf("healthy sawtooth of %d", period), -1, 400, func(_ *rand.Rand, s int) (float64, float64) {
			return base + big*float64(s%period), 0
		})
	}
	add("healthy sawtooth by chance", -1, 600, func() shape {
		up := 0.0
		return func(r *rand.Rand, s int) (float64, float64) {
			up++
			if r.IntN(12) == 0 {
				up = 0
			}
			return base + big*up, 0
		}
	}())
	add("healthy evaluation every 20", -1, 400, func(_ *rand.Rand, s int) (float64, float64) {
		if s%20 < 2 && s > 2 {
			return base + 200*mib, 0
		}
		return base, 0
	})
	add("healthy evaluation grows once", -1, 400, func(_ *rand.Rand, s int) (float64, float64) {
		return base + 50*mib*math.Min(2, float64(s/50)), 0
	})
	add("healthy curriculum", -1, 400, func(r *rand.Rand, s int) (float64, float64) {
		length := 128 + 2*float64(s)
		return base + 1024*length, 2*base + 40960*length
	})
	add("healthy curriculum in stages", -1, 400, func(r *rand.Rand, s int) (float64, float64) {
		length := 128 * math.Pow(2, float64(s/100))
		return base + 10240*length, 2*base + 409600*length
	})
	record := 0.0
	add("healthy longest batch so far", -1, 600, func(r *rand.Rand, s int) (float64, float64) {
		record = math.Max(record, r.ExpFloat64())
		return base + big*record, 0
	})
	level := 0.0
	add("healthy few steps up", -1, 600, func(r *rand.Rand, s int) (float64, float64) {
		if r.IntN(90) == 0 && level < 5 {
			level++
		}
		return base + big*level, 0
	})
}
