package table

import (
	"encoding/binary"
	"unsafe"
)

// Narrow columns of rows that will be read in a mixed order are packed: up to a cache line of them
// lie side by side, row after row. A row then costs one miss of the cache for the whole line, where
// it would cost one for every column.

const packWidth = 64 // bytes: a cache line

// packed is a group of narrow columns, side by side.
type packed struct {
	columns []int
	offsets []int
	stride  int // bytes of a row
	bytes   []byte
}

// Pack puts the narrow fixed columns side by side. The columns' own bytes are let go.
func (r *Rows) Pack(columns []Column) {
	var groups []packed
	var g packed
	end := func() {
		if len(g.columns) > 1 {
			groups = append(groups, g)
		}
		g = packed{}
	}
	for i, c := range columns {
		if c.Kind != Fixed || c.Width > 8 {
			continue
		}
		if g.stride+c.Width > packWidth {
			end()
		}
		g.columns = append(g.columns, i)
		g.offsets = append(g.offsets, g.stride)
		g.stride += c.Width
	}
	end()
	for i := range groups {
		r.fill(columns, &groups[i])
	}
	r.packed = groups
}

// packTile is how many rows are put side by side at a time: both sides stay in the cache.
const packTile = 256

func (r *Rows) fill(columns []Column, g *packed) {
	g.bytes = Take(r.Count * g.stride)[:r.Count*g.stride]
	for from := 0; from < r.Count; from += packTile {
		to := min(from+packTile, r.Count)
		for k, i := range g.columns {
			width := columns[i].Width
			into, values := g.bytes[from*g.stride+g.offsets[k]:], r.Data[i].Fixed[from*width:to*width]
			spread(into, g.stride, values, width)
		}
	}
	for _, i := range g.columns {
		Give(r.Data[i].Fixed)
		r.Data[i].Fixed = nil
	}
}

// spread writes values so many bytes apart.
func spread(into []byte, stride int, values []byte, width int) {
	switch width {
	case 4:
		for at := 0; len(values) >= 4; at, values = at+stride, values[4:] {
			binary.LittleEndian.PutUint32(into[at:], binary.LittleEndian.Uint32(values))
		}
	case 8:
		for at := 0; len(values) >= 8; at, values = at+stride, values[8:] {
			binary.LittleEndian.PutUint64(into[at:], binary.LittleEndian.Uint64(values))
		}
	default:
		for at := 0; len(values) >= width; at, values = at+stride, values[width:] {
			copy(into[at:at+width], values)
		}
	}
}

// gatherTile is how many rows of a group are copied at a time: they stay in the first cache while
// column after column is taken from them.
const gatherTile = 64

// gatherPacked copies the picked rows of a group into its columns.
func gatherPacked(blocks []*Rows, group int, columns []Column, picks []Pick, into [][]byte) {
	g := &blocks[0].packed[group]
	from := make([][]byte, len(blocks))
	for i, b := range blocks {
		from[i] = b.packed[group].bytes
	}
	var rows [gatherTile]unsafe.Pointer
	for start := 0; start < len(picks); start += gatherTile {
		tile := picks[start:min(start+gatherTile, len(picks))]
		for n, p := range tile {
			row := from[p.Block][int(p.Row)*g.stride:][:g.stride] // all of a row is there
			rows[n] = unsafe.Pointer(&row[0])
		}
		for k, i := range g.columns {
			width := columns[i].Width
			out := into[k][start*width:][:len(tile)*width]
			take(out, rows[:len(tile)], g.offsets[k], width)
		}
	}
}

// take copies the values at an offset of rows. The rows are at least offset + width long and out
// holds one value for each: gatherPacked has looked, so that nothing is looked at here.
func take(out []byte, rows []unsafe.Pointer, offset, width int) {
	switch width {
	case 4:
		values := unsafe.Slice((*[4]byte)(unsafe.Pointer(&out[0])), len(rows))
		for n, row := range rows {
			values[n] = *(*[4]byte)(unsafe.Add(row, offset))
		}
	case 8:
		values := unsafe.Slice((*[8]byte)(unsafe.Pointer(&out[0])), len(rows))
		for n, row := range rows {
			values[n] = *(*[8]byte)(unsafe.Add(row, offset))
		}
	default:
		for n, row := range rows {
			copy(out[n*width:(n+1)*width], unsafe.Slice((*byte)(unsafe.Add(row, offset)), width))
		}
	}
}
