package allocsim

import (
	"fmt"
	"strings"
	"testing"

	"memroom/event"
)

// TestSettingsOfTheAllocator: each key by itself, with the values at the edges that PyTorch takes.
func TestSettingsOfTheAllocator(t *testing.T) {
	const mib = event.MiB
	all := func(from, to, d int) func(*Config) {
		return func(c *Config) {
			for i := from; i < to; i++ {
				c.Divisions[i] = d
			}
		}
	}
	for text, change := range map[string]func(*Config){
		"": func(*Config) {}, " , ,": func(*Config) {}, "backend:native": func(*Config) {},
		"max_split_size_mb:20":                  func(c *Config) { c.MaxSplit = 20 * mib },
		" max_split_size_mb : 128 ,":            func(c *Config) { c.MaxSplit = 128 * mib },
		"max_split_size_mb:9223372036854775807": func(c *Config) { c.MaxSplit = Unlimited },
		"max_non_split_rounding_mb:20":          func(*Config) {},
		"max_non_split_rounding_mb:64":          func(c *Config) { c.MaxNonSplitRounding = 64 * mib },
		"large_segment_size_mb:11":              func(c *Config) { c.LargeSegment = 11 * mib },
		"large_segment_size_mb:64":              func(c *Config) { c.LargeSegment = 64 * mib },
		"garbage_collection_threshold:0.8":      func(c *Config) { c.GCThreshold = 0.8 },
		"per_process_memory_fraction:1":         func(*Config) {},
		"per_process_memory_fraction:0.5":       func(c *Config) { c.MemoryFraction = 0.5 },
		"expandable_segments:True":              func(c *Config) { c.Expandable = true },
		"expandable_segments:False":             func(*Config) {},
		"throw_on_cudamalloc_oom:True":          func(c *Config) { c.RejectEarly = true },
		"pinned_num_register_threads:8,expandable_segments:True": func(c *Config) {
			c.Expandable = true
		},
		"roundup_power2_divisions:8":     all(0, divisionSlots, 8),
		"roundup_power2_divisions:1":     all(0, divisionSlots, 1),
		"roundup_power2_divisions:[4:2]": all(0, 3, 2),
		"roundup_power2_divisions:[256:1,512:2,1024:4,>:8]": func(c *Config) {
			all(0, 9, 1)(c)
			c.Divisions[9], c.Divisions[10] = 2, 4
			all(11, divisionSlots, 8)(c)
		},
		"roundup_power2_divisions:[256:1,1024:4]": func(c *Config) { all(0, 9, 1)(c); c.Divisions[10] = 4 },
		"roundup_power2_divisions:[1:0,>:4]":      all(1, divisionSlots, 4),
		"roundup_power2_divisions:[>:4]":          all(0, divisionSlots, 4),
		"roundup_power2_divisions:[65536:2]":      all(0, divisionSlots, 2),
		"roundup_power2_divisions:[32:2],max_split_size_mb:64": func(c *Config) {
			all(0, 6, 2)(c)
			c.MaxSplit = 64 * mib
		},
	} {
		want := DefaultConfig()
		change(&want)
		if got, err := ParseConf(text); err != nil || got != want {
			t.Errorf("%q: %v\n%+v\nwant\n%+v", text, err, got, want)
		}
	}
}

// TestSettingsThatPyTorchRefuses: the text names the key, the value and what it should be.
func TestSettingsThatPyTorchRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"max_split:128":                                 `"max_split" is not known: the keys are backend, expand`,
		"max_split_size_mb":                             "needs a value: write max_split_size_mb:VALUE",
		"max_split_size_mb:19":                          "max_split_size_mb: 19 is too small: at least 20",
		"max_split_size_mb:-1":                          `"-1" is not a whole number`,
		"max_split_size_mb:x":                           `"x" is not a whole number`,
		"large_segment_size_mb:10":                      "10 is too small: at least 11",
		"max_non_split_rounding_mb:19":                  "19 is too small: at least 20",
		"large_segment_size_mb:32,max_split_size_mb:31": "31MiB is below the segment size of 32MiB",
		"garbage_collection_threshold:1":                `"1" is not a fraction`,
		"garbage_collection_threshold:0":                `"0" is not a fraction`,
		"garbage_collection_threshold:nan":              `"nan" is not a fraction`,
		"per_process_memory_fraction:1.01":              `"1.01" is not a fraction`,
		"expandable_segments:true":                      `"true" is neither True nor False`,
		"throw_on_cudamalloc_oom:1":                     `"1" is neither True nor False`,
		"backend:cudaMallocAsync":                       `"cudaMallocAsync" is not modelled`,
		"expandable_segments:True max_split":            `"Truemax_split" is neither`,
		"expandable_segments:True:False":                "expected a comma after the value of expandable_segments",
		"pinned_free_catch_all:":                        "pinned_free_catch_all: has no value",
		"pinned_free_catch_all:,":                       "has no value",
		"roundup_power2_divisions:3":                    "3 is not a power of two",
		"roundup_power2_divisions:0":                    "0 is not a power of two",
		"roundup_power2_divisions:2147483648":           "2147483648 is not a power of two",
		"roundup_power2_divisions:[3:1]":                `boundary "3" is not a power of two`,
		"roundup_power2_divisions:[4:3]":                "3 is not a power of two",
		"roundup_power2_divisions:[4]":                  "write the list as [256:1,512:2,>:4]",
		"roundup_power2_divisions:[4:1":                 "the list is not closed by ]",
	} {
		if _, err := ParseConf(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

// TestReleases: how versions are written, which are known, and how each orders ties.
func TestReleases(t *testing.T) {
	for text, want := range map[string]string{"": "2.11 true 0", "2.11": "2.11 true 0",
		"v2.4.1": "2.4 true 0", "2.11.0+cu130": "2.11 true 0", "1.10": "1.10 true 0",
		"1.9.1": "1.9 false 0", "2.12.0a0": "2.12 true 1", "2.13": "2.13 true 2",
		"2.14": "2.14 false 2", "3.0": "3.0 false 2", "0.4": "0.4 false 0"} {
		v, err := ParseVersion(text)
		if got := fmt.Sprint(v, v.Known(), v.ties()); err != nil || got != want {
			t.Errorf("%q: %s %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"2", "two.1", "2.x", ".1", "2.", "v"} {
		if v, err := ParseVersion(text); err == nil || !strings.Contains(err.Error(), "form 2.11") {
			t.Errorf("%q: %v %v", text, v, err)
		}
	}
}

// TestPeaksOfMarks: how high each phase goes, and where; a phase begins with what is there.
func TestPeaksOfMarks(t *testing.T) {
	const mib = int64(event.MiB)
	ops := []event.Op{{Size: 30 * mib, ID: 0}, {Size: 50 * mib, ID: 1},
		{ID: 1, Kind: event.OpFree}, {Size: 20 * mib, ID: 2}, {ID: 0, Kind: event.OpFree},
		{ID: 2, Kind: event.OpFree}, {Kind: event.OpEmptyCache}, {Size: 10 * mib, ID: 3}}
	tl := &event.Timeline{Ops: ops, Marks: []event.Mark{{At: 0, Phase: "load"},
		{At: 3, Step: 1, Phase: "forward"}, {At: 6, Step: 1, Phase: "optimizer"}}}
	r, err := Run(tl, Options{Config: DefaultConfig()})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range r.Marks {
		got = append(got, fmt.Sprintf("%s allocated %s reserved %s at %d", m.Phase, m.AllocatedPeak,
			m.ReservedPeak, m.PeakAt))
	}
	want := []string{"load allocated 80MiB reserved 80MiB at 1",
		"forward allocated 50MiB reserved 80MiB at 3", "optimizer allocated 10MiB reserved 80MiB at 7"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%q\nwant\n%q", got, want)
	}
	if r.AllocatedPeakAt != 1 || r.ReservedPeakAt != 1 || r.ReservedAtPeak != 80*event.MiB ||
		r.Allocs != 4 || r.Ops != 8 {
		t.Errorf("%+v", r)
	}
	for at, want := range map[int]string{0: "[0]", 1: "[0 1]", 2: "[0]", 3: "[0 3]", 5: "[]", 7: "[7]",
		99: "[7]"} {
		if got := fmt.Sprint(LiveAt(tl, at)); got != want {
			t.Errorf("live at %d: %s, want %s", at, got, want)
		}
	}
}

// TestTriesEndNothing: a request that failed when it was recorded is made and let go, or fails
// again; the run goes on.
func TestTriesEndNothing(t *testing.T) {
	const mib = int64(event.MiB)
	tl := &event.Timeline{Ops: []event.Op{{Size: 90 * mib, Kind: event.OpTry}, {Size: 60 * mib, ID: 0},
		{Size: 90 * mib, Kind: event.OpTry}, {Size: 20 * mib, ID: 1}}}
	r, err := Run(tl, Options{Config: DefaultConfig(), Limit: 100 * event.MiB})
	if err != nil || r.Ops != 4 || r.Allocs != 3 || r.OOM == nil || r.OOM.At != 2 ||
		r.AllocatedPeak != 90*event.MiB {
		t.Errorf("%+v %v", r, err)
	}
}
