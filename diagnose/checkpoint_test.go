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
		"files": {[]Checkpoint{{Bytes: event.GiB, Whole: "/d/a.npy"}, {Bytes: event.GiB,
			Whole: "/d/a.npy"}}, "each of 2 processes reads the whole of a.npy into host memory: 2GiB"},
		"parts": {[]Checkpoint{{Bytes: event.GiB, Whole: "/d/a.npy"}, {Bytes: event.GiB,
			Whole: "/d/b.npy"}}, ""},
		"to cards": {[]Checkpoint{{Bytes: event.GiB, Card: event.GiB},
			{Bytes: event.GiB, Card: event.GiB}}, ""},
	} {
		w := NewWatch(DefaultThresholds(), 8*event.GiB)
		var found []event.Finding
		for pid, seen := range c.seen {
			found = append(found, w.Checkpoint(pid, seen)...)
			sound(t, found...)
		}
		if c.says == "" && len(found) == 0 {
			continue
		}
		if len(found) != 1 || c.says == "" || !strings.Contains(found[0].Title, c.says) {
			t.Errorf("%s: %+v", name, found)
		}
	}
}

// TestSavesThatCopy: a copy that lifts the process above training's own peak is named once with the
// place; one that training has room for, one that stays, and a small one are not.
func TestSavesThatCopy(t *testing.T) {
	clone := Saved{Bytes: event.GiB, Copied: event.GiB, Heap: 4 * event.GiB, File: "/a/t.py",
		Line: 9}
	built := Saved{Bytes: event.GiB, Built: event.GiB, Pages: 5 * event.GiB, File: "/a/t.py", Line: 9}
	below, small := clone, clone
	below.Heap, small.Copied = 3*event.GiB, event.MiB
	for name, c := range map[string]struct {
		saves []Saved
		says  string
	}{
		"clone": {[]Saved{clone, clone}, "saving a checkpoint (t.py:9): 1GiB are a copy of the weights, " +
			"made for the file"},
		"built": {[]Saved{built}, "1GiB are the file, built in memory"},
		"below": {[]Saved{below}, ""},
		"small": {[]Saved{small}, ""},
	} {
		w := NewWatch(DefaultThresholds(), 8*event.GiB)
		w.Steps(7, nil, []event.Step{{Step: 1, Device: event.HostDevice, Anonymous: 3 * event.GiB,
			Heap: 2 * event.GiB, AtBackward: 3 * event.GiB}})
		var found []event.Finding
		for _, s := range c.saves {
			found = append(found, w.Saved(7, s)...)
			sound(t, found...)
		}
		if c.says == "" && len(found) == 0 {
			continue
		}
		if len(found) != 1 || c.says == "" || !strings.Contains(found[0].Title, c.says) {
			t.Errorf("%s: %+v", name, found)
		}
	}
	if found := NewWatch(DefaultThresholds(), 0).Saved(7, clone); len(found) > 0 {
		t.Errorf("nothing is known of training: %+v", found)
	}
}
