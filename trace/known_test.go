package trace

import (
	"bytes"
	"testing"

	"memroom/event"
)

// TestSegmentsAreSortedByAddress: writers list segments in the order of a hash table.
func TestSegmentsAreSortedByAddress(t *testing.T) {
	p := newPickler(4, false)
	p.dict(pair{"segments", func() {
		p.list(5, func(i int) {
			addr := []int64{3, 1, 4, 0, 2}[i] << 21
			p.dict(p.num("device", int64(i%2)), p.num("address", addr), p.num("total_size", 2<<20),
				p.str("segment_type", "large"))
		})
	}})
	s, err := ReadSnapshot(bytes.NewReader(p.stop()))
	if err != nil || len(s.Recordings) != 2 || s.Recordings[0].Device != 0 {
		t.Fatalf("%v, %+v", err, s)
	}
	for _, rec := range s.Recordings {
		for i, seg := range rec.Segments {
			if i > 0 && seg.Addr <= rec.Segments[i-1].Addr {
				t.Errorf("device %d: %#x behind %#x", rec.Device, seg.Addr, rec.Segments[i-1].Addr)
			}
		}
	}
	if len(s.Recordings[0].Segments) != 3 || len(s.Recordings[1].Segments) != 2 {
		t.Errorf("%+v", s.Recordings)
	}
}

// TestSettingsAreReadAsWritten: each setting on, and each off.
func TestSettingsAreReadAsWritten(t *testing.T) {
	for _, on := range []int64{0, 1} {
		p := newPickler(4, false)
		p.dict(pair{"segments", func() { p.list(0, nil) }},
			pair{"allocator_settings", func() {
				p.dict(p.num("max_split_size", -1+on*(40<<20+1)), p.num("expandable_segments", on),
					p.str("PYTORCH_CUDA_ALLOC_CONF", []string{"", "backend:native"}[on]))
			}},
			pair{"device_traces", func() {
				p.list(1, func(int) { p.list(1, func(int) { p.dict(p.str("action", "oom")) }) })
			}})
		s, err := ReadSnapshot(bytes.NewReader(p.stop()))
		if err != nil {
			t.Fatal(err)
		}
		want := event.AllocatorSettings{Known: true, MaxSplit: -1}
		if on == 1 {
			want = event.AllocatorSettings{Known: true, MaxSplit: 40 << 20, Expandable: true,
				Conf: "backend:native"}
		}
		if got := s.Settings; got.Expandable != want.Expandable || got.MaxSplit != want.MaxSplit ||
			got.Conf != want.Conf || !got.Known {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
}
