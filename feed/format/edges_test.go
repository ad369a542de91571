package format

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

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
