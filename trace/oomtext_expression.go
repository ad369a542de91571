package trace

import "memroom/lazyregexp"

// expression and later keep the tables of words short: what they name is in package lazyregexp.
type expression = lazyregexp.Regexp

func later(source string) *expression { return lazyregexp.New(source) }
