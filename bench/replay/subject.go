package main

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// subject is something that reads a snapshot in a process of its own and prints seconds and peak
// bytes.
type subject struct {
	name    string
	command []string
	seconds []float64
	peak    float64
}

func (s *subject) run() error {
	cmd := exec.Command(s.command[0], s.command[1:]...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	var seconds, peak float64
	if _, err := fmt.Sscan(strings.TrimSpace(string(out)), &seconds, &peak); err != nil {
		return fmt.Errorf("%s printed %q: %w", s.name, out, err)
	}
	s.seconds = append(s.seconds, seconds)
	s.peak = max(s.peak, peak)
	return nil
}

func (s *subject) median() float64 {
	sorted := slices.Sorted(slices.Values(s.seconds))
	return sorted[len(sorted)/2]
}

// peakMemory returns the highest resident memory of this process in bytes, 0 where the system does
// not say.
func peakMemory() int64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(status)) {
		var kib int64
		if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &kib); n == 1 {
			return kib << 10
		}
	}
	return 0
}
