package allocsim

import (
	"fmt"
	"maps"

	"memroom/event"
)

// MaxTotal and MaxRequest are those of the package, for tests.
const (
	MaxTotal   = maxTotal
	MaxRequest = maxRequest
)

// Plausible is plausible, for tests.
func Plausible(e *event.Entry) bool { return plausible(e) }

// Check walks over the whole state and returns an error where it contradicts itself.
func (a *Allocator) Check() error {
	if z := a.blocks[0]; z != (block{}) {
		return fmt.Errorf("block 0, which is none, became %+v", z)
	}
	free, unmapped := map[blockRef]int{}, map[blockRef]int{}
	for i := range a.pools {
		for j := range a.pools[i] {
			for _, g := range a.pools[i][j].groups {
				g.free.each(func(k *freeKey) { free[k.block]++ })
				for _, ref := range g.unmapped {
					unmapped[ref]++
				}
			}
		}
	}
	if a.byAddr != nil {
		indexed := map[blockRef]int{}
		a.byAddr.each(func(k *freeKey) {
			if a.blocks[k.block].addr == k.addr {
				indexed[k.block]++
			}
		})
		if !maps.Equal(indexed, free) {
			return fmt.Errorf("the index by address has %v, free are %v", indexed, free)
		}
	}
	seen := 0
	for i := range a.segs {
		if !a.segs[i].live {
			continue
		}
		n, err := a.checkSegment(&a.segs[i], int32(i), free, unmapped)
		if err != nil {
			return fmt.Errorf("segment %d: %w", i, err)
		}
		seen += n
	}
	if want := len(a.blocks) - 1 - len(a.unused); seen != want {
		return fmt.Errorf("%d blocks in segments, %d in use", seen, want)
	}
	if len(free)+len(unmapped) > 0 {
		return fmt.Errorf("sets name blocks that no segment has: %v %v", free, unmapped)
	}
	return nil
}

// RunChecked is Run with Check after each operation.
func (r *Replayed) RunChecked(o Options) error {
	run, from, err := r.begin(o)
	if err != nil {
		return err
	}
	for i := from; i < len(r.Timeline.Ops); i++ {
		err := run.apply(&r.Timeline.Ops[i])
		if broken := run.a.Check(); broken != nil {
			return fmt.Errorf("operation %d, %+v: %w", i, r.Timeline.Ops[i], broken)
		}
		if err != nil && r.Timeline.Ops[i].Kind != event.OpTry {
			return nil // as Run ends here
		}
	}
	return nil
}

func (a *Allocator) checkSegment(s *segment, index int32, free,
	unmapped map[blockRef]int) (n int, err error) {
	at, prev := s.base, blockRef(0)
	for ref := s.first; ref != 0; ref = a.blocks[ref].next {
		b := &a.blocks[ref]
		if n++; n > len(a.blocks) {
			return n, fmt.Errorf("its blocks go round in circles")
		}
		if b.prev != prev || b.seg != index || b.addr != at || b.size <= 0 {
			return n, fmt.Errorf("block %d is %+v; want it behind %d, at %#x", ref, *b, prev, at)
		}
		inFree, inUnmapped := free[ref], unmapped[ref]
		if inFree != one(b.state == stateFree) || inUnmapped != one(b.state == stateUnmapped) {
			return n, fmt.Errorf("block %d in state %d is %d times free, %d times unmapped", ref,
				b.state, inFree, inUnmapped)
		}
		delete(free, ref)
		delete(unmapped, ref)
		at, prev = at+uint64(b.size), ref
	}
	if at != s.base+uint64(s.size) {
		return n, fmt.Errorf("ends at %#x, its blocks at %#x", s.base+uint64(s.size), at)
	}
	return n, nil
}

func one(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Effort is what the searches took so far.
func (a *Allocator) Effort() int64 { return a.effort }
