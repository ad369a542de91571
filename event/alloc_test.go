package event

import "testing"

// TestKindsHaveNames: every kind is found by the name it prints; other names are unknown.
func TestKindsHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for k := range Kind(len(kindNames)) {
		if got := KindOf(k.String()); got != k || seen[k.String()] {
			t.Errorf("%q gives %d, want %d", k.String(), got, k)
		}
		seen[k.String()] = true
	}
	if got := KindOf("no such kind"); got != KindUnknown {
		t.Errorf("%d", got)
	}
	if got := Kind(200).String(); got != kindNames[0] {
		t.Errorf("kind 200 prints %q", got)
	}
}
