// Package courses makes memory of training runs, step by step, for measuring the detectors: leaks
// of every shape we could think of, and healthy runs that look like them. Only tests and benchmarks
// use it.
package courses

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"

	"memroom/diagnose"
)

const mib = 1 << 20

// family is one kind of run, with its parameters drawn anew for each seed.
type family struct {
	name  string
	class Class
	draw  func(r *rand.Rand) course
}

// Class is the answer that a run must get.
type Class int

// The classes.
const (
	Leaks   Class = iota // must be named within 40 steps
	Faint                // leaks that 40 steps cannot show: rare, or far below the noise
	Healthy              // must never be named
	// Open is healthy, and exactly like a leak for more than 40 steps: must be taken back.
	Open
)

func (c Class) String() string {
	return [...]string{"leak", "faint leak", "healthy", "looks like one"}[c]
}

// course makes the memory of a run, step by step.
type course struct {
	steps int
	onset int                    // step before the first leaked byte
	ends  int                    // of what only looks like a leak: the step it stops at
	floor func(step int) float64 // what stays after the step
	work  func(step int) float64 // what the step needs above it, nil: always the same
}

// Series is one run to judge.
type Series struct {
	Name     string
	Class    Class
	Onset    int64            // the step before the first leaked byte, -1 for a healthy run
	Ends     int64            // step at which what only looked like a leak stops
	Floor    []diagnose.Point // bytes that stay after each step
	Reserved []float64
	Working  []float64 // bytes a step needs above the floor
}

// Families makes one series of each kind: leaks of every shape we could think of, and healthy
// look-alikes.
func Families(seed uint64) []Series {
	var all []Series
	for _, kinds := range [][]family{leakFamilies, faintFamilies, healthyFamilies, openFamilies} {
		for _, k := range kinds {
			all = append(all, k.run(seed))
		}
	}
	return all
}

// run draws one series. The generator depends on the name alone, so that a new kind leaves the
// others as they are.
func (k family) run(seed uint64) Series {
	name := fnv.New64a()
	name.Write([]byte(k.name))
	c := k.draw(rand.New(rand.NewPCG(seed, name.Sum64())))
	s := Series{Name: fmt.Sprintf("%s#%d", k.name, seed), Class: k.class, Onset: int64(c.onset),
		Ends: int64(c.ends)}
	if k.class == Healthy || k.class == Open {
		s.Onset = -1
	}
	reserved := 0.0
	for step := range c.steps {
		floor, work := block(c.floor(step)), 48.0*mib
		if c.work != nil {
			work += c.work(step)
		}
		// the cache keeps the most that was ever needed
		reserved = math.Max(reserved, math.Ceil((floor+work)/(2*mib))*2*mib)
		s.Floor = append(s.Floor, diagnose.Point{Step: int64(step), Value: floor})
		s.Reserved = append(s.Reserved, reserved)
	}
	return s
}

// block rounds as the allocator does.
func block(bytes float64) float64 { return math.Round(bytes/512) * 512 }

// between draws a number so that each order of magnitude is as likely.
func between(r *rand.Rand, low, high float64) float64 {
	return low * math.Exp(r.Float64()*math.Log(high/low))
}

func evenly(r *rand.Rand, low, high int) int { return low + r.IntN(high-low+1) }

func baseOf(r *rand.Rand) float64 { return between(r, 20*mib, 4096*mib) }

// after counts the steps since an onset.
func after(onset, step int) float64 { return math.Max(0, float64(step-onset)) }

func when(yes bool, bytes float64) float64 {
	if yes {
		return bytes
	}
	return 0
}

// noise returns one of the ways in which what stays varies from batch to batch, about wide bytes
// from end to end.
func noise(r *rand.Rand, wide float64) func() float64 {
	switch r.IntN(5) {
	case 0:
		return func() float64 { return wide * r.Float64() }
	case 1:
		return func() float64 { return wide / 4 * r.NormFloat64() }
	case 2: // buckets of lengths
		return func() float64 { return wide * float64(r.IntN(4)) / 3 }
	case 3: // most batches are full, some short
		return func() float64 { return -when(r.IntN(5) == 0, wide*r.Float64()) }
	}
	return func() float64 { return wide * r.Float64() * r.Float64() } // skewed: few long ones
}

// growth adds up what each step leaves behind.
func growth(steps, onset int, each func(step int) float64) []float64 {
	total := make([]float64, steps)
	for s := 1; s < steps; s++ {
		total[s] = total[s-1]
		if s > onset {
			total[s] += each(s)
		}
	}
	return total
}

// leaking makes the course of a leak from what each step leaves.
func leaking(r *rand.Rand, steps, onset int, each func(step int) float64,
	rest func(step int) float64) course {
	base, total := baseOf(r), growth(steps, onset, each)
	return course{steps: steps, onset: onset, floor: func(s int) float64 {
		return base + total[s] +
			rest(s)
	}}
}

func nothing(int) float64 { return 0 }

func same(rate float64) func(int) float64 { return func(int) float64 { return rate } }

var leakFamilies = []family{
	{"leak steady", Leaks, func(r *rand.Rand) course {
		return leaking(r, 150, 0, same(block(between(r, 512, 8*mib))), nothing)
	}},
	{"leak late", Leaks, func(r *rand.Rand) course {
		onset := evenly(r, 30, 200)
		return leaking(r, onset+100, onset, same(block(between(r, 512, 8*mib))), nothing)
	}},
	{"leak after optimizer state", Leaks, func(r *rand.Rand) course {
		state := between(r, 10*mib, 1000*mib)
		return leaking(r, 150, 1, same(block(between(r, 512, 8*mib))),
			func(s int) float64 { return when(s >= 1, state) })
	}},
	{"leak after autotuning", Leaks, func(r *rand.Rand) course {
		var jumps [10]float64
		for i := range jumps {
			jumps[i] = when(r.IntN(2) == 0, between(r, mib, 64*mib))
		}
		return leaking(r, 150, 0, same(block(between(r, 512, mib))), func(s int) (sum float64) {
			for i := range jumps {
				sum += when(i < s, jumps[i])
			}
			return sum
		})
	}},
	{"leak every k steps", Leaks, func(r *rand.Rand) course {
		every, rate := evenly(r, 2, 12), block(between(r, 512, 8*mib))
		c := leaking(r, 200, 0, func(s int) float64 { return when(s%every == 0, rate) }, nothing)
		c.onset = every - 1
		return c
	}},
	{"leak in short evaluations", Leaks, func(r *rand.Rand) course {
		every, rate := evenly(r, 8, 12), block(between(r, 64<<10, 8*mib))
		c := leaking(r, 250, 0, func(s int) float64 { return when(s%every < 2 && s > 2, rate) },
			nothing)
		c.onset = every - 1
		return c
	}},
	{"leak after a cache filled", Leaks, func(r *rand.Rand) course {
		fill, entry := evenly(r, 10, 35), between(r, 64<<10, 16*mib)
		onset := fill + evenly(r, 5, 40)
		return leaking(r, onset+120, onset, same(block(between(r, 512, mib))),
			func(s int) float64 { return entry * math.Min(float64(s), float64(fill)) })
	}},
	{"leak while a cache fills", Leaks, func(r *rand.Rand) course {
		fill, rate := evenly(r, 8, 30), block(between(r, 4<<10, mib))
		entry := rate * between(r, 0.3, 6)
		return leaking(r, 150, 0, same(rate),
			func(s int) float64 { return entry * math.Min(float64(s), float64(fill)) })
	}},
	{"leak of varying size", Leaks, func(r *rand.Rand) course {
		rate := between(r, 16<<10, 4*mib)
		return leaking(r, 150, 0, func(int) float64 { return rate * (0.3 + 1.4*r.Float64()) },
			nothing)
	}},
	{"leak of hidden states, any length", Leaks, func(r *rand.Rand) course {
		rate := between(r, 16<<10, 4*mib)
		last := 0.0
		return leaking(r, 200, 0, func(int) float64 {
			last = rate * float64(evenly(r, 8,
				64)) / 36
			return last
		}, func(int) float64 { return 3 * last })
	}},
	{"leak with heavy tails", Leaks, func(r *rand.Rand) course {
		rate := between(r, 16<<10, mib)
		return leaking(r, 200, 0, func(int) float64 { return rate * math.Exp(0.8*r.NormFloat64()) },
			nothing)
	}},
	{"leak by chance", Leaks, func(r *rand.Rand) course {
		rate, share := block(between(r, 512, 8*mib)), 0.35+0.5*r.Float64()
		return leaking(r, 200, 0, func(int) float64 { return when(r.Float64() < share, rate) },
			nothing)
	}},
	{"leak in noise of 1-4 steps", Leaks, func(r *rand.Rand) course {
		rate := between(r, 16<<10, 4*mib)
		n := noise(r, rate*between(r, 1, 4))
		return leaking(r, 200, 0, same(rate), func(int) float64 { return n() })
	}},
	{"leak in noise of 4-10 steps", Leaks, func(r *rand.Rand) course {
		rate := between(r, 16<<10, mib)
		n := noise(r, rate*between(r, 4, 10))
		return leaking(r, 250, 0, same(rate), func(int) float64 { return n() })
	}},
	{"leak in noise, late", Leaks, func(r *rand.Rand) course {
		rate, onset := between(r, 16<<10, 4*mib), evenly(r, 40, 200)
		n := noise(r, rate*between(r, 1, 5))
		return leaking(r, onset+150, onset, same(rate), func(int) float64 { return n() })
	}},
	{"leak with evaluation spikes", Leaks, func(r *rand.Rand) course {
		every, lasts, rate := evenly(r, 8, 40), evenly(r, 1, 3), block(between(r, 512, 4*mib))
		spike := rate * between(r, 2, 200)
		return leaking(r, 200, 0, same(rate),
			func(s int) float64 { return when(s%every >= every-lasts, spike) })
	}},
	{"leak under a sawtooth", Leaks, func(r *rand.Rand) course {
		rate, period := between(r, 16<<10, 4*mib), evenly(r, 3, 10)
		tooth := rate * between(r, 0.3, 1.5)
		return leaking(r, 300, 0, same(rate),
			func(s int) float64 { return tooth * float64(s%period) })
	}},
	{"leak with accumulation", Leaks, func(r *rand.Rand) course {
		rate, period, grads := between(r, 16<<10, 4*mib), evenly(r, 2, 8), between(r, mib, 300*mib)
		return leaking(r, 250, 0, same(rate),
			func(s int) float64 { return when(s%period != period-1, grads) })
	}},
	{"leak that speeds up", Leaks, func(r *rand.Rand) course {
		rate, more := between(r, 16<<10, mib), between(r, 0.002, 0.03)
		return leaking(r, 150, 0, func(s int) float64 { return rate * (1 + more*float64(s)) },
			nothing)
	}},
	// a history that is concatenated and kept at each step
	{"leak of squares", Leaks, func(r *rand.Rand) course {
		rate := between(r, 2<<10, 64<<10)
		return leaking(r, 150, 0, func(s int) float64 { return rate * float64(s) }, nothing)
	}},
	{"leak with new buffers", Leaks, func(r *rand.Rand) course {
		rate, at, size := block(between(r, 512, 4*mib)), evenly(r, 3, 60),
			between(r, 4*mib, 400*mib)
		return leaking(r, 150, 0, same(rate), func(s int) float64 { return when(s >= at, size) })
	}},
	{"leak with a buffer given back", Leaks, func(r *rand.Rand) course {
		rate, at, size := block(between(r, 512, 4*mib)), evenly(r, 42, 90),
			between(r, 4*mib, 400*mib)
		return leaking(r, 200, 0, same(rate), func(s int) float64 { return when(s < at, size) })
	}},
	// batches in buckets that last for a while
	{"leak over changing lengths", Leaks, func(r *rand.Rand) course {
		rate, lasts := between(r, 64<<10, 4*mib), evenly(r, 5, 15)
		wide, length := rate*between(r, 0.5, 2), 0.0
		return leaking(r, 250, 0, same(rate), func(s int) float64 {
			if s%lasts == 0 {
				length = wide * float64(r.IntN(4))
			}
			return length
		})
	}},
}

var faintFamilies = []family{
	{"faint: 0.05 % a step in 2 % noise", Faint, func(r *rand.Rand) course {
		rate := between(r, 16<<10, mib)
		n := noise(r, 40*rate)
		return leaking(r, 600, 0, same(rate), func(int) float64 { return n() })
	}},
	{"faint: noise of 20 steps", Faint, func(r *rand.Rand) course {
		rate := between(r, 16<<10, mib)
		n := noise(r, 20*rate)
		return leaking(r, 500, 0, same(rate), func(int) float64 { return n() })
	}},
	{"faint: every 15-60 steps", Faint, func(r *rand.Rand) course {
		every, rate := evenly(r, 15, 60), block(between(r, 512, 8*mib))
		c := leaking(r, 8*every, 0, func(s int) float64 { return when(s%every == 0, rate) },
			nothing)
		c.onset = every - 1
		return c
	}},
	{"faint: a burst now and then", Faint, func(r *rand.Rand) course {
		rate := between(r, 16<<10, mib)
		return leaking(r, 500, 0, func(int) float64 {
			return when(r.IntN(10) == 0,
				rate*r.ExpFloat64())
		}, nothing)
	}},
	{"faint: teeth of 20-35 steps", Faint, func(r *rand.Rand) course {
		rate, period := between(r, 16<<10, mib), evenly(r, 20, 35)
		tooth := rate * between(r, 0.5, 3)
		return leaking(r, 500, 0, same(rate),
			func(s int) float64 { return tooth * float64(s%period) })
	}},
}
