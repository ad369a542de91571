package trial

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestWordsOfFourLibraries checks that each word leads to the values that its library would choose.
func TestWordsOfFourLibraries(t *testing.T) {
	for text, want := range map[string][3]string{ // at shares 0, 0.5 and just below 1
		"uniform(0, 1)":                             {"0.0", "0.5", "0.9999999999999999"},
		"tune.uniform(-2, 2)":                       {"-2.0", "0.0", "1.9999999999999996"},
		"loguniform(1e-4, 1e-2)":                    {"0.0001", "0.001", "0.01"},
		"quniform(0, 1, 0.1)":                       {"0.0", "0.5", "1.0"},
		"quniform(low=0.05, high=0.95, q=0.3)":      {"0.3", "0.6", "0.9"},
		"randint(1, 5)":                             {"1", "3", "4"},
		"qrandint(16, 64, 16)":                      {"16", "48", "64"},
		"lograndint(1, 1001)":                       {"1", "31", "1000"},
		"int(1, 6)":                                 {"1", "4", "6"},
		"int(16, 128, step=16)":                     {"16", "80", "128"},
		"float(1e-5, 1e-1, log=True)":               {"1e-05", "0.001", "0.1"},
		"float(0, 1, step=0.25)":                    {"0.0", "0.5", "1.0"},
		"suggest_float('lr', 1e-4, 1e-2, log=True)": {"0.0001", "0.001", "0.01"},
		"suggest_int(\"n\", 2, 4)":                  {"2", "3", "4"},
		"suggest_categorical('o', ['sgd', 'adam'])": {"sgd", "adam", "adam"},
		"int_uniform(1, 3)":                         {"1", "2", "3"},
		"log_uniform(-1, 1)":                        {"0.36787944117144233", "1.0", "2.7182818284590446"},
		"log_uniform_values(min=0.01, max=1)":       {"0.01", "0.1", "1.0"},
		"q_uniform(0, 10, 5)":                       {"0.0", "5.0", "10.0"},
		"choice(16,32,64)":                          {"16", "32", "64"},
		"choice([True, False])":                     {"True", "False", "False"},
		"choice('a,b', \"c\", relu)":                {"a,b", "c", "relu"},
		"choice([64, 64], [128])":                   {"[64, 64]", "[128]", "[128]"},
		"grid_search([1, 2])":                       {"1", "2", "2"},
		"randn(0, 1)":                               {"", "0.0", ""},
		"q_normal(mu=10, sigma=2, q=0.5)":           {"", "10.0", ""},
		"choice(1e-3, 0.01)":                        {"1e-3", "0.01", "0.01"},
	} {
		d, err := ParseDomain(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		for i, u := range []float64{0, 0.5, 1 - 1e-16} {
			if got := d.At(u).String(); want[i] != "" && !close(got, want[i]) {
				t.Errorf("%s at %v is %s, want %s", text, u, got, want[i])
			}
		}
	}
}

// close compares as numbers where both are: an exponential is not exact to the last digit.
func close(a, b string) bool {
	x, y := readLiteral(a), readLiteral(b)
	f, ok1 := x.Float()
	g, ok2 := y.Float()
	return a == b || ok1 && ok2 && math.Abs(f-g) <= 1e-12*math.Abs(g)
}

// TestSpacesThatCannotBe: each is refused with a text that names what is wrong.
func TestSpacesThatCannotBe(t *testing.T) {
	for text, words := range map[string]string{
		"choice()": "nothing to choose", "choice([])": "nothing to choose",
		"uniform(1, 0)": "swapped", "loguniform(0, 1)": "above 0", "randint(5, 5)": "empty",
		"quniform(0, 1, 0)": "positive", "quniform(0, 1, 2)": "wider", "uniform(0)": "high is missing",
		"uniform(a, 1)": "must be a number", "uniform(0,1,2)": "it takes low, high",
		"uniform(nan, 1)": "number", "uniform(0, inf)": "number", "int(0.5, 2)": "whole",
		"randn(0, 0)": "positive", "loguniforn(1e-4, 1)": "did you mean loguniform",
		"frobnicate(1)": "is not known", "lr": "is not a domain",
		"float(1, 2, log=True, step=1)": "exclude",
		"int(5, 7, step=10)":            "wider", "quniform(0.1, 0.2, 0.09)": "",
	} {
		_, err := ParseDomain(text)
		if words == "" {
			if err != nil {
				t.Errorf("%s: %v", text, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v, want a text with %q", text, err, words)
		}
	}
	var s Space
	a, _ := ParseDomain("uniform(0,1)")
	b, _ := ParseDomain("uniform(0,2)")
	for range 2 {
		if err := s.Add("lr", a); err != nil {
			t.Errorf("the same domain twice is no contradiction: %v", err)
		}
	}
	if err := s.Add("lr", b); err == nil || !strings.Contains(err.Error(), "differs") {
		t.Errorf("contradiction: %v", err)
	}
	if _, err := NewSampler(nil, Random, 0); err == nil {
		t.Error("an empty space was accepted")
	}
	if _, err := NewSampler(s, Grid, 0); err == nil || !strings.Contains(err.Error(), "step") {
		t.Errorf("a grid over a continuous range: %v", err)
	}
}

// TestValuesStayInTheirDomain, for any domain and share.
func TestValuesStayInTheirDomain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		low := rapid.Float64Range(1e-6, 1e6).Draw(t, "low")
		width := rapid.Float64Range(0, 1e6).Draw(t, "width")
		kind := rapid.SampledFrom([]Kind{Uniform, LogScale, Int, LogInt}).Draw(t, "kind")
		d := Domain{Kind: kind, Low: low, High: low + width}
		if kind == Int || kind == LogInt {
			d.Low, d.High = math.Ceil(low), math.Ceil(low)+math.Floor(width)
		}
		if rapid.Bool().Draw(t, "stepped") {
			d.Step = max(1, math.Floor(width/3))
		}
		if d.check() != nil {
			return
		}
		v, _ := d.At(rapid.Float64Range(0, math.Nextafter(1, 0)).Draw(t, "u")).Float()
		if v < d.Low-1e-9*d.Low || v > d.High+1e-9*d.High {
			t.Fatalf("%+v gave %v", d, v)
		}
	})
}

func TestSamplersAreFunctionsOfSeedAndNumber(t *testing.T) {
	space := Space{}
	for name, text := range map[string]string{"a": "uniform(0,1)", "b": "choice(1,2,3)"} {
		d, _ := ParseDomain(text)
		_ = space.Add(name, d)
	}
	for _, method := range []Method{Random, Quasi} {
		one, _ := NewSampler(space, method, 7)
		two, _ := NewSampler(space, method, 7)
		other, _ := NewSampler(space, method, 8)
		same := 0
		for i := range 50 {
			if one.Point(49-i).String() != two.Point(49-i).String() {
				t.Fatalf("%s: point %d depends on the order", method, i)
			}
			if one.Point(i).String() == other.Point(i).String() {
				same++
			}
		}
		if same > 5 {
			t.Errorf("%s: another seed gives the same points", method)
		}
	}
}

func TestGridSearchIsRepeatedForEachSample(t *testing.T) {
	var space Space
	for _, p := range [][2]string{{"a", "grid_search([1,2,3])"}, {"b", "grid_search([x,y])"},
		{"c", "uniform(0,1)"}} {
		d, _ := ParseDomain(p[1])
		_ = space.Add(p[0], d)
	}
	s, err := NewSampler(space, Random, 1)
	if err != nil || s.Count(4) != 24 {
		t.Fatalf("count %d, %v", s.Count(4), err)
	}
	cells := map[string]int{}
	for i := range 24 {
		p := s.Point(i)
		cells[p[:2].String()]++
	}
	if len(cells) != 6 {
		t.Errorf("cells %v", cells)
	}
	for cell, n := range cells {
		if n != 4 {
			t.Errorf("%s is taken %d times", cell, n)
		}
	}
}

// TestQuasiRandomPointsAreEven: each half, quarter and eighth of every axis gets its share.
func TestQuasiRandomPointsAreEven(t *testing.T) {
	var space Space
	d, _ := ParseDomain("uniform(0,1)")
	for i := range len(sobolTable) {
		_ = space.Add(string(rune('a'+i)), d)
	}
	s, _ := NewSampler(space, Quasi, 3)
	const n = 64
	for axis := range space {
		for _, cells := range []int{2, 4, 8} {
			count := make([]int, cells)
			for i := range n {
				f, _ := s.Point(i)[axis].Value.Float()
				count[int(f*float64(cells))]++
			}
			for c, got := range count {
				if got != n/cells {
					t.Fatalf("axis %d, cell %d of %d has %d points, want %d", axis, c, cells, got,
						n/cells)
				}
			}
		}
	}
}

func TestParamsKeepOrderAndKind(t *testing.T) {
	p := Params{{"z", Number(1)}, {"a", Whole(1)}, {"s", Value{Data: "x"}}, {"n", Value{}}}
	data, err := json.Marshal(p)
	if err != nil || string(data) != `{"z":1.0,"a":1,"s":"x","n":null}` {
		t.Fatalf("%s %v", data, err)
	}
	var back Params
	if err := json.Unmarshal(data, &back); err != nil || back.String() != p.String() {
		t.Errorf("%s came back as %s, %v", p, back, err)
	}
}
