package store

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"zombiezen.com/go/sqlite/sqlitex"

	"memroom/event"
)

// startOf reads when a process began, in clock ticks after boot.
func startOf(t *testing.T, pid int) (state string, start uint64) {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Skip("needs /proc: to look at processes")
	}
	fields := bytes.Fields(data[bytes.LastIndex(data, []byte(") "))+2:])
	if _, err := fmt.Sscan(string(fields[19]), &start); err != nil {
		t.Fatal(err)
	}
	return string(fields[0]), start
}

// TestProcessIs: a process that lives, one of the same number that began at another time, and one
// that has ended but was not reaped.
func TestProcessIs(t *testing.T) {
	_, start := startOf(t, os.Getpid())
	if !processIs(os.Getpid(), start) || processIs(os.Getpid(), start+1) ||
		processIs(1<<30, start) {
		t.Error("our own process is not told from others")
	}
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	_, start = startOf(t, cmd.Process.Pid)
	if !processIs(cmd.Process.Pid, start) {
		t.Error("a process that lives is not seen")
	}
	in.Close() // it ends, and stays a zombie until Wait
	for {
		if state, _ := startOf(t, cmd.Process.Pid); state == "Z" {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if processIs(cmd.Process.Pid, start) {
		t.Error("a zombie is taken for a process that lives")
	}
}

// TestRowOfASummary: which of the figures a list shows.
func TestRowOfASummary(t *testing.T) {
	s := testStore(t)
	f := ended(t, s, time.Now(), event.Run{}, event.Exit{Code: 3, Seconds: 7}, event.Verdict{})
	if err := f.SaveSummary(event.Summary{Steps: 9, Attempts: make([]event.Attempt, 2),
		Findings: make([]event.Finding, 4),
		Peaks: event.Peaks{Resident: 1, Unreclaimable: 2, HostLimit: 5, Devices: []event.DevicePeak{
			{Used: 10, Reserved: 5, Total: 100}, {Used: 1, Reserved: 30, Total: 200},
			{Used: 20, Total: 300}}}}); err != nil {
		t.Fatal(err)
	}
	row := f.Row()
	if row.PeakHost != 2 || row.HostLimit != 5 || row.PeakGPU != 30 || row.GPUTotal != 200 ||
		row.Steps != 9 || row.Attempts != 2 || row.Findings != 4 || row.Seconds != 7 ||
		row.ExitCode == nil || *row.ExitCode != 3 || row.Status != Ended {
		t.Errorf("%+v", row)
	}
	// between two attempts there is an exit, and the run goes on
	writeKeeper(t, f, os.Getpid())
	if row := f.Row(); row.Status != Running || row.ExitCode != nil {
		t.Errorf("between two attempts: %+v", row)
	}
	// a keeper that is gone and left no exit
	g, err := s.Create(time.Now())
	if err == nil {
		err = g.SaveRun(event.Run{ID: g.ID, Started: time.Now()})
	}
	if err == nil {
		err = g.replace(stateFile, keeperState{Keeper: 1 << 30, KeeperStart: 1})
	}
	if err != nil {
		t.Fatal(err)
	}
	if row := g.Row(); row.Status != Lost || !row.failed() {
		t.Errorf("a lost run: %+v", row)
	}
	if got := listed(t, s, Filter{Failed: true}); !slices.Contains(got, g.ID) {
		t.Errorf("failed: %v", got)
	}
}

// TestLostElsewhereComesBack: a run of another machine that was silent for a while.
func TestLostElsewhereComesBack(t *testing.T) {
	s := testStore(t)
	f, err := s.Create(time.Now())
	if err == nil {
		err = f.SaveRun(event.Run{ID: f.ID, Host: "a-machine-that-is-not-this-one",
			Started: time.Now()})
	}
	if err == nil {
		err = f.replace(stateFile, keeperState{Keeper: 1, KeeperStart: 1})
	}
	if err == nil {
		err = f.AppendSamples([]event.Sample{{AtMS: 1}})
	}
	if err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Hour)
	for _, path := range []string{f.Path(runFile), f.StateFile(), f.Path(samplesFile), f.Dir} {
		if err := os.Chtimes(path, old, old); err != nil {
			t.Fatal(err)
		}
	}
	if got := listed(t, s, Filter{Active: true}); len(got) != 0 {
		t.Fatalf("silent for an hour and active: %v", got)
	}
	refresh(t, s, 1)
	if err := f.AppendSamples([]event.Sample{{AtMS: 2}}); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if got := listed(t, s, Filter{Active: true}); len(got) != 1 {
		t.Errorf("it writes again and is not active: %v", got)
	}
}

// TestIndexOfAnotherVersion is thrown away, not read.
func TestIndexOfAnotherVersion(t *testing.T) {
	s := testStore(t)
	ids := someRuns(t, s)
	refresh(t, s, 3)
	conn, err := s.openIndex()
	if err != nil {
		t.Fatal(err)
	}
	for _, statement := range []string{"DROP TABLE runs", "CREATE TABLE runs (x)",
		"PRAGMA user_version = 1"} {
		st, _, err := conn.PrepareTransient(statement)
		if err == nil {
			_, err = st.Step()
			_ = st.Finalize()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	conn.Close()
	if known := s.readIndex(); len(known) != 0 {
		t.Errorf("read %v", known)
	}
	if got := listed(t, s, Filter{}); len(got) != len(ids) {
		t.Errorf("listed %v", got)
	}
	refresh(t, s, 3)
	if known := s.readIndex(); len(known) != 3 {
		t.Errorf("%d rows after it was built again", len(known))
	}
}

// TestIndexWithAnotherNumber: rows that look right are not read either, they may mean something
// else.
func TestIndexWithAnotherNumber(t *testing.T) {
	s := testStore(t)
	someRuns(t, s)
	for _, version := range []int{schemaVersion - 1, schemaVersion + 1} {
		if _, err := s.Refresh(9); err != nil || len(s.readIndex()) != 3 {
			t.Fatalf("%d rows, %v", len(s.readIndex()), err)
		}
		conn, err := s.openIndex()
		if err != nil {
			t.Fatal(err)
		}
		set := fmt.Sprintf("PRAGMA user_version = %d", version)
		if err := sqlitex.ExecuteTransient(conn, set, nil); err != nil {
			t.Fatal(err)
		}
		conn.Close()
		if known := s.readIndex(); len(known) != 0 {
			t.Errorf("version %d: read %v", version, known)
		}
	}
}

// TestCompanions: only runs of the group that have ended since ours began.
func TestCompanions(t *testing.T) {
	s := testStore(t)
	now := time.Now()
	make1 := func(group string, at, over time.Time) *Folder {
		f := ended(t, s, at, event.Run{Group: group}, event.Exit{}, event.Verdict{})
		run, _ := f.Run()
		if err := f.SaveSummary(event.Summary{Run: run, Exit: &event.Exit{At: over}}); err != nil {
			t.Fatal(err)
		}
		return f
	}
	mate := make1("g", now.Add(-time.Minute), now.Add(time.Minute))
	make1("h", now.Add(-time.Minute), now.Add(time.Minute)) // another group
	make1("g", now.Add(-time.Hour), now.Add(-time.Second))  // the name was used before
	make1("g", now.Add(-72*time.Hour), now.Add(time.Minute))
	own := event.Run{ID: "20260101-000000-abc", Group: "g", Started: now}
	got := s.Companions(own).Ended()
	if len(got) != 1 || got[0].Run.ID != mate.ID {
		t.Errorf("%+v, want %s", got, mate.ID)
	}
}
