package trial

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
)

// TestDomainsOfStudyFiles checks, for each way to write a parameter in W&B's, NNI's, Katib's or our
// own words, the values at shares 0, 0.5 and just below 1, and their kind.
func TestDomainsOfStudyFiles(t *testing.T) {
	for raw, want := range map[string]string{
		`"uniform(0, 4)"`: "0.0 2.0 3.9999999999999996", `"adam"`: "adam adam adam", `3`: "3 3 3",
		`[1, 2, 4]`: "1 2 4", `0.5`: "0.5 0.5 0.5", `{"value": 7}`: "7 7 7", `true`: "True True True",
		`{"values": [1, "a"]}`:     "1 a a",
		`{"choices": [8, 16, 32]}`: "8 16 32", `{"categories": ["x"]}`: "x x x",
		`{"grid_search": [1, 2]}`: "1 2 2", `{"int": [1, 3]}`: "1 2 3", `{"choice": ["a", "b"]}`: "a b b",
		`{"uniform": [0, 4]}`:  "0.0 2.0 3.9999999999999996",
		`{"min": 1, "max": 5}`: "1 3 5", `{"min": 1.0, "max": 5}`: "1.0 3.0 4.999999999999999",
		`{"low": 1, "high": 5}`:                                                 "1 3 5",
		`{"min": 2, "max": 8, "step": 2}`:                                       "2 6 8",
		`{"min": 0.5, "max": 1.5, "step": 0.5}`:                                 "0.5 1.0 1.5",
		`{"type": "double", "min": 1, "max": 5}`:                                "1.0 3.0 4.999999999999999",
		`{"type": "integer", "min": 1, "max": 5}`:                               "1 3 5",
		`{"min": 1, "max": 100, "log": "True"}`:                                 "1 10 100",
		`{"distribution": "q_uniform", "min": 0, "max": 10, "q": 5}`:            "0 5 10",
		`{"distribution": "q_uniform", "min": 0, "max": 1, "q": 0.5}`:           "0.0 0.5 1.0",
		`{"distribution": "log_uniform_values", "min": 0.01, "max": 1}`:         "0.01 0.1 1.0",
		`{"distribution": "q_log_uniform_values", "min": 1, "max": 64, "q": 2}`: "2 8 64",
		`{"distribution": "int_uniform", "min": 1, "max": 2}`:                   "1 2 2",
		`{"distribution": "q_normal", "mu": 10, "sigma": 2, "q": 2}`:            "-4 10 24",
		`{"_type": "choice", "_value": [1, 2]}`:                                 "1 2 2",
		`{"_type": "randint", "_value": [0, 3]}`:                                "0 1 2",
		`{"_type": "quniform", "_value": [0, 1, 0.25]}`:                         "0.0 0.5 1.0",
		`{"parameterType": "int", "feasibleSpace": {"min": "1", "max": "3"}}`:   "1 2 3",
		`{"parameterType": "double", "feasibleSpace": {"min": "1", "max": "3"}}`: "1.0 2.0 " +
			"2.9999999999999996",
		`{"parameterType": "double", "feasibleSpace": {"min": "0.01", "max": "1",` +
			`"distribution": "logUniform"}}`: "0.01 0.1 1.0",
		`{"parameterType": "double", "feasibleSpace": {"min": "0", "max": "1", "step": "0.5"}}`: "0.0 " +
			"0.5 1.0",
		`{"parameterType": "categorical", "feasibleSpace": {"list": ["sgd", "2"]}}`: "sgd 2 2",
	} {
		d, err := DomainOf("p", decoded(t, raw))
		if err != nil {
			t.Errorf("%s: %v", raw, err)
			continue
		}
		var got []string
		for _, u := range []float64{0, 0.5, math.Nextafter(1, 0)} {
			got = append(got, d.At(u).String())
		}
		if !closeAll(strings.Join(got, " "), want) {
			t.Errorf("%s: %s, want %s", raw, got, want)
		}
		if d.Source == "" {
			t.Errorf("%s has lost its text", raw)
		}
	}
}

func decoded(t *testing.T, text string) any {
	t.Helper()
	reader := json.NewDecoder(strings.NewReader(text))
	reader.UseNumber()
	var raw any
	if err := reader.Decode(&raw); err != nil {
		t.Fatal(err)
	}
	return raw
}

// closeAll compares word by word; whole numbers and floats are not the same.
func closeAll(a, b string) bool {
	return slices.EqualFunc(strings.Fields(a), strings.Fields(b), func(x, y string) bool {
		return close(x, y) && strings.ContainsAny(x, ".e") == strings.ContainsAny(y, ".e")
	})
}

// TestDomainsThatAFileGetsWrong: the parameter is named, and what is wrong with it.
func TestDomainsThatAFileGetsWrong(t *testing.T) {
	for raw, want := range map[string]string{
		`[]`: "nothing to choose", `{"min": 3, "max": 1}`: "swapped",
		`{"distribution": "constant"}`: "needs value or values", `{"distribution": "zipf"}`: "zipf is not known",
		`{"parameterType": "int", "feasibleSpace": {"min": "3", "max": "1"}}`:      "swapped",
		`{"parameterType": "discrete", "feasibleSpace": {"min": "3", "max": "1"}}`: "needs a list",
		`{"parameterType": "double", "feasibleSpace": {"min": "0", "max": "1",` +
			`"distribution": "logNormal"}}`: "logNormal of Katib is not known",
		`{"values": [1, 2], "probabilities": [1]}`:     "1 probabilities for 2 values",
		`{"values": [1, 2], "probabilities": [1, -1]}`: "a probability of -1",
		`{"values": [1, 2], "probabilities": [0, 0]}`:  "all probabilities are 0",
	} {
		_, err := DomainOf("lr", decoded(t, raw))
		if err == nil || !strings.Contains(err.Error(), want) ||
			!strings.HasPrefix(err.Error(), "parameter lr: ") {
			t.Errorf("%s: %v, want %s", raw, err, want)
		}
	}
}

// TestProbabilitiesOfAChoice: shares of the line from 0 to 1, whatever their sum.
func TestProbabilitiesOfAChoice(t *testing.T) {
	d, err := DomainOf("p", decoded(t, `{"values": ["a", "b", "c", "d"], "probabilities": [2, 0, 1, 0]}`))
	if err != nil {
		t.Fatal(err)
	}
	for u, want := range map[float64]string{0: "a", 0.6: "a", 0.66: "a", 0.67: "c", 0.99: "c", 1: "c"} {
		if got := d.At(u).String(); got != want {
			t.Errorf("at %v: %s, want %s", u, got, want)
		}
	}
	plain, _ := DomainOf("p", []any{"a", "b"})
	for u, want := range map[float64]string{0.49: "a", 0.5: "b", 1: "b"} {
		if got := plain.At(u).String(); got != want {
			t.Errorf("without any, at %v: %s, want %s", u, got, want)
		}
	}
}

// TestMembersOfAGrid: every value once, both ends, without the noise of binary fractions.
func TestMembersOfAGrid(t *testing.T) {
	for text, want := range map[string]string{
		"choice(a, 2, 0.5)": "[a 2 0.5]", "int(1, 4)": "[1 2 3 4]", "randint(1, 4)": "[1 2 3]",
		"int(4, 16, step=4)": "[4 8 12 16]", "quniform(0, 1, 0.25)": "[0.0 0.25 0.5 0.75 1.0]",
		"quniform(0.1, 0.5, 0.1)": "[0.1 0.2 0.3 0.4 0.5]", "q_uniform(0, 4, 2)": "[0 2 4]",
		"qrandint(5, 20, 5)": "[5 10 15 20]", "quniform(0.15, 0.45, 0.1)": "[0.2 0.3 0.4]",
	} {
		d, err := ParseDomain(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		values, err := d.members()
		if got := fmt.Sprint(values); err != nil || got != want {
			t.Errorf("%s: %s %v, want %s", text, got, err, want)
		}
	}
	for text, want := range map[string]string{"uniform(0, 1)": "give it a step",
		"normal(0, 1)": "give it a step", "qnormal(0, 1, 0.5)": "give it a step",
		"int(0, 1000000)": "more than 1000000 values"} {
		d, err := ParseDomain(text)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.members(); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

// TestSamplesOfAGrid: a grid is taken whole, and repeated inside of a random search.
func TestSamplesOfAGrid(t *testing.T) {
	var s Space
	for name, text := range map[string]string{"a": "grid_search([1, 2, 3])", "b": "choice(1, 2)"} {
		d, err := ParseDomain(text)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Add(name, d); err != nil {
			t.Fatal(err)
		}
	}
	if got := fmt.Sprint(s.Names()); got != "[a b]" {
		t.Error(got)
	}
	for _, c := range []struct {
		method  Method
		samples int
		want    int
	}{{Grid, 0, 6}, {Grid, 4, 4}, {Grid, 99, 6}, {Random, 0, 3}, {Random, 1, 3}, {Random, 5, 15}} {
		sampler, err := NewSampler(s, c.method, 1)
		if err != nil {
			t.Fatal(err)
		}
		if got := sampler.Count(c.samples); got != c.want {
			t.Errorf("%v of %d samples: %d, want %d", c.method, c.samples, got, c.want)
		}
		if c.method != Grid {
			continue
		}
		seen := map[string]bool{}
		for i := range 6 {
			seen[sampler.Point(i).String()] = true
		}
		if len(seen) != 6 {
			t.Errorf("%d of 6 points", len(seen))
		}
	}
}

// TestExplainedVariance: omega squared, known answers.
func TestExplainedVariance(t *testing.T) {
	for _, c := range []struct {
		groups map[int][]float64
		want   float64
	}{
		{nil, 0}, {map[int][]float64{0: {1, 2, 3}}, 0}, {map[int][]float64{0: {1}, 1: {2}}, 0},
		{map[int][]float64{0: {1, 1}, 1: {5, 5}}, 1}, {map[int][]float64{0: {4, 4}, 1: {4, 4}}, 0},
		// between 16, within 4, noise 2: (16 - 2) / 22
		{map[int][]float64{0: {1, 3}, 1: {5, 7}}, 14. / 22},
		{map[int][]float64{0: {1, 7}, 1: {3, 5}}, 0}, // less than chance
		// between 2*(4+0+4) = 16, within 6*0.25 = 1.5, noise 0.5: (16 - 2*0.5) / 18
		{map[int][]float64{0: {0.5, 1.5}, 1: {2.5, 3.5}, 2: {4.5, 5.5}}, 15. / 18},
	} {
		if got := explained(c.groups); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("%v: %v, want %v", c.groups, got, c.want)
		}
	}
	if got := explained(map[int][]float64{0: {1, 2}, 1: {math.Inf(1), 3}}); got != 0 {
		t.Errorf("with an infinity: %v", got)
	}
}

// TestBinsOfAnAxis: its values where they are few, else quarters of the trials.
func TestBinsOfAnAxis(t *testing.T) {
	trials := func(values ...float64) (list []Pictured) {
		for _, v := range values {
			list = append(list, Pictured{At: []*float64{nil, &v}})
		}
		return list
	}
	for _, c := range []struct {
		values []float64
		want   string
	}{
		{nil, "[]"}, {[]float64{3, 1, 3, 2}, "[1 2 3]"},
		{[]float64{1, 2, 3, 4, 5, 6, 7, 8}, "[1 2 3 4 5 6 7 8]"},
		{[]float64{9, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12}, "[3 6 9 12]"},
		{[]float64{1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, "[1 2 7 12]"},
	} {
		if got := fmt.Sprint(binsOf(1, trials(c.values...))); got != c.want {
			t.Errorf("%v: %s, want %s", c.values, got, c.want)
		}
	}
	if got := binsOf(0, trials(1, 2)); len(got) != 0 {
		t.Errorf("an axis nobody has: %v", got)
	}
}

// TestCliffOfAnAxis: between the largest that finished and the smallest that did not fit.
func TestCliffOfAnAxis(t *testing.T) {
	one := func(v any, state State, fit bool) *Trial {
		return &Trial{Params: Params{{"bs", Value{Data: v}}}, State: state, fit: fit}
	}
	for name, c := range map[string]struct {
		trials []*Trial
		want   string
	}{
		"a cliff": {[]*Trial{one(int64(8), Finished, false), one(int64(16), Finished, false),
			one(int64(64), Infeasible, false), one(int64(128), Infeasible, false)}, "{bs 16 64} true"},
		"none failed": {[]*Trial{one(int64(8), Finished, false)}, "{ 0 0} false"},
		"none fits":   {[]*Trial{one(int64(8), Infeasible, false)}, "{ 0 0} false"},
		"mixed": {[]*Trial{one(int64(8), Finished, false), one(int64(8), Infeasible, false)},
			"{ 0 0} false"},
		"remedies are no room": {[]*Trial{one(int64(8), Finished, false), one(int64(64), Finished, true),
			one(int64(32), Infeasible, false)}, "{bs 8 32} true"},
		"texts": {[]*Trial{one("a", Finished, false), one("b", Infeasible, false)}, "{ 0 0} false"},
		"errors say nothing": {[]*Trial{one(int64(8), Finished, false), one(int64(2), Failed, false),
			one(int64(32), Infeasible, false)}, "{bs 8 32} true"},
	} {
		cliff, ok := cliffOf(Axis{Name: "bs"}, c.trials)
		if got := fmt.Sprint(cliff, ok); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// TestPeakOfATrial: what it took in the end, or at least what it ran out with; nothing of attempts
// with remedies, or that failed.
func TestPeakOfATrial(t *testing.T) {
	for name, c := range map[string]struct {
		attempts []Attempt
		want     string
	}{
		"well":        {[]Attempt{{Host: 100, Outcome: &Outcome{PeakHost: 60}}}, "60B false"},
		"ran out":     {[]Attempt{{Host: 100, Outcome: &Outcome{PeakHost: 60, OOM: true}}}, "100B true"},
		"had grown":   {[]Attempt{{Host: 100, Reserved: 150, Outcome: &Outcome{OOM: true}}}, "150B true"},
		"beyond":      {[]Attempt{{Host: 100, Outcome: &Outcome{PeakHost: 180, OOM: true}}}, "180B true"},
		"second try":  {[]Attempt{{Host: 100, Outcome: &Outcome{OOM: true}}, {Host: 200, Outcome: &Outcome{PeakHost: 130}}}, "130B false"},
		"twice":       {[]Attempt{{Host: 200, Outcome: &Outcome{OOM: true}}, {Host: 100, Outcome: &Outcome{OOM: true}}}, "200B true"},
		"remedies":    {[]Attempt{{Host: 100, Fit: true, Outcome: &Outcome{PeakHost: 60}}}, "0B false"},
		"an error":    {[]Attempt{{Host: 100, Outcome: &Outcome{PeakHost: 60, ExitCode: 1}}}, "0B false"},
		"still going": {[]Attempt{{Host: 100}}, "0B false"},
	} {
		p, ok := (&Trial{Attempts: c.attempts}).peak(false)
		if got := fmt.Sprint(p.Bytes, " ", p.More); got != c.want || ok != (p.Bytes > 0) {
			t.Errorf("%s: %s %v, want %s", name, got, ok, c.want)
		}
	}
}

func TestModeByName(t *testing.T) {
	for name, want := range map[string]string{"loss": "min", "val_loss": "min", "WER": "min",
		"eval/perplexity": "min", "step_time": "min", "accuracy": "max", "val_acc": "max", "AUC": "max",
		"f1": "max", "mean_reward": "max", "something": "min", "top1_error": "min", "psnr": "max",
		"score_loss": "min"} {
		if got := GuessMode(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// TestLinesThatAreWrittenOver: the value of a progress bar can be seen before its line ends.
func TestLinesThatAreWrittenOver(t *testing.T) {
	finder, err := NewFinder("loss", "")
	if err != nil {
		t.Fatal(err)
	}
	r := &Reader{Finder: finder}
	if _, ok := r.Live(); ok {
		t.Error("a value before anything was written")
	}
	if got := r.Feed([]byte("loss=3\rloss=2\rloss=")); len(got) != 0 {
		t.Errorf("before its end: %+v", got)
	}
	if live, ok := r.Live(); !ok || live.Value != 2 {
		t.Errorf("%+v %v", live, ok)
	}
	if got := r.Feed([]byte("1\n")); len(got) != 1 || got[0].Value != 1 {
		t.Errorf("%+v", got)
	}
	if _, ok := r.Live(); ok {
		t.Error("a value after the line has ended")
	}
	if got := r.Feed([]byte("loss=5")); len(got) != 0 {
		t.Errorf("%+v", got)
	}
	if got := r.Last(); len(got) != 1 || got[0].Value != 5 {
		t.Errorf("a last line without an end: %+v", got)
	}
	long := append([]byte("loss=7 "), make([]byte, longestLine)...)
	if got := r.Feed(append(long, '\n')); len(got) != 0 {
		t.Errorf("a line too long: %+v", got)
	}
	if got := r.Feed([]byte("loss=8\n")); len(got) != 1 || got[0].Value != 8 {
		t.Errorf("the line after it: %+v", got)
	}
}

// TestParamsStayInTheirLine: a value with a line end in it makes no second line.
func TestParamsStayInTheirLine(t *testing.T) {
	p := Params{{Name: "a\nb", Value: Value{Data: "1\ntrial 0 finished\x1b[2J"}},
		{Name: "lr", Value: Value{Data: 0.5}}}
	if got, want := p.String(), `"a\nb"="1\ntrial 0 finished\x1b[2J" lr=0.5`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
