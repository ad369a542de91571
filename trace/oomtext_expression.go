package trace

import "memroom/lazyregexp"

type expression = lazyregexp.Regexp

func later(source string) *expression { return lazyregexp.New(source) }
