package plan

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	"memroom/allocsim"
	"memroom/event"
	"memroom/plan/place"
)

// DeviceMap is a model spread over several cards, with what each needs by the engine.
type DeviceMap struct {
	Devices []DeviceShare  `json:"devices"`
	Map     map[string]int `json:"device_map"` // module -> device, as Hugging Face takes it
	Fits    bool           `json:"fits"`
	// of the card with the least room left, as a fraction of it
	Fullest float64           `json:"fullest"`
	Auto    *DeviceMapCompare `json:"accelerate_auto,omitempty"`
	Notes   []string          `json:"warnings"`
}

// DeviceShare is one card's part.
type DeviceShare struct {
	Name       string      `json:"name"`
	Total      event.Bytes `json:"total"`
	Units      []string    `json:"units"`
	Allocated  event.Bytes `json:"allocated_peak"`
	Reserved   event.Bytes `json:"reserved_peak"`
	DevicePeak event.Bytes `json:"device_peak"`
}

// DeviceMapCompare is what accelerate's device_map="auto" would have done, by the same engine.
type DeviceMapCompare struct {
	Devices []event.Bytes `json:"device_peaks"`
	Fullest float64       `json:"fullest"`
	Layers  []int         `json:"layers"` // blocks on each device
}

// repeated finds the block a module belongs to: model.layers.3.mlp -> layers.3,
// transformer.h.0.attn -> h.0.
var repeated = regexp.MustCompile(`(?:^|\.)(layers|layer|h|blocks|block)\.(\d+)(?:\.|$)`)

// unitOf names the block of a module, or "" for what stands before or after the blocks.
func unitOf(module string) string {
	m := repeated.FindStringSubmatch(module)
	if m == nil {
		return ""
	}
	return m[1] + "." + m[2]
}

// chainOf is a timeline cut into the units that must stay whole: what comes before the blocks, each
// block, what comes after.
type chainOf struct {
	names   []string
	of      []int    // tag -> unit
	modules []string // tag -> module
	weights []int64  // bytes of each unit's weights
}

const (
	unitBefore = "embeddings"
	unitAfter  = "output head"
)

// cutIntoUnits assigns every tag of a timeline to a unit. A module outside the blocks belongs to
// the front if it is first used before any block is.
func cutIntoUnits(tl *event.Timeline) (*chainOf, error) {
	c := &chainOf{names: []string{unitBefore}, of: make([]int, len(tl.Tags)),
		modules: make([]string, len(tl.Tags))}
	index := map[string]int{}
	stacks := map[string]bool{}
	for _, op := range tl.Ops {
		if op.Kind != event.OpAlloc {
			continue
		}
		module := tl.Tags[op.Tag].Module
		name := unitOf(module)
		if strings.Contains(module, "encoder.") || strings.Contains(module, "decoder.") {
			stacks[strings.SplitN(module, ".", 2)[0]] = true
		}
		if _, seen := index[name]; name != "" && !seen {
			index[name] = len(c.names)
			c.names = append(c.names, name)
		}
	}
	if len(c.names) < 2 {
		return nil, fmt.Errorf("this model has no repeated blocks to spread over devices")
	}
	if stacks["encoder"] && stacks["decoder"] {
		return nil,
			fmt.Errorf("a model with an encoder and a decoder is not one chain of blocks: place it by hand, " +
				"or on one device")
	}
	c.names = append(c.names, unitAfter)
	c.weights = make([]int64, len(c.names))
	c.assign(tl, index)
	return c, nil
}

func (c *chainOf) assign(tl *event.Timeline, index map[string]int) {
	last := len(c.names) - 1
	side := map[string]int{} // modules outside the blocks
	block := false           // has a block been seen since the phase began?
	next := 0
	for i, op := range tl.Ops {
		for next < len(tl.Marks) && tl.Marks[next].At <= i {
			if p := tl.Marks[next].Phase; p == "load" || p == "forward" {
				block = false
			}
			next++
		}
		if op.Kind != event.OpAlloc {
			continue
		}
		tag := tl.Tags[op.Tag]
		c.modules[op.Tag] = tag.Module
		unit, inBlock := index[unitOf(tag.Module)]
		if inBlock {
			block = true
		} else {
			known, seen := side[outside(tag.Module)]
			if !seen {
				known = 0
				if block {
					known = last
				}
				side[outside(tag.Module)] = known
			}
			unit = known
		}
		c.of[op.Tag] = unit
		if tag.Category == event.CategoryWeights {
			c.weights[unit] += op.Size
		}
	}
}

// outside strips the parameter's own name, so that the optimizer's state of model.norm.weight goes
// where model.norm is.
func outside(module string) string {
	return strings.TrimSuffix(strings.TrimSuffix(module, ".weight"), ".bias")
}

// problem makes the units of the placement: bytes at each of some moments of the last step.
func (c *chainOf) problem(tl *event.Timeline, cards []Card, boundary int64,
	overhead func(Card) event.Bytes) place.Problem {
	p := place.Problem{Tied: c.tied()}
	moments := 1024
	if len(c.names) > 200 {
		moments = 256
	}
	live := c.liveAt(tl, moments)
	for i, name := range c.names {
		p.Units = append(p.Units, place.Unit{Name: name, Live: live[i], Boundary: boundary})
	}
	for i, card := range cards {
		p.Devices = append(p.Devices, place.Device{Name: fmt.Sprintf("cuda:%d (%s)", i, card.Name),
			Bytes: int64(card.Total), Fixed: int64(overhead(card))})
	}
	return p
}

// tied reports whether the head has no table of its own: it then uses the embedding's.
func (c *chainOf) tied() bool { return c.weights[len(c.weights)-1] < c.weights[0]/2 }

// liveAt returns each unit's live bytes at moments of the last step; within a moment's span the
// highest value counts, so nothing is missed between two of them.
func (c *chainOf) liveAt(tl *event.Timeline, moments int) [][]int64 {
	from := lastStep(tl)
	span := max(1, (len(tl.Ops)-from+moments-1)/moments)
	moments = (len(tl.Ops) - from + span - 1) / span
	live := make([][]int64, len(c.names))
	for i := range live {
		live[i] = make([]int64, moments)
	}
	now, owner, size := make([]int64, len(c.names)), map[int32]int{}, map[int32]int64{}
	for i, op := range tl.Ops {
		if op.Kind == event.OpAlloc {
			owner[op.ID], size[op.ID] = c.of[op.Tag], op.Size
			now[c.of[op.Tag]] += op.Size
		} else if u, ok := owner[op.ID]; ok {
			now[u] -= size[op.ID]
		}
		if i >= from {
			for u := range now {
				m := (i - from) / span
				live[u][m] = max(live[u][m], now[u])
			}
		}
	}
	return live
}

// lastStep is the index of the first operation of the last step.
func lastStep(tl *event.Timeline) int {
	last, from := 0, 0
	for _, m := range tl.Marks {
		if m.Step > last {
			last, from = m.Step, m.At
		}
	}
	return from
}

// spread is a chain on its way to devices: what every step of the search needs.
type spread struct {
	*chainOf
	tl       *event.Timeline
	target   *Target
	cards    []Card
	boundary int64 // bytes of the hidden state
	overhead func(Card) event.Bytes
}

// PlaceOn spreads the setup over cards so that the fullest is as empty as it can be, and runs the
// engine for each.
func PlaceOn(s Setup, t Target, cards []Card) (*DeviceMap, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	s = s.WithDefaults()
	m, err := s.model()
	if err != nil {
		return nil, err
	}
	t.Card = cards[0] // its libraries' workspaces, as `--gpu` plans them
	sim, err := simulate(m, &s, &t, variant{scale: 1})
	if err != nil {
		return nil, err
	}
	chain, err := cutIntoUnits(sim.tl)
	if err != nil {
		return nil, err
	}
	w := &spread{chain, sim.tl, &t, cards, s.hiddenBytes(),
		func(c Card) event.Bytes { u := t; u.Card = c; return u.overhead(sim.usesDNN) }}
	return w.solve()
}

func (w *spread) solve() (*DeviceMap, error) {
	best, err := place.Solve(w.problem(w.tl, w.cards, w.boundary, w.overhead))
	if err != nil {
		return nil, err
	}
	automatic := autoPlacement(w.weights, w.cards, w.tied())
	on, answer, err := w.refine(best.On, automatic)
	if err != nil {
		return nil, err
	}
	answer.Map = w.modulesOn(on)
	answer.Notes = []string{"unvalidated: device maps over several cards were not measured"}
	if w.tied() {
		answer.Notes = append(answer.Notes,
			"the head shares its weights with the embedding, so both are on one card")
	}
	answer.Auto, err = w.compare(automatic)
	return answer, err
}

// refineBudget is how many operations may be replayed while cuts are moved: about a second of work.
const refineBudget = 4_000_000

// refine starts from the given placements and moves cuts by one unit as long as the engine finds
// that it helps. The search before it counted live bytes, but the memory a card needs also depends
// on how the allocator's segments fall.
func (w *spread) refine(starts ...[]int) ([]int, *DeviceMap, error) {
	var on []int
	var best *DeviceMap
	budget := refineBudget
	try := func(candidate []int) (bool, error) {
		budget -= len(w.tl.Ops)
		found, err := w.measure(candidate)
		if err != nil || best != nil && found.Fullest >= best.Fullest {
			return false, err
		}
		on, best = candidate, found
		return true, nil
	}
	for _, start := range starts {
		if _, err := try(start); err != nil {
			return nil, nil, err
		}
	}
	for moved := true; moved && budget > 0; {
		moved = false
		for _, candidate := range neighbours(on, w.tied()) {
			if budget <= 0 {
				break
			}
			better, err := try(candidate)
			if err != nil {
				return nil, nil, err
			}
			moved = moved || better
		}
	}
	return on, best, nil
}

// neighbours returns the placements in which one cut is moved by one unit.
func neighbours(on []int, tied bool) [][]int {
	last := len(on)
	if tied {
		last--
	}
	var list [][]int
	for i := 1; i < last; i++ {
		if on[i] == on[i-1] {
			continue
		}
		for _, change := range [][2]int{{i, on[i-1]}, {i - 1, on[i]}} {
			moved := slices.Clone(on)
			moved[change[0]] = change[1]
			if tied {
				moved[len(moved)-1] = moved[0]
			}
			list = append(list, moved)
		}
	}
	return list
}

// measure runs the engine for a placement.
func (w *spread) measure(on []int) (*DeviceMap, error) {
	shares, err := w.shares(on)
	if err != nil {
		return nil, err
	}
	answer := &DeviceMap{Devices: shares}
	answer.settle(w.cards)
	return answer, nil
}

func (d *DeviceMap) settle(cards []Card) {
	for i, share := range d.Devices {
		d.Fullest = math.Max(d.Fullest, float64(share.DevicePeak)/float64(cards[i].Total))
	}
	d.Fits = d.Fullest <= 1
}

// hiddenBytes is the hidden state that goes from one device to the next: fp32 under autocast, where
// the residual stream is.
func (s *Setup) hiddenBytes() int64 {
	width := s.Model.Int(0, "hidden_size", "n_embd", "d_model", "dim")
	return int64(s.Batch) * int64(max(1, s.Seq)) * width * weightType(s.Precision).Size()
}

// shares runs each device's part of the timeline through the allocator.
func (w *spread) shares(on []int) ([]DeviceShare, error) {
	var shares []DeviceShare
	for d, card := range w.cards {
		share := DeviceShare{Name: card.Name, Total: card.Total, Units: []string{}}
		for u, where := range on {
			if where == d {
				share.Units = append(share.Units, w.names[u])
			}
		}
		if len(share.Units) > 0 {
			res, err := allocsim.Run(w.partOf(w.tl, on, d, w.boundary),
				allocsim.Options{Config: w.target.Alloc, Version: w.target.Torch})
			if err != nil {
				return nil, err
			}
			share.Allocated, share.Reserved = res.AllocatedPeak, res.ReservedPeak
			share.DevicePeak = res.ReservedPeak + w.overhead(card)
		}
		shares = append(shares, share)
	}
	return shares, nil
}

// partOf is the timeline of one device: the operations of its units, and the hidden state that
// arrives from the device before, held through each step.
func (c *chainOf) partOf(tl *event.Timeline, on []int, device int, boundary int64) *event.Timeline {
	part := &event.Timeline{Tags: tl.Tags}
	arrives := boundary > 0 && on[0] != device
	here := map[int32]int32{} // the engine wants IDs without gaps
	fresh := int32(0)
	visitor, held := int32(0), false
	next := 0
	for i, op := range tl.Ops {
		for next < len(tl.Marks) && tl.Marks[next].At <= i {
			mark := tl.Marks[next]
			next++
			if held && (mark.Phase == "optimizer" || mark.Phase == "forward") {
				part.Ops = append(part.Ops, event.Op{Kind: event.OpFree, ID: visitor})
				held = false
			}
			part.Marks = append(part.Marks, event.Mark{At: len(part.Ops), Step: mark.Step,
				Phase: mark.Phase})
			if arrives && mark.Phase == "forward" {
				visitor, held = fresh, true
				fresh++
				part.Ops = append(part.Ops, event.Op{Kind: event.OpAlloc, ID: visitor,
					Size: boundary})
			}
		}
		if op.Kind == event.OpAlloc && on[c.of[op.Tag]] == device {
			here[op.ID] = fresh
			fresh++
		}
		if id, ok := here[op.ID]; ok {
			op.ID = id
			part.Ops = append(part.Ops, op)
		}
	}
	return part
}

// modulesOn names the modules of each unit for Hugging Face: blocks by their prefix, the rest one
// by one.
func (c *chainOf) modulesOn(on []int) map[string]int {
	found := map[string]int{}
	for tag, module := range c.modules {
		if module == "" || !strings.Contains(module, ".") &&
			!slices.Contains([]string{"lm_head", "score", "classifier"}, module) {
			continue // a label of an operation, not a module of the model
		}
		module = outside(module)
		if loc := repeated.FindStringSubmatchIndex(module); loc != nil {
			if loc[2] == 0 {
				continue // layers.3 without the path before it: an operation's label
			}
			module = module[:loc[5]]
		}
		found[module] = on[c.of[tag]]
	}
	return found
}

// compare returns the cost of a placement made elsewhere.
func (w *spread) compare(on []int) (*DeviceMapCompare, error) {
	found, err := w.measure(on)
	if err != nil {
		return nil, err
	}
	answer := &DeviceMapCompare{Layers: make([]int, len(w.cards)), Fullest: found.Fullest}
	for _, s := range found.Devices {
		answer.Devices = append(answer.Devices, s.DevicePeak)
	}
	for u := 1; u < len(on)-1; u++ {
		answer.Layers[on[u]]++
	}
	return answer, nil
}

// autoPlacement is accelerate's device_map="auto" on the same chain, as its code describes it:
// weights alone are counted and the units are walked once. Every device but the last may take the
// balanced share (total over devices, plus one and a quarter of the largest block), the first keeps
// room for the largest unit still to come.
func autoPlacement(weights []int64, cards []Card, tied bool) []int {
	var total int64
	for _, w := range weights {
		total += w
	}
	largest := slices.Max(weights[1 : len(weights)-1]) // of the blocks, which must not be split
	limit := func(d int) int64 {
		if d == len(cards)-1 {
			return int64(cards[d].Total)
		}
		return min(int64(cards[d].Total), total/int64(len(cards))+largest*5/4)
	}
	on := make([]int, len(weights))
	device, used := 0, int64(0)
	for u, w := range weights {
		for device < len(cards)-1 {
			reserve := int64(0)
			if device == 0 && u+1 < len(weights) {
				reserve = slices.Max(weights[u+1:])
			}
			if used+w+reserve <= limit(device) {
				break
			}
			device, used = device+1, 0
		}
		on[u] = device
		used += w
	}
	if tied {
		on[len(on)-1] = on[0]
	}
	return on
}
