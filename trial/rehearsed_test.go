package trial

import (
	"strings"
	"testing"
	"time"

	"memroom/event"
)

func rehearsable(o Options, batches ...int64) *Study {
	o.Metric = "loss"
	s := NewStudy(o)
	s.ExpectRehearsals(true)
	for i, bs := range batches {
		s.Add(Params{{"bs", Whole(bs)}, {"lr", Number(float64(i+1) / 100)}})
	}
	return s
}

func oneCard(budget event.Bytes) Capacity {
	c := capacity(64 * event.GiB)
	c.Cards = []Card{{Budget: budget, Free: budget}}
	return c
}

// TestRehearsedMisfitsAreNeverStarted: every setting that differs in a rate alone is skipped with
// the one that was rehearsed; nothing starts before its own rehearsal.
func TestRehearsedMisfitsAreNeverStarted(t *testing.T) {
	s := rehearsable(Options{GPUs: 1, CPUs: 1}, 64, 8, 64)
	c := oneCard(24 * event.GiB)
	if _, ok := s.Next(c); ok {
		t.Fatal("a trial was started before its rehearsal")
	}
	s.Rehearsed(s.Unrehearsed().Params, &Rehearsed{Low: 40 * event.GiB, High: 41 * event.GiB}, c)
	skipped := s.Skip()
	if len(skipped) != 2 || skipped[0].ID != 0 || skipped[1].ID != 2 ||
		!strings.Contains(skipped[0].Why, "40GiB") {
		t.Fatalf("skipped %v", skipped)
	}
	s.Rehearsed(s.Unrehearsed().Params, &Rehearsed{Low: 5 * event.GiB, High: 6 * event.GiB}, c)
	l, ok := s.Next(c)
	if !ok || l.Trial != 1 || l.Device < 6*event.GiB || l.Device > 12*event.GiB {
		t.Errorf("%+v %v: the rehearsed trial should have a little more than 6 GiB", l, ok)
	}
	if s.Unrehearsed() != nil {
		t.Error("something is left to rehearse")
	}
}

// TestARehearsedMisfitBeginsWithRemedies: with --fit only what no remedy makes smaller is hopeless.
func TestARehearsedMisfitBeginsWithRemedies(t *testing.T) {
	for _, kept := range []event.Bytes{4 * event.GiB, 30 * event.GiB} {
		s := rehearsable(Options{GPUs: 1, CPUs: 1, Fit: true}, 64)
		c := oneCard(24 * event.GiB)
		s.Rehearsed(s.Unrehearsed().Params, &Rehearsed{Low: 40 * event.GiB, High: 41 * event.GiB,
			Kept: kept}, c)
		skipped := s.Skip()
		if kept > 24*event.GiB {
			if len(skipped) != 1 {
				t.Errorf("weights of %v were not skipped", kept)
			}
			continue
		}
		l, ok := s.Next(c)
		if !ok || !l.Fit || l.Device != 24*event.GiB {
			t.Errorf("%+v %v: remedies and the whole card should come first", l, ok)
		}
	}
}

// TestOnTheProcessorTensorsCount: without a card the tensors must fit into host memory.
func TestOnTheProcessorTensorsCount(t *testing.T) {
	s := rehearsable(Options{CPUs: 1}, 64, 8)
	c := capacity(2 * event.GiB)
	s.Rehearsed(s.Unrehearsed().Params, &Rehearsed{Tensors: 3 * event.GiB, Kept: event.GiB}, c)
	if skipped := s.Skip(); len(skipped) != 1 || skipped[0].ID != 0 {
		t.Errorf("skipped %v", skipped)
	}
	s.Rehearsed(s.Unrehearsed().Params, nil, c) // it could not be rehearsed
	if l, ok := s.Next(c); !ok || l.Trial != 1 {
		t.Errorf("%+v %v: an unknown one just runs", l, ok)
	}
	s.Start(1, Attempt{Host: event.GiB, Started: time.Now()})
	s.ExpectRehearsals(false)
	s.Add(bsParams(7))
	if s.Unrehearsed() != nil {
		t.Error("rehearsals go on after their end")
	}
}
