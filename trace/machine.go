package trace

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"memroom/event"
)

// Opcodes of pickle that a snapshot may contain. The rest, and with them everything that could name
// or call something, does not exist for this machine.
const (
	opProto      = 0x80
	opFrame      = 0x95
	opMark       = '('
	opStop       = '.'
	opEmptyDict  = '}'
	opEmptyList  = ']'
	opEmptyTuple = ')'
	opSetItem    = 's'
	opSetItems   = 'u'
	opAppend     = 'a'
	opAppends    = 'e'
	opTuple      = 't'
	opTuple1     = 0x85
	opTuple2     = 0x86
	opTuple3     = 0x87
	opBinInt     = 'J'
	opBinInt1    = 'K'
	opBinInt2    = 'M'
	opLong1      = 0x8a
	opLong4      = 0x8b
	opBinFloat   = 'G'
	opNone       = 'N'
	opTrue       = 0x88
	opFalse      = 0x89
	opShortText  = 0x8c
	opText       = 'X'
	opText8      = 0x8d
	opMemoize    = 0x94
	opBinPut     = 'q'
	opLongBinPut = 'r'
	opBinGet     = 'h'
	opLongBinGet = 'j'
)

// forbidden are opcodes that name or call something: pickles with them are not snapshots, and
// dangerous to load elsewhere.
var forbidden = map[byte]string{
	'c': "GLOBAL", 0x93: "STACK_GLOBAL", 'R': "REDUCE", 'b': "BUILD", 0x81: "NEWOBJ",
	0x92: "NEWOBJ_EX", 'i': "INST", 'o': "OBJ",
	0x82: "EXT1", 0x83: "EXT2", 0x84: "EXT4", 'P': "PERSID", 'Q': "BINPERSID",
}

// tag is the type of a value. The first sixteen fit in the memo.
type tag uint8

const (
	tagNothing   tag = iota // an empty memo slot
	tagOpaque               // something that does not matter
	tagText                 // n is the number of the string
	tagEmptyDict            // aux-1 is its memo slot
	tagEmptyList
	tagDict    // n is an index into machine.dicts
	tagList    // n is an index into machine.lists
	tagPool    // a tuple of two numbers, n is an index into machine.pools
	tagFrame   // n is the number of the frame
	tagStack   // a list of frames, n is the number of the stack
	tagEntry   // an event of the history, n counts all of them
	tagHistory // a list of events, n is an index into machine.histories
	tagSegment
	tagBlock
	tagPast // an element of a block's history in torch 2.0
	tagNote // an annotation
	tagInt
	tagFloat // n has the bits
	tagRun   // events that are in their history already; n is the history
)

// value is an element of the machine's stack. A container that was put in the memo while still
// empty keeps its slot, plus one, in aux, so that the slot can be updated when its contents are
// known.
type value struct {
	n   int64
	aux uint32
	tag tag
}

// machine executes a pickle. Instead of building the tree it describes, it turns every dict, once
// complete, into the frame, event, block or segment it is; events go into their history at once.
type machine struct {
	in    *input
	names *interner
	memo  memo
	stack []value
	marks []int

	histories []*event.History
	firsts    []uint32 // number of each history's first event, of all events
	entries   uint32
	repeated  repeats
	dicts     []map[uint32]value
	lists     [][]value
	items     int // in dicts and lists
	pools     []event.PoolID
	poolIDs   map[event.PoolID]int
	segments  []event.Segment
	devices   []int // of each segment
	blocks    []event.Block
	pasts     []past
	notes     []Annotation
	seen      keysSeen
	done      bool
	unknown   int // events whose action has no name here

	unknownDevices int // segments whose device cannot be
}

// past is what torch 2.0 wrote about a block's allocation.
type past struct {
	addr  uint64
	size  int64
	stack event.StackID
}

func newMachine(in *input) *machine {
	return &machine{in: in, names: newInterner(knownTexts[:]), stack: make([]value, 0, 4096),
		poolIDs: map[event.PoolID]int{}}
}

func (m *machine) fail(format string, args ...any) error {
	return fmt.Errorf("offset %d: %s", m.in.offset(), fmt.Sprintf(format, args...))
}

// run executes opcodes until STOP, or until something is wrong: the error then includes the
// position.
func (m *machine) run() error {
	in := m.in
	for !m.done {
		if in.end-in.pos < inputSlack {
			in.more(inputSlack)
		}
		if in.pos >= in.end {
			return m.endedEarly()
		}
		m.names.read = in.offset()
		err := m.burst()
		if err == nil && in.pos < in.end {
			at := in.pos
			in.pos++
			err = m.rare(in.buf[at], at)
		}
		if in.pos > in.end {
			return m.endedEarly()
		}
		if err != nil {
			return err
		}
		if len(m.stack) > maxStack || len(m.marks) > maxMarks {
			return m.fail("nested too deeply for a memory snapshot (%d values and %d marks open)",
				len(m.stack), len(m.marks))
		}
	}
	return nil
}

// burst executes the common opcodes, with everything it needs in local variables, until it meets
// another one, comes near the end of the buffer, or fails.
func (m *machine) burst() error {
	in := m.in
	buf, pos, last := in.buf, in.pos, in.end-inputSlack
	stack := m.stack
	for pos <= last && len(stack) < maxStack {
		switch op := buf[pos]; op {
		case opBinGet, opLongBinGet:
			slot, length := slotAt(buf[pos:])
			pos += length
			v := m.memo.get(slot)
			if t := v.tag(); t == tagNothing || t == tagEntry {
				in.pos, m.stack = pos, stack
				if err := m.getUnusual(slot, v); err != nil {
					return err
				}
				stack = m.stack
				continue
			}
			stack = append(stack, value{tag: v.tag(), n: int64(v.index())})
		case opBinInt1:
			stack = append(stack, value{tag: tagInt, n: int64(buf[pos+1])})
			pos += 2
		case opBinInt2:
			stack = append(stack, value{tag: tagInt,
				n: int64(binary.LittleEndian.Uint16(buf[pos+1:]))})
			pos += 3
		case opBinInt:
			stack = append(stack, value{tag: tagInt,
				n: int64(int32(binary.LittleEndian.Uint32(buf[pos+1:])))})
			pos += 5
		case opMemoize:
			pos++
			if n := len(stack); n > 0 && m.memo.next == len(m.memo.first) &&
				m.memo.next < memoFirst && stack[n-1].tag < tagInt {
				v := &stack[n-1]
				if v.tag == tagEmptyDict || v.tag == tagEmptyList {
					v.aux = uint32(m.memo.next) + 1
				}
				m.memo.first = append(m.memo.first, memoOf(v.tag, uint32(v.n)&maxPayload))
				m.memo.next++
				continue
			}
			in.pos, m.stack = pos, stack
			if err := m.put(m.memo.next); err != nil {
				return err
			}
		case opMark:
			pos++
			m.marks = append(m.marks, len(stack))
			if len(m.marks) > maxMarks {
				in.pos, m.stack = pos, stack
				return nil // the caller complains
			}
			if n := len(stack); n > 0 && stack[n-1].tag == tagEmptyList {
				in.pos = pos
				m.frames(&stack[n-1])
				pos = in.pos
			}
		case opEmptyDict:
			pos++
			stack = append(stack, value{tag: tagEmptyDict})
		case opEmptyList:
			pos++
			stack = append(stack, value{tag: tagEmptyList})
		case opSetItems, opAppends:
			pos++
			in.pos, m.stack = pos, stack
			var err error
			if op == opSetItems {
				err = m.setItems()
			} else {
				err = m.appends()
			}
			if err != nil {
				return err
			}
			stack = m.stack
		case opLong1:
			n := int(buf[pos+1])
			if n > 8 {
				in.pos, m.stack = pos, stack
				return nil
			}
			v := binary.LittleEndian.Uint64(buf[pos+2:])
			shift := (64 - 8*uint(n)) & 127
			stack = append(stack, value{tag: tagInt, n: int64(v<<shift) >> shift})
			pos += 2 + n
		case opShortText:
			n := int(buf[pos+1])
			if pos+2+n > last {
				in.pos, m.stack = pos, stack
				return nil
			}
			stack = append(stack, value{tag: tagText, n: int64(m.names.text(buf[pos+2 : pos+2+n]))})
			pos += 2 + n
		default:
			in.pos, m.stack = pos, stack
			return nil
		}
	}
	in.pos, m.stack = pos, stack
	return nil
}

// The opcodes differ in bit 1 alone: slotAt counts on it. This does not compile if they do not.
var _ = [1]bool{}[opLongBinGet^opBinGet^2]

// slotAt reads the memo slot that a BINGET or LONG_BINGET names, and returns the opcode's length.
// Snapshots mix the two at random, so this does without a branch: the opcodes differ in one bit.
func slotAt(b []byte) (slot, length int) {
	long := int(b[0] >> 1 & 1)
	return int(binary.LittleEndian.Uint32(b[1:]) & (0xff | uint32(-long))), 2 + 3*long
}

// rare executes one opcode of any kind; the argument of a common one may be cut off by the end of
// the file.
func (m *machine) rare(op byte, at int) error {
	in := m.in
	switch op {
	case opBinGet, opLongBinGet:
		slot, length := slotAt(in.buf[at:])
		in.pos = at + length
		return m.get(slot)
	case opBinInt1:
		in.pos++
		m.pushInt(int64(in.buf[at+1]))
	case opBinInt2:
		in.pos += 2
		m.pushInt(int64(binary.LittleEndian.Uint16(in.buf[at+1:])))
	case opBinInt:
		in.pos += 4
		m.pushInt(int64(int32(binary.LittleEndian.Uint32(in.buf[at+1:]))))
	case opMemoize:
		return m.put(m.memo.next)
	case opMark:
		m.marks = append(m.marks, len(m.stack))
	case opEmptyDict:
		m.push(value{tag: tagEmptyDict})
	case opEmptyList:
		m.push(value{tag: tagEmptyList})
	case opSetItems:
		return m.setItems()
	case opAppends:
		return m.appends()
	case opLong1:
		return m.long1(at)
	case opShortText:
		in.pos++
		return m.text(int(in.buf[at+1]))
	case opText:
		in.pos += 4
		return m.text(int(binary.LittleEndian.Uint32(in.buf[at+1:])))
	case opText8:
		in.pos += 8
		return m.text(int(min(binary.LittleEndian.Uint64(in.buf[at+1:]), math.MaxInt32)))
	case opNone:
		m.push(value{tag: tagOpaque})
	case opTrue:
		m.pushInt(1)
	case opFalse:
		m.pushInt(0)
	case opBinFloat:
		in.pos += 8
		m.push(value{tag: tagFloat, n: int64(binary.BigEndian.Uint64(in.buf[at+1:]))})
	case opLong4:
		in.pos += 4
		return m.long4(int(int32(binary.LittleEndian.Uint32(in.buf[at+1:]))))
	case opBinPut:
		in.pos++
		return m.put(int(in.buf[at+1]))
	case opLongBinPut:
		in.pos += 4
		return m.put(int(binary.LittleEndian.Uint32(in.buf[at+1:])))
	case opSetItem:
		return m.setItem()
	case opAppend:
		return m.appendOne()
	case opEmptyTuple:
		m.push(value{tag: tagOpaque})
	case opTuple1:
		return m.tuple(1)
	case opTuple2:
		return m.tuple(2)
	case opTuple3:
		return m.tuple(3)
	case opTuple:
		mark, err := m.popMark()
		if err != nil {
			return err
		}
		return m.tuple(len(m.stack) - mark)
	case opProto:
		in.pos++
		if v := in.buf[at+1]; v < 2 || v > 5 {
			return m.fail("pickle protocol %d: PyTorch writes 2, 4 or 5", v)
		}
	case opFrame:
		in.pos += 8
	case opStop:
		m.done = true
	default:
		return m.refuse(op)
	}
	return nil
}

func (m *machine) refuse(op byte) error {
	m.in.pos--
	if name, ok := forbidden[op]; ok {
		return m.fail("the opcode %s names or calls Python code, which a memory snapshot never does; "+
			"nothing was executed", name)
	}
	return m.fail("the byte %#02x is not an opcode that a memory snapshot contains", op)
}

func (m *machine) endedEarly() error {
	m.in.pos = m.in.end
	var large *TooLarge
	switch {
	case errors.As(m.in.failed, &large):
		return m.fail("reading stopped: %v", large)
	case m.in.failed != nil:
		return m.fail("the file ends early: %v", m.in.failed)
	}
	return m.fail("the file ends early, before the pickle does")
}

func (m *machine) push(v value)    { m.stack = append(m.stack, v) }
func (m *machine) pushInt(n int64) { m.stack = append(m.stack, value{tag: tagInt, n: n}) }
func (m *machine) underflow() error {
	return m.fail("the pickle takes more from its stack than it put there")
}
func (m *machine) top() *value { return &m.stack[len(m.stack)-1] }

// what an opcode without a mark may take ends at the last mark
func (m *machine) floorHeight() int {
	if n := len(m.marks); n > 0 {
		return m.marks[n-1]
	}
	return 0
}

func (m *machine) popMark() (int, error) {
	n := len(m.marks)
	if n == 0 {
		return 0, m.underflow()
	}
	mark := m.marks[n-1]
	m.marks = m.marks[:n-1]
	return mark, nil
}

// long1 reads an integer of up to eight bytes. Python writes nine for values from 2^63 on; those
// wrap.
func (m *machine) long1(at int) error {
	in := m.in
	n := int(in.buf[at+1])
	in.pos += 1 + n
	if n <= 8 {
		v := binary.LittleEndian.Uint64(in.buf[at+2:])
		shift := 64 - 8*uint(n)
		if n == 0 {
			v = 0
		}
		m.pushInt(int64(v<<shift) >> shift)
		return nil
	}
	in.pos -= n
	return m.long4(n)
}

func (m *machine) long4(n int) error {
	if n < 0 || n > 1024 {
		return m.fail("an integer of %d bytes is no part of a memory snapshot", n)
	}
	b, ok := m.in.take(n)
	if !ok {
		return m.endedEarly()
	}
	var word [8]byte
	copy(word[:], b)
	m.pushInt(int64(binary.LittleEndian.Uint64(word[:])))
	return nil
}

func (m *machine) text(n int) error {
	if n > maxText {
		return m.fail("a string of %d bytes is no part of a memory snapshot", n)
	}
	b, ok := m.in.take(n)
	if !ok {
		return m.endedEarly()
	}
	m.push(value{tag: tagText, n: int64(m.names.text(b))})
	return nil
}

// put remembers the top of the stack in a memo slot.
func (m *machine) put(slot int) error {
	if len(m.stack) == 0 {
		return m.underflow()
	}
	// Writers number slots in order, so a slot far beyond the file's length so far is an attempt to
	// make us allocate.
	if int64(slot) > m.in.offset() {
		return m.fail("memo slot %d is out of order", slot)
	}
	m.memo.next = max(m.memo.next, slot+1)
	v := m.top()
	if v.n > maxPayload {
		return m.fail("more than %d objects of one kind", maxPayload)
	}
	switch {
	// the C++ writer names a container when it is complete: this is the event just placed
	case v.tag == tagRun:
		m.memo.put(slot, memoOf(tagEntry, m.entries-1))
	case v.tag >= tagInt:
		m.memo.put(slot, memoOf(tagOpaque, 0))
	default:
		if (v.tag == tagEmptyDict || v.tag == tagEmptyList) && v.aux == 0 {
			v.aux = uint32(slot) + 1
		}
		m.memo.put(slot, memoOf(v.tag, uint32(v.n)))
	}
	return nil
}

// settle records what became of a container that was put in the memo while it was empty.
func (m *machine) settle(v *value) {
	if v.aux != 0 {
		m.memo.put(int(v.aux-1), memoOf(v.tag, uint32(v.n)))
	}
}

// frames reads a whole call stack, a list of nothing but known frames, without a detour over the
// machine's stack. Two thirds of the bytes of a snapshot with full stacks are these, so this
// decides how fast it is read. It does nothing when the list is something else or does not end
// within the buffer.
//
// Programs repeat themselves: the stack that followed the stacks before it last time is expected,
// and its bytes compared, before anything is decoded.
func (m *machine) frames(list *value) {
	in := m.in
	guesses := m.names.next()
	for _, g := range guesses {
		if len(g.raw) > 0 && bytes.HasPrefix(in.buf[in.pos:in.end], g.raw) {
			in.pos += len(g.raw)
			m.endFrames(list, g.id)
			return
		}
	}
	buf, pos, last := in.buf, in.pos, in.end-inputSlack
	first, key := m.memo.first, m.names.scratch[:0]
	for pos <= last && buf[pos]&^2 == opBinGet {
		slot, length := slotAt(buf[pos:])
		pos += length
		if slot >= len(first) || first[slot].tag() != tagFrame {
			return
		}
		key = append(key, first[slot].index())
	}
	m.names.scratch = key
	if pos > last || buf[pos] != opAppends || len(key) == 0 {
		return
	}
	pos++
	id := m.names.stackOf(key)
	m.names.remember(guesses, buf[in.pos:pos], id)
	in.pos = pos
	m.endFrames(list, id)
}

func (m *machine) endFrames(list *value, id event.StackID) {
	m.marks = m.marks[:len(m.marks)-1]
	list.tag, list.n = tagStack, int64(id)
	m.settle(list)
	m.names.came(id)
}

// get pushes the value of a memo slot.
func (m *machine) get(slot int) error {
	v := m.memo.get(slot)
	if t := v.tag(); t == tagNothing || t == tagEntry {
		return m.getUnusual(slot, v)
	}
	m.push(value{tag: v.tag(), n: int64(v.index())})
	return nil
}

func (m *machine) getUnusual(slot int, v memoValue) error {
	if v.tag() == tagEntry {
		return m.repeatEntry(v.index())
	}
	return m.fail("memo slot %d is empty", slot)
}

// tuple replaces the top n values. Only pairs of numbers mean something: they name pools.
func (m *machine) tuple(n int) error {
	from := len(m.stack) - n
	if from < m.floorHeight() {
		return m.underflow()
	}
	v := value{tag: tagOpaque}
	if n == 2 && m.stack[from].tag == tagInt && m.stack[from+1].tag == tagInt {
		v = value{tag: tagPool, n: int64(m.pool(event.PoolID{uint64(m.stack[from].n),
			uint64(m.stack[from+1].n)}))}
	}
	m.stack = append(m.stack[:from], v)
	return nil
}

// pool returns the number of a pool id. A file usually has few pools. In a file with very many,
// those beyond the limit share the last number.
func (m *machine) pool(id event.PoolID) int {
	if i, ok := m.poolIDs[id]; ok {
		return i
	}
	if len(m.pools) == maxPools {
		return maxPools - 1
	}
	m.pools = append(m.pools, id)
	m.poolIDs[id] = len(m.pools) - 1
	return len(m.pools) - 1
}

const maxPools = 4096
