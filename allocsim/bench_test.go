package allocsim_test

import (
	"path/filepath"
	"testing"

	"memroom/allocsim"
	"memroom/testenv"
	"memroom/trace"
)

// BenchmarkReplay verifies a recording, BenchmarkRun sends its requests through the allocator under
// other settings. Both report events, entries of the recording, a second.
func BenchmarkReplay(b *testing.B) {
	s, err := trace.Open(filepath.Join(testenv.Shared(b, "traces"), "dynseq-default.pickle.gz"))
	if err != nil {
		b.Fatal(err)
	}
	rec := &s.Recordings[0]
	events := 0
	for b.Loop() {
		r, err := allocsim.Replay(rec, allocsim.ReplayOptions{})
		if err != nil || !r.Exact() {
			b.Fatal(err, r.Mismatches)
		}
		events += r.Events
	}
	b.ReportMetric(float64(events)/b.Elapsed().Seconds(), "events/s")
}

func BenchmarkRun(b *testing.B) {
	s, err := trace.Open(filepath.Join(testenv.Shared(b, "traces"), "dynseq-default.pickle.gz"))
	if err != nil {
		b.Fatal(err)
	}
	r, err := allocsim.Replay(&s.Recordings[0], allocsim.ReplayOptions{Timeline: true})
	if err != nil {
		b.Fatal(err)
	}
	for _, conf := range []string{"", "expandable_segments:True"} {
		b.Run("conf="+conf, func(b *testing.B) {
			c, err := allocsim.ParseConf(conf)
			if err != nil {
				b.Fatal(err)
			}
			events := 0
			for b.Loop() {
				if _, err := r.Run(allocsim.Options{Config: c}); err != nil {
					b.Fatal(err)
				}
				events += r.Events
			}
			b.ReportMetric(float64(events)/b.Elapsed().Seconds(), "events/s")
		})
	}
}
