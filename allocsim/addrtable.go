package allocsim

import "math/bits"

// addrTable finds live blocks by address: an open-addressed hash table, because a history asks
// three times for each allocation and Go's map is the slower half of a replay.
type addrTable struct {
	slots []addrSlot
	shift uint
	count int
}

type addrSlot struct {
	addr  uint64
	block Block
	id    int32 // of the allocation in the timeline
	used  bool
}

func newAddrTable() *addrTable {
	return &addrTable{slots: make([]addrSlot, 1<<10), shift: 64 - 10}
}

// home is the slot where an address is looked for first. Addresses are multiples of 512 that differ
// in the middle bits; multiplying spreads them.
func (t *addrTable) home(addr uint64) int { return int(addr * 0x9e3779b97f4a7c15 >> t.shift) }

// find returns the entry of an address, nil if there is none. It is valid until the next put or
// remove.
func (t *addrTable) find(addr uint64) *addrSlot {
	mask := len(t.slots) - 1
	for i := t.home(addr); t.slots[i].used; i = (i + 1) & mask {
		if t.slots[i].addr == addr {
			return &t.slots[i]
		}
	}
	return nil
}

// put adds an address or replaces what it named.
func (t *addrTable) put(addr uint64, b Block, id int32) {
	if t.count*2 >= len(t.slots) {
		t.grow()
	}
	mask := len(t.slots) - 1
	i := t.home(addr)
	for t.slots[i].used && t.slots[i].addr != addr {
		i = (i + 1) & mask
	}
	if !t.slots[i].used {
		t.count++
	}
	t.slots[i] = addrSlot{addr, b, id, true}
}

// remove takes out an address, moving back what had been displaced by it.
func (t *addrTable) remove(addr uint64) {
	s := t.find(addr)
	if s == nil {
		return
	}
	t.count--
	mask := len(t.slots) - 1
	gap := t.home(addr)
	for t.slots[gap].addr != addr {
		gap = (gap + 1) & mask
	}
	for i := (gap + 1) & mask; t.slots[i].used; i = (i + 1) & mask {
		if home := t.home(t.slots[i].addr); (i-home)&mask >= (i-gap)&mask {
			t.slots[gap] = t.slots[i]
			gap = i
		}
	}
	t.slots[gap] = addrSlot{}
}

func (t *addrTable) grow() {
	old := t.slots
	t.slots = make([]addrSlot, 2*len(old))
	t.shift = 64 - uint(bits.TrailingZeros(uint(len(t.slots))))
	t.count = 0
	for i := range old {
		if old[i].used {
			t.put(old[i].addr, old[i].block, old[i].id)
		}
	}
}
