package trace

import (
	"strings"
	"testing"

	"memroom/event"
)

// TestHowFarWordsReach: a line affects the meaning of another one only up to some number of lines
// away. Each case has both lines, and how the log is read while they are close enough.
func TestHowFarWordsReach(t *testing.T) {
	first := func(log *Log) *Crash {
		if i := log.First(); i >= 0 {
			return &log.Crashes[i]
		}
		return &Crash{}
	}
	for name, c := range map[string]struct {
		above, below string
		together     func(log *Log) bool
		lines        int // that may stand between them
	}{
		"a kill by hand": {"$ kill -9 4242", "Killed",
			func(log *Log) bool { return first(log).Class == Other }, 5},
		"a job that was cancelled": {"slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 10:00 ***",
			"bash: line 1: 77 Killed   python a.py",
			func(log *Log) bool { return first(log).Class != Exhausted }, 11},
		"asked to end, then killed": {"worker got signal 15", "the command ended with exit code 137",
			func(log *Log) bool { return first(log).Class == Other }, 13},
		"docker above its exit": {"$ docker wait job", "the command ended with exit code 137",
			func(log *Log) bool { return first(log).Where == event.WhereCgroup }, 11},
		"docker below its exit": {"the command ended with exit code 137", "docker: removed",
			func(log *Log) bool { return first(log).Where == event.WhereCgroup }, 5},
		"what seff says": {"State: OUT_OF_MEMORY (exit code 0)", "Memory Utilized: 15.50 GB",
			func(log *Log) bool { return first(log).Allocated != nil }, 13},
		"a table of sacct": {"       JobID      State     MaxRSS", "       job 1 OUT_OF_ME+     15.50G",
			func(log *Log) bool { return first(log).Allocated != nil }, 19},
		"the name of a container": {"  trainer:", "      Reason:       OOMKilled",
			func(log *Log) bool { return first(log).Process != "" }, 13},
		"what systemd-oomd held": {"        Current Memory Usage: 41.5G",
			"systemd-oomd[900]: Killed /user.slice/a.scope due to memory pressure",
			func(log *Log) bool { return first(log).Allocated != nil }, 11},
		"processes that Ray lists": {"ray.exceptions.OutOfMemoryError: Task was killed due to the " +
			"node running low on memory.", "11\t40.10\tray::Trainer",
			func(log *Log) bool { return len(first(log).Neighbours) > 0 }, 19},
	} {
		for between, want := range map[int]bool{0: true, c.lines: true, c.lines + 1: false} {
			text := c.above + "\n" + strings.Repeat("a line of another kind\n", between) + c.below + "\n"
			if got := c.together(readText(t, text)); got != want {
				t.Errorf("%s: with %d lines between them %v, want %v", name, between, got, want)
			}
		}
	}
}
