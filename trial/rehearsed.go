package trial

import (
	"fmt"

	"memroom/event"
)

// Rehearsed is what a rehearsal on fake tensors finds out about a setting before anything is
// started.
type Rehearsed struct {
	Tensors   event.Bytes // all of them at the worst moment, wherever they are
	Low, High event.Bytes // on a card
	Kept      event.Bytes // weights, gradients and optimizer's state: no remedy makes these smaller
}

// rehearsals are what is known of settings, by what of them may take memory.
type rehearsals struct {
	known map[string]bool
	// misfit settings: why they cannot be tried at all, or that they need remedies from the start
	hopeless map[string]string
	remedies map[string]bool
}

// ExpectRehearsals lets trials wait until somebody has rehearsed their settings, or ends that.
func (s *Study) ExpectRehearsals(on bool) {
	s.rehearsals = nil
	if on {
		s.rehearsals = &rehearsals{map[string]bool{}, map[string]string{}, map[string]bool{}}
	}
}

// awaits reports whether a trial must be rehearsed first. One that has run already need not be.
func (s *Study) awaits(t *Trial) bool {
	return s.rehearsals != nil && len(t.Attempts) == 0 && !s.rehearsals.known[sizeKey(t.Params)]
}

// Unrehearsed is the next trial whose settings should be rehearsed; nil: there is none.
func (s *Study) Unrehearsed() *Trial {
	for _, t := range s.waiting {
		if s.awaits(t) {
			return t
		}
	}
	return nil
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
			s.Device.Learn(Observation{Params: p, Bytes: r.High, Running: true})
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
