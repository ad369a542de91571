package trial

import (
	"math"
	"slices"

	"memroom/event"
)

// Weight is the share of the differences between trials that goes with one hyperparameter: 0
// nothing, 1 all. It is the share of the variance between bins of that axis, corrected for their
// number.
type Weight struct {
	Axis   string  `json:"axis"`
	Metric float64 `json:"metric"` // of the values of finished trials
	Memory float64 `json:"memory"` // of the peaks
}

// Peak is what a trial took, for the picture of memory against a hyperparameter.
type Peak struct {
	Trial int         `json:"trial"`
	Bytes event.Bytes `json:"bytes"`
	// More: it ran out with this much and never finished with more.
	More bool `json:"more,omitempty"`
}

// Cliff is where an axis stops fitting: settings up to Fits finished, from Fails on none did.
type Cliff struct {
	Axis  string  `json:"axis"`
	Fits  float64 `json:"fits"`
	Fails float64 `json:"fails"`
}

// Ran is a line of the ledger: a trial that ran out of memory, and what became of it.
type Ran struct {
	Trial   int      `json:"trial"`
	Steps   []string `json:"steps"` // each attempt in words
	Became  State    `json:"became"`
	Why     string   `json:"why,omitempty"`
	Nearest *int     `json:"nearest,omitempty"` // finished trial with the most alike settings
}

// Shape is what a study shows about memory and about its knobs.
type Shape struct {
	OnCard  bool     `json:"on_card"` // peaks are those on a card
	Weights []Weight `json:"weights"` // in the order of the axes
	Peaks   []Peak   `json:"peaks"`
	Cliffs  []Cliff  `json:"cliffs"`
	Ledger  []Ran    `json:"ledger"`
}

// Shape looks at a picture of the study.
func (s *Study) Shape(p Picture) Shape {
	out := Shape{Weights: []Weight{}, Peaks: []Peak{}, Cliffs: []Cliff{}, Ledger: []Ran{}}
	for _, t := range p.Trials {
		out.OnCard = out.OnCard || t.PeakCard > 0
	}
	for _, t := range s.Trials {
		if peak, ok := t.peak(out.OnCard); ok {
			out.Peaks = append(out.Peaks, peak)
		}
		if ran, ok := s.ran(t); ok {
			out.Ledger = append(out.Ledger, ran)
		}
	}
	for i, axis := range p.Axes {
		out.Weights = append(out.Weights, weightOf(axis.Name, i, p, out.Peaks))
		if c, ok := cliffOf(axis, s.Trials); ok {
			out.Cliffs = append(out.Cliffs, c)
		}
	}
	return out
}

// peak is the trial's largest need that was seen.
func (t *Trial) peak(onCard bool) (Peak, bool) {
	p := Peak{Trial: t.ID}
	for _, a := range t.Attempts {
		o := a.Outcome
		if o == nil || a.Fit {
			continue
		}
		size, had := o.PeakHost, max(a.Reserved, a.Host)
		if onCard {
			size, had = o.PeakDevice, a.hadOnCard()
		}
		ranOut := o.OOM && (o.Where == event.WhereGPU) == onCard
		switch {
		case ranOut && max(size, had) >= p.Bytes:
			p.Bytes, p.More = max(size, had), true
		case !ranOut && o.ExitCode == 0 && size > 0:
			p.Bytes, p.More = size, false
		}
	}
	return p, p.Bytes > 0
}

func (s *Study) ran(t *Trial) (r Ran, ok bool) {
	if t.shortages() == 0 && t.State != Infeasible {
		return r, false
	}
	r = Ran{Trial: t.ID, Became: t.State, Why: t.Why, Steps: []string{}}
	for i, a := range t.Attempts {
		text := "with " + max(a.Reserved, a.Host).String()
		if a.Device > 0 {
			text += " and " + a.hadOnCard().String() + " of the card"
		}
		if a.Fit {
			text += " and the remedies of --fit"
		}
		how := "runs"
		if a.Outcome != nil {
			how = a.Outcome.words(t, i == len(t.Attempts)-1)
		}
		r.Steps = append(r.Steps, how+" "+text)
	}
	if near := s.Nearest(t); near != nil && t.State == Infeasible {
		id := near.ID
		r.Nearest = &id
	}
	return r, true
}

// weightOf compares the variance between bins of an axis with that inside of them.
func weightOf(name string, axis int, p Picture, peaks []Peak) Weight {
	w := Weight{Axis: name}
	edges := binsOf(axis, p.Trials)
	bin := func(t Pictured) int {
		if axis >= len(t.At) || t.At[axis] == nil {
			return -1
		}
		i, _ := slices.BinarySearch(edges, *t.At[axis])
		return i
	}
	values, sizes := map[int][]float64{}, map[int][]float64{}
	byID := map[int]Pictured{}
	for _, t := range p.Trials {
		byID[t.ID] = t
		if b := bin(t); b >= 0 && t.State == Finished && t.Value != nil {
			values[b] = append(values[b], *t.Value)
		}
	}
	for _, peak := range peaks {
		if b := bin(byID[peak.Trial]); b >= 0 {
			sizes[b] = append(sizes[b], float64(peak.Bytes))
		}
	}
	w.Metric, w.Memory = explained(values), explained(sizes)
	return w
}

// binsOf returns the upper ends of an axis's bins: its values where they are few, else quarters of
// the trials.
func binsOf(axis int, trials []Pictured) []float64 {
	const few, parts = 8, 4
	var all []float64
	for _, t := range trials {
		if axis < len(t.At) && t.At[axis] != nil {
			all = append(all, *t.At[axis])
		}
	}
	slices.Sort(all)
	if distinct := slices.Compact(slices.Clone(all)); len(distinct) <= few {
		return distinct
	}
	var edges []float64
	for i := 1; i <= parts; i++ {
		edges = append(edges, all[i*len(all)/parts-1])
	}
	return slices.Compact(edges)
}

// explained is omega squared: the share of the variance that goes with the groups, less what groups
// made at random would show.
func explained(groups map[int][]float64) float64 {
	n, sum := 0, 0.0
	for _, g := range groups {
		for _, v := range g {
			n, sum = n+1, sum+v
		}
	}
	k := len(groups)
	if k < 2 || n <= k {
		return 0
	}
	mean, between, within := sum/float64(n), 0.0, 0.0
	for _, g := range groups {
		own := 0.0
		for _, v := range g {
			own += v
		}
		own /= float64(len(g))
		between += float64(len(g)) * (own - mean) * (own - mean)
		for _, v := range g {
			within += (v - own) * (v - own)
		}
	}
	noise := within / float64(n-k)
	total := between + within + noise
	if total <= 0 || math.IsNaN(total) || math.IsInf(total, 0) {
		return 0
	}
	return min(max((between-float64(k-1)*noise)/total, 0), 1)
}

// cliffOf finds an axis of numbers along which trials finish up to a value and none does beyond.
func cliffOf(axis Axis, trials []*Trial) (c Cliff, ok bool) {
	if len(axis.Choices) > 0 {
		return c, false
	}
	var fits, fails []float64
	for _, t := range trials {
		v, known := t.Params.Get(axis.Name)
		f, number := v.Float()
		switch {
		case !known || !number:
		case t.State == Finished && !t.fit:
			fits = append(fits, f)
		case t.State == Infeasible:
			fails = append(fails, f)
		}
	}
	if len(fits) == 0 || len(fails) == 0 || slices.Max(fits) >= slices.Min(fails) {
		return c, false
	}
	return Cliff{axis.Name, slices.Max(fits), slices.Min(fails)}, true
}
