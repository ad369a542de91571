package central

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"memroom/relay"
)

const began = `"started":"2026-11-16T08:07:25Z"`

// unfit are records that no reader could use, by file.
var unfit = map[string][]string{
	"run.json": {`null`, `5`, `[]`, `"x"`, `{`, ``, `{}`, `{"id":5,` + began + `}`,
		`{"id":"../../x",` + began + `}`, `{"id":"` + id + `"}`,
		`{"id":"` + id + `","started":"9999-12-31T23:59:59-10:00"}`,
		`{"id":"` + id + `","started":"0000-01-01T00:00:00+10:00"}`,
		`{"id":"` + id + `",` + began + `,"tags":5}`,
		`{"id":"` + id + `",` + began + `,"x":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}`},
	"keeper.json":  {`null`, `{"keeper":"x"}`, `{"keeper":1e300}`, `{"began":"9999-12-31T23:59:59-10:00"}`},
	"exit.json":    {`null`, `{"exit_code":99999999999999999999}`, `{"at":"yesterday"}`},
	"verdict.json": {`null`, `{"is_oom":"perhaps"}`},
	"summary.json": {`null`, `{"attempts":{}}`, `{"attempts":[{"started":"0000-01-01T00:00:00+10:00"}]}`},
	"watch.json":   {`null`, `1`, `{"x":1e999}`},
	"fit.json":     {`[]`},
	"apply-1.json": {strings.Repeat(`{"a":`, 5000) + `1` + strings.Repeat(`}`, 5000)},
}

// TestUnfitRecordsAreRefused: before anything is kept, and the file is named, so that the sender
// can go on with the rest.
func TestUnfitRecordsAreRefused(t *testing.T) {
	databases(t, func(t *testing.T, open func() *Central) {
		c := open()
		hello(t, c, key)
		for name, texts := range unfit {
			for _, text := range texts {
				frame := relay.Frame{File: name, Whole: true, Data: []byte(text)}
				_, err := c.Add(key, []relay.Frame{frame, {File: "output", Data: []byte("x")}},
					time.Now())
				var damaged *FileError
				if !errors.As(err, &damaged) || damaged.File != name {
					t.Errorf("%s %.60q: %v", name, text, err)
				}
			}
		}
		for _, now := range []int64{-1 << 62, 1 << 62, 253402300800000} {
			if _, err := c.Hello(relay.Hello{Key: other, ID: id, Now: now}, time.Now()); !errors.Is(err,
				ErrBad) {
				t.Errorf("now_ms %d: %v", now, err)
			}
		}
		_ = c.Close()
		if w := hello(t, open(), key); len(w.Files) != 0 {
			t.Errorf("kept %v", w.Files)
		}
	})
}

// TestDamagedRecordsAreSetAside: what an earlier version kept, or a disk has changed, is named at
// the start; the rest of the record and all others are shown.
func TestDamagedRecordsAreSetAside(t *testing.T) {
	databases(t, func(t *testing.T, open func() *Central) {
		c := open()
		hello(t, c, key)
		good := hello(t, c, other).ID
		add(t, c, relay.Frame{File: "output", Data: []byte("kept\n")})
		if _, err := c.Add(other, []relay.Frame{{File: "run.json", Whole: true,
			Data: []byte(`{"id":"` + id + `",` + began + `}`)}}, time.Now()); err != nil {
			t.Fatal(err)
		}
		if err := c.db.add(key, []relay.Frame{{File: "run.json", Whole: true, Data: []byte("null")}},
			map[string]int64{"run.json": 4}); err != nil {
			t.Fatal(err)
		}
		for n, r := range []row{{ID: "../../../outside"}, {ID: "20261116-080725-8uk", Ahead: 1 << 62},
			{ID: "20261116-080725-9uk", First: time.UnixMilli(1 << 60)}} {
			r.Key = strings.Repeat("a", 31) + string(rune('0'+n))
			if err := c.db.create(r); err != nil {
				t.Fatal(err)
			}
		}
		copies := c.Copy.Home
		_ = c.Close()
		if err := os.RemoveAll(copies); err != nil {
			t.Fatal(err)
		}
		c = open()
		if text := strings.Join(c.Aside, "\n"); len(c.Aside) != 4 || !strings.Contains(text, id) ||
			!strings.Contains(text, "run.json") || !strings.Contains(text, "outside") {
			t.Errorf("set aside: %q", c.Aside)
		}
		if got := content(t, c, id, "output"); got != "kept\n" {
			t.Errorf("of the damaged record %q is shown", got)
		}
		if got := content(t, c, good, "run.json"); !strings.Contains(got, good) {
			t.Errorf("the good one: %q", got)
		}
		if _, err := c.Hello(relay.Hello{Key: strings.Repeat("a", 31) + "0", ID: id,
			Now: time.Now().UnixMilli()}, time.Now()); !errors.Is(err, ErrBad) {
			t.Errorf("the sender of a broken row: %v", err)
		}
		// its sender comes back and mends it
		add(t, c, relay.Frame{File: "run.json", Whole: true,
			Data: []byte(`{"id":"` + id + `",` + began + `}`)})
		if got := content(t, c, id, "run.json"); !strings.Contains(got, id) {
			t.Errorf("after the sender came back: %q", got)
		}
	})
}
