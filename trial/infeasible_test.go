package trial

import (
	"strings"
	"testing"
	"time"

	"memroom/event"
)

// TestWhatDoesNotFitIsNotTriedAgain: settings that differ in rates only take the same memory.
func TestWhatDoesNotFitIsNotTriedAgain(t *testing.T) {
	s := NewStudy(Options{Metric: "loss", Mode: "min"})
	with := func(lr float64, bs int64, width string) Params {
		return Params{{"optim.lr", Number(lr)}, {"bs", Whole(bs)}, {"width", Value{Data: width}}}
	}
	for _, p := range []Params{with(0.1, 64, "wide"), with(0.2, 64, "wide"), with(0.1, 64, "slim"),
		with(0.1, 32, "wide")} {
		s.Add(p)
	}
	c := Capacity{CPUs: 2, Host: event.GiB, HostFree: 2 * event.GiB}
	l := start(t, s, c)
	if got := s.Skip(); got != nil {
		t.Fatalf("%v are skipped before anything is known", got)
	}
	s.End(l.Trial, time.Now(), Outcome{OOM: true, Where: event.WhereHost, ExitCode: 137}, c)
	skipped := s.Skip()
	if len(skipped) != 1 || skipped[0].ID != 1 || skipped[0].State != Infeasible ||
		!strings.Contains(skipped[0].Why, "trial 0") || s.WaitingCount() != 2 {
		t.Fatalf("%v are skipped, %d wait", skipped, s.WaitingCount())
	}
	if s.Nearest(skipped[0]) != nil {
		t.Error("nothing finished, and there is a nearest that fits")
	}
	for range 2 {
		l = start(t, s, c)
		s.Reading(l.Trial, Reading{Value: 1, Trust: TrustReport})
		s.End(l.Trial, time.Now(), Outcome{PeakHost: event.Bytes(l.Trial) * 100 * event.MiB}, c)
	}
	if near := s.Nearest(skipped[0]); near == nil || near.ID != 3 {
		t.Errorf("nearest is %v; both differ in one knob, 3 is the larger one", near)
	}

	// and after a crash
	again := NewStudy(s.Options)
	for _, one := range s.Trials {
		again.Add(one.Params)
	}
	again.Skipped(1, skipped[0].Why)
	if again.Trials[1].State != Infeasible || again.WaitingCount() != 3 {
		t.Errorf("restored as %s, %d wait", again.Trials[1].State, again.WaitingCount())
	}
}
