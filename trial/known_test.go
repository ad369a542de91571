package trial

import (
	"slices"
	"testing"
)

// TestVacate: what a trial has reserved is free once its processes have ended, and only once enough
// is known about the memory of trials.
func TestVacate(t *testing.T) {
	s := NewStudy(Options{})
	l := &live{reserved: 5, upper: 7, used: 3, held: true, device: 11}
	s.running[4] = l
	if s.Vacate(4) || l.gone || l.reserved != 5 {
		t.Errorf("nothing is known yet, and it is free: %+v", *l)
	}
	s.Host.seen = slices.Grow(s.Host.seen, trusted)[:trusted]
	if !s.Vacate(4) {
		t.Error("it stays reserved")
	}
	if !l.gone || l.had != 5 || l.reserved != 0 || l.upper != 0 || l.used != 0 || l.held ||
		l.device != 11 {
		t.Errorf("after it: %+v", *l)
	}
	if s.Vacate(4) || l.had != 5 {
		t.Errorf("freed twice: %+v", *l)
	}
	if s.Vacate(5) {
		t.Error("a trial that does not run was freed")
	}
}

// TestEveryValueIsTriedOnRequestOnly: only the words of a grid make one of a list of values.
func TestEveryValueIsTriedOnRequestOnly(t *testing.T) {
	list := []any{1, 2, 4}
	for name, c := range map[string]struct {
		table map[string]any
		grid  bool
	}{
		"values":        {map[string]any{"values": list}, false},
		"choices":       {map[string]any{"choices": list}, false},
		"categorical":   {map[string]any{"values": list, "distribution": "categorical"}, false},
		"grid_search":   {map[string]any{"grid_search": list}, true},
		"a type":        {map[string]any{"values": list, "type": "Grid"}, true},
		"a sampler":     {map[string]any{"options": list, "sampler": "grid_search"}, true},
		"probabilities": {map[string]any{"values": list, "probabilities": []any{0.5, 0.25, 0.25}}, false},
	} {
		d, err := wandbDomain(c.table)
		if err != nil || d.Grid != c.grid || len(d.Values) != len(list) ||
			(len(d.Weights) > 0) != (name == "probabilities") {
			t.Errorf("%s: %+v, %v; want a grid: %v", name, d, err, c.grid)
		}
	}
	for _, word := range []string{"constant", "categorical", "choice", "nonsense"} {
		if _, err := wandbDomain(map[string]any{"distribution": word}); err == nil {
			t.Errorf("%s without values was taken", word)
		}
	}
	one, err := wandbDomain(map[string]any{"value": 7})
	if err != nil || len(one.Values) != 1 || one.Grid {
		t.Errorf("a constant: %+v, %v", one, err)
	}
}
