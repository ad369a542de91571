package diagnose

import (
	"slices"
	"strings"
	"testing"

	"memroom/event"
)

// heapRun feeds a watch the heap of a program after each step. It collects garbage when asked, as a
// probe does: two steps later. It returns the steps at which a leak was named.
func heapRun(t *testing.T, steps int, grows, garbage float64, atStart float64) (named []int64) {
	t.Helper()
	w := NewWatch(DefaultThresholds(), 0)
	held, waiting, due := 150.0*testMiB, atStart, int64(-1)
	for step := int64(1); step <= int64(steps); step++ {
		held, waiting = held+grows, waiting+garbage
		if step == due {
			w.Collected(7)
			waiting = 0
		}
		row := event.Step{Step: step, Device: event.HostDevice, Heap: event.Bytes(held + waiting),
			Anonymous: 300 * event.MiB}
		for _, f := range w.Steps(7, nil, []event.Step{row}) {
			sound(t, f)
			if f.Kind == "leak" {
				named = append(named, step)
			}
		}
		if slices.ContainsFunc(w.Asks(), func(a Ask) bool { return a.Do == "collect" }) {
			due = step + 2
		}
	}
	return named
}

// TestGarbage: objects that wait for the collector grow like a leak. When a collection that was
// asked for makes the growth go away, no leak is named; what outlasts a second one is, though the
// first gave back what the start of the program had left.
func TestGarbage(t *testing.T) {
	const block = 16 * 1024
	if named := heapRun(t, 400, 0, block, 0); len(named) > 0 {
		t.Errorf("garbage alone was called a leak at steps %v", named)
	}
	if named := heapRun(t, 400, block, 0, 0); len(named) != 1 || named[0] > 41 {
		t.Errorf("a leak that starts with the program was named at %v, want once, within 40 steps",
			named)
	}
	if named := heapRun(t, 400, block, 0, testMiB); len(named) == 0 || named[0] > 80 {
		t.Errorf("a leak beside garbage from the start was named at %v, want within 80 steps",
			named)
	}
}

// TestHostBesideCard: the heap of a process that trains on a card is judged as well, though it is
// read less often. If more leaks on the card, the same leak is not reported for the host too.
func TestHostBesideCard(t *testing.T) {
	for name, c := range map[string]struct {
		card, host float64 // bytes a step
		want       string
	}{"host only": {0, 32 << 10, "host memory"}, "card and its graph": {512 << 10, 12 << 10,
		"GPU 0 memory"},
		"neither": {0, 0, ""}} {
		w, heap, titles := NewWatch(DefaultThresholds(), 0), 600.0*testMiB, []string{}
		for step := int64(1); step <= 120; step++ {
			if step%5 == 1 {
				heap = 600*testMiB + c.host*float64(step)
			}
			row := event.Step{Step: step, Allocated: event.Bytes(70*testMiB + c.card*float64(step)),
				Reserved: 200 * event.MiB,
				Heap:     event.Bytes(heap), Anonymous: 700 * event.MiB}
			for _, f := range w.Steps(7, nil, []event.Step{row}) {
				sound(t, f)
				if f.Kind == "leak" {
					titles = append(titles, f.Title)
					if step > 42 {
						t.Errorf("%s: named at step %d", name, step)
					}
				}
			}
		}
		if c.want == "" && len(titles) > 0 || c.want != "" &&
			(len(titles) != 1 || !strings.Contains(titles[0], c.want)) {
			t.Errorf("%s: said %q, want one about %q", name, titles, c.want)
		}
	}
}
