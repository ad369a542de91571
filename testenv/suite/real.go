package main

import (
	_ "embed"
	"slices"
	"strings"
)

//go:embed real.txt
var realText string

// realTest is a test of `make test-real`. sub is "" for a whole test.
type realTest struct{ pkg, name, sub string }

// realTests returns what real.txt lists.
func realTests() (list []realTest) {
	for line := range strings.Lines(realText) {
		pkg, test, found := strings.Cut(strings.TrimSpace(line), " ")
		if !found || !strings.HasPrefix(test, "Test") {
			continue // the words at the top
		}
		name, sub, _ := strings.Cut(test, "/")
		list = append(list, realTest{pkg, name, sub})
	}
	return list
}

// choice is which tests of some packages run, in the words of `go test -run` and `-skip`.
type choice struct{ run, skip string }

// flags returns those of `go test`, or with the prefix "-test." those of a test binary.
func (c choice) flags(prefix string) (list []string) {
	if c.run != "" {
		list = append(list, prefix+"run="+c.run)
	}
	if c.skip != "" {
		list = append(list, prefix+"skip="+c.skip)
	}
	return list
}

// choose returns the choice of packages: their tests of real.txt, or all others.
func choose(real bool, packages ...string) (c choice) {
	var patterns []string
	for _, t := range realTests() {
		if !slices.Contains(packages, t.pkg) {
			continue
		}
		pattern := "^" + t.name + "$"
		if t.sub != "" {
			pattern += "/^" + t.sub + "$"
		}
		patterns = append(patterns, pattern)
	}
	switch all := strings.Join(patterns, "|"); {
	case !real:
		c.skip = all
	case all == "":
		c.run = "^$" // none
	default:
		c.run = all
	}
	return c
}

// runs reports whether the top-level test of a package has anything to run.
func runs(real bool, pkg, name string) bool {
	for _, t := range realTests() {
		if t.pkg == pkg && t.name == name {
			return real || t.sub != ""
		}
	}
	return !real
}

// hasReal reports whether real.txt lists tests of a package.
func hasReal(pkg string) bool {
	return slices.ContainsFunc(realTests(), func(t realTest) bool { return t.pkg == pkg })
}
