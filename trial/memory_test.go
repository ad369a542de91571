package trial

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"memroom/event"
)

// jobs whose peaks follow the knobs in ways that trainings do.
var memoryShapes = map[string]func(bs, width float64, opt string) float64{
	"constant":      func(_, _ float64, _ string) float64 { return 800 },
	"batch":         func(bs, _ float64, _ string) float64 { return 200 + 9*bs },
	"batch x width": func(bs, w float64, _ string) float64 { return 200 + 0.02*bs*w },
	"width squared": func(_, w float64, _ string) float64 { return 150 + 0.001*w*w },
	"optimizer state": func(bs, _ float64, o string) float64 {
		return 300 + 4*bs + map[string]float64{"adam": 400, "sgd": 0}[o]
	},
}

// TestPeaksAreLearnt: after twenty trials few of the next need more than was forecast, and not much
// is reserved in vain.
func TestPeaksAreLearnt(t *testing.T) {
	for name, shape := range memoryShapes {
		source := rand.New(rand.NewPCG(5, 6))
		var m Memory
		short, waste := 0, 0.0
		const n = 300
		for i := range n {
			bs := []float64{8, 16, 32, 64, 128}[source.IntN(5)]
			width := float64(64 + source.IntN(960))
			opt := []string{"adam", "sgd"}[source.IntN(2)]
			p := Params{{"lr", Number(source.Float64())}, {"bs", Whole(int64(bs))},
				{"width", Whole(int64(width))}, {"opt", Value{Data: opt}}}
			peak := event.Bytes(shape(bs, width, opt)*(1+0.03*source.Float64())) * event.MiB
			if f := m.Forecast(p); i >= 20 {
				if f.Bytes < peak {
					short++
				}
				waste += float64(f.Bytes)/float64(peak) - 1
			}
			m.Learn(Observation{Params: p, Bytes: peak})
		}
		if short > n/50 {
			t.Errorf("%s: %d of %d forecasts were too low", name, short, n-20)
		}
		if waste/(n-20) > 0.35 {
			t.Errorf("%s: %.0f %% is reserved in vain", name, 100*waste/(n-20))
		}
	}
}

func TestANameNotSeenBeforeGetsTheMost(t *testing.T) {
	var m Memory
	for i := range 8 {
		m.Learn(Observation{Params: Params{{"model", Value{Data: "small"}}, {"bs", Whole(int64(i))}},
			Bytes: 500 * event.MiB})
	}
	f := m.Forecast(Params{{"model", Value{Data: "large"}}, {"bs", Whole(3)}})
	if f.Bytes < 600*event.MiB || !strings.Contains(f.Why, "not seen") {
		t.Errorf("forecast %+v", f)
	}
}

func capacity(host event.Bytes) Capacity {
	return Capacity{CPUs: 16, Host: host, HostFree: 4 * host}
}

func bsParams(n int64) Params { return Params{{"bs", Whole(n)}} }

// TestNothingIsReservedTwice: whatever trials do, reservations never exceed the budget.
func TestNothingIsReservedTwice(t *testing.T) {
	source := rand.New(rand.NewPCG(3, 4))
	s := NewStudy(Options{Metric: "loss", Mode: "min"})
	c := capacity(4 * event.GiB)
	for range 60 {
		s.Add(bsParams(int64(1 + source.IntN(64))))
	}
	peak := func(t *Trial) event.Bytes {
		f, _ := t.Params[0].Value.Float()
		return event.Bytes(100+f*40) * event.MiB
	}
	now := time.Now()
	for step := 0; step < 5000; step++ {
		for {
			l, ok := s.Next(c)
			if !ok {
				break
			}
			s.Start(l.Trial, Attempt{Host: l.Host, CPUs: l.CPUs, Why: l.Why, Started: now})
		}
		if s.reserved() > c.Host {
			t.Fatalf("%s are reserved of %s", s.reserved(), c.Host)
		}
		running := s.Running()
		if len(running) == 0 {
			break
		}
		one := running[source.IntN(len(running))]
		used := min(peak(one), s.Reserved(one.ID))
		s.Observe(one.ID, Usage{Host: used, Peak: used, Still: time.Minute, Age: time.Minute})
		s.Grow(one.ID, Usage{Host: used, Held: used < peak(one)}, c)
		if source.IntN(3) > 0 {
			continue
		}
		o := Outcome{PeakHost: peak(one), Seconds: 5}
		if peak(one) > s.Reserved(one.ID) {
			o = Outcome{OOM: true, Where: event.WhereCgroup, ExitCode: 137,
				PeakHost: s.Reserved(one.ID), Seconds: 5}
		} else {
			s.Reading(one.ID, Reading{Value: 1, Step: -1, Trust: trustExact})
		}
		s.End(one.ID, now, o, c)
	}
	if n := s.Count(); n[Finished] != 60 {
		t.Errorf("states %v", n)
	}
}

// TestLadder: more memory, then remedies, then infeasible.
func TestLadder(t *testing.T) {
	s := NewStudy(Options{Metric: "loss", Mode: "min", Fit: true, TrialHost: event.GiB})
	c := capacity(4 * event.GiB)
	s.Add(bsParams(1))
	var hosts []event.Bytes
	var fits []bool
	for range 10 {
		l, ok := s.Next(c)
		if !ok {
			break
		}
		hosts, fits = append(hosts, l.Host), append(fits, l.Fit)
		s.Start(0, Attempt{Host: l.Host, CPUs: 1, Fit: l.Fit})
		s.End(0, time.Now(), Outcome{OOM: true, Where: event.WhereCgroup, ExitCode: 137,
			Framework: true, PeakHost: l.Host, Seconds: 1}, c)
	}
	if len(hosts) != 4 || hosts[0] != event.GiB || hosts[1] <= hosts[0] ||
		hosts[2] != 4*event.GiB || !fits[3] || s.Trials[0].State != Infeasible {
		t.Errorf("reservations %v, fit %v, %s", hosts, fits, s.Trials[0].State)
	}
}

// TestAFailureIsNoShortage: an error of the program is not answered with more memory.
func TestAFailureIsNoShortage(t *testing.T) {
	s := NewStudy(Options{Metric: "loss", Mode: "min", Retries: 1})
	s.Add(bsParams(1))
	c := capacity(event.GiB)
	n := 0
	for {
		l, ok := s.Next(c)
		if !ok {
			break
		}
		n++
		s.Start(0, Attempt{Host: l.Host})
		s.End(0, time.Now(), Outcome{ExitCode: 3, Seconds: 1}, c)
	}
	if n != 2 || s.Trials[0].State != Failed {
		t.Errorf("%d attempts, %s", n, s.Trials[0].State)
	}
}

// TestUnequalCards: the small trial goes to the small card, the large one waits for the large.
func TestUnequalCards(t *testing.T) {
	s := NewStudy(Options{Metric: "loss", GPUs: 1, TrialHost: event.GiB,
		TrialDevice: 20 * event.GiB, CPUs: 1})
	c := capacity(64 * event.GiB)
	c.Cards = []Card{{Budget: 80 * event.GiB, Free: 80 * event.GiB},
		{Budget: 24 * event.GiB, Free: 24 * event.GiB},
		{Budget: 16 * event.GiB, Free: 16 * event.GiB}}
	var placed []int
	for range 6 {
		s.Add(bsParams(1))
	}
	for {
		l, ok := s.Next(c)
		if !ok {
			break
		}
		placed = append(placed, l.Cards[0])
		s.Start(l.Trial, Attempt{Host: l.Host, Device: l.Device, Cards: l.Cards, CPUs: 1})
	}
	count := map[int]int{}
	for _, card := range placed {
		count[card]++
	}
	if count[0] != 4 || count[1] != 1 || count[2] != 0 {
		t.Errorf("placed %v", placed)
	}
}

func TestImpossibleResourcesNameTheNearest(t *testing.T) {
	c := capacity(8 * event.GiB)
	for _, x := range []struct {
		o     Options
		words string
	}{{Options{CPUs: 64}, "--cpus-per-trial 16"},
		{Options{TrialHost: 9 * event.GiB}, "--trial-mem 8GiB"},
		{Options{GPUs: 1}, "--gpus-per-trial 0"}} {
		if err := x.o.Impossible(c); err == nil || !strings.Contains(err.Error(), x.words) {
			t.Errorf("%+v: %v, want %q", x.o, err, x.words)
		}
	}
}
