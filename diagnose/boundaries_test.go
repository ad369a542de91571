package diagnose

import (
	"strings"
	"testing"

	"memroom/event"
)

// TestBoundaries holds each limit that a user would recognise from both sides: just below it
// nothing is said, just above it the finding is there. The figures are spelled out, because people
// plan by them; none is read from DefaultThresholds.
func TestBoundaries(t *testing.T) {
	const gib, mib = event.GiB, event.MiB
	machine := func(change func(*event.MachineSample)) event.Sample {
		m := &event.MachineSample{Total: 100 * gib, Available: 50 * gib, SwapTotal: 8 * gib,
			SwapFree: 8 * gib, ShmTotal: gib}
		change(m)
		return event.Sample{Machine: m}
	}
	short := func(m *event.MachineSample) *event.MachineSample {
		m.Available = 9 * gib
		return m
	}
	shared := func(others, total, free event.Bytes) event.Sample {
		return event.Sample{Devices: []event.DeviceSample{{UUID: "u", Name: "card", Total: total,
			Used: total - free, Ours: total - free - others, Others: others, Utilisation: 50}}}
	}
	card := func(others, total event.Bytes) event.Sample { return shared(others, total, 100*mib) }
	for name, c := range map[string]struct {
		silent, said func(second event.Bytes) event.Sample
		kind         string
	}{
		"5 % of the machine are free": {
			func(event.Bytes) event.Sample {
				return machine(func(m *event.MachineSample) { m.Available = 5*gib + 16*mib })
			},
			func(event.Bytes) event.Sample {
				return machine(func(m *event.MachineSample) { m.Available = 5 * gib })
			}, "host_pressure"},
		"some processes wait 30 % of the time": {
			func(event.Bytes) event.Sample {
				return machine(func(m *event.MachineSample) { short(m).PressureSome = 29.9 })
			},
			func(event.Bytes) event.Sample {
				return machine(func(m *event.MachineSample) { short(m).PressureSome = 30 })
			}, "host_pressure"},
		"all processes wait 10 % of the time": {
			func(event.Bytes) event.Sample {
				return machine(func(m *event.MachineSample) { short(m).PressureFull = 9.9 })
			},
			func(event.Bytes) event.Sample {
				return machine(func(m *event.MachineSample) { short(m).PressureFull = 10 })
			}, "host_pressure"},
		"/dev/shm is nine tenths full": {
			func(event.Bytes) event.Sample {
				return machine(func(m *event.MachineSample) { m.ShmUsed = 921 * mib })
			},
			func(event.Bytes) event.Sample {
				return machine(func(m *event.MachineSample) { m.ShmUsed = 922 * mib })
			}, "shm"},
		"swap grows by 256 MiB in a minute": {
			func(s event.Bytes) event.Sample { return swapping(s * 4 * mib) },
			func(s event.Bytes) event.Sample { return swapping(s * 5 * mib) }, "swap"},
		"workers copy 512 MiB in ten minutes": {
			func(s event.Bytes) event.Sample { return workers(9, 80*gib, s*5*mib) },
			func(s event.Bytes) event.Sample { return workers(9, 80*gib, s*6*mib) },
			"worker_growth"},
		"which map no more than before": {
			func(s event.Bytes) event.Sample { return workers(9, 80*gib+s*11*mib, s*20*mib) },
			func(s event.Bytes) event.Sample { return workers(9, 80*gib+s*9*mib, s*20*mib) },
			"worker_growth"},
		"neighbours hold a tenth of the card": {
			func(event.Bytes) event.Sample { return card(23*gib/10, 24*gib) },
			func(event.Bytes) event.Sample { return card(25*gib/10, 24*gib) }, "neighbour"},
		"neighbours hold a gibibyte": {
			func(event.Bytes) event.Sample { return card(1020*mib, 8*gib) },
			func(event.Bytes) event.Sample { return card(1025*mib, 8*gib) }, "neighbour"},
		"a tenth of the card that neighbours share is free": {
			func(event.Bytes) event.Sample { return shared(12*gib, 24*gib, 25*gib/10) },
			func(event.Bytes) event.Sample { return shared(12*gib, 24*gib, 23*gib/10) },
			"neighbour"},
	} {
		if got := hostKinds(c.silent); len(got) != 0 {
			t.Errorf("%s: below it %v were said", name, got)
		}
		if got := hostKinds(c.said); len(got) != 1 || got[0] != c.kind {
			t.Errorf("%s: said %v, want %s", name, got, c.kind)
		}
	}
}

func swapping(used event.Bytes) event.Sample {
	return event.Sample{Swapped: used, Machine: &event.MachineSample{Total: 100 * event.GiB,
		Available: 50 * event.GiB, SwapTotal: 8 * event.GiB, SwapFree: 8*event.GiB - used}}
}

func workers(n int, resident, grown event.Bytes) event.Sample {
	return event.Sample{Processes: n + 1, Workers: &event.WorkersSample{Count: n, Resident: resident,
		Private: 6*event.GiB + grown}}
}

// hostKinds returns the kinds said in 95 seconds of samples.
func hostKinds(at func(second event.Bytes) event.Sample) []string {
	w := NewWatch(DefaultThresholds(), 0)
	var kinds []string
	for i := range 95 {
		s := at(event.Bytes(i))
		s.AtMS = int64(i) * 1000
		for _, f := range w.Sample(s) {
			kinds = append(kinds, f.Kind)
		}
	}
	return kinds
}

// TestAllocatorBoundaries does the same for what is read at each step.
func TestAllocatorBoundaries(t *testing.T) {
	const gib, mib = event.GiB, event.MiB
	for name, c := range map[string]struct {
		silent, said func(i int, s *event.Step)
		kind         string
		limit        event.Bytes
	}{
		"a quarter of what is reserved was never used": {
			func(_ int, s *event.Step) { s.Reserved = 5400 * mib }, // of which 4 GiB were
			func(_ int, s *event.Step) { s.Reserved = 5500 * mib }, "fragmentation", 6 * gib},
		"and less was never reserved": {
			func(_ int, s *event.Step) { s.Reserved = 5600 * mib }, // 1504 MiB idle, 1568 untouched
			func(_ int, s *event.Step) { s.Reserved = 5700 * mib }, "fragmentation", 7 * gib},
		"and 512 MiB of it": {
			func(_ int, s *event.Step) { small(s, 1535*mib) },
			func(_ int, s *event.Step) { small(s, 1536*mib) }, "fragmentation", 2 * gib},
		"for five steps": {
			func(i int, s *event.Step) {
				if i%5 != 4 {
					s.Reserved = 9 * gib
				}
			},
			func(i int, s *event.Step) {
				if i < 5 {
					s.Reserved = 9 * gib
				}
			}, "fragmentation", 10 * gib},
		"three times within 50 steps": {
			func(i int, s *event.Step) { s.Retries = int64(i) / 26 },
			func(i int, s *event.Step) { s.Retries = int64(i) / 16 }, "thrash", 16 * gib},
		"half as much again": {
			func(i int, s *event.Step) { longBatch(i, s, 4400*mib) },
			func(i int, s *event.Step) { longBatch(i, s, 4800*mib) }, "spike", 16 * gib},
	} {
		if got := kindsWithin(c.limit, steady(100, c.silent)); got != "" {
			t.Errorf("%s: below it %q was said", name, got)
		}
		if got := kindsWithin(c.limit, steady(100, c.said)); got != c.kind {
			t.Errorf("%s: said %q, want %q", name, got, c.kind)
		}
	}
}

func small(s *event.Step, reserved event.Bytes) {
	s.Allocated, s.AtBackward, s.PeakAllocated = 100*event.MiB, event.GiB, event.GiB
	s.InactiveSplit, s.Reserved = 0, reserved
}

// longBatch lets one step hold so much when backward begins, where 3 GiB are usual.
func longBatch(i int, s *event.Step, bytes event.Bytes) {
	s.PeakAllocated, s.Reserved = 5*event.GiB, 6*event.GiB
	if i == 60 {
		s.AtBackward = bytes
	}
}

// TestHostMemoryFilledByOthers: a job is not blamed, and not given cures, for what others hold.
func TestHostMemoryFilledByOthers(t *testing.T) {
	for held, others := range map[event.Bytes]bool{event.GiB: true, 60 * event.GiB: false} {
		w := NewWatch(DefaultThresholds(), 0)
		found := w.Sample(event.Sample{Anonymous: held, Machine: &event.MachineSample{
			Total: 100 * event.GiB, Available: 2 * event.GiB}})
		if len(found) != 1 || strings.Contains(found[0].Title, "other processes") != others ||
			(len(found[0].Remedies) == 0) != others {
			t.Errorf("a run that holds %s: %+v", held, found)
		}
	}
}
