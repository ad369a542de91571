package trial

import (
	"cmp"
	"math"
	"slices"
	"time"

	"memroom/event"
)

// Picture is a study as a page shows it, live or as a file: plain values, with times in seconds
// since the study's first launch.
type Picture struct {
	Name     string        `json:"name"`
	Created  time.Time     `json:"created"`
	Command  []string      `json:"command"`
	Metric   string        `json:"metric"`
	Mode     string        `json:"mode"`
	Search   string        `json:"search"`
	Wanted   int           `json:"wanted"` // trials in all
	Working  bool          `json:"working"`
	Host     event.Bytes   `json:"host_bytes,omitempty"`   // budget; 0: all of the machine
	Device   event.Bytes   `json:"device_bytes,omitempty"` // budget on each card
	States   map[State]int `json:"states"`
	Best     *int          `json:"best"` // number of the best trial
	Began    time.Time     `json:"began,omitzero"`
	Seconds  float64       `json:"seconds"` // from the first launch to the last end, or to now
	Axes     []Axis        `json:"axes"`
	Trials   []Pictured    `json:"trials"`
	Records  []Record      `json:"records"`  // each new best value
	Held     []Held        `json:"held"`     // reserved memory over time
	Attempts int           `json:"attempts"` // launches
	OOMs     int           `json:"ooms"`     // launches that ran out of memory
}

// Axis is a hyperparameter as a scale. Positions on it go from 0 to 1.
type Axis struct {
	Name string `json:"name"`
	// Choices are the values of a scale that has no numbers; empty: it goes from Low to High.
	Choices []string `json:"choices,omitempty"`
	Low     float64  `json:"low"`
	High    float64  `json:"high"`
	Log     bool     `json:"log,omitempty"`
}

// Pictured is a trial on the page.
type Pictured struct {
	ID       int         `json:"id"`
	State    State       `json:"state"`
	Why      string      `json:"why,omitempty"`
	Value    *float64    `json:"value"`
	Params   []string    `json:"params"` // texts, in the order of the axes
	At       []*float64  `json:"at"`     // positions on the axes; null: not on it
	Attempts []Bar       `json:"attempts"`
	History  []Point     `json:"history,omitempty"` // at most 100 of them
	Peak     event.Bytes `json:"peak_host_bytes"`
	PeakCard event.Bytes `json:"peak_device_bytes,omitempty"`
}

// Bar is an attempt over time.
type Bar struct {
	Run      string      `json:"run"`
	Lane     int         `json:"lane"` // those of one lane follow each other
	From     float64     `json:"from"`
	To       float64     `json:"to"`
	Going    bool        `json:"going,omitempty"` // it has not ended
	Reserved event.Bytes `json:"reserved_bytes"`
	Peak     event.Bytes `json:"peak_bytes,omitempty"`
	Device   event.Bytes `json:"device_bytes,omitempty"`
	OOM      bool        `json:"oom,omitempty"`
	Fit      bool        `json:"fit,omitempty"`
	How      string      `json:"how"` // it ended
}

// Record is a value better than all before.
type Record struct {
	At    float64 `json:"at"`
	Value float64 `json:"value"`
	Trial int     `json:"trial"`
}

// Held is what was reserved from a moment on.
type Held struct {
	At      float64     `json:"at"`
	Host    event.Bytes `json:"host_bytes"`
	Running int         `json:"running"`
}

// mostHistory bounds the points of one trial on a page.
const mostHistory = 100

// Picture shapes the study for a page. now ends what has not ended. The caller fills in what the
// study itself does not know: name, command, search, budgets.
func (s *Study) Picture(space Space, now time.Time) Picture {
	p := Picture{Metric: s.Options.Metric, Mode: s.Options.Mode, States: s.Count(),
		Trials: []Pictured{}, Records: []Record{}, Held: []Held{}, Axes: []Axis{}}
	if best := s.Best(); best != nil {
		id := best.ID
		p.Best = &id
	}
	p.Began = s.firstLaunch()
	p.Axes = s.axes(space)
	for _, t := range s.Trials {
		p.Trials = append(p.Trials, s.pictured(t, p, now))
	}
	var bars []*Bar
	for i := range p.Trials {
		for j := range p.Trials[i].Attempts {
			b := &p.Trials[i].Attempts[j]
			bars = append(bars, b)
			p.Seconds = max(p.Seconds, b.To)
			p.Attempts++
			if b.OOM {
				p.OOMs++
			}
		}
	}
	intoLanes(bars)
	p.Held = heldOver(bars)
	p.Records = s.records(p)
	return p
}

func (s *Study) firstLaunch() (first time.Time) {
	for _, t := range s.Trials {
		for _, a := range t.Attempts {
			if first.IsZero() || a.Started.Before(first) {
				first = a.Started
			}
		}
	}
	return first
}

func (s *Study) pictured(t *Trial, p Picture, now time.Time) Pictured {
	one := Pictured{ID: t.ID, State: t.State, Why: t.Why, Value: finiteOnly(t.Value),
		Params: []string{}, At: []*float64{}, Attempts: []Bar{}, History: thinTo(t.history,
			mostHistory)}
	for _, axis := range p.Axes {
		value, known := t.Params.Get(axis.Name)
		text, at := "", (*float64)(nil)
		if known {
			text, at = value.String(), axis.position(value)
		}
		one.Params, one.At = append(one.Params, text), append(one.At, at)
	}
	for i, a := range t.Attempts {
		bar := Bar{Run: a.Run, From: a.Started.Sub(p.Began).Seconds(), Reserved: a.Host,
			Device: a.Device, Fit: a.Fit, How: "runs"}
		end := a.Ended
		if a.Outcome == nil {
			end, bar.Going = now, true
		} else {
			bar.Reserved = max(a.Reserved, 0)
			bar.Peak, bar.OOM = a.Outcome.Peak(), a.Outcome.OOM
			bar.How = a.Outcome.words(t, i == len(t.Attempts)-1)
			one.Peak, one.PeakCard = max(one.Peak, bar.Peak), max(one.PeakCard, a.Outcome.PeakDevice)
		}
		bar.To = max(bar.From, end.Sub(p.Began).Seconds())
		one.Attempts = append(one.Attempts, bar)
	}
	return one
}

// words describes how an attempt ended.
func (o Outcome) words(t *Trial, last bool) string {
	switch {
	case o.OOM && o.Where != "":
		return "ran out of " + o.Where.Memory()
	case o.OOM:
		return "ran out of memory"
	case o.Stopped != "":
		return "stopped: " + o.Stopped
	case o.Lost:
		return "lost"
	case o.Neighbour:
		return "ended with the whole machine out of memory"
	case o.NotStarted != "":
		return "did not start: " + o.NotStarted
	case o.ExitCode != 0:
		return "failed"
	case last && t.State == Failed:
		return "failed"
	}
	return "finished"
}

// axes are the scales of the space, and of further parameters of trials, as an outside searcher
// sets them.
func (s *Study) axes(space Space) []Axis {
	list := []Axis{}
	for _, d := range space {
		list = append(list, s.axis(d.Name, d.Domain.logarithmic()))
	}
	for _, t := range s.Trials {
		for _, p := range t.Params {
			if !slices.ContainsFunc(list, func(a Axis) bool { return a.Name == p.Name }) {
				list = append(list, s.axis(p.Name, false))
			}
		}
	}
	return list
}

// logarithmic reports whether equal factors are equal distances.
func (d Domain) logarithmic() bool {
	return d.Kind == LogScale || d.Kind == LogInt || d.Kind == LogNormal
}

// axis spans what the trials have: a scale from the space alone could have no end.
func (s *Study) axis(name string, log bool) Axis {
	a := Axis{Name: name, Log: log, Low: math.Inf(1), High: math.Inf(-1)}
	numbers := true
	for _, t := range s.Trials {
		v, known := t.Params.Get(name)
		if !known {
			continue
		}
		f, ok := v.Float()
		if _, yes := v.Data.(bool); yes || !ok || math.IsNaN(f) || math.IsInf(f, 0) {
			numbers = false
		}
		a.Low, a.High = min(a.Low, f), max(a.High, f)
		if text := v.String(); !slices.Contains(a.Choices, text) {
			a.Choices = append(a.Choices, text)
		}
	}
	if !numbers {
		slices.Sort(a.Choices)
		a.Low, a.High, a.Log = 0, max(0, float64(len(a.Choices)-1)), false
		return a
	}
	a.Choices = nil
	if a.High < a.Low { // no trial has it
		a.Low, a.High = 0, 1
	}
	a.Log = a.Log && a.Low > 0
	return a
}

// position returns the place of a value on the scale.
func (a Axis) position(v Value) *float64 {
	f, ok := v.Float()
	if len(a.Choices) > 0 {
		i := slices.Index(a.Choices, v.String())
		f, ok = float64(i), i >= 0
	}
	if !ok {
		return nil
	}
	at := a.Place(f)
	return &at
}

// Place returns the place of a number on a scale of numbers.
func (a Axis) Place(f float64) float64 {
	low, high := a.Low, a.High
	if a.Log {
		f, low, high = math.Log(f), math.Log(low), math.Log(high)
	}
	if high > low {
		return (f - low) / (high - low)
	}
	return 0.5
}

// intoLanes puts each bar into the lowest lane that is free when it begins.
func intoLanes(bars []*Bar) {
	slices.SortStableFunc(bars, func(a, b *Bar) int { return cmp.Compare(a.From, b.From) })
	var ends []float64
	for _, b := range bars {
		b.Lane = slices.IndexFunc(ends, func(end float64) bool { return end <= b.From })
		if b.Lane < 0 {
			b.Lane = len(ends)
			ends = append(ends, 0)
		}
		ends[b.Lane] = b.To
	}
}

// heldOver adds the reservations up. A reservation that changed on the way counts with its last
// size.
func heldOver(bars []*Bar) []Held {
	type change struct {
		at   float64
		host event.Bytes
		n    int
	}
	var changes []change
	for _, b := range bars {
		changes = append(changes, change{b.From, b.Reserved, 1})
		if !b.Going {
			changes = append(changes, change{b.To, -b.Reserved, -1})
		}
	}
	slices.SortStableFunc(changes, func(a, b change) int {
		return cmp.Or(cmp.Compare(a.at, b.at), a.n-b.n) // ends before beginnings
	})
	list := []Held{}
	now := Held{}
	for i, c := range changes {
		now.At, now.Host, now.Running = c.at, now.Host+c.host, now.Running+c.n
		if i+1 == len(changes) || changes[i+1].at != c.at {
			list = append(list, now)
		}
	}
	return list
}

// records are the values that were the best when their trial ended.
func (s *Study) records(p Picture) []Record {
	var ended []Record
	for _, t := range p.Trials {
		if t.State == Finished && t.Value != nil && len(t.Attempts) > 0 {
			ended = append(ended, Record{t.Attempts[len(t.Attempts)-1].To, *t.Value, t.ID})
		}
	}
	slices.SortStableFunc(ended, func(a, b Record) int { return cmp.Compare(a.At, b.At) })
	list := []Record{}
	for _, r := range ended {
		if len(list) == 0 || s.Options.Less(r.Value, list[len(list)-1].Value) {
			list = append(list, r)
		}
	}
	return list
}

// finiteOnly leaves out what JSON cannot hold.
func finiteOnly(v *float64) *float64 {
	if v == nil || math.IsNaN(*v) || math.IsInf(*v, 0) {
		return nil
	}
	return v
}

// thinTo keeps the first and the last point and at most so many, evenly spread and finite.
func thinTo(points []Point, most int) []Point {
	finite := make([]Point, 0, min(len(points), most))
	for _, p := range points {
		if finiteOnly(&p.Value) != nil {
			finite = append(finite, p)
		}
	}
	if len(finite) <= most {
		return finite
	}
	out := make([]Point, 0, most)
	for i := range most {
		out = append(out, finite[i*(len(finite)-1)/(most-1)])
	}
	return out
}
