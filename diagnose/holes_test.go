package diagnose

import (
	"math"
	"strings"
	"testing"
	"time"

	"memroom/event"
)

// TestFreedBetweenKept: programs on a CPU (torch 2.11, glibc) that keep something at each step
// under a limit that ended them: the limit, then step, heap, pages, free bytes of malloc, heap at
// backward and the most that the meters saw, in KiB. What each frees next to what it keeps stays
// with the process. Forecasts go by what counts against the limit, so the last one comes true; the
// leak names both figures. Twins that keep a bounded number of things, or nothing, are silent.
func TestFreedBetweenKept(t *testing.T) {
	for id, rows := range seriesIn(t, "testdata/holes.jsonl") {
		size := func(kib float64) event.Bytes { return event.Bytes(kib) * event.KiB }
		w := NewWatch(DefaultThresholds(), size(rows[0][0]))
		died := int64(rows[len(rows)-1][0])
		var last Prediction
		var leak event.Finding
		told := 0
		for i, row := range rows[1:] {
			if row[5] > 0 {
				w.Sample(event.Sample{AtMS: int64(250 * i), Anonymous: size(row[5]), Processes: 1})
			}
			found := w.Steps(1, nil, []event.Step{{Step: int64(row[0]), Device: event.HostDevice,
				Duration: 100 * time.Millisecond, Heap: size(row[1]), Anonymous: size(row[2]),
				InactiveSplit: size(row[3]), AtBackward: size(row[4])}})
			for _, ask := range w.Asks() {
				if ask.Do == "heap" {
					w.Holders(1, []Holder{{Name: "kept", Kind: "list", File: "t.py", Line: 3, Host: 1}}, 0)
				}
			}
			for _, f := range found {
				switch f.Kind {
				case "leak":
					leak = f
				case "forecast":
					last = w.Forecasts()[0]
					told++
				}
			}
		}
		if strings.HasPrefix(id, "healthy") {
			if told > 0 || leak.Kind != "" {
				t.Errorf("%s: %d forecasts, %q", id, told, leak.Title)
			}
			continue
		}
		if off := math.Abs(float64(last.Step-died)) / float64(died); off > 0.15 {
			t.Errorf("%s died at step %d, said last: %d (%.0f %% off)", id, died, last.Step, 100*off)
		}
		if told > 12 {
			t.Errorf("%s: %d forecasts", id, told)
		}
		for _, f := range w.Ended() {
			leak = f
		}
		kept := size(rows[len(rows)-1][1] - rows[1][1])
		says := strings.Contains(leak.Title, "per step since step") &&
			strings.Contains(leak.Title, "; memory grows by ")
		if id != "numpykept" && (!says || leak.Bytes < kept*6/5) {
			t.Errorf("%s kept %s: %q is about %s", id, kept, leak.Title, leak.Bytes)
		}
	}
}

// TestFreedBetweenKeptOnACard: each step keeps a MiB and leaves four free in segments that are
// partly in use. That is no growing work, and the end comes when both together reach the limit.
func TestFreedBetweenKeptOnACard(t *testing.T) {
	w := NewWatch(DefaultThresholds(), 0)
	w.SetLimit(1, 0, event.GiB)
	var leak event.Finding
	for step := event.Bytes(1); step <= 60; step++ {
		kept, free := 100*event.MiB+step*event.MiB, 4*step*event.MiB
		for _, f := range w.Steps(1, nil, []event.Step{{Step: int64(step), Duration: time.Second,
			Allocated: kept, InactiveSplit: free, Reserved: kept + free + 20*event.MiB}}) {
			if f.Kind == "leak" {
				leak = f
			}
		}
	}
	forecasts := w.Forecasts()
	if len(forecasts) != 1 || forecasts[0].Step < 180 || forecasts[0].Step > 190 {
		t.Errorf("924 MiB are left at 5 MiB a step: %+v", forecasts)
	}
	if !strings.Contains(leak.Title, "1MiB kept per step") ||
		!strings.Contains(leak.Title, "memory grows by 5MiB per step") {
		t.Errorf("%q", leak.Title)
	}
}

// TestHowHighStepsGo: between two readings the kernel alone sees how high the run stood.
func TestHowHighStepsGo(t *testing.T) {
	h := hostWatch{}
	for _, peak := range []event.Bytes{400, 400, 450, 450} {
		h.tree = 300
		h.rose(event.Sample{Cgroup: &event.CgroupSample{Own: true, Peak: peak, File: 60, Shmem: 10}})
	}
	if got := h.crest(); got != 400 {
		t.Errorf("%d, want 450 less 50 of files", got)
	}
	for range crestReadings {
		h.rose(event.Sample{})
	}
	if got := h.crest(); got != 300 {
		t.Errorf("%d: what is long past counts", got)
	}
}
