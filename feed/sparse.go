package feed

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	"memroom/feed/format"
	"memroom/feed/order"
	"memroom/feed/table"
)

// The first batches are read by themselves as long as they are this part of a window at most. As
// many more are read with the first as a trainer may take while the window is decoded.
const (
	sparseShare = 1.0 / 8
	earlyMost   = 16
)

// first reads the rows of the first batch alone, where the window they belong to is not decoded yet
// and the format can do that. A trainer that resumes gets its first batch before the whole window
// is decoded, and works on it meanwhile. c.places are the rows. It returns nil where the caller
// must wait for the window, which also reports errors.
func (c *Cursor) first(ctx context.Context, key windowKey, w order.Window, k, next int64) (
	[]*table.Rows, []table.Pick) {
	most := int(float64(w.Rows) * sparseShare)
	if c.begun || !c.spec.Shuffle || len(c.places) > most || c.pool.has(key) {
		return nil, nil
	}
	own := len(c.places)
	following := c.earlyBatches(key, w, k, next, most)
	want, picks := c.wanted(w)
	c.places = c.places[:own]
	blocks := make([]*table.Rows, len(w.Blocks))
	var group sync.WaitGroup
	var mu sync.Mutex
	begun, failed := 0, false
	for range runtime.GOMAXPROCS(0) {
		group.Add(1)
		go func() {
			defer group.Done()
			for {
				mu.Lock()
				i := begun
				begun++
				stop := failed || i >= len(blocks) || ctx.Err() != nil
				mu.Unlock()
				if stop {
					return
				}
				rows, err := c.d.decodeSome(w.Blocks[i], want[i])
				mu.Lock()
				blocks[i] = rows
				failed = failed || err != nil
				mu.Unlock()
			}
		}()
	}
	group.Wait()
	if failed || ctx.Err() != nil {
		return nil, nil
	}
	// The window is wanted next.
	if held := c.pool.take(key, w, c.spec.Shuffle, false); held != nil {
		c.pool.release(key, held)
	}
	c.checked = time.Now()
	if len(following) > 0 {
		c.early, c.earlyRows = map[int64][]table.Pick{}, blocks
		for i, batch := range following {
			at := own + i*c.spec.Batch
			c.early[batch] = picks[at : at+c.spec.Batch]
		}
	}
	return blocks, picks[:own]
}

// earlyBatches adds the rows of the consumer's next batches to c.places, where they are whole in
// this window, and returns their numbers.
func (c *Cursor) earlyBatches(key windowKey, w order.Window, k, next int64, most int) []int64 {
	size := int64(c.spec.Batch)
	var found []int64
	for b := next; len(found) < earlyMost && len(c.places)+int(size) <= most; b += next - k {
		from := b*size - w.First
		if next <= k || from < 0 || from+size > w.Rows {
			break
		}
		c.places = append(c.places, c.placesOf(key.index, from, from+size, nil)...)
		found = append(found, b)
	}
	return found
}

// wanted returns, for the rows in c.places, which rows of each block are needed, in ascending
// order, and where each of them will lie.
func (c *Cursor) wanted(w order.Window) ([][]int32, []table.Pick) {
	starts := make([]int64, 0, len(w.Blocks)+1)
	total := int64(0)
	for _, b := range w.Blocks {
		starts = append(starts, total)
		total += c.d.blocks[b].block.Rows
	}
	want := make([][]int32, len(w.Blocks))
	picks := make([]table.Pick, len(c.places))
	for i, place := range c.places {
		b, exact := slices.BinarySearch(starts, place)
		if !exact {
			b--
		}
		for b+1 < len(starts) && starts[b+1] <= place { // blocks without rows
			b++
		}
		row := int32(place - starts[b])
		want[b] = append(want[b], row)
		picks[i] = table.Pick{Block: int32(b), Row: row}
	}
	for b := range want {
		slices.Sort(want[b])
	}
	for i, pick := range picks {
		at, _ := slices.BinarySearch(want[pick.Block], pick.Row)
		picks[i].Row = int32(at)
	}
	return want, picks
}

// errNotSparse means that a format cannot read some rows faster than all of them.
var errNotSparse = errors.New("all rows must be read")

// has reports whether a window is decoded, or being decoded.
func (p *Pool) has(key windowKey) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.windows[key] != nil
}

// decodeSome reads some rows of a block.
func (d *Dataset) decodeSome(b int32, want []int32) (*table.Rows, error) {
	p := d.blocks[b]
	decoder, err := d.decoderOf(p.file)
	if err != nil {
		return nil, err
	}
	sparse, ok := decoder.(format.Sparse)
	if !ok {
		return nil, errNotSparse
	}
	if len(want) == 0 {
		return table.NewRows(d.Columns, 0, 0), nil
	}
	return sparse.DecodeSome(p.block, want, d.Columns)
}
