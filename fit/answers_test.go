package fit

import (
	"strings"
	"testing"

	"memroom/event"
	"memroom/remedy"
)

// TestRelaxed: known answers at each bound. Half of the division is tried again only where less
// than half of the limit was used, it did not run out once, and there is still something to divide.
func TestRelaxed(t *testing.T) {
	divided := func(by float64) []Remedy {
		return []Remedy{{ID: remedy.Checkpointing, Level: remedy.LevelArgs},
			{ID: remedy.MicroBatch, Level: remedy.LevelArgs, Params: remedy.Params{Factor: by}}}
	}
	for name, c := range map[string]struct {
		factor float64
		peak   event.Bytes
		limit  event.Bytes
		ranOut int
		want   float64
	}{
		"much room":           {8, 40, 100, 0, 4},
		"just enough room":    {8, 45, 100, 0, 4},
		"a little too much":   {8, 46, 100, 0, 8},
		"no limit":            {8, 40, 0, 0, 8},
		"a limit of one byte": {8, 0, 1, 0, 8},
		"no peak":             {8, 0, 100, 0, 8},
		"a tiny peak":         {8, 1, 100, 0, 4},
		"that ran out once":   {8, 40, 100, 4, 8},
		"less than that":      {8, 40, 100, 3, 4},
		"down to two":         {4, 40, 100, 0, 2},
		"not below":           {2, 40, 100, 0, 2},
	} {
		m := Remembered{Remedies: divided(c.factor), Peak: c.peak, RanOut: c.ranOut}
		got := m.Relaxed(c.limit)
		if got[1].Params.Factor != c.want || got[0].Params.Factor != 0 || len(got) != 2 {
			t.Errorf("%s: %+v, want a division by %v", name, got, c.want)
		}
		if m.Remedies[1].Params.Factor != c.factor {
			t.Errorf("%s: what is remembered was changed", name)
		}
	}
}

// TestScript: the first Python file, else the command, else nothing.
func TestScript(t *testing.T) {
	for want, args := range map[string][]string{
		"":         nil,
		"a.py":     {"python", "-u", "a.py", "b.py"},
		"torchrun": {"torchrun", "-m", "train"},
		"only":     {"only"},
	} {
		if got := Script(args); got != want {
			t.Errorf("%v: %q, want %q", args, got, want)
		}
	}
}

// TestHopeless: of all that was said the largest need counts, with its own words.
func TestHopeless(t *testing.T) {
	tried := Tried{Said: []Sentence{{Text: "a", Needs: 5}, {Text: "b", Needs: 9}, {Text: "c", Needs: 9},
		{Text: "d"}}}
	if why, needs := tried.Hopeless(); why != "b" || needs != 9 {
		t.Errorf("%q, %d", why, needs)
	}
	if why, needs := (Tried{Said: []Sentence{{Text: "a"}}}).Hopeless(); why != "" || needs != 0 {
		t.Errorf("nothing is needed: %q, %d", why, needs)
	}
	tried = Tried{Said: []Sentence{{Text: "a", Needs: 1}}}
	if why, needs := tried.Hopeless(); why != "a" || needs != 1 {
		t.Errorf("a byte is needed: %q, %d", why, needs)
	}
}

// TestCannotFit: a need that is met explains nothing.
func TestCannotFit(t *testing.T) {
	for name, c := range map[string]struct {
		needs, limit, want event.Bytes
		says               string
	}{
		"unknown":       {0, 10, 0, "why"},
		"met":           {10, 10, 0, "why"},
		"one more":      {11, 10, 11, "it needs at least 11B, and 10B are there; why"},
		"without limit": {11, 0, 11, "it needs at least 11B; why"},
	} {
		if text, needs := CannotFit("why", c.needs, c.limit); text != c.says || needs != c.want {
			t.Errorf("%s: %q, %d", name, text, needs)
		}
	}
}

// TestAmplifies: a declined remedy does not count; a library that did without memory does.
func TestAmplifies(t *testing.T) {
	tried := Tried{Said: []Sentence{{Kind: "declined", Amplifies: "no"}, {Kind: "applied"},
		{Kind: "applied", Amplifies: "LBFGS"}}}
	if got := tried.Amplifies(); got != "LBFGS" {
		t.Errorf("%q", got)
	}
	if got := (Tried{Said: tried.Said[:2]}).Amplifies(); got != "" {
		t.Errorf("%q", got)
	}
}

// TestOnACPUASizeCanBeChosen: if the need is unknown, the answer for a training on the CPU mentions
// that a size can be chosen. If the need is known, it does not.
func TestOnACPUASizeCanBeChosen(t *testing.T) {
	for name, c := range map[string]struct {
		facts Facts
		says  bool
	}{
		"on the host, need unknown": {Facts{Where: event.WhereCgroup, Limit: 100}, true},
		"on the host, need known":   {Facts{Where: event.WhereCgroup, Limit: 100, Needs: 200}, false},
		"on a card":                 {Facts{Where: event.WhereGPU, Limit: 100}, false},
	} {
		plan := c.facts.impossible(Options{}, "why")
		if got := strings.Contains(plan.Impossible, "--remedy micro_batch=SAMPLES"); got != c.says {
			t.Errorf("%s: %q", name, plan.Impossible)
		}
	}
}

// TestLibrariesAreNamedOnce: where the libraries alone take a third of the limit, that is said; not
// where it is the reason already, nor where they take less.
func TestLibrariesAreNamedOnce(t *testing.T) {
	facts := Facts{Where: event.WhereCgroup, Limit: 300, Libraries: 100}
	words := facts.librariesWords()
	if words == "" || strings.Count(facts.impossible(Options{}, "why").Impossible, words) != 1 ||
		strings.Count(facts.impossible(Options{}, words).Impossible, words) != 1 {
		t.Errorf("%q", facts.impossible(Options{}, words).Impossible)
	}
	facts.Libraries = 99
	if got := facts.impossible(Options{}, "why").Impossible; strings.Contains(got, "libraries") ||
		strings.HasSuffix(got, ". ") {
		t.Errorf("%q", got)
	}
}

// TestForeign: a program whose framework no remedy reaches is not launched again, and its user
// learns what to write. One framework within reach is reason enough to try.
func TestForeign(t *testing.T) {
	foreign := Tried{Frameworks: []string{"jax"}}.Foreign()
	for _, words := range []string{"jax.checkpoint", "donate_argnums",
		"XLA_PYTHON_CLIENT_PREALLOCATE"} {
		if !strings.Contains(foreign, words) {
			t.Errorf("%q does not tell of %s", foreign, words)
		}
	}
	for _, where := range []event.Where{event.WhereGPU, event.WhereCgroup} {
		plan := Choose(Facts{Where: where, Foreign: foreign}, Options{})
		if plan.Impossible != foreign || len(plan.Remedies) > 0 {
			t.Errorf("%s: plan %+v", where, plan)
		}
	}
	for _, imported := range [][]string{nil, {"torch"}, {"jax", "torch"}, {"jax", "tensorflow"}} {
		if got := (Tried{Frameworks: imported}).Foreign(); got != "" {
			t.Errorf("%v: %q", imported, got)
		}
	}
	if plan := Choose(Facts{Where: event.WhereGPU}, Options{}); plan.Impossible != "" {
		t.Errorf("a program within reach is given up: %q", plan.Impossible)
	}
}

// TestRefused: where remedies on a CPU only said why they cannot be had, a tighter plan is in vain.
func TestRefused(t *testing.T) {
	declined := Sentence{Kind: "declined", ID: remedy.MicroBatch, Text: "a graph's edges"}
	for name, c := range map[string]struct {
		said    []Sentence
		refused bool
	}{
		"declined":          {[]Sentence{declined, declined}, true},
		"nothing said":      {nil, false},
		"something applied": {[]Sentence{declined, {Kind: "applied", ID: remedy.Checkpointing}}, false},
		"a first step":      {[]Sentence{{Kind: "note", ID: remedy.MicroBatch}, declined}, false},
	} {
		tried := Tried{Said: c.said}
		first := Choose(Facts{Where: event.WhereCgroup}, Options{}).Remedies
		plan := Choose(Facts{Where: event.WhereCgroup, On: first, Refused: tried.Refused(),
			Whole: tried.Whole()}, Options{})
		if (plan.Impossible != "") != c.refused {
			t.Errorf("%s: %+v", name, plan)
		}
		if c.refused && !strings.Contains(plan.Impossible, "a graph's edges") {
			t.Errorf("%s: the reason is not said: %s", name, plan.Impossible)
		}
	}
}

// TestHelped: a remedy that hardly lowers the peak is not why an attempt did not run out.
func TestHelped(t *testing.T) {
	cut := Sentence{Kind: "applied", Text: "Linear: 3 micro-batches", ID: remedy.MicroBatch}
	slight := cut
	slight.Slight = true
	inside := []Remedy{{ID: remedy.MicroBatch, Level: remedy.LevelProcess}}
	outside := []Remedy{{ID: remedy.MicroBatch, Level: remedy.LevelArgs}}
	for _, c := range []struct {
		tried Tried
		want  bool
	}{
		{Tried{Remedies: inside, Said: []Sentence{cut}}, true},
		{Tried{Remedies: inside, Said: []Sentence{slight}}, false},
		{Tried{Remedies: inside, Said: []Sentence{{Kind: "declined"}}}, false},
		{Tried{Remedies: outside, Said: []Sentence{slight}}, true},
		{Tried{Remedies: inside}, true},
	} {
		if got := c.tried.Helped(); got != c.want {
			t.Errorf("%+v: %v", c.tried, got)
		}
	}
}
