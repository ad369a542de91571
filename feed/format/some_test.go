package format

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"strings"
	"testing"

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
