package format

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"memroom/feed/source"
	"memroom/feed/table"
)

// rowEnd returns the length of the first row of data, with its newline, or -1 if data ends before
// it.
type rowEnd func(data []byte) int

// rowKind is how a text format separates its rows: where a row ends, and which lines are not rows.
type rowKind struct {
	end   rowEnd
	blank func(row []byte) bool
}

// The rows of formats in which a row is a line, and of JSON lines, where one of spaces is none.
var (
	lineRows = rowKind{lineEnd, blank}
	jsonRows = rowKind{lineEnd, func(row []byte) bool { return hollow(row, 0) }}
)

// csvRows are the rows of CSV: they may span lines, and a line of spaces is none, as in pandas.
func csvRows(delim byte) rowKind {
	return rowKind{csvEnd(delim), func(row []byte) bool { return hollow(row, delim) }}
}

// lineEnd is the rowEnd of formats in which a row is a line.
func lineEnd(data []byte) int { return bytes.IndexByte(data, '\n') + 1 }

const (
	readStep = 1 << 20 // bytes read at once while a text file is looked through
	// longest is how long one row of text may be. A file without newlines would be read whole.
	longest = 1 << 30
)

// eachRow calls visit for every row from offset to the end of the file, blank lines left out. It
// holds one piece of the file at a time, or one row where that is longer.
func eachRow(f source.File, offset int64, kind rowKind,
	visit func(row []byte, at int64) error) error {
	var held []byte
	size := f.Size()
	for at := offset; at < size || len(held) > 0; {
		if at < size {
			step := min(int64(max(readStep, len(held))), size-at)
			start := len(held)
			held = append(held, make([]byte, step)...)
			if n, err := f.ReadAt(held[start:], at); int64(n) < step {
				return fmt.Errorf("%s: offset %d: %w", f.Name(), at+int64(n), shorter(err))
			}
			f.Drop(at, step)
			at += step
		}
		begin := at - int64(len(held))
		used := 0
		for used < len(held) {
			n := kind.end(held[used:])
			if n <= 0 && at < size {
				break
			}
			if n <= 0 {
				n = len(held) - used // the last row has no newline
			}
			if row := held[used : used+n]; !kind.blank(row) {
				if err := visit(row, begin+int64(used)); err != nil {
					return err
				}
			}
			used += n
		}
		held = append(held[:0], held[used:]...)
		if len(held) > longest {
			return &BadRow{f.Name(), -1, begin, "a row is longer than 1 GiB"}
		}
	}
	return nil
}

// damaged returns the error for content that no program writes, with the way out.
func damaged(what string, args ...any) error {
	return fmt.Errorf("%s: the file is damaged: copy it or write it again", fmt.Sprintf(what, args...))
}

// changedSince returns the error for a block whose rows differ from those counted before.
func changedSince(name string, b Block, count int) error {
	return fmt.Errorf("%s: offset %d: %d rows where the index has %d: the file has changed: "+
		"start the "+
		"stream again", name, b.Offset, count, b.Rows)
}

// shorter names what it means that a file gave fewer bytes than it has.
func shorter(err error) error {
	if err == nil || err == io.EOF || err == io.ErrUnexpectedEOF {
		return fmt.Errorf("the file ends before it should: it was cut off or is still being written")
	}
	return err
}

func blank(row []byte) bool {
	for _, c := range row {
		if c != '\n' && c != '\r' {
			return false
		}
	}
	return true
}

// hollow reports whether a line holds nothing but space that does not separate cells.
func hollow(row []byte, delim byte) bool {
	for _, c := range row {
		if c != '\n' && c != '\r' && (c != ' ' && c != '\t' || c == delim) {
			return false
		}
	}
	return true
}

// blocker cuts rows into blocks.
type blocker struct {
	blocks []Block
	row    int64
}

// add counts a row of n bytes at an offset. decoded is about what it will take in memory.
func (b *blocker) add(offset, n, decoded int64) {
	last := len(b.blocks) - 1
	if last < 0 || offset+n-b.blocks[last].Offset > textBlock {
		b.blocks = append(b.blocks, Block{Offset: offset, First: b.row})
		last++
	}
	b.blocks[last].Rows++
	b.blocks[last].Bytes += decoded
	b.blocks[last].Length = offset + n - b.blocks[last].Offset
	b.row++
}

// readBlock reads the bytes of a block. There is room for padding behind them. The caller may
// return the buffer to the pool.
func readBlock(f source.File, b Block) ([]byte, error) {
	data := table.Take(int(b.Length) + padding)[:b.Length]
	if n, err := f.ReadAt(data, b.Offset); int64(n) < b.Length {
		return nil, fmt.Errorf("%s: offset %d: %w", f.Name(), b.Offset+int64(n), shorter(err))
	}
	f.Drop(b.Offset, b.Length)
	return data, nil
}

// rowsOf calls visit for every row of a block that is not blank.
func rowsOf(data []byte, kind rowKind, visit func(row []byte, at int) error) error {
	for used := 0; used < len(data); {
		n := kind.end(data[used:])
		if n <= 0 {
			n = len(data) - used
		}
		if row := data[used : used+n]; !kind.blank(row) {
			if err := visit(row, used); err != nil {
				return err
			}
		}
		used += n
	}
	return nil
}

// errSome reports that single rows of a block can only be found by reading all of them.
var errSome = errors.New("all rows must be read")

// readSome reads a block and keeps the rows with the numbers in want, one behind the other. The
// block that it returns has no others.
func readSome(f source.File, b Block, kind rowKind, want []int32) ([]byte, Block, error) {
	data, err := readBlock(f, b)
	if err != nil {
		return nil, b, err
	}
	row, found, kept := int64(0), int64(0), 0
	for used := 0; used < len(data); {
		n := kind.end(data[used:])
		if n <= 0 {
			n = len(data) - used
		}
		if line := data[used : used+n]; !kind.blank(line) {
			if len(want) > 0 && row == int64(want[0]) {
				kept += copy(data[kept:], line)
				want = want[1:]
				found++
			}
			row++
		}
		used += n
	}
	if row != b.Rows || len(want) > 0 {
		table.Give(data)
		return nil, b, errSome
	}
	b.Rows, b.Length = found, int64(kept)
	return data[:kept], b, nil
}

// trimEnd cuts the newline off.
func trimEnd(row []byte) []byte {
	if n := len(row); n > 0 && row[n-1] == '\n' {
		row = row[:n-1]
	}
	if n := len(row); n > 0 && row[n-1] == '\r' {
		row = row[:n-1]
	}
	return row
}
