package trace

import (
	"slices"
	"strings"

	"memroom/event"
)

// shortageWords are PyTorch's "out of memory" where a browser or a person translated it. Capital
// letters of other alphabets are left out, because words are compared in ASCII's lower case.
var shortageWords = []string{"内存不足", "显存不足", "记忆体不足", "記憶體不足",
	"メモリ不足", "メモリが不足", "메모리 부족", "메모리가 부족", "едостаточно памяти", "ехватка памяти",
	"ехватило памяти", "mémoire insuffisante", "mémoire cuda insuffisante", "à court de mémoire",
	"memoria insuficiente", "memoria cuda insuficiente", "sin memoria", "memória insuficiente",
	"sem memória", "nicht genügend speicher", "nicht genug speicher", "kein speicher mehr",
	"speicher erschöpft", "memoria esaurita", "memoria insufficiente", "bellek yetersiz"}

var translatedWords = []entry{{words: shortageWords, endings: []*ending{translated}}}

var (
	translated = &ending{kind: "torch_device", read: readTranslated, frames: true, mayPass: true}
	// onDevice are words that no translation changes
	onDevice = later(`(?i)\bCUDA\b|\bGPU ?\d|CUDA\p{L}|显存`)
	// errorNamed is the class of the exception, which no translation changes either
	errorNamed = later(`(?i)RuntimeError|OutOfMemory|torch\.`)
	anySize    = later(`(?i)(\d[\d,]*\.?\d*)\s?([KMGT]i?B|[MG]i?o)(?:\P{L}|$)`) // Go in French
	// ownBracket opens the figures of messages up to PyTorch 2.0
	ownBracket = later(`(?i)^[^(（]{0,160}[(（]\s?GPU ?\d`)
)

// readTranslated reads the figures by their order, which translations keep: asked for, capacity,
// in use, free and reserved up to PyTorch 2.0; asked for, capacity, free, in the process, in use
// and idle since.
func readTranslated(p *passage) *Crash {
	t := strings.Join(p.following(3), " ")
	lower := strings.ToLower(p.line())
	if !slices.ContainsFunc(shortageWords, func(w string) bool { return strings.Contains(lower, w) }) {
		return nil
	}
	if at := strings.Index(t, p.word); at >= 0 {
		t = t[max(0, at-80):]
	}
	if strings.Contains(t, "Tried to allocate") {
		return nil // a person's words before the message itself, which has a reader of its own
	}
	sizes := anySize.FindAllStringSubmatch(t, 8)
	if !onDevice.MatchString(t) || len(sizes) == 0 && !errorNamed.MatchString(p.line()) {
		return nil
	}
	c := &Crash{Class: Exhausted, Sure: 0.9, Where: event.WhereGPU, Framework: "pytorch"}
	figure := func(i int) *event.Bytes {
		if i >= len(sizes) {
			return nil
		}
		return parseSize(sizes[i][1], strings.Replace(sizes[i][2], "o", "B", 1))
	}
	c.Requested, c.Capacity = figure(0), figure(1)
	if ownBracket.MatchString(t) {
		c.Allocated, c.Free, c.Idle = figure(2), figure(3), minus(figure(4), figure(2))
	} else if len(sizes) >= 5 {
		c.Free, c.Allocated, c.Idle = figure(2), figure(4), figure(5)
	}
	if c.Capacity != nil && c.Allocated != nil && *c.Allocated > *c.Capacity { // another order
		c.Allocated, c.Free, c.Idle = nil, nil, nil
	}
	return c
}
