package feed

import (
	"slices"
	"sync"

	"memroom/feed/order"
)

// partCounts keeps how many rows of each block are in a part: counting them takes a look at every
// row.
type partCounts struct {
	mu    sync.Mutex
	sizes map[order.Part][]order.Block
}

// partSizes returns the blocks with the rows of a part alone. Their bytes stay those of the whole
// block, which is decoded whole.
func (d *Dataset) partSizes(part order.Part) []order.Block {
	d.parts.mu.Lock()
	defer d.parts.mu.Unlock()
	if known := d.parts.sizes[part]; known != nil {
		return known
	}
	sizes := slices.Clone(d.sizes)
	var rows []int32
	for b := range sizes {
		rows = d.partRows(part, int32(b), rows[:0])
		sizes[b].Rows = int64(len(rows))
	}
	if d.parts.sizes == nil {
		d.parts.sizes = map[order.Part][]order.Block{}
	}
	d.parts.sizes[part] = sizes
	return sizes
}

// partRows appends the rows of a block that are in a part, ascending.
func (d *Dataset) partRows(part order.Part, b int32, out []int32) []int32 {
	p := d.blocks[b]
	return part.Rows(uint64(p.file), p.first, p.block.Rows, d.rowsOf(p.file), out)
}

// rowsOf returns the rows of a file.
func (d *Dataset) rowsOf(file int) int64 {
	b, _ := slices.BinarySearchFunc(d.blocks, file+1, func(p place, f int) int { return p.file - f })
	if b == 0 || d.blocks[b-1].file != file {
		return 0
	}
	return d.blocks[b-1].first + d.blocks[b-1].block.Rows
}

// inWindow is where the rows of a part lie in the window that was looked at last.
type inWindow struct {
	window int
	rows   []int64 // of the whole window, ascending
}

// placesOf returns the rows of window w that come at positions from to to of it, counted over all
// rows of its blocks, also where only a part of them is read.
func (c *Cursor) placesOf(w int, from, to int64, places []int64) []int64 {
	places = c.epoch.Places(w, from, to, places)
	if c.spec.Part == nil {
		return places
	}
	if c.part == nil || c.part.window != w {
		c.part = &inWindow{window: w}
		var start int64
		var rows []int32
		for _, b := range c.epoch.Windows[w].Blocks {
			rows = c.d.partRows(*c.spec.Part, b, rows[:0])
			for _, row := range rows {
				c.part.rows = append(c.part.rows, start+int64(row))
			}
			start += c.d.blocks[b].block.Rows
		}
	}
	for i, place := range places {
		places[i] = c.part.rows[place]
	}
	return places
}
