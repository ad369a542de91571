package central

import (
	"fmt"
	"os"
	"testing"
	"time"

	"memroom/relay"
	"memroom/store"

	"github.com/google/go-cmp/cmp"
)

// TestTidy: what is old or too much goes, from the database and from the copy; what was heard just
// now stays; and a sender that comes back sends everything again.
func TestTidy(t *testing.T) {
	databases(t, func(t *testing.T, open func() *Central) {
		c := open()
		now := time.Now()
		var ids []string
		for i := range 4 { // the first is the oldest; the clocks of all senders are years ahead
			heard := now.Add(-time.Duration(4-i) * 24 * time.Hour)
			if i == 3 {
				heard = now
			}
			key := fmt.Sprintf("%032x", i)
			w, err := c.Hello(relay.Hello{Key: key, ID: fmt.Sprintf("20261116-08072%d-7uk", i),
				Host: "far", Now: now.AddDate(3, 0, 0).UnixMilli()}, heard)
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, w.ID)
			if _, err := c.Add(key, []relay.Frame{{File: "samples.jsonl",
				Data: make([]byte, 1000)}}, heard); err != nil {
				t.Fatal(err)
			}
		}
		tidy := func(keep store.Retention, want ...string) {
			t.Helper()
			dropped, err := c.Tidy(keep, now)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, dropped); diff != "" {
				t.Errorf("%+v dropped other records:\n%s", keep, diff)
			}
			for _, id := range want {
				if _, err := os.Stat(c.Copy.Folder(id).Dir); err == nil {
					t.Errorf("the copy of %s is still there", id)
				}
			}
		}
		tidy(store.Retention{})
		tidy(store.Retention{Age: 84 * time.Hour}, ids[0])
		tidy(store.Retention{Size: 2500}, ids[1])
		tidy(store.Retention{Age: time.Minute, Size: 1}, ids[2]) // the last may still go on
		_ = c.Close()
		c = open()
		if got, err := c.Copy.IDs(); err != nil || len(got) != 1 || got[0] != ids[3] {
			t.Errorf("opened again it has %v %v", got, err)
		}
		if _, err := c.Add(fmt.Sprintf("%032x", 0), nil, now); err != ErrUnknown {
			t.Errorf("a dropped record is told %v", err)
		}
		w, err := c.Hello(relay.Hello{Key: fmt.Sprintf("%032x", 0), ID: ids[0], Host: "far"}, now)
		if err != nil || w.ID != ids[0] || len(w.Files) != 0 {
			t.Errorf("the sender comes back and is welcomed with %+v %v", w, err)
		}
	})
}
