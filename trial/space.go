package trial

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"
)

// Kind is the shape of a domain.
type Kind string

// The kinds. Int and LogInt include both ends, whatever the vocabulary that they were written in.
const (
	Uniform   Kind = "uniform"
	LogScale  Kind = "loguniform"
	Int       Kind = "int"
	LogInt    Kind = "logint"
	Normal    Kind = "normal"
	LogNormal Kind = "lognormal"
	Choice    Kind = "choice"
)

// Domain is what one hyperparameter may be.
type Domain struct {
	Kind    Kind      `json:"kind"`
	Low     float64   `json:"low,omitempty"`
	High    float64   `json:"high,omitempty"`
	Step    float64   `json:"step,omitempty"` // values are multiples of it; 0: none
	Mean    float64   `json:"mean,omitempty"`
	SD      float64   `json:"sd,omitempty"`
	Values  []Value   `json:"values,omitempty"`  // of a choice
	Texts   []string  `json:"texts,omitempty"`   // how the values were written
	Weights []float64 `json:"weights,omitempty"` // of the values; empty: all alike
	Whole   bool      `json:"whole,omitempty"`   // a stepped range of integers, as W&B's q_ words
	Grid    bool      `json:"grid,omitempty"`    // every value is tried: Ray's grid_search
	Source  string    `json:"source,omitempty"`  // as it was written
}

// Dimension is a named domain.
type Dimension struct {
	Name   string `json:"name"`
	Domain Domain `json:"domain"`
}

// Space is what is searched.
type Space []Dimension

// Find returns a dimension by name.
func (s Space) Find(name string) (Domain, bool) {
	for _, d := range s {
		if d.Name == name {
			return d.Domain, true
		}
	}
	return Domain{}, false
}

// Add puts a dimension into the space. The same name with another domain contradicts.
func (s *Space) Add(name string, d Domain) error {
	if before, known := s.Find(name); known {
		if before.same(d) {
			return nil
		}
		return fmt.Errorf("%s is given twice and differs: %s and %s; keep one of them", name,
			before.Source, d.Source)
	}
	if err := d.check(); err != nil {
		return fmt.Errorf("%s = %s: %w", name, d.Source, err)
	}
	*s = append(*s, Dimension{name, d})
	return nil
}

func (d Domain) same(o Domain) bool {
	return d.Kind == o.Kind && d.Low == o.Low && d.High == o.High && d.Step == o.Step &&
		d.Mean == o.Mean && d.SD == o.SD && d.Grid == o.Grid && slices.Equal(d.Texts, o.Texts)
}

// check refuses domains without a member, with the reason and what would be one.
func (d Domain) check() error {
	for _, f := range []float64{d.Low, d.High, d.Step, d.Mean, d.SD} {
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return errors.New("bounds must be finite numbers: write them out, such as 1e-4 and 1e-2")
		}
	}
	if d.Step < 0 {
		return fmt.Errorf("the step %v is not positive: give one above 0", d.Step)
	}
	switch d.Kind {
	case Choice:
		return d.checkChoice()
	case Normal, LogNormal:
		if d.SD <= 0 {
			return fmt.Errorf("the standard deviation %v is not positive: give one above 0", d.SD)
		}
		return nil
	}
	if d.Low > d.High {
		return fmt.Errorf("it is empty: the lower end %s is above the upper end %s; "+
			"are they swapped?", short(d.Low), short(d.High))
	}
	if (d.Kind == LogScale || d.Kind == LogInt) && d.Low <= 0 {
		return fmt.Errorf("a logarithmic scale needs a lower end above 0, not %s", short(d.Low))
	}
	if d.Step > 0 && d.Step > d.High-d.Low && d.High > d.Low {
		return fmt.Errorf("the step %s is wider than the range of %s: take a smaller one", short(d.Step),
			short(d.High-d.Low))
	}
	if d.Step > 0 && lastStep(d.High, d.Step)*d.Step < d.Low-1e-12*math.Abs(d.Low) {
		return fmt.Errorf("no multiple of %s lies between %s and %s", short(d.Step),
			short(d.Low), short(d.High))
	}
	return nil
}

func (d Domain) checkChoice() error {
	if len(d.Values) == 0 {
		return errors.New("there is nothing to choose from; write at least one value")
	}
	if len(d.Weights) == 0 {
		return nil
	}
	if len(d.Weights) != len(d.Values) {
		return fmt.Errorf("%d probabilities for %d values: give one for each", len(d.Weights),
			len(d.Values))
	}
	sum := 0.0
	for _, w := range d.Weights {
		if w < 0 || math.IsNaN(w) {
			return fmt.Errorf("a probability of %v: each is 0 or more", w)
		}
		sum += w
	}
	if sum <= 0 {
		return errors.New("all probabilities are 0: one at least must be more")
	}
	return nil
}

func short(f float64) string { return strings.TrimSuffix(pythonFloat(f), ".0") }

// At returns the value at the share u of the distribution, 0 <= u < 1: random, quasi-random and
// grid points all come from here.
func (d Domain) At(u float64) Value {
	switch d.Kind {
	case Choice:
		return d.choose(u)
	case Int:
		return d.whole(d.Low + math.Floor(u*(d.High-d.Low+1)))
	case LogInt:
		low, high := math.Log(d.Low), math.Log(d.High+1)
		return d.whole(math.Floor(math.Exp(low + u*(high-low))))
	case LogScale:
		low, high := math.Log(d.Low), math.Log(d.High)
		return d.number(d.rounded(math.Exp(low+u*(high-low)), true))
	case Normal:
		return d.number(d.rounded(d.Mean+d.SD*normalAt(u), false))
	case LogNormal:
		return d.number(d.rounded(math.Exp(d.Mean+d.SD*normalAt(u)), false))
	}
	return d.number(d.rounded(d.Low+u*(d.High-d.Low), true))
}

func (d Domain) number(f float64) Value {
	if d.Whole && math.Abs(f) < 1<<53 {
		return Whole(int64(f))
	}
	return Number(f)
}

// normalAt is the standard normal's quantile. A point at the very edge is moved inside.
func normalAt(u float64) float64 {
	const edge = 1e-12
	return math.Sqrt2 * math.Erfinv(2*min(max(u, edge), 1-edge)-1)
}

// rounded returns the nearest multiple of the step inside the range, without the noise of binary
// fractions: 0.30000000000000004 is 0.3.
func (d Domain) rounded(f float64, bounded bool) float64 {
	if d.Step > 0 {
		n := math.Round(f / d.Step)
		if bounded {
			n = min(max(n, firstStep(d.Low, d.Step)), lastStep(d.High, d.Step))
		}
		return cleanMultiple(n, d.Step)
	}
	if bounded {
		return min(max(f, d.Low), d.High)
	}
	return f
}

// firstStep counts the steps to the first multiple that is not below low, lastStep to the last one
// not above high. The tolerance is for fractions that binary numbers only come close to.
func firstStep(low, step float64) float64 {
	steps := low / step
	return math.Ceil(steps - 1e-9*math.Abs(steps))
}

func lastStep(high, step float64) float64 {
	steps := high / step
	return math.Floor(steps + 1e-9*math.Abs(steps))
}

// cleanMultiple computes n*step in decimals as long as the step has few of them.
func cleanMultiple(n, step float64) float64 {
	for scale := 1.0; scale <= 1e12; scale *= 10 {
		if s := step * scale; s == math.Trunc(s) {
			return n * s / scale
		}
	}
	return n * step
}

func (d Domain) whole(f float64) Value {
	f = min(max(f, d.Low), d.High)
	if d.Step > 1 {
		f = d.rounded(f, true)
	}
	return Whole(int64(f))
}

func (d Domain) choose(u float64) Value {
	if len(d.Weights) == 0 {
		return d.value(min(int(u*float64(len(d.Values))), len(d.Values)-1))
	}
	sum := 0.0
	for _, w := range d.Weights {
		sum += w
	}
	for i, w := range d.Weights {
		if u -= w / sum; u < 0 {
			return d.value(i)
		}
	}
	for i := len(d.Weights) - 1; i > 0; i-- { // rounding left a rest
		if d.Weights[i] > 0 {
			return d.value(i)
		}
	}
	return d.value(0)
}

// value restores the text that a value was written with.
func (d Domain) value(i int) Value {
	v := d.Values[i]
	if i < len(d.Texts) {
		v.Text = d.Texts[i]
	}
	return v
}

// most values that a grid may have along one dimension
const longestAxis = 1_000_000

// members lists every value of a finite domain.
func (d Domain) members() ([]Value, error) {
	if d.Kind == Choice {
		out := make([]Value, len(d.Values))
		for i := range out {
			out[i] = d.value(i)
		}
		return out, nil
	}
	step := d.Step
	switch d.Kind {
	case Int, LogInt:
		step = max(step, 1)
	case Normal, LogNormal:
		step = 0
	}
	if step == 0 {
		return nil, fmt.Errorf("%s has infinitely many values: give it a step "+
			"(quniform(low,high,step)) or list them (choice(...))", d.Source)
	}
	first, last := firstStep(d.Low, step), lastStep(d.High, step)
	if last-first >= longestAxis {
		return nil, fmt.Errorf("%s has more than %d values: take a wider step", d.Source,
			longestAxis)
	}
	var out []Value
	for n := first; n <= last; n++ {
		if d.Kind == Int || d.Kind == LogInt || d.Whole {
			out = append(out, Whole(int64(n*step)))
			continue
		}
		out = append(out, Number(cleanMultiple(n, step)))
	}
	return out, nil
}

// ChoiceOf makes a domain of values as decoders return them.
func ChoiceOf(values []any, source string) Domain {
	d := Domain{Kind: Choice, Source: source}
	for _, one := range values {
		v := Value{Data: plain(one)}
		d.Values = append(d.Values, v)
		d.Texts = append(d.Texts, v.String())
	}
	return d
}

// Names lists the dimensions, sorted.
func (s Space) Names() []string {
	names := make([]string, len(s))
	for i, d := range s {
		names[i] = d.Name
	}
	sort.Strings(names)
	return names
}
