package diagnose

import (
	"testing"
	"time"

	"memroom/event"
)

// TestForecastTimeIgnoresTheFirstStep: the first step of a run begins with the import of its framework and can be a
// thousand times as long as the others; the forecast must not carry that.
func TestForecastTimeIgnoresTheFirstStep(t *testing.T) {
	w := NewWatch(DefaultThresholds(), 0)
	w.SetLimit(1, 0, event.GiB)
	for step := int64(1); step <= 60; step++ {
		d := 20 * time.Millisecond
		if step == 1 {
			d = 30 * time.Second
		}
		w.Steps(1, nil, []event.Step{{Step: step, Duration: d, Allocated: 100*event.MiB + event.Bytes(step)*event.MiB, Reserved: 300 * event.MiB}})
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
