// Package lazyregexp is regular expressions that are compiled when they are first used. The readers
// of logs have hundreds of them. Compiled together they take 4 MiB and 25 ms, and most processes
// that carry them, such as the supervisor next to a training, never read a log.
package lazyregexp

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// Regexp is a regular expression in Go's syntax. Its methods may be called from several goroutines.
type Regexp struct {
	source   string
	once     sync.Once
	compiled *regexp.Regexp
	literals []string // in lower case: a match has one of them; none: not known
}

// inTest: a program made by `go test`. There every one is compiled at once, so that a mistake in
// one that no test uses is found all the same.
var inTest = strings.HasSuffix(strings.TrimSuffix(os.Args[0], ".exe"), ".test")

// New returns the expression of a text. A text that is no regular expression panics at the first
// use.
func New(source string) *Regexp {
	r := &Regexp{source: source}
	if inTest {
		r.ready()
	}
	return r
}

func (r *Regexp) ready() *regexp.Regexp {
	r.once.Do(func() {
		r.compiled, r.literals = regexp.MustCompile(r.source), literalsOf(r.source)
	})
	return r.compiled
}

// MayMatch reports whether a text can match, by a quick look. lower: the text in lower case.
func (r *Regexp) MayMatch(lower string) bool {
	r.ready()
	return r.literals == nil || slices.ContainsFunc(r.literals, func(l string) bool {
		return strings.Contains(lower, l)
	})
}

// Literals are texts in lower case of which every match has at least one; none where nothing is
// known.
func (r *Regexp) Literals() []string {
	r.ready()
	return r.literals
}

// The other methods are those of regexp.Regexp that the readers use.

func (r *Regexp) MatchString(s string) bool      { return r.ready().MatchString(s) }
func (r *Regexp) FindString(s string) string     { return r.ready().FindString(s) }
func (r *Regexp) FindStringIndex(s string) []int { return r.ready().FindStringIndex(s) }
func (r *Regexp) FindSubmatch(b []byte) [][]byte { return r.ready().FindSubmatch(b) }
func (r *Regexp) FindStringSubmatch(s string) []string {
	return r.ready().FindStringSubmatch(s)
}
func (r *Regexp) FindAllString(s string, n int) []string {
	return r.ready().FindAllString(s, n)
}
func (r *Regexp) FindAllStringSubmatch(s string, n int) [][]string {
	return r.ready().FindAllStringSubmatch(s, n)
}
func (r *Regexp) FindAllStringIndex(s string, n int) [][]int {
	return r.ready().FindAllStringIndex(s, n)
}
func (r *Regexp) ReplaceAllString(s, with string) string {
	return r.ready().ReplaceAllString(s, with)
}

// String returns the expression's text.
func (r *Regexp) String() string { return r.source }
