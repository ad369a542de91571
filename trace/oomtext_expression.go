package trace

import (
	"regexp"
	"slices"
	"strings"
	"sync"
)

// expression is a regular expression that is compiled when it is first used. There are many of
// them, together they take 3 MiB and 20 ms, and most processes that carry this package (the
// supervisor beside a training) never read a log.
type expression struct {
	source   string
	once     sync.Once
	compiled *regexp.Regexp
	literals []string // in lower case: a match has one of them; none: not known
}

func later(source string) *expression { return &expression{source: source} }

func (e *expression) ready() *regexp.Regexp {
	e.once.Do(func() {
		e.compiled, e.literals = regexp.MustCompile(e.source), literalsOf(e.source)
	})
	return e.compiled
}

// mayMatch reports whether a text can match, by a quick look. lower: the text in lower case.
func (e *expression) mayMatch(lower string) bool {
	e.ready()
	return e.literals == nil || slices.ContainsFunc(e.literals, func(l string) bool {
		return strings.Contains(lower, l)
	})
}

// The methods are those of regexp.Regexp that the readers use.

func (e *expression) MatchString(s string) bool      { return e.ready().MatchString(s) }
func (e *expression) FindStringIndex(s string) []int { return e.ready().FindStringIndex(s) }
func (e *expression) FindStringSubmatch(s string) []string {
	return e.ready().FindStringSubmatch(s)
}
func (e *expression) FindSubmatch(b []byte) [][]byte { return e.ready().FindSubmatch(b) }
func (e *expression) ReplaceAllString(s, with string) string {
	return e.ready().ReplaceAllString(s, with)
}
func (e *expression) FindAllStringSubmatch(s string, n int) [][]string {
	return e.ready().FindAllStringSubmatch(s, n)
}
func (e *expression) FindAllStringIndex(s string, n int) [][]int {
	return e.ready().FindAllStringIndex(s, n)
}
