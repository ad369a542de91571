package trace

import (
	"sort"

	"memroom/event"
)

// appends adds the values above the mark to the list below it.
func (m *machine) appends() error {
	mark, err := m.popMark()
	if err != nil {
		return err
	}
	if mark == 0 || mark-1 < m.floorHeight() {
		return m.underflow()
	}
	return m.extend(mark)
}

// appendOne adds the top value to the list below it.
func (m *machine) appendOne() error {
	from := len(m.stack) - 1
	if from-1 < m.floorHeight() {
		return m.underflow()
	}
	return m.extend(from)
}

// extend adds the values from a height on to the list below. The kind of list shows at the
// first values.
func (m *machine) extend(from int) error {
	target, items := &m.stack[from-1], m.stack[from:]
	if len(items) > 0 {
		var err error
		switch target.tag {
		case tagEmptyList:
			m.fillList(target, items)
		case tagStack:
			err = m.lengthen(target, items)
		case tagList:
			m.lists[target.n] = append(m.lists[target.n], items...)
			m.items += len(items)
		case tagHistory, tagOpaque: // events were placed when they were complete
		default:
			err = m.fail("items for something that is not a list")
		}
		if m.items > maxItems {
			err = m.fail("more than %d values in lists that a memory snapshot does not have",
				maxItems)
		}
		if err != nil {
			return err
		}
	}
	m.stack = m.stack[:from]
	return nil
}

// fillList decides the kind of a list by its first values: a stack, something that does not matter,
// or a list to keep.
func (m *machine) fillList(target *value, items []value) {
	if id, ok := m.names.stack(0, items); ok {
		target.tag, target.n = tagStack, int64(id)
	} else if allScalars(items) {
		target.tag, target.n = tagOpaque, 0
	} else {
		target.tag, target.n = tagList, int64(len(m.lists))
		m.lists = append(m.lists, append([]value(nil), items...))
		m.items += len(items) + 4
	}
	m.settle(target)
}

// lengthen adds frames to a stack of more than a thousand, which Python writes in parts.
func (m *machine) lengthen(target *value, items []value) error {
	id, ok := m.names.stack(event.StackID(target.n), items)
	if !ok {
		return m.fail("a call stack contains something that is not a frame")
	}
	if m.names.walked > freeWalk+walkPerByte*m.in.offset() {
		return m.fail("call stacks are written in very many parts, which no writer does")
	}
	target.n = int64(id)
	m.settle(target)
	return nil
}

// allScalars reports whether a list holds only texts and numbers: nothing that matters here does.
func allScalars(items []value) bool {
	for i := range items {
		if t := items[i].tag; t != tagText && t < tagInt && t != tagOpaque {
			return false
		}
	}
	return true
}

// placeEntry puts an event, whose dict was just taken off the stack, into the history that the
// surrounding list is. On the stack all events of a list are one value: the C++ writer puts
// millions of them between a mark and one APPENDS.
func (m *machine) placeEntry(e *event.Entry, aux uint32) error {
	list := m.surroundingList()
	if list == nil {
		v := value{tag: tagOpaque, aux: aux}
		m.settle(&v)
		m.push(v)
		return nil
	}
	if list.tag == tagEmptyList {
		if len(m.histories) == maxRecorders {
			return m.fail("more than %d lists of events: there is one a device", maxRecorders)
		}
		list.tag, list.n = tagHistory, int64(len(m.histories))
		m.settle(list)
		m.histories = append(m.histories, &event.History{})
		m.firsts = append(m.firsts, m.entries)
	}
	if int(list.n) != len(m.histories)-1 {
		return m.fail("events of two devices are mixed")
	}
	if m.entries == maxPayload {
		return m.fail("more than %d events", maxPayload)
	}
	m.histories[list.n].Append(e)
	if aux != 0 {
		m.memo.put(int(aux-1), memoOf(tagEntry, m.entries))
	}
	m.entries++
	if n := len(m.stack); n == m.floorHeight() || m.stack[n-1].tag != tagRun {
		m.push(value{tag: tagRun, n: list.n})
	}
	return nil
}

// surroundingList returns the list that a value about to be pushed will be appended to, if that is
// how it looks.
func (m *machine) surroundingList() *value {
	n := len(m.stack)
	if n > 0 && m.stack[n-1].tag == tagRun && n > m.floorHeight() {
		n--
	}
	if n == 0 {
		return nil
	}
	if v := &m.stack[n-1]; v.tag == tagEmptyList || v.tag == tagHistory {
		return v
	}
	return nil
}

// repeatEntry places an event that is named a second time.
func (m *machine) repeatEntry(number uint32) error {
	h := sort.Search(len(m.firsts), func(i int) bool { return m.firsts[i] > number }) - 1
	if h < 0 || int(number-m.firsts[h]) >= m.histories[h].Len() {
		return m.fail("an event is named before it is complete")
	}
	e := m.repeated.at(m.histories[h], int(number-m.firsts[h]))
	if m.repeated.times++; m.repeated.times > maxRepeats ||
		int64(m.repeated.reads) > freeRepeatReads+m.in.offset()/bytesPerRepeatRead {
		return m.fail("events are named again and again, which no writer of snapshots does")
	}
	return m.placeEntry(&e, 0)
}

// repeats finds events that are named again. A chunk of the history is decoded once for all that
// follow each other.
type repeats struct {
	history *event.History
	finder  *event.Finder
	// entries in the chunk that finder holds are from here on, as far as the history went then
	first int
	reads int // chunks decoded
	times int // events named again
}

// Writers name each event once. Two bytes can name an event that takes seventy here, and each
// change of chunk decodes a thousand events, so both are bounded.
const (
	maxRepeats         = 1 << 20
	freeRepeatReads    = 4096
	bytesPerRepeatRead = 1024
)

func (r *repeats) at(h *event.History, i int) event.Entry {
	if r.history != h || i >= r.first {
		r.history, r.finder, r.first = h, h.Find(), h.Len()
		r.reads++
	}
	before := r.finder.Reads
	e := r.finder.At(i)
	r.reads += r.finder.Reads - before
	return e
}
