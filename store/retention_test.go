package store

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"memroom/event"
	"memroom/testenv"
)

const day = 24 * time.Hour

// sized makes an ended run that takes about so much disk.
func sized(t *testing.T, s *Store, at time.Time, size event.Bytes) *Folder {
	t.Helper()
	f := ended(t, s, at, event.Run{Command: []string{"x"}}, event.Exit{}, event.Verdict{})
	testenv.Write(t, f.Output(), make([]byte, size))
	return f
}

func left(t *testing.T, s *Store) []string {
	t.Helper()
	ids, err := s.IDs()
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

func idsOf(rows []Row) []string {
	ids := []string{}
	for _, r := range rows {
		ids = append(ids, r.ID)
	}
	return ids
}

// TestPruneByAge: a run goes when it is older than the age, not when it is as old.
func TestPruneByAge(t *testing.T) {
	s := testStore(t)
	now := time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)
	older := sized(t, s, now.Add(-10*day-time.Second), 1)
	same := sized(t, s, now.Add(-10*day), 1)
	younger := sized(t, s, now.Add(-10*day+time.Second), 1)
	asked, err := s.Prune(Retention{Age: 10 * day}, now, true)
	if err != nil || !slices.Equal(idsOf(asked.Dropped), []string{older.ID}) ||
		len(left(t, s)) != 3 {
		t.Fatalf("asked: %+v, %v; left %v", asked, err, left(t, s))
	}
	if p, err := s.Prune(Retention{Age: 10 * day}, now, false); err != nil || p.Looked != 3 {
		t.Fatalf("%+v %v", p, err)
	}
	if got := left(t, s); !slices.Equal(got, []string{same.ID, younger.ID}) {
		t.Errorf("left %v", got)
	}
}

// TestPruneBySize: the oldest go until the rest is within the size, and no more than that.
func TestPruneBySize(t *testing.T) {
	s := testStore(t)
	now := time.Now()
	var made []*Folder
	for i := range 6 { // newest first
		made = append(made, sized(t, s, now.Add(-time.Duration(i)*time.Hour-day), event.MiB))
	}
	small := sized(t, s, now.Add(-10*day), 1)
	each := made[0].size()
	p, err := s.Prune(Retention{Size: 3*each + each/2}, now, false)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{made[3].ID, made[4].ID, made[5].ID}
	if got := idsOf(p.Dropped); !slices.Equal(got, want) {
		t.Errorf("dropped %v, want %v", got, want)
	}
	// dropped runs take no room any more: an old small run still fits
	if got := left(t, s); !slices.Contains(got, small.ID) || len(got) != 4 {
		t.Errorf("left %v", got)
	}
}

// TestPruneKeeps: named, tagged, running, fresh, newest runs and those of unknown age.
func TestPruneKeeps(t *testing.T) {
	s := testStore(t)
	now := time.Now()
	old := now.Add(-100 * day)
	named := ended(t, s, old, event.Run{Name: "n"}, event.Exit{}, event.Verdict{})
	tagged := ended(t, s, old, event.Run{Tags: []string{"t"}}, event.Exit{}, event.Verdict{})
	gone := ended(t, s, old, event.Run{}, event.Exit{}, event.Verdict{})
	running := ended(t, s, old, event.Run{}, event.Exit{}, event.Verdict{})
	writeKeeper(t, running, os.Getpid())
	starting, err := s.Create(old)
	if err == nil {
		err = starting.SaveRun(event.Run{ID: starting.ID, Started: old})
	}
	if err != nil {
		t.Fatal(err)
	}
	ageless := ended(t, s, old, event.Run{}, event.Exit{}, event.Verdict{})
	if err := ageless.SaveRun(event.Run{ID: ageless.ID}); err != nil {
		t.Fatal(err)
	}
	keeper := keeperState{Keeper: 1, Finished: true} // and no time of its beginning either
	if err := ageless.replace(stateFile, keeper); err != nil {
		t.Fatal(err)
	}
	newest := sized(t, s, now.Add(-99*day), 1)
	p, err := s.Prune(Retention{Age: day, Size: 1, Newest: 1}, now, false)
	if err != nil || !slices.Equal(idsOf(p.Dropped), []string{gone.ID}) {
		t.Fatalf("%+v %v, want only %s", p, err, gone.ID)
	}
	for _, f := range []*Folder{named, tagged, running, starting, ageless, newest} {
		if _, err := os.Stat(f.Dir); err != nil {
			t.Error(err)
		}
	}
	// one that never began goes when nobody has touched it for an hour
	if p, err := s.Prune(Retention{Age: day, Newest: 1}, now.Add(2*time.Hour), false); err != nil ||
		!slices.Equal(idsOf(p.Dropped), []string{starting.ID}) {
		t.Errorf("%+v %v", p, err)
	}
}

// TestDefaultRetention: the newest fifty stay whatever their age, the others for 90 days.
func TestDefaultRetention(t *testing.T) {
	s := testStore(t)
	now := time.Now()
	for i := range 50 {
		sized(t, s, now.Add(-time.Duration(i)*time.Hour), 1)
	}
	kept, dropped := sized(t, s, now.Add(-89*day), 1), sized(t, s, now.Add(-91*day), 1)
	p, err := s.Prune(DefaultRetention(), now, true)
	if err != nil || !slices.Equal(idsOf(p.Dropped), []string{dropped.ID}) {
		t.Errorf("dropped %v, want the one of 91 days %s and not the one of 89 days %s; %v",
			idsOf(p.Dropped), dropped.ID, kept.ID, err)
	}
	old := testStore(t)
	for i := range 50 {
		sized(t, old, now.Add(-200*day-time.Duration(i)*time.Hour), 1)
	}
	oldest := sized(t, old, now.Add(-300*day), 1)
	p, err = old.Prune(DefaultRetention(), now, true)
	if err != nil || !slices.Equal(idsOf(p.Dropped), []string{oldest.ID}) {
		t.Errorf("dropped %d of 51 old ones, want the oldest; %v", len(p.Dropped), err)
	}
}

// TestDamagedRunsAreKept: whatever has become of its record, a run is kept, listed and named.
func TestDamagedRunsAreKept(t *testing.T) {
	for name, damage := range map[string]func(f *Folder) error{
		"missing": func(f *Folder) error { return os.Remove(f.Path(runFile)) },
		"cut":     func(f *Folder) error { return os.Truncate(f.Path(runFile), 10) },
		"empty":   func(f *Folder) error { return os.Truncate(f.Path(runFile), 0) },
		"another's": func(f *Folder) error {
			return f.SaveRun(event.Run{ID: "20200101-000000-abc", Started: time.Now()})
		},
		"other JSON": func(f *Folder) error {
			return os.WriteFile(f.Path(runFile), []byte(`{"loss": 1}`), 0o600)
		},
		"a folder": func(f *Folder) error {
			_ = os.Remove(f.Path(runFile))
			return os.Mkdir(f.Path(runFile), 0o700)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := testStore(t)
			now := time.Now()
			f := ended(t, s, now.Add(-100*day), event.Run{Name: "n"}, event.Exit{}, event.Verdict{})
			if err := damage(f); err != nil {
				t.Fatal(err)
			}
			p, err := s.Prune(Retention{Age: day, Size: 1}, now, false)
			if err != nil || len(p.Dropped) != 0 || !slices.Equal(idsOf(p.Damaged),
				[]string{f.ID}) {
				t.Errorf("pruned %+v, %v", p, err)
			}
			if p, err := s.Tidy(Retention{Age: day, Size: 1}, now); err != nil ||
				len(p.Dropped) != 0 || !slices.Equal(idsOf(p.Damaged), []string{f.ID}) {
				t.Errorf("tidied %+v, %v", p, err)
			}
			if err := f.Remove(); err == nil || !strings.Contains(err.Error(), "damaged") ||
				!strings.Contains(err.Error(), "rm -r") {
				t.Errorf("remove: %v", err)
			}
			rows, err := s.List(Filter{})
			if err != nil || len(rows) != 1 || rows[0].Damaged == "" {
				t.Errorf("listed %+v, %v", rows, err)
			}
		})
	}
}

// TestTidyInPortions: each call looks at a bounded number of runs, the next one goes on, and in the
// end the same are gone as if all had been looked at once.
func TestTidyInPortions(t *testing.T) {
	const runs, most = 25, 7
	now := time.Now()
	keep := Retention{Age: 20 * day, Size: 15 * event.KiB, Newest: 3}
	build := func() *Store {
		s := testStore(t)
		for i := range runs {
			sized(t, s, now.Add(-time.Duration(i)*day-time.Hour), event.KiB)
		}
		return s
	}
	whole, parts := build(), build()
	if _, err := whole.Prune(keep, now, false); err != nil {
		t.Fatal(err)
	}
	looked, calls := 0, 0
	for ; looked < runs; calls++ {
		p, err := parts.tidy(keep, now.Add(time.Duration(calls)*time.Second), most)
		if err != nil || p.Looked > most || p.Looked == 0 {
			t.Fatalf("call %d looked at %d, %v", calls, p.Looked, err)
		}
		looked += p.Looked
	}
	if looked != runs || calls != (runs+most-1)/most {
		t.Errorf("%d looked at in %d calls", looked, calls)
	}
	if a, b := left(t, whole), left(t, parts); !slices.Equal(a, b) || len(a) == runs || len(a) < 4 {
		t.Errorf("at once %v is left, in portions %v", a, b)
	}
	if p, err := parts.tidy(keep, now.Add(time.Hour), most); err != nil || p.Looked != 0 {
		t.Errorf("within a day: %+v, %v", p, err)
	}
	if p, err := parts.tidy(keep, now.Add(25*time.Hour), most); err != nil || p.Looked == 0 {
		t.Errorf("a day later: %+v, %v", p, err)
	}
}

// TestTidyIsBounded: with ten thousand runs one call looks at a few hundred at most.
func TestTidyIsBounded(t *testing.T) {
	s := testStore(t)
	first := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range 2 * tidyRuns {
		id := first.Add(time.Duration(i)*time.Second).Format(idTime) + "-222"
		if err := os.Mkdir(filepath.Join(s.runs(), id), 0o700); err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf(`{"id":%q,"started":"2020-01-01T00:00:00Z"}`, id)
		testenv.Write(t, s.Folder(id).Path(runFile), []byte(text))
	}
	if p, err := s.Tidy(DefaultRetention(), time.Now()); err != nil || p.Looked != tidyRuns {
		t.Errorf("looked at %d, want %d; %v", p.Looked, tidyRuns, err)
	}
}

// TestTidyAfterAnEarlierVersion: it left an empty file, whose time counts.
func TestTidyAfterAnEarlierVersion(t *testing.T) {
	s := testStore(t)
	now := time.Now()
	sized(t, s, now.Add(-100*day), 1)
	stamp := filepath.Join(s.Home, tidiedFile)
	testenv.Write(t, stamp, nil)
	if p, err := s.Tidy(Retention{Age: day}, now.Add(time.Hour)); err != nil || p.Looked != 0 {
		t.Errorf("within a day: %+v, %v", p, err)
	}
	if p, err := s.Tidy(Retention{Age: day}, now.Add(25*time.Hour)); err != nil ||
		len(p.Dropped) != 1 {
		t.Errorf("a day later: %+v, %v", p, err)
	}
}
