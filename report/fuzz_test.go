package report

import (
	"encoding/binary"
	"io"
	"math/rand/v2"
	"testing"

	"memroom/diagnose"
	"memroom/event"
)

// entriesOf turns any bytes into a history: 12 bytes an entry, addresses and sizes from a small
// range so that entries meet, now and then from the whole one.
func entriesOf(data []byte) (entries []event.Entry) {
	for ; len(data) >= 12; data = data[12:] {
		e := event.Entry{
			Kind: event.Kind(data[0] % 12), Stack: event.StackID(data[1] % 8),
			Stream:     uint64(data[2] % 3),
			Addr:       uint64(binary.LittleEndian.Uint16(data[3:])) << 12,
			Size:       int64(binary.LittleEndian.Uint16(data[5:])) << (data[7] % 16),
			TimeUS:     int64(int16(binary.LittleEndian.Uint16(data[8:]))),
			DeviceFree: int64(data[10]) << 20,
		}
		if data[11] == 255 {
			e.Addr, e.Size, e.TimeUS = binary.LittleEndian.Uint64(data), -e.Size<<40, 1<<62
		}
		entries = append(entries, e)
	}
	return entries
}

// FuzzSnapshotReports: no history, however senseless, breaks the analysis or a report, and sums
// stay sums.
func FuzzSnapshotReports(f *testing.F) {
	f.Add([]byte("segment_alloc alloc free_requested oom, and again, and again, until nothing is " +
		"left of it at all..."))
	rng := rand.NewChaCha8([32]byte{1})
	for range 60 {
		seed := make([]byte, 2400)
		_, _ = rng.Read(seed) // does not fail
		f.Add(seed)
	}
	stacks := [][]event.Frame{nil, {{File: "torch/optim/adam.py", Name: "step"}},
		{{File: "m.py", Name: "forward"}}, {{File: "torch/nn/modules/module.py", Name: "_apply"}},
		{{File: "loss.py", Name: "forward"}}, {{Name: "backward"}}, nil,
		{{File: "torch/utils/checkpoint.py", Name: "x"}}}
	f.Fuzz(func(t *testing.T, data []byte) {
		notes := []diagnose.Annotation{{Name: "Optimizer.step#A", Begin: true, TimeUS: 5},
			{Name: "Optimizer.step#A", TimeUS: 9}}
		b := diagnose.NewLedger(0, func(id event.StackID) []event.Frame { return stacks[id] },
			notes)
		for i, e := range entriesOf(data) {
			b.Add(e, e.Size+int64(i%3)*512)
		}
		if len(data) > 20 {
			b.FinalBlock(uint64(data[3])<<12, int64(data[4])<<9, int64(data[5]), 2)
			b.FinalSegment(diagnose.SegmentSpan{Addr: uint64(data[6]) << 12,
				Size: int64(data[7]) << 20, Expandable: data[8]%2 == 0})
		}
		s := diagnose.AnalyseSnapshot(b.Finish())
		var sum event.Bytes
		for _, c := range s.Categories {
			sum += c.Bytes
		}
		if sum != s.AllocatedPeak || s.AllocatedPeak < 0 || s.ReservedPeak < 0 ||
			s.End.Allocated > s.AllocatedPeak {
			t.Errorf("categories hold %d of a peak of %d; reserved %d; %d at the end", sum,
				s.AllocatedPeak, s.ReservedPeak, s.End.Allocated)
		}
		devices := []Device{{Snapshot: s}}
		SnapshotText(NewText(io.Discard, true), "x", nil, devices, 5)
		for _, write := range []func() error{
			func() error { return SnapshotHTML(io.Discard, "x", nil, devices) },
			func() error { return SnapshotPprof(io.Discard, devices) },
			func() error { return SnapshotPerfetto(io.Discard, devices) },
		} {
			if err := write(); err != nil {
				t.Error(err)
			}
		}
	})
}
