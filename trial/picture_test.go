package trial

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"memroom/event"
)

// pictured is a study with a trial of each kind: two at once, one that runs out and comes again,
// one that still runs.
func picturedStudy(t *testing.T) (*Study, Space, time.Time) {
	t.Helper()
	began := time.Date(2026, 11, 16, 8, 0, 0, 0, time.UTC)
	at := func(s float64) time.Time { return began.Add(time.Duration(s * float64(time.Second))) }
	s := NewStudy(Options{Metric: "loss", Mode: "min"})
	for _, p := range []struct {
		lr  float64
		opt any
	}{{0.1, "sgd"}, {0.001, "adam"}, {0.01, "sgd"}} {
		s.Add(Params{{"lr", Number(p.lr)}, {"opt", Value{Data: p.opt}}})
	}
	capacity := Capacity{Host: 8 * event.GiB}
	report := func(id int, value float64) { s.Reading(id, Reading{Step: 1, Value: value, Trust: 1}) }
	s.Start(0, Attempt{Run: "r0", Host: 2 * event.GiB, Started: at(0)})
	s.Start(1, Attempt{Run: "r1", Host: event.GiB, Started: at(1)})
	report(0, 0.5)
	s.End(0, at(5), Outcome{PeakHost: event.GiB}, capacity)
	s.End(1, at(6), Outcome{OOM: true, Where: event.WhereCgroup, ExitCode: 137,
		PeakHost: event.GiB}, capacity)
	s.Start(1, Attempt{Run: "r2", Host: 3 * event.GiB, Started: at(7)})
	report(1, 0.25)
	s.End(1, at(9), Outcome{PeakHost: 2 * event.GiB}, capacity)
	s.Start(2, Attempt{Run: "r3", Host: event.GiB, Started: at(8)})
	return s, Space{{Name: "lr", Domain: Domain{Kind: LogScale}},
		{Name: "opt", Domain: Domain{Kind: Choice}}}, at(10)
}

func TestPictureOfAStudy(t *testing.T) {
	s, space, now := picturedStudy(t)
	p := s.Picture(space, now)
	if p.Seconds != 10 || p.Attempts != 4 || p.OOMs != 1 || p.Best == nil || *p.Best != 1 {
		t.Errorf("took %v s, %d attempts, %d of them out of memory, best %v", p.Seconds, p.Attempts,
			p.OOMs, p.Best)
	}
	if len(p.Records) != 2 || p.Records[0] != (Record{5, 0.5, 0}) ||
		p.Records[1] != (Record{9, 0.25, 1}) {
		t.Errorf("records %v", p.Records)
	}
	lr, opt := p.Axes[0], p.Axes[1]
	if !lr.Log || lr.Low != 0.001 || lr.High != 0.1 || len(opt.Choices) != 2 {
		t.Errorf("axes %+v", p.Axes)
	}
	if at := *p.Trials[2].At[0]; math.Abs(at-0.5) > 1e-9 {
		t.Errorf("0.01 stands at %v between 0.001 and 0.1 on a scale of factors", at)
	}
	if at := *p.Trials[1].At[1]; at != 0 { // adam before sgd
		t.Errorf("adam stands at %v", at)
	}
	lanes := []int{p.Trials[0].Attempts[0].Lane, p.Trials[1].Attempts[0].Lane,
		p.Trials[1].Attempts[1].Lane, p.Trials[2].Attempts[0].Lane}
	for i, want := range []int{0, 1, 0, 1} {
		if lanes[i] != want {
			t.Errorf("lanes %v, want 0 1 0 1", lanes)
			break
		}
	}
	most, running := event.Bytes(0), 0
	for _, h := range p.Held {
		most, running = max(most, h.Host), max(running, h.Running)
	}
	if last := p.Held[len(p.Held)-1]; most != 4*event.GiB || running != 2 ||
		last.Host != event.GiB || last.Running != 1 {
		t.Errorf("at most %v held by %d, at the end %+v", most, running, last)
	}
	if first := p.Trials[1].Attempts[0]; !first.OOM || first.How == "finished" ||
		p.Trials[1].Attempts[1].How != "finished" || !p.Trials[2].Attempts[0].Going {
		t.Errorf("attempts %+v", p.Trials[1].Attempts)
	}
	if _, err := json.Marshal(p); err != nil {
		t.Error(err)
	}
}

// TestPictureHoldsWhatJSONCannot: values that are no numbers, no trials, and parameters that are
// in no space.
func TestPictureHoldsWhatJSONCannot(t *testing.T) {
	now := time.Now()
	empty := NewStudy(Options{Mode: "max"}).Picture(nil, now)
	if data, err := json.Marshal(empty); err != nil || empty.Seconds != 0 {
		t.Errorf("an empty study: %v %s", err, data)
	}
	s := NewStudy(Options{Metric: "x", Mode: "max"})
	s.Add(Params{{"odd", Value{Data: nil}}, {"n", Whole(3)}})
	s.Add(Params{{"n", Whole(3)}})
	s.Start(0, Attempt{Run: "r", Started: now})
	s.Reading(0, Reading{Step: 1, Value: math.NaN(), Trust: 1})
	s.Reading(0, Reading{Step: 2, Value: math.Inf(1), Trust: 1})
	s.End(0, now, Outcome{}, Capacity{})
	p := s.Picture(Space{{Name: "never", Domain: Domain{Kind: Uniform}}}, now)
	if _, err := json.Marshal(p); err != nil {
		t.Fatal(err)
	}
	if len(p.Axes) != 3 || p.Trials[1].At[1] != nil || *p.Trials[0].At[2] != 0.5 {
		t.Errorf("axes %+v, positions %v", p.Axes, p.Trials[1].At)
	}
	if len(p.Trials[0].History) != 0 {
		t.Errorf("history %v", p.Trials[0].History)
	}
}

func TestLongHistoriesAreThinned(t *testing.T) {
	var points []Point
	for i := range 1000 {
		points = append(points, Point{i, float64(i)})
	}
	thin := thinTo(points, mostHistory)
	if len(thin) != mostHistory || thin[0].Step != 0 || thin[len(thin)-1].Step != 999 {
		t.Errorf("%d points from %v to %v", len(thin), thin[0], thin[len(thin)-1])
	}
}
