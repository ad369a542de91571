package diagnose

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"memroom/event"
	"memroom/trace"
)

// TestCategoriesInFull sums up the category of each block of known programs, the phase in which the
// block was made and the confidence. Other tests compare these with the truth; this one shows where
// a change of a rule has an effect. After an intended change:
//
//	go test ./diagnose -run TestCategoriesInFull -update
func TestCategoriesInFull(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "known", "*.pickle.gz"))
	if err != nil || len(files) < 5 {
		t.Fatalf("%d recordings, %v", len(files), err)
	}
	var got strings.Builder
	for _, path := range files {
		name := filepath.Base(path)
		describeBlocks(&got, name, openSnapshot(t, path))
		describeBlocks(&got, name+", its second half", secondHalf(t, path))
	}
	golden := filepath.Join("testdata", "categories.golden")
	if flag.Lookup("update").Value.String() == "true" {
		if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	old, now := strings.Split(string(want), "\n"), strings.Split(got.String(), "\n")
	for i := range min(len(old), len(now)) {
		if old[i] != now[i] {
			t.Fatalf("line %d was\n%s\nand is\n%s", i+1, old[i], now[i])
		}
	}
	if len(old) != len(now) {
		t.Errorf("%d lines were %d", len(now), len(old))
	}
}

// describeBlocks counts the blocks of each kind.
func describeBlocks(b *strings.Builder, name string, s *Snapshot) {
	counts, bytes := map[string]int{}, map[string]int64{}
	l := s.Ledger()
	for i := range l.Allocs {
		a := &l.Allocs[i]
		kind := fmt.Sprintf("%s in %s, sure to %d", a.Category, a.Phase, a.Sure)
		counts[kind]++
		bytes[kind] += a.Requested()
	}
	fmt.Fprintf(b, "%s: %d steps, growth %v\n", name, len(s.Steps), s.Growth != nil)
	for _, kind := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(b, "  %s: %d blocks, %d bytes\n", kind, counts[kind], bytes[kind])
	}
}

// secondHalf reads a recording as if its first half had been lost: most of what lives then is older
// than the recording.
func secondHalf(t *testing.T, path string) *Snapshot {
	t.Helper()
	read, err := trace.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	rec := &read.Recordings[0]
	var rest event.History
	for _, e := range rec.History.From(rec.History.Len() / 2) {
		rest.Append(e)
	}
	rec.History = rest
	s, _ := ReplaySnapshot(read, rec)
	return s
}
