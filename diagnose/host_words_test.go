package diagnose

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"memroom/event"
	"memroom/remedy"
	"memroom/trace"
)

// TestHostFindingsInFull: every word and figure of what is said about host memory and cards, worked
// out by hand from the readings; and which of two places is named.
func TestHostFindingsInFull(t *testing.T) {
	const gib, mib = event.GiB, event.MiB
	machine := func(available event.Bytes) *event.MachineSample {
		return &event.MachineSample{Total: 100 * gib, Available: available, SwapTotal: 8 * gib,
			SwapFree: 8 * gib, ShmTotal: gib}
	}
	card := func(used, ours, others event.Bytes, busy int) []event.DeviceSample {
		return []event.DeviceSample{{UUID: "u", Name: "card", Total: 24 * gib, Used: used, Ours: ours,
			Others: others, Utilisation: busy}}
	}
	for name, c := range map[string]struct {
		at    func(second event.Bytes) event.Sample
		loads bool
		want  string
	}{
		"the machine is short": {func(event.Bytes) event.Sample {
			m := machine(9 * gib)
			m.PressureSome, m.PressureFull = 40, 12
			return event.Sample{Machine: m, Anonymous: 3 * gib,
				Cgroup: &event.CgroupSample{PressureSome: 90, PressureFull: 11}}
		}, false, "host_pressure warning 3GiB host memory is short: processes waited for it 40 % of " +
			"the last 10 s, " +
			"all of them 12 % | pressure stall information of the machine; the run holds 3GiB that the " +
			"kernel cannot " +
			"free | stream_data, raise_limit"},
		"the cgroup is short": {func(event.Bytes) event.Sample {
			m := machine(9 * gib)
			m.PressureSome, m.PressureFull = 40, 12
			return event.Sample{Machine: m, Anonymous: 3 * gib,
				Cgroup: &event.CgroupSample{Own: true, PressureSome: 35, PressureFull: 12}}
		}, true, "host_pressure warning 3GiB host memory is short: processes waited for it 35 % of " +
			"the last 10 s, " +
			"all of them 12 % | pressure stall information of the cgroup; the run holds 3GiB that the " +
			"kernel cannot " +
			"free | dataloader_workers, pin_memory, stream_data, raise_limit"},
		"the machine is full": {func(event.Bytes) event.Sample {
			return event.Sample{Machine: machine(4 * gib), Anonymous: 60 * gib, Processes: 7}
		}, false, "host_pressure error 4GiB only 4GiB of 100GiB host memory are free (the machine) " +
			"| the run holds " +
			"60GiB that the kernel cannot free, in 7 processes | stream_data, raise_limit"},
		"others fill it": {func(event.Bytes) event.Sample {
			return event.Sample{Machine: machine(4 * gib), Anonymous: 47 * gib, Processes: 7}
		}, false, "host_pressure warning 4GiB other processes fill host memory: 4GiB of 100GiB are " +
			"free, this run " +
			"holds 47GiB | others and the kernel hold 49GiB | "},
		"half of it is ours": {func(event.Bytes) event.Sample {
			return event.Sample{Machine: machine(4 * gib), Anonymous: 48 * gib, Processes: 1}
		}, false, "host_pressure error 4GiB only 4GiB of 100GiB host memory are free (the machine) " +
			"| the run holds " +
			"48GiB that the kernel cannot free, in 1 process | stream_data, raise_limit"},
		"the cgroup is full": {func(event.Bytes) event.Sample {
			return event.Sample{Machine: machine(30 * gib), Anonymous: 9 * gib, Processes: 2,
				Cgroup: &event.CgroupSample{Limit: 10 * gib, Current: 10 * gib, File: 400 * mib}}
		}, false, "host_pressure error 400MiB only 0.39GiB of 10GiB host memory are free (the " +
			"cgroup) | the run holds " +
			"9GiB that the kernel cannot free, in 2 processes | stream_data, raise_limit"},
		"its files can be dropped": {func(event.Bytes) event.Sample {
			return event.Sample{Machine: machine(30 * gib), Anonymous: 9 * gib,
				Cgroup: &event.CgroupSample{Limit: 10 * gib, Current: 10 * gib, File: gib}}
		}, false, ""},
		"shared memory is full": {func(event.Bytes) event.Sample {
			m := machine(50 * gib)
			m.ShmUsed = 1000 * mib
			return event.Sample{Machine: m}
		}, false, "shm error 1000MiB /dev/shm is nearly full (0.98GiB of 1GiB): DataLoader workers " +
			"crash with a bus " +
			"error when it is |  | shm_size, dataloader_workers"},
		"a neighbour": {func(event.Bytes) event.Sample {
			return event.Sample{Devices: card(23*gib, 8*gib, 15*gib, 50)}
		}, false, "neighbour warning 15GiB another process holds 15GiB of 24GiB on card | card u: " +
			"used 23GiB, by this " +
			"run 8GiB | free_neighbour"},
		"an idle card": {func(s event.Bytes) event.Sample {
			return event.Sample{Machine: machine(9 * gib), Anonymous: 60 * gib, Devices: card(gib, 0, gib,
				0)}
		}, false, "unused_gpu warning 23GiB card is idle while host memory runs out: 23GiB are free " +
			"on it | " +
			"utilisation 0 %; this run held no memory on it for 60 s | "},
		"a card that we use": {func(s event.Bytes) event.Sample {
			return event.Sample{Machine: machine(9 * gib), Anonymous: 60 * gib, Devices: card(gib, 1,
				gib-1, 0)}
		}, false, ""},
		"a card of others": {func(s event.Bytes) event.Sample {
			return event.Sample{Machine: machine(9 * gib), Anonymous: 60 * gib,
				Devices: card(13*gib, 0, 12*gib+1, 0)}
		}, false, ""},
		"an idle card and room": {func(s event.Bytes) event.Sample {
			return event.Sample{Machine: machine(11 * gib), Anonymous: 60 * gib, Devices: card(gib, 0, gib,
				0)}
		}, false, ""},
		"it swaps": {func(s event.Bytes) event.Sample {
			m := machine(50 * gib)
			m.SwapFree -= s * 8 * mib
			return event.Sample{Machine: m, Swapped: s * 4 * mib}
		}, true, "swap warning 128MiB the host is swapping: swap grew by 256MiB in the last minute, " +
			"128MiB of this " +
			"run are in it | swap in use 0.25GiB of 8GiB | dataloader_workers, pin_memory, stream_data, " +
			"optimizer_offload, raise_limit"},
		"others swap": {func(s event.Bytes) event.Sample {
			m := machine(50 * gib)
			m.SwapFree -= s * 8 * mib
			return event.Sample{Machine: m}
		}, false, ""},
	} {
		w := NewWatch(DefaultThresholds(), 0)
		if c.loads {
			w.Steps(1, nil, []event.Step{{Step: 1, Wait: 1, Device: 0}})
		} else {
			w.Steps(1, nil, []event.Step{{Step: 1, Device: 0}})
		}
		var got []string
		for i := range event.Bytes(80) {
			s := c.at(i)
			s.AtMS = int64(i) * 1000
			for _, f := range w.Sample(s) {
				sound(t, f)
				got = append(got, fmt.Sprintf("%s %s %s %s | %s | %s", f.Kind, f.Severity, f.Bytes, f.Title,
					strings.Join(f.Evidence, "; "), strings.Join(f.Remedies, ", ")))
			}
		}
		if strings.Join(got, "\n") != c.want {
			t.Errorf("%s:\n got %s\nwant %s", name, strings.Join(got, "\n     "), c.want)
		}
	}
}

// TestStatesOfTensorFlowsAllocator: the sums of any dump, and known ones of a small one.
func TestStatesOfTensorFlowsAllocator(t *testing.T) {
	s := AnalyseBFC(&trace.BFCDump{Allocator: "GPU_0_bfc", Allocs: 9, PeakInUse: 50, LargestAlloc: 40,
		Chunks: []trace.BFCDumpChunk{{Addr: 100, Size: 10, Requested: 7, InUse: true},
			{Addr: 110, Size: 5},
			{Addr: 115, Size: 10, Requested: 10, InUse: true}, {Addr: 200, Size: 20, Requested: 1,
				InUse: true},
			{Addr: 220, Size: 15}}})
	if got, want := fmt.Sprintf("%+v", *s),
		"{Allocator:GPU_0_bfc Allocs:9 Regions:2 Pool:60B InUse:40B "+
			"PeakInUse:50B Requested:18B Free:20B FreePieces:2 LargestFree:15B LargestAlloc:40B "+
			"Fragmentation:0.25 Sizes:[{Size:20B Chunks:1 Bytes:20B} {Size:10B Chunks:2 "+
			"Bytes:20B}]}"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	random := rand.New(rand.NewPCG(3, 4))
	for range 100 {
		d := &trace.BFCDump{}
		at := uint64(1 << 20)
		regions := 0
		for i := range random.IntN(40) {
			if i == 0 || random.IntN(5) == 0 {
				at += uint64(1 + random.IntN(100))
				regions++
			}
			size := event.Bytes(1 + random.IntN(5))
			d.Chunks = append(d.Chunks, trace.BFCDumpChunk{Addr: at, Size: size, Requested: size / 2,
				InUse: random.IntN(2) == 0})
			at += uint64(size)
		}
		s := AnalyseBFC(d)
		var listed event.Bytes
		for _, size := range s.Sizes {
			listed += size.Bytes
		}
		sorted := slices.IsSortedFunc(s.Sizes, func(x, y BFCSize) int { return int(y.Bytes - x.Bytes) })
		if s.Pool != s.InUse+s.Free || listed != s.InUse || s.Regions != regions || !sorted ||
			s.LargestFree > s.Free || s.Requested > s.InUse || s.Fragmentation < 0 || s.Fragmentation >= 1 {
			t.Fatalf("%+v of %+v", s, d)
		}
	}
}

// sound checks what holds for any finding: how sure it is lies above 0 and up to 1, it has words
// and a severity, no size is negative, and every remedy is one of the catalogue.
func sound(t *testing.T, found ...event.Finding) {
	t.Helper()
	severities := []event.Severity{event.SeverityInfo, event.SeverityWarning, event.SeverityError}
	for _, f := range found {
		if f.Confidence <= 0 || f.Confidence > 1 || f.Kind == "" || f.Title == "" || f.Bytes < 0 ||
			!slices.Contains(severities, f.Severity) {
			t.Errorf("%+v", f)
		}
		for _, id := range f.Remedies {
			if _, known := remedy.Find(remedy.ID(id)); !known {
				t.Errorf("there is no remedy %q: %+v", id, f)
			}
		}
	}
}
