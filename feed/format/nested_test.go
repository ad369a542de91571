package format

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/schema"

	"memroom/feed/table"
)

// nestedColumn is a column of lists, structs or classes in the words of Arrow's JSON, and how its
// rows are shown.
type nestedColumn struct {
	kind arrow.DataType
	rows []string // repeated over the file
	want []string

	onlyParquet bool // Arrow's is refused, see TestHolesInWholeLists
}

func nestedColumns() map[string]nestedColumn {
	i32, f64, text := arrow.PrimitiveTypes.Int32, arrow.PrimitiveTypes.Float64,
		arrow.BinaryTypes.String
	struct2 := arrow.StructOf(arrow.Field{Name: "item", Type: i32, Nullable: true},
		arrow.Field{Name: "list", Type: arrow.ListOf(i32), Nullable: true})
	return map[string]nestedColumn{
		"whole": {kind: arrow.ListOf(i32), rows: []string{"[1, -2, 3]", "[]", "[4]"},
			want: []string{"[1 -2 3]", "[]", "[4]"}},
		"missing lists": {kind: arrow.ListOf(i32), rows: []string{"[7]", "null", "[]", "[8, 9]"},
			want: []string{"[7]", absent, "[]", "[8 9]"}},
		"floats with holes": {kind: arrow.ListOf(f64), rows: []string{"[0.5, null]", "null", "[]"},
			want: []string{"[0.5 NaN]", absent, "[]"}},
		"whole with holes": {kind: arrow.ListOf(i32), rows: []string{"[1, null]", "[2]"},
			want: []string{"[1 NaN]", "[2]"}, onlyParquet: true},
		"texts": {kind: arrow.ListOf(text), rows: []string{`["a", "b\"c"]`, "[]", `["ü", null]`},
			want: []string{`["a","b\"c"]`, "[]", `["ü",null]`}},
		"lists of lists": {kind: arrow.ListOf(arrow.ListOf(i32)),
			rows: []string{"[[1, 2], [], null, [3]]", "[]", "null", "[[null]]", "[null]"},
			want: []string{"[[1,2],[],null,[3]]", "[]", absent, "[[null]]", "[null]"}},
		"deeper": {kind: arrow.ListOf(arrow.ListOf(arrow.ListOf(f64))),
			rows: []string{"[[[0.5], []], []]", "[[[1.5, 2.5]], [[3.5]]]"},
			want: []string{"[[[0.5],[]],[]]", "[[[1.5,2.5]],[[3.5]]]"}},
		"struct": {kind: struct2, rows: []string{`{"item": 5, "list": [1, 2]}`,
			`{"item": -6, "list": []}`}, want: []string{`{"item":5,"list":[1,2]}`, `{"item":-6,"list":[]}`}},
		"fixed lists": {kind: arrow.FixedSizeListOfNonNullable(3, i32), rows: []string{"[1, 2, 3]",
			"[4, 5, 6]"}, want: []string{"1 2 3", "4 5 6"}},
		"durations": {kind: arrow.FixedWidthTypes.Duration_ms, rows: []string{"7", "-8"},
			want: []string{"7", "-8"}},
		"unsigned": {kind: arrow.ListOf(arrow.PrimitiveTypes.Uint32), rows: []string{"[4294967295]",
			"[0, 1]"}, want: []string{"[4294967295]", "[0 1]"}},
		"truths": {kind: arrow.ListOf(arrow.FixedWidthTypes.Boolean), rows: []string{"[true, false]",
			"[]"},
			want: []string{"[true,false]", "[]"}},
	}
}

// nestedRecord repeats the rows of a column.
func nestedRecord(t *testing.T, c nestedColumn, rows int) arrow.RecordBatch {
	t.Helper()
	schema := arrow.NewSchema([]arrow.Field{{Name: "x", Type: c.kind,
		Nullable: strings.Contains(strings.Join(c.rows, ""), "null")}}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	for row := range rows {
		line := fmt.Sprintf(`{"x": %s}`, c.rows[row%len(c.rows)])
		if err := b.UnmarshalJSON([]byte(line)); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
	return b.NewRecordBatch()
}

func checkNested(t *testing.T, name string, content []byte, c nestedColumn, rows int) {
	t.Helper()
	_, got, _ := decoded(t, open(t, name, content), Options{})
	if len(got) != rows {
		t.Fatalf("%d rows, want %d", len(got), rows)
	}
	for i, row := range got {
		if want := c.want[i%len(c.want)]; strings.Join(row, "|") != want {
			t.Fatalf("row %d is %q, want %q", i, row, want)
		}
	}
}

// TestNestedColumnsInArrow: lists, lists of lists, structs and rows of one shape, as another
// library writes them.
func TestNestedColumnsInArrow(t *testing.T) {
	const rows = 400
	for name, c := range nestedColumns() {
		if c.onlyParquet {
			continue
		}
		t.Run(name, func(t *testing.T) {
			record := nestedRecord(t, c, rows)
			var out bytes.Buffer
			w, err := ipc.NewFileWriter(&out, ipc.WithSchema(record.Schema()), ipc.WithLZ4())
			if err != nil {
				t.Fatal(err)
			}
			for from := int64(0); from < rows; from += 150 {
				if err := w.Write(record.NewSlice(from, min(rows, from+150))); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			checkNested(t, "x.arrow", out.Bytes(), c, rows)
		})
	}
}

// TestShapesInArrow: lists of one size within each other are arrays with as many axes, whatever
// they hold and whatever is missing in them; what is not a number stays text.
func TestShapesInArrow(t *testing.T) {
	of := arrow.FixedSizeListOf
	whole, f32 := arrow.PrimitiveTypes.Int16, arrow.PrimitiveTypes.Float32
	for name, c := range map[string]struct {
		nestedColumn
		column string
	}{
		"two axes": {nestedColumn{kind: of(2, of(3, whole)),
			rows: []string{"[[1, -2, 3], [4, 5, 6]]", "[[0, 0, 7], [8, 0, 0]]"},
			want: []string{"1 -2 3 4 5 6", "0 0 7 8 0 0"}}, "fixed <i2 [2 3] 12"},
		"three axes": {nestedColumn{kind: of(1, of(2, of(2, arrow.PrimitiveTypes.Uint8))),
			rows: []string{"[[[1, 2], [3, 255]]]", "[[[9, 8], [7, 6]]]", "[[[0, 1], [0, 1]]]"},
			want: []string{"1 2 3 255", "9 8 7 6", "0 1 0 1"}}, "fixed |u1 [1 2 2] 4"},
		"truths": {nestedColumn{kind: of(2, of(2, arrow.FixedWidthTypes.Boolean)),
			rows: []string{"[[true, false], [false, false]]", "[[false, true], [true, true]]"},
			want: []string{"true false false false", "false true true true"}}, "fixed |b1 [2 2] 4"},
		"days": {nestedColumn{kind: of(3, arrow.FixedWidthTypes.Date32),
			rows: []string{`["1970-01-02", "1970-02-01", null]`, "null"},
			want: []string{"1 31 " + absent, strings.Repeat(" "+absent, 3)[1:]}},
			"fixed <M8[D] [3] 24"},
		"floats with holes": {nestedColumn{kind: of(2, of(2, f32)),
			rows: []string{"[[0.5, null], [1, 2]]", "null", "[null, [3, 4]]"},
			want: []string{"0.5 NaN 1 2", "NaN NaN NaN NaN", "NaN NaN 3 4"}}, "fixed <f4 [2 2] 16"},
		"whole with holes inside": {nestedColumn{kind: of(1, of(2, whole)),
			rows: []string{"[[1, 2]]", "[[3, null]]"}, want: []string{"1 2", "3 NaN"}},
			"fixed <f8 [1 2] 16"},
		"whole with missing rows": {nestedColumn{kind: of(2, of(1, whole)),
			rows: []string{"[[1], [2]]", "null", "[[5], null]"},
			want: []string{"1 2", "NaN NaN", "5 NaN"}}, "fixed <f8 [2 1] 16"},
		"texts": {nestedColumn{kind: of(1, of(2, arrow.BinaryTypes.String)),
			rows: []string{`[["a", "b"]]`}, want: []string{`[["a","b"]]`}}, "text  [] 0"},
		"lists of no size": {nestedColumn{kind: of(2, arrow.ListOf(whole)),
			rows: []string{"[[1], [2, 3]]"}, want: []string{"[[1],[2,3]]"}}, "text  [] 0"},
	} {
		t.Run(name, func(t *testing.T) {
			const rows = 50
			record := nestedRecord(t, c.nestedColumn, rows)
			var out bytes.Buffer
			w := ipc.NewWriter(&out, ipc.WithSchema(record.Schema()))
			for from := int64(0); from < rows; from += 19 { // batches that begin at any row
				if err := w.Write(record.NewSlice(from, min(rows, from+19))); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			checkNested(t, "x.arrow", out.Bytes(), c.nestedColumn, rows)
			columns, _, _ := decoded(t, open(t, "x.arrow", out.Bytes()), Options{})
			own := columns[0]
			if got := fmt.Sprint(own.Kind, " ", own.DType, " ", own.Shape, " ", own.Width); got != c.column {
				t.Errorf("the column is %q, want %q", got, c.column)
			}
		})
	}
}

// TestShapesThatAreNoted checks that lists become arrays where their writer noted a shape and all
// rows have it. A note that cannot be read, or that does not name one shape, changes nothing.
func TestShapesThatAreNoted(t *testing.T) {
	const tensor, array2D = "arrow.fixed_shape_tensor",
		"datasets.features.features.Array2DExtensionType"
	whole, flat := arrow.PrimitiveTypes.Int16, arrow.FixedSizeListOf(6, arrow.PrimitiveTypes.Int16)
	lists := arrow.ListOf(arrow.ListOf(whole))
	nested := nestedColumn{kind: lists, rows: []string{"[[1, 2, 3], [4, 5, 6]]",
		"[[7, 8, 9], [0, 0, 0]]"},
		want: []string{"1 2 3 4 5 6", "7 8 9 0 0 0"}}
	holes := nestedColumn{kind: lists, rows: []string{"[[1, 2, 3], [4, 5, 6]]", "null",
		"[[7, null, 9], null]"}, want: []string{"1 2 3 4 5 6", "NaN NaN NaN NaN NaN NaN",
		"7 NaN 9 NaN NaN NaN"}}
	text := nestedColumn{kind: lists, rows: nested.rows,
		want: []string{"[[1,2,3],[4,5,6]]", "[[7,8,9],[0,0,0]]"}}
	one := nestedColumn{kind: flat, rows: []string{"[1, 2, 3, 4, 5, 6]", "[7, 8, 9, 0, 0, 0]"},
		want: nested.want}
	for name, c := range map[string]struct {
		nestedColumn
		noted, about, column string
	}{
		"a tensor":          {one, tensor, `{"shape":[2,3]}`, "<i2 [2 3] 12"},
		"in its own order":  {one, tensor, `{"shape":[3,2],"permutation":[0,1]}`, "<i2 [3 2] 12"},
		"in another order":  {one, tensor, `{"shape":[2,3],"permutation":[1,0]}`, "<i2 [6] 12"},
		"of another size":   {one, tensor, `{"shape":[2,4]}`, "<i2 [6] 12"},
		"a damaged note":    {one, tensor, `{`, "<i2 [6] 12"},
		"two axes":          {nested, array2D, `[[2, 3], "int16"]`, "<i2 [2 3] 12"},
		"with holes":        {holes, array2D, `[[2, 3], "int16"]`, "<f8 [2 3] 48"},
		"of any length":     {text, array2D, `[[null, 3], "int16"]`, " [] 0"},
		"of more axes":      {text, array2D, `[[1, 2, 3], "int16"]`, " [] 0"},
		"a negative size":   {text, array2D, `[[-2, -3], "int16"]`, " [] 0"},
		"a note of nothing": {text, array2D, `[]`, " [] 0"},
		"another extension": {text, "somebody.else", `[[2, 3], "int16"]`, " [] 0"},
	} {
		content := notedArrow(t, c.nestedColumn, c.noted, c.about)
		checkNested(t, "x.arrow", content, c.nestedColumn, 40)
		columns, _, _ := decoded(t, open(t, "x.arrow", content), Options{})
		own := columns[0]
		if got := fmt.Sprint(own.DType, " ", own.Shape, " ", own.Width); got != c.column {
			t.Errorf("%s: the column is %q, want %q", name, got, c.column)
		}
	}
	// Rows of other shapes are reported, also those with as many values.
	for _, row := range []string{"[[1, 2], [3, 4], [5, 6]]", "[[1, 2, 3]]", "[[1, 2, 3], [4, 5]]",
		"[]"} {
		odd := nestedColumn{kind: lists, rows: []string{nested.rows[0], row}}
		said := complaintAbout(t, "x.arrow", notedArrow(t, odd, array2D, `[[2, 3], "int16"]`), Options{})
		if !strings.Contains(said, "noted for all") || !strings.Contains(said, `"x"`) {
			t.Errorf("%s: %q", row, said)
		}
	}
}

// notedArrow writes 40 rows in two batches, with an extension noted for the column.
func notedArrow(t *testing.T, c nestedColumn, name, about string) []byte {
	t.Helper()
	record := nestedRecord(t, c, 40)
	field := record.Schema().Field(0)
	field.Metadata = arrow.NewMetadata([]string{"ARROW:extension:name", "ARROW:extension:metadata"},
		[]string{name, about})
	noted := array.NewRecordBatch(arrow.NewSchema([]arrow.Field{field}, nil), record.Columns(), 40)
	var out bytes.Buffer
	w := ipc.NewWriter(&out, ipc.WithSchema(noted.Schema()))
	for _, part := range [][2]int64{{0, 17}, {17, 40}} {
		if err := w.Write(noted.NewSlice(part[0], part[1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestShapesThatAreTooLarge: the sizes in a file may be anything.
func TestShapesThatAreTooLarge(t *testing.T) {
	for _, sizes := range [][]int32{{math.MaxInt32, math.MaxInt32, 4}, {1 << 16, 1 << 16},
		{7, 1 << 30, 1}} {
		kind := arrow.DataType(arrow.PrimitiveTypes.Int8)
		for _, n := range sizes {
			kind = arrow.FixedSizeListOf(n, kind)
		}
		if f := arrowField("x", kind, false); f.Kind != table.Text {
			t.Errorf("%v becomes %s of %d bytes", sizes, f.Kind, f.Width)
		}
	}
}

// TestNestedColumnsInParquet: the same lists, over pages that end inside of rows; and parts of a
// row group, which begin at any row.
func TestNestedColumnsInParquet(t *testing.T) {
	const rows = 700
	properties := map[string][]parquet.WriterProperty{
		"plain": {parquet.WithDictionaryDefault(false)},
		"small pages": {parquet.WithDataPageSize(200), parquet.WithBatchSize(16),
			parquet.WithCompression(compress.Codecs.Snappy)},
		"version 2": {parquet.WithDataPageSize(300), parquet.WithBatchSize(16),
			parquet.WithDataPageVersion(parquet.DataPageV2),
			parquet.WithCompression(compress.Codecs.Zstd)},
	}
	for name, c := range nestedColumns() {
		leaf, depth := c.kind, 0
		for list, ok := leaf.(*arrow.ListType); ok; list, ok = leaf.(*arrow.ListType) {
			leaf, depth = list.Elem(), depth+1
		}
		kind, ok := map[arrow.Type]parquet.Type{arrow.INT32: parquet.Types.Int32,
			arrow.FLOAT64: parquet.Types.Double, arrow.STRING: parquet.Types.ByteArray}[leaf.ID()]
		if !ok || depth == 0 {
			continue
		}
		for way, property := range properties {
			t.Run(name+", "+way, func(t *testing.T) {
				content := listsInParquet(t, c, kind, depth, rows, property)
				checkNested(t, "x.parquet", content, c, rows)
				checkParts(t, content)
			})
		}
	}
}

// shredded are the levels and values of a column of lists, as Parquet stores them.
type shredded struct {
	defs, reps []int16
	whole      []int32
	floats     []float64
	texts      []parquet.ByteArray
}

// add cuts up one value; below is how many lists are still to come.
func (s *shredded) add(v any, below int, def, rep, level int16) {
	list, isList := v.([]any)
	switch {
	case v == nil:
	case below == 0:
		def++
		switch v := v.(type) {
		case string:
			s.texts = append(s.texts, parquet.ByteArray(v))
		case float64:
			s.whole, s.floats = append(s.whole, int32(v)), append(s.floats, v)
		}
	case isList && len(list) == 0:
		def++
	default:
		for i, e := range list {
			if i > 0 {
				rep = level
			}
			s.add(e, below-1, def+2, rep, level+1)
		}
		return
	}
	s.defs, s.reps = append(s.defs, def), append(s.reps, rep)
}

// listsInParquet writes a column in which lists and elements may be missing.
func listsInParquet(t *testing.T, c nestedColumn, kind parquet.Type, depth, rows int,
	properties []parquet.WriterProperty) []byte {
	t.Helper()
	optional := parquet.Repetitions.Optional
	var logical schema.LogicalType = schema.NoLogicalType{}
	if kind == parquet.Types.ByteArray {
		logical = schema.StringLogicalType{}
	}
	var node schema.Node
	node, err := schema.NewPrimitiveNodeLogical("element", optional, logical, kind, -1, -1)
	for level := depth; level > 0 && err == nil; level-- {
		name := "element"
		if level == 1 {
			name = "x"
		}
		node, err = schema.NewGroupNode("list", parquet.Repetitions.Repeated, schema.FieldList{node}, -1)
		if err == nil {
			node, err = schema.NewGroupNodeLogical(name, optional, schema.FieldList{node},
				schema.ListLogicalType{}, -1)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	root, err := schema.NewGroupNode("schema", parquet.Repetitions.Required, schema.FieldList{node},
		-1)
	if err != nil {
		t.Fatal(err)
	}
	var cut shredded
	for row := range rows {
		var v any
		if err := json.Unmarshal([]byte(c.rows[row%len(c.rows)]), &v); err != nil {
			t.Fatal(err)
		}
		cut.add(v, depth, 0, 0, 1)
	}
	var out bytes.Buffer
	w := file.NewParquetWriter(&out, root,
		file.WithWriterProps(parquet.NewWriterProperties(properties...)))
	group, err := w.AppendRowGroupChecked()
	if err != nil {
		t.Fatal(err)
	}
	column, err := group.NextColumn()
	if err != nil {
		t.Fatal(err)
	}
	switch column := column.(type) {
	case *file.Int32ColumnChunkWriter:
		_, err = column.WriteBatch(cut.whole, cut.defs, cut.reps)
	case *file.Float64ColumnChunkWriter:
		_, err = column.WriteBatch(cut.floats, cut.defs, cut.reps)
	case *file.ByteArrayColumnChunkWriter:
		_, err = column.WriteBatch(cut.texts, cut.defs, cut.reps)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := column.Close(); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// checkParts: a part of a row group that begins anywhere has the rows that the whole has there.
func checkParts(t *testing.T, content []byte) {
	t.Helper()
	f := open(t, "x.parquet", content)
	ix, err := Scan(f, Options{})
	if err != nil {
		t.Fatal(err)
	}
	columns := Columns(ix.Fields)
	d, err := Open(f, ix, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	whole, err := d.Decode(ix.Blocks[0], columns)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range [][2]int64{{0, 1}, {1, 3}, {15, 2}, {16, 16}, {17, 100}, {280, 20}, {333, 7},
		{699, 1}} {
		b := ix.Blocks[0]
		if at[0]+at[1] > b.Rows {
			continue
		}
		b.First, b.Rows = at[0], at[1]
		part, err := d.Decode(b, columns)
		if err != nil {
			t.Fatal(err)
		}
		if int64(part.Count) != at[1] {
			t.Fatalf("%d rows from %d on, want %d", part.Count, at[0], at[1])
		}
		for i := range part.Count {
			for k, c := range columns {
				got, want := shown(t, c, &part.Data[k], i), shown(t, c, &whole.Data[k], int(at[0])+i)
				if got != want {
					t.Fatalf("row %d of the part from %d on is %q, want %q", i, at[0], got, want)
				}
			}
		}
	}
}

// TestHolesInWholeLists: NumPy has no missing whole number; the reason names file and column.
func TestHolesInWholeLists(t *testing.T) {
	record := nestedRecord(t, nestedColumns()["whole with holes"], 3)
	var out bytes.Buffer
	w, err := ipc.NewFileWriter(&out, ipc.WithSchema(record.Schema()))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write(record); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	_, _, err = readAll(open(t, "x.arrow", out.Bytes()), Options{})
	if err == nil || !strings.Contains(err.Error(), `x.arrow: record batch 0: column "x": `) ||
		!strings.Contains(err.Error(), "missing value") {
		t.Errorf("%v", err)
	}
}

// TestClassesInArrow: a dictionary's values, with its holes.
func TestClassesInArrow(t *testing.T) {
	for name, c := range map[string]struct {
		values arrow.DataType
		rows   string
		want   string
	}{
		"texts":   {arrow.BinaryTypes.String, `["a", "b", null, "a"]`, "a b missing a"},
		"numbers": {arrow.PrimitiveTypes.Int32, `[5, 7, 5]`, "5 7 5"},
	} {
		kind := &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: c.values}
		column, _, err := array.FromJSON(memory.DefaultAllocator, kind, strings.NewReader(c.rows))
		if err != nil {
			t.Fatal(err)
		}
		schema := arrow.NewSchema([]arrow.Field{{Name: "x", Type: kind, Nullable: true}}, nil)
		record := array.NewRecordBatch(schema, []arrow.Array{column}, int64(column.Len()))
		var out bytes.Buffer
		w, err := ipc.NewFileWriter(&out, ipc.WithSchema(schema))
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Write(record); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		_, rows, _ := decoded(t, open(t, "x.arrow", out.Bytes()), Options{})
		var got []string
		for _, row := range rows {
			got = append(got, row...)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestLevelsAreCounted: runs and packed groups, known by hand.
func TestLevelsAreCounted(t *testing.T) {
	for _, c := range []struct {
		data  []byte
		width int
		n     int64
		want  string
	}{
		{[]byte{10 << 1, 0}, 1, 10, "10 <nil>"}, {[]byte{10 << 1, 1}, 1, 10, "0 <nil>"},
		{[]byte{10 << 1, 0}, 1, 4, "4 <nil>"},
		{[]byte{1<<1 | 1, 0b11110000}, 1, 8, "4 <nil>"}, {[]byte{1<<1 | 1, 0b11110000}, 1, 5, "4 <nil>"},
		{[]byte{1<<1 | 1, 0b11_01_00_10, 0b00_00_11_01}, 2, 8, "3 <nil>"},
		{[]byte{3 << 1, 0, 1<<1 | 1, 0b00000001}, 1, 11, "10 <nil>"},
		{[]byte{3 << 1, 0, 0}, 9, 3, "3 <nil>"}, {[]byte{3 << 1, 0, 1}, 9, 3, "0 <nil>"},
		{[]byte{3 << 1}, 1, 3, "0 levels are cut off"}, {nil, 1, 1, "0 levels are cut off"},
		{[]byte{1<<1 | 1}, 1, 8, "0 levels are cut off"}, {[]byte{3 << 1, 0}, 1, 4,
			"0 levels are cut off"},
		{nil, 1, 0, "0 <nil>"},
	} {
		zeros, err := zeroLevels(c.data, c.width, c.n)
		if got := fmt.Sprint(zeros, err); !strings.HasPrefix(got, c.want) {
			t.Errorf("%v, width %d, %d of them: %s, want %s", c.data, c.width, c.n, got, c.want)
		}
	}
}

// TestDecimalsAreTheNearest: big-endian two's complement, any scale.
func TestDecimalsAreTheNearest(t *testing.T) {
	for _, c := range []struct {
		raw   []byte
		scale int32
		want  float64
	}{{[]byte{0x01}, 0, 1}, {[]byte{0xFF}, 0, -1}, {[]byte{0x80}, 0, -128},
		{[]byte{0x00, 0x80}, 0, 128},
		{[]byte{0xFF, 0x00}, 2, -2.56}, {[]byte{0x7B}, 3, 0.123}, {[]byte{0x05}, -3, 5000},
		{nil, 2, 0}, {[]byte{1, 0, 0, 0, 0, 0, 0, 0, 0}, 0, math.Exp2(64)}} {
		if got := scaled(signed(c.raw), c.scale); got != c.want {
			t.Errorf("%x with scale %d: %v, want %v", c.raw, c.scale, got, c.want)
		}
	}
}

// TestMergedFields: what the rows of two files need together; the reason names file and column.
func TestMergedFields(t *testing.T) {
	of := func(name, dtype string, null bool) Field {
		return Field{Column: table.FixedOf(name, dtype, int(dtype[2]-'0'), "csv"), Null: null}
	}
	list := func(dtype string, width int) Field {
		return Field{Column: table.Column{Name: "a", Kind: table.List, DType: dtype, Width: width}}
	}
	shaped := of("a", "<i4", false)
	shaped.Shape = []int{3}
	any := Field{Column: table.Column{Name: "a"}, Any: true}
	missing := any
	missing.Null = true
	text := Field{Column: table.Column{Name: "a", Kind: table.Text, From: "csv"}}
	for name, c := range map[string]struct {
		x, y Field
		want string
	}{
		"the same":          {of("a", "<i4", false), of("a", "<i4", false), "<i4 false"},
		"one has holes":     {of("a", "<i4", false), of("a", "<i4", true), "<i4 true"},
		"wider":             {of("a", "<i4", false), of("a", "<i8", false), "<i8 false"},
		"whole and float":   {of("a", "<i4", false), of("a", "<f4", true), "<f8 true"},
		"large whole":       {of("a", "<u8", false), of("a", "<i8", false), "<f8 false"},
		"no rows here":      {any, of("a", "<i4", false), "<i4 false"},
		"no rows there":     {of("a", "<i4", false), any, "<i4 false"},
		"nothing here":      {missing, of("a", "<i4", false), "<i4 true"},
		"nothing there":     {of("a", "<i4", false), missing, "<i4 true"},
		"lists of one size": {shaped, list("<i4", 4), "a list of <i4 false"},
		"and the other way": {list("<i4", 4), shaped, "a list of <i4 false"},
		"lists of both":     {list("<i8", 8), list("<f8", 8), "a list of <f8 false"},
		"narrow and wide": {list("<i4", 4), list("<f8", 8),
			"x.csv: column \"a\": is a list of <f8 here and a list of <i4 in the files before it"},
		"text and number": {text, of("a", "<i4", false),
			"x.csv: column \"a\": is <i4 here and text in the files before it; types={\"a\": \"str\"} reads texts"},
		"shape and number": {of("a", "<i4", false), shaped,
			"x.csv: column \"a\": is <i4 of shape [3] here and <i4 in the files before it; types={\"a\": \"str\"} reads texts"},
	} {
		merged, err := Merge([]Field{c.x}, []Field{c.y}, "x.csv", false)
		got := fmt.Sprint(err)
		if err == nil {
			got = fmt.Sprint(described(merged[0]), " ", merged[0].Null)
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	a, b := of("a", "<i4", false), of("b", "<i4", false)
	if _, err := Merge([]Field{a}, []Field{a, b}, "x.csv", false); err == nil ||
		!strings.Contains(err.Error(), "x.csv has 2 columns, the files before it have 1") {
		t.Errorf("another number of columns: %v", err)
	}
	if _, err := Merge([]Field{a}, []Field{b}, "x.csv", false); err == nil ||
		!strings.Contains(err.Error(), `x.csv has no column "a"`) {
		t.Errorf("another column: %v", err)
	}
	merged, err := Merge([]Field{a}, []Field{b}, "x.jsonl", true)
	if err != nil || len(merged) != 2 || !merged[0].Null || !merged[1].Null {
		t.Errorf("loose: %+v %v", merged, err)
	}
	for format, want := range map[string]bool{"jsonl": true, "tfrecord": true, "tar": true,
		"csv":     false,
		"parquet": false, "arrow": false} {
		if Loose(format) != want {
			t.Errorf("%s is loose: %v", format, !want)
		}
	}
}

// TestDamagedBlocksAreLeftOut: the others stay, and the rows that are gone are counted.
func TestDamagedBlocksAreLeftOut(t *testing.T) {
	c := nestedColumns()["whole"]
	record := nestedRecord(t, c, 300)
	var out bytes.Buffer
	w, err := ipc.NewFileWriter(&out, ipc.WithSchema(record.Schema()))
	if err != nil {
		t.Fatal(err)
	}
	for from := int64(0); from < 300; from += 100 {
		if err := w.Write(record.NewSlice(from, from+100)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	f := open(t, "x.arrow", out.Bytes())
	ix, err := Scan(f, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := LeaveOut(f, ix, Options{}); err != nil || len(ix.Blocks) != 3 || ix.Skipped != 0 {
		t.Errorf("nothing is damaged: %d blocks, %d skipped, %v", len(ix.Blocks), ix.Skipped, err)
	}
	ix.Blocks[1].Part = 99
	if err := LeaveOut(f, ix, Options{}); err != nil || len(ix.Blocks) != 2 || ix.Skipped != 100 ||
		len(ix.Notes) != 1 || ix.Blocks[1].Rows != 100 {
		t.Errorf("%d blocks, %d skipped, %v %v", len(ix.Blocks), ix.Skipped, ix.Notes, err)
	}
}
