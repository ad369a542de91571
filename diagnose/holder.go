package diagnose

import (
	"fmt"
	"path"
	"strings"
	"time"

	"memroom/event"
)

// Holder is a variable of the program that holds more and more: itself, or by the autograd graphs
// that its tensors keep.
type Holder struct {
	Name  string // such as trainer.history
	Kind  string // such as "list of 120"
	File  string
	Line  int         // where it grows
	Code  string      // that line, empty where it was not seen
	Host  event.Bytes // growth since the look before, in host memory
	Card  event.Bytes // and on cards
	Nodes int64       // of graphs
	// modules and models that came, their parts among them
	Models int64
	// it has an end, reached or not, such as deque(maxlen=50), or the loop empties it now and then
	Fills bool
	At    int64 // the step at which Kind was so, where it is long past; 0: now
}

// String names the holder as a finding does: `history` (list of 120, train.py:10).
func (h Holder) String() string {
	var parts []string
	if h.Kind != "" {
		kind := h.Kind
		if h.At > 0 {
			kind += fmt.Sprintf(" at step %d", h.At)
		}
		parts = append(parts, kind)
	}
	if h.Nodes > 0 {
		parts = append(parts, "with its graph")
	}
	if h.File != "" {
		parts = append(parts, fmt.Sprintf("%s:%d", path.Base(h.File), h.Line))
	}
	return fmt.Sprintf("`%s` (%s)", h.Name, strings.Join(parts, ", "))
}

func (h Holder) evidence() string {
	var grew []string
	if h.Host > 0 {
		grew = append(grew, h.Host.String()+" in host memory")
	}
	if h.Card > 0 {
		grew = append(grew, h.Card.String()+" on the card")
	}
	if h.Nodes > 0 {
		grew = append(grew, fmt.Sprintf("%d nodes of an autograd graph", h.Nodes))
	}
	place := fmt.Sprintf("%s:%d", h.File, h.Line)
	if h.Code != "" {
		place += fmt.Sprintf(" (`%s`)", h.Code)
	}
	return fmt.Sprintf("the memory is held by %s in %s: %s more between two looks", h.Name, place,
		strings.Join(grew, ", "))
}

// curesOf are the remedies for what is held, and the name of the situation: detaching a tensor that
// has no graph frees nothing, and a loop that trains cannot go without graphs. Nothing where it is
// not known who holds the memory.
func curesOf(held []Holder) (cures []string, detail string) {
	switch {
	case len(held) == 0:
		return nil, ""
	case held[0].Nodes == 0 || strings.Contains(held[0].Kind, "exceptions with"):
		return []string{"keep_less"}, "kept"
	}
	return []string{"detach", "remove_hooks"}, "kept_graph"
}

// both joins two names, or returns the only one.
func both(held []Holder) string {
	text := held[0].String()
	if len(held) > 1 {
		text += " and " + held[1].String()
	}
	return text
}

// Holders takes the variables that hold what grew in a process, what matters most first. built: how
// many models the program has begun.
func (w *Watch) Holders(pid int, held []Holder, built int) []event.Finding {
	var found []event.Finding
	for at, p := range w.processes {
		if at.pid != pid {
			continue
		}
		p.heard, p.built, p.open = true, built, max(0, p.open-1)
		if !p.asked || len(p.holders) > 0 {
			continue
		}
		if p.holders = held; len(held) == 0 {
			p.lookAgain()
			continue
		}
		p.heldAt = p.last.Step
		if p.leak != nil && p.onlyFills(p.last) {
			found = append(found, p.onlyFilled(held[0], at.device))
			continue
		}
		found = append(found, p.again(at.device)...)
	}
	return found
}

// lookAgain has the next step begin another comparison where this one named nobody: what grows may
// have been emptied between two looks, as a list is after each epoch.
func (p *process) lookAgain() {
	if p.open > 0 {
		return // that was the look before, the answer that counts is on its way
	}
	p.heldAt = p.last.Step
	if p.inVain++; p.inVain < fewTimes {
		p.asked, p.looked = false, p.last.Step
	}
}

// searches reports whether the program builds one model after the other and nothing is known to
// hold what grows in host memory. A search whose models become larger looks like that. Models that
// the program keeps are counted and reported as such.
func (p *process) searches(device int) bool {
	const several = 3
	return device == event.HostDevice && p.built >= several && len(p.holding(device)) == 0
}

// waits reports whether the program was asked for its holders and may still answer: it does so
// between two steps, of which many may have been made before they are heard of.
func (p *process) waits(row event.Step) bool {
	const patience = 10 * time.Second
	if row.Device != event.HostDevice || p.looked == 0 || p.heard {
		return false
	}
	return row.Step < p.looked+lookSteps || row.End.Sub(p.lookedAt) < patience && !row.End.IsZero()
}

// outdated reports whether a rise began after the program was asked for its holders: the answer was
// about another rise, such as a list that was emptied since.
func (p *process) outdated(t Trend) bool {
	return p.heldAt > 0 && t.Onset > p.heldAt
}

// forget drops the known holders, so that the next rise is looked at anew.
func (p *process) forget() {
	p.holders, p.frames, p.looked, p.asked, p.heard = nil, nil, 0, false, false
	p.heldAt, p.open, p.inVain = 0, 0, 0
}

// onlyFills reports whether a bounded cache grew: it fills, or has just been filled. It
// is looked at again when twice as many steps have passed: what grows then is something else.
func (p *process) onlyFills(row event.Step) bool {
	if held := p.holding(row.Device); len(held) > 0 && held[0].Fills {
		p.forget()
		p.quiet = 2 * row.Step
	}
	return p.quiet > 0 && row.Step < p.quiet+3*lookSteps
}

// onlyFilled takes a leak back that was said before it was known who holds the memory.
func (p *process) onlyFilled(h Holder, device int) event.Finding {
	f := p.leakFinding(*p.leak, device)
	f.Severity, f.Remedies, f.Confidence, f.Evidence = event.SeverityInfo, nil, 0.5, nil
	f.Title = fmt.Sprintf("no leak in %s: %s has an end and fills", p.name(device), h)
	p.leak = nil
	return f
}

// holding are the holders of what grows on a device: those that hold some of it, or its graphs.
func (p *process) holding(device int) []Holder {
	var held []Holder
	for _, h := range p.holders {
		here := h.Card
		if device == event.HostDevice {
			here = h.Host
		}
		if here > 0 || h.Nodes > 0 {
			held = append(held, h)
		}
	}
	return held
}
