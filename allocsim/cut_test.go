package allocsim_test

import (
	"strings"
	"testing"

	"memroom/allocsim"
	"memroom/event"
)

// withoutBeginning returns the recording as a ring buffer would have kept it: the first entries are
// lost.
func withoutBeginning(rec *event.Recording, lost int) *event.Recording {
	cut := *rec
	cut.History = event.History{}
	for _, e := range rec.History.From(lost) {
		cut.History.Append(e)
	}
	return &cut
}

// TestRecordingsWithoutTheirBeginning cuts every recording at five places. The state before the cut
// is found by rewinding.
func TestRecordingsWithoutTheirBeginning(t *testing.T) {
	allocs, mismatches, inferred, before := 0, 0, 0, 0
	for _, s := range scenarios(t) {
		if strings.HasPrefix(s.ID, "oom-leak") {
			continue
		}
		rec := readRecording(t, s.path)
		for _, percent := range []int{10, 25, 50, 75, 90} {
			cut := withoutBeginning(rec, rec.History.Len()*percent/100)
			r, err := allocsim.Replay(cut, allocsim.ReplayOptions{Timeline: true})
			if err != nil {
				t.Fatal(err)
			}
			allocs, mismatches, inferred, before = allocs+r.Allocs, mismatches+r.Mismatches,
				inferred+r.Inferred, before+r.Before
			for _, d := range r.Divergences {
				if d.At == r.Events {
					t.Errorf("%s without its first %d %%: %s", s.ID, percent, d.What)
				}
			}
			checkSameRun(t, s.ID, r)
		}
	}
	t.Logf("%d placements, %d mismatches; %d blocks alive at the cuts, %d inferred", allocs,
		mismatches, before, inferred)
	if mismatches > 0 {
		t.Errorf("%d of %d placements differ", mismatches, allocs)
	}
}

// checkSameRun replays the requests behind a cut freely, under the recording's own settings, from
// the rewound state.
func checkSameRun(t *testing.T, id string, r *allocsim.Replayed) {
	t.Helper()
	if r.Stats.OOMs > 0 || r.Stats.AllocRetries > 0 || r.Stats.DeviceFrees > 0 || !r.Exact() {
		return // hangs on a limit, or on how the beginning is guessed
	}
	got, err := r.Run(allocsim.Options{Config: r.Config})
	if err != nil {
		t.Fatal(err)
	}
	if got.ReservedPeak != event.Bytes(r.Stats.All.ReservedBytes.Peak) {
		t.Errorf("%s: from the rewound state the same requests reserve %s, recorded %s", id,
			got.ReservedPeak, event.Bytes(r.Stats.All.ReservedBytes.Peak))
	}
}
