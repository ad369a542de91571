// Package place spreads a chain of model units over devices so that the fullest device is as empty
// as it can be. It knows nothing of models: a unit is a vector of bytes, its live memory at each
// moment of a training step. Package plan makes the units from a timeline and checks the answer by
// running the engine for each device.
//
// The cost of a range of units is the highest sum of their vectors, so it grows with the range:
// from each unit a device reaches up to some other and no further. Whether everything fits with no
// device fuller than x is then a walk over positions, and a search over x finds the optimum.
package place

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// Unit is a part of the model that must stay whole, in the order in which the forward pass runs
// through them.
type Unit struct {
	Name     string
	Live     []int64 // bytes at each moment; all units have the same number of moments
	Boundary int64   // bytes that arrive here when the unit before is on another device
}

// Device is a place with room.
type Device struct {
	Name  string
	Bytes int64 // what it can hold
	Fixed int64 // taken before any unit: context, libraries
}

// Problem is a chain and where it may go. With Tied, the last unit shares weights with the first
// and must be on the first unit's device.
type Problem struct {
	Units   []Unit
	Devices []Device
	Tied    bool
}

// Placement is an answer: unit i is on device On[i].
type Placement struct {
	On   []int
	Used []int64 // bytes at the worst moment of each device, fixed bytes included
	// Fullest is the highest Used/Bytes. Above 1 it does not fit.
	Fullest float64
}

// ErrNoUnits and the like are usage errors of the caller.
var errNoUnits = errors.New("nothing to place")

// Solve finds the placement with the least full fullest device; among equals the one that uses the
// devices in the order given. Devices of different sizes are tried in every order that differs, up
// to orderLimit of them.
func Solve(p Problem) (*Placement, error) {
	if len(p.Units) == 0 {
		return nil, errNoUnits
	}
	for _, d := range p.Devices {
		if d.Bytes <= 0 {
			return nil, fmt.Errorf("device %s has no room", d.Name)
		}
	}
	if len(p.Devices) == 0 {
		return nil, errors.New("no devices")
	}
	for _, u := range p.Units {
		if len(u.Live) != len(p.Units[0].Live) {
			return nil, fmt.Errorf("unit %s has %d moments, %s has %d", u.Name, len(u.Live),
				p.Units[0].Name, len(p.Units[0].Live))
		}
	}
	var best *Placement
	for _, order := range orders(p.Devices) {
		if found := solveInOrder(p, order); best == nil || found.Fullest < best.Fullest {
			best = found
		}
	}
	// A chain with a tied end always counts the way back to the first device. There is none where
	// everything is on one device.
	for d := range p.Devices {
		whole := Evaluate(p, slices.Repeat([]int{d}, len(p.Units)))
		if p.Tied && whole.Fullest < best.Fullest {
			best = whole
		}
	}
	return best, nil
}

// Evaluate returns what a placement made elsewhere costs, by the same reckoning.
func Evaluate(p Problem, on []int) *Placement {
	c := newChain(p)
	result := &Placement{On: on, Used: make([]int64, len(p.Devices))}
	for d := range p.Devices {
		sum := make([]int64, c.moments)
		boundary, any := int64(0), false
		for i, u := range p.Units {
			if on[i] != d {
				continue
			}
			any = true
			add(sum, u.Live)
			if i > 0 && on[i-1] != d {
				boundary += u.Boundary
			}
		}
		result.Used[d] = p.Devices[d].Fixed
		if any {
			result.Used[d] += highest(sum) + boundary
		}
		result.Fullest = max(result.Fullest, float64(result.Used[d])/float64(p.Devices[d].Bytes))
	}
	return result
}

// chain is a problem with a tied last unit folded into the first.
type chain struct {
	units   []Unit
	moments int
}

func newChain(p Problem) chain {
	c := chain{units: p.Units, moments: len(p.Units[0].Live)}
	if p.Tied && len(p.Units) > 1 {
		first := p.Units[0]
		first.Live = slices.Clone(first.Live)
		last := p.Units[len(p.Units)-1]
		add(first.Live, last.Live)
		if len(p.Units) > 2 {
			for i := range first.Live {
				first.Live[i] += last.Boundary // the hidden state comes back to the first device
			}
		}
		c.units = append([]Unit{first}, p.Units[1:len(p.Units)-1]...)
	}
	return c
}

func add(sum, v []int64) {
	for i, x := range v {
		sum[i] += x
	}
}

func subtract(sum, v []int64) {
	for i, x := range v {
		sum[i] -= x
	}
}

// addAndTop is add and highest in one pass: this loop is where the time goes.
func addAndTop(sum, v []int64) int64 {
	var top int64
	for i, x := range v {
		sum[i] += x
		top = max(top, sum[i])
	}
	return top
}

func highest(v []int64) int64 {
	var top int64
	for _, x := range v {
		top = max(top, x)
	}
	return top
}

// solveInOrder bisects on how full the fullest device may be. Costs are whole bytes, so once the
// interval is narrower than a byte of the largest device the placement at its upper end is optimal.
func solveInOrder(p Problem, order []int) *Placement {
	c := newChain(p)
	low := c.lowerBound(p)
	high := low
	var cut []int
	for cut == nil { // a little above the bound is usually enough; the walk is costly far above it
		high *= 1.1
		cut = c.within(p, order, high)
	}
	best := Evaluate(p, c.expand(p, order, cut))
	largest := int64(0)
	for _, d := range p.Devices {
		largest = max(largest, d.Bytes)
	}
	for high = min(high, best.Fullest); high-low > 0.25/float64(largest); {
		middle := low + (high-low)/2
		if middle <= low || middle >= high {
			break // floating point has no number between them
		}
		found := c.within(p, order, middle)
		if found == nil {
			low = middle
			continue
		}
		if answer := Evaluate(p, c.expand(p, order, found)); answer.Fullest < best.Fullest {
			best = answer
		}
		high = min(middle, best.Fullest)
	}
	return best
}

// lowerBound is how full the devices are if the chain could be cut anywhere.
func (c chain) lowerBound(p Problem) float64 {
	sum := make([]int64, c.moments)
	for _, u := range c.units {
		add(sum, u.Live)
	}
	need, room := highest(sum), int64(0)
	bound := 1e-12
	for _, d := range p.Devices {
		need, room = need+d.Fixed, room+d.Bytes
		bound = max(bound, float64(d.Fixed)/float64(d.Bytes))
	}
	return max(bound, float64(need)/float64(room)) * (1 - 1e-9)
}

// within returns the number of units on each device of the order such that no device is fuller than
// full; nil if there is no such way. It walks over the positions in the chain that the devices so
// far can have reached.
func (c chain) within(p Problem, order []int, full float64) []int {
	reaches := map[[2]int64][]int{} // by kind of device
	from := make([][]int, len(order))
	reached := make([]bool, len(c.units)+1)
	reached[0] = true
	for i, d := range order {
		device := p.Devices[d]
		room := int64(math.Floor(full * float64(device.Bytes)))
		if device.Fixed > room {
			return nil
		}
		kind := [2]int64{device.Bytes, device.Fixed}
		if reaches[kind] == nil {
			reaches[kind] = c.reach(room - device.Fixed)
		}
		reached, from[i] = advance(reached, reaches[kind])
	}
	if !reached[len(c.units)] {
		return nil
	}
	counts := make([]int, len(order))
	for i, at := len(order)-1, len(c.units); i >= 0; i-- {
		counts[i] = at - from[i][at]
		at = from[i][at]
	}
	return counts
}

// reach returns, for each unit, how far a device with this much room gets when it starts there: the
// end of the longest range that fits. The window slides, so the next start keeps the sum of the
// units that it shares with the last.
func (c chain) reach(room int64) []int {
	ends := make([]int, len(c.units)+1)
	sum := make([]int64, c.moments)
	end := 0
	for start := range c.units {
		left := room
		if start > 0 {
			left -= c.units[start].Boundary
		}
		// a larger boundary may cost units that fitted before
		for end > start && highest(sum) > left {
			end--
			subtract(sum, c.units[end].Live)
		}
		end = max(end, start)
		for end < len(c.units) {
			if addAndTop(sum, c.units[end].Live) > left {
				subtract(sum, c.units[end].Live)
				break
			}
			end++
		}
		ends[start] = end
		if end > start {
			subtract(sum, c.units[start].Live)
		}
	}
	ends[len(c.units)] = len(c.units)
	return ends
}

// advance moves every reached position on by one device, which may also stay empty, and remembers
// where each new position came from; the largest step wins, so that devices are filled in order.
func advance(reached []bool, reach []int) (next []bool, from []int) {
	next, from = make([]bool, len(reached)), make([]int, len(reached))
	for start, ok := range reached {
		if !ok {
			continue
		}
		for end := start; end <= reach[start]; end++ {
			if !next[end] {
				next[end], from[end] = true, start
			}
		}
	}
	return next, from
}

// expand turns counts per device of the order into a device per unit of the problem.
func (c chain) expand(p Problem, order, counts []int) []int {
	var on []int
	for i, n := range counts {
		for range n {
			on = append(on, order[i])
		}
	}
	if p.Tied && len(p.Units) > 1 {
		on = append(on, on[0])
	}
	return on
}

// orderLimit bounds the orders of unequal devices that are tried: 8! of eight different ones.
const orderLimit = 40320

// orders returns the ways to line up the devices that differ: devices of the same size and fixed
// bytes are alike.
func orders(devices []Device) [][]int {
	given := make([]int, len(devices))
	for i := range given {
		given[i] = i
	}
	kind := func(i int) [2]int64 { return [2]int64{devices[i].Bytes, devices[i].Fixed} }
	found := [][]int{given}
	seen := map[string]bool{fmt.Sprint(kinds(given, kind)): true}
	consider := func(order []int) {
		if k := fmt.Sprint(kinds(order, kind)); !seen[k] {
			seen[k] = true
			found = append(found, slices.Clone(order))
		}
	}
	if len(devices) > 8 { // too many to try all: as given, largest first, smallest first
		bySize := slices.Clone(given)
		slices.SortStableFunc(bySize, func(a, b int) int {
			return int(min(1,
				max(-1, devices[b].Bytes-devices[a].Bytes)))
		})
		consider(bySize)
		slices.Reverse(bySize)
		consider(bySize)
		return found
	}
	var permute func(prefix, rest []int)
	permute = func(prefix, rest []int) {
		if len(found) >= orderLimit {
			return
		}
		if len(rest) == 0 {
			consider(prefix)
			return
		}
		tried := map[[2]int64]bool{}
		for i, d := range rest {
			if tried[kind(d)] {
				continue
			}
			tried[kind(d)] = true
			permute(append(prefix, d), append(slices.Clone(rest[:i]), rest[i+1:]...))
		}
	}
	permute(nil, given)
	return found
}

func kinds(order []int, kind func(int) [2]int64) [][2]int64 {
	var list [][2]int64
	for _, d := range order {
		list = append(list, kind(d))
	}
	return list
}
