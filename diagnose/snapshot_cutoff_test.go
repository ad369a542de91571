package diagnose_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"memroom/allocsim"
	"memroom/diagnose"
	"memroom/trace"
)

// TestBrokenFileAgreesWithItself: of a file that breaks off in its history, the peak and the
// comparison of settings are about the same blocks, and the peak is not above that of the whole
// file.
func TestBrokenFileAgreesWithItself(t *testing.T) {
	packed, err := os.ReadFile(filepath.Join("testdata", "known", "gan-in_forward.pickle.gz"))
	if err != nil {
		t.Fatal(err)
	}
	read := func(data []byte) (*diagnose.Snapshot, *allocsim.Replayed) {
		s, err := trace.ReadSnapshot(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		return diagnose.ReplaySnapshot(s, &s.Recordings[0])
	}
	whole, _ := read(packed)
	broken, replayed := read(packed[:3000])
	if broken.AllocatedPeak > whole.AllocatedPeak {
		t.Errorf("%s allocated in the part, %s in the whole", broken.AllocatedPeak,
			whole.AllocatedPeak)
	}
	table, err := replayed.WhatIf(allocsim.Options{}, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range table.Outcomes {
		if o.Recorded && o.ReservedPeak != broken.ReservedPeak {
			t.Errorf("%s reserved as recorded in the table, %s at the peak", o.ReservedPeak,
				broken.ReservedPeak)
		}
	}
	if !strings.Contains(strings.Join(broken.Warnings, " "), "empty allocator") {
		t.Errorf("the reader is not told: %q", broken.Warnings)
	}
}
