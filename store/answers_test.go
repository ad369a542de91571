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

// TestWhereTheHomeIs: what is set for memroom, then the user's data folder, then the usual place.
func TestWhereTheHomeIs(t *testing.T) {
	here, _ := os.Getwd()
	for _, c := range []struct{ own, data, home, want string }{
		{"/a/b", "/data", "/h", "/a/b"}, {"rel", "", "/h", filepath.Join(here, "rel")},
		{"", "/data", "/h", "/data/memroom"}, {"", "data", "/h", "/h/.local/share/memroom"},
		{"", "", "/h", "/h/.local/share/memroom"}, {"", "", "", ""}} {
		t.Setenv("MEMROOM_HOME", c.own)
		t.Setenv("XDG_DATA_HOME", c.data)
		t.Setenv("HOME", c.home)
		got, err := DefaultHome()
		if got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%+v: %s %v", c, got, err)
		}
		if err != nil && !strings.Contains(err.Error(), "set MEMROOM_HOME") {
			t.Errorf("what to do is not said: %v", err)
		}
	}
}

// TestLookupTakesOnlyIDs: whole ones of folders that are there, no path and no part.
func TestLookupTakesOnlyIDs(t *testing.T) {
	f := newRun(t)
	kept := &Store{Home: filepath.Dir(filepath.Dir(f.Dir))}
	if got, ok := kept.Lookup(f.ID); !ok || got.Dir != f.Dir {
		t.Errorf("%+v %v", got, ok)
	}
	file := "20200101-000000-zzz"
	testenv.Write(t, filepath.Join(kept.runs(), file), nil)
	for _, id := range []string{"", "last", "../" + f.ID, f.ID[:10], f.ID + "x", file,
		"20200101-000000-abc", "20201301-000000-abc"} {
		if _, ok := kept.Lookup(id); ok {
			t.Errorf("%q is a run", id)
		}
	}
}

func TestNamesOfRuns(t *testing.T) {
	for id, want := range map[string]bool{"20200131-235959-abc": true, "20200131-235959-a9z": true,
		"20200131-235959-aBc": false, "20200131-235959-ab": false, "20200131-235959-abcd": false,
		"20200131_235959-abc": false, "20200131-235959_abc": false, "20200231-235959-abc": false,
		"20200131-245959-abc": false, "20200131-235959-a/c": false, "20200131-235959-a{c": false,
		"20200131-235959-a`c": false, "20200131-235959-a:c": false, "": false} {
		if ValidID(id) != want {
			t.Errorf("%q is an ID: %v", id, !want)
		}
	}
}

// TestFractionsSortAsTheyBegan: later in a second, later in the order; those that are taken give
// way to the next.
func TestFractionsSortAsTheyBegan(t *testing.T) {
	at := func(nanoseconds int) time.Time { return time.Unix(1e9, int64(nanoseconds)) }
	if got := fractionLetters(at(0), 0); got != "222" {
		t.Errorf("the first: %s", got)
	}
	if a, b := fractionLetters(at(0), 1), fractionLetters(at(0), 31); a != "223" || b != "232" {
		t.Errorf("the next ones: %s %s", a, b)
	}
	last := ""
	for n := 0; n < 1e9; n += 7_654_321 {
		now := fractionLetters(at(n), 0)
		if now <= last {
			t.Fatalf("%s at %d ns, %s before", now, n, last)
		}
		last = now
	}
	if got := fractionLetters(at(999_999_999), 0); len(got) != 3 || got[0] != 'z' {
		t.Errorf("the end of a second: %s", got)
	}
}

// TestFreeIDs: the wanted one, else the first that is free in the same second.
func TestFreeIDs(t *testing.T) {
	const wanted = "20200131-235959-zzz"
	taken := map[string]bool{}
	is := func(id string) bool { return taken[id] }
	var got []string
	for range 4 {
		id, ok := FreeID(wanted, is)
		if !ok || taken[id] || !ValidID(id) {
			t.Fatalf("%s %v", id, ok)
		}
		taken[id] = true
		got = append(got, id[len(id)-3:])
	}
	if fmt.Sprint(got) != "[zzz 222 223 224]" {
		t.Errorf("%v", got)
	}
	if id, ok := FreeID("../x", is); ok {
		t.Errorf("a path gave %s", id)
	}
	if id, ok := FreeID(wanted, func(string) bool { return true }); ok || id != "" {
		t.Errorf("all taken gave %s", id)
	}
}

// TestClocksOfSenders: a difference of two seconds matters, less is the way of a request. The start
// is shown in the server's own time.
func TestClocksOfSenders(t *testing.T) {
	for ms, want := range map[int64]time.Duration{0: 0, 1999: 0, -1999: 0, 2000: 2 * time.Second,
		-2000: -2 * time.Second, 90_000: 90 * time.Second} {
		if got := (Reported{AheadMS: ms}).Ahead(); got != want {
			t.Errorf("%d ms: %s, want %s", ms, got, want)
		}
	}
	start, heard := time.Unix(1000, 0), time.Unix(2000, 0)
	row := Row{Started: start}
	row.addReported(Reported{AheadMS: 60_000, Heard: heard})
	if !row.Reported || !row.Heard.Equal(heard) || row.ClockAhead != 60 ||
		!row.Started.Equal(start.Add(-time.Minute)) {
		t.Errorf("%+v", row)
	}
	row = Row{}
	row.addReported(Reported{AheadMS: 60_000})
	if !row.Started.IsZero() {
		t.Errorf("an unknown start became %s", row.Started)
	}
}

// TestReportedRunsStandByWhatWasHeard: within 90 s of silence a run goes on.
func TestReportedRunsStandByWhatWasHeard(t *testing.T) {
	f := newRun(t)
	state := keeperState{Keeper: 1}
	for ago, want := range map[time.Duration]Status{0: Running, 80 * time.Second: Running,
		100 * time.Second: Lost} {
		if err := f.SaveReported(Reported{ID: f.ID, Heard: time.Now().Add(-ago)}); err != nil {
			t.Fatal(err)
		}
		if got := f.statusOf("elsewhere", state); got != want {
			t.Errorf("heard %s ago: %s, want %s", ago, got, want)
		}
	}
	if got := f.statusOf("elsewhere", keeperState{Keeper: 1, Finished: true}); got != Ended {
		t.Errorf("finished: %s", got)
	}
	if got := f.statusOf("elsewhere", keeperState{}); got != Lost {
		t.Errorf("never began: %s", got)
	}
	if from, yes := f.Reported(); !yes || from.ID != f.ID {
		t.Errorf("%+v %v", from, yes)
	}
}

// TestRunsThatWaitForAServer: sent ones do not, nor those that are not to be sent; a damaged note
// counts as waiting, so that nothing is deleted by mistake.
func TestRunsThatWaitForAServer(t *testing.T) {
	f := newRun(t)
	kept := &Store{Home: filepath.Dir(filepath.Dir(f.Dir))}
	for text, want := range map[string]int{"": 0, `{"done":false}`: 1, `{"done":true}`: 0, `{"do`: 1} {
		_ = os.Remove(f.Path(reportFile))
		if text != "" {
			testenv.Write(t, f.Path(reportFile), []byte(text))
		}
		if list, err := kept.Unsent(); err != nil || len(list) != want || want == 1 && list[0].ID != f.ID {
			t.Errorf("%q: %v %v, want %d", text, list, err, want)
		}
	}
}

func TestStatesOfRows(t *testing.T) {
	zero, three := 0, 3
	for want, r := range map[string]Row{
		"running":              {Status: Running, Damaged: "x", IsOOM: true},
		"damaged":              {Status: Lost, Damaged: "x", Unwatched: 7},
		"unwatched, process 7": {Status: Lost, Unwatched: 7},
		"lost":                 {Status: Lost, ExitCode: &zero},
		"out of GPU memory":    {Status: Ended, ExitCode: &three, IsOOM: true, Where: event.WhereGPU},
		"out of host memory":   {Status: Ended, ExitCode: &three, IsOOM: true, Where: event.WhereHost},
		"ok":                   {Status: Ended, ExitCode: &zero},
		"exit 3":               {Status: Ended, ExitCode: &three}} {
		if got := r.State(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := (Row{Status: Ended}).State(); got != "lost" {
		t.Errorf("without an exit code: %s", got)
	}
}

// TestWhatWasAppendedIsRead: steps, attempts and what a monitor has learnt; a damaged line costs
// itself.
func TestWhatWasAppendedIsRead(t *testing.T) {
	f := newRun(t)
	rank := 1
	for _, err := range []error{
		f.AppendSteps([]event.RankedStep{{AtMS: 5, PID: 7, Rank: &rank}, {AtMS: 6}}),
		f.AppendAttempt(event.Attempt{Number: 1}), f.AppendAttempt(event.Attempt{Number: 2}),
		f.SaveProgress(map[string]int{"steps": 9}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	file, err := os.OpenFile(f.Path(stepsFile), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = file.WriteString("{\"at_ms\":\n\n{\"at_ms\":8}\n{\"at_ms\":9}")
	file.Close()
	var at []int64
	for s := range f.Steps() {
		at = append(at, s.AtMS)
	}
	if !slices.Equal(at, []int64{5, 6, 8, 9}) {
		t.Errorf("steps at %v", at)
	}
	var numbers []int
	for a := range f.Attempts() {
		numbers = append(numbers, a.Number)
	}
	var learnt map[string]int
	if err := f.Progress(&learnt); err != nil || learnt["steps"] != 9 ||
		fmt.Sprint(numbers) != "[1 2]" {
		t.Errorf("%v %v %v", learnt, err, numbers)
	}
	for s := range f.Steps() { // whoever stops early stops
		if s.AtMS != 5 {
			t.Errorf("the first step is at %d", s.AtMS)
		}
		break
	}
}

// TestLinesFromAPlace: whole lines only, and where the next one begins.
func TestLinesFromAPlace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	testenv.Write(t, path, []byte("a\nbb\nccc\nhalf"))
	for _, c := range []struct {
		from  int64
		limit int
		want  string
		next  int64
	}{{0, 9, "a,bb,ccc,", 9}, {2, 9, "bb,ccc,", 9}, {0, 1, "a,", 2}, {0, 2, "a,bb,", 5}, {9, 9, "", 9},
		{13, 9, "", 13}, {99, 9, "", 99}} {
		got, n := "", 0
		next := LinesFrom(path, c.from, func(line []byte) bool {
			got += strings.TrimSuffix(string(line), "\n") + ","
			n++
			return n < c.limit
		})
		if got != c.want || next != c.next {
			t.Errorf("from %d: %q and %d, want %q and %d", c.from, got, next, c.want, c.next)
		}
	}
	if next := LinesFrom(path+"-not", 5, nil); next != 5 {
		t.Errorf("no file: %d", next)
	}
}

// TestRollsAreWrittenAndRead: a roll is 16 s or 4096 lines; it is read as it was written.
func TestRollsAreWrittenAndRead(t *testing.T) {
	f := newRun(t)
	list := readings(200, 0) // four a second: 50 s
	appendAll(t, f, list)
	info, err := os.Stat(f.Path(samplesFile))
	if err != nil {
		t.Fatal(err)
	}
	names, rolls := readRolls(f.Path(rollFile(samplesFile)), info.Size())
	var words []string
	for _, r := range rolls {
		words = append(words, fmt.Sprint(r.from, "-", r.to, ":", r.count))
	}
	if got := strings.Join(words, " "); got != "0-15750:64 16000-31750:64 32000-47750:64" {
		t.Errorf("%s", got)
	}
	anonymous := slices.Index(names, "anonymous")
	if anonymous < 0 {
		t.Fatalf("columns %v", names)
	}
	for i, want := range []string{"400 400", "400 7000", "400 400"} { // the spike is at line 66
		if got := fmt.Sprint(rolls[i].low[anonymous], rolls[i].high[anonymous]); got != want {
			t.Errorf("roll %d: %s, want %s", i, got, want)
		}
	}
	if rolls[0].offset != 0 || rolls[1].offset != rolls[0].end || rolls[2].offset != rolls[1].end {
		t.Errorf("there are gaps: %+v", rolls)
	}
}

// TestRollsOfManyLines: readings that all come at once fill a roll by their number.
func TestRollsOfManyLines(t *testing.T) {
	r := &roller{extract: extractorOf(samplesFile)}
	offset := int64(0)
	line := []byte(`{"at_ms":5,"procs":1,"rss":2,"anon":3}` + "\n")
	var full []*roll
	for range 2*4096 + 1 {
		if one := r.add(line, offset); one != nil {
			full = append(full, one)
		}
		offset += int64(len(line))
	}
	if len(full) != 2 || full[0].count != 4096 || full[1].count != 4096 ||
		r.current.count != 1 {
		t.Errorf("%d rolls, %d lines are left", len(full), r.current.count)
	}
	r = &roller{extract: extractorOf(samplesFile)}
	r.add(line, 0)
	if one := r.add(line, 4<<20); one != nil {
		t.Errorf("cut at 4 MiB: %+v", one)
	}
	if one := r.add(line, 4<<20+1); one == nil || one.count != 2 {
		t.Errorf("not cut beyond 4 MiB: %+v", one)
	}
	if one := r.add([]byte("{\"at_ms\":9,\"pro\n"), 5<<20); one != nil || r.current.count != 1 ||
		r.current.end != 5<<20+16 {
		t.Errorf("a line that is cut off: %+v %+v", one, r.current)
	}
}

// TestRollsThatMakeNoSenseAreNotBelieved: reading stops there, what stood before counts.
func TestRollsThatMakeNoSenseAreNotBelieved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.roll")
	const good = `["a"]` + "\n" + `{"at":[0,10,0,5,2],"values":[1,2]}` + "\n"
	for text, want := range map[string]int{
		good: 1, good + `{"at":[10,20,6,9,2],"values":[1,2]}` + "\n": 2,
		good + `{"at":[10,20,6,9,2],"values":[1,2]}`:                        1, // its end is missing
		good + `{"at":[9,20,6,9,2],"values":[1,2]}` + "\n":                  1, // overlaps
		good + `{"at":[10,10,6,9,2],"values":[1,2]}` + "\n":                 1, // empty
		good + `{"at":[10,101,6,9,2],"values":[1,2]}` + "\n":                1, // beyond the file
		good + `{"at":[10,100,6,9,2],"values":[1,2]}` + "\n":                2,
		good + `{"at":[10,20,6,9,2],"values":[1,2,3,4]}` + "\n":             1, // more than it has names
		good + `{"at":[10,20,6,9,2],"values":[1,2,3]}` + "\n":               1,
		good + `{"at":[10,20,6,9]}` + "\n":                                  1,
		good + `{"at":[10,20,6,9,2],"values":[]}` + "\n":                    2,
		good + `["b"` + "\n" + `{"at":[10,20,6,9,2],"values":[1,2]}` + "\n": 1,
		"": 0,
	} {
		testenv.Write(t, path, []byte(text))
		if _, rolls := readRolls(path, 100); len(rolls) != want {
			t.Errorf("%q: %d rolls, want %d", text, len(rolls), want)
		}
	}
}

// TestPointsOfASeries: at most as many as asked for, exact where every line is one.
func TestPointsOfASeries(t *testing.T) {
	f := newRun(t)
	appendAll(t, f, readings(100, 0))
	for _, c := range []struct {
		from, to int64
		points   int
		want     string // points, first, last, exact
	}{
		{0, 1 << 60, 100, "100 0 24750 true"}, {0, 1 << 60, 99, "99 0 24750 false"},
		{1000, 2000, 50, "5 1000 2000 true"}, {1001, 1999, 50, "3 1250 1750 true"},
		{0, 1 << 60, 1, "1 24750 24750 false"}, {0, 1 << 60, 0, "1 24750 24750 false"},
		{30_000, 40_000, 10, "0 0 0 true"}, {0, 1 << 60, 1 << 30, "100 0 24750 true"},
	} {
		p, err := f.SampleSeries().Between(c.from, c.to, c.points, nil)
		if err != nil {
			t.Fatal(err)
		}
		first, last := int64(0), int64(0)
		if len(p.At) > 0 {
			first, last = p.At[0], p.At[len(p.At)-1]
		}
		if got := fmt.Sprint(len(p.At), first, last, p.Exact); got != c.want {
			t.Errorf("%d to %d in %d: %s, want %s", c.from, c.to, c.points, got, c.want)
		}
		if p.Count != 100 || p.From != 0 || p.To != 24750 {
			t.Errorf("all there is: %d from %d to %d", p.Count, p.From, p.To)
		}
	}
}

// TestLinesBeforeAMoment: those of 16 s, the last one being the newest then.
func TestLinesBeforeAMoment(t *testing.T) {
	f := newRun(t)
	appendAll(t, f, readings(2000, 0)) // 500 s
	for _, at := range []int64{0, 249, 250, 100_000, 499_750, 1 << 60} {
		n, last := 0, ""
		f.SampleSeries().Before(t.Context(), at, func(line []byte) { n++; last = string(line) })
		newest := min(at/250*250, 499_750)
		if !strings.HasPrefix(last, fmt.Sprintf(`{"at_ms":%d,`, newest)) {
			t.Errorf("before %d: %.30s", at, last)
		}
		// the search ends at a block of 4 KiB: a few lines more than 16 s
		if most := int(min(newest/250+1, 64+4096/100)); at < 1<<60 && n > most {
			t.Errorf("before %d: %d lines, at most %d", at, n, most)
		}
	}
	n := 0
	f.StepSeries().Before(t.Context(), 5, func([]byte) { n++ })
	if n != 0 {
		t.Errorf("%d lines of no file", n)
	}
}

// TestTimesOfLines: a line that is cut off is stepped over, up to a point.
func TestTimesOfLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	good := `{"at_ms":42,"procs":1}` + "\n"
	for broken, want := range map[int]int64{0: 42, 1: 42, 15: 42, 16: -1} {
		text := strings.Repeat("{\"at_\n", broken) + good
		testenv.Write(t, path, []byte(text))
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := (&Series{name: samplesFile}).timeAt(file, 0); got != want {
			t.Errorf("after %d broken lines: %d, want %d", broken, got, want)
		}
		if got := (&Series{name: samplesFile}).timeAt(file, int64(len(text))); got != -1 {
			t.Errorf("at the end: %d", got)
		}
		file.Close()
	}
}

// TestClaimLeavesNoTraceOnRefusal: a folder with other things keeps them and gets no mark.
func TestClaimLeavesNoTraceOnRefusal(t *testing.T) {
	for name, ours := range map[string]bool{"runs": true, "index.sqlite": true,
		"index.sqlite-wal": true,
		"central.sqlite":   true, "cards.json": true, "thesis.tex": false, ".git": false, "run": false} {
		home := t.TempDir()
		if err := os.Mkdir(filepath.Join(home, name), 0o700); err != nil {
			t.Fatal(err)
		}
		err := claim(home)
		_, marked := os.Stat(filepath.Join(home, markFile))
		if (err == nil) != ours || (marked == nil) != ours {
			t.Errorf("%s: %v, mark %v", name, err, marked)
		}
		if err != nil && (!strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), home)) {
			t.Errorf("the reason does not name %s in %s: %v", name, home, err)
		}
	}
	home := filepath.Join(t.TempDir(), "none")
	if err := claim(home); err == nil {
		t.Error("a folder that is not there was claimed")
	}
}

// TestRecordsAreBounded: a file that is too large, or no file, is not read into memory.
func TestRecordsAreBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.json")
	testenv.Write(t, path, nil)
	if _, err := readWhole(path); err != nil {
		t.Error(err)
	}
	if err := os.Truncate(path, 64<<20); err != nil {
		t.Fatal(err)
	}
	if data, err := readWhole(path); err != nil || len(data) != 64<<20 {
		t.Errorf("64 MiB: %d, %v", len(data), err)
	}
	if err := os.Truncate(path, 64<<20+1); err != nil { // no disk is used: it is all holes
		t.Fatal(err)
	}
	if _, err := readWhole(path); err == nil || !strings.Contains(err.Error(), "run.json") {
		t.Errorf("64 MiB and a byte: %v", err)
	}
	if _, err := readWhole(filepath.Dir(path)); err == nil {
		t.Error("a folder was read")
	}
}
