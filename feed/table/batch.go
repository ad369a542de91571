package table

import "encoding/binary"

// Align is where each buffer of a batch starts, in bytes: a cache line, which is what TensorFlow
// and JAX want to use a buffer as it is.
const Align = 64

// Pick is one row of a batch: which of the window's blocks, and which row of it.
type Pick struct{ Block, Row int32 }

// Span is where a buffer lies in a batch.
type Span struct{ Offset, Size int64 }

// Spans of a column: values; or ends, bytes and missing marks. A fixed column has one, the others
// three, the last of size 0 where nothing is missing.
func spansOf(c Column) int {
	if c.Kind == Fixed {
		return 1
	}
	return 3
}

// Spans returns how many spans a batch of these columns has.
func Spans(columns []Column) (count int) {
	for _, c := range columns {
		count += spansOf(c)
	}
	return count
}

// Layout returns where each buffer of a batch of picks lies, and how large the batch is.
func Layout(columns []Column, blocks []*Rows, picks []Pick) ([]Span, int64) {
	var spans []Span
	at := int64(0)
	add := func(size int64) {
		spans = append(spans, Span{at, size})
		at += (size + Align - 1) &^ (Align - 1)
	}
	for i, c := range columns {
		if c.Kind == Fixed {
			add(int64(len(picks)) * int64(c.Width))
			continue
		}
		add(8 * int64(len(picks)))
		var size, missing int64
		for _, p := range picks {
			d := &blocks[p.Block].Data[i]
			text, null := d.row(int(p.Row))
			size += int64(len(text))
			if null {
				missing = int64(len(picks))
			}
		}
		add(size)
		add(missing)
	}
	return spans, at
}

// Gather copies the picked rows into a batch laid out by Layout.
func Gather(columns []Column, blocks []*Rows, picks []Pick, spans []Span, out []byte) {
	fixed := make([][]byte, len(columns))
	at := 0
	for i, c := range columns {
		own := spans[at : at+spansOf(c)]
		at += len(own)
		if c.Kind == Fixed {
			fixed[i] = out[own[0].Offset : own[0].Offset+own[0].Size]
			continue
		}
		gatherTexts(blocks, i, picks, own, out)
	}
	gatherAllFixed(columns, blocks, picks, fixed)
}

// gatherAllFixed copies the fixed columns; into has a place for each of them, nil for the others.
func gatherAllFixed(columns []Column, blocks []*Rows, picks []Pick, into [][]byte) {
	if len(picks) == 0 {
		return
	}
	done := make([]bool, len(columns))
	for g, p := range blocks[0].packed {
		own := make([][]byte, len(p.columns))
		for k, i := range p.columns {
			own[k], done[i] = into[i], true
		}
		gatherPacked(blocks, g, columns, picks, own)
	}
	for i, c := range columns {
		if c.Kind == Fixed && !done[i] {
			gatherFixed(blocks, i, c.Width, picks, into[i])
		}
	}
}

func gatherFixed(blocks []*Rows, column, width int, picks []Pick, out []byte) {
	if run := oneRun(picks); run {
		p := picks[0]
		from := blocks[p.Block].Data[column].Fixed[int(p.Row)*width:]
		copy(out, from[:len(picks)*width])
		return
	}
	// The way from a block to its column is walked once a block, not once a value.
	from := make([][]byte, len(blocks))
	for i, b := range blocks {
		from[i] = b.Data[column].Fixed
	}
	switch width {
	case 1:
		for n, p := range picks {
			out[n] = from[p.Block][p.Row]
		}
	case 4:
		for n, p := range picks {
			v := binary.LittleEndian.Uint32(from[p.Block][4*int(p.Row):])
			binary.LittleEndian.PutUint32(out[4*n:], v)
		}
	case 8:
		for n, p := range picks {
			v := binary.LittleEndian.Uint64(from[p.Block][8*int(p.Row):])
			binary.LittleEndian.PutUint64(out[8*n:], v)
		}
	default:
		for n, p := range picks {
			copy(out[n*width:(n+1)*width], from[p.Block][int(p.Row)*width:])
		}
	}
}

// oneRun reports whether the picks are neighbours in one block, as they are without a shuffle.
func oneRun(picks []Pick) bool {
	if len(picks) == 0 {
		return false
	}
	first, last := picks[0], picks[len(picks)-1]
	if first.Block != last.Block || int(last.Row-first.Row) != len(picks)-1 {
		return false
	}
	for i, p := range picks {
		if p.Block != first.Block || int(p.Row-first.Row) != i {
			return false
		}
	}
	return true
}

func gatherTexts(blocks []*Rows, column int, picks []Pick, own []Span, out []byte) {
	ends := out[own[0].Offset : own[0].Offset+own[0].Size]
	bytes := out[own[1].Offset : own[1].Offset+own[1].Size]
	null := out[own[2].Offset : own[2].Offset+own[2].Size]
	at := 0
	for n, p := range picks {
		text, missing := blocks[p.Block].Data[column].row(int(p.Row))
		at += copy(bytes[at:], text)
		binary.LittleEndian.PutUint64(ends[8*n:], uint64(at))
		if len(null) > 0 {
			null[n] = 0
			if missing {
				null[n] = 1
			}
		}
	}
}

// Extract copies picked rows into rows of their own.
func Extract(columns []Column, blocks []*Rows, picks []Pick) *Rows {
	out := NewRows(columns, len(picks), 0)
	out.Count = len(picks)
	fixed := make([][]byte, len(columns))
	for i, c := range columns {
		d := &out.Data[i]
		if c.Kind == Fixed {
			fixed[i] = d.Grow(len(picks) * c.Width)
			continue
		}
		for _, p := range picks {
			text, missing := blocks[p.Block].Data[i].row(int(p.Row))
			if missing {
				d.AddNull()
			} else {
				d.AddBytes(text)
			}
		}
	}
	gatherAllFixed(columns, blocks, picks, fixed)
	return out
}
