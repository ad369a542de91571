package trace

import (
	"encoding/binary"
	"math"
)

// pickler writes pickles the way the three writers of snapshots do, so that tests can make any
// snapshot, and any that is none.
type pickler struct {
	b      []byte
	proto  byte // 2, 4 or 5
	cpp    bool // the C++ writer: memo puts follow the complete container, one batch a container
	memo   map[string]int
	next   int
	frames map[string]int
}

func newPickler(proto byte, cpp bool) *pickler {
	return &pickler{b: []byte{opProto, proto}, proto: proto, cpp: cpp, memo: map[string]int{},
		frames: map[string]int{}}
}

func (p *pickler) op(b ...byte) *pickler { p.b = append(p.b, b...); return p }

// put stores the top of the stack in the next memo slot and returns the slot's number.
func (p *pickler) put() int {
	slot := p.next
	p.next++
	switch {
	case p.proto >= 4:
		p.op(opMemoize)
	case slot < 256:
		p.op(opBinPut, byte(slot))
	default:
		p.op(opLongBinPut)
		p.b = binary.LittleEndian.AppendUint32(p.b, uint32(slot))
	}
	return slot
}

func (p *pickler) get(slot int) {
	if slot < 256 {
		p.op(opBinGet, byte(slot))
		return
	}
	p.op(opLongBinGet)
	p.b = binary.LittleEndian.AppendUint32(p.b, uint32(slot))
}

func (p *pickler) text(s string) {
	if slot, ok := p.memo[s]; ok {
		p.get(slot)
		return
	}
	if p.proto >= 4 && len(s) < 256 {
		p.op(opShortText, byte(len(s)))
	} else {
		p.op(opText)
		p.b = binary.LittleEndian.AppendUint32(p.b, uint32(len(s)))
	}
	p.b = append(p.b, s...)
	p.memo[s] = p.put()
}

func (p *pickler) integer(v int64) {
	switch {
	case v >= 0 && v < 256:
		p.op(opBinInt1, byte(v))
	case v >= 0 && v < 65536:
		p.op(opBinInt2, byte(v), byte(v>>8))
	case v >= math.MinInt32 && v <= math.MaxInt32:
		p.op(opBinInt)
		p.b = binary.LittleEndian.AppendUint32(p.b, uint32(v))
	default:
		n := 8
		if !p.cpp { // Python writes as few bytes as hold the value
			for n > 5 && v<<(64-8*(n-1))>>(64-8*(n-1)) == v {
				n--
			}
		}
		p.op(opLong1, byte(n))
		p.b = append(p.b, binary.LittleEndian.AppendUint64(nil, uint64(v))[:n]...)
	}
}

// list writes n elements, in batches of a thousand where Python does.
func (p *pickler) list(n int, element func(i int)) {
	p.container(opEmptyList, n, opAppend, opAppends, element)
}

// pair is a key of a dict and what writes its value.
type pair struct {
	key   string
	value func()
}

func (p *pickler) dict(pairs ...pair) {
	p.container(opEmptyDict, len(pairs), opSetItem, opSetItems, func(i int) {
		p.text(pairs[i].key)
		pairs[i].value()
	})
}

func (p *pickler) container(empty byte, n int, one, many byte, element func(i int)) {
	p.op(empty)
	if p.cpp {
		p.op(opMark)
		for i := range n {
			element(i)
		}
		p.op(many)
		p.put()
		return
	}
	p.put()
	for from := 0; from < n; from += 1000 {
		to := min(n, from+1000)
		if to-from == 1 {
			element(from)
			p.op(one)
			continue
		}
		p.op(opMark)
		for i := from; i < to; i++ {
			element(i)
		}
		p.op(many)
	}
}

func (p *pickler) num(key string, v int64) pair { return pair{key, func() { p.integer(v) }} }
func (p *pickler) str(key, v string) pair       { return pair{key, func() { p.text(v) }} }

func (p *pickler) stop() []byte { return append(p.b, opStop) }
