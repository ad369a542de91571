package trial

import (
	"math"
	"slices"
	"sort"

	"memroom/event"
)

// Observation is what a trial taught about memory.
type Observation struct {
	Params Params
	Bytes  event.Bytes
	// AtLeast: it was ended at this size and wanted more.
	AtLeast bool
	// Running: its trial has not ended. It is forgotten when the end is learnt.
	Running bool
}

// Forecast is how much a trial is expected to need at the most.
type Forecast struct {
	Bytes event.Bytes
	// Likely is what most trials with these settings stay below. Where a reservation can grow, it
	// is enough to begin with; the rest up to Pooled is shared with the others.
	Likely event.Bytes
	Pooled event.Bytes
	Guess  bool // from very few trials: likely too much
	Known  bool // false: nothing has been learnt yet
	// Rehearsed: it is what a rehearsal says, not what trials showed.
	Rehearsed bool
	Why       string // in a few words
}

// Memory learns peaks over the hyperparameters. It fits a few simple shapes (a constant, lines,
// products of two knobs, powers), takes the one that predicts points it has not seen best, and
// adds what it was wrong by: an upper quantile of its own errors.
type Memory struct {
	// Fixed: a reservation cannot grow while its trial runs, as on a card. Settings that were not
	// seen then get what they could need at the worst (see scaled).
	Fixed bool
	seen  []Observation
	// running are observations of trials that have not ended, few
	running []Observation
	news    int // observations so far
	shape   *fitted
	fitted  int // version of what the shape was fitted to
	same    map[string]sameSettings
	ahead   foresight
}

// Learn adds an observation.
func (m *Memory) Learn(o Observation) {
	if o.Bytes <= 0 {
		return
	}
	key := o.Params.String()
	m.running = slices.DeleteFunc(m.running, func(before Observation) bool {
		return before.Params.String() == key
	})
	m.news++
	if o.Running {
		m.running = append(m.running, o)
		return
	}
	m.seen = append(m.seen, o)
	m.Exceeds(o.Params, o.Bytes)
	if m.same == nil {
		m.same = map[string]sameSettings{}
	}
	same := m.same[key]
	if o.Bytes >= same.most {
		same.most, same.atLeast = o.Bytes, o.AtLeast
	}
	if !o.AtLeast {
		same.count++
	}
	m.same[key] = same
}

// Count is how many observations there are.
func (m *Memory) Count() int { return len(m.seen) }

const (
	// slack is what a measured peak varies by from run to run of the same setting.
	slack = 0.06
	// pad is for what does not scale: interpreter, libraries, fragmentation.
	pad = 24 * event.MiB
	// errorQuantile of the model's own errors is added.
	errorQuantile = 0.98
	// usualQuantile of them is what a reservation that can grow begins with.
	usualQuantile = 0.5
	// careful: how far the first reservations that can grow go from the likely towards the worst,
	// in logarithms. Too little costs standing still, too much costs trials that could run.
	careful = 0.75
	// refitEvery: with many observations a new one changes little.
	refitEvery  = 16
	refitAlways = 64
	// fitOn is how many of the newest observations are fitted: the cost stays flat.
	fitOn = 256
)

// Forecast predicts the peak of a trial with these settings.
func (m *Memory) Forecast(p Params) Forecast {
	_, rehearsed := m.ahead.bytes(p)
	if len(m.seen)+len(m.running) == 0 && !rehearsed {
		return Forecast{}
	}
	if seen := m.recent(); len(seen) > 0 && (m.shape == nil || m.fitted != m.version()) {
		m.shape, m.fitted = fitShapes(seen, m.ahead.column()), m.version()
	}
	var bytes, pooled, likely event.Bytes
	why := "by rehearsal"
	if rehearsed = rehearsed && len(m.seen) < enough; rehearsed {
		bytes, likely = m.ahead.upper(p, m)
		pooled = bytes
	} else {
		bytes, pooled, likely, why = m.shape.upper(p, m.Fixed)
	}
	if !rehearsed && (m.Fixed || len(m.seen) < trusted) {
		bytes, why = m.fixed(p, bytes, why)
	}
	if !rehearsed && len(m.seen) < trusted {
		likely = event.Bytes(math.Pow(float64(max(likely, leastReservation)), 1-careful) *
			math.Pow(float64(bytes), careful))
		pooled = likely
	}
	// The same setting was seen: that is better than any shape.
	if same, seen := m.same[p.String()]; seen {
		margin := 1 + slack
		if same.atLeast {
			margin = growth
		}
		known := event.Bytes(float64(same.most)*margin) + pad
		usually := event.Bytes(float64(same.most)*(1+slack*m.shape.unsure) +
			float64(pad)*m.shape.unsure)
		if m.Fixed && same.atLeast {
			known = max(known, bytes)
		}
		if same.atLeast || same.count >= 2 {
			bytes, likely, why = known, same.most, "seen with the same settings"
			if pooled = usually; same.atLeast {
				likely, pooled = known, known
			}
		} else {
			bytes = max(known, min(bytes, event.Bytes(float64(same.most)*1.5)+pad))
			likely, pooled = max(likely, same.most), max(usually, min(pooled, bytes))
		}
	}
	return Forecast{Bytes: bytes, Likely: min(likely, bytes), Pooled: min(pooled, bytes), Known: true,
		Guess: len(m.seen) < trusted, Rehearsed: rehearsed, Why: why}
}

// version changes when forecasts do.
func (m *Memory) version() int {
	if m.news < refitAlways {
		return m.news
	}
	return refitAlways + (m.news-refitAlways)/refitEvery
}

func (m *Memory) recent() []Observation {
	if !m.Fixed && len(m.seen) >= trusted {
		return m.seen[max(0, len(m.seen)-fitOn):] // those that run may still grow
	}
	return slices.Concat(m.seen[max(0, len(m.seen)-fitOn):], m.running)
}

// sameSettings is what trials with exactly these settings took.
type sameSettings struct {
	most    event.Bytes
	atLeast bool // the most is of one that wanted more
	count   int  // of those that ended
}

// column is one feature of a setting.
type column struct {
	name  string
	value func(Params) float64
	low   float64 // seen range
	high  float64
}

// fitted is a shape with its coefficients.
type fitted struct {
	columns []column
	logs    bool // fitted in logarithms
	weights []float64
	wrong   float64 // share by which unseen points exceed the prediction, upper quantile
	worst   float64 // the same, of the worst
	usual   float64 // the same, of three in four
	unsure  float64 // share of the margins that few observations need
	few     float64 // the same, where running out costs the attempt: below one there are enough
	score   float64
	words   string
	most    float64 // largest observation
	known   map[string]map[string]bool
}

// fitShapes tries the shapes and keeps the one whose errors on left-out points are least. A further
// column is a shape of its own.
func fitShapes(seen []Observation, further []column) *fitted {
	numbers, kinds := features(seen)
	targets := make([]float64, len(seen))
	most := 0.0
	for i, o := range seen {
		targets[i] = float64(o.Bytes)
		if o.AtLeast {
			targets[i] *= 1.25
		}
		most = max(most, targets[i])
	}
	best := fitAround(seen, targets, nil, false, "all trials are alike")
	tried := shapes(numbers, kinds, len(seen))
	for _, c := range further {
		if len(seen) >= 3 {
			tried = append(tried, shape{[]column{withRange(c, seen)}, false, "grows with " + c.name})
		}
	}
	for _, s := range tried {
		if f := fitAround(seen, targets, s.columns, s.logs, s.words); f != nil &&
			f.score < 0.9*best.score {
			best = f
		}
	}
	best.most, best.known, best.unsure = most, texts(seen), unsure(len(seen))
	best.few = enough / float64(max(len(seen), 1))
	return best
}

// unsure is how much of slack and pad remains after n observations: the errors of the fit show
// what varies from run to run, the better the more there are.
func unsure(n int) float64 { return min(1, math.Sqrt(4/float64(max(n, 1)))) }

type shape struct {
	columns []column
	logs    bool
	words   string
}

// shapes lists what is tried: each needs more observations than columns.
func shapes(numbers, kinds []column, n int) []shape {
	var out []shape
	add := func(columns []column, logs bool, words string) {
		if len(columns) > 0 && len(columns)+2 <= n {
			out = append(out, shape{columns, logs, words})
		}
	}
	for _, c := range numbers {
		add([]column{c}, false, "grows with "+c.name)
		add(append([]column{c}, kinds...), false, "grows with "+c.name+" and depends on names")
	}
	add(kinds, false, "depends on names")
	add(numbers, false, "a line over the numbers")
	add(append(slices.Clone(numbers), kinds...), false, "a line over all knobs")
	add(logsOf(numbers), true, "a power of the numbers")
	add(append(logsOf(numbers), kinds...), true, "a power of the numbers, by name")
	const mostTriples = 5 // knobs: the number of shapes grows with its cube
	for i, a := range numbers {
		for j, b := range numbers[i:] {
			p := product(a, b)
			add([]column{p}, false, "grows with "+p.name)
			add(append([]column{p}, numbers...), false, "a line and "+p.name)
			add(append([]column{a, b, p}, kinds...), false, "grows with "+p.name+", by name")
			for _, c := range numbers[i+j:] {
				if len(numbers) <= mostTriples { // weights grow with width x width x depth
					q := product(p, c)
					add([]column{q}, false, "grows with "+q.name)
					add(append([]column{q}, kinds...), false, "grows with "+q.name+", by name")
				}
			}
		}
	}
	return out
}

// features finds numeric knobs that differ between trials, and one column for each name but one.
func features(seen []Observation) (numbers, kinds []column) {
	const mostNames = 12
	if len(seen) == 0 {
		return nil, nil
	}
	for _, p := range seen[0].Params {
		name := p.Name
		values, words, numeric := map[float64]bool{}, map[string]bool{}, true
		for _, o := range seen {
			v, _ := o.Params.Get(name)
			f, ok := v.Float()
			numeric = numeric && ok
			values[f], words[v.String()] = true, true
		}
		if numeric && len(values) > 1 {
			numbers = append(numbers, withRange(column{name: name, value: func(p Params) float64 {
				v, _ := p.Get(name)
				f, _ := v.Float()
				return f
			}}, seen))
		}
		if !numeric && len(words) > 1 && len(words) <= mostNames {
			for _, word := range sortedKeys(words)[1:] {
				kinds = append(kinds, column{name: name + "=" + word, low: 0, high: 1,
					value: func(p Params) float64 {
						if v, _ := p.Get(name); v.String() == word {
							return 1
						}
						return 0
					}})
			}
		}
	}
	return numbers, kinds
}

// withRange notes the range in which a column was seen.
func withRange(c column, seen []Observation) column {
	c.low, c.high = math.Inf(1), math.Inf(-1)
	for _, o := range seen {
		v := c.value(o.Params)
		c.low, c.high = min(c.low, v), max(c.high, v)
	}
	return c
}

func logsOf(columns []column) []column {
	var out []column
	for _, c := range columns {
		if c.low <= 0 {
			continue
		}
		value := c.value
		out = append(out, column{name: c.name, low: math.Log(c.low), high: math.Log(c.high),
			value: func(p Params) float64 { return math.Log(max(value(p), 1e-300)) }})
	}
	return out
}

func product(a, b column) column {
	x, y := a.value, b.value
	c := column{name: a.name + " x " + b.name, value: func(p Params) float64 { return x(p) * y(p) }}
	ends := []float64{a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high}
	sort.Float64s(ends)
	c.low, c.high = ends[0], ends[3]
	return c
}

// fitAround fits to the trials whose peak is known. Of those that ran out only a lower bound is
// known: they count where the shape would predict less than they had.
func fitAround(seen []Observation, targets []float64, columns []column, logs bool,
	words string) *fitted {
	var known, ranOut []int
	for i, o := range seen {
		if o.AtLeast {
			ranOut = append(ranOut, i)
		} else {
			known = append(known, i)
		}
	}
	if len(ranOut) == 0 || len(known) < len(columns)+2 {
		return fitOne(seen, targets, columns, logs, words)
	}
	some := func(which []int) (o []Observation, t []float64) {
		for _, i := range which {
			o, t = append(o, seen[i]), append(t, targets[i])
		}
		return o, t
	}
	o, t := some(known)
	f := fitOne(o, t, columns, logs, words)
	if f == nil {
		return nil
	}
	short := slices.DeleteFunc(ranOut, func(i int) bool {
		return f.predicted(f.row(seen[i].Params)) >= float64(seen[i].Bytes)
	})
	if len(short) == 0 {
		return f
	}
	o, t = some(append(known, short...))
	return fitOne(o, t, columns, logs, words)
}

// fitOne fits by least squares with a little ridge, and judges by leaving each point out.
func fitOne(seen []Observation, targets []float64, columns []column, logs bool,
	words string) *fitted {
	f := &fitted{columns: columns, logs: logs, words: words}
	n, k := len(seen), len(columns)+1
	rows := make([][]float64, n)
	y := slices.Clone(targets)
	for i, o := range seen {
		rows[i] = f.row(o.Params)
		if logs {
			y[i] = math.Log(y[i])
		}
	}
	inverse, ok := invert(normal(rows, k))
	if !ok {
		return nil
	}
	f.weights = make([]float64, k)
	for a := range k {
		for b := range k {
			sum := 0.0
			for i := range rows {
				sum += rows[i][b] * y[i]
			}
			f.weights[a] += inverse[a][b] * sum
		}
	}
	over := make([]float64, 0, n)
	total, worst := 0.0, 0.0
	for i := range rows {
		leverage := min(quadratic(inverse, rows[i]), 0.95)
		left := y[i] - (y[i]-dot(f.weights, rows[i]))/(1-leverage) // prediction without the point
		if logs {
			left = math.Exp(left)
		}
		share := (targets[i] - left) / max(left, targets[i]*0.05)
		over = append(over, share)
		if !seen[i].AtLeast {
			worst = max(worst, share)
		}
		total += math.Abs(targets[i]-left) / targets[i]
	}
	slices.Sort(over)
	f.wrong = max(0, quantile(over, errorQuantile))
	f.usual = max(0, quantile(over, usualQuantile))
	if n < 4 {
		f.wrong = max(f.wrong, 0.35/float64(n)) // a few points say little about errors
	}
	f.worst = worst
	if n < 4 {
		f.worst = f.wrong
	}
	f.score = total/float64(n) + f.wrong/2 + 0.002*float64(k)
	return f
}

// row scales columns to about one, so that the ridge means the same for each.
func (f *fitted) row(p Params) []float64 {
	row := make([]float64, len(f.columns)+1)
	row[0] = 1
	for i, c := range f.columns {
		span := c.high - c.low
		if span <= 0 {
			span = 1
		}
		row[i+1] = (c.value(p) - c.low) / span
	}
	return row
}

func (f *fitted) predicted(row []float64) float64 {
	value := dot(f.weights, row)
	if f.logs {
		value = math.Exp(min(value, 45))
	}
	return value
}

// leastSlack is the share of slack and pad that stays where running out costs the attempt.
const leastSlack = 1.0 / 4

// upper is the forecast with its margins, that with those of many observations, and what is likely.
// fixed: all of slack stays, however many were observed, as where few were.
func (f *fitted) upper(p Params, fixed bool) (upper, pooled, likely event.Bytes, why string) {
	row := f.row(p)
	predicted := f.predicted(row)
	beyond := 0.0
	for _, x := range row[1:] {
		beyond = max(beyond, x-1, -x)
	}
	margin := 1 + min(0.15*beyond, 0.5)
	why = f.words
	if f.strange(p) {
		margin, why = margin+0.25, why+"; a name not seen before"
		predicted = max(predicted, f.most)
	}
	predicted = max(predicted, 0)
	with := func(wrong, share float64) event.Bytes {
		return event.Bytes(predicted*(margin+wrong+slack*share) + float64(pad)*share)
	}
	upper = with(f.worst, max(leastSlack, f.few))
	if fixed || f.few >= 1 {
		upper = with(f.wrong, 1)
	}
	return upper, with(f.wrong, f.unsure), event.Bytes(predicted * (1 + f.usual)), why
}

// strange reports whether a setting has a name that no observation had.
func (f *fitted) strange(p Params) bool {
	for _, one := range p {
		if words, named := f.known[one.Name]; named && !words[one.Value.String()] {
			return true
		}
	}
	return false
}

// texts lists the names seen of each knob that is no number.
func texts(seen []Observation) map[string]map[string]bool {
	out := map[string]map[string]bool{}
	for _, o := range seen {
		for _, p := range o.Params {
			if _, number := p.Value.Float(); number {
				continue
			}
			if out[p.Name] == nil {
				out[p.Name] = map[string]bool{}
			}
			out[p.Name][p.Value.String()] = true
		}
	}
	return out
}

func normal(rows [][]float64, k int) [][]float64 {
	const ridge = 1e-6
	m := make([][]float64, k)
	for a := range k {
		m[a] = make([]float64, k)
		for b := range k {
			for _, row := range rows {
				m[a][b] += row[a] * row[b]
			}
		}
		m[a][a] += ridge
	}
	return m
}

// invert by Gauss and Jordan; the matrices are small.
func invert(m [][]float64) ([][]float64, bool) {
	k := len(m)
	out := make([][]float64, k)
	for i := range k {
		out[i] = make([]float64, k)
		out[i][i] = 1
	}
	for c := range k {
		pivot := c
		for r := c; r < k; r++ {
			if math.Abs(m[r][c]) > math.Abs(m[pivot][c]) {
				pivot = r
			}
		}
		if math.Abs(m[pivot][c]) < 1e-12 {
			return nil, false
		}
		m[c], m[pivot], out[c], out[pivot] = m[pivot], m[c], out[pivot], out[c]
		scale := m[c][c]
		for j := range k {
			m[c][j] /= scale
			out[c][j] /= scale
		}
		for r := range k {
			if r == c {
				continue
			}
			factor := m[r][c]
			for j := range k {
				m[r][j] -= factor * m[c][j]
				out[r][j] -= factor * out[c][j]
			}
		}
	}
	return out, true
}

func dot(a, b []float64) (sum float64) {
	for i := range a {
		sum += a[i] * b[i]
	}
	return sum
}

func quadratic(m [][]float64, v []float64) (sum float64) {
	for i := range v {
		sum += v[i] * dot(m[i], v)
	}
	return sum
}
