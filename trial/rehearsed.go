package trial

import (
	"fmt"
	"math"
	"slices"

	"memroom/event"
)

// Rehearsed is what a rehearsal on fake tensors finds out about a setting before anything is
// started.
type Rehearsed struct {
	Tensors   event.Bytes // all of them at the worst moment, wherever they are
	Resident  event.Bytes // of the program itself, whose tensors take nothing in a rehearsal
	Low, High event.Bytes // on a card
	Kept      event.Bytes // weights, gradients and optimizer's state: no remedy makes these smaller
}

// rehearsals are what is known of settings, by what of them may take memory.
type rehearsals struct {
	known map[string]bool
	begun []Params
	// misfit settings: why they cannot be tried at all, or that they need remedies from the start
	hopeless map[string]string
	remedies map[string]bool
}

// ExpectRehearsals lets trials wait until somebody has rehearsed their settings, or ends that.
func (s *Study) ExpectRehearsals(on bool) {
	s.rehearsals = nil
	if on {
		s.rehearsals = &rehearsals{known: map[string]bool{}, hopeless: map[string]string{},
			remedies: map[string]bool{}}
	}
}

// awaits reports whether a trial must be rehearsed first. One that has run already need not be, nor
// one whose size follows from those of others.
func (s *Study) awaits(t *Trial) bool {
	if s.rehearsals == nil || len(t.Attempts) > 0 || s.rehearsals.known[sizeKey(t.Params)] {
		return false
	}
	_, follows := s.learns().ahead.bytes(t.Params)
	return !follows
}

// early is the trial that need not wait for its rehearsal: nothing is known yet, so it has the card
// to itself as long as the first rehearsals take. It is the largest, as far as whole numbers tell:
// what is large leaves the least of the card idle, and is what others are packed around.
func (s *Study) early() (largest *Trial) {
	if s.rehearsals == nil || s.Options.GPUs == 0 || len(s.running) > 0 ||
		s.Device.Count() > 0 || len(s.rehearsals.known) > 0 {
		return nil
	}
	for _, t := range s.waiting[:min(window, len(s.waiting))] {
		if largest == nil {
			largest = t
			continue
		}
		larger, _ := sizes(t.Params, largest.Params, false)
		if smaller, _ := sizes(largest.Params, t.Params, false); larger > smaller {
			largest = t
		}
	}
	return largest
}

// besideCard is host memory of a program that uses a card, and does not in its rehearsal: libraries
// and their kernels, pinned buffers.
const besideCard = 2 * event.GiB

// sizesOpen reports whether the next rehearsals may tell the size of all trials that wait. The
// largest are to begin first: where reservations stay what they are small ones leave them no room.
func (s *Study) sizesOpen() bool {
	return len(s.learns().ahead.seen) < trusted && slices.ContainsFunc(s.waiting, s.awaits)
}

// learns is the memory that rehearsals are about.
func (s *Study) learns() *Memory {
	if s.Options.GPUs > 0 {
		return &s.Device
	}
	return &s.Host
}

// Unrehearsed is the next trial whose settings should be rehearsed, once for all that are alike;
// nil: there is none. It is the one that differs most from those before: a few of them then
// tell the others, the largest among them.
func (s *Study) Unrehearsed() (next *Trial) {
	farthest := -1.0
	for _, t := range s.waiting[:min(window, len(s.waiting))] {
		if !s.awaits(t) {
			continue
		}
		away := 0.0
		for i, before := range s.rehearsals.begun {
			if d := apart(t.Params, before); i == 0 || d < away {
				away = d
			}
		}
		if len(s.rehearsals.begun) == 0 {
			away, _ = sizes(t.Params, s.waiting[0].Params, false)
		} else if away == 0 {
			continue
		}
		if away > farthest {
			next, farthest = t, away
		}
	}
	if next != nil {
		s.rehearsals.begun = append(s.rehearsals.begun, next.Params)
	}
	return next
}

// apart is how much two settings differ in what may take memory: numbers by their ratio.
func apart(p, q Params) (d float64) {
	for _, knob := range p {
		other, _ := q.Get(knob.Name)
		if isRate(knob.Name) || knob.Value.String() == other.String() {
			continue
		}
		a, number := knob.Value.Float()
		if b, both := other.Float(); number && both && a > 0 && b > 0 {
			d += math.Abs(math.Log(a / b))
			continue
		}
		d++
	}
	return d
}

// Rehearsed takes the result of a rehearsal. Settings that cannot fit are skipped from now on.
// Where remedies may help, the trial begins with them. With nil there is no result, and the trial
// just runs.
func (s *Study) Rehearsed(p Params, r *Rehearsed, c Capacity) {
	if s.rehearsals == nil {
		return
	}
	key := sizeKey(p)
	s.rehearsals.known[key] = true
	if r == nil {
		return
	}
	why, kept := s.misfit(*r, c)
	switch {
	case why == "":
		if s.Options.GPUs > 0 {
			s.Device.Foresee(p, r.High)
			for _, l := range s.running {
				if sizeKey(l.trial.Params) == key && l.device > r.High {
					l.device = max(r.High, l.peakDev)
				}
			}
		}
		if beside := r.Tensors; r.Resident > 0 {
			if s.Options.GPUs > 0 {
				beside = besideCard
			}
			s.Host.Foresee(p, r.Resident+beside)
		}
	case s.Options.Fit && !kept:
		s.rehearsals.remedies[key] = true
		for _, t := range s.waiting {
			if len(t.Attempts) == 0 && sizeKey(t.Params) == key {
				s.beginWithRemedies(t, c)
			}
		}
	default:
		s.rehearsals.hopeless[key] = why
	}
}

// misfit explains why a setting cannot fit as it is, empty if it may. kept: what no remedy changes
// is too much already.
func (s *Study) misfit(r Rehearsed, c Capacity) (why string, kept bool) {
	if s.Options.GPUs == 0 {
		if r.Tensors <= c.most() {
			return "", false
		}
		return fmt.Sprintf("not tried: its tensors alone take %s by rehearsal, and the study has %s "+
			"of host memory", r.Tensors, c.most()), r.Kept > c.most()
	}
	var most event.Bytes
	for _, card := range c.Cards {
		most = max(most, card.Budget)
	}
	if most == 0 || r.Low <= most {
		return "", false
	}
	return fmt.Sprintf("not tried: it takes %s to %s of a card by rehearsal, and there are %s", r.Low,
		r.High, most), r.Kept > most
}

// beginWithRemedies starts a trial with all memory and the remedies of --fit at its first attempt.
func (s *Study) beginWithRemedies(t *Trial, c Capacity) {
	t.fit = true
	if s.Options.GPUs == 0 {
		t.host = c.most()
		return
	}
	for _, card := range c.Cards {
		t.device = max(t.device, card.Budget)
	}
}

// unfit returns the reason for which a waiting trial is not tried, after a rehearsal.
func (s *Study) unfit(t *Trial) string {
	if s.rehearsals == nil {
		return ""
	}
	return s.rehearsals.hopeless[sizeKey(t.Params)]
}
