package diagnose

import (
	"slices"
	"strings"
	"testing"

	"memroom/event"
)

// TestCuresOfWhatIsHeld: detaching frees graphs, and nothing of a tensor without one.
func TestCuresOfWhatIsHeld(t *testing.T) {
	for name, c := range map[string]struct {
		held   []Holder
		want   string
		not    string
		detail string
	}{
		"nobody known":         {nil, "", "", ""},
		"a list without graph": {[]Holder{{Name: "history", Host: 9}}, "keep_less", "detach", "kept"},
		"a sum with its graph": {[]Holder{{Name: "total", Nodes: 90}}, "detach", "keep_less", "kept_graph"},
		"the largest decides": {[]Holder{{Name: "history", Host: 9}, {Name: "total", Nodes: 9}},
			"keep_less", "detach", "kept"},
		"exceptions": {[]Holder{{Name: "failures", Nodes: 9, Host: 9,
			Kind: "list of 15, exceptions with the variables of their functions"}},
			"keep_less", "detach", "kept"},
		"and by a graph": {[]Holder{{Name: "total", Nodes: 9}, {Name: "history", Host: 9}},
			"detach", "keep_less", "kept_graph"},
	} {
		cures, detail := curesOf(c.held)
		if detail != c.detail || c.want != "" && (len(cures) == 0 || cures[0] != c.want) ||
			c.want == "" && len(cures) > 0 || c.not != "" && slices.Contains(cures, c.not) {
			t.Errorf("%s: %v, %q", name, cures, detail)
		}
		if slices.Contains(cures, "no_grad") {
			t.Errorf("%s: a loop that trains is told to go without graphs: %v", name, cures)
		}
	}
}

// TestCachesThatFill: a rise that a cache with an end holds is no leak; where the rise outlasts it,
// it is one.
func TestCachesThatFill(t *testing.T) {
	for name, c := range map[string]struct {
		goesOn bool
		leaks  int
	}{"a cache": {false, 0}, "a cache before a leak": {true, 1}} {
		w := NewWatch(DefaultThresholds(), 0)
		found := 0
		for step := int64(1); step <= 400; step++ {
			rose := step
			if step > 60 && !c.goesOn {
				rose = 60
			}
			heap := event.GiB + event.Bytes(rose)*event.MiB
			for _, f := range w.Steps(7, nil, []event.Step{{Step: step, Device: event.HostDevice,
				Anonymous: 2 * event.GiB, Heap: heap, Duration: 1e7}}) {
				if f.Kind == "leak" && f.Severity != event.SeverityInfo {
					found++
				}
			}
			for _, ask := range w.Asks() {
				if ask.Do == "heap" {
					w.Holders(7, []Holder{{Name: "recent", Host: event.MiB,
						Fills: step <= 60}}, 0)
				}
			}
		}
		if found != c.leaks {
			t.Errorf("%s: %d leaks were said, want %d", name, found, c.leaks)
		}
	}
}

// TestSearches: memory that rises in a program which builds one model after the other is called a
// leak only where somebody is known to hold it.
func TestSearches(t *testing.T) {
	held := []Holder{{Name: "results", Host: 8 * event.MiB}}
	for name, c := range map[string]struct {
		built   int
		holders []Holder
		leaks   int
	}{
		"one model":              {1, nil, 1},
		"a search":               {14, nil, 0},
		"a search that is kept":  {14, held, 1},
		"one model that is kept": {1, held, 1},
	} {
		w, found := NewWatch(DefaultThresholds(), 0), map[string]bool{}
		for step := int64(1); step <= 200; step++ {
			row := event.Step{Step: step, Device: event.HostDevice, Anonymous: 2 * event.GiB,
				Heap: event.GiB + event.Bytes(step)*event.MiB, Duration: 1e7}
			for _, f := range w.Steps(7, nil, []event.Step{row}) {
				sound(t, f)
				if f.Kind == "leak" {
					found[f.Kind] = true
				}
			}
			for _, ask := range w.Asks() {
				if ask.Do == "heap" {
					w.Holders(7, c.holders, c.built)
				}
			}
		}
		if len(found) != c.leaks {
			t.Errorf("%s: %d leaks were said, want %d", name, len(found), c.leaks)
		}
	}
}

// TestHoldersOfAnotherRise: who held what grew before is not named for a rise that began later, in
// host memory or on a card.
func TestHoldersOfAnotherRise(t *testing.T) {
	for name, device := range map[string]int{"host": event.HostDevice, "card": 0} {
		w, title := NewWatch(DefaultThresholds(), 0), ""
		for step := int64(1); step <= 500; step++ {
			grown, holder := step%40, "Clears.outputs" // emptied after each epoch
			if step > 200 {
				grown, holder = step-200, "Net.outputs"
			}
			held := event.GiB + event.Bytes(grown)*event.MiB
			row := event.Step{Step: step, Device: device, Anonymous: 2 * event.GiB, Heap: held,
				Duration: 1e7}
			if device != event.HostDevice {
				row = event.Step{Step: step, Device: device, Allocated: held,
					PeakAllocated: held + event.GiB, Duration: 1e7}
			}
			for _, f := range w.Steps(7, nil, []event.Step{row}) {
				if f.Kind == "leak" && f.Severity != event.SeverityInfo {
					title = f.Title
				}
			}
			for _, ask := range w.Asks() {
				if ask.Do != "heap" {
					continue
				}
				for _, f := range w.Holders(7, []Holder{{Name: holder, Host: event.MiB,
					Card: event.MiB}}, 0) {
					title = f.Title
				}
			}
		}
		if !strings.Contains(title, "held by `Net.outputs`") {
			t.Errorf("%s: %q", name, title)
		}
	}
}

// TestAnswersThatNameNobody: an answer about another rise, or one that came between two epochs, is
// not the last word. The program is asked again, a few times.
func TestAnswersThatNameNobody(t *testing.T) {
	for name, c := range map[string]struct {
		from   int64 // step at which memory begins to rise
		nobody int   // answers without a name, the first look's among them
		late   int   // steps until an answer comes
		names  bool
		asks   int // at the most
	}{
		"at once":                {0, 1, 0, true, 2},
		"late":                   {0, 1, 20, true, 2},
		"at the third look":      {0, 2, 0, true, 3},
		"at the third look late": {0, 2, 20, true, 3},
		"never":                  {0, 999, 0, false, 4},
		"of another rise":        {200, 4, 0, true, 12},
	} {
		w, title, asked := NewWatch(DefaultThresholds(), 0), "", 0
		answers := map[int64]int{} // step -> how many come then
		for step := int64(1); step <= 500; step++ {
			grown := step % 40
			if step > c.from {
				grown = step - c.from
			}
			row := event.Step{Step: step, Device: event.HostDevice, Anonymous: 2 * event.GiB,
				Heap: event.GiB + event.Bytes(grown)*event.MiB, Duration: 1e7}
			for _, f := range w.Steps(7, nil, []event.Step{row}) {
				if f.Kind == "leak" && f.Severity != event.SeverityInfo {
					title = f.Title
				}
			}
			for _, ask := range w.Asks() {
				if ask.Do == "heap" {
					answers[step+int64(c.late)]++
				}
			}
			for range answers[step] {
				held := []Holder{{Name: "history", Host: event.MiB}}
				if asked++; asked <= c.nobody {
					held = nil
				}
				for _, f := range w.Holders(7, held, 0) {
					title = f.Title
				}
			}
		}
		if title == "" || strings.Contains(title, "held by `history`") != c.names || asked > c.asks {
			t.Errorf("%s: %q after %d questions", name, title, asked)
		}
	}
}
