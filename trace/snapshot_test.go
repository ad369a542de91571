package trace

import (
	"os"
	"path/filepath"
	"testing"

	"memroom/testenv"
)

func BenchmarkReadSnapshot(b *testing.B) {
	path := os.Getenv("MEMROOM_BENCH_SNAPSHOT")
	if path == "" {
		path = filepath.Join(testenv.Shared(b, "traces"), "fuzz-s1-default.pickle.gz")
	}
	info, err := os.Stat(path)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(info.Size())
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Open(path); err != nil {
			b.Fatal(err)
		}
	}
}

func TestReadsEverySharedTrace(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(testenv.Shared(t, "traces"), "*.pickle.*"))
	if err != nil || len(files) == 0 {
		t.Fatal(err, files)
	}
	for _, f := range files {
		s, err := Open(f)
		if err != nil {
			t.Error(err)
			continue
		}
		t.Logf("%s: %d devices, %d events, %d segments, %d stacks, %s, %v %s %q", filepath.Base(f),
			len(s.Recordings), s.Recordings[0].History.Len(),
			len(s.Recordings[0].Segments), s.Stacks.Len(), s.Version, s.Truncated, s.Reason,
			s.Settings.Conf)
	}
}
