package event

import (
	"encoding/json"
	"slices"
	"testing"
)

// TestCategoriesByName: every category has a name of its own, is listed once, and is read back.
func TestCategoriesByName(t *testing.T) {
	all := Categories()
	if len(all) != len(categoryNames) || all[len(all)-1] != CategoryUnknown {
		t.Errorf("%d of %d categories are listed: %v", len(all), len(categoryNames), all)
	}
	seen := map[string]bool{}
	for _, c := range all {
		if seen[c.String()] || CategoryOf(c.String()) != c {
			t.Errorf("%s is read as %s", c, CategoryOf(c.String()))
		}
		seen[c.String()] = true
	}
	for _, name := range []string{"", "Weights", "something"} {
		if got := CategoryOf(name); got != CategoryUnknown {
			t.Errorf("%q is %s", name, got)
		}
	}
	if got := Category(200).String(); got != "unknown" {
		t.Errorf("a category of the future is %q", got)
	}
	text, err := json.Marshal(map[Category]Bytes{CategoryWeights: 3})
	if err != nil || string(text) != `{"weights":3}` {
		t.Errorf("%s, %v", text, err)
	}
	var back map[Category]Bytes
	if err := json.Unmarshal([]byte(`{"optimizer": 5, "new": 6}`), &back); err != nil ||
		back[CategoryOptimizer] != 5 || back[CategoryUnknown] != 6 {
		t.Errorf("%v, %v", back, err)
	}
}

// TestMemoryByName: each kind of memory that can run out is said in words.
func TestMemoryByName(t *testing.T) {
	for where, want := range map[Where]string{WhereGPU: "GPU memory", WhereHost: "host memory",
		WhereCgroup: "host memory", WhereShm: "shared memory (/dev/shm)", WhereMPS: "MPS memory"} {
		if got := where.Memory(); got != want {
			t.Errorf("%s: %q, want %q", where, got, want)
		}
	}
}

// TestUnreclaimable: shared pages count once where it is known how many they are.
func TestUnreclaimable(t *testing.T) {
	s := Sample{Anonymous: 5 * GiB, Shared: GiB}
	if got := s.Unreclaimable(); got != 6*GiB {
		t.Errorf("anonymous and shared: %s", got)
	}
	s.Held = 1
	if got := s.Unreclaimable(); got != 1 {
		t.Errorf("known to be one byte: %s", got)
	}
}

// TestHistoryBothWays: entries that differ in one field only, over more than two chunks, come back
// as they were: forwards, backwards, one by one and by a finder.
func TestHistoryBothWays(t *testing.T) {
	var h History
	var want []Entry
	base := Entry{Kind: KindAlloc, Addr: 1 << 40, Size: 512, Stream: 3, TimeUS: 1000, Stack: 9}
	for i := range 2*chunkEntries + 77 {
		e := base
		switch i % 9 {
		case 1:
			e.Pool = PoolID{1, 2}
		case 2:
			e.Pool = PoolID{1, 3}
		case 3:
			e.Addr += 512
		case 4:
			e.Addr += 7
		case 5:
			e.Size = 1 << 35
		case 6:
			e.Stream = 4
		case 7:
			e.DeviceFree = 1 << 33
		case 8:
			e.Stack, e.Kind = 10, KindFreeRequested
		}
		e.TimeUS += int64(i * i % 1001)
		h.Append(&e)
		want = append(want, e)
	}
	for i, e := range h.All() {
		if *e != want[i] {
			t.Fatalf("entry %d forwards: %+v, want %+v", i, *e, want[i])
		}
	}
	next := len(want) - 1
	for i, e := range h.Backward() {
		if i != next || *e != want[i] {
			t.Fatalf("entry %d backwards, want %d: %+v, want %+v", i, next, *e, want[i])
		}
		next--
	}
	if next != -1 {
		t.Errorf("backwards ended before entry %d", next)
	}
	find := h.Find()
	for _, i := range []int{0, 5, chunkEntries - 1, chunkEntries, len(want) - 1, 1} {
		if find.At(i) != want[i] || h.At(i) != want[i] {
			t.Errorf("entry %d alone: %+v and %+v, want %+v", i, find.At(i), h.At(i), want[i])
		}
	}
	if find.Reads != 4 {
		t.Errorf("%d chunks read, want the first, the second, the last and the first again",
			find.Reads)
	}
	var few []int
	for i := range h.From(len(want) - 2) {
		few = append(few, i)
	}
	if !slices.Equal(few, []int{len(want) - 2, len(want) - 1}) {
		t.Errorf("the last two: %v", few)
	}
}

// TestLargestSizes: beyond the largest unit the number grows.
func TestLargestSizes(t *testing.T) {
	for size, want := range map[Bytes]string{1 << 60: "1024PiB", 1<<60 - 1: "1024PiB",
		1 << 50: "1PiB", 1<<50 - 1: "1PiB", 3 << 60: "3072PiB", -1 << 60: "-1024PiB"} {
		if got := size.String(); got != want {
			t.Errorf("%d: %s, want %s", int64(size), got, want)
		}
	}
}

// TestNamesBeyondTheLast: names of a newer recording are unknown, not a crash, and the others
// differ.
func TestNamesBeyondTheLast(t *testing.T) {
	seen := map[string]bool{}
	for n := range 256 {
		kind, category := Kind(n).String(), Category(n).String()
		if beyond := n > int(KindOOM); beyond && kind != "unknown" || !beyond && seen[kind] {
			t.Errorf("kind %d is %q", n, kind)
		}
		seen[kind] = true
		if beyond := n > int(CategoryInput); beyond && category != "unknown" ||
			!beyond && CategoryOf(category) != Category(n) {
			t.Errorf("category %d is %q", n, category)
		}
	}
	for state, want := range map[BlockState]string{BlockFree: "inactive",
		BlockActive: "active_allocated", BlockPending: "active_pending_free"} {
		if state.String() != want {
			t.Errorf("%d is %q", state, state)
		}
	}
}
