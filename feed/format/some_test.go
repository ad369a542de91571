package format

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"memroom/feed/table"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/klauspost/compress/zstd"
)

// TestSomeRowsAreThoseOfAll: whichever rows of a block are asked for.
func TestSomeRowsAreThoseOfAll(t *testing.T) {
	const rows = 200
	var csv, lines strings.Builder
	csv.WriteString("a,b,c\n")
	for i := range rows {
		fmt.Fprintf(&csv, "%d,\"text, %d\",%v\n", i, i, float64(i)/4)
		fmt.Fprintf(&lines, `{"a": %d, "b": "text %d", "c": [%d, 1]}`+"\n", i, i, i)
		if i%50 == 7 {
			csv.WriteString("\n")
			lines.WriteString("  \n")
		}
	}
	list := nestedColumns()["missing lists"]
	for name, content := range map[string][]byte{"x.csv": []byte(csv.String()),
		"x.jsonl": []byte(lines.String()),
		"x.parquet": listsInParquet(t, list, parquet.Types.Int32, 1, rows,
			[]parquet.WriterProperty{parquet.WithDataPageSize(200), parquet.WithBatchSize(16)})} {
		f := open(t, name, content)
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
		all, err := d.Decode(ix.Blocks[0], columns)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range [][]int32{{0}, {199}, {0, 1, 2}, {6, 7, 8, 9}, {3, 50, 57, 58, 199}, {}} {
			some, err := d.(Sparse).DecodeSome(ix.Blocks[0], want, columns)
			if err != nil || some.Count != len(want) {
				t.Fatalf("%s %v: %v, %v", name, want, some, err)
			}
			for i, row := range want {
				for k, c := range columns {
					got, expected := shown(t, c, &some.Data[k], i), shown(t, c, &all.Data[k], int(row))
					if got != expected {
						t.Errorf("%s: row %d, column %s is %q, want %q", name, row, c.Name, got, expected)
					}
				}
			}
		}
		if name != "x.parquet" {
			if _, err := d.(Sparse).DecodeSome(ix.Blocks[0], []int32{rows}, columns); err == nil {
				t.Errorf("%s: a row that is not there was read", name)
			}
		}
	}
}

// TestBadRowsAreLeftOut: with skip_bad they are counted; without it the error names file, row and
// offset.
func TestBadRowsAreLeftOut(t *testing.T) {
	good := strings.Repeat("1,2\n", 30)
	for name, c := range map[string]struct {
		content string
		row     string
	}{
		"x.csv":   {"a,b\n" + good + "3,4,5\n" + good, "row 30 (offset 124)"},
		"x.jsonl": {strings.Repeat("{\"a\":1}\n", 30) + "{\"a\":\n" + "{\"a\":2}\n", "row 30 (offset 240)"},
	} {
		_, _, err := readAll(open(t, name, []byte(c.content)), Options{})
		if err == nil || !strings.Contains(err.Error(), c.row) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v, want %s", name, err, c.row)
		}
		f := open(t, name, []byte(c.content))
		ix, err := Scan(f, Options{Skip: true})
		if err != nil {
			t.Fatal(err)
		}
		rows := int64(0)
		for _, b := range ix.Blocks {
			rows += b.Rows
		}
		if want := int64(strings.Count(c.content, "\n") - 1); ix.Skipped != 1 || name == "x.csv" &&
			rows != want-1 || name == "x.jsonl" && rows != want {
			t.Errorf("%s: %d rows and %d skipped", name, rows, ix.Skipped)
		}
	}
}

// TestPackedFilesByTheirContent: the name may say nothing, but nothing else either.
func TestPackedFilesByTheirContent(t *testing.T) {
	plain := []byte("a,b\n1,2\n")
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	_, _ = w.Write(plain)
	_ = w.Close()
	encoder, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	standard := encoder.EncodeAll(plain, nil)
	skippable := append([]byte("\x5a\x2a\x4d\x18\x00\x00\x00\x00"), standard...)
	for _, c := range []struct {
		name    string
		content []byte
		want    string
	}{
		{"x.csv", plain, ""}, {"x.csv.gz", zipped.Bytes(), Gzip}, {"x.csv", zipped.Bytes(), Gzip},
		{"x.csv.zst", standard, Zstd}, {"x.jsonl", standard, Zstd}, {"x.csv", skippable, Zstd},
		{"x.csv.gz", standard, Zstd}, {"x.parquet", zipped.Bytes(), ""}, {"x.unknown", zipped.Bytes(), ""},
		{"x.csv.gz", plain, "error"}, {"x.csv.zst", plain, "error"}, {"x.csv.gz", nil, ""},
		{"x.tfrecord", zipped.Bytes(), Gzip}, {"x.tfrecord", record([]byte("abc")), ""},
	} {
		got, err := Packed(open(t, c.name, c.content), Options{})
		if err != nil {
			got = "error"
		}
		if got != c.want {
			t.Errorf("%s of %.4q: %q %v, want %q", c.name, c.content, got, err, c.want)
		}
		if err != nil && !strings.Contains(err.Error(), c.name) {
			t.Errorf("the reason does not name the file: %v", err)
		}
	}
}

// TestBlocksThatBeginInsideAPage: a part of a row group has the rows that the whole has there, also
// where some before it are missing.
func TestBlocksThatBeginInsideAPage(t *testing.T) {
	const rows = 300
	for name, c := range leafColumns() {
		for _, dictionary := range []bool{false, true} {
			f := open(t, "known.parquet", writeParquet(t, c, rows, rows, true,
				[]parquet.WriterProperty{parquet.WithDictionaryDefault(dictionary)}))
			ix, err := Scan(f, Options{})
			if err != nil {
				t.Fatal(err)
			}
			d, err := Open(f, ix, Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			columns := Columns(ix.Fields)
			all, err := d.Decode(ix.Blocks[0], columns)
			if err != nil {
				t.Fatal(err)
			}
			for _, part := range []struct{ first, rows int64 }{{1, 1}, {3, 20}, {13, 40}, {270, 30}} {
				block := ix.Blocks[0]
				block.First, block.Rows = block.First+part.first, part.rows
				some, err := d.Decode(block, columns)
				if err != nil || some.Count != int(part.rows) {
					t.Fatalf("%s %+v: %v, %v", name, part, some, err)
				}
				for i := range int(part.rows) {
					row := int(part.first) + i
					got := shown(t, columns[0], &some.Data[0], i)
					if want := shown(t, columns[0], &all.Data[0], row); got != want {
						t.Fatalf("%s, dictionary %v: row %d is %q, want %q", name, dictionary, row, got,
							want)
					}
				}
			}
		}
	}
}

// TestWhereARecordEnds: known answers, and headers that are none.
func TestWhereARecordEnds(t *testing.T) {
	header := func(n uint64) []byte {
		head := binary.LittleEndian.AppendUint64(nil, n)
		return binary.LittleEndian.AppendUint32(head, maskedCRC(head))
	}
	whole := append(header(5), make([]byte, 5+recordTail)...)
	damaged := bytes.Clone(whole)
	damaged[9]++
	for name, c := range map[string]struct {
		data []byte
		want int
	}{
		"whole":               {whole, recordHead + 5 + recordTail},
		"whole, and a second": {append(bytes.Clone(whole), whole...), recordHead + 5 + recordTail},
		"empty record":        {append(header(0), make([]byte, recordTail)...), recordHead + recordTail},
		"cut off":             {whole[:len(whole)-1], 0},
		"header cut off":      {whole[:recordHead-1], 0},
		"damaged header":      {damaged, len(damaged)},
		"too long":            {header(longest + 1), recordHead},
		"as long as allowed":  {header(longest), 0},
		"longer than any":     {header(1<<64 - 1), recordHead},
	} {
		if got := recordEnd(c.data); got != c.want {
			t.Errorf("%s: ends at %d, want %d", name, got, c.want)
		}
	}
}

// TestWholeNumbers: texts that are one of at most 64 bits, and those that only uint64 holds.
func TestWholeNumbers(t *testing.T) {
	for text, want := range map[string][2]bool{
		"0": {true, false}, "-1": {true, false}, "+7": {true, false}, " 12 ": {true, false},
		"": {}, "-": {}, "+": {}, "1.0": {}, "1e3": {}, "x": {}, "1 2": {}, "--1": {},
		"9223372036854775807": {true, false}, "9223372036854775808": {false, true},
		"-9223372036854775808": {true, false}, "-9223372036854775809": {},
		"18446744073709551615": {false, true}, "18446744073709551616": {},
		"99999999999999999999": {}, "123456789012345678901234567890": {},
	} {
		if got := [2]bool{isInt([]byte(text)), isLarge([]byte(text))}; got != want {
			t.Errorf("%q: whole, large %v, want %v", text, got, want)
		}
	}
}

// TestSizesOfDictionaries: a column of a dictionary is taken for as many mean values as it has
// rows; one without values, for its rows alone.
func TestSizesOfDictionaries(t *testing.T) {
	of := &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int32,
		ValueType: arrow.BinaryTypes.String}
	column := func(values ...string) arrow.Array {
		b := array.NewDictionaryBuilder(memory.DefaultAllocator, of)
		for _, v := range values {
			if err := b.AppendValueFromString(v); err != nil {
				t.Fatal(err)
			}
		}
		b.AppendNull()
		return b.NewArray()
	}
	text := Field{Column: table.Column{Kind: table.Text}}
	if got := arrowSize(text, column()); got != 16 {
		t.Errorf("a row without a value takes %d bytes, want 16", got)
	}
	few, many := arrowSize(text, column("abc")), arrowSize(text, column("abc", "abc", "abc", "abc"))
	if many-16*5 <= few-16*2 {
		t.Errorf("five rows take %d bytes, two %d", many, few)
	}
}

// TestShapesOfArrays checks which shapes the header of an .npy file may hold, and what is not a
// shape.
func TestShapesOfArrays(t *testing.T) {
	header := func(shape string) string {
		return "{'descr': '<f4', 'fortran_order': False, 'shape': (" + shape + "), }"
	}
	for shape, want := range map[string]string{"5,": "5 []", "5, 2": "5 [2]", "0, 3": "0 [3]",
		"281474976710656,": "281474976710656 []"} {
		column, rows, err := npyHeader(header(shape))
		if got := fmt.Sprint(rows, " ", column.Shape); err != nil || got != want {
			t.Errorf("(%s): %s, %v; want %s", shape, got, err, want)
		}
	}
	for _, shape := range []string{"-1,", "281474976710657,", "99999999999999999999,", "1e3,", "a",
		"2, -3"} {
		if _, _, err := npyHeader(header(shape)); err == nil ||
			!strings.Contains(err.Error(), "is not a shape") {
			t.Errorf("(%s): %v", shape, err)
		}
	}
	if _, _, err := npyHeader(header("")); err == nil ||
		!strings.Contains(err.Error(), "no dimension") {
		t.Errorf("(): %v", err)
	}
}
