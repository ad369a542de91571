package plan

import (
	"fmt"

	"memroom/event"
)

// tooFlat is how many times a value may grow without anything more being needed. A little may fall
// into the same segments.
const tooFlat = 4

// Largest finds the largest value of one of the script's own arguments, such as its batch size,
// with which the script fits the target. The receiver was rehearsed at from; every other value is
// rehearsed again, so that the answer is as good as any other rehearsal's.
func (r *Rehearsal) Largest(t Target, from, limit int64, again func(value int64) (*Rehearsal,
	error)) (int64, error) {
	r.loads(&t)
	s := &rehearsedSearch{target: &t, again: again}
	first, err := r.verdict(&t)
	if err != nil {
		return 0, err
	}
	s.grew, s.need = from, first.need
	s.last, s.lastNeed = from, first.need
	n := t.largest(0, from, first, limit, s.try)
	return n, s.err
}

// rehearsedSearch tries values; after an error nothing fits, so that the search ends soon.
type rehearsedSearch struct {
	target *Target
	again  func(int64) (*Rehearsal, error)
	grew   int64       // the largest value at which more was needed than before
	need   event.Bytes // at it
	err    error

	last     int64 // the value tried before
	lastNeed event.Bytes
}

func (s *rehearsedSearch) try(value int64) verdict {
	if s.err != nil {
		return verdict{}
	}
	v, err := s.rehearse(value)
	switch {
	case err != nil:
		s.err = err
	case v.need > s.need && value > s.grew:
		s.grew, s.need = value, v.need
	case value >= tooFlat*s.grew:
		s.err = fmt.Errorf("at %d the script needs no more than at %d: does it use the argument, and has "+
			"it data for so large a batch?", value, s.grew)
	}
	if s.err != nil {
		return verdict{}
	}
	v.static = max(v.static, min(s.constant(value, v.need), v.wall))
	s.last, s.lastNeed = value, v.need
	return v
}

// constant is the part of the need that does not grow, by the line through the last two tries.
func (s *rehearsedSearch) constant(value int64, need event.Bytes) event.Bytes {
	if value == s.last {
		return 0
	}
	each := float64(need-s.lastNeed) / float64(value-s.last)
	return max(0, need-event.Bytes(each*float64(value)))
}

func (s *rehearsedSearch) rehearse(value int64) (verdict, error) {
	r, err := s.again(value)
	if err != nil {
		return verdict{}, err
	}
	return r.verdict(s.target)
}

// verdict sends the timeline through the allocator once more to see how far it is from the wall.
func (r *Rehearsal) verdict(t *Target) (verdict, error) {
	if err := r.Check(); err != nil {
		return verdict{}, err
	}
	runs, err := r.simulate(t, 0)
	if err != nil {
		return verdict{}, err
	}
	return r.judge(runs.rehearsed(r, t), runs, t), nil
}
