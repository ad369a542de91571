package diagnose

import (
	"testing"
	"time"

	"memroom/event"
)

// TestForecastTimeIgnoresTheFirstStep: the first step of a run begins with the import of its
// framework and can be a thousand times as long as the others; the forecast must not carry that.
func TestForecastTimeIgnoresTheFirstStep(t *testing.T) {
	w := NewWatch(DefaultThresholds(), 0)
	w.SetLimit(1, 0, event.GiB)
	for step := int64(1); step <= 60; step++ {
		d := 20 * time.Millisecond
		if step == 1 {
			d = 30 * time.Second
		}
		w.Steps(1, nil, []event.Step{{Step: step, Duration: d,
			Allocated: 100*event.MiB + event.Bytes(step)*event.MiB, Reserved: 300 * event.MiB}})
	}
	forecasts := w.Forecasts()
	if len(forecasts) != 1 {
		t.Fatalf("%d forecasts of a steady leak", len(forecasts))
	}
	f := forecasts[0]
	if want := time.Duration(f.Step-60) * 20 * time.Millisecond; f.In < want/2 || f.In > 2*want {
		t.Errorf("said to last %v, want about %v (step %d)", f.In, want, f.Step)
	}
}

// TestSoftLimitIsAWall: a limit that no cgroup shows is one for the forecast too, and the run's
// other processes take part of it.
func TestSoftLimitIsAWall(t *testing.T) {
	for name, c := range map[string]struct {
		limit, others event.Bytes
		want          int64 // step at which 200 MiB and 1 MiB a step reach it; 0: silent
	}{
		"no limit": {0, 0, 0}, "soft": {400 * event.MiB, 0, 200},
		"with others": {400 * event.MiB, 100 * event.MiB, 100},
	} {
		w := NewWatch(DefaultThresholds(), c.limit)
		for step := int64(1); step <= 80; step++ {
			own := 200*event.MiB + event.Bytes(step)*event.MiB
			w.Sample(event.Sample{AtMS: step, Anonymous: own + c.others, Processes: 2})
			w.Steps(1, nil, []event.Step{{Step: step, Device: event.HostDevice,
				Duration: time.Second, Heap: own, Anonymous: own}})
		}
		forecasts := w.Forecasts()
		if told := len(forecasts) > 0; told != (c.want > 0) || told &&
			(forecasts[0].Step < c.want-2 || forecasts[0].Step > c.want+2) {
			t.Errorf("%s: %+v, want step %d", name, forecasts, c.want)
		}
	}
}

// TestTimeBetweenSteps: where a program does other things between its steps, a forecast reckons
// with the time that passes, not with what the steps take.
func TestTimeBetweenSteps(t *testing.T) {
	p := &process{stepTime: 10}
	row := event.Step{Step: 12, End: p.first.End.Add(1000)}
	if got := p.pace(row); got != 10 {
		t.Errorf("nothing is known: %d", got)
	}
	p.first = event.Step{Step: 2, End: row.End.Add(-500)}
	if got := p.pace(row); got != 50 {
		t.Errorf("50 from step to step: %d", got)
	}
	p.stepTime = 80
	if got := p.pace(row); got != 80 {
		t.Errorf("steps of 80: %d", got)
	}
}
