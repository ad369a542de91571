package diagnose

import (
	"strings"
	"testing"

	"memroom/event"
)

// TestCheckpointsThatStay: a dictionary that outlives the loading is named once with its holder,
// and so are ranks that all load the same; small ones and single loads are not.
func TestCheckpointsThatStay(t *testing.T) {
	kept := Checkpoint{Bytes: event.GiB, Kept: event.GiB, File: "/a/t.py", Line: 4,
		Holder: Holder{Name: "state", File: "/a/t.py", Line: 4}}
	onCard, small := kept, kept
	onCard.Card, small.Kept = event.GiB, event.MiB
	for name, c := range map[string]struct {
		seen []Checkpoint
		says string
	}{
		"kept":   {[]Checkpoint{kept, kept}, "1GiB of host memory, by `state` (t.py:4)"},
		"card":   {[]Checkpoint{onCard}, "1GiB of the card, by `state`"},
		"small":  {[]Checkpoint{small}, ""},
		"loaded": {[]Checkpoint{{Bytes: event.GiB}}, ""},
		"ranks": {[]Checkpoint{{Bytes: event.GiB}, {Bytes: event.GiB}, {Bytes: event.GiB}},
			"each of 2 processes loads the whole checkpoint into host memory: 2GiB of 8GiB"},
		"to cards": {[]Checkpoint{{Bytes: event.GiB, Card: event.GiB},
			{Bytes: event.GiB, Card: event.GiB}}, ""},
	} {
		w := NewWatch(DefaultThresholds(), 8*event.GiB)
		var found []event.Finding
		for pid, seen := range c.seen {
			found = append(found, w.Checkpoint(pid, seen)...)
		}
		if c.says == "" && len(found) == 0 {
			continue
		}
		if len(found) != 1 || c.says == "" || !strings.Contains(found[0].Title, c.says) {
			t.Errorf("%s: %+v", name, found)
		}
	}
}
