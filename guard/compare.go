package guard

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"memroom/event"
	"memroom/plan"
)

// Difference is what a change of the code did to memory. Bytes are now less before.
type Difference struct {
	Device     event.Bytes `json:"device"`
	Allocated  event.Bytes `json:"allocated"`
	Reserved   event.Bytes `json:"reserved"`
	Categories []Part      `json:"categories"` // those that differ, most first
	Phases     []Part      `json:"phases"`     // in order; allocated bytes
	Lines      []LineMove  `json:"lines"`      // source lines whose bytes at the peak differ, most first
	Changes    []Change    `json:"changes"`    // changed places that the run has read, likeliest first
	Effects    []Effect    `json:"effects,omitempty"`
}

// Part is one category or phase before and now.
type Part struct {
	Name   string      `json:"name"`
	Before event.Bytes `json:"before"`
	Now    event.Bytes `json:"now"`
}

// More is how much was added.
func (p Part) More() event.Bytes { return p.Now - p.Before }

// LineMove is a source line before and now.
type LineMove struct {
	Line     string      `json:"line,omitempty"` // as it is now; empty where the line is gone
	Was      string      `json:"was,omitempty"`  // its place before, where that is another
	Before   event.Bytes `json:"before"`
	Now      event.Bytes `json:"now"`
	Category string      `json:"category"` // most of what was added or saved
}

// More is how much was added.
func (l LineMove) More() event.Bytes { return l.Now - l.Before }

// Place is the line now, or where it was.
func (l LineMove) Place() string { return cmp.Or(l.Line, l.Was) }

// Change is a stretch of lines that the commit changed, in a file that the run has read.
type Change struct {
	Hunk
	// the line with changed bytes that it is nearest to, and how many lines lie between; empty where
	// there is none in this file
	Near   string      `json:"near,omitempty"`
	Apart  int         `json:"apart,omitempty"`
	More   event.Bytes `json:"more,omitempty"` // of that line
	weight float64
}

// Effect is the measured effect of one changed file alone: the old revision with only this file as
// it is now.
type Effect struct {
	File   string      `json:"file"`
	Device event.Bytes `json:"device"`
	Error  string      `json:"error,omitempty"` // why it could not be tried alone
}

// Compare explains the difference of two runs, whose lines and files are named from the root of the
// repository.
func Compare(before, now *plan.Prediction, hunks []Hunk) *Difference {
	d := &Difference{Device: now.DevicePeak - before.DevicePeak,
		Allocated:  now.AllocatedPeak - before.AllocatedPeak,
		Reserved:   now.ReservedPeak - before.ReservedPeak,
		Categories: categories(before, now), Phases: phases(before, now),
		Lines: lines(before, now, hunks)}
	d.Changes = changes(d.Lines, hunks, reads(before, now))
	return d
}

func categories(before, now *plan.Prediction) []Part {
	names := slices.Sorted(maps.Keys(now.Categories))
	for name := range before.Categories {
		if _, both := now.Categories[name]; !both {
			names = append(names, name)
		}
	}
	parts := []Part{}
	for _, name := range names {
		if p := (Part{name, before.Categories[name], now.Categories[name]}); p.More() != 0 {
			parts = append(parts, p)
		}
	}
	slices.SortStableFunc(parts, func(a, b Part) int {
		return cmp.Or(cmp.Compare(abs(b.More()), abs(a.More())), cmp.Compare(a.Name, b.Name))
	})
	return parts
}

func phases(before, now *plan.Prediction) []Part {
	parts := []Part{}
	for _, ph := range now.Phases {
		parts = append(parts, Part{Name: ph.Phase, Now: ph.Allocated})
	}
	for _, ph := range before.Phases {
		i := slices.IndexFunc(parts, func(p Part) bool { return p.Name == ph.Phase })
		if i < 0 {
			i = len(parts)
			parts = append(parts, Part{Name: ph.Phase})
		}
		parts[i].Before = ph.Allocated
	}
	return slices.DeleteFunc(parts, func(p Part) bool { return p.More() == 0 })
}

// lines matches source lines of both revisions, which the commit may have moved.
func lines(before, now *plan.Prediction, hunks []Hunk) []LineMove {
	type both struct{ before, now *plan.LineShare }
	found := map[string]*both{}
	at := func(key string) *both {
		if found[key] == nil {
			found[key] = &both{}
		}
		return found[key]
	}
	for i, l := range now.Lines {
		at(l.Line).now = &now.Lines[i]
	}
	for i, l := range before.Lines {
		at(moved(l.Line, hunks)).before = &before.Lines[i]
	}
	out := []LineMove{}
	for key, b := range found {
		move := LineMove{}
		parts := map[string]event.Bytes{}
		if b.now != nil {
			move.Line, move.Now = b.now.Line, b.now.Bytes
			add(parts, b.now.Category, 1)
		} else if !strings.HasPrefix(key, gone) {
			move.Line = key
		}
		if b.before != nil {
			move.Before = b.before.Bytes
			add(parts, b.before.Category, -1)
			if b.before.Line != move.Line {
				move.Was = b.before.Line
			}
		}
		if move.More() != 0 {
			move.Category = largest(parts)
			out = append(out, move)
		}
	}
	slices.SortFunc(out, func(a, b LineMove) int {
		return cmp.Or(cmp.Compare(abs(b.More()), abs(a.More())), cmp.Compare(a.Place(), b.Place()))
	})
	return out
}

func add(parts, more map[string]event.Bytes, sign event.Bytes) {
	for name, n := range more {
		parts[name] += sign * n
	}
}

func largest(parts map[string]event.Bytes) string {
	best := ""
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		if best == "" || abs(parts[name]) > abs(parts[best]) {
			best = name
		}
	}
	return best
}

// gone begins the key of a line that the commit removed.
const gone = "\x00"

// moved is where a line of the old revision is now.
func moved(line string, hunks []Hunk) string {
	file, n := apart(line)
	shift := 0
	for _, h := range hunks {
		if h.Was != file {
			continue
		}
		last := h.OldFirst + len(h.Removed) - 1
		switch {
		case n > last:
			shift = h.NewFirst + len(h.Added) - (h.OldFirst + len(h.Removed))
			continue
		case n >= h.OldFirst && n-h.OldFirst < len(h.Added): // lines that were rewritten, in order
			return at(h.File, h.NewFirst+n-h.OldFirst)
		case n >= h.OldFirst:
			return gone + line
		}
		break
	}
	for _, h := range hunks {
		if h.Was == file {
			file = h.File
			break
		}
	}
	return at(file, n+shift)
}

// apart is the file and the number of "train.py:12".
func apart(line string) (string, int) {
	i := strings.LastIndexByte(line, ':')
	if i < 0 {
		return line, 0
	}
	n, _ := strconv.Atoi(line[i+1:])
	return line[:i], n
}

func at(file string, n int) string { return file + ":" + strconv.Itoa(n) }

// reads are the files that either run imported or read.
func reads(before, now *plan.Prediction) map[string]bool {
	files := map[string]bool{}
	for _, p := range []*plan.Prediction{before, now} {
		for _, f := range p.Files {
			files[f] = true
		}
	}
	return files
}

// nearby is how many lines away a line's bytes count half.
const nearby = 10

// changes orders the changed places: near to a line whose bytes changed much, then in a file with
// such a line, then in any file that was read.
func changes(moves []LineMove, hunks []Hunk, read map[string]bool) []Change {
	out := []Change{}
	for _, h := range hunks {
		if !read[h.File] && !read[h.Was] || h.blank() {
			continue
		}
		c := Change{Hunk: h}
		for _, m := range moves {
			apart, in := h.distance(m)
			if !in {
				continue
			}
			weight := float64(abs(m.More())) / (1 + float64(apart)/nearby)
			if weight > c.weight {
				c.weight, c.Near, c.Apart, c.More = weight, m.Place(), apart, m.More()
			}
		}
		out = append(out, c)
	}
	slices.SortStableFunc(out, func(a, b Change) int { return cmp.Compare(b.weight, a.weight) })
	return out
}

// ByEffect puts the places of files first that change most when they alone are new.
func (d *Difference) ByEffect(effects []Effect) {
	d.Effects = effects
	slices.SortStableFunc(d.Effects, func(a, b Effect) int {
		return cmp.Compare(abs(b.Device), abs(a.Device))
	})
	weight := map[string]event.Bytes{}
	for _, e := range effects {
		weight[e.File] = abs(e.Device)
	}
	slices.SortStableFunc(d.Changes, func(a, b Change) int {
		return cmp.Compare(weight[b.File], weight[a.File])
	})
}

func abs(n event.Bytes) event.Bytes { return max(n, -n) }

// Same reports whether nothing differs that a reader would care about.
func (d *Difference) Same() bool {
	return d.Device == 0 && d.Allocated == 0 && d.Reserved == 0 && len(d.Phases) == 0
}
