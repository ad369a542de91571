package diagnose

import (
	"slices"
	"testing"
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
