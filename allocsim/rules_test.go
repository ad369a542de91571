package allocsim_test

import (
	"testing"

	"memroom/allocsim"
	"memroom/event"
)

// reserving is a driver that notes how much address space is asked for.
type reserving struct {
	*allocsim.AscendingDriver
	asked []int64
}

func (r *reserving) Reserve(size int64) uint64 {
	r.asked = append(r.asked, size)
	return r.AscendingDriver.Reserve(size)
}

// TestExpandableSegmentsReserveAnEighthMoreThanTheCard: PyTorch asks for 1 1/8 of the card, in
// whole pages (2 MiB for small blocks, 20 MiB for large ones).
func TestExpandableSegmentsReserveAnEighthMoreThanTheCard(t *testing.T) {
	conf, err := allocsim.ParseConf("expandable_segments:True")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		card       event.Bytes
		size, want int64
	}{
		{8 * event.GiB, 512, 9 << 30},
		{16 * event.GiB, 512, 18 << 30},
		{0, 512, 1<<40 + 1<<37},                   // an unknown card is taken as larger than any
		{8 * event.GiB, 30 << 20, 461 * 20 << 20}, // 9 GiB are 460.8 pages
	} {
		d := &reserving{AscendingDriver: allocsim.NewAscendingDriver()}
		a, err := allocsim.New(allocsim.Options{Config: conf, DeviceTotal: c.card, Driver: d})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.Malloc(c.size, 0); err != nil {
			t.Fatal(err)
		}
		if len(d.asked) != 1 || d.asked[0] != c.want {
			t.Errorf("%s on a card of %s: reserved %v, want %d", event.Bytes(c.size), c.card,
				d.asked,
				c.want)
		}
	}
}

// TestEarlyRejectionCameWith212: throw_on_cudamalloc_oom refuses before anything is released, in
// 2.12 and later; earlier releases do not know it and flush the cache first.
func TestEarlyRejectionCameWith212(t *testing.T) {
	conf, err := allocsim.ParseConf("throw_on_cudamalloc_oom:True")
	if err != nil {
		t.Fatal(err)
	}
	for version, rejects := range map[string]bool{"2.11": false, "2.12": true, "2.13": true} {
		a, err := allocsim.New(allocsim.Options{Config: conf, Version: version,
			Limit: 50 * event.MiB})
		if err != nil {
			t.Fatal(err)
		}
		b, err := a.Malloc(30<<20, 0)
		if err != nil {
			t.Fatal(err)
		}
		a.Free(b)
		_, err = a.Malloc(40<<20, 0) // fits once the 30 MiB are released
		if (err != nil) != rejects || (a.Stats().OOMRejections > 0) != rejects ||
			(a.Stats().AllocRetries > 0) == rejects {
			t.Errorf("torch %s: %v, %d rejections, %d retries", version, err,
				a.Stats().OOMRejections, a.Stats().AllocRetries)
		}
	}
}

// TestSegmentsAtTheEdges: PyTorch's known requests to the driver.
func TestSegmentsAtTheEdges(t *testing.T) {
	const mib = 1 << 20
	for size, want := range map[int64]int64{1: 2 * mib, mib: 2 * mib, mib + 1: 20 * mib,
		10*mib - 1: 10 * mib, 10 * mib: 10 * mib, 10*mib - 512: 20 * mib, 10*mib + 1: 12 * mib,
		12 * mib: 12 * mib, 12*mib + 1: 14 * mib, 100*mib + 5: 102 * mib} {
		a, err := allocsim.New(allocsim.Options{Config: allocsim.DefaultConfig()})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.Malloc(size, 0); err != nil {
			t.Fatal(err)
		}
		if got := int64(a.Reserved()); got != want {
			t.Errorf("a request of %d bytes reserves %d, want %d", size, got, want)
		}
	}
}

// TestLimitsAreReachedExactly: a request may fill the limit and the card to the last byte.
func TestLimitsAreReachedExactly(t *testing.T) {
	const mib = 1 << 20
	for name, o := range map[string]allocsim.Options{"limit": {Limit: 40 * event.MiB},
		"card": {DeviceTotal: 41 * event.MiB, Outside: event.MiB}} {
		o.Config = allocsim.DefaultConfig()
		for size, fits := range map[int64]bool{40 * mib: true, 40*mib + 1: false} {
			a, err := allocsim.New(o)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := a.Malloc(size, 0); (err == nil) != fits {
				t.Errorf("%s: %d bytes: %v", name, size, err)
			}
		}
	}
}

// TestSplitsLeaveWhatTheRulesSay: the rest of a large block stays with it up to 1 MiB, that of a
// small one from 512 bytes on becomes a block of its own.
func TestSplitsLeaveWhatTheRulesSay(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct{ first, second, size int64 }{
		{12 * mib, 11 * mib, 12 * mib},         // 1 MiB is left: not split
		{14 * mib, 13*mib - 512, 13*mib - 512}, // 1 MiB and a quantum: split
		{1024, 512, 512},
		{1024, 1024, 1024},
	} {
		a, err := allocsim.New(allocsim.Options{Config: allocsim.DefaultConfig()})
		if err != nil {
			t.Fatal(err)
		}
		b, err := a.Malloc(c.first, 0)
		if err != nil {
			t.Fatal(err)
		}
		a.Free(b)
		if b, err = a.Malloc(c.second, 0); err != nil || int64(a.Size(b)) != c.size {
			t.Errorf("%d bytes in a block of %d: got %s, %v; want %d", c.second, c.first, a.Size(b),
				err, c.size)
		}
	}
}

// TestWhatNewRefuses: sizes below zero, and settings of which a part is empty.
func TestWhatNewRefuses(t *testing.T) {
	for name, spoil := range map[string]func(o *allocsim.Options){
		"limit below 0":      func(o *allocsim.Options) { o.Limit = -1 },
		"card below 0":       func(o *allocsim.Options) { o.DeviceTotal = -1 },
		"others below 0":     func(o *allocsim.Options) { o.Outside = -1 },
		"no largest split":   func(o *allocsim.Options) { o.Config.MaxSplit = 0 },
		"no size of segment": func(o *allocsim.Options) { o.Config.LargeSegment = 0 },
		"no settings":        func(o *allocsim.Options) { o.Config = allocsim.Config{} },
		"no such version":    func(o *allocsim.Options) { o.Version = "two" },
	} {
		o := allocsim.Options{Config: allocsim.DefaultConfig()}
		spoil(&o)
		if _, err := allocsim.New(o); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

// TestPlausibleEntries: what an allocator may record. PyTorch records requests of no bytes;
// segments of none do not exist.
func TestPlausibleEntries(t *testing.T) {
	request, segment := event.KindAlloc, event.KindSegmentAlloc
	for _, c := range []struct {
		kind event.Kind
		size int64
		addr uint64
		want bool
	}{
		{request, 0, 0, true}, {request, 1, 0, true}, {request, -1, 0, false},
		{segment, 0, 0, false}, {segment, 1, 0, true}, {segment, -1, 0, false},
		{event.KindSegmentMap, 0, 0, false}, {event.KindSegmentFree, 0, 0, false},
		{event.KindSegmentUnmap, 0, 0, false}, {event.KindFreeRequested, 0, 0, true},
		{request, 1, 1<<62 - 1, true}, {request, 1, 1 << 62, false},
		{request, allocsim.MaxRequest, 0, true}, {request, allocsim.MaxRequest + 1, 0, false},
	} {
		e := event.Entry{Kind: c.kind, Size: c.size, Addr: c.addr}
		if got := allocsim.Plausible(&e); got != c.want {
			t.Errorf("kind %v of %d bytes at %#x: plausible %v, want %v", c.kind, c.size, c.addr, got,
				c.want)
		}
	}
}
