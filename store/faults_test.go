package store

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"memroom/event"
	"memroom/testenv"
)

// fill puts a disk without room in the place of a file.
func fill(t *testing.T, path string) {
	t.Helper()
	if err := os.Symlink("/dev/full", path); err != nil {
		t.Fatal(err)
	}
}

// TestFullDisk: the record that was there stays, nothing half-written is left, and the error names
// the file.
func TestFullDisk(t *testing.T) {
	f := newRun(t)
	if err := f.SaveRun(event.Run{ID: f.ID, Name: "before"}); err != nil {
		t.Fatal(err)
	}
	fill(t, f.Path(runFile+".new"))
	err := f.SaveRun(event.Run{ID: f.ID, Name: "after"})
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "write "+runFile) {
		t.Errorf("%v", err)
	}
	if run, err := f.Run(); err != nil || run.Name != "before" {
		t.Errorf("%+v %v", run, err)
	}
	if _, err := os.Lstat(f.Path(runFile + ".new")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the half-written file is left: %v", err)
	}
	fill(t, f.Path(eventsFile))
	if err := f.AppendEvent(event.Happened{Kind: "note"}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("append: %v", err)
	}
}

// TestFullDiskCostsOnlyTheRolls: readings are kept, and the series is read from the lines.
func TestFullDiskCostsOnlyTheRolls(t *testing.T) {
	f := newRun(t)
	fill(t, f.Path(rollFile(samplesFile)))
	appendAll(t, f, readings(200, 1))
	n := 0
	for range f.Samples() {
		n++
	}
	p, err := f.SampleSeries().Between(0, 1<<60, 20, nil)
	if err != nil || n != 200 || p.Count != 200 ||
		slices.Max(columnOf(t, p, "host").High) != 7010 {
		t.Errorf("%d lines, %+v %v", n, p, err)
	}
	if f.rolls[samplesFile].out != nil {
		t.Error("it goes on writing where there is no room")
	}
}

// TestWhatCannotBeEncoded: an error, and the files are as they were.
func TestWhatCannotBeEncoded(t *testing.T) {
	f := newRun(t)
	broken := event.Finding{Kind: "leak", Confidence: math.NaN()}
	for name, err := range map[string]error{
		"progress": f.SaveProgress(make(chan int)),
		"summary":  f.SaveSummary(event.Summary{Findings: []event.Finding{broken}}),
		"event":    f.AppendEvent(event.Happened{Finding: &broken}),
		"samples": f.AppendSamples([]event.Sample{{AtMS: 1},
			{Machine: &event.MachineSample{PressureSome: math.Inf(1)}}}),
	} {
		if err == nil {
			t.Errorf("%s was written", name)
		}
	}
	for _, err := range []error{f.AppendSamples(nil), f.AppendSteps([]event.RankedStep{})} {
		if err != nil { // nothing to write is no error, and makes no file
			t.Error(err)
		}
	}
	if entries, err := os.ReadDir(f.Dir); err != nil || len(entries) != 0 {
		t.Errorf("%v %v", entries, err)
	}
}

// TestFoldersInPlaceOfFiles: every reader and writer fails or has nothing, and none hangs.
func TestFoldersInPlaceOfFiles(t *testing.T) {
	f := newRun(t)
	for _, name := range []string{eventsFile, samplesFile, stepsFile, attemptsFile, watchFile,
		watchFile + ".new", reportedFile} {
		if err := os.MkdirAll(f.Path(filepath.Join(name, "full")), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	var progress map[string]int
	for name, err := range map[string]error{
		"append event": f.AppendEvent(event.Happened{}), "progress": f.Progress(&progress),
		"append attempt": f.AppendAttempt(event.Attempt{}), "save progress": f.SaveProgress(1),
		"update": f.SampleSeries().Update(),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if p, err := f.StepSeries().Between(0, 9, 9, nil); err == nil || len(p.At) != 0 {
		t.Errorf("between: %+v %v", p, err)
	}
	lines := 0
	count := func([]byte) { lines++ }
	f.SampleSeries().Before(t.Context(), 1<<60, count)
	next := LinesFrom(f.Path(eventsFile), 3, func(line []byte) bool { count(line); return true })
	for range f.Events() {
		lines++
	}
	if _, yes := f.Reported(); lines != 0 || next != 3 || yes {
		t.Errorf("%d lines of folders, next at %d, reported %v", lines, next, yes)
	}
	if _, err := f.SampleSeries().sketch(0, 9, 9, nil); err != nil {
		t.Logf("sketch: %v", err)
	}
}

// TestStoreWithoutItsRuns: whoever lists a file in place of the folder gets an error. A home
// without the folder has no runs.
func TestStoreWithoutItsRuns(t *testing.T) {
	s := testStore(t)
	f := ended(t, s, time.Now(), event.Run{}, event.Exit{}, event.Verdict{})
	refresh(t, s, 1)
	if err := os.RemoveAll(s.runs()); err != nil {
		t.Fatal(err)
	}
	if rows, err := s.List(Filter{}); err != nil || len(rows) != 0 {
		t.Errorf("without runs: %v %v", rows, err)
	}
	testenv.Write(t, s.runs(), nil)
	calls := map[string]func() error{
		"ids":     func() error { _, err := s.IDs(); return err },
		"list":    func() error { _, err := s.List(Filter{}); return err },
		"find":    func() error { _, err := s.Find("last"); return err },
		"unsent":  func() error { _, err := s.Unsent(); return err },
		"reindex": func() error { _, err := s.Reindex(); return err },
		"refresh": func() error { _, err := s.Refresh(9); return err },
		"prune":   func() error { _, err := s.Prune(Retention{}, time.Now(), true); return err },
		"tidy":    func() error { _, err := s.Tidy(Retention{}, time.Now()); return err },
		"create":  func() error { _, err := s.Create(time.Now()); return err },
	}
	for name, call := range calls {
		if err := call(); !errors.Is(err, syscall.ENOTDIR) {
			t.Errorf("%s: %v", name, err)
		}
	}
	own := event.Run{ID: f.ID, Started: time.Now().Add(-time.Hour)}
	if got := s.Companions(own).Ended(); got != nil {
		t.Errorf("companions: %v", got)
	}
	if _, ok := s.Lookup(f.ID); ok || !s.Exists() {
		t.Error("a run in a folder that is none")
	}
}

// TestHomesThatCannotBeMade: the error has the system's reason and what helps.
func TestHomesThatCannotBeMade(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Symlink("nowhere", link)); err != nil {
		t.Fatal(err)
	}
	long := filepath.Join(dir, strings.Repeat("x", 300))
	for _, home := range []string{filepath.Join(file, "home"), filepath.Join(link, "home"), long,
		"/proc/memroom", link} {
		_, err := Open(home)
		var foreign *Foreign
		if err == nil || !errors.As(err, &foreign) && !strings.Contains(err.Error(), "MEMROOM_HOME") {
			t.Errorf("open %s: %v", home, err)
		}
	}
	for _, home := range []string{long, filepath.Join(file, "home"), file} {
		if _, err := Read(home); err == nil || !strings.Contains(err.Error(), "MEMROOM_HOME") {
			t.Errorf("read %s: %v", home, err)
		}
	}
	if s, err := Read(filepath.Join(dir, "none")); err != nil || s.Exists() {
		t.Errorf("a home that is not there: %+v %v", s, err)
	}
	if s := (&Store{Home: file}); s.Exists() {
		t.Error("a file is no store")
	}
}

// TestOldHomeWhoseMarkCannotBeSet is opened all the same.
func TestOldHomeWhoseMarkCannotBeSet(t *testing.T) {
	home := filepath.Join(t.TempDir(), "home")
	if err := os.MkdirAll(filepath.Join(home, markFile), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(home); err != nil {
		t.Error(err)
	}
	if kind, err := recognise(home); err != nil || kind != unmarked {
		t.Errorf("%v %v", kind, err)
	}
}

// TestHundredRunsInOneInstant: each gets a name of its own, in order; then there are no more.
func TestHundredRunsInOneInstant(t *testing.T) {
	s := testStore(t)
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local)
	var made []string
	for range 100 {
		f, err := s.Create(now)
		if err != nil {
			t.Fatal(err)
		}
		made = append(made, f.ID)
	}
	if ids, err := s.IDs(); err != nil || !slices.Equal(ids, made) {
		t.Errorf("%v %v", ids, err)
	}
	if f, err := s.Create(now); err == nil || !strings.Contains(err.Error(), "again in a second") {
		t.Errorf("%+v %v", f, err)
	}
	if _, err := s.Create(now.Add(time.Second)); err != nil {
		t.Errorf("a second later: %v", err)
	}
}

// TestRemoveTakesOnlyRuns: a name that is none, another's folder, a file and a link stay.
func TestRemoveTakesOnlyRuns(t *testing.T) {
	s := testStore(t)
	f := ended(t, s, time.Now(), event.Run{}, event.Exit{}, event.Verdict{})
	const id, linked = "20200101-000000-abc", "20200101-000000-abd"
	file, link := s.Folder(id), s.Folder(linked)
	if err := errors.Join(os.WriteFile(file.Dir, nil, 0o600), os.Symlink(f.Dir, link.Dir)); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		folder *Folder
		say    string
	}{
		"no ID":          {&Folder{ID: "runs", Dir: s.runs()}, "not the name of a run"},
		"another folder": {&Folder{ID: id, Dir: f.Dir}, "not the name of a run"},
		"not there":      {s.Folder("20200101-000000-abe"), "there is no run"},
		"a file":         {file, "not a folder"},
		"a link":         {link, "not a folder"},
		"behind a file":  {&Folder{ID: id, Dir: filepath.Join(file.Dir, id)}, "not a directory"},
	} {
		if err := c.folder.Remove(); err == nil || !strings.Contains(err.Error(), c.say) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, path := range []string{f.Path(runFile), file.Dir, link.Dir, s.runs()} {
		if _, err := os.Lstat(path); err != nil {
			t.Error(err)
		}
	}
	if err := f.Remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(f.Dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}

// TestIndexThatCannotBeWritten: lists do without it, and the error of a write names what helps.
func TestIndexThatCannotBeWritten(t *testing.T) {
	s := testStore(t)
	ids := someRuns(t, s)
	if err := os.MkdirAll(filepath.Join(s.indexPath(), "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, call := range map[string]func() (int, error){"reindex": s.Reindex,
		"refresh": func() (int, error) { return s.Refresh(9) }} {
		n, err := call()
		if err == nil || !strings.Contains(err.Error(), "--reindex") || name == "refresh" && n != 0 {
			t.Errorf("%s: %d %v", name, n, err)
		}
	}
	if got := listed(t, s, Filter{}); len(got) != len(ids) || len(s.readIndex()) != 0 {
		t.Errorf("%v", got)
	}
}
