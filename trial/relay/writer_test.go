package relay

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"memroom/event"
	"memroom/trial"
)

// TestRecordsOnTheWire: other versions of memroom read them, so their bytes stay as they are.
func TestRecordsOnTheWire(t *testing.T) {
	var stream bytes.Buffer
	w := Writer{Out: &stream, ID: "t3-a1"}
	w.Begin(Begin{Host: "node3", Run: "run7"})
	w.Happened(trial.Happening{Values: map[string]float64{"loss": 0.5}, Step: 2, Final: true})
	want := "\x1ememroom:t3-a1 {\"begin\":{\"host\":\"node3\",\"run\":\"run7\"}}\n" +
		"\x1ememroom:t3-a1 {\"values\":{\"loss\":0.5},\"step\":2,\"final\":true}\n"
	if stream.String() != want {
		t.Errorf("%q, want %q", stream.String(), want)
	}
	p := Parser{ID: "t3-a1"}
	if got := p.Feed(stream.Bytes()); len(got) != 1 || !got[0].Final || got[0].Step != 2 ||
		p.Begun.Run != "run7" {
		t.Errorf("read back: %+v, %+v", got, p.Begun)
	}
}

// TestNumbersThatAreNone: JSON has none of them, and a report with one must not be lost.
func TestNumbersThatAreNone(t *testing.T) {
	var stream bytes.Buffer
	w := Writer{Out: &stream, ID: "a"}
	w.Happened(trial.Happening{Values: map[string]float64{"nan": math.NaN(), "up": math.Inf(1),
		"down": math.Inf(-1), "loss": 3}})
	p := Parser{ID: "a"}
	got := p.Feed(stream.Bytes())
	if len(got) != 1 || got[0].Values["loss"] != 3 || len(got[0].Values) != 4 {
		t.Fatalf("%+v", got)
	}
	for _, name := range []string{"nan", "up", "down"} {
		if !math.IsNaN(got[0].Values[name]) {
			t.Errorf("%s became %v", name, got[0].Values[name])
		}
	}
}

// TestUsageIsToldWhenItRises by a twentieth, on the host and the cards together; the peak counts
// where it is above what is held now.
func TestUsageIsToldWhenItRises(t *testing.T) {
	for name, c := range map[string]struct {
		first, second trial.Usage
		told          int
	}{
		"the same":           {trial.Usage{Host: 1000}, trial.Usage{Host: 1000}, 1},
		"below a twentieth":  {trial.Usage{Host: 1000}, trial.Usage{Host: 1049}, 1},
		"a twentieth":        {trial.Usage{Host: 1000}, trial.Usage{Host: 1050}, 2},
		"less":               {trial.Usage{Host: 1000}, trial.Usage{Host: 10}, 1},
		"the card alone":     {trial.Usage{Host: 1000}, trial.Usage{Host: 1000, Device: 50}, 2},
		"from card to host":  {trial.Usage{Host: 100, Device: 900}, trial.Usage{Host: 1000}, 1},
		"card and host fell": {trial.Usage{Host: 500, Device: 500}, trial.Usage{Device: 900}, 1},
		"the peak":           {trial.Usage{Host: 1000}, trial.Usage{Host: 500, Peak: 1100}, 2},
		"a peak of before":   {trial.Usage{Host: 1000, Peak: 2000}, trial.Usage{Host: 2050}, 1},
	} {
		var stream bytes.Buffer
		w := Writer{Out: &stream, ID: "a"}
		w.Usage(c.first)
		w.Usage(c.second)
		if n := strings.Count(stream.String(), "usage"); n != c.told {
			t.Errorf("%s: told %d times, want %d", name, n, c.told)
		}
	}
}

// full is a disk that takes so many writes, then none.
type full struct{ left, tried int }

func (f *full) Write(b []byte) (int, error) {
	f.tried++
	if f.left--; f.left < 0 {
		return 0, fmt.Errorf("write %d", f.tried)
	}
	return len(b), nil
}

// TestFirstFailureIsKept, and a stream that takes everything has none.
func TestFirstFailureIsKept(t *testing.T) {
	for room, want := range map[int]string{0: "write 1", 1: "write 2", 3: "<nil>"} {
		w := Writer{Out: &full{left: room}, ID: "a"}
		for range 3 {
			w.Begin(Begin{Host: "node", Run: "run"})
		}
		if got := fmt.Sprint(w.Failed()); got != want {
			t.Errorf("room for %d: %s, want %s", room, got, want)
		}
	}
}

// TestRecordsHaveAnEnd: what looks like the beginning of a record is held back up to the longest
// one, and is the program's own output from then on.
func TestRecordsHaveAnEnd(t *testing.T) {
	head := "\x1ememroom:a "
	for extra, held := range map[int]bool{-1: true, 0: false, 1: false} {
		text := head + strings.Repeat("x", longest-len(head)+1+extra)
		p := Parser{ID: "a"}
		var got strings.Builder
		for _, h := range p.Feed([]byte(text)) {
			got.Write(h.Output)
		}
		if (got.Len() == 0) != held || !held && got.String() != text {
			t.Errorf("%d bytes more than the longest record: %d bytes came out", extra, got.Len())
		}
	}
}

// TestARecordOfNothing: a line that follows our head at once, or holds no field that is known, is
// taken out or left as it is, but never an end or a report.
func TestARecordOfNothing(t *testing.T) {
	for _, c := range []struct{ stream, output string }{
		{"\x1ememroom:a {}\nrest", "rest"}, {"\x1ememroom:a \nrest", "\x1ememroom:a \nrest"},
		{"\x1ememroom:a {\"later\":1}\nrest", "rest"}, {"\x1e\nrest", "\x1e\nrest"},
		{"\x1e\x1ememroom:a {}\n", "\x1e"},
	} {
		p := Parser{ID: "a"}
		var got strings.Builder
		for _, h := range p.Feed([]byte(c.stream)) {
			got.Write(h.Output)
			if h.Values != nil || h.Step != -1 {
				t.Errorf("%q: a report %+v", c.stream, h)
			}
		}
		if got.String() != c.output || p.End != nil || p.Begun != nil {
			t.Errorf("%q: output %q, end %v", c.stream, got.String(), p.End)
		}
	}
}

// TestOutcomesTravelWhole.
func TestOutcomesTravelWhole(t *testing.T) {
	var stream bytes.Buffer
	want := trial.Outcome{ExitCode: 137, Signal: "SIGKILL", OOM: true, Where: event.WhereCgroup,
		PeakHost: 7 * event.GiB, Evidence: "memory.events\nsaid so"}
	w := Writer{Out: &stream, ID: "a"}
	w.Usage(trial.Usage{Host: event.GiB, Device: event.MiB, Peak: 2 * event.GiB})
	w.End(want)
	p := Parser{ID: "a"}
	p.Feed(stream.Bytes())
	a, _ := json.Marshal(want)
	if b, _ := json.Marshal(p.End); string(a) != string(b) || p.Usage.Peak != 2*event.GiB ||
		p.Usage.Device != event.MiB {
		t.Errorf("%s, want %s; %+v", b, a, p.Usage)
	}
}
