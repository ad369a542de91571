package format

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"memroom/feed/convert"
	"memroom/feed/source"
	"memroom/feed/table"
)

// TestWhereARowEnds: at the first newline that is not inside quotes, wherever the quotes begin; 0
// where there is none yet.
func TestWhereARowEnds(t *testing.T) {
	for text, want := range map[string]int{
		"": 0, "a": 0, "a\n": 2, "\n": 1, "a,b\nc\n": 4,
		"\"a\nb\"\nc": 6, "x,\"a\nb\"\nc": 8, "\"a\n": 0, "\"a\nb\n": 0,
		"\"\"\nb": 3, "\"a\"\"\n\"\nb": 7, "a\"b\nc\"\n": 4, "a,\"\"\nb\n": 5,
		"\"a\",\"b\nc\"\n": 10,
	} {
		if got := csvEnd(',')([]byte(text)); got != want {
			t.Errorf("%q: the row ends at %d, want %d", text, got, want)
		}
	}
}

// TestRowsEndTheSameInPieces: whatever follows a row does not move its end.
func TestRowsEndTheSameInPieces(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	letters := []byte("a,\"\n\r")
	for range 3000 {
		text := make([]byte, random.IntN(14))
		for i := range text {
			text[i] = letters[random.IntN(len(letters))]
		}
		end := csvEnd(',')(text)
		for n := range text {
			// a quote at the very end may be the first of two
			if got := csvEnd(',')(text[:n]); got != 0 && got != end {
				t.Fatalf("%q ends at %d, its first %d bytes at %d", text, end, n, got)
			}
		}
		if end > 0 && text[end-1] != '\n' {
			t.Fatalf("%q ends at %d", text, end)
		}
	}
}

// TestAfterDictionary: a dictionary's page and a part of the file look like one piece, for every
// place and length.
func TestAfterDictionary(t *testing.T) {
	content := []byte("0123456789abcdefghijklmnopqrstuvwxyz")
	f := open(t, "x.bin", content)
	a := &afterDictionary{f: f, dictionary: 5, dictionarySize: 7, offset: 20}
	whole := append(bytes.Clone(content[5:12]), content[20:]...)
	for at := range len(whole) {
		for n := 1; n <= len(whole)+3; n++ {
			got := make([]byte, n)
			read, err := a.ReadAt(got, int64(at))
			want := whole[at:min(len(whole), at+n)]
			if read != len(want) || !bytes.Equal(got[:read], want) || (read < n) && err == nil {
				t.Fatalf("%d bytes at %d: %q, %v; want %q", n, at, got[:read], err, want)
			}
		}
	}
}

// TestMatrixOfLists: rows of one shape are laid side by side, one of another is named.
func TestMatrixOfLists(t *testing.T) {
	c := table.Column{Name: "x", Kind: table.Fixed, DType: "<i2", Shape: []int{3}, Width: 6}
	lists := table.Data{Ends: []int64{6, 12, 18}, Bytes: []byte("abcdefghijklmnopqr")}
	var into table.Data
	if err := matrix(&into, c, lists); err != nil || string(into.Fixed) != string(lists.Bytes) {
		t.Errorf("%q, %v", into.Fixed, err)
	}
	for ends, want := range map[[3]int64]string{{6, 12, 16}: "row 2 has 2 values",
		{4, 10, 16}: "row 0 has 2 values", {6, 14, 18}: "row 1 has 4 values",
		{6, 6, 12}: "row 1 has 0 values"} {
		lists.Ends = ends[:]
		err := matrix(&table.Data{}, c, lists)
		if err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "3 are noted") {
			t.Errorf("%v: %v, want %q", ends, err, want)
		}
	}
}

// TestIntegerTypes by hand: NumPy's names; none is text.
func TestIntegerTypes(t *testing.T) {
	for _, c := range []struct {
		bits   int
		signed bool
		want   string
	}{{8, true, "|i1 1"}, {8, false, "|u1 1"}, {16, true, "<i2 2"}, {32, false, "<u4 4"},
		{64, true, "<i8 8"}} {
		dtype, width, text := intType(c.bits, c.signed)
		if got := fmt.Sprint(dtype, " ", width); got != c.want || text {
			t.Errorf("%d bits, signed %v: %s, %v", c.bits, c.signed, got, text)
		}
	}
}

// TestQuotesThatAreNotClosed: only a quote at the beginning of a cell opens one, and two inside are
// one of the text.
func TestQuotesThatAreNotClosed(t *testing.T) {
	for row, want := range map[string]bool{"": false, "a,b": false, `"a","b"`: false, `"a`: true,
		`a,"b`: true, `a"b`: false, `a,b"`: false, `"a""`: true, `"a"""`: false, `"`: true,
		`""`: false, `"",""`: false, `"","`: true, `"a,b`: true, `"a",b"c`: false, `x""",y`: false,
		"\"a\nb\"": false, "\"a\nb": true} {
		if got := unclosed([]byte(row), ','); got != want {
			t.Errorf("%q: not closed %v", row, got)
		}
	}
}

// TestSomeRowsOfABlock: those that are wanted come out one behind the other, also the last one of a
// file without a newline; lines that are no rows are not counted.
func TestSomeRowsOfABlock(t *testing.T) {
	text := "r0\n\nr1\r\nr2\n\n\nr3"
	f := open(t, "x.txt", []byte(text))
	whole := Block{Rows: 4, Length: int64(len(text))}
	kind := rowKind{end: func(data []byte) int { return bytes.IndexByte(data, '\n') + 1 },
		blank: blank}
	for name, c := range map[string]struct {
		want []int32
		text string
	}{
		"none": {nil, ""}, "first": {[]int32{0}, "r0\n"}, "last": {[]int32{3}, "r3"},
		"some": {[]int32{1, 3}, "r1\r\nr3"}, "all": {[]int32{0, 1, 2, 3}, "r0\nr1\r\nr2\nr3"},
	} {
		data, b, err := readSome(f, whole, kind, c.want)
		if err != nil || string(data) != c.text || b.Rows != int64(len(c.want)) ||
			b.Length != int64(len(c.text)) {
			t.Errorf("%s: %q, %+v, %v", name, data, b, err)
		}
	}
	for name, c := range map[string]struct {
		rows int64
		want []int32
	}{"a row that is not there": {4, []int32{4}}, "fewer rows than counted": {5, []int32{0}},
		"more rows than counted": {3, []int32{0}}} {
		b := whole
		b.Rows = c.rows
		if _, _, err := readSome(f, b, kind, c.want); err != errSome {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestEscapesAsInJSON: what the standard library makes of a string, pairs of surrogates and halves
// of them included.
func TestEscapesAsInJSON(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	pieces := []string{"a", "é", "\\n", "\\t", "\\r", "\\b", "\\f", "\\\\", "\\\"", "\\/",
		"\\u00e9", "\\ud83d\\ude00", "\\ud83d", "\\ude00", "\\u0041", "\\uFFFF", "\\u20AC"}
	for range 4000 {
		text := ""
		for range random.IntN(6) {
			text += pieces[random.IntN(len(pieces))]
		}
		var want string
		if err := json.Unmarshal([]byte("\""+text+"\""), &want); err != nil {
			t.Fatal(text, err)
		}
		if got := string(jsonString([]byte("\""+text+"\""), nil)); got != want {
			t.Fatalf("%s: %q, want %q", text, got, want)
		}
	}
}

// TestRoundsOnce: where it is said that one rounding is as good as two, it is; zero is, and what is
// too small for a float32 of full precision is not.
func TestRoundsOnce(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	once := 0
	for range 20000 {
		text := fmt.Sprintf("%d.%de%d", random.IntN(100), random.IntN(1e9), random.IntN(80)-45)
		v, err := strconv.ParseFloat(text, 64)
		if err != nil || !roundsOnce(v) {
			continue
		}
		once++
		want, _ := strconv.ParseFloat(text, 32)
		if got := float32(v); got != float32(want) {
			t.Fatalf("%s: %v, want %v", text, got, float32(want))
		}
	}
	if once < 10000 {
		t.Errorf("only %d of 20000", once)
	}
	for v, want := range map[float64]bool{0: true, 1: true, -0.5: true, 0x1p-126: true,
		0x1p-127: false, -1e-40: false, 1 + 0x1p-24: false, 1 + 0x1p-24 + 0x1p-52: true} {
		if got := roundsOnce(v); got != want {
			t.Errorf("%v: %v", v, got)
		}
	}
}

// TestRowGroupsInParts: a row group of more than a block is read in parts of about the same length,
// which cover it without a gap; a small one is one block.
func TestRowGroupsInParts(t *testing.T) {
	const rows = 1 << 20
	column := []table.Column{table.FixedOf("x", "<f8", 8, "")}
	for _, n := range []int{1, 1000, rows, rows + 1, rows + rows/4} {
		path := filepath.Join(t.TempDir(), "x.parquet")
		out, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		w, err := convert.New(path, out, column, int64(n))
		if err == nil {
			err = w.Write(convert.Batch{Columns: column, Rows: n, Data: make([]byte, 8*n),
				Spans: []table.Span{{Offset: 0, Size: int64(8 * n)}}})
		}
		if err == nil {
			err = w.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		out.Close()
		f, err := source.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		ix, err := Scan(f, Options{})
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		next, least, most := int64(0), int64(n), int64(0)
		for _, b := range ix.Blocks {
			if b.First != next || b.Rows < 1 || b.Bytes != 8*b.Rows {
				t.Fatalf("%d rows: %+v, want one from %d on", n, b, next)
			}
			next, least, most = next+b.Rows, min(least, b.Rows), max(most, b.Rows)
		}
		parts := int64(len(ix.Blocks))
		if next != int64(n) || most*8 > groupBlock || most-least > parts ||
			(parts > 1) != (n*8 > groupBlock) {
			t.Errorf("%d rows: %d parts of %d to %d rows, up to %d", n, parts, least, most, next)
		}
	}
}

// TestBadRowsAndDelimiters: a bad row is left out where that is wished, and named where it is not;
// a delimiter is one character.
func TestBadRowsAndDelimiters(t *testing.T) {
	for name, text := range map[string]string{
		"x.jsonl": "{\"a\": 1}\n{\"a\": \n{\"a\": 3}\n", "x.csv": "a,b\n1,2\n3\n5,6\n"} {
		if _, _, err := readAll(open(t, name, []byte(text)), Options{}); err == nil ||
			!strings.Contains(err.Error(), "row 1") {
			t.Errorf("%s: %v", name, err)
		}
		_, rows, err := readAll(open(t, name, []byte(text)), Options{Skip: true})
		if err != nil || len(rows) != 2 {
			t.Errorf("%s: %d rows, %v", name, len(rows), err)
		}
	}
	for _, delimiter := range []string{"ab", ", "} {
		if _, err := Scan(open(t, "x.csv", []byte("a,b\n1,2\n")),
			Options{Delimiter: delimiter}); err == nil || !strings.Contains(err.Error(), delimiter) {
			t.Errorf("delimiter %q: %v", delimiter, err)
		}
	}
}
