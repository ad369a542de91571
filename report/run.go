package report

import (
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"memroom/event"
)

// RunSummary prints how a run ended, the peak of each kind of memory with what was left of its
// limit, and how long a step took: the first lines of `memroom show`.
func RunSummary(w io.Writer, s event.Summary) {
	lines := []string{runHeadline(s)}
	lines = append(lines, hostLine(s)...)
	for _, d := range s.Peaks.Devices {
		lines = append(lines, deviceLine(d))
	}
	full := s.Verdict != nil && s.Verdict.Where == event.WhereShm
	if s.Peaks.ShmTotal > 0 && (full || s.Peaks.Shm > s.Peaks.ShmTotal/10) {
		lines = append(lines, "/dev/shm     peak "+s.Peaks.Shm.Of(s.Peaks.ShmTotal))
	}
	if s.Steps > 0 {
		lines = append(lines, fmt.Sprintf("steps        %d, %s each (median)", s.Steps,
			stepTime(s.StepMS)))
	}
	for _, g := range s.Peaks.Ray {
		lines = append(lines, fmt.Sprintf("ray          %s: up to %d at once, the largest %s, "+
			"together %s", g.Name, g.Count, g.Largest, g.Sum))
	}
	for _, f := range s.Feeding {
		if f.Total > 0 || f.Count > 0 {
			lines = append(lines, fmt.Sprintf("feeding      up to %s: %s", f.Total, f.Sum()))
		}
	}
	for _, line := range lines {
		fmt.Fprintln(w, line)
	}
}

func runHeadline(s event.Summary) string {
	took := ""
	if s.Exit != nil {
		took = " after " + Span(s.Exit.Seconds)
	}
	if len(s.Attempts) > 1 {
		took += fmt.Sprintf(", attempt %d", len(s.Attempts))
	}
	line := VerdictLine(s.Verdict, s.Exit)
	if v := s.Verdict; v != nil && v.IsOOM && v.KilledBy == "cgroup" && s.Run.HostMem > 0 {
		line = strings.Replace(line, killer("cgroup"), "killed at the limit of --host-mem", 1)
		line = strings.Replace(line, wall(event.WhereCgroup), wall(event.WhereHost), 1)
	}
	return "ended        " + line + took
}

// VerdictLine describes in one line how an attempt ended.
func VerdictLine(v *event.Verdict, exit *event.Exit) string {
	switch {
	case v == nil && exit == nil:
		return "unknown"
	case v == nil:
		return fmt.Sprintf("exit code %d, not judged", exit.Code)
	case !v.IsOOM && v.ExitCode == 0:
		return "successfully"
	case !v.IsOOM && v.Signal == "SIGINT":
		return "interrupted (SIGINT)"
	case !v.IsOOM && v.Signal != "" && v.KilledBy != "":
		return fmt.Sprintf("by %s (%s)", v.Signal, killer(v.KilledBy))
	case !v.IsOOM:
		return fmt.Sprintf("with exit code %d", v.ExitCode)
	}
	text := "OUT OF MEMORY: " + wall(v.Where)
	if v.ExitCode == 0 {
		text = "with exit code 0, but " + text
	}
	if v.Rank != nil {
		text += fmt.Sprintf(", rank %d", *v.Rank)
	}
	if v.KilledBy != "" && v.KilledBy != "itself" {
		text += ", " + killer(v.KilledBy)
	}
	return text
}

func killer(by string) string {
	switch by {
	case "kernel":
		return "killed by the kernel"
	case "cgroup":
		return "killed at the cgroup's limit"
	case "memroom":
		return "ended by memroom"
	case "ray", "slurm":
		return "killed by " + strings.ToUpper(by[:1]) + by[1:]
	case "itself":
		return "its own fault"
	}
	return "sent by somebody"
}

func wall(w event.Where) string {
	switch w {
	case event.WhereGPU:
		return "GPU memory"
	case event.WhereHost:
		return "host memory"
	case event.WhereShm:
		return "shared memory (/dev/shm)"
	case event.WhereCgroup:
		return "host memory of the cgroup"
	case event.WhereMPS:
		return "MPS memory"
	}
	return "of an unknown kind"
}

func hostLine(s event.Summary) []string {
	peak := max(s.Peaks.Unreclaimable, 0)
	if s.Peaks.Resident == 0 && s.Exit != nil && s.Exit.MaxResident > 0 {
		return []string{fmt.Sprintf("host memory  peak %s (largest process, as the kernel counted it)", s.Exit.MaxResident)}
	}
	if s.Peaks.Resident == 0 {
		return nil
	}
	limit := s.Peaks.HostLimit
	line := fmt.Sprintf("host memory  peak %s (%s with file pages), in %s", peak.Beside(limit),
		s.Peaks.Resident.Beside(limit), processes(s.Peaks.Processes))
	if limit > 0 {
		line += fmt.Sprintf("; %s left", s.Peaks.HostLeft().Of(limit))
		if s.Peaks.HostOthers > 0 {
			line += fmt.Sprintf(", other processes held %s", s.Peaks.HostOthers.Beside(limit))
		}
	}
	return []string{line}
}

func processes(n int) string {
	if n == 1 {
		return "1 process"
	}
	return fmt.Sprintf("up to %d processes", n)
}

func deviceLine(d event.DevicePeak) string {
	name := d.Name
	if name == "" {
		name = d.UUID
	}
	line := fmt.Sprintf("%-12s", name)
	if d.Total > 0 {
		line += fmt.Sprintf(" peak %s, %s left", d.Used.Of(d.Total),
			max(0, d.Total-d.Used).Beside(d.Total))
	}
	if d.Reserved > 0 {
		line += fmt.Sprintf(" (allocated %s, reserved %s)", d.Allocated, d.Reserved)
	}
	return line
}

// latest leaves out findings that were said again with more: the same words later, now with the
// line of code.
func latest(findings []event.Finding) []event.Finding {
	var kept []event.Finding
	for i, f := range findings {
		again := slices.ContainsFunc(findings[i+1:],
			func(later event.Finding) bool {
				return later.Kind == f.Kind && (later.Title == f.Title || sameButFigures(f, later))
			})
		if !again {
			kept = append(kept, f)
		}
	}
	return kept
}

// figures are the numbers and sizes of a title.
var figures = regexp.MustCompile(`[\d.]+([KMGT]i)?B?`)

// sameButFigures reports whether two attempts found the same: only the figures differ.
func sameButFigures(a, b event.Finding) bool {
	return a.Memory == b.Memory &&
		figures.ReplaceAllString(a.Title, "") == figures.ReplaceAllString(b.Title, "") &&
		slices.Equal(a.Frames, b.Frames)
}

// atLine names the innermost line of the user's code where the title does not.
func atLine(f event.Finding) string {
	if len(f.Frames) == 0 {
		return ""
	}
	place := fmt.Sprintf(" at %s:%d", filepath.Base(f.Frames[0].File), f.Frames[0].Line)
	if strings.Contains(f.Title+" ", place+" ") {
		return ""
	}
	return "," + place
}

// Span prints seconds the way people say them: 0.8 s, 12 s, 3 min 20 s, 2 h 10 min.
func Span(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min %d s", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%d h %d min", int(d.Hours()), int(d.Minutes())%60)
}

// stepTime writes milliseconds in the unit that people use for so much.
func stepTime(ms float64) string {
	switch {
	case ms < 999.5:
		return fmt.Sprintf("%.3g ms", ms)
	case ms < 99_950:
		return fmt.Sprintf("%.3g s", ms/1000)
	}
	return fmt.Sprintf("%.0f s", ms/1000)
}
