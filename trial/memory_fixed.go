package trial

import (
	"math"
	"strings"

	"memroom/event"
)

// trusted is how many finished trials a shape needs before it is believed where running out costs
// the whole attempt. Fewer fit almost any shape, also one that falls as a batch grows.
const trusted = 8

// fixed corrects the forecast of a shape for memory whose reservation cannot grow. It never goes
// below what smaller settings took. While few trials have finished it is at least what the nearest
// of them took, scaled up.
func (m *Memory) fixed(p Params, bytes event.Bytes, why string) (event.Bytes, string) {
	least, scaled, finished, nearest := event.Bytes(0), math.Inf(1), 0, false
	for _, o := range m.recent() {
		ratio, above := sizes(p, o.Params, m.Fixed)
		if above {
			least = max(least, o.Bytes)
		}
		if !o.AtLeast {
			if !o.Running {
				finished++
			}
			nearest = true
			scaled = min(scaled, float64(o.Bytes)*ratio)
		}
	}
	bytes = max(bytes, event.Bytes(float64(least)*(1+slack))+pad)
	if !nearest || finished >= trusted {
		return bytes, why
	}
	if worst := event.Bytes(scaled*(1+slack)) + pad; worst > bytes {
		return worst, "scaled up from the nearest trial"
	}
	return bytes, why
}

// sizes compares settings by the knobs that may be sizes: whole numbers, such as a batch or a
// width. ratio is the product of how much larger each is than in seen, with sides squared where it
// may be a side of weights; above is set where none is smaller.
func sizes(p, seen Params, sides bool) (ratio float64, above bool) {
	ratio, above = 1, true
	for _, knob := range p {
		now, ok := knob.Value.Float()
		other, found := seen.Get(knob.Name)
		was, number := other.Float()
		if !ok || !found || !number || !mayBeSize(knob.Name, now, was) {
			continue
		}
		above = above && now >= was
		larger := max(1, now/was)
		if ratio *= larger; sides && mayBeSide(knob.Name) {
			ratio *= larger
		}
	}
	return ratio, above
}

// mayBeSide leaves out what counts samples or layers: memory grows with it, not with its square as
// it does with a width.
func mayBeSide(name string) bool {
	name = strings.ToLower(name)
	for _, word := range []string{"batch", "bs", "samples", "layer", "depth", "block", "accum"} {
		if strings.Contains(name, word) {
			return false
		}
	}
	return true
}

// mayBeSize leaves out rates, which are no whole numbers, and whole numbers that never take memory.
func mayBeSize(name string, values ...float64) bool {
	name = strings.ToLower(name)
	for _, word := range []string{"seed", "epoch", "step", "iter", "patience", "warmup"} {
		if strings.Contains(name, word) {
			return false
		}
	}
	for _, v := range values {
		if v < 1 || v != math.Trunc(v) {
			return false
		}
	}
	return true
}
