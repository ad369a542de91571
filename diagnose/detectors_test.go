package diagnose

import (
	"slices"
	"strings"
	"testing"

	"memroom/event"
)

// kindsOf feeds rows to a fresh watch and returns the kinds of its findings.
func kindsOf(rows []event.Step) string { return kindsWithin(16*event.GiB, rows) }

// kindsWithin returns the kinds that are said of steps on a card with a limit.
func kindsWithin(limit event.Bytes, rows []event.Step) string {
	w := NewWatch(DefaultThresholds(), 0)
	w.SetLimit(1, 0, limit)
	var kinds []string
	for _, f := range w.Steps(1, nil, rows) {
		kinds = append(kinds, f.Kind)
	}
	return strings.Join(kinds, " ")
}

// steady makes level steps and lets each be changed.
func steady(n int, change func(i int, s *event.Step)) []event.Step {
	rows := make([]event.Step, n)
	for i := range rows {
		rows[i] = event.Step{Step: int64(i + 1), Duration: 5e7, Allocated: event.GiB,
			Reserved: 5 * event.GiB, PeakAllocated: 4 * event.GiB,
			AtBackward: 3 * event.GiB, InactiveSplit: 2 * event.GiB}
		change(i, &rows[i])
	}
	return rows
}

func TestAllocatorFindings(t *testing.T) {
	for name, c := range map[string]struct {
		change func(i int, s *event.Step)
		want   string
	}{
		"healthy cache": {func(int, *event.Step) {}, ""},
		"fragmented": {func(i int,
			s *event.Step) {
			s.Reserved += event.Bytes(i) * 200 * event.MiB
		}, "fragmentation"},
		"peak reset by the user": {func(i int, s *event.Step) {
			s.PeakAllocated = map[bool]event.Bytes{true: 4 * event.GiB, false: event.GiB}[i == 0]
		}, ""},
		"retries at once": {func(i int, s *event.Step) { s.Retries = int64(min(i, 5)) },
			"thrash"},
		"two retries in the end": {func(i int, s *event.Step) { s.Retries = int64(i / 45) }, ""},
		"retries long before":    {func(i int, s *event.Step) { s.Retries = 900 }, ""},
		"one long batch": {func(i int, s *event.Step) {
			s.AtBackward += map[bool]event.Bytes{true: 6 * event.GiB}[i == 60]
			s.PeakAllocated = 10 * event.GiB
			s.Reserved = 11 * event.GiB
		}, "spike"},
		"batches of every length": {func(i int, s *event.Step) {
			s.AtBackward = event.GiB +
				event.Bytes(i*7919%13)*200*event.MiB
		}, ""},
	} {
		if got := kindsOf(steady(100, c.change)); got != c.want {
			t.Errorf("%s: findings %q, want %q", name, got, c.want)
		}
	}
	scattered := steady(100, func(_ int, s *event.Step) { s.Reserved = 7 * event.GiB })
	for limit, want := range map[event.Bytes]string{0: "", 8 * event.GiB: "fragmentation"} {
		if got := kindsWithin(limit, scattered); got != want {
			t.Errorf("reserved beyond the peak, limit %s: findings %q, want %q", limit, got, want)
		}
	}
}

func TestPhaseThatSetsThePeak(t *testing.T) {
	w := NewWatch(DefaultThresholds(), 0)
	rows := steady(60, func(i int, s *event.Step) {
		if i >= 40 {
			s.PeakAllocated, s.Reserved = 7*event.GiB, 8*event.GiB
		}
	})
	found := w.Steps(1, nil, rows[:40])
	w.Phase(1, "eval", true)
	found = append(found, w.Steps(1, nil, rows[40:])...)
	if len(found) != 1 || found[0].Kind != "spike" || !strings.Contains(found[0].Title,
		"evaluation") || found[0].Bytes != 7*event.GiB {
		t.Errorf("findings %+v", found)
	}
}

func TestHostFindings(t *testing.T) {
	machine := func(available, swapFree, shm event.Bytes) *event.MachineSample {
		return &event.MachineSample{Total: 64 * event.GiB, Available: available,
			SwapTotal: 8 * event.GiB, SwapFree: swapFree, ShmTotal: event.GiB, ShmUsed: shm}
	}
	card := func(ours, others event.Bytes, util int) []event.DeviceSample {
		return []event.DeviceSample{{UUID: "u", Name: "H200", Total: 140 * event.GiB,
			Used: ours + others + event.GiB, Ours: ours, Others: others, Utilisation: util}}
	}
	for name, c := range map[string]struct {
		at   func(i event.Bytes) event.Sample
		want string
	}{
		"healthy": {func(i event.Bytes) event.Sample {
			return event.Sample{Machine: machine(30*event.GiB, 8*event.GiB, 0),
				Devices: card(event.GiB, 0, 90)}
		}, ""},
		"nearly out": {func(i event.Bytes) event.Sample { return event.Sample{Machine: machine(2*event.GiB, 8*event.GiB, 0)} }, "host_pressure"},
		"cgroup is full": {func(i event.Bytes) event.Sample {
			return event.Sample{Machine: machine(30*event.GiB, 8*event.GiB, 0),
				Cgroup: &event.CgroupSample{Current: 1020 * event.MiB, Limit: event.GiB,
					File: 10 * event.MiB}}
		}, "host_pressure"},
		"page cache": {func(i event.Bytes) event.Sample {
			return event.Sample{Machine: machine(30*event.GiB, 8*event.GiB, 0),
				Cgroup: &event.CgroupSample{Current: 1020 * event.MiB, Limit: event.GiB,
					File: 800 * event.MiB}}
		}, ""},
		"cgroup fills up slowly": {func(i event.Bytes) event.Sample {
			return event.Sample{Machine: machine(30*event.GiB, 8*event.GiB, 0),
				Cgroup: &event.CgroupSample{Current: 990*event.MiB + i*event.MiB/4,
					Limit: event.GiB}}
		}, "host_pressure"},
		"stalled": {func(i event.Bytes) event.Sample {
			return event.Sample{Cgroup: &event.CgroupSample{Own: true, PressureFull: 20, PressureSome: 40}}
		}, "host_pressure"},
		"a neighbour stands at its own limit": {func(i event.Bytes) event.Sample {
			m := machine(30*event.GiB, 8*event.GiB, 0)
			m.PressureFull, m.PressureSome = 90, 97
			return event.Sample{Machine: m, Cgroup: &event.CgroupSample{Own: true}}
		}, ""},
		"a neighbour in the same container stands at its own limit": {func(i event.Bytes) event.Sample {
			m := machine(30*event.GiB, 8*event.GiB, 0)
			m.PressureFull, m.PressureSome = 90, 97
			return event.Sample{Machine: m, Cgroup: &event.CgroupSample{Limit: 16 * event.GiB,
				Current: 4 * event.GiB, PressureFull: 90, PressureSome: 97}}
		}, ""},
		"the container reads files at its limit": {func(i event.Bytes) event.Sample {
			return event.Sample{Cgroup: &event.CgroupSample{Limit: 16 * event.GiB,
				Current: 16 * event.GiB, File: 12 * event.GiB, PressureFull: 20, PressureSome: 40}}
		}, "host_pressure"},
		"shm": {func(i event.Bytes) event.Sample {
			return event.Sample{Machine: machine(30*event.GiB, 8*event.GiB, 1000*event.MiB)}
		}, "shm"},
		"neighbour on a full card": {func(i event.Bytes) event.Sample {
			return event.Sample{Devices: card(70*event.GiB, 60*event.GiB, 90)}
		}, "neighbour"},
		"neighbour on a card with room": {func(i event.Bytes) event.Sample {
			return event.Sample{Devices: card(event.GiB, 60*event.GiB, 90)}
		}, ""},
		"copy on write": {func(i event.Bytes) event.Sample {
			return event.Sample{Processes: 9, Resident: 40*event.GiB + i*event.GiB,
				Workers: &event.WorkersSample{Count: 8, Resident: 30 * event.GiB,
					Private: event.GiB + i*40*event.MiB}}
		}, "worker_growth"},
		"processes of a compiler, which nobody named": {func(i event.Bytes) event.Sample {
			return event.Sample{Processes: 18, Resident: 40 * event.GiB,
				Proportional: 6*event.GiB + i*40*event.MiB, Held: 6*event.GiB + i*40*event.MiB,
				Cgroup: &event.CgroupSample{Own: true}}
		}, ""},
		"workers that grow": {func(i event.Bytes) event.Sample {
			return event.Sample{Processes: 9, Resident: 40 * event.GiB,
				Workers: &event.WorkersSample{Count: 8, Resident: 30*event.GiB + i*40*event.MiB,
					Private: event.GiB + i*40*event.MiB}}
		}, ""},
		"copy on write in the second epoch": {func(i event.Bytes) event.Sample {
			epoch := i / 50 // the first reads an array, and maps less
			return event.Sample{Processes: 9, Resident: 40 * event.GiB,
				Workers: &event.WorkersSample{PID: 20 + int(epoch), Count: 8,
					Resident: (15 + 15*epoch) * event.GiB,
					Private:  event.GiB + epoch*(i-50)*40*event.MiB}}
		}, "worker_growth"},
		"workers that start": {func(i event.Bytes) event.Sample {
			return event.Sample{Processes: 9, Resident: 40 * event.GiB,
				Workers: &event.WorkersSample{Count: 8, Resident: 30 * event.GiB,
					Private: event.GiB + min(i, 2)*2*event.GiB}}
		}, ""},
		"swaps beside an idle card": {func(i event.Bytes) event.Sample {
			return event.Sample{Swapped: i * 64 * event.MiB,
				Machine: machine(8*event.GiB, 8*event.GiB-i*64*event.MiB, 0),
				Devices: card(0, 0, 0)}
		}, "swap unused_gpu"},
	} {
		w := NewWatch(DefaultThresholds(), 64*event.GiB)
		var kinds []string
		for i := range 100 {
			s := c.at(event.Bytes(i))
			s.AtMS = int64(i) * 1000
			for _, f := range w.Sample(s) {
				sound(t, f)
				kinds = append(kinds, f.Kind)
			}
		}
		if got := strings.Join(kinds, " "); got != c.want {
			t.Errorf("%s: findings %q, want %q", name, got, c.want)
		}
	}
}

func TestHostForecastOverTime(t *testing.T) {
	w := NewWatch(DefaultThresholds(), 16*event.GiB)
	var found []event.Finding
	for i := range 4 * 600 { // ten minutes at 4 Hz, 8 MiB a second
		s := event.Sample{AtMS: int64(i) * 250, Anonymous: 4*event.GiB + event.Bytes(i)*2*event.MiB}
		found = append(found, w.Sample(s)...)
	}
	// after 310 s it has 4 GiB + 2480 MiB; 9808 MiB are left at 8 MiB a second: 20.4 minutes,
	// rounded up to ten seconds
	if len(found) != 1 || found[0].Kind != "forecast" || !strings.Contains(found[0].Title,
		"about 21 min") {
		t.Errorf("findings %+v", found)
	}
}

func TestAccountsAddUp(t *testing.T) {
	holding := Holding{Weights: 500 * event.MiB, Gradients: 500 * event.MiB, Optimizer: event.GiB,
		Allocated: 3 * event.GiB, Reserved: 5 * event.GiB, Split: 700 * event.MiB}
	for name, c := range map[string]struct {
		device   event.DeviceSample
		holdings []Holding
		want     map[string]event.Bytes
	}{
		"known per process": {event.DeviceSample{Total: 24 * event.GiB, Used: 8 * event.GiB,
			Ours: 6 * event.GiB, Others: 2 * event.GiB}, []Holding{holding},
			map[string]event.Bytes{LineActivations: 1048 * event.MiB,
				LineCache: 2*event.GiB - 700*event.MiB, LineFragmentation: 700 * event.MiB,
				LineContext: event.GiB, LineNeighbours: 2 * event.GiB, LineUnattributed: 0,
				LineFree: 16 * event.GiB}},
		"by difference": {event.DeviceSample{Total: 24 * event.GiB, Used: 8 * event.GiB},
			[]Holding{holding},
			map[string]event.Bytes{LineContext: 3 * event.GiB, LineUnattributed: 0,
				LineFree: 16 * event.GiB}},
		"two processes": {event.DeviceSample{Total: 24 * event.GiB, Used: 12 * event.GiB,
			Ours: 12 * event.GiB}, []Holding{holding, holding},
			map[string]event.Bytes{LineWeights: 1000 * event.MiB, LineContext: 2 * event.GiB}},
		"no probe": {event.DeviceSample{Total: 24 * event.GiB, Used: 8 * event.GiB,
			Ours: 7 * event.GiB}, nil,
			map[string]event.Bytes{LineContext: 7 * event.GiB, LineUnattributed: event.GiB}},
		"read at different moments": {event.DeviceSample{Total: 24 * event.GiB, Used: 4 * event.GiB,
			Ours: 4 * event.GiB}, []Holding{holding},
			map[string]event.Bytes{LineContext: 0, LineUnattributed: 0,
				LineCache: event.GiB - 700*event.MiB, LineFree: 20 * event.GiB}},
	} {
		a := Card(c.device, c.holdings)
		if a.Sum() != c.device.Total {
			t.Errorf("%s: the lines add up to %s, the card has %s", name, a.Sum(), c.device.Total)
		}
		for _, line := range a.Lines {
			if want, asked := c.want[line.Name]; asked && line.Bytes != want || line.Bytes < 0 {
				t.Errorf("%s: %s is %s, want %s", name, line.Name, line.Bytes, want)
			}
		}
	}
	s := event.Sample{Anonymous: 3 * event.GiB, Shared: event.GiB, File: event.GiB,
		Machine: &event.MachineSample{Total: 32 * event.GiB, Available: 20 * event.GiB},
		Cgroup: &event.CgroupSample{Limit: 8 * event.GiB, Current: 5 * event.GiB,
			Anon: 2 * event.GiB, Shmem: event.GiB, File: 2 * event.GiB}}
	outside := s
	outside.Cgroup = nil
	forked := outside // by five processes that share most of it
	forked.Anonymous, forked.Held = 30*event.GiB, 4*event.GiB
	own := forked // the kernel's figures are better
	own.Cgroup = &event.CgroupSample{Own: true, Current: 5 * event.GiB, Anon: 3 * event.GiB,
		Shmem: event.GiB, File: 2 * event.GiB}
	inside := own // a container
	inside.Cgroup = &event.CgroupSample{Own: true, Limit: 8 * event.GiB, AtLimit: 7 * event.GiB,
		Current: 5 * event.GiB, Anon: 2 * event.GiB, Shmem: event.GiB, File: 2 * event.GiB}
	for name, c := range map[string]struct {
		sample             event.Sample
		limit              event.Bytes
		unattributed, free event.Bytes
	}{
		"cgroup":         {s, 8 * event.GiB, 0, 3 * event.GiB},
		"forked workers": {forked, 32 * event.GiB, 0, 19 * event.GiB},
		"its own cgroup": {own, 32 * event.GiB, 0, 19 * event.GiB},
		// others are in it too
		"a container's limit": {inside, 8 * event.GiB, 0, event.GiB},
		// the run's file pages are available, not free
		"machine":               {outside, 32 * event.GiB, 0, 19 * event.GiB},
		"held by the monitor":   {outside, 6 * event.GiB, 0, 2 * event.GiB},
		"and a cgroup above it": {s, 6 * event.GiB, 0, 2 * event.GiB},
	} {
		a := Host(c.sample, c.limit)
		if a.Sum() != c.limit || a.Overlap != 0 {
			t.Errorf("%s: the host account adds up to %s, with %s twice: %+v", name, a.Sum(),
				a.Overlap, a.Lines)
		}
		for _, line := range a.Lines {
			if line.Bytes < 0 || line.Name == LineUnattributed && line.Bytes != c.unattributed ||
				line.Name == LineFree && line.Bytes != c.free {
				t.Errorf("%s: %s %s", name, line.Name, line.Bytes)
			}
		}
	}
	if a := Host(outside, 3*event.GiB); a.Sum() != 3*event.GiB || a.Over != event.GiB ||
		a.Overlap != 0 {
		t.Errorf("more than a limit that the monitor holds: %+v", a)
	}
}

// TestLoadersCuresNeedALoader: fewer workers are no advice for a program that was not seen to wait
// for a data loader.
func TestLoadersCuresNeedALoader(t *testing.T) {
	short := event.Sample{Machine: &event.MachineSample{Total: 8 * event.GiB,
		Available: 100 * event.MiB, PressureFull: 50}, Anonymous: 7 * event.GiB, Processes: 1}
	for _, loads := range []bool{false, true} {
		h := hostWatch{loads: loads}
		for name, f := range map[string]*event.Finding{"nearly out": h.nearlyOut(short,
			DefaultThresholds()), "pressure": h.pressure(short, DefaultThresholds())} {
			if f == nil || slices.Contains(f.Remedies, "dataloader_workers") != loads ||
				!slices.Contains(f.Remedies, "raise_limit") {
				t.Errorf("%s, a loader %v: %+v", name, loads, f)
			}
		}
	}
}
