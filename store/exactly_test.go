package store

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"memroom/event"
	"memroom/testenv"
)

// TestFindOfAName: a name that several runs have is the newest of them.
func TestFindOfAName(t *testing.T) {
	s := testStore(t)
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	want := ""
	for i := range 4 {
		name := "sweep"
		if i == 3 {
			name = "other"
		}
		f := ended(t, s, at.Add(time.Duration(i)*time.Hour), event.Run{Name: name},
			event.Exit{}, event.Verdict{Evidence: []string{}})
		if name == "sweep" {
			want = f.ID
		}
	}
	if f, err := s.Find("sweep"); err != nil || f.ID != want {
		t.Errorf("%v %v, want %s", f, err, want)
	}
	if _, err := s.Find("2026"); err == nil || !strings.Contains(err.Error(), "matches 4 runs") {
		t.Errorf("several runs match: %v", err)
	}
}

// TestArgumentsOfOtherPrograms: what hides a secret in one place hides nothing else, word by word.
func TestArgumentsOfOtherPrograms(t *testing.T) {
	for line, want := range map[string]string{
		"mysql -h db -P 3306 -u root train":          "",
		"mysqldump --all-databases -p":               "",
		"/usr/bin/mysql -psecret -h db":              "/usr/bin/mysql -p*** -h db",
		"sudo mariadb -uroot -px train":              "sudo mariadb -uroot -p*** train",
		"python -pdb train.py":                       "",
		"nc -p8080 mysql":                            "",
		"curl -u me:hunter2 host":                    "curl -u me:*** host",
		"curl -o me:hunter2 host":                    "",
		"curl --proxy-user a:b --user c:d host":      "curl --proxy-user a:*** --user c:*** host",
		"sshpass -p hunter2 ssh host -p 22":          "sshpass -p *** ssh host -p 22",
		"/usr/bin/sshpass -p hunter2 ssh":            "/usr/bin/sshpass -p *** ssh",
		"ssh -p 2222 host":                           "",
		"wandb login --relogin":                      "",
		"wandb login 0123456789abcdef0123456789abcd": "wandb login ***",
		"Authorization: Bearer a1B2c3D4e5":           "Authorization: Bearer ***",
		"t --password hunter2 --lr 3":                "t --password *** --lr 3",
	} {
		if want == "" {
			want = line
		}
		if got := MaskArguments(strings.Fields(line)); !slices.Equal(got, strings.Fields(want)) {
			t.Errorf("%q became %q, want %q", line, got, want)
		}
	}
}

// TestRollOfOneLongLine: a roll ends with the line beyond 4 MiB, however few it holds.
func TestRollOfOneLongLine(t *testing.T) {
	r := &roller{extract: extractorOf(samplesFile)}
	line := func(at int) []byte { return fmt.Appendf(nil, "{\"at_ms\":%d,\"anon\":%d}\n", at, at+3) }
	if one := r.add(line(5), 10); one != nil {
		t.Fatalf("cut at once: %+v", one)
	}
	one := r.add(line(6), 10+4<<20+1)
	if one == nil || one.count != 1 || one.from != 5 || one.to != 5 || one.offset != 10 ||
		one.end != 10+int64(len(line(5))) {
		t.Fatalf("%+v", one)
	}
	if n := r.current; n.count != 1 || n.from != 6 || n.offset != 10+4<<20+1 {
		t.Errorf("the next one is %+v", n)
	}
}

// TestNumbersOfALine: all of them, wherever they stand.
func TestNumbersOfALine(t *testing.T) {
	for text, want := range map[string][]int64{
		"7":                   {7},
		"-7,8":                {-7, 8},
		"12 -3x4,,5":          {12, -3, 4, 5},
		`{"at":[0,10],"v":1}`: {0, 10, 1},
		"none":                nil,
		"":                    nil,
	} {
		if got := appendNumbers(nil, []byte(text)); !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
	if got := appendNumbers([]int64{1}, []byte("2")); !slices.Equal(got, []int64{1, 2}) {
		t.Errorf("%v does not go on", got)
	}
}

// courseOf writes lines of two kinds, some of them cut off, and returns the file.
func courseOf(t *testing.T, f *Folder, lines int) *os.File {
	t.Helper()
	var b strings.Builder
	for i := range lines {
		switch {
		case i%97 == 50:
			b.WriteString("{\"at_ms\":12,\"an\n")
		case i%3 == 0:
			fmt.Fprintf(&b, "{\"at_ms\":%d,\"procs\":3,\"rss\":%d,\"anon\":%d}\n", i*250,
				i*i%1009, i%11)
		default:
			fmt.Fprintf(&b, "{\"at_ms\":%d,\"anon\":%d}\n", i*250, i*7%503)
		}
	}
	testenv.Write(t, f.Path(samplesFile), []byte(b.String()))
	file, err := os.Open(f.Path(samplesFile))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	return file
}

// TestSplittingAFileChangesNothing: sums of several processors equal those of one: every column
// at every moment, the number of lines, and where a reader goes on.
func TestSplittingAFileChangesNothing(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	f := newRun(t)
	file := courseOf(t, f, 3000)
	info, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	whole, parts := f.SampleSeries(), f.SampleSeries()
	whole.scan(file, 0, info.Size())
	parts.split(file, info.Size())
	sum := func(s *Series) (all roll, lines []roll) {
		for _, r := range append(slices.Clone(s.rolls), s.roller.current) {
			all.merge(&r)
		}
		return all, s.lines(append(slices.Clone(s.rolls), s.roller.current), 0, 1<<60)
	}
	one, oneLines := sum(whole)
	many, manyLines := sum(parts)
	if !slices.Equal(whole.roller.columns.names, parts.roller.columns.names) ||
		fmt.Sprint(one) != fmt.Sprint(many) || fmt.Sprint(oneLines) != fmt.Sprint(manyLines) {
		t.Errorf("%v %v\n%v %v", whole.roller.columns.names, one, parts.roller.columns.names, many)
	}
	if whole.read != info.Size() || parts.read != info.Size() {
		t.Errorf("read up to %d and %d of %d", whole.read, parts.read, info.Size())
	}
	end := int64(0) // pieces lie one after the other
	for _, r := range parts.rolls {
		if r.offset < end || r.end <= r.offset {
			t.Fatalf("a roll from %d to %d after one up to %d", r.offset, r.end, end)
		}
		end = r.end
	}
}

// TestSketchOfAPart: single lines at even distances, of the moments that were asked for.
func TestSketchOfAPart(t *testing.T) {
	f := newRun(t)
	var b strings.Builder
	const lines = 4000
	for i := range lines {
		fmt.Fprintf(&b, "{\"at_ms\":%06d,\"anon\":%06d}\n", i*10, i)
	}
	testenv.Write(t, f.Path(samplesFile), []byte(b.String()))
	s := f.SampleSeries()
	p, err := s.sketch(0, 1<<62, 8, nil)
	if err != nil {
		t.Fatal(err)
	}
	// The first line, and then the one after each eighth.
	want := []int64{0, 5010, 10010, 15010, 20010, 25010, 30010, 35010}
	if diff := cmp.Diff(want, p.At); diff != "" || !p.Sketch || p.From != 0 || p.To != 35010 ||
		p.Count != lines {
		t.Errorf("%s%+v", diff, p)
	}
	anon := columnOf(t, p, "host")
	for i, at := range p.At {
		if anon.Low[i] != at/10 || anon.High[i] != at/10 {
			t.Errorf("at %d: %d to %d", at, anon.Low[i], anon.High[i])
		}
	}
	if p, err = s.sketch(20000, 30000, 4, nil); err != nil || len(p.At) != 4 || p.At[0] < 18000 ||
		p.At[0] > 21000 || p.At[3] < 25000 || p.At[3] > 30000 {
		t.Errorf("a part: %v, %v", err, p.At)
	}
	if p, err = s.sketch(0, 1<<62, 5000, nil); err != nil || len(p.At) > 600 || len(p.At) < 590 {
		t.Errorf("%v, %d points", err, len(p.At))
	}
}

// TestWholeLines: the line at a place or the next one, also where it is longer than what is read at
// once; none at the end.
func TestWholeLines(t *testing.T) {
	f := newRun(t)
	long := strings.Repeat("y", 70<<10)
	testenv.Write(t, f.Path("x"), []byte("ab\ncd\n"+long+"\nz"))
	file, err := os.Open(f.Path("x"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, c := range []struct {
		at   int64
		next bool
		want string
	}{{0, false, "ab\n"}, {0, true, "cd\n"}, {1, false, "b\n"}, {3, false, "cd\n"},
		{4, true, long + "\n"}, {6, false, long + "\n"}, {6, true, ""},
		{int64(7 + len(long)), false, ""}, {int64(8 + len(long)), false, ""}} {
		if got := string(wholeLine(file, c.at, c.next)); got != c.want {
			t.Errorf("at %d, next %v: %d bytes, want %d", c.at, c.next, len(got), len(c.want))
		}
	}
}
