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
// the one that was rehearsed; nothing but the first trial starts before its own rehearsal.
func TestRehearsedMisfitsAreNeverStarted(t *testing.T) {
	s := rehearsable(Options{GPUs: 1, CPUs: 1}, 64, 8, 64)
	c := oneCard(24 * event.GiB)
	if l, ok := s.Next(c); !ok || l.Trial != 0 || l.Device != 24*event.GiB {
		t.Fatalf("%+v %v: the largest should have the card until the first rehearsals are over", l, ok)
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

// TestAFewRehearsalsTellTheOthers: the most different settings are rehearsed first; once sizes are
// a plain function of them, the rest wait for nothing, and what a trial takes beyond its rehearsal
// is expected of all.
func TestAFewRehearsalsTellTheOthers(t *testing.T) {
	var batches []int64
	for n := range int64(40) {
		batches = append(batches, 8+4*n)
	}
	s, c := rehearsable(Options{CPUs: 0.1}, batches...), capacity(64*event.GiB)
	c.NodeHost = 16 * event.GiB
	size := func(p Params) event.Bytes {
		bs, _ := p[0].Value.Float()
		return event.Bytes(bs) * 20 * event.MiB
	}
	rehearsed := 0
	for next := s.Unrehearsed(); next != nil; next = s.Unrehearsed() {
		if bs, _ := next.Params[0].Value.Float(); rehearsed == 0 && bs != 164 || rehearsed == 1 && bs != 8 {
			t.Errorf("rehearsal %d is of a batch of %v", rehearsed, bs)
		}
		s.Rehearsed(next.Params, &Rehearsed{Resident: 200 * event.MiB, Tensors: size(next.Params)}, c)
		rehearsed++
	}
	if rehearsed > 2*trusted {
		t.Errorf("%d of 40 were rehearsed", rehearsed)
	}
	l, ok := s.Next(c)
	if want := 2*size(l.Params) + 400*event.MiB; !ok || l.Trial != 39 || l.Host < want {
		t.Errorf("%+v %v: the largest should begin, with twice what was said", l, ok)
	}
	before := s.Trials[0].forecast(0, &s.Host).Bytes
	s.Start(l.Trial, Attempt{Host: l.Host, Started: time.Now()})
	s.Observe(l.Trial, Usage{Host: l.Host * 3 / 4, Peak: l.Host * 3 / 4})
	if after := s.Trials[0].forecast(0, &s.Host).Bytes; after < before*5/4 {
		t.Errorf("%v after a trial that took more than was said, %v before", after, before)
	}
}
