package diagnose

import (
	"fmt"
	"path"

	"memroom/event"
)

// Checkpoint is one that a process has loaded; Kept is the part of it that still lives some steps
// later.
type Checkpoint struct {
	Bytes  event.Bytes
	Card   event.Bytes // of them on a card
	Kept   event.Bytes
	Whole  string // the file of a table or an array, which a rank has read instead
	File   string // where it was loaded
	Line   int
	Holder Holder
}

// Saved is a checkpoint that a process has just saved, while all that it was made of was there.
type Saved struct {
	Bytes  event.Bytes // of its tensors
	Copied event.Bytes // of those: copies of weights and optimizer state, in host memory
	Built  event.Bytes // of a file that was built in host memory
	Pages  event.Bytes // that the process held at that moment
	Heap   event.Bytes // and what it held by malloc, 0 unknown
	File   string      // where it was saved
	Line   int
}

// hostMost is the most that a process has held of host memory in training, at the ends of steps and
// where backward passes begin. Pages come and go as malloc finds room; what it has given does not.
type hostMost struct{ pages, heap event.Bytes }

func (m *hostMost) step(row event.Step) {
	m.pages = max(m.pages, row.Anonymous)
	m.heap = max(m.heap, row.Heap)
	if row.Device == event.HostDevice && row.Heap > 0 {
		m.pages = max(m.pages, row.Anonymous+row.AtBackward-row.Heap)
		m.heap = max(m.heap, row.AtBackward)
	}
}

// saveShare is the part of training's peak by which a save must lift it.
const saveShare = 0.1

// Saved takes that a process has saved a checkpoint. A copy of the weights matters where it lifts
// the process above what training needs; one that stays between saves is part of that.
func (w *Watch) Saved(pid int, s Saved) []event.Finding {
	p := w.processes[place{pid, event.HostDevice}]
	if w.loads == nil {
		w.loaded, w.loads = map[int]event.Bytes{}, map[string]bool{}
	}
	where := fmt.Sprintf("%s:%d", path.Base(s.File), s.Line)
	extra := s.Copied + s.Built
	if p == nil || extra < w.worth() || w.loads["save "+where] {
		return nil
	}
	held, most := s.Pages, p.most.pages
	if s.Heap > 0 && p.most.heap > 0 {
		held, most = s.Heap, p.most.heap
	}
	if most == 0 || float64(held-most) < saveShare*float64(most) {
		return nil
	}
	w.loads["save "+where] = true
	return []event.Finding{{Kind: "checkpoint", Detail: "save_copy",
		Severity: event.SeverityWarning, Bytes: extra, Confidence: 0.85,
		Title: fmt.Sprintf("the peak of host memory is in saving a checkpoint (%s): %s", where,
			s.made()),
		Evidence: []string{fmt.Sprintf("process %d held %s when it had saved, and at most %s in "+
			"training", pid, held, most)},
		Remedies: []string{"save_as_it_is"}}}
}

// made describes what was loaded in addition to the model.
func (s Saved) made() string {
	switch {
	case s.Built == 0:
		return fmt.Sprintf("%s are a copy of the weights, made for the file", s.Copied)
	case s.Copied == 0:
		return fmt.Sprintf("%s are the file, built in memory", s.Built)
	}
	return fmt.Sprintf("%s are a copy of the weights, and %s the file, built in memory", s.Copied,
		s.Built)
}

// ranksShare is the part of host memory that ranks may fill with their copies of one checkpoint.
const ranksShare event.Bytes = 5

// Checkpoint takes that a process has loaded a checkpoint, or what it still holds of it.
func (w *Watch) Checkpoint(pid int, c Checkpoint) []event.Finding {
	if w.loaded == nil {
		w.loaded, w.loads = map[int]event.Bytes{}, map[string]bool{}
	}
	where := fmt.Sprintf("%s:%d", path.Base(c.File), c.Line)
	if c.Whole != "" {
		return w.readWhole(pid, c, where)
	}
	if c.Kept > 0 {
		if c.Kept < w.worth() || w.loads[where] {
			return nil
		}
		w.loads[where] = true
		return []event.Finding{c.kept(where)}
	}
	w.loaded[pid] = max(w.loaded[pid], c.Bytes-c.Card)
	var sum event.Bytes
	for _, bytes := range w.loaded {
		sum += bytes
	}
	if len(w.loaded) < 2 || w.wall == 0 || sum < w.wall/ranksShare || w.loads["ranks"] {
		return nil
	}
	w.loads["ranks"] = true
	return []event.Finding{{Kind: "checkpoint", Detail: "ranks_load",
		Severity: event.SeverityWarning, Bytes: sum, Confidence: 0.85,
		Title: fmt.Sprintf("each of %d processes loads the whole checkpoint into host memory: %s (%s)",
			len(w.loaded), sum.Of(w.wall), where),
		Remedies: []string{"load_once", "shard_at_load"}}}
}

// readWhole judges a file that a rank has read into host memory: the same one in several ranks is
// there as often.
func (w *Watch) readWhole(pid int, c Checkpoint, where string) []event.Finding {
	if w.wholes == nil {
		w.wholes = map[string]map[int]event.Bytes{}
	}
	if w.wholes[c.Whole] == nil {
		w.wholes[c.Whole] = map[int]event.Bytes{}
	}
	ranks := w.wholes[c.Whole]
	ranks[pid] = max(ranks[pid], c.Bytes)
	var sum event.Bytes
	for _, bytes := range ranks {
		sum += bytes
	}
	if len(ranks) < 2 || w.wall == 0 || sum < w.wall/ranksShare || w.loads["whole "+c.Whole] {
		return nil
	}
	w.loads["whole "+c.Whole] = true
	f := event.Finding{Kind: "checkpoint", Detail: "ranks_read", Severity: event.SeverityWarning,
		Bytes: sum, Confidence: 0.85,
		Title: fmt.Sprintf("each of %d processes reads the whole of %s into host memory: %s (%s)",
			len(ranks), path.Base(c.Whole), sum.Of(w.wall), where),
		Remedies: []string{"map_file", "stream_data"}}
	return []event.Finding{f}
}

func (c Checkpoint) kept(where string) event.Finding {
	memory := "host memory"
	if 2*c.Card > c.Bytes {
		memory = "the card"
	}
	f := event.Finding{Kind: "checkpoint", Detail: "resumed", Severity: event.SeverityWarning,
		Bytes: c.Kept, Confidence: 0.9,
		Title: fmt.Sprintf("the checkpoint that was loaded at %s is still held in addition to the model: %s "+
			"of %s", where, c.Kept, memory),
		Evidence: []string{fmt.Sprintf("%s were loaded; training has gone on since", c.Bytes)},
		Remedies: []string{"load_to_host"}}
	if c.Holder.Name != "" {
		f.Title += fmt.Sprintf(", by `%s` (%s:%d)", c.Holder.Name, path.Base(c.Holder.File),
			c.Holder.Line)
	}
	if c.Card > 0 {
		f.Evidence = append(f.Evidence, fmt.Sprintf("%s of it went to the card: map_location puts "+
			"it into host memory", c.Card))
	}
	return f
}
