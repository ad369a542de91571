package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"memroom/allocsim"
	"memroom/event"
	"memroom/remedy"
)

// Ladder is the answer to "what makes it fit?": the cheapest set of remedies that does, and what
// each would do alone.
type Ladder struct {
	Fits     bool        `json:"fits"`
	Slowdown float64     `json:"slowdown"` // of the whole set, expected
	Rungs    []Rung      `json:"remedies"` // in order; each on top of the ones before
	Alone    []Rung      `json:"alone"`    // every applicable remedy by itself, most saved first
	Setup    *Setup      `json:"setup"`    // with the remedies applied
	After    *Prediction `json:"prediction"`
	// what to type, a line or more for each trainer and for memroom run
	Flags  map[string]string `json:"flags"`
	Reason string            `json:"reason,omitempty"`
	// where nothing fits: device bytes with everything that is allowed
	Least event.Bytes `json:"least,omitempty"`
	// where nothing fits: what would if every change of the mathematics were allowed
	Consent *Ladder `json:"with_consent,omitempty"`
	// where nothing fits: what another model or other data would save
	Advice []Rung `json:"advice,omitempty"`
}

// Rung is one remedy and what it does to the card's memory.
type Rung struct {
	ID          remedy.ID          `json:"id"`
	Title       string             `json:"title"`
	DevicePeak  event.Bytes        `json:"device_peak"` // after it
	Saves       event.Bytes        `json:"saves"`
	Slowdown    float64            `json:"slowdown"`
	Equivalence remedy.Equivalence `json:"equivalence"`
	Fits        bool               `json:"fits"`
	Times       int                `json:"times,omitempty"` // how often the batch was halved
	// micro-batches that the batch is split into; 0 for other remedies
	Pieces int `json:"pieces,omitempty"`
}

// searched are the remedies whose effect the engine can run: each rewrites a setup into another
// that can be simulated.
var searched = []remedy.ID{remedy.Attention, remedy.ExpandableSegments, remedy.SetToNone,
	remedy.OptimizerFused, remedy.ChunkedLoss, remedy.MicroBatch,
	remedy.Checkpointing, remedy.ActivationOffload, remedy.OptimizerOffload, remedy.MixedPrecision,
	remedy.Optimizer8Bit, remedy.OptimizerAdafactor, remedy.LoRA, remedy.Quantize8Bit,
	remedy.Quantize4Bit}

// maxHalvings bounds how often a batch is halved: 2^20 samples down to one.
const maxHalvings = 20

// FindCheapest searches for the cheapest set of remedies with which the setup fits the target.
// allowed holds the remedies that change the mathematics and may be used.
func FindCheapest(s Setup, t Target, allowed func(*remedy.Remedy) bool) (*Ladder, error) {
	before, err := Predict(s, t)
	if err != nil {
		return nil, err
	}
	s = *before.Setup
	if before.Fits != nil && *before.Fits {
		return &Ladder{Fits: true, Slowdown: 1, Setup: &s, After: before}, nil
	}
	ladder, err := climbTo(s, t, usable(s, allowed), before)
	if err != nil || ladder.Fits {
		return ladder, err
	}
	if every := usable(s, func(*remedy.Remedy) bool { return true }); len(every) > len(usable(s,
		allowed)) {
		if other, err := climbTo(s, t, every, before); err == nil && other.Fits {
			ladder.Consent = other
		}
	}
	ladder.Advice = advise(s, t, before)
	return ladder, nil
}

// advise prices what only the user can decide on, because it makes another model or other data of
// it: half of the layers, half of the length.
func advise(s Setup, t Target, before *Prediction) []Rung {
	var rungs []Rung
	for _, change := range []struct {
		id    remedy.ID
		title string
		apply func(*Setup) bool
	}{
		{remedy.Prune, "a model of half the layers: pruned, or a student that learns from the whole one " +
			"(distill)", func(s *Setup) bool {
			half, ok := s.Model.HalfTheLayers()
			s.Model = half
			return ok
		}},
		{remedy.ShorterSequence, "sequences half as long", func(s *Setup) bool {
			s.Seq, s.Shortest = s.Seq/2, min(s.Shortest, s.Seq/2)
			return s.Seq > 0
		}},
	} {
		after := s
		if !change.apply(&after) {
			continue
		}
		p, err := predictOnly(after, t.with(after))
		if err != nil || p.DevicePeak >= before.DevicePeak {
			continue
		}
		rungs = append(rungs, Rung{ID: change.id, Title: change.title, DevicePeak: p.DevicePeak,
			Saves: before.DevicePeak - p.DevicePeak, Slowdown: 1, Equivalence: remedy.Changes,
			Fits: *p.Fits})
	}
	return rungs
}

// climbTo finds the ladder among these remedies.
func climbTo(s Setup, t Target, tools []*remedy.Remedy, before *Prediction) (*Ladder, error) {
	ladder := &Ladder{Alone: alone(s, t, tools, before)}
	choice := newChooser(s, t, tools, ladder.Alone)
	best := choice.cheapest()
	if best == nil {
		ladder.Setup, ladder.After = &s, before
		return ladder, ladder.impossible(choice)
	}
	var err error
	ladder.Fits, ladder.Slowdown = true, best.slowdown
	if ladder.After, err = Predict(best.setup, t.with(best.setup)); err != nil {
		return nil, err
	}
	ladder.Setup = ladder.After.Setup
	ladder.Rungs, err = climb(s, t, best, before)
	ladder.Flags = flags(s, best)
	return ladder, err
}

// impossible explains why nothing fits: the need of the setup with every remedy in use.
func (l *Ladder) impossible(choice *chooser) error {
	everything := choice.deepest(choice.everything())
	p, err := Predict(everything.setup, choice.target.with(everything.setup))
	if err != nil {
		return err
	}
	l.Least = p.DevicePeak
	l.Reason = fmt.Sprintf("no remedy that is allowed saves anything here: it needs %s (at most %s)",
		l.Least, p.High)
	if len(everything.ids) > 0 {
		var names []string
		for _, id := range everything.ids {
			// a later one may have taken the place of an earlier one, as one optimizer of another
			if r, _ := remedy.Find(id); id == remedy.MicroBatch || r.IsOn(everything.setup.Setup) {
				names = append(names, string(id))
			}
		}
		l.Reason = fmt.Sprintf("with all of %s it still needs %s (at most %s)",
			strings.Join(names, ", "), l.Least, p.High)
	}
	return nil
}

// with is the target under the setup's allocator settings and number of ranks.
func (t Target) with(s Setup) Target {
	t.ranks, t.groups = s.Ranks, s.groups()
	if conf, err := allocsim.ParseConf(s.AllocConf); err == nil {
		t.Alloc = conf
	}
	return t
}

// usable returns the remedies that apply to the setup, are not on already and are allowed.
func usable(s Setup, allowed func(*remedy.Remedy) bool) []*remedy.Remedy {
	var tools []*remedy.Remedy
	for _, id := range searched {
		r, ok := remedy.Find(id)
		if !ok || r.IsOn(s.Setup) || r.Equivalence == remedy.Changes && !allowed(r) {
			continue
		}
		if _, ok := r.Rewrite(s.Setup); ok {
			tools = append(tools, r)
		}
	}
	return tools
}

// alone predicts every remedy by itself. One that saves nothing on this setup is left out of the
// search.
func alone(s Setup, t Target, tools []*remedy.Remedy, before *Prediction) []Rung {
	var rungs []Rung
	for _, r := range tools {
		after := s
		after.Setup, _ = r.Rewrite(s.Setup)
		p, err := predictOnly(after, t.with(after))
		if err != nil || p.DevicePeak >= before.DevicePeak {
			continue
		}
		rungs = append(rungs, Rung{ID: r.ID, Title: r.Title, DevicePeak: p.DevicePeak,
			Saves:    before.DevicePeak - p.DevicePeak,
			Slowdown: r.Slowdown(s.Setup), Equivalence: r.Equivalence,
			Fits: p.Fits != nil && *p.Fits, Pieces: pieces(r.ID, s, after)})
	}
	slices.SortFunc(rungs, func(a, b Rung) int { return cmp.Compare(b.Saves, a.Saves) })
	return rungs
}

// pieces is how many micro-batches a batch is split into, 0 for other remedies.
func pieces(id remedy.ID, before, after Setup) int {
	if id != remedy.MicroBatch {
		return 0
	}
	return max(1, after.Accumulate) / max(1, before.Accumulate)
}

// climb predicts the chosen remedies one after the other.
func climb(s Setup, t Target, best *candidate, before *Prediction) ([]Rung, error) {
	var rungs []Rung
	at, last := s, before.DevicePeak
	for _, id := range best.ids {
		r, _ := remedy.Find(id)
		rung := Rung{ID: id, Title: r.Title, Equivalence: r.Equivalence, Slowdown: 1}
		times := 1
		if id == remedy.MicroBatch {
			times, rung.Times = best.halvings, best.halvings
		}
		for range times {
			rung.Slowdown *= r.Slowdown(at.Setup)
			at.Setup, _ = r.Rewrite(at.Setup)
		}
		p, err := predictOnly(at, t.with(at))
		if err != nil {
			return nil, err
		}
		rung.DevicePeak, rung.Saves, rung.Fits = p.DevicePeak, last-p.DevicePeak,
			p.Fits != nil && *p.Fits
		rung.Pieces = pieces(id, s, at)
		last = p.DevicePeak
		rungs = append(rungs, rung)
	}
	return rungs, nil
}
