package table

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// mixed are columns of every layout and of widths on each side of what is packed together.
var mixed = []Column{
	FixedOf("a", "|u1", 1, ""), {Name: "t", Kind: Text}, FixedOf("b", "<f4", 4, ""),
	FixedOf("c", "<f8", 8, ""), {Name: "l", Kind: List, Width: 2}, FixedOf("d", "<f2", 2, ""),
	FixedOf("e", "|V12", 12, ""), FixedOf("f", "<i8", 8, ""), FixedOf("g", "<i8", 8, ""),
	FixedOf("h", "<i8", 8, ""), FixedOf("i", "<i8", 8, ""), FixedOf("j", "<i8", 8, ""),
	FixedOf("k", "<i8", 8, ""), FixedOf("m", "<i8", 8, ""), FixedOf("n", "<i4", 4, ""),
	FixedOf("o", "<i4", 4, ""), {Name: "b", Kind: Binary},
}

// cell is the value of a column in a row of a block: nobody else has the same.
func cell(c Column, column, block, row int) (value []byte, missing bool) {
	text := fmt.Sprintf("%c%d.%d.%d|", 'A'+column, column, block, row)
	if c.Kind != Fixed {
		return []byte(strings.Repeat(text, row%3)), row%5 == 1 && c.Kind == Binary
	}
	random := rand.New(rand.NewPCG(uint64(column*100+block), uint64(row)))
	value = binary.LittleEndian.AppendUint64(nil, random.Uint64())
	value = binary.LittleEndian.AppendUint64(value, random.Uint64())
	return value[:c.Width], false
}

func mixedBlock(block, count int) *Rows {
	r := NewRows(mixed, count, 100)
	for row := range count {
		for i, c := range mixed {
			value, missing := cell(c, i, block, row)
			switch {
			case c.Kind == Fixed:
				copy(r.Data[i].Grow(c.Width), value)
			case missing:
				r.Data[i].AddNull()
			default:
				r.Data[i].AddBytes(value)
			}
		}
		r.Count++
	}
	return r
}

// picksOf are rows in any order, often several times, from blocks of 300, 70 and 1 rows.
func picksOf(n int) []Pick {
	random := rand.New(rand.NewPCG(1, 2))
	picks := make([]Pick, n)
	for i := range picks {
		block := random.IntN(3)
		picks[i] = Pick{int32(block), int32(random.IntN([]int{300, 70, 1}[block]))}
	}
	return picks
}

// TestGatheredRowsAreThePickedOnes: packed or not, in any order, neighbours or not, each buffer of
// a batch holds what was picked and begins on a cache line.
func TestGatheredRowsAreThePickedOnes(t *testing.T) {
	run := func(block, from, n int32) (picks []Pick) {
		for i := range n {
			picks = append(picks, Pick{block, from + i})
		}
		return picks
	}
	for _, pack := range []bool{false, true} {
		blocks := []*Rows{mixedBlock(0, 300), mixedBlock(1, 70), mixedBlock(2, 1)}
		if pack {
			for _, b := range blocks {
				b.Pack(mixed)
			}
		}
		for name, picks := range map[string][]Pick{"none": nil, "one": {{2, 0}},
			"mixed": picksOf(200), "as many as a tile": picksOf(gatherTile),
			"one more": picksOf(gatherTile + 1), "all of a block": run(0, 0, 300),
			"neighbours": run(1, 3, 67), "over the edge of two": append(run(0, 298, 2), run(1, 0, 2)...),
			"backwards": {{0, 2}, {0, 1}, {0, 0}}, "not quite": {{0, 0}, {0, 2}, {0, 1}, {0, 3}},
			"there and back": {{0, 5}, {1, 6}, {0, 7}}} {
			t.Run(fmt.Sprintf("%s, packed %v", name, pack), func(t *testing.T) {
				checkGathered(t, blocks, picks)
				checkExtracted(t, blocks, picks)
			})
		}
	}
}

func checkGathered(t *testing.T, blocks []*Rows, picks []Pick) {
	t.Helper()
	spans, size := Layout(mixed, blocks, picks)
	out := bytes.Repeat([]byte{0xEE}, int(size))
	Gather(mixed, blocks, picks, spans, out)
	end, at := int64(0), 0
	next := func() []byte {
		s := spans[at]
		at++
		if s.Offset%Align != 0 || s.Offset < end || s.Offset-end >= Align {
			t.Errorf("span %d begins at %d, the one before ends at %d", at-1, s.Offset, end)
		}
		end = s.Offset + s.Size
		return out[s.Offset:end]
	}
	for i, c := range mixed {
		var want, ends, marks []byte
		any := false
		for _, p := range picks {
			value, missing := cell(c, i, int(p.Block), int(p.Row))
			if missing {
				value = nil
			}
			any = any || missing
			want = append(want, value...)
			ends = binary.LittleEndian.AppendUint64(ends, uint64(len(want)))
			marks = append(marks, map[bool]byte{true: 1}[missing])
		}
		if !any {
			marks = nil
		}
		if c.Kind != Fixed {
			if got := next(); !bytes.Equal(got, ends) {
				t.Errorf("column %d ends at %v, want %v", i, got, ends)
			}
		}
		if got := next(); !bytes.Equal(got, want) {
			t.Errorf("column %d holds %q, want %q", i, got, want)
		}
		if c.Kind != Fixed {
			if got := next(); !bytes.Equal(got, marks) {
				t.Errorf("column %d misses %v, want %v", i, got, marks)
			}
		}
	}
	if at != len(spans) || size < end || size-end >= Align {
		t.Errorf("%d of %d spans, they end at %d of %d", at, len(spans), end, size)
	}
}

func checkExtracted(t *testing.T, blocks []*Rows, picks []Pick) {
	t.Helper()
	rows := Extract(mixed, blocks, picks)
	if rows.Count != len(picks) {
		t.Fatalf("%d rows, want %d", rows.Count, len(picks))
	}
	for i, c := range mixed {
		for n, p := range picks {
			want, none := cell(c, i, int(p.Block), int(p.Row))
			if c.Kind == Fixed {
				if got := rows.Data[i].Fixed[n*c.Width : (n+1)*c.Width]; !bytes.Equal(got, want) {
					t.Errorf("column %d, row %d: %x, want %x", i, n, got, want)
				}
				continue
			}
			if got, missing := rows.Data[i].row(n); missing != none || !none && !bytes.Equal(got, want) {
				t.Errorf("column %d, row %d: %q, want %q", i, n, got, want)
			}
		}
	}
}

// TestPackedRowsTakeNoMore: packed rows hold the same bytes, and recycled rows hold none.
func TestPackedRowsTakeNoMore(t *testing.T) {
	columns := []Column{FixedOf("a", "<f8", 8, ""), FixedOf("b", "<f4", 4, ""),
		FixedOf("c", "|V12", 12, "")}
	rows := NewRows(columns, 1000, 0)
	for i, c := range columns {
		rows.Data[i].Grow(1000 * c.Width)
	}
	rows.Count = 1000
	if got := rows.Size(); got != 24_000 {
		t.Errorf("%d bytes, want 24000", got)
	}
	rows.Pack(columns)
	if got := rows.Size(); got != 24_000 || rows.Data[0].Fixed != nil || rows.Data[2].Fixed == nil {
		t.Errorf("packed: %d bytes, want 24000", got)
	}
	rows.Recycle()
	if got := rows.Size(); got != 0 {
		t.Errorf("recycled: %d bytes", got)
	}
}

// TestSizeCountsEveryBuffer: 8 bytes an end, one a mark, and the room that is not used yet.
func TestSizeCountsEveryBuffer(t *testing.T) {
	r := &Rows{Data: []Data{{Fixed: make([]byte, 3, 5)}, {Ends: make([]int64, 1, 2),
		Bytes: make([]byte, 0, 100), Null: make([]bool, 2, 7)}}}
	if got := r.Size(); got != 5+16+100+7 {
		t.Errorf("%d bytes, want 128", got)
	}
}

// TestResetRowsAreFilledAgain: nothing of the old rows is left, neither their marks of missing
// values.
func TestResetRowsAreFilledAgain(t *testing.T) {
	columns := []Column{{Name: "t", Kind: Text}, FixedOf("n", "<i8", 8, "")}
	rows := NewRows(columns, 2, 10)
	rows.Data[0].AddBytes([]byte("old"))
	rows.Data[0].AddNull()
	rows.Data[1].AddInt(-7)
	rows.Count = 2
	rows.Reset()
	rows.Data[0].AddBytes([]byte("new"))
	rows.Data[1].AddFloat(0.5)
	text, missing := rows.Data[0].row(0)
	if rows.Count != 0 || string(text) != "new" || missing || rows.Data[0].Null != nil {
		t.Errorf("%d rows, %q, missing %v", rows.Count, text, missing)
	}
	got := binary.LittleEndian.Uint64(rows.Data[1].Fixed)
	if len(rows.Data[1].Fixed) != 8 || math.Float64frombits(got) != 0.5 {
		t.Errorf("%x", rows.Data[1].Fixed)
	}
}

// TestMissingRowsAfterPresentOnes: marks begin with the first missing row and stay in step.
func TestMissingRowsAfterPresentOnes(t *testing.T) {
	var d Data
	for _, step := range []string{"a", "bc", "", "-", "d", "-"} {
		if step == "-" {
			d.AddNull()
		} else {
			d.AddBytes([]byte(step))
		}
	}
	if got := fmt.Sprint(d.Ends, d.Null, string(d.Bytes)); got !=
		"[1 3 3 3 4 4] [false false false true false true]abcd" {
		t.Error(got)
	}
}

func TestSelectedColumns(t *testing.T) {
	all := []Column{{Name: "a"}, {Name: "b"}, {Name: "c"}}
	for _, c := range []struct {
		names []string
		want  string
	}{
		{nil, "[0 1 2] <nil>"}, {[]string{"c", "a"}, "[2 0] <nil>"},
		{[]string{"b", "x"}, `[] there is no column "x"; there are ["a" "b" "c"]`},
		{[]string{"b", "b"}, `[] column "b" is named twice`},
	} {
		places, err := Select(all, c.names)
		if got := fmt.Sprint(places, err); got != c.want {
			t.Errorf("%q: %s, want %s", c.names, got, c.want)
		}
	}
}

// TestTrimKeepsWhatItMay: buffers wait up to the bytes that are granted, small ones never.
func TestTrimKeepsWhatItMay(t *testing.T) {
	Trim(0)
	Give(make([]byte, least-1))
	if spares.bytes != 0 {
		t.Errorf("%d bytes of a small buffer wait", spares.bytes)
	}
	for range 3 {
		Give(make([]byte, 0, 10_000))
	}
	Give(make([]byte, 0, least))
	if spares.bytes != 30_000+least {
		t.Errorf("%d bytes wait, want %d", spares.bytes, 30_000+least)
	}
	Trim(30_000 + least)
	if spares.bytes != 30_000+least {
		t.Errorf("%d bytes wait after everything was granted", spares.bytes)
	}
	Trim(20_000)
	if spares.bytes > 20_000 || spares.bytes < 10_000 {
		t.Errorf("%d bytes wait, granted 20000", spares.bytes)
	}
	Trim(0)
	if spares.bytes != 0 {
		t.Errorf("%d bytes wait, granted none", spares.bytes)
	}
}

// TestBuffersOfAboutTheSize: up to a sixteenth larger is taken, also over a power of two; smaller
// never, and much larger neither.
func TestBuffersOfAboutTheSize(t *testing.T) {
	for _, c := range []struct {
		have, want int
		taken      bool
	}{{8192, 8192, true}, {8192, 8191, true}, {8192, 8193, false}, {17 * 512, 16 * 512, true},
		{17*512 + 1, 16 * 512, false}, {1<<20 + 100, 1<<20 - 100, true}, {8192, 7000, false}} {
		Trim(0)
		Give(make([]byte, 0, c.have))
		if got := Take(c.want); (cap(got) == c.have) != c.taken || cap(got) < c.want {
			t.Errorf("%d bytes for %d", cap(got), c.want)
		}
	}
	Trim(0)
}

// TestNarrowColumnsShareACacheLine: groups of up to 64 bytes a row, in the order of the columns; a
// column alone, a wide one and texts stay as they are.
func TestNarrowColumnsShareACacheLine(t *testing.T) {
	widths := func(list ...int) (columns []Column) {
		for _, w := range list {
			columns = append(columns, FixedOf("x", "", w, ""))
		}
		return columns
	}
	for _, c := range []struct {
		columns []Column
		want    string // columns, offsets and bytes a row of each group
	}{
		{widths(8), ""}, {widths(8, 9), ""}, {widths(8, 12, 4), "[0 2] [0 8] 12;"},
		{widths(8, 8, 8, 8, 8, 8, 8, 8), "[0 1 2 3 4 5 6 7] [0 8 16 24 32 40 48 56] 64;"},
		{widths(8, 8, 8, 8, 8, 8, 8, 8, 4), "[0 1 2 3 4 5 6 7] [0 8 16 24 32 40 48 56] 64;"},
		{widths(8, 8, 8, 8, 8, 8, 8, 4, 8, 1), "[0 1 2 3 4 5 6 7] [0 8 16 24 32 40 48 56] 60;" +
			"[8 9] [0 8] 9;"},
		{append(widths(1, 1), Column{Kind: Text}), "[0 1] [0 1] 2;"},
	} {
		rows := NewRows(c.columns, 3, 0)
		for i, column := range c.columns {
			if column.Kind == Fixed {
				rows.Data[i].Grow(3 * column.Width)
			}
		}
		rows.Count = 3
		rows.Pack(c.columns)
		got := ""
		for _, g := range rows.packed {
			got += fmt.Sprint(g.columns, g.offsets, g.stride, ";")
		}
		if strings.ReplaceAll(got, " ;", ";") != c.want {
			t.Errorf("%s, want %s", got, c.want)
		}
	}
}
