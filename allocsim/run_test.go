package allocsim

import (
	"testing"

	"memroom/event"
)

func timeline(ops ...event.Op) *event.Timeline { return &event.Timeline{Ops: ops} }

func TestRunCountsWhatPyTorchCounts(t *testing.T) {
	const mib = 1 << 20
	got, err := Run(timeline(
		event.Op{Kind: event.OpAlloc, ID: 0, Size: 100},
		event.Op{Kind: event.OpAlloc, ID: 1, Size: 3 * mib},
		event.Op{Kind: event.OpAlloc, ID: 2, Size: 15*mib + 1},
		event.Op{Kind: event.OpFree, ID: 1},
		event.Op{Kind: event.OpAlloc, ID: 3, Size: 4 * mib},
	), Options{Config: DefaultConfig()})
	if err != nil {
		t.Fatal(err)
	}
	if got.ReservedPeak != (2+20+20)*event.MiB || got.AllocatedPeak != 512+4*mib+15*mib+512 ||
		got.Allocs != 4 {
		t.Errorf("reserved %s, allocated %d, %d allocations", got.ReservedPeak, got.AllocatedPeak,
			got.Allocs)
	}
}

func TestRunStopsWhereMemoryEnds(t *testing.T) {
	got, err := Run(timeline(
		event.Op{Kind: event.OpAlloc, ID: 0, Size: 30 << 20},
		event.Op{Kind: event.OpAlloc, ID: 1, Size: 30 << 20},
	), Options{Config: DefaultConfig(), Limit: 50 * event.MiB})
	if err != nil {
		t.Fatal(err)
	}
	if got.OOM == nil || got.OOM.At != 1 || got.Ops != 1 || got.Retries != 1 ||
		got.OOM.Segment != 30*event.MiB {
		t.Errorf("got %+v", got)
	}
}

func TestRunRefusesNonsense(t *testing.T) {
	for name, ops := range map[string][]event.Op{
		"free of nothing": {{Kind: event.OpFree, ID: 3}},
		"double free": {{Kind: event.OpAlloc, Size: 1}, {Kind: event.OpFree},
			{Kind: event.OpFree}},
		"double ID":   {{Kind: event.OpAlloc, Size: 1}, {Kind: event.OpAlloc, Size: 1}},
		"zero size":   {{Kind: event.OpAlloc}},
		"huge size":   {{Kind: event.OpAlloc, Size: 1 << 60}},
		"negative ID": {{Kind: event.OpAlloc, Size: 1, ID: -1}},
	} {
		if _, err := Run(timeline(ops...), Options{Config: DefaultConfig()}); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}
