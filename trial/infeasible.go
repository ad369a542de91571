package trial

import (
	"fmt"
	"slices"
	"strings"

	"memroom/event"
)

// rates are knobs that change how a model learns and never how large it is. Settings that differ in
// these alone take the same memory.
var rates = []string{"lr", "learning_rate", "learningrate", "wd", "weight_decay", "momentum",
	"nesterov", "beta", "beta1", "beta2", "eps", "epsilon", "gamma", "dropout", "seed",
	"label_smoothing", "temperature",
	"warmup", "warmup_ratio", "warmup_steps", "epochs", "num_epochs", "max_steps"}

func isRate(name string) bool {
	name = strings.ToLower(name)
	name = name[strings.LastIndexAny(name, "./")+1:] // optimizer.lr, model/dropout
	return slices.Contains(rates, strings.ReplaceAll(name, "-", "_"))
}

// sizeKey is a setting without its rates: what of it may take memory.
func sizeKey(p Params) string {
	var words []string
	for _, one := range p {
		if !isRate(one.Name) {
			words = append(words, one.Name+"="+one.Value.String())
		}
	}
	return strings.Join(words, " ")
}

// noteTooLarge remembers the settings of a trial that does not fit.
func (s *Study) noteTooLarge(t *Trial) {
	if t.State != Infeasible {
		return
	}
	if s.tooLarge == nil {
		s.tooLarge = map[string]int{}
	}
	if _, known := s.tooLarge[sizeKey(t.Params)]; !known {
		s.tooLarge[sizeKey(t.Params)] = t.ID
	}
}

// Skip ends the waiting trials whose settings are known not to fit, without starting them.
func (s *Study) Skip() []*Trial {
	if len(s.tooLarge) == 0 && s.rehearsals == nil {
		return nil
	}
	var skipped []*Trial
	for _, t := range s.waiting {
		if why := s.unfit(t); why != "" && len(t.Attempts) == 0 {
			t.State, t.Why = Infeasible, why
			skipped = append(skipped, t)
			continue
		}
		if id, known := s.tooLarge[sizeKey(t.Params)]; known && len(t.Attempts) == 0 {
			t.State = Infeasible
			t.Why = fmt.Sprintf("not tried: trial %d did not fit, and nothing that takes memory "+
				"differs", id)
			skipped = append(skipped, t)
		}
	}
	s.waiting = slices.DeleteFunc(s.waiting, func(t *Trial) bool { return t.State.Over() })
	return skipped
}

// Skipped restores a trial that was never started.
func (s *Study) Skipped(id int, why string) {
	t := s.Trials[id]
	t.State, t.Why = Infeasible, why
	s.noteTooLarge(t)
	s.waiting = slices.DeleteFunc(s.waiting, func(w *Trial) bool { return w == t })
}

// Nearest is the finished trial that comes closest to one that does not fit: the fewest knobs that
// may take memory differ, and among those it is the largest. nil: none finished.
func (s *Study) Nearest(t *Trial) *Trial {
	var nearest *Trial
	fewest, largest := 0, event.Bytes(0)
	for _, other := range s.Trials {
		if other.State != Finished || len(other.Attempts) == 0 {
			continue
		}
		last := other.Attempts[len(other.Attempts)-1]
		if last.Outcome == nil || last.Fit {
			continue
		}
		differ, size := 0, last.Outcome.PeakHost+last.Outcome.PeakDevice
		for _, p := range t.Params {
			if v, ok := other.Params.Get(p.Name); sizeKey(Params{p}) != "" &&
				(!ok || v.String() != p.Value.String()) {
				differ++
			}
		}
		if nearest == nil || differ < fewest || differ == fewest && size > largest {
			nearest, fewest, largest = other, differ, size
		}
	}
	return nearest
}
