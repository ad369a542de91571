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

// Ladder is the answer to "what makes it fit?": the cheapest set of remedies that does, and what each would do alone.
type Ladder struct {
	Fits     bool              `json:"fits"`
	Slowdown float64           `json:"slowdown"` // of the whole set, expected
	Rungs    []Rung            `json:"remedies"` // in order; each on top of the ones before
	Alone    []Rung            `json:"alone"`    // every applicable remedy by itself, most saved first
	Setup    *Setup            `json:"setup"`    // with the remedies applied
	After    *Prediction       `json:"prediction"`
	Flags    map[string]string `json:"flags"` // the same for each trainer, and for memroom run
	Reason   string            `json:"reason,omitempty"`
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
}

// searched are the remedies whose effect the engine can run: each rewrites a setup into another that can be simulated.
var searched = []remedy.ID{remedy.Attention, remedy.ExpandableSegments, remedy.SetToNone, remedy.OptimizerFused, remedy.MicroBatch,
	remedy.Checkpointing, remedy.MixedPrecision, remedy.Optimizer8Bit, remedy.OptimizerAdafactor, remedy.LoRA, remedy.Quantize8Bit, remedy.Quantize4Bit}

// maxHalvings bounds how often a batch is halved: 2^20 samples down to one.
const maxHalvings = 20

// candidate is a set of remedies applied to the setup.
type candidate struct {
	setup    Setup
	ids      []remedy.ID
	halvings int
	slowdown float64
}

// FindFit searches for the cheapest set of remedies with which the setup fits the target. allowed says which remedies
// that change the mathematics may be used.
func FindFit(s Setup, t Target, allowed func(*remedy.Remedy) bool) (*Ladder, error) {
	before, err := Predict(s, t)
	if err != nil {
		return nil, err
	}
	s = *before.Setup
	tools := usable(s, allowed)
	ladder := &Ladder{Alone: alone(s, t, tools, before)}
	best := cheapest(t, combine(s, tools, ladder.Alone))
	if best == nil {
		ladder.Reason = "no allowed set of remedies makes it fit"
		ladder.Setup, ladder.After = &s, before
		return ladder, nil
	}
	ladder.Fits, ladder.Slowdown = true, best.slowdown
	if ladder.After, err = Predict(best.setup, t.with(best.setup)); err != nil {
		return nil, err
	}
	ladder.Setup = ladder.After.Setup
	ladder.Rungs, err = climb(s, t, best, before)
	ladder.Flags = flags(s, best)
	return ladder, err
}

// with is the target under the setup's allocator settings.
func (t Target) with(s Setup) Target {
	if conf, err := allocsim.ParseConf(s.AllocConf); err == nil {
		t.Alloc = conf
	}
	return t
}

// usable gives the remedies that apply to the setup, are not on already and are allowed.
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

// alone predicts every remedy by itself. One that saves nothing on this setup is left out of the search.
func alone(s Setup, t Target, tools []*remedy.Remedy, before *Prediction) []Rung {
	var rungs []Rung
	for _, r := range tools {
		after := s
		after.Setup, _ = r.Rewrite(s.Setup)
		p, err := Predict(after, t.with(after))
		if err != nil || p.DevicePeak >= before.DevicePeak {
			continue
		}
		rungs = append(rungs, Rung{ID: r.ID, Title: r.Title, DevicePeak: p.DevicePeak, Saves: before.DevicePeak - p.DevicePeak,
			Slowdown: r.Slowdown(s.Setup), Equivalence: r.Equivalence, Fits: p.Fits != nil && *p.Fits})
	}
	slices.SortFunc(rungs, func(a, b Rung) int { return cmp.Compare(b.Saves, a.Saves) })
	return rungs
}

// combine makes every set of the remedies that save something, with every number of halvings, cheapest first. The
// remedies are a handful, so all sets are few hundred.
func combine(s Setup, tools []*remedy.Remedy, saving []Rung) []candidate {
	var single []*remedy.Remedy
	var halve *remedy.Remedy
	for _, r := range tools {
		switch useful := slices.ContainsFunc(saving, func(x Rung) bool { return x.ID == r.ID }); {
		case !useful:
		case r.ID == remedy.MicroBatch:
			halve = r
		default:
			single = append(single, r)
		}
	}
	var all []candidate
	for set := range 1 << len(single) {
		c := candidate{setup: s, slowdown: 1}
		for i, r := range single {
			if set&(1<<i) != 0 && !c.apply(r) {
				c.slowdown = 0
				break
			}
		}
		if c.slowdown == 0 {
			continue // two of them exclude each other
		}
		all = append(all, c)
		for halve != nil && c.halvings < maxHalvings {
			if !c.apply(halve) {
				break
			}
			c.halvings++
			all = append(all, c)
		}
	}
	slices.SortStableFunc(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(changes(a), changes(b)), cmp.Compare(a.slowdown, b.slowdown), cmp.Compare(len(a.ids), len(b.ids)))
	})
	return all
}

// changes counts the remedies in a set that change the mathematics: fewer come first, whatever they cost.
func changes(c candidate) int {
	n := 0
	for _, id := range c.ids {
		if r, _ := remedy.Find(id); r.Equivalence == remedy.Changes {
			n++
		}
	}
	return n
}

// apply adds a remedy; false if it cannot be applied on top of the others.
func (c *candidate) apply(r *remedy.Remedy) bool {
	after, ok := r.Rewrite(c.setup.Setup)
	if !ok {
		return false
	}
	c.slowdown *= r.Slowdown(c.setup.Setup)
	c.setup.Setup = after
	if len(c.ids) == 0 || c.ids[len(c.ids)-1] != r.ID {
		c.ids = append(slices.Clone(c.ids), r.ID)
	}
	return true
}

// cheapest tries the candidates in order and gives the first that fits.
func cheapest(t Target, all []candidate) *candidate {
	for i := range all {
		target := t.with(all[i].setup)
		if target.try(&all[i].setup).fits {
			return &all[i]
		}
	}
	return nil
}

// flags writes the chosen remedies in each trainer's own words, and as arguments of `memroom run`.
func flags(s Setup, best *candidate) map[string]string {
	words := map[string]string{}
	add := func(key, text string) {
		if text != "" && !strings.Contains(words[key], text) {
			words[key] = strings.TrimSpace(words[key] + " " + text)
		}
	}
	for _, trainer := range []remedy.Trainer{remedy.Transformers, remedy.Accelerate, remedy.Lightning, remedy.DeepSpeed} {
		at := s.Setup
		for _, id := range best.ids {
			r, _ := remedy.Find(id)
			if id == remedy.MicroBatch { // several halvings are one change of the flags
				for range best.halvings - 1 {
					at, _ = r.Rewrite(at)
				}
			}
			how := r.HowTo(remedy.Job{Framework: remedy.PyTorch, Trainer: trainer, Setup: &at})
			add(string(trainer), how.Args)
			add("env", how.Env)
			at, _ = r.Rewrite(at)
		}
	}
	add("memroom", "memroom run --fit")
	for _, id := range best.ids {
		r, _ := remedy.Find(id)
		if r.Consent != "" {
			add("memroom", "--allow "+r.Consent)
		}
		if id == remedy.MicroBatch {
			add("memroom", fmt.Sprintf("--remedy micro_batch=%d", best.setup.Batch))
		} else {
			add("memroom", "--remedy "+string(id))
		}
	}
	add("memroom", "-- YOUR COMMAND")
	return words
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
		p, err := Predict(at, t.with(at))
		if err != nil {
			return nil, err
		}
		rung.DevicePeak, rung.Saves, rung.Fits = p.DevicePeak, last-p.DevicePeak, p.Fits != nil && *p.Fits
		last = p.DevicePeak
		rungs = append(rungs, rung)
	}
	return rungs, nil
}
