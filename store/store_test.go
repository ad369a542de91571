package store

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"memroom/event"
	"memroom/testenv"
)

func testStore(t *testing.T) *Store {
	t.Helper()
	s, err := Open(filepath.Join(t.TempDir(), "home"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// ended makes a run that is over.
func ended(t *testing.T, s *Store, at time.Time, run event.Run, exit event.Exit,
	verdict event.Verdict) *Folder {
	t.Helper()
	f, err := s.Create(at)
	if err != nil {
		t.Fatal(err)
	}
	run.ID, run.Started = f.ID, at
	for _, err := range []error{f.SaveRun(run), f.replace(exitFile, exit), f.SaveVerdict(verdict),
		f.replace(stateFile, keeperState{Keeper: 1, Finished: true}),
		f.SaveSummary(event.Summary{Run: run, Peaks: event.Peaks{Unreclaimable: 5 * event.GiB}})} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func someRuns(t *testing.T, s *Store) []string {
	t.Helper()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var ids []string
	for i, run := range []event.Run{{Name: "first", Command: []string{"a"}},
		{Tags: []string{"x", "y"}, Command: []string{"b"}}, {Command: []string{"c"}}} {
		f := ended(t, s, at.Add(time.Duration(i)*(time.Hour+time.Millisecond)), run,
			event.Exit{Code: i}, event.Verdict{ExitCode: i, IsOOM: i == 2, Evidence: []string{}})
		ids = append(ids, f.ID)
	}
	return ids
}

func listed(t *testing.T, s *Store, f Filter) []string {
	t.Helper()
	rows, err := s.List(f)
	if err != nil {
		t.Fatal(err)
	}
	ids := []string{}
	for _, r := range rows {
		ids = append(ids, r.ID)
	}
	return ids
}

// refresh brings the index up to date and wants so many folders to be read for it.
func refresh(t *testing.T, s *Store, want int) {
	t.Helper()
	if n, err := s.Refresh(1000); err != nil || n != want {
		t.Fatalf("%d folders read, want %d; %v", n, want, err)
	}
}

func TestListFilters(t *testing.T) {
	s := testStore(t)
	ids := someRuns(t, s)
	for _, c := range []struct {
		filter Filter
		want   []string
	}{
		{Filter{}, []string{ids[2], ids[1], ids[0]}},
		{Filter{Limit: 1}, []string{ids[2]}},
		{Filter{Name: "first"}, []string{ids[0]}},
		{Filter{Tag: "y"}, []string{ids[1]}},
		{Filter{OOM: true}, []string{ids[2]}},
		{Filter{Failed: true}, []string{ids[2], ids[1]}},
		{Filter{Active: true}, []string{}},
		{Filter{Name: "'; DROP TABLE runs; --"}, []string{}},
	} {
		if got := listed(t, s, c.filter); !slices.Equal(got, c.want) {
			t.Errorf("%+v: %v, want %v", c.filter, got, c.want)
		}
		if _, err := s.Refresh(1); err != nil { // with one row after the other in the index
			t.Fatal(err)
		}
		if got := listed(t, s, c.filter); !slices.Equal(got, c.want) {
			t.Errorf("%+v with the index: %v, want %v", c.filter, got, c.want)
		}
	}
}

func TestIndexFollowsTheFolders(t *testing.T) {
	s := testStore(t)
	ids := someRuns(t, s)
	refresh(t, s, 3)
	if err := s.Folder(ids[0]).Remove(); err != nil {
		t.Fatal(err)
	}
	if err := s.Folder(ids[1]).SaveVerdict(event.Verdict{IsOOM: true}); err != nil {
		t.Fatal(err)
	}
	if got := listed(t, s, Filter{OOM: true}); !slices.Equal(got, []string{ids[2], ids[1]}) {
		t.Errorf("got %v", got)
	}
	if got := listed(t, s, Filter{}); len(got) != 2 {
		t.Errorf("a deleted run is still listed: %v", got)
	}
}

// TestDamagedIndex: whatever is in the index's place, the runs are listed.
func TestDamagedIndex(t *testing.T) {
	for name, damage := range map[string]func(path string) error{
		"garbage": func(p string) error {
			return os.WriteFile(p,
				[]byte(strings.Repeat("garbage ", 4096)), 0o600)
		},
		"truncated": func(p string) error { return os.Truncate(p, 5000) },
		"empty":     func(p string) error { return os.Truncate(p, 0) },
		"middle overwritten": func(p string) error {
			data, err := os.ReadFile(p)
			if err == nil {
				copy(data[4096:], strings.Repeat("\xff", 2000))
				err = os.WriteFile(p, data, 0o600)
			}
			return err
		},
		"a folder": func(p string) error { _ = os.Remove(p); return os.Mkdir(p, 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			s := testStore(t)
			ids := someRuns(t, s)
			refresh(t, s, 3)
			for _, suffix := range []string{"-wal", "-shm"} {
				_ = os.Remove(s.indexPath() + suffix)
			}
			if err := damage(s.indexPath()); err != nil {
				t.Fatal(err)
			}
			if got := listed(t, s, Filter{}); !slices.Equal(got, []string{ids[2], ids[1], ids[0]}) {
				t.Errorf("got %v", got)
			}
			if got := listed(t, s, Filter{OOM: true}); !slices.Equal(got, []string{ids[2]}) {
				t.Errorf("got %v", got)
			}
			if name != "a folder" { // and it is built again
				refresh(t, s, 3)
				if known := s.readIndex(); len(known) != 3 {
					t.Errorf("%d rows in the index afterwards", len(known))
				}
			}
		})
	}
}

func TestManyAtOnce(t *testing.T) {
	s := testStore(t)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 5 {
				f, err := s.Create(time.Now())
				if err != nil {
					t.Error(err)
					return
				}
				if err := f.SaveRun(event.Run{ID: f.ID, Command: []string{"x"}}); err != nil {
					t.Error(err)
				}
				if _, err := s.Refresh(100); err != nil {
					t.Error(err)
				}
				if _, err := s.List(Filter{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if got := listed(t, s, Filter{}); len(got) != 40 {
		t.Errorf("%d runs listed, want 40", len(got))
	}
}

func TestFind(t *testing.T) {
	s := testStore(t)
	if _, err := s.Find(""); err == nil || !strings.Contains(err.Error(), "memroom run") {
		t.Errorf("empty store: %v", err)
	}
	ids := someRuns(t, s)
	for text, want := range map[string]string{"": ids[2], "last": ids[2], ids[1]: ids[1],
		ids[0][:15]: ids[0], ids[1][len(ids[1])-3:]: ids[1], "first": ids[0]} {
		if f, err := s.Find(text); err != nil || f.ID != want {
			t.Errorf("%q: %v %v", text, f, err)
		}
	}
	for _, text := range []string{"2026", "nothing", "../runs", ".."} {
		if f, err := s.Find(text); err == nil {
			t.Errorf("%q found %s", text, f.ID)
		}
	}
}

// TestCutLines: a crash cuts the last line; what is written after it must be readable.
func TestCutLines(t *testing.T) {
	s := testStore(t)
	f, err := s.Create(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := f.AppendSamples([]event.Sample{{AtMS: 1}, {AtMS: 2}}); err != nil {
		t.Fatal(err)
	}
	f.Close()
	path := f.Path(samplesFile)
	info, _ := os.Stat(path)
	if err := os.Truncate(path, info.Size()-5); err != nil {
		t.Fatal(err)
	}
	again := s.Folder(f.ID)
	if err := again.AppendSamples([]event.Sample{{AtMS: 3}}); err != nil {
		t.Fatal(err)
	}
	again.Close()
	var at []int64
	for sample := range again.Samples() {
		at = append(at, sample.AtMS)
	}
	if !slices.Equal(at, []int64{1, 3}) {
		t.Errorf("read %v, want the first and the third", at)
	}
}

func TestStoreIsPrivate(t *testing.T) {
	s := testStore(t)
	f, err := s.Create(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := f.SaveRun(event.Run{}); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{s.Home, f.Dir, f.Path(runFile)} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v %v", path, info.Mode(), err)
		}
	}
}

// writeKeeper makes a run look as if this process kept it.
func writeKeeper(t *testing.T, f *Folder, pid int) {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Skip("needs /proc: to look like a keeper")
	}
	fields := strings.Fields(string(data[strings.LastIndex(string(data), ") ")+2:]))
	text := fmt.Sprintf(`{"keeper":%d,"keeper_start":%s}`, pid, fields[19])
	testenv.Write(t, f.Path("keeper.json"), []byte(text))
}

// TestLastWithinASecond: runs that begin in the same second are listed as they began.
func TestLastWithinASecond(t *testing.T) {
	s := testStore(t)
	second := time.Date(2026, 11, 15, 3, 15, 40, 0, time.Local)
	var made []string
	for _, after := range []time.Duration{0, 0, 40 * time.Microsecond, time.Millisecond,
		500 * time.Millisecond, time.Second - 1, time.Second} {
		f, err := s.Create(second.Add(after))
		if err != nil {
			t.Fatal(err)
		}
		made = append(made, f.ID)
	}
	ids, err := s.IDs()
	if err != nil || !slices.Equal(ids, made) {
		t.Errorf("got %q, want %q, %v", ids, made, err)
	}
	if last, err := s.Find(""); err != nil || last.ID != made[len(made)-1] {
		t.Errorf("last is %v, %v", last, err)
	}
}

// TestRunElsewhere: a run on another machine that shares the home lives as long as its record
// grows.
func TestRunElsewhere(t *testing.T) {
	s := testStore(t)
	f, err := s.Create(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := f.SaveRun(event.Run{ID: f.ID, Host: "a-machine-that-is-not-this-one", Group: "g",
		NodeRank: 3, Started: time.Now()}); err != nil {
		t.Fatal(err)
	}
	state := []byte(`{"keeper":1,"keeper_start":1,"child":2}`)
	testenv.Write(t, f.StateFile(), state)
	if row := f.Row(); row.Status != Running || !f.Running() || row.Group != "g" ||
		row.NodeRank != 3 {
		t.Errorf("its record was just written: %+v", row)
	}
	if rows := listed(t, s, Filter{Group: "g", Active: true}); len(rows) != 1 ||
		len(listed(t, s, Filter{Group: "h"})) != 0 {
		t.Errorf("listed %v", rows)
	}
	old := time.Now().Add(-time.Hour)
	for _, path := range []string{f.Dir, f.Path(runFile), f.StateFile()} {
		if err := os.Chtimes(path, old, old); err != nil {
			t.Fatal(err)
		}
	}
	if row := f.Row(); row.Status != Lost {
		t.Errorf("nobody has written for an hour: %+v", row)
	}
}
