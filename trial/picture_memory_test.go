package trial

import (
	"fmt"
	"testing"
	"time"

	"memroom/event"
)

// cliffStudy has trials of 2 MiB a batch that finish up to 64, and do not fit beyond.
func cliffStudy(t *testing.T) (*Study, Picture) {
	t.Helper()
	s := NewStudy(Options{Metric: "loss", Mode: "min"})
	c := Capacity{CPUs: 1, Host: 200 * event.MiB, HostFree: event.GiB}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	space := Space{}
	for i, bs := range []int64{8, 16, 32, 64, 128, 256, 8, 16, 32, 64} {
		lr := float64((i+i/6)%2+1) / 100 // every batch with each
		s.Add(Params{{"lr", Number(lr)}, {"bs", Whole(bs)}, {"opt", Value{Data: fmt.Sprint("o", i%2)}}})
		s.Start(i, Attempt{Run: fmt.Sprint("r", i), Host: 200 * event.MiB, Started: at})
		at = at.Add(time.Second)
		o := Outcome{PeakHost: event.Bytes(bs) * 2 * event.MiB}
		if bs > 64 {
			o = Outcome{OOM: true, Where: event.WhereHost, ExitCode: 137, PeakHost: 200 * event.MiB}
		}
		s.Reading(i, Reading{Value: lr, Trust: TrustReport})
		s.End(i, at, o, c)
	}
	return s, s.Picture(space, at)
}

func TestShapeShowsTheCliff(t *testing.T) {
	s, p := cliffStudy(t)
	shape := s.Shape(p)
	if len(shape.Cliffs) != 1 || shape.Cliffs[0] != (Cliff{"bs", 64, 128}) {
		t.Errorf("cliffs: %v", shape.Cliffs)
	}
	weights := map[string]Weight{}
	for _, w := range shape.Weights {
		weights[w.Axis] = w
	}
	if w := weights["bs"]; w.Memory < 0.7 || w.Metric > 0.2 {
		t.Errorf("bs: %+v; memory goes with it and the value does not", w)
	}
	if w := weights["lr"]; w.Metric < 0.99 || w.Memory > 0.2 {
		t.Errorf("lr: %+v; the value goes with it and memory does not", w)
	}
	more := 0
	for _, peak := range shape.Peaks {
		if peak.More {
			more++
		}
	}
	if len(shape.Peaks) != 10 || more != 2 || len(shape.Ledger) != 2 {
		t.Errorf("%d peaks, %d want more, %d in the ledger", len(shape.Peaks), more,
			len(shape.Ledger))
	}
	for _, r := range shape.Ledger {
		if r.Became != Infeasible || len(r.Steps) != 1 || r.Nearest == nil {
			t.Errorf("%+v", r)
		}
	}
}

// TestOneThatRanOutDoesNotRaiseTheOthers: a setting of which only the least is known must not make
// all others look as large.
func TestOneThatRanOutDoesNotRaiseTheOthers(t *testing.T) {
	s, _ := cliffStudy(t)
	f := s.Host.Forecast(Params{{"lr", Number(0.01)}, {"bs", Whole(24)}, {"opt", Value{Data: "o0"}}})
	if need := 48 * event.MiB; f.Bytes < need || f.Bytes > 2*need+2*pad {
		t.Errorf("bs=24 needs %v and is given %v (%s)", need, f.Bytes, f.Why)
	}
	f = s.Host.Forecast(Params{{"lr", Number(0.01)}, {"bs", Whole(512)}, {"opt", Value{Data: "o0"}}})
	if f.Bytes < event.GiB {
		t.Errorf("bs=512 needs 1 GiB and is given %v (%s)", f.Bytes, f.Why)
	}
}
