package feed

import (
	"context"
	"encoding/json"
	"time"

	"memroom/feed/order"
	"memroom/feed/table"
)

// Cursor walks the batches of one consumer through epochs: batch numbers first, first+stride, ...
// of the one global stream.
type Cursor struct {
	d      *Dataset
	pool   *Pool
	spec   Spec
	order  string
	epoch  *order.Epoch
	number uint64

	following *order.Epoch // the one after it, once its first window is wanted

	places []int64 // of a batch, and what becomes of them: room that is used again
	picks  []table.Pick

	checked time.Time // when the files were last looked at
	begun   bool      // the first batch has been made

	part *inWindow // nil: all rows are read, or none yet

	early     map[int64][]table.Pick // batches behind the first whose rows were read with it
	earlyRows []*table.Rows
}

// NewCursor returns a cursor over one epoch.
func NewCursor(d *Dataset, pool *Pool, spec Spec, epoch uint64) *Cursor {
	key := spec
	key.Batch, key.Drop = 0, false // the order does not depend on them
	name, _ := json.Marshal(key)
	return &Cursor{d: d, pool: pool, spec: spec, order: string(name), number: epoch,
		epoch: d.Epoch(spec, epoch)}
}

// Batches is how many the epoch has.
func (c *Cursor) Batches() int64 {
	n := c.epoch.Rows() / int64(c.spec.Batch)
	if !c.spec.Drop && c.epoch.Rows()%int64(c.spec.Batch) != 0 {
		n++
	}
	return n
}

// Batch is one batch, laid out and ready to be copied.
type Batch struct {
	Rows  int
	Spans []table.Span
	Size  int64
}

// Fill assembles batch k: it asks room for that many bytes and copies the rows there. next is the
// batch that the consumer will want after this one: its window is fetched ahead.
func (c *Cursor) Fill(ctx context.Context, k, next int64,
	room func(rows int, spans []table.Span, size int64) ([]byte, error)) error {
	if early := c.early[k]; early != nil {
		if err := c.copy(c.earlyRows, early, room); err != nil {
			return err // asked again where there was no room
		}
		if delete(c.early, k); len(c.early) == 0 {
			c.earlyRows = nil
		}
		return nil
	}
	from := k * int64(c.spec.Batch)
	to := min(from+int64(c.spec.Batch), c.epoch.Rows())
	// A batch may span windows. They are held one at a time, so that any budget that holds one is
	// enough: rows are gathered into small blocks of their own first where there are several.
	var gathered []*table.Rows
	var picks []table.Pick
	for position := from; position < to; {
		w := c.epoch.Find(position)
		info := c.epoch.Windows[w]
		end := min(to, info.First+info.Rows)
		c.places = c.placesOf(w, position-info.First, end-info.First, c.places)
		key := windowKey{c.order, c.number, w}
		if rows, own := c.first(ctx, key, info, k, next); rows != nil {
			for _, pick := range own {
				pick.Block += int32(len(gathered))
				picks = append(picks, pick)
			}
			gathered = append(gathered, rows...)
			position = end
			continue
		}
		held := c.pool.take(key, info, c.spec.Shuffle, true)
		select {
		case <-held.ready:
		case <-ctx.Done():
			c.pool.release(key, held)
			return ctx.Err()
		}
		err := held.err
		if err == nil {
			err = c.unchanged(w)
		}
		if err != nil {
			c.pool.release(key, held)
			return err
		}
		c.ahead(w, next)
		c.picks = held.picks(c.places, c.picks[:0])
		own := c.picks
		if position == from && end == to {
			err := c.copy(held.blocks, own, room)
			c.begun = true
			c.pool.release(key, held)
			return err
		}
		gathered = append(gathered, table.Extract(c.d.Columns, held.blocks, own))
		for i := range own {
			picks = append(picks, table.Pick{Block: int32(len(gathered) - 1), Row: int32(i)})
		}
		c.pool.release(key, held)
		position = end
	}
	c.begun = true
	return c.copy(gathered, picks, room)
}

// checkEvery is how often files are looked at while a window of theirs is handed out.
const checkEvery = 50 * time.Millisecond

// unchanged returns an error if the files of a window are no longer what was indexed. Its rows are
// decoded already, but the rows of the next windows would not match them.
func (c *Cursor) unchanged(w int) error {
	if time.Since(c.checked) < checkEvery {
		return nil
	}
	c.checked = time.Now()
	return c.d.unchanged(c.epoch.Windows[w].Blocks)
}

func (c *Cursor) copy(blocks []*table.Rows, picks []table.Pick,
	room func(rows int, spans []table.Span, size int64) ([]byte, error)) error {
	spans, size := table.Layout(c.d.Columns, blocks, picks)
	out, err := room(len(picks), spans, size)
	if err != nil {
		return err
	}
	table.Gather(c.d.Columns, blocks, picks, spans, out)
	return nil
}

// ahead starts decoding the window after w, if there is room for it without dropping one in use.
func (c *Cursor) ahead(w int, next int64) {
	want, epoch, number := w+1, c.epoch, c.number
	if want >= len(epoch.Windows) || next >= c.Batches() {
		// The next epoch begins with a window that is ready, not with a wait.
		if c.following == nil {
			c.following = c.d.Epoch(c.spec, c.number+1)
		}
		want, epoch, number = 0, c.following, c.number+1
	}
	key := windowKey{c.order, number, want}
	if held := c.pool.take(key, epoch.Windows[want], c.spec.Shuffle, false); held != nil {
		c.pool.release(key, held)
	}
}

// Classes is how well the epoch is mixed.
func (c *Cursor) Classes() float64 { return Classes(c.epoch) }

// Rows is how many rows the epoch has.
func (c *Cursor) Rows() int64 { return c.epoch.Rows() }

// Windows is how many windows the epoch has.
func (c *Cursor) Windows() int { return len(c.epoch.Windows) }
