package diagnose

import (
	"fmt"
	"path"

	"memroom/event"
)

// Checkpoint is one that a process has loaded; Kept is what of it still lives beside the model some
// steps later.
type Checkpoint struct {
	Bytes  event.Bytes
	Card   event.Bytes // of them on a card
	Kept   event.Bytes
	File   string // where it was loaded
	Line   int
	Holder Holder
}

// ranksShare is the part of host memory that ranks may fill with their copies of one checkpoint.
const ranksShare event.Bytes = 5

// Checkpoint takes that a process has loaded a checkpoint, or what it still holds of it.
func (w *Watch) Checkpoint(pid int, c Checkpoint) []event.Finding {
	if w.loaded == nil {
		w.loaded, w.loads = map[int]event.Bytes{}, map[string]bool{}
	}
	where := fmt.Sprintf("%s:%d", path.Base(c.File), c.Line)
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
		Title: fmt.Sprintf("each of %d processes loads the whole checkpoint into host memory: %s of "+
			"%s (%s)", len(w.loaded), sum, w.wall, where),
		Remedies: []string{"load_once", "shard_at_load"}}}
}

func (c Checkpoint) kept(where string) event.Finding {
	memory := "host memory"
	if 2*c.Card > c.Bytes {
		memory = "the card"
	}
	f := event.Finding{Kind: "checkpoint", Detail: "resumed", Severity: event.SeverityWarning,
		Bytes: c.Kept, Confidence: 0.9,
		Title: fmt.Sprintf("the checkpoint that was loaded at %s is still held beside the model: %s "+
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
