package supervise

import (
	"regexp"
	"slices"
	"strings"
	"sync"

	"memroom/trace"
)

// sureEnough is how far a text must settle the matter to be believed over a plain exit status. A
// bare "Killed" is below it: whether that was memory the kernel's counters know better.
const sureEnough = 0.8

// tellingFirst are the kinds of text that explain others: a worker that Ray killed also fails the
// task that waited for it.
var tellingFirst = []string{"ray_oom", "slurm_oom", "kube_oom"}

// findText looks in the end of the output for the text by which the program, or whoever ran it,
// reports that memory ran out.
func findText(tail string) (trace.Crash, bool) {
	log, err := trace.ReadLog(strings.NewReader(tail))
	if err != nil {
		return trace.Crash{}, false
	}
	best := -1
	for i, c := range log.Crashes {
		if c.Class != trace.Exhausted || c.Sure < sureEnough || c.Kind == "bare_kill" ||
			c.Kind == "exit_137" {
			continue
		}
		if best < 0 || telling(c) >= telling(log.Crashes[best]) {
			best = i // among equals the last: it is nearest to the end
		}
	}
	if best < 0 {
		return trace.Crash{}, false
	}
	return log.Crashes[best], true
}

func telling(c trace.Crash) int {
	if slices.Contains(tellingFirst, c.Kind) {
		return 1
	}
	return 0
}

// killerOf returns who ended the job, by the kind of text.
func killerOf(c trace.Crash) string {
	switch {
	case strings.HasPrefix(c.Kind, "ray_oom"):
		return "ray"
	case strings.HasPrefix(c.Kind, "slurm"):
		return "slurm"
	case strings.HasPrefix(c.Kind, "kube"):
		return "cgroup"
	case strings.HasPrefix(c.Kind, "kernel") || c.Kind == "systemd_unit" || c.Kind == "user_killer":
		return "kernel"
	}
	return "itself"
}

// Patterns are compiled when they are first needed: at the end of a run, in one of our three
// processes.
var (
	// childKilled is how launchers and workers report that a child of theirs got SIGKILL.
	childKilled = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?i)(exitcode\s*:\s*-9\b|signal 9 \(SIGKILL\)|killed by signal: killed|died with <Signals\.SIGKILL|exit code -9\b|exit status 137|exited with exit code 137|SIGKILL\) received by PID|^Killed$|: Killed\b|line \d+:\s+\d+ Killed\b)`)
	})
	// torchrunRank reads the rank that torchrun's report names as the first failure.
	torchrunRank = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?s)Root Cause \(first observed failure\).{0,400}?rank\s*:\s*(\d+)`)
	})
	// slurmCancelled is slurmstepd's line when the time is up or somebody cancelled the job.
	slurmCancelled = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?m)^.*slurmstepd: error: .*CANCELLED AT.*$`)
	})
)
