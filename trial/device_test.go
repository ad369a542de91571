package trial

import (
	"testing"
	"time"

	"memroom/event"
)

func batchOf(bs int64) Params { return Params{{"lr", Number(0.001)}, {"bs", Whole(bs)}} }

func start(t *testing.T, s *Study, c Capacity) Launch {
	t.Helper()
	l, ok := s.Next(c)
	if !ok {
		t.Fatal("nothing is started")
	}
	s.Start(l.Trial, Attempt{Run: "r", Host: l.Host, Device: l.Device, Cards: l.Cards, CPUs: l.CPUs,
		Why: l.Why})
	return l
}

// TestACardIsSharedBeforeTheFirstTrialEnds: the first trial has all of the card until its memory
// stands still; then it is held to that, and the next ones are scaled from it.
func TestACardIsSharedBeforeTheFirstTrialEnds(t *testing.T) {
	s := NewStudy(Options{Metric: "loss", Mode: "min", GPUs: 1, TrialHost: event.GiB, CPUs: 1})
	for _, bs := range []int64{8, 16, 32, 8} {
		s.Add(batchOf(bs))
	}
	c := Capacity{CPUs: 16, Host: 64 * event.GiB, HostFree: 64 * event.GiB, GPU: 60 * event.GiB,
		Cards: []Card{{Budget: 60 * event.GiB, Free: 139 * event.GiB}}}
	first := start(t, s, c)
	if first.Device != 60*event.GiB {
		t.Errorf("the first has %v, want everything", first.Device)
	}
	if l, ok := s.Next(c); ok {
		t.Fatalf("%+v is started beside one that has the whole card", l)
	}
	u := Usage{Host: event.GiB, Device: 4 * event.GiB, Age: 20 * time.Second}
	s.Observe(first.Trial, u)
	if got := s.ObserveDevice(first.Trial, u); got != 0 {
		t.Errorf("held to %v before its first step", got)
	}
	u.CardSteps, u.CardRose = 20, 15
	if got := s.ObserveDevice(first.Trial, u); got != 0 {
		t.Errorf("held to %v while its memory rose in the last half of its steps", got)
	}
	u.CardSteps = 30
	if limit := s.CardCap(first.Trial, c); limit != 60*event.GiB {
		t.Errorf("its allocator may take %v, want everything", limit)
	}
	if got := s.ObserveDevice(first.Trial, u); got != 5*event.GiB+cardPad {
		t.Errorf("held to %v, want what it has and a quarter", got)
	}
	seen := map[int64]event.Bytes{}
	for range 3 {
		l := start(t, s, c)
		bs, _ := l.Params.Get("bs")
		f, _ := bs.Float()
		seen[int64(f)] = l.Device
	}
	if seen[32] < 16*event.GiB || seen[16] < 8*event.GiB || seen[8] < 4*event.GiB ||
		seen[8] > 6*event.GiB {
		t.Errorf("by batch: %v; want at least in proportion to the 4 GiB of batch 8", seen)
	}
	sum := s.reservedOnCards()
	if sum > c.GPU {
		t.Errorf("%v are reserved of %v", sum, c.GPU)
	}
	if limit := s.CardCap(first.Trial, c); limit != s.ReservedDevice(first.Trial)+c.GPU-sum {
		t.Errorf("its allocator may take %v, want its reservation and the rest", limit)
	}
}

// TestATrialGrowsOnItsCard: near its reservation it gets more while nobody reserved that.
func TestATrialGrowsOnItsCard(t *testing.T) {
	s := NewStudy(Options{Metric: "loss", Mode: "min", GPUs: 1, TrialHost: event.GiB,
		TrialDevice: 10 * event.GiB, CPUs: 1})
	s.Add(batchOf(8))
	c := Capacity{CPUs: 4, Host: 8 * event.GiB, HostFree: 8 * event.GiB, GPU: 12 * event.GiB,
		Cards: []Card{{Budget: 12 * event.GiB, Free: 70 * event.GiB}}}
	l := start(t, s, c)
	if got := s.GrowDevice(l.Trial, Usage{Device: 5 * event.GiB}, c); got != 0 {
		t.Errorf("grows to %v with half of it unused", got)
	}
	near := Usage{Device: 9.5 * 1024 * event.MiB}
	if got := s.GrowDevice(l.Trial, near, c); got != 12*event.GiB {
		t.Errorf("grows to %v, want the rest of the budget", got)
	}
	near.Device = 11.75 * 1024 * event.MiB
	if got := s.GrowDevice(l.Trial, near, c); got != 0 {
		t.Errorf("grows to %v beyond the budget", got)
	}
	s.End(l.Trial, time.Now(), Outcome{OOM: true, Where: event.WhereGPU, ExitCode: 1}, c)
	if state := s.Trials[0].State; state != Infeasible {
		t.Errorf("ran out with all of the budget: %s", state)
	}
}

// TestATrialThatStandsStillOnItsCardDoesNotGrow: what it was given is enough, however near it is.
func TestATrialThatStandsStillOnItsCardDoesNotGrow(t *testing.T) {
	s := NewStudy(Options{Metric: "loss", Mode: "min", GPUs: 1, TrialHost: event.GiB,
		TrialDevice: 10 * event.GiB, CPUs: 1})
	s.Add(batchOf(8))
	c := Capacity{CPUs: 4, Host: 8 * event.GiB, HostFree: 8 * event.GiB, GPU: 12 * event.GiB,
		Cards: []Card{{Budget: 12 * event.GiB, Free: 70 * event.GiB}}}
	l := start(t, s, c)
	u := Usage{Device: 9.5 * 1024 * event.MiB, CardSteps: 20, CardRose: 2}
	s.Observe(l.Trial, u)
	s.ObserveDevice(l.Trial, u)
	if got := s.GrowDevice(l.Trial, u, c); got != 0 {
		t.Errorf("grows to %v, which others could use", got)
	}
}
