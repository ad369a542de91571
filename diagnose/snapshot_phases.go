package diagnose

import (
	"strings"

	"memroom/event"
)

// Phase is the part of a training step in which something was allocated.
type Phase uint8

// Phases in the order in which a step goes through them.
const (
	PhaseUnknown Phase = iota
	PhaseLoad
	PhaseForward
	PhaseBackward
	PhaseOptimizer
)

func (p Phase) String() string {
	return [...]string{"unknown", "load", "forward", "backward", "optimizer"}[p]
}

// phaseSpan is a stretch of the recording in one phase, from the entry begin up to but not
// including end.
type phaseSpan struct {
	phase      Phase
	step       int // 0 before the first step
	begin, end int32
	last       int32 // entry of its last allocation
	allocs     int
}

// phases returns what the program was doing when.
type phases struct {
	spans        []phaseSpan
	nextBackward []int // for each span, the next span of that phase after it, or len(spans)
	nextOptimize []int
	stacks       bool // call stacks were recorded, so that their absence means the autograd engine
	optimizer    bool // optimizer steps were recognised: steps are counted by them
}

// findPhases reads the phases from what is recorded: scopes named Optimizer.step (PyTorch writes
// them itself), frames of optimizer files, and allocations without a Python stack, which the
// autograd engine's own thread makes.
func (l *Ledger) findPhases(traits func(event.StackID) trait) *phases {
	p := &phases{}
	recorded := l.Allocs[l.Before:]
	withStack := 0
	for i := range recorded {
		if recorded[i].Stack != 0 && traits(recorded[i].Stack).has(traitFrames) {
			withStack++
		}
	}
	p.stacks = withStack*5 > len(recorded)
	p.collect(l, traits)
	if !p.stacks && p.optimizer {
		p.splitAtPeaks(l)
	}
	p.smooth()
	p.countSteps()
	p.link()
	return p
}

// optimizerScopes are the entry ranges of annotated optimizer steps.
func (l *Ledger) optimizerScopes() (scopes [][2]int32) {
	begin := int32(-1)
	for _, n := range l.Notes {
		if !strings.HasPrefix(n.Name, "Optimizer.step") {
			continue
		}
		if n.Begin {
			begin = n.At
		} else if begin >= 0 {
			scopes = append(scopes, [2]int32{begin, n.At})
			begin = -1
		}
	}
	return scopes
}

// collect makes the spans: each allocation hints at a phase, annotated scopes overrule.
func (p *phases) collect(l *Ledger, traits func(event.StackID) trait) {
	scopes := l.optimizerScopes()
	p.optimizer = len(scopes) > 0
	training := false
	for i := l.Before; i < len(l.Allocs); i++ {
		a := &l.Allocs[i]
		for len(scopes) > 0 && scopes[0][1] <= a.Start {
			p.extend(PhaseOptimizer, scopes[0][0], scopes[0][1], 0)
			scopes = scopes[1:]
		}
		phase := p.hint(traits(a.Stack), training)
		if len(scopes) > 0 && a.Start >= scopes[0][0] {
			phase = PhaseOptimizer
		}
		training = training || phase == PhaseForward || phase == PhaseBackward
		if phase == PhaseOptimizer && !training {
			phase = PhaseLoad // state made when the optimizer was built or loaded
		}
		p.optimizer = p.optimizer || phase == PhaseOptimizer
		p.extend(phase, a.Start, a.Start+1, 1)
	}
	for _, s := range scopes {
		p.extend(PhaseOptimizer, s[0], s[1], 0)
	}
	for i := range p.spans { // no gaps: a span lasts until the next one begins
		if i+1 < len(p.spans) {
			p.spans[i].end = p.spans[i+1].begin
		} else {
			p.spans[i].end = int32(l.Entries)
		}
	}
}

func (p *phases) hint(t trait, training bool) Phase {
	switch {
	case t.has(traitOptimizer):
		return PhaseOptimizer
	case !p.stacks:
		return PhaseUnknown
	case t.has(traitBackward) || !t.has(traitPython): // the autograd engine's thread runs no Python
		return PhaseBackward
	case !training && t.has(traitLoad|traitBuckets):
		return PhaseLoad
	case t.has(traitCheckpoint) && len(p.spans) > 0 &&
		p.spans[len(p.spans)-1].phase == PhaseBackward:
		return PhaseBackward // recomputed there
	default:
		return PhaseForward
	}
}

func (p *phases) extend(phase Phase, begin, end int32, allocs int) {
	if n := len(p.spans); n > 0 && p.spans[n-1].phase == phase {
		p.spans[n-1].end, p.spans[n-1].last = end, end-1
		p.spans[n-1].allocs += allocs
		return
	}
	p.spans = append(p.spans, phaseSpan{phase: phase, begin: begin, end: end, last: end - 1,
		allocs: allocs})
}

// splitAtPeaks divides what lies between optimizer steps at its highest point: memory rises through
// the forward pass and falls through the backward pass. It is used when no stacks were recorded.
func (p *phases) splitAtPeaks(l *Ledger) {
	type high struct {
		at    int32
		bytes int64
	}
	highs := make([]high, len(p.spans))
	span := 0
	l.Walk(func(at int32, allocated int64) {
		for span+1 < len(p.spans) && at >= p.spans[span].end {
			span++
		}
		if at >= 0 && allocated >= highs[span].bytes {
			highs[span] = high{at, allocated}
		}
	})
	var split []phaseSpan
	for i, s := range p.spans {
		if s.phase != PhaseUnknown || highs[i].at <= s.begin {
			split = append(split, s)
			continue
		}
		split = append(split, phaseSpan{PhaseForward, 0, s.begin, highs[i].at, highs[i].at,
			s.allocs}, phaseSpan{PhaseBackward, 0, highs[i].at, s.end, s.last, s.allocs})
	}
	p.spans = split
}

// smooth takes a lone allocation without a stack in the middle of a forward pass for what it is,
// not a backward pass; and the user's own lines between two parts of an optimizer step (clipping,
// logging of norms) for a part of that step.
func (p *phases) smooth() {
	kept := p.spans[:0]
	between := func(i int, phase Phase) bool {
		return i > 0 && i+1 < len(p.spans) && p.spans[i-1].phase == phase &&
			p.spans[i+1].phase == phase
	}
	for i, s := range p.spans {
		switch {
		case s.phase == PhaseBackward && s.allocs < 3 && between(i, PhaseForward):
			s.phase = PhaseForward
		case s.phase == PhaseForward && s.allocs < 16 && between(i, PhaseOptimizer):
			s.phase = PhaseOptimizer
		}
		if n := len(kept); n > 0 && kept[n-1].phase == s.phase {
			kept[n-1].end, kept[n-1].last = s.end, s.last
			kept[n-1].allocs += s.allocs
			continue
		}
		kept = append(kept, s)
	}
	p.spans = kept
}

// countSteps numbers the steps from 1: one ends with each optimizer span, or, where no optimizer
// was seen, with each backward span.
func (p *phases) countSteps() {
	last := PhaseBackward
	if p.optimizer {
		last = PhaseOptimizer
	}
	step, ended := 0, true
	for i := range p.spans {
		s := &p.spans[i]
		if ended && (s.phase == PhaseForward || s.phase == PhaseBackward) {
			step++
			ended = false
		}
		s.step = step
		ended = ended || s.phase == last
	}
}

func (p *phases) link() {
	n := len(p.spans)
	p.nextBackward, p.nextOptimize = make([]int, n+1), make([]int, n+1)
	backward, optimize := n, n
	p.nextBackward[n], p.nextOptimize[n] = n, n
	for i := n - 1; i >= 0; i-- {
		p.nextBackward[i], p.nextOptimize[i] = backward, optimize
		switch p.spans[i].phase {
		case PhaseBackward:
			backward = i
		case PhaseOptimizer:
			optimize = i
		}
	}
}

// begin returns the entry where span i starts, and the end of time for a span that does not exist.
func (p *phases) begin(i int) int32 {
	if i >= len(p.spans) {
		return Never
	}
	return p.spans[i].begin
}

// marks returns the phases in the words of package event.
func (p *phases) marks() []event.Mark {
	marks := make([]event.Mark, len(p.spans))
	for i, s := range p.spans {
		marks[i] = event.Mark{At: int(s.begin), Step: s.step, Phase: s.phase.String()}
	}
	return marks
}

// steps is the number of steps seen, whole or in part.
func (p *phases) steps() int {
	if len(p.spans) == 0 {
		return 0
	}
	return p.spans[len(p.spans)-1].step
}
