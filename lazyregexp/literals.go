package lazyregexp

import (
	"regexp/syntax"
	"strings"
)

// shortestLiteral is how many bytes a text must have to be worth looking for: shorter ones stand in
// nearly every log.
const shortestLiteral = 2

// mostLiterals is how many texts are looked for at the most: beyond, the expression itself is as
// fast.
const mostLiterals = 200

// literalsOf returns texts in lower case of which every match of an expression has at least one.
// None where nothing is known: then any text may match. Looking for a text takes a fraction of the
// time of an expression, and most expressions match nothing in most logs.
func literalsOf(source string) []string {
	parsed, err := syntax.Parse(source, syntax.Perl)
	if err != nil {
		return nil
	}
	return needed(parsed.Simplify())
}

// needed are texts of which a match has at least one.
func needed(re *syntax.Regexp) []string {
	switch re.Op {
	case syntax.OpLiteral:
		if text := strings.ToLower(string(re.Rune)); len(text) >= shortestLiteral {
			return []string{text}
		}
	case syntax.OpCapture, syntax.OpPlus:
		return needed(re.Sub[0])
	case syntax.OpRepeat:
		if re.Min > 0 {
			return needed(re.Sub[0])
		}
	case syntax.OpConcat:
		var best []string
		for _, sub := range re.Sub {
			if found := needed(sub); rarer(found, best) {
				best = found
			}
		}
		return best
	case syntax.OpAlternate:
		var all []string
		for _, sub := range re.Sub {
			found := needed(sub)
			if found == nil || len(all)+len(found) > mostLiterals {
				return nil
			}
			all = append(all, found...)
		}
		return all
	}
	return nil
}

// rarer reports whether texts are better to look for than others: what is found seldom is long, and
// few are looked for faster than many.
func rarer(a, b []string) bool {
	if a == nil || b == nil {
		return a != nil
	}
	return shortest(a)*len(b) > shortest(b)*len(a)
}

func shortest(texts []string) int {
	least := len(texts[0])
	for _, text := range texts {
		least = min(least, len(text))
	}
	return least
}
