package allocsim_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"memroom/allocsim"
	"memroom/event"
)

// hostile makes a recording out of bytes: entries, settings, and segments at the end that may fit
// them or not. Sizes and addresses are near each other and near the edges of the rules, so that
// they meet.
func hostile(data []byte) *event.Recording {
	next := func() byte {
		if len(data) == 0 {
			return 0
		}
		b := data[0]
		data = data[1:]
		return b
	}
	how := next()
	rec := &event.Recording{Version: []string{"2.4", "2.11", "2.12", "2.13"}[how>>2&3],
		Settings: event.AllocatorSettings{Known: true, MaxSplit: -1, Expandable: how&1 != 0}}
	if how&2 != 0 {
		rec.Settings.MaxSplit, rec.Settings.Conf = 20<<20, "max_split_size_mb:20"
	}
	size := func(b byte) int64 {
		const mib = 1 << 20
		edges := []int64{0, 1, 512, 513, mib, mib + 1, 2 * mib, 3 * mib, 10 * mib, 20 * mib,
			21*mib + 512, 40 * mib, -1, -512, 1 << 50, 1<<63 - 1}
		return edges[b&15] + int64(b>>4)*mib/2*int64(btoi(b&15 > 3))
	}
	addr := func(b byte) uint64 {
		if b == 255 {
			return 1<<62 - 512
		}
		return 1<<30 + uint64(b&63)<<20 + uint64(b>>6)<<19
	}
	at := uint64(1 << 30)
	for range how >> 4 {
		s := event.Segment{Addr: at, Stream: uint64(how & 1), Expandable: next()&1 != 0,
			Small: next()&3 == 0}
		for range next()&3 + 1 {
			b := event.Block{Addr: at, Size: size(next()), State: event.BlockState(next() % 3)}
			b.Requested = max(b.Size-7, 0)
			s.Blocks = append(s.Blocks, b)
			s.Size += b.Size
			at += uint64(b.Size)
		}
		rec.Segments = append(rec.Segments, s)
		at += uint64(next()&3) << 20
	}
	for len(data) >= 3 {
		e := event.Entry{Kind: event.Kind(next() % 10), Addr: addr(next()), Size: size(next())}
		e.Stream = uint64(how & 1)
		if e.Kind == 0 {
			e.Kind, e.Stream = event.KindAlloc, uint64(next()&3)
		}
		if how&8 != 0 && e.Addr&1<<20 != 0 {
			e.Pool = event.PoolID{0, uint64(e.Addr >> 20 & 3)}
		}
		rec.History.Append(&e)
	}
	return rec
}

// endure does everything that a command does with a recording. It must end, without a panic, and
// leave the model's own state sound.
func endure(rec *event.Recording) error {
	var broken error
	r, err := allocsim.Replay(rec, allocsim.ReplayOptions{Timeline: true,
		Observe: func(i int, e *event.Entry, a *allocsim.Allocator) {
			if err := a.Check(); err != nil && broken == nil {
				broken = fmt.Errorf("after entry %d, %v: %w", i, *e, err)
			}
		}})
	if err != nil {
		return nil // refused
	}
	if broken != nil {
		return broken
	}
	for _, o := range []allocsim.Options{{}, {Limit: 64 << 20}, {DeviceTotal: 200 << 20}} {
		o.Config = r.Config
		if err := r.RunChecked(o); err != nil {
			return err
		}
		if _, err := r.Run(o); err != nil {
			return fmt.Errorf("the derived timeline makes no sense: %w", err)
		}
		if _, err := r.WhatIf(o, rec.Settings.Conf); err != nil {
			return err
		}
	}
	return nil
}

// TestHostileRecordingsEnd replays recordings that no allocator made, the same ones each time.
func TestHostileRecordingsEnd(t *testing.T) {
	const recordings = 1500
	random := rand.New(rand.NewPCG(6, 12))
	for i := range recordings {
		data := make([]byte, 3+random.IntN(150))
		for j := range data {
			data[j] = byte(random.Uint32())
		}
		if err := endure(hostile(data)); err != nil {
			t.Fatalf("recording %d, %q: %v", i, data, err)
		}
	}
}

// FuzzWhatIf looks for recordings that make a replay under other settings panic or never end.
func FuzzWhatIf(f *testing.F) {
	f.Add([]byte{0x11, 1, 1, 1, 6, 1, 7, 2, 0, 7, 3, 2, 1, 3, 2})
	f.Add([]byte{0x01, 6, 0, 9, 1, 0, 9, 2, 0, 9, 3, 0, 9, 7, 0, 0, 1, 0, 9})
	f.Add([]byte{0x26, 0, 0, 3, 9, 0, 9, 1, 0, 0, 5, 0, 9, 1, 0, 8})
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := endure(hostile(data)); err != nil {
			t.Fatal(err)
		}
	})
}

// TestSplitBlocksAreNeverReturned loads a state that no allocator leaves: a free block above
// max_split_size whose segment is still in use. Returning it would take the segment away from under
// the block next to it.
func TestSplitBlocksAreNeverReturned(t *testing.T) {
	const mib = 1 << 20
	for _, first := range []event.BlockState{event.BlockFree, event.BlockActive} {
		rec := &event.Recording{Version: "2.11", Settings: event.AllocatorSettings{Known: true,
			Conf: "max_split_size_mb:20", MaxSplit: 20 * mib}}
		second := event.BlockFree
		if first == event.BlockFree {
			second = event.BlockActive
		}
		rec.Segments = []event.Segment{
			{Addr: 1 << 30, Size: 60 * mib, Blocks: []event.Block{
				{Addr: 1 << 30, Size: 30 * mib, Requested: 30 * mib, State: first},
				{Addr: 1<<30 + 30*mib, Size: 30 * mib, Requested: 30 * mib, State: second}}},
			{Addr: 2 << 30, Size: 40 * mib, Blocks: []event.Block{
				{Addr: 2 << 30, Size: 40 * mib, Requested: 40 * mib, State: event.BlockActive}}},
		}
		for i := range 8 {
			at := uint64(2<<30) + uint64(i)<<30
			for _, kind := range []event.Kind{event.KindSegmentAlloc, event.KindAlloc,
				event.KindFreeRequested, event.KindFreeCompleted, event.KindSegmentFree} {
				if i == 0 && kind == event.KindFreeRequested {
					break
				}
				rec.History.Append(&event.Entry{Kind: kind, Addr: at, Size: 40 * mib})
			}
		}
		r, err := allocsim.Replay(rec, allocsim.ReplayOptions{Timeline: true})
		if err != nil {
			t.Fatal(err)
		}
		if r.Prelude == 0 {
			t.Fatal("nothing was alive before the first entry: this tests nothing")
		}
		for limit := event.Bytes(0); limit < 200*event.MiB; limit += 10 * event.MiB {
			o := allocsim.Options{Config: r.Config, Limit: limit}
			if got, err := r.Run(o); err != nil || got.Stats.All.Segment.Current < 1 {
				t.Fatalf("limit %s: %+v, %v", limit, got, err)
			}
			if _, err := r.WhatIf(o, rec.Settings.Conf); err != nil {
				t.Fatal(err)
			}
		}
	}
}
