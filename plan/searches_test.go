package plan

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"memroom/event"
	"memroom/models"
	"memroom/remedy"
)

// line is the verdict of a value whose need grows by so much each, next to a static part, under a
// wall; which values fail all the same is up to odd.
func line(static, each, wall event.Bytes, odd func(int64) bool) func(int64) verdict {
	return func(n int64) verdict {
		need := static + each*event.Bytes(n)
		return verdict{need: need, least: need, static: static, wall: wall, exact: true,
			fits: need <= wall && !odd(n)}
	}
}

func never(int64) bool { return false }

// TestLargestOfALine: within one in a hundred of the truth, from wherever the search begins, and
// with few tries.
func TestLargestOfALine(t *testing.T) {
	random := rand.New(rand.NewPCG(2, 0))
	var target Target
	for range 400 {
		static, each := event.Bytes(random.Int64N(5000)), event.Bytes(1+random.Int64N(300))
		wall := static + event.Bytes(random.Int64N(300_000))
		truth := min(int64((wall-static)/each), 1000)
		tries := 0
		try := func(n int64) verdict {
			tries++
			return line(static, each, wall, never)(n)
		}
		from := 1 + random.Int64N(1000)
		got := target.largest(0, from, try(from), 1000, try)
		if got > truth || truth-got > max(1, truth/100) || tries > 20 {
			t.Fatalf("static %d, each %d, wall %d, from %d: %d after %d tries, really %d", static, each,
				wall, from, got, tries, truth)
		}
	}
	for _, c := range []struct {
		name               string
		low, from, limit   int64
		static, each, wall event.Bytes
		want               int64
	}{
		{"begins above the limit", 0, 11, 10, 0, 1, 5, 10},
		{"begins at the limit and fits", 0, 10, 10, 0, 1, 10, 10},
		{"begins at the limit and fails", 0, 10, 10, 0, 1, 9, 9},
		{"nothing fits", 0, 5, 10, 0, 10, 9, 0},
		{"one fits", 0, 5, 10, 0, 10, 10, 1},
		{"the static part alone is too much", 0, 5, 10, 11, 1, 10, 0},
		{"it is as much as there is", 0, 5, 10, 10, 1, 10, 0},
		{"a lower one is known", 3, 9, 10, 11, 1, 10, 3},
	} {
		try := line(c.static, c.each, c.wall, never)
		if got := target.largest(c.low, c.from, try(c.from), c.limit, try); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

// TestBeyondTheFirstWall: a larger value may fit where one failed; it is looked for only where
// there is room and the run is exact.
func TestBeyondTheFirstWall(t *testing.T) {
	hole := func(n int64) bool { return n > 100 && n < 150 } // fails there, up to 200 it would fit
	for _, c := range []struct {
		name         string
		found, limit int64
		change       func(*verdict)
		least, most  int64
	}{
		{"behind the hole", 100, 1000, nil, 198, 200},
		{"up to the limit", 100, 160, nil, 159, 160},
		{"nothing was found", 0, 1000, nil, 0, 0},
		{"at the limit", 100, 100, nil, 100, 100},
		{"of a guess", 100, 1000, func(v *verdict) { v.exact = false }, 100, 100},
		{"no room", 100, 1000, func(v *verdict) { v.least = v.wall }, 100, 100},
		{"a little room", 100, 1000, func(v *verdict) { v.least = v.wall - v.wall/50 }, 100, 100},
		{"it does not fit itself", 120, 1000, nil, 120, 120},
		{"nothing grows", 100, 1000, func(v *verdict) { v.least = v.static }, 100, 100},
	} {
		try := func(n int64) verdict {
			v := line(50, 1, 250, hole)(n)
			if c.change != nil {
				c.change(&v)
			}
			return v
		}
		if got := beyond(c.found, c.limit, try); got < c.least || got > c.most {
			t.Errorf("%s: %d, want %d to %d", c.name, got, c.least, c.most)
		}
	}
	for _, c := range []struct{ low, high, wall, least int64 }{{1, 10, 7, 7}, {1, 2, 1, 1},
		{1, 3, 2, 2}, {100, 1000, 555, 550}, {500, 505, 504, 500}} {
		got := between(c.low, c.high, line(0, 1, event.Bytes(c.wall), never))
		if got > c.wall || got < c.least {
			t.Errorf("between %d and %d: %d, really %d", c.low, c.high, got, c.wall)
		}
	}
}

// TestWhatAdaptersRefuse: names that no layer has, and settings that train nothing.
func TestWhatAdaptersRefuse(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Setup)
		says   string
	}{
		"plain":           {func(*Setup) {}, ""},
		"adapters":        {func(s *Setup) { s.LoRARank = 2 }, ""},
		"on known layers": {func(s *Setup) { s.LoRARank, s.LoRATargets = 2, []string{"up_proj"} }, ""},
		"on no layer": {func(s *Setup) { s.LoRARank, s.LoRATargets = 2, []string{"x"} },
			"no layer for LoRA"},
		"a module": {func(s *Setup) { s.LoRARank, s.TrainWhole = 2, []string{"lm_head"} }, ""},
		"no such module": {func(s *Setup) { s.LoRARank, s.TrainWhole = 2, []string{"x"} },
			"no module named x"},
		"packed, trained":  {func(s *Setup) { s.LoadIn = "4bit" }, "cannot be trained"},
		"packed, adapters": {func(s *Setup) { s.LoadIn, s.LoRARank = "4bit", 2 }, ""},
		"only a part":      {func(s *Setup) { s.TrainOnly = []string{"norm"} }, ""},
		"only nothing":     {func(s *Setup) { s.TrainOnly = []string{"x"} }, "nothing would be trained"},
		"not the adapters": {func(s *Setup) { s.LoRARank, s.TrainOnly = 2, []string{"norm"} },
			"excludes the adapters"},
		"both": {func(s *Setup) { s.LoRARank, s.TrainOnly = 2, []string{"norm", "lora"} }, ""},
	} {
		s := Setup{Model: models.ConfigOf(llamaOf(64, 128, 2, 4, 2, 100)),
			Setup: remedy.Setup{Batch: 2, Seq: 16}}
		c.change(&s)
		s = s.WithDefaults()
		_, err := s.model()
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
}

// TestEventsOfRehearsals: each at the edges of what may stand there.
func TestEventsOfRehearsals(t *testing.T) {
	for text, ok := range map[string]bool{
		`["a",1,1,0]`:                    true,
		`["a",1,0,0]`:                    false,
		`["a",1,1125899906842624,0]`:     true,
		`["a",1,1125899906842625,0]`:     false,
		`["a",1,5]`:                      false,
		`["a",1,5,0,0]`:                  true,
		`["a",1,5,0,2147483647]`:         true,
		`["a",1,5,0,2147483648]`:         false,
		`["a",1,5,0,"x"]`:                false,
		`["a",1,"x",0]`:                  false,
		`["a",1,5,"x"]`:                  false,
		`["f","x"]`:                      false,
		`["f"]`:                          false,
		`["m",1,"forward"]`:              true,
		`["m",1]`:                        false,
		`["m",1,2]`:                      false,
		`["m","x","forward"]`:            false,
		`["t",1,"weights","mm","x"]`:     true,
		`["t",1,"weights","mm"]`:         false,
		`["t","x","weights","mm","x"]`:   false,
		`["e"]`:                          true,
		`[]`:                             false,
		`{"end": {"steps": "x"}}`:        false,
		``:                               false,
		`["a",1,5,0]` + "\n" + `["f",1]`: true,
	} {
		_, err := ReadRehearsal(strings.NewReader(record(goodHead, text, goodEnd)))
		if (err == nil) != ok {
			t.Errorf("%s: %v", text, err)
		}
	}
	for facts, want := range map[string]Rehearsal{
		`"cublas": false`:                             {NoBLAS: true},
		`"cublas": true`:                              {},
		`"collectives": true`:                         {Grouped: true},
		`"convolutions": true`:                        {Conv: true, Estimated: true},
		`"recurrent": true`:                           {Estimated: true},
		`"half_convolutions": true, "compiled": true`: {HalfConv: true, Compiled: true},
		`"benchmark": true, "graphs": true`:           {Tries: true, Graphs: true},
		`"scaled": true`:                              {Scaled: true},
	} {
		end := `{"end": {"reason": "steps", "steps": 2, "facts": {` + facts + `}, "warnings": []}}`
		r, err := ReadRehearsal(strings.NewReader(record(goodHead, `["e"]`, end)))
		if err != nil {
			t.Fatal(facts, err)
		}
		want.Torch, want.Reason, want.Steps, want.Timeline = r.Torch, "steps", 2, r.Timeline
		if diff := cmp.Diff(want, *r); diff != "" {
			t.Errorf("%s: %s", facts, diff)
		}
	}
}
