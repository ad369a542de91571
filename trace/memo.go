package trace

import "math/bits"

// memo is the pickle machine's memory of objects that may be named again. The first slots, where
// the frames and keys are that everything names, are a plain slice. A snapshot of gigabytes makes
// several slots per event beyond those and names few of them again, so finished pages are packed: a
// page that holds only fresh events and at most three other values (the text "N/A", an empty list)
// shrinks from 16 KiB to 1 KiB.
type memo struct {
	first []memoValue
	pages []*memoPage // of the slots from memoFirst on
	next  int         // slot of the next MEMOIZE
}

const (
	memoPageSlots = 4096
	memoFirst     = 1 << 20
)

// memoPage is raw, or packed with two bits a slot: 0 is the next event in order, 1 to 3 are
// constants.
type memoPage struct {
	raw    *[memoPageSlots]memoValue
	codes  []uint64
	event  uint32 // payload of the page's first event
	consts [3]memoValue
}

// memoValue is a tag in the top four bits and an index below; 0 is an empty slot.
type memoValue uint32

const maxPayload = 1<<28 - 1

func (v memoValue) tag() tag      { return tag(v >> 28) }
func (v memoValue) index() uint32 { return uint32(v & maxPayload) }

func memoOf(t tag, index uint32) memoValue { return memoValue(t)<<28 | memoValue(index) }

// put fills a slot, which need not be the next.
func (m *memo) put(slot int, v memoValue) {
	if slot < len(m.first) {
		m.first[slot] = v
		return
	}
	if slot < memoFirst {
		for len(m.first) < slot {
			m.first = append(m.first, 0)
		}
		m.first = append(m.first, v)
		return
	}
	slot -= memoFirst
	page := slot / memoPageSlots
	if page >= len(m.pages) {
		m.grow(page)
	}
	p := m.pages[page]
	if p == nil {
		p = &memoPage{raw: new([memoPageSlots]memoValue)}
		m.pages[page] = p
	}
	if p.raw == nil {
		p.unpack()
	}
	p.raw[slot%memoPageSlots] = v
}

// grow makes room for a page and packs what lies two pages back: the page before may still be
// patched by containers that are open.
func (m *memo) grow(page int) {
	for len(m.pages) <= page {
		m.pages = append(m.pages, nil)
	}
	if page >= 2 && m.pages[page-2] != nil {
		m.pages[page-2].pack()
	}
}

// get returns the value of a slot, 0 for an empty one.
func (m *memo) get(slot int) memoValue {
	if slot < len(m.first) {
		return m.first[slot]
	}
	if slot < memoFirst {
		return 0
	}
	slot -= memoFirst
	page := slot / memoPageSlots
	if page >= len(m.pages) || m.pages[page] == nil {
		return 0
	}
	if raw := m.pages[page].raw; raw != nil {
		return raw[slot%memoPageSlots]
	}
	return m.pages[page].packed(slot % memoPageSlots)
}

func (p *memoPage) pack() {
	if p.raw == nil {
		return
	}
	var codes [memoPageSlots / 32]uint64
	var consts [3]memoValue
	var first, next uint32
	seen := 0
	events := false
	for i, v := range p.raw {
		code := 0
		if v.tag() == tagEntry {
			if !events {
				first, next, events = v.index(), v.index(), true
			}
			if v.index() != next {
				return
			}
			next++
		} else if code = constCode(&consts, &seen, v); code == 0 {
			return
		}
		codes[i/32] |= uint64(code) << (i % 32 * 2)
	}
	p.codes, p.event, p.consts, p.raw = append([]uint64(nil), codes[:]...), first, consts, nil
}

// constCode returns the number of a constant from 1 on, taking a new one if there is room; 0 if
// there is not.
func constCode(consts *[3]memoValue, seen *int, v memoValue) int {
	for i := range *seen {
		if consts[i] == v {
			return i + 1
		}
	}
	if *seen == len(consts) {
		return 0
	}
	consts[*seen] = v
	*seen++
	return *seen
}

func (p *memoPage) packed(i int) memoValue {
	if code := p.codes[i/32] >> (i % 32 * 2) & 3; code != 0 {
		return p.consts[code-1]
	}
	events := p.event
	for w := range i / 32 {
		events += zeroCodes(p.codes[w])
	}
	rest := p.codes[i/32] | ^uint64(0)<<(i%32*2)
	return memoOf(tagEntry, events+zeroCodes(rest))
}

// zeroCodes counts the two-bit fields that are zero.
func zeroCodes(w uint64) uint32 {
	const low = 0x5555555555555555
	return uint32(32 - bits.OnesCount64((w|w>>1)&low))
}

func (p *memoPage) unpack() {
	var raw [memoPageSlots]memoValue
	next := p.event
	for i := range raw {
		if code := p.codes[i/32] >> (i % 32 * 2) & 3; code != 0 {
			raw[i] = p.consts[code-1]
			continue
		}
		raw[i] = memoOf(tagEntry, next)
		next++
	}
	*p = memoPage{raw: &raw}
}
