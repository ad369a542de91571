package allocsim_test

import (
	"testing"

	"memroom/allocsim"
	"memroom/event"
)

// TestSearchesAreShort: real programs take less than a hundred steps a request, also those whose
// expandable segments have hundreds of holes or whose cache has hundreds of blocks. The bound that
// ends hostile recordings is far above that.
func TestSearchesAreShort(t *testing.T) {
	for _, conf := range []string{"", "expandable_segments:True",
		"garbage_collection_threshold:0.9", "max_split_size_mb:64"} {
		c, err := allocsim.ParseConf(conf)
		if err != nil {
			t.Fatal(err)
		}
		a, err := allocsim.New(allocsim.Options{Config: c, Limit: 64 * event.GiB})
		if err != nil {
			t.Fatal(err)
		}
		const blocks, rounds = 600, 4
		requests := int64(0)
		take := func(size int64) allocsim.Block {
			b, err := a.Malloc(size, 0)
			if err != nil {
				t.Fatal(conf, err)
			}
			requests++
			return b
		}
		var live []allocsim.Block
		for i := range blocks {
			live = append(live, take(int64(20+i%5)<<20))
		}
		for range rounds {
			for i := 0; i < blocks; i += 2 {
				a.Free(live[i])
			}
			a.EmptyCache()
			for i := 0; i < blocks; i += 2 {
				live[i] = take(int64(20+i%3) << 20)
			}
		}
		if each := a.Effort() / requests; each >= 100 {
			t.Errorf("%q: %d steps a request", conf, each)
		}
	}
}

// TestBFCAsksForATenthLess: TensorFlow computes nine tenths in single precision and rounds up to
// 256 bytes. Known by hand: 0.9 is 15099494 / 2^24 there.
func TestBFCAsksForATenthLess(t *testing.T) {
	for _, c := range []struct {
		limit, refuse event.Bytes // the driver refuses what is larger
		need          int64
		asked         []int64
	}{
		{event.GiB, 900 << 20, 600 << 20, []int64{1 << 30, 966367744, 869731072}},
		{event.GiB, event.GiB, 600 << 20, []int64{1 << 30}},
		{event.GiB, 700 << 20, 950 << 20, []int64{1 << 30}}, // a tenth less would be too little
		{event.GiB, 0, 1000 << 20, []int64{1 << 30}},
	} {
		var asked []int64
		b := allocsim.NewBFC(allocsim.BFCOptions{Limit: c.limit, Growth: true,
			Region: func(size int64) (uint64, bool) {
				asked = append(asked, size)
				return 1 << 40, size <= int64(c.refuse)
			}})
		_, err := b.Malloc(c.need)
		fits := asked[len(asked)-1] <= int64(c.refuse)
		if (err == nil) != fits || len(asked) != len(c.asked) {
			t.Errorf("limit %s, refused above %s: asked for %v, %v; want %v", c.limit, c.refuse, asked,
				err, c.asked)
			continue
		}
		for i := range asked {
			if asked[i] != c.asked[i] {
				t.Errorf("asked for %v, want %v", asked, c.asked)
				break
			}
		}
	}
}

// TestAllMemoryThereCanBe is reached to the last byte, and not passed.
func TestAllMemoryThereCanBe(t *testing.T) {
	a, err := allocsim.New(allocsim.Options{Config: allocsim.DefaultConfig()})
	if err != nil {
		t.Fatal(err)
	}
	for int64(a.Reserved()) < allocsim.MaxTotal {
		rest := min(allocsim.MaxRequest, allocsim.MaxTotal-int64(a.Reserved()))
		rest -= rest % (2 << 20) // segments are whole pages
		if _, err := a.Malloc(rest, 0); err != nil {
			t.Fatalf("%s reserved, %s more refused: %v", a.Reserved(), event.Bytes(rest), err)
		}
	}
	if _, err := a.Malloc(512, 0); err == nil {
		t.Errorf("%s reserved, and more is given", a.Reserved())
	}
}

// TestOutcomesAreThoseOfRuns: the table of settings has the figures of a run under each, and the
// spread is what other addresses change.
func TestOutcomesAreThoseOfRuns(t *testing.T) {
	checked, spread := 0, 0
	for _, s := range scenarios(t) {
		if s.OOM || checked == 3 {
			continue
		}
		checked++
		source := verify(t, s.path, allocsim.ReplayOptions{Timeline: true})
		table, err := source.WhatIf(allocsim.Options{}, s.Conf)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range table.Outcomes {
			conf, err := allocsim.ParseConf(o.Conf)
			if err != nil {
				t.Fatal(err)
			}
			run := func(d allocsim.Driver) allocsim.Result {
				got, err := source.Run(allocsim.Options{Config: conf, Driver: d})
				if err != nil {
					t.Fatal(err)
				}
				return got
			}
			own := run(nil)
			if o.ReservedPeak != own.ReservedPeak || o.AllocatedPeak != own.AllocatedPeak ||
				o.Overhead != own.ReservedPeak-own.ActivePeak || o.Overhead < 0 ||
				o.Retries != own.Retries || o.Recorded != (o.Conf == s.Conf) {
				t.Errorf("%s, %q: %+v, the run %+v", s.ID, o.Conf, o, own)
			}
			if o.Spread == 0 {
				continue
			}
			spread++
			up, any := run(allocsim.NewAscendingDriver()), run(allocsim.NewRandomDriver(1))
			most := max(own.ReservedPeak, up.ReservedPeak, any.ReservedPeak)
			if least := min(own.ReservedPeak, up.ReservedPeak, any.ReservedPeak); o.Spread !=
				most-least {
				t.Errorf("%s, %q: spread %s, from %s to %s", s.ID, o.Conf, o.Spread, least, most)
			}
		}
	}
	if checked == 0 {
		t.Error("no recording was looked at")
	}
	t.Logf("%d recordings, %d outcomes with a spread", checked, spread)
}
