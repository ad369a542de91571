package trace

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"memroom/event"
)

func sized(b *event.Bytes) string {
	if b == nil {
		return "none"
	}
	return fmt.Sprint(int64(*b))
}

// TestSizesAsLogsWriteThem: with the units of every program, thousands in groups, fractions of
// other locales; a figure that was cut is none.
func TestSizesAsLogsWriteThem(t *testing.T) {
	for _, c := range []struct{ number, unit, want string }{
		{"2.00", "GiB", "2147483648"}, {"2", "gigabytes", "2147483648"}, {"3", "Megabytes", "3145728"},
		{"1,024", "MiB", "1073741824"}, {"1900,00", "MiB", "1992294400"}, {"1,5", "GiB", "1610612736"},
		{"12,345,678", "", "12345678"}, {"1024.", "", "1024"}, {"999", "", "none"}, {"1000", "", "1000"},
		{"0", "", "0"}, {"12", "x", "none"}, {"x", "MiB", "none"},
		{"99999999999", "GiB", fmt.Sprint(int64(1) << 62)}, {"99999999", "PiB", "none"},
		{"123456789", "PiB", fmt.Sprint(int64(1) << 62)},
	} {
		if got := sized(parseSize(c.number, c.unit)); got != c.want {
			t.Errorf("%s %s: %s, want %s", c.number, c.unit, got, c.want)
		}
	}
	for _, c := range []struct{ number, unit, want string }{{"2", "G", "2000000000"},
		{"2", "Gi", "2147483648"}, {"500", "M", "500000000"}, {"1.5", "k", "1500"},
		{"3", "T", "3000000000000"},
		{"9999999999", "T", "none"}, {"x", "G", "none"}, {"4096", "", "4096"}} {
		if got := sized(kubeSize(c.number, c.unit)); got != c.want {
			t.Errorf("of Kubernetes, %s %s: %s, want %s", c.number, c.unit, got, c.want)
		}
	}
}

func TestSizesOfShapes(t *testing.T) {
	for _, c := range []struct {
		dims  string
		width int64
		want  string
	}{{"2,3,4", 4, "96"}, {" 2 , 3 ", 2, "12"}, {"", 8, "8"}, {"5,", 4, "20"}, {"0,5", 4, "none"},
		{"-1,5", 4, "none"}, {"a", 4, "none"}, {"2147483648,1073741824", 1, fmt.Sprint(int64(1) << 61)},
		{"2147483648,2147483648", 1, fmt.Sprint(int64(1) << 62)}, {"2147483648,4294967296", 1, "none"}} {
		if got := sized(shapeBytes(c.dims, c.width)); got != c.want {
			t.Errorf("[%s] of %d bytes: %s, want %s", c.dims, c.width, got, c.want)
		}
	}
}

// TestDifferences: not below zero, and nothing where a side is unknown.
func TestDifferences(t *testing.T) {
	five, three := event.Bytes(5), event.Bytes(3)
	for _, c := range []struct {
		a, b *event.Bytes
		want string
	}{{&five, &three, "2"}, {&three, &five, "0"}, {&five, nil, "none"}, {nil, &five, "none"}} {
		if got := sized(minus(c.a, c.b)); got != c.want {
			t.Errorf("%s - %s: %s, want %s", sized(c.a), sized(c.b), got, c.want)
		}
	}
	if distance(3, 10) != 7 || distance(10, 3) != 7 || distance(4, 4) != 0 {
		t.Error("a distance has no sign")
	}
}

// TestWhatCountsAsARise: five figures, a third more, hardly a fall, and still rising at the end;
// fewer where they lie on a line or leave no doubt.
func TestWhatCountsAsARise(t *testing.T) {
	for name, c := range map[string]struct {
		values []float64
		want   bool
	}{
		"steady":               {[]float64{10, 11, 12, 13, 14, 15}, true},
		"a little":             {[]float64{10, 10.5, 11, 11.5, 12, 12.9}, false},
		"just enough":          {[]float64{10, 10.6, 11.2, 11.8, 12.4, 13}, true},
		"one fall in seven":    {[]float64{10, 12, 14, 13, 16, 18, 20}, true},
		"two falls in seven":   {[]float64{10, 14, 12, 16, 14, 18, 20}, false},
		"flat at the end":      {[]float64{10, 15, 20, 20, 20, 20, 20}, false},
		"two":                  {[]float64{10, 20}, false},
		"three on a line":      {[]float64{10, 13, 16}, true},
		"three, too little":    {[]float64{10, 12, 14}, false},
		"three, not on a line": {[]float64{10, 11, 16}, false},
		"four without doubt":   {[]float64{10, 10, 12, 20}, true},
		"four, less":           {[]float64{10, 10, 12, 19}, false},
		"four, slower":         {[]float64{10, 10, 16, 20}, false},
		"from nothing":         {[]float64{0, 10, 20, 30, 40}, false},
		"none":                 {nil, false},
	} {
		if got := rises(c.values); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	for name, c := range map[string]struct {
		values []float64
		want   bool
	}{"by as much": {[]float64{1, 2, 3}, true}, "by twice as much": {[]float64{1, 2, 4}, true},
		"by more": {[]float64{1, 2, 4.1}, false}, "with a fall": {[]float64{1, 3, 2}, false}} {
		if got := even(c.values); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestFiguresOfPrograms(t *testing.T) {
	for _, c := range []struct{ number, unit, want string }{{"3.5", "G", "3758096384 bytes true"},
		{"512", "MB", "536870912 bytes true"}, {"5123", "", "5371854848 bytes true"},
		{"42", "%", "42 % true"}, {"0", "MB", "0  false"}, {"x", "%", "0  false"}} {
		value, unit, ok := figure(c.number, c.unit)
		if got := fmt.Sprintf("%.0f %s %v", value, unit, ok); got != c.want {
			t.Errorf("%s%s: %s, want %s", c.number, c.unit, got, c.want)
		}
	}
	if got := written(41.6, "%"); got != "42 %" {
		t.Errorf("a share: %s", got)
	}
	if got := written(float64(3*event.GiB/2), "bytes"); got != "1.5GiB" {
		t.Errorf("a size: %s", got)
	}
}

// TestTablesBesideACrash: the fullest card that is nearly full, and who holds more than half of it
// and is listed after the crash; else what the program printed of its pool.
func TestTablesBesideACrash(t *testing.T) {
	gib := event.GiB
	holder := func(pid int64, bytes event.Bytes, at int64) holderRow {
		return holderRow{Holder{PID: pid, Bytes: bytes}, 0, at}
	}
	own := 2 * gib
	seen := sizesSeen{rows: []cardRow{{8 * gib, 10 * gib, 50}, {9 * gib, 10 * gib, 50},
		{17 * gib, 20 * gib, 50}},
		holders:  []holderRow{holder(1, 11*gib, 50), holder(2, 11*gib, 5), holder(3, 10*gib, 50)},
		ownTotal: &own, ownAllocated: &own, ownFree: &own}
	c := Crash{offset: 10}
	seen.fromTables(&c)
	if sized(c.Capacity) != sized(ptr(20*gib)) || sized(c.Free) != sized(ptr(3*gib)) ||
		len(c.Neighbours) != 1 || c.Neighbours[0].PID != 1 {
		t.Errorf("capacity %s, free %s, %+v", sized(c.Capacity), sized(c.Free), c.Neighbours)
	}
	seen.rows = seen.rows[:1] // 80 % is not full
	c = Crash{}
	seen.fromTables(&c)
	if sized(c.Capacity) != sized(&own) || sized(c.Allocated) != sized(&own) ||
		sized(c.Free) != sized(&own) || len(c.Neighbours) != 0 {
		t.Errorf("%+v", c)
	}
	known := gib
	c = Crash{Capacity: &known}
	seen.fromTables(&c)
	if sized(c.Capacity) != sized(&known) {
		t.Errorf("what the message says was replaced: %s", sized(c.Capacity))
	}
}

func ptr(b event.Bytes) *event.Bytes { return &b }

// TestMemoGivesBackWhatWasPut: however pages are packed meanwhile, and after they are written to
// again.
func TestMemoGivesBackWhatWasPut(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	const slots = memoFirst + 5*memoPageSlots
	for name, value := range map[string]func(slot int) memoValue{
		"entries in order": func(slot int) memoValue { return memoOf(tagEntry, uint32(slot)) },
		"entries and three constants": func() func(int) memoValue {
			next := uint32(0)
			return func(slot int) memoValue {
				if slot%3 == 0 {
					return memoValue(1 + slot%9/3)
				}
				next++
				return memoOf(tagEntry, next)
			}
		}(),
		"anything": func(int) memoValue { return memoOf(tagEntry, random.Uint32N(1000)) },
	} {
		var m memo
		want := make([]memoValue, slots)
		for slot := range slots {
			want[slot] = value(slot)
			m.put(slot, want[slot])
		}
		for page := range 3 { // the last two may still be patched
			if packed := m.pages[page].raw == nil; packed != (name != "anything") {
				t.Errorf("%s: page %d packed %v", name, page, packed)
			}
		}
		for _, slot := range []int{0, memoFirst, memoFirst + 7, memoFirst + memoPageSlots + 33} {
			want[slot] = memoOf(tagEntry, 77)
			m.put(slot, want[slot]) // into a page that may be packed
		}
		for slot := range slots {
			if got := m.get(slot); got != want[slot] {
				t.Fatalf("%s: slot %d holds %x, want %x", name, slot, got, want[slot])
			}
		}
		if got := m.get(slots + 10*memoPageSlots); got != 0 {
			t.Errorf("%s: a slot nobody wrote to holds %x", name, got)
		}
	}
	for w, want := range map[uint64]uint32{0: 32, ^uint64(0): 0, 1: 31, 2: 31, 3: 31, 0b0101: 30,
		0x5555555555555555: 0} {
		if got := zeroCodes(w); got != want {
			t.Errorf("%x: %d, want %d", w, got, want)
		}
	}
}
