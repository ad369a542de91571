package convert

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"memroom/feed/format"
	"memroom/feed/source"
	"memroom/feed/table"
)

// given is one column and its rows: numbers as NumPy keeps them, or texts, bytes and lists. A nil
// row of the latter is missing.
type given struct {
	table.Column
	rows [][]byte
}

// le returns a whole number in as many bytes as its type has.
func le(width int, v int64) []byte {
	return binary.LittleEndian.AppendUint64(nil, uint64(v))[:width]
}

func float(v float64) []byte { return le(8, int64(math.Float64bits(v))) }

func single(v float32) []byte { return le(4, int64(math.Float32bits(v))) }

func numbersOf(name, dtype string, width int, values ...int64) given {
	g := given{Column: table.FixedOf(name, dtype, width, "")}
	for _, v := range values {
		g.rows = append(g.rows, le(width, v))
	}
	return g
}

const notATime = math.MinInt64

// scalars have the ends of every type, and what is missing, in three rows.
func scalars() []given {
	return []given{
		numbersOf("truth", "|b1", 1, 1, 0, 1),
		numbersOf("i1", "|i1", 1, -128, 127, -1), numbersOf("u1", "|u1", 1, 255, 0, 128),
		numbersOf("i2", "<i2", 2, -32768, 32767, -2), numbersOf("u2", "<u2", 2, 65535, 1, 256),
		numbersOf("i4", "<i4", 4, -1<<31, 1<<31-1, -3), numbersOf("u4", "<u4", 4, 1<<32-1, 2, 1<<31),
		numbersOf("i8", "<i8", 8, -1<<63, 1<<63-1, -4), numbersOf("u8", "<u8", 8, -1, 3, 1<<53+1),
		numbersOf("f2", "<f2", 2, 0x3c00, 0xc100, 0x7bff), // 1, -2.5, 65504
		{table.FixedOf("f4", "<f4", 4, ""), [][]byte{single(0.1), single(-3), single(1e30)}},
		{table.FixedOf("f8", "<f8", 8, ""), [][]byte{float(0.1), float(-1e-300), float(2)}},
		numbersOf("day", "<M8[D]", 8, 19000, -1, notATime),
		numbersOf("s", "<M8[s]", 8, 1_700_000_000, -1, notATime),
		numbersOf("ms", "<M8[ms]", 8, 1_700_000_000_123, notATime, 0),
		numbersOf("us", "<M8[us]", 8, 1_700_000_000_000_001, 5, -1),
		numbersOf("ns", "<M8[ns]", 8, 1_700_000_000_000_000_009, -1, 7),
		{table.Column{Name: "word", Kind: table.Text},
			[][]byte{[]byte(`a "b", c`), nil, []byte("")}},
		{table.Column{Name: "other", Kind: table.Text},
			[][]byte{[]byte("x"), []byte("two\nlines\t"), []byte("é")}},
	}
}

// composed are columns whose rows hold several values.
func composed() []given {
	pair := table.Column{Name: "pair", Kind: table.Fixed, DType: "<i2", Shape: []int{2}, Width: 4}
	return []given{
		{pair, [][]byte{append(le(2, -5), le(2, 6)...), le(4, 0), append(le(2, 7), le(2, -8)...)}},
		{table.Column{Name: "list", Kind: table.List, DType: "<i4", Width: 4},
			[][]byte{append(append(le(4, 1), le(4, -2)...), le(4, 3)...), {}, le(4, 9)}},
		{table.Column{Name: "some", Kind: table.List, DType: "<f8", Width: 8},
			[][]byte{nil, append(float(1.5), float(-2)...), {}}},
		{table.Column{Name: "raw", Kind: table.Binary}, [][]byte{{0, 255, 1}, nil, {}}},
	}
}

// batchOf lays rows from..to out as a stream does.
func batchOf(columns []given, from, to int) Batch {
	var described []table.Column
	for _, g := range columns {
		described = append(described, g.Column)
	}
	rows := table.NewRows(described, to-from, 100)
	for i, g := range columns {
		for _, value := range g.rows[from:to] {
			switch d := &rows.Data[i]; {
			case g.Kind == table.Fixed:
				copy(d.Grow(g.Width), value)
			case value == nil:
				d.AddNull()
			default:
				d.AddBytes(value)
			}
		}
	}
	rows.Count = to - from
	return gathered(described, rows)
}

func gathered(columns []table.Column, rows *table.Rows) Batch {
	picks := make([]table.Pick, rows.Count)
	for i := range picks {
		picks[i].Row = int32(i)
	}
	blocks := []*table.Rows{rows}
	spans, size := table.Layout(columns, blocks, picks)
	b := Batch{Columns: columns, Rows: rows.Count, Spans: spans, Data: make([]byte, size)}
	table.Gather(columns, blocks, picks, spans, b.Data)
	return b
}

// written returns the path of a file of that name with the batches in it.
func written(t *testing.T, name string, batches ...Batch) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	out, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	rows := int64(0)
	for _, b := range batches {
		rows += int64(b.Rows)
	}
	w, err := New(path, out, batches[0].Columns, rows)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	for _, b := range batches {
		if err := w.Write(b); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func content(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestJSONLinesByHand: the JSON of each type, known by hand. Missing values are null.
func TestJSONLinesByHand(t *testing.T) {
	all := append(scalars(), composed()...)
	got := strings.Split(content(t, written(t, "x.jsonl", batchOf(all, 0, 2), batchOf(all, 2, 3))),
		"\n")
	want := []string{
		`{"truth":true,"i1":-128,"u1":255,"i2":-32768,"u2":65535,"i4":-2147483648,` +
			`"u4":4294967295,"i8":-9223372036854775808,"u8":18446744073709551615,"f2":1,"f4":0.1,` +
			`"f8":0.1,"day":"2022-01-08","s":"2023-11-14T22:13:20",` +
			`"ms":"2023-11-14T22:13:20.123","us":"2023-11-14T22:13:20.000001",` +
			`"ns":"2023-11-14T22:13:20.000000009","word":"a \"b\", c","other":"x",` +
			`"pair":[-5,6],"list":[1,-2,3],"some":null,"raw":"AP8B"}`,
		`{"truth":false,"i1":127,"u1":0,"i2":32767,"u2":1,"i4":2147483647,"u4":2,` +
			`"i8":9223372036854775807,"u8":3,"f2":-2.5,"f4":-3,"f8":-1e-300,"day":"1969-12-31",` +
			`"s":"1969-12-31T23:59:59","ms":null,"us":"1970-01-01T00:00:00.000005",` +
			`"ns":"1969-12-31T23:59:59.999999999","word":null,"other":"two\nlines\t",` +
			`"pair":[0,0],"list":[],"some":[1.5,-2],"raw":null}`,
		`{"truth":true,"i1":-1,"u1":128,"i2":-2,"u2":256,"i4":-3,"u4":2147483648,"i8":-4,` +
			`"u8":9007199254740993,"f2":65504,"f4":1e+30,"f8":2,"day":null,"s":null,` +
			`"ms":"1970-01-01T00:00:00","us":"1969-12-31T23:59:59.999999",` +
			`"ns":"1970-01-01T00:00:00.000000007","word":"","other":"é","pair":[7,-8],` +
			`"list":[9],"some":[],"raw":""}`, ""}
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || got[i] != want[i] {
			t.Fatalf("line %d of %d:\n got %s\nwant %s", i, len(want), got[min(i, len(got)-1)],
				want[min(i, len(want)-1)])
		}
	}
}

// TestFloatsThatAreNone: JSON has no NaN and no infinity.
func TestFloatsThatAreNone(t *testing.T) {
	g := given{table.FixedOf("x", "<f8", 8, ""), [][]byte{float(math.NaN()), float(math.Inf(1)),
		float(math.Inf(-1))}}
	if got := content(t, written(t, "x.jsonl", batchOf([]given{g}, 0, 3))); got !=
		strings.Repeat("{\"x\":null}\n", 3) {
		t.Error(got)
	}
}

// TestDurationsAreNumbers of their unit.
func TestDurationsAreNumbers(t *testing.T) {
	g := numbersOf("took", "<m8[ms]", 8, 1500, notATime, -2)
	if got := content(t, written(t, "x.jsonl", batchOf([]given{g}, 0, 3))); got !=
		"{\"took\":1500}\n{\"took\":null}\n{\"took\":-2}\n" {
		t.Error(got)
	}
	// one column alone: a line with nothing on it would be no row
	if got := content(t, written(t, "x.csv", batchOf([]given{g}, 0, 3))); got !=
		"took\n1500\n\"\"\n-2\n" {
		t.Error(got)
	}
}

// TestCSVByHand: quotes where a text has the delimiter, a quote or an end of line; nothing where
// it is missing; two quotes where it is empty, as in the line of names.
func TestCSVByHand(t *testing.T) {
	texts := func(name string, rows ...[]byte) given {
		return given{table.Column{Name: name, Kind: table.Text}, rows}
	}
	columns := []given{numbersOf("n", "<i4", 4, -1, 2, 3),
		texts("a,b", []byte(`say "no"`), nil, []byte("")),
		texts("", []byte("x,y"), []byte("tab\there"), []byte("end\rof"))}
	for name, want := range map[string]string{
		"x.csv": "n,\"a,b\",\"\"\n-1,\"say \"\"no\"\"\",\"x,y\"\n2,,tab\there\n3,\"\",\"end\rof\"\n",
		"x.tsv": "n\ta,b\t\"\"\n-1\t\"say \"\"no\"\"\"\tx,y\n2\t\t\"tab\there\"\n3\t\"\"\t\"end\rof\"\n",
	} {
		if got := content(t, written(t, name, batchOf(columns, 0, 1), batchOf(columns, 1, 3))); got !=
			want {
			t.Errorf("%s:\n got %q\nwant %q", name, got, want)
		}
	}
}

// TestNPYByHand: NumPy's header, rows from a multiple of 64 bytes on, columns side by side.
func TestNPYByHand(t *testing.T) {
	a, b := numbersOf("a", "<i2", 2, 1, 2, 3), numbersOf("b", "<i2", 2, -1, -2, -3)
	for _, c := range []struct {
		columns []given
		head    string
		rows    []byte
	}{
		{[]given{a}, "{'descr': '<i2', 'fortran_order': False, 'shape': (3,), }",
			[]byte{1, 0, 2, 0, 3, 0}},
		{[]given{a, b}, "{'descr': '<i2', 'fortran_order': False, 'shape': (3, 2,), }",
			[]byte{1, 0, 255, 255, 2, 0, 254, 255, 3, 0, 253, 255}},
		{composed()[:1], "{'descr': '<i2', 'fortran_order': False, 'shape': (3, 2,), }",
			[]byte{251, 255, 6, 0, 0, 0, 0, 0, 7, 0, 248, 255}},
	} {
		got := []byte(content(t, written(t, "x.npy", batchOf(c.columns, 0, 2), batchOf(c.columns, 2,
			3))))
		size := int(binary.LittleEndian.Uint16(got[8:]))
		head, rows := string(got[10:10+size]), got[10+size:]
		if string(got[:8]) != "\x93NUMPY\x01\x00" || strings.TrimRight(head, " \n") != c.head ||
			!strings.HasSuffix(head, "\n") || (10+size)%64 != 0 || size > 10+len(c.head)+64 ||
			!bytes.Equal(rows, c.rows) {
			t.Errorf("%d columns: %q, %v", len(c.columns), got[:10+size], rows)
		}
	}
}

// asLines reads a file back as a stream would. It returns its rows as JSON lines, and the types of
// its columns.
func asLines(t *testing.T, path string) (lines string, types []string) {
	t.Helper()
	f, err := source.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ix, err := format.Scan(f, format.Options{})
	if err != nil {
		t.Fatal(err)
	}
	columns := format.Columns(ix.Fields)
	d, err := format.Open(f, ix, format.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, b := range ix.Blocks {
		rows, err := d.Decode(b, columns)
		if err != nil {
			t.Fatal(err)
		}
		lines += content(t, written(t, "back.jsonl", gathered(columns, rows)))
	}
	for _, c := range columns {
		types = append(types, fmt.Sprint(c.Kind, c.DType, c.Shape))
	}
	return lines, types
}

// TestArrowAndParquetHoldTheSameRows: rows are read back as they were written, type by type,
// however many batches they came in.
func TestArrowAndParquetHoldTheSameRows(t *testing.T) {
	for _, g := range append(scalars(), composed()...) {
		columns := []given{g, numbersOf("row", "<i8", 8, 0, 1, 2)}
		whole := batchOf(columns, 0, 3)
		want := content(t, written(t, "x.jsonl", whole))
		for _, name := range []string{"x.arrow", "x.parquet"} {
			t.Run(g.Name+" "+name, func(t *testing.T) {
				for _, batches := range [][]Batch{{whole},
					{batchOf(columns, 0, 1), batchOf(columns, 1, 3)}} {
					got, types := asLines(t, written(t, name, batches...))
					if got != want {
						t.Errorf("%d batches:\n got %swant %s", len(batches), got, want)
					}
					if kept := keptBy(name, g.Column); types[0] != kept {
						t.Errorf("%s came back as %s", kept, types[0])
					}
				}
			})
		}
	}
}

// keptBy is the type with which a column comes back. Parquet has no seconds and no lists of one
// length.
func keptBy(name string, c table.Column) string {
	if name == "x.parquet" {
		switch {
		case c.DType == "<M8[s]":
			c.DType = "<M8[ms]"
		case len(c.Shape) == 1:
			c.Kind, c.Shape = table.List, nil
		}
	}
	return fmt.Sprint(c.Kind, c.DType, c.Shape)
}

// many returns rows of each layout with something missing here and there, so that marks fill
// several bytes.
func many(n int) []given {
	columns := []given{numbersOf("truth", "|b1", 1), numbersOf("day", "<M8[D]", 8),
		{Column: table.Column{Name: "text", Kind: table.Text}},
		{Column: table.Column{Name: "list", Kind: table.List, DType: "<u2", Width: 2}},
		{Column: table.Column{Name: "square", Kind: table.Fixed, DType: "<f4", Shape: []int{2, 2},
			Width: 16}}}
	for i := range n {
		day, text, list := int64(i*i), []byte(strings.Repeat("é", i%4)), le(2, int64(i))
		if i%7 == 3 {
			day, text = notATime, nil
		}
		if i%5 == 2 {
			list = append(list, le(2, 7)...)
		}
		square := bytes.Join([][]byte{single(float32(i)), single(-1), single(0.5), single(3)}, nil)
		for c, value := range [][]byte{le(1, int64(i%3&1)), le(8, day), text, list, square} {
			columns[c].rows = append(columns[c].rows, value)
		}
	}
	return columns
}

// TestManyRows: more rows than a byte of marks has bits, and arrays of two dimensions.
func TestManyRows(t *testing.T) {
	columns := many(100)
	want := content(t, written(t, "x.jsonl", batchOf(columns, 0, 100)))
	got, _ := asLines(t, written(t, "x.arrow", batchOf(columns, 0, 37), batchOf(columns, 37, 100)))
	if got != want || !strings.Contains(got, `"square":[[2,-1],[0.5,3]]`) {
		t.Errorf("Arrow:\n%s\nwant\n%s", got, want)
	}
	flat := columns[:4]
	want = content(t, written(t, "x.jsonl", batchOf(flat, 0, 100)))
	if got, _ = asLines(t, written(t, "x.parquet", batchOf(flat, 0, 37), batchOf(flat, 37,
		100))); got != want {
		t.Errorf("Parquet:\n%s\nwant\n%s", got, want)
	}
}

// TestArraysComeBackInTheirShape: what a row of several axes holds is the same array in a stream of
// the file that it was written to.
func TestArraysComeBackInTheirShape(t *testing.T) {
	for _, c := range []table.Column{
		{DType: "<f4", Shape: []int{3, 2}, Width: 24}, {DType: "|b1", Shape: []int{2, 2}, Width: 4},
		{DType: "|u1", Shape: []int{2, 2, 3}, Width: 12}, {DType: "|b1", Shape: []int{5}, Width: 5},
		{DType: "<M8[D]", Shape: []int{1, 2}, Width: 16}, {DType: "<f2", Shape: []int{2, 1}, Width: 4},
	} {
		c.Name, c.Kind = "x", table.Fixed
		g := given{Column: c}
		for row := range 30 {
			value := make([]byte, c.Width)
			for i := range value {
				switch c.DType {
				case "|b1":
					value[i] = byte((row + i*i) % 3 % 2)
				case "<M8[D]":
					value[i] = byte(row) * byte((8-i%8)/7) // the two lowest bytes of a number
				default:
					value[i] = byte(row*7 + i*3)
				}
			}
			g.rows = append(g.rows, value)
		}
		want := content(t, written(t, "x.jsonl", batchOf([]given{g}, 0, 30)))
		got, types := asLines(t, written(t, "x.arrow", batchOf([]given{g}, 0, 11),
			batchOf([]given{g}, 11, 30)))
		if kept := fmt.Sprint(c.Kind, c.DType, c.Shape); types[0] != kept || got != want {
			t.Errorf("%s came back as %s:\n%s\nwant\n%s", kept, types[0], got, want)
		}
	}
}

// TestRowGroupsAreBounded: a row group is held in memory until it is whole, so batches of more than
// 8 MiB together go into several, and batches of less into one.
func TestRowGroupsAreBounded(t *testing.T) {
	g := given{Column: table.FixedOf("x", "<f8", 8, "")}
	for i := range 3 * 1 << 17 { // 3 MiB
		g.rows = append(g.rows, float(float64(i)))
	}
	b := batchOf([]given{g}, 0, len(g.rows))
	for n, want := range map[int]int64{1: 1, 2: 1, 3: 2, 5: 3} {
		f, err := source.Open(written(t, "x.parquet", repeated(b, n)...))
		if err != nil {
			t.Fatal(err)
		}
		ix, err := format.Scan(f, format.Options{})
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		groups := int64(0)
		for _, block := range ix.Blocks {
			groups = max(groups, int64(block.Part)+1)
		}
		if groups != want {
			t.Errorf("%d batches of 3 MiB: %d row groups, want %d", n, groups, want)
		}
	}
}

func repeated(b Batch, n int) (all []Batch) {
	for range n {
		all = append(all, b)
	}
	return all
}

// TestWhatAFormatCannotHold is refused before anything is written, with the column's name.
func TestWhatAFormatCannotHold(t *testing.T) {
	parts, two := composed(), []given{numbersOf("a", "<i2", 2, 1), numbersOf("b", "<i4", 4, 1)}
	square := given{Column: table.Column{Name: "square", Kind: table.Fixed, DType: "<f4",
		Shape: []int{2, 2}, Width: 16}}
	word := given{Column: table.Column{Name: "word", Kind: table.Text}}
	for _, c := range []struct {
		name    string
		columns []given
		want    string
	}{
		{"x.csv", parts[:1], "pair"}, {"x.csv", parts[1:2], "list"}, {"x.tsv", parts[3:], "raw"},
		{"x.npy", two, `"a" and "b"`}, {"x.npy", []given{word}, "word"},
		{"x.npy", []given{parts[0], parts[0]}, "pair"}, {"x.npy", parts[1:2], "list"},
		{"x.parquet", []given{square}, "2 dimensions"},
		{"x.parquet", []given{numbersOf("took", "<m8[s]", 8)}, "took"},
		{"x.parquet", []given{numbersOf("c", "<c8", 8)}, "<c8"},
		{"x.txt", two, ".arrow"},
	} {
		var columns []table.Column
		for _, g := range c.columns {
			columns = append(columns, g.Column)
		}
		out, err := os.Create(filepath.Join(t.TempDir(), c.name))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := New(c.name, out, columns, 1); err == nil || !strings.Contains(err.Error(),
			c.want) {
			t.Errorf("%s: %v, want a word on %s", c.name, err, c.want)
		}
		out.Close()
	}
}
