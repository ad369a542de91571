package allocsim_test

import (
	"math"
	"strings"
	"testing"

	"memroom/allocsim"
	"memroom/event"
)

// limitOf returns the cap of a scenario in bytes, 0 if it had none.
func (s *scenario) limitOf() event.Bytes {
	if gib, ok := s.Args["gib"].(float64); ok {
		return event.Bytes(gib * float64(event.GiB))
	}
	return 0
}

// TestWhatIfPredictsRealRuns replays one run's requests under the settings and limits of others of
// the same program, and compares with what really happened there.
func TestWhatIfPredictsRealRuns(t *testing.T) {
	families := map[string][]scenario{}
	for _, s := range scenarios(t) {
		for _, family := range []string{"dynseq-", "fuzz-s1-"} {
			if strings.HasPrefix(s.ID, family) {
				families[family] = append(families[family], s)
			}
		}
	}
	for _, family := range families {
		for _, from := range family {
			if from.OOM {
				continue // it does not hold the whole program
			}
			source := verify(t, from.path, allocsim.ReplayOptions{Timeline: true})
			for _, to := range family {
				predict(t, source, from, to)
			}
		}
	}
}

func predict(t *testing.T, source *allocsim.Replayed, from, to scenario) {
	t.Helper()
	conf, err := allocsim.ParseConf(to.Conf)
	if err != nil {
		t.Fatal(err)
	}
	got, err := source.Run(allocsim.Options{Config: conf, Limit: to.limitOf()})
	if err != nil {
		t.Fatal(err)
	}
	want := to.Stats["reserved_bytes.all.peak"]
	off := float64(got.ReservedPeak)/float64(want) - 1
	exact := "exact"
	if got.ReservedPeak != event.Bytes(want) {
		exact = "OFF"
	}
	t.Logf("%-28s -> %-28s %+.4f %% %s retries %d/%d allocs %d/%d oom %v/%v", from.ID, to.ID,
		100*off, exact, got.Retries, to.Stats["num_alloc_retries"],
		got.Stats.DeviceAllocs, to.Stats["num_device_alloc"], got.OOM != nil, to.OOM)
	if (got.OOM != nil) != to.OOM {
		t.Errorf("%s -> %s: OOM predicted %v, really %v", from.ID, to.ID, got.OOM != nil, to.OOM)
	}
	if math.Abs(off) > 0.01 {
		t.Errorf("%s -> %s: reserved peak %d, really %d (%+.2f %%)", from.ID, to.ID,
			got.ReservedPeak, want, 100*off)
	}
}
