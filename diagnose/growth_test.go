package diagnose

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"memroom/event"
)

// recordedGrowth reads the series of testdata/growth.jsonl: a small MLP on an H200, torch 2.11, 120
// steps; bytes allocated and reserved after each step. Four leak, three look like it and do not.
func recordedGrowth(t *testing.T) map[string][][3]float64 {
	t.Helper()
	found := map[string][][3]float64{}
	for id, rows := range seriesIn(t, "testdata/growth.jsonl") {
		for _, row := range rows {
			found[id] = append(found[id], [3]float64(row))
		}
	}
	return found
}

func seriesIn(t *testing.T, path string) map[string][][]float64 {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	found := map[string][][]float64{}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var entry struct {
			ID     string
			Series [][]float64
		}
		if err := json.Unmarshal(lines.Bytes(), &entry); err != nil {
			t.Fatal(err)
		}
		found[entry.ID] = entry.Series
	}
	return found
}

// TestRecordedHeaps: bench/leaks/loop.py on a CPU, torch 2.11: step, heap, 0, and what was live at
// backward above it. Kernels that are made when first needed add 4.7 MB at once, four times. One
// keeps its outputs, of any length; one has batches that grow. The "fast" ones have steps of a few
// milliseconds, of which some are left out and what was live at backward is read now and then.
func TestRecordedHeaps(t *testing.T) {
	limits := DefaultThresholds()
	for id, rows := range seriesIn(t, "testdata/heap.jsonl") {
		s, at := Series{Quantum: 4096}, int64(-1)
		for _, row := range rows {
			s.Add(int64(row[0]), row[1], row[2], row[3], limits)
			if trend, leaks := s.Leak(limits); leaks && trend.MattersOnHost(true, limits) &&
				at < 0 {
				at = int64(row[0])
			}
		}
		if healthy := strings.Contains(id, "healthy"); healthy && at >= 0 || !healthy &&
			(at < 0 || at > 65) {
			t.Errorf("%s: named at step %d", id, at)
		}
	}
}

// said is when a series was called a leak, and its forecasts for a limit.
type said struct {
	leak      int64 // step, -1 never
	forecasts map[int64]Forecast
}

func listen(rows [][3]float64, limit float64) said {
	limits := DefaultThresholds()
	var s Series
	heard := said{leak: -1, forecasts: map[int64]Forecast{}}
	for _, row := range rows {
		step := int64(row[0])
		s.Add(step, row[1], row[2], 0, limits)
		if _, leaks := s.Leak(limits); leaks && heard.leak < 0 {
			heard.leak = step
		}
		if f, told := s.Forecast(limit, limits); told {
			heard.forecasts[step] = f
		}
	}
	return heard
}

func TestRecordedLeaks(t *testing.T) {
	onset := map[string]int64{"leak-loss_sum": 0, "leak-append_outputs": 0, "leak-hook_keeps": 0,
		"leak-eval_no_nograd": 59}
	series := recordedGrowth(t)
	for id, from := range onset {
		if at := listen(series[id], 0).leak; at < from || at > from+40 {
			t.Errorf("%s began after step %d and was found at step %d, want within 40", id, from,
				at)
		}
	}
	for id, rows := range series {
		if !strings.Contains(id, "healthy") {
			continue
		}
		heard := listen(rows, 1.05*slices.MaxFunc(rows, func(a,
			b [3]float64) int {
			return int(a[1] - b[1])
		})[1])
		if heard.leak >= 0 || len(heard.forecasts) > 0 {
			t.Errorf("%s is healthy: found at %d, %d forecasts", id, heard.leak,
				len(heard.forecasts))
		}
	}
}

func TestRecordedForecasts(t *testing.T) {
	for id, rows := range recordedGrowth(t) {
		if strings.Contains(id, "healthy") {
			continue
		}
		floors := make([]float64, len(rows))
		for i, row := range rows {
			floors[i] = row[1]
		}
		middle, most := median(floors), slices.Max(floors)
		for i := 1; i <= 5; i++ {
			limit := middle + (most-middle)*float64(i)/6
			death := int64(slices.IndexFunc(floors, func(v float64) bool { return v > limit }))
			heard := listen(rows[:death], limit)
			half := int64(slices.IndexFunc(floors,
				func(v float64) bool { return v >= floors[0]+(limit-floors[0])/2 }))
			for step := half; step < death; step++ {
				f, told := heard.forecasts[step]
				if !told {
					if step > half+1 { // one step to see that the rise goes on
						t.Errorf("%s under cap %d: silent at step %d, half way to its end at %d",
							id, i, step, death)
					}
					continue
				}
				if off := math.Abs(float64(f.Step-death)) / float64(death); off > 0.1 ||
					f.Low > death || f.High < death {
					t.Errorf("%s under cap %d: at step %d said %d (%d to %d), it was %d", id, i,
						step, f.Step, f.Low, f.High, death)
				}
			}
		}
	}
}

// made makes rows from a function of the step.
func made(steps int, floor func(r *rand.Rand, step int) float64) [][3]float64 {
	r := rand.New(rand.NewPCG(4, 2))
	rows := make([][3]float64, steps)
	for i := range rows {
		rows[i] = [3]float64{float64(i), 200<<20 + floor(r, i), 0}
	}
	return rows
}

const testMiB = 1 << 20

func TestLeaksOfManyShapes(t *testing.T) {
	after := func(onset, step int) float64 { return math.Max(0, float64(step-onset)) }
	for name, c := range map[string]struct {
		onset, within int64
		floor         func(r *rand.Rand, step int) float64
	}{
		"one block a step": {0, 40, func(_ *rand.Rand,
			s int) float64 {
			return 512 * float64(s)
		}},
		"late": {100, 40, func(_ *rand.Rand,
			s int) float64 {
			return testMiB * after(100, s)
		}},
		"every third step": {2, 40, func(_ *rand.Rand,
			s int) float64 {
			return testMiB * float64(s/3)
		}},
		"every twelfth step": {11, 40, func(_ *rand.Rand,
			s int) float64 {
			return testMiB * float64(s/12)
		}},
		"after the optimizer came": {1, 40, func(_ *rand.Rand,
			s int) float64 {
			return 400*testMiB*math.Min(1, float64(s)) + 10240*after(1, s)
		}},
		"after a cache filled": {60, 40, func(_ *rand.Rand,
			s int) float64 {
			return 16*testMiB*math.Min(25, float64(s)) + 10240*after(60, s)
		}},
		"varying batches": {0, 40, func(r *rand.Rand,
			s int) float64 {
			return testMiB*float64(s) + 2*testMiB*r.Float64()
		}},
		"slow in noise": {0, 45, func(r *rand.Rand,
			s int) float64 {
			return 50_000*float64(s) + testMiB*r.Float64()
		}},
		"evaluation now and then": {0, 40, func(_ *rand.Rand, s int) float64 {
			return 100_000*float64(s) + map[bool]float64{true: 64 * testMiB}[s%25 == 24]
		}},
		"gradients accumulate": {0, 41, func(_ *rand.Rand, s int) float64 {
			return 100_000*float64(s) + map[bool]float64{true: 64 * testMiB}[s%4 != 3]
		}},
		"beside a cache that fills": {0, 40, func(_ *rand.Rand,
			s int) float64 {
			return 100_000*float64(s) + 300_000*math.Min(28, float64(s))
		}},
		"two blocks in each evaluation": {9, 40, func(_ *rand.Rand,
			s int) float64 {
			return testMiB * float64(s/10+(s+9)/10)
		}},
		"ever faster": {0, 40, func(_ *rand.Rand,
			s int) float64 {
			return 1000 * float64(s*s)
		}},
		"a buffer in between": {0, 40, func(_ *rand.Rand,
			s int) float64 {
			return 100_000*float64(s) + 50*testMiB*math.Min(1, float64(s/20))
		}},
	} {
		if at := listen(made(300, c.floor), 0).leak; at <= c.onset || at > c.onset+c.within {
			t.Errorf("%s: began after step %d, found at %d, want within %d", name, c.onset, at,
				c.within)
		}
	}
}

func TestHealthyOfManyShapes(t *testing.T) {
	for name, floor := range map[string]func(r *rand.Rand, step int) float64{
		"level": func(*rand.Rand, int) float64 { return 0 },
		"noise": func(r *rand.Rand,
			_ int) float64 {
			return 8 * testMiB * r.Float64()
		},
		"two levels": func(r *rand.Rand,
			_ int) float64 {
			return 8 * testMiB * float64(r.IntN(2))
		},
		"cache for 30 steps": func(_ *rand.Rand, s int) float64 {
			return 16 * testMiB * math.Min(30,
				float64(s))
		},
		"warm-up": func(_ *rand.Rand,
			s int) float64 {
			return 300 * testMiB * (1 - math.Exp(-float64(s)/15))
		},
		"collected every 25": func(_ *rand.Rand, s int) float64 { return testMiB * float64(s%25) },
		"collected every 9":  func(_ *rand.Rand, s int) float64 { return testMiB * float64(s%9) },
		"evaluation": func(_ *rand.Rand,
			s int) float64 {
			return map[bool]float64{true: 200 * testMiB}[s%20 < 2]
		},
		"fills ever more slowly": func(r *rand.Rand, s int) float64 {
			return 300*testMiB*(1-math.Exp(-float64(s)/25)) + 4*testMiB*r.Float64()
		},
		"one jump in noise": func(r *rand.Rand, s int) float64 {
			return 20*testMiB*float64(min(1,
				s/150)) + 16*testMiB*r.Float64()
		},
		"waves": func(_ *rand.Rand,
			s int) float64 {
			return 10 * testMiB * (1 - math.Cos(float64(s)/9))
		},
		"accumulation": func(_ *rand.Rand,
			s int) float64 {
			return map[bool]float64{true: 64 * testMiB}[s%8 != 7]
		},
		"a few jumps": func(_ *rand.Rand,
			s int) float64 {
			return 30 * testMiB * float64(min(3, s/7+s/31))
		},
	} {
		rows := made(400, floor)
		most := slices.MaxFunc(rows, func(a, b [3]float64) int { return int(a[1] - b[1]) })[1]
		if heard := listen(rows, 1.3*most); heard.leak >= 0 || len(heard.forecasts) > 0 {
			t.Errorf("%s: called a leak at %d, %d forecasts", name, heard.leak,
				len(heard.forecasts))
		}
	}
}

// TestWorkThatGrowsIsNoLeak: with longer sequences what stays (the last batch's outputs) grows,
// what a step needs grows faster.
func TestWorkThatGrowsIsNoLeak(t *testing.T) {
	limits := DefaultThresholds()
	var s Series
	for step := range int64(300) {
		length := float64(128 + 2*step)
		s.Add(step, 100*testMiB+1024*length, 0, 40*1024*length, limits)
		if _, leaks := s.Leak(limits); leaks {
			t.Fatalf("called a leak at step %d", step)
		}
	}
}

func TestWatchGoesFromSuspicionToLine(t *testing.T) {
	w := NewWatch(DefaultThresholds(), 0)
	w.SetLimit(7, 0, 2*event.GiB)
	rank := 3
	var found []event.Finding
	var asks []Ask
	for step := range int64(60) {
		row := event.Step{Step: step + 1, Device: 0, Duration: 1e9,
			Allocated: event.Bytes(100*testMiB + 4*testMiB*step), Reserved: 500 * event.MiB,
			AtBackward: event.Bytes(200*testMiB + 4*testMiB*step)}
		found = append(found, w.Steps(7, &rank, []event.Step{row})...)
		asks = append(asks, w.Asks()...)
		if step == 28 {
			frames := []event.Frame{{File: "train.py", Name: "step", Line: 31}}
			found = append(found, w.Stacks(7, 0, 12, []Held{{Growth: 90 * event.MiB, Count: 1},
				{Growth: 48 * event.MiB, Count: 12, Frames: frames}})...)
		}
	}
	var kinds []string
	for _, f := range found {
		kinds = append(kinds, f.Kind)
	}
	if got := strings.Join(kinds, " "); got != "forecast leak" {
		t.Fatalf("findings %q: %+v", got, found)
	}
	leak := found[1]
	if len(leak.Frames) != 1 || leak.Frames[0].Line != 31 ||
		!strings.Contains(leak.Title, "GPU 0 memory of rank 3") ||
		!strings.Contains(leak.Title, "4MiB kept per step") || !strings.Contains(leak.Title,
		"train.py:31") {
		t.Errorf("leak: %+v", leak)
	}
	// 2 GiB - 100 MiB above the floor - 100 MiB at step 1, 4 MiB a step: step 464
	if !strings.Contains(found[0].Title, "at step ~464") || !strings.Contains(found[0].Title,
		"7 min") {
		t.Errorf("forecast: %+v", found[0])
	}
	if got := fmt.Sprint(asks); got != "[{7 collect 0} {7 heap 0} {7 record_stacks 12} {7 heap 0}]" {
		t.Errorf("asked for %s", got)
	}
	if len(w.Forecasts()) != 1 {
		t.Errorf("forecasts: %+v", w.Forecasts())
	}
	if w.Gone(7); len(w.Forecasts()) != 0 {
		t.Error("a process that is gone still has a forecast")
	}
}

// TestFarEndsAreNotForecast: forty steps say nothing about the hundred thousandth; four thousand
// do.
func TestFarEndsAreNotForecast(t *testing.T) {
	rows := made(6000, func(_ *rand.Rand, s int) float64 { return 100_000 * float64(s) })
	heard := listen(rows, 200*testMiB+100_000*100_000)
	if len(heard.forecasts) == 0 {
		t.Fatal("silent about a leak of 6000 steps")
	}
	first := int64(math.MaxInt64)
	for step, f := range heard.forecasts {
		if first = min(first, step); f.Low > 100_001 || f.High < 100_000 {
			t.Errorf("at step %d said %d to %d", step, f.Low, f.High)
		}
	}
	if first < 4000 || first > 5000 {
		t.Errorf("first forecast at step %d", first)
	}
}

// TestLeaksAreTakenBack: a cache that takes long to fill is called a leak, because nothing
// distinguishes the two before it is full. When it is full, or what was kept is collected, a
// finding with that news replaces the first. A leak that goes on keeps its finding.
func TestLeaksAreTakenBack(t *testing.T) {
	for name, c := range map[string]struct {
		floor func(s int64) float64
		word  string
	}{
		"full": {func(s int64) float64 {
			return testMiB * float64(min(s,
				90))
		}, "like a cache that is full"},
		"collected": {func(s int64) float64 { return testMiB * float64(s%100) },
			"was freed at step"},
		"leak": {func(s int64) float64 { return testMiB * float64(s) },
			""},
		"a leak of which little is told": {func(s int64) float64 { return testMiB * float64(s) },
			""},
		"a leak, and a buffer given back": {func(s int64) float64 {
			return testMiB*float64(s) +
				map[bool]float64{true: 800 * testMiB}[s < 90]
		}, ""},
	} {
		w := NewWatch(DefaultThresholds(), 0)
		var found []event.Finding
		for step := range int64(190) {
			if little := strings.Contains(name, "little"); little &&
				(step%7 != 0 || step > 60 && step < 125 || step > 140 && step < 180) {
				continue // hooks rest when they have cost more than their share
			}
			for _, f := range w.Steps(1, nil, []event.Step{{Step: step + 1, Duration: 1e9,
				Allocated: event.Bytes(900*testMiB + c.floor(step)), Reserved: 4 * event.GiB}}) {
				if f.Kind == "leak" {
					found = append(slices.DeleteFunc(found, f.Restates), f)
				}
			}
		}
		if len(found) != 1 || (found[0].Severity == event.SeverityInfo) != (c.word != "") ||
			!strings.Contains(found[0].Title, c.word) {
			t.Errorf("%s: %+v", name, found)
		}
	}
}

// TestForecastsOfManyShapes: from half of the way to the limit on, the end is foreseen to a tenth
// of the way.
func TestForecastsOfManyShapes(t *testing.T) {
	for name, floor := range map[string]func(r *rand.Rand, step int) float64{
		"steady": func(_ *rand.Rand, s int) float64 { return testMiB * float64(s) },
		"faster": func(_ *rand.Rand, s int) float64 {
			return testMiB * float64(s) * (1 +
				0.01*float64(s))
		},
		"squares": func(_ *rand.Rand, s int) float64 { return 20_000 * float64(s*s) },
		"stairs":  func(_ *rand.Rand, s int) float64 { return testMiB * float64(s/7) },
		"unequal": func(r *rand.Rand, s int) float64 {
			return testMiB * (float64(s) +
				3*r.Float64())
		},
		"spikes": func(_ *rand.Rand, s int) float64 {
			return testMiB * (float64(s) + map[bool]float64{true: 40}[s%10 == 9])
		},
		"gradients": func(_ *rand.Rand, s int) float64 {
			return testMiB * (float64(s) + map[bool]float64{true: 90}[s%4 != 3])
		},
	} {
		rows := made(300, floor)
		limit := rows[0][1] + 0.8*(rows[299][1]-rows[0][1])
		death := slices.IndexFunc(rows, func(row [3]float64) bool { return row[1] > limit })
		heard := listen(rows[:death], limit)
		for step := int64(death)*3/4 + 1; step < int64(death); step++ {
			f, told := heard.forecasts[step]
			if off := math.Abs(float64(f.Step) - float64(death)); !told ||
				off > 0.1*float64(death) {
				t.Errorf("%s: at step %d said %d (%v), it was %d", name, step, f.Step, told, death)
				break
			}
		}
	}
}

// BenchmarkSeries prints what judging one step costs: the monitor shares a machine with the
// training.
func BenchmarkSeries(b *testing.B) {
	limits := DefaultThresholds()
	for name, floor := range map[string]func(r *rand.Rand, step int) float64{
		"level": func(*rand.Rand, int) float64 { return 0 },
		"noise": func(r *rand.Rand, _ int) float64 { return testMiB * r.Float64() },
		"leak":  func(r *rand.Rand, s int) float64 { return testMiB * float64(s) },
		"both": func(r *rand.Rand, s int) float64 {
			return testMiB * (float64(s) +
				5*r.Float64())
		},
	} {
		rows := made(4000, floor)
		b.Run(name, func(b *testing.B) {
			for i := 0; i < b.N; {
				var s Series
				for _, row := range rows {
					s.Add(int64(row[0]), row[1], row[2], 0, limits)
					if i++; i >= b.N {
						break
					}
				}
			}
		})
	}
}

// TestLeaksAmongStepsLeftOut: only some of the short steps are reported, at uneven distances.
func TestLeaksAmongStepsLeftOut(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, gap := range []int{2, 5, 9} {
		for name, each := range map[string]func(step int) float64{"leak": func(s int) float64 { return 1024 * float64(s) }, "level": func(int) float64 { return 0 },
			"cache": func(s int) float64 { return 1 << 20 * float64(min(s, 30)) }} {
			var rows [][3]float64
			for step := 0; step < 300; step += 1 + r.IntN(2*gap-1) {
				rows = append(rows, [3]float64{float64(step), 100<<20 + each(step), 0})
			}
			at := listen(rows, 0).leak
			if name == "leak" && (at < 0 || at > int64(40+3*gap)) || name != "leak" && at >= 0 {
				t.Errorf("%s told every %d steps or so: named at %d", name, gap, at)
			}
		}
	}
}
