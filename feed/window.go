package feed

import (
	"fmt"
	"math/bits"
	"sync"

	"memroom/feed/order"
	"memroom/feed/table"
)

// windowKey names a window: which order, which epoch, which of its windows.
type windowKey struct {
	order string
	epoch uint64
	index int
}

// window is a set of decoded blocks.
type window struct {
	ready  chan struct{} // closed when blocks or err are there
	blocks []*table.Rows
	starts []int64 // first row of each block in the window, and the number of rows
	near   []int32 // see point
	step   uint
	err    error
	used   int // by how many batches it is being read now
	size   int64
}

// Pool holds decoded windows within a budget of bytes. Consumers at the same place share one; a
// consumer far behind decodes again, so nobody waits for anybody else.
type Pool struct {
	d       *Dataset
	whole   int64 // bytes of decoded rows at most
	limit   int64 // at the moment, see Resize
	workers chan struct{}

	mu      sync.Mutex
	readers int // consumers that read from it, see Join
	changed *sync.Cond
	windows map[windowKey]*window
	ages    []windowKey // oldest first
	held    int64
	Peak    int64
	Decoded int64 // windows decoded, for the report
}

// NewPool returns a pool that holds at most limit bytes of decoded rows.
func NewPool(d *Dataset, limit int64, workers int) *Pool {
	p := &Pool{d: d, whole: limit, limit: limit, workers: make(chan struct{}, workers),
		windows: map[windowKey]*window{}}
	p.changed = sync.NewCond(&p.mu)
	return p
}

// Join registers a consumer, and Leave removes it. Windows that it has left behind are kept for the
// others, as far as there is room.
func (p *Pool) Join() { p.count(1) }

// Leave is the end of a Join.
func (p *Pool) Leave() { p.count(-1) }

func (p *Pool) count(by int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.readers += by
}

// take returns a window, decoding it if nobody has. With wait it waits for room; without, it
// returns nil where there is none. mixed is set where rows will be read in another order than they
// are stored.
func (p *Pool) take(key windowKey, w order.Window, mixed, wait bool) *window {
	size := p.sizeOf(w)
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		if known := p.windows[key]; known != nil {
			known.used++
			p.touch(key)
			return known
		}
		for p.readers <= 1 && p.evict() {
			// Nobody comes after this reader, so that what it has left behind is of no use. Its
			// buffers are used again for this window.
		}
		if p.held+size <= p.limit || len(p.windows) == 0 || p.evict() {
			if p.held+size <= p.limit || len(p.windows) == 0 {
				break
			}
			continue
		}
		if !wait {
			return nil
		}
		p.changed.Wait()
	}
	made := &window{ready: make(chan struct{}), used: 1, size: size}
	p.windows[key] = made
	p.ages = append(p.ages, key)
	p.held += size
	p.Peak = max(p.Peak, p.held)
	p.Decoded++
	go p.load(made, w, mixed)
	return made
}

// Resize sets how many bytes of decoded rows are kept from now on, at most what the pool was made
// for. Windows that nobody reads go at once. One is kept whatever the limit is.
func (p *Pool) Resize(limit int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.limit = min(limit, p.whole)
	for p.held > p.limit && len(p.windows) > 1 && p.evict() {
	}
	table.Trim(max(0, p.limit-p.held))
	p.changed.Broadcast()
}

func (p *Pool) sizeOf(w order.Window) int64 {
	var size int64
	for _, b := range w.Blocks {
		size += p.d.sizes[b].Bytes
	}
	return size
}

func (p *Pool) touch(key windowKey) {
	for i, k := range p.ages {
		if k == key {
			p.ages = append(append(p.ages[:i:i], p.ages[i+1:]...), key)
			return
		}
	}
}

// evict drops the oldest window that nobody reads.
func (p *Pool) evict() bool {
	for i, key := range p.ages {
		if w := p.windows[key]; w.used == 0 {
			delete(p.windows, key)
			p.ages = append(p.ages[:i:i], p.ages[i+1:]...)
			p.held -= w.size
			w.recycle()
			return true
		}
	}
	return false
}

// recycle hands the buffers of a window to the next one. One that is still being decoded keeps its
// own.
func (w *window) recycle() {
	select {
	case <-w.ready:
		for _, b := range w.blocks {
			b.Recycle()
		}
	default:
	}
}

// release ends a reading.
func (p *Pool) release(key windowKey, w *window) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w.used--
	if w.err != nil && w.used == 0 && p.windows[key] == w {
		delete(p.windows, key) // a failure is not kept: a server may be back by then
		for i, k := range p.ages {
			if k == key {
				p.ages = append(p.ages[:i:i], p.ages[i+1:]...)
				break
			}
		}
		p.held -= w.size
	}
	p.changed.Broadcast()
}

// load decodes the blocks of a window.
func (p *Pool) load(made *window, w order.Window, mixed bool) {
	defer close(made.ready)
	blocks := make([]*table.Rows, len(w.Blocks))
	errs := make([]error, len(w.Blocks))
	var group sync.WaitGroup
	for i, b := range w.Blocks {
		p.workers <- struct{}{}
		group.Add(1)
		go func() {
			defer group.Done()
			defer func() { <-p.workers }()
			if blocks[i], errs[i] = p.d.decode(b); errs[i] != nil {
				return
			}
			blocks[i].Fit()
			if mixed {
				blocks[i].Pack(p.d.Columns)
			}
		}()
	}
	group.Wait()
	var actual, first int64
	for i := range blocks {
		if errs[i] != nil {
			made.err = errs[i]
			return
		}
		made.starts = append(made.starts, first)
		first += int64(blocks[i].Count)
		actual += blocks[i].Size()
	}
	made.blocks = blocks
	made.point(first)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held += actual - made.size
	made.size = actual
	p.Peak = max(p.Peak, p.held)
	table.Trim(max(0, p.limit-p.held))
	if actual > p.whole+p.whole/16 { // buffers that are used again may be somewhat larger
		made.err = fmt.Errorf("a window of rows takes %d MiB decoded, the budget leaves %d MiB for rows: "+
			"give a larger budget, a smaller window or fewer columns", actual>>20, p.whole>>20)
		made.blocks = nil
	}
}

// picks turns rows of the window into rows of its blocks.
func (w *window) picks(places []int64, out []table.Pick) []table.Pick {
	for _, row := range places {
		b := w.near[row>>w.step]
		for w.starts[b+1] <= row {
			b++
		}
		out = append(out, table.Pick{Block: b, Row: int32(row - w.starts[b])})
	}
	return out
}

// point makes the table that picks looks blocks up in: for every 2^step rows the block of the first
// of them. A step is about as long as a block, so the block of a row is at most some further.
func (w *window) point(rows int64) {
	w.starts = append(w.starts, rows)
	average := max(1, rows/int64(max(1, len(w.blocks))))
	w.step = uint(bits.Len64(uint64(average)) - 1)
	b := int32(0)
	for row := int64(0); row < rows; row += 1 << w.step {
		for w.starts[b+1] <= row {
			b++
		}
		w.near = append(w.near, b)
	}
}

// HighWater is the most that decoded rows took, in bytes.
func (p *Pool) HighWater() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.Peak
}

// Held is how many bytes decoded rows take now.
func (p *Pool) Held() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held
}

// Loads is how many windows were decoded.
func (p *Pool) Loads() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.Decoded
}
