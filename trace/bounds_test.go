package trace

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"memroom/event"
)

// TestStacksAreWalkedUntilToldToStop: from the innermost frame, as far as is asked for.
func TestStacksAreWalkedUntilToldToStop(t *testing.T) {
	in := newInterner([]string{"", "a.py", "f"})
	var refs []uint32
	for line := range int32(3) {
		refs = append(refs, in.addFrame(frame{file: 1, name: 2, line: line + 1}))
	}
	in.flat = append(in.flat, refs...)
	in.ends = append(in.ends, 3)
	for most, want := range map[int]int{1: 1, 2: 2, 9: 3} {
		var lines []int
		in.Each(1, func(f event.Frame) bool {
			lines = append(lines, f.Line)
			return len(lines) < most
		})
		if len(lines) != want || lines[0] != 1 {
			t.Errorf("at most %d: %v", most, lines)
		}
	}
	if got := in.Frames(1); len(got) != 3 || in.Frames(0) != nil || in.Frames(2) != nil {
		t.Errorf("%v %v %v", got, in.Frames(0), in.Frames(2))
	}
}

// TestStringsOverTheLimitAreEmpty: by their number, and by their bytes alone.
func TestStringsOverTheLimitAreEmpty(t *testing.T) {
	for name, c := range map[string]struct {
		bytes int
		text  string
		kept  bool
	}{"the last byte": {maxStringBytes - 3, "abc", true},
		"one more": {maxStringBytes - 2, "abc", false}} {
		in := newInterner([]string{""})
		in.bytes = c.bytes
		if id := in.text([]byte(c.text)); (id != 0) != c.kept || (in.lost == 0) != c.kept {
			t.Errorf("%s: string %d, %d lost", name, id, in.lost)
		}
	}
	in := newInterner([]string{""})
	in.strings = make([]string, maxStrings-1)
	if a, b := in.text([]byte("a")), in.text([]byte("b")); a == 0 || b != 0 || in.lost != 1 {
		t.Errorf("strings %d and %d, %d lost", a, b, in.lost)
	}
}

// TestLimitsAreKept: a decompressor that gave too much, or failed, is not asked again.
func TestLimitsAreKept(t *testing.T) {
	asked := 0
	failing := readerFunc(func(b []byte) (int, error) { asked++; return 0, io.ErrClosedPipe })
	l := &limited{src: failing, packed: &counted{}}
	for range 3 {
		if _, err := l.Read(make([]byte, 4)); err != io.ErrClosedPipe || asked != 1 {
			t.Errorf("asked %d times: %v", asked, err)
		}
	}
	for most, good := range map[event.Bytes]bool{4: true, 3: false} {
		l := &limited{src: strings.NewReader("four"), packed: &counted{n: 9},
			limits: Limits{Unpacked: most}}
		n, err := l.Read(make([]byte, 8))
		var large *TooLarge
		if good != (err == nil) || good != (n == 4) || !good && (!errors.As(err, &large) ||
			large.Limit != most || large.Packed != 9) {
			t.Errorf("limit of %d: %d bytes, %v", most, n, err)
		}
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// TestInputsOfAnyGrain: results do not depend on how the source splits its bytes, up to texts
// longer than the buffer; no more is asked of a source than is needed.
func TestInputsOfAnyGrain(t *testing.T) {
	data := bytes.Repeat([]byte("0123456789"), (2*inputBuffer+100)/10)
	for name, src := range map[string]io.Reader{"whole": bytes.NewReader(data),
		"half":  iotest.HalfReader(bytes.NewReader(data)),
		"error": iotest.DataErrReader(bytes.NewReader(data))} {
		in := newInput(src)
		at := 0
		for _, n := range []int{1, 9, inputBuffer - 10, inputBuffer, 50, inputSlack, 20} {
			got, ok := in.take(n)
			if at += n; !ok || !bytes.Equal(got, data[at-n:at]) || in.offset() != int64(at) {
				t.Fatalf("%s: %d bytes up to %d: %v", name, n, at, ok)
			}
		}
		if _, ok := in.take(len(data) - at + 1); ok || in.offset() != int64(len(data)) {
			t.Errorf("%s: more than there is", name)
		}
	}
	asked := 0
	in := newInput(readerFunc(func(b []byte) (int, error) {
		if asked++; asked > 1 {
			return 0, errors.New("asked for more than was needed")
		}
		return copy(b, "abcd"), nil
	}))
	if got, ok := in.take(4); !ok || string(got) != "abcd" || in.failed != nil {
		t.Errorf("%q %v %v", got, ok, in.failed)
	}
	broken := newInput(iotest.ErrReader(io.ErrClosedPipe))
	if broken.more(1); broken.failed != io.ErrClosedPipe || !broken.eof {
		t.Errorf("%v", broken.failed)
	}
}

// TestTerminalsThatBreakLines: the message is as wide as another line near it and none is wider.
func TestTerminalsThatBreakLines(t *testing.T) {
	line := func(n int) string { return strings.Repeat("x", n-len("needle")) + "needle" }
	filled := func(n int) string { return strings.Repeat("y", n) }
	for name, c := range map[string]struct {
		lines []string // the first is the message
		want  int
	}{
		"another as wide below":  {[]string{line(80), filled(80), "z"}, 80},
		"the second as wide":     {[]string{line(80), "z", filled(80)}, 80},
		"none as wide":           {[]string{line(80), filled(79), "z"}, 0},
		"a wider one":            {[]string{line(80), filled(80), filled(81)}, 0},
		"one line more":          {[]string{line(80), filled(80)}, 0},
		"the narrowest terminal": {[]string{line(60), filled(60), "z"}, 60},
		"too narrow":             {[]string{line(59), filled(59), "z"}, 0},
		"the widest terminal":    {[]string{line(240), filled(240), "z"}, 240},
		"too wide":               {[]string{line(241), filled(241), "z"}, 0},
	} {
		text := strings.Join(c.lines, "\n")
		p := passage{window: &window{buf: []byte(text), eof: true}, at: strings.Index(text, "needle"),
			word: "needle"}
		if got := p.width(); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
	for name, c := range map[string]struct{ lines, want string }{
		"filled":             {"rest|12345678", "12345678rest"},
		"one narrower":       {"rest|1234567", "1234567 rest"},
		"two narrower":       {"rest|123456", "rest|123456"},
		"before a blank":     {" rest|1234567", " rest|1234567"},
		"before nothing":     {"|1234567", "|1234567"},
		"two filled":         {"c|12345678|abcdefgh", "abcdefgh12345678c"},
		"filled before none": {"12345678", "12345678"},
	} {
		if got := strings.Join(unbroken(strings.Split(c.lines, "|"), 8), "|"); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if got := strings.Join(unbroken(strings.Split(c.lines, "|"), 0), "|"); got != c.lines {
			t.Errorf("%s, no width: %q", name, got)
		}
	}
}

// TestVictimsOfOneSize: processes of the victim's name that hold more than half of the largest.
func TestVictimsOfOneSize(t *testing.T) {
	row := func(pages int, name string) string {
		return fmt.Sprintf("[  123]  1000   123    90000 %d   400 0 0 %s", pages, name)
	}
	lines := []string{row(1000, "python"), row(501, "python"), row(500, "python"),
		row(9000, "java"), "x"}
	if got := alike(lines, "python"); got != 2 {
		t.Errorf("%d", got)
	}
	if got := alike(lines, "ruby"); got != 0 {
		t.Errorf("%d", got)
	}
}

// TestFiguresBeyondTheCard: what is said to be allocated may be a fiftieth more than the card.
func TestFiguresBeyondTheCard(t *testing.T) {
	for allocated, nonsense := range map[event.Bytes]bool{1000: false, 1020: false, 1021: true} {
		for _, others := range []int{0, 1, 2} {
			c := Crash{Capacity: bytesOf(1000), Allocated: &allocated,
				Neighbours: make([]Holder, others)}
			c.dropNonsense()
			if (c.Allocated == nil) != nonsense || (c.Over != nil) != nonsense ||
				(c.InProcess != nil) != (nonsense && others == 1) {
				t.Errorf("%d of 1000, %d others: %+v", allocated, others, c)
			}
		}
	}
	for bytes, self := range map[event.Bytes]bool{599: false, 600: true, 600 + 2*event.GiB: true,
		601 + 2*event.GiB: false} {
		c := Crash{Allocated: bytesOf(500), Idle: bytesOf(100), Neighbours: []Holder{{Bytes: bytes}}}
		if c.dropSelf(); (c.InProcess != nil) != self {
			t.Errorf("%d bytes: %+v", bytes, c)
		}
	}
	large := 10 * event.GiB
	for capacity, self := range map[event.Bytes]bool{40 * event.GiB: false, 40*event.GiB - 1: true} {
		c := Crash{Capacity: &capacity, Allocated: &large, Neighbours: []Holder{{Bytes: 3 * large}}}
		if c.dropSelf(); (c.InProcess != nil) != self {
			t.Errorf("a card of %d: %+v", capacity, c)
		}
	}
}
