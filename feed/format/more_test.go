package format

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/metadata"
	"github.com/apache/arrow-go/v18/parquet/schema"

	"memroom/feed/source"
	"memroom/feed/table"
)

// elsewhere is a file that cannot be mapped, as one on a server.
type elsewhere struct{ source.File }

// TestLargeBatchesAreUnpackedOnce: record batches above 8 MiB that are compressed, or that lie on a
// server, hold the same rows in any part of them, and when they are read again.
func TestLargeBatchesAreUnpackedOnce(t *testing.T) {
	const rows = 300_000 // of about 48 bytes
	schema := arrow.NewSchema([]arrow.Field{{Name: "n", Type: arrow.PrimitiveTypes.Int64},
		{Name: "f", Type: arrow.PrimitiveTypes.Float32, Nullable: true},
		{Name: "t", Type: arrow.BinaryTypes.String, Nullable: true}}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	for row := range rows {
		b.Field(0).(*array.Int64Builder).Append(int64(row))
		if row%1000 == 7 {
			b.Field(1).AppendNull()
			b.Field(2).AppendNull()
			continue
		}
		b.Field(1).(*array.Float32Builder).Append(float32(row % 100))
		b.Field(2).(*array.StringBuilder).Append("a text of some length " + strconv.Itoa(row%1000))
	}
	record := b.NewRecordBatch()
	for name, options := range map[string][]ipc.Option{"plain": nil, "lz4": {ipc.WithLZ4()},
		"zstd": {ipc.WithZstd()}} {
		var out bytes.Buffer
		w := ipc.NewWriter(&out, append(options, ipc.WithSchema(schema))...)
		second := record.NewSlice(rows/3, rows) // larger than a block too
		if err := errors.Join(w.Write(record), w.Write(second), w.Close()); err != nil {
			t.Fatal(err)
		}
		for _, f := range []source.File{open(t, "x.arrow", out.Bytes()),
			elsewhere{open(t, "x.arrow", out.Bytes())}} {
			checkLargeBatches(t, name, f, rows)
		}
	}
}

func checkLargeBatches(t *testing.T, name string, f source.File, rows int64) {
	t.Helper()
	ix, err := Scan(f, Options{})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	d, err := Open(f, ix, Options{})
	if err != nil {
		t.Fatal(err)
	}
	columns := Columns(ix.Fields)
	total := int64(0)
	for _, b := range append(slices.Clone(ix.Blocks), ix.Blocks[0]) {
		if b.Bytes > groupBlock+1<<10 || b.Bytes/b.Rows < 36 || b.Bytes/b.Rows > 80 {
			t.Errorf("%s: a block of %d rows is said to take %d bytes", name, b.Rows, b.Bytes)
		}
		got, err := d.Decode(b, columns)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for i := int64(0); i < b.Rows; i += 997 {
			row := b.First + i
			if b.Part == 1 {
				row += rows / 3
			}
			want := []string{fmt.Sprint(row), fmt.Sprint(row % 100),
				fmt.Sprint("a text of some length ", row%1000)}
			if row%1000 == 7 {
				want[1], want[2] = "NaN", absent
			}
			for k, c := range columns {
				if v := shown(t, c, &got.Data[k], int(i)); v != want[k] {
					t.Fatalf("%s: row %d of part %d has %q, want %q", name, row, b.Part, v, want[k])
				}
			}
		}
		total += b.Rows
	}
	if want := rows + rows - rows/3 + ix.Blocks[0].Rows; total != want || len(ix.Blocks) < 3 {
		t.Errorf("%s: %d rows in %d blocks, want %d", name, total, len(ix.Blocks), want)
	}
	if err := d.Close(); err != nil {
		t.Errorf("%s: %v", name, err)
	}
}

// TestWhatArrowNotedInParquet: durations and lists of one size are noted in the metadata; a note
// that cannot be read, or that the data does not fit, changes nothing.
func TestWhatArrowNotedInParquet(t *testing.T) {
	noted := func(fields ...arrow.Field) string {
		var out bytes.Buffer
		w := ipc.NewWriter(&out, ipc.WithSchema(arrow.NewSchema(fields, nil)))
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return base64.StdEncoding.EncodeToString(out.Bytes())
	}
	pair := arrow.FixedSizeListOf(2, arrow.PrimitiveTypes.Int64)
	note := noted(arrow.Field{Name: "took", Type: arrow.FixedWidthTypes.Duration_ms},
		arrow.Field{Name: "pair", Type: pair})
	for name, c := range map[string]struct{ note, want string }{
		"as it was written": {note, "took <m8[ms] [] pair <i8 [2]"},
		"nothing noted":     {"", "took <i8 [] pair list <i8"},
		"no text":           {"%%%", "took <i8 [] pair list <i8"},
		"no schema":         {"aGVsbG8=", "took <i8 [] pair list <i8"},
		"of another file": {noted(arrow.Field{Name: "took", Type: arrow.BinaryTypes.String}),
			"took <i8 [] pair list <i8"},
		"the other way round": {noted(arrow.Field{Name: "pair", Type: arrow.FixedWidthTypes.Duration_s},
			arrow.Field{Name: "took", Type: pair}), "took <i8 [] pair list <i8"},
	} {
		content := twoColumns(t, c.note, []int64{1, 2, 3, 4, 5, 6}, []int16{0, 1, 0, 1, 0, 1})
		columns, rows, _ := decoded(t, open(t, "x.parquet", content), Options{})
		got := fmt.Sprint("took ", columns[0].DType, " ", columns[0].Shape, " pair ")
		values := "[[-1 1 2] [-2 3 4] [-3 5 6]]"
		if columns[1].Kind == table.List {
			got += "list " + columns[1].DType
			values = "[[-1 [1 2]] [-2 [3 4]] [-3 [5 6]]]"
		} else {
			got += fmt.Sprint(columns[1].DType, " ", columns[1].Shape)
		}
		if got != c.want || fmt.Sprint(rows) != values {
			t.Errorf("%s: %s %v, want %s %s", name, got, rows, c.want, values)
		}
	}
	// A note about all rows is wrong for one of them.
	content := twoColumns(t, note, []int64{1, 2, 3, 4, 5, 6}, []int16{0, 1, 0, 1, 1, 0})
	said := complaintAbout(t, "x.parquet", content, Options{})
	if !strings.Contains(said, `"pair"`) || !strings.Contains(said, "row 1 has 3 values, where 2") {
		t.Errorf("a list of three among pairs: %q", said)
	}
}

// twoColumns writes "took" and the lists "pair"; a level of 0 begins a list.
func twoColumns(t *testing.T, note string, values []int64, levels []int16) []byte {
	t.Helper()
	required := parquet.Repetitions.Required
	took := schema.NewInt64Node("took", required, -1)
	list, err := schema.ListOf(schema.NewInt64Node("element", required, -1), required, -1)
	if err != nil {
		t.Fatal(err)
	}
	inner, err := schema.NewGroupNodeLogical("pair", required, schema.FieldList{list.Field(0)},
		schema.ListLogicalType{}, -1)
	if err != nil {
		t.Fatal(err)
	}
	root, err := schema.NewGroupNode("schema", required, schema.FieldList{took, inner}, -1)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	var options []file.WriteOption
	if note != "" {
		kept := metadata.NewKeyValueMetadata()
		if err := kept.Append("ARROW:schema", note); err != nil {
			t.Fatal(err)
		}
		options = append(options, file.WithWriteMetadata(kept))
	}
	w := file.NewParquetWriter(&out, root, options...)
	group, err := w.AppendRowGroupChecked()
	if err != nil {
		t.Fatal(err)
	}
	column := func(values []int64, defs, reps []int16) {
		t.Helper()
		c, err := group.NextColumn()
		if err == nil {
			_, err = c.(*file.Int64ColumnChunkWriter).WriteBatch(values, defs, reps)
			err = errors.Join(err, c.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	column([]int64{-1, -2, -3}, nil, nil)
	column(values, []int16{1, 1, 1, 1, 1, 1}, levels)
	if err := errors.Join(group.Close(), w.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestHeadersWithEveryKindOfField checks that fields of a header that are not needed are skipped,
// whatever their kind, and that a header that is cut off anywhere is distinguished from a whole
// one.
func TestHeadersWithEveryKindOfField(t *testing.T) {
	varint := func(v int64) []byte { return binary.AppendUvarint(nil, uint64(v<<1^v>>63)) }
	field := func(delta, kind int, value ...byte) []byte {
		return append([]byte{byte(delta<<4 | kind)}, value...)
	}
	text := append(binary.AppendUvarint(nil, 5), "hello"...)
	list := append([]byte{3<<4 | 5}, slices.Concat(varint(1), varint(-2), varint(3000))...)
	longList := append(append([]byte{15<<4 | 8}, binary.AppendUvarint(nil, 16)...),
		bytes.Repeat(text, 16)...)
	inner := slices.Concat(field(1, 3, 9), field(1, 4, varint(70000)...), field(1, 7, make([]byte,
		8)...),
		field(1, 8, text...), field(1, 9, list...), field(1, 10, longList...), field(1, 1), field(1, 2),
		[]byte{0})
	data := slices.Concat(field(1, 5, varint(77)...), field(1, 5, varint(8)...),
		field(1, 5, varint(3)...), field(1, 5, varint(4)...), field(1, 12, inner...), []byte{0})
	// fields 1 to 3, a checksum, the data header, and one whose number is written out
	header := slices.Concat(field(1, 5, varint(0)...), field(1, 5, varint(1000)...),
		field(1, 5, varint(500)...), field(1, 5, varint(-123456)...), field(1, 12, data...),
		append([]byte{12}, append(varint(20), inner...)...), []byte{0})
	r := thrift{data: append(slices.Clone(header), "what follows"...)}
	h := r.pageHeader()
	if r.bad || r.at != len(header) || h != (pageHeader{kind: 0, unpacked: 1000, size: 500, values: 77,
		rows: -1, encoding: 8, definitionEncoding: 3, repetitionEncoding: 4, sum: 1<<32 - 123456,
		summed: true}) {
		t.Errorf("%+v, %d of %d bytes, bad %v", h, r.at, len(header), r.bad)
	}
	for n := range header {
		if r := (thrift{data: header[:n]}); r.pageHeader().kind == 0 && !r.bad && n > 0 {
			t.Errorf("a header cut off after %d of %d bytes is taken for a whole one", n, len(header))
		}
	}
	second := slices.Concat(field(1, 5, varint(3)...), field(1, 5, varint(1000)...),
		field(1, 5, varint(500)...), field(5, 12, slices.Concat(field(1, 5, varint(10)...),
			field(1, 5, varint(2)...), field(1, 5, varint(9)...), field(1, 5, varint(0)...),
			field(1, 5, varint(6)...), field(1, 5, varint(0)...), field(1, 2), []byte{0})...), []byte{0})
	r = thrift{data: second}
	if h := r.pageHeader(); r.bad || h != (pageHeader{kind: 3, unpacked: 1000, size: 500, values: 10,
		rows: 9, definition: 6, stored: true}) {
		t.Errorf("version 2: %+v, bad %v", h, r.bad)
	}
	deep := slices.Concat(bytes.Repeat([]byte{4<<4 | 12}, 20), make([]byte, 21))
	for name, hostile := range map[string][]byte{"structs without end": deep,
		"a text without end": field(4, 8, 0xff, 0xff, 0xff, 0x7f), "no kind": field(4, 14, 0)} {
		if r := (thrift{data: hostile}); r.pageHeader().kind >= 0 || !r.bad {
			t.Errorf("%s is taken for a header", name)
		}
	}
}

// TestAnyNumberInAnyColumn: numbers as programs and people write them, in columns of every type,
// are what the standard library makes of them, in CSV and in JSON lines.
func TestAnyNumberInAnyColumn(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	digits := func(most int) string {
		text := strconv.Itoa(1 + random.IntN(9))
		for range random.IntN(most) {
			text += strconv.Itoa(random.IntN(10))
		}
		return text
	}
	kinds := []string{"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
		"float32",
		"float64", "float64"}
	types := map[string]string{}
	names := make([]string, len(kinds))
	for i, kind := range kinds {
		names[i] = fmt.Sprintf("c%d", i)
		types[names[i]] = kind
	}
	var lines, objects strings.Builder
	lines.WriteString(strings.Join(names, ",") + "\n")
	var want [][]string
	for range 1500 {
		row, cells := make([]string, len(kinds)), make([]string, len(kinds))
		for i, kind := range kinds {
			bits, _ := strconv.Atoi(strings.TrimLeft(kind, "intufloa"))
			cell := ""
			switch {
			case kind[0] == 'u':
				cell = strconv.FormatUint(random.Uint64()>>(64-bits+random.IntN(bits)), 10)
			case kind[0] == 'i':
				cell = strconv.FormatInt(int64(random.Uint64())>>(64-bits+random.IntN(bits)), 10)
			case random.IntN(3) == 0:
				cell = strconv.FormatFloat(math.Ldexp(random.Float64()-0.5, random.IntN(200)-100), 'g', -1,
					bits)
			default:
				cell = []string{"", "-"}[random.IntN(2)] + digits(22)
				if random.IntN(3) > 0 {
					cell += "." + digits(18)
				}
				if random.IntN(2) > 0 {
					cell += []string{"e", "E", "e+", "E-", "e-0"}[random.IntN(5)] + strconv.Itoa(random.IntN(40))
				}
			}
			cells[i], row[i] = cell, cell
			if kind[0] == 'f' {
				v, err := strconv.ParseFloat(cell, bits)
				if err != nil && !errors.Is(err, strconv.ErrRange) {
					t.Fatal(err)
				}
				if row[i] = fmt.Sprint(v); bits == 32 {
					row[i] = fmt.Sprint(float32(v))
				}
			}
		}
		lines.WriteString(strings.Join(cells, ",") + "\n")
		for i := range cells {
			cells[i] = strconv.Quote(names[i]) + ": " + cells[i]
		}
		objects.WriteString("{" + strings.Join(cells, ", ") + "}\n")
		want = append(want, row)
	}
	for name, text := range map[string]string{"x.csv": lines.String(), "x.jsonl": objects.String()} {
		_, got, _ := decoded(t, open(t, name, []byte(text)), Options{Types: types})
		if len(got) != len(want) {
			t.Fatalf("%s: %d rows", name, len(got))
		}
		for i := range want {
			if !slices.Equal(got[i], want[i]) {
				t.Fatalf("%s: row %d is\n%q, want\n%q", name, i, got[i], want[i])
			}
		}
	}
}

// TestTypesByWhatIsThere: the type of a column is that of all its values, with what pandas and
// Python make of the same texts.
func TestTypesByWhatIsThere(t *testing.T) {
	for _, c := range []struct {
		name, content, want string
		o                   Options
	}{
		{"a.csv", "a,b,c,d\n1,x,true,\n2,,false,\n",
			"a <i8 1 2|b text x missing|c |b1 true false|d <f8 NaN NaN", Options{}},
		{"a.csv", "a\n1\n\n 2 \n3.5\n", "a <f8 1 2 3.5", Options{}},
		{"a.csv", "a,b\n1,0\nNA,-1\n-7,\n", "a <f8 1 NaN -7|b <f8 0 -1 NaN", Options{}},
		{"a.csv", "a,b\n9223372036854775807,18446744073709551615\n-9223372036854775808,1\n",
			"a <i8 9223372036854775807 -9223372036854775808|b <u8 18446744073709551615 1", Options{}},
		{"a.csv", "a\n18446744073709551615\n-1\n", "a <f8 1.8446744073709552e+19 -1", Options{}},
		{"a.csv", "a\n18446744073709551616\n1\n", "a <f8 1.8446744073709552e+19 1", Options{}},
		{"a.csv", "a,b\nTRUE,1\nFalse,true\n", "a |b1 true false|b text 1 true", Options{}},
		{"a.csv", "a\ntrue\n\nnull\nfalse\n", "a <f8 1 NaN 0", Options{}},
		{"a.csv", "a,a,,a\n1,2,3,4\n", "a <i8 1|a.1 <i8 2|Unnamed: 2 <i8 3|a.2 <i8 4", Options{}},
		{"a.csv", "1,2\n3,4\n", "0 <i8 1 3|1 <i8 2 4", Options{NoHeader: true}},
		{"a.csv", "a;b,c\n1,5\n", "a;b <i8 1|c <i8 5", Options{}},
		{"a.csv", "a;b,c\n1;2,5\n", "a;b text 1;2|c <i8 5", Options{}},
		{"a.csv", "a\tb\n1\t2\n", "a <i8 1|b <i8 2", Options{Delimiter: `\t`}},
		{"a.tsv", "a,b\tc\n1\t2\n", "a,b <i8 1|c <i8 2", Options{}},
		{"a.csv", "a|b\n1|\"x|\"\"y\"\"\"z\n", "a <i8 1|b text x|\"y\"z", Options{}},
		{"a.csv", "\xEF\xBB\xBF\n \na,b\n1,-.5\n", "a <i8 1|b <f8 -0.5", Options{}},
		{"a.csv", "x\n+5\n-0\n", "x <i8 5 0", Options{}},
		{"a.csv", "x\n1e5\n0x10\n", "x text 1e5 0x10", Options{}},
		{"a.csv", "x\ninf\n-Infinity\n", "x <f8 +Inf -Inf", Options{}},
		{"a.jsonl", `{"a": 1, "b": [1, 2]}` + "\n" + `{"b": [], "c": null}` + "\n",
			"a <f8 1 NaN|b list<i8 [1 2] []|c <f8 NaN NaN", Options{}},
		{"a.jsonl", `{"a": 9223372036854775808, "b": 1e400}` + "\n",
			"a <u8 9223372036854775808|b <f8 +Inf", Options{}},
		{"a.jsonl", `{"a": 9223372036854775808}` + "\n" + `{"a": -1}` + "\n",
			"a <f8 9.223372036854776e+18 -1", Options{}},
		{"a.jsonl", `{"a": NaN, "b": -Infinity}` + "\n", "a <f8 NaN|b <f8 -Inf", Options{}},
		{"a.jsonl", `{"a": [1, 2.5], "b": [[1]], "c": [1, "x"]}` + "\n",
			`a list<f8 [1 2.5]|b text [[1]]|c text [1, "x"]`, Options{}},
		{"a.jsonl", `{"a": 1, "b": true}` + "\n" + `{"a": "x", "b": false}` + "\n",
			`a text 1 "x"|b |b1 true false`, Options{}},
		{"a.jsonl", `{"\u00e9\"": 1}` + "\n" + `{"é\"": 2}` + "\n", `é" <i8 1 2`, Options{}},
		{"a.jsonl", `{"a": 1, "a": 2}` + "\n", `a <i8 2`, Options{}},
		{"a.jsonl", `{"a": true}` + "\n" + `{"a": null}` + "\n", `a <f8 1 NaN`, Options{}},
		{"a.jsonl", "\xEF\xBB\xBF" + `{"a": {"b": "}"}}` + "\n \t\n", `a text {"b": "}"}`, Options{}},
	} {
		columns, rows, _ := decoded(t, open(t, c.name, []byte(c.content)), c.o)
		var all []string
		for i, column := range columns {
			kind := column.DType
			switch column.Kind {
			case table.Text:
				kind = "text"
			case table.List:
				kind = "list" + column.DType
			}
			text := column.Name + " " + kind
			for _, row := range rows {
				text += " " + row[i]
			}
			all = append(all, text)
		}
		if got := strings.Join(all, "|"); got != c.want {
			t.Errorf("%s %q:\n got %s\nwant %s", c.name, c.content, got, c.want)
		}
	}
}

// feature encodes a feature: kind 1 holds bytes, 2 floats, 3 whole numbers.
func feature(kind int, values ...[]byte) []byte {
	return message(kind, slices.Concat(values...))
}

// TestFeaturesOfEveryKind: one value in every row is a column of numbers, several are lists, none
// is missing; numbers may be packed or not.
func TestFeaturesOfEveryKind(t *testing.T) {
	float := func(v float32) []byte {
		return binary.LittleEndian.AppendUint32(nil, math.Float32bits(v))
	}
	whole := func(values ...int64) (packed []byte) {
		for _, v := range values {
			packed = binary.AppendUvarint(packed, uint64(v))
		}
		return message(1, packed)
	}
	alone := func(v int64) []byte {
		return append([]byte{1 << 3}, binary.AppendUvarint(nil,
			uint64(v))...)
	}
	type row = map[string][]byte
	for _, c := range []struct {
		rows []row
		want string
	}{
		{[]row{{"a": feature(3, whole(1))}, {"a": feature(3, whole(-2))}}, "a fixed <i8: 1 -2"},
		{[]row{{"a": feature(3, whole(1))}, {}}, "a fixed <f8: 1 NaN"},
		{[]row{{"a": feature(3, whole(1))}, {"a": feature(3)}}, "a fixed <f8: 1 NaN"},
		{[]row{{"a": nil}, {"a": feature(3, whole(4))}}, "a fixed <f8: NaN 4"},
		{[]row{{"a": feature(3, whole(1, 2, 300))}, {"a": feature(3, alone(5), alone(-6))}},
			"a list <i8: [1 2 300] [5 -6]"},
		{[]row{{"a": feature(3, whole(1))}, {"a": feature(3, whole(1, 2))}, {}},
			"a list <i8: [1] [1 2] []"},
		{[]row{{"a": feature(2, message(1, float(0.5)))}, {"a": feature(2, append([]byte{1<<3 | 5},
			float(-1)...))}}, "a fixed <f4: 0.5 -1"},
		{[]row{{"a": feature(2, message(1, float(0.5)))}, {}}, "a fixed <f4: 0.5 NaN"},
		{[]row{{"a": feature(2, message(1, append(float(1), float(2)...)))}, {"a": feature(2)}},
			"a list <f4: [1 2] []"},
		{[]row{{"a": feature(1, message(1, []byte("x\x00")))}, {}, {"a": feature(1, message(1, nil))}},
			"a binary : x\x00 missing "},
		{[]row{{"a": nil}, {"a": nil}}, "a binary : missing missing"},
		{[]row{{"b": feature(3, whole(1)), "a": feature(1, message(1, []byte("y")))}},
			"a binary : y|b fixed <i8: 1"},
	} {
		var file []byte
		for _, r := range c.rows {
			file = append(file, record(example(r))...)
		}
		columns, rows, _ := decoded(t, open(t, "x.tfrecord", file), Options{})
		var all []string
		for i, column := range columns {
			var cells []string
			for _, r := range rows {
				cells = append(cells, r[i])
			}
			all = append(all, fmt.Sprintf("%s %s %s: %s", column.Name, column.Kind, column.DType,
				strings.Join(cells, " ")))
		}
		if got := strings.Join(all, "|"); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
	good := record(example(row{"a": feature(3, whole(7))}))
	for name, c := range map[string]struct {
		content []byte
		want    string
	}{
		"another type": {example(row{"a": feature(2, message(1, float(1)))}),
			`"a" changes its type`},
		"a sequence":        {message(2, []byte{10, 0}), "SequenceExample"},
		"a cut varint":      {[]byte{1 << 3, 0xff}, "not a tf.train.Example"},
		"a cut double":      {[]byte{1<<3 | 1, 0}, "not a tf.train.Example"},
		"a cut float":       {[]byte{1<<3 | 5, 0}, "not a tf.train.Example"},
		"a cut text":        {[]byte{1<<3 | 2, 9, 0}, "not a tf.train.Example"},
		"a group":           {[]byte{1<<3 | 3}, "not a tf.train.Example"},
		"a cut feature map": {message(1, []byte{1<<3 | 2, 5}), "not a tf.train.Example"},
		"a cut entry":       {message(1, message(1, []byte{1<<3 | 2, 5})), "not a tf.train.Example"},
		"a cut feature": {message(1, message(1, append(message(1, []byte("a")), message(2,
			[]byte{3<<3 | 2, 5})...))), "not a tf.train.Example"},
		"a cut list": {example(row{"a": feature(3, []byte{1<<3 | 2, 5})}), "not a tf.train.Example"},
		"a cut number": {example(row{"a": feature(3, message(1, []byte{0xff}))}),
			"not a tf.train.Example"},
	} {
		said := complaintAbout(t, "x.tfrecord", append(slices.Clone(good), record(c.content)...),
			Options{})
		if !strings.Contains(said, c.want) || !strings.Contains(said, "row 1") {
			t.Errorf("%s: %q, want %q", name, said, c.want)
		}
		_, rows, _ := decoded(t, open(t, "x.tfrecord", slices.Concat(good, record(c.content), good)),
			Options{Skip: true})
		if fmt.Sprint(rows) != "[[7] [7]]" {
			t.Errorf("%s: %v is left", name, rows)
		}
	}
	// Nor does a row that is left out count for the types of others.
	bad := record(example(row{"a": feature(2, message(1, float(1)))})[:9])
	both := record(slices.Concat(example(row{"a": feature(2, message(1, float(1)))}),
		[]byte{1<<3 | 2, 9}))
	_, rows, _ := decoded(t, open(t, "x.tfrecord", slices.Concat(bad, both, good)),
		Options{Skip: true})
	if fmt.Sprint(rows) != "[[7]]" {
		t.Errorf("%v is left behind two bad rows", rows)
	}
	// Additions of later versions are skipped.
	extra := append(message(7, []byte("new")), append([]byte{9<<3 | 1}, make([]byte, 8)...)...)
	_, rows, _ = decoded(t, open(t, "x.tfrecord", record(append(extra, example(row{
		"a": feature(3, whole(7))})...))), Options{})
	if fmt.Sprint(rows) != "[[7]]" {
		t.Errorf("with other fields: %v", rows)
	}
}

// TestListsOfListsOfEveryKind: Parquet's lists of lists come as JSON, with what JSON has no number
// for as null.
func TestListsOfListsOfEveryKind(t *testing.T) {
	types := parquet.Types
	moment := instant(1_600_000_000_000_000_001)
	for name, c := range map[string]struct {
		kind    parquet.Type
		logical schema.LogicalType
		length  int
		values  any
		want    string
	}{
		"truths": {types.Boolean, nil, -1, []bool{true, false, true}, "[[true,false],[true]]"},
		"whole":  {types.Int32, nil, -1, []int32{-1, 2, 3}, "[[-1,2],[3]]"},
		"u32": {types.Int32, schema.NewIntLogicalType(32, false), -1, []int32{-1, 2, 3},
			"[[4294967295,2],[3]]"},
		"u64": {types.Int64, schema.NewIntLogicalType(64, false), -1, []int64{-1, 2, 3},
			"[[18446744073709551615,2],[3]]"},
		"i64":     {types.Int64, nil, -1, []int64{-1, 2, 3}, "[[-1,2],[3]]"},
		"floats":  {types.Float, nil, -1, []float32{0.5, float32(math.NaN()), -1}, "[[0.5,null],[-1]]"},
		"doubles": {types.Double, nil, -1, []float64{0.5, math.Inf(1), -1}, "[[0.5,null],[-1]]"},
		"decimal": {types.Int64, schema.NewDecimalLogicalType(9, 2), -1, []int64{150, -5, 0},
			"[[1.5,-0.05],[0]]"},
		"small decimal": {types.Int32, schema.NewDecimalLogicalType(9, 1), -1, []int32{15, -5, 0},
			"[[1.5,-0.5],[0]]"},
		"large decimal": {types.FixedLenByteArray, schema.NewDecimalLogicalType(3, 1), 2,
			[]parquet.FixedLenByteArray{{0, 15}, {255, 255}, {1, 0}}, "[[1.5,-0.1],[25.6]]"},
		"moments": {types.Int96, nil, -1, []parquet.Int96{moment, moment, moment},
			"[[1600000000000000001,1600000000000000001],[1600000000000000001]]"},
		"texts": {types.ByteArray, schema.StringLogicalType{}, -1, []parquet.ByteArray{[]byte("a\""), nil,
			[]byte("é")}, `[["a\"",""],["é"]]`},
	} {
		required, repeated := parquet.Repetitions.Required, parquet.Repetitions.Repeated
		if c.logical == nil {
			c.logical = schema.NoLogicalType{}
		}
		node := schema.Node(schema.MustPrimitive(schema.NewPrimitiveNodeLogical("element", required,
			c.logical,
			c.kind, c.length, -1)))
		for _, above := range []string{"inner", "x"} {
			list := schema.MustGroup(schema.NewGroupNode("list", repeated, schema.FieldList{node}, -1))
			node = schema.MustGroup(schema.NewGroupNodeLogical(above, required, schema.FieldList{list},
				schema.ListLogicalType{}, -1))
		}
		root := schema.MustGroup(schema.NewGroupNode("schema", required, schema.FieldList{node}, -1))
		var out bytes.Buffer
		w := file.NewParquetWriter(&out, root)
		group, err := w.AppendRowGroupChecked()
		if err != nil {
			t.Fatal(err)
		}
		column, err := group.NextColumn()
		if err != nil {
			t.Fatal(err)
		}
		defs, reps := []int16{2, 2, 2}, []int16{0, 2, 1}
		switch column := column.(type) {
		case *file.BooleanColumnChunkWriter:
			_, err = column.WriteBatch(c.values.([]bool), defs, reps)
		case *file.Int32ColumnChunkWriter:
			_, err = column.WriteBatch(c.values.([]int32), defs, reps)
		case *file.Int64ColumnChunkWriter:
			_, err = column.WriteBatch(c.values.([]int64), defs, reps)
		case *file.Int96ColumnChunkWriter:
			_, err = column.WriteBatch(c.values.([]parquet.Int96), defs, reps)
		case *file.Float32ColumnChunkWriter:
			_, err = column.WriteBatch(c.values.([]float32), defs, reps)
		case *file.Float64ColumnChunkWriter:
			_, err = column.WriteBatch(c.values.([]float64), defs, reps)
		case *file.ByteArrayColumnChunkWriter:
			_, err = column.WriteBatch(c.values.([]parquet.ByteArray), defs, reps)
		case *file.FixedLenByteArrayColumnChunkWriter:
			_, err = column.WriteBatch(c.values.([]parquet.FixedLenByteArray), defs, reps)
		}
		if err = errors.Join(err, column.Close(), group.Close(), w.Close()); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		columns, rows, _ := decoded(t, open(t, "x.parquet", out.Bytes()), Options{})
		if columns[0].Name != "x" || fmt.Sprint(rows) != "[["+c.want+"]]" {
			t.Errorf("%s: %s %v, want %s", name, columns[0].Name, rows, c.want)
		}
	}
}

// TestRunsByHand checks that Parquet's mixture of runs and packed groups is decoded to the same
// numbers in steps of any size, and that one that ends too soon is an error.
func TestRunsByHand(t *testing.T) {
	random := rand.New(rand.NewPCG(9, 1))
	for range 200 {
		width := random.IntN(21)
		var data []byte
		var want []uint32
		for range 1 + random.IntN(6) {
			if random.IntN(2) == 0 {
				n, v := 1+random.IntN(300), random.Uint32()&(1<<width-1)
				data = binary.AppendUvarint(data, uint64(n)<<1)
				data = append(data, binary.LittleEndian.AppendUint32(nil, v)[:(width+7)/8]...)
				want = append(want, slices.Repeat([]uint32{v}, n)...)
				continue
			}
			groups := 1 + random.IntN(5)
			data = binary.AppendUvarint(data, uint64(groups)<<1|1)
			packed := make([]byte, groups*width)
			for i := range 8 * groups {
				v := random.Uint32() & (1<<width - 1)
				for bit := range width {
					packed[(i*width+bit)/8] |= byte(v>>bit&1) << ((i*width + bit) % 8)
				}
				want = append(want, v)
			}
			data = append(data, packed...)
		}
		whole := runs{data: data, width: width}
		got := make([]uint32, len(want))
		for at := 0; at < len(got); {
			n := min(1+random.IntN(50), len(got)-at)
			if !whole.fill(got[at : at+n]) {
				t.Fatalf("width %d: ends after %d of %d", width, at, len(got))
			}
			at += n
		}
		if !slices.Equal(got, want) {
			t.Fatalf("width %d: %v, want %v", width, got, want)
		}
		if whole.fill(make([]uint32, 1)) {
			t.Fatalf("width %d: there is one more than was written", width)
		}
		if all := slices.Repeat(want[:1], len(want)); width > 0 && width < 16 {
			if same := allEqual(data, int16(want[0]), int64(len(want))); same && !slices.Equal(all, want) {
				t.Fatalf("%v are all said to be %d", want, want[0])
			}
		}
	}
	for name, cut := range map[string]runs{"nothing": {width: 3}, "no value": {data: []byte{4},
		width: 3},
		"no group": {data: []byte{3}, width: 3}, "a run of none": {data: []byte{0, 1}, width: 3}} {
		if cut.fill(make([]uint32, 1)) {
			t.Errorf("%s: gives a number", name)
		}
	}
	if r := (runs{data: []byte{2<<1 | 1, 0b10101010}, width: 1}); !r.fill(make([]uint32, 8)) ||
		r.fill(make([]uint32, 1)) {
		t.Error("a last group that is cut short has as many numbers as are there")
	}
	for _, c := range []struct {
		data []byte
		n    int64
		want bool
	}{{[]byte{10 << 1, 1}, 10, true}, {[]byte{10 << 1, 1}, 9, true}, {[]byte{10 << 1, 1}, 11, false},
		{[]byte{10 << 1, 0}, 10, false}, {[]byte{1<<1 | 1, 0xff}, 8, false}, {nil, 1, false}} {
		if got := allEqual(c.data, 1, c.n); got != c.want {
			t.Errorf("%v: the first %d are 1: %v", c.data, c.n, got)
		}
	}
}
