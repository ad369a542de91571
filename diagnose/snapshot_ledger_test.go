package diagnose

import (
	"math/rand/v2"
	"testing"

	"memroom/event"
)

func entry(kind event.Kind, addr uint64, size int64) event.Entry {
	return event.Entry{Kind: kind, Addr: addr, Size: size}
}

func buildLedger(entries ...event.Entry) *Ledger {
	b := NewLedger(0, nil, nil)
	for _, e := range entries {
		b.Add(e, 0)
	}
	return b.Finish()
}

const kib, mib = int64(event.KiB), int64(event.MiB)

func TestLedgerOfARecordingThatBeganLate(t *testing.T) {
	b := NewLedger(0, nil, nil)
	// never seen before: older than the recording
	b.Add(entry(event.KindFreeRequested, 0x1000, 700), 0)
	b.Add(entry(event.KindAlloc, 0x2000, 1000), 0)
	b.Add(entry(event.KindSegmentFree, 0x100000, 2*mib), 0)
	b.FinalBlock(0x2000, 1536, 1000, 0)
	b.FinalBlock(0x3000, 4096, 4000, 0) // older too, still there
	b.FinalSegment(SegmentSpan{Addr: 0x0, Size: 20 * mib})
	l := b.Finish()
	if l.Before != 2 || len(l.Allocs) != 3 || len(l.Segments) != 2 {
		t.Fatalf("%d older of %d blocks, %d segments", l.Before, len(l.Allocs), len(l.Segments))
	}
	if a := l.Allocs[2]; a.Size() != 1536 {
		t.Errorf("the block in the final state has %d bytes, the ledger says %d", 1536, a.Size())
	}
	s := AnalyseSnapshot(l)
	if s.AllocatedPeak != 1536+4096 || s.Peak.At != 1 {
		t.Errorf("peak %d at %d, want 5632 at 1: the older block of 1024 was gone by then",
			s.AllocatedPeak, s.Peak.At)
	}
	if s.ReservedPeak != 22*event.MiB || s.End.Reserved != 20*event.MiB || s.Reserve.At != -1 {
		t.Errorf("reserved %s at %d, %s at the end", s.ReservedPeak, s.Reserve.At, s.End.Reserved)
	}
}

func TestLedgerCutsExpandableSegments(t *testing.T) {
	page := 2 * mib
	l := buildLedger(
		entry(event.KindSegmentMap, 0, 10*page), entry(event.KindSegmentMap, uint64(10*page),
			2*page),
		// out of the middle of one and the beginning of the other
		entry(event.KindSegmentUnmap, uint64(3*page), 8*page),
		entry(event.KindSegmentMap, uint64(3*page), page))
	var curve []int64
	l.WalkReserved(func(_ int32, reserved int64) { curve = append(curve, reserved/page) })
	if want := []int64{0, 10, 12, 4, 5}; len(curve) != len(want) || curve[2] != 12 ||
		curve[3] != 4 || curve[4] != 5 {
		t.Errorf("reserved pages go %v, want %v", curve, want)
	}
	if got := l.reservedAt(3, nil); len(got) != 2 || got[0].end != uint64(4*page) ||
		got[1].begin != uint64(11*page) {
		t.Errorf("mapped ranges at the end: %+v", got)
	}
}

func TestLedgerLeavesOutTheImpossible(t *testing.T) {
	l := buildLedger(entry(event.KindAlloc, 0x1000, -5), entry(event.KindAlloc, 0x1000, 1<<62),
		entry(event.KindSegmentAlloc, 1<<63+1<<62+1<<61, 1<<62),
		entry(event.KindAlloc, ^uint64(0)-100, 4096), entry(event.Kind(200), 0, 0),
		entry(event.KindAlloc, 0x1000, 512))
	if l.Implausible != 4 || l.Unknown != 1 || len(l.Allocs) != 1 {
		t.Errorf("%d implausible, %d unknown, %d allocations", l.Implausible, l.Unknown,
			len(l.Allocs))
	}
	if s := AnalyseSnapshot(l); s.AllocatedPeak != 512 || len(s.Warnings) < 2 {
		t.Errorf("peak %d, warnings %q", s.AllocatedPeak, s.Warnings)
	}
}

func TestLedgerNoticesMissingReleases(t *testing.T) {
	l := buildLedger(entry(event.KindSegmentAlloc, 0, 2*mib), entry(event.KindAlloc, 0, 1000),
		entry(event.KindAlloc, 0, 2000),
		entry(event.KindSegmentAlloc, 0, 2*mib), entry(event.KindFreeRequested, 0, 2000))
	s := AnalyseSnapshot(l)
	if l.Lost != 2 || s.AllocatedPeak != 2048 || s.ReservedPeak != 2*event.MiB ||
		s.End.Allocated != 0 {
		t.Errorf("%d lost, peaks %d and %d, %d at the end", l.Lost, s.AllocatedPeak, s.ReservedPeak,
			s.End.Allocated)
	}
}

func TestSnapshotOfNothing(t *testing.T) {
	s := AnalyseSnapshot(NewLedger(3, nil, nil).Finish())
	if s.AllocatedPeak != 0 || s.Device != 3 || len(s.Warnings) != 1 {
		t.Errorf("%+v", s)
	}
}

// TestLedgerAgreesWithAPlainCount: on random histories the walk, the moments and the free pieces
// agree with counting afresh.
func TestLedgerAgreesWithAPlainCount(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 2))
		const slots, slot = 64, 2 * 1 << 20
		b := NewLedger(0, nil, nil)
		live := map[uint64]int64{}
		var sums []int64
		b.Add(entry(event.KindSegmentAlloc, 0, slots*slot), 0)
		sums = append(sums, 0)
		var sum int64
		for range 500 {
			addr := uint64(rng.IntN(slots)) * slot
			if size, ok := live[addr]; ok {
				b.Add(entry(event.KindFreeRequested, addr, size), 0)
				delete(live, addr)
				sum -= roundUp(size, 512)
			} else {
				size := 1 + rng.Int64N(slot)
				b.Add(entry(event.KindAlloc, addr, size), 0)
				live[addr] = size
				sum += roundUp(size, 512)
			}
			sums = append(sums, sum)
		}
		l := b.Finish()
		l.Walk(func(at int32, allocated int64) {
			if at >= 0 && allocated != sums[at] {
				t.Fatalf("seed %d, entry %d: walk says %d, count says %d", seed, at, allocated,
					sums[at])
			}
		})
		p := l.categorise()
		for _, at := range []int32{0, 100, 333, 500} {
			m := l.momentAt(at, p)
			if int64(m.Allocated) != sums[at] || m.Reserved != slots*slot ||
				m.LargestFree > m.Unallocated() || m.LargestFree <= 0 {
				t.Fatalf("seed %d, entry %d: %+v, want %d allocated", seed, at, m, sums[at])
			}
		}
	}
}

func TestFailureTellsFragmentationFromShortage(t *testing.T) {
	// Two segments of 20 MiB, half of each in use: 20 MiB are unused, in two pieces of 10.
	state := []event.Entry{
		entry(event.KindSegmentAlloc, 0, 20*mib), entry(event.KindAlloc, 0, 10*mib),
		entry(event.KindSegmentAlloc, 1<<30, 20*mib), entry(event.KindAlloc, 1<<30, 10*mib),
	}
	for _, c := range []struct {
		request, free       int64
		fragmented, limited bool
		missing             event.Bytes
	}{
		{15 * mib, 0, true, false, 0},
		{30 * mib, 0, false, false, 10 * event.MiB},
		{30 * mib, 8 * mib, false, false, 2 * event.MiB},
		{25 * mib, 8 * mib, true, false, 0},
		{50 * mib, 1 << 36, false, true, 30 * event.MiB},
	} {
		oom := event.Entry{Kind: event.KindOOM, Size: c.request, DeviceFree: c.free}
		o := AnalyseSnapshot(buildLedger(append(state[:4:4], oom)...)).OOMs[0]
		if o.Fragmented != c.fragmented || o.Limited != c.limited || o.Missing != c.missing ||
			o.LargestFree != 10*event.MiB {
			t.Errorf("%d MiB with %d free: %+v", c.request/mib, c.free, o)
		}
	}
}
