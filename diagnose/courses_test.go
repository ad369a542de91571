package diagnose_test

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"memroom/diagnose"
	"memroom/diagnose/courses"
)

var update = flag.Bool("update", false, "write what the detectors say today to testdata")

// outcome is all the detectors say about one course. The file of them is not the truth: it is what
// the build said whose figures are in docs/measurements.md. A change that moves a line must be
// meant, and the figures measured anew.
type outcome struct {
	Name     string
	Every    int   // each how many steps were read
	Named    int64 // step at which a leak was named, -1 never
	Onset    int64
	KiB      int64 // a step
	Rises    int
	Back     int64   // step at which it was taken back, -1 never
	Forecast []int64 // step, low, high of the first forecast for a wall above the middle
	At       int64   // step of that forecast
}

func TestCoursesAreJudgedAsMeasured(t *testing.T) {
	const path = "testdata/courses.jsonl"
	var got []outcome
	for seed := range uint64(2) {
		for i, s := range courses.Families(9000 + seed) {
			got = append(got, judgeCourse(s, 1))
			if i%3 == int(seed) {
				got = append(got, judgeCourse(s, 4))
			}
		}
	}
	if *update {
		writeOutcomes(t, path, got)
	}
	want := readOutcomes(t, path)
	if len(want) != len(got) {
		t.Fatalf("%d courses, %d in %s: run with -update if that is meant", len(got), len(want),
			path)
	}
	for i := range got {
		if diff := cmp.Diff(want[i], got[i]); diff != "" {
			t.Errorf("%s, every %d steps, measured (-) and now (+):\n%s", got[i].Name, got[i].Every,
				diff)
		}
	}
}

// TestCoursesKeepTheirPromise holds the same courses against what is promised of them.
func TestCoursesKeepTheirPromise(t *testing.T) {
	leaks, late, accused, healthy := 0, 0, 0, 0
	for seed := range uint64(2) {
		for _, s := range courses.Families(9000 + seed) {
			o := judgeCourse(s, 1)
			switch s.Class {
			case courses.Leaks:
				leaks++
				if o.Named < 0 || o.Named > s.Onset+40 {
					late++
				}
			case courses.Healthy:
				healthy++
				if o.Named >= 0 {
					accused++
				}
			}
		}
	}
	if late*10 > leaks || accused*20 > healthy {
		t.Errorf("%d of %d leaks late, %d of %d healthy runs accused", late, leaks, accused,
			healthy)
	}
}

func judgeCourse(s courses.Series, every int) outcome {
	o := outcome{Name: s.Name, Every: every, Named: -1, Back: -1, At: -1}
	limits := diagnose.DefaultThresholds()
	var seen diagnose.Series
	var leak diagnose.Trend
	wall := wallOf(s)
	for i, p := range s.Floor {
		if i%every != 0 {
			continue
		}
		seen.Add(p.Step, p.Value, s.Reserved[i], 0, limits)
		if trend, is := seen.Leak(limits); is && o.Named < 0 {
			leak, o.Named, o.Onset, o.Rises = trend, p.Step, trend.Onset, trend.Rises
			o.KiB = int64(trend.Slope / 1024)
		}
		if o.Named >= 0 && o.Back < 0 {
			if _, over := seen.Ended(leak, limits); over {
				o.Back = p.Step
			}
		}
		if o.At < 0 {
			if f, told := seen.Forecast(wall, limits); told {
				o.At, o.Forecast = p.Step, []int64{f.Step, f.Low, f.High}
			}
		}
	}
	return o
}

// wallOf is a limit that a leak meets in the second half of its course, and a healthy run never.
func wallOf(s courses.Series) float64 {
	most := s.Floor[0].Value
	for _, p := range s.Floor {
		most = max(most, p.Value)
	}
	if middle := s.Floor[len(s.Floor)/2].Value; s.Onset >= 0 && most > middle {
		return middle + 0.5*(most-middle)
	}
	return 1.1 * most
}

func readOutcomes(t *testing.T, path string) []outcome {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var all []outcome
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var o outcome
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			t.Fatal(err)
		}
		all = append(all, o)
	}
	return all
}

func writeOutcomes(t *testing.T, path string, all []outcome) {
	t.Helper()
	var text strings.Builder
	for _, o := range all {
		line, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&text, "%s\n", line)
	}
	if err := os.WriteFile(path, []byte(text.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}
