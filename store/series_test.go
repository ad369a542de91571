package store

import (
	"encoding/json"
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

// readings makes a course with a single spike, with cards.
func readings(n, cards int) []event.Sample {
	var list []event.Sample
	for i := range n {
		s := event.Sample{AtMS: int64(i) * 250, Attempt: 1, Processes: 3, Resident: 900, Anonymous: 400,
			Shared: 10, Machine: &event.MachineSample{Total: 1 << 34, Available: 1 << 33}}
		if i == n/3 {
			s.Anonymous = 7000
		}
		for c := range cards {
			s.Devices = append(s.Devices, event.DeviceSample{UUID: fmt.Sprintf("GPU-%d", c),
				Name: `H200 "big", {x}`, Total: 1 << 37, Used: event.Bytes(1000*c + i)})
		}
		list = append(list, s)
	}
	return list
}

func newRun(t *testing.T) *Folder {
	t.Helper()
	kept, err := Open(filepath.Join(t.TempDir(), "home"))
	if err != nil {
		t.Fatal(err)
	}
	f, err := kept.Create(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f
}

func appendAll(t *testing.T, f *Folder, list []event.Sample) {
	t.Helper()
	for chunk := range slices.Chunk(list, 2) {
		if err := f.AppendSamples(chunk); err != nil {
			t.Fatal(err)
		}
	}
}

func columnOf(t *testing.T, p Piece, name string) Column {
	t.Helper()
	for _, c := range p.Columns {
		if c.Name == name {
			return c
		}
	}
	t.Fatalf("no column %q in %d columns", name, len(p.Columns))
	return Column{}
}

// TestNoPeakIsLostAtAnyResolution: with and without the rolls that the run wrote itself, and from
// one point to all of them.
func TestNoPeakIsLostAtAnyResolution(t *testing.T) {
	f := newRun(t)
	list := readings(1000, 2)
	appendAll(t, f, list[:700])
	f.Close() // another writer takes over: what was being rolled up is left to the reader
	f = &Folder{ID: f.ID, Dir: f.Dir}
	appendAll(t, f, list[700:])
	f.Close()
	info, err := os.Stat(f.Path("samples.roll"))
	if err != nil || info.Size() < 1000 {
		t.Fatalf("the run wrote no rolls: %v", err)
	}
	for _, rolled := range []bool{true, false} {
		if !rolled {
			if err := os.Remove(f.Path("samples.roll")); err != nil {
				t.Fatal(err)
			}
		}
		for _, points := range []int{1, 7, 60, 999, 1000, 5000} {
			p, err := f.SampleSeries().Between(0, 1<<60, points, nil)
			if err != nil {
				t.Fatal(err)
			}
			host := columnOf(t, p, "host")
			if got := slices.Max(host.High); got != 7010 || p.Count != 1000 {
				t.Errorf("rolled %v, %d points: highest %d of %d lines", rolled, points, got, p.Count)
			}
			if len(p.At) > points {
				t.Errorf("%d points instead of at most %d", len(p.At), points)
			}
			card := columnOf(t, p, "gpu1.used")
			if slices.Min(card.Low) != 1000 || slices.Max(card.High) != 1999 {
				t.Errorf("the second card goes from %d to %d", slices.Min(card.Low),
					slices.Max(card.High))
			}
			if p.From != 0 || p.To != 999*250 || p.Exact != (points >= 1000) {
				t.Errorf("from %d to %d, exact %v", p.From, p.To, p.Exact)
			}
		}
	}
}

// TestSeriesFollowsARunThatGoesOn: also over a line that is not finished, and one that never will.
func TestSeriesFollowsARunThatGoesOn(t *testing.T) {
	f := newRun(t)
	s := f.SampleSeries()
	if p, err := s.Between(0, 1<<60, 10, nil); err != nil || len(p.At) != 0 {
		t.Fatalf("nothing yet: %v %v", p, err)
	}
	list := readings(300, 0)
	line, _ := json.Marshal(list[100])
	appendAll(t, f, list[:100])
	file, err := os.OpenFile(f.Path("samples.jsonl"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	count := func() int64 {
		p, err := s.Between(0, 1<<60, 1000, nil)
		if err != nil {
			t.Fatal(err)
		}
		return p.Count
	}
	fmt.Fprintf(file, "%s", line[:40])
	if n := count(); n != 100 {
		t.Errorf("%d readings with half a line at the end", n)
	}
	fmt.Fprintf(file, "%s\n", line[40:])
	if n := count(); n != 101 {
		t.Errorf("%d readings once it is whole", n)
	}
	fmt.Fprintf(file, "%s\n\x00\x00\n[]\n{}\n{\"at_ms\":\"x\"}\n", line[:40])
	if n := count(); n != 101 {
		t.Errorf("%d readings after lines that are none", n)
	}
	fmt.Fprintf(file, "%s\n", line)
	if n := count(); n != 102 {
		t.Errorf("%d readings after the broken ones", n)
	}
}

// TestRollsOfAnotherFileAreNotBelieved: whoever restores half a backup gets the truth, later.
func TestRollsOfAnotherFileAreNotBelieved(t *testing.T) {
	for name, spoil := range map[string]func(text string) string{
		"empty":     func(string) string { return "" },
		"cut":       func(s string) string { return s[:len(s)/2] },
		"noise":     func(s string) string { return strings.ReplaceAll(s, ",", "\x00") },
		"too long":  func(s string) string { return s + s },
		"no names":  func(s string) string { return s[strings.IndexByte(s, '\n')+1:] },
		"two names": func(s string) string { return s[:strings.IndexByte(s, '\n')+1] + s },
	} {
		f := newRun(t)
		appendAll(t, f, readings(500, 1))
		f.Close()
		text := testenv.Read(t, f.Path("samples.roll"))
		testenv.Write(t, f.Path("samples.roll"), []byte(spoil(string(text))))
		p, err := f.SampleSeries().Between(0, 1<<60, 50, nil)
		if err != nil {
			t.Fatal(err)
		}
		if host := columnOf(t, p, "host"); p.Count != 500 || slices.Max(host.High) != 7010 {
			t.Errorf("%s: %d lines, highest %d", name, p.Count, slices.Max(host.High))
		}
	}
}

// TestSpeedyReaderAgreesWithJSON on what the monitor writes.
func TestSpeedyReaderAgreesWithJSON(t *testing.T) {
	rank := 3
	step := event.RankedStep{AtMS: 77, PID: 12, Rank: &rank, Step: event.Step{Step: 9, Device: 1,
		Allocated: 5, Reserved: 6, Duration: 1234567, End: time.Now()}}
	line, err := json.Marshal(step)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int64{}
	at, ok := newStepReader().read(line, func(n string, v int64) { got[n] = v })
	if !ok || at != 77 || got["rank3/gpu1.allocated"] != 5 || got["rank3/gpu1.reserved"] != 6 ||
		got["rank3/gpu1.duration_ns"] != 1234567 || got["rank3/gpu1.step"] != 9 {
		t.Errorf("%v %d %v", ok, at, got)
	}
	step.Rank, step.Device = nil, event.HostDevice
	line, _ = json.Marshal(step)
	if _, ok := newStepReader().read(line, func(n string, v int64) { got[n] = v }); !ok ||
		got["pid12.step"] != 9 {
		t.Errorf("%v %v", ok, got)
	}
	sample := event.Sample{AtMS: 5, Anonymous: 3, Shared: 4, Held: 6,
		Cgroup: &event.CgroupSample{Current: 9, Limit: 10, PressureFull: 2.75}}
	line, _ = json.Marshal(sample)
	got = map[string]int64{}
	if _, ok := newSampleReader().read(line, func(n string, v int64) { got[n] = v }); !ok ||
		got["host"] != int64(sample.Unreclaimable()) || got["cgroup_limit"] != 10 ||
		got["cgroup_pressure"] != 2 {
		t.Errorf("%v %v", ok, got)
	}
}

func FuzzSeriesLines(f *testing.F) {
	f.Add([]byte(`{"at_ms":1,"gpus":[{"used":3}],"cgroup":{"current":4}}`))
	f.Add([]byte(`{"at_ms":-1e3,"gpus":[[]],"machine":null,"x":"\"}"}`))
	f.Add([]byte(`{"at_ms":1,"rank":null,"pid":4,"step":2}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		newSampleReader().read(line, func(string, int64) {})
		newStepReader().read(line, func(string, int64) {})
		appendNumbers(nil, line)
	})
}
