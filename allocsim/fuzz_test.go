package allocsim_test

import (
	"encoding/binary"
	"testing"

	"memroom/allocsim"
	"memroom/event"
)

// FuzzReplay replays histories that no allocator made, because a file may hold anything. Whatever
// it holds, the replay ends without a panic, and the model's own state stays sound.
func FuzzReplay(f *testing.F) {
	f.Add([]byte{4, 1, 40, 1, 1, 4, 2, 1, 4, 3, 1, 4}, true, byte(0))
	f.Add([]byte{6, 1, 40, 1, 1, 4, 2, 1, 4, 3, 1, 4, 7, 1, 40}, false, byte(1))
	f.Add([]byte{5, 1, 40, 9, 0, 9, 4, 200, 40, 1, 200, 255}, true, byte(6))
	f.Fuzz(func(t *testing.T, data []byte, withEnd bool, how byte) {
		rec := &event.Recording{Version: []string{"2.4", "2.12", "2.13"}[how>>2%3],
			Settings: event.AllocatorSettings{Known: true, MaxSplit: -1, Expandable: how&1 != 0}}
		if how&2 != 0 {
			rec.Settings.MaxSplit = 32 << 20
		}
		for len(data) >= 3 {
			e := event.Entry{Kind: event.Kind(data[0] % 10), Addr: uint64(data[1]) << 20,
				Size: int64(data[2]) << 19, Stream: uint64(data[0] >> 6)}
			if data[1] == 255 {
				e.Addr = binary.LittleEndian.Uint64(append(append([]byte{}, data...), 0, 0, 0, 0, 0,
					0, 0, 0))
			}
			if data[2] == 255 {
				e.Size = int64(binary.LittleEndian.Uint64(append(append([]byte{}, data...), 0, 0, 0,
					0, 0, 0, 0, 0)))
			}
			rec.History.Append(&e)
			data = data[3:]
		}
		if withEnd {
			rec.Segments = []event.Segment{{Addr: 1 << 20, Size: 40 << 20,
				Blocks: []event.Block{{Addr: 1 << 20, Size: 3 << 20, Requested: 1,
					State: event.BlockActive},
					{Addr: 4 << 20, Size: 37 << 20}}}, {Addr: 200 << 20, Size: 20 << 20,
				Expandable: true, Blocks: []event.Block{{Addr: 200 << 20, Size: 20 << 20}}}}
		}
		r, err := allocsim.Replay(rec, allocsim.ReplayOptions{Timeline: true,
			Observe: func(_ int, _ *event.Entry, a *allocsim.Allocator) {
				if s := &a.Stats().All; s.AllocatedBytes.Current > s.ActiveBytes.Current ||
					s.ActiveBytes.Current > s.ReservedBytes.Current {
					t.Fatalf("allocated %d, active %d, reserved %d", s.AllocatedBytes.Current,
						s.ActiveBytes.Current, s.ReservedBytes.Current)
				}
			}})
		if err != nil {
			return
		}
		if _, err := r.Run(allocsim.Options{Config: r.Config}); err != nil {
			t.Fatalf("the derived timeline makes no sense: %v", err)
		}
	})
}

// FuzzParseConf reads settings strings, which a snapshot may contain too.
func FuzzParseConf(f *testing.F) {
	for _, conf := range allocsim.TriedConfs {
		f.Add(conf)
	}
	f.Add("roundup_power2_divisions:[256:1,512:2,>:4],large_segment_size_mb:9223372036854775807")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := allocsim.ParseConf(text)
		if err != nil {
			return
		}
		for _, n := range []int64{1, 512, 513, 1 << 20, 3<<20 + 1, 1 << 49} {
			if s := c.Round(n); s < n || s%512 != 0 || s > 4*n+1024 {
				t.Errorf("%q rounds %d to %d", text, n, s)
			}
		}
		if _, err := allocsim.New(allocsim.Options{Config: c}); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	})
}
