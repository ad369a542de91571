package store

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"memroom/testenv"
)

// TestLooksRandom: at the edges of each rule. Words, paths and short texts are none.
func TestLooksRandom(t *testing.T) {
	for text, want := range map[string]bool{
		"ab12":                  false, // shorter than asked
		"ab12cd34":              true,
		"abcdefg1":              false, // one digit
		"abcdef12":              true,
		"1234567a":              false, // one letter
		"123456ab":              true,
		"aBCDxyz.":              true, // three capitals and three small letters, no digits
		"aBCdxyz.":              false,
		"abCDEFGH":              false, // two small letters
		"AbCdEfGh":              true,
		"Abcdefgh":              false, // the first capital begins a word
		"data/a12b34":           false,
		`data\a12b34`:           false,
		"a12b34 c56":            false,
		"a12b/34cd=":            true, // base64 ends so
		"correcthorsebattery":   false,
		"password_of_the_group": false,
	} {
		if got := looksRandom(text, 8); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
	for least, want := range map[int]bool{8: true, 9: false} {
		if got := looksRandom("ab12cd34", least); got != want {
			t.Errorf("8 characters where %d are asked: %v", least, got)
		}
	}
}

// TestLeadingNumber: as strconv reads what stands before the first other character.
func TestLeadingNumber(t *testing.T) {
	for _, text := range []string{"0", "7", "-7", "-0", "12,", "-12]", "", "-", "x",
		"123456789012345678", "-923372036854775807 ", "00042"} {
		value, width := leadingNumber([]byte(text))
		digits := text[:width]
		want, err := strconv.ParseInt(digits, 10, 64)
		if err != nil && digits != "" && digits != "-" || value != want {
			t.Errorf("%q: %d of %q, want %d (%v)", text, value, digits, want, err)
		}
		if width < len(text) && text[width] >= '0' && text[width] <= '9' {
			t.Errorf("%q: stopped before a digit, at %d", text, width)
		}
	}
}

// TestOffsetOf: reading from there misses no line of the moment or later, and begins at most a few
// lines before it, wherever the moment lies.
func TestOffsetOf(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 0))
	path := filepath.Join(t.TempDir(), "samples.jsonl")
	var text []byte
	var begins, moments []int64
	now := int64(1_700_000_000_000)
	for range 4000 {
		begins, moments = append(begins, int64(len(text))), append(moments, now)
		text = fmt.Appendf(text, `{"at_ms":%d,"pid":7,"step":%d,"allocated":%d}`+"\n", now,
			len(begins), random.IntN(1_000_000))
		now += 1 + random.Int64N(900)
	}
	testenv.Write(t, path, text)
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	s := &Series{name: stepsFile}
	unit, ok := extractorOf(stepsFile)(text, func(string, int64) {})
	if !ok || unit%moments[0] != 0 {
		t.Fatalf("the first line is of %d, read as %d, %v", moments[0], unit, ok)
	}
	unit /= moments[0] // a series may count in smaller units than its lines
	for try := range 300 {
		i := random.IntN(len(moments))
		if try < 3 {
			i = try // the first lines, where reading begins with the file
		}
		got := s.offsetOf(file, int64(len(text)), moments[i]*unit)
		if got > begins[i] {
			t.Errorf("line %d at %d is missed: reading begins at %d", i, begins[i], got)
		}
		if begins[i]-got > 3*4096 {
			t.Errorf("line %d at %d: reading begins %d bytes before it", i, begins[i], begins[i]-got)
		}
	}
}
