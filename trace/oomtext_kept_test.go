package trace

import (
	"fmt"
	"strings"
	"testing"
)

// TestKeptText: the beginning and the end of a log are kept with the numbers of their lines,
// whatever lies between; colours, progress bars and JSON strings are made readable.
func TestKeptText(t *testing.T) {
	log, err := ReadLog(strings.NewReader("\x1b[31mred\x1b[0m\r\n" + `{"m":"a\n  b\n  c"}` + "\n\n 9%\r 10%\n"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, l := range log.Kept {
		got = append(got, fmt.Sprint(l.Number, " ", l.Text))
	}
	want := `1 red|2 {"m":"a|2   b|2   c"}|4  10%`
	if s := strings.Join(got, "|"); s != want {
		t.Errorf("kept %q, want %q", s, want)
	}

	var long strings.Builder
	const lines = 200_000
	for i := 1; i <= lines; i++ {
		fmt.Fprintf(&long, "line %d\n", i)
	}
	if log, err = ReadLog(strings.NewReader(long.String())); err != nil {
		t.Fatal(err)
	}
	first, last := log.Kept[0], log.Kept[len(log.Kept)-1]
	if first.Number != 1 || last.Number != lines || last.Text != fmt.Sprint("line ", lines) {
		t.Errorf("from %+v to %+v", first, last)
	}
	if len(log.Kept) > lines/2 {
		t.Errorf("%d of %d lines are kept", len(log.Kept), lines)
	}
}
