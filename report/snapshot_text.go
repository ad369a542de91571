package report

import (
	"fmt"
	"path"
	"strings"

	"memroom/allocsim"
	"memroom/diagnose"
	"memroom/event"
)

// SnapshotText writes the report of `memroom snapshot`. groups bounds the call stacks shown.
func SnapshotText(t *Text, file string, warnings []string, devices []Device, groups int) {
	for _, w := range warnings {
		t.linef("%s %s", t.paint("33", "note:"), cleanText(w))
	}
	for i, d := range devices {
		if i > 0 {
			t.linef("")
		}
		t.device(file, d, len(devices) > 1, groups)
	}
}

func (t *Text) device(file string, d Device, several bool, groups int) {
	s := d.Snapshot
	title := cleanText(path.Base(strings.ReplaceAll(file, `\`, "/")))
	if several {
		title += fmt.Sprintf(", device %d", s.Device)
	}
	facts := counted(s.Entries, "entry", "entries") + ", " +
		counted(s.Allocs, "allocation", "allocations")
	if n := len(s.Steps); n > 0 {
		facts += ", " + counted(n, "step", "steps")
	}
	t.linef("%s: %s", t.paint("1", title), facts)
	for _, w := range s.Warnings {
		t.linef("%s %s", t.paint("33", "note:"), cleanText(w))
	}
	t.peaks(s)
	t.failures(s)
	t.composition(s)
	t.groups(s, groups)
	t.growth(s)
	WhatIf(t, d.WhatIf)
}

func (t *Text) peaks(s *diagnose.Snapshot) {
	t.heading("Peak")
	var rows [][]string
	if s.Entries > 0 {
		rows = append(rows, momentRow("allocated was highest", s.Peak))
		if s.Reserve.At != s.Peak.At {
			rows = append(rows, momentRow("reserved was highest", s.Reserve))
		}
	}
	end := momentRow("at the end", s.End)
	if s.Entries == 0 {
		end[len(end)-1] = "when the snapshot was taken"
	}
	rows = append(rows, end)
	t.table([]string{"when", ">allocated", ">reserved", ">unused", ">longest free", "where"}, rows)
}

func momentRow(name string, m diagnose.Moment) []string {
	where := fmt.Sprintf("entry %s", grouped(m.At))
	if m.At < 0 {
		where = "when recording began"
	}
	if m.Step > 0 {
		where += fmt.Sprintf(", step %d, %s", m.Step, m.Phase)
	} else if m.Phase == "load" {
		where += ", loading"
	}
	if m.Seconds > 0 {
		where += fmt.Sprintf(", after %.2f s", m.Seconds)
	}
	return []string{name, m.Allocated.String(), m.Reserved.String(), m.Unallocated().String(),
		m.LargestFree.String(), where}
}

func (t *Text) failures(s *diagnose.Snapshot) {
	if len(s.OOMs) == 0 {
		return
	}
	t.heading("Ran out of memory")
	for i, o := range s.OOMs {
		if i == 5 {
			t.linef("  and %s more times", grouped(s.OOMCount-5))
			break
		}
		t.sentence("  ", "31", oomSentence(o))
		for _, f := range diagnose.TellingFrames(o.Frames) {
			t.linef("    %s", frameText(f))
		}
	}
}

// oomSentence describes the request that failed and the memory it lacked.
func oomSentence(o diagnose.OOMEvent) string {
	text := fmt.Sprintf("Entry %s: %s were asked for", grouped(int(o.At)), o.Request)
	if o.Category != event.CategoryUnknown {
		text += fmt.Sprintf(" (%s)", o.Category)
	}
	text += fmt.Sprintf(" with %s allocated and %s reserved. ", o.Allocated, o.Reserved)
	unused := o.Reserved - o.Allocated
	switch {
	case o.Fragmented:
		text += fmt.Sprintf("This is fragmentation: %s was reserved and unused, and %s more could be "+
			"taken from the card, but the longest free piece was %s.",
			unused, o.Room, o.LargestFree)
	case o.Missing > 0:
		text += fmt.Sprintf("It was short of %s even with every unused byte (%s) in one piece.",
			o.Missing, unused)
	default:
		text += fmt.Sprintf("The longest free piece was %s.", o.LargestFree)
	}
	if o.Limited {
		text += fmt.Sprintf(" The card had %s free: a limit of the process stopped it, somewhere between "+
			"%s and %s.", o.DeviceFree, o.LimitLow, o.LimitHigh)
	}
	return text
}

func (t *Text) composition(s *diagnose.Snapshot) {
	t.heading("What held memory at the peak, by category")
	t.categories(s.Categories)
	if n := len(s.OOMs); n > 0 && int(s.OOMs[n-1].At) > s.Peak.At+1 {
		t.heading("What held memory when it ran out, by category")
		t.categories(s.OOMs[n-1].Categories)
	}
}

func (t *Text) categories(shares []diagnose.CategoryShare) {
	var total event.Bytes
	for _, c := range shares {
		total += c.Bytes
	}
	var rows [][]string
	for _, c := range shares {
		rows = append(rows, []string{c.Category.String(), c.Bytes.String(),
			percent(float64(c.Bytes), float64(total)), grouped(c.Blocks),
			sureness(c.Category, c.Confidence)})
	}
	t.table([]string{"category", ">bytes", ">share", ">blocks", "how sure"}, rows)
}

// sureness puts a confidence in words; the figure is in the JSON.
func sureness(c event.Category, confidence float64) string {
	switch {
	case c == event.CategoryUnknown:
		return ""
	case confidence >= 0.85:
		return "sure"
	case confidence >= 0.65:
		return "likely"
	default:
		return "a guess"
	}
}

func (t *Text) groups(s *diagnose.Snapshot, limit int) {
	if len(s.Groups) == 0 || limit == 0 {
		return
	}
	t.heading("What held memory at the peak, by call stack")
	var rows [][]string
	for i, g := range s.Groups {
		if i == limit {
			var rest event.Bytes
			for _, g := range s.Groups[i:] {
				rest += g.Bytes
			}
			rows = append(rows, []string{rest.String(), percent(float64(rest),
				float64(s.AllocatedPeak)), "", "", counted(len(s.Groups)-limit, "more stack",
				"more stacks") + " (--top)"})
			break
		}
		rows = append(rows, []string{g.Bytes.String(), percent(float64(g.Bytes),
			float64(s.AllocatedPeak)), grouped(g.Blocks), g.Category.String(), groupText(g)})
	}
	t.table([]string{">bytes", ">share", ">blocks", "category", "call stack, innermost first"},
		rows)
}

func groupText(g diagnose.StackGroup) string {
	var names []string
	for _, f := range diagnose.TellingFrames(g.Frames) {
		names = append(names, frameText(f))
	}
	switch {
	case len(names) > 0:
		return strings.Join(names, " < ")
	case g.Older:
		return "(made before recording began)"
	default:
		return "(no Python stack: the autograd engine or a library)"
	}
}

func frameText(f event.Frame) string {
	file := f.File
	if diagnose.IsLibrary(f) {
		file = path.Base(strings.ReplaceAll(f.File, `\`, "/"))
	}
	return cleanText(fmt.Sprintf("%s:%d %s", file, f.Line, shortName(f.Name)))
}

// shortName leaves out the arguments of a C++ function.
func shortName(name string) string {
	name = strings.ReplaceAll(name, "(anonymous namespace)::", "")
	if i := strings.IndexByte(name, '('); i > 0 && strings.Contains(name, "::") {
		return name[:i]
	}
	return name
}

func (t *Text) growth(s *diagnose.Snapshot) {
	g := s.Growth
	if len(s.Steps) == 0 {
		return
	}
	t.heading("From step to step")
	if g == nil {
		n := len(s.Steps)
		if n < 9 {
			t.linef("  Too few steps to tell growth from warming up: %s recorded, 9 needed.",
				grouped(n))
			return
		}
		first, last := s.Steps[2], s.Steps[n-2] // the last one may hold the clean-up
		t.linef("  Does not grow: the least allocated was %s in step %d and %s in step %d.",
			first.Floor, first.Step, last.Floor, last.Step)
		return
	}
	t.linef("  %s", t.paint("31",
		fmt.Sprintf("Grows by %s a step: the least allocated reached %s in step %d.", g.PerStep,
			g.Floor, g.LastStep)))
	var rows [][]string
	for _, s := range g.Suspects {
		rows = append(rows, []string{s.Bytes.String(), grouped(s.Blocks), s.Category.String(),
			groupText(s)})
	}
	if len(rows) > 0 {
		t.linef("  Made in step after step and kept:")
		t.table([]string{">bytes a step", ">blocks a step", "category",
			"call stack, innermost first"}, rows)
	}
}

// WhatIf writes what a recording would have needed under other settings.
func WhatIf(t *Text, w *allocsim.Table) {
	if w == nil || len(w.Outcomes) == 0 {
		return
	}
	t.heading("The same program under other allocator settings")
	var rows [][]string
	for _, r := range w.Outcomes {
		reserved := r.ReservedPeak.String()
		if r.Spread > 0 {
			reserved += " (±" + r.Spread.String() + ")"
		}
		rows = append(rows, []string{confName(r.Conf), reserved, r.Overhead.String(),
			grouped(int(r.Retries)), yesNo(r.OOM), outcomeNote(r)})
	}
	t.table([]string{"settings", ">peak reserved", ">overhead", ">retries", ">out of memory", ""},
		rows)
	if w.Reason != "" {
		t.sentence("  ", "", cleanText(w.Reason))
	}
}

func confName(conf string) string {
	if conf == "" {
		return "default"
	}
	return cleanText(conf)
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func outcomeNote(r allocsim.Outcome) string {
	var notes []string
	if r.Recorded {
		notes = append(notes, "as recorded")
	}
	if r.Recommended {
		notes = append(notes, "recommended")
	}
	return strings.Join(notes, ", ")
}
