package plan

import (
	"cmp"
	"slices"

	"memroom/remedy"
)

// candidate is a set of remedies applied to the setup.
type candidate struct {
	setup    Setup
	ids      []remedy.ID
	halvings int
	slowdown float64
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

// changes counts the remedies that change the mathematics: fewer come first, whatever they cost.
func (c *candidate) changes() int {
	n := 0
	for _, id := range c.ids {
		if r, _ := remedy.Find(id); r.Equivalence == remedy.Changes {
			n++
		}
	}
	return n
}

// compare orders candidates by what they cost the user.
func (c *candidate) compare(other *candidate) int {
	return cmp.Or(cmp.Compare(c.changes(), other.changes()),
		cmp.Compare(c.slowdown, other.slowdown), cmp.Compare(len(c.ids), len(other.ids)))
}

// chooser looks for the cheapest set of remedies with which a setup fits. A set is a bit mask over
// its tools.
//
// It decides on one remedy after the other, those that save most first, and leaves a branch when
// even all that are still open do not make it nearly fit, or when the branch costs more than the
// best set found. Both take remedies not to make each other worse by more than a little; what is
// given out has been run by the engine.
type chooser struct {
	setup  Setup
	target Target
	tools  []*remedy.Remedy // that save something, in the order they are applied
	order  []int            // in which they are decided on: indices of tools, most saved first
	halve  *remedy.Remedy   // nil: the batch cannot be halved, or that saves nothing
	near   map[set]bool     // as found with the smallest batch: fits, or nearly
	best   *candidate
}

type set uint32

// maxSets bounds how many sets the engine runs. The usual number is below thirty.
const maxSets = 400

func newChooser(s Setup, t Target, tools []*remedy.Remedy, saving []Rung) *chooser {
	c := &chooser{setup: s, target: t, near: map[set]bool{}}
	for _, r := range tools {
		switch saves := slices.ContainsFunc(saving, func(x Rung) bool { return x.ID == r.ID }); {
		case r.ID == remedy.MicroBatch && saves:
			c.halve = r
		case saves:
			c.tools = append(c.tools, r)
		}
	}
	for _, rung := range saving {
		if i := slices.IndexFunc(c.tools,
			func(r *remedy.Remedy) bool { return r.ID == rung.ID }); i >= 0 {
			c.order = append(c.order, i)
		}
	}
	return c
}

// cheapest returns the cheapest set with the fewest halvings that fits, nil if there is none.
func (c *chooser) cheapest() *candidate {
	c.decide(0, 0, 0)
	return c.best
}

// decide goes through the sets that have all of in and none of out, when the first at remedies are
// decided on.
func (c *chooser) decide(at int, in, out set) {
	chosen, ok := c.with(in)
	if !ok || len(c.near) >= maxSets || c.best != nil && c.bound(chosen, at).compare(c.best) >= 0 ||
		!c.possible(c.fill(in, out)) {
		return
	}
	if at == len(c.order) {
		c.offer(chosen)
		return
	}
	next := set(1) << c.order[at]
	c.decide(at+1, in, out|next)
	c.decide(at+1, in|next, out)
}

// with applies the remedies of a set; false if two of them exclude each other.
func (c *chooser) with(remedies set) (candidate, bool) {
	made := candidate{setup: c.setup, slowdown: 1}
	for i, r := range c.tools {
		if remedies&(1<<i) != 0 && !made.apply(r) {
			return made, false
		}
	}
	return made, true
}

// bound is the least that a set can cost in which only the remedies from at on are open: some of
// them save time too.
func (c *chooser) bound(chosen candidate, at int) *candidate {
	for _, i := range c.order[at:] {
		chosen.slowdown *= min(1, c.tools[i].Slowdown(c.setup.Setup))
	}
	return &chosen
}

// fill adds all that is not ruled out and does not exclude another, most saved first.
func (c *chooser) fill(in, out set) set {
	for _, i := range c.order {
		if more := in | 1<<i; out&(1<<i) == 0 {
			if _, ok := c.with(more); ok {
				in = more
			}
		}
	}
	return in
}

// everything is the set that should need least.
func (c *chooser) everything() candidate {
	all, _ := c.with(c.fill(0, 0))
	return all
}

// nearly is by how much a set of remedies may miss the wall while one with fewer might still fit:
// an accumulated gradient or a copy on its way to the host can weigh more than what another remedy
// saves next to it.
const nearly = 1.03

// possible reports whether a set with the smallest batch fits, or nearly.
func (c *chooser) possible(remedies set) bool {
	near, known := c.near[remedies]
	if !known {
		made, _ := c.with(remedies)
		v := c.run(c.deepest(made))
		near = v.fits || v.need > 0 && float64(v.need) <= nearly*float64(v.wall)
		c.near[remedies] = near
	}
	return near
}

// deepest halves the batch as often as it goes.
func (c *chooser) deepest(made candidate) candidate {
	steps := c.halvings(made)
	return steps[len(steps)-1]
}

// halvings are the set with the batch whole, halved once, twice and so on.
func (c *chooser) halvings(made candidate) []candidate {
	steps := []candidate{made}
	for c.halve != nil && made.halvings < maxHalvings && made.apply(c.halve) {
		made.halvings++
		steps = append(steps, made)
	}
	return steps
}

// offer takes the set with the fewest halvings that fits, if it is cheaper than the best so far.
func (c *chooser) offer(chosen candidate) {
	steps := c.halvings(chosen)
	low, high := 0, len(steps)
	for low < high {
		if middle := (low + high) / 2; c.run(steps[middle]).fits {
			high = middle
		} else {
			low = middle + 1
		}
	}
	if low == len(steps) {
		return
	}
	if c.best == nil || steps[low].compare(c.best) < 0 {
		c.best = &steps[low]
	}
}

func (c *chooser) run(made candidate) verdict {
	target := c.target.with(made.setup)
	return target.try(&made.setup)
}
