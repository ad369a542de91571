package trace

import (
	"slices"
	"strings"
	"sync"
)

// ending is one kind of message with which programs report an end. read returns nil if the telling
// word means something else.
type ending struct {
	kind    string
	read    func(*passage) *Crash
	frames  bool // a traceback stands above it
	mayPass bool // programs are known to catch it and go on
}

// entry maps words to the endings they announce, in the order in which these are tried.
type entry struct {
	words   []string // lower case, at least six bytes
	endings []*ending
	hint    func(*hintCollector, *passage) // asked a bounded number of times
	follow  func(*hintCollector, *passage) // asked every time: the last one counts; must be cheap
}

// vocabulary is every telling word. The tables stand in the files of each family's readers. It is
// made for the first log: it takes half a MiB, and most processes read none.
var vocabulary = sync.OnceValue(func() *words {
	return newWords(tellings(slices.Concat(
		torchWords, tensorflowWords, jaxWords, deviceWords, pythonWords, kernelWords,
		schedulerWords, workerWords, translatedWords,
		otherWords, hintWords, usageWords(), figureWords, signsFar, farTools())))
})

// both asks one hint after the other; either may be nil.
func both(first, second func(*hintCollector, *passage)) func(*hintCollector, *passage) {
	if first == nil {
		return second
	}
	return func(h *hintCollector, p *passage) {
		first(h, p)
		second(h, p)
	}
}

// tellings joins the entries that share a word.
func tellings(entries []entry) []*telling {
	byText := map[string]*telling{}
	var list []*telling
	for _, e := range entries {
		for _, word := range e.words {
			t := byText[word]
			if t == nil {
				t = &telling{text: word}
				byText[word] = t
				list = append(list, t)
			}
			t.endings = append(t.endings, e.endings...)
			if e.hint != nil {
				t.hint = both(t.hint, e.hint)
			}
			if e.follow != nil {
				t.follow = e.follow
			}
		}
	}
	return inherit(list)
}

// inherit lets a word also use the hints of shorter words that it begins with, because only the
// longest of several words at one place is found. A word that announces an ending or follows the
// log is left as it is.
func inherit(list []*telling) []*telling {
	own := make([]func(*hintCollector, *passage), len(list))
	for i, t := range list {
		own[i] = t.hint
	}
	for _, t := range list {
		if t.hint == nil || len(t.endings) > 0 || t.follow != nil {
			continue
		}
		for i, u := range list {
			if len(u.text) < len(t.text) && strings.HasPrefix(t.text, u.text) && own[i] != nil {
				t.hint = both(own[i], t.hint)
			}
		}
	}
	return list
}
