package trace

import (
	"strings"
	"testing"

	"memroom/event"
)

// TestWhichPassageIsTheCause: a sure shortage before everything, then a sure other reason, then a
// likely shortage. Of two that are equally sure the first is the cause.
func TestWhichPassageIsTheCause(t *testing.T) {
	is := func(class Class, sure float64) Crash { return Crash{Class: class, Sure: sure} }
	for name, c := range map[string]struct {
		crashes []Crash
		first   int
	}{
		"a sure shortage":              {[]Crash{is(Other, 0.99), is(Exhausted, 0.8)}, 1},
		"a sure other reason":          {[]Crash{is(Exhausted, 0.79), is(Other, 0.85)}, 1},
		"a likely shortage":            {[]Crash{is(Other, 0.84), is(Exhausted, 0.5)}, 1},
		"a likely other reason":        {[]Crash{is(Exhausted, 0.49), is(Other, 0.75)}, 1},
		"a possible other reason":      {[]Crash{is(Survived, 0.99), is(Other, 0.5)}, 1},
		"a shortage that was survived": {[]Crash{is(Other, 0.49), is(Survived, 0)}, 1},
		"the first of two sure ones":   {[]Crash{is(Exhausted, 0.8), is(Exhausted, 0.99)}, 0},
		"nothing":                      {nil, -1},
	} {
		log := Log{Crashes: c.crashes}
		if got := log.First(); got != c.first {
			t.Errorf("%s: passage %d, want %d", name, got, c.first)
		}
	}
}

// TestWordsInASentenceAreLessSure: the words of an error after a mark of one, and in a sentence.
func TestWordsInASentenceAreLessSure(t *testing.T) {
	const words = "CUDA out of memory"
	for text, c := range map[string][2]float64{
		"RuntimeError: " + words + "\n":                             {0.9, 1},
		"worker 3: fatal: " + words + "\n":                          {0.9, 1},
		"we saw " + words + " on the other machine as well\n":       {0.01, 0.6},
		"note to self: yesterday " + words + " with twice the lr\n": {0.01, 0.6},
	} {
		log, err := ReadLog(strings.NewReader(text))
		if err != nil || len(log.Crashes) != 1 {
			t.Errorf("%q: %d passages, %v", text, len(log.Crashes), err)
			continue
		}
		if sure := log.Crashes[0].Sure; sure < c[0] || sure > c[1] {
			t.Errorf("%q: sure %.2f, want %.2f to %.2f", text, sure, c[0], c[1])
		}
	}
}

// TestSmallRefusalsOfTheDriver: TensorFlow asks for less and less. That it is refused is normal
// until hardly anything is asked for.
func TestSmallRefusalsOfTheDriver(t *testing.T) {
	for requested, class := range map[event.Bytes]Class{64*event.MiB - 1: Exhausted,
		64 * event.MiB: Survived} {
		large := 8 * event.GiB
		log := &Log{Crashes: []Crash{{Kind: "tf_backpedal", Class: Survived, Requested: &large},
			{Kind: "tf_backpedal", Class: Survived, Requested: &requested}, {Kind: "other"}}}
		settleBackpedal(log)
		if log.Crashes[1].Class != class || log.Crashes[0].Class != Survived {
			t.Errorf("%d bytes refused: %v", requested, log.Crashes[1].Class)
		}
	}
}

// TestHandlesAfterAWrongIndex: a library that failed to create its handle did not run out of memory
// if the log also shows an index out of range. A passage with a higher certainty and passages of
// other kinds stay as they are.
func TestHandlesAfterAWrongIndex(t *testing.T) {
	status := Crash{Kind: "library_status", Class: Exhausted, Sure: 0.7, Where: event.WhereGPU}
	sure, other := status, status
	sure.Sure, other.Kind = 0.8, "torch_device"
	index := map[string]string{SignIndex: "srcIndex < "}
	own := status
	own.Signs = index
	for name, c := range map[string]struct {
		crash   Crash
		hints   Hints
		settled bool
	}{
		"the log's":         {status, Hints{Signs: index}, true},
		"its own":           {own, Hints{}, true},
		"none":              {status, Hints{}, false},
		"sure":              {sure, Hints{Signs: index}, false},
		"another's message": {other, Hints{Signs: index}, false},
	} {
		log := Log{Crashes: []Crash{c.crash}, Hints: c.hints}
		settleHandles(&log)
		got := log.Crashes[0]
		if settled := got.Class == Other && got.Where == event.WhereUnknown; settled != c.settled {
			t.Errorf("%s: %s at %s", name, got.Class, got.Where)
		}
		if c.settled && (got.Sure != 0.9 || got.What == "") {
			t.Errorf("%s: sure to %g, %q", name, got.Sure, got.What)
		}
	}
}
