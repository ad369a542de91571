package trace

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestNoMatchWithoutALiteral: what the quick look passes over, no expression of the signs matches,
// over all sample logs.
func TestNoMatchWithoutALiteral(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join("..", "explain", "testdata", "logs", "*.txt"))
	if err != nil || len(paths) == 0 {
		t.Fatal("no sample logs: ", err)
	}
	known := 0
	for _, n := range signsNear {
		if n.is.Literals() != nil {
			known++
		}
	}
	if known < len(signsNear)*3/4 {
		t.Errorf("of %d expressions only %d are looked for by their texts", len(signsNear), known)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		some := cut(string(text), signsText)
		lower := strings.ToLower(some)
		for _, n := range signsNear {
			if !n.is.MayMatch(lower) && n.is.MatchString(some) {
				t.Errorf("%s: %s matches without one of %q", path, n.name, n.is.Literals())
			}
		}
	}
}
