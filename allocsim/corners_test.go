package allocsim_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"memroom/allocsim"
	"memroom/event"
)

// TestAddressesOfOneCardNeverOverlap checks that segments never overlap, however many there are,
// and that the same seed leads to the same addresses.
func TestAddressesOfOneCardNeverOverlap(t *testing.T) {
	const slots, size = 1 << 19, 3 << 30
	one, same, other := allocsim.NewRandomDriver(5), allocsim.NewRandomDriver(5),
		allocsim.NewRandomDriver(6)
	seen := map[uint64]bool{}
	differ := 0
	for i := range slots*3/4 + 1000 {
		addr := one.Malloc(size)
		// addresses are a multiple of the size apart, or in slots of a tebibyte: only equal ones
		// overlap
		if seen[addr] || addr == 0 {
			t.Fatalf("segment %d lies at %#x, where another is", i, addr)
		}
		seen[addr] = true
		if i >= slots*3/4 && addr>>40 <= slots {
			t.Fatalf("segment %d lies at %#x, among the slots", i, addr)
		}
		if i < slots*3/4 && (addr&(1<<40-1) != 0 || addr>>40 > slots) {
			t.Fatalf("segment %d lies at %#x, which is no slot", i, addr)
		}
		if i < 100 {
			if again := same.Malloc(size); again != addr {
				t.Fatalf("segment %d lies at %#x and at %#x with the same seed", i, addr, again)
			}
			if other.Malloc(size) != addr {
				differ++
			}
		}
	}
	if differ < 90 {
		t.Errorf("another seed gives the same addresses")
	}
}

// TestFractionsOfACard: per_process_memory_fraction caps what is reserved, and so does a limit; the
// lower of them holds.
func TestFractionsOfACard(t *testing.T) {
	for name, c := range map[string]struct {
		fraction     float64
		limit, total event.Bytes
		fits, fails  event.Bytes
	}{
		"half of it": {0.5, 0, 8 * event.GiB, 4 * event.GiB, 4*event.GiB + 2*event.MiB},
		"a lower limit": {0.5, 3 * event.GiB, 8 * event.GiB, 3 * event.GiB,
			3*event.GiB + 2*event.MiB},
		"a higher limit": {0.5, 5 * event.GiB, 8 * event.GiB, 4 * event.GiB,
			4*event.GiB + 2*event.MiB},
		"all of it":          {1, 0, 8 * event.GiB, 8 * event.GiB, 8*event.GiB + 2*event.MiB},
		"of an unknown card": {0.5, 0, 0, 9 * event.GiB, 0},
		"nothing is said":    {0, 0, 8 * event.GiB, 8 * event.GiB, 8*event.GiB + 2*event.MiB},
		"a limit, no fraction": {0, 3 * event.GiB, 8 * event.GiB, 3 * event.GiB,
			3*event.GiB + 2*event.MiB},
		"a limit and no card": {0, event.GiB, 0, event.GiB, event.GiB + 2*event.MiB},
	} {
		config := allocsim.DefaultConfig()
		config.MemoryFraction = c.fraction
		for size, fits := range map[event.Bytes]bool{c.fits: true, c.fails: false} {
			if size == 0 {
				continue
			}
			a, err := allocsim.New(allocsim.Options{Config: config, Limit: c.limit, DeviceTotal: c.total})
			if err != nil {
				t.Fatal(err)
			}
			_, err = a.Malloc(int64(size), 0)
			var full *allocsim.OutOfMemory
			if fits != (err == nil) || !fits && !errors.As(err, &full) {
				t.Errorf("%s: %s: %v", name, size, err)
			}
			if full != nil && (full.Requested != size || !strings.Contains(full.Error(),
				"tried to allocate "+full.Segment.String())) {
				t.Errorf("%s: %+v: %v", name, full, full)
			}
		}
	}
	for _, o := range []allocsim.Options{{Config: allocsim.DefaultConfig(), Limit: -1},
		{Config: allocsim.DefaultConfig(), DeviceTotal: -1}, {Config: allocsim.DefaultConfig(),
			Outside: -1},
		{}, {Config: allocsim.DefaultConfig(), Version: "none"}} {
		if _, err := allocsim.New(o); err == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
	// Memory of other processes on the card is not there for us.
	a, err := allocsim.New(allocsim.Options{Config: allocsim.DefaultConfig(),
		DeviceTotal: 8 * event.GiB,
		Outside:     3 * event.GiB})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Malloc(int64(5*event.GiB), 0); err != nil {
		t.Errorf("5 of 5 GiB: %v", err)
	}
	if _, err := a.Malloc(int64(2*event.MiB), 0); err == nil {
		t.Error("more than is there")
	}
}

// TestSettingsOfRecordings checks that the allocator settings in a recording are used where they
// make sense. A setting that does not is named, and the default stays.
func TestSettingsOfRecordings(t *testing.T) {
	for name, c := range map[string]struct {
		settings event.AllocatorSettings
		split    event.Bytes
		gc       float64
		first    int // divisions of sizes up to 1 MiB
		wrong    string
	}{
		"nothing": {event.AllocatorSettings{Known: true, MaxSplit: -1}, allocsim.Unlimited, 0, 0,
			""},
		"a split": {event.AllocatorSettings{Known: true, MaxSplit: 100 << 20}, 100 * event.MiB, 0,
			0, ""},
		"the least": {event.AllocatorSettings{Known: true, MaxSplit: 20 << 20}, 20 * event.MiB, 0,
			0, ""},
		"a small split": {event.AllocatorSettings{Known: true, MaxSplit: 20<<20 - 1},
			allocsim.Unlimited, 0, 0, "max_split_size"},
		"a threshold": {event.AllocatorSettings{Known: true, GCThreshold: 0.8}, allocsim.Unlimited,
			0.8, 0, ""},
		"a large threshold": {event.AllocatorSettings{Known: true, GCThreshold: 1}, allocsim.Unlimited,
			0, 0,
			"garbage_collection_threshold"},
		"a negative one": {event.AllocatorSettings{Known: true, GCThreshold: -0.5}, allocsim.Unlimited,
			0, 0,
			"garbage_collection_threshold"},
		"divisions": {event.AllocatorSettings{Known: true, Divisions: map[int]int{1: 8}},
			allocsim.Unlimited, 0, 8, ""},
		"no power": {event.AllocatorSettings{Known: true, Divisions: map[int]int{1: 6}},
			allocsim.Unlimited, 0, 0, "6"},
		"a negative division": {event.AllocatorSettings{Known: true, Divisions: map[int]int{1: -8}},
			allocsim.Unlimited, 0, 0, "-8"},
		"words of tomorrow": {event.AllocatorSettings{Known: true, Conf: "shape:round"},
			allocsim.Unlimited, 0, 0,
			"shape"},
	} {
		got, err := allocsim.ConfigOf(&event.Recording{Settings: c.settings})
		if got.MaxSplit != c.split || got.GCThreshold != c.gc || got.Divisions[0] != c.first ||
			(err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
			t.Errorf("%s: split %s, threshold %g, divisions %v, %v", name, got.MaxSplit, got.GCThreshold,
				got.Divisions, err)
		}
	}
	for _, expandable := range []bool{false, true} {
		segments := []event.Segment{{}, {Expandable: expandable}}
		got, err := allocsim.ConfigOf(&event.Recording{Segments: segments})
		if err != nil || got.Expandable != expandable {
			t.Errorf("segments say %v: %v, %v", expandable, got.Expandable, err)
		}
	}
}

// TestBFCJoinsRegions: with virtual memory a region that follows another directly is one with it,
// so a chunk may lie across both; elsewhere it may not.
func TestBFCJoinsRegions(t *testing.T) {
	for _, joined := range []bool{false, true} {
		next := uint64(1 << 40)
		model := allocsim.NewBFC(allocsim.BFCOptions{Limit: 6 * event.MiB, Growth: true,
			CoalesceRegions: joined,
			Region: func(size int64) (uint64, bool) {
				addr := next
				next += uint64(size)
				return addr, true
			}})
		var held []uint64
		for _, size := range []int64{2 << 20, 4 << 20} {
			addr, err := model.Malloc(size)
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, addr)
		}
		if regions := len(model.Regions()); (regions == 1) != joined {
			t.Errorf("joined %v: %d regions", joined, regions)
		}
		for _, addr := range held {
			if err := model.Free(addr); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := model.Malloc(6 << 20); (err == nil) != joined {
			t.Errorf("joined %v: 6 MiB across both: %v", joined, err)
		}
		if s := model.Stats(); s.Pool != 6*event.MiB || s.PeakPool != 6*event.MiB {
			t.Errorf("joined %v: %+v", joined, s)
		}
		checkBFC(t, model)
	}
	// Other addresses in between: nothing is joined.
	next := uint64(1 << 40)
	model := allocsim.NewBFC(allocsim.BFCOptions{Limit: 6 * event.MiB, Growth: true,
		CoalesceRegions: true,
		Region:          func(size int64) (uint64, bool) { next += 64 << 20; return next, true }})
	for _, size := range []int64{2 << 20, 4 << 20} {
		if _, err := model.Malloc(size); err != nil {
			t.Fatal(err)
		}
	}
	if regions := len(model.Regions()); regions != 2 {
		t.Errorf("%d regions", regions)
	}
}

// TestBFCWaste: a chunk is cut where it is twice as large as needed, or where more than 128 MiB, or
// the part of the limit that was set, would be wasted in it.
func TestBFCWaste(t *testing.T) {
	for name, c := range map[string]struct {
		fraction float64
		ask      event.Bytes
		use      event.Bytes
	}{
		"half":             {0, 512 * event.MiB, 512 * event.MiB},
		"a little more":    {0, 513 * event.MiB, 513 * event.MiB},
		"128 MiB wasted":   {0, 896 * event.MiB, 896 * event.MiB},
		"less is wasted":   {0, 897 * event.MiB, event.GiB},
		"a set part":       {0.5, 600 * event.MiB, event.GiB},
		"a small set part": {0.01, 1000 * event.MiB, 1000 * event.MiB},
	} {
		model := allocsim.NewBFC(allocsim.BFCOptions{Limit: event.GiB, SlackFraction: c.fraction})
		if _, err := model.Malloc(int64(c.ask)); err != nil {
			t.Fatal(err)
		}
		if s := model.Stats(); s.InUse != c.use {
			t.Errorf("%s: %s are in use for %s, want %s", name, s.InUse, c.ask, c.use)
		}
	}
	model := allocsim.NewBFC(allocsim.BFCOptions{})
	if _, err := model.Malloc(math.MaxInt64); !errors.Is(err, allocsim.ErrBFCFull) {
		t.Errorf("all there can be: %v", err)
	}
}

// TestTimelinesThatMakeNoSense are refused with the operation; an attempt that fails is no end.
func TestTimelinesThatMakeNoSense(t *testing.T) {
	alloc := func(id int32, size int64) event.Op {
		return event.Op{Kind: event.OpAlloc, ID: id,
			Size: size}
	}
	try := event.Op{Kind: event.OpTry, Size: 1 << 40}
	small := event.Op{Kind: event.OpTry, Size: 1 << 20}
	run := map[string]func([]event.Op) (allocsim.Result, error){
		"BFC": func(ops []event.Op) (allocsim.Result, error) {
			return allocsim.RunBFC(&event.Timeline{Ops: ops}, allocsim.BFCOptions{Limit: event.GiB,
				Growth: true})
		},
		"caching": func(ops []event.Op) (allocsim.Result, error) {
			return allocsim.Run(&event.Timeline{Ops: ops}, allocsim.Options{Config: allocsim.DefaultConfig(),
				Limit: event.GiB})
		},
	}
	for which, run := range run {
		for name, ops := range map[string][]event.Op{"made twice": {alloc(1, 5), alloc(1, 5)},
			"freed and not made": {alloc(1, 5), {Kind: event.OpFree, ID: 2}},
			"freed twice":        {alloc(1, 5), {Kind: event.OpFree, ID: 1}, {Kind: event.OpFree, ID: 1}},
			"no kind":            {alloc(1, 5), {Kind: 99}}} {
			if _, err := run(ops); err == nil || name != "freed twice" && name != "made twice" &&
				!strings.Contains(err.Error(), "operation 1") {
				t.Errorf("%s, %s: %v", which, name, err)
			}
		}
		got, err := run([]event.Op{alloc(1, 1<<20), try, small, alloc(2, 1<<20)})
		if err != nil || got.OOMs != 1 || got.OOM == nil || got.OOM.At != 1 || got.Ops != 4 ||
			got.Allocs != 3 {
			t.Errorf("%s: %+v, %v", which, got, err)
		}
		if got.AllocatedPeak < 2*event.MiB || got.AllocatedPeak > 4*event.MiB {
			t.Errorf("%s: a peak of %s", which, got.AllocatedPeak)
		}
	}
}

// TestExpandableSegmentsOfPrivatePools: since 2.5 they grow as those of the default pool do;
// before, they were segments of their own, of 20 MiB at least.
func TestExpandableSegmentsOfPrivatePools(t *testing.T) {
	for version, grows := range map[string]bool{"2.4": false, "2.5": true, "2.11": true} {
		for pool, expandable := range map[uint8]bool{0: true, 1: grows} {
			config := allocsim.DefaultConfig()
			config.Expandable = true
			kinds := map[event.Kind]event.Bytes{}
			got, err := allocsim.Run(&event.Timeline{Ops: []event.Op{
				{Kind: event.OpAlloc, ID: 1, Size: 4 << 20, Pool: pool}}},
				allocsim.Options{Config: config, Version: version, Record: func(e event.Entry) {
					kinds[e.Kind] += event.Bytes(e.Size)
				}})
			want := event.Bytes(20 * event.MiB)
			if err != nil || (kinds[event.KindSegmentMap] > 0) != expandable ||
				(kinds[event.KindSegmentAlloc] > 0) == expandable || got.ReservedPeak != want {
				t.Errorf("PyTorch %s, pool %d: %v, reserved %s, %v", version, pool, kinds, got.ReservedPeak,
					err)
			}
		}
	}
}

// TestBFCKeepsWhatItWouldGiveInVain: idle regions go back to the driver only where that makes room.
func TestBFCKeepsWhatItWouldGiveInVain(t *testing.T) {
	for ask, fits := range map[event.Bytes]bool{6 * event.MiB: true, 6*event.MiB + 1: false,
		7 * event.MiB: false} {
		model := allocsim.NewBFC(allocsim.BFCOptions{Limit: 14 * event.MiB, Growth: true,
			CollectGarbage: true})
		var held []uint64
		for _, size := range []int64{2 << 20, 4 << 20, 8 << 20} {
			addr, err := model.Malloc(size)
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, addr)
		}
		for _, addr := range held[:2] {
			if err := model.Free(addr); err != nil {
				t.Fatal(err)
			}
		}
		_, err := model.Malloc(int64(ask))
		if s := model.Stats(); (err == nil) != fits || s.Pool != 14*event.MiB {
			t.Errorf("%s with 6 MiB idle: %v, pool %s", ask, err, s.Pool)
		}
		checkBFC(t, model)
	}
}
