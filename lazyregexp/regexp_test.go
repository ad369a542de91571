package lazyregexp

import (
	"regexp"
	"sync"
	"testing"
)

// TestCompiledOnce: outside of tests nothing is compiled before the first use, and then once, by
// whichever goroutine comes first.
func TestCompiledOnce(t *testing.T) {
	inTest = false
	t.Cleanup(func() { inTest = true })
	r := New(`(?i)out of (memory)`)
	if r.compiled != nil {
		t.Fatal("compiled before it was used")
	}
	var wait sync.WaitGroup
	seen := make([]*regexp.Regexp, 8)
	for i := range seen {
		wait.Go(func() { seen[i] = r.ready() })
	}
	wait.Wait()
	for _, s := range seen {
		if s == nil || s != seen[0] {
			t.Errorf("goroutines see different expressions: %v", seen)
		}
	}
}

// TestMistakeIsFoundInTests: what is no expression panics where it is written down.
func TestMistakeIsFoundInTests(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("New took an open bracket")
		}
	}()
	New(`(`)
}

// TestMayMatch: a quick no is right, a yes may be wrong.
func TestMayMatch(t *testing.T) {
	for _, c := range []struct {
		source, lower string
		want          bool
	}{
		{`(?i)Keras|jax`, "import keras", true},
		{`(?i)Keras|jax`, "import torch", false},
		{`\d+`, "import torch", true},
		{`memory \d`, "memory", false},
		{`memory \d`, "memory x", true},
	} {
		if got := New(c.source).MayMatch(c.lower); got != c.want {
			t.Errorf("%s may match %q: %v, want %v", c.source, c.lower, got, c.want)
		}
	}
}
