// Command growth measures the detectors of leaks and the forecast on recorded and on made series:
// how many steps after its onset each leak is named, whether a healthy series is ever accused, and
// how far off the forecast is.
//
//	go run ./bench/growth [-v] [-first SEED] [-seeds N] [-only TEXT] [-every N] [INDEX.jsonl ...]
//
// With -every only each Nth step is read, as the probe does where steps are short.
//
// An index has one JSON object a line with "id" and "series": [[step, allocated, reserved], ...];
// ids that contain "healthy" are twins that must stay silent, other "leak" ids are leaks, from
// their first rise on or from "onset". Without files, made families are run: leaks under noise,
// late, rare, in stairs, accelerating; caches that fill, warm-ups, sawteeth, evaluation, curricula.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"memroom/diagnose"
	"memroom/diagnose/courses"
)

// verdict is what the detectors said about one series.
type verdict struct {
	delay    int64 // steps from onset to the finding, -1 never
	errors   []float64
	caps     int
	silent   int // caps for which no forecast was there once half the way was covered
	accused  bool
	forecast bool // a forecast was given on a healthy series
	covered  int  // forecasts whose interval held the truth
	given    int
	leak     diagnose.Trend
	said     string // what the first finding was about
	// steps from the end of what only looked like a leak until it was taken back, -1 never
	back int64
}

// every is the distance of the steps that are read.
var every int

func main() {
	verbose := flag.Bool("v", false, "print each series")
	seeds := flag.Int("seeds", 5, "variants of each made family")
	first := flag.Int("first", 0, "the first seed; the thresholds were chosen on seeds below 1000")
	only := flag.String("only", "", "families whose name contains this")
	flag.IntVar(&every, "every", 1, "read only each Nth step")
	flag.Parse()
	limits := diagnose.DefaultThresholds()
	var all []courses.Series
	for _, path := range flag.Args() {
		read, err := readIndex(path)
		if err != nil {
			fmt.Fprintln(os.Stderr, "growth:", err)
			os.Exit(1)
		}
		all = append(all, read...)
	}
	if flag.NArg() == 0 {
		for seed := range *seeds {
			all = append(all, courses.Families(uint64(*first+seed))...)
		}
	}
	all = slices.DeleteFunc(all, func(s courses.Series) bool {
		return !strings.Contains(s.Name,
			*only)
	})
	report(all, judgeAll(all, limits), *verbose)
}

// judgeAll judges courses.Series on all processors.
func judgeAll(all []courses.Series, limits diagnose.Thresholds) []verdict {
	verdicts := make([]verdict, len(all))
	var next atomic.Int64
	var done sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		done.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(all)); i = next.Add(1) - 1 {
				verdicts[i] = judge(all[i], limits)
			}
		})
	}
	done.Wait()
	return verdicts
}

func readIndex(path string) ([]courses.Series, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var found []courses.Series
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var entry struct {
			ID     string          `json:"id"`
			Series json.RawMessage `json:"series"`
			Onset  *int64          `json:"onset"`
		}
		if err := json.Unmarshal(lines.Bytes(), &entry); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		var rows [][]float64
		if !strings.Contains(entry.ID, "leak") || json.Unmarshal(entry.Series, &rows) != nil {
			continue
		}
		s := courses.Series{Name: entry.ID, Class: courses.Healthy, Onset: -1}
		for _, row := range rows {
			if len(row) < 3 {
				return nil,
					fmt.Errorf("%s: %s has a row of %d numbers, want step, allocated, reserved",
						path, entry.ID, len(row))
			}
			s.Floor = append(s.Floor, diagnose.Point{Step: int64(row[0]), Value: row[1]})
			s.Reserved = append(s.Reserved, row[2])
			if len(row) > 3 {
				s.Working = append(s.Working, row[3])
			}
		}
		if !strings.Contains(entry.ID, "healthy") {
			s.Class, s.Onset = courses.Leaks, firstRise(s.Floor)
			if entry.Onset != nil {
				s.Onset = *entry.Onset
			}
		}
		found = append(found, s)
	}
	return found, lines.Err()
}

// firstRise is the step before a recorded leak's first lasting rise.
func firstRise(points []diagnose.Point) int64 {
	for i := 1; i < len(points); i++ {
		if points[i].Value > points[0].Value {
			return points[i-1].Step
		}
	}
	return 0
}

func judge(s courses.Series, limits diagnose.Thresholds) verdict {
	v := verdict{delay: -1, back: -1}
	caps, deaths := capsOf(s)
	spoke := make([]bool, len(caps))
	var seen diagnose.Series
	for i, p := range s.Floor {
		if phase := len(s.Floor) + int(s.Floor[0].Value)%7; i > 0 && (i+phase)%every != 0 {
			continue
		}
		reserved := 0.0
		if s.Reserved != nil {
			reserved = s.Reserved[i]
		}
		working := 0.0
		if s.Working != nil {
			working = s.Working[i]
		}
		seen.Add(p.Step, p.Value, reserved, working, limits)
		if t, leak := seen.Leak(limits); leak {
			if v.said == "" {
				v.leak = t
				v.said = fmt.Sprintf("at %d: since %d, %.0f a step, %d rises, noise %.0f", p.Step,
					t.Onset, t.Slope, t.Rises, t.Noise)
			}
			if s.Onset < 0 || p.Step <= s.Onset {
				v.accused = true
			} else if v.delay < 0 {
				v.delay = p.Step - s.Onset
			}
		}
		if v.said != "" && v.back < 0 {
			if _, over := seen.Ended(v.leak, limits); over {
				v.back = max(0, p.Step-s.Ends)
			}
		}
		if s.Onset < 0 {
			_, told := seen.Forecast(healthyCap(s), limits)
			v.forecast = v.forecast || told
			continue
		}
		for c, limit := range caps {
			start := s.Floor[0].Value
			if p.Value < start+(limit-start)/2 || p.Step >= deaths[c] {
				continue
			}
			f, told := seen.Forecast(limit, limits)
			if !told {
				continue
			}
			spoke[c] = true
			v.errors = append(v.errors, math.Abs(float64(f.Step-deaths[c]))/float64(deaths[c]))
			v.given++
			if f.Low <= deaths[c] && deaths[c] <= f.High {
				v.covered++
			}
		}
	}
	v.caps = len(caps)
	for c := range caps {
		if !spoke[c] {
			v.silent++
		}
	}
	return v
}

// capsOf returns five caps between a leak's median and maximum, and the steps at which it crosses
// them.
func capsOf(s courses.Series) (caps []float64, deaths []int64) {
	if s.Onset < 0 {
		return nil, nil
	}
	sorted := make([]float64, len(s.Floor))
	for i, p := range s.Floor {
		sorted[i] = p.Value
	}
	slices.Sort(sorted)
	middle, most := sorted[len(sorted)/2], sorted[len(sorted)-1]
	for i := 1; i <= 5; i++ {
		limit := middle + (most-middle)*float64(i)/6
		for _, p := range s.Floor {
			if p.Value > limit && p.Step <= s.Onset {
				break // it was above before it leaked
			}
			if p.Value > limit {
				caps, deaths = append(caps, limit), append(deaths, p.Step)
				break
			}
		}
	}
	return caps, deaths
}

// healthyCap is a wall a little above all a healthy series ever needs.
func healthyCap(s courses.Series) float64 {
	most := 0.0
	for _, p := range s.Floor {
		most = math.Max(most, p.Value)
	}
	return 1.1 * most
}

// tally adds up the verdicts on the series of one name.
type tally struct {
	name                                                           string
	class                                                          courses.Class
	runs, late, accused, told, silent, caps, wrong, given, covered int
	delays, back                                                   []int64
	errors                                                         []float64
}

func (t *tally) add(s courses.Series, v verdict) {
	t.runs++
	t.accused += count(v.accused)
	t.told += count(v.forecast)
	if v.accused || v.back >= 0 {
		t.back = append(t.back, v.back)
	}
	if s.Onset < 0 {
		return
	}
	t.caps += v.caps
	t.silent += v.silent
	t.delays = append(t.delays, v.delay)
	t.errors = append(t.errors, v.errors...)
	t.given, t.covered = t.given+v.given, t.covered+v.covered
	t.late += count(v.delay < 0 || v.delay > 40)
	for _, e := range v.errors {
		t.wrong += count(e > 0.1)
	}
}

func count(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

func report(all []courses.Series, verdicts []verdict, verbose bool) {
	groups := map[string]*tally{}
	var order []*tally
	var classes [4]tally
	for i, s := range all {
		name, _, _ := strings.Cut(s.Name, "#")
		if groups[name] == nil {
			groups[name] = &tally{name: name, class: s.Class}
			order = append(order, groups[name])
		}
		v := verdicts[i]
		groups[name].add(s, v)
		classes[s.Class].add(s, v)
		if verbose {
			fmt.Printf("%-40s onset %4d delay %4d silent caps %d worst error %.3f accused %v forecast %v "+
				"back %d | %s\n",
				s.Name, s.Onset, v.delay, v.silent, most(v.errors), v.accused, v.forecast, v.back,
				v.said)
		}
	}
	fmt.Printf("%-36s %5s %13s %5s %8s | %9s %9s %7s %7s %8s | %s\n", "series", "runs",
		"delay 50/100%", "late", "accused", "forecasts", "silent", "worst", ">10 %", "covered",
		"taken back, after (middle/last)")
	for _, t := range order {
		t.print()
	}
	for i := range classes {
		if classes[i].runs > 0 {
			classes[i].name = "ALL " + courses.Class(i).String()
			classes[i].print()
		}
	}
}

func (t *tally) print() {
	fmt.Printf("%-36s %5d %13s %5d %8d | %9d %4d/%-4d %7.3f %5.1f %% %6.0f %% | %s\n", t.name,
		t.runs, ends(t.delays), t.late, t.accused, t.given+t.told,
		t.silent, t.caps, most(t.errors), 100*float64(t.wrong)/math.Max(1, float64(t.given)),
		100*float64(t.covered)/math.Max(1, float64(t.given)),
		fmt.Sprintf("%d %s", len(t.back), ends(t.back)))
}

// ends returns the middle and the worst of some delays, of which -1 is the worst.
func ends(delays []int64) string {
	if len(delays) == 0 {
		return "-"
	}
	for i, d := range delays {
		if d < 0 {
			delays[i] = math.MaxInt64
		}
	}
	slices.Sort(delays)
	word := func(d int64) string {
		if d == math.MaxInt64 {
			return "never"
		}
		return fmt.Sprint(d)
	}
	return word(delays[len(delays)/2]) + "/" + word(delays[len(delays)-1])
}

func most(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	return slices.Max(values)
}
