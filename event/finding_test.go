package event

import "testing"

// TestRestates: a finding replaces an earlier one only if kind, step and bytes are the same, and
// only if it belongs to a step.
func TestRestates(t *testing.T) {
	leak := Finding{Kind: "leak", Step: 40, Bytes: MiB}
	for name, c := range map[string]struct {
		other Finding
		want  bool
	}{
		"with its line":       {Finding{Kind: "leak", Step: 40, Bytes: MiB, Title: "now"}, true},
		"another kind":        {Finding{Kind: "spike", Step: 40, Bytes: MiB}, false},
		"another step":        {Finding{Kind: "leak", Step: 41, Bytes: MiB}, false},
		"other bytes":         {Finding{Kind: "leak", Step: 40, Bytes: 2 * MiB}, false},
		"outside of any step": {Finding{Kind: "leak", Bytes: MiB}, false},
	} {
		if got := c.other.Restates(leak); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	none := Finding{Kind: "shm"}
	if none.Restates(none) {
		t.Error("two findings without a step are two findings")
	}
}
