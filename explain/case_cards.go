package explain

import (
	"slices"
	"strings"

	"memroom/event"
	"memroom/remedy"
)

// emptyBeside: a table of cards in the text shows the card as taken and others as empty, and this
// program has little or nothing on its own.
func emptyBeside(f *Facts, s Sums) (judged, bool) {
	c := f.Crash
	rows := cardRows(f.lines)
	if c.Where != event.WhereGPU || len(rows) < 2 || c.Steps > 0 ||
		s.Asked > 0 && max(s.Mine, s.Asked) > s.Capacity/4 {
		return judged{}, false
	}
	var empty []string
	var full *cardRow
	for i, r := range rows {
		switch {
		case r.size == 0:
		case r.used < r.size/20 && !slices.Contains(empty, r.number):
			empty = append(empty, r.number)
		case r.used > r.size*8/10 && full == nil:
			full = &rows[i]
		}
	}
	if len(empty) == 0 || full == nil {
		return judged{}, false
	}
	j := because(CauseNeighbour, "full_before", 0.75,
		"card %s has %s of %s in use, unless this program itself was running when the table was made; card %s is "+
			"empty", full.number, full.used, full.size,
		strings.Join(empty, ", ")).
		saying("another process holds card %s, and card %s is free", full.number, empty[0])
	j.cures = []remedy.ID{remedy.FreeNeighbour}
	j.typed = map[remedy.ID]string{remedy.FreeNeighbour: "CUDA_VISIBLE_DEVICES=" + empty[0] +
		"   # before the command; the program then calls it cuda:0"}
	return j, true
}
