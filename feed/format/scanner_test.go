package format

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"memroom/feed/source"
	"memroom/feed/table"
)

func open(t testing.TB, name string, content []byte) source.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := source.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// readAll decodes every block of a file as text columns where it can.
func readAll(f source.File, o Options) ([]Field, [][]string, error) {
	ix, err := Scan(f, o)
	if err != nil {
		return nil, nil, err
	}
	columns := Columns(ix.Fields)
	d, err := Open(f, ix, o)
	if err != nil {
		return nil, nil, err
	}
	var rows [][]string
	for _, b := range ix.Blocks {
		got, err := d.Decode(b, columns)
		if err != nil {
			return nil, nil, err
		}
		for i := range got.Count {
			row := make([]string, len(columns))
			for c := range columns {
				if columns[c].Kind != table.Text {
					continue
				}
				start := int64(0)
				if i > 0 {
					start = got.Data[c].Ends[i-1]
				}
				row[c] = string(got.Data[c].Bytes[start:got.Data[c].Ends[i]])
			}
			rows = append(rows, row)
		}
	}
	return ix.Fields, rows, nil
}

// spaceLine finds a line of nothing but space.
var spaceLine = regexp.MustCompile(`(?m)^[ \t]+\r?$`)

// FuzzCSV holds the scanner against the standard library's reader on files that both accept.
func FuzzCSV(f *testing.F) {
	f.Add([]byte("a,b\n1,2\n"))
	f.Add([]byte("a,b\n\"x\"\"y\",\"line\nbreak\"\n,\n"))
	f.Add([]byte("a\r\n\"q\"\r\n\r\nz"))
	f.Fuzz(func(t *testing.T, content []byte) {
		if len(content) > 1<<16 {
			return
		}
		file := open(t, "a.csv", content)
		_, rows, err := readAll(file, Options{Delimiter: ",", NoHeader: true})
		if err != nil {
			return // what matters is that it neither panics nor hangs
		}
		text := strings.TrimPrefix(string(content), "\xEF\xBB\xBF")
		if strings.Contains(strings.ReplaceAll(text, "\r\n", "\n"), "\r") {
			return // the library treats a lone carriage return in its own way
		}
		if spaceLine.MatchString(text) {
			return // no row for us and for pandas, a row for the library
		}
		r := csv.NewReader(strings.NewReader(text))
		want, err := r.ReadAll()
		if err != nil {
			return
		}
		if len(rows) != len(want) {
			t.Fatalf("%d rows, encoding/csv has %d: %q", len(rows), len(want), content)
		}
	})
}

func TestCSVTextsEqualTheLibrarys(t *testing.T) {
	content := "k,v\nx1,\"a,\"\"b\"\"\nc\"\nx2,plain\nx3,5\" disk\n"
	_, rows, err := readAll(open(t, "a.csv", []byte(content)), Options{})
	if err != nil {
		t.Fatal(err)
	}
	r := csv.NewReader(strings.NewReader(content))
	r.LazyQuotes = true
	want, err := r.ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	for i, row := range rows {
		if row[0] != want[i+1][0] || row[1] != want[i+1][1] {
			t.Errorf("row %d: %q, encoding/csv has %q", i, row, want[i+1])
		}
	}
}

// FuzzJSONL holds the scanner against the standard library: a line that the library reads as an
// object must be read, with the same texts.
func FuzzJSONL(f *testing.F) {
	f.Add([]byte(`{"a": "x\u00e9\n", "b": [1, {"c": "}"}], "a": "y"}`))
	f.Add([]byte(`{"k": "\ud83d\ude00"}`))
	f.Add([]byte(`{`))
	f.Fuzz(func(t *testing.T, line []byte) {
		if len(line) > 1<<16 || bytes.ContainsAny(line, "\n\r") {
			return
		}
		var want map[string]any
		lawful := json.Unmarshal(line, &want) == nil && want != nil
		fields, rows, err := readAll(open(t, "a.jsonl", line), Options{})
		if lawful && err != nil {
			t.Fatalf("%q is JSON: %v", line, err)
		}
		if !lawful || len(rows) == 0 {
			return
		}
		for i, field := range fields {
			text, isText := want[field.Name].(string)
			if isText && field.Kind == table.Text && field.From == "string" && rows[0][i] != text &&
				!strings.ContainsRune(text, '\uFFFD') {
				t.Errorf("%q: key %q is %q, encoding/json has %q", line, field.Name, rows[0][i], text)
			}
		}
	})
}

// FuzzNumber holds the quick reading of numbers against the standard library's.
func FuzzNumber(f *testing.F) {
	for _, s := range []string{"0", "-0.0", "1.5", "123456789012345678", "0.1", ".5", "5.", "1e5",
		"9007199254740993",
		"1234567890.12345678901234567890", "-", ".", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, next, ok := fastFloat([]byte(s), 0, ',')
		if !ok {
			return
		}
		want, err := strconv.ParseFloat(s[:min(next-1, len(s))], 64)
		if err != nil || math.Float64bits(got) != math.Float64bits(want) {
			t.Errorf("%q: %v, strconv has %v (%v)", s, got, want, err)
		}
	})
}

func TestHostileFilesAreErrors(t *testing.T) {
	for name, content := range map[string]string{
		"a.npy": "\x93NUMPY\x01\x00\x76\x00{'descr': '<f8', 'fortran_order': False, " +
			"'shape': (99999999999,), }",
		"b.npy":      "\x93NUMPY\x02\x00\xff\xff\xff\xff",
		"c.npy":      "not numpy at all",
		"a.parquet":  "PAR1garbagePAR1",
		"b.parquet":  "PAR1\xff\xff\xff\x7fPAR1",
		"a.arrow":    "ARROW1\x00\x00garbage",
		"b.arrow":    "\xff\xff\xff\xff\xff\xff\xff\x7f",
		"a.tfrecord": "\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00",
		"b.tfrecord": "short",
		"a.tar":      strings.Repeat("x", 1024),
		"a.jsonl":    "[1, 2]\n",
	} {
		t.Run(name, func(t *testing.T) {
			f := open(t, name, []byte(content))
			if _, _, err := readAll(f, Options{}); err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("error %v, which should name the file", err)
			}
		})
	}
}

// TestNumbersAreReadExactly holds the quick reader of numbers against the standard library's.
func TestNumbersAreReadExactly(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	forms := []func() string{
		func() string { return strconv.FormatFloat(random.NormFloat64(), 'g', -1, 64) },
		func() string { return strconv.FormatFloat(random.NormFloat64(), 'f', random.IntN(19), 64) },
		func() string { return strconv.FormatFloat(float64(float32(random.NormFloat64())), 'g', -1, 32) },
		func() string { return strconv.FormatUint(random.Uint64(), 10) },
		func() string { // any digits, any power
			return fmt.Sprintf("%d.%de%d", random.Int64N(1e9), random.Int64N(1e10), random.IntN(200)-100)
		},
		func() string { // the middle of two floats, and its neighbours
			mantissa := (1<<53 + uint64(random.Int64N(1<<53))) & (1<<53 - 1)
			return strconv.FormatUint(2*(1<<53|mantissa)+1, 10)
		},
		func() string { return strconv.FormatFloat(math.Float64frombits(random.Uint64()), 'e', 17, 64) },
	}
	quick := 0
	for i := range 200_000 {
		text := forms[i%len(forms)]()
		want, err := strconv.ParseFloat(text, 64)
		if err != nil {
			continue
		}
		got, _, ok := fastFloat([]byte(text), 0, ',')
		if ok && math.Float64bits(got) != math.Float64bits(want) {
			t.Fatalf("%s is read as %v, it is %v", text, got, want)
		}
		if ok {
			quick++
		}
	}
	if quick < 120_000 {
		t.Errorf("only %d of 200,000 numbers are read quickly", quick)
	}
}

func TestLinesOfSpaceBeforeTheHeader(t *testing.T) {
	fields, rows, err := readAll(open(t, "a.csv", []byte("  \n\na,b\n1,2\n \n3,4\n")), Options{})
	if err != nil || len(fields) != 2 || fields[0].Name != "a" || len(rows) != 2 {
		t.Fatalf("%v %v %v", fields, rows, err)
	}
	_, rows, err = readAll(open(t, "b.csv", []byte(" ")), Options{NoHeader: true})
	if err == nil && len(rows) > 0 {
		t.Fatalf("a file of one space has rows: %v", rows)
	}
}
