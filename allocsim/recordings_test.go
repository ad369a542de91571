package allocsim_test

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"memroom/allocsim"
	"memroom/event"
	"memroom/testenv"
	"memroom/trace"
)

// scenario is a line of traces/index.jsonl.
type scenario struct {
	ID    string           `json:"id"`
	Conf  string           `json:"conf"`
	OOM   bool             `json:"oom"`
	Args  map[string]any   `json:"args"`
	Stats map[string]int64 `json:"stats"`
	path  string
}

// scenarios lists the recordings that are there: those in testdata, and all others where the shared
// folder is.
func scenarios(t testing.TB) []scenario {
	t.Helper()
	if _, err := os.Stat(filepath.Join(testenv.Root(t), "..", "shared", "traces")); err == nil {
		return scenariosIn(t, testenv.Shared(t, "traces"), ".pickle.gz")
	}
	return scenariosIn(t, filepath.Join("testdata", "traces"), ".pickle.xz")
}

func scenariosIn(t testing.TB, dir, ext string) []scenario {
	t.Helper()
	f, err := os.Open(filepath.Join(dir, "index.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all []scenario
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		var s scenario
		if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
			t.Fatal(err)
		}
		s.path = filepath.Join(dir, s.ID+ext)
		if _, err := os.Stat(s.path); err == nil {
			all = append(all, s)
		}
	}
	if len(all) == 0 {
		t.Fatalf("no recordings in %s", dir)
	}
	return all
}

func readRecording(t testing.TB, path string) *event.Recording {
	t.Helper()
	s, err := trace.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if s.Truncated || len(s.Recordings) != 1 {
		t.Fatalf("%s: truncated %v (%s), %d devices", path, s.Truncated, s.Reason,
			len(s.Recordings))
	}
	return &s.Recordings[0]
}

func verify(t testing.TB, path string, o allocsim.ReplayOptions) *allocsim.Replayed {
	t.Helper()
	r, err := allocsim.Replay(readRecording(t, path), o)
	if err != nil {
		t.Fatal(err)
	}
	if !r.Exact() {
		t.Errorf("%s: %d mismatches in %d allocations, first at %d", filepath.Base(path),
			r.Mismatches, r.Allocs, r.DivergedAt)
		for _, d := range r.Divergences {
			t.Logf("  %d: %s", d.At, d.What)
		}
	}
	for _, w := range r.Warnings {
		t.Logf("%s: warning: %s", filepath.Base(path), w)
	}
	return r
}

// memoryStats names the figures as torch.cuda.memory_stats does.
func memoryStats(s *allocsim.Stats, c *allocsim.Config) map[string]int64 {
	maxSplit := int64(c.MaxSplit)
	if c.MaxSplit == allocsim.Unlimited {
		maxSplit = -1
	}
	flat := map[string]int64{"num_alloc_retries": s.AllocRetries, "num_ooms": s.OOMs,
		"num_device_alloc": s.DeviceAllocs, "num_device_free": s.DeviceFrees,
		"max_split_size": maxSplit}
	for pool, p := range map[string]*allocsim.PoolStats{"all": &s.All, "small_pool": &s.Small,
		"large_pool": &s.Large} {
		for name, v := range map[string]allocsim.Stat{"allocation": p.Allocation,
			"segment": p.Segment, "active": p.Active,
			"inactive_split": p.InactiveSplit, "allocated_bytes": p.AllocatedBytes,
			"reserved_bytes": p.ReservedBytes,
			"active_bytes":   p.ActiveBytes, "inactive_split_bytes": p.InactiveSplitBytes,
			"requested_bytes": p.RequestedBytes} {
			prefix := name + "." + pool + "."
			flat[prefix+"current"], flat[prefix+"peak"] = v.Current, v.Peak
			flat[prefix+"allocated"], flat[prefix+"freed"] = v.Allocated, v.Freed
		}
	}
	return flat
}

// TestRecordingsVerify holds every recording against the model: every placement, every segment, the
// state at the end, and every statistic that PyTorch itself reported.
func TestRecordingsVerify(t *testing.T) {
	for _, s := range scenarios(t) {
		t.Run(s.ID, func(t *testing.T) {
			r := verify(t, s.path, allocsim.ReplayOptions{})
			if !r.Complete {
				t.Logf("starts with %d blocks, %d inferred", r.Before, r.Inferred)
				return
			}
			got := memoryStats(&r.Stats, &r.Config)
			compared := 0
			for name, want := range s.Stats {
				have, known := got[name]
				if name == "num_sync_all_streams" {
					// also counts calls of empty_cache that released nothing, which leave no trace
					continue
				}
				if !known {
					t.Errorf("statistic %s is not modelled", name)
					continue
				}
				compared++
				if have != want {
					if s.OOM && (strings.HasPrefix(name, "inactive_split") ||
						strings.HasSuffix(name, ".current") || strings.HasSuffix(name, ".freed")) {
						continue // read after more frees than the snapshot holds
					}
					t.Errorf("%s = %d, recorded %d", name, have, want)
				}
			}
			t.Logf("%d statistics equal", compared)
		})
	}
}

func TestSharedOperationRecordingsVerify(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(testenv.Shared(t, "traces"), "ops", "*.pickle.gz"))
	if err != nil || len(files) == 0 {
		t.Fatal("no traces", err)
	}
	for _, f := range append(files, filepath.Join(testenv.Shared(t, "traces"), "big.pickle.xz")) {
		r := verify(t, f, allocsim.ReplayOptions{})
		if !r.Complete {
			t.Logf("%s starts with %d blocks, %d inferred", filepath.Base(f), r.Before, r.Inferred)
		}
	}
}
