package serve

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"memroom/event"
	"memroom/feed"
	"memroom/feed/source"
	"memroom/feed/table"
)

// Kinds of messages to a consumer.
const (
	kindBatch = 1
	kindEnd   = 2
	kindError = 3
	kindStill = 4 // nothing has come yet, and the server works on it; as long as a batch's message
)

// hearsStill is the first version of the protocol whose consumers know kindStill.
const hearsStill = 3

// errGone means that the consumer has closed its end.
var errGone = errors.New("the consumer has gone")

// header is the start of every message, little-endian, 40 bytes.
type header struct {
	Kind, Slot uint32
	Batch      uint64
	Rows       uint32
	Spans      uint32
	Size       uint64 // of a batch, or of the text that follows
	Descriptor uint32 // 1: a descriptor comes with it
	_          uint32
}

// slot is a place for one batch. It is lent to the consumer until the consumer returns it.
type slot struct {
	memory *shared
	size   int64
	batch  int64 // bytes of the last batch in it
	unseen bool  // the consumer does not have its memory yet
}

// turns are the slots that may be filled, and how many are in turn.
type turns struct {
	ahead *prefetch
	free  chan uint32
	most  int
}

func newTurns(depth int) *turns {
	t := &turns{ahead: newPrefetch(depth), most: depth}
	if depth == 0 {
		t.most = deepest
	}
	t.free = make(chan uint32, t.most)
	for i := range t.ahead.depth {
		t.free <- uint32(i)
	}
	return t
}

// read takes back the slots that the consumer returns, until it closes its end or breaks the rules.
func (t *turns) read(in *bufio.Reader) {
	for {
		var four [4]byte
		if _, err := io.ReadFull(in, four[:]); err != nil {
			return
		}
		n := binary.LittleEndian.Uint32(four[:])
		if n >= uint32(t.most) {
			return
		}
		t.ahead.given()
		select {
		case t.free <- n:
		default:
			return // given back twice
		}
	}
}

// stream sends one epoch's batches to one consumer. ctx ends when the consumer has gone.
func (s *Server) stream(ctx context.Context, conn *net.UnixConn, turn *turns, r request,
	from *opened) error {
	cursor := feed.NewCursor(from.data, from.pool, r.Spec, r.Epoch)
	first := answer{Columns: from.data.Columns, Rows: cursor.Rows(),
		Batches: cursor.Batches(), End: r.end(cursor.Batches()), Windows: cursor.Windows(),
		Data: from.fingerprint, Skipped: from.data.Skipped, BadFiles: from.data.BadFiles,
		Window: r.Spec.Window}
	if r.Spec.Shuffle {
		first.Classes = cursor.Classes()
	}
	line, _ := json.Marshal(first)
	if _, err := conn.Write(append(line, '\n')); err != nil {
		return errGone
	}
	ahead, free := turn.ahead, turn.free
	slots := make([]slot, turn.most)
	defer func() {
		for i := range slots {
			s.drop(&slots[i])
		}
	}()
	var resting []uint32 // slots that are not in turn, the next one last
	for i := turn.most - 1; i >= ahead.depth; i-- {
		resting = append(resting, uint32(i))
	}
	for k := r.Start; k < r.end(cursor.Batches()); k += r.Stride {
		var n uint32
		select {
		case n = <-free:
		case <-ctx.Done():
			return errGone
		}
		for s.batches.over() && ahead.depth > 1 && slots[n].memory != nil {
			// The budget was lowered: fewer batches are ahead.
			s.drop(&slots[n])
			resting = append(resting, n)
			ahead.depth--
			select {
			case n = <-free:
			case <-ctx.Done():
				return errGone
			}
		}
		began, first := time.Now(), false
		head := header{Kind: kindBatch, Slot: n, Batch: uint64(k)}
		fill := func(room func(int, []table.Span, int64) ([]byte, error)) error {
			return cursor.Fill(ctx, k%cursor.Batches(), k+r.Stride, room)
		}
		err := s.send(conn, head, r, from.data.Columns, &slots[n], first, fill)
		for errors.Is(err, errNoRoom) {
			if !s.makeRoom(slots, free) {
				// Others have taken the budget: this consumer goes on with the slots that it has.
				if !slices.ContainsFunc(slots, func(own slot) bool { return own.memory != nil }) {
					if first {
						break
					}
					first = true
				} else {
					select {
					case n = <-free:
					case <-ctx.Done():
						return errGone
					}
				}
			}
			head.Slot = n
			err = s.send(conn, head, r, from.data.Columns, &slots[n], first, fill)
		}
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, errGone) {
				return errGone
			}
			text := []byte(source.ShownText(err.Error()))
			_ = write(conn, header{Kind: kindError, Size: uint64(len(text))}, nil, text, -1)
			return err
		}
		if ahead.deeper(time.Since(began)) && len(resting) > 0 {
			next := resting[len(resting)-1]
			own := &slots[next]
			// Half of the batches' part is left for consumers that have not come yet.
			if s.batches.held() < s.batches.most()/2 &&
				s.grow(own, slots[n].batch, r.Transport == "memfd", false) == nil {
				// the consumer gets its descriptor with the first batch in it
				own.unseen = true
				resting = resting[:len(resting)-1]
				free <- next
				ahead.depth++
			}
		}
	}
	report := s.report(from.pool)
	report.Prefetch = ahead.depth
	text, _ := json.Marshal(report)
	if err := write(conn, header{Kind: kindEnd, Size: uint64(len(text))}, nil, text, -1); err != nil {
		return errGone
	}
	<-ctx.Done() // it closes when it has read this
	return nil
}

// whileMaking calls work, and tells the consumer every second that it goes on: one that hears
// nothing takes the server for stuck.
func whileMaking(conn *net.UnixConn, r request, columns []table.Column, work func() error) error {
	if r.Version < hearsStill {
		return work()
	}
	var mu sync.Mutex
	made := false
	var again *time.Timer
	mu.Lock()
	again = time.AfterFunc(stillHere, func() {
		mu.Lock()
		defer mu.Unlock()
		if !made && write(conn, header{Kind: kindStill}, make([]table.Span, table.Spans(columns)), nil,
			-1) == nil {
			again.Reset(stillHere)
		}
	})
	mu.Unlock()
	defer func() {
		again.Stop()
		mu.Lock()
		made = true
		mu.Unlock()
	}()
	return work()
}

// send fills a slot with rows and notifies the consumer. first means that it is the consumer's only
// slot.
func (s *Server) send(conn *net.UnixConn, h header, r request, columns []table.Column, own *slot,
	first bool, fill func(room func(int, []table.Span, int64) ([]byte, error)) error) error {
	var layout []table.Span
	descriptor := -1
	room := func(rows int, spans []table.Span, size int64) ([]byte, error) {
		h.Rows, h.Spans, h.Size = uint32(rows), uint32(len(spans)), uint64(size)
		layout = spans
		if own.memory == nil || int64(len(own.memory.bytes)) < size {
			if err := s.grow(own, size, r.Transport == "memfd", first); err != nil {
				return nil, err
			}
			own.unseen = true
		}
		if own.unseen {
			own.unseen = false
			if descriptor = own.memory.descriptor; descriptor >= 0 {
				h.Descriptor = 1
			}
		}
		own.batch = size
		return own.memory.bytes[:size], nil
	}
	if err := whileMaking(conn, r, columns, func() error { return fill(room) }); err != nil {
		return err
	}
	s.mu.Lock()
	s.served++
	s.mu.Unlock()
	var content []byte
	if own.memory.descriptor < 0 {
		content = own.memory.bytes[:h.Size]
	}
	if err := write(conn, h, layout, content, descriptor); err != nil {
		return errGone
	}
	return nil
}

// grow allocates more memory for a slot, from the budget's part for batches. A consumer's first
// slot may take from what the budget was before it was lowered, because the consumer could not go
// on without a slot.
func (s *Server) grow(own *slot, size int64, sharing, first bool) error {
	s.drop(own)
	size = (size + size/8 + 1<<16) &^ 4095 // room for batches of about the same size
	if size > s.batches.whole {
		return fmt.Errorf("a batch takes %s, and a budget of %s has %s for batches: give at least %s, or "+
			"smaller batches", event.Bytes(size), s.config.Budget, event.Bytes(s.batches.whole),
			wholeMiB(event.Bytes(float64(size)/batchesShare)+fixedReserve))
	}
	if !s.batches.reserve(size, first) {
		return fmt.Errorf("%w: a batch takes %s; the budget leaves %s for batches and %s of it is in use: "+
			"give a larger budget, smaller batches, or fewer workers and ranks", errNoRoom,
			event.Bytes(size), event.Bytes(s.batches.most()), event.Bytes(s.batches.held()))
	}
	memory, err := newShared(size, sharing)
	if err != nil {
		s.batches.release(size)
		return err
	}
	own.memory, own.size = memory, size
	return nil
}

// errNoRoom means that the budget's part for batches is used up.
var errNoRoom = errors.New("no room")

// makeRoom frees the memory of slots that hold no batch, and reports whether there was any.
func (s *Server) makeRoom(slots []slot, free chan uint32) bool {
	found := false
	for range len(free) {
		n := <-free
		found = found || slots[n].memory != nil
		s.drop(&slots[n])
		free <- n
	}
	return found
}

func (s *Server) drop(own *slot) {
	if own.memory != nil {
		own.memory.close()
		s.batches.release(own.size)
		*own = slot{}
	}
}

// write sends a message: header, spans, content; the descriptor travels with its first bytes.
func write(conn *net.UnixConn, h header, spans []table.Span, content []byte, descriptor int) error {
	head, err := binary.Append(nil, binary.LittleEndian, h)
	if err != nil {
		return err
	}
	for _, span := range spans {
		head = binary.LittleEndian.AppendUint64(head, uint64(span.Offset))
		head = binary.LittleEndian.AppendUint64(head, uint64(span.Size))
	}
	if err := writeWith(conn, head, descriptor); err != nil {
		return err
	}
	if len(content) > 0 {
		_, err = conn.Write(content)
	}
	return err
}

// account is a part of the budget.
type account struct {
	mu      sync.Mutex
	whole   int64 // what it may hold at most
	limit   int64 // what it may hold now
	used    int64
	changed func()
}

func newAccount(limit int64) *account {
	return &account{whole: limit, limit: limit, changed: func() {}}
}

// reserve takes n bytes where they are left; urgently, from the whole.
func (a *account) reserve(n int64, urgent bool) bool {
	a.mu.Lock()
	limit := a.limit
	if urgent {
		limit = a.whole
	}
	ok := a.used+n <= limit
	if ok {
		a.used += n
	}
	a.mu.Unlock()
	if ok {
		a.changed()
	}
	return ok
}

func (a *account) release(n int64) {
	a.mu.Lock()
	a.used -= n
	a.mu.Unlock()
	a.changed()
}

func (a *account) held() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.used
}

// resize sets what it may hold from now on. What is held above that goes when it is released.
func (a *account) resize(limit int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.limit = min(limit, a.whole)
}

func (a *account) most() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.limit
}

func (a *account) over() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.used > a.limit
}
