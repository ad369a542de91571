package lazyregexp

import (
	"slices"
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
