package event

import "testing"

// TestDidYouMean: a slip finds the word, something else finds none.
func TestDidYouMean(t *testing.T) {
	known := []string{"--host-mem", "--gpu-mem", "--fit", "--name", "--on-pressure"}
	for typed, want := range map[string]string{
		"--hostmem":    `, did you mean "--host-mem"?`,
		"--host-mme":   `, did you mean "--host-mem"?`,
		"--fitt":       `, did you mean "--fit"?`,
		"--onpressure": `, did you mean "--on-pressure"?`,
		"GPU_MEM":      `, did you mean "--gpu-mem"?`,
		"--verbose":    "",
		"-x":           "",
		"--":           "",
	} {
		if got := DidYouMean(typed, known); got != want {
			t.Errorf("%s: %q, want %q", typed, got, want)
		}
	}
}

// TestDistance: known answers, and both directions cost the same.
func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"kitten", "sitting", 3}, {"flaw", "lawn", 2}, {"run", "runs", 1},
		{"host", "host", 0}, {"abc", "xyz", 3}} {
		if got, back := distance(c.a, c.b), distance(c.b, c.a); got != c.want || back != c.want {
			t.Errorf("%q to %q: %d and %d back, want %d", c.a, c.b, got, back, c.want)
		}
	}
}
