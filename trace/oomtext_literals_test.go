package trace

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestLiteralsOf: texts of which a match has at least one, by hand.
func TestLiteralsOf(t *testing.T) {
	for source, want := range map[string][]string{
		`(?i)\bWSL ?2?\b`:                   {"wsl"},
		`out of memory`:                     {"out of memory"},
		`(?i)keras|\bmodel\.(?:fit|eval)\b`: {"keras", "model."},
		`(?:fit)+ing`:                       {"fit"},
		`x{2,3}docker`:                      {"docker"},
		`(a+)(?P<n>pods?)`:                  {"pod"},
		`(?:docker)?`:                       nil,
		`docker|\d+`:                        nil,
		`\d+ [a-z]`:                         nil,
		`(?i)q|docker`:                      nil,
	} {
		if got := literalsOf(source); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", source, got, want)
		}
	}
}

// TestNoMatchWithoutALiteral: what the quick look passes over, no expression of the signs matches,
// over all sample logs.
func TestNoMatchWithoutALiteral(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join("..", "diagnose", "testdata", "logs", "*.txt"))
	if err != nil || len(paths) == 0 {
		t.Fatal("no sample logs: ", err)
	}
	known := 0
	for _, n := range signsNear {
		if n.is.ready(); n.is.literals != nil {
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
			if !n.is.mayMatch(lower) && n.is.MatchString(some) {
				t.Errorf("%s: %s matches without one of %q", path, n.name, n.is.literals)
			}
		}
	}
}
