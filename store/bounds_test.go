package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"memroom/event"
	"memroom/testenv"
)

// TestWhatTheFirstLineIs: the search for the lines of the first moment, or an earlier one, begins
// with the file.
func TestWhatTheFirstLineIs(t *testing.T) {
	f := newRun(t)
	appendAll(t, f, readings(400, 1))
	file, size, err := openPlain(f.Path(samplesFile))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, at := range []int64{-5, 0} {
		if got := f.SampleSeries().offsetOf(file, size, at); got != 0 {
			t.Errorf("at %d: %d", at, got)
		}
	}
	if got := f.SampleSeries().offsetOf(file, size, 1<<60); got < size-2*4096 || got > size {
		t.Errorf("behind all: %d of %d", got, size)
	}
}

// TestPartsOfRolls: of rolls, those that reach into the time that was asked for, and no others.
func TestPartsOfRolls(t *testing.T) {
	f := newRun(t)
	appendAll(t, f, readings(1000, 0)) // rolls of 16 s: 0 to 15750, 16000 to 31750, ...
	for _, c := range []struct {
		from, to int64
		points   int
		want     []int64 // ends of the rolls
	}{
		{20_000, 40_000, 4, []int64{31_750, 47_750}},
		{15_750, 16_000, 4, []int64{15_750, 31_750}},
		{15_751, 15_999, 0, nil},
		{31_750, 32_000, 4, []int64{31_750, 47_750}},
		{-10, -1, 4, nil},
		{249_751, 1 << 60, 4, nil},
	} {
		p, err := f.SampleSeries().Between(c.from, c.to, c.points, nil)
		if err != nil || !slices.Equal(p.At, c.want) {
			t.Errorf("%d to %d: %v, want %v (%v)", c.from, c.to, p.At, c.want, err)
		}
	}
	for _, points := range []int{-5, 0, 1} {
		if p, err := f.SampleSeries().Between(0, 1<<60, points, nil); err != nil || len(p.At) != 1 {
			t.Errorf("%d points: %v %v", points, p.At, err)
		}
	}
}

// TestOtherSchemas: rows of another version of the index are not read, and go.
func TestOtherSchemas(t *testing.T) {
	s := testStore(t)
	ids := someRuns(t, s)
	refresh(t, s, 3)
	conn, err := sqlite.OpenConn(s.indexPath(), sqlite.OpenReadWrite)
	if err != nil {
		t.Fatal(err)
	}
	for _, statement := range []string{"UPDATE runs SET row = '{}'", "PRAGMA user_version = 99"} {
		if err := sqlitex.ExecuteTransient(conn, statement, nil); err != nil {
			t.Fatal(err)
		}
	}
	if known, err := readRows(conn); err != nil || len(known) != 0 {
		t.Errorf("%v %v", known, err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	if known := s.readIndex(); len(known) != 0 {
		t.Errorf("%v", known)
	}
	refresh(t, s, 3)
	if known := s.readIndex(); len(known) != 3 || known[ids[0]].row == "{}" {
		t.Errorf("%v", known)
	}
	if n, err := s.Reindex(); n != 3 || err != nil {
		t.Errorf("%d %v", n, err)
	}
}

// TestCountsBesideErrors: nothing was read where the runs cannot be listed.
func TestCountsBesideErrors(t *testing.T) {
	s := testStore(t)
	if err := errors.Join(os.Remove(s.runs()), os.WriteFile(s.runs(), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	looking := &Store{Home: s.Home, readOnly: true}
	for name, call := range map[string]func() (int, error){"reindex": s.Reindex,
		"refresh":         func() (int, error) { return s.Refresh(5) },
		"reindex, to see": looking.Reindex,
		"refresh, to see": func() (int, error) { return looking.Refresh(5) }} {
		if n, err := call(); n != 0 || err == nil {
			t.Errorf("%s: %d %v", name, n, err)
		}
	}
}

// TestTheFullestCard: its total goes with it; the first of equals; none where nothing was used.
func TestTheFullestCard(t *testing.T) {
	for _, c := range []struct {
		devices     []event.DevicePeak
		used, total event.Bytes
	}{
		{[]event.DevicePeak{{Used: 5, Total: 10}, {Used: 5, Total: 20}}, 5, 10},
		{[]event.DevicePeak{{Used: 5, Total: 10}, {Used: 6, Total: 20}}, 6, 20},
		{[]event.DevicePeak{{Used: 5, Total: 10}, {Reserved: 6, Total: 20}}, 6, 20},
		{[]event.DevicePeak{{Total: 10}}, 0, 0},
		{nil, 0, 0},
	} {
		var row Row
		row.addSummary(event.Summary{Peaks: event.Peaks{Devices: c.devices}})
		if row.PeakGPU != c.used || row.GPUTotal != c.total {
			t.Errorf("%+v: %d of %d", c.devices, row.PeakGPU, row.GPUTotal)
		}
	}
}

// TestCompanionsWithoutARecord: how a run ended does not count before it is known which group it is
// of, and then only if it is ours.
func TestCompanionsWithoutARecord(t *testing.T) {
	s := testStore(t)
	now := time.Now()
	over := event.Summary{Exit: &event.Exit{At: now.Add(time.Second)}}
	for group, want := range map[string]int{"": 0, "g": 1, "h": 0} {
		f, err := s.Create(now)
		if err == nil {
			err = f.SaveSummary(over)
		}
		if err == nil && group != "" {
			err = f.SaveRun(event.Run{ID: f.ID, Group: group})
		}
		if err != nil {
			t.Fatal(err)
		}
		own := event.Run{ID: "20200101-000000-abc", Group: "g", Started: now}
		if got := s.Companions(own).Ended(); len(got) != want {
			t.Errorf("of group %q: %d", group, len(got))
		}
		if err := os.RemoveAll(f.Dir); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRollAfterBrokenLines: it begins with the first line that can be read and ends with the last
// line of all.
func TestRollAfterBrokenLines(t *testing.T) {
	r := &roller{extract: extractorOf(samplesFile)}
	broken, good := []byte("{\"at_\n"), []byte("{\"at_ms\":7,\"anon\":1}\n")
	r.add(broken, 0)
	r.add(good, 6)
	r.add(broken, 6+int64(len(good)))
	if n := r.current; n.offset != 6 || n.end != 12+int64(len(good)) || n.count != 1 || n.from != 7 {
		t.Errorf("%+v", n)
	}
}

// TestSizeOfOneByte is a size, not the absence of one.
func TestSizeOfOneByte(t *testing.T) {
	s := testStore(t)
	f := ended(t, s, time.Now().Add(-48*time.Hour), event.Run{}, event.Exit{}, event.Verdict{})
	for size, want := range map[event.Bytes]int{0: 0, 1: 1, event.GiB: 0} {
		p, err := s.Prune(Retention{Size: size}, time.Now(), true)
		if err != nil || len(p.Dropped) != want || p.Looked != 1 {
			t.Errorf("%s within %s: %+v %v", f.ID, size, p, err)
		}
	}
}

// TestFoldersAreMadePrivate: also those around the home.
func TestFoldersAreMadePrivate(t *testing.T) {
	around := filepath.Join(t.TempDir(), "a")
	s, err := Open(filepath.Join(around, "b", "home"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{around, filepath.Join(around, "b"), s.Home, s.runs()} {
		if info, err := os.Stat(path); err != nil || info.Mode() != os.ModeDir|0o700 {
			t.Errorf("%s: %v %v", path, info.Mode(), err)
		}
	}
}

// TestSearchAmongLongLines: lines that are longer than the search's last step end it too.
func TestSearchAmongLongLines(t *testing.T) {
	f := newRun(t)
	var text []byte
	var begins []int64
	for i := range 12 {
		begins = append(begins, int64(len(text)))
		text = fmt.Appendf(text, "{\"at_ms\":%d,\"pad\":%q}\n", i, strings.Repeat("x", 10_000))
	}
	testenv.Write(t, f.Path(samplesFile), text)
	file, size, err := openPlain(f.Path(samplesFile))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for i, begin := range begins {
		got := f.SampleSeries().offsetOf(file, size, int64(i))
		if !slices.Contains(begins, got) || got > begin || got < begin-2*10_100 {
			t.Errorf("line %d at %d: %d", i, begin, got)
		}
	}
}

// TestLengthsOfMaskedWords: how long a random word must be, by what stands before it.
func TestLengthsOfMaskedWords(t *testing.T) {
	const word = "a1b2c3d4e5f6g7h8i9"
	for before, least := range map[string]int{"say bearer ": 8, "wandb login ": 16} {
		for n, hidden := range map[int]bool{least - 1: false, least: true} {
			text := before + word[:n]
			if got := MaskText(text); (got != text) != hidden || hidden && got != before+"***" {
				t.Errorf("%q became %q", text, got)
			}
		}
	}
	for n, hidden := range map[int]bool{15: false, 16: true} {
		text := "https://" + word[:n] + "@host/x"
		if got := MaskText(text); (got != text) != hidden {
			t.Errorf("%q became %q", text, got)
		}
	}
}
