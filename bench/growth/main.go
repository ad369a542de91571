// Command growth measures the detectors of leaks and the forecast on recorded and on made series: how many steps after
// its onset each leak is named, whether a healthy series is ever accused, and how far off the forecast is.
//
//	go run ./bench/growth [-v] [INDEX.jsonl ...]
//
// An index has one JSON object a line with "id" and "series": [[step, allocated, reserved], ...]; ids that contain
// "healthy" are twins that must stay silent, other "leak" ids are leaks. Without files, made families are run: leaks
// under noise, late, rare, in stairs, accelerating; caches that fill, warm-ups, sawteeth, evaluation, curricula.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"slices"
	"sort"
	"strings"

	"memroom/diagnose"
)

// series is one run to judge. Onset is the step before the first leaked byte, -1 for a healthy one.
type series struct {
	name     string
	onset    int64
	floor    []diagnose.Point
	reserved []float64
	working  []float64
}

// verdict is what the detectors said about one series.
type verdict struct {
	delay    int64 // steps from onset to the finding, -1 never
	errors   []float64
	silent   int // caps for which no forecast was there once half the way was covered
	accused  bool
	forecast bool // a forecast was given on a healthy series
	covered  int  // forecasts whose interval held the truth
	given    int
}

// host says that series are of heaps in host memory, with the working bytes of a step as a fourth column.
var host bool

func main() {
	verbose := flag.Bool("v", false, "print each series")
	seeds := flag.Int("seeds", 5, "variants of each made family")
	flag.BoolVar(&host, "host", false, "the series are heaps, where small growth is not called a leak")
	flag.Parse()
	limits := diagnose.DefaultThresholds()
	var all []series
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
			all = append(all, families(uint64(seed))...)
		}
	}
	report(all, limits, *verbose)
}

func readIndex(path string) ([]series, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var found []series
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var entry struct {
			ID     string          `json:"id"`
			Series json.RawMessage `json:"series"`
		}
		if err := json.Unmarshal(lines.Bytes(), &entry); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		var rows [][]float64
		if !strings.Contains(entry.ID, "leak") || json.Unmarshal(entry.Series, &rows) != nil {
			continue
		}
		s := series{name: entry.ID, onset: -1}
		for _, row := range rows {
			if len(row) < 3 {
				return nil, fmt.Errorf("%s: %s has a row of %d numbers, want step, allocated, reserved", path, entry.ID, len(row))
			}
			s.floor = append(s.floor, diagnose.Point{Step: int64(row[0]), Value: row[1]})
			s.reserved = append(s.reserved, row[2])
			if len(row) > 3 {
				s.working = append(s.working, row[3])
			}
		}
		if !strings.Contains(entry.ID, "healthy") {
			s.onset = firstRise(s.floor)
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

func judge(s series, limits diagnose.Thresholds) verdict {
	v := verdict{delay: -1}
	caps, deaths := capsOf(s)
	spoke := make([]bool, len(caps))
	var seen diagnose.Series
	if host {
		seen.Quantum = 4096
	}
	for i, p := range s.floor {
		reserved := 0.0
		if s.reserved != nil {
			reserved = s.reserved[i]
		}
		working := 0.0
		if s.working != nil {
			working = s.working[i]
		}
		seen.Add(p.Step, p.Value, reserved, working, limits)
		if t, leak := seen.Leak(limits); leak && (!host || t.MattersOnHost(true, limits)) {
			if s.onset < 0 || p.Step <= s.onset {
				v.accused = true
			} else if v.delay < 0 {
				v.delay = p.Step - s.onset
			}
		}
		if s.onset < 0 {
			f, told := seen.Forecast(healthyCap(s), limits)
			told = told && (!host || f.Trend.MattersOnHost(true, limits))
			v.forecast = v.forecast || told
			continue
		}
		for c, limit := range caps {
			start := s.floor[0].Value
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
	for c := range caps {
		if !spoke[c] {
			v.silent++
		}
	}
	return v
}

// capsOf gives five caps between a leak's median and maximum, and the steps at which it crosses them.
func capsOf(s series) (caps []float64, deaths []int64) {
	if s.onset < 0 {
		return nil, nil
	}
	sorted := make([]float64, len(s.floor))
	for i, p := range s.floor {
		sorted[i] = p.Value
	}
	slices.Sort(sorted)
	middle, most := sorted[len(sorted)/2], sorted[len(sorted)-1]
	for i := 1; i <= 5; i++ {
		limit := middle + (most-middle)*float64(i)/6
		for _, p := range s.floor {
			if p.Value > limit {
				caps, deaths = append(caps, limit), append(deaths, p.Step)
				break
			}
		}
	}
	return caps, deaths
}

// healthyCap is a wall a little above all a healthy series ever needs.
func healthyCap(s series) float64 {
	most := 0.0
	for _, p := range s.floor {
		most = math.Max(most, p.Value)
	}
	return 1.1 * most
}

func report(all []series, limits diagnose.Thresholds, verbose bool) {
	type tally struct {
		runs, late, accused, told, silent, caps, wrong, given, covered int
		delays                                                         []int64
		errors                                                         []float64
	}
	groups := map[string]*tally{}
	var names []string
	for _, s := range all {
		name, _, _ := strings.Cut(s.name, "#")
		g := groups[name]
		if g == nil {
			g = &tally{}
			groups[name], names = g, append(names, name)
		}
		v := judge(s, limits)
		g.runs++
		if s.onset >= 0 {
			g.caps += 5
			g.silent += v.silent
			g.delays = append(g.delays, v.delay)
			g.errors = append(g.errors, v.errors...)
			g.given, g.covered = g.given+v.given, g.covered+v.covered
			if v.delay < 0 || v.delay > 40 {
				g.late++
			}
			for _, e := range v.errors {
				if e > 0.1 {
					g.wrong++
				}
			}
		}
		if v.accused {
			g.accused++
		}
		if v.forecast {
			g.told++
		}
		if verbose {
			fmt.Printf("%-40s onset %4d delay %4d silent caps %d worst error %.3f accused %v forecast %v\n",
				s.name, s.onset, v.delay, v.silent, most(v.errors), v.accused, v.forecast)
		}
	}
	sort.Strings(names)
	fmt.Printf("%-34s %4s %8s %6s %8s | %9s %7s %8s %8s | %7s\n", "series", "runs", "delay<=", "late", "accused", "forecasts", "silent", "worst", ">10 %", "covered")
	for _, name := range names {
		g := groups[name]
		delay := "-"
		if len(g.delays) > 0 {
			slices.Sort(g.delays)
			delay = fmt.Sprint(g.delays[len(g.delays)-1])
			if g.delays[0] < 0 {
				delay = "never"
			}
		}
		fmt.Printf("%-34s %4d %8s %6d %8d | %9d %4d/%-3d %8.3f %8d | %3.0f %%\n", name, g.runs, delay, g.late, g.accused,
			g.given+g.told, g.silent, g.caps, most(g.errors), g.wrong, 100*float64(g.covered)/math.Max(1, float64(g.given)))
	}
}

func most(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	return slices.Max(values)
}
