package format

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"memroom/feed/table"
)

// cells are values as files have them, good and bad.
var cells = []string{
	"1", "-3", "0", "0.25", "-1.5e3", "1e-7", "3.14159265358979", "0.028422242",
	"123456789012345678", "12345678901234567890", ".5", "1.", "-0.0", "", "NA", "nan",
	" 7 ", "x", "tr ue", "1e999", "4.9406564584124654e-324", "1.00000017881393432617",
	"9007199254740993", "\"q\"", "\"a,b\"", "\"a\"\"b\"", "a\"b", "\"two\nlines\"", "--1",
	"1-", "+5", "inf", "1_0", "0x10", "\r", "ä", "-",
}

func randomCSV(r *rand.Rand, columns int) string {
	var text strings.Builder
	names := make([]string, columns)
	for i := range names {
		names[i] = fmt.Sprint("c", i)
	}
	fmt.Fprintln(&text, strings.Join(names, ","))
	end := []string{"\n", "\r\n"}[r.IntN(2)]
	odd := r.IntN(3) // how often a cell is no plain number
	for range 1 + r.IntN(40) {
		n := columns
		if r.IntN(60) == 0 {
			n += r.IntN(3) - 1
		}
		row := make([]string, n)
		for i := range row {
			row[i] = fmt.Sprintf("%.*f", r.IntN(12), r.NormFloat64()*math.Pow(10, float64(r.IntN(6))))
			if r.IntN(12) < odd {
				row[i] = cells[r.IntN(len(cells))]
			}
		}
		text.WriteString(strings.Join(row, ",") + end)
		if r.IntN(20) == 0 {
			text.WriteString(end)
		}
	}
	return strings.TrimSuffix(text.String(), []string{"", end}[r.IntN(2)])
}

var kinds = []string{"float64", "float32", "int64", "int16", "str", "bool"}

// TestQuickCSVIsTheCarefulOne checks that both ways through a block lead to the same rows, or to
// the same error.
func TestQuickCSVIsTheCarefulOne(t *testing.T) {
	good := 0
	for seed := range uint64(900) {
		r := rand.New(rand.NewPCG(seed, 1))
		columns := 1 + r.IntN(5)
		text := randomCSV(r, columns)
		ix := &Index{Delim: ','}
		for i := range columns {
			f, _ := declared(fmt.Sprint("c", i), kinds[r.IntN(2+r.IntN(len(kinds)-1))])
			ix.Fields = append(ix.Fields, f)
		}
		wanted := Columns(ix.Fields)
		if r.IntN(3) == 0 {
			wanted = wanted[r.IntN(columns):]
		}
		start := strings.IndexByte(text, '\n') + 1
		f := open(t, "a.csv", []byte(text))
		b := Block{Offset: int64(start), Length: int64(len(text) - start)}
		d := &csvDecoder{f: f, ix: ix}
		careful := func(most int) (*table.Rows, string) {
			rows := table.NewRows(wanted, most, 0)
			data := []byte(text[start:])
			err := d.carefully(data, b, planOf(ix, wanted, rows), rows)
			return rows, complaint(err)
		}
		rows, why := careful(200)
		b.Rows = int64(rows.Count)
		if why != "" {
			b.Rows = 200
		}
		got, err := d.Decode(b, wanted)
		if found := complaint(err); found != why {
			t.Fatalf("seed %d: %q, carefully %q\n%s", seed, found, why, text)
		}
		if why == "" {
			good++
			same(t, fmt.Sprintf("seed %d\n%s", seed, text), wanted, got, rows)
		}
	}
	if good < 150 {
		t.Errorf("only %d of 900 files were good", good)
	}
}

func complaint(err error) string {
	if err == nil {
		return ""
	}
	if bad, ok := err.(*BadRow); ok {
		return fmt.Sprintf("row %d offset %d", bad.Row, bad.Offset)
	}
	return "other"
}

func same(t *testing.T, about string, columns []table.Column, a, b *table.Rows) {
	t.Helper()
	if a.Count != b.Count {
		t.Fatalf("%s: %d rows and %d", about, a.Count, b.Count)
	}
	for i := range columns {
		x, y := &a.Data[i], &b.Data[i]
		if !bytes.Equal(x.Fixed, y.Fixed) || !bytes.Equal(x.Bytes, y.Bytes) ||
			!slices.Equal(x.Ends, y.Ends) || !slices.Equal(x.Null, y.Null) {
			t.Fatalf("%s: column %s differs:\n%v\n%v", about, columns[i].Name, x, y)
		}
	}
}

// TestQuickJSONIsTheCarefulOne: as above. Rows are written in several ways, with keys in other
// orders, absent, twice, or cut off.
func TestQuickJSONIsTheCarefulOne(t *testing.T) {
	values := []string{"1", "-2.5", "1e3", "null", "true", `"t"`, `"a\"b"`, `"\u00e4"`, "[1,2]", "[]", "{}",
		"NaN", "12345678901234567", `"x`, "", "-", "0.5,", `{"a":"}"}`, "1.0000001788139343"}
	good := 0
	for seed := range uint64(900) {
		r := rand.New(rand.NewPCG(seed, 2))
		var text strings.Builder
		names := []string{"a", "b", "c", "d"}[:1+r.IntN(4)]
		comma, colon := []string{",", ", "}[r.IntN(2)], []string{":", ": "}[r.IntN(2)]
		odd := r.IntN(3)
		types := make([]string, len(names))
		for i := range types {
			types[i] = kinds[r.IntN(len(kinds))]
		}
		for range 1 + r.IntN(30) {
			var members []string
			for i, name := range names {
				value := fmt.Sprintf("%.*f", r.IntN(9), r.NormFloat64()*100)
				switch types[i] {
				case "int64", "int16":
					value = fmt.Sprint(r.IntN(1000) - 500)
				case "str":
					value = fmt.Sprintf("%q", value)
				case "bool":
					value = "true"
				}
				if r.IntN(25) < odd {
					value = values[r.IntN(len(values))]
				}
				if r.IntN(60) != 0 {
					members = append(members, `"`+name+`"`+colon+value)
				}
				if r.IntN(60) == 0 {
					members = append(members, `"other"`+colon+`[1, {"a": 2}]`)
				}
			}
			if r.IntN(30) == 0 {
				slices.Reverse(members)
			}
			row := "{" + strings.Join(members, comma) + "}"
			if r.IntN(400) == 0 {
				row = row[:r.IntN(len(row))]
			}
			text.WriteString(row + "\n")
		}
		var columns []table.Column
		for i, name := range names {
			f, _ := declared(name, types[i])
			f.Null = true
			columns = append(columns, Columns([]Field{f})...)
		}
		content := text.String()
		rows := table.NewRows(columns, 200, 0)
		careful := newJSONRow(columns)
		err := rowsOf([]byte(content), jsonRows, func(row []byte, at int) error {
			if why := careful.into(row, rows); why != "" {
				return &BadRow{"", int64(rows.Count), int64(at), why}
			}
			return nil
		})
		b := Block{Length: int64(len(content)), Rows: int64(rows.Count)}
		if err != nil {
			b.Rows = 200
		}
		d := &jsonDecoder{f: open(t, "a.jsonl", []byte(content))}
		got, found := d.Decode(b, columns)
		if complaint(found) != complaint(err) {
			t.Fatalf("seed %d: %v, carefully %v\n%s", seed, found, err, content)
		}
		if err == nil {
			good++
			same(t, fmt.Sprintf("seed %d\n%s", seed, content), columns, got, rows)
		}
	}
	if good < 150 {
		t.Errorf("only %d of 900 files were good", good)
	}
}

// TestFloatsAreTheNearest: the scanner's own floats equal those of the standard library.
func TestFloatsAreTheNearest(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	read := 0
	for range 200000 {
		text := fmt.Sprintf("%.*f", r.IntN(18), r.NormFloat64()*math.Pow(10, float64(r.IntN(12)-4)))
		if r.IntN(4) == 0 {
			text = fmt.Sprintf("%.*e", r.IntN(17), r.NormFloat64()*math.Pow(10, float64(r.IntN(40)-20)))
		}
		v, end, ok := scanFloat(append([]byte(text), make([]byte, padding)...), 0)
		if !ok || end < len(text) {
			continue // the caller sees that the number goes on
		}
		read++
		want, _ := strconv.ParseFloat(text, 64)
		if math.Float64bits(v) != math.Float64bits(want) {
			t.Fatalf("%s: %v, want %v", text, v, want)
		}
		if narrow, _ := strconv.ParseFloat(text, 32); roundsOnce(v) && float32(v) != float32(narrow) {
			t.Fatalf("%s as float32: %v, want %v", text, float32(v), narrow)
		}
	}
	if read < 120000 {
		t.Errorf("only %d of 200000 numbers were read quickly", read)
	}
}
