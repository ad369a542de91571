package diagnose

import (
	"strings"
	"testing"

	"memroom/event"
)

// TestModelsThatMatter: models are named when there are several and they take memory worth naming,
// once; a leak that was said of the same memory is taken back.
func TestModelsThatMatter(t *testing.T) {
	held := Models{Framework: "torch", Class: "Net", Count: 8, Bytes: 400 * event.MiB,
		File: "/home/me/cv.py", Line: 12,
		Holder: Holder{Name: "folds", Kind: "list of 8", File: "/home/me/cv.py", Line: 30}}
	few, small, garbage, nameless := held, held, held, held
	few.Count, small.Bytes = 3, event.MiB
	garbage.Count, garbage.Waited = 1, 9
	nameless.Framework, nameless.Holder = "keras", Holder{}
	for name, c := range map[string]struct {
		m      Models
		says   string
		remedy string
	}{
		"held":     {held, "8 of class Net, 50MiB each, held by `folds` (list of 8, cv.py:30)", "release_models"},
		"few":      {few, "", ""},
		"small":    {small, "", ""},
		"garbage":  {garbage, "wait for the garbage collector: 10 of class Net", "release_models"},
		"nameless": {nameless, "8 of class Net, 50MiB each", "clear_session"},
	} {
		w := NewWatch(DefaultThresholds(), 0)
		found := w.Models(7, c.m)
		if c.says == "" {
			if len(found) > 0 {
				t.Errorf("%s: %+v", name, found)
			}
			continue
		}
		if len(found) != 1 || !strings.Contains(found[0].Title, c.says) ||
			found[0].Remedies[0] != c.remedy {
			t.Errorf("%s: %+v", name, found)
		}
		if again := w.Models(7, c.m); len(again) > 0 {
			t.Errorf("%s is said twice: %+v", name, again)
		}
	}
	w := NewWatch(DefaultThresholds(), 0)
	leak := &process{leak: &Trend{Slope: 1e6, Onset: 5}}
	w.processes[place{7, event.HostDevice}] = leak
	if found := w.Models(7, held); len(found) != 2 || found[0].Kind != "leak" ||
		found[0].Severity != event.SeverityInfo {
		t.Errorf("the leak is not taken back: %+v", found)
	}
	leak.models, leak.holders = false, []Holder{{Name: "history", Host: event.MiB}}
	w.models = nil
	if found := w.Models(7, held); len(found) != 1 {
		t.Errorf("a leak of something else is taken back: %+v", found)
	}
}
