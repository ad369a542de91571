package trace

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"memroom/event"
)

func bytesOf(n event.Bytes) *event.Bytes { return &n }

// TestWhoHoldsTheRest: a process of a table is named where it holds more than half of what the
// message leaves open and no more than all of it, on the same card, and is not the program itself.
func TestWhoHoldsTheRest(t *testing.T) {
	one, zero := 1, 0
	crash := func() Crash { // of 80 GiB, 30 held, 10 free: 40 are open
		return Crash{Capacity: bytesOf(80 * event.GiB), Allocated: bytesOf(20 * event.GiB),
			Idle: bytesOf(10 * event.GiB), Free: bytesOf(10 * event.GiB)}
	}
	for name, c := range map[string]struct {
		change func(c *Crash)
		bytes  event.Bytes
		card   int
		named  bool
	}{
		"all of it":               {nil, 40 * event.GiB, -1, true},
		"a byte more":             {nil, 40*event.GiB + 1, -1, false},
		"half":                    {nil, 20 * event.GiB, -1, false},
		"a byte more than half":   {nil, 20*event.GiB + 1, -1, true},
		"less than its own":       {nil, 30*event.GiB - 1, -1, true},
		"as much as its own":      {nil, 30 * event.GiB, -1, false},
		"its own and its context": {nil, 32 * event.GiB, -1, false},
		"more than its own":       {nil, 32*event.GiB + 1, -1, true},
		"the same card":           {func(c *Crash) { c.Card = &one }, 40 * event.GiB, 1, true},
		"another card":            {func(c *Crash) { c.Card = &zero }, 40 * event.GiB, 1, false},
		"a card, none is said":    {nil, 40 * event.GiB, 1, true},
		"no capacity":             {func(c *Crash) { c.Capacity = nil }, 40 * event.GiB, -1, false},
		"nothing held":            {func(c *Crash) { c.Allocated = nil }, 40 * event.GiB, -1, false},
		"nothing free":            {func(c *Crash) { c.Free = nil }, 40 * event.GiB, -1, false},
		"no idle part":            {func(c *Crash) { c.Idle = nil }, 50 * event.GiB, -1, true},
		"named by the message": {func(c *Crash) { c.Neighbours = []Holder{{PID: 1}} }, 40 * event.GiB, -1,
			false},
	} {
		got := crash()
		if c.change != nil {
			c.change(&got)
		}
		before := len(got.Neighbours)
		sizesSeen{holders: []holderRow{{Holder{PID: 7, Bytes: c.bytes}, c.card, 0}}}.nameHolders(&got)
		if named := len(got.Neighbours) > before; named != c.named {
			t.Errorf("%s: named %v", name, named)
		}
	}
	two := crash() // of two that hold it together both are named, the larger first
	sizesSeen{holders: []holderRow{{Holder{Bytes: 25 * event.GiB}, -1, 0},
		{Holder{Bytes: 15 * event.GiB}, -1, 0}}}.nameHolders(&two)
	if len(two.Neighbours) != 2 {
		t.Errorf("%+v", two.Neighbours)
	}
}

// TestStrangersHoldATenth: other processes count from a tenth of the machine, up to all of it.
func TestStrangersHoldATenth(t *testing.T) {
	for name, c := range map[string]struct {
		process string
		bytes   event.Bytes
		named   bool
	}{"a tenth": {"java", 100, true}, "less": {"java", 99, false}, "all": {"java", 1000, true},
		"more than all": {"java", 1001, false}, "Python": {"/usr/bin/Python3", 500, false},
		"a worker of Python's": {"pt_data_worker", 500, false}} {
		seen := sizesSeen{others: []Holder{{Name: c.process, Bytes: c.bytes}}}
		got := Crash{Capacity: bytesOf(1000)}
		if seen.strangers(&got); (len(got.Neighbours) > 0) != c.named {
			t.Errorf("%s: %v", name, got.Neighbours)
		}
		known := Crash{Capacity: bytesOf(1000), Neighbours: []Holder{{PID: 1}}}
		unknown := Crash{}
		seen.strangers(&known)
		if seen.strangers(&unknown); len(known.Neighbours) != 1 || len(unknown.Neighbours) != 0 {
			t.Errorf("%s: %v %v", name, known.Neighbours, unknown.Neighbours)
		}
	}
}

// TestTheFullestCard: from 85 % on a row is that of the card that was full; who is listed below the
// crash and holds more than half of it is a neighbour.
func TestTheFullestCard(t *testing.T) {
	for used, full := range map[event.Bytes]bool{849: false, 850: true, 1000: true} {
		for _, at := range []int64{4, 6} { // the crash stands at 5
			c := Crash{offset: 5}
			sizesSeen{rows: []cardRow{{used, 1000, at}, {851, 1100, at}},
				holders: []holderRow{{Holder{PID: 1, Bytes: 500}, 0, 6}, {Holder{PID: 2, Bytes: 501}, 0, 6},
					{Holder{PID: 3, Bytes: 999}, 0, 5}}}.fromTables(&c)
			if (c.Capacity != nil) != full {
				t.Errorf("%d of 1000: %v", used, c.Capacity)
				continue
			}
			if full && (*c.Allocated != used || *c.Free != 1000-used || len(c.Neighbours) != 1 ||
				c.Neighbours[0].PID != 2 || (c.Signs[SignTaken] != "") != (at == 4)) {
				t.Errorf("%d of 1000, at %d: %+v", used, at, c)
			}
		}
	}
	own := Crash{}
	sizesSeen{ownTotal: bytesOf(9), ownAllocated: bytesOf(5), ownFree: bytesOf(4)}.fromTables(&own)
	if *own.Capacity != 9 || *own.Allocated != 5 || *own.Free != 4 {
		t.Errorf("%+v", own)
	}
}

// TestTablesBesideAnEnd: commands that people run next to a crash, as they print it.
func TestTablesBesideAnEnd(t *testing.T) {
	const oom = "RuntimeError: CUDA error: out of memory\n"
	for name, c := range map[string]struct {
		text                      string
		capacity, allocated, free string
	}{
		"a pool": {"allocated: 6.00 GiB, reserved: 7.00 GiB\n" + oom, "none", sized(bytesOf(6 << 30)),
			"none"},
		"a pool of a card": {"allocated: 6.00 GiB, reserved: 7.00 GiB of 8.00 GiB\n" + oom,
			sized(bytesOf(8 << 30)), sized(bytesOf(6 << 30)), "none"},
		"a pool and what is free": {"allocated: 6.00 GiB, reserved: 7.00 GiB, free: 0.50 GiB of 8.00 GiB\n" +
			oom, sized(bytesOf(8 << 30)), sized(bytesOf(6 << 30)), sized(bytesOf(1 << 29))},
		"one card of a table": {"memory.free [MiB], memory.total [MiB]\n100 MiB, 8192 MiB\n" + oom,
			sized(bytesOf(8 << 30)), "none", sized(bytesOf(100 << 20))},
		"two cards": {"memory.free [MiB], memory.total [MiB]\n100 MiB, 8192 MiB\n9 MiB, 8192 MiB\n" + oom,
			"none", "none", "none"},
		"a row that lacks a cell": {"memory.free [MiB], memory.total [MiB]\n100 MiB\n" + oom, "none",
			"none", "none"},
	} {
		log := readText(t, c.text)
		got := log.Crashes[log.First()]
		if sized(got.Capacity) != c.capacity || sized(got.Allocated) != c.allocated ||
			sized(got.Free) != c.free {
			t.Errorf("%s: of %s, %s held, %s free", name, sized(got.Capacity), sized(got.Allocated),
				sized(got.Free))
		}
	}
	for name, c := range map[string]struct {
		text      string
		available string
		strangers []string
	}{
		"ps": {"Mem:          62Gi   60Gi   1Gi   1Gi   1Gi   2Gi\n    PID USER   RSS COMMAND\n" +
			"      7 me   20971520 java -jar a\n      8 me   1024 sh\nKilled\n", sized(bytesOf(2 << 30)),
			[]string{"java -jar a"}},
		"ps of another form": {"Mem:          62Gi   60Gi   1Gi\n    PID USER   RES COMMAND CMD\n" +
			"      7 me   20g x java\nKilled\n", "none", []string{"java"}},
		"another table": {"Mem:          62Gi   60Gi   1Gi\n    PID USER   RSS COMMAND STATE\n" +
			"      7 me   20971520 java S\nKilled\n", "none", nil},
		"no sizes": {"Mem:          62Gi   60Gi   1Gi\n    PID USER   TIME COMMAND\n" +
			"      7 me   20971520 java\nKilled\n", "none", nil},
	} {
		log := readText(t, c.text)
		got := log.Crashes[log.First()]
		var names []string
		for _, n := range got.Neighbours {
			names = append(names, n.Name)
		}
		if sized(got.Capacity) != sized(bytesOf(62<<30)) || sized(got.Available) != c.available ||
			!slices.Equal(names, c.strangers) {
			t.Errorf("%s: of %s, %s available, %v", name, sized(got.Capacity), sized(got.Available), names)
		}
	}
	for asked, unit := range map[string]event.Bytes{"": event.KiB, " -k": event.KiB, " -m": event.MiB,
		" -g": event.GiB} {
		log := readText(t, "$ free"+asked+"\n\n"+"Mem:        5000   60   1\nKilled\n")
		if got := log.Crashes[0].Capacity; got == nil || *got != 5000*unit {
			t.Errorf("free%s: %s", asked, sized(got))
		}
	}
}

// TestRowsThatAreKept: so many rows of tables, and no more.
func TestRowsThatAreKept(t *testing.T) {
	var apps, cards, ps strings.Builder
	for i := range 3 * maxTableRows {
		if i%30 == 0 {
			apps.WriteString("pid, process_name, used_gpu_memory [MiB]\n")
			ps.WriteString("  PID USER   RSS COMMAND\n")
		}
		fmt.Fprintf(&apps, "%d, python, %d MiB\n", i+1, i+1)
		fmt.Fprintf(&cards, "| 30%% 40C | %dMiB / 1000MiB |\n", i)
		fmt.Fprintf(&ps, "  %d me  %d java\n", i+1, i+1)
	}
	for name, c := range map[string]struct {
		text string
		rows func(s sizesSeen) int
	}{
		"processes on cards": {apps.String(), func(s sizesSeen) int { return len(s.holders) }},
		"cards":              {cards.String(), func(s sizesSeen) int { return len(s.rows) }},
		"processes":          {ps.String(), func(s sizesSeen) int { return len(s.others) }},
	} {
		if got := c.rows(besideOf(t, c.text)); got != maxTableRows {
			t.Errorf("%s: %d rows", name, got)
		}
	}
}

// besideOf returns the sizes that a log shows near its end.
func besideOf(t *testing.T, text string) sizesSeen {
	t.Helper()
	reader := &logReader{log: &Log{}, window: newWindow(strings.NewReader(text)),
		kinds: map[string]int{}, templates: map[uint64]string{},
		hinted: make([]int, vocabulary().count)}
	if err := reader.run(); err != nil {
		t.Fatal(err)
	}
	return reader.hints.beside
}
