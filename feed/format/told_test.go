package format

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"

	"memroom/feed/source"
)

// complaintAbout scans and reads a whole file, and returns the first thing that is wrong with it.
func complaintAbout(t *testing.T, name string, content []byte, o Options) string {
	t.Helper()
	if _, _, err := readAll(open(t, name, content), o); err != nil {
		return err.Error()
	}
	return ""
}

// numbersThenText is a column of numbers with a few words in it.
func numbersThenText(line, word string, numbers int) string {
	return strings.Repeat(line, numbers) + word
}

// TestWhatIsWrongIsSaid checks the errors for a wrong or a damaged file. They name the file, the
// place in it, and what helps.
func TestWhatIsWrongIsSaid(t *testing.T) {
	utf16 := "\xFF\xFEa\x00,\x00b\x00\n\x00"
	arrowFile := string(arrowOf(t, nil))
	stream := string(arrowOf(t, []ipc.Option{ipc.WithDictionaryDeltas(false)}))
	keys := strings.Builder{}
	for i := range 100_001 {
		fmt.Fprintf(&keys, "%q:0,", fmt.Sprint(i))
	}
	for _, c := range []struct {
		name, content string
		o             Options
		want          []string // "": nothing is wrong
	}{
		{"a.csv", "a,b\n1,x\n2,\"y\n3,z\n", Options{}, []string{"row 1 (offset 8)", "quote",
			"--skip-bad"}},
		{"a.csv", "a,b\n1,x\n2,\"y\n", Options{Skip: true}, nil},
		{"a.csv", "a,b\n1,x\n2\n", Options{}, []string{"row 1 (offset 8)", "has 1 cell for 2 columns"}},
		{"a.csv", "a,b\n1,x,,\n", Options{}, []string{"row 0 (offset 4)", "has 4 cells for 2 columns"}},
		{"a.csv", "a\n" + numbersThenText("5\n", "five\n", 100), Options{},
			[]string{"row 100 (offset 202)", `"five" is no number`, "1 are not", `types={"a": "str"}`}},
		{"a.csv", "a\n" + numbersThenText("5\n", "five\n", 99), Options{}, nil}, // a column of texts
		{"a.csv", "a\n" + numbersThenText("5\n", "five\nsix\n", 199), Options{}, nil},
		{"a.csv", "a\n" + numbersThenText("5\n", "five\n", 100), Options{Skip: true}, nil},
		{"a.csv", "a\n" + numbersThenText("5\n", "five\n", 100),
			Options{Types: map[string]string{"a": "str"}}, nil},
		{"a.csv", "a\n1\n" + strings.Repeat("x", 61) + "\n",
			Options{Types: map[string]string{"a": "int"}},
			[]string{"row 1", "\"" + strings.Repeat("x", 60) + "...\" is no <i8"}},
		{"a.csv", "a\n" + strings.Repeat("x", 60) + "\n", Options{Types: map[string]string{"a": "int"}},
			[]string{"row 0", "\"" + strings.Repeat("x", 60) + "\" is no <i8"}},
		{"a.csv", "a\n1\n", Options{Types: map[string]string{"b": "int"}}, []string{`"b"`, `["a"]`}},
		{"a.csv", "a\n1\n", Options{Types: map[string]string{"a": "long"}}, []string{`no type "long"`}},
		{"a.csv", "a,b\r1,2\r3,4\r", Options{}, []string{"carriage return", "tr '"}},
		{"a.txt", "a,b\r1,2\r3,4\r", Options{}, nil},
		{"a.csv", "a,b\r\n", Options{}, nil},
		{"a.csv", utf16, Options{}, []string{"expected csv", "UTF-16", "iconv"}},
		{"a.jsonl", "PAR1...", Options{}, []string{"expected jsonl", "Parquet", "--format parquet"}},
		{"a.txt", "PK\x03\x04...", Options{}, []string{"expected text", "ZIP"}},
		{"a.csv", "version https://git-lfs.github.com/spec/v1\n", Options{}, []string{"git lfs pull"}},
		{"a.parquet", "version https://git-lfs.github.com/spec/v1\n", Options{},
			[]string{"git lfs pull"}},
		{"a.npy", "\n  <!DOCTYPE HTML><body>", Options{}, []string{"web page"}},
		{"a.csv", "\xEF\xBB\xBF<HTML>\n", Options{}, []string{"web page"}},
		{"a.txt", "<html>\n", Options{}, nil},
		{"a.txt", "version https://git-lfs.github.com/spec/v1\n", Options{}, []string{"git lfs pull"}},
		{"a.arrow", "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>NoSuchKey</Code>",
			Options{},
			[]string{"object store"}},
		{"a.parquet", "", Options{}, []string{"a.parquet is empty"}},
		{"a.arrow", "", Options{}, []string{"is empty"}}, {"a.npy", "", Options{}, []string{"is empty"}},
		{"a.tar", "", Options{}, []string{"is empty"}}, {"a.csv", "", Options{}, nil},
		{"a.jsonl", "", Options{}, nil}, {"a.txt", "", Options{}, nil}, {"a.tfrecord", "", Options{},
			nil},
		{"a.npz", "x", Options{}, []string{"a.npz", "numpy.save"}},
		{"a.csv.xz", "x", Options{}, []string{"gzip or zstd"}},
		{"a.JPG", "x", Options{}, []string{"images are read by folders"}},
		{"a.unknown", "x", Options{}, []string{"--format"}},
		{"a.csv", "x", Options{Format: "xml"}, []string{`no format "xml"`}},

		{"a.jsonl", "[\n {\"a\": 1}]\n", Options{}, []string{"one JSON list", "jq -c '.[]'"}},
		{"a.jsonl", "\xEF\xBB\xBF {\r\n \"a\": 1}\n", Options{}, []string{"several lines", "jq -c ."}},
		{"a.jsonl", "{\"a\": 1} {\"a\": 2}\n", Options{}, []string{"row 0", "more than one JSON object"}},
		{"a.jsonl", "{\"a\": 1}\n{a: 1}\n", Options{}, []string{"row 1 (offset 9)",
			"key should begin at byte 1"}},
		{"a.jsonl", "{\"a\n", Options{}, []string{"ends inside a string"}},
		{"a.jsonl", "{\"a\" 1}\n", Options{}, []string{"colon should be at byte 5"}},
		{"a.jsonl", "{\"a\": }\n", Options{}, []string{"value at byte 6"}},
		{"a.jsonl", "{\"a\": [1, {\"]\": 2}\n", Options{}, []string{"value at byte 6"}},
		{"a.jsonl", "{\"a\": 1; \"b\": 2}\n", Options{},
			[]string{"byte 7 of the line should be a comma"}},
		{"a.jsonl", "{\"a\": 1, }\n", Options{}, []string{"key should begin at byte 9"}},
		{"a.jsonl", "7\n", Options{}, []string{"row 0", "not a JSON object"}},
		{"a.jsonl", numbersThenText("{\"a\":5}\n", "{\"a\":\"five\"}\n", 100), Options{},
			[]string{"row 100 (offset 800)", "is no number", `types={"a": "str"}`}},
		{"a.jsonl", numbersThenText("{\"a\":5}\n", "{\"a\":\"five\"}\n", 100), Options{Skip: true}, nil},
		{"a.jsonl", numbersThenText("{\"a\":5}\n", "{\"a\":\"five\"}\n", 99), Options{}, nil},
		{"a.jsonl", "{\"a\":\"x\"}\n", Options{Types: map[string]string{"a": "int8"}}, []string{"row 0",
			"is no |i1"}},
		{"a.jsonl", "{\"a\":300}\n", Options{Types: map[string]string{"a": "int8"}}, []string{"300",
			"is no |i1"}},
		{"a.jsonl", "{\"a\":1}\n", Options{Types: map[string]string{"a": "bool"}}, []string{"is no |b1"}},
		{"a.jsonl", "{\"a\":1}\n", Options{Types: map[string]string{"a": "long"}},
			[]string{`no type "long"`}},
		{"a.jsonl", "{" + strings.TrimSuffix(keys.String(), ",") + "}\n", Options{}, []string{"100,000"}},

		{"a.npy", string(npyFile("<f4", "1, 1048576, 1048576", false, nil)), Options{},
			[]string{"1 TiB"}},
		{"a.npy", string(npyFile("<q9999999999", "2,", false, nil)), Options{}, []string{"dtype",
			"float32"}},
		{"a.npy", "\x93NUMPY\x01\x00\xff\xff{}", Options{}, []string{"header is cut off"}},
		{"a.npy", strings.Replace(string(npyFile("<f4", "2,", false, make([]byte, 8))), "'<f4'",
			"[('a', '<f4')]", 1),
			Options{}, []string{"arrays of records"}},

		{"a.arrow", "FEA1....", Options{}, []string{"Feather", "version 2"}},
		{"a.arrow", "ARR", Options{}, []string{"cut off"}},
		{"a.arrow", arrowFile[:len(arrowFile)-1], Options{},
			[]string{"the end of the Arrow file is missing"}},
		{"a.arrow", "not an Arrow file at all", Options{}, []string{"offset 0", "neither an Arrow file"}},
		{"a.arrow", stream[:len(stream)-8], Options{}, nil}, // a stream that was not ended
		{"a.arrow", stream[:len(stream)-12], Options{}, []string{"cut off"}},
		{"a.arrow", stream[:40], Options{}, []string{"cut off"}},
	} {
		said := complaintAbout(t, c.name, []byte(c.content), c.o)
		if len(c.want) == 0 && said != "" {
			t.Errorf("%s, %.40q, %+v: %s", c.name, c.content, c.o, said)
		}
		for _, want := range c.want {
			if !strings.Contains(said, want) {
				t.Errorf("%s, %.40q, %+v: %q does not say %q", c.name, c.content, c.o, said, want)
			}
		}
	}
}

// arrowOf writes three rows of numbers and texts: a file, or with options a stream.
func arrowOf(t *testing.T, options []ipc.Option) []byte {
	t.Helper()
	record := nestedRecord(t, nestedColumn{kind: arrow.ListOf(arrow.PrimitiveTypes.Int64),
		rows: []string{"[1, 2]", "[]", "[3]"}}, 3)
	var out bytes.Buffer
	var w interface {
		Write(arrow.RecordBatch) error
		Close() error
	}
	if options == nil {
		var err error
		if w, err = ipc.NewFileWriter(&out, ipc.WithSchema(record.Schema())); err != nil {
			t.Fatal(err)
		}
	} else {
		w = ipc.NewWriter(&out, append(options, ipc.WithSchema(record.Schema()))...)
	}
	if err := errors.Join(w.Write(record), w.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestRowsAroundBadOnes: with skip_bad the rows before and after a bad one stay, and what is left
// out is counted.
func TestRowsAroundBadOnes(t *testing.T) {
	for _, c := range []struct {
		name, content string
		rows          string
		skipped       int64
	}{
		{"a.csv", "a,b\n1,x\n2,y,z\n3,w\n", "[[1 x] [3 w]]", 1},
		{"a.csv", "a,b\n1,x\n2,\"y\n3,w\n", "[[1 x]]", 1},
		{"a.csv", "a,b\n1,\"x\ny\"\n\n2\n3,w", "[[1 x\ny] [3 w]]", 1},
		{"a.csv", "a\n" + numbersThenText("5\n", "five\n6\n", 150), "", 1},
		{"a.jsonl", "{\"a\": 1}\n{\"a\"\n\n{\"a\": 3}\n", "[[1] [3]]", 1},
		{"a.jsonl", "{\"a\": 1, \"b\": \"x\"}\n{}\n", "[[1 x] [NaN missing]]", 0},
		{"a.jsonl", "{ }\n{\"a\": true}\n", "[[NaN] [1]]", 0},
		{"a.jsonl", numbersThenText("{\"a\":5}\n", "{\"a\":\"five\"}\n{\"a\":6}", 150), "", 1},
	} {
		f := open(t, c.name, []byte(c.content))
		ix, err := Scan(f, Options{Skip: true})
		if err != nil {
			t.Errorf("%s %q: %v", c.name, c.content, err)
			continue
		}
		_, rows, _ := decoded(t, f, Options{Skip: true})
		got := fmt.Sprint(rows)
		if c.rows == "" { // 150 times 5, then 6
			c.rows = fmt.Sprint(append(repeatedRow("5", 150), []string{"6"}))
		}
		if got != c.rows || ix.Skipped != c.skipped {
			t.Errorf("%s %.60q: %s, %d left out; want %s, %d", c.name, c.content, got, ix.Skipped,
				c.rows, c.skipped)
		}
	}
}

func repeatedRow(cell string, n int) (rows [][]string) {
	for range n {
		rows = append(rows, []string{cell})
	}
	return rows
}

// manyKinds returns a file of some rows in each format.
func manyKinds(t *testing.T) map[string][]byte {
	t.Helper()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	var records, lines, objects, texts []byte
	for i := range 40 {
		content := []byte(strings.Repeat("t", i))
		header := &tar.Header{Name: fmt.Sprintf("%02d.txt", i), Size: int64(i), Mode: 0o600}
		err := w.WriteHeader(header)
		if err == nil {
			_, err = w.Write(content)
		}
		if err != nil {
			t.Fatal(err)
		}
		records = append(records, record(example(map[string][]byte{
			"a": message(3, message(1, []byte{byte(i)}))}))...)
		lines = fmt.Appendf(lines, "%d,%s\n", i, content)
		objects = fmt.Appendf(objects, "{\"a\": %d, \"b\": %q}\n", i, content)
		texts = fmt.Appendf(texts, "line %d\n", i)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	packed := nestedRecord(t, nestedColumn{kind: arrow.BinaryTypes.String, rows: []string{`"abc"`}},
		400)
	var compressed bytes.Buffer
	arrows := ipc.NewWriter(&compressed, ipc.WithSchema(packed.Schema()), ipc.WithLZ4())
	if err := errors.Join(arrows.Write(packed), arrows.Close()); err != nil {
		t.Fatal(err)
	}
	return map[string][]byte{"a.tar": archive.Bytes(), "a.tfrecord": records,
		"a.csv": append([]byte("a,b\n"), lines...), "a.jsonl": objects, "a.txt": texts,
		"a.npy":       npyFile("<i4", "50, 2", false, make([]byte, 400)),
		"fortran.npy": npyFile("<i4", "50, 2", true, make([]byte, 400)),
		"a.arrow":     compressed.Bytes(), "mapped.arrow": arrowOf(t, nil),
		"a.parquet": writeParquet(t, leafColumns()["i64"], 500, 200, false, nil)}
}

// decodeAll opens a file with an index made before, and reads it.
func decodeAll(f source.File, ix *Index) error {
	d, err := Open(f, ix, Options{})
	if err != nil {
		return err
	}
	defer d.Close()
	for _, b := range ix.Blocks {
		if _, err := d.Decode(b, Columns(ix.Fields)); err != nil {
			return err
		}
	}
	return nil
}

// TestFilesThatChangeUnderAStream checks that a file that is cut off after it was indexed, or
// written anew with other rows, leads to an error that names it. It never leads to wrong rows or
// ends the server.
func TestFilesThatChangeUnderAStream(t *testing.T) {
	for name, content := range manyKinds(t) {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := source.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		ix, err := Scan(f, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := decodeAll(f, ix); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := os.Truncate(path, int64(len(content)/2)); err != nil {
			t.Fatal(err)
		}
		err = decodeAll(f, ix)
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s, cut off: %v", name, err)
		} else if said := err.Error(); name != "a.parquet" && name != "mapped.arrow" &&
			!strings.Contains(said, "the file ends before it should") {
			t.Errorf("%s, cut off: %v", name, err)
		}
		f.Close()
	}
	for name, c := range map[string][2]string{
		"a.csv":   {"a,b\n10,x\n20,y\n", "a,b\n1,x\n2,\n3,\n"},
		"b.csv":   {"a,b\n1,x\n2,\n3,\n", "a,b\n10,x\n20,y\n"},
		"a.jsonl": {"{\"a\":1}\n{\"a\":2}\n", "{\"a\":1        }\n"},
		"b.jsonl": {"{\"a\":1        }\n", "{\"a\":1}\n{\"a\":2}\n"},
	} {
		f := open(t, name, []byte(c[0]))
		ix, err := Scan(f, Options{})
		if err != nil {
			t.Fatal(err)
		}
		err = decodeAll(open(t, name, []byte(c[1])), ix)
		if err == nil || !strings.Contains(err.Error(), "the file has changed") ||
			!strings.Contains(err.Error(), name) {
			t.Errorf("%s with other rows: %v", name, err)
		}
	}
}

// TestDescriptionsThatLeadOutside: whatever stands in the description of an Arrow message, nothing
// outside of it is looked at.
func TestDescriptionsThatLeadOutside(t *testing.T) {
	content := manyKinds(t)["a.arrow"]
	messages, err := findMessages(open(t, "a.arrow", content), 0)
	if err != nil {
		t.Fatal(err)
	}
	m := messages[len(messages)-1]
	meta := content[m.Meta : m.Meta+m.Size]
	places, codec := bufferPlaces(meta, m.Kind)
	if len(places) != 3 || codec != codecLZ4 {
		t.Fatalf("buffers at %v, codec %d", places, codec)
	}
	for n := range meta { // cut off anywhere
		checkPlaces(t, meta[:n], m)
	}
	for at := 0; at+4 <= len(meta); at++ { // any offset leads elsewhere
		for _, v := range []uint32{0, 1, 3, uint32(len(meta)) - 17, uint32(len(meta)), 1 << 31,
			1<<32 - 1} {
			other := bytes.Clone(meta)
			binary.LittleEndian.PutUint32(other[at:], v)
			checkPlaces(t, other, m)
		}
	}
}

func checkPlaces(t *testing.T, meta []byte, m Message) {
	t.Helper()
	defer func() {
		if r := recover(); r != nil {
			t.Fatalf("%d bytes: %v", len(meta), r)
		}
	}()
	places, _ := bufferPlaces(meta, m.Kind)
	for _, p := range places {
		offset, length, err := bufferAt(meta, p, m)
		if err == nil && (offset < 0 || length < 0 || offset+length > m.Data) {
			t.Fatalf("a buffer of %d bytes at %d of %d", length, offset, m.Data)
		}
	}
}
