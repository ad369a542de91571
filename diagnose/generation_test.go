package diagnose

import (
	"strings"
	"testing"

	"memroom/event"
)

// TestCachesOfGenerations: caches that become more, and one that becomes long, are named once;
// those that come and go, and one that is a small part of the process, are not.
func TestCachesOfGenerations(t *testing.T) {
	one := func(tokens int64, pages event.Bytes) Caches {
		size := event.Bytes(tokens) * event.MiB
		return Caches{Count: 1, Bytes: size, Largest: size, Sequences: 8, Tokens: tokens, Pages: pages,
			File: "/home/me/chat.py", Line: 9}
	}
	many := func(count int64, holder string) Caches {
		return Caches{Count: count, Bytes: event.Bytes(count) * 16 * event.MiB, Tokens: 100,
			Largest: 16 * event.MiB, Sequences: 1, Pages: event.GiB, File: "/home/me/chat.py", Line: 9,
			Holder: Holder{Name: holder, Kind: "dict of 6", File: "/home/me/chat.py", Line: 7}}
	}
	onCard := func(tokens int64) Caches {
		c := one(tokens, 0)
		c.Card = c.Bytes
		return c
	}
	big := 100 * event.GiB
	for name, c := range map[string]struct {
		heard []Caches
		says  string
	}{
		"kept": {[]Caches{many(4, ""), many(5, ""), many(6, "sessions"), many(8, "sessions")},
			"of 6 generations stay in host memory: 96MiB, 16MiB each, held by `sessions` (dict of 6, " +
				"chat.py:7)"},
		"come and go": {[]Caches{many(4, ""), many(6, ""), many(4, ""), many(6, "")}, ""},
		"few":         {[]Caches{many(1, ""), many(2, ""), many(3, "")}, ""},
		"long": {[]Caches{one(20, event.GiB), one(60, event.GiB), one(120, event.GiB),
			one(200, event.GiB)}, "each token adds 1MiB to the cache of keys and values, which takes " +
			"120MiB of host memory for 8 sequences of 120 tokens (chat.py:9)"},
		"a small part": {[]Caches{one(20, big), one(60, big), one(120, big)}, ""},
		"on the card":  {[]Caches{onCard(20), onCard(60), onCard(120)}, "120MiB of the card's memory"},
		"short ones":   {[]Caches{one(120, event.GiB), one(130, event.GiB), one(20, event.GiB)}, ""},
	} {
		w := NewWatch(DefaultThresholds(), 0)
		var found []event.Finding
		for _, heard := range c.heard {
			found = append(found, w.Caches(7, heard)...)
			sound(t, found...)
		}
		if c.says == "" && len(found) > 0 {
			t.Errorf("%s: %+v", name, found)
		}
		if c.says != "" && (len(found) != 1 || !strings.Contains(found[0].Title, c.says)) {
			t.Errorf("%s: %+v", name, found)
		}
	}
}

// TestRetracedFunctions: said once, with what changes, and only where memory has grown; a leak that
// was said of the same growth is taken back.
func TestRetracedFunctions(t *testing.T) {
	r := Retraced{Function: "step", Traces: 12, Grown: 20 * event.MiB, Argument: "rate",
		Change: "value", Type: "float", File: "/home/me/train.py", Line: 6}
	shape, kind, unknown, small := r, r, r, r
	shape.Change, kind.Change, unknown.Change = "shape", "kind", ""
	small.Grown = event.MiB
	for says, c := range map[string]Retraced{"`rate` is a Python float that changes": r,
		"`rate` has another shape each time": shape, "`rate` changes its type": kind,
		"made anew in a loop": unknown, "": small} {
		w := NewWatch(DefaultThresholds(), 0)
		found := append(w.Retraced(7, c), w.Retraced(7, c)...)
		if says == "" && len(found) > 0 {
			t.Errorf("little memory: %+v", found)
		}
		if says != "" && (len(found) != 1 || !strings.Contains(found[0].Title, says) ||
			!strings.Contains(found[0].Title, "`step` (train.py:6)")) {
			t.Errorf("%q: %+v", says, found)
		}
	}
	w := NewWatch(DefaultThresholds(), 0)
	w.processes[place{7, event.HostDevice}] = &process{leak: &Trend{Slope: 1e6, Onset: 5}}
	if found := w.Retraced(7, r); len(found) != 2 || found[0].Severity != event.SeverityInfo {
		t.Errorf("the leak is not taken back: %+v", found)
	}
}

// TestOutputsCarriedOver: a variable that holds more at each evaluation is named at the third; one
// that is emptied in between is not, and neither is one of classes.
func TestOutputsCarriedOver(t *testing.T) {
	seen := func(held event.Bytes) Evaluated {
		return Evaluated{Kept: event.MiB, Held: held * event.MiB, Holder: "Net.preds in /a/net.py:12"}
	}
	small := seen(90)
	small.Kept = event.KiB
	for name, c := range map[string]struct {
		heard []Evaluated
		found int
	}{
		"kept":         {[]Evaluated{seen(4), seen(24), seen(44), seen(64)}, 1},
		"emptied":      {[]Evaluated{seen(4), seen(4), seen(4), seen(4)}, 0},
		"twice":        {[]Evaluated{seen(4), seen(44)}, 0},
		"little":       {[]Evaluated{seen(4), seen(6), seen(8)}, 0},
		"now and then": {[]Evaluated{seen(4), seen(44), seen(4), seen(44)}, 0},
		"classes":      {[]Evaluated{small, small, small}, 0},
	} {
		w := NewWatch(DefaultThresholds(), 0)
		var found []event.Finding
		for _, heard := range c.heard {
			found = append(found, w.Evaluation(7, heard)...)
			sound(t, found...)
		}
		if len(found) != c.found {
			t.Errorf("%s: %+v", name, found)
		}
		if len(found) > 0 && !strings.Contains(found[0].Title,
			"`Net.preds` (net.py:12) holds 44MiB, 20MiB more at each evaluation") {
			t.Errorf("%s: %s", name, found[0].Title)
		}
	}
}
