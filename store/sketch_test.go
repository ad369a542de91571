package store

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"memroom/testenv"
)

// TestLongFileIsSketchedFirst: at once what can be had, soon the whole truth.
func TestLongFileIsSketchedFirst(t *testing.T) {
	f := newRun(t)
	var b strings.Builder
	pad := strings.Repeat("x", 1000)
	const lines = longFile/1000 + 2000
	for i := range lines {
		anon := 10
		if i == lines/2 {
			anon = 99
		}
		fmt.Fprintf(&b, "{\"at_ms\":%d,\"anon\":%d,\"pad\":%q}\n", i*250, anon, pad)
	}
	testenv.Write(t, f.Path("samples.jsonl"), []byte(b.String()))
	s := f.SampleSeries()
	p, err := s.Between(0, 1<<60, 500, nil)
	if err != nil || !p.Sketch || len(p.At) < 400 || p.From != 0 || p.To < lines*200 {
		t.Fatalf("%v: %d points from %d to %d, sketch %v", err, len(p.At), p.From, p.To, p.Sketch)
	}
	seen := 0
	s.Before(t.Context(), 1_000_000, func(line []byte) {
		seen++
		if !strings.Contains(string(line), "at_ms") {
			t.Errorf("%q is no line", line)
		}
	})
	if seen < 60 || seen > 90 {
		t.Errorf("%d lines in 16 s before a moment", seen)
	}
	for p.Sketch {
		time.Sleep(10 * time.Millisecond)
		if p, err = s.Between(0, 1<<60, 500, nil); err != nil {
			t.Fatal(err)
		}
	}
	if host := columnOf(t, p, "host"); p.Count != lines || maxOf(host.High) != 99 {
		t.Errorf("%d lines, highest %d", p.Count, maxOf(host.High))
	}
}

func maxOf(list []int64) int64 {
	most := list[0]
	for _, v := range list {
		most = max(most, v)
	}
	return most
}
