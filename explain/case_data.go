package explain

import (
	"fmt"
	"strings"

	"memroom/event"
	"memroom/lazyregexp"
	"memroom/remedy"
)

// Code and names that show data on its way to a card while all of it is read.
var (
	movesOne = lazyregexp.New(`\.(?:to|cuda)\((?:[\w.]*device\w*|["']cuda|\s*\)|torch\.device)|device\s?=\s?[\w.]*device|\.cuda\(\)`)
	readsAll = lazyregexp.New(`(?i)^_?(?:load|read|build|make|prepare|get|create)_?\w*(?:data|camera|image|frame|sample|scene|view|ray|file|set|cam)\w*$|^(?:load\w*|cameralist\w*|readcolmap\w*)$`)
	ofWeight = lazyregexp.New(`(?i)model|net\b|module|state_dict|weight|encoder|optim`)
)

// dataOnCard: a line that moves one sample to the card runs while all samples are read, before any
// step: the whole data set is to lie there.
func dataOnCard(f *Facts, s Sums) (judged, bool) {
	c := f.Crash
	if c.Where != event.WhereGPU || c.Framework != "pytorch" || c.Steps > 0 || len(c.Frames) == 0 ||
		passIn(c.Frames) || s.Asked > s.Capacity/4 {
		return judged{}, false
	}
	mover, reader := -1, -1
	for i := range min(len(c.Frames), 8) {
		line := ""
		if i < len(c.Code) {
			line = c.Code[i]
		}
		if mover < 0 && !installed.MatchString(c.Frames[i].File) && movesOne.MatchString(line) &&
			!ofWeight.MatchString(line) {
			mover = i
		}
		if reader < 0 && i <= 4 && (readsAll.MatchString(c.Frames[i].Name) ||
			strings.Contains(line, ".append(")) {
			reader = i
		}
	}
	if mover < 0 || reader < 0 || reader < mover {
		return judged{}, false
	}
	at := c.Frames[mover]
	j := because(CauseHostData, "data_on_card", 0.7,
		"%s:%d moves one sample to the card, and %s does so for all of them before the first step", base(at.File),
		at.Line, c.Frames[reader].Name).
		saying("all samples are put on the card while they are read")
	j.frame = mover
	j.cures = []remedy.ID{remedy.StreamData, remedy.SmallerImage}
	if f.Tool == nil || f.Tool.set[remedy.StreamData] == "" {
		j.typed = map[remedy.ID]string{remedy.StreamData: fmt.Sprintf(
			"keep them in host memory at %s:%d, and call .to(device) on one batch where it is used", base(at.File), at.Line)}
	}
	return j, true
}

// smallArray: a small array is refused in host memory. What was read or kept before fills it, and
// the message shows of what type its values are.
func smallArray(f *Facts, s Sums) (judged, bool) {
	c := f.Crash
	m := printedShape.FindStringSubmatch(c.Text)
	if m == nil || !onHost(c) || s.Asked == 0 || s.Asked >= largeRequest {
		return judged{}, false
	}
	wide := m[2] == "float64" || m[2] == "int64" || m[2] == "complex128"
	reads := false
	for i := range min(len(c.Frames), 4) {
		reads = reads || readsAll.MatchString(c.Frames[i].Name)
	}
	grows := f.says("replay", "buffer", "episode", "experience") || risesSaid.MatchString(f.text)
	if !reads && !grows {
		return judged{}, false
	}
	j := because(CauseHostData, "kept_arrays", 0.6,
		"%s is one of many: memory was full of arrays like it before", s.Asked).
		saying("arrays that are kept, of (%s) %s, fill it", m[1], first(m[2], "values"))
	half := ""
	if wide {
		half = "; .astype(np.float32) halves each, and uint8 is an eighth where the values allow it"
		j = j.also("its values are %s, 8 bytes each", m[2])
	}
	if reads {
		j.cures = []remedy.ID{remedy.StreamData}
		j.typed = map[remedy.ID]string{remedy.StreamData: "read each sample when it is used (a Dataset with __getitem__, a generator), not all into a " +
			"list" + half}
		return j, true
	}
	j.cures = []remedy.ID{remedy.SmallerBuffer, remedy.KeepLess}
	if _, own := f.ownKey(remedy.SmallerBuffer); !own {
		j.typed = map[remedy.ID]string{remedy.SmallerBuffer: "a smaller buffer (buffer_size, capacity) or fewer episodes kept" + half,
			remedy.KeepLess: "keep less of each step" + half}
	}
	return j, true
}

// risesSaid is what people write who watched host memory rise, in the languages of many trackers.
var risesSaid = lazyregexp.New(`(?:memory|ram)\b[^.\n]{0,60}(?:increas|grow|ris|climb|accumulat|fills? up|goes up)\w*|内存[^。\n]{0,30}(?:增加|增长|上升|越来越|占满)|memoria[^.\n]{0,30}(?:aument|crec)|память[^.\n]{0,30}(?:раст|увелич)`)
